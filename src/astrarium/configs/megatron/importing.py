"""From options of Megatron-LM to what they mean: a launch script, arguments, YAML, overrides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from astrarium.catalog.optimizers import ADAMW, optimizer_called
from astrarium.configs.imported import (
    AsIf,
    Imported,
    NotModelledError,
    OpenQuestionError,
    Unknown,
    Used,
)
from astrarium.configs.megatron.arguments import Arguments, Given, is_of_fork, parse_arguments
from astrarium.configs.megatron.conflicts import (
    NO_MICRO_BATCH,
    conflicts_of,
    environment_notes,
    holds,
    layer_conflicts,
    world_conflict,
)
from astrarium.configs.megatron.hybrid import behind_slash, segments_of
from astrarium.configs.megatron.settings import (
    DEFAULTS,
    MOMENTS,
    describe_megatron,
    numerics_of,
    optimizer_of,
)
from astrarium.configs.neighbours import json_beside
from astrarium.configs.settings import Described, Settings
from astrarium.configs.shell.expansion import marked
from astrarium.configs.shell.launch import Launch, read_launch
from astrarium.configs.values import Answers, most_entries, table
from astrarium.errors import InputError
from astrarium.model.workload import Numerics
from astrarium.strategy.options import Option, Treatment, megatron_options, megatron_version

# Options that plans never have, but whose meaning is read: they say in another way what a
# strategy says.
READ: Final[Mapping[str, str]] = table("names")["read"]
# Options that mean something only beside another one: how their names begin, and that one.
_HYBRID_SPECS: Final = ("hybrid_stack_spec", "mamba_stack_spec")  # Megatron's own
_ONLY_WITH: Final[Mapping[str, str]] = table("names")["only_with"]
FORK: Final = "Megatron-DeepSpeed main"
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_OF_EXPERTS: Final = "num_experts"


def read_launch_script(text: str, source: str, answers: Answers | None = None) -> Imported:
    """A shell script that starts a training, or its options alone."""
    launch = read_launch(text, source, answers)
    if launch.kind == "bridge":
        from astrarium.configs.megatron.nested import read_recipe

        return read_recipe(launch, source, answers.variables if answers else {})
    if launch.kind == "torchtune":
        from astrarium.configs.torchtune import read_tune

        return read_tune(launch, source)
    if launch.kind in ("torchtitan", "own"):
        from astrarium.configs import python_file

        reader = python_file.read_torchtitan_launch if launch.kind == "torchtitan" else None
        return (reader or python_file.read_own)(launch, source)
    if launch.kind == "huggingface":
        from astrarium.configs.huggingface import read_trainer

        return read_trainer(launch, source)
    return imported(parse_arguments(launch.arguments), source, launch, answers=answers)


def read_arguments(text: str, source: str, answers: Answers | None = None) -> Imported:
    """An argument string, as it would stand behind pretrain_gpt.py; no shell reads it."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"{source}: {str(error).lower()} in the arguments") from None
    words = [_VARIABLE.sub(lambda found: marked(found[1]), word) for word in words]
    return imported(parse_arguments(words), source, Launch(is_script=False), answers=answers)


def of_settings(
    values: Mapping[str, str],
    source: str,
    unknown: Sequence[Unknown],
    recipe: str = "",
    launch: Launch | None = None,
) -> Imported:
    """Settings by Megatron's names; of a recipe's, options that are left out stay unknown."""
    by_dest = {option.dest: option for option in megatron_options()}
    arguments = Arguments(unknown=list(unknown))
    for dest, value in values.items():
        option = by_dest.get(dest)
        if option is None:
            arguments.older[dest] = value
            continue
        arguments.given[dest] = Given(option, option.flags[0], _values_for(option, value), value)
    return imported(arguments, source, launch or Launch(is_script=False), recipe)


def described(words: Sequence[str]) -> Described:
    """The options of a command line in our words, with Megatron's defaults."""
    return describe_megatron(Settings({**DEFAULTS, **parse_arguments(words).settings()}))


def _values_for(option: Option, value: str) -> tuple[str, ...]:
    if option.takes.is_flag:
        return ()
    return tuple(value.split(", ")) if option.many is not None else (value,)


