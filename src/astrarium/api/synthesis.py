"""The question of a program: a module and devices in, the program document out.

Asked by `astrarium synthesize` and by `astrarium.synthesize`; flags are checked here, before torch
is imported and anything is captured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from astrarium.api import request
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.errors import InputError, NoFeasiblePlanError, did_you_mean, flag
from astrarium.report.program_parts import reasons_of
from astrarium.spmd.price import Devices, devices_of, document_of, price_program
from astrarium.spmd.program import (
    DeviceProgram,
    ProgramDocument,
    SourcePart,
    SynthesisPart,
    TriedPart,
)
from astrarium.spmd.rules import operators_without_rule, without_rule
from astrarium.spmd.solve import NoRoomError
from astrarium.spmd.synthesis import Alternatives, Attempt, as_run, fastest_of, leanest, space_of
from astrarium.units import format_bytes, format_seconds
from astrarium.value import Value, replace

if TYPE_CHECKING:
    from astrarium.arrays import Floats
    from astrarium.cluster import Cluster
    from astrarium.spmd.graph import Graph

INSTALL: Final = "pip install 'astrarium[spmd]'"
INSTALL_MODELS: Final = "pip install transformers"
NEEDED: Final = ("torch", "scipy")
FLOAT32: Final = (
    "computed in float32; --set dtype=bfloat16 or dtype=float16 multiplies in 16 bits, as plans do"
)
FORM: Final = "examples/bert.py:make or package.module:make"
STAGES: Final = 8  # that progress counts: importing, capturing, four fixed ways, two meshes
MOST_DEVICES: Final = 4096
TIMES_AS_MANY: Final = (2, 4, 8)  # nodes to suggest if nothing fits
ANY_OPERATOR: Final = "*"
AUTO: Final = "auto"
UNDIVIDED: Final = "everything on every device"  # a way that divides nothing
OWN_STATISTICS: Final = (
    "data parallel takes the statistics of batch norm from each device's own images, as DDP does,"
    " and trains another model; this program takes those of all"
)

Progress = Callable[[str, int, int], None]  # what is done, how much so far, how much in all


class Mesh(StrEnum):
    """The arrangement of devices: all side by side, or nodes and the devices inside them."""

    AUTO = "auto"  # whichever is faster
    FLAT = "flat"
    NODES = "nodes"


class Optimizer(StrEnum):
    ADAM = "adam"
    SGD = "sgd"


class SynthesisQuestion(Value, frozen=True):
    """A module, its devices and the limits of its program."""

    factory: str
    batch: int
    sizes: Mapping[str, Any]
    cluster: Cluster
    memory_bytes: float | None
    micro_batches: int | None  # None: the best number
    mesh: Mesh
    optimizer: Optimizer
    allow_replicate: tuple[str, ...]
    tuning: Tuning
    all_devices: bool = False  # also those that cost time
    notes: tuple[str, ...] = ()
    seed: int = 0


def read(flags: Mapping[str, Any]) -> SynthesisQuestion:
    """The question that the flags ask; all mistakes in them are found here."""
    factory, sizes, notes = _module(str(flags["model"]), _sizes(flags["set"] or ()))
    batch, micro = flags["batch"], flags["micro_batches"]
    if micro is not None and batch % micro:
        ways = f"change {flag('batch')} or {flag('micro_batches')}"
        raise InputError(
            f"{flag('batch')} {batch} does not divide into {micro} micro-batches; {ways}"
        )
    cluster, _ = request.cluster(flags["gpus"], flags["cluster"])
    _check_size(cluster)
    mesh = flags["mesh"]
    if mesh is Mesh.NODES:
        _check_nodes(cluster)
    tuning = NEUTRAL
    if flags["profile"] is not None:
        cluster, used = request.with_profile(cluster, flags["profile"])
        tuning, notes = used.tuning, (*notes, used.note)
    return SynthesisQuestion(
        factory=factory,
        batch=batch,
        sizes=sizes,
        cluster=cluster,
        memory_bytes=flags["memory"],
        micro_batches=micro,
        mesh=mesh,
        optimizer=flags["optimizer"],
        allow_replicate=flags["allow_replicate"] or (),
        tuning=tuning,
        all_devices=flags["all_devices"],
        notes=notes,
    )


def answer(question: SynthesisQuestion, progress: Progress) -> ProgramDocument:
    """Capture the module, find its program, compare it with fixed ways, as a document."""
    meshes = _meshes(question)
    stage = _Stages(progress)
    allowed: dict[int, tuple[str, ...]] = {}  # by graph

    def allowed_in(graph: Graph) -> tuple[str, ...]:
        if id(graph) not in allowed:
            allowed[id(graph)] = _allowed(graph, question)
        return allowed[id(graph)]

    alternatives = Alternatives(
        lambda count: captured(question, count, stage),
        meshes,
        [*meshes] if question.mesh is Mesh.AUTO else [question.mesh.value],
        _counts(question),
        question.optimizer.value,
        allowed_in,
        lambda what: stage(f"searching: {what}"),
        part=lambda names: {} if question.all_devices else _meshes(question, names),
    )
    attempts = alternatives.attempts()
    chosen = fastest_of(attempts)
    if chosen.found is None:
        raise _nothing_fits(question, attempts, allowed_in)
    question = replace(question, allow_replicate=allowed_in(chosen.graph))
    return _document(question, chosen, attempts)


class _Stages:
    """Counts stages; if more is tried than expected, the last one takes longer."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, what: str) -> None:
        self._progress(what, min(self._done, STAGES - 1), STAGES)
        self._done += 1


