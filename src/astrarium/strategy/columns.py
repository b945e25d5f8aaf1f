"""Many strategies as columns: one NumPy array per choice, one row per strategy.

Degrees come first, because they decide most of a strategy's cost; layouts and options are added to
chosen rows later. Columns with few values are small codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from astrarium.arrays import Bools, Ints
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Strategy,
)
from astrarium.value import Value

GRANULARITIES = tuple(Granularity)
METHODS = tuple(Method)
SPLITS = tuple(LayerSplit)
RECOMPUTE_MODULES = tuple(RecomputeModule)


def module_mask(modules: Sequence[RecomputeModule]) -> int:
    """The set of modules as bits of one integer."""
    return sum(1 << RECOMPUTE_MODULES.index(module) for module in set(modules))


def modules_of(mask: int) -> tuple[RecomputeModule, ...]:
    return tuple(m for i, m in enumerate(RECOMPUTE_MODULES) if mask >> i & 1)


class _Columns(Value, frozen=True):
    """Arrays of equal length, one per field."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        return cls(**{field.name: columns[field.name] for field in fields(cls)})

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return cls.__match_args__

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, one after another."""
        every = ([getattr(part, name) for part in parts] for name in cls._names())
        return cls(*map(np.concatenate, every))

    def columns(self) -> list[Any]:
        return [getattr(self, name) for name in self._names()]

    def take(self, rows: Ints | Bools) -> Self:
        return type(self)(*[column[rows] for column in self.columns()])

    def __len__(self) -> int:
        first: NDArray[np.generic] = getattr(self, self._names()[0])
        return len(first)


class Degrees(_Columns, frozen=True):
    """The degrees along the axes, and the micro-batch of each replica."""

    tp: Ints
    pp: Ints
    dp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    num_micro_batches: Ints
    sequence_parallel: Bools
    pipeline_inside: Bools
    shard_groups: Ints

    @property
    def gpus(self) -> Ints:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stage_stride(self) -> Ints:
        """Ranks from a GPU of one stage to its partner of the next."""
        return self.tp * self.cp * np.where(self.pipeline_inside, 1, self.dp)


class Options(_Columns, frozen=True):
    """The choices left once degrees and layers are fixed."""

    zero_stage: Ints
    granularity: Ints
    method: Ints
    recompute_layers: Ints
    recompute_modules: Ints
    offload_optimizer: Bools
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    overlap_p2p: Bools
    overlap_tp: Bools


_OVERLAPS = Overlap.__struct_fields__
RECOMPUTE_COLUMNS = ("granularity", "method", "recompute_layers", "recompute_modules")


def recompute_codes(recompute: Recompute) -> tuple[int, int, int, int]:
    """Values of `RECOMPUTE_COLUMNS`."""
    return (
        GRANULARITIES.index(recompute.granularity),
        METHODS.index(recompute.method),
        recompute.layers,
        module_mask(recompute.modules),
    )


def recompute_of(codes: Sequence[int]) -> Recompute:
    granularity, method, layers, mask = codes
    return Recompute(GRANULARITIES[granularity], METHODS[method], layers, modules_of(mask))


def degrees_of(strategies: Sequence[Strategy]) -> Degrees:
    names = [field.name for field in fields(Degrees)]
    return Degrees.of({name: np.array([getattr(s, name) for s in strategies]) for name in names})


def options_of(strategies: Sequence[Strategy]) -> Options:
    codes = [recompute_codes(s.recompute) for s in strategies]
    recompute = np.array(codes, np.int64).reshape(-1, len(RECOMPUTE_COLUMNS)).T
    overlaps = [np.array([getattr(s.overlap, n) for s in strategies], bool) for n in _OVERLAPS]
    zero = np.array([s.zero_stage for s in strategies], np.int64)
    offload = np.array([s.offload_optimizer for s in strategies], bool)
    columns: tuple[Any, ...] = (zero, *recompute, offload, *overlaps)
    return Options(*columns)


def strategy_at(
    degrees: Degrees, options: Options, row: int, virtual_stages: int, split: LayerSplit
) -> Strategy:
    flags = ("sequence_parallel", "pipeline_inside")
    chosen: dict[str, Any] = {
        f.name: (bool if f.name in flags else int)(getattr(degrees, f.name)[row])
        for f in fields(Degrees)
    }
    return Strategy(
        **chosen,
        virtual_stages=virtual_stages,
        split=split,
        zero_stage=int(options.zero_stage[row]),
        recompute=recompute_of([int(getattr(options, n)[row]) for n in RECOMPUTE_COLUMNS]),
        offload_optimizer=bool(options.offload_optimizer[row]),
        overlap=Overlap(*(bool(getattr(options, f"overlap_{name}")[row]) for name in _OVERLAPS)),
    )
