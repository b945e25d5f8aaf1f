"""The search against brute force, and the promises it makes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import (
    Group,
    alive_seconds,
    brute_force,
    every_layout,
    pool_of,
    small_model,
    small_translator,
)

from astrarium.catalog.runtimes import find_runtime
from astrarium.cluster import Pool
from astrarium.cost.layouts import CostModel
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError
from astrarium.model.adapters import Adapters, Finetune
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Experts, Shape, assemble
from astrarium.model.frozen import Beside, Role
from astrarium.model.lengths import Lengths
from astrarium.model.workload import Workload
from astrarium.search import space
from astrarium.search.families import family_of
from astrarium.search.fields import constant_fields
from astrarium.search.formats import runnable
from astrarium.search.outcome import Limits, Objective, Rejection, SearchResult
from astrarium.search.plan import estimate
from astrarium.search.refusals import why_refused
from astrarium.search.rules import UserRule, overlaps_named, user_rules
from astrarium.search.single import open_layouts
from astrarium.search.single.degree_bounds import DegreeWork, LeastWork
from astrarium.search.single.engine import Search
from astrarium.search.space import OVERLAP_SWITCHES, Space
from astrarium.strategy.columns import Options
from astrarium.strategy.types import LayerSplit
from astrarium.strategy.validity import rules_of

GB = 2**30
ROUNDING = 1e-9


@pytest.fixture
def workload() -> Workload:
    return Workload(small_model(), seq_length=2048, global_batch=16)


def searched(  # noqa: PLR0913  one parameter per thing that cases change
    workload: Workload,
    pool: Pool,
    *,
    exact: bool = True,
    rules: tuple[UserRule, ...] = (),
    objective: Objective = Objective.THROUGHPUT,
    top: int = 5,
    limits: Limits | None = None,
    tuning: Tuning = NEUTRAL,
    runtime: str = "megatron",
) -> SearchResult:
    model = CostModel(workload, pool, find_runtime(runtime), tuning)
    named = overlaps_named(rules)
    return Search(
        model,
        Space(
            workload,
            pool,
            model.planner,
            exact=exact,
            expanded_overlaps=named,
            shard_groups=model.runtime.shard_groups,
        ),
        objective=objective,
        runtime_rules=rules_of(model.runtime.rules),
        user_rules=rules,
        limits=limits or Limits(),
        top=top,
    ).run()


@dataclass(frozen=True)
class Case:
    gpus: str
    memory_gb: float
    experts: int = 0
    letters: str = ""
    rules: tuple[str, ...] = ()
    exact: bool = True
    objective: Objective = Objective.THROUGHPUT
    tuning: Tuning = NEUTRAL
    rented_sizes: tuple[int, ...] | None = None
    runtime: str = "megatron"
    oversubscription: float = 1.0  # of each node's network
    optimizer: str = "adamw"
    adapters: Adapters | None = None
    lengths: Lengths | None = None
    beside: Beside | None = None
    batch: int = 8
    on_host: bool = False  # the optimizer of the best plan, and its shards
    groups: int = 1  # of ranks, in which the best plan divides
    # Left at most: pipelines whose layers might be dealt so that they win.
    gap: float = 0.0


LENGTHS = Lengths("lognormal:300,1500")
TEACHER = Beside(small_model(10, vocab=64000), Role.TEACHER, "larger")
REFERENCE = Beside(small_model(), Role.REFERENCE, "itself")
MEGATRON = "megatron_gpt"  # whose names of modules Megatron-Bridge has
CASES = {
    "roomy": Case("h100:8", 80),
    "tight": Case("h100:8", 9),
    "experts": Case("h100:4", 20, experts=4),
    "scans": Case("h100:8", 6, letters="M-M*M-", gap=0.02),
    "scans and experts": Case("h100:4", 20, experts=4, letters="ME*EM"),
    "fewer": Case("h100:8", 10, exact=False, objective=Objective.COST),
    "whole nodes": Case("h100:16", 10, exact=False, objective=Objective.COST, rented_sizes=()),
    "two sizes": Case("h100:8", 8, exact=False, objective=Objective.COST, rented_sizes=(3, 8)),
    "thin uplinks": Case("h100:16", 10, oversubscription=6.0, gap=0.02),
    "slow link": Case("t4:8", 15),
    "rule": Case("h100:8", 12, rules=("$tp > 2", "$overlap_grad_reduce"), gap=0.02),
    "fsdp": Case("h100:8", 9, runtime="fsdp"),
    "torchtitan": Case("h100:8", 9, runtime="torchtitan"),
    "torchtitan, experts": Case("h100:4", 20, experts=4, runtime="torchtitan"),
    "fsdp, shards on the host": Case("h100:4", 2.5, runtime="fsdp", batch=32, on_host=True),
    "fsdp, shards on the host or not": Case("h100:4", 3.5, runtime="fsdp", batch=32),
    "torchtitan, shards on the host": Case(
        "h100:4", 2.3, runtime="torchtitan", batch=32, rules=("$tp > 1",), on_host=True
    ),
    "fsdp, groups": Case("h100:32", 6, runtime="fsdp", oversubscription=32.0, batch=32, groups=4),
    "fsdp, groups, fewer": Case(
        "h100:32", 9, runtime="fsdp", exact=False, objective=Objective.COST, batch=32
    ),
    "torchtitan, groups": Case(
        *("h100:16", 3),
        rules=("$pp > 1",),
        runtime="torchtitan",
        oversubscription=32.0,
        batch=32,
        groups=2,
    ),
    "torchtitan, groups of experts": Case(
        *("h100:16", 20),
        experts=4,
        rules=("$pp > 1",),
        runtime="torchtitan",
        oversubscription=32.0,
        batch=16,
        groups=2,
    ),
    "deepspeed": Case("h100:8", 6, runtime="deepspeed"),
    "adamw-8bit": Case("h100:8", 9, optimizer="adamw-8bit"),
    "sgd": Case("h100:8", 9, optimizer="sgd"),
    "muon": Case("h100:8", 9, optimizer="muon"),
    "muon, experts": Case("h100:4", 20, experts=4, optimizer="muon"),
    "lora": Case("h100:8", 4, runtime="fsdp", adapters=Adapters(Finetune.LORA)),
    "qlora": Case("h100:8", 3, runtime="fsdp", adapters=Adapters(Finetune.QLORA, 8)),
    "dora": Case("h100:8", 4, runtime="fsdp", adapters=Adapters(Finetune.DORA)),
    "lora, experts": Case(
        "h100:4",
        20,
        experts=4,
        runtime="torchtitan",
        adapters=Adapters(Finetune.LORA, modules=("q_proj", "v_proj")),
    ),
    "lora, split": Case(
        "h100:8", 4, runtime="megatron-bridge", adapters=Adapters(Finetune.LORA, names=MEGATRON)
    ),
    "dora, split": Case(
        *("h100:8", 5),
        runtime="megatron-bridge",
        adapters=Adapters(Finetune.DORA, names=MEGATRON),
        gap=0.02,
    ),
    "lora, split experts": Case(
        *("h100:4", 20),
        experts=4,
        runtime="megatron-bridge",
        adapters=Adapters(Finetune.LORA, names=MEGATRON),
    ),
    "torchtune": Case("h100:8", 9, runtime="torchtune"),
    "qlora, torchtune": Case("h100:8", 3, runtime="torchtune", adapters=Adapters(Finetune.QLORA)),
    "padded": Case("h100:8", 9, runtime="fsdp", batch=16, lengths=LENGTHS),
    "padded, adapters": Case(
        *("h100:8", 4),
        runtime="deepspeed",
        batch=16,
        lengths=LENGTHS,
        adapters=Adapters(Finetune.LORA),
    ),
    "packed": Case("h100:8", 9, lengths=replace(LENGTHS, packed=True), gap=0.02),
    "packed, experts": Case(
        *("h100:4", 20),
        experts=4,
        runtime="torchtitan",
        lengths=replace(LENGTHS, packed=True),
    ),
    # Two heads on four layers: what other splits could reach is known less closely.
    "teacher": Case("h100:8", 12, beside=TEACHER, gap=0.07),
    "teacher, divided": Case("h100:8", 8, beside=TEACHER, runtime="fsdp"),
    "teacher, experts": Case("h100:4", 20, experts=4, beside=TEACHER, gap=0.12),
    "reference": Case("h100:8", 11, beside=REFERENCE, gap=0.04),
    "reference, adapters": Case(
        *("h100:8", 4), runtime="fsdp", beside=REFERENCE, adapters=Adapters(Finetune.LORA)
    ),
    "tuned faster": Case("h100:8", 9, tuning=Tuning(compute=0.5, intra_link=0.5, memory_bytes=-GB)),
    "tuned slower": Case("h100:16", 9, tuning=Tuning(compute=2, inter_link=3, memory_bytes=GB)),
}


def by_family(best: dict[Group, float]) -> dict[tuple[float, ...], float]:
    """The best score of what a list tells apart."""
    folded: dict[tuple[float, ...], float] = {}
    for key, score in best.items():
        family = family_of(*key[:-1])
        folded[family] = min(score, folded.get(family, score))
    return folded


def assert_no_worse(result: SearchResult, best: dict[Group, float]) -> None:
    """No plan is worse than brute force over named splits; other splits are listed if better."""
    folded = by_family(best)
    named = sorted(folded.values())[: len(result.found)]
    for place, found in enumerate(result.found):
        one = found.strategy
        own = folded[family_of(one.tp, one.pp, one.dp, one.cp, one.ep, one.etp, one.micro_batch)]
        assert found.score <= named[place] * (1 + ROUNDING)
        if one.split is LayerSplit.FREE:
            assert found.score <= own * (1 + ROUNDING)
        else:
            assert found.score == pytest.approx(own, rel=ROUNDING)
    assert result.optimal == (result.bound_gap == 0.0)


@pytest.mark.parametrize("rules", [(), ("$overlap_p2p",), ("$overlap_tp", "$zero_stage == 0")])
@pytest.mark.parametrize("memory_gb", [6, 8, 12])
def test_a_first_look_at_what_is_open_changes_nothing(
    rules: tuple[str, ...], memory_gb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts that a coarse bound leaves out could not have lowered the gap."""
    workload = Workload(small_model(7, vocab=128_000), seq_length=2048, global_batch=16)
    pool = pool_of("h100:8", memory_gb * GB)
    first = searched(workload, pool, rules=user_rules(rules))
    monkeypatch.setattr(open_layouts, "_hopeful", lambda search, layouts, groups, best: groups)
    every = searched(workload, pool, rules=user_rules(rules))
    assert first.bound_gap == every.bound_gap
    assert [found.score for found in first.found] == [found.score for found in every.found]


