"""Strategies as text: the `strategy` object of a plan, and the short form tp=8,pp=4,...

Missing keys are derived: dp from the number of GPUs, the number of micro-batches from the batch,
switches from the rules of the runtime. Stated keys must not contradict that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from operator import index as index_of
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from astrarium.catalog import find_gpu
from astrarium.errors import GpuCountError, InputError, did_you_mean
from astrarium.strategy.options import megatron_aliases
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
from astrarium.value import Value

T = TypeVar("T")

_STAGE_KEYS = ("layers", "pools", "gpu", "devices", "pipeline_rank", "chunk")
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp")
_BATCHES = ("micro_batch", "num_micro_batches")
_COUNTS = (*_DEGREES, *_BATCHES, "virtual_stages", "zero_stage", "shard_groups")
_LIMITS = {"zero_stage": (0, 3), "layers": (0, 2**16)}
_KEYS = Strategy.__struct_fields__
# What tables and users call them.
SHORT_NAMES = {
    "vpp": "virtual_stages",
    "mbs": "micro_batch",
    "micro": "micro_batch",
    "zero": "zero_stage",
    "sp": "sequence_parallel",
    "offload": "offload_optimizer",
}
_NESTED = {"recompute": Recompute.__struct_fields__, "overlap": Overlap.__struct_fields__}
# Flat spellings of nested keys, as the rule language and the short form use them.
_FLAT_KEYS = {f"{group}_{key}": (group, key) for group, keys in _NESTED.items() for key in keys}


def strategy_to_dict(strategy: Strategy) -> dict[str, Any]:
    """The strategy as plain data, ready for JSON."""
    data: dict[str, Any] = msgspec.to_builtins(strategy)
    return data


class GivenStrategy(Value, frozen=True):
    """A strategy as read, and the overlap switches that the user set."""

    strategy: Strategy
    overlap_given: frozenset[str]


def read_strategy(
    reference: str, *, gpus: int, global_batch: int, layers: int, flag: str = "--strategy"
) -> GivenStrategy:
    """A strategy from `k=v,...`, from a strategy file, or the best one of a plan file."""
    given = read_strategy_keys(reference, flag)
    where = flag if "=" in reference else reference
    try:
        return given_strategy(
            given, where=where, gpus=gpus, global_batch=global_batch, layers=layers
        )
    except StrategyKeyError as error:
        raise error if "=" in reference else _with_line(Path(reference), error) from None


def given_strategy(
    given: Mapping[str, Any], *, where: str, gpus: int, global_batch: int, layers: int
) -> GivenStrategy:
    """A strategy from its keys, and the overlap switches among them."""
    strategy = strategy_from_dict(
        given, where=where, gpus=gpus, global_batch=global_batch, layers=layers
    )
    return GivenStrategy(strategy, frozenset(_nested(given, where).get("overlap", {})))


def read_strategy_keys(reference: str, flag: str = "--strategy") -> dict[str, Any]:
    """The keys that a user gave, not yet checked or completed for GPUs and batch."""
    if "=" in reference:
        return strategy_pairs(reference, flag)
    if not reference.strip() or not (Path(reference).suffix or os.path.isfile(reference)):
        raise InputError(f"{flag}: {reference!r} is neither key=value,... nor a file")
    given = _from_file(Path(reference))
    # A saved plan may be asked about with another batch.
    given.pop("num_micro_batches", None)
    return given


class StrategyKeyError(InputError):
    """An error in one key of a strategy; the reader of the file adds the line."""

    def __init__(self, where: str, key: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.key, self.what = key, what


def _with_line(path: Path, error: StrategyKeyError) -> InputError:
    from astrarium.documents import line_of

    parts = error.key.split(".")
    for prefix in (["plans", 0, "strategy"], ["strategy"], []):
        line = line_of(path, *prefix, *parts)
        if line is not None:
            return InputError(f"{path}:{line}: {error.what}")
    return error


def strategy_pairs(text: str, flag: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for pair in text.split(","):
        if not pair.strip():
            continue
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise InputError(f"{flag}: {pair.strip()!r} is not of the form key=value")
        if key in given:
            raise InputError(f"{flag}: {key} is given twice")
        given[key] = _scalar(value)
    return given


def _scalar(text: str) -> Any:  # noqa: ANN401  a number, a truth value or a text
    lowered = text.lower()
    if lowered in ("true", "yes", "on"):
        return True
    if lowered in ("false", "no", "off"):
        return False
    try:
        return int(text)
    except ValueError:
        return text.split("+") if "+" in text else text


def _from_file(path: Path) -> dict[str, Any]:
    from astrarium.documents import read

    content = read(path)
    if isinstance(content, Mapping) and isinstance(content.get("plans"), list):
        plans = content["plans"]
        if not plans:
            raise InputError(f"{path}: the plan file holds no plans")
        content = plans[0]
    if isinstance(content, Mapping) and isinstance(content.get("strategy"), Mapping):
        content = content["strategy"]
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: expected a strategy: a table of keys such as tp, pp, dp")
    return dict(content)


def strategy_from_dict(
    given: Mapping[str, Any], *, where: str, gpus: int, global_batch: int, layers: int
) -> Strategy:
    """Checks keys and types, and derives what is missing."""
    nested = _nested(given, where)
    reader = _Reader(where)
    counts: dict[str, Any] = {name: reader(nested, name, 1) for name in _COUNTS}
    recompute = _recompute(reader, nested.get("recompute", {}))
    offloads = reader(nested, "offload_optimizer", False)
    strategy = Strategy(**counts, recompute=recompute, offload_optimizer=offloads)
    strategy = _derived(strategy, nested, where, gpus, global_batch)
    chunks, stages = strategy.pp * strategy.virtual_stages, _stages(reader, nested, strategy)
    default_split = LayerSplit.BALANCED if layers % chunks else LayerSplit.EVEN
    if stages and chunks > layers:
        default_split = LayerSplit.FREE
    sequence = reader(nested, "sequence_parallel", strategy.tp > 1)
    reader(nested, "schedule", strategy.schedule)
    if nested.get("schedule", strategy.schedule.value) != strategy.schedule.value:
        raise reader.fail("schedule", nested["schedule"], f"{strategy.schedule} (from the rest)")
    overlap = nested.get("overlap", {})
    return replace(
        strategy,
        sequence_parallel=sequence,
        pipeline_inside=reader(nested, "pipeline_inside", False),
        split=reader(nested, "split", default_split),
        stages=stages,
        overlap=Overlap(
            grad_reduce=reader(overlap, "grad_reduce", True),
            param_gather=reader(overlap, "param_gather", strategy.zero_stage >= 1),
            p2p=reader(overlap, "p2p", strategy.virtual_stages > 1),
            tp=reader(overlap, "tp", sequence and strategy.tp > 1),
        ),
    )


def _stages(reader: _Reader, nested: Mapping[str, Any], strategy: Strategy) -> tuple[Stage, ...]:
    """Stages as they stand in a plan; of each only its layers have to be given."""
    given = nested.get("stages")
    if given is None:
        return ()
    pp = strategy.pp
    try:
        for key in (key for entry in given for key in entry if key not in _STAGE_KEYS):
            known = f"expected {', '.join(_STAGE_KEYS)}{did_you_mean(str(key), _STAGE_KEYS)}"
            raise StrategyKeyError(reader.where, "stages", f"stages: unknown key '{key}'; {known}")
        return tuple(
            Stage(
                gpu=find_gpu(entry["gpu"]).name if entry.get("gpu") else "",
                layers=(index_of(entry["layers"][0]), index_of(entry["layers"][1])),
                devices=index_of(entry.get("devices", strategy.gpus // pp)),
                pipeline_rank=index_of(entry.get("pipeline_rank", number % pp)),
                chunk=index_of(entry.get("chunk", number // pp)),
                pools={str(n): index_of(c) for n, c in entry.get("pools", {}).items()},
            )
            for number, entry in enumerate(given)
        )
    except (AttributeError, IndexError, KeyError, TypeError):
        expected = "a list of tables with layers [first, last] and, if needed, pools"
        raise reader.fail("stages", given, expected) from None


def _nested(given: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Flat keys moved into their groups; unknown keys refused."""
    out: dict[str, Any] = {}
    aliases = {**megatron_aliases(), **SHORT_NAMES}
    for name, value in given.items():
        if not isinstance(name, str):
            what = f"{name!r} is not a key; keys are names such as tp, pp"
            raise StrategyKeyError(where, str(name), what)
        key = name if name in _KEYS or name in _FLAT_KEYS else aliases.get(name, name)
        if key in _FLAT_KEYS:
            group, name = _FLAT_KEYS[key]
            out.setdefault(group, {})[name] = value
        elif key == "recompute" and isinstance(value, str):
            out.setdefault("recompute", {})["granularity"] = value
        elif key in _NESTED:
            if not isinstance(value, Mapping):
                expected = f"a table of {', '.join(_NESTED[key])}"
                raise StrategyKeyError(where, key, f"{key} is {value!r}; expected {expected}")
            for inner in value:
                if inner not in _NESTED[key]:
                    hint = did_you_mean(str(inner), _NESTED[key])
                    what = f"unknown key {key}.{inner}{hint}"
                    raise StrategyKeyError(where, f"{key}.{inner}", what)
            out[key] = {**value, **out.get(key, {})}
        elif key in _KEYS:
            out[key] = value
        else:
            known = (*_KEYS, *_FLAT_KEYS)
            hint = did_you_mean(key, (*known, *aliases)) or f"; known are {', '.join(known)}"
            raise StrategyKeyError(where, str(name), f"unknown key {key!r}{hint}")
    return out


