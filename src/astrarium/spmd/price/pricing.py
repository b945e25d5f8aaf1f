"""Prices of choices and conversions, for one division of the axes.

Items are collected first and priced together: operators by kind of kernel, messages by kind of
collective. Seconds are those of a training step: of all its micro-batches, but with the sums of
parameters' gradients and the update once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from astrarium.arrays import Floats, Ints
from astrarium.spmd.graph import DTYPE_BYTES, PARAMETER, Graph
from astrarium.spmd.price.cut import Cut, axis_of_choice, axis_of_layout, facts_of
from astrarium.spmd.price.devices import Devices
from astrarium.spmd.price.memory import STATE_BYTES, Kept, extra_kept_bytes, is_parameter
from astrarium.spmd.price.messages import HOWS, SYNC_BYTES, Mailbox, MessageRequest, exchanged_share
from astrarium.spmd.price.work import (
    Bill,
    LocalCall,
    Size,
    Tensor,
    call_of,
    is_view,
    stream,
    terms_of,
    update_seconds,
)
from astrarium.spmd.program import Conversion, Instruction, Priced
from astrarium.spmd.rules import (
    ALL_REDUCE,
    ALL_TO_ALL,
    FILL,
    MASK,
    NONE,
    PARTIAL,
    REPLICATE,
    SLICE,
    Message,
    MessageKind,
    Placement,
    TensorLayout,
    changed_level,
    operations,
)
from astrarium.value import Value

GRADIENT_BYTES = 4.0  # of a parameter, kept until the update
_EVEN = 1e-9  # difference of shares that counts as none
_SUM_BYTES = 3.0  # tensors read and written to add one to another


class PriceSettings(Value, frozen=True):
    """Settings of a program beside its graph."""

    micro_batches: int = 1
    optimizer: str = "adam"
    recompute: bool = False  # then nothing counts that operators keep: see `memory`


class Sent(Value, frozen=True):
    """A message of an item: the number of its price, how often it is paid, and when."""

    item: int
    request: int
    times: float
    stage: int  # one of the below


FORWARD, BACKWARD, AFTERWARDS = range(3)  # the last: once, behind all micro-batches


class Prices(Value, frozen=True, dict=True):
    """Prices of items: seconds of all micro-batches, by pass: forward, backward."""

    passes: Floats  # [pass, item, column]
    update: Floats  # [item, column], part of no other figure
    message_passes: Floats  # [forward, backward or afterwards, item]
    kept: Floats  # bytes until the end of the step, [item, column]
    transient: Floats  # bytes while it runs and its gradients flow back, [item, column]
    result: Floats  # bytes of what it gives, where it has memory of its own, [item, column]
    hows: Ints  # [item, pass]: index into `HOWS`

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of the slowest device, by item: all meet after every instruction."""
        computed = (self.passes.sum(axis=0) + self.update).max(axis=1)
        total: Floats = computed + self.message_passes.sum(axis=0)
        return total


