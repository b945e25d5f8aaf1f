"""A program in parts that a person can read: layers that are alike once, messages added up.

A part is a repeated block of the graph, or what stands before, between or behind such blocks.
Blocks whose instructions are alike (operators, shapes, rules, layouts) are one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from astrarium.report.tables import runs
from astrarium.spmd.graph import DTYPE_BYTES, PARAMETER, Graph
from astrarium.spmd.program import DeviceProgram, How, Instruction, ReasonPart, placement_text
from astrarium.spmd.rules import PARTIAL, MessageKind, ShardRule
from astrarium.units import format_bytes, format_seconds
from astrarium.value import Value

OUTSIDE: Final = -1  # the block of a node that no layer repeats
HEADS: Final = "heads"
WHOLE: Final = "the whole graph"
SHORT_NAMES: Final = {"scaled_dot_product_attention": "attention"}
# Of the weights, as Megatron says; rules are named by the letters of `rules.products`.
PRODUCT_WAYS: Final = {
    "linear": {"shard o": "columns", "shard i": "rows"},
    "addmm": {"shard j": "columns", "shard k": "rows"},
}
_CAST = re.compile(r"parametrizations\.(\w+)\.original")  # torch's name of what a module casts
_LAYER = re.compile(r"(?P<before>.*?(?:^|\.))(?P<number>\d+)(?:\.|$)")


class ProgramPart(Value, frozen=True):
    """Instructions that belong together; `times` such parts are alike."""

    name: str
    instructions: tuple[Instruction, ...]
    times: int = 1
    owners: tuple[int, ...] = ()  # which blocks or gaps between them, as `instructions_by_owner`


class Work(Value, frozen=True):
    """Operators of a part that are computed alike."""

    operator: str
    count: int
    way: str
    gives: str
    seconds: float
    names: tuple[str, ...]  # modules they stand in
    decides: bool = False  # whether its result is exchanged: what follows depends on that


class SentMessages(Value, frozen=True):
    collective: str
    of: str  # "activations", "gradients", ...
    how: str
    count: int
    bytes: float  # of the whole tensors
    level: int


def parts_of(program: DeviceProgram) -> list[ProgramPart]:
    """The parts in the order of the graph, equal ones folded into the first of them."""
    graph = program.graph
    owner = _owners(graph)
    by_owner = instructions_by_owner(program)
    folded: dict[Any, list[int]] = {}
    for number in dict.fromkeys(sorted(by_owner)):
        key: Any = number
        if number % 2:  # a block
            key = tuple(_signature(graph, one, by_owner[number]) for one in by_owner[number])
        folded.setdefault(key, []).append(number)
    return [
        ProgramPart(
            _name(graph, owner, numbers), tuple(by_owner[numbers[0]]), len(numbers), tuple(numbers)
        )
        for numbers in folded.values()
    ]


def instructions_by_owner(program: DeviceProgram) -> dict[int, list[Instruction]]:
    """Instructions by block and by gap between blocks; numbers fit all programs of a module."""
    owner = _owners(program.graph)
    found: dict[int, list[Instruction]] = {}
    for one in program.instructions:
        found.setdefault(owner[one.node], []).append(one)
    return found


def way_words(program: DeviceProgram, one: Instruction) -> str:
    """The way an instruction divides its work: "batch", "heads", "columns", "whole"."""
    return " / ".join(_way(program, one, rule) for rule in one.rules)


def _way(program: DeviceProgram, one: Instruction, rule: ShardRule) -> str:
    values = (*program.graph.inputs[one.node], one.node)
    for value, layout in zip(values, (*rule.needs, rule.gives), strict=True):
        if layout.is_shard:
            operator = operator_name(program.graph.nodes[one.node].op)
            known = PRODUCT_WAYS.get(operator, {}).get(rule.name)
            axis = program.axes.of[value][layout.dim]
            return known or axis_kind(program, axis)
    if PARTIAL in (*rule.needs, rule.gives):
        return "sums of parts"
    return "whole"


def axis_kind(program: DeviceProgram, axis: int) -> str:
    """The unit of an axis: "batch", "heads", or a dimension of its module, without the path."""
    name = axis_names(program)[axis]
    path, _, dim = re.sub(r" \(\d+\)$", "", name).partition(" ")
    if dim == HEADS or not dim:
        return dim or path
    module = path.removesuffix(".weight").removesuffix(".bias")
    return f"{module.rpartition('.')[2]} {dim}"


def axis_names(program: DeviceProgram) -> list[str]:
    """Names of axes, without the casts of their tensors."""
    axes = program.axes
    named = axes.names or [f"axis {axis}" for axis in range(axes.count)]
    return [_CAST.sub(r"\1", name) for name in named]


def work_of(program: DeviceProgram, part: ProgramPart) -> list[Work]:
    """Operators of a part, alike ones together, in the order of the first of each."""
    graph = program.graph
    found: dict[tuple[str, str, str], list[Instruction]] = {}
    exchanged = {one.node for one in part.instructions if one.conversion and sends(graph, one)}
    for one in part.instructions:
        node = graph.nodes[one.node]
        if one.conversion is None and not node.is_source:
            key = operator_name(node.op), way_words(program, one), placement_text(one.gives)
            found.setdefault(key, []).append(one)
    return [
        Work(
            operator,
            len(several),
            way,
            gives,
            sum(one.seconds for one in several),
            tuple(dict.fromkeys(graph.nodes[one.node].path for one in several)),
            any(one.node in exchanged or sends(graph, one) for one in several),
        )
        for (operator, way, gives), several in found.items()
    ]


def messages_of(graph: Graph, part: ProgramPart) -> list[SentMessages]:
    """Messages of a part, both passes, alike ones added up."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for one in part.instructions:
        for collective, of, how, level, size in _messages(graph, one):
            found.setdefault((collective, of, how, level), []).append(size)
    return [
        SentMessages(collective, of, how, len(sizes), sum(sizes), level)
        for (collective, of, how, level), sizes in found.items()
    ]


