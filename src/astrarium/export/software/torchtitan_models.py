"""What the releases of torchtitan share: the models that they can build, and a plan in their words.

A flavor is a model of fixed sizes. It stands for the plan's model if all figures are equal, and
what decides no time as well: positions, activation, router, the epsilon of norms.

Data parallelism is FSDP2. Without a pipeline gradients are reduced after every micro-batch: ZeRO 3
if weights are released after the forward pass, ZeRO 2 if they are kept. In a pipeline torch keeps
weights and gradients whole until the last micro-batch, which is ZeRO 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.export.features import recomputes_operators
from astrarium.export.header import estimate_note
from astrarium.export.program import Data, Files, RankProgram, filled
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
)
from astrarium.export.software.model_facts import (
    FAMILIES,
    Rope,
    differing,
    read,
    rope_of,
    trained_facts,
)
from astrarium.model.blocks import Attention, Block, Model
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "torchtitan_models.json"


class Flavor(Value, frozen=True):
    """A model of torchtitan; limits are those of its family in one version."""

    family: str
    name: str
    longest: int | None  # sequence that its rotary positions reach; None: any
    no_pipeline: str  # why not, "" if it has one
    no_context: str
    differences: Mapping[str, str]  # from the model of the plan, in words

    @property
    def label(self) -> str:
        return f"{self.family} {self.name}"


def flavor_of(model: Model, version: str) -> Flavor | None:
    """The flavor that has the sizes of this model, if there is one."""
    sizes = _sizes(model)
    for row in _rows(version):
        if sizes == {key: row[key] for key in sizes}:
            limits = _data()["families"][version][row["family"]]
            return Flavor(
                row["family"],
                row["names"][version],
                limits.get("longest"),
                limits.get("no_pipeline", ""),
                limits.get("no_context", ""),
                differing(trained_facts(model.config or {}) or {}, _facts(row)),
            )
    return None


def flavor_refused(job: Job, flavor: Flavor) -> str:
    """Why a plan for this flavor cannot be written, "" if it can."""
    strategy, length = job.strategy, job.workload.seq_length
    if flavor.longest and length > flavor.longest:
        return f"{flavor.label} takes sequences of up to {flavor.longest} tokens, not {length}"
    if strategy.pp > 1 and flavor.no_pipeline:
        return f"pp {strategy.pp}: {flavor.no_pipeline}"
    if strategy.cp > 1 and flavor.no_context:
        return f"cp {strategy.cp}: {flavor.no_context}"
    return ""


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_data()["facts"][row["family"]], **row.get("facts", {})}


def known_flavors(version: str) -> str:
    by_family: dict[str, list[str]] = {}
    for row in _rows(version):
        by_family.setdefault(row["family"], []).append(row["names"][version])
    return "; ".join(f"{family} {', '.join(names)}" for family, names in by_family.items())


def _sizes(model: Model) -> dict[str, Any]:
    first = model.blocks[0]
    attentions = first.attentions if isinstance(first, Block) else ()
    config = model.config or {}
    return {
        "model_type": config.get("model_type"),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": attentions[0].heads if attentions else 0,
        "kv_heads": attentions[0].kv_heads if attentions else 0,
        "vocab": model.vocab,
        "parameters": model.parameters,
    }


def _rows(version: str) -> list[dict[str, Any]]:
    return [row for row in _data()["flavors"] if version in row["names"]]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_bytes())
    return data


_TYPES: Final = ("llama", "mistral")
# Names in config.json -> names in torchtitan.
_SCALING: Final = {
    "factor": "scaling_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}

IMPORTS: Final = (
    "from dataclasses import replace",
    "from functools import partial",
    "from torch import nn",
    "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.models.common.config_utils import (\n"
    "    get_attention_config,\n    make_ffn_config,\n    make_gqa_config,\n)",
    "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init",
    "from torchtitan.models.llama3 import model_registry",
    "from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock",
    "from torchtitan.protocols.model_spec import ModelSpec",
)


def llama_refused(model: Model) -> str:
    """Why the model is not of this kind, "" if it is."""
    config: Mapping[str, Any] = model.config or {}
    if config.get("model_type") not in _TYPES:
        return f"only models of type {' and '.join(_TYPES)} are put together from its blocks"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "its Llama blocks have no biases"
    if config.get("hidden_act", "silu") != "silu":
        return "its Llama blocks have SiLU"
    if any(a.window is not None for a in _attentions(model)):
        return "its Llama blocks have no sliding window"
    kind = _rope(config).kind
    if kind not in ("", "llama3"):
        return f"its rotary positions are not scaled as rope_type '{kind}'"
    return ""


def llama_spec(model: Model, seq_length: int) -> str:
    """A function that returns the model, for sequences of a length, as Python text."""
    config: Mapping[str, Any] = model.config or {}
    attention = _attentions(model)[0]
    return filled(
        "torchtitan_llama.txt",
        name=json.dumps(model.name),
        parameters=f"{model.parameters:,}",
        hidden=model.hidden,
        layers=model.num_layers,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.key_dim,
        ffn=config["intermediate_size"],
        vocab=model.vocab,
        eps=read(config, FAMILIES[config["model_type"]].epsilon),
        tied=model.head.tied,
        table='{"weight": skip_param_init}' if model.head.tied else '{"weight": nn.init.normal_}',
        rope=", ".join(
            f"{key}={value!r}" for key, value in _rope_settings(model, seq_length).items()
        ),
    )


def _attentions(model: Model) -> list[Attention]:
    blocks = (block for block in model.kinds if isinstance(block, Block))
    return [attention for block in blocks for attention in block.attentions]


def _rope(config: Mapping[str, Any]) -> Rope:
    return rope_of(config, FAMILIES[config["model_type"]])


def _rope_settings(model: Model, seq_length: int) -> dict[str, Any]:
    rope = _rope(model.config or {})
    settings: dict[str, Any] = {
        "dim": _attentions(model)[0].key_dim,
        "max_seq_len": max(model.max_seq_length, seq_length),
        "theta": rope.theta,
    }
    if rope.kind == "llama3":
        settings["scaling"] = "llama"
        settings |= {
            ours: rope.scaling[key] for key, ours in _SCALING.items() if key in rope.scaling
        }
    return settings


TOKENIZER: Final = "./tokenizer"  # a folder beside the launch script
DATASET: Final = "c4"
FLOAT8: Final = "rowwise"  # torchao's recipe: 0.3.0 has no other but one that mixes formats
RUNTIME: Final = "torchtitan"  # whose profile says what is assumed: layers and loss compiled


def parallelism(job: Job, head: str) -> dict[str, Any]:
    """Degrees and pipeline; `head` is what the output projection is called."""
    s = job.strategy
    copies = s.dp if s.zero_stage == 0 else s.shard_groups
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": s.dp // copies,
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
        **({"enable_cpu_offload": True} if s.offload_optimizer else {}),
    }


def checkpointing(job: Job) -> str:
    """Its word for what is computed again in the backward pass."""
    if job.strategy.recompute.granularity is not Granularity.FULL:
        return "none"
    return "selective" if recomputes_operators(job) else "full"


def overlaps_tensor(job: Job) -> bool:
    return job.strategy.tp > 1 and job.strategy.overlap.tp


def titan_program(
    job: Job, version: str, arguments: tuple[str, ...], files: Files, data: Data | None = None
) -> RankProgram:
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
    s = job.strategy
    yield estimate_note(job, RUNTIME, "torchtitan with compiled layers")
    if job.workload.precision is Precision.FP8:
        yield f"fp8 is torchao's float8 with a scale for each row ({FLOAT8}); install torchao."
    if s.pp > 1 and s.dp * s.cp > 1:
        yield (
            "In a pipeline torch reduces gradients after the last micro-batch, without overlap,"
            " even if the plan has it."
        )
    yield (
        "Learning rate, warm-up and data are torchtitan's defaults and not part of the plan;"
        f" `{DATASET}` is streamed from the Hugging Face hub unless DATASET_PATH names a copy."
    )
    yield kept_note(job)
    if is_trial(job):
        yield f"The plan states no number of tokens: it trains {TRIAL_ITERATIONS} steps."