def imported(
    arguments: Arguments,
    source: str,
    launch: Launch,
    recipe: str = "",
    answers: Answers | None = None,
) -> Imported:
    questions, variables = arguments.unset()
    if questions:
        raise OpenQuestionError(f"{source}: {'; '.join(questions)}", variables=variables)
    is_fork = "deepspeed" in arguments.older or bool(arguments.neutral)
    values = _values(arguments, launch, answers)
    found = _overruled(values, Settings(values))
    settings = Settings(values)
    if behind_slash(settings):
        found.append("layers that predict further tokens (behind / in the pattern) are left out")
    conflicts = _conflicts(arguments, settings, is_fork=is_fork)
    if launch.gpus is not None and not launch.is_default:
        conflicts += [text for text in [world_conflict(settings, launch.gpus)] if text]
    described = describe_megatron(settings if not conflicts else _plain(values), "configuration")
    described.gpus, described.open_gpus = launch.gpus, launch.open_gpus
    described.gpus_per_node = launch.gpus_per_node
    described.gpus_is_default = launch.is_default
    if recipe:
        described.runtime = "megatron-bridge"
        # What the recipe says beside is not known, so nothing can be missing.
        conflicts = [t for t in conflicts if t != NO_MICRO_BATCH and " needs " not in t]
        found.append("what the recipe itself sets is not known; Megatron's defaults are taken")
    if is_fork:
        flash = any(settings.flag(name) for name in ("use_flash_attn", "use_flash_attn_v2"))
        described.runtime = "megatron-local" if flash else "megatron-2021"
    elif launch.is_script:
        found += environment_notes(settings, launch.environment)
    assumed = _vocabulary(described) if not recipe else []

    def strategy_of(layers: int, _: int | None = None) -> dict[str, Any]:
        whole = {"num_layers": str(layers), **values}
        against = [] if "num_layers" in values else layer_conflicts(Settings(whole))
        if against:
            raise InputError(f"{source}: {'; '.join(against)}")
        experts = _experts_of_recipe(settings) if recipe else {}
        return {"split": "even", **describe_megatron(Settings(whole)).strategy, **experts}

    return Imported(
        source=source,
        program=recipe or (FORK if is_fork else f"Megatron-LM {megatron_version()}"),
        described=described,
        strategy_of=strategy_of,
        used=(*_used(arguments, values), *(_used_of_fork(arguments) if is_fork else ())),
        neutral=_neutral(arguments),
        as_if=(
            *_as_if(arguments, settings, whole=not recipe and not is_fork),
            *arguments.as_if,
            *assumed,
        ),
        unknown=tuple(_unknown(arguments, is_fork=is_fork)),
        conflicts=tuple(conflicts),
        notes=(*launch.notes, *(f"{source}: {note}" for note in (*arguments.notes, *found))),
    )


def _values(arguments: Arguments, launch: Launch, answers: Answers | None) -> dict[str, str]:
    """The settings, with Megatron's defaults, DeepSpeed's file and the answers of the user."""
    values = {**DEFAULTS, **arguments.settings()}
    if "deepspeed" in arguments.older:
        values |= _of_deepspeed(values, launch)
        if values.get("bf16") == "True" and values.get("zero_stage", "0") == "0":
            why = "DeepSpeed's optimizer for bf16 shards its states by itself"
            arguments.as_if.append(AsIf("--zero-stage", "0", "1", why))
    if answers and answers.vocabulary:
        values["vocab_size"] = str(answers.vocabulary)
    return values


def _used_of_fork(arguments: Arguments) -> list[Used]:
    return [
        Used(arguments.flags.get(dest, dest), value, dest)
        for dest, value in arguments.older.items()
    ]


def _neutral(arguments: Arguments) -> tuple[str, ...]:
    given = arguments.given.values()
    own = [one.flag for one in given if one.option.treatment is Treatment.NEUTRAL]
    return (*own, *arguments.neutral)


