"""A synthesised program as a plan: the same figures as a pipeline's, from the prices of programs.

Every pool is one entry of stages, memory and times, with all the layers. What devices wait for
each other after an instruction is part of both passes, as in a program's own price. Memory is that
of the fullest device of a pool; what a process takes before its first tensor is `reserved`, as much
as of Megatron's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from astrarium.arrays import Bools, Floats
from astrarium.cluster import Cluster, Pool
from astrarium.cost.memory import MEMORY_CAUSES
from astrarium.cost.step import SECONDS_CAUSES
from astrarium.cost.tuning import Tuning
from astrarium.cost.uncertainty import interval_ratios
from astrarium.model.workload import Workload
from astrarium.search.pace import StageSeconds
from astrarium.search.plan import Plan, StageMemory
from astrarium.spmd.baselines import Place, Ratios, Space
from astrarium.spmd.compute import Bill
from astrarium.spmd.devices import Devices, devices_of
from astrarium.spmd.graph import DTYPE_BYTES, PARAMETER, Graph
from astrarium.spmd.memory import STATE_BYTES
from astrarium.spmd.model_graph import graph_of
from astrarium.spmd.pricing import GRADIENT_BYTES
from astrarium.spmd.program import Instruction, Program
from astrarium.spmd.programs import ProgramPrice, price_program
from astrarium.spmd.rules import Collective, Rule
from astrarium.spmd.synthesis import fits, synthesize, without_limits
from astrarium.spmd.work import call_of, terms_of
from astrarium.strategy.types import (
    DividedAxis,
    Overlap,
    ProgramMessages,
    ProgramSummary,
    Reach,
    Stage,
    Strategy,
)
from astrarium.strategy.validity import megatron_lacks
from astrarium.units import HOUR
from astrarium.value import Value

RUNTIME: Final = "spmd"
# Kernels on a part of a tensor can be a little faster, for its size, than on all of it.
KERNEL_SLACK: Final = 0.95
# What the host takes to launch an instruction, both passes, beside the GPU: an assumption, no
# program was timed on GPUs. Times of operators on cores have it in them.
HOST_SECONDS: Final = 30e-6
COLLECTIVES: Final = frozenset(one.value for one in Collective)
# Whose values a message is about, and the cause that its seconds count for.
ACTIVATIONS, WEIGHTS, GRADIENTS = "activations", "weights", "gradients"
CAUSE_OF: Final = {
    ACTIVATIONS: "tp_communication",
    WEIGHTS: "zero_communication",
    GRADIENTS: "gradient_reduction",
}


class ProgramMaker(Value, frozen=True, dict=True):
    """Programs for a workload on all GPUs of a cluster."""

    workload: Workload
    cluster: Cluster
    tuning: Tuning

    @cached_property
    def devices(self) -> Devices:
        return devices_of(self.cluster, tuning=self.tuning)

    @cached_property
    def least_seconds(self) -> float:
        """About the least that a program takes: all operators as fast as whole, nothing sent."""
        passes = _passes(graph_of(self.workload), self.devices).sum(axis=0)
        speeds = 1.0 / passes[self.devices.class_of]
        return KERNEL_SLACK / float(speeds.sum())

    @property
    def has_room(self) -> bool:
        """Whether all devices together hold parameters, their gradients and states once."""
        state = STATE_BYTES["adam"] + GRADIENT_BYTES + DTYPE_BYTES["float32"]
        return state * self.workload.model.parameters <= float(self.devices.room.sum())

    def plan(self, micro_batches: int) -> Plan | None:
        """The best program with so many micro-batches, as a plan; None if none is found that fits.

        The fastest of all is looked for first, then the fastest that stores parameters in pieces.
        Memory is no limit of these searches, which makes them short, but of what is taken.
        """
        graph = graph_of(self.workload, self.workload.global_batch // micro_batches)
        endless = without_limits(self.devices)
        for space in (None, IN_PIECES):
            found = synthesize(
                graph, endless, micro_batches=micro_batches, space=space, cuts=False
            ).program
            if fits(found, self.devices):
                return plan_of(self.workload, self.devices, found)
        return None


def _in_pieces(place: Place, node: int, rules: Sequence[Rule]) -> Sequence[Rule]:
    """Parameters are divided, whatever divides them."""
    if place.graph.nodes[node].op != PARAMETER:
        return rules
    return [rule for rule in rules if rule.gives.is_shard] or rules


IN_PIECES: Final = Space("parameters in pieces", _in_pieces, Ratios.FREE)


def plan_of(workload: Workload, devices: Devices, program: Program) -> Plan:
    """A program of the workload's model with its estimate."""
    price = price_program(program, devices)
    strategy = strategy_of(workload, devices, program, price)
    host, pools = _host_seconds(devices, program, price), devices.cluster.pools
    seconds = price.seconds + host
    experts = workload.model.max_experts > 0
    ratios = [interval_ratios(ops, RUNTIME, experts=experts) for ops in devices.operators]
    low, high = min(ratio[0] for ratio in ratios), max(ratio[1] for ratio in ratios)
    precision = workload.precision.value
    peak = sum(pool.num_gpus * pool.gpu.peak_flops[precision] for pool in pools)
    train_seconds = None if workload.iterations is None else workload.iterations * seconds
    usd_per_hour = _usd_per_hour(pools)
    priced = usd_per_hour is not None and train_seconds is not None
    gpus: Counter[str] = Counter()
    for pool in pools:
        gpus[pool.gpu.name] += pool.num_gpus
    passes = _passes(program.graph, devices)
    return Plan(
        strategy=strategy,
        gpus=dict(gpus),
        precision=workload.precision,
        iteration_seconds=seconds,
        interval_seconds=(seconds * low, seconds * high),
        tokens_per_second=workload.tokens_per_iteration / seconds,
        mfu=workload.flops_per_iteration / (seconds * peak),
        breakdown_seconds={**_breakdown(program, price, _forward_share(passes)), "host": host},
        memory=tuple(_memory(devices, program, price)),
        stages=tuple(_stages(devices, program, price, passes)),
        usd_per_hour=usd_per_hour,
        usd_total=(usd_per_hour or 0.0) * (train_seconds or 0.0) / HOUR if priced else None,
        train_seconds=train_seconds,
        runtimes=(RUNTIME,),
        megatron_lacks=megatron_lacks(strategy),
    )


