"""The optimisation problem of a graph on devices, with every choice and conversion priced.

Equal nodes (the same operator, shapes, divisions of their axes, and layouts that readers ask for)
share their choices and prices; so do the nodes of a model's repeated blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.spmd.graph import GETITEM, Graph
from astrarium.spmd.price import Cut, Devices, Keys, Pricer, PriceSettings, cut_of, keys_of
from astrarium.spmd.program import Conversion, DeviceProgram, Instruction, Priced
from astrarium.spmd.rules import (
    COPIED,
    REPLICATE,
    Axes,
    Division,
    Placement,
    ShardRule,
    TensorLayout,
    is_possible,
)
from astrarium.spmd.solve import Conversions, NodeWay, SearchProblem, Solution
from astrarium.value import Value

USUAL: Final = PriceSettings()


class _Computed(Value, frozen=True):
    """Items of choices, of nodes alike."""

    node: int  # one of them
    ways: tuple[Priced, ...]
    items: tuple[int, ...]  # by way


class _HandedOn(Value, frozen=True):
    """Items of conversions, of values alike."""

    node: int  # whose value is one of them
    layouts: tuple[Placement, ...]
    items: dict[tuple[int, int], int]  # by numbers of layouts


class _PricedKinds(Value, frozen=True):
    """Items to be priced, and the numbers of those of each node."""

    computed: list[_Computed]
    handed_on: list[_HandedOn]
    signatures: tuple[int, ...]  # by node: index into `computed`
    values: tuple[int, ...]  # by node: index into `handed_on`


def build_problem(
    graph: Graph,
    rules: Sequence[tuple[ShardRule, ...]],
    axes: Axes,
    divisions: Sequence[Division],
    devices: Devices,
    settings: PriceSettings = USUAL,
    *,
    alike: bool = False,
) -> SearchProblem[Priced]:
    """The problem of a micro-batch; `alike`: one way to divide a node on all levels."""
    cut = cut_of(axes, divisions, devices)
    pricer = Pricer(graph, cut, devices, settings)
    keys = keys_of(graph, cut, rules)
    ways = _ways(graph, rules, keys.nodes, devices.levels, alike=alike)
    layouts = _layouts(graph, ways)
    kinds = _kinds(graph, pricer, keys, ways, layouts)
    prices = pricer.prices()
    kept = _by_class(prices.kept, cut)
    transient = _by_class(prices.transient, cut)
    fits = _fitting(kinds, kept, transient, np.array(devices.class_room))
    seconds, sizes = np.where(fits, prices.seconds, np.inf).tolist(), kept.tolist()
    choices = [_choices(graph, kind, layouts, seconds, sizes) for kind in kinds.computed]
    conversions = [
        _conversions(kind, pricer, prices.hows, seconds, sizes) for kind in kinds.handed_on
    ]
    largest = _least_transient(kinds.computed, transient)
    return SearchProblem(
        inputs=graph.inputs,
        choices=tuple(choices[kind] for kind in kinds.signatures),
        conversions=tuple(conversions[kind] for kind in kinds.values),
        room=tuple(
            room - transient for room, transient in zip(devices.class_room, largest, strict=True)
        ),
        signatures=kinds.signatures,
        blocks=_blocks(graph, kinds.signatures),
    )


def _ways(
    graph: Graph,
    rules: Sequence[tuple[ShardRule, ...]],
    keys: Sequence[int],
    levels: int,
    *,
    alike: bool,
) -> list[tuple[Priced, ...]]:
    """Ways to compute each node on all levels of the mesh: any rule on each of them, or one."""
    known: dict[int, tuple[Priced, ...]] = {}
    found = []
    for index, key in enumerate(keys):
        if key not in known:
            mine = rules[index]
            on_levels = (
                zip(*(mine,) * levels, strict=True) if alike else product(mine, repeat=levels)
            )
            known[key] = tuple(dict.fromkeys(_ways_of(graph, index, on_levels)))
        found.append(known[key])
    return found


def _ways_of(
    graph: Graph, index: int, on_levels: Iterable[tuple[ShardRule, ...]]
) -> Iterator[Priced]:
    """Without a gradient, `copied` is `replicate`."""
    flows = [graph.nodes[i].needs_gradient for i in graph.inputs[index]]
    mine = graph.nodes[index].needs_gradient
    for combined in on_levels:
        needs = tuple(
            tuple(_plain(rule.needs[i], flows[i]) for rule in combined) for i in range(len(flows))
        )
        gives = tuple(_plain(rule.gives, mine) for rule in combined)
        yield Priced(needs, gives, combined)


def _plain(layout: TensorLayout, gradient: bool) -> TensorLayout:
    return REPLICATE if layout == COPIED and not gradient else layout


def _layouts(graph: Graph, ways: Sequence[tuple[Priced, ...]]) -> list[tuple[Placement, ...]]:
    """Layouts that a node may have, whole first; conversions change one level at a time."""
    asked: list[dict[Placement, None]] = [dict.fromkeys(way.gives for way in mine) for mine in ways]
    by_reader: dict[int, tuple[tuple[Placement, ...], ...]] = {}
    for index, inputs in enumerate(graph.inputs):
        mine = ways[index]
        needed = by_reader.get(id(mine))
        if needed is None:
            columns = zip(*(way.needs for way in mine), strict=True)
            needed = by_reader[id(mine)] = tuple(tuple(dict.fromkeys(c)) for c in columns)
        for read, placements in zip(inputs, needed, strict=True):
            asked[read].update(dict.fromkeys(placements))
    known: dict[tuple[Placement, ...], tuple[Placement, ...]] = {}
    ordered = []
    for found in asked:
        key = tuple(found)
        if key not in known:
            known[key] = _ordered(found)
        ordered.append(known[key])
    return ordered


def _ordered(found: dict[Placement, None]) -> tuple[Placement, ...]:
    levels = [sorted({placement[i] for placement in found}) for i in range(len(next(iter(found))))]
    whole = (REPLICATE,) * len(levels)
    if len(levels) > 1:
        # What is whole inside stands between many: inner pieces are put together first.
        between = product(*(dict.fromkeys((REPLICATE, *level)) for level in levels))
        return tuple(dict.fromkeys((whole, *between)))
    return tuple(dict.fromkeys((whole, *((layout,) for layout in levels[0]))))


def _kinds(
    graph: Graph,
    pricer: Pricer,
    keys: Keys,
    ways: Sequence[tuple[Priced, ...]],
    layouts: Sequence[tuple[Placement, ...]],
) -> _PricedKinds:
    """Sort nodes and values by what they cost, and give one of each to the pricer."""
    layout_numbers: dict[tuple[Placement, ...], int] = {}
    numbered = [layout_numbers.setdefault(one, len(layout_numbers)) for one in layouts]
    known_values: dict[Any, int] = {}
    known_nodes: dict[Any, int] = {}
    computed: list[_Computed] = []
    handed_on: list[_HandedOn] = []
    signatures, values = [], []
    for index, key in enumerate(keys.nodes):
        kept, several = pricer.kept.value[index], _come_together(graph, index)
        value = (keys.tensors[index], numbered[index], kept, several)
        if value not in known_values:
            known_values[value] = len(handed_on)
            handed_on.append(_handed_on(pricer, index, layouts[index], several=several))
        values.append(known_values[value])
        node = (key, values[-1], tuple(numbered[i] for i in graph.inputs[index]))
        if node not in known_nodes:
            known_nodes[node] = len(computed)
            items = (pricer.add_choice(index, way) for way in ways[index])
            computed.append(_Computed(index, ways[index], tuple(items)))
        signatures.append(known_nodes[node])
    return _PricedKinds(computed, handed_on, tuple(signatures), tuple(values))


def _come_together(graph: Graph, index: int) -> bool:
    """Whether an operator has several results: they are converted one by one, behind `getitem`."""
    readers = graph.readers[index]
    return bool(readers) and all(graph.nodes[reader].op == GETITEM for reader in readers)


def _handed_on(
    pricer: Pricer, index: int, layouts: tuple[Placement, ...], *, several: bool
) -> _HandedOn:
    """On other levels only what is in pieces matters to a price."""
    items: dict[tuple[int, int], int] = {}
    if several:
        return _HandedOn(index, layouts, items)
    known: dict[tuple[int, TensorLayout, Placement], int] = {}
    numbers = _numbers(layouts)
    by_level = [dict.fromkeys(level) for level in zip(*layouts, strict=True)]
    for before, one in numbers.items():
        pieces = tuple(layout if layout.is_shard else REPLICATE for layout in before)
        for level, changes in enumerate(by_level):
            around = (*pieces[:level], before[level], *pieces[level + 1 :])
            for layout in changes:
                after = (*before[:level], layout, *before[level + 1 :])
                other = numbers.get(after, one)
                if other == one or not is_possible(before, after):
                    continue
                key = (level, layout, around)
                if key not in known:
                    known[key] = pricer.add_conversion(index, before, after)
                items[one, other] = known[key]
    return _HandedOn(index, layouts, items)


def _choices(
    graph: Graph,
    kind: _Computed,
    layouts: Sequence[tuple[Placement, ...]],
    seconds: Sequence[float],
    kept: Sequence[Sequence[float]],
) -> tuple[NodeWay[Priced], ...]:
    """The choices of a node, without those that another one beats in every respect."""
    of_inputs = [_numbers(layouts[i]) for i in graph.inputs[kind.node]]
    of_result = _numbers(layouts[kind.node])
    best: dict[tuple[tuple[int, ...], int], list[NodeWay[Priced]]] = {}
    for way, item in zip(kind.ways, kind.items, strict=True):
        if seconds[item] == inf:
            continue
        needs = tuple(known[need] for known, need in zip(of_inputs, way.needs, strict=True))
        gives = of_result[way.gives]
        choice = NodeWay(
            needs=needs, gives=gives, seconds=seconds[item], bytes=tuple(kept[item]), what=way
        )
        rivals = best.setdefault((needs, gives), [])
        if not any(_beats(rival, choice) for rival in rivals):
            rivals[:] = [rival for rival in rivals if not _beats(choice, rival)]
            rivals.append(choice)
    return tuple(choice for rivals in best.values() for choice in rivals)


def _numbers(layouts: tuple[Placement, ...]) -> dict[Placement, int]:
    return {placement: number for number, placement in enumerate(layouts)}


def _beats(one: NodeWay[Priced], other: NodeWay[Priced]) -> bool:
    lighter = all(a <= b for a, b in zip(one.bytes, other.bytes, strict=True))
    return one.seconds <= other.seconds and lighter


def _conversions(
    kind: _HandedOn,
    pricer: Pricer,
    hows: Ints,
    seconds: Sequence[float],
    kept: Sequence[Sequence[float]],
) -> Conversions[Priced]:
    count = len(kind.layouts)
    table = np.full((count, count), np.inf)
    np.fill_diagonal(table, 0.0)
    sizes = np.zeros((count, count, len(pricer.devices.operators)))
    what = {}
    instructions: dict[int, Conversion] = {}
    for (one, other), item in kind.items.items():
        before, after = kind.layouts[one], kind.layouts[other]
        if item not in instructions:
            instructions[item] = pricer.conversion_of(kind.node, before, after, hows[item])
        table[one, other] = seconds[item]
        sizes[one, other] = kept[item]
        what[one, other] = Priced((before,), after, (), instructions[item])
    return Conversions(table, sizes, what)


def _by_class(by_column: Floats, cut: Cut) -> Floats:
    """The fullest device of each class: [item, class] of [item, column]."""
    classes = np.array(cut.classes)
    fullest = [by_column[:, classes == one].max(axis=1) for one in range(int(classes.max()) + 1)]
    return np.stack(fullest, axis=1)


def _fitting(kinds: _PricedKinds, kept: Floats, transient: Floats, room: Floats) -> Bools:
    """By item: whether it fits beside the least of any program; all, if none of a node does."""
    items = [list(kind.items) for kind in kinds.computed]
    least = np.array([kept[own].min(axis=0) for own in items])
    fits = (transient <= room - least[list(kinds.signatures)].sum(axis=0)).all(axis=1)
    return fits if all(fits[own].any() for own in items) else np.ones_like(fits)


def _least_transient(kinds: Sequence[_Computed], transient: Floats) -> list[float]:
    """Bytes that come and go at some operator, however it is run: no program has them free."""
    least = [transient[list(kind.items)].min(axis=0) for kind in kinds]
    largest: list[float] = np.max(least, axis=0).tolist()
    return largest


def _blocks(graph: Graph, signatures: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of nodes of the graph's blocks, those that are alike and wired alike."""
    runs: list[tuple[int, int]] = []
    for index, block in enumerate(graph.blocks):
        if block < 0:
            continue
        if runs and graph.blocks[index - 1] == block:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    shapes: dict[Any, list[tuple[int, int]]] = {}
    for first, end in runs:
        wiring = tuple(
            tuple(read - first if read >= first else -1 for read in graph.inputs[index])
            for index in range(first, end)
        )
        shapes.setdefault((tuple(signatures[first:end]), wiring), []).append((first, end))
    largest = max(
        shapes.values(), key=lambda alike: len(alike) * (alike[0][1] - alike[0][0]), default=[]
    )
    return tuple(largest) if len(largest) > 1 else ()


def unpriced_program(
    problem: SearchProblem[Priced],
    solution: Solution,
    graph: Graph,
    axes: Axes,
    divisions: Sequence[Division],
    devices: Devices,
    settings: PriceSettings = USUAL,
) -> DeviceProgram:
    """The program of a solution, without seconds and bytes."""
    instructions = []
    for step in solution.steps:
        if step.choice >= 0:
            what = problem.choices[step.node][step.choice].what
        else:
            what = problem.conversions[step.node].what[step.before, step.after]
        is_source = graph.nodes[step.node].is_source
        rules = () if is_source else what.rules
        instructions.append(Instruction(step.node, what.gives, what.needs, rules, what.conversion))
    return DeviceProgram(
        graph=graph,
        axes=axes,
        divisions=tuple(divisions),
        mesh=devices.mesh,
        instructions=tuple(instructions),
        seconds=0.0,
        bytes=(),
        micro_batches=settings.micro_batches,
        recompute=settings.recompute,
    )