class _Reader:
    """Typed access to a strategy's keys; complaints name the file and the key."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, key: str, value: object, expected: str) -> InputError:
        return StrategyKeyError(self.where, key, f"{key} is {value!r}; expected {expected}")

    def __call__(self, values: Mapping[str, Any], key: str, default: T) -> T:
        """A value of the type of the default: a truth value, a whole number or a choice."""
        value = values.get(key, default)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise self.fail(key, value, "true or false")
            return cast("T", value)
        if isinstance(default, int):
            least, most = _LIMITS.get(key, (1, 2**24))
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise self.fail(key, value, f"a whole number from {least} to {most}")
            return cast("T", value)
        kind = cast("type[StrEnum]", type(default))
        if value is None:
            return default
        try:
            return cast("T", kind(value))
        except ValueError:
            raise self.fail(key, value, "one of " + ", ".join(kind)) from None


def _recompute(reader: _Reader, values: Mapping[str, Any]) -> Recompute:
    granularity = reader(values, "granularity", Granularity.NONE)
    method = reader(values, "method", Method.NONE)
    full = granularity is Granularity.FULL
    if full and method is Method.NONE:
        method = Method.UNIFORM
    layers = reader(values, "layers", 1 if full else 0)
    names = values.get("modules") or []
    names = names.split(",") if isinstance(names, str) else names
    if not isinstance(names, list | tuple):
        raise reader.fail("recompute.modules", names, "names of modules")
    modules = tuple(
        reader({"modules": name}, "modules", RecomputeModule.CORE_ATTN) for name in names
    )
    if granularity is Granularity.SELECTIVE and not modules:
        modules = (RecomputeModule.CORE_ATTN,)  # what Megatron does when no module is named
    return Recompute(granularity, method, layers, modules)


def _names_pools(given: Mapping[str, Any]) -> bool:
    """Whether the stages say on which GPUs they run; then others may be left over."""
    stages = given.get("stages")
    if not isinstance(stages, list) or not stages:
        return False
    return all(isinstance(stage, Mapping) and stage.get("pools") for stage in stages)


def _check_groups(strategy: Strategy, where: str) -> None:
    ranks, groups = strategy.dp * strategy.cp, strategy.shard_groups
    if ranks % groups:
        raise InputError(
            f"{where}: shard_groups {groups} does not divide the dp {strategy.dp} x cp"
            f" {strategy.cp} = {ranks} ranks that share weights ({_near_divisors(groups, ranks)})"
        )


def _near_divisors(number: int, of: int) -> str:
    """The divisors on both sides of a number that is none: "2 and 4 do"."""
    below = next(n for n in range(min(number, of), 0, -1) if of % n == 0)
    above = next((n for n in range(number, of + 1) if of % n == 0), None)
    return f"{below} does" if above is None else f"{below} and {above} do"


def _derived(
    strategy: Strategy, given: Mapping[str, Any], where: str, gpus: int, global_batch: int
) -> Strategy:
    """dp and the number of micro-batches follow from the rest."""
    rest = strategy.tp * strategy.pp * strategy.cp
    if "dp" not in given:
        if gpus % rest:
            raise GpuCountError(
                f"{where}: tp {strategy.tp} x pp {strategy.pp} x cp {strategy.cp} = {rest}"
                f" does not divide {gpus} GPUs ({_near_divisors(rest, gpus)})"
            )
        strategy = replace(strategy, dp=gpus // rest)
    elif strategy.gpus > gpus or (strategy.gpus < gpus and not _names_pools(given)):
        raise GpuCountError(
            f"{where}: tp {strategy.tp} x pp {strategy.pp} x cp {strategy.cp} x dp {strategy.dp}"
            f" = {strategy.gpus} GPUs, but {gpus} are given; leave out dp, which then follows"
        )
    _check_groups(strategy, where)
    per_step = strategy.dp * strategy.micro_batch
    if global_batch % per_step:
        below = global_batch // per_step * per_step
        raise InputError(
            f"{where}: dp {strategy.dp} x micro_batch {strategy.micro_batch} = {per_step}"
            f" does not divide the global batch of {global_batch}; take a batch of"
            f" {f'{below} or ' if below else ''}{below + per_step}, or another micro_batch"
        )
    number = global_batch // per_step
    if "num_micro_batches" in given and strategy.num_micro_batches != number:
        raise InputError(
            f"{where}: num_micro_batches is {strategy.num_micro_batches}; a global batch of"
            f" {global_batch} with dp {strategy.dp} and micro_batch {strategy.micro_batch}"
            f" makes {number}"
        )
    return replace(strategy, num_micro_batches=number)