def _meshes(
    question: SynthesisQuestion, pools: Collection[str] | None = None
) -> dict[str, Devices]:
    """Devices, or those of some pools, by mesh; the flat one is always there, to compare with."""
    cluster = question.cluster
    if pools is not None:
        cluster = cluster.part([pool for pool in cluster.pools if pool.name in pools])
    levels = {Mesh.FLAT: 1, Mesh.NODES: 2}
    # Cores of one machine reach each other alike, even if they are counted in several pools.
    cores = all(pool.gpu.is_processor for pool in cluster.pools)
    is_flat = question.mesh is Mesh.FLAT or (question.mesh is Mesh.AUTO and cores)
    if is_flat or _one_level(cluster) is not None:
        del levels[Mesh.NODES]
    return {
        mesh.value: devices_of(cluster, question.memory_bytes, count, question.tuning)
        for mesh, count in levels.items()
    }


def _counts(question: SynthesisQuestion) -> list[int]:
    """Numbers of micro-batches to try."""
    if question.micro_batches is not None:
        return [question.micro_batches]
    return _doubled(1, question.batch)


def _doubled(first: int, batch: int) -> list[int]:
    """A number of micro-batches and its doubles, as far as they divide the batch."""
    counts = [first]
    while batch % (2 * counts[-1]) == 0:
        counts.append(2 * counts[-1])
    return counts


