"""Measured collectives as curves: what `fit_collectives.py` fits and tests.

Reads the tables of a data folder (operators/nccl_single_node.parquet,
operators/allreduce_single_node.parquet, operators/published_bandwidth.csv,
catalog/nccl_measured.csv) and `collectives_published.json` beside this file. What is left out,
and why, stands in `about.left_out` of the catalog's collectives.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from astrarium.arrays import Floats
from astrarium.cluster import Network, parse_gpus
from astrarium.cluster.interconnect import Collective, network_profile
from astrarium.cost.collectives import Fabric, Group, fabric_of

MIB = 2.0**20
GIB = 2.0**30
SMALLEST = 512  # bytes; below, times are the same
PUBLISHED = Path(__file__).with_name("collectives_published.json")
OPERATIONS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "all2all": Collective.ALL_TO_ALL,
}
# Cloud machines by the name in the table: network and GB/s per node.
MACHINES = {
    "p4de.24xlarge": (Network.EFA_V1, 50.0),
    "p5.48xlarge": (Network.EFA, 400.0),
    "p5en.48xlarge": (Network.EFA, 400.0),
    "p6-b200.48xlarge": (Network.EFA, 400.0),
    "a3-megagpu-8g (TCPXO)": (Network.TCPXO, 200.0),
    "a3-ultragpu-8g (RoCE)": (Network.ROCE, 400.0),
}
# The sweep on unstated hardware ends at 92 GB/s of bus bandwidth: read as A100, 100 GB/s per node.
UNSTATED_NETWORK = 100.0
SIMAI_PER_GPU = 48.5  # GB/s that its shares refer to


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size and group of one operation on one machine, from one source."""

    source: str
    fabric: Fabric
    operation: Collective
    size: Floats  # ranks
    per_domain: Floats
    num_bytes: Floats
    seconds: Floats
    weight: float = 1.0  # 0: for tests only

    @property
    def between_nodes(self) -> bool:
        return bool(np.any(self.size > self.per_domain))

    @property
    def group(self) -> Group:
        return Group(self.size.astype(np.int64), self.per_domain.astype(np.int64))

    def where(self, chosen: Any) -> Curve:  # noqa: ANN401  (a mask)
        return replace(
            self,
            size=self.size[chosen],
            per_domain=self.per_domain[chosen],
            num_bytes=self.num_bytes[chosen],
            seconds=self.seconds[chosen],
        )


def read_curves(folder: Path) -> list[Curve]:
    """Return all curves."""
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return [
        *_nccl_sweeps(folder),
        *_vtrain(folder),
        *_measured(folder),
        *_galvatron(folder),
        *_perlmutter(published["perlmutter"]),
        *_simai(published["simai"]),
        _a3mega(published["a3mega"]),
        _two_ranks(published["two_ranks"]),
    ]


def machine(gpu: str, nodes: int, network: Network | None = None, rate: float = 0.0) -> Fabric:
    """Return the links of so many nodes; `rate` in GB/s per node."""
    per_node = 4 if "NVL72" in gpu else 8
    (pool,) = parse_gpus(f"{gpu}:{per_node * nodes}").pools
    if network is not None:
        latency = network_profile(network).latency
        pool = replace(
            pool, network=network, inter_node_bandwidth=rate * 1e9, inter_node_latency=latency
        )
    return fabric_of(pool)


def _inside(source: str, fabric: Fabric, operation: str, table: pd.DataFrame, **more: Any) -> Curve:  # noqa: ANN401
    size = table["ranks"].to_numpy(np.float64)
    data, seconds = table["bytes"].to_numpy(np.float64), table["us"].to_numpy(np.float64) * 1e-6
    return Curve(source, fabric, OPERATIONS[operation], size, size, data, seconds, **more)


def _nccl_sweeps(folder: Path) -> Iterator[Curve]:
    table = pd.read_parquet(folder / "operators" / "nccl_single_node.parquet")
    table = table[table.nccl_dtype == "half"].assign(bytes=lambda t: t.message_size * 2)
    table = table.rename(columns={"num_gpus": "ranks", "median_us": "us"})
    table = table[(table.gpu != "L40S-48GB") | (table.ranks == 2)]
    for (gpu, operation), rows in table.groupby(["gpu", "op_name"]):
        yield _inside(f"nccl-sweeps {gpu}", machine(gpu, 1), operation, rows)


def _vtrain(folder: Path) -> Iterator[Curve]:
    table = pd.read_parquet(folder / "operators" / "allreduce_single_node.parquet")
    doubling = np.isin(table.bytes / MIB, 2.0 ** np.arange(11))
    table = table[doubling & table.num_gpus.isin([2, 4, 8])]
    table = table.groupby(["gpu", "num_gpus", "bytes"], as_index=False).us.median()
    for gpu, rows in table.rename(columns={"num_gpus": "ranks"}).groupby("gpu"):
        yield _inside(f"vtrain {gpu}", machine(gpu, 1), "all_reduce", rows, weight=0.5)


