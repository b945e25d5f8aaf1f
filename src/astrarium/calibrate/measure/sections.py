"""The sections of a calibration, their cases on the host and between devices, and their order.

Shapes are those that dense and expert layers of real models have under tensor parallelism, from
0.3 B to 400 B parameters, sampled with fixed seeds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from astrarium.calibrate.measure import cases
from astrarium.calibrate.measure.cases import (
    SUSTAINED_SECONDS,
    WINDOW_SECONDS,
    Case,
    Scale,
    Shape,
    processor_cases,
    working_dtype,
)
from astrarium.errors import InputError, did_you_mean

COLLECTIVES: Final = "collectives"  # needs several devices
HOST_SHARE: Final = {"n": 256, "k": 512, "heads": 2, "kv_heads": 2, "key_dim": 128}  # a small layer
HOST_DEPTH: Final = 12  # layers of one call, so that the start of a backward pass is shared
SUSTAINED_GEMMS: Final = 8
QUICK_SUSTAINED: Final = 3
SUSTAINED_ATTENTION: Final = 3
SUSTAINED_FLOPS: Final = (5e10, 4e12)
# Between cores a message waits for threads to wake up, now longer, now shorter.
CORES_SECONDS: Final = 0.05
GROUPED: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SEND: Final = "send"
BACKENDS: Final = {"cuda": "nccl", "cpu": "gloo"}
SIZES: Final = tuple(1 << power for power in range(10, 31, 2))  # bytes
QUICK_SIZES: Final = tuple(1 << power for power in (16, 22, 28))
SMALL_SIZES: Final = tuple(1 << power for power in (12, 14, 16, 18, 20, 22, 24))
TINY_SIZES: Final = (1 << 20,)


def host_cases(scale: Scale, device: str) -> Iterator[Case]:
    """Layers too small to keep the device busy, and single kernels of one element."""
    small = scale.is_small
    window = WINDOW_SECONDS if small else SUSTAINED_SECONDS
    for role in ("forward", "both"):
        length, depth = (16, 2) if small else (64, HOST_DEPTH)
        shape: Shape = {
            "role": role,
            "dtype": working_dtype(device),
            **HOST_SHARE,
            "batch": 1,
            "q_length": length,
            "groups": depth,
        }
        yield Case("host", "layer_host", shape, window, queue_ahead=False)
    for kernel in ("device_gap", "host_gap"):
        ahead = kernel == "device_gap"
        yield Case("host", "launch", {"kernel": kernel}, WINDOW_SECONDS, ahead)


def sustained_cases(scale: Scale, device: str) -> Iterator[Case]:
    """Products and attention that run until the power limit sets the clock."""
    dtype = working_dtype(device)
    if scale.is_small:
        shape = cases.gemm_shape("forward", 256, 256, 256, dtype)
        yield Case("sustained", "gemm_sustained", shape, 2 * WINDOW_SECONDS)
        return
    low, high = SUSTAINED_FLOPS
    every = cases.gemm_shapes(10**6, seed=1)
    shapes = [s for s in every if low < 2.0 * s[0] * s[1] * s[2] < high]
    count = QUICK_SUSTAINED if scale.is_thinned else SUSTAINED_GEMMS
    for m, n, k in random.Random(6).sample(shapes, SUSTAINED_GEMMS)[:count]:
        for role in ("forward", "dgrad", "wgrad"):
            shape = cases.gemm_shape(role, m, n, k, dtype)
            yield Case("sustained", "gemm_sustained", shape, SUSTAINED_SECONDS)
    if scale.is_thinned:
        return
    heads = [h for h in cases.attention_shapes() if low < h.flops < high and h.causal]
    for picked in random.Random(7).sample(heads, SUSTAINED_ATTENTION):
        for role in ("forward", "backward"):
            shape = picked.shape("flash2", role, dtype)
            yield Case("sustained", "attention_sustained", shape, SUSTAINED_SECONDS)


def collective_cases(scale: Scale, device: str, ranks: int) -> list[Case]:
    """Every operation on groups of two, four and so on, and of all ranks.

    `num_bytes` is the data of one rank before or after: the sum of an all-reduce, all that an
    all-gather gathers, all that a rank sends. Groups are the first `ranks` of a machine.
    """
    sizes = SIZES
    if scale.is_small:
        sizes = TINY_SIZES if scale.is_thinned else SMALL_SIZES
    elif scale.is_thinned:
        sizes = QUICK_SIZES
    groups = sorted({1 << power for power in range(1, ranks.bit_length())} | {ranks})
    picked = [(name, group) for group in groups for name in GROUPED] + [(SEND, 2)]
    return [
        Case(
            COLLECTIVES,
            name,
            {
                "dtype": working_dtype(device),
                "kernel": BACKENDS[device],
                "num_bytes": size,
                "ranks": group,
            },
            WINDOW_SECONDS if device == "cuda" else CORES_SECONDS,
        )
        for size, (name, group) in itertools.product(sizes, picked)
    ]


# Each lists the cases of a scale for a kind of device, "cuda" or "cpu".
ON_ONE_DEVICE: Final[dict[str, Callable[[Scale, str], Iterable[Case]]]] = {
    "gemm": cases.gemm_cases,
    "attention": cases.attention_cases,
    "pointwise": cases.pointwise_cases,
    "vocabulary": cases.vocabulary_cases,
    "stream": cases.stream_cases,
    "optimizer": cases.optimizer_cases,
    "host": host_cases,
    "grouped": cases.grouped_cases,
    "dtype": cases.dtype_cases,
    "sustained": sustained_cases,
    "processor": processor_cases,
}
HEATING: Final = "sustained"  # runs after the others: they should not meet a card it has heated
SECTIONS: Final = (*ON_ONE_DEVICE, COLLECTIVES)
QUICK_SHARE: Final = 5  # a quick run takes every fifth case


def check_sections(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in SECTIONS:
            raise InputError(
                f"unknown section '{name}'{did_you_mean(name, SECTIONS)}; "
                f"there are {', '.join(SECTIONS)}"
            )
    return tuple(name for name in SECTIONS if name in names)


def list_cases(names: Sequence[str], scale: Scale, device: str) -> list[Case]:
    """The cases of some sections without collectives, dealt evenly, in case a run ends early."""
    lists = {n: list(ON_ONE_DEVICE[n](scale, device)) for n in names if n in ON_ONE_DEVICE}
    hot = lists.pop(HEATING, [])
    return [*dealt([_thinned(cases, scale) for cases in lists.values()]), *hot]


def _thinned(cases: list[Case], scale: Scale) -> list[Case]:
    """For a quick run every fifth case of each operator, role and kernel, the first included."""
    if not scale.is_thinned:
        return cases
    seen: dict[tuple[str, str, str], int] = {}
    kept = []
    for case in cases:
        kind = (case.operator, str(case.shape.get("role")), str(case.shape.get("kernel")))
        if seen.setdefault(kind, 0) % QUICK_SHARE == 0:
            kept.append(case)
        seen[kind] += 1
    return kept


def dealt(lists: Sequence[Sequence[Case]]) -> list[Case]:
    """One list in which every given list is spread evenly."""
    placed = [
        ((index + 0.5) / len(cases), order, case)
        for order, cases in enumerate(lists)
        for index, case in enumerate(cases)
    ]
    return [case for _, _, case in sorted(placed, key=lambda entry: entry[:2])]
