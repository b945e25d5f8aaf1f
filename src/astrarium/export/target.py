"""Targets: software that plans can be written for, and what it cannot express."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from msgspec import field

from astrarium.catalog.optimizers import ADAMW, find_optimizer, optimizer_names
from astrarium.errors import InputError, did_you_mean, flag, with_flags
from astrarium.export.features import Feature, asked_by, lacks
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.model.adapters import facts
from astrarium.model.workload import Workload
from astrarium.plans.job import Job
from astrarium.units import format_bytes
from astrarium.value import Value

MEGATRON: Final = "megatron"  # what plans are made for unless another runtime is named


class Target(Value, frozen=True):
    """Software, in the version that its exports were checked with.

    `lacks` maps features that it cannot express to a reason for the user. `workload_refused` says
    why no plan for a workload can be written, "" if one can, and `model_refused` why this plan's
    model cannot be built; `nodes_refused` says the same for the nodes of a plan.
    `optimizers` is its name in `catalog/data/optimizers.json`, "" if it is written with AdamW
    alone; `finetunes` are the kinds of fine-tuning that it is written for, `modules` whose names of
    modules it takes (`Adapters.names`).
    `runtime` has the most similar kernels; a plan must fit by it as well. Software that `resumes`
    can start from its checkpoints. Training software has a `program`; it is started by torchrun,
    unless it has a `launch` of its own. A launcher only has a `launch`, which starts any program;
    its files stand beside those of the program.
    """

    name: str
    title: str
    version: str
    program: Callable[[Job], RankProgram] | None = None
    launch: Callable[[Job, RankProgram], LaunchFiles] | None = None
    lacks: Mapping[Feature, str] = field(default_factory=dict)
    workload_refused: Callable[[Workload], str] = lambda work: ""
    model_refused: Callable[[Job], str] = lambda job: ""
    nodes_refused: Callable[[Job], str] = lambda job: ""
    optimizers: str = ""
    finetunes: tuple[str, ...] = ()
    modules: str = ""
    resumes: bool = False
    runtime: str = MEGATRON

    @property
    def is_launcher(self) -> bool:
        return self.program is None

    @property
    def label(self) -> str:
        return f"{self.title} {self.version}".strip()


class Refusal(Value, frozen=True):
    """A feature of a plan that a target lacks, with the plan's values, and the reason."""

    feature: Feature | None  # None: the model itself
    asked: str
    why: str

    def __str__(self) -> str:
        return f"{self.asked}: {self.why}"


_ROWS: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "targets.json").read_bytes()
)
_FUNCTIONS: Final = ("program", "launch", "workload_refused", "model_refused", "nodes_refused")


def target_names() -> tuple[str, ...]:
    return tuple(_ROWS)


def find_target(name: str) -> Target:
    """The target of a name; only its module is imported."""
    known = name.lower()
    if known not in _ROWS:
        hint = did_you_mean(name, target_names())
        raise InputError(f"{flag('to')} '{name}': expected one of {', '.join(_ROWS)}{hint}")
    target: Target = import_module(f"astrarium.export.{_ROWS[known]['folder']}.{known}").TARGET
    return target


def target_of(module: str) -> Target:
    """The target that a module is: its row of `data/targets.json`, its version, its functions."""
    name, own = module.rpartition(".")[2], vars(sys.modules[module])
    row = {"version": own.get("VERSION"), **_ROWS[name]}
    fields: dict[str, Any] = {key: own[key] for key in _FUNCTIONS if key in own}
    for key in row.keys() - {"folder", "lacks"}:
        fields[key] = tuple(row[key]) if isinstance(row[key], list) else row[key]
    return Target(name, lacks=lacks(*row["lacks"]), **fields)


_WAY_OUT: Final = "`astrarium fit` names what would make it fit"


def too_large(job: Job, target: Target) -> tuple[Refusal, ...]:
    """A refusal of a plan that does not fit, as predicted or as the target runs it."""
    if not job.plan.fits:
        why = f"is predicted, which is more than it has; {_WAY_OUT}"
        return (Refusal(Feature.MEMORY, f"{format_bytes(job.plan.peak_bytes)} on a GPU", why),)
    if target.runtime == MEGATRON or target.is_launcher:
        return ()
    from astrarium.catalog.runtimes import find_runtime
    from astrarium.search.planner import predict

    runtime = find_runtime(target.runtime)
    plan = predict(job.workload, job.cluster_in_use, job.strategy, runtime=runtime)
    if plan.fits:
        return ()
    asked = f"{format_bytes(plan.peak_bytes)} on the fullest GPU"
    why = f"predicted for {target.title} (`astrarium predict --runtime {target.runtime}`), which"
    return (Refusal(Feature.MEMORY, asked, f"{why} is more than it has"),)


def refusals(job: Job, target: Target) -> tuple[Refusal, ...]:
    """The features of the plan that the target lacks; empty if it can be written."""
    asked, lacking = asked_by(job), {**lacks("all"), **target.lacks}
    if target.program and not target.resumes:
        lacking |= lacks("without checkpoints")
    found = [Refusal(f, asked[f], with_flags(why)) for f, why in lacking.items() if f in asked]
    if not target.is_launcher:
        found += _training_refusals(job, target, asked)
    if nodes := target.nodes_refused(job):
        found.append(Refusal(Feature.NODES, asked[Feature.NODES], nodes))
    model = target.workload_refused(job.workload) or target.model_refused(job)
    return (*([Refusal(None, job.model.name, model)] if model else []), *found)


def _training_refusals(job: Job, target: Target, asked: Mapping[Feature, str]) -> Iterator[Refusal]:
    """An optimizer or a kind of fine-tuning that the target is not written with."""
    optimizer, adapters = find_optimizer(job.workload.optimizer), job.workload.adapters
    if optimizer.name != ADAMW and target.optimizers not in optimizer.software:
        words = [name for name in optimizer_names() if _writes(target, name)]
        why = f"it is written with {', '.join(words)}; plan with {flag('optimizer')} {words[0]}"
        yield Refusal(Feature.OPTIMIZER, asked[Feature.OPTIMIZER], why)
    if adapters is None:
        return
    if adapters.kind not in target.finetunes or adapters.names != target.modules:
        kinds = ", ".join(target.finetunes) or "training of all weights alone"
        why = f"it is written for {kinds}; plan with {flag('finetune')} full, or choose another"
        if adapters.kind in target.finetunes:
            software = {one.get("modules", ""): name for name, one in facts()["runtimes"].items()}
            way = f"plan with {flag('runtime')} {software[target.modules]}"
            why = f"it divides the weights with adapters into other modules; {way}"
        yield Refusal(Feature.ADAPTERS, asked[Feature.ADAPTERS], why)


def _writes(target: Target, optimizer: str) -> bool:
    return optimizer == ADAMW or target.optimizers in find_optimizer(optimizer).software
