"""Plans to export: some written down, others drawn from the space of valid strategies.

`python tests/exported_plans.py` writes the files of tests/export/golden for these targets anew,
after a change that is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any, Final

from hypothesis import assume
from hypothesis import strategies as st

from astrarium.cluster import Cluster, Pool, parse_gpus
from astrarium.export.folder import folder_of
from astrarium.export.target import find_target, refusals
from astrarium.model import load_model
from astrarium.model.blocks import Model
from astrarium.model.prediction import with_predictions
from astrarium.model.workload import Precision, Workload
from astrarium.plans.document import PlanDocument
from astrarium.plans.job import Job, job_of, nodes_of
from astrarium.report.plan.document import document_of_prediction
from astrarium.search.planner import predict
from astrarium.search.refusals import why_refused, with_permitted_overlap
from astrarium.strategy.document import strategy_from_dict
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

GOLDEN: Final = Path(__file__).parent / "export" / "golden"
TARGETS: Final = ("megatron", "bridge")
GPU: Final = "H100-SXM5-80GB"

# Name -> model, GPUs, what is trained, strategy.
CASES: Final[Mapping[str, tuple[str, str, dict[str, Any], dict[str, Any]]]] = {
    "even": ("llama-3.1-8b", "h100:16", {"tokens": 10**12}, {"tp": 2, "pp": 2, "dp": 4}),
    "uneven": (
        "llama-3-8b",
        "h100:8,a100:8",
        {},
        {
            "tp": 4,
            "pp": 2,
            "stages": [
                {"layers": [0, 20], "pools": {GPU: 8}},
                {"layers": [20, 32], "pools": {"A100-SXM4-80GB": 8}},
            ],
        },
    ),
    "interleaved": (
        "llama-2-70b",
        "h100:64",
        {"global_batch": 256},
        {"tp": 4, "pp": 8, "virtual_stages": 5, "recompute": "full", "recompute_layers": 1},
    ),
    "sharded": (
        "mistral-7b-v0.1",
        "h100:16",
        {"seq_length": 8192},
        {"tp": 1, "zero_stage": 3, "recompute": "selective"},
    ),
    "experts": (
        "deepseek-v3",
        "h100:1024",
        {"seq_length": 4096, "global_batch": 2048, "precision": Precision.FP8},
        {"pp": 16, "ep": 32, "etp": 1, "tp": 2, "split": "balanced", "overlap_tp": False},
    ),
    "predicting": (
        "deepseek-v3",
        "h100:1024",
        {"seq_length": 4096, "global_batch": 2048, "mtp_layers": 1},
        {
            **{"pp": 16, "virtual_stages": 2, "ep": 32, "etp": 1, "tp": 2, "overlap_tp": False},
            "stages": [{"layers": [max(2 * at - 1, 0), 2 * at + 1]} for at in range(30)]
            + [{"layers": [59, 62]}, {"layers": [62, 62]}],
        },
    ),
    "empty": (
        "llama-3-8b",
        "h100:16",
        {},
        {
            "tp": 4,
            "pp": 4,
            "virtual_stages": 3,
            "stages": [
                {"layers": [0, 0]},
                {"layers": [0, 4]},
                {"layers": [4, 8]},
                {"layers": [8, 11]},
                {"layers": [11, 15]},
                {"layers": [15, 18]},
                {"layers": [18, 18]},
                {"layers": [18, 19]},
                {"layers": [19, 23]},
                {"layers": [23, 27]},
                {"layers": [27, 32]},
                {"layers": [32, 32]},
            ],
        },
    ),
    "sinks": ("gpt-oss-20b", "b200:8", {}, {"ep": 8, "etp": 1, "tp": 1}),
}


def document(model: str, gpus: str, strategy: Mapping[str, Any], **work: Any) -> PlanDocument:
    """The document of one predicted strategy."""
    cluster = parse_gpus(gpus)
    further = work.pop("mtp_layers", 0)
    loaded = with_predictions(load_model(model), further)
    workload = Workload(loaded, **{"seq_length": 2048, "global_batch": 64, **work})
    asked = strategy_from_dict(
        strategy,
        where="test",
        gpus=cluster.num_gpus,
        global_batch=workload.global_batch,
        layers=workload.model.num_layers,
    )
    asked = with_permitted_overlap(workload, cluster.pools, asked, strategy)
    plan = predict(workload, cluster, asked)
    return document_of_prediction(workload, cluster, plan, model, ())


@cache
def job(case: str) -> Job:
    """A plan that is written down, with round figures in place of predicted ones."""
    model, gpus, work, strategy = CASES[case]
    made = job_of(document(model, gpus, strategy, **work))
    memory = tuple(
        replace(stage, peak_bytes=60.0 * 2**30, capacity_bytes=80 * 2**30)
        for stage in made.plan.memory
    )
    plan = replace(
        made.plan,
        memory=memory,
        iteration_seconds=2.0,
        interval_seconds=(1.8, 2.4),
        tokens_per_second=65536.0,
        usd_per_hour=100.0,
        usd_total=made.plan.usd_total and 1e6,
        train_seconds=made.plan.train_seconds and 864_000.0,
    )
    return replace(made, plan=plan)


def golden(target: str) -> dict[str, str]:
    """The files of all cases that the target can express, by case and name; no plan.json."""
    software = find_target(target)
    return {
        f"{target}/{case}/{name}": text
        for case in CASES
        if not refusals(job(case), software)
        for name, text in folder_of(job(case), software, software).files.items()
        if name != "plan.json"
    }


MODELS: Final = (
    "llama-3-8b",
    "gpt3-1.3b",
    "mistral-7b-v0.1",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
    "nemotron-4-15b",
)
SEQUENCE: Final = 2048


class Drawn(Job, frozen=True):
    """A plan that is shown by what was drawn."""

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        work = self.workload
        printer.text(f"{self.model.name}, {work.precision}, {work.tokens} tokens, {self.strategy}")


@st.composite
def jobs(draw: st.DrawFn, models: tuple[str, ...] = MODELS) -> Job:
    """A valid plan on GPUs of one type, or with the last stages on another."""
    model = load_model(draw(st.sampled_from(models)))
    strategy = draw(strategies(model))
    mixed = strategy.pp > 1 and not strategy.pipeline_inside and draw(st.booleans())
    cluster, strategy = _placed(draw, strategy, mixed=mixed)
    sixteen = (Precision.BF16, Precision.FP16)
    precision = draw(st.sampled_from(sixteen if mixed else (*sixteen, Precision.FP8)))
    workload = Workload(model, SEQUENCE, strategy.sequences, draw(_tokens), precision)
    assume(not why_refused(workload, cluster.pools, strategy))
    lent = _lent()
    plan = replace(lent.plan, strategy=strategy)
    nodes = tuple(nodes_of(plan, cluster))
    return Drawn(lent.document, plan, workload, cluster, strategy, nodes)


_tokens = st.sampled_from((None, 10**9, 10**12))


@cache
def _lent() -> Job:
    """A plan whose figures stand in for predictions that would take long."""
    return job_of(document("llama-2-7b", "h100:8", {"tp": 8}))


def _placed(draw: st.DrawFn, strategy: Strategy, *, mixed: bool) -> tuple[Cluster, Strategy]:
    block = strategy.gpus // strategy.pp
    first = draw(st.integers(1, strategy.pp - 1)) if mixed else strategy.pp
    sizes = [block * first, block * (strategy.pp - first)]
    known = parse_gpus("h100:8,a100:8").pools
    cluster = Cluster(tuple(_sized(p, n) for p, n in zip(known, sizes, strict=True) if n))
    pools = [cluster.pools[0]] * first + [cluster.pools[-1]] * (strategy.pp - first)
    cluster = Cluster(
        tuple(draw(st.permutations(cluster.pools)))
    )  # need not be that of the pipeline
    stages = tuple(
        replace(s, gpu=pools[s.pipeline_rank].gpu.name, pools={pools[s.pipeline_rank].name: block})
        for s in strategy.stages
    )
    return cluster, replace(strategy, stages=stages)


def _sized(pool: Pool, gpus: int) -> Pool:
    """The pool with so many GPUs, in nodes as large as they can be."""
    each = gcd(gpus, pool.gpus_per_node)
    return replace(pool, nodes=gpus // each, gpus_per_node=each)


@st.composite
def strategies(draw: st.DrawFn, model: Model) -> Strategy:
    """Degrees, a cut into stages and options; not all of them valid."""
    few = st.sampled_from((1, 2, 4))
    tp, pp, dp = draw(few), draw(few), draw(few)
    cp = draw(st.sampled_from((1, 1, 2)))
    ep, etp = (draw(few), draw(st.sampled_from((1, tp)))) if model.max_experts else (1, 1)
    virtual = draw(st.sampled_from((1, 1, 2, 3))) if pp > 1 else 1
    split, stages = draw(_cuts(model.num_layers, pp, virtual, tp * dp * cp))
    micro_batch, batches = draw(few), draw(st.integers(1, 6)) * (pp if virtual > 1 else 1)
    zero = draw(st.sampled_from((0, 1, 1, 2, 3) if pp == 1 else (0, 1)))
    sequence_parallel = tp > 1 and (bool(model.max_experts) or draw(st.booleans()))
    reduce = zero > 1 or draw(st.booleans())
    groups = zero == 1 and dp % 2 == 0 and dp * cp > 2 and tp * cp * dp % (2 * ep * etp) == 0
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=etp,
        micro_batch=micro_batch,
        num_micro_batches=batches,
        virtual_stages=virtual,
        sequence_parallel=sequence_parallel,
        pipeline_inside=not model.max_experts and draw(st.booleans()),
        split=split,
        zero_stage=zero,
        shard_groups=draw(st.sampled_from((1, 2))) if groups else 1,
        recompute=draw(_recomputes(model)),
        offload_optimizer=zero == 1 and draw(st.booleans()),
        overlap=Overlap(
            grad_reduce=reduce,
            param_gather=zero == 3 or (reduce and zero > 0 and draw(st.booleans())),
            p2p=virtual > 1 and (pp == 2 or draw(st.booleans())),
            tp=sequence_parallel and draw(st.booleans()),
        ),
        stages=stages,
    )


@st.composite
def _cuts(
    draw: st.DrawFn, layers: int, pp: int, virtual: int, block: int
) -> tuple[LayerSplit, tuple[Stage, ...]]:
    chunks = pp * virtual
    if layers % chunks == 0 and draw(st.booleans()):
        split, bounds = LayerSplit.EVEN, list(range(0, layers + 1, layers // chunks))
    else:
        each, free = chunks - 1, draw(st.booleans())
        places = st.integers(0, layers) if free else st.integers(1, layers - 1)
        cuts = st.lists(places, min_size=each, max_size=each, unique=not free)
        inner = draw(cuts)
        split, bounds = LayerSplit.FREE, [0, *sorted(inner), layers]
    if chunks == 1:
        split = LayerSplit.EVEN
    every = enumerate(pairwise(bounds))
    return split, tuple(
        Stage(GPU, (first, last), block, index % pp, index // pp) for index, (first, last) in every
    )


@st.composite
def _recomputes(draw: st.DrawFn, model: Model) -> Recompute:
    kind = draw(st.sampled_from(Granularity))
    if kind is Granularity.NONE:
        return Recompute()
    if kind is Granularity.FULL:
        method = draw(st.sampled_from((Method.UNIFORM, Method.BLOCK)))
        return Recompute(kind, method, draw(st.integers(1, 4)))
    known = [RecomputeModule.CORE_ATTN, RecomputeModule.LAYERNORM, RecomputeModule.MLP]
    if model.max_experts:
        known += [RecomputeModule.MOE_ACT, RecomputeModule.MOE]
    names = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    return Recompute(kind, modules=tuple(sorted(names, key=list(RecomputeModule).index)))


if __name__ == "__main__":
    for target in TARGETS:
        for name, text in golden(target).items():
            path = GOLDEN / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
