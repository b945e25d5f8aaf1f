"""What operators, messages and copies take on cores of this machine: prices for other benchmarks.

Operators are timed as the interpreter runs them, its own work included: every way to compute every
distinct node, on pieces of a few sizes, so that each has a fixed part and one that grows with its
share of the work. Prices take these in place of models (`priced_by`). Alone, an operator
finds its operands in the caches; the times of all are scaled so that those of a whole step are
what a whole step takes.

For messages, `python benchmarks/spmd_measured.py FOLDER` is what each rank runs: pinned to its
core, held back to its share of it, as in a run. Between calls all ranks work for the same irregular
while, as operators would: calls in a row fall into the moments in which nobody is stopped. Means
are taken, not medians: a rank that is stopped answers late, and a step pays for all of it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, distributed

from astrarium.arrays import Floats
from astrarium.calibrate.measure.cores import stay_on
from astrarium.runtime.answers import LOOPBACK, leave_with_parent, own_output, say
from astrarium.runtime.launch import launch
from astrarium.runtime.measure import KEEP_MEMORY, PERIOD_SECONDS, cores_for, slowed
from astrarium.runtime.spmd.execute import (
    Compute,
    Cutter,
    Gradients,
    Interpreter,
    Parts,
    Pass,
    Peers,
    RankContext,
    RankPlace,
    all_gather,
    all_reduce,
    take_place,
)
from astrarium.runtime.spmd.execute.actions import chunk_of
from astrarium.runtime.spmd.execute.collectives import start_scatter
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.train import Recipe, Training
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Pricer, Prices, programs
from astrarium.spmd.price.cut import axis_of_choice
from astrarium.spmd.program import DeviceProgram, Instruction, Priced
from astrarium.spmd.rules import (
    REPLICATE,
    Axes,
    Division,
    ShardRule,
    find_axes,
    rules_of,
)
from astrarium.spmd.synthesis import build

MESSAGE_BYTES: Final = (1 << 10, 1 << 15, 1 << 18, 1 << 21, 1 << 23)
MESSAGE_SECONDS: Final = 0.5  # for each size of each kind
LEAST_CALLS: Final = 3
MOST_WORK_SECONDS: Final = 2 * PERIOD_SECONDS  # between calls
MOST_CALLS: Final = 200
TIMEOUT_SECONDS: Final = 300.0
# Sizes of tensors by which the laws of one core are found.
UPDATED: Final = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
ELEMENTS: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
SIDES: Final = (64, 256, 512)
SHARES: Final = (1.0, 0.5, 0.25)  # of an axis that operators are timed on
REPEATS: Final = 5
NOT_COMPUTED: Final = ("getitem", "keep", "segment")

Line = tuple[float, float]  # seconds of a call, and of a unit of its size
Progress = Callable[[str, int, int], None]


def line_through(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """A fixed part and a slope, neither below zero, closest in relative terms."""
    times, lengths = np.asarray(seconds, np.float64), np.asarray(sizes, np.float64)
    flat, steep = _closest(1.0 / times), _closest(lengths / times)  # one of them alone
    if len(sizes) == 1:
        return 0.0, steep
    terms = np.stack([1.0 / times, lengths / times], axis=1)
    fixed, slope = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)[0]
    if fixed < 0.0:
        return 0.0, steep
    return (float(fixed), float(slope)) if slope > 0.0 else (flat, 0.0)


def _closest(terms: Floats) -> float:
    """The factor that brings terms closest to one."""
    return float(terms.sum() / (terms * terms).sum())


@dataclass(frozen=True)
class MeasuredOperator:
    """Seconds of an operator on a whole reference core: fixed, and for all of its work.

    A device that does a share of the work takes `fixed + share x whole`.
    """

    forward: Line
    backward: Line


def operator_key(graph: Graph, index: int, rule: ShardRule) -> str:
    """The name of an operator in a table of measured ones: what its time depends on.

    Operands that a gradient flows back into are marked.
    """
    node = graph.nodes[index]
    read = [graph.nodes[i] for i in graph.inputs[index]]
    operands = ", ".join(
        f"{one.dtype}{list(one.shape)}{'*' if one.needs_gradient else ''}" for one in read
    )
    return f"{node.op}({operands}) -> {node.dtype}{list(node.shape)}, {rule.name}"


class MeasuredPricer(Pricer):
    """Charges what was measured of an operator itself, if it was."""

    table: Mapping[str, MeasuredOperator]

    def __init__(self, *args: Any) -> None:  # noqa: ANN401  those of a Pricer
        super().__init__(*args)
        self._measured: list[tuple[int, Floats]] = []

    def _work(self, item: int, node: int, way: Priced | Instruction) -> None:
        key = operator_key(self.graph, node, way.rules[0]) if len(way.rules) == 1 else ""
        found = self.table.get(key)
        if found is None:
            super()._work(item, node, way)
            return
        share: Floats = np.ones(self.cut.count)
        axis = axis_of_choice(self.graph, self.cut.axes, node, way, 0)
        if axis >= 0:
            share = self.cut.shares[0][axis]
        cores = np.array([self.devices.operators[one].gpu.share for one in self.cut.classes])
        fixed, slope = np.array([found.forward, found.backward]).T[:, :, None]
        seconds = np.where(share > 0, fixed + slope * share, 0.0) / cores  # by pass
        self._measured.append((item, seconds * self.settings.micro_batches))

    def prices(self) -> Prices:
        found = super().prices()
        for item, seconds in self._measured:
            found.passes[:, item] += seconds
        return found


@contextmanager
def priced_by(measured: Mapping[str, MeasuredOperator]) -> Iterator[None]:
    """Price operators by what was measured of them, as long as the block lasts."""
    pricer = type("MeasuredPricer", (MeasuredPricer,), {"table": measured})
    with patch.object(build, "Pricer", pricer), patch.object(programs, "Pricer", pricer):
        yield


def measured_operators(
    graph: Graph,
    model: MadeModule,
    repeats: int = REPEATS,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, MeasuredOperator]:
    """Times of all distinct nodes under all of their rules, on the core that this process has."""
    rules = [rules_of(graph, node) for node in graph.nodes]
    whole = _Whole(graph, model)
    bench = _Bench(graph, find_axes(graph, rules), whole.numbers())
    cases: dict[str, tuple[int, ShardRule]] = {}
    for index, node in enumerate(graph.nodes):
        if not node.is_source and node.op not in NOT_COMPUTED:
            for rule in rules[index]:
                cases.setdefault(operator_key(graph, index, rule), (index, rule))
    found: dict[str, MeasuredOperator] = {}
    for number, (key, (index, rule)) in enumerate(cases.items()):
        progress(key, number, len(cases))
        found[key] = bench.measured(index, rule, repeats)
    ratio = whole.seconds(repeats) / _sum_of(graph, rules, found)
    return {key: _scaled(one, ratio) for key, one in found.items()}


def _sum_of(
    graph: Graph, rules: Sequence[tuple[ShardRule, ...]], found: Mapping[str, MeasuredOperator]
) -> float:
    """Seconds of a step by one device, as the sum of its operators."""
    total = 0.0
    for index, node in enumerate(graph.nodes):
        if not node.is_source and node.op not in NOT_COMPUTED:
            one = found[operator_key(graph, index, rules[index][0])]
            total += sum(one.forward) + sum(one.backward)
    return total


def _scaled(one: MeasuredOperator, ratio: float) -> MeasuredOperator:
    (a, b), (c, d) = one.forward, one.backward
    return MeasuredOperator((a * ratio, b * ratio), (c * ratio, d * ratio))


class _Whole:
    """The graph computed by one device."""

    def __init__(self, graph: Graph, model: MadeModule) -> None:
        self.program = whole_program(graph)
        self.interpreter = Interpreter(self.program, take_place((1,), 0))
        self.training = Training(self.interpreter, model.state(graph), Recipe().make)
        self.batch = [self.training.cut(batch) for batch in model.batches(graph, 1)]

    def numbers(self) -> dict[int, Tensor]:
        """Values that must not be drawn at random when their readers are timed: indices, masks."""
        sources = self.training.sources(self.batch[0])
        run = self.interpreter.start(sources, self.interpreter.context(0, 0), Gradients())
        found: dict[int, Tensor] = {}
        for one, action in zip(self.program.instructions, self.interpreter.actions, strict=True):
            ready = chunk_of([action], ()) if isinstance(action, Compute) else action
            ready.forward(run)
            value = run.value(action.gives)
            if isinstance(value, Tensor) and not value.is_floating_point():
                found[one.node] = value
        return found

    def seconds(self, repeats: int) -> float:
        """Of both passes."""
        times = []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            self.training.gradients(self.batch)
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])


def whole_program(graph: Graph) -> DeviceProgram:
    """All nodes computed whole, on one device."""
    rules = [rules_of(graph, node) for node in graph.nodes]
    axes = find_axes(graph, rules)
    instructions = []
    for index, node in enumerate(graph.nodes):
        (chosen,) = [
            rule
            for rule in rules[index]
            if rule.gives == REPLICATE and all(layout == REPLICATE for layout in rule.needs)
        ][:1]
        needs = ((REPLICATE,),) * len(graph.inputs[index])
        used = () if node.is_source else (chosen,)
        instructions.append(Instruction(index, (REPLICATE,), needs, used))
    division = Division(np.array([[parts] for parts in axes.granules], np.int64))
    return DeviceProgram(graph, axes, (division,), (1,), tuple(instructions), 0.0, ())


@dataclass(frozen=True, slots=True)
class _Silent(RankContext):
    """Messages inside of operators go nowhere; they are priced for themselves."""

    def all_reduce(self, x: Tensor, level: int, largest: bool = False) -> Tensor:
        return x


@dataclass(frozen=True)
class _Bench:
    """Runs single nodes on pieces, as the first of two devices."""

    graph: Graph
    axes: Axes
    known: Mapping[int, Tensor]

    def measured(self, index: int, rule: ShardRule, repeats: int) -> MeasuredOperator:
        axis = self._axis(index, rule)
        granules = self.axes.granules[axis] if axis >= 0 else 1
        parts = {max(1, round(share * granules)) for share in SHARES} if axis >= 0 else {1}
        sizes = [part / granules for part in sorted(parts)]
        times = [self._seconds(index, rule, axis, part, repeats) for part in sorted(parts)]
        forward, backward = zip(*times, strict=True)
        return MeasuredOperator(
            line_through(sizes, forward),
            line_through(sizes, backward) if any(backward) else (0.0, 0.0),
        )

    def _axis(self, index: int, rule: ShardRule) -> int:
        """The axis that a rule divides; -1 if none."""
        values = (*self.graph.inputs[index], index)
        for value, layout in zip(values, (*rule.needs, rule.gives), strict=True):
            if layout.is_shard:
                return self.axes.of[value][layout.dim]
        return -1

    def _seconds(
        self, index: int, rule: ShardRule, axis: int, part: int, repeats: int
    ) -> tuple[float, float]:
        """Median seconds of both passes on so many granules of an axis."""
        action, run = self._ready(index, rule, axis, part)
        chunk = chunk_of([action], ())
        there, back = [], []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            chunk.forward(run)
            there.append(time.perf_counter() - began)
            self._give_gradients(action, run)
            began = time.perf_counter()
            chunk.backward(run)
            back.append(time.perf_counter() - began)
            run.gradients.found.clear()
        return (
            statistics.median(there[1:]),
            statistics.median(back[1:]) if action.wanted else 0.0,
        )

    def _give_gradients(self, action: Compute, run: Pass) -> None:
        value = run.values[action.gives]
        for number, result in enumerate((value,) if isinstance(value, Tensor) else value):
            if result.is_floating_point():
                run.gradients.add(action.gives, torch.ones_like(result), number)

    def _ready(self, index: int, rule: ShardRule, axis: int, part: int) -> tuple[Compute, Pass]:
        granules = np.array([[parts, 0] for parts in self.axes.granules], np.int64)
        if axis >= 0:
            granules[axis] = part, self.axes.granules[axis] - part
        program = DeviceProgram(self.graph, self.axes, (Division(granules),), (2,), (), 0.0, ())
        cutter, nodes = Cutter(program), self.graph.nodes
        inputs = self.graph.inputs[index]
        values: dict[int, Any] = {}
        for number, (node, layout) in enumerate(zip(inputs, rule.needs, strict=True)):
            piece = cutter.piece(node, (layout,), 0)
            known = self.known.get(node)
            values[number] = (
                torch.randn(piece.sizes, dtype=getattr(torch, nodes[node].dtype))
                if known is None
                else piece.of(known)
            )
        wanted = tuple(
            number
            for number, node in enumerate(inputs)
            if nodes[node].needs_gradient and nodes[index].needs_gradient
        )
        shape = cutter.piece(index, (rule.gives,), 0).sizes
        reads = tuple(range(len(inputs)))
        action = Compute(len(inputs), reads, nodes[index], (rule,), shape, wanted, False)
        place = RankPlace(0, (0,), (Peers(),), Peers())
        context = _Silent(program, place, torch.device("cpu"), 0, 0)
        anchor = torch.zeros((), requires_grad=True)
        return action, Pass({}, context, anchor, Gradients(), values)


def measured_laws(optimizer: str = "adam") -> dict[str, tuple[float, ...]]:
    """What prices ask of a core beside measured operators, on the core that this process has.

    That is copies, updates, and products to compare speeds by.
    """
    return {
        "linear": _product_law(),
        "residual_forward": _line(_add, ELEMENTS),
        "update": _line(partial(_update, optimizer), UPDATED),
    }


def measured_messages(shares: Sequence[float], seconds: float = MESSAGE_SECONDS) -> dict[str, Line]:
    """Seconds of a call, and of each byte of the whole, by operation.

    `seconds` is how long each size of each kind is timed.
    """
    cores = ",".join(map(str, cores_for(len(shares))))
    answers = launch(
        {},
        len(shares),
        environment={"CORES": cores, "SECONDS": str(seconds), **KEEP_MEMORY},
        timeout_seconds=TIMEOUT_SECONDS,
        command=(sys.executable, "-P", __file__),
        beside=partial(slowed, shares=shares),
    )
    by_rank = [said[-1]["seconds"] for said in answers]
    found = {}
    for name in OPERATIONS:
        longest = [max(times) for times in zip(*(said[name] for said in by_rank), strict=True)]
        found[name] = line_through(MESSAGE_BYTES, longest)
    return found


def _halves(x: Tensor, peers: Peers) -> Parts:
    """As equal pieces of a vector as there can be."""
    rest = x.numel() % peers.count
    return Parts(0, tuple(x.numel() // peers.count + (k < rest) for k in range(peers.count)))


def _gathered(x: Tensor, peers: Peers) -> None:
    parts = _halves(x, peers)
    all_gather(parts.piece(x, peers.index), parts, peers)


def _sent(x: Tensor, peers: Peers) -> None:
    """Each rank sends all of it to the next one: the bytes that leave a rank are those counted."""
    whole = x.new_empty(x.numel())
    given, taken = [0] * peers.count, [0] * peers.count
    given[(peers.index + 1) % peers.count] = x.numel()
    taken[(peers.index - 1) % peers.count] = x.numel()
    distributed.all_to_all_single(whole, x, taken, given, group=peers.group)


OPERATIONS: Final[dict[str, Callable[[Tensor, Peers], object]]] = {
    "send": _sent,
    "all_reduce": all_reduce,
    "all_gather": _gathered,
    "reduce_scatter": lambda x, peers: start_scatter(x, _halves(x, peers), peers).wait(),
}


def main() -> None:
    """Time all operations with the other ranks, and answer with means by size."""
    leave_with_parent()
    answers = own_output()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stay_on(int(os.environ["CORES"].split(",")[rank]))
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    store = f"file://{Path(sys.argv[1])}/store"
    distributed.init_process_group("gloo", store, world_size=world, rank=rank)
    peers, limit = Peers(rank, world), float(os.environ["SECONDS"])
    seconds: dict[str, list[float]] = {}
    for name, call in OPERATIONS.items():
        vectors = [torch.ones(size // 4) for size in MESSAGE_BYTES]
        seconds[name] = [_mean(partial(call, x, peers), peers, limit) for x in vectors]
    say(answers, seconds=seconds)
    distributed.barrier()
    os._exit(0)


def _mean(call: Callable[[], object], peers: Peers, limit: float) -> float:
    """Mean seconds of a call that all ranks make together."""
    call()
    began = time.perf_counter()
    call()
    first = torch.tensor([time.perf_counter() - began])
    # All must make as many calls.
    longest = float(all_reduce(first, peers, largest=True))
    calls = int(min(MOST_CALLS, max(LEAST_CALLS, limit / (longest + MOST_WORK_SECONDS / 2))))
    whiles = Random(calls)  # the same on all ranks
    distributed.barrier()
    spent = 0.0
    for _ in range(calls):
        _work(whiles.uniform(0.0, MOST_WORK_SECONDS))
        began = time.perf_counter()
        call()
        spent += time.perf_counter() - began
    return spent / calls


def _work(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


# Laws of one core.


def _line(call: Callable[[int], float], sizes: Sequence[int]) -> Line:
    return line_through(sizes, [call(size) for size in sizes])


def _timed(call: Callable[[], object], repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return fmean(sorted(times)[: repeats // 2 + 1])  # the quieter half


def _add(elements: int) -> float:
    a, b = torch.randn(elements), torch.randn(elements)
    return _timed(lambda: a + b)


def _update(optimizer: str, parameters: int) -> float:
    """Of a tensor among others: with eight of them, an eighth."""
    tensors = [torch.randn(parameters) for _ in range(8)]
    changing = Recipe(optimizer).make(tensors)
    for tensor in tensors:
        tensor.grad = torch.randn(parameters)
    return _timed(changing.step) / len(tensors)


def _product_law() -> tuple[float, ...]:
    times = []
    for side in SIDES:
        a, b = torch.randn(side, side), torch.randn(side, side)
        times.append(_timed(partial(torch.mm, a, b)))
    fixed, per_flop = line_through([2.0 * side**3 for side in SIDES], times)
    return fixed, per_flop, 0.0


if __name__ == "__main__":
    main()