def strategy_of(
    workload: Workload, devices: Devices, program: Program, price: ProgramPrice
) -> Strategy:
    """What a plan says of a program: its pools, its batch, its pieces and messages in short."""
    layers, cluster = workload.model.num_layers, devices.cluster
    stages = tuple(
        Stage(pool.gpu.name, 0, layers, pool.num_gpus, rank, 0, ((pool.name, pool.num_gpus),))
        for rank, pool in enumerate(cluster.pools)
    )
    return Strategy(
        micro_batch=workload.global_batch // program.micro_batches,
        num_micro_batches=program.micro_batches,
        zero_stage=0,
        overlap=Overlap(grad_reduce=False, param_gather=False, p2p=False, tp=False),
        stages=stages,
        program=ProgramSummary(
            instructions=len(program.instructions),
            axes=tuple(_divided_axes(program)),
            messages=tuple(_messages(program, price)),
        ),
    )


def _divided_axes(program: Program) -> Iterator[DividedAxis]:
    """Axes that values are divided along; those alike once, the one of most instructions first."""
    uses: Counter[int] = Counter()
    for one in program.instructions:
        axes = program.axes.of[one.node]
        uses.update({axes[layout.dim] for layout in one.gives if layout.is_shard})
    parts = program.divisions[0].granules
    alike: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for axis, _ in uses.most_common():
        name = _without_numbers(program.axes.names[axis])
        alike[name, tuple(parts[axis].tolist())].append(axis)
    for (name, pieces), members in alike.items():
        yield DividedAxis(name, len(members), program.axes.granules[members[0]], pieces)


