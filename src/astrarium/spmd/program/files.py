"""Program files: written whole, refused if they changed since.

A checksum over the content tells a damaged or edited file. What carries the right one is still
untrusted: `msgspec` checks the types, and `_check_*` that every number that points at something
points at something that is there, so that nothing after them can fail on a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from astrarium.cluster import Cluster
from astrarium.documents.clusters import ClusterPart
from astrarium.documents.places import KeyPath, failure
from astrarium.errors import InputError
from astrarium.spmd.graph import CONSTANT, DTYPE_BYTES, KEEP, Graph, Node, Ref
from astrarium.spmd.program.document import (
    CHECKSUM,
    DeviceMemoryPart,
    DevicePart,
    ProgramDocument,
    ReasonPart,
    SourcePart,
    SynthesisPart,
    checksum_of,
    parse_placement,
    to_text,
)
from astrarium.spmd.program.program import SCHEMA, Conversion, DeviceProgram, Instruction
from astrarium.spmd.rules import (
    Axes,
    Division,
    Message,
    Placement,
    ShardRule,
    changed_level,
    is_possible,
    operations,
    rules_of,
)
from astrarium.value import Value

MOST_DEVICES: Final = 2**16
AGAIN: Final = "synthesise it again with `astrarium synthesize ... --out FILE`"
# What functions of torch's arguments raise if these are not what the operator takes.
ODD_ARGUMENTS: Final = (
    ArithmeticError,
    AttributeError,
    InputError,
    LookupError,
    TypeError,
    ValueError,
)


class _FlawError(Exception):
    """The file is not as it is written; `key` says where."""

    def __init__(self, *key: str | int) -> None:
        super().__init__()
        self.key: KeyPath = key


class _GraphEntry(Value, frozen=True):
    name: str
    nodes: tuple[dict[str, Any], ...]
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
    recompute: bool = False
    baselines: dict[str, float] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: tuple[ReasonPart, ...] = ()


def save_program(document: ProgramDocument, path: Path) -> None:
    """Write the file whole or not at all."""
    from astrarium.documents import write_atomic

    write_atomic(path, to_text(document))


def load_program(path: Path) -> ProgramDocument:
    """Read a program file; InputError says why it cannot be used, and the way out."""
    from astrarium import documents

    content = documents.read(path)
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or schema != SCHEMA:
        raise InputError(f"{path}: {_not_a_program(schema)}")
    data = {key: content[key] for key in content if key not in ("schema", CHECKSUM)}
    if content.get(CHECKSUM) != checksum_of(data):
        raise InputError(
            f"{path}: changed since it was written: its checksum does not match; {AGAIN}"
        )
    file = documents.checked(data, _File, str(path))
    try:
        return _document(file, data["cluster"])
    except _FlawError as wrong:
        raise failure(
            path, f"not as `astrarium synthesize` writes it; {AGAIN}", None, wrong.key
        ) from None


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


def _document(file: _File, cluster_data: Mapping[str, Any]) -> ProgramDocument:
    try:
        cluster = Cluster.from_dict(cluster_data)
    except InputError:
        raise _FlawError("cluster") from None
    _check_devices(file, cluster)
    graph = _graph(file.graph)
    _check_axes(file, graph)
    instructions = tuple(_instruction(file, graph, i) for i in range(len(file.instructions)))
    _check_program(graph, instructions, file.source.allow_replicate)
    every = tuple(axis.granules for axis in file.axes)
    program = DeviceProgram(
        graph,
        Axes(file.axis_of, every, tuple(axis.name for axis in file.axes)),
        tuple(
            Division(np.array([axis.pieces[level] for axis in file.axes], np.int64))
            for level in range(len(file.mesh))
        ),
        file.mesh,
        instructions,
        file.iteration_seconds,
        file.bytes,
        file.micro_batches,
        file.recompute,
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
    )


def _expect(holds: bool, *key: str | int) -> None:
    if not holds:
        raise _FlawError(*key)


def _check_devices(file: _File, cluster: Cluster) -> None:
    _expect(bool(file.mesh) and min(file.mesh) > 0 and prod(file.mesh) <= MOST_DEVICES, "mesh")
    _expect(file.micro_batches > 0 and file.source.batch > 0, "micro_batches")
    _expect(file.iteration_seconds > 0, "iteration_seconds")
    _expect(all(seconds > 0 for seconds in file.baselines.values()), "baselines")
    _expect(len(file.bytes) == prod(file.mesh), "bytes")
    ranks = list(range(prod(file.mesh)))
    _expect([part.rank for part in file.memory] == ranks, "memory")
    _expect(all(part.capacity_bytes > 0 for part in file.memory), "memory")
    _expect([device.rank for device in file.devices] == ranks, "devices")
    gpus = {pool.name: pool.gpu.name for pool in cluster.pools}
    _expect(all(gpus.get(device.pool) == device.gpu for device in file.devices), "devices")


def _graph(entry: _GraphEntry) -> Graph:
    _expect(bool(entry.nodes), "graph", "nodes")
    _expect(len(entry.blocks) in (0, len(entry.nodes)), "graph", "blocks")
    try:
        graph = Graph.from_dict(msgspec.structs.asdict(entry))
    except (msgspec.ValidationError, *ODD_ARGUMENTS):
        raise _FlawError("graph", "nodes") from None
    for index, node in enumerate(graph.nodes):
        place = ("graph", "nodes", index)
        _expect(node.dtype in DTYPE_BYTES and min(node.shape, default=0) >= 0, *place)
        _expect(all(0 <= read < index for read in node.inputs), *place)
        _expect(not (node.is_source and node.inputs), *place)
        _expect(node.op != CONSTANT or bool(node.target) or _are_numbers(node.args), *place)
        _expect(node.op != KEEP or (index == graph.loss and _keeps(node)), *place)
    _expect(len(graph.index_of) == len(graph.nodes), "graph", "nodes")
    return graph


def _are_numbers(values: object) -> bool:
    """Whether all values of nested lists are numbers."""
    if isinstance(values, list | tuple):
        return all(map(_are_numbers, values))
    return isinstance(values, bool | int | float)


def _keeps(node: Node) -> bool:
    """Whether its arguments are the loss, values, and as many names of buffers."""
    match node.args:
        case Ref(), [*values], [*names]:
            refs = all(isinstance(value, Ref) for value in values)
            named = all(isinstance(name, str) and name for name in names)
            return refs and named and len(values) == len(set(names)) == len(names)
    return False


def _check_axes(file: _File, graph: Graph) -> None:
    devices = prod(file.mesh)
    for index, axis in enumerate(file.axes):
        _expect(axis.granules > 0 and len(axis.pieces) == len(file.mesh), "axes", index)
        for size, pieces in zip(file.mesh, axis.pieces, strict=True):
            _expect(len(pieces) in (size, devices) and min(pieces) >= 0, "axes", index)
            _expect(sum(pieces) == axis.granules, "axes", index)
    _expect(len(file.axis_of) == len(graph.nodes), "axis_of")
    for index, (node, axes) in enumerate(zip(graph.nodes, file.axis_of, strict=True)):
        _expect(len(axes) == len(node.shape), "axis_of", index)
        _expect(all(0 <= axis < len(file.axes) for axis in axes), "axis_of", index)
        pairs = zip(node.shape, axes, strict=True)
        _expect(all(size % file.axes[axis].granules == 0 for size, axis in pairs), "axis_of", index)


def _instruction(file: _File, graph: Graph, index: int) -> Instruction:
    entry, place = file.instructions[index], ("instructions", index)
    levels, devices = len(file.mesh), prod(file.mesh)
    _expect(0 <= entry.node < len(graph.nodes), *place)
    read = (entry.node,) if entry.conversion else graph.inputs[entry.node]
    _expect(len(entry.needs) == len(read), *place)
    gives = _placement(entry.gives, graph.nodes[entry.node], levels, place)
    needs = tuple(
        _placement(text, graph.nodes[one], levels, place)
        for one, text in zip(read, entry.needs, strict=True)
    )
    is_plain = entry.conversion is not None or graph.nodes[entry.node].is_source
    _expect(len(entry.rules) == (0 if is_plain else levels), *place)
    rules = tuple(_rule(rule, needs, gives, level) for level, rule in enumerate(entry.rules))
    sizes = entry.bytes if isinstance(entry.bytes, tuple) else (entry.bytes,) * devices
    _expect(len(sizes) in (0, devices), *place)
    return Instruction(entry.node, gives, needs, rules, entry.conversion, entry.seconds, sizes)


def _placement(text: str, node: Node, levels: int, place: KeyPath) -> Placement:
    try:
        placement = parse_placement(text)
    except ValueError:
        raise _FlawError(*place) from None
    _expect(len(placement) == levels, *place)
    dims = [layout.dim for layout in placement if layout.is_shard]
    _expect(all(0 <= dim < len(node.shape) for dim in dims), *place)
    return placement


def _rule(
    entry: _RuleEntry, needs: tuple[Placement, ...], gives: Placement, level: int
) -> ShardRule:
    """Its layouts are the instruction's where it has none; `_check_program` looks it up."""
    try:
        own = tuple(parse_placement(text)[0] for text in entry.needs or ())
        result = gives[level] if entry.gives is None else parse_placement(entry.gives)[0]
    except ValueError:
        raise _FlawError("instructions") from None
    if entry.needs is None:
        own = tuple(placement[level] for placement in needs)
    return ShardRule(entry.name, own, result, entry.local, entry.messages, entry.gradient_of_whole)


