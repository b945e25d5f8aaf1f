"""A bound on the layers of stages if what follows the passes may take only so long.

Gradients are reduced, parameters updated and gathered by every stage for all that it holds, and an
iteration waits for the longest of them. So passes and update share the seconds of an iteration:
where a slow pool holds few layers, others hold, and update, the more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.arrays import Bools, Floats, Ints
from astrarium.cost.mixed import ClusterModel, Contents, StageClass
from astrarium.strategy.columns import GRANULARITIES, METHODS, Degrees, Options
from astrarium.strategy.types import Granularity, Method
from astrarium.value import Value

PROBES_APART = 1.2  # from one number of layers that is asked about to the next
WAYS = 4  # to keep optimizer states: whole or divided, on the device or on the host


class UpdateRoom(Value, frozen=True):
    """Of cases on the same GPUs, whose layers are alike.

    seconds: (rows, ways, classes, ends, probes), never falling along the probes; ends: neither, the
    embedding, the head.
    """

    seconds: Floats
    numbers: Ints  # (probes,), layers
    row: Ints  # of every case
    way: Ints
    known: Bools  # (cases,): whether they say anything
    num_stages: int

    def least(self, filled: Floats) -> Floats:
        """Seconds if so many stages of each class have a layer at least: (cases,).

        filled: (cases, classes).
        """
        of_one = np.where(filled > 0, self.seconds[self.row, self.way, :, 0, 0], 0.0).max(axis=1)
        return np.where(self.known, of_one, 0.0)

    def layers(self, cases: Ints, left: Floats) -> Floats:
        """Most of stages in so many seconds: (cases, classes, stages)."""
        seconds = self.seconds[self.row[cases], self.way[cases]]
        left = np.where(self.known[cases], left, np.inf)[:, None, None, None]
        short = (seconds <= left).sum(axis=3)
        most = np.concatenate([[0.0], self.numbers[1:] - 1.0, [np.inf]])
        held = most[short]  # (cases, classes, ends)
        end_of = np.zeros(self.num_stages, np.int64)
        end_of[0], end_of[-1] = 1, 2
        return np.asarray(held[:, :, end_of])


def way_of(options: Options) -> Ints:
    """A number for how optimizer states are kept."""
    divided = (options.zero_stage > 0).astype(np.int64)
    return 2 * divided + options.offload_optimizer


class Updates:
    """Seconds once an iteration, of stages of every class: what was asked once is remembered.

    They depend on the GPUs of a class by its fast domain alone.
    """

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._known: dict[tuple[StageClass, int], dict[bytes, Floats]] = {}
        self.numbers = _numbers(len(model.workload.model.kind_of_layer))

    def seconds(
        self, degrees: Degrees, gpus: Sequence[int], classes: Sequence[StageClass]
    ) -> Floats:
        """`UpdateRoom.seconds` of rows of degrees on so many GPUs of each pool."""
        keys = [row.tobytes() for row in np.stack(degrees.columns(), axis=1)]
        found = np.empty((len(keys), WAYS, len(classes), 3, len(self.numbers)))
        for number, of in enumerate(classes):
            domain = self._model.domain_of(of, gpus)
            known = self._known.setdefault((of, domain), {})
            first = {key: row for row, key in enumerate(keys) if key not in known}
            if first:
                new = self._asked(degrees.take(np.array([*first.values()])), gpus, of)
                known.update(zip(first, new, strict=True))
            for row, key in enumerate(keys):
                found[row, :, number] = known[key]
        return found

    def _asked(self, degrees: Degrees, gpus: Sequence[int], of: StageClass) -> Floats:
        rows = np.repeat(np.arange(len(degrees)), WAYS)
        found = self._model.seconds_after(
            degrees.take(rows),
            _ways(len(degrees)),
            [of],
            np.tile(gpus, (len(rows), 1)),
            _probes(self.numbers),
        ).reshape(len(degrees), WAYS, 3, len(self.numbers))
        # More layers never take less; where a figure says so, the lower one counts.
        return np.minimum.accumulate(found[..., ::-1], axis=-1)[..., ::-1]


def _numbers(most: int) -> Ints:
    numbers = [1]
    while numbers[-1] < most:
        numbers.append(max(numbers[-1] + 1, int(numbers[-1] * PROBES_APART)))
    return np.array(numbers)


def _probes(numbers: Ints) -> Contents:
    layers = np.tile(numbers, 3)[:, None].astype(float)
    end = np.repeat(np.arange(3), len(numbers))
    return Contents(np.zeros((0, 0), np.int64), layers, end == 1, end == 2)


def _ways(copies: int) -> Options:
    """All ways for every row; nothing recomputed, all hidden that can be."""
    way = np.tile(np.arange(WAYS), copies)
    nothing, on = np.zeros(len(way), np.int64), np.ones(len(way), bool)
    return Options(
        zero_stage=way // 2,
        granularity=nothing + GRANULARITIES.index(Granularity.NONE),
        method=nothing + METHODS.index(Method.NONE),
        recompute_layers=nothing,
        recompute_modules=nothing,
        offload_optimizer=way % 2 == 1,
        overlap_grad_reduce=on,
        overlap_param_gather=on,
        overlap_p2p=on,
        overlap_tp=on,
    )
