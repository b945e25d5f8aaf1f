"""Operators of a device as straight lines through its own measurements.

A core of a processor has no tiles, waves or power limit to model. What it measured itself
(`astrarium calibrate --device cpu`) is enough: for each operator a few seconds per call, FLOP or
element, never negative, so that more work is never faster. The classes have the interface of
`OperatorModel`, and everything else of the cost model is the same.

Names of laws: `linear`; `attention_forward` and `_backward`; a kind of `Pointwise` with either
ending; `update`. Not modelled: caches that hold operands from one operator to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from msgspec import field
from numpy.typing import ArrayLike

from astrarium.arrays import Floats
from astrarium.catalog import Gpu
from astrarium.catalog.profiles import Profile, ProfileSource, training_factors
from astrarium.cluster.interconnect import Collective, Line, LinkKind, OperationProfile
from astrarium.cost.collectives import Fabric
from astrarium.cost.efficiency import GemmRole, OperatorModel, Pointwise, operator_model
from astrarium.cost.tuning import Tuning
from astrarium.errors import InputError, flag

Laws = Mapping[str, tuple[float, ...]]

LINEAR = "linear"
UPDATE = "update"
ATTENTION = "attention"
PASS_NAMES = ("forward", "backward")
# Chains that no model of a processor's runtime has, and what stands for them.
STAND_INS = {"complex_rotary": "rotary", "dropout_residual": "residual"}
RESIDUAL_BYTES = 12.0  # read and written for an element of a residual addition, in fp32


def linear_terms(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> list[Floats]:
    """Costs of a product of a weight w[n,k] with m tokens: a call, FLOPs, elements."""
    rows, columns, depth = (np.asarray(size, np.float64) for size in (m, n, k))
    moved = rows * depth + columns * depth + rows * columns
    return [np.ones_like(moved), 2.0 * rows * columns * depth, moved]


def attention_terms(
    batch: ArrayLike, heads: ArrayLike, q_length: ArrayLike, kv_length: ArrayLike, dims: ArrayLike
) -> list[Floats]:
    """The same of attention that stores its scores: a call, scores, FLOPs, elements of heads."""
    sizes = (np.asarray(size, np.float64) for size in (batch, heads, q_length, kv_length, dims))
    sequences, count, queries, keys, width = sizes
    scores = sequences * count * queries * keys
    return [
        np.ones_like(scores * width),
        scores,
        2.0 * scores * width,
        sequences * count * (queries + keys) * width / 2.0,
    ]


class LawModel(OperatorModel, frozen=True, dict=True):
    """Operator times of a device that is known by its laws alone."""

    laws: Laws = field(default_factory=dict)

    @property
    def launch_seconds(self) -> float:
        return 0.0

    @property
    def tensor_seconds(self) -> float:
        """Of an update, for each tensor."""
        return self._law(UPDATE)[0] / self.gpu.share

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, **_: object) -> Floats:
        return self._seconds(LINEAR, linear_terms(m, n, k))

    def grouped_gemm(
        self, groups: ArrayLike, m_per_group: ArrayLike, n: ArrayLike, k: ArrayLike, **_: object
    ) -> Floats:
        """One product after another."""
        return np.asarray(groups, np.float64) * self.gemm(m_per_group, n, k)

    def attention(
        self,
        batch: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        q_length: ArrayLike,
        kv_length: ArrayLike,
        key_dim: ArrayLike,
        value_dim: ArrayLike,
        *,
        backward: bool,
        **_: object,
    ) -> Floats:
        """Scores, softmax and values. All scores are computed, whatever the mask."""
        dims = np.asarray(key_dim, np.float64) + np.asarray(value_dim, np.float64)
        terms = attention_terms(batch, heads, q_length, kv_length, dims)
        return self._seconds(f"{ATTENTION}_{PASS_NAMES[backward]}", terms)

    def streaming(self, num_bytes: ArrayLike) -> Floats:
        elements = np.asarray(num_bytes, np.float64) / RESIDUAL_BYTES
        return self.pointwise(Pointwise.RESIDUAL, elements, backward=False, fused=False)

    def pointwise(
        self, kind: Pointwise, elements: ArrayLike, *, backward: bool, fused: bool
    ) -> Floats:
        count = np.asarray(elements, np.float64)
        name = f"{STAND_INS.get(kind, kind)}_{PASS_NAMES[backward]}"
        if name not in self.laws:  # it does nothing in this pass
            return np.zeros_like(count)
        return self._seconds(name, [np.ones_like(count), count])

    def optimizer_step(self, parameters: ArrayLike, moved_bytes: float | None = None) -> Floats:
        count = np.asarray(parameters, np.float64)
        return self._seconds(UPDATE, [np.zeros_like(count), count])

    def settled_seconds(
        self, flops: ArrayLike, dtype: str, role: GemmRole = GemmRole.FORWARD
    ) -> Floats:
        """No power limit is known."""
        return np.zeros_like(np.asarray(flops, np.float64))

    def settled_attention_seconds(
        self, flops: ArrayLike, key_dim: ArrayLike, value_dim: ArrayLike, *, backward: bool
    ) -> Floats:
        return np.zeros_like(np.asarray(flops, np.float64))

    @property
    def fills_multiprocessors(self) -> bool:
        return False

    def _law(self, name: str) -> tuple[float, ...]:
        law = self.laws.get(name)
        if law is None:
            lacking = f"a profile with '{name}'" if self.laws else "a profile"
            raise InputError(
                f"{self.gpu.name}: cores differ, and this one has no time without {lacking};"
                f" measure it with `astrarium calibrate --device cpu`, then give {flag('profile')}",
                "profile",
            )
        return law

    def _seconds(self, name: str, terms: list[Floats]) -> Floats:
        """Nothing takes no time; everything else what its law says, longer on a part of a core."""
        total = sum(
            (term * each for term, each in zip(terms, self._law(name), strict=True)),
            np.zeros_like(terms[-1]),
        )
        return np.where(terms[-1] > 0, total / self.gpu.share, 0.0)


def measured_links(fabric: Fabric, messages: Laws) -> Fabric:
    """The links with what messages between two cores took, where that was measured.

    Larger groups pass on more messages of the same kind. A rate of the link's own is not needed:
    bytes are held against that of a send, which the pool has.
    """
    if not messages or fabric.link.kind is not LinkKind.GLOO:
        return fabric
    send_call, send_byte = messages["send"]
    # Hops, and shares of the data that a rank of two sends; see `astrarium.cost.collectives`.
    known = {
        Collective.ALL_REDUCE: (messages["all_reduce"], 2.0, 1.0),
        Collective.ALL_GATHER: (messages["all_gather"], 1.0, 0.5),
        Collective.REDUCE_SCATTER: (messages["reduce_scatter"], 1.0, 0.5),
        Collective.ALL_TO_ALL: (messages["send"], 1.0, 1.0),
    }
    lines = len(fabric.network.lines)
    operations = {
        name: OperationProfile((Line(0.0, call / hops, sent * send_byte / byte),) * lines, 0.0, ())
        for name, ((call, byte), hops, sent) in known.items()
    }
    return replace(fabric, link=replace(fabric.link, hop=send_call, operations=operations))


def operators_of(gpu: Gpu, tuning: Tuning) -> OperatorModel:
    """The operator model of a device as it was measured: laws for cores, ratios for GPUs."""
    if gpu.is_processor:
        return law_model(gpu, tuning.laws, tuning.law_error)
    return operator_model(gpu).tuned(tuning.operators)


def law_model(gpu: Gpu, laws: Laws, relative_error: float) -> LawModel:
    """The operator model of a device with these laws; without any, no operator has a time."""
    empty = Profile(gpu.name, ProfileSource.MEASURED, "", "", relative_error, {}, 1.0)
    return LawModel(
        gpu=gpu,
        source=ProfileSource.MEASURED,
        relative_error=relative_error,
        profile=empty,
        factors=training_factors(),
        multiprocessors=1,
        design="",
        laws=laws,
    )
