"""Compares measured rows with the operator model and keeps a few factors.

The factor of a class of operators is the median of measured over predicted seconds, drawn towards 1
by a few imagined rows that agree with the model, and bounded. Short kernels do not count: the gap
between kernels and the host's time for a layer are factors of their own. Classes with `sustained`
rows are moved by the slow-down of a warm card. A device that the catalog does not know is compared
with a specification made of its best product and its best copy. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from astrarium.arrays import Floats
from astrarium.calibrate.fit.laws import CORE, CoreFit, fit_core
from astrarium.calibrate.measure.sections import GROUPED, SEND
from astrarium.catalog import Gpu, find_gpu
from astrarium.catalog.profiles import training_factors
from astrarium.cluster import parse_gpus
from astrarium.cost import collectives
from astrarium.cost.efficiency import (
    AttentionKernel,
    GemmRole,
    OperatorModel,
    Pointwise,
    operator_model,
)
from astrarium.errors import InputError
from astrarium.units import format_rate

Row = Mapping[str, Any]

# Kernels shorter than this are mostly launch, on any device.
LEAST_SECONDS: Final = 20e-6
# Imagined rows that agree with the model: few real rows should not move a class far.
PRIOR_ROWS: Final = 4.0
# Factors outside say that something else was measured than the model means.
BOUNDS: Final = (1 / 3, 3.0)
# Products of cards that clock above their nominal boost, against the nominal rate.
MOST_OF_PEAK: Final = 1.1
LEAST_ROWS: Final = 3
# What the best product of a known GPU reaches of its nominal rate: 0.75 to 0.85 over the GPU
# types of the catalog that have a measured one.
BEST_PRODUCT_SHARE: Final = 0.8
# A device nobody knows is given the design of this one.
STRANGER_LIKE: Final = "A100-SXM4-80GB"

SUSTAINED: Final = {"gemm_sustained": "gemm", "attention_sustained": "attention"}
PRODUCTS: Final = ("gemm", "grouped_gemm")
_ROLES: Final = {
    "forward": ("gemm", GemmRole.FORWARD),
    "dgrad": ("gemm_dgrad", GemmRole.DGRAD),
    "wgrad": ("gemm_wgrad", GemmRole.WGRAD),
}
_KERNELS: Final = {"flash2": AttentionKernel.FLASH2, "cudnn": AttentionKernel.FUSED}
_POINTWISE: Final = {
    "layer_norm": Pointwise.LAYER_NORM,
    "rms_norm": Pointwise.RMS_NORM,
    "swiglu": Pointwise.SWIGLU,
    "gelu": Pointwise.GELU,
    "rotary": Pointwise.ROTARY,
    "dropout_residual": Pointwise.DROPOUT_RESIDUAL,
}
_MAKES: Final = {"eager": False, "stable": False, "compiled": True}  # whether it is fused
_COPIES: Final = ("copy", "add")  # the traffic that `OperatorModel.streaming` stands for
_UPDATE: Final = ("adam", "norm", "clip", "cast")  # the parts of `OperatorModel.optimizer_step`
LEAST_LINK_BYTES: Final = 1 << 20  # smaller messages are latency, which training hides or batches
_LINKS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: getattr(collectives, f"{name}_seconds") for name in GROUPED},
    SEND: lambda fabric, num_bytes, group: collectives.send_seconds(fabric, num_bytes, False),
}


@dataclass(frozen=True, slots=True)
class ClassFit:
    ratio: float  # of true to modelled time, after regularisation
    median: float  # of measured to modelled time
    spread: float  # typical factor between a row and the median, minus one
    rows: int
    bounded: bool = False  # the median is out of bounds, so that the factor is not used


@dataclass(frozen=True, slots=True)
class Specification:
    """The figures of a device that no catalog has, from what it reached."""

    flops: float
    memory_bandwidth: float


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """All that a calibration teaches about a device."""

    gpu: str | None  # its name in the catalog
    operators: Mapping[str, ClassFit]
    intra_link: ClassFit | None  # messages inside a node
    host: Mapping[str, float]
    specification: Specification | None
    core: CoreFit | None = None  # of a processor


def fit_rows(rows: Sequence[Row], device: Mapping[str, Any]) -> DeviceFit:
    core = fit_core(rows) if device.get("kind") == "cpu" else None
    known = recognise(str(device.get("name", "")))
    if known:
        check_rates(rows, known)
    made_up = None if known else specification(rows)
    gpu = known or (None if made_up is None else stranger(str(device.get("name", "")), made_up))
    links = link_ratios(rows, known) if known else []
    return DeviceFit(
        gpu=CORE if core else known.name if known else None,
        intra_link=summarised(np.asarray(links)) if len(links) >= LEAST_ROWS else None,
        operators={} if gpu is None else class_fits(rows, operator_model(gpu)),
        host=host_seconds(rows),
        specification=made_up,
        core=core,
    )


def check_rates(rows: Iterable[Row], gpu: Gpu) -> None:
    """Refuse products that are faster than the GPU can be."""
    for row in rows:
        peak = gpu.peak_flops.get(row.get("dtype") or "")
        if peak is None or SUSTAINED.get(row["operator"], row["operator"]) not in PRODUCTS:
            continue
        sizes = (row["m"], row["n"], row["k"])
        rate = 2.0 * float(np.prod(sizes, dtype=float)) * (row.get("groups") or 1) / _seconds(row)
        if rate > MOST_OF_PEAK * peak:
            shape = " x ".join(map(str, sizes))
            raise InputError(
                f"{row['operator']} of {shape} in {row['dtype']}: {row['median_us']:g} us would be"
                f" {format_rate(rate, 'FLOP')}, but the peak of a {gpu.name} is"
                f" {format_rate(peak, 'FLOP')}; check the device and the unit, then measure again"
            )


def recognise(name: str) -> Gpu | None:
    """The catalog's GPU of this name, as drivers spell it."""
    try:
        return find_gpu(name)
    except InputError:
        return None


