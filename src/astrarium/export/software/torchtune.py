"""torchtune: one of its own recipes and configurations, and arguments that make it the plan.

A configuration brings the model, its tokenizer and its checkpoint; every key that the plan decides
is overridden. Models without a configuration are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from astrarium.errors import flag
from astrarium.export.header import commented, estimate_note, header_lines
from astrarium.export.program import RankProgram
from astrarium.export.run_length import TRIAL_ITERATIONS, is_trial, iterations
from astrarium.export.software.published import published_as, why_unpublished
from astrarium.export.target import target_of
from astrarium.model.adapters import adapted_modules
from astrarium.model.blocks import Block, Model, Module
from astrarium.model.workload import Workload
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

VERSION: Final = "0.6.1"
TORCHAO: Final = "0.10.0"  # later ones lack what it imports
RUNTIME: Final = "torchtune"
OVERRIDES: Final = "overrides.txt"
_DATA: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "torchtune.json").read_bytes()
)
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = _DATA["configs"]  # by names of the catalog


def config_of(job: Job) -> str:
    """The configuration for the model and what trains; "" if there is none."""
    configs = _configs(job.workload)
    return configs.get(published_as(job.model, configs), "")


def _configs(work: Workload) -> Mapping[str, str]:
    kind = "full" if work.adapters is None else "lora"
    return {name: of[kind] for name, of in CONFIGS.items() if kind in of}


def workload_refused(work: Workload) -> str:
    """Why the model or its adapters have no configuration; "" if they have one."""
    why, adapters = why_unpublished(work.model, _configs(work)), work.adapters
    if why:
        kind = "all weights" if adapters is None else "adapters"
        return f"torchtune {VERSION} has no distributed configuration of {kind} for it{why}"
    if adapters is None:
        return ""
    if adapters.kind not in _facts(work.model).get("kinds", [adapters.kind]):
        return f"torchtune {VERSION} has no {adapters.kind} for it"
    if not _adapted(work, Module.ATTENTION) or len(_adapted(work, Module.MLP)) not in (0, 3):
        return (
            "adapters are on some weights of attention, and on all of feed-forward parts or none;"
            f" plan with {flag('lora_modules')} all-linear, or attention"
        )
    return ""


def _facts(model: Model) -> Mapping[str, Any]:
    return CONFIGS[published_as(model, CONFIGS)]


def _adapted(work: Workload, part: Module) -> list[str]:
    """The modules with adapters in a part of a layer."""
    assert work.adapters is not None
    block = next(kind for kind in work.model.kinds if isinstance(kind, Block))
    found = adapted_modules(work.model, block, work.adapters)
    return [one.name for one in found if one.linear.module is part]


def overrides(job: Job) -> dict[str, object]:
    """Every key of a configuration that the plan decides."""
    return {**_DATA["fixed"], **dict(_training(job)), **dict(_trained(job))}


def _training(job: Job) -> Iterator[tuple[str, object]]:
    strategy, lengths = job.strategy, job.workload.lengths
    yield "tokenizer.max_seq_len", job.workload.seq_length
    yield "dataset.packed", lengths is None or lengths.packed
    yield "batch_size", strategy.micro_batch
    yield "gradient_accumulation_steps", strategy.num_micro_batches
    yield "max_steps_per_epoch", iterations(job)
    full = strategy.recompute.granularity is Granularity.FULL
    yield "enable_activation_checkpointing", full
    yield "fsdp_reshard_after_forward", strategy.zero_stage in (0, 3)
    yield "fsdp_cpu_offload", strategy.offload_optimizer


def _trained(job: Job) -> Iterator[tuple[str, object]]:
    adapters = job.workload.adapters
    if adapters is None:
        yield from _DATA["fixed_for_all"].items()
        return
    yield from [("model", _facts(job.model)["builder"])] if "builder" in _facts(job.model) else ()
    yield from _DATA["fixed_for_adapters"].items()
    yield "model.lora_attn_modules", _adapted(job.workload, Module.ATTENTION)
    yield "model.apply_lora_to_mlp", bool(_adapted(job.workload, Module.MLP))
    yield "model.lora_rank", adapters.rank
    yield "model.lora_alpha", 2 * adapters.rank
    yield "model.quantize_base", adapters.is_quantised
    if adapters.has_magnitudes:
        yield "model.use_dora", True
    if not job.model.head.tied:
        yield "model.apply_lora_to_output", False


def _word(key: str, value: object) -> str:
    """An argument as OmegaConf reads it."""
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return f"{key}={text}"


def program(job: Job) -> RankProgram:
    """The program of every process."""
    recipe = "full" if job.workload.adapters is None else "lora"
    words = tuple(_word(key, value) for key, value in overrides(job).items())
    header = commented(header_lines(job, TARGET.label))
    config = f'"$TORCHTUNE_PATH"/recipes/configs/{config_of(job)}.yaml'
    return RankProgram(
        software=TARGET.label,
        script=f'"$TORCHTUNE_PATH"/recipes/{recipe}_finetune_distributed.py --config {config}',
        arguments=words,
        files={OVERRIDES: header + "".join(f"{word}\n" for word in words)},
        variables={"TORCHTUNE_PATH": f"a checkout of torchtune, tag v{VERSION}"},
        needs=(
            f"torchtune {VERSION} (`pip install torchtune=={VERSION} torchao=={TORCHAO}`), on every"
            " node.",
            "The weights where the configuration expects them: its first lines have the `tune"
            " download` for it.",
        ),
        notes=tuple(_notes(job)),
    )


def _notes(job: Job) -> Iterator[str]:
    yield estimate_note(job, RUNTIME, "torchtune, which trains in bf16 alone")
    yield (
        f"The configuration is {config_of(job)}; {OVERRIDES} lists what the plan changes in it. All"
        " other settings, such as the learning rate and the data (Alpaca), are its own."
    )
    yield "A checkpoint is written when the run ends; it does not go on from one."
    if is_trial(job):
        yield f"The plan states no number of tokens: it trains {TRIAL_ITERATIONS} steps."


TARGET = target_of(__name__)