def sends(graph: Graph, one: Instruction) -> bool:
    """Whether devices exchange something in an instruction."""
    return next(_messages(graph, one), None) is not None


def sent_bytes(graph: Graph, instructions: Iterable[Instruction]) -> float:
    """Bytes of the whole tensors that devices exchange, in both passes."""
    return sum(size for one in instructions for *_, size in _messages(graph, one))


def operator_name(op: str) -> str:
    """A readable name of an operator: "linear" of "aten.linear.default"."""
    name = op.removeprefix("aten.").partition(".")[0]
    return SHORT_NAMES.get(name, name.replace("_", " ").strip())


def _messages(graph: Graph, one: Instruction) -> Iterator[tuple[str, str, str, int, float]]:
    node = graph.nodes[one.node]
    what = "parameters" if node.op == PARAMETER else "activations"
    words = list(MessageKind)
    if one.conversion is not None:
        c = one.conversion
        if c.forward in words:
            yield c.forward, what, _how(c.forward_how), c.level, node.bytes
        if c.backward in words:
            back = "gradients" if node.op == PARAMETER else "their gradients"
            yield c.backward, back, _how(c.backward_how), c.level, node.bytes
    for level, rule in enumerate(one.rules):
        for message in rule.messages:
            size = message.elements * DTYPE_BYTES[node.dtype]
            yield message.collective.value, f"inside {operator_name(node.op)}", "", level, size


def _how(how: How) -> str:
    return "" if how is How.PLAIN else how.value


def _owners(graph: Graph) -> list[int]:
    """2 b + 1 for nodes of block b, else even; sources belong to their first reader."""
    blocks = graph.blocks or (OUTSIDE,) * len(graph.nodes)
    owner, latest = [OUTSIDE] * len(graph.nodes), 0
    for index, (node, block) in enumerate(zip(graph.nodes, blocks, strict=True)):
        if block != OUTSIDE:
            owner[index] = 2 * block + 1
            if not node.is_source:
                latest = 2 * block + 2
        elif not node.is_source:
            owner[index] = latest
    for index in reversed(range(len(graph.nodes))):
        if owner[index] == OUTSIDE:
            readers = graph.readers[index]
            first = owner[readers[0]] if readers else latest
            owner[index] = first - first % 2  # what a block reads stands before it
    return owner