def specification(rows: Iterable[Row]) -> Specification | None:
    """Figures of an unknown device from its best product and its best copy."""
    products = [
        2.0 * row["m"] * row["n"] * row["k"] / _seconds(row)
        for row in rows
        if row["operator"] == "gemm" and row.get("section") == "gemm"
    ]
    copies = [row for row in rows if row["operator"] == "stream" and row["kernel"] == "copy"]
    if not products or not copies:
        return None
    largest = max(copies, key=lambda row: row["num_bytes"])  # beyond the caches
    rate = largest["num_bytes"] / _seconds(largest)
    efficiency = training_factors().stream.efficiency
    return Specification(max(products) / BEST_PRODUCT_SHARE, rate / efficiency)


def stranger(name: str, figures: Specification) -> Gpu:
    """A device of these figures with the design of a well-known GPU."""
    like = find_gpu(STRANGER_LIKE)
    scale = figures.flops / like.peak_flops["bf16"]
    return replace(
        like,
        name=name,
        aliases=(),
        architecture="",
        memory_bandwidth=figures.memory_bandwidth,
        peak_flops={"bf16": figures.flops, "fp32": figures.flops},
        measured_matmul_flops={},
        tdp_watts=like.tdp_watts * scale,
    )


def class_fits(rows: Sequence[Row], model: OperatorModel) -> dict[str, ClassFit]:
    """The factor of every class that has enough rows."""
    found = list(_compared([*rows, *_updates(rows)], model))
    heats = _heats(found)
    return {
        name: summarised(np.asarray(ratios) * heats.get(name, heats.get(_like(name), 1.0)))
        for name in sorted({entry.name for entry in found})
        if len(ratios := [e.ratio for e in found if e.name == name and not e.warm]) >= LEAST_ROWS
    }


class _Compared(NamedTuple):
    """A row that counts: its class, its kernel, measured over predicted, on a warm card or not."""

    name: str
    kernel: str | None
    ratio: float
    warm: bool


def _compared(rows: Iterable[Row], model: OperatorModel) -> Iterator[_Compared]:
    for row in rows:
        found = predicted(row, model)
        if found is not None and found[1] >= LEAST_SECONDS:
            name, seconds = found
            warm = row["operator"] in SUSTAINED
            yield _Compared(name, row.get("kernel"), _seconds(row) / seconds, warm)


def _heats(rows: Sequence[_Compared]) -> dict[str, float]:
    """By class, how much longer kernels take on a warm card; the same kernels are compared."""
    heats = {}
    for name in {row.name for row in rows if row.warm}:
        held = [row.ratio for row in rows if row.name == name and row.warm]
        kernels = {row.kernel for row in rows if row.name == name and row.warm}
        short = [r.ratio for r in rows if r.name == name and not r.warm and r.kernel in kernels]
        if min(len(held), len(short)) >= LEAST_ROWS:
            heats[name] = float(np.median(held) / np.median(short))
    return heats


def _like(name: str) -> str:
    """Products of other formats and of experts heat a card as plain ones do."""
    return "gemm" if "gemm" in name else name


def predicted(row: Row, model: OperatorModel) -> tuple[str, float] | None:
    """The class of a row and the seconds the model gives it; None if it models no such thing."""
    operator = SUSTAINED.get(row["operator"], row["operator"])
    if operator in ("gemm", "grouped_gemm"):
        return _predicted_product(operator, row, model)
    if operator == "attention":
        return _predicted_attention(row, model)
    if operator == "stream" and row["kernel"] in _COPIES:
        return "streaming", model.streaming(row["num_bytes"]).item()
    if operator == "update":
        return "optimizer", model.optimizer_step(row["parameters"]).item()
    if operator == "embedding":
        return "embedding", _pointwise(Pointwise.EMBEDDING, row, row["m"] * row["k"], model)
    if operator == "cross_entropy" and row["kernel"] in ("stable", "compiled"):
        return operator, _pointwise(Pointwise.CROSS_ENTROPY, row, row["m"] * row["n"], model)
    if operator in _POINTWISE:
        name = "pointwise_fused" if _MAKES[row["kernel"]] else "pointwise"
        return name, _pointwise(_POINTWISE[operator], row, row["m"] * row["n"], model)
    return None


