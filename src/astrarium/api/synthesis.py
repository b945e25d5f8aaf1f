"""The question of a program: a module and devices in, the program document out.

Asked by `astrarium synthesize` and by `astrarium.synthesize`; flags are checked here, before torch
is imported and anything is captured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from astrarium.api import request
from astrarium.errors import InputError, NoFeasiblePlanError, did_you_mean
from astrarium.units import parse_bytes
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.cluster import Cluster
    from astrarium.cost.tuning import Tuning
    from astrarium.spmd.baselines import Space
    from astrarium.spmd.devices import Devices
    from astrarium.spmd.document import ProgramDocument
    from astrarium.spmd.graph import Graph
    from astrarium.spmd.program import Program
    from astrarium.spmd.search import NoRoomError

INSTALL: Final = "pip install 'astrarium[spmd]'"
NEEDED: Final = ("torch", "scipy")
FORM: Final = "examples/bert.py:make or package.module:make"
BEFORE_SEARCH: Final = 2  # stages that progress counts: importing, capturing
STAGES: Final = 7
MOST_BATCH: Final = 2**24
MOST_MICRO_BATCHES: Final = 2**16
MOST_BYTES: Final = 2**50
MOST_DEVICES: Final = 4096
ANY_OPERATOR: Final = "*"
OWN_STATISTICS: Final = (
    "data parallel takes the statistics of batch norm from each device's own images, as DDP does,"
    " and trains another model; this program takes those of all"
)

Progress = Callable[[str, int, int], None]  # what is done, how much so far, how much in all


class Mesh(StrEnum):
    """How devices are arranged: all beside each other, or nodes and the devices inside them."""

    FLAT = "flat"
    NODES = "nodes"


class Optimizer(StrEnum):
    ADAM = "adam"
    SGD = "sgd"


class Question(Value, frozen=True):
    """What is to be trained on what, within which limits."""

    factory: str
    batch: int
    sizes: Mapping[str, Any]
    cluster: Cluster
    memory_bytes: float | None
    micro_batches: int
    mesh: Mesh
    optimizer: Optimizer
    allow_replicate: tuple[str, ...]
    tuning: Tuning
    notes: tuple[str, ...] = ()
    seed: int = 0


def read(flags: Mapping[str, Any]) -> Question:
    """What the flags ask; whatever is wrong with them is found here."""
    from astrarium.cost.tuning import NEUTRAL

    factory, sizes, notes = _module(str(flags["model"]), _sizes(flags["sizes"] or ()))
    batch = request.count("--batch", flags["batch"], MOST_BATCH)
    micro = request.count("--micro-batches", flags["micro_batches"], MOST_MICRO_BATCHES)
    if batch % micro:
        raise InputError(
            f"--batch {batch} does not divide into {micro} micro-batches; change --batch or"
            " --micro-batches"
        )
    memory = flags["memory"]
    limit = None if memory is None else request.parse("--memory", memory, parse_bytes, MOST_BYTES)
    cluster, _ = request.cluster(flags["gpus"], flags["cluster"])
    _check_size(cluster)
    mesh = request.choice("--mesh", flags["mesh"], Mesh)
    if mesh is Mesh.NODES:
        _check_nodes(cluster)
    tuning = NEUTRAL
    if flags["profile"] is not None:
        cluster, tuning, note = _tuned(cluster, flags["profile"])
        notes = (*notes, note)
    return Question(
        factory=factory,
        batch=batch,
        sizes=sizes,
        cluster=cluster,
        memory_bytes=limit,
        micro_batches=micro,
        mesh=mesh,
        optimizer=request.choice("--optimizer", flags["optimizer"], Optimizer),
        allow_replicate=tuple(flags["allow_replicate"] or ()),
        tuning=tuning,
        notes=notes,
    )


def answer(question: Question, progress: Progress) -> ProgramDocument:
    """Capture the module, find its program, compare it with fixed ways, as a document."""
    from astrarium.spmd.devices import devices_of

    levels = 1 if question.mesh is Mesh.FLAT else 2
    devices = devices_of(question.cluster, question.memory_bytes, levels, question.tuning)
    graph = captured(question, progress)
    question = replace(question, allow_replicate=_allowed(graph, question))
    return _found(question, graph, devices, progress)


def captured(question: Question, progress: Progress) -> Graph:
    """What the module computes on one micro-batch."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be installed for this: {INSTALL}")
    progress("importing torch", 0, STAGES)
    import torch

    from astrarium.spmd.capture import capture, load_factory
    from astrarium.spmd.fused import taken_apart

    make = load_factory(question.factory)
    with torch.device("meta"):
        module, inputs = make(question.batch // question.micro_batches, **question.sizes)
    progress("capturing the module", 1, STAGES)
    return taken_apart(capture(module, inputs, question.factory))


def _allowed(graph: Graph, question: Question) -> tuple[str, ...]:
    """Operators that every device may repeat; InputError lists those that it may not, yet.

    What depends on constants alone needs nobody's permission.
    """
    from astrarium.spmd.missing import missing_message, unsupported
    from astrarium.spmd.rules import operators_without_rule

    given = question.allow_replicate
    operators = {node.op for node in graph.nodes if not node.is_source}
    short = {op.split(".")[1]: op for op in operators if op.count(".") > 1}
    for name in given:
        if name not in operators and name not in short and name != ANY_OPERATOR:
            hint = did_you_mean(name, [*operators, *short])
            raise InputError(f"--allow-replicate {name}: the module has no such operator{hint}")
    unknown = {node.op for node in operators_without_rule(graph, given)}
    listed = unsupported(graph, operators - unknown)
    if listed:
        raise InputError(missing_message(listed, question.factory))
    return (*given, *sorted(unknown))


def _found(
    question: Question, graph: Graph, devices: Devices, progress: Progress
) -> ProgramDocument:
    """The best program; those of fixed ways are found first, and it is none of them slower."""
    from astrarium.spmd.baselines import SPACES
    from astrarium.spmd.devices import devices_of
    from astrarium.spmd.document import SearchPart, SourcePart, document_of
    from astrarium.spmd.factory import called
    from astrarium.spmd.search import NoRoomError
    from astrarium.spmd.synthesis import Synthesis, synthesize

    def search(where: Devices, space: Space | None, others: Sequence[Program] = ()) -> Synthesis:
        return synthesize(
            graph,
            where,
            micro_batches=question.micro_batches,
            optimizer=question.optimizer.value,
            allow_replicate=question.allow_replicate,
            space=space,
            candidates=others,
        )

    fixed: dict[str, Program] = {}
    flat = devices_of(question.cluster, question.memory_bytes, 1, question.tuning)
    notes = list(question.notes)
    for number, space in enumerate(SPACES):
        progress(f"searching: {space.name}", BEFORE_SEARCH + number, BEFORE_SEARCH + len(SPACES))
        try:
            fixed[space.name] = search(flat, space).program
        except NoRoomError as error:
            notes.append(f"{space.name}: does not fit, {_lack(error, devices)}")
    progress("searching all programs", BEFORE_SEARCH + len(SPACES), BEFORE_SEARCH + len(SPACES) + 1)
    try:
        # Programs of another mesh are no candidates: their layouts are of one level.
        found = search(devices, None, [*fixed.values()] if devices.levels == 1 else ())
    except NoRoomError as error:
        name = called(question.factory, question.sizes)
        raise NoFeasiblePlanError(
            f"no program of {name} fits: {_lack(error, devices)}; add devices, raise"
            f" --memory, or divide the batch with --micro-batches"
        ) from None
    source = SourcePart(
        question.factory,
        question.batch,
        dict(question.sizes),
        question.seed,
        question.optimizer.value,
        question.allow_replicate,
    )
    gap = found.bound_gap
    seconds = sum(found.seconds.values())
    work = SearchPart(seconds, found.rounds, found.expanded, found.optimal, gap)
    baselines = _baseline_seconds(fixed, flat, question)
    if any(baselines[name] < program.seconds for name, program in fixed.items()):
        notes.append(OWN_STATISTICS)
    return document_of(source, devices, found.program, work, baselines, tuple(notes))


def _baseline_seconds(
    fixed: Mapping[str, Program], devices: Devices, question: Question
) -> dict[str, float]:
    """What fixed ways take as people run them."""
    from astrarium.spmd.baselines import as_run, space_of
    from astrarium.spmd.programs import price_program

    found = {}
    for name, program in fixed.items():
        run = as_run(space_of(name), program)
        priced = run is not program and run != program
        found[name] = (
            price_program(run, devices, optimizer=question.optimizer.value).seconds
            if priced
            else program.seconds
        )
    return found


def _lack(error: NoRoomError, devices: Devices) -> str:
    """Which devices lack how much."""
    from astrarium.units import format_bytes

    lacking = [
        device.rank
        for device, kind in zip(devices.devices, devices.class_of.tolist(), strict=True)
        if kind == error.device_class
    ]
    one = devices.devices[lacking[0]]
    ranks = f"rank {lacking[0]}" if len(lacking) == 1 else f"{len(lacking)} such devices"
    missing, room = format_bytes(error.needed - error.room), format_bytes(one.room)
    return f"{one.gpu.name} ({ranks}) lacks {missing} beside its {room}"


def _module(given: str, sizes: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The function that makes the module, with its sizes: as given, or that of a named model."""
    place, colon, function = given.rpartition(":")
    if colon and place and function.isidentifier():
        return given, sizes, ()
    if colon or given.endswith(".py"):
        raise InputError(
            f"'{given}': expected a function that makes a torch module and its inputs, as {FORM};"
            " or a model, by its name in the catalog or its config.json"
        )
    from astrarium.api.named_modules import named_module

    return named_module(given, sizes)


def _check_size(cluster: Cluster) -> None:
    count = cluster.num_gpus
    if count < 2:
        raise InputError(
            "one device has nothing to divide the work with; name two or more, such as"
            " --gpus a100:1,v100:1"
        )
    if count > MOST_DEVICES:
        raise InputError(f"{count:,} devices are more than the {MOST_DEVICES:,} that are looked at")


def _check_nodes(cluster: Cluster) -> None:
    """Two levels need several places on each."""
    sizes = sorted({pool.gpus_per_node for pool in cluster.pools})
    nodes = sum(pool.nodes for pool in cluster.pools)
    if len(sizes) > 1:
        raise InputError(
            "--mesh nodes needs nodes with equally many devices, and these have"
            f" {' and '.join(map(str, sizes))}; leave it out"
        )
    if nodes == 1 or sizes == [1]:
        what = "one node" if nodes == 1 else "one device in each node"
        raise InputError(f"--mesh nodes: there is {what}, so there is one level; leave it out")


def _sizes(given: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    sizes: dict[str, Any] = {}
    for text in given:
        name, value = _size(text)
        if name in sizes:
            raise InputError(f"--set {name}=... is given twice; keep one")
        sizes[name] = value
    return sizes


def _size(text: str) -> tuple[str, Any]:
    """A size of the factory: KEY=VALUE, the value a number, true, false or a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--set '{text}': expected NAME=VALUE such as layers=24")
    if name == "batch":
        raise InputError("--set batch=...: the batch is that of --batch")
    try:
        read = json.loads(value)
    except ValueError:
        return name, value
    return name, read if isinstance(read, int | float | bool) else value


def _tuned(cluster: Cluster, profile: str) -> tuple[Cluster, Tuning, str]:
    """The tuning of --profile, which must be that of all devices."""
    from astrarium.calibrate.processor import with_measured_cores

    used = request.used_profile(profile)
    others = [pool.gpu.name for pool in cluster.pools if pool.gpu.whole_name != used.gpu]
    if others:
        raise InputError(
            f"--profile {profile}: learned on {used.gpu}, but asked about {', '.join(others)};"
            " leave --profile out, or learn one for that type"
        )
    if used.header is not None:
        cluster = with_measured_cores(cluster, used.header)
    return cluster, used.tuning, used.note