@pytest.mark.parametrize("name", CASES)
def test_equals_brute_force(name: str) -> None:
    case = CASES[name]
    exact, objective = case.exact, case.objective
    workload = Workload(
        small_model(4, experts=case.experts, letters=case.letters),
        seq_length=2048,
        global_batch=case.batch,
        optimizer=case.optimizer,
        adapters=case.adapters,
        lengths=case.lengths,
        beside=case.beside,
    )
    pool, rules = pool_of(case.gpus, case.memory_gb * GB), user_rules(case.rules)
    if case.rented_sizes is not None:
        pool = replace(pool, rented_sizes=case.rented_sizes)
    pool = replace(pool, oversubscription=case.oversubscription, block_nodes=1)
    workload = runnable(workload, pool)
    tuned, runtime = case.tuning, case.runtime
    best, size = brute_force(
        workload,
        pool,
        exact=exact,
        rules=rules,
        objective=objective,
        tuning=tuned,
        runtime=runtime,
    )
    result = searched(
        workload,
        pool,
        exact=exact,
        rules=rules,
        objective=objective,
        tuning=tuned,
        runtime=runtime,
    )
    assert result.space == size
    assert len(result.found) == min(5, len(by_family(best)))
    assert_no_worse(result, best)
    assert result.bound_gap <= case.gap
    assert result.found[0].strategy.shard_groups == case.groups
    assert result.found[0].strategy.offload_optimizer or not case.on_host


