"""Programs from solutions, and what a program costs, instruction by instruction.

For the choice of ratios, prices are straight lines around the division that a program has: of
the granules that a device has for its work, of the largest piece for messages that are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.spmd.graph import DTYPE_BYTES
from astrarium.spmd.price.cut import Cut, axis_of_choice, axis_of_layout, cut_of, facts_of, keys_of
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.price.memory import STATE_BYTES, chunks_of, is_parameter, kept_between, repeated
from astrarium.spmd.price.messages import bucket_elements
from astrarium.spmd.price.pricing import GRADIENT_BYTES, Pricer, Prices, PriceSettings
from astrarium.spmd.program import (
    MEMORY_CAUSES,
    Conversion,
    DeviceMemoryPart,
    DevicePart,
    DeviceProgram,
    Instruction,
    ProgramDocument,
    SourcePart,
    SynthesisPart,
)
from astrarium.spmd.rules import ALL_REDUCE, Division
from astrarium.value import Value

# Shares of a device at which lines are laid through prices, against what it has.
_LESS, _MORE = 0.5, 2.0
NO_BASELINES: Final[Mapping[str, float]] = {}


class MemoryUse(Value, frozen=True, dict=True):
    """Bytes by device and cause."""

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats  # with inputs, constants and converted copies
    transient: Floats  # the most that comes and goes beside them, what is recomputed included

    @property
    def peak(self) -> Floats:
        """The most that a device holds at a time."""
        held = self.parameters + self.gradients + self.optimizer
        return held + self.activations + self.transient


class GradientSum(Value, frozen=True):
    """A parameter's gradient that is added up over devices once, after all micro-batches."""

    instruction: int
    reader: int  # the first instruction that reads the parameter: there its gradient is complete
    elements: int


class _Clock(Value, frozen=True):
    """The end of the last instruction of a pass, by the clock of the slowest device."""

    done: Floats  # [instruction]: when the backward pass is through with it
    passes: float  # when both passes are done


