"""Megatron-Bridge: a recipe of its own for the model, and overrides that make it the plan.

A recipe brings the model from Hugging Face and a tuned strategy; every key of that strategy is
overridden, so that nothing of it is left. Models without a recipe are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from astrarium.errors import flag
from astrarium.export.header import commented, estimate_note, header_lines
from astrarium.export.program import BRIDGE_OFF, Data, RankProgram, filled, on_amd
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    evaluation_of,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
    ramp_of,
)
from astrarium.export.software import megatron
from astrarium.export.software.published import published_as, why_unpublished
from astrarium.export.target import target_of
from astrarium.model.adapters import module_names
from astrarium.model.workload import Precision, Workload
from astrarium.plans.job import Job

VERSION: Final = "0.6.2"
SOFTWARE: Final = f"Megatron-Bridge {VERSION}"
OVERLAPPED: Final = "overlap-moe-expert-parallel-comm"
OVERRIDES: Final = "overrides.txt"
KEPT: Final = 3  # checkpoints that stay
WARM_UP: Final = 100  # one iteration in so many, at the start

_DATA: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "bridge.json").read_bytes()
)
RECIPES: Final[Mapping[str, str]] = _DATA["recipes"]  # by names of the catalog
ADAPTED: Final[Mapping[str, str]] = _DATA["adapted"]  # likewise, with adapters
STARTER: Final = "finetune_bridge.py"
PRETRAINED: Final = "PRETRAINED"
MIXED_PRECISION: Final[Mapping[Precision, str]] = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.FP8: "bf16_with_fp8_current_scaling_mixed",
    Precision.MXFP8: "bf16_with_mxfp8_mixed",
    Precision.FP4: "bf16_with_nvfp4_mixed",
}


def recipe_of(job: Job) -> str:
    """The recipe for the model, with adapters or without; "" if there is none."""
    recipes = _recipes(job.workload)
    return recipes.get(published_as(job.model, recipes), "")


def _recipes(work: Workload) -> Mapping[str, str]:
    return RECIPES if work.adapters is None else ADAPTED


def workload_refused(work: Workload) -> str:
    """Why there is no recipe for the model; "" if there is one."""
    why = why_unpublished(work.model, _recipes(work))
    kind = "" if work.adapters is None else " with adapters"
    return why and (
        f"Megatron-Bridge {VERSION} has no recipe{kind} for it{why}; {flag('to')} megatron writes"
        " the model out option by option"
    )


def overrides(job: Job) -> dict[str, object]:
    """Every key of a configuration that the plan decides."""
    return {
        **dict(_strategy(job)),
        **_DATA["fixed"],
        **({**_DATA["fixed_for_experts"], **_messages(job)} if job.model.max_experts else {}),
        **(BRIDGE_OFF if on_amd(job) else {}),
        **dict(_run(job)),
        **dict(_adapters(job)),
    }


def _strategy(job: Job) -> Iterator[tuple[str, object]]:
    """Megatron-LM's options as settings; what the plan leaves out is said, too."""
    s = job.strategy
    behind = s.overlap.p2p and s.virtual_stages > 1
    found = {
        **dict(megatron.strategy_flags(job)),
        "virtual-stages": s.virtual_stages if s.virtual_stages > 1 else None,
        "mtp-num-layers": job.model.mtp_layers or None,
        "sends-behind": behind,
        "sends-batched": not behind,
    }
    for key, (name, *default) in _DATA["strategy"].items():
        if name in found or default:
            yield key, found.get(name, *default)


def _messages(job: Job) -> dict[str, object]:
    """Messages of experts as settings of the model; `comm_overlap` is not asked."""
    asked = dict(megatron.expert_messages(job))
    overlapped = asked.pop(OVERLAPPED, False)
    named = {f"model.{name.replace('-', '_')}": value for name, value in asked.items()}
    return {**named, f"model.{OVERLAPPED.replace('-', '_')}": overlapped}


def _run(job: Job) -> Iterator[tuple[str, object]]:
    count, ramp, evaluation = iterations(job), ramp_of(job), evaluation_of(job)
    yield "mixed_precision", MIXED_PRECISION[job.workload.precision]
    yield "model.seq_length", job.workload.seq_length
    yield "dataset.seq_length", job.workload.seq_length
    yield "model.vocab_size", job.model.vocab
    yield "model.should_pad_vocab", True
    yield "model.make_vocab_size_divisible_by", megatron.VOCABULARY_MULTIPLE
    yield "tokenizer.vocab_size", job.model.vocab
    # Its batch grows only where iterations are counted, not samples.
    yield "train.train_iters", count
    if ramp is not None:
        yield "train.rampup_batch_size", [ramp.start, ramp.increment, ramp.samples]
    yield "validation.eval_iters", evaluation.iterations if evaluation else 0
    if evaluation is not None:
        yield "validation.eval_interval", evaluation.every
    yield "scheduler.lr_warmup_iters", count // WARM_UP
    yield "logger.log_interval", 10


