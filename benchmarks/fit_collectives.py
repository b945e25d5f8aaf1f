"""Fits the collective model: measured curves in, the numbers of `data/collectives.json` out.

    fit_collectives.py DATA_FOLDER [--write]

Every candidate is priced by `astrarium.cost.collectives` itself. First each operation of each
kind of link, on curves inside a node; then each network, on curves between nodes with the links
as fitted. Each fit is repeated without one source at a time and tested on that source. Without
`--write` nothing is changed. Texts, sources and assumed numbers in the file stay as they
are. Prints the tables of docs/cost-model.md. Needs pandas, pyarrow and scipy; takes a minute.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from collectives_data import MIB, PUBLISHED, Curve, read_curves
from scipy.optimize import least_squares

from astrarium.arrays import Floats
from astrarium.cluster.interconnect import (
    Collective,
    Line,
    LinkKind,
    LinkProfile,
    Network,
    NetworkLine,
    NetworkProfile,
    OperationProfile,
    link_profile,
    network_profile,
)
from astrarium.cost.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)

DATA = Path(__file__).parents[1] / "src" / "astrarium" / "catalog" / "data" / "collectives.json"
SECONDS = {
    Collective.ALL_REDUCE: all_reduce_seconds,
    Collective.ALL_GATHER: all_gather_seconds,
    Collective.REDUCE_SCATTER: reduce_scatter_seconds,
    Collective.ALL_TO_ALL: all_to_all_seconds,
}
FITTED_LINKS = (
    LinkKind.NVLINK2,
    LinkKind.NVLINK3,
    LinkKind.NVLINK4,
    LinkKind.NVLINK5,
    LinkKind.PCIE,
)
FITTED_NETWORKS = tuple(n for n in Network if n is not Network.TCP)
MICRO = 1e-6
ROBUST = 0.1  # residuals of log time beyond this count linearly
STARTS, STARTS_HELD_OUT = 10, 3
LARGE_NODES = 16  # extrapolation: fitted up to here, tested above

Links = Mapping[LinkKind, LinkProfile]


@dataclass(frozen=True, slots=True)
class Shape:
    """Start, bounds and meaning of the numbers of a fit."""

    start: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    curves = read_curves(options.folder)
    document = json.loads(DATA.read_text(encoding="utf-8"))
    report: dict[str, Any] = {"meaning": document["about"]["errors"]["meaning"]}
    links = {kind: link_profile(kind) for kind in LinkKind}
    report["inside_nodes"] = fit_links(curves, links, document)
    report["between_nodes"] = fit_networks(curves, links, document)
    report["generation_held_out"] = other_generation(curves, links)
    set_overlap(document)
    set_errors(document, report)
    print("\n".join([*table_by_kind(report), "", *table_by_source(report)]))
    if options.write:
        document["about"]["date"] = date.today().isoformat()
        document["about"]["errors"] = report
        DATA.write_text(layout(document) + "\n", encoding="utf-8")


def fit_links(curves: Sequence[Curve], links: dict[LinkKind, LinkProfile], document: Any) -> Any:  # noqa: ANN401
    """Fit every operation of every link kind; fills `links` and `document`, returns the errors."""
    errors: dict[str, Any] = {}
    for kind in FITTED_LINKS:
        errors[kind] = {}
        for operation in Collective:
            some = [c for c in curves if not c.between_nodes and c.operation is operation]
            some = [c for c in some if c.fabric.link.kind is kind]
            if not some:
                continue
            fitted = fit_link(kind, operation, some, STARTS)
            links[kind] = with_operation(links[kind], operation, fitted)
            write_operation(document["links"][kind], operation, links[kind])
            errors[kind][operation] = {
                **error_of(some, lambda c, k=kind: seconds_on(c, links[k])),
                "by_source": by_source(some, lambda c, k=kind: seconds_on(c, links[k])),
                "held_out": held_out(
                    some,
                    lambda rest, k=kind, o=operation: with_operation(
                        links[k], o, fit_link(k, o, rest, STARTS_HELD_OUT)
                    ),
                    seconds_on,
                ),
            }
    return errors


def fit_networks(curves: Sequence[Curve], links: Links, document: Any) -> Any:  # noqa: ANN401
    """Fit every network with the links as they are; fills `document`, returns the errors."""
    errors: dict[str, Any] = {}
    for network in FITTED_NETWORKS:
        some = [c for c in curves if c.between_nodes and c.fabric.network.network is network]
        some = [replace(c, fabric=replace(c.fabric, link=links[c.fabric.link.kind])) for c in some]
        fitted = fit_network(network, some, STARTS)
        document["networks"][network] |= written_network(fitted)

        def refit(rest: Sequence[Curve], network: Network = network) -> NetworkProfile:
            return fit_network(network, rest, STARTS_HELD_OUT)

        errors[network] = {
            **error_of(some, lambda c, f=fitted: seconds_over(c, f)),
            "by_source": by_source(some, lambda c, f=fitted: seconds_over(c, f)),
            "held_out": held_out(some, refit, seconds_over),
            "operation_held_out": held_out(
                [replace(c, source=str(c.operation)) for c in some], refit, seconds_over
            ),
        }
        large = [c.where(c.size / c.per_domain > LARGE_NODES) for c in some]
        large = [c for c in large if len(c.seconds)]
        if large:
            small = [c.where(c.size / c.per_domain <= LARGE_NODES) for c in some]
            fitted = refit([c for c in small if len(c.seconds)])
            errors[network][f"above {LARGE_NODES} nodes, from fewer"] = error_of(
                large, lambda c, f=fitted: seconds_over(c, f)
            )
    return errors


def other_generation(curves: Sequence[Curve], links: Links) -> Any:  # noqa: ANN401
    """What to expect of a generation of links that was never measured."""
    out: dict[str, Any] = {"meaning": "from 1 MiB up, with the constants of another generation"}
    for kind, other in (
        (LinkKind.NVLINK5, LinkKind.NVLINK4),
        (LinkKind.NVLINK4, LinkKind.NVLINK3),
    ):
        some = [c for c in curves if not c.between_nodes and c.fabric.link.kind is kind]
        some = [c.where(c.num_bytes >= MIB) for c in some]
        out[f"{kind} from {other}"] = error_of(some, lambda c, o=other: seconds_on(c, links[o]))
    return out


def seconds_on(curve: Curve, link: LinkProfile) -> Floats:
    """Predicted seconds of a curve with other constants of its links."""
    fabric = replace(curve.fabric, link=link, intra_latency=link.hop)
    return SECONDS[curve.operation](fabric, curve.num_bytes, curve.group)


def seconds_over(curve: Curve, network: NetworkProfile) -> Floats:
    """Predicted seconds of a curve with other constants of its network."""
    fabric = replace(curve.fabric, network=network, inter_latency=network.latency)
    return SECONDS[curve.operation](fabric, curve.num_bytes, curve.group)


def fit_link(
    kind: LinkKind, operation: Collective, curves: Sequence[Curve], starts: int
) -> tuple[OperationProfile, Line | None]:
    """Fit three lines, and the switch's where there is one, to curves inside a node."""
    base = link_profile(kind)
    switch = operation is Collective.ALL_REDUCE and base.in_switch is not None
    crowded = kind is LinkKind.PCIE
    # V100 was not measured below 1 MiB: its first line starts as late as an A100's.
    unseen = kind is LinkKind.NVLINK2
    slowest, soonest = (0.12, 8.6) if unseen else (0.01, 1.0)
    last_hop = 0.2 if operation is Collective.ALL_TO_ALL else 1.5
    shape = Shape(
        start=[0.3, max(soonest, 5), 0.8, 0.15, 7, 1.2, 0.5, 12, 3, 0.8],
        low=[0, soonest, 0.1, slowest, 1, 0.1, 0.2, 1, last_hop, 0.5],
        high=[0.75, 20, 2.5, 0.25, 60, 3, 0.92, 200, 5, 1.0],
    )
    if crowded:
        shape = extended(shape, [0.7, 0.9], [0.3, 0.5], [1, 1])
    if switch:
        shape = extended(shape, [80, 0.52], [30, 0.46], [150, 0.62])

    def profile(p: Floats) -> LinkProfile:
        factors = base.operations[operation].efficiency_above_ranks
        if crowded:
            factors = ((2, p[10]), (4, p[10] * p[11]))
        fitted = OperationProfile(tuple(lines_of(p[1:10])), float(p[0]), factors)
        in_switch = Line(p[-2] * MICRO, 0.0, p[-1]) if switch else base.in_switch
        return replace(base, operations={**base.operations, operation: fitted}, in_switch=in_switch)

    best = fit(shape, lambda p: residuals(curves, lambda c: seconds_on(c, profile(p))), starts)
    found = profile(rounded(best))
    return found.operations[operation], found.in_switch