def _measured(folder: Path) -> Iterator[Curve]:
    table = pd.read_csv(folder / "catalog" / "nccl_measured.csv")
    table = table[~table.source.str.contains("aiconfigurator|issue 527") & table.time_us.notna()]
    slow_start = (table.system == "p6-b200.48xlarge") & (table.size_bytes < 2**19)
    table = table[(table.size_bytes >= SMALLEST) & ~slow_start]
    table = table.rename(columns={"size_bytes": "bytes", "time_us": "us", "gpus": "ranks"})
    for (source, gpu, system, nodes, op), rows in table.groupby(
        ["source", "gpu", table.system.fillna(""), "nodes", "op"]
    ):
        name = _short(source)
        if nodes == 1:
            yield _inside(f"{name} {gpu}", machine(gpu, 1), op, rows, weight=0.5)
        elif system in MACHINES:
            yield _between(f"{name} {system}", machine(gpu, nodes, *MACHINES[system]), op, rows)
        elif "unstated" in system:
            fabric = machine("a100", nodes, Network.INFINIBAND, UNSTATED_NETWORK)
            yield replace(_between(f"{name} 4 nodes", fabric, op, rows), weight=0.5)


def _short(source: str) -> str:
    for part, name in (("ml-engineering", "ml-engineering"), ("Google", "gcp"), ("awsome", "aws")):
        if part in source:
            return name
    return source


def _between(source: str, fabric: Fabric, operation: str, table: pd.DataFrame) -> Curve:
    curve = _inside(source, fabric, operation, table)
    return replace(curve, per_domain=np.minimum(curve.size, fabric.gpus_per_domain))


def _galvatron(folder: Path) -> Iterator[Curve]:
    table = pd.read_csv(folder / "operators" / "published_bandwidth.csv")
    table = table[table.source.str.contains("sp_time")]
    parts = table.collective.str.extract(r"(?P<op>\w+?)_size_(?P<ranks>\d+)_(?P<mb>\d+)MB_time")
    milliseconds = table.notes.str.extract(r"time ([\d.]+) ms")[0].astype(float)
    rows = pd.DataFrame(
        {
            "op": parts.op.replace("allreduce", "all_reduce"),
            "ranks": parts.ranks.astype(int),
            "bytes": parts.mb.astype(float) * MIB,
            "us": milliseconds * 1e3,
        }
    )
    # The GPU is not stated; 231 GB/s of bus bandwidth for 1 GiB on eight is an A100's.
    for op, some in rows.groupby("op"):
        yield _inside("galvatron", machine("a100", 1), op, some, weight=0.0)


def _perlmutter(published: dict[str, Any]) -> Iterator[Curve]:
    four = machine("A100-SXM4-40GB", 2, Network.SLINGSHOT, 100.0)
    # Four GPUs without a switch: a third of the links to each of the others.
    fabric = replace(
        four,
        gpus_per_domain=4,
        gpus_per_node=4,
        peer_bandwidth=four.intra_bandwidth / 3,
        doubling=False,
    )
    sizes = 2.0 ** np.arange(18, 33)
    for operation in ("all_reduce", "all_gather", "reduce_scatter"):
        rows = [
            (
                nodes * per_node,
                per_node,
                data,
                _busbw_seconds(operation, nodes * per_node, data, rate),
            )
            for per_node, by_nodes in ((int(k), v) for k, v in published[operation].items())
            for nodes, shape in ((int(k), v) for k, v in by_nodes.items())
            for data, rate in zip(sizes, _sigmoid(shape, sizes), strict=True)
            # Below a tenth of the height the published curve is its offset, not a measurement.
            if rate > 0.1 * shape[0]
        ]
        columns = np.array(rows).T
        yield Curve("perlmutter", fabric, OPERATIONS[operation], *columns, weight=0.5)


def _sigmoid(shape: list[float], num_bytes: Floats) -> Floats:
    height, slope, centre, offset = shape
    return height / (1.0 + np.exp(-slope * (np.log2(num_bytes) - centre))) + offset


def _busbw_seconds(operation: str, ranks: int, num_bytes: float, rate: float) -> float:
    times = 2.0 if operation == "all_reduce" else 1.0
    return times * (ranks - 1) / ranks * num_bytes / (rate * 1e9)


def _simai(published: dict[str, Any]) -> Iterator[Curve]:
    fabric = machine("h100", 2, Network.INFINIBAND, 400.0)
    for operation in (Collective.ALL_GATHER, Collective.ALL_TO_ALL):
        rows = []
        for mebibytes, shares in published[operation].items():
            for nodes, share in zip(published["nodes"], shares, strict=False):
                ranks, data = 8 * nodes, float(mebibytes) * MIB
                # Shares of what one GPU's adapter moves: a ring's bytes pass eight of them.
                sent = (ranks - 1) / ranks / 8 if operation == "all_gather" else (ranks - 8) / ranks
                rows.append((ranks, 8, data, sent * data / (share * SIMAI_PER_GPU * 1e9)))
        yield Curve("simai", fabric, operation, *np.array(rows).T, weight=0.5)


def _a3mega(published: dict[str, Any]) -> Curve:
    sweep = published["all_reduce_us"]
    rows = pd.DataFrame(
        {"ranks": 16, "bytes": [float(x) for x in sweep], "us": list(sweep.values())}
    )
    fabric = machine("h100", 2, *MACHINES["a3-megagpu-8g (TCPXO)"])
    return _between("a3mega all-reduce", fabric, "all_reduce", rows)


def _two_ranks(published: dict[str, Any]) -> Curve:
    seconds = np.array([published["all_reduce_us"]["8"] * 1e-6])
    fabric = machine("a100", 2, Network.INFINIBAND, 200.0)
    two, one, data = np.array([2.0]), np.array([1.0]), np.array([8.0])
    return Curve("nccl-tests 150", fabric, Collective.ALL_REDUCE, two, one, data, seconds, 6.0)