class ProgramPrice(Value, frozen=True, dict=True):
    """Prices of a program's instructions; seconds are those of a whole training step.

    Slopes are those of one level's division, the others as they are. `compute` includes copies
    around messages; `update` is apart. A message's slope is in granules of the largest piece.
    """

    update: Floats  # [instruction, device]
    bytes: Floats  # [instruction, device], kept until the end of the step
    axis: Ints  # [level, instruction]: what compute, update and bytes are divided along; -1: none
    message_axis: Ints  # [level, instruction]: whose largest piece a message grows with; -1: none
    message_slope: Floats  # [level, instruction]: seconds of a granule of it
    memory: MemoryUse
    conversions: tuple[Conversion | None, ...]  # with the cheapest ways to send, by instruction
    granules: tuple[Ints, ...]  # by level: [axis, device]
    compute_passes: Floats  # [forward or backward, instruction, device]
    message_passes: Floats  # [forward, backward or once at the end, instruction]
    sums: tuple[GradientSum, ...]
    micro_batches: int
    hides: bool  # whether messages go on beside computation: cores do the sending themselves
    # Seconds, update included, and bytes of a granule: [level, instruction, device] each. They
    # take twice what the rest takes, and only the ratios need them.
    find_slopes: Callable[[], tuple[Floats, Floats]]

    @cached_property
    def compute(self) -> Floats:
        """[instruction, device]"""
        return np.asarray(self.compute_passes.sum(axis=0))

    @cached_property
    def message(self) -> Floats:
        """[instruction]"""
        return np.asarray(self.message_passes.sum(axis=0))

    @cached_property
    def slopes(self) -> tuple[Floats, Floats]:
        return self.find_slopes()

    @cached_property
    def seconds_of(self) -> Floats:
        """Seconds of each instruction: of the slowest device, and its messages."""
        total: Floats = (self.compute + self.update).max(axis=1) + self.message
        return total

    @property
    def summed_seconds(self) -> float:
        """Seconds of a step if all devices meet after every instruction: the searches' goal."""
        return float(self.seconds_of.sum())

    @cached_property
    def _clock(self) -> _Clock:
        """Ends of the passes on a machine whose devices wait for each other at messages alone."""
        forward, backward = self.compute_passes
        count = len(forward)
        messages = np.concatenate((self.message_passes[0], self.message_passes[1][::-1]))
        spent = np.concatenate((forward, backward[::-1])).cumsum(axis=0)
        meets = np.flatnonzero(messages > 0.0)  # all devices wait there for the slowest
        at_meeting = np.vstack((np.zeros(spent.shape[1]), spent[meets]))
        stretches = np.diff(at_meeting, axis=0).max(axis=1, initial=0.0) + messages[meets]
        started = np.concatenate(([0.0], stretches.cumsum()))  # by number of meetings so far
        before = np.searchsorted(meets, np.arange(2 * count), side="left")
        ends = started[before] + (spent - at_meeting[before]).max(axis=1, initial=0.0) + messages
        return _Clock(done=ends[count:][::-1], passes=float(ends[-1]))

    @cached_property
    def seconds(self) -> float:
        """Of a training step whose devices wait for each other at messages alone.

        Where one device is the slowest at this operator and another at the next, neither waits in
        between; and sums of gradients are sent while the rest of the backward pass is computed.
        Links are taken to be free for them then.
        """
        return self._together + self._update_seconds

    @cached_property
    def _together(self) -> float:
        """Ends of passes and of sums of gradients."""
        return max(self._clock.passes, self._sums_come())

    @cached_property
    def _update_seconds(self) -> float:
        return float(self.update.sum(axis=0).max(initial=0.0))

    def _sums_come(self) -> float:
        """The arrival of the last sum of gradients; they leave in buckets, one after another."""
        seconds, end, done = self.message_passes[2], self._clock.passes, self._clock.done
        if not self.hides:
            return end + float(seconds.sum())
        limit = bucket_elements(sum(one.elements for one in self.sums))
        free = ready = waiting = 0.0
        size = 0
        for one in sorted(self.sums, key=lambda one: one.reader, reverse=True):
            size += one.elements
            waiting += float(seconds[one.instruction])
            # Only the last micro-batch's gradients are sent: its part of the pass hides them.
            ready = end - (end - float(done[one.reader])) / self.micro_batches
            if size >= limit:
                free, waiting, size = max(free, ready) + waiting, 0.0, 0
        return max(free, ready) + waiting

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by cause; their sum is that of the step."""
        waited = float(self.message_passes[:2].sum()) + self._together - self._clock.passes
        compute = self._together - waited
        return {"compute": compute, "communication": waited, "update": self._update_seconds}

    def granules_of(self, level: int) -> Floats:
        """Granules that each device has of the axis of each instruction; 0 where there is none."""
        axis = self.axis[level]
        found = self.granules[level][np.maximum(axis, 0)]
        return np.where(axis[:, None] >= 0, found, 0).astype(np.float64)

    def compute_fixed(self, level: int = 0) -> Floats:
        """Seconds that do not depend on a level's division; update included."""
        total = self.compute + self.update
        fixed: Floats = total - self.slopes[0][level] * self.granules_of(level)
        return fixed

    def bytes_fixed(self, level: int = 0) -> Floats:
        """Bytes that do not depend on a level's division."""
        fixed: Floats = self.bytes - self.slopes[1][level] * self.granules_of(level)
        return fixed

    def message_fixed(self, level: int = 0) -> Floats:
        """Seconds of messages that do not depend on the largest piece of a level."""
        axis = self.message_axis[level]
        largest = self.granules[level].max(axis=1)[np.maximum(axis, 0)]
        fixed: Floats = self.message - self.message_slope[level] * np.where(axis >= 0, largest, 0)
        return fixed


def with_price(program: DeviceProgram, price: ProgramPrice) -> DeviceProgram:
    """The program with what was predicted of it, for the divisions it has."""
    seconds = price.seconds_of.tolist()
    sizes = price.bytes.tolist()
    instructions = tuple(
        replace(one, conversion=price.conversions[i], seconds=seconds[i], bytes=tuple(sizes[i]))
        for i, one in enumerate(program.instructions)
    )
    return replace(
        program,
        instructions=instructions,
        seconds=price.seconds,
        bytes=tuple(price.memory.peak.tolist()),
    )


