"""Program files: written whole, and read with checks that name the place.

What is read can be run: every value is there when an instruction needs it, every node is computed
once, pieces add up. An edited file is refused rather than run to a wrong result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from astrarium.cluster import Cluster
from astrarium.documents.clusters import ClusterPart
from astrarium.documents.places import KeyPath, failure
from astrarium.errors import InputError
from astrarium.spmd.axes import Axes, Division
from astrarium.spmd.conversions import changed_level, is_possible, operations
from astrarium.spmd.document import (
    MEMORY_CAUSES,
    DeviceMemoryPart,
    DevicePart,
    ProgramDocument,
    ReasonPart,
    SourcePart,
    SynthesisPart,
    parse_placement,
    placement_text,
    to_text,
)
from astrarium.spmd.graph import CONSTANT, DTYPE_BYTES, KEEP, SOURCES, Graph, Node, Ref
from astrarium.spmd.layout import Holding, Placement, TensorLayout
from astrarium.spmd.program import SCHEMA, Conversion, DeviceProgram, Instruction
from astrarium.spmd.rules import Message, ShardRule, rules_of
from astrarium.value import Value

MOST_DEVICES: Final = 2**16
# Sums are of floats written in full: only a hand makes them differ by more.
SUM_TOLERANCE: Final = 1e-6
AGAIN: Final = "write the file again with `astrarium synthesize ... --out FILE`"


class _FlawError(Exception):
    """What is wrong with a document, and under which key."""

    def __init__(self, what: str, *key: str | int) -> None:
        super().__init__(what)
        self.key: KeyPath = key


class _NodeEntry(Value, frozen=True):
    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    needs_gradient: bool = False
    target: str = ""
    source: str = ""
    path: str = ""
    draw: int = 0


class _GraphEntry(Value, frozen=True):
    name: str
    nodes: tuple[_NodeEntry, ...]
    blocks: tuple[int, ...] = ()


class _AxisEntry(Value, frozen=True):
    name: str
    granules: int
    pieces: tuple[tuple[int, ...], ...]


class _RuleEntry(Value, frozen=True):
    name: str
    needs: tuple[str, ...] | None = None
    gives: str | None = None
    local: str = ""
    messages: tuple[Message, ...] = ()
    gradient_of_whole: bool = False


class _InstructionEntry(Value, frozen=True):
    node: int
    gives: str
    needs: tuple[str, ...] = ()
    rules: tuple[_RuleEntry, ...] = ()
    conversion: Conversion | None = None
    seconds: float = 0.0
    bytes: float | tuple[float, ...] = ()


class _File(Value, frozen=True):
    """The document as it stands in the file."""

    schema: str
    source: SourcePart
    cluster: ClusterPart
    mesh: tuple[int, ...]
    devices: tuple[DevicePart, ...]
    graph: _GraphEntry
    axes: tuple[_AxisEntry, ...]
    axis_of: tuple[tuple[int, ...], ...]
    instructions: tuple[_InstructionEntry, ...]
    iteration_seconds: float
    breakdown_seconds: dict[str, float]
    memory: tuple[DeviceMemoryPart, ...]
    bytes: tuple[float, ...]
    micro_batches: int
    search: SynthesisPart
    baselines: dict[str, float] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: tuple[ReasonPart, ...] = ()
    expected_seconds: float = 0.0


def save_program(document: ProgramDocument, path: Path) -> None:
    """Write the file whole or not at all."""
    from astrarium.documents import write_atomic

    write_atomic(path, to_text(document))


def load_program(path: Path) -> ProgramDocument:
    """Read a program file; InputError says what is wrong and where."""
    from astrarium import documents

    content = documents.read(path)
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema != SCHEMA:
        raise InputError(f"{path}: {_not_a_program(schema)}")
    file = documents.load(path, _File)
    try:
        return _document(file)
    except _FlawError as wrong:
        line = documents.line_of(path, *wrong.key)
        raise failure(path, f"{wrong}; {AGAIN}", line, wrong.key) from None


def _not_a_program(schema: object) -> str:
    family, _, version = str(schema).partition("/")
    if version and family == SCHEMA.partition("/")[0]:
        return (
            f"made by another version of Astrarium (its schema is '{schema}', this one reads"
            f" '{SCHEMA}'); {AGAIN}"
        )
    found = f"its schema is '{schema}'" if schema else "it has no schema"
    return (
        f"not a program ({found}, expected '{SCHEMA}');"
        " `astrarium synthesize ... --out FILE` writes one"
    )


def _document(file: _File) -> ProgramDocument:
    devices = _checked_mesh(file)
    try:
        cluster = Cluster.from_dict(asdict(file.cluster))
    except InputError as error:
        raise _FlawError(str(error), "cluster") from None
    _check_devices(file, devices, cluster)
    _check_numbers(file)
    _check_memory(file)
    graph = _graph(file.graph)
    axes, divisions = _axes(file, graph, devices)
    instructions = tuple(
        _instruction(file, graph, index, devices) for index in range(len(file.instructions))
    )
    _check_order(graph, instructions)
    _check_rules(graph, instructions, file.source.allow_replicate)
    program = DeviceProgram(
        graph,
        axes,
        divisions,
        file.mesh,
        instructions,
        file.iteration_seconds,
        file.bytes,
        file.micro_batches,
    )
    return ProgramDocument(
        file.source,
        cluster,
        file.devices,
        program,
        file.breakdown_seconds,
        file.memory,
        file.search,
        file.baselines,
        file.notes,
        file.reasons,
        file.expected_seconds,
    )


def _checked_mesh(file: _File) -> int:
    if not file.mesh or min(file.mesh) < 1 or math.prod(file.mesh) > MOST_DEVICES:
        raise _FlawError(
            f"expected devices by level, each above zero, got {list(file.mesh)}", "mesh"
        )
    if file.micro_batches < 1:
        raise _FlawError(f"expected a number above zero, got {file.micro_batches}", "micro_batches")
    if file.source.batch < 1:
        raise _FlawError(
            f"expected a number above zero, got {file.source.batch}", "source", "batch"
        )
    return math.prod(file.mesh)


def _check_devices(file: _File, devices: int, cluster: Cluster) -> None:
    for key, entries in (("devices", file.devices), ("memory", file.memory), ("bytes", file.bytes)):
        if len(entries) != devices:
            raise _FlawError(
                f"{len(entries)} entries for the {devices} devices of mesh {list(file.mesh)}", key
            )
    pools = {pool.name: pool for pool in cluster.pools}
    for rank, device in enumerate(file.devices):
        if device.rank != rank or file.memory[rank].rank != rank:
            key = "devices" if device.rank != rank else "memory"
            raise _FlawError(f"expected rank {rank}: ranks stand in order", key, rank, "rank")
        if device.pool not in pools:
            raise _FlawError(
                f"no pool of the cluster is called '{device.pool}'", "devices", rank, "pool"
            )
        if device.gpu != pools[device.pool].gpu.name:
            expected = pools[device.pool].gpu.name
            raise _FlawError(
                f"pool {device.pool} has {expected}, not {device.gpu}", "devices", rank, "gpu"
            )
    for name, pool in pools.items():
        used = sum(device.pool == name for device in file.devices)
        if used > pool.num_gpus:
            raise _FlawError(f"{used} devices of pool {name}, which has {pool.num_gpus}", "devices")


def _check_numbers(file: _File) -> None:
    total = sum(file.breakdown_seconds.values())
    if not file.iteration_seconds > 0:
        raise _FlawError(
            f"expected a number above zero, got {file.iteration_seconds:g}", "iteration_seconds"
        )
    if file.expected_seconds < 0:
        raise _FlawError("expected a number of zero or more", "expected_seconds")
    if not _same(total, file.iteration_seconds):
        raise _FlawError(
            f"the causes add up to {total:g} s, the iteration is {file.iteration_seconds:g} s",
            "breakdown_seconds",
        )
    for name, seconds in file.baselines.items():
        if not seconds > 0:
            raise _FlawError(f"expected a number above zero, got {seconds:g}", "baselines", name)


def _check_memory(file: _File) -> None:
    for rank, part in enumerate(file.memory):
        total = sum(getattr(part, cause) for cause in MEMORY_CAUSES)
        if not _same(total, part.peak_bytes):
            raise _FlawError(
                f"the causes add up to {total:,.0f} bytes, the peak is {part.peak_bytes:,.0f}",
                "memory",
                rank,
                "peak_bytes",
            )
        if not part.capacity_bytes > 0:
            raise _FlawError("expected bytes above zero", "memory", rank, "capacity_bytes")


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SUM_TOLERANCE, abs_tol=SUM_TOLERANCE)


def _graph(entry: _GraphEntry) -> Graph:
    if not entry.nodes:
        raise _FlawError("the graph has no nodes", "graph", "nodes")
    if entry.blocks and len(entry.blocks) != len(entry.nodes):
        raise _FlawError(
            f"{len(entry.blocks)} entries for {len(entry.nodes)} nodes", "graph", "blocks"
        )
    names: dict[str, int] = {}
    for index, one in enumerate(entry.nodes):
        _check_node_entry(one, index)
        if one.name in names:
            raise _FlawError(
                f"two nodes are called '{one.name}': {names[one.name]} and {index}",
                *("graph", "nodes", index, "name"),
            )
        names[one.name] = index
    graph = Graph.from_dict(asdict(entry))
    for index, node in enumerate(graph.nodes):
        _check_inputs(node, index)
        if node.op == KEEP:
            _check_kept(graph, node, index)
    return graph


def _check_kept(graph: Graph, node: Node, index: int) -> None:
    """The loss, values, and as many names of buffers; nothing comes behind it."""
    place = ("graph", "nodes", index)
    if index != graph.loss:
        raise _FlawError(f"{KEEP} is the last of all nodes; {len(graph.nodes)} are here", *place)
    match node.args:
        case Ref(), [*values], [*names] if all(isinstance(value, Ref) for value in values):
            is_right = len(values) == len(set(map(str, names))) == len(names)
            if is_right and all(isinstance(name, str) and name for name in names):
                return
    raise _FlawError("expected the loss, values, and as many names of buffers", *place, "args")


def _check_node_entry(entry: _NodeEntry, index: int) -> None:
    place = ("graph", "nodes", index)
    if entry.dtype not in DTYPE_BYTES:
        raise _FlawError(
            f"expected one of {', '.join(DTYPE_BYTES)}, got '{entry.dtype}'", *place, "dtype"
        )
    if any(size < 0 for size in entry.shape):
        raise _FlawError(f"expected sizes, got {list(entry.shape)}", *place, "shape")
    if entry.op == CONSTANT and not entry.target and not _are_numbers(entry.args):
        raise _FlawError("expected the values of a constant without a target", *place, "args")
    for value in entry.args:
        _check_argument(value, (*place, "args"))
    for value in entry.kwargs.values():
        _check_argument(value, (*place, "kwargs"))


def _are_numbers(values: object) -> bool:
    """Whether all values of nested lists are numbers."""
    match values:
        case list() | tuple():
            return all(map(_are_numbers, values))
        case {"float": str()}:
            return True
    return isinstance(values, bool | int | float)


def _check_argument(value: object, place: KeyPath) -> None:
    """A plain value, lists of such, {"ref": NODE}, or {"float": "inf"}."""
    match value:
        case list():
            for item in value:
                _check_argument(item, place)
        case {"ref": int(), **rest} if not rest:
            pass
        case {"float": "inf" | "-inf" | "nan", **rest} if not rest:
            pass
        case dict():
            raise _FlawError(
                f"{value} is no argument; expected a number, a text, or such as {{'ref': 3}}",
                *place,
            )


def _check_inputs(node: Node, index: int) -> None:
    place = ("graph", "nodes", index, "args")
    later = [read for read in node.inputs if not 0 <= read < index]
    if later:
        raise _FlawError(f"reads node {later[0]}; expected a node before its own, {index}", *place)
    if node.is_source and node.inputs:
        raise _FlawError(f"{node.op} reads nodes; sources read none", *place)


def _axes(file: _File, graph: Graph, devices: int) -> tuple[Axes, tuple[Division, ...]]:
    for index, axis in enumerate(file.axes):
        _check_axis(file, axis, index, devices)
    if len(file.axis_of) != len(graph.nodes):
        raise _FlawError(f"{len(file.axis_of)} entries for {len(graph.nodes)} nodes", "axis_of")
    for index, (node, axes) in enumerate(zip(graph.nodes, file.axis_of, strict=True)):
        if len(axes) != len(node.shape):
            raise _FlawError(
                f"{len(axes)} axes for node {node.name} of {len(node.shape)} dimensions",
                "axis_of",
                index,
            )
        for dim, (number, size) in enumerate(zip(axes, node.shape, strict=True)):
            if not 0 <= number < len(file.axes):
                raise _FlawError(f"there is no axis {number}", "axis_of", index, dim)
            granules = file.axes[number].granules
            if size % granules:
                raise _FlawError(
                    f"the {size} of node {node.name} are no multiple of the {granules} granules of"
                    f" axis {number}",
                    "axis_of",
                    index,
                    dim,
                )
    divisions = tuple(
        Division(np.array([axis.pieces[level] for axis in file.axes], np.int64))
        for level in range(len(file.mesh))
    )
    every = tuple(axis.granules for axis in file.axes)
    return Axes(file.axis_of, every, tuple(axis.name for axis in file.axes)), divisions


def _check_axis(file: _File, axis: _AxisEntry, index: int, devices: int) -> None:
    if axis.granules < 1:
        raise _FlawError(f"expected granules above zero, got {axis.granules}", "axes", index)
    if len(axis.pieces) != len(file.mesh):
        raise _FlawError(
            f"pieces for {len(axis.pieces)} levels, of a mesh with {len(file.mesh)}",
            "axes", index, "pieces",
        )  # fmt: skip
    for level, pieces in enumerate(axis.pieces):
        place = ("axes", index, "pieces", level)
        if len(pieces) not in (file.mesh[level], devices):
            raise _FlawError(f"{len(pieces)} pieces for {file.mesh[level]} devices", *place)
        if min(pieces) < 0:
            raise _FlawError(f"expected pieces of zero granules or more, got {min(pieces)}", *place)
        if sum(pieces) != axis.granules:
            raise _FlawError(
                f"the pieces add up to {sum(pieces)} granules, axis '{axis.name}' has"
                f" {axis.granules}",
                *place,
            )


def _instruction(file: _File, graph: Graph, index: int, devices: int) -> Instruction:
    entry, place = file.instructions[index], ("instructions", index)
    if not 0 <= entry.node < len(graph.nodes):
        raise _FlawError(
            f"there is no node {entry.node}; the graph has {len(graph.nodes)}", *place, "node"
        )
    node, inputs = graph.nodes[entry.node], graph.inputs[entry.node]
    levels = len(file.mesh)
    gives = _placement(entry.gives, len(node.shape), levels, (*place, "gives"))
    read = (entry.node,) if entry.conversion else inputs
    if len(entry.needs) != len(read):
        raise _FlawError(
            f"{len(entry.needs)} layouts for the {len(read)} inputs of {node.name}", *place, "needs"
        )
    needs = tuple(
        _placement(text, len(graph.nodes[one].shape), levels, (*place, "needs", position))
        for position, (one, text) in enumerate(zip(read, entry.needs, strict=True))
    )
    expected = 0 if entry.conversion or node.op in SOURCES else levels
    if len(entry.rules) != expected:
        raise _FlawError(
            f"{len(entry.rules)} rules, expected {expected}: one for each level of the mesh, none"
            " for sources and conversions",
            *place,
            "rules",
        )
    rules = tuple(
        _rule(rule, needs, gives, level, (*place, "rules", level))
        for level, rule in enumerate(entry.rules)
    )
    if entry.conversion is not None:
        _check_conversion(entry.conversion, node, needs[0], gives, (*place, "conversion"))
    sizes = entry.bytes if isinstance(entry.bytes, tuple) else (entry.bytes,) * devices
    if len(sizes) not in (0, devices) or any(size < 0 for size in sizes):
        raise _FlawError(f"expected bytes of {devices} devices", *place, "bytes")
    return Instruction(entry.node, gives, needs, rules, entry.conversion, entry.seconds, sizes)


def _placement(text: str, dims: int, levels: int, place: KeyPath) -> Placement:
    try:
        placement = parse_placement(text)
    except ValueError:
        known = ", ".join(name for name in Holding if name is not Holding.SHARD)
        raise _FlawError(
            f"expected a layout ({known} or shard(DIM)), got '{text}'", *place
        ) from None
    if len(placement) != levels:
        raise _FlawError(f"'{text}' has layouts for {len(placement)} levels of {levels}", *place)
    for layout in placement:
        _check_dim(layout, dims, place)
    return placement


def _check_dim(layout: TensorLayout, dims: int, place: KeyPath) -> None:
    if layout.is_shard and not 0 <= layout.dim < dims:
        raise _FlawError(f"{layout}: the value has {dims} dimensions, counted from 0", *place)


def _rule(
    entry: _RuleEntry, needs: tuple[Placement, ...], gives: Placement, level: int, place: KeyPath
) -> ShardRule:
    own = tuple(placement[level] for placement in needs)
    if entry.needs is not None:
        own = tuple(_placement(text, 64, 1, (*place, "needs"))[0] for text in entry.needs)
    result = gives[level]
    if entry.gives is not None:
        result = _placement(entry.gives, 64, 1, (*place, "gives"))[0]
    return ShardRule(entry.name, own, result, entry.local, entry.messages, entry.gradient_of_whole)


def _check_rules(
    graph: Graph, instructions: Sequence[Instruction], allow_replicate: Sequence[str]
) -> None:
    """Rules must be those of the table: others would be run to a wrong result."""
    for index, one in enumerate(instructions):
        if not one.rules:
            continue
        node = graph.nodes[one.node]
        try:
            known = rules_of(graph, node, allow_replicate)
        except InputError as error:
            raise _FlawError(str(error), "instructions", index) from None
        except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            words = f"{type(error).__name__}: {error}"
            raise _FlawError(
                f"no call of {node.op} has these arguments ({words})", "graph", "nodes", one.node
            ) from None
        for level, rule in enumerate(one.rules):
            if rule not in known:
                needs = ", ".join(map(str, rule.needs))
                raise _FlawError(
                    f"no rule of {node.op} called '{rule.name}' takes ({needs}) and gives"
                    f" {rule.gives} here",
                    *("instructions", index, "rules", level),
                )


def _check_conversion(
    conversion: Conversion, node: Node, before: Placement, after: Placement, place: KeyPath
) -> None:
    level = conversion.level
    if not 0 <= level < len(after):
        raise _FlawError(f"there is no level {level}", *place, "level")
    if changed_level(before, after) != level:
        raise _FlawError(
            f"goes from {placement_text(before)} to {placement_text(after)}; expected another"
            f" layout of level {level} alone",
            *place,
            "level",
        )
    if not is_possible(before, after):
        raise _FlawError(
            f"goes from {placement_text(before)} to {placement_text(after)}; expected levels inside"
            " not to divide the same dimension",
            *place,
            "level",
        )
    forward, backward = operations(before[level], after[level], gradient=node.needs_gradient)
    if (conversion.forward, conversion.backward) != (forward, backward):
        raise _FlawError(
            f"from {before[level]} to {after[level]} is {forward} and {backward} back, not"
            f" {conversion.forward} and {conversion.backward}",
            *place,
        )


def _check_order(graph: Graph, instructions: tuple[Instruction, ...]) -> None:
    """Follow the program: what an instruction needs must have been made before it."""
    there: dict[int, set[Placement]] = {}
    for index, one in enumerate(instructions):
        node, place = graph.nodes[one.node], ("instructions", index)
        if one.conversion is None and one.node in there:
            raise _FlawError(f"node {one.node} ({node.name}) is computed a second time", *place)
        read = (one.node,) if one.conversion else graph.inputs[one.node]
        for position, (source, needed) in enumerate(zip(read, one.needs, strict=True)):
            if needed not in there.get(source, ()):
                raise _FlawError(_missing(graph, source, needed, there), *place, "needs", position)
        there.setdefault(one.node, set()).add(one.gives)
    absent = [index for index in range(len(graph.nodes)) if index not in there]
    if absent:
        name = graph.nodes[absent[0]].name
        raise _FlawError(f"no instruction computes node {absent[0]} ({name})", "instructions")
    final = there[graph.loss]
    if not any(all(layout.has_whole_value for layout in placement) for placement in final):
        raise _FlawError("no instruction gives the whole loss to every device", "instructions")


def _missing(graph: Graph, node: int, needed: Placement, there: dict[int, set[Placement]]) -> str:
    name, found = graph.nodes[node].name, there.get(node)
    if not found:
        return f"needs node {node} ({name}), which is not computed before"
    known = ", ".join(sorted(map(placement_text, found)))
    return f"needs {name} as {placement_text(needed)}; so far it is there as {known}"
