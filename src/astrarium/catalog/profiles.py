"""Profiles: measured operators of GPU types in a few numbers each, and what all types share.

`data/profiles/` holds one file per fitted GPU type, `training.json` with ratios that were measured
on one GPU and carried to all others, and `chips.json` with the multiprocessors and the family of
every type. `data/efficiency/law.json` is one fit of the operator formulas to all measured types,
with its errors for types left out; `<class>.json` are boosted trees that correct the formula of a
class (`benchmarks/fit_efficiency.py`). `astrarium.cost.efficiency` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from astrarium.errors import InputError
from astrarium.value import Value

FOLDER: Final = Path(__file__).parent / "data" / "profiles"
TRAINING_FILE: Final = "training.json"
CHIPS_FILE: Final = "chips.json"

Number: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

_T = TypeVar("_T")


class ProfileSource(StrEnum):
    """The source of the numbers of an operator model, the best first."""

    MEASURED = "measured"  # forward and backward kernels timed on this GPU type
    TABLES = "tables"  # forward kernels from published tables, the rest carried over
    SPECIFICATION = "specification"  # the fit of a similar GPU on this one's figures


class GemmFit(Value, frozen=True, forbid_unknown_fields=True):
    """A matrix product: how close to the hardware's figures it comes, and what it loses where."""

    efficiency: Number  # of the peak rate, inside a full wave of large tiles
    sustained_efficiency: Number  # of the peak rate that the power limit lets large products hold
    quantisation: Number  # 1: partly filled waves cost a whole wave; 0: nothing is lost
    ramp_depth: Number  # start and end of a tile, in steps of the reduced dimension
    split_ramp: Number  # additional ramps per tile when idle processors share the reduction
    tile_penalty: Number  # slow-down per doubling of operand traffic on smaller tiles
    memory_efficiency: Number  # of the memory bandwidth
    fixed_seconds: Number


class RoleFit(Value, frozen=True, forbid_unknown_fields=True):
    """A backward product against the forward product of the same output and reduction."""

    efficiency_ratio: Number
    ramp_ratio: Number
    memory_ratio: Number
    exposed_bytes: Number  # of each output element, whose traffic no arithmetic hides


class GroupedFit(Value, frozen=True, forbid_unknown_fields=True):
    """Many products in one launch against one product of the same tiles."""

    efficiency_ratio: Number
    fixed_seconds: Number


class AttentionFit(Value, frozen=True, forbid_unknown_fields=True):
    """Tiled attention in one direction."""

    efficiency: Number  # of the peak rate for the matrix products
    softmax_flops: Number  # time of one exponential, as FLOPs at that rate
    ramp_length: Number  # start and end of a block of queries, in keys
    diagonal_length: Number  # keys computed and masked away per block under a causal mask
    tail_share: Number  # of the longest block that shows on top of the evenly spread work
    fixed_seconds: Number


class AttentionFits(Value, frozen=True):
    """One attention kernel, both directions."""

    forward: AttentionFit
    backward: AttentionFit


class PointwiseFit(Value, frozen=True, forbid_unknown_fields=True):
    """Bytes per element that a copy would move in the time the kernel takes."""

    eager_forward: Number
    eager_backward: Number
    fused_forward: Number
    fused_backward: Number


class StreamFit(Value, frozen=True, forbid_unknown_fields=True):
    """Kernels bound by memory bandwidth."""

    efficiency: Number
    fixed_seconds: Number


class OptimizerFit(Value, frozen=True, forbid_unknown_fields=True):
    """Gradient norm, clipping, fused Adam on fp32 master weights, cast to 16 bits."""

    bytes_per_parameter: Number
    efficiency: Number
    fixed_seconds: Number


class TrainingFactors(Value, frozen=True):
    """Measurements of one GPU that hold for all: ratios, bytes, gaps between kernels."""

    gpu: str
    roles: Mapping[str, RoleFit]
    grouped: GroupedFit
    stream: StreamFit
    optimizer: OptimizerFit
    pointwise: Mapping[str, PointwiseFit]
    launch_seconds: Number


class Profile(Value, frozen=True):
    """The fitted operators of one GPU type; `gemm` by number format, `attention` by kernel.

    Only GPU types whose attention was measured in both directions have fits of it.
    """

    gpu: str
    source: ProfileSource
    date: str
    origin: str
    relative_error: Number
    gemm: Mapping[str, GemmFit]
    attention_ratio: Number  # of its time to that of the law, where there are no fits of it
    attention: Mapping[str, AttentionFits] = msgspec.field(default_factory=dict)


