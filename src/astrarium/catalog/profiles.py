"""Profiles: what measurements say about the operators of one GPU type, in a few numbers each.

`data/profiles/` holds one file per fitted GPU type (`<name>.json`), `training.json` with factors
that were measured on one GPU and are carried to all others as ratios, and `chips.json` with the
number of multiprocessors of every type and the fitted type it resembles. The formulas that use
these numbers are in `astrarium.cost.efficiency`; nothing here computes a time.

Every file says where its numbers come from. All values are SI units or plain ratios.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from astrarium.errors import InputError
from astrarium.value import Value

FOLDER: Final = Path(__file__).parent / "data" / "profiles"
TRAINING_FILE: Final = "training.json"
CHIPS_FILE: Final = "chips.json"

# What reading a file of another shape raises.
DAMAGE: Final = (AttributeError, KeyError, TypeError, ValueError)

_T = TypeVar("_T")


class ProfileSource(StrEnum):
    """Where the numbers of an operator model come from, the best first."""

    MEASURED = "measured"  # forward and backward kernels timed on this GPU type
    TABLES = "tables"  # forward kernels from published tables, the rest carried over
    SPECIFICATION = "specification"  # the fit of a similar GPU on this one's figures


class GemmFit(Value, frozen=True):
    """A matrix product: how close to the hardware's figures it comes, and what it loses where."""

    efficiency: float  # of the peak rate, inside a full wave of large tiles
    sustained_efficiency: float  # of the peak rate that the power limit lets large products hold
    quantisation: float  # 1: partly filled waves cost a whole wave; 0: nothing is lost
    ramp_depth: float  # start and end of a tile, in steps of the reduced dimension
    split_ramp: float  # further ramps per tile when idle processors share the reduction
    tile_penalty: float  # slow-down per doubling of operand traffic on smaller tiles
    memory_efficiency: float  # of the memory bandwidth
    fixed_seconds: float


class RoleFit(Value, frozen=True):
    """A backward product against the forward product of the same output and reduction."""

    efficiency_ratio: float
    ramp_ratio: float
    memory_ratio: float
    exposed_bytes: float  # of each output element, whose traffic no arithmetic hides


class GroupedFit(Value, frozen=True):
    """Many products in one launch against one product of the same tiles."""

    efficiency_ratio: float
    fixed_seconds: float


class AttentionFit(Value, frozen=True):
    """Tiled attention in one direction."""

    efficiency: float  # of the peak rate for the matrix products
    softmax_flops: float  # time of one exponential, as FLOPs at that rate
    ramp_length: float  # start and end of a block of queries, in keys
    diagonal_length: float  # keys computed and masked away per block under a causal mask
    tail_share: float  # of the longest block that shows on top of the evenly spread work
    fixed_seconds: float


class AttentionFits(Value, frozen=True):
    """One attention kernel, both directions."""

    forward: AttentionFit
    backward: AttentionFit


class PointwiseFit(Value, frozen=True):
    """Bytes per element that a copy would move in the time the kernel takes."""

    eager_forward: float
    eager_backward: float
    fused_forward: float
    fused_backward: float


class StreamFit(Value, frozen=True):
    """Kernels bound by memory bandwidth."""

    efficiency: float
    fixed_seconds: float


class OptimizerFit(Value, frozen=True):
    """Gradient norm, clipping, fused Adam on fp32 master weights, cast to 16 bits."""

    bytes_per_parameter: float
    efficiency: float
    fixed_seconds: float


class TrainingFactors(Value, frozen=True):
    """What one GPU's measurements say about all: ratios, bytes, gaps between kernels."""

    gpu: str
    roles: Mapping[str, RoleFit]
    grouped: GroupedFit
    stream: StreamFit
    optimizer: OptimizerFit
    pointwise: Mapping[str, PointwiseFit]
    launch_seconds: float


class Profile(Value, frozen=True):
    """The fitted operators of one GPU type; `gemm` by number format, `attention` by kernel.

    Only GPU types whose attention was measured in both directions have fits of it.
    """

    gpu: str
    source: ProfileSource
    date: str
    origin: str
    relative_error: float
    gemm: Mapping[str, GemmFit]
    attention: Mapping[str, AttentionFits]
    attention_ratio: float  # of its time to that of the law, where there are no fits of it


