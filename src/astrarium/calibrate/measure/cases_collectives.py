"""Collective operations as cases, by size and group.

`num_bytes` is what each rank has before or after: the summed data of an all-reduce, all that an
all-gather gathers, all that a reduce-scatter sums, all that one rank sends in an all-to-all or to
its neighbour. `ranks` is the size of the group; groups are the first ranks of a machine.
"""

from __future__ import annotations

import itertools
from typing import Final

from astrarium.calibrate.measure.cases import WINDOW_SECONDS, Case, Scale, working_dtype
from astrarium.calibrate.measure.sections import COLLECTIVES

# Between cores a message waits for threads to wake up, now longer, now shorter.
CORES_SECONDS: Final = 0.05
GROUPED: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SEND: Final = "send"
BACKENDS: Final = {"cuda": "nccl", "cpu": "gloo"}
SIZES: Final = tuple(1 << power for power in range(10, 31, 2))  # bytes
QUICK_SIZES: Final = tuple(1 << power for power in (16, 22, 28))
SMALL_SIZES: Final = tuple(1 << power for power in (12, 14, 16, 18, 20, 22, 24))
TINY_SIZES: Final = (1 << 20,)


def collective_cases(scale: Scale, device: str, ranks: int) -> list[Case]:
    """Every operation on groups of two, four and so on, and of all ranks."""
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