# One switch each, and nothing but pipelines: few enough to deal the layers in all ways there are.
PIPELINES = (
    "$pp == 1",
    "$cp > 1",
    "$micro_batch > 1",
    "$offload_optimizer",
    "$overlap_tp",
    "$overlap_param_gather",
    "$overlap_grad_reduce",
)


@pytest.mark.parametrize(
    ("gpus", "memory_gb", "layers", "vocab", "within"),
    [
        ("t4:4", 15, 4, 32000, 0.03),
        ("h100:4", 6.2, 5, 64000, ROUNDING),
        ("h100:2", 12, 5, 32000, ROUNDING),
    ],
)
def test_no_dealing_of_layers_is_beyond_the_gap(
    gpus: str, memory_gb: float, layers: int, vocab: int, within: float
) -> None:
    """All strategies with layers dealt in all ways: the best is near, and the bound below it."""
    pool, rules = pool_of(gpus, memory_gb * GB), user_rules(PIPELINES)
    workload = Workload(small_model(layers, vocab=vocab), seq_length=2048, global_batch=8)
    workload = runnable(workload, pool)
    named, every = (
        brute_force(
            workload,
            pool,
            exact=True,
            rules=rules,
            objective=Objective.THROUGHPUT,
            all_dealings=all_dealings,
        )[0]
        for all_dealings in (False, True)
    )
    result = searched(workload, pool, rules=rules)
    assert_no_worse(result, named)
    best, least = result.found[0].score, min(every.values())
    assert best * (1 - result.bound_gap) <= least * (1 + ROUNDING)
    assert least * (1 - ROUNDING) <= best <= least * (1 + within)
    # Layers are dealt as no name says: `named` has one layer in each chunk but those of the ends.
    assert best < min(of for key, of in named.items() if key[1] * key[-1] <= layers)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("memory_gb", [80, 4.5])