def price_program(
    program: DeviceProgram,
    devices: Devices,
    divisions: Sequence[Division] | None = None,
    optimizer: str = "adam",
) -> ProgramPrice:
    """The price of a program with these divisions, or its own."""
    divided = tuple(program.divisions if divisions is None else divisions)
    settings = PriceSettings(program.micro_batches, optimizer)
    cut = cut_of(program.axes, divided, devices)
    orders = _orders(program, cut)
    items = orders.items
    pricer = _pricer(program, orders, cut, devices, settings)
    prices = pricer.prices()
    axis, message_axis = _axes_of(program, cut)
    chunks = chunks_of(program)
    again = repeated(program, chunks)

    def find_slopes() -> tuple[Floats, Floats]:
        found = [
            _slopes(program, orders, cut, devices, settings, level, axis[level], chunks)
            for level in range(devices.levels)
        ]
        return np.stack([seconds for seconds, _ in found]), np.stack([sizes for _, sizes in found])

    spread = cut.column_of
    passes = _with_repeated(prices.passes[:, items][:, :, spread], again)
    message_passes = _with_repeated(prices.message_passes[:, items], again)
    kept, largest = kept_between(program, chunks, prices.kept[items], prices.result[items])
    return ProgramPrice(
        update=prices.update[items][:, spread],
        bytes=kept[:, spread],
        axis=axis,
        message_axis=message_axis,
        message_slope=_message_slopes(program, pricer, items, message_axis),
        memory=_memory(
            program,
            kept[:, spread],
            (largest + prices.transient[items].max(axis=0, initial=0.0))[spread],
            optimizer,
        ),
        conversions=_with_hows(program, pricer, prices, items),
        granules=tuple(
            division.granules[:, devices.coordinates[level]]
            for level, division in enumerate(divided)
        ),
        compute_passes=passes,
        message_passes=message_passes,
        sums=_sums(program),
        micro_batches=program.micro_batches,
        hides=not any(device.gpu.is_processor for device in devices.devices),
        find_slopes=find_slopes,
    )


def _with_repeated(passes: Floats, again: Bools) -> Floats:
    """Seconds by pass, where the backward pass of some instructions starts with the forward one."""
    total = passes.copy()
    total[1, again] += passes[0, again]
    return total


def _sums(program: DeviceProgram) -> tuple[GradientSum, ...]:
    graph = program.graph
    readers: dict[int, int] = {}
    for index, one in enumerate(program.instructions):
        if one.conversion is None:
            for read in graph.inputs[one.node]:
                readers.setdefault(read, index)
    return tuple(
        GradientSum(index, readers.get(one.node, index), graph.nodes[one.node].elements)
        for index, one in enumerate(program.instructions)
        if one.conversion is not None
        and one.conversion.backward == ALL_REDUCE
        and is_parameter(graph, one.node)
    )


class _Orders(Value, frozen=True):
    """Distinct instructions to be priced, and the number of each instruction."""

    distinct: tuple[Instruction, ...]
    items: Ints  # by instruction


def _orders(program: DeviceProgram, cut: Cut) -> _Orders:
    """Instructions of equal prices are priced once."""
    kept = facts_of(program.graph).kept
    keys = keys_of(program.graph, cut)
    known: dict[object, int] = {}
    distinct: list[Instruction] = []
    items = []
    for one in program.instructions:
        # Rules are known by their layouts, but for what they do beside the operator.
        rules = tuple((rule.local, rule.messages) for rule in one.rules)
        placed = (one.needs, one.gives, one.conversion is None, kept.value[one.node])
        number = keys.nodes if one.conversion is None else keys.tensors
        key = (number[one.node], rules, placed)
        if key not in known:
            known[key] = len(distinct)
            distinct.append(one)
        items.append(known[key])
    return _Orders(tuple(distinct), np.array(items, np.int64))


def _pricer(
    program: DeviceProgram, orders: _Orders, cut: Cut, devices: Devices, settings: PriceSettings
) -> Pricer:
    pricer = Pricer(program.graph, cut, devices, settings)
    for one in orders.distinct:
        if one.conversion is None:
            pricer.add_choice(one.node, one)
        else:
            pricer.add_conversion(one.node, one.needs[0], one.gives)
    return pricer


def _axes_of(program: DeviceProgram, cut: Cut) -> tuple[Ints, Ints]:
    """Along which axis each level divides an instruction's work, and that of its messages."""
    shape = (cut.levels, len(program.instructions))
    work, sent = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    graph, axes = program.graph, program.axes
    for index, one in enumerate(program.instructions):
        for level in range(cut.levels):
            if one.conversion is None:
                axis = axis_of_choice(graph, axes, one.node, one, level)
                messages = one.rules[level].messages if one.rules else ()
                sent[level, index] = axis if messages else -1
            else:
                ends = [
                    axis_of_layout(axes, one.node, placement, level)
                    for placement in (one.gives, one.needs[0])
                ]
                axis = max(ends, key=lambda a: cut.placed[level][a].max() if a >= 0 else -1.0)
                if level == one.conversion.level:
                    sent[level, index] = axis
            work[level, index] = axis
    return work, sent


