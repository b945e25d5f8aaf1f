"""The least time of pipelines over several pools: pure functions on arrays.

Everything rests on four chains of passes that no pipeline is shorter than (`cost.walks`). Let t
be the seconds of one micro-batch on each of P stages, T the longest, S their sum, K the number of
micro-batches, hop the fastest link:

- K (T + hop), the longest stage at work all the time; without the hop where transfers overlap;
- one chunk per rank: K t_s and the stages before s;
- one chunk per rank: the first micro-batch through all stages and back to s, then what s has not
  done yet, which is all but its warm-up, and the way back from s to the first (`warm_up_passes`);
- one chunk per rank: S + (K - 1) T less the idle time of the stages behind the longest, at most
  P T - S, hence 2 S + (K - 1 - P) T, and the links of the round trip and of every turn;
- several chunks per rank: the mean of `cost.dealings`, whatever the sizes of chunks.

S falls as T grows, because faster stages can then do more of the work; both ends of every piece on
which S is linear in T are looked at. With few micro-batches the second chain falls, too, and the
bound is where it meets the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.chains import zigzag_seconds, zigzags
from astrarium.cost.groups import slowest_of
from astrarium.cost.layouts import CostModel
from astrarium.cost.ramps import least_ramp
from astrarium.strategy.columns import Degrees
from astrarium.value import Value

HALVINGS = 16  # of the interval that holds the least bottleneck


class LayerParts(Value, frozen=True):
    """One micro-batch through one layer of every kind, the embedding, the head.

    (rows, kinds + 2): what the device computes and sends, what the host launches.
    """

    computed: Floats
    sent: Floats
    launched: Floats

    def take(self, rows: Ints) -> LayerParts:
        return LayerParts(self.computed[rows], self.sent[rows], self.launched[rows])

    def seconds(self, pace: Floats, numbers: Floats) -> Floats:
        """Either the device's or the host's time, whichever is more for so many of each."""
        device = self.computed * pace[:, None] + self.sent
        of_host = self.launched @ numbers > device @ numbers
        return np.where(of_host[:, None], self.launched, device)


def layer_parts(model: CostModel, degrees: Degrees, gpus: Ints) -> LayerParts:
    """Nothing is recomputed and all is hidden that can be."""
    shards = model.shard_costs(degrees, gpus)
    c, e = shards.layers, shards.ends
    messages = np.minimum(
        c.tp_forward + c.tp_backward, c.tp_forward_overlapped + c.tp_backward_overlapped
    )
    messages = messages + c.cp_forward + c.cp_backward + c.ep_forward + c.ep_backward
    ends = [e.embedding_forward + e.embedding_backward, e.head_forward + e.head_backward]
    computed = np.concatenate([c.forward + c.backward, np.stack(ends, axis=1)], axis=1)
    launched = model.tuning.host * (c.launch_forward + c.launch_backward)
    no_ends = ((0, 0), (0, 2))
    parts = LayerParts(computed, np.pad(messages, no_ends), np.pad(launched, no_ends))
    return parts.take(shards.shard_of)


def least_seconds_of_layers(model: CostModel, degrees: Degrees, gpus: Ints) -> Floats:
    """One micro-batch through one layer of every kind, the embedding, the head: (rows, kinds + 2).

    No sum of layers takes less.
    """
    pace = model.tuning.compute * slowest_of(degrees.gpus)
    numbers = np.append(model.layers_of_kind, (1.0, 1.0))
    return layer_parts(model, degrees, gpus).seconds(pace, numbers)


def speeds(seconds: Floats, numbers: Floats) -> Floats:
    """The most of the model that a stage does per second: (rows, pools).

    `seconds` (rows, pools, kinds + 2) of one layer of each kind, the embedding, the head; `numbers`
    of them in the model. Pools may be good at different kinds. Any price per kind gives a bound: a
    stage earns at most what its best kind pays. A layer pays the mean of the pools, an end so
    little that no pool would rather do it than layers. What takes a pool no time is free.
    """
    price = np.where((seconds > 0).all(axis=1), seconds.mean(axis=1), 0.0)
    best = np.zeros(seconds.shape[:2])
    for kind in range(seconds.shape[2] - 2):
        taken = seconds[:, :, kind]
        paid = np.divide(price[:, kind, None], taken, out=np.zeros_like(best), where=taken > 0)
        np.maximum(best, paid, out=best)
    price[:, -2:] = (seconds[:, :, -2:] * best[:, :, None]).min(axis=1)
    return best / (price @ numbers)[:, None]


def fastest_stages(speed: Floats, most: Floats | Ints, stages: Ints) -> Floats:
    """Stages on each pool if the fastest of so many are taken: (rows, pools).

    `most` says for how many each pool has room.
    """
    order = np.argsort(-speed, axis=1, kind="stable")
    room = np.take_along_axis(most, order, axis=1).astype(float)
    before = np.cumsum(room, axis=1) - room
    taken = np.clip(stages[:, None] - before, 0, room)
    found = np.empty_like(taken)
    np.put_along_axis(found, order, taken, axis=1)
    return found


def fastest_crews(speed: Floats, sizes: Ints, crew: Ints, stages: Ints) -> Floats:
    """The same where crews (rows, 1) may lie on several pools and go by the slowest.

    No more stages lie within the fastest pools than these have whole crews all together.
    """
    order = np.argsort(-speed, axis=1, kind="stable")
    within = np.minimum(np.cumsum(sizes[order], axis=1) // crew, stages[:, None])
    found = np.empty(speed.shape)
    np.put_along_axis(found, order, np.diff(within, axis=1, prepend=0).astype(float), axis=1)
    return found


def pipeline_bound(
    longest: Floats, speed: Floats, counts: Floats, batches: Ints | int, hop: Floats | float = 0.0
) -> Floats:
    """Seconds of 1F1B over stages of several speeds, none faster than `longest`: (rows,).

    speed, counts: (rows, classes), the share of the model that a stage does per second, and how
    many such stages there are.
    """
    stages = counts.sum(axis=1)
    order = np.argsort(-speed, axis=1, kind="stable")
    rate = np.take_along_axis(speed, order, axis=1)
    count = np.take_along_axis(counts, order, axis=1)
    at_work = np.cumsum(rate * count, axis=1)  # the first classes only
    turning = np.divide(1.0, at_work, out=np.zeros_like(at_work), where=at_work > 0)
    least = np.full(len(longest), np.inf)
    for candidate in [longest, *turning.T]:
        turn = np.maximum(candidate, longest)
        done = np.minimum(np.cumsum(turn[:, None] * rate * count, axis=1), 1.0)
        share = np.diff(done, axis=1, prepend=0.0)
        in_sum = np.divide(share, rate, out=np.zeros_like(share), where=rate > 0).sum(axis=1)
        least = np.minimum(least, 2 * in_sum + (batches - 1 - stages) * turn)
    # With few micro-batches a longer turn shortens that chain: where it meets K T counts.
    fastest = np.maximum(2 * batches / (stages + 1), 1) / rate[:, 0]
    least = np.where(batches > stages, least, fastest)
    links = np.where(batches > stages, (batches - 1 + 2 * (stages - 1)) * hop, 0.0)
    found = np.maximum(least + links, batches * (longest + hop))
    return np.where(stages > 1, found, batches * longest)


def interleaved_bound(
    speed: Floats, batches: Ints, virtual: Ints, links: Floats | float = 0.0
) -> Floats:
    """Seconds of all passes: (rows, ...), from speeds (rows, ..., stages); no stage stands at 0.

    With one chunk per rank every stage s takes K t_s and the sum of t before it. The weights that
    make all stages count alike in a mean of these chains fall by 1 - 1 / K from stage to stage.
    links: what the mean of the chains of several chunks has of transfers (`links_of_chains`).
    """
    rows = (-1, *(1,) * (speed.ndim - 1))
    k, v = batches.reshape(rows), virtual.reshape(rows)
    single = (speed * (1.0 - 1.0 / k) ** np.arange(speed.shape[-1])).sum(axis=-1)
    stages = (speed > 0).sum(axis=-1)
    slowest = np.where(speed > 0, speed, np.inf).min(axis=-1)
    k, v = k[..., 0], v[..., 0]
    weight = _weight_of_chains(slowest, stages, k, v)
    several = speed.sum(axis=-1) - weight * (stages - 1) / (2 * v)
    # So many of the stages may be at work all the time; the fastest of them do no more.
    busy = stages / least_ramp(stages, k, v)
    taken = np.clip(busy[..., None] - np.arange(speed.shape[-1]), 0.0, 1.0)
    busy_speed = (-np.sort(-speed, axis=-1) * taken).sum(axis=-1)
    several = np.minimum(several / (1.0 + weight * links), busy_speed)
    return np.asarray(k / np.where(v > 1, several, single))


def links_of_chains(links: Floats, virtual: Floats | Ints, overlapped: Bools) -> Floats:
    """Transfers in the mean of the chains of `cost.chains.plain_chains`: (rows, ...).

    links: (rows, ..., stages), behind the last stage to the first; only where they overlap.
    """
    shape = (-1, *(1,) * (links.ndim - 2))
    before = np.cumsum(links, axis=-1) - links
    around = (virtual.reshape(shape) - 1) * links.sum(axis=-1) + 2 * before.mean(axis=-1)
    return np.where(overlapped.reshape(shape), around, 0.0)


def _weight_of_chains(
    slowest: Floats, stages: Floats | Ints, batches: Floats | Ints, virtual: Floats | Ints
) -> Floats:
    """The weight of the mean chain of several chunks, per second of the bound.

    The mean, (K S + sum of (P - 1 - r) t_r / v) / P, counts as much as makes the first stage, where
    it weighs most, count by its speed; the chains K t_s count for the rest.
    """
    return stages * slowest / (batches + (stages - 1) / virtual)


def interleaved_speed(
    speed: Floats,
    counts: Floats | Ints,
    batches: Ints,
    virtual: Ints,
    hop: Floats | float = 0.0,
    *,
    ramps: bool = True,
) -> Floats:
    """Speed of stages together, from speeds and numbers of stages by class: (rows,).

    Speeds, micro-batches and chunks may be those of all rows. `interleaved_bound` is the
    micro-batches over it if the fastest stages come first. hop: the fastest link; ramps: whether
    there are exactly so many chunks, and no fewer.
    """
    order = np.argsort(-speed, axis=-1, kind="stable")
    rate = np.take_along_axis(speed, order, axis=-1)
    shared = speed.ndim == 1
    taken = counts[:, order] if shared else np.take_along_axis(counts, order, axis=-1)
    slowest = np.where(taken > 0, rate, np.inf).min(axis=-1)
    stages = taken.sum(axis=-1)
    weight = _weight_of_chains(slowest, stages, batches, virtual)
    weight = np.where(np.isfinite(slowest), weight, 0.0)
    several = (rate * taken).sum(axis=-1) - weight * (stages - 1) / (2 * virtual)
    several = several / (1.0 + weight * (virtual * stages - 1) * hop)
    if ramps:
        busy = stages / least_ramp(np.rint(stages).astype(np.int64), batches, virtual)
        before = np.cumsum(taken, axis=-1) - taken
        busy = np.clip(np.asarray(busy)[..., None] - before, 0.0, taken)
        several = np.minimum(several, (rate * busy).sum(axis=-1))
    fall = -np.log1p(-1.0 / np.maximum(batches, 1 + 1e-9))[..., None]
    left = np.exp(-fall * np.cumsum(taken, axis=-1))
    shares = np.empty_like(left)
    shares[..., 0] = 1.0 - left[..., 0]
    np.subtract(left[..., :-1], left[..., 1:], out=shares[..., 1:])
    single = (rate * (shares / -np.expm1(-fall))).sum(axis=-1)
    return np.asarray(np.where(virtual > 1, several, single))


def round_trip_bound(
    once: Floats,
    hop: Floats,
    stages: Ints | int,
    batches: Ints,
    virtual: Ints,
    head: Floats | float = 0.0,
) -> Floats:
    """Seconds of all passes with several chunks per rank, of any sizes: (rows,).

    once: of one micro-batch on all ranks; hop: the fastest link; head: seconds of the last chunk,
    part of `once`. Figures out of the chains of `cost.chains.plain_chains`: the way of one
    micro-batch to the end and back, with the heads of all others in between, or with ways down and
    up; and the mean over all ranks.
    """
    there_and_back = once + 2 * (virtual * stages - 1) * hop
    between = zigzag_seconds(once, (stages - 1) * hop, stages, batches, virtual)
    there_and_back = there_and_back + np.maximum((batches - 1) * head, between)
    mean = batches / stages * once + (2 * (virtual - 1) * stages + stages - 1) * hop
    busy = least_ramp(np.asarray(stages), batches, virtual) * batches / stages * once
    return np.maximum(np.maximum(there_and_back, mean), busy)


def least_iteration(
    enough: Callable[[Floats, Floats], Bools],
    passes: Floats,
    after: Floats,
    worst: Floats,
    steps: int,
) -> Floats:
    """Seconds of all passes and of what follows them, at least; infinite if more than the worst.

    Without a worst nothing is known but their sum.

    passes, after: of each at least; `enough` says whether so many seconds of both are enough, and
    more of either always are. What both share is looked at in steps: their sum falls by one while
    some way to share it is enough, and a way that is not enough stays so for lesser sums.
    """
    limited = np.isfinite(worst)
    step = np.where(limited, np.maximum(worst - passes - after, 0.0), 0.0) / steps
    begun, total = np.zeros(step.shape), np.full(step.shape, float(steps))
    for _ in range(steps):
        able = enough(passes + (begun + 1) * step, after + (total - begun) * step)
        begun, total = np.where(able, begun, begun + 1), np.where(able, total - 1, total)
    found = (total < steps) & (passes + after <= worst)
    return np.where(found | ~limited, passes + after + total * step, np.inf)


def links_bound(
    stage: Floats, links: Floats, batches: Ints, virtual: Ints, overlapped: Bools
) -> Floats:
    """The least time of pipelines because of their links: (rows, ...).

    stage: (rows, ..., stages), seconds of a stage for one micro-batch at least; links: the same,
    one transfer to the next stage, behind the last one to the first. Transfers that do not overlap
    are part of every turn, each by itself or with several chunks both ways at once; others still
    delay whatever goes round.
    """
    rows = (-1, *(1,) * (links.ndim - 2))
    k, v, hidden = batches.reshape(rows), virtual.reshape(rows), overlapped.reshape(rows)
    out, into = links.copy(), np.roll(links, 1, axis=-1)
    out[..., -1] = into[..., 0] = 0.0
    held = np.where(v[..., None] > 1, v[..., None] * np.maximum(out, into), out + into)
    at_work = k * (stage + held).max(axis=-1)
    once, around = out.sum(axis=-1), links.sum(axis=-1)
    stages = links.shape[-1]
    rounds = np.maximum(
        (k / stages - 1) * (v - 1) * around,
        zigzag_seconds(stage.sum(axis=-1), once, stages, k, v),
    )
    rounds = rounds + 2 * (once + (v - 1) * around)
    passing = np.maximum(np.where(v > 1, rounds, 0.0), k * stage.max(axis=-1))
    return np.where(hidden, passing, at_work)


def least_crossing(hop: Floats, used: Bools, possible: Bools) -> Floats:
    """The slowest link that cannot be avoided: every pool in use has a neighbour. (rows,)."""
    return nearest_pools(hop, used, possible).max(axis=1)


def nearest_pools(hop: Floats, used: Bools, possible: Bools) -> Floats:
    """Seconds to the nearest other pool, of pools in use beside others: (rows, pools).

    hop: (rows or 1, pools, pools); used, possible: (rows, pools), pools that are in use for sure,
    and those that may be.
    """
    reached = possible[:, None, :] & ~np.eye(hop.shape[-1], dtype=bool)
    nearest = np.where(reached, hop, np.inf).min(axis=2)
    return np.where(used & np.isfinite(nearest), nearest, 0.0)


def crossing_bound(
    hop: Floats, stages: Ints, batches: Ints, virtual: Ints, *, single_waits: bool
) -> Floats:
    """The least time of pipelines if some link takes so long: arrays of (rows,).

    single_waits: transfers do not overlap where a rank has a single chunk.
    """
    # Overlapped, the way there and back, then round trips of the two stages beside the link; the
    # second one has so many turns to spare wherever it is (`cost.walks.RoundTrips`).
    rounds = 1 + np.maximum(batches - stages + 1, 0) // 2
    single = (batches if single_waits else np.minimum(batches, 2 * rounds)) * hop
    # A ring of chunks comes back over another link of the same pool.
    rounds = 2 * zigzags(1, stages, batches, virtual)[0]
    around = 2 * (1 + 2 * (virtual - 1))
    around = around + np.maximum(2 * virtual * (batches / stages - 1), rounds)
    several = np.minimum(batches * virtual, around) * hop
    return np.where(virtual > 1, several, single)


def waiting_bound(speed: Floats, counts: Floats | Ints, own: Floats, nearest: Floats) -> Floats:
    """Seconds of a turn where transfers keep both partners busy: (rows,), one chunk per rank.

    speed, own, nearest: (rows or 1, pools), the share of the model that a stage does per second, a
    transfer within the pool and the fastest one to another pool; counts: (rows, pools), stages of
    pools one after another. Only the first and the last stage of all have a single link.
    """
    sides = np.where(counts > 0, 2 * np.maximum(counts - 1, 0.0) * own + 2 * nearest, 0.0) * speed
    free = np.sort(np.where(counts > 0, nearest * speed, 0.0), axis=1)[:, -2:].sum(axis=1)
    return np.asarray((1 + sides.sum(axis=1) - free) / (counts * speed).sum(axis=1))


def ring_bound(
    around: Floats, longest: Floats, once: Floats, stages: Ints, batches: Ints, virtual: Ints
) -> Floats:
    """Seconds of all passes with several chunks per rank, whatever overlaps: (rows,).

    around: all links of the ring, `longest` of which takes longest; once: one micro-batch on all
    stages. The first micro-batch goes to the end, the last one comes back, and every group between
    them goes round over the links of all chunks but the last, whose passes some rank does for the
    whole group.
    """
    there_and_back = once + 2 * (virtual * around - longest)
    in_groups = (batches / stages - 1) * ((virtual - 1) * around + once / 2)
    zigzag = zigzag_seconds(once, around - longest, stages, batches, virtual)
    return there_and_back + np.maximum(in_groups, zigzag)


def warm_up_passes(stages: int, batches: Ints) -> Ints:
    """Forward passes of 1F1B on a stage before its first backward pass: (rows, stages)."""
    return np.minimum(stages - np.arange(stages), batches[:, None])


def least_sum(rate: Floats, most: Floats, fewest: Floats, whole: Floats | int) -> Floats:
    """The least time of layers together if the slowest hold as few as they can: (rows, orders).

    rate: (rows, classes), of one layer; most: (rows, orders, classes), layers of all stages of a
    class; fewest: (orders, classes).
    """
    slowest = np.argsort(-rate, axis=1, kind="stable")
    rate = np.take_along_axis(rate, slowest, axis=1)[:, None, :]
    most = np.take_along_axis(most, slowest[:, None, :], axis=2)
    spare = most - fewest[:, slowest].swapaxes(0, 1)
    excess = np.maximum(most.sum(axis=2) - whole, 0.0)[..., None]
    before = np.cumsum(spare, axis=2) - spare
    taken = np.clip(excess - before, 0.0, np.maximum(spare, 0.0))
    return np.asarray((rate * (most - taken)).sum(axis=2))


def fastest_first(speed: Floats, counts: Floats, stages: int) -> Floats:
    """Speeds of stages in falling order, zero behind the last one: (rows, stages)."""
    order = np.argsort(-speed, axis=1, kind="stable")
    ends = np.cumsum(np.take_along_axis(counts, order, axis=1), axis=1)
    place = (np.arange(stages) >= ends[:, :, None]).sum(axis=1)
    padded = np.pad(np.take_along_axis(speed, order, axis=1), ((0, 0), (0, 1)))
    return np.take_along_axis(padded, place, axis=1)


class StageRoom(Value, frozen=True, dict=True):
    """Work that stages can hold in so many seconds, for many orders of stages and cases.

    seconds: (classes, cases, contents), ascending along the contents.
    most: (stages, classes, cases, contents + 1), the most work among so many of the first of
    these contents that fit at this place.
    class_of: (orders, stages).
    """

    seconds: Floats
    most: Floats
    class_of: Ints

    def work(self, longest: Floats) -> Floats:
        """The work that all stages hold if none takes longer: (orders, cases)."""
        stages, _, cases, _ = self.most.shape
        case, of = np.arange(cases)[None, None, :], self.class_of[:, :, None]
        index = self._fast(longest)[np.arange(len(longest))[:, None, None], of, case]
        stage = np.arange(stages)[None, :, None]
        return self.most[stage, of, case, index].sum(axis=1)

    def _fast(self, longest: Floats) -> Ints:
        """The number of contents that take no longer: (orders, classes, cases).

        All are looked up in one row, where those of each class and case come one after another.
        """
        row, begin = self._in_one_row
        classes, cases, contents = self.seconds.shape
        first = np.arange(classes * cases).reshape(classes, cases) * contents
        found = np.searchsorted(row, (longest[:, None, :] + begin).reshape(-1), side="right")
        return np.clip(found.reshape(-1, classes, cases) - first, 0, contents)

    @cached_property
    def _in_one_row(self) -> tuple[Floats, Floats]:
        """Seconds, those of each class and case after all others; where each begins."""
        classes, cases, _ = self.seconds.shape
        apart = 2 * float(self.seconds.max(initial=0.0)) + 1.0
        begin = apart * np.arange(classes * cases, dtype=float).reshape(classes, cases)
        slack = 4 * np.spacing(apart * classes * cases)  # sums are rounded; none may be missed
        return (self.seconds + begin[..., None] - slack).reshape(-1), begin

    def least_longest(self, whole: Floats) -> tuple[Floats, Floats]:
        """Two figures with the least bottleneck in between; infinite if memory allows none."""
        orders = len(self.class_of)
        high = np.broadcast_to(self.seconds[:, :, -1].max(axis=0), (orders, self.most.shape[2]))
        able = self.work(high) >= whole
        low = np.zeros_like(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self.work(middle) >= whole
            high, low = np.where(enough, middle, high), np.where(enough, low, middle)
        return np.where(able, low, np.inf), np.where(able, high, np.inf)


def stage_room(seconds: Floats, fits: Bools, work: Floats, class_of: Ints) -> StageRoom:
    """seconds: (cases, classes, contents); fits: (stages, classes, cases, contents)."""
    by_class = np.moveaxis(seconds, 1, 0)
    ranks = np.argsort(by_class, axis=2, kind="stable")
    ascending = np.take_along_axis(by_class, ranks, axis=2)
    nothing = -work.sum() - 1.0  # a stage that can hold nothing spoils the whole pipeline
    held = np.take_along_axis(np.where(fits, work, nothing), ranks[None], axis=3)
    most = np.maximum.accumulate(held, axis=3)
    first = np.full((*most.shape[:3], 1), nothing)
    return StageRoom(ascending, np.concatenate([first, most], axis=3), class_of)
