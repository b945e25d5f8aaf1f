"""Program files: written whole, refused if they changed since.

A checksum over the content tells a damaged or edited file, and `msgspec` checks the types. What has
the right checksum was written by `astrarium synthesize`, perhaps by another version: its rules and
conversions must be those of this one, or it would compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from astrarium.cluster import Cluster
from astrarium.documents.clusters import ClusterPart
from astrarium.errors import InputError
from astrarium.spmd.graph import Graph
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
    operations,
    rules_of,
)
from astrarium.value import Value

AGAIN: Final = "synthesise it again with `astrarium synthesize ... --out FILE`"
# What content raises that is not as it is written, of whatever kind.
ODD_CONTENT: Final = (AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError)


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
    except ODD_CONTENT:
        raise InputError(f"{path}: not as `astrarium synthesize` writes it; {AGAIN}") from None


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


def _document(file: _File, cluster: Mapping[str, Any]) -> ProgramDocument:
    graph = Graph.from_dict(msgspec.structs.asdict(file.graph))
    instructions = tuple(_instruction(one, len(file.bytes)) for one in file.instructions)
    for one in instructions:
        _check_rules(graph, one, file.source.allow_replicate)
    pieces = [
        np.array(level, np.int64) for level in zip(*(a.pieces for a in file.axes), strict=True)
    ]
    granules, names = (tuple(getattr(a, key) for a in file.axes) for key in ("granules", "name"))
    program = DeviceProgram(
        graph,
        Axes(file.axis_of, granules, names),
        tuple(map(Division, pieces)),
        file.mesh,
        instructions,
        file.iteration_seconds,
        file.bytes,
        file.micro_batches,
        file.recompute,
    )
    return ProgramDocument(
        file.source,
        Cluster.from_dict(cluster),
        file.devices,
        program,
        file.breakdown_seconds,
        file.memory,
        file.search,
        file.baselines,
        file.notes,
        file.reasons,
    )


def _instruction(entry: _InstructionEntry, devices: int) -> Instruction:
    gives, needs = parse_placement(entry.gives), tuple(map(parse_placement, entry.needs))
    rules = tuple(_rule(rule, needs, gives, level) for level, rule in enumerate(entry.rules))
    sizes = entry.bytes if isinstance(entry.bytes, tuple) else (entry.bytes,) * devices
    return Instruction(entry.node, gives, needs, rules, entry.conversion, entry.seconds, sizes)


def _rule(
    entry: _RuleEntry, needs: tuple[Placement, ...], gives: Placement, level: int
) -> ShardRule:
    """Its layouts are the instruction's where it has none."""
    own = tuple(placement[level] for placement in needs)
    if entry.needs is not None:
        own = tuple(parse_placement(text)[0] for text in entry.needs)
    result = gives[level] if entry.gives is None else parse_placement(entry.gives)[0]
    return ShardRule(entry.name, own, result, entry.local, entry.messages, entry.gradient_of_whole)


def _check_rules(graph: Graph, one: Instruction, allow_replicate: Sequence[str]) -> None:
    """Refuse what this version would do otherwise."""
    node, sent = graph.nodes[one.node], one.conversion
    if sent is not None:
        ends = one.needs[0][sent.level], one.gives[sent.level]
        is_known = operations(*ends, gradient=node.needs_gradient) == (sent.forward, sent.backward)
    else:
        known = rules_of(graph, node, allow_replicate) if one.rules else ()
        is_known = all(rule in known for rule in one.rules)
    if not is_known:
        raise ValueError(node.op)