def test_equals_brute_force_with_a_shared_table(tied: bool, memory_gb: float) -> None:
    """The stage where the decoder begins holds and reduces a copy."""
    workload = Workload(small_translator(tied=tied), seq_length=512, global_batch=8)
    pool, rules = pool_of("h100:4", memory_gb * GB), user_rules(("$pp < 4",))
    best, size = brute_force(
        workload, pool, exact=True, rules=rules, objective=Objective.THROUGHPUT
    )
    result = searched(workload, pool, exact=True, rules=rules)
    assert result.space == size
    assert [found.score for found in result.found] == pytest.approx(
        sorted(best.values())[:5], rel=ROUNDING
    )
    assert_bounded(result, workload, pool, rules)


def assert_bounded(
    result: SearchResult, workload: Workload, pool: Pool, rules: tuple[UserRule, ...]
) -> None:
    """All cuts of all chunks with all options: none is better than the gap says."""
    model = CostModel(workload, pool)
    every = frozenset(OVERLAP_SWITCHES)
    space = Space(workload, pool, model.planner, exact=True, expanded_overlaps=every)
    least = result.found[0].score * (1 - result.bound_gap)
    for layouts, options in every_layout(model, space, all_dealings=True):
        # What else is overlapped changes little and takes four times as long to ask about.
        usual = (options.overlap_grad_reduce == options.overlap_param_gather) & ~options.overlap_tp
        seconds = alive_seconds(model, layouts, options.take(usual), rules)
        assert least <= seconds.min() * (1 + ROUNDING)
    assert result.optimal == (result.bound_gap == 0.0)


def patterned(kinds: str, rng: np.random.Generator) -> Model:
    """Dense layers and layers with experts, in this order."""
    shape = Shape(
        hidden=1024,
        layers=len(kinds),
        heads=4,
        kv_heads=4,
        head_dim=256,
        ffn=int(rng.choice([2048, 8192, 24576])),
        vocab=int(rng.choice([1024, 32_000, 256_000])),
        max_seq_length=4096,
        rotary_dim=256,
        experts=Experts(count=2, per_token=1, ffn=int(rng.choice([1024, 8192]))),
        expert_layers=tuple(kind == "e" for kind in kinds),
    )
    return assemble("patterned", "test", Architecture.DECODER, shape)


@pytest.mark.parametrize("kinds", ["dee", "dede", "eddd"])
@pytest.mark.parametrize("gpus", ["h100:2", "l40s:4"])
@pytest.mark.parametrize("seed", range(2))
def test_no_cuts_of_unequal_layers_beat_the_bound(kinds: str, gpus: str, seed: int) -> None:
    """All cuts of all chunks with all options, where memory decides or not."""
    rng = np.random.default_rng([seed, len(kinds), len(gpus)])
    workload = Workload(patterned(kinds, rng), seq_length=1024, global_batch=8)
    fixed = ("$tp > 1", "$cp > 1", "$ep > 1", "$dp > 2", "$pp < 2", "$virtual_stages < 2")
    rules = user_rules(fixed)
    roomy = pool_of(gpus, 80 * GB)
    needed = searched(workload, roomy, rules=rules, objective=Objective.MEMORY).found[0]
    # With hardly more than the least, all layers of a rank are heaped on a few of its chunks.
    for part in (1.001, rng.choice([1.1, 1.3, 2.0, 4.0])):
        pool = pool_of(gpus, needed.peak_bytes * part)
        assert_bounded(searched(workload, pool, rules=rules), workload, pool, rules)


