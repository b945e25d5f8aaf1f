"""Layouts: degrees with layers dealt to stages. Everything that options do not change.

A layout row knows, for each pipeline rank that can be the heaviest (second axis), the seconds
one micro-batch takes there by cause, the parameters it holds and what it would keep in memory.
Recompute, ZeRO, offload and overlap are applied on top by `memory` and `step`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.catalog.optimizers import find_optimizer, with_optimizer
from astrarium.catalog.runtimes import Runtime, as_asked, find_runtime
from astrarium.cluster import Pool
from astrarium.cluster.interconnect import Network
from astrarium.cost.beside import with_frozen_ends, with_frozen_layers
from astrarium.cost.collectives import (
    Fabric,
    Group,
    adapter_share,
    all_gather_seconds,
    all_reduce_seconds,
    compute_slowdown,
    crosses_domains,
    fabric_of,
    place,
    reduce_scatter_seconds,
    send_seconds,
)
from astrarium.cost.efficiency import OperatorModel
from astrarium.cost.ends import EndCosts, PlacedEnds, end_costs
from astrarium.cost.groups import by_rank, copies_group, data_ranks, dense_group, message_calls
from astrarium.cost.kernels import LAUNCH_HALVINGS, smooth_maximum, smooth_remainder
from astrarium.cost.laws import LawModel, measured_links, operators_of
from astrarium.cost.layers import layer_costs
from astrarium.cost.lengths import at_lengths, pace_of
from astrarium.cost.on_ranks import DataMessages, EndSeconds, Exchange, RankSeconds
from astrarium.cost.shard_memory import remembered
from astrarium.cost.stages import StagePlanner, StageTable, largest_held
from astrarium.cost.tally import LayerCosts, Shards
from astrarium.cost.tuning import NEUTRAL, Tuning
from astrarium.cost.units import Units
from astrarium.model.workload import Workload
from astrarium.strategy.columns import Degrees
from astrarium.value import Value

# Of a layer, what a rank has of each of its layers: names of `LayerCosts` and of `Layouts`.
_PARAMETERS: Final = ("dense_parameters", "expert_parameters", "frozen_dense", "frozen_expert")
_DEALT: Final = (
    *("dense_parameters", "expert_parameters", "frozen_dense", "frozen_expert"),
    *("scaled_weights", "weight_tensors", "expert_tensors"),
    *("matrix_update", "expert_matrix_update", "once_dense", "once_expert"),
)


class ShardCosts(Value, frozen=True):
    """Costs of the distinct shards among some degrees, and which shard each row uses."""

    layers: LayerCosts
    ends: EndCosts
    shard_of: Ints


class Layouts(Value, frozen=True):
    """Rows to be priced: degrees with their ranks, and what every rank holds."""

    models: tuple[CostModel, ...]  # of the GPUs that ranks run on
    model_of: Ints  # which of them: as `shard`
    degrees: Degrees
    gpus: Ints  # of the whole job
    virtual: Ints
    split: Ints
    costs: LayerCosts
    shard: Ints  # row of `costs`: (layouts, ranks), or (layouts, 1) where ranks are alike
    stages: StageTable
    stage_row: Ints
    pace: Floats  # how much longer computation takes than on one GPU as modelled
    on_rank: RankSeconds  # arrays of (layouts, ranks)
    ends: EndSeconds
    dense_parameters: Floats  # that train
    expert_parameters: Floats
    frozen_dense: Floats  # that do not, counted as weights of the runtime's size
    frozen_expert: Floats
    end_states: Floats  # by how many parameters more the states of embedding and head count
    head_activations: Floats
    head_transient: Floats
    hop_seconds: Floats  # to the next stage, one direction: (layouts, ranks), or (layouts, 1)
    layer_counts: Floats  # layers per rank
    dense_ranks: Ints  # data-parallel ranks that share dense, and expert, parameters: as `shard`
    expert_ranks: Ints
    messages: DataMessages
    redone_of_layer: Floats  # bytes that come back when a whole layer is recomputed
    transient_of_layer: Floats  # bytes that live only inside one layer's passes
    stand_ins: Floats  # 16-bit tensors in place of gradients that went to the fp32 ones
    scaled_weights: Floats  # bytes of 8-bit copies beside the weights
    whole_units: Floats  # bytes that ZeRO-3 holds beside the shards while it computes
    unit_messages: Floats  # bytes that torch FSDP has for messages of weights alone
    unit_gradients: Floats  # bytes of units in its backward pass, beyond `whole_units`
    weight_tensors: Floats
    expert_tensors: Floats
    matrix_update: Floats  # seconds of matrix products in updates of all weights of a rank
    expert_matrix_update: Floats

    def __len__(self) -> int:
        return len(self.degrees)

    @property
    def runtime(self) -> Runtime:
        return self.models[0].runtime

    @property
    def tuning(self) -> Tuning:
        return self.models[0].tuning


class CostModel:
    """The cost model of one workload on one pool under one runtime; columns in, columns out."""

    def __init__(
        self,
        workload: Workload,
        pool: Pool,
        runtime: Runtime | None = None,
        tuning: Tuning = NEUTRAL,
    ) -> None:
        self.workload = workload
        self.pool = pool
        measured = tuning.runtime if pool.gpu.is_processor else ""
        self.runtime = find_runtime(measured) if measured else runtime or find_runtime()
        self.runtime = as_asked(
            self.runtime, workload.numerics, workload.expert_messages, workload.precision
        )
        self.runtime = with_optimizer(self.runtime, workload.optimizer)
        self.optimizer = find_optimizer(workload.optimizer)
        self.tuning = tuning
        self.ops: OperatorModel = operators_of(pool.gpu, tuning)
        self.fabric: Fabric = replace(
            measured_links(fabric_of(pool), tuning.messages),
            intra_time_ratio=tuning.intra_link,
            inter_time_ratio=tuning.inter_link,
            one_adapter=self.runtime.one_adapter,
        )
        self.planner = StagePlanner(
            workload.model, workload.seq_length, pool.gpu.name, self.runtime.balanced_stages
        )
        kinds = np.array(workload.model.kind_of_layer)
        self.layers_of_kind = np.bincount(kinds, minlength=len(workload.model.kinds)).astype(float)

    @property
    def tensor_seconds(self) -> float:
        """Seconds of an update for each tensor, beside those for its elements."""
        if isinstance(self.ops, LawModel):
            return self.ops.tensor_seconds
        return self.runtime.optimizer_tensor_seconds

    def with_fabric(self, fabric: Fabric) -> CostModel:
        """The same GPUs with other links between them."""
        other = copy(self)
        other.fabric = fabric
        return other

    def with_pool(self, pool: Pool) -> CostModel:
        """The same for a pool of which more memory is kept free."""
        other = copy(self)
        other.pool = pool
        return other

    @property
    def peak_flops(self) -> float:
        """The GPU's own figure for the number format of the matrix products."""
        return self.pool.gpu.peak_flops[self.workload.precision.dtype]

    def shard_costs(self, degrees: Degrees, gpus: Ints | None = None) -> ShardCosts:
        """`gpus`: how many of this pool are in use, by default all that the degrees ask for."""
        d = degrees
        columns: dict[str, Any] = {
            "tp": d.tp,
            "cp": d.cp,
            "ep": d.ep,
            "etp": d.etp,
            "micro_batch": d.micro_batch,
            "sequence_parallel": d.sequence_parallel,
            "domain": self.pool.domain_of(d.gpus if gpus is None else gpus),
        }
        first, shard_of = distinct_rows(*columns.values())
        shards = Shards(**{name: column[first] for name, column in columns.items()})
        alike = replace(self.workload, global_batch=1, tokens=None)
        of = (alike, self.pool.gpu, self.fabric, self.runtime, self.tuning)
        priced = partial(at_lengths, self.workload, self.runtime, self._priced)
        return ShardCosts(*remembered(of, shards, priced), shard_of)

    def _priced(self, workload: Workload, shards: Shards) -> tuple[LayerCosts, EndCosts]:
        given = (shards, self.ops, self.fabric, self.runtime)
        layers, ends = layer_costs(workload, *given, self.tuning), end_costs(workload, *given)
        alone = workload.of_beside
        if alone is None:
            return layers, ends
        beside = layer_costs(alone, *given, self.tuning)
        layers = with_frozen_layers(workload, self.runtime, layers, beside)
        one, other = ends, end_costs(alone, *given)
        ends = with_frozen_ends(workload, shards, self.ops, self.runtime, one, other)
        return layers, ends

    def layouts(
        self,
        degrees: Degrees,
        virtual: Ints,
        split: Ints,
        shards: ShardCosts,
        *,
        all_ranks: bool = False,
    ) -> Layouts:
        """`shards.shard_of` must belong to `degrees` row by row."""
        # Neighbours that hold the same do not hand over the same if cuts differ.
        apart = all_ranks or shards.ends.boundary_bytes.shape[1] > 1
        stages, stage_row = self.planner.table(
            degrees.pp, virtual, split, degrees.num_micro_batches, all_ranks=apart
        )
        every = degrees.gpus
        return self.priced(degrees, virtual, split, shards, stages, stage_row, every, every)

    def priced(
        self,
        degrees: Degrees,
        virtual: Ints,
        split: Ints,
        shards: ShardCosts,
        stages: StageTable,
        stage_row: Ints,
        gpus: Ints,
        job_gpus: Ints,
    ) -> Layouts:
        """Layouts whose ranks hold what `stages` say, on so many `gpus` of this pool."""
        costs, shard, held = shards.layers, shards.shard_of, stages.layers[stage_row]
        domain, (dense_ranks, expert_ranks) = self.pool.domain_of(gpus), data_ranks(degrees)
        ends = PlacedEnds(self.workload.model, shards.ends, shard, stages, stage_row)

        def dealt(per_layer: Floats) -> Floats:
            return np.einsum("nrk,nk->nr", held, per_layer[shard])

        held_of = self._held(shards, ends, degrees.pp > 1, dealt)
        pace, hop = self.pace(degrees, job_gpus), self.hop_seconds(degrees, gpus, shards)
        on_rank = self._on_rank(self._launch_delay(degrees, job_gpus > domain), shards, dealt, ends)
        counts = held.sum(axis=2)
        dense = (*_both(held_of, "dense"), counts, dense_group(degrees, domain))
        has_experts = costs.expert_parameters + costs.frozen_expert > 0.0
        with_experts = dealt(has_experts.astype(float))
        sharing = place(expert_ranks, degrees.ep * degrees.etp, domain)
        expert = (*_both(held_of, "expert"), with_experts, sharing)
        others = self._between_domains(degrees, domain, virtual * hop.max(axis=1), on_rank.ep)
        return Layouts(
            models=(self,),
            model_of=np.zeros((len(degrees), 1), np.int64),
            degrees=degrees,
            gpus=job_gpus,
            virtual=virtual,
            split=split,
            costs=costs,
            shard=shard[:, None],
            stages=stages,
            stage_row=stage_row,
            pace=pace,
            on_rank=_at_pace(on_rank, pace[:, None], self.tuning.host),
            ends=_end_seconds(shards, pace),
            **held_of,
            head_activations=ends.last(shards.ends.head_activations),
            head_transient=_transient(shards, ends, held),
            hop_seconds=at_cuts(hop, stages.stop[stage_row]),
            layer_counts=counts,
            redone_of_layer=largest_held(held, (costs.activations - costs.inputs)[shard]),
            transient_of_layer=largest_held(held, costs.transient[shard]),
            stand_ins=largest_held(held, costs.stand_ins[shard]),
            **self._units(degrees, shards, ends, held_of),
            dense_ranks=dense_ranks[:, None],
            expert_ranks=expert_ranks[:, None],
            messages=self._data_messages(degrees, domain, ends, others, dense, expert),
        )

    def _held(
        self, shards: ShardCosts, ends: PlacedEnds, apart: Bools, dealt: Callable[[Floats], Floats]
    ) -> dict[str, Floats]:
        """The parts of all that ranks hold; the ends are on the first and on the last."""
        held = {name: dealt(getattr(shards.layers, name)) for name in _DEALT}
        of_ends, beside = ends.parameters(apart), ends.frozen(apart)
        trained = shards.ends.trained[shards.shard_of][:, None]
        held["dense_parameters"] += of_ends * trained
        held["frozen_dense"] += of_ends * (1 - trained) + beside
        held["once_dense"] += beside
        held["end_states"] = of_ends * self._more_of_ends
        return held

    @property
    def _more_of_ends(self) -> float:
        """The states of a parameter of embedding or head beyond those of others, as a share."""
        more = self.optimizer.end_state_bytes - self.optimizer.state_bytes
        return more / self.runtime.optimizer_bytes if self.workload.adapters is None else 0.0

    def pace(self, degrees: Degrees, gpus: Ints) -> Floats:
        """Time of computation over that on one GPU as modelled."""
        slowdown = self.tuning.compute * self.pool.slowdown
        return pace_of(self.workload, self.runtime, degrees, gpus) * slowdown

    def _launch_delay(self, degrees: Degrees, leaves_domain: Bools) -> Floats:
        """Added launch time of a layer when a pipeline crosses nodes."""
        crosses = (degrees.pp > 1) & leaves_domain
        ranks = np.where(crosses & (degrees.tp > 1), degrees.tp, 0)
        return np.asarray(self.runtime.launch_seconds_per_tp_rank * ranks)

    def _between_domains(
        self, degrees: Degrees, domain: Ints, sends: Floats, experts: Floats
    ) -> Floats:
        """Seconds that a pass of one micro-batch sends between domains, data parallelism aside."""
        stages = place(degrees.pp, degrees.stage_stride, domain)
        exchange = place(degrees.ep, degrees.etp, domain)
        # `experts` holds both passes.
        return np.where(crosses_domains(stages), sends, 0.0)[:, None] + np.where(
            crosses_domains(exchange)[:, None], experts / 2, 0.0
        )

    def _data_messages(
        self,
        degrees: Degrees,
        domain: Ints,
        ends: PlacedEnds,
        others: Floats,
        *groups: tuple[Floats, Floats, Floats, Group],
    ) -> DataMessages:
        """Each group: parameters of a rank, in how many layers, and the ranks that share them.

        Parameters are those that train, and those that do not.
        """
        fabric = self.fabric
        shape = groups[0][0].shape
        slowed, unpack, last = (np.zeros(shape) for _ in range(3))
        sent: tuple[Exchange, ...] = (Exchange(*(np.zeros(shape) for _ in range(3))),) * 3
        copies = by_rank(copies_group(degrees, domain))
        crosses = crosses_domains(copies)
        for parameters, frozen, layers, sharing in groups:
            if not parameters.any() and not frozen.any():
                continue
            group = by_rank(sharing)
            ranks = group.size
            exchanges, of_last = self._exchanges(parameters, frozen, layers, group, copies)
            last = np.maximum(last, of_last)
            sent = tuple(map(operator.add, sent, exchanges))
            slowed = slowed + exchanges[0].reduce * compute_slowdown(fabric, group)
            moved = self.runtime.gathered_moved_bytes + self.runtime.sharded_moved_bytes / ranks
            unpack = unpack + self.ops.streaming(moved * (parameters + frozen))
            crosses = crosses | crosses_domains(group)
        apart = np.maximum(degrees.stage_stride * (degrees.pp - 1), 1)
        pair = place(np.where(degrees.pp > 1, 2, 1), apart, domain)
        tied, shared = (
            self._table_seconds(parameters, pair, degrees.stage_stride)
            for parameters in (ends.tied(degrees.pp > 1), ends.copies)
        )
        at_once, in_buckets, in_layers = sent
        reduce = at_once.reduce
        return DataMessages(
            at_once,
            in_buckets,
            in_layers,
            last,
            unpack,
            tied=tied,
            shared=shared,
            slowdown=np.divide(slowed, reduce, out=np.zeros_like(reduce), where=reduce > 0.0),
            on_same_links=np.where(crosses, others, 0.0),
        )

    def _table_seconds(self, parameters: Floats, pair: Group, stride: Ints) -> Floats:
        """Two copies of a table agree on its gradients; by layout, or by layout and rank."""
        if not parameters.any():
            return np.zeros_like(parameters)
        along = (slice(None), *(None,) * (parameters.ndim - 1))
        apart = np.broadcast_to(pair.stride, pair.size.shape)[along]
        group = Group(pair.size[along], pair.per_domain[along], apart)
        trains = self.workload.adapters is None
        table = self.runtime.tied_gradient_bytes * parameters * trains
        contended = table * adapter_share(self.fabric, stride[along])
        table = np.where(crosses_domains(group), contended, table)
        return np.where(table > 0, all_reduce_seconds(self.fabric, table, group), 0.0)

    def _exchanges(
        self, parameters: Floats, frozen: Floats, layers: Floats, group: Group, copies: Group
    ) -> tuple[tuple[Exchange, ...], Floats | float]:
        """Messages with `parameters` on each rank of a group: whole, in buckets, layer by layer.

        And the share that the last bucket is, where there are buckets. Layouts differ by much that
        does not matter here: each distinct message is priced once. `copies` hold the same part.
        """
        shape = parameters.shape
        groups = (group, copies) if (copies.size > 1).any() else (group,)
        far = self.fabric.oversubscription > 1.0  # distances matter where blocks have fewer links
        placed = [
            np.broadcast_to(column, shape).reshape(-1)
            for one in groups
            for column in (one.size, one.per_domain, one.stride if far else 1)
        ]
        values, size = np.unique(parameters, return_inverse=True)
        count = layers.reshape(-1).astype(np.int64)
        others, of_frozen = np.zeros(1), np.zeros_like(count)
        if frozen.any():
            others, of_frozen = np.unique(frozen.reshape(-1), return_inverse=True)
            placed.append(of_frozen)
        first, row_of = distinct_rows(size.reshape(-1), count, *placed)
        row_of = row_of.reshape(shape)
        held, kept = values[size.reshape(-1)[first]], others[of_frozen[first]]
        group, *copied = (
            Group(*(column[first] for column in placed[3 * i : 3 * i + 3]))
            for i in range(len(groups))
        )
        units = np.maximum(count[first], 1.0)
        buckets = message_calls(self.runtime, held, group.size)
        calls = np.stack([np.ones(len(held)), buckets, units])
        gradients = self.runtime.reduced_gradient_bytes * held / calls
        weights = self.runtime.weight_bytes * held / calls
        # Layer by layer ranks gather what they divide for the passes, frozen or not.
        weights[2] += self.runtime.weight_bytes * kept / units
        reduce = calls[:2] * all_reduce_seconds(self.fabric, gradients[:2], group)
        scatter = calls * reduce_scatter_seconds(self.fabric, gradients, group)
        gather = calls * all_gather_seconds(self.fabric, weights, group)
        if self.optimizer.whole_gradients:
            scatter[:2] = reduce
        for across in copied:
            # What a rank keeps of the sum is then summed over the shard groups.
            part = gradients if self.optimizer.whole_gradients else gradients / group.size
            scatter = scatter + calls * all_reduce_seconds(self.fabric, part, across)
        found = tuple(
            Exchange(reduce[min(way, 1)][row_of], scatter[way][row_of], gather[way][row_of])
            for way in range(len(calls))
        )
        return found, (1.0 / buckets)[row_of] if self.runtime.message_parameters else 0.0

    def _units(
        self, degrees: Degrees, shards: ShardCosts, ends: PlacedEnds, held: dict[str, Floats]
    ) -> dict[str, Floats]:
        e, layer = shards.ends, shards.layers.unit.max(axis=1)[shards.shard_of]
        table = np.maximum(ends.first(e.embedding_parameters), ends.first(e.frozen_embedding))
        head = np.maximum(ends.last(e.head_parameters), ends.last(e.frozen_head))
        units = Units(layer[:, None], table, head, self.workload.adapters is None)
        every = np.sum([held[name] for name in _PARAMETERS], axis=0)
        return units.gathered(self.runtime, every, data_ranks(degrees)[0] > 1, degrees.pp == 1)

    def _on_rank(
        self,
        extra_launches: Floats,
        shards: ShardCosts,
        dealt: Callable[[Floats], Floats],
        ends: PlacedEnds,
    ) -> RankSeconds:
        c, e = shards.layers, shards.ends
        message = ends.first(e.embedding_message) + ends.last(e.head_message_forward)
        back = ends.last(e.head_message_backward)
        exchanges = c.cp_forward + c.ep_forward
        forward, messages = dealt(c.forward), dealt(c.tp_forward + c.cp_forward + c.ep_forward)
        return RankSeconds(
            forward=forward + ends.first(e.embedding_forward) + ends.last(e.head_forward),
            backward=dealt(c.backward)
            + ends.first(e.embedding_backward)
            + ends.last(e.head_backward),
            tp=dealt(c.tp_forward + c.tp_backward) + message + back,
            tp_overlapped=dealt(c.tp_forward_overlapped + c.tp_backward_overlapped)
            + message
            + back,
            cp=dealt(c.cp_forward + c.cp_backward),
            ep=dealt(c.ep_forward + c.ep_backward),
            sent_forward=messages + message,
            sent_forward_overlapped=dealt(c.tp_forward_overlapped + exchanges) + message,
            again=forward + messages - dealt(c.forward_once + c.sent_once),
            messages_again=messages - dealt(c.sent_once),
            launch=self._launches(shards, dealt, ends)
            + dealt(np.ones_like(c.forward)) * extra_launches[:, None],
            launch_forward=dealt(c.launch_forward),
            launch_again=dealt(c.launch_again),
        )

    def _launches(
        self, shards: ShardCosts, dealt: Callable[[Floats], Floats], ends: PlacedEnds
    ) -> Floats:
        """Seconds of the host of each rank for a micro-batch.

        If it waits at the end of each pass, the device waits for each pass apart; launches that
        take as long in all are what makes it wait for as long in both.
        """
        c, e = shards.layers, shards.ends
        half = ends.half_at_each(self.runtime.micro_batch_seconds / 2)
        forward, backward = dealt(c.launch_forward) + half, dealt(c.launch_backward) + half
        if not self.runtime.waits_for_passes:
            return forward + backward
        busy_forward = (
            dealt(c.forward + c.tp_forward)
            + ends.first(e.embedding_forward)
            + ends.last(e.head_forward)
        )
        busy_backward = (
            dealt(c.backward + c.tp_backward)
            + ends.first(e.embedding_backward)
            + ends.last(e.head_backward)
        )
        apart = smooth_maximum(busy_forward, forward, LAUNCH_HALVINGS)
        apart = apart + smooth_maximum(busy_backward, backward, LAUNCH_HALVINGS)
        apart = apart + 2 * self.runtime.pass_seconds * (apart > 0)
        return smooth_remainder(apart, busy_forward + busy_backward, LAUNCH_HALVINGS)

    def hop_seconds(self, degrees: Degrees, gpus: Ints, shards: ShardCosts) -> Floats:
        """One transfer to the next stage: (rows, cuts), or (rows, 1) where cuts are alike.

        Stages are whole crews: neighbours share a domain only if both fit in it.
        Where a domain holds several stages, those at its ends, the slowest, have one link to the
        outside and one inside. On slow networks the mean of both stands for each; elsewhere links
        to the outside stand for all.
        """
        together, stages = self._stages_of_domain(degrees, gpus)
        sent = shards.ends.boundary_bytes[shards.shard_of]
        within = send_seconds(self.fabric, sent, np.False_)
        outside = send_seconds(self.fabric, sent, np.True_, degrees.stage_stride[:, None])
        if self.pool.network is Network.TCP:
            outside = np.where((together > 1)[:, None], (within + outside) / 2, outside)
        hop = np.where((together < stages)[:, None], outside, within)
        return np.where((degrees.pp > 1)[:, None], hop, 0.0)

    def hops_cross(self, degrees: Degrees, gpus: Ints) -> Bools:
        """Whether stages of this pool hand on between domains."""
        together, stages = self._stages_of_domain(degrees, gpus)
        return np.asarray(together < stages)

    def _stages_of_domain(self, degrees: Degrees, gpus: Ints) -> tuple[Ints, Ints]:
        """Stages that share a domain, and the number of all stages; stages are whole crews."""
        stages = np.maximum(gpus // (degrees.tp * degrees.cp * degrees.dp), 1)
        placed = place(stages, degrees.stage_stride, self.pool.domain_of(gpus))
        return placed.per_domain, stages


def _both(held: dict[str, Floats], kind: str) -> tuple[Floats, Floats]:
    """Parameters of a kind that train, and those that do not, as two passes gather them.

    Half of those that one pass reads stand for that.
    """
    return held[f"{kind}_parameters"], held[f"frozen_{kind}"] - held.pop(f"once_{kind}") / 2


def _transient(shards: ShardCosts, ends: PlacedEnds, held: Floats) -> Floats:
    """Bytes beside what is kept: of the head, or of the pass of a frozen model's layer."""
    of_pass = largest_held(held, shards.layers.pass_bytes[shards.shard_of])
    return np.maximum(ends.last(shards.ends.head_transient), of_pass)


def at_cuts(hop: Floats, stop: Ints) -> Floats:
    """Transfers (rows, cuts) at the cuts behind ranks; the widest where a rank has several."""
    if hop.shape[1] == 1:
        return hop
    return np.where(stop < 0, hop.max(axis=1)[:, None], np.take_along_axis(hop, stop, axis=1))


def _at_pace(seconds: RankSeconds, pace: Floats, host: float) -> RankSeconds:
    """The computation of all ranks at the pace of the slowest GPU, launches at the host's."""
    return replace(
        seconds,
        forward=seconds.forward * pace,
        backward=seconds.backward * pace,
        again=seconds.again * pace,
        messages_again=seconds.messages_again * pace,
        launch=seconds.launch * host,
        launch_forward=seconds.launch_forward * host,
        launch_again=seconds.launch_again * host,
    )


def _end_seconds(shards: ShardCosts, pace: Floats) -> EndSeconds:
    names = [field.name for field in fields(EndSeconds)]
    return EndSeconds(*(getattr(shards.ends, name)[shards.shard_of] * pace for name in names))
