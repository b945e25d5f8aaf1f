"""Synthesised programs, and their document, schema `astrarium.program/3`.

A program says, in order, what every device does. The document holds everything that is shown or
run: the graph, the division of its axes, the instructions and their predictions. Placements are
layouts joined by "/", the outermost level first; what is left out has its usual value; one number
in place of a list of bytes is that of every device. A checksum over the content tells a damaged or
edited file. A file of another version may have the right checksum: its rules and conversions must
be those of this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from astrarium.cluster import Cluster
from astrarium.errors import InputError
from astrarium.spmd.graph import Graph
from astrarium.spmd.rules import (
    Axes,
    Division,
    Message,
    Placement,
    ShardRule,
    operations,
    parse_layout,
    rules_of,
)
from astrarium.value import Value

CHECKSUM: Final = "checksum"  # the key of the file that holds it
LEVELS: Final = "/"  # between the layouts of a placement
MEMORY_CAUSES: Final = ("parameters", "gradients", "optimizer", "activations", "transient")
AGAIN: Final = "synthesise it again with `astrarium synthesize ... --out FILE`"
# What content raises that this version did not write.
ODD_CONTENT: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)


class SourcePart(Value, frozen=True):
    """The factory of the module, and its arguments."""

    factory: str
    batch: int
    sizes: dict[str, Any] = msgspec.field(default_factory=dict)
    seed: int = 0
    optimizer: str = "adam"
    allow_replicate: tuple[str, ...] = ()  # operators without a rule that every device repeats


class DevicePart(Value, frozen=True):
    """One process of the program; `node` counts machines over all pools."""

    rank: int
    pool: str
    gpu: str
    node: int


class DeviceMemoryPart(Value, frozen=True):
    """Bytes of a device; the causes add up to the peak. `transient` comes and goes in a step."""

    rank: int
    peak_bytes: float
    capacity_bytes: float
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    transient: float

    @property
    def share(self) -> float:
        return self.peak_bytes / self.capacity_bytes


class TriedPart(Value, frozen=True):
    """One arrangement of devices and number of micro-batches that was searched."""

    mesh: str
    micro_batches: int
    seconds: float | None  # of the best program found; None: none was found that fits
    bound_gap: float = 0.0
    searched: bool = True  # else the effort was spent before
    recompute: bool = False


class SynthesisPart(Value, frozen=True):
    """What the synthesis did, in all that was tried.

    No program that fits, with the same ratios, takes less than `1 - bound_gap` of this one's time.
    """

    seconds: float
    rounds: int
    expanded: int
    optimal: bool
    bound_gap: float
    tried: tuple[TriedPart, ...] = ()


class ReasonPart(Value, frozen=True):
    """A part of the model beside the same part of the fastest fixed way (`against`)."""

    part: str
    against: str
    seconds: float
    against_seconds: float
    sent_bytes: float  # of whole tensors, both passes
    against_sent_bytes: float
    kept_bytes: float  # to the end of the step, on the device that keeps most
    against_kept_bytes: float
    ways: tuple[str, ...]  # how the operators that take longest are divided


class ProgramDocument(Value, frozen=True, dict=True):
    """A program with all that it refers to, and what else was tried (`baselines`, seconds)."""

    source: SourcePart
    cluster: Cluster
    devices: tuple[DevicePart, ...]
    program: DeviceProgram
    breakdown_seconds: dict[str, float]
    memory: tuple[DeviceMemoryPart, ...]
    search: SynthesisPart
    baselines: dict[str, float] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: tuple[ReasonPart, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.devices)


def to_dict(document: ProgramDocument) -> dict[str, Any]:
    """The document as plain data, ready for JSON, with a checksum of its content."""
    content = _content(document)
    return {"schema": SCHEMA, CHECKSUM: checksum_of(content), **content}


def checksum_of(content: Mapping[str, Any]) -> str:
    """A checksum of plain data: spaces and the order of keys do not count."""
    text = msgspec.json.encode(content, order="sorted")
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _content(document: ProgramDocument) -> dict[str, Any]:
    program = document.program
    divisions = [division.granules.tolist() for division in program.divisions]
    names = program.axes.names or ("",) * program.axes.count
    return {
        "source": asdict(document.source),
        "cluster": document.cluster.to_dict(),
        "mesh": list(program.mesh),
        "devices": [asdict(device) for device in document.devices],
        "iteration_seconds": float(program.seconds),
        "breakdown_seconds": {k: float(v) for k, v in document.breakdown_seconds.items()},
        "baselines": {k: float(v) for k, v in document.baselines.items()},
        "search": asdict(document.search),
        "memory": [_whole_numbers(asdict(part)) for part in document.memory],
        "bytes": list(map(_number, program.bytes)),
        "micro_batches": program.micro_batches,
        "recompute": program.recompute,
        "notes": list(document.notes),
        "reasons": [_whole_sizes(asdict(reason)) for reason in document.reasons],
        "axes": [
            {"name": name, "granules": granules, "pieces": [rows[axis] for rows in divisions]}
            for axis, (name, granules) in enumerate(zip(names, program.axes.granules, strict=True))
        ],
        "axis_of": [list(axes) for axes in program.axes.of],
        "graph": program.graph.to_dict(),
        "instructions": [instruction_to_dict(one) for one in program.instructions],
    }


def to_text(document: ProgramDocument) -> str:
    """The file: one line for each node, axis, device and instruction, always the same bytes."""
    return "".join(_lines(to_dict(document))) + "\n"


def placement_text(placement: Placement) -> str:
    return LEVELS.join(map(str, placement))


def parse_placement(text: str) -> Placement:
    """Read what `placement_text` wrote; ValueError if it is none."""
    return tuple(parse_layout(layout) for layout in text.split(LEVELS))


def instruction_to_dict(one: Instruction) -> dict[str, Any]:
    data: dict[str, Any] = {"node": one.node, "gives": placement_text(one.gives)}
    if one.needs:
        data["needs"] = [placement_text(placement) for placement in one.needs]
    if one.rules:
        data["rules"] = [_rule_to_dict(one, level) for level in range(len(one.rules))]
    if one.conversion is not None:
        data["conversion"] = _conversion_to_dict(one.conversion)
    if one.seconds:
        data["seconds"] = float(one.seconds)
    if one.bytes:
        sizes = [_number(size) for size in one.bytes]
        data["bytes"] = sizes[0] if len(set(sizes)) == 1 else sizes
    return data


def _rule_to_dict(one: Instruction, level: int) -> dict[str, Any]:
    """The rule of a level; its layouts only where the instruction's are others."""
    rule = one.rules[level]
    data: dict[str, Any] = {"name": rule.name}
    if rule.needs != tuple(placement[level] for placement in one.needs):
        data["needs"] = [str(layout) for layout in rule.needs]
    if rule.gives != one.gives[level]:
        data["gives"] = str(rule.gives)
    if rule.local:
        data["local"] = rule.local
    if rule.messages:
        data["messages"] = [asdict(message) for message in rule.messages]
    return data