def test_every_strategy_is_accounted_for(workload: Workload) -> None:
    result = searched(workload, pool_of("h100:8", 12 * GB))
    assert sum(result.rejected.values()) + len(result.found) == result.space
    assert min(result.rejected.values()) > 0
    by_rule = result.rejected[Rejection.RUNTIME] + result.rejected[Rejection.RULE]
    assert sum(result.reasons.values()) == by_rule


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST, Objective.GPUS])
@pytest.mark.parametrize("experts", [0, 4])
def test_a_space_in_parts_is_answered_like_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, objective: Objective, experts: int
) -> None:
    workload = Workload(small_model(4, experts=experts), seq_length=2048, global_batch=24)
    pool = pool_of("a100:24", 9 * GB)
    whole = searched(workload, pool, exact=False, objective=objective)
    for name, most in (("FEW_DEGREES", 0), ("MOST_PAIRS", 200), ("MOST_DEGREES", 100)):
        monkeypatch.setattr(space, name, most)
    in_parts = searched(workload, pool, exact=False, objective=objective)
    assert in_parts.found == whole.found
    assert in_parts.space == whole.space == len(whole.found) + sum(whole.rejected.values())
    assert in_parts.space == len(in_parts.found) + sum(in_parts.rejected.values())
    assert in_parts.rejected[Rejection.BOUND] >= whole.rejected[Rejection.BOUND]


@pytest.mark.parametrize("experts", [0, 4])
def test_no_degrees_work_less_than_their_shards(experts: int) -> None:
    workload = Workload(small_model(4, experts=experts), seq_length=2048, global_batch=24)
    pool = pool_of("a100:24")
    model = CostModel(workload, pool)
    every = Space(workload, pool, model.planner, exact=False)
    work = LeastWork(model, every, (), constant_fields(workload, pool))
    (degrees,) = every.waves()[0].degrees(lambda grids: np.isfinite(work.of(grids)))
    (of_all,) = every.waves()[0].degrees(None)
    assert len(degrees) == len(of_all)
    shards = model.shard_costs(degrees)
    done = DegreeWork.of(model, degrees, shards, every.most_chunks(degrees.pp)).least_passes()
    for row in range(0, len(degrees), 7):
        one = degrees.take(np.array([row]))
        grids = {name: getattr(one, name) for name in ("tp", "cp", "micro_batch", "gpus")}
        choice = [
            all(getattr(one, name)[0] == column[at] for name, column in every.choices.items())
            for at in range(len(every.choices["ep"]))
        ].index(True)
        assert work.of(grids)[0, choice] <= done[row] * one.gpus[0]


def test_same_input_same_output(workload: Workload) -> None:
    pool = pool_of("h100:8")
    assert searched(workload, pool).found == searched(workload, pool).found


@settings(max_examples=10)
@given(nodes=st.integers(1, 6), more=st.integers(1, 4), batch=st.sampled_from([8, 12, 48]))
def test_more_gpus_are_never_worse_up_to(nodes: int, more: int, batch: int) -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=batch)
    few = searched(workload, pool_of(f"a100:{8 * nodes}"), exact=False, top=1)
    many = searched(workload, pool_of(f"a100:{8 * (nodes + more)}"), exact=False, top=1)
    assert many.found[0].seconds <= few.found[0].seconds


@pytest.mark.parametrize("rules", [(), ("$pp == 1",)])
def test_found_strategies_pass_every_rule_and_fit(
    workload: Workload, rules: tuple[str, ...]
) -> None:
    pool = pool_of("h100:16", 14 * GB)
    result = searched(workload, pool, top=60, rules=user_rules(rules))
    assert {LayerSplit.FREE} < {found.strategy.split for found in result.found}
    assert any(found.strategy.virtual_stages > 1 for found in result.found)
    model = CostModel(workload, pool)
    for found in result.found:
        assert why_refused(workload, [pool], found.strategy) == ()
        # What is priced among many in the search is priced alone; virtual stages are executed.
        (plan,) = estimate(model, [found.strategy])
        assert plan.fits
        assert plan.iteration_seconds == pytest.approx(found.seconds, rel=1e-12)
        assert plan.peak_bytes == pytest.approx(found.peak_bytes, rel=1e-12)


