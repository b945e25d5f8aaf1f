"""Plans for software other than Megatron-LM, and the files that are written for them.

`python tests/exported_others.py` writes tests/export/golden for these targets anew, after a change
that is meant. READMEs are left out: they hold predictions for another runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from exported_plans import GOLDEN, document, jobs
from hypothesis import assume
from hypothesis import strategies as st

from astrarium.catalog.runtimes import find_runtime
from astrarium.export.features import Feature, layers_of_stages
from astrarium.export.target import Target, find_target, refusals
from astrarium.model.adapters import Adapters, Finetune
from astrarium.model.workload import Precision
from astrarium.plans.job import Job, job_of
from astrarium.search.refusals import why_refused
from astrarium.strategy.types import (
    Granularity,
    LayerSplit,
    Method,
    Recompute,
    Stage,
    Strategy,
)

FULL: Final = {"recompute": "full", "recompute_layers": 1}

# Target -> name -> model, GPUs, strategy.
CASES: Final[Mapping[str, Mapping[str, tuple[str, str, dict[str, Any]]]]] = {
    "torchtitan": {
        "flavor": ("llama-3.1-8b", "h100:16", {"tp": 2, "pp": 2}),
        "uneven": (
            "llama-3-8b",
            "h100:8,a100:8",
            {
                "tp": 4,
                "pp": 2,
                "stages": [
                    {"layers": [0, 20], "pools": {"H100-SXM5-80GB": 8}},
                    {"layers": [20, 32], "pools": {"A100-SXM4-80GB": 8}},
                ],
            },
        ),
        "own-model": (
            "llama-2-70b",
            "h100:64",
            {"tp": 4, "pp": 8, "virtual_stages": 5, **FULL},
        ),
        "operators": (
            "llama-3.1-8b",
            "h100:16",
            {"tp": 2, "recompute": "full", "recompute_method": "block", "recompute_layers": 18}
            | {"zero_stage": 3},
        ),
        "experts": ("qwen3-30b-a3b", "h100:16", {"tp": 2, "ep": 8, "etp": 1, "zero_stage": 2}),
        "norms": ("deepseek-v2-lite", "h100:16", {"ep": 8, "etp": 1, "zero_stage": 2}),
    },
    "deepspeed": {
        "weights": ("llama-3-8b", "h100:16", {"zero_stage": 3, **FULL}),
        "tensors": (
            "llama-3-8b",
            "h100:8",
            {"tp": 4, "sequence_parallel": False, "overlap_tp": False, "zero_stage": 1},
        ),
        "experts": ("mixtral-8x7b", "h100:16", {"ep": 8, "etp": 1, "zero_stage": 2}),
        "offload": ("llama-3-8b", "h100:8", {"zero_stage": 1, "offload_optimizer": True}),
    },
    "accelerate": {
        "weights": ("llama-3-8b", "h100:8", {"zero_stage": 3, **FULL}),
        "context": ("qwen2.5-7b", "h100:16", {"zero_stage": 2, "cp": 4}),
        "replicas": ("gpt2-xl", "h100:8", {"zero_stage": 0}),
    },
    "torchtune": {
        "weights": ("llama-3.1-8b", "h100:16", {"zero_stage": 3, **FULL}),
        "adapters": ("qwen2.5-7b", "h100:8", {"zero_stage": 2}),
    },
}
# Cases that train adapters.
ADAPTED: Final = {("torchtune", "adapters"): Adapters(Finetune.QLORA, 8, names="torchtune")}


@cache
def job(target: str, case: str) -> Job:
    """A plan with round figures in place of predicted ones."""
    model, gpus, strategy = CASES[target][case]
    made = job_of(document(model, gpus, strategy))
    stages = tuple(
        replace(stage, peak_bytes=60.0 * 2**30, capacity_bytes=80 * 2**30)
        for stage in made.plan.memory
    )
    plan = replace(
        made.plan,
        memory=stages,
        iteration_seconds=2.0,
        interval_seconds=(1.8, 2.4),
        tokens_per_second=65536.0,
        usd_per_hour=100.0,
    )
    adapters = ADAPTED.get((target, case))
    return replace(made, plan=plan, workload=replace(made.workload, adapters=adapters))


def written(target: str) -> dict[str, str]:
    """The files of all cases, by case and name."""
    software = find_target(target)
    assert software.program
    found: dict[str, str] = {}
    for case in CASES[target]:
        made = software.program(job(target, case))
        files = dict(made.files)
        if software.launch:
            files |= software.launch(job(target, case), made).files
        found |= {f"{target}/{case}/{_kept_as(name)}": text for name, text in files.items()}
    return found


def _kept_as(name: str) -> str:
    """Python is kept as text: it is no code of this project."""
    return f"{name}.txt" if name.endswith(".py") else name


def kept(target: str) -> dict[str, str]:
    """The files as they should be."""
    files = (path for path in (GOLDEN / target).rglob("*") if path.is_file())
    return {path.relative_to(GOLDEN).as_posix(): path.read_text("utf-8") for path in files}


@st.composite
def expressible(draw: st.DrawFn, target: Target, models: tuple[str, ...]) -> Job:
    """A plan that the target can express: most of what it lacks is taken out of a drawn one."""
    one = draw(jobs(models))
    fully = Recompute(Granularity.FULL, Method.UNIFORM, 1)
    strategy = replace(
        one.strategy,
        pipeline_inside=False,
        offload_optimizer=False,
        shard_groups=1,
        recompute=draw(st.sampled_from((Recompute(), fully))),
    )
    eight = one.workload.precision is Precision.FP8 and Feature.FP8 not in target.lacks
    eight &= not one.model.max_experts
    work = replace(one.workload, precision=Precision.FP8 if eight else Precision.BF16)
    plain = replace(one, strategy=strategy, workload=work)
    made = plain
    for _ in range(2):  # a plan without stages may lack other things than one with them
        made = _mended(made, {refusal.feature for refusal in refusals(made, target)})
    assume(not refusals(made, target))
    assume(not why_refused(made.workload, made.cluster.pools, made.strategy))
    s = made.strategy
    divides = s.tp * s.cp * s.dp % (2 * s.ep * s.etp) == 0
    if s.zero_stage and s.dp % 4 == 0 and divides and Feature.SHARD_GROUPS not in target.lacks:
        s = replace(s, shard_groups=draw(st.sampled_from((1, 2))))
    if s.zero_stage == 3 and find_runtime(target.runtime).offloads_parameters:
        s = replace(s, offload_optimizer=draw(st.booleans()))
    return replace(made, strategy=s)


def _filled(s: Strategy) -> tuple[Stage, ...]:
    """Stages with a layer each between the first, which may stay empty, and the last."""
    sizes = layers_of_stages(s)
    for place in (place for place, size in enumerate(sizes[1:-1], 1) if not size):
        sizes[sizes.index(max(sizes))] -= 1
        sizes[place] = 1
    ends = accumulate(sizes)
    return tuple(
        replace(stage, layers=(end - size, end))
        for stage, size, end in zip(s.stages, sizes, ends, strict=True)
    )


def _mended(one: Job, lacking: set[Feature | None]) -> Job:
    """The plan with replicas for what cannot be split, another stage of ZeRO, and the like."""
    s = one.strategy
    if Feature.PIPELINE in lacking:
        overlap = replace(s.overlap, p2p=False)
        s = replace(s, pp=1, virtual_stages=1, dp=s.dp * s.pp, overlap=overlap)
        s = replace(s, split=LayerSplit.EVEN, stages=())
    if Feature.TENSOR_PARALLEL in lacking:
        overlap = replace(s.overlap, tp=False)
        s = replace(s, tp=1, sequence_parallel=False, dp=s.dp * s.tp, overlap=overlap)
    if any(feature and feature.name.startswith("ZERO") for feature in lacking):
        overlap = replace(s.overlap, grad_reduce=True)
        s = replace(s, zero_stage=1 if s.pp > 1 else 2, overlap=overlap)
    if lacking & {Feature.REDUCE_APART, Feature.REDUCE_APART_ALONE, Feature.GATHER_APART}:
        s = replace(s, overlap=replace(s.overlap, grad_reduce=True, param_gather=s.zero_stage > 0))
    if Feature.SEND_APART in lacking:
        s = replace(s, overlap=replace(s.overlap, p2p=True))
    if Feature.SEQUENCE_PARALLEL in lacking:
        s = replace(s, sequence_parallel=False, overlap=replace(s.overlap, tp=False))
    if Feature.EMPTY_STAGES in lacking:
        s = replace(s, stages=_filled(s))
    if Feature.FEW_MICRO_BATCHES in lacking:
        s = replace(s, num_micro_batches=s.pp)
    work = replace(one.workload, global_batch=s.sequences)
    return replace(one, strategy=s, workload=work)


if __name__ == "__main__":
    for name in CASES:
        for path, text in written(name).items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            Path(GOLDEN / path).write_text(text, encoding="utf-8")
