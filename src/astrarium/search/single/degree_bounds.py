"""The least time of degrees, whatever their layouts and options.

No less than their micro-batches with perfectly even ranks, the shortest ramp and no exposed message
that could be hidden; and no less than what scarce memory makes them recompute.

Rank r of P has at least f = min(P - r, K) micro-batches of its layers in flight when it holds most:
at the end of its warm-up every chunk has so many, however layers are dealt. So ranks have room for
so many layers that keep everything. What is too much has to be saved: layers are redone as a whole,
or some modules of all layers. The bound takes the cheapest way to save a byte, in fractions, on the
ranks where it helps most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from astrarium.arrays import Bools, Floats, Ints, distinct_rows
from astrarium.cost.dealings import Turns, least_passes
from astrarium.cost.groups import data_ranks
from astrarium.cost.layouts import CostModel, ShardCosts
from astrarium.cost.memory import always_reserved, least_parameter_bytes
from astrarium.cost.units import Units
from astrarium.cost.update import update_on_host
from astrarium.search.fields import Fields, Rows
from astrarium.search.rule_filter import CausedRules, apply_rules
from astrarium.search.space import Space
from astrarium.strategy.columns import RECOMPUTE_MODULES, Degrees
from astrarium.value import Value

SHARD_FIELDS = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel")
AT_ONCE = 256  # grids whose shards are priced together: bounds memory
ROUNDING = 1e-9


class DegreeWork(Value, frozen=True):
    """Work of degrees for every micro-batch, on all ranks together: seconds, (rows,)."""

    degrees: Degrees
    device: Floats
    head: Floats
    launches: Floats
    pace: Floats  # of the slowest GPU
    chunks: Ints  # of a rank at most

    @classmethod
    def of(
        cls, model: CostModel, degrees: Degrees, shards: ShardCosts, most_chunks: Ints
    ) -> DegreeWork:
        c, e, s = shards.layers, shards.ends, shards.shard_of
        tuning, layers = model.tuning, model.layers_of_kind
        messages = np.minimum(
            c.tp_forward + c.tp_backward, c.tp_forward_overlapped + c.tp_backward_overlapped
        )
        messages = messages + c.cp_forward + c.cp_backward + c.ep_forward + c.ep_backward
        ends = e.embedding_forward + e.embedding_backward + e.head_forward + e.head_backward
        pace = model.pace(degrees, degrees.gpus)
        device = ((c.forward + c.backward) @ layers + ends)[s] * pace + (messages @ layers)[s]
        launches = (tuning.host * (c.launch_forward + c.launch_backward) @ layers)[s]
        pp, batches = degrees.pp, degrees.num_micro_batches
        chunks = np.where((pp > 1) & (batches % pp == 0), most_chunks, 1)
        head = (e.head_forward + e.head_backward)[s] * pace
        return cls(degrees, device, head, launches, pace, chunks)

    def take(self, rows: Ints | Bools) -> DegreeWork:
        seconds = self.device[rows], self.head[rows], self.launches[rows], self.pace[rows]
        return DegreeWork(self.degrees.take(rows), *seconds, self.chunks[rows])

    def least_passes(self, redone: Floats | float = 0.0) -> Floats:
        """Seconds of all passes at least, if so much is redone."""
        pp, batches = self.degrees.pp, self.degrees.num_micro_batches
        once = np.maximum(self.device + redone, self.launches)
        none, overlapped = np.zeros(len(once)), np.ones(len(once), bool)
        turns = (once / pp, once / 2, once / 2, none, pp, batches, self.chunks, overlapped)
        return least_passes(Turns(*turns, head=self.head))


class LeastWork:
    """GPU-seconds that an iteration takes at least, by what decides the shard of its degrees.

    All ranks of all stages together do the work of every micro-batch, however many they are.
    """

    def __init__(
        self, model: CostModel, space: Space, rules: CausedRules, constants: Mapping[str, Any]
    ) -> None:
        self._model, self._space, self._constants = model, space, constants
        known = {*SHARD_FIELDS, *constants}
        self._rules = [rule for rule in rules if rule[0].names <= known]
        self._place: dict[tuple[int, ...], int] = {}
        self._found = np.zeros((0, len(space.choices["ep"])))

    def within(self, grids: dict[str, Ints], latest: Floats, step: tuple[float, float]) -> Bools:
        """Choices of grids that may take so many seconds, by their work over the least of it."""
        work = self.of(grids)
        above, most = (part * max(work.min(), np.finfo(np.float64).tiny) for part in step)
        return (work > above) & (work <= np.minimum(latest * grids["gpus"], most)[:, None])

    def of(self, grids: dict[str, Ints]) -> Floats:
        """Of grids with all their choices; infinite where a rule about the shard rejects."""
        columns = [grids[name] for name in ("tp", "cp", "micro_batch")]
        first, index = distinct_rows(*columns, self._model.pool.domain_of(grids["gpus"]))
        of_first = [column[first].tolist() for column in columns]
        domains = self._model.pool.domain_of(grids["gpus"][first]).tolist()
        keys = list(zip(*of_first, domains, strict=True))
        new = [row for row, key in zip(first.tolist(), keys, strict=True) if key not in self._place]
        for start in range(0, len(new), AT_ONCE):
            rows = np.array(new[start : start + AT_ONCE])
            found = self._priced({name: column[rows] for name, column in grids.items()})
            self._found = np.concatenate([self._found, found])
        missing = (key for key in keys if key not in self._place)
        self._place.update({key: len(self._place) + n for n, key in enumerate(list(missing))})
        return self._found[np.array([self._place[key] for key in keys])[index]]

    def _priced(self, grids: dict[str, Ints]) -> Floats:
        space, number, choices = self._space, len(grids["tp"]), self._space.choices
        found = np.full((number, len(choices["ep"])), np.inf)
        most = (grids["tp"] * grids["cp"] * space.workload.global_batch)[:, None]
        row, choice = np.nonzero(most % (choices["ep"] * choices["etp"]) == 0)
        every = Degrees.of(
            {name: column[row] for name, column in grids.items()}
            | {name: column[choice] for name, column in choices.items()}
        )
        fields = Fields(self._constants, Rows(every))
        alive = apply_rules(self._rules, fields, np.ones(len(every), np.int64))[0]
        degrees = every.take(alive)
        work = DegreeWork.of(self._model, degrees, self._model.shard_costs(degrees), degrees.pp)
        seconds = np.maximum(work.device * self._least_pace / work.pace, work.launches)
        once = space.workload.global_batch * degrees.tp * degrees.cp / degrees.micro_batch
        found[row[alive], choice[alive]] = seconds * once * (1 - ROUNDING)
        return found

    @property
    def _least_pace(self) -> float:
        """Of any number of GPUs, whatever their work."""
        return float(self._model.tuning.compute * self._model.pool.slowdown)


class LeastSeconds(Value, frozen=True):
    """No strategy with some degrees is faster: arrays of (rows,).

    redone: what every micro-batch redoes, on all ranks together; after: once an iteration, behind
    the passes. The optimizer that leaves more memory to layers is not the one that is faster, so
    the iteration takes more than either part alone says.
    """

    iteration: Floats
    redone: Floats
    after: Floats

    def take(self, rows: Ints) -> LeastSeconds:
        return LeastSeconds(self.iteration[rows], self.redone[rows], self.after[rows])

    @classmethod
    def of(
        cls, model: CostModel, work: DegreeWork, shards: ShardCosts, modules: int
    ) -> LeastSeconds:
        """modules: those that can be redone, as bits."""
        scarce = ScarceMemory(model, work.degrees, shards, modules)
        every_step = model.runtime.step_seconds + model.tuning.step_seconds
        ways = []
        for on_host in (False, True):
            redone = work.pace * scarce.least_redone(on_host=on_host)
            after = scarce.least_update(on_host=on_host) + every_step
            ways.append((work.least_passes(redone) + after, redone, after))
        return cls(*(np.minimum(*both) for both in zip(*ways, strict=True)))


class ScarceMemory:
    """The least extra work of degrees because the memory of a GPU is limited."""

    def __init__(
        self, model: CostModel, degrees: Degrees, shards: ShardCosts, modules: int
    ) -> None:
        self._model, self._degrees, self._shards = model, degrees, shards
        runtime, c, s = model.runtime, shards.layers, shards.shard_of
        self._ranks = data_ranks(degrees)
        lasting = (1 + runtime.fragmentation) * (1 - runtime.activations_on_host)
        self._kept = (lasting * c.activations)[s]
        self._savings = _Savings.of(model, shards, lasting, modules)
        pp, batches = degrees.pp, degrees.num_micro_batches
        self._most = np.minimum(pp, batches)  # in flight on the first rank at least
        several = (pp > 1) & (batches % pp == 0)
        # At most: of a chunk, and of one on the last rank beyond what is counted of it.
        self._of_chunk = np.where(several, np.minimum(2 * pp, batches), self._most)
        self._of_last = self._of_chunk
        if len(model.layers_of_kind) == 1:
            self._of_last = np.where(several, np.minimum(self._of_chunk, 1 + pp), 1)
        moving = runtime.workspace_bytes + c.transient.min(axis=1)[s]
        if runtime.own_unit_memory:
            head = np.maximum(shards.ends.head_parameters, shards.ends.frozen_head)[s]
            units = Units(c.unit.max(axis=1)[s], head, head, model.workload.adapters is None)
            moving = moving + np.where(pp == 1, units.of_backward(runtime), 0.0)
        reserved = always_reserved(runtime, model.tuning)
        free = model.pool.usable_bytes - reserved - (1 + runtime.fragmentation) * moving
        self._free = np.maximum(free, 0.0)

    def least_redone(self, *, on_host: bool) -> Floats:
        """Seconds of a micro-batch on all ranks together, on a GPU as modelled.

        on_host: whether the host updates the parameters.
        """
        layers, most, of_chunk = self._model.layers_of_kind, self._most, self._of_chunk
        usual, held = int(layers.argmax()), self._parameters(on_host=on_host)
        fixed, kept = held[:, usual], self._kept[:, usual]
        room = self._free * _summed(fixed, kept, self._degrees.pp, most)
        first, last = fixed + kept * most, fixed + kept  # bytes of a usual layer on these ranks
        embedding, head = self._ends(on_host=on_host)
        room = room - embedding / first - head / last
        # Other kinds count as much of a usual layer as on the rank where they count least. Lighter
        # ones may be those of which most micro-batches are in flight.
        lighter = np.minimum(self._kept - kept[:, None], 0.0) * of_chunk[:, None]
        more = held - fixed[:, None] + lighter
        counts = 1 + np.minimum(more / first[:, None], more / last[:, None])
        too_much = np.maximum(counts @ layers - room, 0.0)
        # Of layers that are redone at most so many micro-batches count, at either end of the ranks.
        worth = np.maximum(of_chunk / first, self._of_last / last)
        of_all = most if len(layers) == 1 else of_chunk
        return self._savings.seconds(too_much / worth, too_much * first / of_all)

    def least_update(self, *, on_host: bool) -> Floats:
        """Seconds of the update of the mean rank: some rank takes no less."""
        model, c, e, s = self._model, self._shards.layers, self._shards.ends, self._shards.shard_of
        ends = (e.embedding_parameters + e.head_parameters) * e.trained
        dense, expert = self._ranks
        updated = (c.dense_parameters @ model.layers_of_kind + ends)[s] / dense
        updated = updated + (c.expert_parameters @ model.layers_of_kind)[s] / expert
        updated = updated / self._degrees.pp
        if on_host:
            sharing = np.minimum(model.pool.gpus_per_node, self._degrees.gpus)
            return update_on_host(model, updated, sharing)
        return model.ops.optimizer_step(updated, model.runtime.optimizer_moved_bytes)

    def _parameters(self, *, on_host: bool) -> Floats:
        """Bytes of a layer of each kind at least: (rows, kinds)."""
        c, s = self._shards.layers, self._shards.shard_of
        dense, expert = (ranks[:, None] for ranks in self._ranks)
        return least_parameter_bytes(
            self._model.runtime,
            self._degrees.pp[:, None],
            (c.dense_parameters[s], c.frozen_dense[s], dense),
            (c.expert_parameters[s], c.frozen_expert[s], expert),
            on_host=on_host,
        )

    def _ends(self, *, on_host: bool) -> tuple[Floats, Floats]:
        """Bytes of embedding and head at least."""
        e, s = self._shards.ends, self._shards.shard_of
        none, pp = np.zeros(len(s)), self._degrees.pp

        def held(parameters: Floats) -> Floats:
            trained = parameters * e.trained
            dense = trained[s], (parameters - trained)[s], self._ranks[0]
            experts = none, none, self._ranks[1]
            return least_parameter_bytes(self._model.runtime, pp, dense, experts, on_host=on_host)

        return held(e.embedding_parameters), held(e.head_parameters)


def _summed(held: Floats, kept: Floats, ranks: Ints, most: Ints) -> Floats:
    """Sum of 1 / (held + kept * min(j, most)) over j = 1 .. ranks, at most.

    The function is convex in j: at every number it is below its mean around it.
    """
    kept = np.maximum(kept, np.finfo(np.float64).tiny)
    first, last = 1 / (held + kept), 1 / (held + kept * most)
    between = np.log((held + kept * (most + 0.5)) / (held + kept * 1.5)) / kept
    return first + np.minimum(between, (most - 1) * first) + (ranks - most) * last


class _Savings(Value, frozen=True):
    """Bytes of a micro-batch that options save on all layers together, and their seconds.

    layers: redone as a whole, (shards,); kinds differ: at best those that save most are those that
    take least. modules: of all layers, (shards, modules).
    """

    layers: Floats
    seconds_layers: Floats
    seconds_all: Floats
    modules: Floats
    seconds_modules: Floats
    shard_of: Ints

    @classmethod
    def of(cls, model: CostModel, shards: ShardCosts, lasting: float, modules: int) -> _Savings:
        c, layers, number = shards.layers, model.layers_of_kind, model.layers_of_kind.sum()
        inputs = c.inputs * (not model.runtime.checkpoints_on_host)
        again = c.forward + c.tp_forward + c.cp_forward + c.ep_forward
        again = again - (c.forward_once + c.sent_once)
        chosen = [bit for bit in range(len(RECOMPUTE_MODULES)) if modules >> bit & 1]
        return cls(
            number * lasting * (c.activations - inputs).max(axis=1),
            number * again.min(axis=1),
            again @ layers,
            number * lasting * c.dropped[..., chosen].max(axis=1),
            np.einsum("skm,k->sm", c.module_recompute[..., chosen], layers),
            shards.shard_of,
        )

    def seconds(self, by_layers: Floats, by_modules: Floats) -> Floats:
        """The least time to save so many bytes in one way or the other."""
        share = by_layers / np.maximum(self.layers, 1.0)[self.shard_of]
        redone = np.where(
            share < 1, share * self.seconds_layers[self.shard_of], self.seconds_all[self.shard_of]
        )
        return np.minimum(redone, self._of_modules(by_modules))

    def _of_modules(self, needed: Floats) -> Floats:
        """With the modules that save most in their time; infinite if all are too few."""
        each = np.divide(
            self.seconds_modules,
            self.modules,
            out=np.full_like(self.modules, np.inf),
            where=self.modules > 0,
        )
        order = np.argsort(each, axis=1)
        saved, each = (np.take_along_axis(of, order, axis=1) for of in (self.modules, each))
        before, found = np.zeros(len(saved)), np.zeros(len(needed))
        for of_module, seconds in zip(saved.T, np.where(saved > 0, each, 0.0).T, strict=True):
            used = np.clip(needed - before[self.shard_of], 0.0, of_module[self.shard_of])
            found += used * seconds[self.shard_of]
            before = before + of_module
        return np.where(needed <= before[self.shard_of], found, np.inf)
