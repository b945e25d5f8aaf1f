"""Programs as text: alike layers once, messages added up, devices beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import hand_programs
import numpy as np
import pytest
from rich.console import Console, RenderableType
from spmd_small import chain, mixed_devices

from astrarium.report.program import (
    devices_words,
    in_units,
    next_steps,
    program_report,
    search_words,
    speed_words,
)
from astrarium.report.program_parts import (
    messages_of,
    parts_of,
    reason_words,
    reasons_of,
    size_words,
    work_of,
)
from astrarium.report.tables import Field, grouped, runs
from astrarium.spmd.price import document_of
from astrarium.spmd.program import DevicePart, ProgramDocument, SourcePart, SynthesisPart, TriedPart
from astrarium.spmd.rules import Division
from astrarium.spmd.synthesis import synthesize

GIB = 2**30


def text(parts: Iterable[RenderableType], width: int = 100) -> str:
    console = Console(width=width, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


SHOWN = """\
model     examples/mlp.py:make, layers=2, hidden=8: 128 parameters, 3 operators
training  a batch of 6, adam
devices   1 x A100-SXM4-80GB (rank 0), 1 x V100-SXM2-32GB (rank 1)

Work of each part: layouts of results, seconds of both passes
part      operator  divided by  gives        each
─────────────────────────────────────────────────
layers.0  linear    batch       shard(0)  2.00 ms
layers.1  linear    columns     shard(1)  1.50 ms
loss      mean      out         partial    500 us

Messages of each part: sizes of whole tensors
part      message         of                each  in all  how
────────────────────────────────────────────────────────────────
layers.0  all-reduce      gradients        256 B   256 B  -
          all-gather      activations      192 B   192 B  -
          reduce-scatter  their gradients  192 B   192 B  -
loss      all-reduce      activations        4 B     4 B  padded

Pieces of each axis: granules, by rank
axis   granules  rank 0  rank 1
───────────────────────────────
batch         6       4       2
out           8       4       4

Where the 7.50 ms of a step go
  compute         4.50 ms  60.0 %  ███████░░░░░  operators of both passes, on the slowest device
  communication   2.00 ms  26.7 %  ███░░░░░░░░░  messages that devices wait for
  optimizer step  1.00 ms  13.3 %  ██░░░░░░░░░░  once a step, of what each device stores

Memory: GiB on each device
ranks  device          parameters  gradients  optimizer  activations  transient  peak    of
─────────────────────────────────────────────────────────────────────────────────────────────────
0      A100-SXM4-80GB        1.00       0.50       0.50         0.75       0.25  3.00  16.0  19 %
1      V100-SXM2-32GB        1.00       0.50       0.50         1.75       0.25  4.00  16.0  25 %

Against fixed ways to divide the work
way                       step  this program
──────────────────────────────────────────────
data parallel, even    15.0 ms  2.00 x as fast
tensor parallel, even  30.0 ms  4.00 x as fast