def _conversion_to_dict(conversion: Conversion) -> dict[str, Any]:
    data = asdict(conversion)
    return {key: value for key, value in data.items() if value != How.PLAIN}


def _whole_sizes(data: dict[str, Any]) -> dict[str, Any]:
    return {key: _number(value) if key.endswith("_bytes") else value for key, value in data.items()}


def _whole_numbers(data: dict[str, Any]) -> dict[str, Any]:
    return {key: _number(value) for key, value in data.items()}


def _number(value: float) -> int | float:
    """Bytes are whole, mostly: without a fraction they are shorter, and read as the same number."""
    number = float(value)
    return int(number) if number.is_integer() else number


def _lines(data: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """JSON with a line for each key, and for each entry of the long lists of mappings."""
    inner = indent + "  "
    yield "{\n"
    for position, (key, value) in enumerate(data.items()):
        yield f"{',' * (position > 0)}{chr(10) * (position > 0)}{inner}{_json(key)}: "
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            entries = f",\n{inner}  ".join(map(_json, value))
            yield f"[\n{inner}  {entries}\n{inner}]"
        elif key == "graph":
            yield from _lines(value, inner)
        else:
            yield _json(value)
    yield f"\n{indent}}}"


def _json(value: Any) -> str:  # noqa: ANN401
    return json.dumps(value, allow_nan=False)


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
    try:
        return _document(data)
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


def _document(data: Mapping[str, Any]) -> ProgramDocument:
    graph = Graph.from_dict(data["graph"])
    source = msgspec.convert(data["source"], SourcePart)
    instructions = tuple(_instruction(one, len(data["bytes"])) for one in data["instructions"])
    for one in instructions:
        _check_rules(graph, one, source.allow_replicate)
    axes = data["axes"]
    granules, names = (tuple(axis[key] for axis in axes) for key in ("granules", "name"))
    levels = zip(*(axis["pieces"] for axis in axes), strict=True)
    program = DeviceProgram(
        graph,
        Axes(tuple(map(tuple, data["axis_of"])), granules, names),
        tuple(Division(np.array(level, np.int64)) for level in levels),
        tuple(data["mesh"]),
        instructions,
        data["iteration_seconds"],
        tuple(map(float, data["bytes"])),
        data["micro_batches"],
        data["recompute"],
    )
    return ProgramDocument(
        source,
        Cluster.from_dict(data["cluster"]),
        msgspec.convert(data["devices"], tuple[DevicePart, ...]),
        program,
        data["breakdown_seconds"],
        msgspec.convert(data["memory"], tuple[DeviceMemoryPart, ...]),
        msgspec.convert(data["search"], SynthesisPart),
        data["baselines"],
        tuple(data["notes"]),
        msgspec.convert(data["reasons"], tuple[ReasonPart, ...]),
    )


def _instruction(entry: Mapping[str, Any], devices: int) -> Instruction:
    gives = parse_placement(entry["gives"])
    needs = tuple(map(parse_placement, entry.get("needs", ())))
    rules = enumerate(entry.get("rules", ()))
    sizes = entry.get("bytes", ())
    return Instruction(
        entry["node"],
        gives,
        needs,
        tuple(_rule(rule, needs, gives, level) for level, rule in rules),
        msgspec.convert(entry.get("conversion"), Conversion | None),
        entry.get("seconds", 0.0),
        tuple(map(float, sizes if isinstance(sizes, Sequence) else [sizes] * devices)),
    )


def _rule(
    entry: Mapping[str, Any], needs: tuple[Placement, ...], gives: Placement, level: int
) -> ShardRule:
    """Its layouts are the instruction's where it has none."""
    own, result = tuple(placement[level] for placement in needs), gives[level]
    return ShardRule(
        entry["name"],
        tuple(map(parse_layout, entry["needs"])) if "needs" in entry else own,
        parse_layout(entry["gives"]) if "gives" in entry else result,
        entry.get("local", ""),
        msgspec.convert(entry.get("messages", ()), tuple[Message, ...]),
    )


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


SCHEMA = "astrarium.program/3"


class How(StrEnum):
    """The way a message is sent."""

    PLAIN = "plain"  # all parts are equal, or the library takes unequal ones
    PADDED = "padded"  # parts are filled up to the largest
    GROUPED = "grouped"  # one broadcast, or one reduction, for each device's part


class Conversion(Value, frozen=True):
    """A value, and on the way back its gradient, from one layout to another on one mesh level."""

    level: int
    forward: (
        str  # "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "slice", "mask", "none"
    )
    backward: str
    forward_how: How = How.PLAIN
    backward_how: How = How.PLAIN


class Priced(Value, frozen=True):
    """An instruction for any node: a choice or a conversion of the search."""

    needs: tuple[Placement, ...]  # of each input; of a conversion: what it starts from
    gives: Placement
    rules: tuple[ShardRule, ...] = ()  # one for each level; none for a conversion
    conversion: Conversion | None = None


class Instruction(Value, frozen=True):
    """Computes a node, or converts its value; seconds and bytes are what was predicted of it."""

    node: int
    gives: Placement
    needs: tuple[Placement, ...] = ()  # of each input; of a conversion: the one it starts from
    rules: tuple[ShardRule, ...] = ()  # one for each mesh level; empty for conversions and sources
    conversion: Conversion | None = None
    seconds: float = 0.0
    bytes: tuple[float, ...] = ()  # by device


class DeviceProgram(Value, frozen=True, dict=True):
    """Instructions, their devices, and their predicted cost."""

    graph: Graph
    axes: Axes
    divisions: tuple[Division, ...]  # one for each level of the mesh
    mesh: tuple[int, ...]  # devices by level: (4,) or (2 nodes, 4 in each)
    instructions: tuple[Instruction, ...]
    seconds: float  # of a training step, update included
    bytes: tuple[float, ...]  # by device
    micro_batches: int = 1
    recompute: bool = False  # the backward pass computes chunks of operators again
