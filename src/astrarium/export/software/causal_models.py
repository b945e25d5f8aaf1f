"""Models that Transformers builds, for software that has no models of its own.

Such software gets a `config.json` and a short training script beside its configuration. Trained is
on generated tokens, or on those of a file: a plan says nothing of data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from astrarium.export.features import Feature
from astrarium.export.header import commented, header_lines
from astrarium.export.program import Files
from astrarium.export.run_length import TRIAL_ITERATIONS, is_trial, iterations
from astrarium.plans.job import Job

CONFIG: Final = "config.json"
SCRIPT: Final = "train.py"
TRANSFORMERS: Final = "5.22.2"  # with which the models were built and counted
# What comes closest to how these models run: torch's own kernels, flash attention among them.
RUNTIME: Final = "fsdp"
KERNELS: Final = "eager kernels of torch, which models of Transformers run"

NO_RUN_OF_ITS_OWN: Final[Mapping[Feature, str]] = {
    Feature.RAMP: "the script's batch does not grow; no other plan helps, plan without"
    " {rampup_batch}",
    Feature.EVALUATION: "the script only trains; no other plan helps, plan without {eval_every}",
}

# Keys of shares that are left out of training, and types of models that do so if nothing is said.
DROPOUTS: Final = frozenset(
    {
        "attention_dropout",
        "attn_pdrop",
        "dropout",
        "embd_pdrop",
        "hidden_dropout",
        "layerdrop",
        "resid_pdrop",
    }
)
USED_IF_SILENT: Final[Mapping[str, tuple[str, ...]]] = {
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "opt": ("dropout",),
}

# The class of a layer, by the model_type of config.json.
LAYERS: Final = {
    "bloom": "BloomBlock",
    "cohere": "CohereDecoderLayer",
    "deepseek_v2": "DeepseekV2DecoderLayer",
    "deepseek_v3": "DeepseekV3DecoderLayer",
    "falcon": "FalconDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "glm4_moe": "Glm4MoeDecoderLayer",
    "gpt2": "GPT2Block",
    "gpt_neox": "GPTNeoXLayer",
    "gpt_oss": "GptOssDecoderLayer",
    "gptj": "GPTJBlock",
    "llama": "LlamaDecoderLayer",
    "llama4_text": "Llama4TextDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "olmo2": "Olmo2DecoderLayer",
    "opt": "OPTDecoderLayer",
    "phi": "PhiDecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "phimoe": "PhimoeDecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen2_moe": "Qwen2MoeDecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "qwen3_moe": "Qwen3MoeDecoderLayer",
}


def causal_refused(job: Job) -> str:
    """Why Transformers cannot build the model, "" if it can."""
    kind = job.config.get("model_type")
    if kind in LAYERS:
        return ""
    what = f"of type '{kind}'" if kind else "from a model file"
    known = ", ".join(LAYERS)
    return f"Transformers builds no causal language model {what}; it builds {known}"


def layer_class(job: Job) -> str:
    return LAYERS[job.config["model_type"]]


def training_files(job: Job, software: str, template: str, further: Mapping[str, object]) -> Files:
    """The model and the script that trains it.

    `template` is a file of this package's data; its constants are those of the plan and `further`.
    """
    text = resources.files("astrarium.export.software").joinpath("data", template).read_text()
    strategy, work = job.strategy, job.workload
    constants: dict[str, object] = {
        "SEQ_LENGTH": work.seq_length,
        "MICRO_BATCH": strategy.micro_batch,
        "MICRO_BATCHES": strategy.num_micro_batches,
        "SPLIT": strategy.tp * strategy.cp,
        "STEPS": iterations(job),
        **further,
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
    head = commented(header_lines(job, software))
    config = json.dumps(without_dropout(job.config), indent=2) + "\n"
    return {CONFIG: config, SCRIPT: f"{head}\n{text.replace('# CONSTANTS', lines.rstrip())}"}


def without_dropout(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with all dropout off, as plans have it, where it is silent too."""
    said = [key for key in config if key in DROPOUTS]
    usual = USED_IF_SILENT.get(config["model_type"], ())
    return {**config, **dict.fromkeys((*said, *usual), 0.0)}


def script_notes(job: Job) -> tuple[str, ...]:
    """What to know of the script."""
    trial = f" The plan names no tokens: {TRIAL_ITERATIONS} steps." if is_trial(job) else ""
    return (
        f"`{SCRIPT}` builds the model of `{CONFIG}` with random weights and trains it on random"
        " tokens, or on those of the file DATA_PATH (32-bit integers, one after another); put your"
        f" own training in its place.{trial}",
    )