def test_limits_are_kept(workload: Workload) -> None:
    pool = pool_of("h100:16")
    timed = replace(workload, tokens=10**9)
    free = searched(timed, pool, exact=False, top=1).found[0]
    iterations = timed.iterations
    assert iterations is not None
    hourly = pool.usd_per_gpu_hour
    assert hourly is not None
    cost = free.seconds * iterations / 3600 * free.strategy.gpus * hourly
    cheapest = searched(timed, pool, exact=False, objective=Objective.COST, top=1).found[0]
    least = cheapest.score * iterations / 3600 * hourly
    assert least < cost
    budget = (least + cost) / 2
    kept = searched(timed, pool, exact=False, top=1, limits=Limits(budget_usd=budget)).found[0]
    assert kept.seconds >= free.seconds
    assert kept.seconds * iterations / 3600 * kept.strategy.gpus * hourly <= budget
    late = Limits(deadline_seconds=free.seconds * iterations * 0.99)
    assert searched(timed, pool, exact=False, top=1, limits=late).found == []


def test_options_cover_every_column() -> None:
    names = {field.name for field in fields(Options)}
    assert {f"overlap_{switch}" for switch in OVERLAP_SWITCHES} <= names


@settings(max_examples=12)
@given(
    pair=st.sampled_from([(1, 2), (2, 4), (4, 8), (1, 8), (8, 16), (16, 24)]),
    experts=st.sampled_from([0, 4]),
    objective=st.sampled_from([Objective.COST, Objective.THROUGHPUT]),
    sizes=st.sampled_from([(1, 2, 4, 8), (8,), (2, 8), (1, 3, 8), (2,), (16,)]),
)
def test_more_gpus_are_never_worse_within_a_node(
    pair: tuple[int, int], experts: int, objective: Objective, sizes: tuple[int, ...]
) -> None:
    few, many = pair
    workload = Workload(small_model(4, experts=experts), seq_length=2048, global_batch=12)
    pool = replace(pool_of("h100:24", 7 * GB), rented_sizes=sizes)
    scores = [
        searched(
            workload,
            replace(pool, nodes=max(n // 8, 1), gpus_per_node=min(n, 8)),
            exact=False,
            objective=objective,
            top=1,
        ).found
        for n in (few, many)
    ]
    if not scores[0]:
        return
    assert scores[1][0].score <= scores[0][0].score * (1 + 1e-12)


@settings(max_examples=8)
@given(nodes=st.integers(1, 40), more=st.integers(1, 10))
def test_more_racks_are_never_worse(nodes: int, more: int) -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=48)
    few = searched(workload, pool_of(f"gb200:{4 * nodes}"), exact=False, top=1)
    many = searched(workload, pool_of(f"gb200:{4 * (nodes + more)}"), exact=False, top=1)
    assert many.found[0].seconds <= few.found[0].seconds


@settings(max_examples=10)
@given(st.floats(1.05, 4.0))
def test_more_memory_is_never_worse(factor: float) -> None:
    workload = Workload(small_model(), seq_length=2048, global_batch=16)
    tight = searched(workload, pool_of("h100:8", 9 * GB), top=1).found[0]
    roomy = searched(workload, pool_of("h100:8", 9 * GB * factor), top=1).found[0]
    assert roomy.seconds <= tight.seconds


def test_too_many_divisors_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "MOST_GRIDS", 5000)
    workload = Workload(small_model(8), seq_length=5040, global_batch=5040)
    with pytest.raises(InputError, match="more than 5,000; choose numbers with fewer divisors"):
        searched(workload, pool_of("h100:1024"), exact=False)


@pytest.mark.parametrize("switches", [frozenset(), frozenset({"tp"}), frozenset(OVERLAP_SWITCHES)])
@pytest.mark.parametrize("experts", [0, 4])
def test_options_are_counted_as_written_out(switches: frozenset[str], experts: int) -> None:
    pool = pool_of("h100:8")
    workload = Workload(small_model(experts=experts), seq_length=2048, global_batch=16)
    planner = CostModel(workload, pool).planner
    every = Space(workload, pool, planner, exact=True, expanded_overlaps=switches)
    for layers in (1, 2, 5):
        assert every.num_options(layers) == len(every.options(layers))