def _without_numbers(name: str) -> str:
    """The same name for the axes of all layers."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _messages(program: Program, price: ProgramPrice) -> Iterator[ProgramMessages]:
    """Messages by collective and by what is sent; both of an exchange count for half of it."""
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    for one, taken in zip(program.instructions, price.message.tolist(), strict=True):
        sent = list(_sent(program.graph, one))
        for collective, of in sent:
            times = 1 if of == GRADIENTS else program.micro_batches
            counts[collective, of] += times
            seconds[collective, of] += taken / len(sent)
    for key, count in counts.most_common():
        yield ProgramMessages(*key, count, float(seconds[key]))


def _sent(graph: Graph, one: Instruction) -> Iterator[tuple[str, str]]:
    """The collectives of an instruction, and whose values they are about."""
    if one.conversion is None:
        for message in (message for rule in one.rules for message in rule.messages):
            yield message.collective.value, ACTIVATIONS
        return
    is_weight = graph.nodes[one.node].op == PARAMETER or graph.nodes[one.node].name in (
        graph.of_parameters
    )
    for collective, backward in ((one.conversion.forward, False), (one.conversion.backward, True)):
        if collective in COLLECTIVES:
            of = GRADIENTS if backward else WEIGHTS
            yield collective, of if is_weight else ACTIVATIONS


def _host_seconds(devices: Devices, program: Program, price: ProgramPrice) -> float:
    """What GPUs wait for launches, where these take longer than all that they launch."""
    if any(device.gpu.is_processor for device in devices.devices):
        return 0.0
    launched = len(program.instructions) * program.micro_batches * HOST_SECONDS
    return max(0.0, launched - price.breakdown["compute"])


def _breakdown(program: Program, price: ProgramPrice, forward: float) -> dict[str, float]:
    """Seconds by the causes that all plans have; they add up to the iteration."""
    found = dict.fromkeys(SECONDS_CAUSES, 0.0)
    for one, taken in zip(program.instructions, price.message.tolist(), strict=True):
        sent = list(_sent(program.graph, one))
        for _, of in sent:
            found[CAUSE_OF[of]] += taken / len(sent)
    found["optimizer"] = price.breakdown["update"]
    computed = price.seconds - sum(found.values())
    found["forward"], found["backward"] = forward * computed, (1.0 - forward) * computed
    return found


def _passes(graph: Graph, devices: Devices) -> Floats:
    """Seconds of a micro-batch on one device of each class alone: [pass, class]."""
    classes = list(range(len(devices.operators)))
    bill = Bill(len(classes))
    for index in range(len(graph.nodes)):
        for term in terms_of(call_of(graph, index)):
            bill.add(0, term)
    seconds: Floats = bill.seconds(devices, classes, 1)[:, 0, :]
    return seconds


def _forward_share(passes: Floats) -> float:
    return float(passes[0].sum() / passes.sum())


def _of_pool(devices: Devices, pool: Pool) -> Bools:
    return np.array([device.pool == pool.name for device in devices.devices])


def _weight_copies(program: Program, price: ProgramPrice) -> Floats:
    """Bytes of what is made of parameters alone and kept: casts, and what was gathered."""
    graph = program.graph
    made = [
        graph.nodes[one.node].name in graph.of_parameters
        or (one.conversion is not None and graph.nodes[one.node].op == PARAMETER)
        for one in program.instructions
    ]
    total: Floats = price.bytes[np.array(made)].sum(axis=0)
    return total


def _memory(devices: Devices, program: Program, price: ProgramPrice) -> Iterator[StageMemory]:
    """Bytes by cause on the fullest device of every pool.

    Where products read copies of parameters in 16 bits, these are the weights, and what they are
    made of are the optimizer's master weights, as in Megatron.
    """
    use = price.memory
    copies = _weight_copies(program, price)
    masters = use.parameters if copies.any() else np.zeros_like(copies)
    for number, pool in enumerate(devices.cluster.pools):
        mine = np.flatnonzero(_of_pool(devices, pool))
        fullest = int(mine[np.argmax(use.peak[mine])])
        causes = {
            "weights": use.parameters - masters + copies,
            "gradients": use.gradients,
            "optimizer": use.optimizer + masters,
            "activations": use.activations - copies,
            "workspace": use.transient,
            "reserved": pool.gpu.memory_bytes - devices.room,
        }
        by_cause = {cause: float(causes[cause][fullest]) for cause in MEMORY_CAUSES}
        yield StageMemory(number, pool.gpu.name, pool.gpu.memory_bytes, by_cause)


def _stages(
    devices: Devices, program: Program, price: ProgramPrice, passes: Floats
) -> Iterator[StageSeconds]:
    """What every pool does by itself: its passes, and behind them messages and the update."""
    turns, forward = program.micro_batches, _forward_share(passes)
    computed = price.compute.sum(axis=0) / turns
    after = price.update.sum(axis=0) + price.message.sum()
    for number, pool in enumerate(devices.cluster.pools):
        mine = _of_pool(devices, pool)
        one_class = int(devices.class_of[np.argmax(mine)])
        busy = float(computed[mine].max())
        yield StageSeconds(
            stage=number,
            gpu=pool.gpu.name,
            pools=((pool.name, pool.num_gpus),),
            forward_seconds=forward * busy,
            backward_seconds=(1.0 - forward) * busy,
            chunk_forward_seconds=(forward * busy,),
            chunk_backward_seconds=((1.0 - forward) * busy,),
            after_seconds=float(after[mine].max()),
            model_seconds=float(passes[:, one_class].sum()) / pool.num_gpus,
            send_seconds=0.0,
            link=Reach.NOWHERE,
            link_pools=(),
        )


def _usd_per_hour(pools: Sequence[Pool]) -> float | None:
    """Of all GPUs of the pools; None where a price is not known."""
    total = 0.0
    for pool in pools:
        if pool.usd_per_gpu_hour is None:
            return None
        total += pool.usd_per_gpu_hour * int(pool.billed_gpus(np.array(pool.num_gpus)))
    return total
