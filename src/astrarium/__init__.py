"""Astrarium: which GPUs, how many, and how to split a Transformer across them.

    plans = astrarium.plan("llama-2-70b", gpus="h100:64", global_batch=1024)
    plans.best.export("megatron", "out/")

Names are loaded when they are first used: importing the package itself takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from astrarium.api.calls import plan as plan
    from astrarium.api.calls import predict as predict
    from astrarium.api.calls import synthesize as synthesize
    from astrarium.api.operations import Replanned as Replanned
    from astrarium.api.operations import replan as replan
    from astrarium.api.plans import Plan as Plan
    from astrarium.api.plans import Plans as Plans
    from astrarium.api.plans import Program as Program
    from astrarium.api.plans import load as load
    from astrarium.api.plans import load_program as load_program
    from astrarium.cluster import Cluster as Cluster
    from astrarium.errors import InputError as InputError
    from astrarium.errors import NoFeasiblePlanError as NoFeasiblePlanError
    from astrarium.model.blocks import Model as Model

_HOMES = {
    "plan": "api.calls",
    "predict": "api.calls",
    "synthesize": "api.calls",
    "replan": "api.operations",
    "Replanned": "api.operations",
    "Plan": "api.plans",
    "Plans": "api.plans",
    "load": "api.plans",
    "Program": "api.plans",
    "load_program": "api.plans",
    "Model": "model.blocks",
    "Cluster": "cluster",
    "InputError": "errors",
    "NoFeasiblePlanError": "errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever has this name
    if name not in _HOMES:
        raise AttributeError(f"module 'astrarium' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"astrarium.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