def captured(
    question: SynthesisQuestion, micro_batches: int, stage: Callable[[str], None]
) -> Graph:
    """The graph of the module on one micro-batch."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be installed for this: {INSTALL}")
    stage("importing torch")
    import torch

    from astrarium.spmd.capture import capture, load_factory, taken_apart

    make = load_factory(question.factory)
    with torch.device("meta"):
        module, inputs = make(question.batch // micro_batches, **question.sizes)
    stage("capturing the module")
    return taken_apart(capture(module, inputs, question.factory))


def _allowed(graph: Graph, question: SynthesisQuestion) -> tuple[str, ...]:
    """Operators that every device may repeat; InputError lists those without permission."""
    given = question.allow_replicate
    operators = {node.op for node in graph.nodes if not node.is_source}
    short = {op.split(".")[1]: op for op in operators if op.count(".") > 1}
    for name in given:
        if name not in operators and name not in short and name != ANY_OPERATOR:
            hint = did_you_mean(name, [*operators, *short])
            raise InputError(
                f"{flag('allow_replicate')} {name}: the module has no such operator{hint}"
            )
    if missing := operators_without_rule(graph, given):
        raise without_rule(missing, question.factory)
    return given


def _document(
    question: SynthesisQuestion, chosen: Attempt, attempts: Sequence[Attempt]
) -> ProgramDocument:
    found = chosen.found
    assert found is not None  # else nothing would have been chosen
    source = SourcePart(
        question.factory,
        question.batch,
        dict(question.sizes),
        question.seed,
        question.optimizer.value,
        question.allow_replicate,
    )
    works = [one.found for one in attempts if one.found is not None and not one.plain]
    tried = tuple(
        TriedPart(
            _tried_name(one),
            one.micro_batches,
            one.found.program.seconds if one.found else None,
            one.found.bound_gap if one.found else 0.0,
            searched=one.found is not None or one.no_room is not None,
            recompute=one.recompute,
        )
        for one in attempts
    )
    work = SynthesisPart(
        sum(one.seconds for one in works),
        sum(one.rounds for one in works),
        sum(one.expanded for one in works),
        found.optimal,
        found.bound_gap,
        tried,
    )
    fixed = {name: one for name, one in chosen.fixed.items() if isinstance(one, DeviceProgram)}
    baselines = _baseline_seconds(fixed, chosen.fixed_on, question)
    notes = [
        f"{name}: does not fit, {_lack(one, chosen.fixed_on)}"
        for name, one in chosen.fixed.items()
        if not isinstance(one, DeviceProgram)
    ]
    if any(baselines[name] < program.seconds for name, program in fixed.items()):
        notes.append(OWN_STATISTICS)
    notes += [*_left_out(chosen, attempts), *_plain_words(chosen, attempts)]
    names = {name: name if _divides(one) else UNDIVIDED for name, one in fixed.items()}
    document = document_of(
        source,
        chosen.devices,
        found.program,
        work,
        {names[name]: seconds for name, seconds in baselines.items()},
        (*question.notes, *notes),
    )
    rivals = {names[name]: one for name, one in fixed.items()}
    return replace(document, reasons=reasons_of(found.program, rivals))


def _tried_name(one: Attempt) -> str:
    without = f", without {', '.join(one.left_out)}" if one.left_out else ""
    return f"{one.mesh}{without}" + (f", {one.plain}" if one.plain else "")


def _plain_words(chosen: Attempt, attempts: Sequence[Attempt]) -> Iterator[str]:
    """The reason why data parallel training is taken though another program is predicted faster."""
    if chosen.plain:
        gain = 1.0 - min(one.seconds for one in attempts) / chosen.seconds
        yield (
            f"{chosen.plain} is taken: the fastest program found is predicted to save"
            f" {100 * gain:.1f} % of a step, less than predictions err, and is less simple"
        )


def _left_out(chosen: Attempt, attempts: Sequence[Attempt]) -> Iterator[str]:
    """The devices without work, and the time of the best program that gives them some."""
    if chosen.left_out:
        gpus = chosen.fixed_on.cluster.pools
        names = ", ".join(
            f"{pool.num_gpus} x {pool.gpu.name}"
            + (f" of {pool.name}" if pool.name != pool.gpu.name else "")
            for pool in gpus
            if pool.name in chosen.left_out
        )
        slower = min(one.seconds for one in attempts if not one.left_out)
        yield f"{names} left out: with all devices a step takes {format_seconds(slower)}"


def _divides(program: DeviceProgram) -> bool:
    """Whether devices have pieces of anything."""
    return any(layout.is_shard for one in program.instructions for layout in one.gives)


def _nothing_fits(
    question: SynthesisQuestion,
    attempts: Sequence[Attempt],
    allowed: Callable[[Graph], tuple[str, ...]],
) -> NoFeasiblePlanError:
    """The lack of memory in the leanest attempt, and the least that would be enough."""
    from astrarium.spmd.capture import called

    def over(one: Attempt) -> float:
        assert one.no_room is not None  # nothing fitted
        return one.no_room.needed / one.no_room.room

    nearest = min(attempts, key=over)
    assert nearest.no_room is not None
    name = called(question.factory, question.sizes)
    counts = list(dict.fromkeys(one.micro_batches for one in attempts))
    tried = f" (tried: {', '.join(map(str, counts))} micro-batches)" if len(counts) > 1 else ""
    ways = _ways_out(question, nearest, allowed)
    return NoFeasiblePlanError(
        f"no program of {name} fits{tried}: {_lack(nearest.no_room, nearest.devices)};"
        f" enough for the leanest program found: {', or '.join(ways)}"
    )


def _ways_out(
    question: SynthesisQuestion, nearest: Attempt, allowed: Callable[[Graph], tuple[str, ...]]
) -> list[str]:
    """The least memory, micro-batches and devices with which a program was found that fits."""

    def needed(graph: Graph, devices: Devices, micro_batches: int) -> Floats:
        optimizer = question.optimizer.value
        return leanest(graph, devices, micro_batches, optimizer, allowed(graph)).peak

    count, graph = nearest.micro_batches, nearest.graph
    split = f" and {flag('micro_batches')} {count}" if count > 1 else ""
    least = math.ceil(max(needed(graph, nearest.devices, count)) / 2**20)
    ways = [f"{flag('memory')} {least}MiB{split}"]
    if question.micro_batches is not None:
        for more in _doubled(count, question.batch)[1:]:
            smaller = captured(question, more, lambda _: None)
            if (needed(smaller, nearest.devices, more) <= nearest.devices.room).all():
                ways.append(f"{flag('micro_batches')} {more}")
                break
    for times in TIMES_AS_MANY:
        pools = tuple(replace(p, nodes=times * p.nodes) for p in question.cluster.pools)
        cluster = replace(question.cluster, pools=pools)
        more_devices = devices_of(cluster, question.memory_bytes, 1, question.tuning)
        if (needed(graph, more_devices, count) <= more_devices.room).all():
            ways.append(f"{times} times as many nodes{split}")
            break
    return ways


def _baseline_seconds(
    fixed: Mapping[str, DeviceProgram], devices: Devices, question: SynthesisQuestion
) -> dict[str, float]:
    """Seconds of fixed ways as people run them."""
    found = {}
    for name, program in fixed.items():
        run = as_run(space_of(name), program)
        found[name] = program.seconds
        if run is not program and run != program:
            priced = price_program(run, devices, optimizer=question.optimizer.value)
            found[name] = priced.seconds
    return found


def _lack(error: NoRoomError, devices: Devices) -> str:
    """The devices that lack memory, and how much they lack."""
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
    return _named_module(given, sizes)


def _named_module(
    reference: str, sizes: Mapping[str, Any]
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The factory of a model, its sizes, and notes on those that were not given."""
    from astrarium.spmd.capture import NAMED_FACTORY

    described = request.model(reference)
    if "model_type" not in (described.config or {}):
        raise InputError(
            f"{reference}: a model file has no code to capture; name a config.json, or a function"
            " that makes the module, as FILE.py:FUNCTION"
        )
    if find_spec("transformers") is None:
        raise InputError(
            f"{reference}: transformers must be installed to make this module: {INSTALL_MODELS}"
        )
    found, notes = {"model": reference, **sizes}, []
    if "sequence" not in sizes:
        length, why = request.default_length(described)
        found["sequence"] = length
        notes.append(f"{length:,} tokens in a sequence, {why}; --set sequence=N for others")
    if "dtype" not in sizes:
        notes.append(FLOAT32)
    return NAMED_FACTORY, found, tuple(notes)


