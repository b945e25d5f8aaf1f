"""Small workloads and pools that brute force can exhaust."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Pool, parse_gpus
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.replay import executed_totals
from astrarium.cost.step import seconds_of
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Experts, Shape, assemble
from astrarium.model.huggingface import from_config
from astrarium.model.scans import Recurrence, Scan
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.outcome import Objective
from astrarium.search.rule_filter import RejectingRule
from astrarium.search.rules import UserRule
from astrarium.search.space import OVERLAP_SWITCHES, Space
from astrarium.strategy.columns import SPLITS, Options
from astrarium.strategy.types import LayerSplit
from astrarium.strategy.validity import rules_of

MOST_ROWS = 500_000  # strategies that are priced at once
FEW_LEFT = 0.7  # of strategies: from there on rules are asked about the others alone


def small_model(
    layers: int = 6, *, experts: int = 0, vocab: int = 32000, letters: str = ""
) -> Model:
    """A decoder; with letters of layers that are one part each, some of them scans."""
    layers = len(letters) or layers
    shape = Shape(
        hidden=2048,
        layers=layers,
        heads=8,
        kv_heads=4,
        head_dim=256,
        ffn=8192,
        vocab=vocab,
        max_seq_length=4096,
        rotary_dim=256,
        experts=Experts(count=experts, per_token=2, ffn=2048) if experts else None,
        expert_layers=tuple(i > 0 for i in range(layers)) if experts else (),
        letters=letters,
        scan=Scan(Recurrence.SSD, 64, 64, 4, 128, 128, 4, taps_bias=True, norm_width=4096)
        if letters
        else None,
    )
    return assemble("small", "test", Architecture.DECODER, shape)


def small_translator(layers: int = 2, *, tied: bool = True) -> Model:
    """An encoder and a decoder that read one large token table."""
    values = {
        "model_type": "t5",
        "d_model": 1024,
        "d_kv": 128,
        "d_ff": 4096,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": 8,
        "vocab_size": 256000,
        "tie_word_embeddings": tied,
    }
    return from_config(values, "translator", "test")


def pool_of(text: str, memory_bytes: float | None = None) -> Pool:
    pool = parse_gpus(text).pools[0]
    if memory_bytes is None:
        return pool
    return replace(pool, gpu=replace(pool.gpu, memory_bytes=int(memory_bytes)))


def permitted(constants: Mapping[str, Any], rows: Rows, rules: Sequence[RejectingRule]) -> Bools:
    """Which rows no rule rejects; rules are asked about those that are left, as they are slow."""
    alive = np.ones(len(rows.virtual), bool)
    columns, left, kept = Fields(constants, rows), np.flatnonzero(alive), alive
    for rule in rules:
        kept = kept & ~np.broadcast_to(rule.rejects(columns), kept.shape)
        if kept.mean() < FEW_LEFT:
            left, kept = left[kept], kept[kept]
            if not len(left):
                break
            virtual, split = rows.virtual[left], rows.split[left]
            some = Rows(rows.degrees.take(left), virtual, split, rows.options.take(left))
            columns = Fields(constants, some)
    alive[:] = False
    alive[left[kept]] = True
    return alive


def alive_seconds(
    model: CostModel, layouts: Layouts, options: Options, rules: Sequence[RejectingRule]
) -> Floats:
    """Seconds of every layout with every option, virtual stages executed; infinite where rules or
    memory forbid it."""
    constants = constant_fields(model.workload, model.pool)
    number = len(layouts.degrees)
    rows = np.repeat(np.arange(number), len(options))
    every = options.take(np.tile(np.arange(len(options)), number))
    split = np.minimum(layouts.split, SPLITS.index(LayerSplit.FREE))[rows]
    at_hand = Rows(layouts.degrees.take(rows), layouts.virtual[rows], split, every)
    alive = permitted(constants, at_hand, (*rules, *rules_of(model.runtime.rules)))
    seconds = np.full(len(rows), np.inf)
    if alive.any():
        rows, chosen = rows[alive], every.take(np.flatnonzero(alive))
        fits = memory_of(layouts, rows, chosen).peak <= model.pool.gpu.memory_bytes
        rows, chosen = rows[fits], chosen.take(fits)
        alive[alive] = fits
        bounds = seconds_of(layouts, rows, chosen).total
        seconds[alive] = executed_totals(layouts, rows, chosen, bounds)
    return seconds.reshape(number, len(options))


def every_layout(
    model: CostModel, space: Space, *, all_dealings: bool = False
) -> Iterator[tuple[Layouts, Options]]:
    """All layouts of a space, several at once, and the options that they have.

    That a strategy among others costs what it costs alone is tested in tests/cost.
    """
    shards = model.shard_costs(space.degrees)
    for pp in np.unique(space.degrees.pp).tolist():
        every = np.flatnonzero(space.degrees.pp == pp)
        alike: dict[int, list[tuple[int, int]]] = {}  # with the same options
        for virtual, code, chunk_layers in splits_of(model, space, pp, all_dealings=all_dealings):
            alike.setdefault(chunk_layers, []).append((virtual, code))
        for chunk_layers, splits in alike.items():
            options = space.options(chunk_layers)
            virtuals, codes = np.repeat(np.array(splits), len(every), axis=0).T
            of_degrees = np.tile(every, len(splits))
            some = max(1, MOST_ROWS // len(options))
            for start in range(0, len(of_degrees), some):
                rows = of_degrees[start : start + some]
                yield (
                    model.layouts(
                        space.degrees.take(rows),
                        virtuals[start : start + some],
                        codes[start : start + some],
                        replace(shards, shard_of=shards.shard_of[rows]),
                        all_ranks=True,
                    ),
                    options,
                )


def splits_of(
    model: CostModel, space: Space, pp: int, *, all_dealings: bool
) -> Iterator[tuple[int, int, int]]:
    """Virtual stages, code of the split, and layers of the largest chunk.

    All dealings: chunks, and the outer ranks, may be empty.
    """
    for layout in space.layouts(pp):
        yield layout.virtual, SPLITS.index(layout.split), layout.chunk_layers
    if pp == 1 or not all_dealings:
        return
    layers = model.planner.num_layers
    for virtual in {layout.virtual for layout in space.layouts(pp)}:
        for cuts in combinations_with_replacement(range(layers + 1), pp * virtual - 1):
            bounds = np.array([0, *cuts, layers])
            sizes = np.diff(bounds)
            if sizes.reshape(virtual, pp).sum(axis=0)[1:-1].min(initial=1):
                yield virtual, model.planner.code_of(bounds), int(sizes.max())


Group = tuple[int, ...]


def brute_force(
    workload: Workload,
    pool: Pool,
    *,
    exact: bool,
    rules: tuple[UserRule, ...],
    objective: Objective,
    tuning: Tuning = NEUTRAL,
    runtime: str = "megatron",
    all_dealings: bool = False,
) -> tuple[dict[Group, float], int]:
    """The best score of every distinct plan, from every strategy of the unpruned space."""
    model = CostModel(workload, pool, find_runtime(runtime), tuning)
    everything = frozenset(OVERLAP_SWITCHES)
    space = Space(
        workload,
        pool,
        model.planner,
        exact=exact,
        expanded_overlaps=everything,
        shard_groups=model.runtime.shard_groups,
    )
    best: dict[Group, float] = {}
    size = 0
    for layouts, options in every_layout(model, space, all_dealings=all_dealings):
        degrees = layouts.degrees
        size += len(degrees) * len(options)
        scores = alive_seconds(model, layouts, options, rules).min(axis=1)
        if objective is Objective.COST:
            scores = scores * pool.billed_gpus(degrees.gpus)
        names = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch")
        groups = np.stack([*(getattr(degrees, name) for name in names), layouts.virtual], axis=1)
        for group, score in zip(groups.tolist(), scores.tolist(), strict=True):
            if np.isfinite(score):
                best[tuple(group)] = min(score, best.get(tuple(group), np.inf))
    return best, size