Synthesis
  with these pieces, no program's instructions add up to less time; 3 rounds of programs and pieces,
  1,234 states in 250 ms"""


def test_everything_is_shown() -> None:
    assert text(program_report(hand_programs.document(), 100)) == SHOWN


def test_alike_layers_are_one_part() -> None:
    program = hand_programs.document(alike=True).program
    parts = parts_of(program)
    assert [(part.name, part.times) for part in parts] == [
        ("x", 1),
        ("layers.0-1", 2),
        ("loss", 1),
    ]
    (work,) = work_of(program, parts[1])
    assert (work.operator, work.count, work.way, work.seconds) == ("linear", 1, "batch", 0.002)
    (sent,) = messages_of(program.graph, parts[1])
    assert (sent.collective, sent.of, sent.bytes) == ("all-reduce", "gradients", 256)
    shown = text(program_report(hand_programs.document(alike=True), 100))
    assert "layers.0-1  x 2  linear" in shown
    assert "256 B   512 B" in shown


def test_every_instruction_belongs_to_a_part() -> None:
    for alike in (False, True):
        program = hand_programs.document(alike=alike).program
        parts = parts_of(program)
        count = sum(len(part.instructions) * part.times for part in parts)
        assert count == len(program.instructions)


def test_narrow_terminals_lose_causes_but_no_digits() -> None:
    shown = text(program_report(hand_programs.document(), 60, 2), 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "…" not in shown
    assert "ranks  device          peak    of" in shown
    assert "not shown: shape" in shown


def many(document: ProgramDocument, count: int) -> ProgramDocument:
    """The document for many devices, the latter half with twice the granules."""
    half = count // 2
    first = document.devices[0]
    devices = tuple(DevicePart(i, first.pool, first.gpu, i // 4) for i in range(count))
    memory = tuple(replace(document.memory[i >= half], rank=i) for i in range(count))
    row = np.array([1] * half + [2] * half, np.int64)
    program = replace(document.program, divisions=(Division(np.tile(row, (4, 1))),), mesh=(count,))
    return replace(document, devices=devices, memory=memory, program=program)


def test_many_devices_are_runs() -> None:
    shown = text(program_report(many(hand_programs.document(), 16), 100))
    assert "16 x A100-SXM4-80GB (ranks 0-15)" in shown
    assert "1 x 8, 2 x 8" in shown
    assert "\n0-7    A100-SXM4-80GB" in shown
    assert "\n8-15   A100-SXM4-80GB" in shown


def test_nothing_divided_and_nothing_sent_is_said() -> None:
    document = hand_programs.document()
    kept = tuple(one for one in document.program.instructions if not one.rules)[:2]
    alone = replace(document.program, instructions=kept[1:])
    shown = text(program_report(replace(document, program=alone), 100))
    assert "nothing is divided: every device holds everything" in shown
    assert "none: the devices exchange nothing" in shown


@pytest.mark.parametrize(
    ("optimal", "gap", "said"),
    [
        (True, 0.0, "with these pieces, no program's instructions add up to less time;"),
        (
            False,
            0.031,
            "with these pieces, no program's instructions save more than 3.1 % of the time;",
        ),
        (False, 1.0, "no proof that none is better"),
    ],
)
def test_what_is_proven_is_said(optimal: bool, gap: float, said: str) -> None:
    document = hand_programs.document()
    search = replace(document.search, optimal=optimal, bound_gap=gap)
    assert said in search_words(replace(document, search=search))


def test_small_words() -> None:
    assert [size_words(size) for size in (4, 1536, 2**21, 3 * GIB)] == [
        "4 B",
        "1.5 KiB",
        "2 MiB",
        "3.00 GiB",
    ]
    assert [in_units(size * GIB, GIB) for size in (0.014, 12.34, 1234.5)] == [
        "0.01",
        "12.3",
        "1,234",
    ]
    assert speed_words(1.0001) == "as fast"
    assert speed_words(0.97) == "0.97 x as fast"
    assert runs([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    devices = (DevicePart(0, "fast", "A100", 0), DevicePart(1, "slow", "V100", 1))
    assert devices_words(devices) == "1 x A100 of fast (rank 0), 1 x V100 of slow (rank 1)"


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_long_names_of_parts_cut_nothing(width: int) -> None:
    names = ["bert.encoder.layer.0-11.attention.output"] * 2 + ["cls"]
    fields = [
        Field("message", ["16 all-reduce", "reduce-scatter", "all-gather"]),
        Field("of", ["inside cross entropy loss", "their gradients", "activations"]),
        Field("each", ["2.26 MiB", "384 KiB", "12 KiB"], right=True),
        Field("how", ["-", "padded", "grouped"]),
    ]
    shown = text(grouped("part", names, [12, 12, 1], fields, width), width)
    assert max(map(len, shown.splitlines())) <= width
    for field in fields:
        for cell in field.cells:
            assert all(word in shown.split() for word in cell.split())
    assert shown.split().count(names[0]) == 1
    assert "x 12" in shown


def test_pieces_of_ranks_are_runs_where_they_do_not_fit() -> None:
    document = hand_programs.document()
    assert "rank 1" in text(program_report(document, 80), 80)
    assert "4, 2" in text(program_report(document, 20), 20)


def test_programs_are_run_on_what_they_are_for() -> None:
    document = hand_programs.document()
    shown = text(next_steps(document, "p.json", 80), 80)
    assert "torchrun --nnodes 2 --nproc-per-node 1" in shown
    assert "--device cpu" not in shown  # 7 GiB are not tried on cores
    small = tuple(replace(part, peak_bytes=GIB / 2) for part in document.memory)
    tried = text(next_steps(replace(document, memory=small), "p.json", 80), 80)
    assert "run p.json --device cpu" in tried
    alone = tuple(replace(device, node=0) for device in document.devices)
    shown = text(next_steps(replace(document, devices=alone), "p.json", 80), 80)
    assert "run p.json --device cuda" in shown
    assert "torchrun" not in shown


def test_pieces_of_two_levels_are_those_of_nodes_and_of_devices_in_them() -> None:
    speeds = {"v100-16gb": 2, "p100": 2}
    devices = mixed_devices(speeds, levels=2, inter_node_bandwidth=1e11)
    program = synthesize(chain(512, (4096, 4096, 4096)), devices).program
    assert program.mesh == (2, 2)
    source = SourcePart("m.py:make", 512)
    document = document_of(source, devices, program, SynthesisPart(0.0, 1, 1, True, 0.0))
    shown = text(program_report(document, 100))
    assert "mesh 2 x 2" in " ".join(shown.split())
    assert "by node (level 0) and device in it (level 1)" in shown
    axis = program.axes.names.index("layers.0.weight dim 0")
    fast, slow = program.divisions[0].granules[axis]
    assert fast > slow
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"layers.0.weight dim 0 4,096 0 {fast:,}, {slow:,}" in rows
    assert "4,096 1 2,048 x 2" in rows


def test_what_was_tried_is_said() -> None:
    document = hand_programs.document()
    tried = (
        TriedPart("flat", 1, None),
        TriedPart("flat", 2, 0.0075, 0.25),
        TriedPart("nodes", 2, None, searched=False),
    )
    shown = search_words(replace(document, search=replace(document.search, tried=tried)))
    assert shown.endswith(
        "tried: mesh flat: nothing fits; mesh flat, 2 micro-batches: 7.50 ms (at best 25.0 % less);"
        " mesh nodes, 2 micro-batches: not tried, the effort was spent"
    )
    assert "tried" not in search_words(document)


def test_reasons_add_up_and_name_what_differs() -> None:
    """Of two layers one is divided by columns; the rest is as in the other program."""
    ours, rival = hand_programs.document().program, hand_programs.document(alike=True).program
    slower = replace(rival, seconds=2 * rival.seconds)
    reasons = reasons_of(ours, {"data parallel": rival, "slower": slower})
    assert {reason.against for reason in reasons} == {"data parallel"}
    for program, name in ((ours, "seconds"), (rival, "against_seconds")):
        total = sum(one.seconds for one in program.instructions)
        assert sum(getattr(reason, name) for reason in reasons) == pytest.approx(total)
    (saved,) = (one for one in reasons if one.seconds < one.against_seconds)
    assert reason_words(saved) == (
        "layers.1: 1.50 ms instead of 3.00 ms; sends 0 B instead of 256 B; keeps 712 B instead of"
        " 1.2 KiB (linear by columns)"
    )
    assert reasons_of(ours, {}) == ()


def test_a_small_operator_that_decides_is_listed() -> None:
    """The last one of the program is far below 1 % of a step, and its result is exchanged."""
    program = hand_programs.document().program
    instructions = [
        replace(one, seconds=100 * one.seconds if one.node < 5 else one.seconds)
        for one in program.instructions
    ]
    seconds = sum(one.seconds for one in instructions)
    quick = replace(program, instructions=tuple(instructions), seconds=seconds)
    last = parts_of(quick)[-1]
    (mean,) = (work for work in work_of(quick, last) if work.operator == "mean")
    assert mean.seconds < 0.01 * seconds
    assert mean.decides