def fit_network(network: Network, curves: Sequence[Curve], starts: int) -> NetworkProfile:
    """Fit latency and efficiencies of a network to curves between nodes."""
    base = network_profile(network)
    # InfiniBand's best rate (192 of 200, 46-48 of 50 GB/s) and its latency (8 bytes between two
    # ranks in 19.9 us) are known better than from the sweeps.
    # NCCL's first two protocols carry flags with the data: 1/4 and 0.92 of the rate is left.
    known = network is Network.INFINIBAND
    shape = Shape(
        start=[5.6 if known else 20, 1.5, 2, 0.1, 0.5, 0.94 if known else 0.9],
        low=[5.5 if known else 2, 1, 1, 0.005, 0.25, 0.93 if known else 0.5],
        high=[5.7 if known else 100, 10, 10, 0.25, 0.92, 0.96 if known else 0.97],
    )

    def profile(p: Floats) -> NetworkProfile:
        lines = [(1.0, p[3]), (p[1], p[4]), (three(p[1] * p[2]), p[5])]
        made = tuple(NetworkLine(float(x), float(e)) for x, e in lines)
        return replace(base, latency=p[0] * MICRO, lines=made)

    best = fit(shape, lambda p: residuals(curves, lambda c: seconds_over(c, profile(p))), starts)
    return profile(rounded(best))