def _conflicts(arguments: Arguments, s: Settings, *, is_fork: bool) -> list[str]:
    """Reasons for the program to stop; forks know other values than Megatron-LM."""
    if is_fork and "num_experts" in s and any(text[-1:].isdigit() for text in arguments.complaints):
        raise NotModelledError("a pyramid of experts (--num-experts N M ...) is not modelled")
    if is_fork:
        own = [text for text in arguments.complaints if "invalid choice" not in text]
        return [*own, *([NO_MICRO_BATCH] if "micro_batch_size" not in s else [])]
    return [*arguments.complaints, *conflicts_of(s)]


def _unknown(arguments: Arguments, *, is_fork: bool) -> list[Unknown]:
    """Options that nobody knows; those of a fork are known to it."""
    if not is_fork:
        return arguments.unknown
    return [
        Unknown(one.option, f"not among the known options of {FORK.rpartition(' ')[0]}")
        for one in arguments.unknown
        if not is_of_fork(one.option)
    ]


def _of_deepspeed(values: Mapping[str, str], launch: Launch) -> dict[str, str]:
    """DeepSpeed's own settings: in a file that the script writes, or that lies beside it."""
    name = values.get("deepspeed_config", "")
    content = json_beside(launch.folder, name, launch.files) or {}
    zero = content.get("zero_optimization", {})
    out = {}
    if isinstance(zero, Mapping):
        if str(zero.get("stage", "")).isdigit() and "zero_stage" not in values:
            out["zero_stage"] = str(zero["stage"])
        offload = zero.get("offload_optimizer")
        device = offload.get("device", "none") if isinstance(offload, Mapping) else "none"
        if device != "none" or zero.get("cpu_offload") is True:
            out["optimizer_cpu_offload"] = "True"
    return out


def _vocabulary(described: Described) -> list[AsIf]:
    """The assumed vocabulary where no option states one."""
    shape = described.shape
    if shape is None or shape.vocab or described.sizes.get("entries of the vocabulary"):
        return []
    if described.vocabulary:
        why = "as the name of the tokenizer tells"
        return [AsIf("--vocab-size", "not given", f"{described.vocabulary:,}", why)]
    described.vocabulary, described.vocabulary_is_bound = most_entries(), True
    why = "an upper bound: what fits, fits with any vocabulary up to it"
    return [AsIf("--vocab-size", "not given", f"{described.vocabulary:,}", why)]


def _experts_of_recipe(s: Settings) -> dict[str, Any]:
    """A recipe has experts if it says how to divide them.

    Where the stages of a replica are neighbours, models without experts need the option as well.
    """
    etp = s.count("expert_tensor_parallel_size")
    return {} if etp is None or s.flag("use_tp_pp_dp_mapping") else {"etp": etp}


def _plain(values: Mapping[str, str]) -> Settings:
    """The settings without those that cut the pipeline: they may contradict each other."""
    cutting = ("pipeline_model_parallel_layout", *(k for k, v in READ.items() if v == "stages"))
    return Settings({name: value for name, value in values.items() if name not in cutting})


def _overruled(values: dict[str, str], s: Settings) -> list[str]:
    """Changes that Megatron makes before it checks its options; they are made here, too."""
    out = []
    if s.flag("sequence_parallel") and (s.count("tensor_model_parallel_size") or 1) == 1:
        values["sequence_parallel"] = "False"
        out.append("--sequence-parallel without tp: Megatron switches it off with a warning")
    if s.flag("recompute_activations"):
        if s.text("recompute_granularity") not in ("", "selective"):
            out.append("--recompute-activations: Megatron makes the granularity selective")
        values["recompute_granularity"] = "selective"
    return out


def _used(arguments: Arguments, values: Mapping[str, str]) -> list[Used]:
    out = []
    for dest, one in arguments.given.items():
        option = one.option
        decides = option.field if option.treatment is not Treatment.FIXED else READ.get(dest)
        if option.treatment is Treatment.FIXED and decides is None:
            if _same(option, one):
                decides = "as modelled"
            else:
                continue
        if decides:
            out.append(Used(one.flag, " ".join(one.values) or values[dest], decides))
    return out


