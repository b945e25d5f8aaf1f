"""Models that torchtitan can build, by the names it gives them, and which of them a plan's is.

A flavor is a model of fixed sizes. It stands for the plan's model if all figures are equal, and
what decides no time as well: positions, activation, router, the epsilon of norms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from astrarium.export.software.model_facts import differing, trained_facts
from astrarium.model.blocks import Block, Model
from astrarium.plans.job import Job
from astrarium.value import Value

DATA: Final = Path(__file__).parent / "data" / "torchtitan_models.json"


class Flavor(Value, frozen=True):
    """A model of torchtitan; limits are those of its family in one version."""

    family: str
    name: str
    longest: int | None  # sequence that its rotary positions reach; None: any
    no_pipeline: str  # why not, "" if it has one
    no_context: str
    differences: Mapping[str, str]  # from the model of the plan, in words

    @property
    def label(self) -> str:
        return f"{self.family} {self.name}"


def flavor_of(model: Model, version: str) -> Flavor | None:
    """The flavor that has the sizes of this model, if there is one."""
    sizes = _sizes(model)
    for row in _rows(version):
        if sizes == {key: row[key] for key in sizes}:
            limits = _data()["families"][version][row["family"]]
            return Flavor(
                row["family"],
                row["names"][version],
                limits.get("longest"),
                limits.get("no_pipeline", ""),
                limits.get("no_context", ""),
                differing(trained_facts(model.config or {}) or {}, _facts(row)),
            )
    return None


def flavor_refused(job: Job, flavor: Flavor) -> str:
    """Why a plan for this flavor cannot be written, "" if it can."""
    strategy, length = job.strategy, job.workload.seq_length
    if flavor.longest and length > flavor.longest:
        return f"{flavor.label} takes sequences of up to {flavor.longest} tokens, not {length}"
    if strategy.pp > 1 and flavor.no_pipeline:
        return f"pp {strategy.pp}: {flavor.no_pipeline}"
    if strategy.cp > 1 and flavor.no_context:
        return f"cp {strategy.cp}: {flavor.no_context}"
    return ""


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_data()["facts"][row["family"]], **row.get("facts", {})}


def known_flavors(version: str) -> str:
    """All flavors of a version, for the user to read."""
    by_family: dict[str, list[str]] = {}
    for row in _rows(version):
        by_family.setdefault(row["family"], []).append(row["names"][version])
    return "; ".join(f"{family} {', '.join(names)}" for family, names in by_family.items())


def _sizes(model: Model) -> dict[str, Any]:
    first = model.blocks[0]
    attentions = first.attentions if isinstance(first, Block) else ()
    config = model.config or {}
    return {
        "model_type": config.get("model_type"),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "heads": attentions[0].heads if attentions else 0,
        "kv_heads": attentions[0].kv_heads if attentions else 0,
        "vocab": model.vocab,
        "parameters": model.parameters,
    }


def _rows(version: str) -> list[dict[str, Any]]:
    return [row for row in _data()["flavors"] if version in row["names"]]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_bytes())
    return data