def fit(shape: Shape, residual: Callable[[Floats], Floats], starts: int) -> Floats:
    """Robust least squares from several starts."""
    rng = np.random.default_rng(0)
    start, low, high = (np.array(x, dtype=np.float64) for x in (shape.start, shape.low, shape.high))
    best: Any = None
    for attempt in range(starts):
        first = start * (1.0 if attempt == 0 else np.exp(rng.normal(0, 0.5, len(start))))
        first = np.clip(first, low + 0.01 * (high - low) * 1e-2, high - 0.01 * (high - low))
        found = least_squares(
            residual, first, bounds=(low, high), loss="soft_l1", f_scale=ROBUST, max_nfev=150
        )
        if best is None or found.cost < best.cost:
            best = found
    return np.asarray(best.x)


def residuals(curves: Sequence[Curve], predicted: Callable[[Curve], Floats]) -> Floats:
    """Logarithms of predicted over measured, weighted by source and size."""
    fitted = [c for c in curves if c.weight > 0.0]
    return np.concatenate([np.log(predicted(c) / c.seconds) * weight_of(c) for c in fitted])


def weight_of(curve: Curve) -> Floats:
    """Sizes of training count most; sweeps other than nccl-tests' say little below 16 MiB."""
    by_size = np.where(curve.num_bytes >= MIB, 1.5, 1.0)
    small = 0.2 if curve.weight < 1.0 and not curve.between_nodes else 1.0
    return curve.weight * by_size * np.where(curve.num_bytes < 16 * MIB, small, 1.0)