def _predicted_product(operator: str, row: Row, model: OperatorModel) -> tuple[str, float] | None:
    if row["role"] not in _ROLES or row["dtype"] not in model.gpu.peak_flops:
        return None
    name, role = _ROLES[row["role"]]
    sizes = (row["m"], row["n"], row["k"])
    if operator == "grouped_gemm":
        seconds = model.grouped_gemm(row["groups"], *sizes, dtype=row["dtype"], role=role)
        return operator, seconds.item()
    name = f"gemm_{row['dtype']}" if row.get("section") == "dtype" else name
    return name, model.gemm(*sizes, dtype=row["dtype"], role=role).item()


def _predicted_attention(row: Row, model: OperatorModel) -> tuple[str, float] | None:
    if row["kernel"] not in _KERNELS:
        return None
    names = ("batch", "heads", "kv_heads", "q_length", "kv_length", "key_dim", "value_dim")
    seconds = model.attention(
        *(row[name] for name in names),
        causal=bool(row["causal"]),
        backward=row["role"] == "backward",
        kernel=_KERNELS[row["kernel"]],
    )
    return f"attention_{row['role']}", seconds.item()


def _pointwise(kind: Pointwise, row: Row, elements: int, model: OperatorModel) -> float:
    fused = _MAKES.get(row.get("kernel") or "eager", False)
    passes = {"forward": (False,), "backward": (True,), "both": (False, True)}[row["role"]]
    return sum(
        model.pointwise(kind, elements, backward=backward, fused=fused).item()
        for backward in passes
    )


def _updates(rows: Iterable[Row]) -> list[Row]:
    """Whole optimizer steps, put together from their parts."""
    parts: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["operator"] == "optimizer":
            parts.setdefault(row["parameters"], {})[row["kernel"]] = row["median_us"]
    return [
        {
            "operator": "update",
            "parameters": parameters,
            "median_us": sum(times[name] for name in _UPDATE),
        }
        for parameters, times in parts.items()
        if set(_UPDATE) <= set(times)
    ]


def summarised(ratios: Floats) -> ClassFit:
    """Median, spread and the regularised factor of one class."""
    logs = np.log(ratios)
    median = float(np.median(logs))
    drawn = median * len(logs) / (len(logs) + PRIOR_ROWS)
    low, high = np.log(BOUNDS)
    return ClassFit(
        ratio=float(np.exp(np.clip(drawn, low, high))),
        median=float(np.exp(median)),
        spread=float(np.exp(np.median(np.abs(logs - median))) - 1.0),
        rows=len(logs),
        bounded=not low < median < high,
    )


def host_seconds(rows: Iterable[Row]) -> dict[str, float]:
    """The gap between kernels, and what the host needs for a kernel and for a plain layer."""
    launches = {row["kernel"]: row for row in rows if row["operator"] == "launch"}
    layers = {
        row["role"]: _seconds(row) / row["groups"]
        for row in rows
        if row["operator"] == "layer_host"
    }
    found = {}
    if "device_gap" in launches:
        found["launch_seconds"] = _seconds(launches["device_gap"])
    if "host_gap" in launches:
        found["kernel_seconds"] = _seconds(launches["host_gap"])
    if "forward" in layers:
        found["layer_forward_seconds"] = layers["forward"]
    if layers.get("both", 0.0) > layers.get("forward", float("inf")):
        found["layer_backward_seconds"] = layers["both"] - layers["forward"]
    return found


def link_ratios(rows: Iterable[Row], gpu: Gpu) -> list[float]:
    """Measured over modelled seconds of large messages between GPUs of one node."""
    counted = [
        row
        for row in rows
        if row["operator"] in _LINKS
        and row["num_bytes"] >= LEAST_LINK_BYTES
        and row["ranks"] <= gpu.gpus_per_node
    ]
    if not counted:
        return []
    fabric = collectives.fabric_of(parse_gpus(f"{gpu.name}:{gpu.gpus_per_node}").pools[0])
    ratios = []
    for row in counted:
        group = collectives.place(row["ranks"], 1, fabric.gpus_per_domain)
        seconds = _LINKS[row["operator"]](fabric, row["num_bytes"], group)
        ratios.append(_seconds(row) / float(np.asarray(seconds)))
    return ratios


def _seconds(row: Row) -> float:
    return float(row["median_us"]) * 1e-6
