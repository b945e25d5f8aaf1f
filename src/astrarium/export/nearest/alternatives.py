"""What a plan gives up where a target lacks something: for every feature, other values to try.

Values of several features are tried where all agree. Which of the strategies are valid, fit and
are expressible is found out afterwards, so a table of likely values is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from astrarium.export.features import Feature
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity, Method, Overlap, Recompute, RecomputeModule

Values = tuple[Any, ...] | Callable[[Job], tuple[Any, ...]]
# By key of a strategy; `precision` is that of the workload, `pools` are those used together.
Change = Mapping[str, Values]

AS_TP: Final = 0  # etp: as the rest is split
RECOMPUTES: Final = (
    Recompute(),
    Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.CORE_ATTN,)),
    Recompute(Granularity.FULL, Method.UNIFORM, 1),
)
ZEROS: Final = (1, 2, 3, 0)


def pools_in_use(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(group.pool.name for group in job.nodes))


def _each_pool(job: Job) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in pools_in_use(job))


def _up_to(key: str) -> Callable[[Job], tuple[int, ...]]:
    """The plan's own value and its divisors, the largest first."""

    def values(job: Job) -> tuple[int, ...]:
        own: int = getattr(job.strategy, key)
        return tuple(n for n in range(own, 0, -1) if own % n == 0)

    return values


def _no_more(key: str) -> Callable[[Job], tuple[int, ...]]:
    """The plan's own value and all below it."""
    return lambda job: tuple(range(getattr(job.strategy, key), 0, -1))


def _any_pp(job: Job) -> tuple[int, ...]:
    return tuple(range(1, job.model.num_layers + 1))


def _own_and(key: str, others: tuple[Any, ...]) -> Callable[[Job], tuple[Any, ...]]:
    return lambda job: tuple(dict.fromkeys((getattr(job.strategy, key), *others)))


def _more_overlap(job: Job) -> tuple[Overlap, ...]:
    """The plan's own switches, with some of those that are off switched on."""
    own = job.strategy.overlap
    choices = product(*((on, True) for on in (own.grad_reduce, own.param_gather, own.p2p)))
    made = (
        replace(own, grad_reduce=reduce, param_gather=gather, p2p=send)
        for reduce, gather, send in choices
    )
    return tuple(dict.fromkeys(made))


_OTHER_ZERO: Final[Change] = {"zero_stage": ZEROS}
_OTHER_RECOMPUTE: Final[Change] = {"recompute": RECOMPUTES}
_MORE_SHARED: Final[Change] = {
    "zero_stage": _own_and("zero_stage", ZEROS),
    "recompute": _own_and("recompute", RECOMPUTES),
}
_ONE_POOL: Final[Change] = {**_MORE_SHARED, "pp": _any_pp, "pools": _each_pool}

CHANGES: Final[Mapping[Feature, Change]] = {
    Feature.TENSOR_PARALLEL: {"tp": (1,)},
    Feature.SEQUENCE_PARALLEL: {"sequence_parallel": (False,)},
    Feature.TENSOR_WITHOUT_SEQUENCE: {"sequence_parallel": (True,)},
    Feature.PIPELINE: {"pp": (1,)},
    Feature.CONTEXT_PARALLEL: {"cp": (1,)},
    Feature.EXPERT_PARALLEL: {"ep": (1,), "etp": (AS_TP, 1)},
    Feature.EXPERT_TENSOR_ALONE: {"etp": (AS_TP,)},
    Feature.EXPERT_TENSOR_BESIDE: {"etp": (1, AS_TP), "ep": _own_and("ep", (1,))},
    Feature.EXPERT_TENSOR_BETWEEN: {"etp": (1, AS_TP)},
    Feature.KV_HEADS_COPIED: {"tp": _up_to("tp")},
    Feature.SEQUENCE_REMAINDER: {"tp": _up_to("tp"), "cp": _up_to("cp")},
    Feature.EMPTY_STAGES: {"virtual_stages": _no_more("virtual_stages")},  # and another cut
    Feature.TIED_PIPELINE: {"pp": (1,)},
    Feature.FEW_MICRO_BATCHES: {"pp": _up_to("pp"), "micro_batch": _up_to("micro_batch")},
    Feature.LONE_REPLICA: {"tp": _up_to("tp"), "pp": _up_to("pp")},
    Feature.PIPELINE_INSIDE: {"pipeline_inside": (False,)},
    Feature.ZERO_0_SPLIT: _OTHER_ZERO,
    Feature.ZERO_0_GROUPS: _OTHER_ZERO,
    Feature.ZERO_1: {**_MORE_SHARED, **_OTHER_ZERO},
    Feature.ZERO_1_ALONE: {**_MORE_SHARED, **_OTHER_ZERO},
    Feature.RECOMPUTE_MODULES: _OTHER_RECOMPUTE,
    Feature.RECOMPUTE_GROUPS: _OTHER_RECOMPUTE,
    Feature.RECOMPUTE_SOME: _OTHER_RECOMPUTE,
    Feature.OFFLOAD_OPTIMIZER: {**_MORE_SHARED, "offload_optimizer": (False,)},
    Feature.REDUCE_APART: {"overlap": _more_overlap},
    Feature.REDUCE_APART_ALONE: {"overlap": _more_overlap},
    Feature.GATHER_APART: {"overlap": _more_overlap},
    Feature.SEND_APART: {"overlap": _more_overlap},
    Feature.FP16: {"precision": (Precision.BF16,)},
    Feature.FP8: {**_MORE_SHARED, "precision": (Precision.BF16,)},
    Feature.NODES: _ONE_POOL,
    Feature.UNEQUAL_NODES: _ONE_POOL,
    Feature.MEMORY: {**_MORE_SHARED, "micro_batch": _own_and("micro_batch", (1,))},
    # The strategy stays: plans that are made here pay on demand.
    Feature.SPOT: {},
    Feature.SPOT_BESIDE: {},
}

# Where no other plan helps.
UNCHANGEABLE: Final[Mapping[Feature, str]] = {
    Feature.RAMP: "all plans of the document have it: it is asked for, not found",
    Feature.EVALUATION: "all plans of the document have them: they are asked for, not found",
    Feature.PROCESSORS: "all plans of the document are for these processors",
}

# Not asked for by a strategy, but by its nodes and how they are paid for.
OF_NODES: Final = frozenset(
    feature for feature, change in CHANGES.items() if not change or "pools" in change
)


def values_of(job: Job, key: str, lacking: Collection[Feature]) -> tuple[Any, ...] | None:
    """What to try for a key, None if nothing says that it has to change."""
    found: tuple[Any, ...] | None = None
    for feature in Feature:
        values = CHANGES[feature].get(key) if feature in lacking else None
        if values is not None:
            new = values(job) if callable(values) else values
            found = new if found is None else tuple(value for value in found if value in new)
    return found