def _as_if(arguments: Arguments, s: Settings, *, whole: bool) -> list[AsIf]:
    """Options whose value is not the one that is modelled, given or (of the whole) by default."""
    out = []
    for option in megatron_options():
        one = arguments.given.get(option.dest)
        if option.treatment is not Treatment.FIXED or option.dest in READ:
            continue
        if not _matters(option.dest, s):
            continue
        if one is not None and not _same(option, one):
            given = " ".join(one.values) or _shown(one.setting == "True")
            out.append(AsIf(option.flags[0], given, _shown(option.value), option.why))
        elif one is None and whole and option.differs_from_default and not _implied(option, s):
            given = f"{_shown(option.default)} by default"
            out.append(AsIf(option.flags[0], given, _shown(option.value), option.why))
    return out + (_workload_as_if(s) if whole else [])


def _workload_as_if(s: Settings) -> list[AsIf]:
    """Options that `data/conflicts.json` calls not modelled; $name is a setting's value."""
    out = [
        AsIf(option, s.text(given[1:]) if given.startswith("$") else given, assumed, why)
        for needed, (option, given, assumed, why) in table("conflicts")["as_if"]
        if all(holds(s, one) for one in needed)
    ]
    if optimizer_called(s.text("optimizer") or ADAMW) is None:
        why = "its states and its step are those of Adam"
        out.append(AsIf("--optimizer", s.text("optimizer"), "adam", why))
    if numerics_of(s) is Numerics.STRICT:
        why = "gradients and both moments are predicted in bf16 together, or in fp32"
        out += [
            AsIf(option.flags[0], _shown(s.text(option.dest)), "fp32", why)
            for option in megatron_options()
            if option.field == "numerics"
            and not (option.dest.startswith("exp_avg") and optimizer_of(s) in MOMENTS.values())
            and s.text(option.dest) not in ("", "False", "fp32", "torch.float32")
        ]
    out += _dispatch_as_if(s)
    return out


def _dispatch_as_if(s: Settings) -> list[AsIf]:
    """Options about messages of experts that are predicted otherwise."""
    if _OF_EXPERTS not in s:
        return []
    way, flag = s.text("moe_token_dispatcher_type") or "allgather", "--moe-token-dispatcher-type"
    backend = s.text("moe_flex_dispatcher_backend") or "deepep"
    if way == "flex" and backend != "deepep":
        why = "both send a token to a node once"
        return [AsIf("--moe-flex-dispatcher-backend", backend, "deepep", why)]
    if way == "allgather" and (s.count("expert_model_parallel_size") or 1) > 1:
        return [AsIf(flag, way, "alltoall", "the exchange that is modelled for experts")]
    return []


def _matters(dest: str, s: Settings) -> bool:
    """Whether what an option belongs to is in use."""
    facts = {
        "is_context_parallel": (s.count("context_parallel_size") or 1) > 1,
        "is_muon": "muon" in s.text("optimizer"),
        "is_hybrid_model": bool(segments_of(s)),
        "is_masked": s.text("transformer_impl") == "local",
        _OF_EXPERTS: bool(s.count(_OF_EXPERTS)),
    }
    if dest in ("spec", "is_hybrid_model") and segments_of(s):
        return dest == "spec" and not s.text("spec").endswith(_HYBRID_SPECS)
    for begin, needed in _ONLY_WITH.items():
        if dest.startswith(begin):
            return facts.get(needed, s.flag(needed))
    return True


def _implied(option: Option, s: Settings) -> bool:
    """Whether Megatron gives an option the modelled value because of another one."""
    return option.dest == "accumulate_allreduce_grads_in_fp32" and s.flag("bf16")


def _same(option: Option, one: Given) -> bool:
    modelled = option.value
    if option.takes.is_flag:
        return one.setting == str(bool(modelled))
    if isinstance(modelled, int | float) and not isinstance(modelled, bool):
        try:
            return float(one.values[0]) == modelled
        except (ValueError, IndexError):
            return False
    expected = [str(part) for part in modelled] if isinstance(modelled, list) else [str(modelled)]
    return modelled is not None and set(one.values) <= set(expected)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not given" if value is None or value == [] else str(value)