def _check_size(cluster: Cluster) -> None:
    count = cluster.num_gpus
    if count < 2:
        raise InputError(
            "one device has nothing to divide the work with; name two or more, such as"
            f" {flag('gpus')} a100:1,v100:1"
        )
    if count > MOST_DEVICES:
        raise InputError(f"{count:,} devices are more than the {MOST_DEVICES:,} that are looked at")


def _check_nodes(cluster: Cluster) -> None:
    """Two levels need several places on each."""
    reason = _one_level(cluster)
    if reason is not None:
        raise InputError(f"{flag('mesh')} nodes {reason}; leave it out")


def _one_level(cluster: Cluster) -> str | None:
    """The reason why a mesh has no two levels; None if it has."""
    sizes = sorted({pool.gpus_per_node for pool in cluster.pools})
    nodes = sum(pool.nodes for pool in cluster.pools)
    if len(sizes) > 1:
        return (
            f"needs nodes with equally many devices, and these have {' and '.join(map(str, sizes))}"
        )
    if nodes == 1 or sizes == [1]:
        what = "one node" if nodes == 1 else "one device in each node"
        return f"needs two levels, and there is {what}"
    return None


def _sizes(given: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    sizes: dict[str, Any] = {}
    for text in given:
        name, value = _size(text)
        if name in sizes:
            raise InputError(f"{flag('set')} {name}=... is given twice; keep one")
        sizes[name] = value
    return sizes


def _size(text: str) -> tuple[str, Any]:
    """A size of the factory: KEY=VALUE, the value a number, true, false or a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"{flag('set')} '{text}': expected NAME=VALUE such as layers=24")
    if name == "batch":
        raise InputError(f"{flag('set')} batch=...: the batch is that of {flag('batch')}")
    try:
        read = json.loads(value)
    except ValueError:
        return name, value
    return name, read if isinstance(read, int | float | bool) else value