class NarrowFit(Value, frozen=True, forbid_unknown_fields=True):
    """Products in fewer bits than 16, of the vendor's library."""

    rate: Number  # against 16-bit products, at full clock
    joules_per_flop: Number


class Family(Value, frozen=True, forbid_unknown_fields=True):
    """GPU types that share a design, and the fitted type whose power limit they scale."""

    architecture: str
    like: str
    joules_per_flop: Number  # in 16 bits
    flops_per_multiprocessor: Number
    exponentials_per_clock: Number  # of a multiprocessor
    # Rate of 16-bit products that add to a gradient, at the power limit, against that of others.
    held_by_accumulation: Number
    assumed_error: Number  # least relative error; more than 0 where no relative was measured
    # By number format, where tables of inference kernels say little about training.
    narrow: Mapping[str, NarrowFit] = msgspec.field(default_factory=dict)


class Chip(Value, frozen=True, array_like=True):
    """The parts of one GPU type that its data sheet figures do not tell."""

    multiprocessors: int
    family: str


class Chips(Value, frozen=True):
    """All known chips by GPU type, and their families."""

    families: Mapping[str, Family]
    gpus: Mapping[str, Chip]


@cache
def find_profile(gpu: str) -> Profile | None:
    path = FOLDER / f"{gpu}.json"
    return read_values(path, Profile) if path.is_file() else None


@cache
def training_factors() -> TrainingFactors:
    """The factors carried from the measured GPU to all others."""
    return read_values(FOLDER / TRAINING_FILE, TrainingFactors)


@cache
def chips() -> Chips:
    """Multiprocessor counts and families of the GPU types of the catalog."""
    return read_values(FOLDER / CHIPS_FILE, Chips)


def read_values(
    path: Path, kind: type[_T], what: str = "profile", writer: str = "a calibration"
) -> _T:
    """Read a JSON file of this package and check it; a damaged file is explained slowly."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        from astrarium import documents

        try:
            return documents.load(path, kind)
        except InputError as error:
            raise InputError(
                f"not a usable {what}: {error}; write it again with {writer}"
            ) from None


EFFICIENCY: Final = Path(__file__).parent / "data" / "efficiency"
LAW_FILE: Final = "law.json"


class LeftOut(Value, frozen=True, forbid_unknown_fields=True):
    """The error of predictions for a GPU type that was never measured (log, deviation)."""

    same_design: Number  # a measured type has the same multiprocessors
    new_design: Number  # none has; the law alone


class Law(Value, frozen=True):
    """Fits for any GPU: products by number format, and the best forward attention it has.

    A FLOP costs joules in proportion to (reference_flops / FLOP/s of a multiprocessor)^exponent.
    """

    origin: str
    date: str
    reference_gpu: str  # its design is the one that softmax and joules are stated for
    reference_flops: Number  # per second, of one of its multiprocessors
    joules_exponent: Number
    gemm: Mapping[str, GemmFit]
    attention: AttentionFit
    attention_joules_per_flop: Number
    left_out: LeftOut


class Correction(Value, frozen=True):
    """Boosted trees over named features; they predict log(true seconds / seconds^slope ...).

    With `seconds` the formula's time without its fixed part, kept within `seconds_range`:
    correction = trees - (1 - slope) log(seconds), cut at plus and minus `limit`. The trees never
    fall along features of size, so a slope below 1 leaves them room to correct downwards while
    the corrected time still never falls.
    """

    features: tuple[str, ...]
    slope: Number
    seconds_range: tuple[float, float]
    limit: Number
    families: tuple[str, ...]  # designs it holds for; empty: all
    start: float
    split_features: Sequence[Sequence[int]]  # by tree; complete trees, by level from the left
    split_thresholds: Sequence[Sequence[float]]
    leaves: Sequence[Sequence[float]]


@cache
def law() -> Law:
    """The fits that hold for any GPU."""
    return read_values(EFFICIENCY / LAW_FILE, Law)


@cache
def find_correction(name: str) -> Correction | None:
    """The correction of one class of operators, or None."""
    path = EFFICIENCY / f"{name}.json"
    return read_values(path, Correction) if path.is_file() else None
