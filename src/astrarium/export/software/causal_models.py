"""Models that Transformers builds, for software that has no models of its own.

Such software gets a `config.json` and a short training script beside its configuration. Trained is
on generated tokens, or on those of a file: a plan says nothing of data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from astrarium.export.header import commented, header_lines
from astrarium.export.program import Files
from astrarium.export.run_length import (
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
    usual_folder,
)
from astrarium.plans.job import Job

CONFIG: Final = "config.json"
SCRIPT: Final = "train.py"
TRANSFORMERS: Final = "5.22.2"  # with which the models were built and counted
# What comes closest to how these models run: torch's own kernels, flash attention among them.
RUNTIME: Final = "fsdp"
KERNELS: Final = "eager kernels of torch, which models of Transformers run"


_FOLDER: Final = Path(__file__).parent / "data"
_DATA: Final[Mapping[str, Any]] = json.loads((_FOLDER / "causal_models.json").read_bytes())
LAYERS: Final[Mapping[str, str]] = _DATA["layers"]  # the class of a layer, by model_type
DROPOUTS: Final = frozenset(_DATA["dropouts"])


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


def training_files(job: Job, software: str, template: str, extra: Mapping[str, object]) -> Files:
    """The model, and the script of a `template` with the constants of the plan and `extra`."""
    text = (_FOLDER / template).read_text()
    strategy, work = job.strategy, job.workload
    constants: dict[str, object] = {
        "SEQ_LENGTH": work.seq_length,
        "MICRO_BATCH": strategy.micro_batch,
        "MICRO_BATCHES": strategy.num_micro_batches,
        "SPLIT": strategy.tp * strategy.cp,
        "STEPS": iterations(job),
        "SMOKE_STEPS": SMOKE_ITERATIONS,
        "SAVE_EVERY": iterations_between(job),
        "CHECKPOINTS": usual_folder(job),
        **extra,
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
    head = commented(header_lines(job, software))
    config = json.dumps(without_dropout(job.config), indent=2) + "\n"
    return {CONFIG: config, SCRIPT: f"{head}\n{text.replace('# CONSTANTS', lines.rstrip())}"}


def without_dropout(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with all dropout off, as plans have it, where it is silent too."""
    stated = [key for key in config if key in DROPOUTS]
    usual = _DATA["used_if_silent"].get(config["model_type"], ())
    return {**config, **dict.fromkeys((*stated, *usual), 0.0)}


def script_notes(job: Job) -> tuple[str, ...]:
    trial = (
        f" The plan states no number of tokens: it trains {TRIAL_ITERATIONS} steps."
        if is_trial(job)
        else ""
    )
    return (
        f"`{SCRIPT}` builds the model of `{CONFIG}` with {_weights(job)} and trains it on random"
        " tokens, or on those of the file DATA_PATH (32-bit integers, one after another); replace"
        f" it with your own training.{trial}",
        kept_note(job),
    )


def _weights(job: Job) -> str:
    """The weights that the script begins with."""
    adapters = job.workload.adapters
    if adapters is None:
        return "random weights"
    without = "which must be set," if adapters.is_quantised else "or random ones without it,"
    return f"the weights of MODEL_PATH, {without}"