class Pricer:
    def __init__(self, graph: Graph, cut: Cut, devices: Devices, settings: PriceSettings) -> None:
        self.graph, self.cut, self.devices, self.settings = graph, cut, devices, settings
        self.kept: Kept = facts_of(graph).kept
        self._tensors: dict[tuple[int, Placement], Tensor] = {}
        self._bill = Bill(cut.count)
        self._mail = Mailbox()
        self._sent: list[Sent] = []
        self._kept: list[Size] = []
        self._transient: list[Size] = []
        self._result: list[Size] = []
        self._updates: list[tuple[int, Size]] = []
        gpus = [devices.operators[one].gpu for one in cut.classes]
        self._processors = np.array([float(gpu.is_processor) for gpu in gpus])

    def add_choice(self, node: int, way: Priced | Instruction) -> int:
        """A way to compute a node, or to store a source; the number of the item."""
        item = self._new_item()
        if self.graph.nodes[node].is_source:
            self._store(item, node, way.gives)
            return item
        self._work(item, node, way)
        self._add_gradients(item, node, self._local(node, way.gives))
        self._keep(item, node, way)
        for level, rule in enumerate(way.rules):
            for message in rule.messages:
                self._rule_message(item, node, way, level, message)
        return item

    def add_conversion(self, node: int, before: Placement, after: Placement) -> int:
        """A value handed on in another layout on one level; the number of the item."""
        item = self._new_item()
        level = changed_level(before, after)
        gradient = self.graph.nodes[node].needs_gradient
        forward, backward = operations(before[level], after[level], gradient=gradient)
        for operation, ends, is_backward in (
            (forward, (before, after), False),
            (backward, (after, before), True),
        ):
            self._convert(item, node, level, operation, ends, backward=is_backward)
        have, want = self._local(node, before), self._local(node, after)
        copied = forward not in (NONE, SLICE) or (forward == SLICE and after[level].dim > 0)
        if copied:
            self._result[item] = want.bytes
            if self.kept.value[node] and not self.settings.recompute:
                self._kept[item] = want.bytes
        self._transient[item] = have.bytes + want.bytes + self._padding(node, level, before, after)
        return item

    def _padding(self, node: int, level: int, before: Placement, after: Placement) -> float:
        """The most that unequal pieces take when they are filled up to the largest."""
        ends = [axis_of_layout(self.cut.axes, node, end, level) for end in (before, after)]
        if min(ends) >= 0 or max(ends) < 0:  # pieces on both sides are exchanged as they are
            return 0.0
        row = self._row(level, max(ends))
        if max(row) - min(row) < _EVEN:
            return 0.0
        return len(row) * max(row) * self._others(node, before, level)

    def prices(self) -> Prices:
        """Price everything collected so far."""
        items, columns = len(self._kept), self.cut.count
        passes = self._bill.seconds(self.devices, list(self.cut.classes), items)
        by_number, how_of = self._mail.seconds(self.devices)
        message = np.zeros((3, items))
        hows = np.zeros((items, 2), np.int64)
        for sent in self._sent:
            message[sent.stage, sent.item] += sent.times * by_number[sent.request]
            hows[sent.item, min(sent.stage, BACKWARD)] = how_of[sent.request]
        return Prices(
            passes=passes,
            update=self._update_prices(items),
            message_passes=message,
            kept=_filled(self._kept, columns),
            transient=_filled(self._transient, columns),
            result=_filled(self._result, columns),
            hows=hows,
        )

    def message_slopes(self) -> Floats:
        """Seconds of items' messages for a share of their largest piece: [item, level]."""
        found = np.zeros((len(self._kept), self.cut.levels))
        by_number, level_of = self._mail.slopes(self.devices)
        for sent in self._sent:
            level = int(level_of[sent.request])
            found[sent.item, level] += sent.times * by_number[sent.request]
        return found

    def conversion_of(
        self, node: int, before: Placement, after: Placement, hows: Ints
    ) -> Conversion:
        level = changed_level(before, after)
        gradient = self.graph.nodes[node].needs_gradient
        forward, backward = operations(before[level], after[level], gradient=gradient)
        return Conversion(level, forward, backward, HOWS[int(hows[0])], HOWS[int(hows[1])])

    def _new_item(self) -> int:
        self._kept.append(0.0)
        self._transient.append(0.0)
        self._result.append(0.0)
        return len(self._kept) - 1

    def _local(self, node: int, placement: Placement) -> Tensor:
        known = self._tensors.get((node, placement))
        if known is None:
            found = self.graph.nodes[node]
            shape = self.cut.local_shape(found.shape, node, placement)
            known = self._tensors[node, placement] = Tensor(shape, found.dtype)
        return known

    def _store(self, item: int, node: int, gives: Placement) -> None:
        piece = self._local(node, gives)
        if not is_parameter(self.graph, node) or not self.graph.nodes[node].needs_gradient:
            self._kept[item] = piece.bytes
            return
        state = GRADIENT_BYTES + STATE_BYTES[self.settings.optimizer]
        self._kept[item] = piece.bytes + piece.elements * state
        self._updates.append((item, piece.elements))
        added = self.settings.micro_batches - 1
        if added:
            self._bill.add(item, stream(_SUM_BYTES * piece.bytes, backward=True), float(added))
        self._add_gradients(item, node, piece)

    def _work(self, item: int, node: int, way: Priced | Instruction) -> None:
        for term in terms_of(self._call(node, way)):
            self._bill.add(item, term, float(self.settings.micro_batches))

    def _call(self, node: int, way: Priced | Instruction) -> LocalCall:
        shapes = [tensor.shape for tensor in self._inputs(node, way)]
        return call_of(self.graph, node, shapes, self._local(node, way.gives).shape)

    def _inputs(self, node: int, way: Priced | Instruction) -> list[Tensor]:
        return list(map(self._local, self.graph.inputs[node], way.needs))

    def _add_gradients(self, item: int, node: int, result: Tensor) -> None:
        """Gradients from several readers are added up where the value was made."""
        nodes = self.graph.nodes
        if not nodes[node].needs_gradient:
            return
        readers = sum(nodes[reader].needs_gradient for reader in self.graph.readers[node])
        if readers > 1:
            times = float((readers - 1) * self.settings.micro_batches)
            self._bill.add(item, stream(_SUM_BYTES * result.bytes, backward=True), times)

    def _keep(self, item: int, node: int, way: Priced | Instruction) -> None:
        inputs, result = self._inputs(node, way), self._local(node, way.gives)
        kept: Size = 0.0
        lasts = self.kept.output[node] if PARTIAL in way.gives else self.kept.value[node]
        if lasts and not is_view(self.graph, node):
            kept = kept + result.bytes
        held = zip(inputs, way.needs, self.kept.by_reader[node], strict=True)
        for tensor, placement, is_held in held:
            if is_held and PARTIAL in placement:
                kept = kept + tensor.bytes
        kept = kept + extra_kept_bytes(self._call(node, way), self._processors)
        self._kept[item] = kept if not self.settings.recompute else 0.0
        self._result[item] = result.bytes
        nodes = self.graph.nodes
        read = zip(self.graph.inputs[node], inputs, strict=True)
        flowing = [tensor.bytes for one, tensor in read if nodes[one].needs_gradient]
        self._transient[item] = sum(flowing, result.bytes)

    def _others(self, node: int, placement: Placement, level: int) -> float:
        """Bytes that a level's group has of a value, on the fullest place of the other levels."""
        return float(np.max(self._local(node, _without(placement, (level,))).bytes))

    def _row(self, level: int, axis: int) -> tuple[float, ...]:
        return self.cut.rows[level][axis]

    def _send(self, item: int, request: MessageRequest, times: float, stage: int) -> None:
        if request.num_bytes > 0:
            self._sent.append(Sent(item, self._mail.ask(request), times, stage))

    def _convert(
        self,
        item: int,
        node: int,
        level: int,
        operation: str,
        ends: tuple[Placement, Placement],
        *,
        backward: bool,
    ) -> None:
        """Charge one pass of a conversion: its message, and copies before and after it."""
        if operation == NONE:
            return
        times = self._times(node, operation, backward=backward)
        before, after = ends
        layout = after[level] if after[level].is_shard else before[level]
        axis = self.cut.axes.of[node][layout.dim] if layout.is_shard else -1
        copied = self._copied(node, level, operation, ends, axis)
        if copied is not None:
            self._bill.add(item, stream(copied, backward=backward), times)
        if operation in (SLICE, FILL, MASK):
            return
        collective = MessageKind(operation)
        num_bytes = self._others(node, before, level)
        shares: tuple[float, ...] = ()
        if collective is MessageKind.ALL_TO_ALL:
            num_bytes *= self._exchanged(node, before[level], after[level], level)
            ends_axes = [self.cut.axes.of[node][end[level].dim] for end in ends]
            shares = (max(max(self._row(level, one)) for one in ends_axes),)
        elif collective is not MessageKind.ALL_REDUCE:
            shares = self._row(level, axis)
        stage = BACKWARD if backward else FORWARD
        if self._synchronises(node, operation, backward=backward):
            stage = AFTERWARDS
            together = min(max(num_bytes, SYNC_BYTES), max(num_bytes, self._trained_bytes))
            times, num_bytes = num_bytes / max(together, 1.0), together
        request = MessageRequest(level, collective, num_bytes, shares)
        self._send(item, request, times, stage)

    def _times(self, node: int, operation: str, *, backward: bool) -> float:
        """Sums of a parameter's gradients are sent once; all else for every micro-batch."""
        once = self._synchronises(node, operation, backward=backward)
        return 1.0 if once else float(self.settings.micro_batches)

    def _synchronises(self, node: int, operation: str, *, backward: bool) -> bool:
        return backward and operation == ALL_REDUCE and is_parameter(self.graph, node)

    @cached_property
    def _trained_bytes(self) -> float:
        trained = (node for node in self.graph.nodes if node.op == PARAMETER)
        return float(sum(node.bytes for node in trained if node.needs_gradient))

    def _exchanged(self, node: int, before: TensorLayout, after: TensorLayout, level: int) -> float:
        axes = self.cut.axes.of[node]
        rows = (self.cut.placed[level][axes[layout.dim]] for layout in (before, after))
        return exchanged_share(*rows)

    def _copied(
        self, node: int, level: int, operation: str, ends: tuple[Placement, Placement], axis: int
    ) -> Size | None:
        """Bytes that a device reads and writes around a message, or instead of one."""
        have, want = (self._local(node, end).bytes for end in ends)
        dims = [end[level].dim for end in ends if end[level].is_shard]
        if operation == SLICE:  # along the first dimension a slice is a view
            return 2.0 * want if dims[0] > 0 else None
        if operation == FILL:
            return want + 2.0 * have
        if operation == MASK:
            return want
        if operation == ALL_TO_ALL:
            return 2.0 * (have + want)
        if operation == ALL_REDUCE:  # the library sums in place, in a copy
            return 2.0 * have
        row = self._row(level, axis)
        in_order = dims[0] == 0 and max(row) - min(row) < _EVEN
        return None if in_order else 2.0 * np.maximum(have, want)

    def _rule_message(
        self, item: int, node: int, way: Priced | Instruction, level: int, message: Message
    ) -> None:
        """A message inside an operator; other levels have divided what it is about."""
        num_bytes = float(message.elements * DTYPE_BYTES[self.graph.nodes[node].dtype])
        for other in range(self.cut.levels):
            axis = axis_of_choice(self.graph, self.cut.axes, node, way, other)
            if other != level and axis >= 0:
                num_bytes *= max(self._row(other, axis))
        times = float(self.settings.micro_batches)
        request = MessageRequest(level, message.collective, num_bytes)
        self._send(item, request, times, BACKWARD if message.backward else FORWARD)

    def _update_prices(self, items: int) -> Floats:
        update = np.zeros((items, self.cut.count))
        if not self._updates:
            return update
        owners = [item for item, _ in self._updates]
        sizes = _filled([size for _, size in self._updates], self.cut.count)
        for column, one in enumerate(self.cut.classes):
            model = self.devices.operators[one]
            update[owners, column] = update_seconds(
                model, sizes[:, column], self.settings.optimizer
            )
        return update


def _without(placement: Placement, levels: Sequence[int]) -> Placement:
    """A placement as if these levels divided nothing."""
    return tuple(REPLICATE if one in levels else each for one, each in enumerate(placement))


def _filled(sizes: Sequence[Size], columns: int) -> Floats:
    table = np.empty((len(sizes), columns))
    for row, size in enumerate(sizes):
        table[row] = size
    return table