def _slopes(
    program: DeviceProgram,
    orders: _Orders,
    cut: Cut,
    devices: Devices,
    settings: PriceSettings,
    level: int,
    axis: Ints,
    chunks: list[int],
) -> tuple[Floats, Floats]:
    """Seconds and bytes of a granule, from prices of devices with less and with more of them."""
    less, more = cut.scaled(level, _LESS), cut.scaled(level, _MORE)
    found = []
    for one in (less, more):
        prices = _pricer(program, orders, one, devices, settings).prices()
        items = orders.items
        passes = _with_repeated(prices.passes[:, items], repeated(program, chunks))
        kept, _ = kept_between(program, chunks, prices.kept[items], prices.result[items])
        found.append((passes.sum(axis=0) + prices.update[items], kept))
    granules = np.array(program.axes.granules, np.float64)[np.maximum(axis, 0), None]
    step = (more.shares[level] - less.shares[level])[np.maximum(axis, 0)] * granules
    divided = axis[:, None] >= 0
    seconds, sizes = (
        np.where(divided, np.maximum(b - a, 0.0) / np.where(step > 0, step, 1.0), 0.0)
        for a, b in zip(*found, strict=True)
    )
    return seconds[:, cut.column_of], sizes[:, cut.column_of]


def _message_slopes(
    program: DeviceProgram, pricer: Pricer, items: Ints, message_axis: Ints
) -> Floats:
    """Seconds of a message for each granule of the largest piece."""
    levels, count = message_axis.shape
    slopes = np.zeros((levels, count))
    by_share = pricer.message_slopes()  # [item, level], for a share of 1
    granules = np.array(program.axes.granules, np.float64)
    for level in range(levels):
        axis = message_axis[level]
        per_granule = by_share[items, level] / granules[np.maximum(axis, 0)]
        slopes[level] = np.where(axis >= 0, per_granule, 0.0)
    return slopes


def _memory(program: DeviceProgram, kept: Floats, transient: Floats, optimizer: str) -> MemoryUse:
    graph = program.graph
    weights = np.zeros(kept.shape[1])
    gradients, states = np.zeros_like(weights), np.zeros_like(weights)
    for index, one in enumerate(program.instructions):
        node = graph.nodes[one.node]
        if one.conversion is None and is_parameter(graph, one.node):
            element = float(DTYPE_BYTES[node.dtype])
            trained = node.needs_gradient
            state = (GRADIENT_BYTES + STATE_BYTES[optimizer]) if trained else 0.0
            elements = kept[index] / (element + state)
            weights += elements * element
            if trained:
                gradients += elements * GRADIENT_BYTES
                states += elements * STATE_BYTES[optimizer]
    activations = kept.sum(axis=0) - weights - gradients - states
    return MemoryUse(weights, gradients, states, activations, transient)


def _with_hows(
    program: DeviceProgram, pricer: Pricer, prices: Prices, items: Ints
) -> tuple[Conversion | None, ...]:
    found: list[Conversion | None] = []
    for one, item in zip(program.instructions, items.tolist(), strict=True):
        if one.conversion is None:
            found.append(None)
        else:
            hows = prices.hows[item]
            found.append(pricer.conversion_of(one.node, one.needs[0], one.gives, hows))
    return tuple(found)


def document_of(
    source: SourcePart,
    devices: Devices,
    program: DeviceProgram,
    search: SynthesisPart,
    baselines: Mapping[str, float] = NO_BASELINES,
    notes: tuple[str, ...] = (),
) -> ProgramDocument:
    """The document of a program, with its seconds and bytes by cause."""
    price = price_program(program, devices, optimizer=source.optimizer)
    causes = {cause: getattr(price.memory, cause) for cause in MEMORY_CAUSES}
    memory = []
    for rank in range(devices.count):
        sizes = {cause: float(values[rank]) for cause, values in causes.items()}
        memory.append(
            DeviceMemoryPart(rank, sum(sizes.values()), float(devices.room[rank]), **sizes)
        )
    return ProgramDocument(
        source,
        devices.cluster,
        tuple(DevicePart(one.rank, one.pool, one.gpu.name, one.node) for one in devices.devices),
        replace(program, seconds=price.seconds),
        price.breakdown,
        tuple(memory),
        search,
        dict(baselines),
        notes,
    )