def held_out(
    curves: Sequence[Curve],
    refit: Callable[[Sequence[Curve]], Any],
    predict: Callable[[Curve, Any], Floats],
) -> dict[str, Any]:
    """Errors on each source that can be left out, of a fit that did not see it."""
    out: dict[str, Any] = {}
    sources = sorted({c.source for c in curves})
    for source in sources:
        rest = [c for c in curves if c.source != source]
        if not any(c.weight > 0.0 for c in rest):
            continue
        fitted = refit(rest)
        out[source] = error_of(
            [c for c in curves if c.source == source], lambda c, f=fitted: predict(c, f)
        )
    return out


def error_of(curves: Sequence[Curve], predicted: Callable[[Curve], Floats]) -> dict[str, float]:
    """Errors of all rows; `mean_from_1_mib` is of those that training is made of."""
    errors = np.concatenate([predicted(c) / c.seconds - 1.0 for c in curves])
    large = errors[np.concatenate([c.num_bytes >= MIB for c in curves])]
    found = {
        "median": float(np.median(np.abs(errors))),
        "mean": float(np.mean(np.abs(errors))),
        "mean_from_1_mib": float(np.mean(np.abs(large))) if len(large) else 0.0,
        "signed": float(np.median(errors)),
    }
    return {"rows": len(errors), "large_rows": len(large)} | {
        name: round(value, 3) for name, value in found.items()
    }


def by_source(curves: Sequence[Curve], predicted: Callable[[Curve], Floats]) -> dict[str, Any]:
    grouped: dict[str, list[Curve]] = defaultdict(list)
    for curve in curves:
        grouped[curve.source].append(curve)
    return {source: error_of(some, predicted) for source, some in sorted(grouped.items())}


def with_operation(
    link: LinkProfile, operation: Collective, fitted: tuple[OperationProfile, Line | None]
) -> LinkProfile:
    profile, in_switch = fitted
    return replace(link, operations={**link.operations, operation: profile}, in_switch=in_switch)


def write_operation(entry: Any, operation: Collective, link: LinkProfile) -> None:  # noqa: ANN401
    profile = link.operations[operation]
    written: dict[str, Any] = {
        "local_copy": three(profile.local_copy),
        "lines": [written_line(line) for line in profile.lines],
    }
    if profile.efficiency_above_ranks:
        written["efficiency_above_ranks"] = {
            str(ranks): three(factor) for ranks, factor in profile.efficiency_above_ranks
        }
    entry[operation] = written
    if operation is Collective.ALL_REDUCE and link.in_switch is not None:
        entry["in_switch_all_reduce"] = written_line(link.in_switch)


def written_line(line: Line) -> dict[str, float]:
    return {
        "overhead_us": three(line.overhead / MICRO),
        "hop_us": three(line.hop / MICRO),
        "efficiency": three(line.efficiency),
    }


def written_network(network: NetworkProfile) -> dict[str, Any]:
    return {
        "latency_us": three(network.latency / MICRO),
        "lines": [
            {"latencies": three(line.latencies), "efficiency": three(line.efficiency)}
            for line in network.lines
        ],
    }


def set_overlap(document: Any) -> None:  # noqa: ANN401
    """The mean of what was measured."""
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["overlap"]["rows"]
    document["overlap"]["compute_slowdown"] = three(np.mean([x["slowdown"] for x in rows]))
    document["overlap"]["data"] = rows


def set_errors(document: Any, report: Any) -> None:  # noqa: ANN401
    """Each kind's error from 1 MiB up on sources it was not fitted to, or the worst of its like.

    For a network known from one source only, operations that the fit did not see stand in.
    """
    inside, between = report["inside_nodes"], report["between_nodes"]
    of_links = {kind: pooled([x["held_out"] for x in inside[kind].values()]) for kind in inside}
    of_networks = {
        network: pooled([x["held_out"]]) or pooled([x["operation_held_out"]])
        for network, x in between.items()
    }
    for entries, known in ((document["links"], of_links), (document["networks"], of_networks)):
        worst = max(known.values())
        for name, entry in entries.items():
            entry["relative_error"] = known.get(name) or worst


