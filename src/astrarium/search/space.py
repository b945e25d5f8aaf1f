"""The space of strategies, produced in three steps so that most of it is never written out.

1. Degrees: every (tp, pp, cp, dp, ep, etp, micro-batch, sequence parallel) that uses the GPUs and
   divides the batch.
2. Layouts: for chosen degrees, every number of virtual stages and way to deal the layers.
3. Options: for chosen layouts, every recompute policy, ZeRO stage and offload. The four overlap
   switches belong to the space too, but turning one on never costs time or memory in the cost
   model, so only the best permitted setting is written out, unless a user's rule names a switch.

Sizes count all of it, before any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import product

import numpy as np

from astrarium.arrays import Bools, Ints, distinct
from astrarium.cluster import Pool
from astrarium.cost.stages import StagePlanner
from astrarium.errors import InputError, flag
from astrarium.model.blocks import Block, Module
from astrarium.model.workload import Workload
from astrarium.strategy.columns import GRANULARITIES, METHODS, Degrees, Options, module_mask
from astrarium.strategy.types import Granularity, LayerSplit, Method, RecomputeModule
from astrarium.value import Value

OVERLAP_SWITCHES = ("grad_reduce", "param_gather", "p2p", "tp")
ZERO_STAGES = (0, 1, 2, 3)
OFFLOAD = (False, True)
ENDS = 2  # chunks that hold no layer: one with the embedding alone, one with the head alone
OPTION_ORDER = tuple(field.name for field in fields(Options))


MOST_GRIDS = 20_000_000  # ways to divide GPUs and batch that are written down: bounds memory
FEW_DEGREES = 200_000  # that are looked at together whatever their GPU counts
MOST_PAIRS = 1_000_000  # of grids and their choices that are written down together
MOST_DEGREES = 200_000  # of them after which a part is full


def divisors(number: int) -> Ints:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return np.array(sorted({*small, *(number // d for d in small)}))


class Layout(Value, frozen=True):
    """One way to place layers: virtual stages and the split, for a given pp."""

    virtual: int
    split: LayerSplit
    chunk_layers: int


class Space:
    """All strategies of a workload on up to `gpus` GPUs of a pool (exactly `gpus` if `exact`)."""

    def __init__(
        self,
        workload: Workload,
        pool: Pool,
        planner: StagePlanner,
        *,
        exact: bool,
        expanded_overlaps: frozenset[str] = frozenset(),
        equal_splits: bool = False,
        shard_groups: bool = False,
        offload: bool = True,
    ) -> None:
        self.workload, self.pool, self.planner = workload, pool, planner
        self.exact = exact
        self.expanded_overlaps = expanded_overlaps
        self.offload = OFFLOAD if offload else OFFLOAD[:1]
        self.shard_groups = shard_groups  # whether ranks may divide in several groups
        self.equal_splits = equal_splits  # list a balanced split that is the even one, too
        self._layouts: dict[int, tuple[Layout, ...]] = {}
        self._options: dict[int, Options] = {}

    @cached_property
    def _grids(self) -> dict[str, Ints]:
        """Degrees that do not concern experts."""
        workload, model = self.workload, self.workload.model
        rows = _grid(
            tp=divisors(most_heads(workload)),
            pp=np.arange(1, model.num_layers + 1),
            cp=context_degrees(workload.seq_length),
            dp=divisors(workload.global_batch),
        )
        rows["gpus"] = rows["tp"] * rows["pp"] * rows["cp"] * rows["dp"]
        rows = _select(rows, self._usable(rows))
        return self._with_micro_batches(self._with_shard_groups(self._with_orders(rows)))

    def _with_orders(self, rows: dict[str, Ints]) -> dict[str, Ints]:
        """Both orders of ranks, where it matters which of them share a node.

        Experts keep the usual one: their groups would have to follow the pipeline.
        """
        rows = _cross(rows, pipeline_inside=np.array([False, True]))
        several = (rows["pp"] > 1) & (rows["dp"] > 1) & (self.workload.model.max_experts == 0)
        shared = rows["tp"] * rows["cp"] < self.pool.domain_of(rows["gpus"])
        return _select(rows, ~rows["pipeline_inside"] | (several & shared))

    def _with_shard_groups(self, rows: dict[str, Ints]) -> dict[str, Ints]:
        """One group, and every number of groups of whole domains: their links are the fast ones."""
        if not self.shard_groups:
            return rows | {"shard_groups": np.ones(len(rows["dp"]), np.int64)}
        rows = _cross(rows, shard_groups=divisors(self.workload.global_batch))
        groups, stage = rows["shard_groups"], rows["tp"] * rows["cp"] * rows["dp"]
        domain = self.pool.domain_of(rows["gpus"])
        whole = (rows["dp"] % groups == 0) & (stage // groups % domain == 0)
        return _select(rows, (groups == 1) | (whole & ~rows["pipeline_inside"]))

    def _with_micro_batches(self, rows: dict[str, Ints]) -> dict[str, Ints]:
        """Every micro-batch that divides what a replica works on."""
        batch = self.workload.global_batch
        sizes = {int(dp): divisors(batch // int(dp)) for dp in distinct(rows["dp"])}
        repeats = np.array([len(sizes[int(dp)]) for dp in rows["dp"]], np.int64)
        if repeats.sum() > MOST_GRIDS:
            raise InputError(
                f"a batch of {batch:,} and sequences of {self.workload.seq_length:,} can be divided"
                f" in {int(repeats.sum()):,} ways, more than {MOST_GRIDS:,}; choose numbers with"
                f" fewer divisors (powers of two), fewer GPUs, or {flag('mode')} exact",
                "mode",
            )
        crossed = {name: np.repeat(values, repeats) for name, values in rows.items()}
        every = [sizes[int(dp)] for dp in rows["dp"]]
        crossed["micro_batch"] = np.concatenate(every) if every else np.zeros(0, np.int64)
        crossed["num_micro_batches"] = batch // (crossed["dp"] * crossed["micro_batch"])
        return crossed

    @property
    def degrees(self) -> Degrees:
        return self.expanded(self._grids)

    @property
    def num_degrees(self) -> int:
        """The number of `degrees`, without writing them out."""
        return int(self._per_grid(self._grids).sum())

    @property
    def gpu_counts(self) -> Ints:
        """Numbers of GPUs that strategies use, ascending."""
        return distinct(self._grids["gpus"])

    def waves(self) -> list[Wave]:
        """The space in parts of similar GPU counts, so that whole parts can be passed over.

        A small space is one part: looking at all of it costs less than looking often.
        """
        rows = self._grids
        band = np.floor(np.log2(rows["gpus"])).astype(np.int64)
        if len(band) * len(self.choices["ep"]) <= FEW_DEGREES:
            band[:] = 0
        return [Wave(self, _select(rows, band == value)) for value in distinct(band)[::-1]]

    def expanded(self, rows: dict[str, Ints], hopeful: Bools | None = None) -> Degrees:
        """Grids with their choices, of which `hopeful` (grids, choices) may leave some out."""
        ranks = self.choices["ep"] * self.choices["etp"]
        fits = (rows["tp"] * rows["cp"] * rows["dp"])[:, None] % ranks == 0
        row, choice = np.nonzero(fits if hopeful is None else fits & hopeful)
        return Degrees.of(_select(rows, row) | _select(self.choices, choice))

    def _size(self, rows: dict[str, Ints]) -> int:
        """Strategies behind these grids, without writing them out."""
        return int((self._per_grid(rows) * self.counts(rows["pp"])).sum())

    def _per_grid(self, rows: dict[str, Ints]) -> Ints:
        """Degrees behind each grid."""
        grid = rows["tp"] * rows["cp"] * rows["dp"]
        distinct, index = np.unique(grid, return_inverse=True)
        divides = distinct[:, None] % (self.choices["ep"] * self.choices["etp"]) == 0
        return np.asarray(divides.sum(axis=1)[index])

    @cached_property
    def choices(self) -> dict[str, Ints]:
        """Values that every grid may have besides: degrees of experts, sequence parallelism."""
        experts, one = self.workload.model.max_experts, np.array([1])
        return _grid(
            ep=divisors(experts) if experts else one,
            etp=distinct(np.concatenate([*map(divisors, self._nodes)])) if experts else one,
            sequence_parallel=np.array([False, True]),
        )

    @property
    def _nodes(self) -> list[int]:
        """GPUs per node of every pool."""
        return [self.pool.gpus_per_node]

    def _usable(self, rows: dict[str, Ints]) -> Bools:
        """Whole nodes, or a part of one that divides it."""
        gpus = rows["gpus"]
        if self.exact:
            return gpus == self.pool.num_gpus
        node = self.pool.gpus_per_node
        whole = (gpus % node == 0) | ((gpus < node) & (node % np.minimum(gpus, node) == 0))
        return (gpus <= self.pool.num_gpus) & whole

    def most_chunks(self, pp: Ints) -> Ints:
        """Chunks of a rank at most: each holds a layer, the embedding or the head."""
        most = (self.planner.num_layers + ENDS) // pp
        return np.asarray(np.where(pp > 1, np.maximum(most, 1), 1))

    def layouts(self, pp: int) -> tuple[Layout, ...]:
        """Every number of virtual stages, with both splits if they are unlike."""
        if pp not in self._layouts:
            found = []
            for virtual in range(1, int(self.most_chunks(np.array(pp))) + 1):
                for split in self._splits(pp, virtual):
                    chunk = self.planner.max_chunk_layers(pp, virtual, split)
                    found.append(Layout(virtual, split, chunk))
            self._layouts[pp] = tuple(found)
        return self._layouts[pp]

    def _splits(self, pp: int, virtual: int) -> list[LayerSplit]:
        """Ways to deal the layers that are compared first."""
        layers, chunks = self.planner.num_layers, pp * virtual
        if chunks > layers:
            return [] if self.equal_splits or virtual == 1 else [LayerSplit.FREE]
        splits = [] if layers % chunks else [LayerSplit.EVEN]
        redundant = not self.equal_splits and self.planner.is_redundant(pp, virtual)
        if pp > 1 and not redundant:
            splits.append(LayerSplit.BALANCED)
        return splits

    def options(self, chunk_layers: int) -> Options:
        """Every option for chunks of at most so many layers, in a fixed order."""
        if chunk_layers not in self._options:
            self._options[chunk_layers] = options_of_chunks(
                chunk_layers, self.module_masks, self.expanded_overlaps, self.offload
            )
        return self._options[chunk_layers]

    @cached_property
    def module_masks(self) -> tuple[int, ...]:
        """Sets of modules worth naming: those the model has, none inside another."""
        modules = recomputable_modules(self.workload)
        inside_moe = {RecomputeModule.MOE_ACT, RecomputeModule.SHARED_EXPERTS}
        masks = []
        for chosen in product((False, True), repeat=len(modules)):
            names = [m for m, taken in zip(modules, chosen, strict=True) if taken]
            nested = RecomputeModule.MOE in names and inside_moe & set(names)
            if names and not nested:
                masks.append(module_mask(names))
        return tuple(sorted(masks))

    @property
    def modules(self) -> int:
        """All that some of these sets name, as bits."""
        return int(np.bitwise_or.reduce(np.array(self.module_masks, np.int64), initial=0))

    @property
    def overlap_copies(self) -> int:
        """Strategies that one written-out option stands for."""
        return int(2 ** (len(OVERLAP_SWITCHES) - len(self.expanded_overlaps)))

    def num_options(self, chunk_layers: int) -> int:
        """The number of `options`, without writing them out."""
        policies = 1 + len(self.module_masks) + 2 * chunk_layers
        switches = int(2 ** len(self.expanded_overlaps))
        return policies * len(ZERO_STAGES) * len(self.offload) * switches

    def strategies_per_degree(self, pp: int) -> int:
        options = sum(self.num_options(layout.chunk_layers) for layout in self.layouts(pp))
        return options * self.overlap_copies

    def counts(self, pp: Ints) -> Ints:
        """Strategies behind each row of degrees: only the number of stages matters."""
        distinct, index = np.unique(pp, return_inverse=True)
        return np.array([self.strategies_per_degree(int(pp)) for pp in distinct])[index]


class Wave:
    """A part of the space; degrees are written out only if they are looked at."""

    def __init__(self, space: Space, grids: dict[str, Ints]) -> None:
        self._space, self._grids = space, grids
        self.fewest_gpus = int(grids["gpus"].min())
        self.most_gpus = int(grids["gpus"].max())

    @property
    def size(self) -> int:
        return self._space._size(self._grids)

    def degrees(self, hopeful: Callable[[dict[str, Ints]], Bools] | None) -> Iterator[Degrees]:
        """In parts that memory allows; what is `hopeful` of some grids may change meanwhile."""
        grids, space = self._grids, self._space
        most = MOST_PAIRS // len(space.choices["ep"])
        waiting: list[Degrees] = []
        for start in range(0, len(grids["gpus"]), most):
            some = _select(grids, slice(start, start + most))
            waiting.append(space.expanded(some, hopeful and hopeful(some)))
            if sum(map(len, waiting)) > MOST_DEGREES:
                yield Degrees.joined(waiting)
                waiting = []
        if waiting:
            yield Degrees.joined(waiting)


def recomputable_modules(workload: Workload) -> tuple[RecomputeModule, ...]:
    blocks = [kind for kind in workload.model.kinds if isinstance(kind, Block)]
    parts = {linear.module for block in blocks for linear in block.linears}
    names = {linear.name for block in blocks for linear in block.linears}
    has = {
        RecomputeModule.CORE_ATTN: any(block.attentions for block in blocks),
        # Elsewhere TransformerEngine fuses norms into weights: nothing to redo.
        RecomputeModule.LAYERNORM: "kv_up" in names or Module.EXPERTS in parts,
        RecomputeModule.MLP: Module.MLP in parts,
        RecomputeModule.MLA_UP_PROJ: "kv_up" in names,
        RecomputeModule.MOE_ACT: Module.EXPERTS in parts,
        RecomputeModule.MOE: Module.EXPERTS in parts,
        RecomputeModule.SHARED_EXPERTS: Module.SHARED_EXPERTS in parts,
    }
    return tuple(module for module in RecomputeModule if has[module])


def most_heads(workload: Workload) -> int:
    blocks = [kind for kind in workload.model.kinds if isinstance(kind, Block)]
    heads = [attention.heads for block in blocks for attention in block.attentions]
    heads += [scan.heads for block in blocks for scan in block.scans]
    return int(np.gcd.reduce(heads)) if heads else 8


def context_degrees(seq_length: int) -> Ints:
    """Every rank takes two equal slices of the sequence, so that causal work is even."""
    return np.array(
        [1, *(int(d) for d in divisors(seq_length) if d > 1 and seq_length % (2 * d) == 0)]
    )


def options_of_chunks(
    chunk_layers: int,
    module_masks: Sequence[int],
    expanded_overlaps: frozenset[str],
    offload: Sequence[bool] = OFFLOAD,
) -> Options:
    """Every option for chunks of at most so many layers, in a fixed order."""
    recompute = _recompute_choices(chunk_layers, module_masks)
    switches = [
        (False, True) if name in expanded_overlaps else (True,) for name in OVERLAP_SWITCHES
    ]
    every = product(recompute, ZERO_STAGES, offload, product(*switches))
    rows = [(zero, *policy, host, *flags) for policy, zero, host, flags in every]
    columns = list(zip(*rows, strict=True))
    named = zip(OPTION_ORDER, columns, strict=True)
    return Options.of({k: np.array(v) for k, v in named})


def _recompute_choices(
    chunk_layers: int, module_masks: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    none, selective, full = (GRANULARITIES.index(g) for g in Granularity)
    no_method, uniform, block = (METHODS.index(m) for m in Method)
    choices = [(none, no_method, 0, 0)]
    choices += [(selective, no_method, 0, mask) for mask in module_masks]
    for layers in range(1, chunk_layers + 1):
        choices.append((full, uniform, layers, 0))
        choices.append((full, block, layers, 0))
    return choices


def _grid(**axes: Ints) -> dict[str, Ints]:
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    return {name: values.reshape(-1) for name, values in zip(axes, mesh, strict=True)}


def _cross(rows: dict[str, Ints], **axes: Ints) -> dict[str, Ints]:
    """Every row with every combination of further values."""
    extra = _grid(**axes)
    count, copies = len(next(iter(rows.values()))), len(next(iter(extra.values())))
    crossed = {name: np.repeat(values, copies) for name, values in rows.items()}
    return crossed | {name: np.tile(values, count) for name, values in extra.items()}


def _select(rows: dict[str, Ints], chosen: Bools | Ints | slice) -> dict[str, Ints]:
    return {name: values[chosen] for name, values in rows.items()}
