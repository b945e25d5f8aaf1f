"""A synthesised program as text: work, messages and pieces of each part, time and memory.

Everything is rendered from the document, so that `astrarium explain program.json` shows what
`astrarium synthesize` did. Layers that are alike are shown once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from astrarium.report import program_parts, tables
from astrarium.report.program_parts import reason_words, size_words
from astrarium.report.tables import runs
from astrarium.report.wording import WORDS
from astrarium.spmd.capture import called
from astrarium.spmd.graph import PARAMETER
from astrarium.spmd.program import (
    MEMORY_CAUSES,
    DevicePart,
    DeviceProgram,
    Instruction,
    ProgramDocument,
    SynthesisPart,
    TriedPart,
    placement_text,
)
from astrarium.units import format_count, format_seconds
from astrarium.value import Value

SMALL_SHARE = 0.01  # of a step: operators below it that decide nothing are summed up
LEAST_GAP = 0.001  # the smallest gap that is shown as a number
NOTHING_KNOWN = 0.999  # a gap above which nothing is proved
BAR, SHORTEST_BAR = 16, 4
MIB = 2**20
TRIED_BYTES = 2 * tables.GIB  # of all devices: what cores can be asked to train
WORKER = "astrarium.runtime.spmd.worker"
MANY_DEVICES = 8  # beyond which pieces are those of runs of devices


def program_report(
    document: ProgramDocument, width: int, top_instructions: int = 0
) -> Iterator[RenderableType]:
    """Everything `astrarium synthesize` shows about its result."""
    program = document.program
    yield tables.labelled(_facts(document), style="dim")
    parts = program_parts.parts_of(program)
    yield tables.title("Work of each part: layouts of results, seconds of both passes")
    yield from _work(program, parts, width)
    yield from _messages(program, parts, width)
    yield tables.title(f"Pieces of each axis: granules, by {_devices_word(document)}")
    yield from _pieces(document, width)
    if top_instructions:
        yield tables.title("Longest instructions")
        yield from _longest(program, top_instructions, width)
    yield tables.title(f"Where the {format_seconds(program.seconds)} of a step go")
    yield _times(document, width)
    unit = "GiB" if max(part.peak_bytes for part in document.memory) >= tables.GIB else "MiB"
    yield tables.title(f"Memory: {unit} on each device")
    yield _memory(document, width, tables.GIB if unit == "GiB" else MIB)
    if document.baselines:
        yield tables.title("Against fixed ways to divide the work")
        yield from _baselines(document, width)
    if document.reasons:
        yield tables.title(f"Why: against {document.reasons[0].against}, part by part")
        yield tables.indented("\n".join(map(reason_words, document.reasons)))
    yield tables.title("Synthesis")
    yield tables.indented(search_words(document))


def next_steps(document: ProgramDocument, file: str, width: int) -> Iterator[RenderableType]:
    """Commands for a program that is written."""
    from astrarium.report.plan.text import copyable

    yield tables.title("Explain and run it")
    yield Text(f"  {file} is written", style="dim")
    yield copyable(["astrarium", "explain", file], width)
    yield from _ways_to_run(document, file, width)


def _ways_to_run(document: ProgramDocument, file: str, width: int) -> Iterator[RenderableType]:
    """On the devices that it is for; on cores only what they can train in a short time."""
    from astrarium.report.plan.text import copyable

    if all(pool.gpu.is_processor for pool in document.cluster.pools):
        yield copyable(["astrarium", "run", file, "--measure"], width)
        return
    nodes = Counter(device.node for device in document.devices)
    if len(nodes) == 1:
        yield copyable(["astrarium", "run", file, "--device", "cuda"], width)
    else:
        yield Text(f"  on each of the {len(nodes)} nodes, K from 0 to {len(nodes) - 1}:", "dim")
        counts = dict.fromkeys(nodes.values())
        each = str(next(iter(counts))) if len(counts) == 1 else "GPUS_OF_THE_NODE"
        words = ["torchrun", "--nnodes", str(len(nodes)), "--nproc-per-node", each, "--node-rank"]
        words += ["K", "--master-addr", "HOST", "--master-port", "29500", "-m", WORKER, file]
        yield copyable([*words, "--device", "cuda", "--no-compare"], width)
    if sum(part.peak_bytes for part in document.memory) <= TRIED_BYTES:
        yield Text("  a trial on the cores of this machine, compared with one device:", "dim")
        yield copyable(["astrarium", "run", file, "--device", "cpu"], width)


def _facts(document: ProgramDocument) -> Iterator[tuple[str, str]]:
    program, source = document.program, document.source
    nodes = program.graph.nodes
    parameters = sum(node.elements for node in nodes if node.op == PARAMETER)
    operators = sum(not node.is_source for node in nodes)
    name = called(source.factory, source.sizes)
    sizes = "".join(f", {key}={value}" for key, value in source.sizes.items() if value != name)
    yield (
        "model",
        f"{name}{sizes}: {format_count(parameters)} parameters, {operators:,} operators",
    )
    micro = program.micro_batches
    split = "" if micro == 1 else f" in {micro} micro-batches"
    again = "; activations are recomputed, as memory asks for it" if program.recompute else ""
    yield "training", f"a batch of {source.batch:,}{split}, {source.optimizer}{again}"
    mesh = "" if len(program.mesh) == 1 else f"; mesh {' x '.join(map(str, program.mesh))}"
    yield "devices", devices_words(document.devices) + mesh
    if source.allow_replicate:
        yield "repeated", f"by every device, as allowed: {', '.join(source.allow_replicate)}"
    for note in document.notes:
        yield "note", note


def devices_words(devices: Sequence[DevicePart]) -> str:
    """Devices by pool with their ranks: "1 x A100 (rank 0), 3 x V100 (ranks 1-3)"."""
    found = []
    for (pool, gpu), run in groupby(devices, key=lambda device: (device.pool, device.gpu)):
        ranks = [device.rank for device in run]
        name = gpu if pool == gpu else f"{gpu} of {pool}"
        word = "rank" if len(ranks) == 1 else "ranks"
        found.append(f"{len(ranks)} x {name} ({word} {runs(ranks)})")
    return ", ".join(found)


def _work(
    program: DeviceProgram, parts: Sequence[program_parts.ProgramPart], width: int
) -> Iterator[RenderableType]:
    rows: list[tuple[program_parts.ProgramPart, program_parts.Work]] = []
    for part in parts:
        works = program_parts.work_of(program, part)
        least = SMALL_SHARE * program.seconds
        small = [w for w in works if w.seconds * part.times < least and not w.decides]
        if len(small) > 1:
            works = [*(work for work in works if work not in small), _others(small)]
        rows += [(part, work) for work in works]
    yield from _by_part(
        [part for part, _ in rows],
        [
            tables.Field("operator", [_times_words(work.operator, work.count) for _, work in rows]),
            tables.Field("divided by", [work.way for _, work in rows]),
            tables.Field("gives", [work.gives for _, work in rows], prose=True),
            tables.Field("each", [format_seconds(work.seconds) for _, work in rows], right=True),
        ],
        width,
    )


def _by_part(
    parts: Sequence[program_parts.ProgramPart], fields: Sequence[tables.Field], width: int
) -> Iterator[RenderableType]:
    names, times = [part.name for part in parts], [part.times for part in parts]
    return tables.grouped("part", names, times, fields, width)


def _times_words(name: str, count: int) -> str:
    return name if count == 1 else f"{count} {name}"


def _others(small: Sequence[program_parts.Work]) -> program_parts.Work:
    """Operators that take hardly any time, as one."""
    layouts = ", ".join(dict.fromkeys(work.gives for work in small))
    count = sum(work.count for work in small)
    return program_parts.Work("others", count, "", layouts, sum(work.seconds for work in small), ())


def _messages(
    program: DeviceProgram, parts: Sequence[program_parts.ProgramPart], width: int
) -> Iterator[RenderableType]:
    """The messages of each part, or that there are none."""
    rows = [
        (part, sent) for part in parts for sent in program_parts.messages_of(program.graph, part)
    ]
    yield tables.title("Messages of each part: sizes of whole tensors")
    if not rows:
        yield tables.indented("none: the devices exchange nothing")
        return
    fields = [
        tables.Field("message", [_times_words(sent.collective, sent.count) for _, sent in rows]),
        tables.Field("of", [sent.of for _, sent in rows]),
        tables.Field("each", [size_words(sent.bytes) for _, sent in rows], right=True),
        tables.Field(
            "in all", [size_words(sent.bytes * part.times) for part, sent in rows], right=True
        ),
    ]
    if any(sent.how for _, sent in rows):
        fields.append(tables.Field("how", [sent.how or "-" for _, sent in rows]))
    if len(program.mesh) > 1:
        fields.append(tables.Field("level", [str(sent.level) for _, sent in rows], right=True))
    yield from _by_part([part for part, _ in rows], fields, width)


class _Axis(Value, frozen=True):
    """An axis that is divided, or several that are divided alike."""

    names: tuple[str, ...]
    granules: int
    pieces: tuple[tuple[int, ...], ...]  # by level


def _pieces(document: ProgramDocument, width: int) -> Iterator[RenderableType]:
    axes = _divided(document.program)
    if not axes:
        yield tables.indented("nothing is divided: every device holds everything")
        return
    level_of = len(document.program.mesh) > 1
    rows = [(axis, level) for axis in axes for level in range(len(axis.pieces))]
    fields = [
        tables.Field(
            "axis", ["" if level else _axis_words(axis.names) for axis, level in rows], prose=True
        ),
        tables.Field("granules", [f"{axis.granules:,}" for axis, _ in rows], right=True),
    ]
    if level_of:
        fields.append(tables.Field("level", [str(level) for _, level in rows], right=True))
    pieces = [
        tables.Field("pieces", [_run_words(axis.pieces[level]) for axis, level in rows], prose=True)
    ]
    if not level_of and document.ranks <= MANY_DEVICES:
        by_rank = [
            tables.Field(f"rank {rank}", [f"{axis.pieces[0][rank]:,}" for axis in axes], right=True)
            for rank in range(document.ranks)
        ]
        pieces = by_rank if tables.fits([*fields, *by_rank], width) else pieces
    yield from tables.listing([*fields, *pieces], width)


def _divided(program: DeviceProgram) -> list[_Axis]:
    """The axes that some instruction shards, those divided alike as one."""
    used: dict[int, None] = {}
    for one in program.instructions:
        for layout in one.gives:
            if layout.is_shard:
                used[program.axes.of[one.node][layout.dim]] = None
    alike: dict[tuple[int, tuple[tuple[int, ...], ...]], list[str]] = {}
    names = program_parts.axis_names(program)
    for axis in sorted(used):
        pieces = tuple(tuple(map(int, one.granules[axis])) for one in program.divisions)
        alike.setdefault((program.axes.granules[axis], pieces), []).append(names[axis])
    return [_Axis(tuple(names), *key) for key, names in alike.items()]


def _axis_words(names: Sequence[str]) -> str:
    several = list(dict.fromkeys(names))
    rest = len(several) - 1
    return several[0] if not rest else f"{several[0]} and {rest} more"


def _run_words(pieces: Sequence[int]) -> str:
    """Pieces of many devices: "3 x 16, 1 x 48"."""
    runs = [(piece, len(list(run))) for piece, run in groupby(pieces)]
    return ", ".join(f"{piece:,} x {count}" if count > 1 else f"{piece:,}" for piece, count in runs)


def _devices_word(document: ProgramDocument) -> str:
    if len(document.program.mesh) > 1:
        return "node (level 0) and device in it (level 1)"
    return "rank" if document.ranks <= MANY_DEVICES else "runs of ranks"


def _longest(program: DeviceProgram, count: int, width: int) -> Iterator[RenderableType]:
    chosen = sorted(program.instructions, key=lambda one: -one.seconds)[:count]
    nodes = [program.graph.nodes[one.node] for one in chosen]
    yield from tables.listing(
        [
            tables.Field("seconds", [format_seconds(one.seconds) for one in chosen], right=True),
            tables.Field("what", [_what(program, one) for one in chosen], prose=True),
            tables.Field(
                "from", [" ".join(map(placement_text, one.needs)) for one in chosen], prose=True
            ),
            tables.Field("to", [placement_text(one.gives) for one in chosen]),
            tables.Field("shape", ["x".join(map(str, node.shape)) for node in nodes], drop=1),
            tables.Field(
                "where", [node.source or node.path or node.target for node in nodes], prose=True
            ),
        ],
        width,
    )


def _what(program: DeviceProgram, one: Instruction) -> str:
    node = program.graph.nodes[one.node]
    if one.conversion is None:
        way = program_parts.way_words(program, one)
        return (
            f"{program_parts.operator_name(node.op)}, {way}"
            if way
            else program_parts.operator_name(node.op)
        )
    passes = one.conversion.forward, one.conversion.backward
    return " / ".join("-" if one == "none" else one for one in passes)


def _times(document: ProgramDocument, width: int) -> RenderableType:
    total = document.program.seconds
    rows = []
    for key, seconds in document.breakdown_seconds.items():
        name, meaning = WORDS.program.get(key, (key, ""))
        rows.append((name, format_seconds(seconds), seconds / total, meaning))
    return tables.terms_table(rows, width)


def _memory(document: ProgramDocument, width: int, unit: int) -> RenderableType:
    """Devices that are alike and stand together in one row; bars where there is room."""
    causes = ("capacity_bytes", *MEMORY_CAUSES)
    pairs = zip(document.devices, document.memory, strict=True)
    alike = groupby(pairs, key=lambda pair: (pair[0].gpu, *(getattr(pair[1], c) for c in causes)))
    groups = [(gpu, [part for _, part in run]) for (gpu, *_), run in alike]
    shown = [parts[0] for _, parts in groups]
    sizes = {cause: cause for cause in MEMORY_CAUSES}
    sizes |= {"peak": "peak_bytes", "of": "capacity_bytes"}
    fields = [
        tables.Field("ranks", [runs(part.rank for part in parts) for _, parts in groups]),
        tables.Field("device", [gpu for gpu, _ in groups]),
        *(
            tables.Field(
                head,
                [in_units(getattr(part, key), unit) for part in shown],
                right=True,
                drop=int(key in MEMORY_CAUSES),
            )
            for head, key in sizes.items()
        ),
        tables.Field("", [f"{100 * part.share:.0f} %" for part in shown], right=True),
    ]
    if not tables.fits(fields, width, tables.GAP):  # what adds up to the peak goes
        fields = [field for field in fields if not field.drop]
    bar = min(BAR, width - tables.width_of(fields) - tables.GAP)
    bars = [tables.Bar(part.share, bar, tables.filled_style(part.share)) for part in shown]
    return tables.table(fields, bars=bars if bar >= SHORTEST_BAR else ())


def in_units(size: float, unit: int) -> str:
    """Bytes in a column: three digits of small numbers, no fraction of large ones."""
    value = size / unit
    decimals = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{decimals}f}"


def _baselines(document: ProgramDocument, width: int) -> Iterator[RenderableType]:
    own = document.program.seconds
    rows = sorted(document.baselines.items(), key=lambda item: item[1])
    yield from tables.listing(
        [
            tables.Field("way", [name for name, _ in rows], prose=True),
            tables.Field("step", [format_seconds(seconds) for _, seconds in rows], right=True),
            tables.Field("this program", [speed_words(seconds / own) for _, seconds in rows]),
        ],
        width,
    )


def speed_words(times: float) -> str:
    """The comparison with a way that takes `times` as long."""
    if abs(times - 1) < LEAST_GAP:
        return "as fast"
    return f"{times:.2f} x as fast"


def search_words(document: ProgramDocument) -> str:
    """The proof of a program, and the work of finding it."""
    search = document.search
    rounds = "1 round" if search.rounds == 1 else f"{search.rounds} rounds"
    work = (
        f"{_proof(search)}; {rounds} of programs and pieces, {search.expanded:,} states in"
        f" {format_seconds(search.seconds)}"
    )
    tried = [tried_words(one) for one in search.tried]
    return work if len(tried) < 2 else f"{work}\ntried: {'; '.join(tried)}"


def tried_words(one: TriedPart) -> str:
    """The result of a mesh and a split: "mesh nodes, 2 micro-batches: 700 ms"."""
    split = "" if one.micro_batches == 1 else f", {one.micro_batches} micro-batches"
    split += ", recomputed" if one.recompute else ""
    without = "nothing fits" if one.searched else "not tried, the effort was spent"
    took = without if one.seconds is None else format_seconds(one.seconds)
    gap = f" (at best {tables.percent(one.bound_gap)} less)" if one.bound_gap >= LEAST_GAP else ""
    return f"mesh {one.mesh}{split}: {took}{gap}"


def _proof(search: SynthesisPart) -> str:
    if search.optimal and search.bound_gap < LEAST_GAP:
        return "with these pieces, no program's instructions add up to less time"
    if search.bound_gap >= NOTHING_KNOWN:
        return "the best program found; no proof that none is better with these pieces"
    less = tables.percent(search.bound_gap)
    return f"with these pieces, no program's instructions save more than {less} of the time"