def _adapters(job: Job) -> Iterator[tuple[str, object]]:
    """Adapters, and rows of the plan's length, each filled with several samples."""
    adapters, strategy = job.workload.adapters, job.strategy
    if adapters is None:
        return
    yield from _DATA["fixed_for_adapters"].items()
    yield "peft.dim", adapters.rank
    yield "peft.alpha", 2 * adapters.rank
    yield "peft.target_modules", list(module_names(job.model, adapters))
    packed = strategy.micro_batch == 1
    yield "dataset.enable_offline_packing", packed
    if packed:
        yield "dataset.offline_packing_specs.packed_sequence_size", job.workload.seq_length
        yield "dataset.offline_packing_specs.pad_seq_to_mult", max(2 * strategy.cp, 1)


def word(key: str, value: object) -> str:
    """An override as the command line takes it; text with signs of the grammar is quoted."""
    return f"{key}={_text(value)}"


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(each)}" for key, each in value.items()) + "}"
    plain = str(value)
    return f"'{plain}'" if any(sign in plain for sign in "|*,=") else plain


_PRETRAINING: Final = Data(
    ("--dataset", "llm-pretrain-mock"),
    "DATA_PATH",
    ("--dataset llm-pretrain", '"dataset.blend=[[$DATA_PATH],null]"'),
)


def program(job: Job) -> RankProgram:
    words = [word(key, value) for key, value in overrides(job).items()]
    header, adapters = commented(header_lines(job, SOFTWARE)), job.workload.adapters
    listed = {OVERRIDES: header + "".join(f"{line}\n" for line in words)}
    if adapters is None:
        started: dict[str, Any] = {
            "script": '"$BRIDGE_PATH"/scripts/training/run_recipe.py',
            "arguments": ("--recipe", recipe_of(job), *words),
            "data": _PRETRAINING,
            "files": listed,
            "variables": {"BRIDGE_PATH": f"a checkout of Megatron-Bridge, tag v{VERSION}"},
        }
    else:
        scheme = ("--peft_scheme", adapters.kind.value)
        started = {
            "script": STARTER,
            "arguments": ("--recipe", recipe_of(job), *scheme, *words),
            "files": {**listed, STARTER: header + filled("finetune_bridge.txt")},
            "variables": {PRETRAINED: "a checkpoint that Megatron-Bridge imported"},
        }
    return RankProgram(
        software=SOFTWARE,
        **started,
        checkpoints=(
            f'checkpoint.save="${CHECKPOINTS}"',
            f'checkpoint.load="${CHECKPOINTS}"',
            f"checkpoint.save_interval={iterations_between(job)}",
            f"checkpoint.most_recent_k={KEPT}",
        ),
        smoke=(
            f"train.train_iters={SMOKE_ITERATIONS}",
            "scheduler.lr_warmup_iters=0",
            "checkpoint.save=null",
            "checkpoint.load=null",
        ),
        environment=megatron.environment(job),
        needs=(
            f"Megatron-Bridge {VERSION} with Transformer Engine, the same on every node.",
            "Access to the model's config on Hugging Face, which the recipe reads.",
        ),
        notes=tuple(_notes(job)),
    )


def _notes(job: Job) -> Iterator[str]:
    yield (
        f"The recipe is {recipe_of(job)}; {OVERRIDES} lists what the plan changes in it. All other"
        " settings, such as the learning rate, are those of the recipe."
    )
    yield "The model is the published one on Hugging Face, which has the sizes of the plan."
    adapters = job.workload.adapters
    yield (
        "Without DATA_PATH it trains on random tokens."
        if adapters is None
        else "It trains on SQuAD, as the recipe does; `dataset` in the recipe says another one."
    )
    if adapters is None:
        yield estimate_note(job, "megatron-bridge", "Megatron-Bridge")
    yield kept_note(job)
    if is_trial(job):
        yield f"The plan states no number of tokens: it trains {TRIAL_ITERATIONS} iterations."


TARGET = target_of(__name__)