def _signature(graph: Graph, one: Instruction, block: Sequence[Instruction]) -> Any:  # noqa: ANN401
    """Equal for blocks that are alike: operators, shapes, layouts; not names nor numbers."""
    node = graph.nodes[one.node]
    rules = tuple(rule.name for rule in one.rules)
    return (
        node.op, node.shape, one.gives, one.needs, rules, one.conversion, len(block)
    )  # fmt: skip


def _name(graph: Graph, owner: Sequence[int], numbers: Sequence[int]) -> str:
    """The common name of the modules of a part: "encoder.layer.0-11"."""
    paths = [_common(graph, owner, number) for number in numbers]
    found = [_LAYER.match(path) for path in paths]
    if len(paths) > 1 and all(found):
        layers = [int(match["number"]) for match in found if match]
        before = {match["before"] for match in found if match}
        if len(before) == 1:
            return f"{before.pop()}{runs(sorted(layers))}"
    return paths[0]


def _common(graph: Graph, owner: Sequence[int], number: int) -> str:
    """The module path that the nodes of a part share; of several modules the first and last."""
    if len(set(owner)) == 1:
        return WHOLE
    inside = [node for node, one in zip(graph.nodes, owner, strict=True) if one == number]
    named = [node for node in inside if not node.is_source] or inside
    paths = [(node.path or node.name).split(".") for node in named]
    shared: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    if shared:
        return ".".join(shared)
    ends = list(dict.fromkeys(path[0] for path in paths))
    return " to ".join(dict.fromkeys((*ends[:1], *ends[-1:])))


MOST_WAYS: Final = 3  # named in a sentence
SAME: Final = 0.005  # of seconds or bytes: less is no difference


def reasons_of(
    program: DeviceProgram, others: Mapping[str, DeviceProgram]
) -> tuple[ReasonPart, ...]:
    """By part: what it takes, sends and keeps here, and in the fastest of some other programs."""
    if not others:
        return ()
    name = min(others, key=lambda one: others[one].seconds)
    rival = others[name]
    theirs = instructions_by_owner(rival)
    found = []
    for part in parts_of(program):
        here = [*part.instructions] * part.times
        there = [one for owner in part.owners for one in theirs.get(owner, ())]
        works = sorted(work_of(program, part), key=lambda work: -work.seconds)
        ways = dict.fromkeys(f"{work.operator} by {work.way}" for work in works if work.way)
        found.append(
            ReasonPart(
                part.name,
                name,
                _seconds(here),
                _seconds(there),
                sent_bytes(program.graph, here),
                sent_bytes(rival.graph, there),
                _kept(here),
                _kept(there),
                tuple(ways)[:MOST_WAYS],
            )
        )
    return tuple(found)


def _seconds(instructions: Sequence[Instruction]) -> float:
    return sum(one.seconds for one in instructions)


def _kept(instructions: Sequence[Instruction]) -> float:
    """Bytes on the device that keeps most of these."""
    by_device = zip(*(one.bytes for one in instructions if one.bytes), strict=True)
    return max((sum(sizes) for sizes in by_device), default=0.0)


def reason_words(reason: ReasonPart) -> str:
    """One sentence: seconds, then what makes the difference."""
    took, instead = reason.seconds, reason.against_seconds
    verdict = f"{format_seconds(took)} instead of {format_seconds(instead)}"
    if abs(took - instead) <= SAME * max(took, instead):
        verdict = f"{format_seconds(took)}, as there"
    facts = [
        f"{verb} {size_words(own)} instead of {size_words(other)}"
        for verb, own, other in (
            ("sends", reason.sent_bytes, reason.against_sent_bytes),
            ("keeps", reason.kept_bytes, reason.against_kept_bytes),
        )
        if abs(own - other) > SAME * max(own, other)
    ]
    ways = ", ".join(reason.ways)
    return f"{reason.part}: {'; '.join([verdict, *facts])} ({ways})"


def size_words(size: float) -> str:
    """Bytes of a tensor, down to single ones."""
    for limit, unit in ((2**10, "B"), (2**20, "KiB"), (2**30, "MiB")):
        if size < limit:
            return f"{size / (limit >> 10):.3g} {unit}"
    return format_bytes(size)