def _check_program(
    graph: Graph, instructions: Sequence[Instruction], allow_replicate: Sequence[str]
) -> None:
    """Every node is computed once, by rules that exist, from values that are there before it."""
    there: dict[int, set[Placement]] = {}
    for index, one in enumerate(instructions):
        place = ("instructions", index)
        read = graph.inputs[one.node] if one.conversion is None else (one.node,)
        pairs = zip(read, one.needs, strict=True)
        _expect(all(needed in there.get(source, ()) for source, needed in pairs), *place)
        if one.conversion is None:
            _expect(one.node not in there, *place)
            _check_rules(graph, one, allow_replicate, place)
        else:
            _check_conversion(graph.nodes[one.node], one, one.conversion, place)
        there.setdefault(one.node, set()).add(one.gives)
    _expect(len(there) == len(graph.nodes), "instructions")
    whole = (all(layout.has_whole_value for layout in made) for made in there[graph.loss])
    _expect(any(whole), "instructions")


def _check_rules(
    graph: Graph, one: Instruction, allow_replicate: Sequence[str], place: KeyPath
) -> None:
    try:
        known = rules_of(graph, graph.nodes[one.node], allow_replicate) if one.rules else ()
    except ODD_ARGUMENTS:
        raise _FlawError(*place) from None
    _expect(all(rule in known for rule in one.rules), *place)


def _check_conversion(node: Node, one: Instruction, sent: Conversion, place: KeyPath) -> None:
    before, level = one.needs[0], changed_level(one.needs[0], one.gives)
    _expect(level >= 0 and level == sent.level and is_possible(before, one.gives), *place)
    done = operations(before[level], one.gives[level], gradient=node.needs_gradient)
    _expect((sent.forward, sent.backward) == done, *place)
