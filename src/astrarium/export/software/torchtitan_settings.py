"""A plan in torchtitan's words, as far as its releases agree on them.

Data parallelism is FSDP2. Without a pipeline gradients are reduced after every micro-batch: ZeRO 3
if weights are released after the forward pass, ZeRO 2 if they are kept. In a pipeline torch keeps
weights and gradients whole until the last micro-batch, which is ZeRO 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.export.features import Feature
from astrarium.export.header import estimate_note
from astrarium.export.program import Data, Files, RankProgram
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
)
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

TOKENIZER: Final = "./tokenizer"  # a folder beside the launch script
DATASET: Final = "c4"
RUNTIME: Final = "torchtitan"  # whose profile says what is assumed: layers and loss compiled

LACKS: Final[Mapping[Feature, str]] = {
    Feature.PIPELINE_INSIDE: "its mesh is pp x dp x cp x tp: stages are never neighbours",
    Feature.EMPTY_STAGES: "its optimizer refuses a part of a model without parameters; a stage may"
    " hold the embedding or the head alone",
    Feature.ZERO_0_GROUPS: "context and expert parallelism always shard parameters there",
    Feature.ZERO_1_ALONE: "FSDP2 also shards gradients if there is no pipeline; zero_stage 2 keeps"
    " weights whole and shards the rest",
    Feature.FEW_MICRO_BATCHES: "torch's 1F1B schedule needs a micro-batch for every stage",
    Feature.KV_HEADS_COPIED: "tp must divide the key/value heads",
    Feature.SEQUENCE_REMAINDER: "sequence and context parallelism deal out equal halves only",
    Feature.EXPERT_TENSOR_ALONE: "without expert parallelism experts are split by tp",
    Feature.RECOMPUTE_MODULES: "its selective checkpointing chooses operators, not modules",
    Feature.RECOMPUTE_GROUPS: "full checkpointing covers layers one by one",
    Feature.RECOMPUTE_SOME: "full checkpointing covers every layer",
    Feature.OFFLOAD_OPTIMIZER: "offloading moves parameters and gradients along",
    Feature.REDUCE_APART_ALONE: "FSDP2 and DDP reduce gradients beside the backward pass",
    Feature.GATHER_APART: "FSDP2 always gathers parameters ahead",
    Feature.SEND_APART: "torch's schedules always send beside computation",
    Feature.FP16: "parameters are bfloat16 or float32",
    Feature.FP8: "its fp8 is torchao's, with scaling unlike what was predicted",
    Feature.REDUCED: "its moments are in fp32; plan with --numerics strict",
    Feature.DEEPEP: "plans for it send them all to all; plan with --expert-messages alltoall",
    Feature.RAMP: "its batch does not grow; no other plan helps, plan without {rampup_batch}",
    Feature.EVALUATION: "its validation reads a set of its own, whose length no plan says; plan"
    " without {eval_every}",
}


def parallelism(job: Job, head: str) -> dict[str, Any]:
    """Degrees and pipeline; `head` is what the output projection is called."""
    s = job.strategy
    whole = s.zero_stage == 0
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": s.dp if whole else 1,
        "data_parallel_shard_degree": 1 if whole else s.dp,
        "fsdp_reshard_after_forward": "always" if s.zero_stage == 3 else "never",
        "tensor_parallel_degree": s.tp,
        "context_parallel_degree": s.cp,
        "expert_parallel_degree": s.ep,
        "pipeline_parallel_degree": s.pp,
    }
    if s.pp > 1:
        schedule = "Interleaved1F1B" if s.virtual_stages > 1 else "1F1B"
        settings["pipeline_parallel_schedule"] = schedule
        settings["pipeline_parallel_microbatch_size"] = s.micro_batch
        settings["module_fqns_per_model_part"] = list(modules_of_stages(job, head))
    return settings


def modules_of_stages(job: Job, head: str) -> Iterator[list[str]]:
    """Names of the modules of every stage, in the order of the model."""
    stages = job.strategy.ordered_stages
    if len(stages) != job.strategy.pp * job.strategy.virtual_stages:
        raise InputError("the plan does not say which layers each stage holds; make it again")
    for index, stage in enumerate(stages):
        first = ["tok_embeddings"] if index == 0 else []
        layers = [f"layers.{layer}" for layer in range(stage.first_layer, stage.last_layer)]
        last = ["norm", head] if index == len(stages) - 1 else []
        yield [*first, *layers, *last]


def training(job: Job) -> dict[str, Any]:
    """Batches: a pipeline takes all micro-batches of a step at once, otherwise they accumulate."""
    s, work = job.strategy, job.workload
    at_once = s.num_micro_batches if s.pp > 1 else 1
    return {
        "local_batch_size": s.micro_batch * at_once,
        "global_batch_size": work.global_batch,
        "seq_len": work.seq_length,
        "steps": iterations(job),
        "max_norm": 1.0,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def recomputes(job: Job) -> bool:
    """Whether every layer is computed again in the backward pass."""
    return job.strategy.recompute.granularity is Granularity.FULL


def overlaps_tensor(job: Job) -> bool:
    return job.strategy.tp > 1 and job.strategy.overlap.tp


def titan_program(
    job: Job,
    version: str,
    arguments: tuple[str, ...],
    files: Files,
    data: Data | None = None,
) -> RankProgram:
    """The program of every process."""
    every = f"--checkpoint.interval {iterations_between(job)}"
    return RankProgram(
        software=f"torchtitan {version}",
        script="-m torchtitan.train",
        arguments=arguments,
        data=data or Data(),
        checkpoints=("--checkpoint.enable", f'--checkpoint.folder "${CHECKPOINTS}"', every),
        smoke=("--training.steps", str(SMOKE_ITERATIONS)),
        files=files,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        needs=needs(version),
        notes=tuple(notes(job)),
    )


def needs(version: str) -> tuple[str, ...]:
    return (
        f"torchtitan {version} (`pip install torchtitan=={version}`) with the PyTorch it asks for,"
        " on every node",
        f"the tokenizer of the model in the folder `{TOKENIZER[2:]}` beside the launch script, as"
        " its Hugging Face repository has it",
    )


def notes(job: Job) -> Iterator[str]:
    """Notes for the user, for all versions."""
    s = job.strategy
    yield estimate_note(job, RUNTIME, "torchtitan with compiled layers")
    if s.pp > 1 and s.dp * s.cp > 1:
        yield (
            "In a pipeline torch reduces gradients after the last micro-batch: no overlap, whatever"
            " the plan says of it."
        )
    yield (
        "Learning rate, warm-up and data are torchtitan's defaults and not part of the plan;"
        f" `{DATASET}` is streamed from the Hugging Face hub unless DATASET_PATH names a copy."
    )
    yield kept_note(job)
    if is_trial(job):
        yield f"The plan names no number of tokens: {TRIAL_ITERATIONS} steps are written."