def pooled(held_out_errors: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean error over all rows from 1 MiB up; 0 if there are none."""
    errors = [error for by in held_out_errors for error in by.values() if error["large_rows"]]
    return round(mean_of(errors, "large_rows", "mean_from_1_mib"), 3) if errors else 0.0


def table_by_kind(report: Any) -> list[str]:  # noqa: ANN401
    """Errors by kind of link and operation, and by network, as a table in Markdown."""
    head = (
        "| link or network | operation | rows | median | mean | from 1 MiB | held out, from 1 MiB |"
    )
    out = [head, "|---|---|---|---|---|---|---|"]
    for kind, operations in report["inside_nodes"].items():
        out += [_row(kind, o.replace("_", "-"), x) for o, x in operations.items()]
    for network, x in report["between_nodes"].items():
        out.append(_row(network, "between nodes", x))
    return out


def _row(kind: str, operation: str, error: Any) -> str:  # noqa: ANN401
    held = pooled([error["held_out"]])
    cells = [kind, operation, str(error["rows"])]
    cells += [percent(error[name]) for name in ("median", "mean", "mean_from_1_mib")]
    return "| " + " | ".join([*cells, percent(held) if held else ""]) + " |"


def table_by_source(report: Any) -> list[str]:  # noqa: ANN401
    """Errors by source, in the fit and held out, all operations and sizes together."""
    inside = [x for by in report["inside_nodes"].values() for x in by.values()]
    parts = [*inside, *report["between_nodes"].values()]
    out = ["| source | rows | mean | held out | held out, from 1 MiB |", "|---|---|---|---|---|"]
    for source in sorted({name for part in parts for name in part["by_source"]}):
        seen = [p["by_source"][source] for p in parts if source in p["by_source"]]
        held = [p["held_out"][source] for p in parts if source in p["held_out"]]
        cells = [source, str(sum(x["rows"] for x in seen)), percent(mean_of(seen, "rows", "mean"))]
        cells += [
            percent(mean_of(held, rows, value)) if sum(x[rows] for x in held) else ""
            for rows, value in (("rows", "mean"), ("large_rows", "mean_from_1_mib"))
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def mean_of(errors: Sequence[Mapping[str, float]], rows: str, value: str) -> float:
    return sum(x[rows] * x[value] for x in errors) / sum(x[rows] for x in errors)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def lines_of(p: Floats) -> list[Line]:
    """Lines from slow to fast in bytes, as the lines of a network are paired with them."""
    lines = [Line(p[i] * MICRO, p[i + 1] * MICRO, float(p[i + 2])) for i in range(0, len(p), 3)]
    return sorted(lines, key=lambda line: line.efficiency)


def extended(shape: Shape, start: list[float], low: list[float], high: list[float]) -> Shape:
    return Shape([*shape.start, *start], [*shape.low, *low], [*shape.high, *high])


def rounded(values: Floats) -> Floats:
    return np.array([three(value) for value in values])


def three(value: float) -> float:
    """Three digits: what the data can tell, and what the file holds."""
    return float(f"{value:.3g}")


def layout(value: Any, depth: int = 0) -> str:  # noqa: ANN401
    """JSON with short objects on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    short = len(flat) + 2 * depth <= 150 or not isinstance(value, dict | list)
    if short or (isinstance(value, dict) and "overhead_us" in value):
        return flat
    pad = "  " * (depth + 1)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(k)}: {layout(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + "  " * depth + "}"
    inner = [f"{pad}{layout(v, depth + 1)}" for v in value]
    return "[\n" + ",\n".join(inner) + "\n" + "  " * depth + "]"


if __name__ == "__main__":
    main()
