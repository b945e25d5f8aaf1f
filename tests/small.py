"""Small workloads and pools that brute force can exhaust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrarium.arrays import Floats
from astrarium.cluster import Pool, parse_gpus
from astrarium.cost.layouts import CostModel, Layouts
from astrarium.cost.memory import memory_of
from astrarium.cost.step import seconds_of
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Experts, Shape, assemble
from astrarium.model.huggingface import from_config
from astrarium.model.workload import Workload
from astrarium.search.fields import Fields, Rows, constant_fields
from astrarium.search.outcome import Objective
from astrarium.search.rules import UserRule
from astrarium.search.sieve import RejectingRule
from astrarium.search.space import OVERLAP_SWITCHES, Space
from astrarium.strategy.columns import SPLITS, Options
from astrarium.strategy.validity import megatron_rules


def small_model(layers: int = 6, *, experts: int = 0, vocab: int = 32000) -> Model:
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


def alive_seconds(
    model: CostModel, layouts: Layouts, options: Options, rules: Sequence[RejectingRule]
) -> Floats:
    """Seconds of every option with the one layout; infinite where rules or memory forbid it."""
    constants = constant_fields(model.workload, model.pool)
    rows = np.zeros(len(options), np.int64)
    n = len(rows)
    degrees = layouts.degrees.take(rows)
    at_hand = Rows(degrees, layouts.virtual[rows], layouts.split[rows], options)
    columns = Fields(constants, at_hand)
    alive = np.ones(n, bool)
    every: tuple[RejectingRule, ...] = (*megatron_rules(), *rules)
    for rule in every:
        alive &= ~np.broadcast_to(rule.rejects(columns), (n,))
    alive &= memory_of(layouts, rows, options).peak <= model.pool.gpu.memory_bytes
    return np.where(alive, seconds_of(layouts, rows, options).total, np.inf)


Group = tuple[int, ...]


def brute_force(
    workload: Workload,
    pool: Pool,
    *,
    exact: bool,
    rules: tuple[UserRule, ...],
    objective: Objective,
    tuning: Tuning = NEUTRAL,
) -> tuple[dict[Group, float], int]:
    """The best score of every distinct plan, from every strategy of the unpruned space."""
    model = CostModel(workload, pool, tuning=tuning)
    everything = frozenset(OVERLAP_SWITCHES)
    space = Space(workload, pool, model.planner, exact=exact, expanded_overlaps=everything)
    best: dict[Group, float] = {}
    size = 0
    for row in range(len(space.degrees)):
        one = space.degrees.take(np.array([row]))
        for layout in space.layouts(int(one.pp[0])):
            options = space.options(layout.chunk_layers)
            size += len(options)
            virtual, split = np.array([layout.virtual]), np.array([SPLITS.index(layout.split)])
            layouts = model.layouts(one, virtual, split, model.shard_costs(one), all_ranks=True)
            seconds = alive_seconds(model, layouts, options, rules)
            if np.isfinite(seconds).any():
                gpus = int(pool.billed_gpus(one.gpus)[0])
                score = float(seconds.min()) * (gpus if objective is Objective.COST else 1)
                degrees = (one.tp, one.pp, one.dp, one.cp, one.ep, one.etp, one.micro_batch)
                group = tuple(int(column[0]) for column in (*degrees, virtual))
                best[group] = min(score, best.get(group, np.inf))
    return best, size