class Family(Value, frozen=True):
    """GPU types that share a design, and the fitted type whose power limit they scale."""

    architecture: str
    like: str
    joules_per_flop: float  # in 16 bits
    flops_per_multiprocessor: float
    exponentials_per_clock: float  # of a multiprocessor
    # Rate of 16-bit products that add to a gradient, at the power limit, against that of others.
    held_by_accumulation: float
    assumed_error: float  # least relative error; more than 0 where no relative was measured


class Chip(Value, frozen=True):
    """The parts of one GPU type that its data sheet figures do not tell."""

    multiprocessors: int
    family: str


class Chips(Value, frozen=True):
    """All known chips by GPU type, and their families."""

    families: Mapping[str, Family]
    gpus: Mapping[str, Chip]


def profile_names() -> tuple[str, ...]:
    """GPU types with a fitted profile."""
    shared = {TRAINING_FILE, CHIPS_FILE}
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json") if path.name not in shared))


@cache
def find_profile(gpu: str) -> Profile | None:
    """The fitted profile of a GPU type, or None."""
    path = FOLDER / f"{gpu}.json"
    return read_profile(path) if path.is_file() else None


@cache
def training_factors() -> TrainingFactors:
    """The factors carried from the measured GPU to all others."""
    path = FOLDER / TRAINING_FILE
    data = read_object(path)
    try:
        return TrainingFactors(
            gpu=data["gpu"],
            roles={name: build(RoleFit, entry) for name, entry in data["roles"].items()},
            grouped=build(GroupedFit, data["grouped"]),
            stream=build(StreamFit, data["stream"]),
            optimizer=build(OptimizerFit, data["optimizer"]),
            pointwise={n: build(PointwiseFit, entry) for n, entry in data["pointwise"].items()},
            launch_seconds=number(data, "launch_seconds"),
        )
    except DAMAGE as error:
        raise damaged(path, error) from None


@cache
def chips() -> Chips:
    """Multiprocessor counts and families of the GPU types of the catalog."""
    path = FOLDER / CHIPS_FILE
    data = read_object(path)
    try:
        return Chips(
            families={name: _family(entry) for name, entry in data["families"].items()},
            gpus={name: Chip(int(n), family) for name, (n, family) in data["gpus"].items()},
        )
    except DAMAGE as error:
        raise damaged(path, error) from None


def read_profile(path: Path) -> Profile:
    """Read and check one profile file."""
    data = read_object(path)
    try:
        return Profile(
            gpu=data["gpu"],
            source=ProfileSource(data["source"]),
            date=data["date"],
            origin=data["origin"],
            relative_error=number(data, "relative_error"),
            gemm={dtype: build(GemmFit, entry) for dtype, entry in data["gemm"].items()},
            attention={
                kernel: AttentionFits(
                    build(AttentionFit, entry["forward"]), build(AttentionFit, entry["backward"])
                )
                for kernel, entry in data.get("attention", {}).items()
            },
            attention_ratio=number(data, "attention_ratio"),
        )
    except DAMAGE as error:
        raise damaged(path, error) from None


def _family(entry: Mapping[str, Any]) -> Family:
    return Family(
        architecture=entry["architecture"],
        like=entry["like"],
        joules_per_flop=number(entry, "joules_per_flop"),
        flops_per_multiprocessor=number(entry, "flops_per_multiprocessor"),
        exponentials_per_clock=number(entry, "exponentials_per_clock"),
        held_by_accumulation=number(entry, "held_by_accumulation"),
        assumed_error=number(entry, "assumed_error"),
    )


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected an object, got {type(data).__name__}")
    return data


def build(kind: type[_T], entry: Mapping[str, Any]) -> _T:
    """Fill a class of numbers from an entry that has exactly its fields."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(entry) - set(names))
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'")
    return kind(**{name: number(entry, name) for name in names})


def number(entry: Mapping[str, Any], key: str) -> float:
    """A finite number that is not negative."""
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}: expected a number, got {value!r}")
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{key}: expected a finite number >= 0, got {value}")
    return float(value)


def damaged(path: Path, error: Exception) -> InputError:
    """The complaint about a file of another shape."""
    what = f"missing key {error}" if isinstance(error, KeyError) else str(error)
    return InputError(f"{path}: not a usable profile: {what}; write it again with a calibration")
