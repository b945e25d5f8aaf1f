"""Strategies climbed, one change after another: what `climber.py` holds against the planner.

Nothing of the search is used: not its space, its bounds or its dealing. A strategy counts if no
rule of Megatron refuses it and it fits; what it takes is what `predict` says, of many at once.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from astrarium.cluster import Cluster
from astrarium.cost.mixed import ClusterModel
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.formats import runnable
from astrarium.search.plan import estimate
from astrarium.search.planner import predict
from astrarium.strategy.columns import SPLITS, degrees_of, options_of
from astrarium.strategy.document import strategy_from_dict, strategy_to_dict
from astrarium.strategy.placement import laid_over
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Overlap,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)
from astrarium.strategy.validity import megatron_rules

ROUNDING = 1e-6
AT_ONCE = 64  # strategies that are priced together
SCREENED = 192  # random ones, of which the best few are climbed from
FROM_RANDOM, PATIENCE, LONG_PATIENCE = 3, 3, 8  # starts; rounds without a gain
DRIFT = 3e-4  # how much slower a step may be: most moves from a good dealing change nothing


class Candidate(NamedTuple):
    strategy: Strategy  # without stages
    sizes: tuple[int, ...]  # layers of every chunk, in model order
    order: tuple[int, ...]  # of the pools along the pipeline


class Scored(NamedTuple):
    """Of two the lesser is better: what lacks less memory, then what is faster."""

    excess: float  # bytes too many on the fullest GPU, as a share of its memory; 0 if it fits
    seconds: float
    place: int  # breaks ties: the first that was priced
    candidate: Candidate


class Prices:
    """Strategies of one problem: whether Megatron permits them, what they take, what they need."""

    def __init__(self, workload: Workload, cluster: Cluster, *, idle: bool = False) -> None:
        """With `idle`, ranks may hold no layer; plans have none, but for the outer of one pool."""
        self.workload, self.cluster = runnable(workload, *cluster.pools), cluster
        self.idle = idle
        self.model = ClusterModel(self.workload, cluster)
        self.constants = [constant_fields(self.workload, pool) for pool in cluster.pools]
        self._met: set[Candidate] = set()

    @property
    def predictions(self) -> int:
        return len(self._met)

    def strategy(self, candidate: Candidate) -> Strategy:
        """With its stages: blocks of GPUs laid over the pools in their order."""
        one, pools = candidate.strategy, self.cluster.pools
        sizes = [pools[pool].num_gpus for pool in candidate.order]
        block = one.gpus // one.pp
        placed = [
            {pools[candidate.order[place]].name: count for place, count in parts}
            for parts in laid_over(block, one.pp, sizes)
        ]
        ends = np.cumsum(candidate.sizes).tolist()
        stages = tuple(
            Stage("", (end - size, end), block, c % one.pp, c // one.pp, placed[c % one.pp])
            for c, (size, end) in enumerate(zip(candidate.sizes, ends, strict=True))
        )
        return replace(one, stages=stages)

    def permitted(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that no rule of Megatron refuses on any of the pools."""
        every = [candidate.strategy for candidate in candidates]
        split = np.full(len(every), SPLITS.index(LayerSplit.FREE))
        virtual = np.array([one.virtual_stages for one in every])
        rows = Rows(degrees_of(every), virtual, split, options_of(every))
        alive = np.ones(len(every), bool)
        for constants in self.constants:
            fields = Fields(constants, rows)
            for rule in megatron_rules():
                alive &= ~np.broadcast_to(rule.rejects(fields), alive.shape)
        return [
            candidate for candidate, is_alive in zip(candidates, alive, strict=True) if is_alive
        ]

    def scored(self, candidates: Iterable[Candidate]) -> list[Scored]:
        """What was not met before, priced, the best first."""
        new = [one for one in dict.fromkeys(candidates) if one not in self._met]
        new = [one for one in new if self.idle or self._is_at_work(one)]
        new = self.permitted(new) if new else []
        first = len(self._met)
        self._met.update(new)
        found = []
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            plans = estimate(self.model, [self.strategy(one) for one in some])
            for place, (candidate, plan) in enumerate(zip(some, plans, strict=True), first + start):
                excess = max(m.peak_bytes / m.capacity_bytes - 1 for m in plan.memory)
                excess = 0.0 if plan.fits else max(excess, 1e-12)
                found.append(Scored(excess, plan.iteration_seconds, place, candidate))
        return sorted(found)

    def _is_at_work(self, candidate: Candidate) -> bool:
        """Whether every rank holds a layer; on one pool the outer ones have embedding and head."""
        held = np.reshape(candidate.sizes, (-1, candidate.strategy.pp)).sum(axis=0)
        inner = held if len(self.cluster.pools) > 1 else held[1:-1]
        return bool((inner > 0).all())

    def seconds_of(self, given: dict[str, Any]) -> float:
        """Of a strategy of a plan document."""
        return estimate(self.model, [self._strategy_of(given)])[0].iteration_seconds

    def _strategy_of(self, given: dict[str, Any]) -> Strategy:
        layers, gpus = self.workload.model.num_layers, self.cluster.num_gpus
        batch = self.workload.global_batch
        return strategy_from_dict(given, where="", gpus=gpus, global_batch=batch, layers=layers)

    def is_in_turn(self, given: dict[str, Any]) -> bool:
        """Whether the stages of every pool follow each other, as in all that is climbed."""
        one = self._strategy_of(given)
        stages = sorted(one.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
        names = [next(iter(stage.pools)) for stage in stages[: one.pp] if stage.pools]
        changes = sum(a != b for a, b in pairwise(names))
        return changes < len(self.cluster.pools)

    def read(self, given: dict[str, Any]) -> Candidate:
        """A strategy of a plan document."""
        one = self._strategy_of(given)
        stages = sorted(one.stages, key=lambda stage: (stage.chunk, stage.pipeline_rank))
        sizes = tuple(stage.num_layers for stage in stages)
        names = [pool.name for pool in self.cluster.pools]
        met = [names.index(name) for name in _in_order([s.pools for s in stages[: one.pp]])]
        order = met if len(met) == len(names) else range(len(names))
        return Candidate(replace(one, stages=(), split=LayerSplit.FREE), sizes, tuple(order))

    def written(self, candidate: Candidate) -> dict[str, Any]:
        """As JSON that `predict` reads; it must say the same of it, to the bit."""
        one = self.strategy(candidate)
        plan = estimate(self.model, [one])[0]
        given = json.loads(json.dumps(strategy_to_dict(plan.strategy)))
        layers, gpus = self.workload.model.num_layers, one.gpus
        batch = self.workload.global_batch
        again = strategy_from_dict(given, where="", gpus=gpus, global_batch=batch, layers=layers)
        said = predict(self.workload, self.cluster, again)
        if (said.iteration_seconds, said.fits) != (plan.iteration_seconds, plan.fits):
            raise AssertionError(f"predict differs: {said.iteration_seconds} of {given}")
        return given


def _in_order(ranks: Sequence[dict[str, int]]) -> list[str]:
    """Pools in the order of the ranks; of those of one rank, what the next has too comes last."""
    found: list[str] = []
    for number, pools in enumerate(ranks):
        later = ranks[number + 1] if number + 1 < len(ranks) else {}
        found += sorted(
            (name for name in pools if name not in found), key=lambda name: name in later
        )
    return found


class Moves:
    """Random strategies, and the neighbours of one."""

    def __init__(self, prices: Prices, rng: random.Random) -> None:
        self.rng, self.workload = rng, prices.workload
        self.layers = prices.workload.model.num_layers
        self.pools = [pool.num_gpus for pool in prices.cluster.pools]
        self.constants = prices.constants
        self.experts = int(self.constants[0]["experts"])
        self.node = max(pool.gpus_per_node for pool in prices.cluster.pools)

    @cached_property
    def grids(self) -> list[tuple[int, int, int, int]]:
        """Every tp, pp, cp and dp that use all GPUs; no tp x cp group lies on two pools."""
        gpus, batch, seq = sum(self.pools), self.workload.global_batch, self.workload.seq_length
        heads = self.constants[0]["heads"]
        return [
            (tp, pp, cp, gpus // (tp * pp * cp))
            for tp in _divisors(math.gcd(gpus, heads))
            for cp in _divisors(gpus // tp)
            if (cp == 1 or seq % (2 * cp) == 0) and all(n % (tp * cp) == 0 for n in self.pools)
            for pp in _divisors(gpus // tp // cp)
            if pp <= self.layers and batch % (gpus // (tp * pp * cp)) == 0
        ]

    def random(self) -> Candidate:
        grid = self.rng.choice(self.grids)
        one = replace(self._on_grid(Strategy(), grid), sequence_parallel=self._coin())
        for change in (self._micro_batch, self._virtual, self._sharding, self._experts):
            one = change(one)
        one = self._recompute(one) if self._coin() else one
        order = tuple(self.rng.sample(range(len(self.pools)), len(self.pools)))
        one = self._tidy(replace(one, pipeline_inside=self._coin() and len(order) == 1))
        return Candidate(one, self._dealt(one), order)

    def neighbours(self, of: Candidate, number: int) -> list[Candidate]:
        only_sizes = self._coin() and len(of.sizes) > 1
        found = []
        for _ in range(number):
            one = self._neighbour(of, only_sizes)
            found.append(self._neighbour(one, only_sizes) if self.rng.random() < 0.3 else one)
        return found

    def _neighbour(self, of: Candidate, only_sizes: bool) -> Candidate:
        if len(of.sizes) > 1 and (only_sizes or self._coin()):
            return of._replace(sizes=self._moved(of.sizes))
        if len(self.pools) > 1 and self.rng.random() < 0.1:
            return of._replace(order=tuple(self.rng.sample(of.order, len(of.order))))
        changes: tuple[Callable[[Strategy], Strategy], ...] = (
            *(self._degrees, self._micro_batch, self._virtual, self._sharding, self._recompute),
            *(self._switch, self._experts),
        )
        one = self._tidy(self.rng.choice(changes)(of.strategy))
        same = one.pp * one.virtual_stages == len(of.sizes)
        return Candidate(one, of.sizes if same else self._dealt(one), of.order)

    def _coin(self) -> bool:
        return self.rng.random() < 0.5

    def _on_grid(self, one: Strategy, grid: Sequence[int]) -> Strategy:
        tp, pp, cp, dp = grid
        micro = math.gcd(one.micro_batch, self.workload.global_batch // dp)
        return replace(one, tp=tp, pp=pp, cp=cp, dp=dp, micro_batch=micro)

    def _degrees(self, one: Strategy) -> Strategy:
        """A factor moves from one axis to another."""
        own = (one.tp, one.pp, one.cp, one.dp)
        near = [g for g in self.grids if sum(a != b for a, b in zip(g, own, strict=True)) == 2]
        return self._on_grid(one, self.rng.choice(near)) if near else one

    def _micro_batch(self, one: Strategy) -> Strategy:
        sizes = _divisors(self.workload.global_batch // one.dp)
        few = sizes[: max(3, sizes.index(one.micro_batch) + 2)]
        return replace(one, micro_batch=self.rng.choice(few))

    def _virtual(self, one: Strategy) -> Strategy:
        most = self.layers // one.pp
        near = [v for v in (1, one.virtual_stages - 1, one.virtual_stages + 1) if 1 <= v <= most]
        return replace(one, virtual_stages=self.rng.choice([*near, self.rng.randint(1, most)]))

    def _sharding(self, one: Strategy) -> Strategy:
        zero = self.rng.choice((0, 1, 1, 1) if one.pp > 1 else (0, 1, 2, 3))
        offload = zero == 1 and self.rng.random() < 0.25
        return replace(one, zero_stage=zero, offload_optimizer=offload, overlap=Overlap())

    def _recompute(self, one: Strategy) -> Strategy:
        kind = self.rng.choice(tuple(Granularity))
        if kind is Granularity.SELECTIVE:
            number = self.rng.choice((1, 1, 2, 3))
            modules = set(self.rng.sample(tuple(RecomputeModule), number))
            if modules < {*one.recompute.modules} or self._coin():  # also one more, or one less
                modules ^= {*one.recompute.modules}
            chosen = tuple(module for module in RecomputeModule if module in modules)
            return replace(
                one, recompute=Recompute(kind, modules=chosen) if chosen else Recompute()
            )
        if kind is Granularity.NONE:
            return replace(one, recompute=Recompute())
        most = -(-self.layers // (one.pp * one.virtual_stages)) + 1
        near = [n for n in (one.recompute.layers - 1, one.recompute.layers + 1) if n > 0]
        layers = self.rng.choice([*near, self.rng.randint(1, most)])
        method = self.rng.choice((Method.BLOCK, Method.BLOCK, Method.UNIFORM))
        return replace(one, recompute=Recompute(kind, method, layers))

    def _switch(self, one: Strategy) -> Strategy:
        name = self.rng.choice(("grad_reduce", "param_gather", "p2p", "tp", "sequence", "order"))
        if name == "sequence":
            return replace(one, sequence_parallel=not one.sequence_parallel, overlap=Overlap())
        if name == "order":
            return replace(one, pipeline_inside=not one.pipeline_inside and len(self.pools) == 1)
        flipped = {name: not getattr(one.overlap, name)}
        return replace(one, overlap=replace(one.overlap, **flipped))

    def _experts(self, one: Strategy) -> Strategy:
        grid = one.tp * one.cp * one.dp
        ep = self.rng.choice(_divisors(math.gcd(grid, self.experts))) if self.experts else 1
        left = _divisors(math.gcd(grid // ep, self.node))
        return replace(one, ep=ep, etp=self.rng.choice(left) if self.experts else 1)

    def _tidy(self, one: Strategy) -> Strategy:
        """What follows from the rest, and what Megatron would refuse for certain set right."""
        batches = self.workload.global_batch // (one.dp * one.micro_batch)
        chunked = one.pp > 1 and batches % one.pp == 0
        virtual = min(one.virtual_stages, self.layers // one.pp) if chunked else 1
        zero = min(one.zero_stage, 1) if one.pp > 1 else one.zero_stage
        sequence = one.tp > 1 and (one.sequence_parallel or self.experts > 0)
        if one.tp * one.cp * one.dp % (one.ep * one.etp):
            one = replace(one, ep=math.gcd(one.ep, one.tp * one.cp * one.dp), etp=1)
        on = one.overlap
        reduce = on.grad_reduce or zero >= 2
        fast = all(c["nvlink_domain"] >= one.tp and not c["mla"] for c in self.constants)
        return replace(
            one,
            num_micro_batches=batches,
            virtual_stages=virtual,
            zero_stage=zero,
            offload_optimizer=one.offload_optimizer and zero == 1,
            sequence_parallel=sequence,
            pipeline_inside=one.pipeline_inside and one.pp > 1 and not self.experts,
            split=LayerSplit.FREE,
            overlap=Overlap(
                grad_reduce=reduce,
                param_gather=zero == 3 or (on.param_gather and reduce and zero > 0),
                p2p=virtual > 1 and (on.p2p or one.pp == 2 or self._coin()),
                tp=sequence and fast and (on.tp or self._coin()),
            ),
        )

    def _dealt(self, one: Strategy) -> tuple[int, ...]:
        """About even, the ends lighter or not."""
        chunks = one.pp * one.virtual_stages
        sizes = [self.layers // chunks] * chunks
        every = list(range(chunks))
        larger = self.rng.choice((every, every[::-1], self.rng.sample(every, chunks)))
        for place in larger[: self.layers % chunks]:
            sizes[place] += 1
        for end in (0, chunks - 1):
            for _ in range(self.rng.choice((0, 0, 1, 2, 3)) if chunks > 1 else 0):
                _shift(sizes, (end, self.rng.randrange(chunks)))
        return tuple(sizes)

    def _moved(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Layers move between chunks."""
        new, rng, last = list(sizes), self.rng, len(sizes) - 1
        kind = rng.randrange(7)
        if kind == 0:  # two chunks change places
            i, j = rng.sample(range(last + 1), 2)
            new[i], new[j] = new[j], new[i]
        elif kind == 1:  # a cut is shifted
            i = rng.randrange(last)
            _shift(new, (i, i + 1) if self._coin() else (i + 1, i))
        elif kind == 2:  # an end holds nothing but the embedding or the head
            end = rng.choice((0, last))
            while new[end]:
                _shift(new, (end, rng.choice([c for c in range(last + 1) if c != end])))
        elif kind == 3:  # several layers move
            _shift(new, rng.sample(range(last + 1), 2), rng.randint(2, 4))
        else:  # one layer moves, or several do
            for _ in range(rng.choice((1, 1, 2, 3))):
                _shift(new, rng.sample(range(last + 1), 2))
        return tuple(new)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _shift(sizes: list[int], way: Sequence[int], number: int = 1) -> None:
    """Layers of one chunk, as many as it has, go to another."""
    source, target = way
    taken = min(number, sizes[source])
    sizes[source] -= taken
    sizes[target] += taken


class Climber:
    """Climbs from the planner's plans, from random strategies, and again from the best."""

    def __init__(self, prices: Prices, seed: str, seconds: float) -> None:
        self.prices, self.rng = prices, random.Random(seed)
        self.moves = Moves(prices, self.rng)
        self.best: dict[tuple[int, ...], Scored] = {}  # by degrees
        self._end = time.process_time() + seconds

    def run(self, starts: Sequence[dict[str, Any]]) -> Scored | None:
        """The best that fits; None if nothing was found that does."""
        known = [self.prices.read(given) for given in starts if self.prices.is_in_turn(given)]
        for start in self.prices.scored(known):
            self._climb(start, LONG_PATIENCE)
        while self._has_time:
            screened = self.prices.scored(self.moves.random() for _ in range(SCREENED))
            for start in screened[:FROM_RANDOM]:
                self._climb(start, PATIENCE)
            elite = sorted(self.best.values())[:5]
            if elite:
                self._climb(self.rng.choice(elite), LONG_PATIENCE)
        found = min(self.best.values(), default=None)
        return found if found is not None and not found.excess else None

    @property
    def _has_time(self) -> bool:
        return time.process_time() < self._end

    def _climb(self, start: Scored, patience: int) -> None:
        here = best = start
        waited = 0
        while waited < patience and self._has_time:
            found = self.prices.scored(self.moves.neighbours(here.candidate, AT_ONCE))
            if found and found[0] < here._replace(seconds=here.seconds * (1 + DRIFT)):
                here = found[0]
            waited = (
                0 if here < best._replace(seconds=best.seconds * (1 - ROUNDING)) else waited + 1
            )
            best = min(best, here)
        one = best.candidate.strategy
        key = one.tp, one.pp, one.cp, one.dp, one.micro_batch, one.virtual_stages
        self.best[key] = min(best, self.best.get(key, best))
