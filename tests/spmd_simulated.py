"""Devices of a mesh simulated in one process: threads that meet where devices exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astrarium.runtime.spmd.operators import run_local
from astrarium.spmd.graph import INPUT, PARAMETER, Graph, Node, Ref
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.rules import (
    EXPERTS,
    Axes,
    Division,
    Holding,
    Placement,
    find_axes,
    local_pieces,
    rules_of,
    whole_granules,
)
from astrarium.spmd.rules.layout import ShardRule
from astrarium.spmd.rules.local import coordinates
from astrarium.spmd.rules.notation import call_of
from astrarium.spmd.rules.table import layout_of_result

CPU = torch.device("cpu")
# Tensors are small: several threads of torch would wait for each other, not compute.
torch.set_num_threads(1)


def mesh_of(divisions: Sequence[Division]) -> list[int]:
    return [division.granules.shape[1] for division in divisions]


def local_shape(*where: Any) -> tuple[int, ...]:
    """The shape of what a device has of a node's tensor; arguments as of `local_pieces`."""
    return tuple(stop - start for start, stop in local_pieces(*where))


class Exchange:
    """Where the devices of one group leave what they have, and take what all left."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=5)
        self.left: list[Tensor | None] = [None] * count

    def all(self, at: int, x: Tensor) -> list[Tensor]:
        self.left[at] = x.detach().clone()
        self.barrier.wait()
        found = [part for part in self.left if part is not None]
        self.barrier.wait()
        return found


@dataclass
class Device:
    """What `astrarium.runtime.spmd.context.Context` asks for."""

    graph: Graph
    axes: Axes
    divisions: tuple[Division, ...]
    rank: int
    exchanges: tuple[Exchange, ...]  # by level
    seed: int = 3
    step: int = 1
    device: torch.device = CPU
    messages: list[tuple[str, int]] = field(default_factory=list)

    @property
    def program(self) -> DeviceProgram:
        mesh = tuple(division.granules.shape[1] for division in self.divisions)
        return DeviceProgram(self.graph, self.axes, self.divisions, mesh, (), 0.0, ())

    def all_reduce(self, x: Tensor, level: int, largest: bool = False) -> Tensor:
        self.messages.append(("all-reduce", level))
        at = coordinates(self.rank, mesh_of(self.divisions))[level]
        parts = torch.stack(self.exchanges[level].all(at, x))
        return parts.amax(dim=0) if largest else parts.sum(dim=0)


def devices_of(
    graph: Graph, axes: Axes, divisions: tuple[Division, ...], **others: Any
) -> list[Device]:
    """All devices of a mesh; those that differ on one level alone share an exchange there."""
    mesh = [division.granules.shape[1] for division in divisions]
    shared: dict[tuple[int, tuple[int, ...]], Exchange] = {}
    devices = []
    for rank in range(prod(mesh)):
        here = coordinates(rank, mesh_of(divisions))
        exchanges = tuple(
            shared.setdefault((level, here[:level] + here[level + 1 :]), Exchange(mesh[level]))
            for level in range(len(mesh))
        )
        devices.append(Device(graph, axes, divisions, rank, exchanges, **others))
    return devices


def on_all(devices: Sequence[Device], work: Callable[[Device], Any], wait: bool) -> list[Any]:
    """Run on all devices: at once if they wait for each other, else in turn."""
    if not wait:
        return list(map(work, devices))
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(work, devices))


def graph_of(op: str, args: Sequence[Any], kwargs: dict[str, Any], outputs: Any) -> Graph:
    """One operator; tensors that need a gradient are parameters, others are inputs."""
    nodes: list[Node] = []

    def source(value: Any) -> Any:
        if isinstance(value, Tensor):
            kind = PARAMETER if value.requires_grad else INPUT
            name = f"{kind}{len(nodes)}"
            dtype = str(value.dtype).removeprefix("torch.")
            nodes.append(
                Node(name, kind, tuple(value.shape), dtype, needs_gradient=value.requires_grad)
            )
            return Ref(len(nodes) - 1)
        if isinstance(value, list | tuple):
            return [source(item) for item in value]
        return f"torch.{value}".replace("torch.torch.", "torch.") if _is_torch(value) else value

    written = tuple(source(value) for value in args)
    named = tuple((key, source(value)) for key, value in kwargs.items())
    first = outputs[0] if isinstance(outputs, list | tuple) else outputs
    nodes.append(
        Node("result", op, tuple(first.shape), str(first.dtype).removeprefix("torch."), written,
             named, any(x.requires_grad for x in _tensors(outputs)))
    )  # fmt: skip
    return Graph(tuple(nodes))


def _with_items(graph: Graph, results: Sequence[Tensor]) -> Graph:
    """The graph with a node for each of several results."""
    whole = Ref(len(graph.nodes) - 1)
    items = [
        Node(f"item{k}", "getitem", tuple(x.shape), str(x.dtype).removeprefix("torch."), (whole, k),
             (), x.requires_grad)
        for k, x in enumerate(results) if len(results) > 1
    ]  # fmt: skip
    return Graph((*graph.nodes, *items))


def _count(divisions: tuple[Division, ...]) -> int:
    return prod(division.granules.shape[1] for division in divisions)


def _is_torch(value: Any) -> bool:
    return isinstance(value, torch.dtype)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def drawn_division(axes: Axes, devices: int, random: np.random.Generator) -> Division:
    """Granules dealt out by chance; some devices may get none."""
    rows = []
    for granules in axes.granules:
        ratios = random.random(devices) * (random.random(devices) < 0.7)
        ratios[random.integers(devices)] += 0.1
        rows.append(whole_granules(ratios, granules))
    return Division(np.array(rows, np.int64).reshape(-1, devices))


@dataclass
class Trial:
    """An operator with its true results and gradients, to be compared with what devices find."""

    graph: Graph
    inputs: list[Tensor]
    outputs: list[Tensor]
    given: list[Tensor]  # gradients of the results, as if from a loss
    gradients: list[Tensor | None]
    rules: tuple[ShardRule, ...]
    axes: Axes
    random: np.random.Generator

    @staticmethod
    def of(
        op: str, args: Sequence[Any], kwargs: dict[str, Any], random: np.random.Generator,
        reference: Callable[[Graph, list[Tensor]], Any] | None = None,
    ) -> Trial:  # fmt: skip
        """Run it whole. `reference` stands for operators whose own results are random."""
        inputs = _tensors([args, list(kwargs.values())])
        whole = _call(op, args, kwargs)
        graph = graph_of(op, args, kwargs, whole)
        picked = _with_items(graph, _tensors(whole))
        rules = [rules_of(picked, node) for node in picked.nodes]
        if reference is not None:
            whole = reference(graph, inputs)
        outputs = _tensors(whole)
        given = [torch.from_numpy(random.standard_normal(x.shape)).to(x.dtype) for x in outputs]
        trained = [x for x in inputs if x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [x for x in outputs if x.requires_grad], trained,
                [g for x, g in zip(outputs, given, strict=True) if x.requires_grad],
                allow_unused=True,
            ) if any(x.requires_grad for x in outputs) else [None] * len(trained)
        )  # fmt: skip
        gradients = [next(found) if x.requires_grad else None for x in inputs]
        own = rules[len(graph.nodes) - 1]
        return Trial(
            graph, inputs, outputs, given, gradients, own, find_axes(picked, rules), random
        )

    def check(self, rules: Sequence[ShardRule], divisions: tuple[Division, ...]) -> list[Device]:
        """Run by these rules, one for each level; compare results and gradients."""
        devices = devices_of(self.graph, self.axes, divisions)
        needs = [tuple(rule.needs[k] for rule in rules) for k in range(len(self.inputs))]
        gives = tuple(rule.gives for rule in rules)
        node = len(self.graph.nodes) - 1
        read = self.graph.nodes[node].inputs
        inputs = [
            self._spread(x.detach(), read[k], needs[k], divisions, False)
            for k, x in enumerate(self.inputs)
        ]

        def work(device: Device) -> tuple[list[Tensor], list[Tensor]]:
            own = [
                x[device.rank].clone().requires_grad_(whole.requires_grad)
                for x, whole in zip(inputs, self.inputs, strict=True)
            ]
            shape = local_shape(
                self.outputs[0].shape, node, gives, self.axes, divisions, device.rank
            )
            result = run_local(self.graph.nodes[node], tuple(rules), own, shape, device)
            results = _tensors(result)
            assert tuple(results[0].shape) == shape
            return own, results

        waits = any(rule.messages for rule in rules)
        ran = on_all(devices, work, waits)
        lies = [self._result_lies(k, gives) for k in range(len(self.outputs))]
        for k, whole in enumerate(self.outputs):
            parts = [results[k] for _, results in ran]
            self._assemble(parts, whole, self._node_of(k), lies[k], divisions, False)
        if not any(x.requires_grad for x in self.outputs):
            return devices
        given = [
            self._spread(x, self._node_of(k), lies[k], divisions, True)
            for k, x in enumerate(self.given)
        ]

        def back(device: Device) -> list[Tensor | None]:
            own, results = ran[device.rank]
            pairs = [
                (x, given[k][device.rank]) for k, x in enumerate(results)
                if self.outputs[k].requires_grad
            ]  # fmt: skip
            trained = [x for x in own if x.requires_grad]
            found = iter(
                torch.autograd.grad(
                    [x for x, _ in pairs], trained, [g for _, g in pairs], allow_unused=True
                )
            )
            return [next(found) if x.requires_grad else None for x in own]

        gradients = on_all(devices, back, waits)
        for k, whole in enumerate(self.gradients):
            if whole is not None:
                parts = [found[k] for found in gradients]
                assert all(part is not None for part in parts)
                self._assemble(parts, whole, read[k], needs[k], divisions, True)
        return devices

    def _node_of(self, result: int) -> int:
        """The node whose axes a result has: one of several has a node of its own."""
        several = len(self.outputs) > 1
        return len(self.graph.nodes) + result if several else len(self.graph.nodes) - 1

    def _result_lies(self, result: int, gives: Placement) -> Placement:
        """How one of several results lies."""
        call = call_of(self.graph, self.graph.nodes[-1])
        return tuple(layout_of_result(call, result, layout) for layout in gives)

    def _spread(
        self, x: Tensor, node: int, placement: Placement, divisions: tuple[Division, ...],
        gradient: bool,
    ) -> list[Tensor]:  # fmt: skip
        """What each device has of a value, or of a gradient, in a placement."""
        adds_up = Holding.COPIED if gradient else Holding.PARTIAL
        levels = [level for level, layout in enumerate(placement) if layout.spread is adds_up]
        parts = self._split_sum(x, levels, divisions) if levels else [x] * _count(divisions)
        found = []
        for rank, part in enumerate(parts):
            pieces = local_pieces(x.shape, node, placement, self.axes, divisions, rank)
            found.append(part[tuple(slice(*piece) for piece in pieces)])
        return found

    def _split_sum(
        self, x: Tensor, levels: Sequence[int], divisions: tuple[Division, ...]
    ) -> list[Tensor]:
        """Random parts over some levels, the same on others: the first has what makes the sum."""
        noise: dict[tuple[int, ...], Tensor] = {}
        places = []
        for rank in range(_count(divisions)):
            here = coordinates(rank, mesh_of(divisions))
            places.append(tuple(here[level] for level in levels))
            if places[-1] not in noise:
                noise[places[-1]] = torch.from_numpy(
                    np.asarray(self.random.standard_normal(x.shape))
                ).to(x.dtype)
        first = (0,) * len(levels)
        others = [part for place, part in noise.items() if place != first]
        noise[first] = x - sum(others, torch.zeros_like(x))
        return [noise[place] for place in places]

    def _assemble(
        self, parts: Sequence[Tensor | None], whole: Tensor, node: int, placement: Placement,
        divisions: tuple[Division, ...], gradient: bool,
    ) -> None:  # fmt: skip
        """Check that the parts of all devices make up the whole, each as its layout says."""
        adds_up = Holding.COPIED if gradient else Holding.PARTIAL
        summed = [level for level, lay in enumerate(placement) if lay.spread is adds_up]
        sums: dict[tuple[int, ...], Tensor] = {}
        covered: dict[tuple[int, ...], tuple[slice, ...]] = {}
        for rank, part in enumerate(parts):
            assert part is not None
            here = coordinates(rank, mesh_of(divisions))
            key = tuple(0 if level in summed else at for level, at in enumerate(here))
            sums[key] = sums[key] + part if key in sums else part
            pieces = local_pieces(whole.shape, node, placement, self.axes, divisions, rank)
            covered[key] = tuple(slice(*piece) for piece in pieces)
        seen = torch.zeros(whole.shape, dtype=torch.bool)
        for key, total in sums.items():
            part = whole.detach()[covered[key]]
            assert total.dtype == part.dtype
            assert total.shape == part.shape
            assert torch.allclose(total.detach(), part, rtol=1e-7, atol=1e-7, equal_nan=True)
            seen[covered[key]] = True
        assert bool(seen.all())


def _experts(x: Tensor, matrices: Tensor, chosen: Tensor, count: int, transposed: bool) -> Tensor:
    """Every row by the matrix of its expert, one by one."""
    found = matrices[chosen] if transposed else matrices[chosen].mT
    return torch.bmm(x.unsqueeze(1), found).squeeze(1)


def _call(op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if op == EXPERTS:
        return _experts(*args)
    if "batch_norm" in op and args[5] and args[3] is not None:
        new = [args[3].clone(), args[4].clone()]  # which torch would write in place
        return torch.ops.aten.batch_norm.default(*args[:3], *new, *args[5:]), *new
    _, name, overload = op.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)
