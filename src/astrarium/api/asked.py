"""The values of flags after reading. `astrarium.api.flags` describes each flag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from astrarium.api.flags import Flag, read
from astrarium.value import Value

if TYPE_CHECKING:
    from astrarium.cluster import Cluster
    from astrarium.cluster.build import GpusGiven
    from astrarium.cost.checkpoints import Storage
    from astrarium.cost.training_run import Ramp, Spot
    from astrarium.model import Model
    from astrarium.model.lengths import Packing
    from astrarium.model.workload import ExpertMessages, Numerics, Precision
    from astrarium.search.outcome import Mode, Objective, Prefer

# A catalog name, a path, the content of a config.json or model file, or a model.
ModelGiven: TypeAlias = "str | Path | Mapping[str, Any] | Model"
ClusterGiven: TypeAlias = "str | Path | Cluster"  # a cluster file, or a cluster
Kind = TypeVar("Kind", bound="AskedValues")


class PriceFlags(Value, frozen=True, kw_only=True):
    """Prices of GPUs, and flags about them."""

    market: str | None = None
    region: str | None = None
    max_gpus: int | None = None
    prices: tuple[str, ...] | None = None  # files
    price: Mapping[str, float] | None = None  # dollars of a GPU and hour, by type
    discount: Mapping[str, float] | None = None  # shares, by cloud
    power_price: float | None = None  # dollars a kWh
    power_utilisation: float | None = None  # a share

    @property
    def uses_book(self) -> bool:
        return self.market is not None or bool(self.prices)


class AskedValues(PriceFlags, frozen=True, kw_only=True):
    """A workload and a cluster, and one strategy if that is asked about."""

    model: ModelGiven | None
    gpus: GpusGiven | None
    cluster: ClusterGiven | None
    seq_length: int | None
    global_batch: int | None
    precision: Precision
    profile: str | None
    numerics: Numerics | None = None  # None: strict, or as a configuration has it
    optimizer: str = "adamw"
    finetune: str | None = None  # None: all weights
    lora_rank: int | None = None
    lora_modules: str | None = None  # joined by commas
    freeze: str | None = None  # the name of layers at the front; None: all train
    lengths: str | None = None  # of sequences, as `model/lengths.py` reads them; None: all alike
    packing: Packing | None = None  # None: off, or as a configuration has it
    mtp_layers: int | None = None  # None: none, or as a configuration has it
    teacher: ModelGiven | None = None  # frozen models beside the trained one
    reference: ModelGiven | None = None
    expert_imbalance: float = 1.0
    # None: alltoall, or as a configuration has it; `plan` chooses.
    expert_messages: ExpertMessages | None = None
    tokens: int | None = None
    as_type: str | None = None  # model_type that a config.json is read as
    runtime: str | None = "megatron"  # None: the usual one
    strategy: str | Mapping[str, Any] | None = None
    given: frozenset[str] = frozenset()  # the flags that were given, and not left at their defaults


class PlanAsked(AskedValues, frozen=True, kw_only=True):
    """The further flags of `astrarium plan`."""

    objective: Objective
    budget: float | None
    deadline: float | None  # seconds
    mode: Mode
    rule: tuple[str, ...] | None
    top: int
    prefer: Prefer
    fit_chance: float | None  # a share
    memory_margin: int | None  # bytes
    mix: int | None
    epochs: float | None
    dataset_tokens: int | None
    rampup_batch: Ramp | None
    eval_every: int | None
    eval_iterations: int | None
    spot: Spot
    interruptions: Mapping[str, float] | None  # an hour, by type
    failures: float | None  # of any node an hour
    checkpoint_every: float | None  # seconds
    storage_bandwidth: Storage | None
    restart_time: float | None  # seconds
    co2: float | None  # kilograms a kWh
    compare: str | None
    compare_gpus: GpusGiven | None
    sensitivity: bool


def asked(
    kind: type[Kind],
    table: Mapping[str, Flag],
    given: Mapping[str, Any],
    *,
    from_python: bool = False,
) -> Kind:
    """The values given for the flags of a table; InputError names those that cannot be used."""
    names = frozenset(name for name in table if given.get(name) not in (None, ()))
    return kind(**read(table, given, from_python=from_python), given=names)
