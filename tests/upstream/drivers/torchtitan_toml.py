"""torchtitan 0.2.2: a TOML file read by its ConfigManager; degrees checked by its ParallelDims."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tempfile
import typing
from types import ModuleType
from typing import Any

import torch
import typeguard
from upstream.drivers.serving import serve, without_kernels

without_kernels()

from torchtitan.config import ConfigManager, JobConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402


def answer(request: dict[str, Any]) -> Any:
    """A file, the sizes of a model of the registry, or parameters of parts with an optimizer."""
    if "parts" in request:
        return optimized(request)
    return flavor(request) if "flavor" in request else configuration(request)


STAND_INS = (
    "datasets",
    "datasets.distributed",
    "torch.utils.tensorboard",
    "torchdata",
    "torchdata.stateful_dataloader",
)


def optimized(request: dict[str, Any]) -> list[int]:
    """Parts of a model, each as wide as `parts` says (0: nothing), with torchtitan's optimizer."""
    from torchtitan.components.optimizer import OptimizersContainer

    made = [torch.nn.Linear(n, n) if n else torch.nn.Module() for n in request["parts"]]
    optimizers = OptimizersContainer(made, torch.optim.AdamW, {"lr": 1e-4})
    return [len(one.param_groups) for one in optimizers]


class StandIn(ModuleType):
    """A module that reads data or writes logs; models need nothing but its names."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def flavor(request: dict[str, Any]) -> Any:
    """`family` and `flavor`; parameters are counted where `build` is asked for."""
    for name in STAND_INS:
        sys.modules.setdefault(name, StandIn(name))
    spec = importlib.import_module(f"torchtitan.models.{request['family']}").get_train_spec()
    model = spec.model_args[request["flavor"]]
    model.update_from_config(JobConfig())
    count = None
    if request["build"]:
        with torch.device("meta"):
            count = sum(weight.numel() for weight in spec.model_cls(model).parameters())
    return {
        "layers": model.n_layers,
        "hidden": model.dim,
        "heads": model.n_heads,
        "kv_heads": getattr(model, "n_kv_heads", None) or model.n_heads,
        "vocab": model.vocab_size,
        "parameters": count,
        **facts(model),
        "pipeline": spec.pipelining_fn is not None,
        "context": request["family"] != "gpt_oss" and getattr(model, "attn_type", "sdpa") == "sdpa",
    }


def facts(model: Any) -> dict[str, Any]:
    """What decides neither time nor memory."""
    stretch = getattr(model, "rope_scaling_args", None)
    factor = stretch.scaling_factor if stretch else getattr(model, "rope_factor", None)
    found = {
        "theta": model.rope_theta,
        "rope_type": "llama3" if stretch else "yarn" if factor else "",
        "factor": factor,
        "epsilon": model.norm_eps,
    }
    if getattr(model, "moe_enabled", "moe_args" in dir(model)):
        router = model.moe_args
        found |= {
            "score": router.score_func,
            "normalised": router.route_norm,
            "route_scale": router.route_scale,
            "groups": router.num_expert_groups or 1,
            "group_topk": router.num_limited_groups or 1,
        }
    return found


def configuration(request: dict[str, Any]) -> Any:
    """`text` of the file, and `world_size`."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(request["text"])
        file.flush()
        config = ConfigManager().parse_args(
            [f"--job.config_file={file.name}", *request.get("more", ())]
        )
    refuse_other_types(config, "")
    degrees = config.parallelism
    dims = ParallelDims(
        dp_replicate=degrees.data_parallel_replicate_degree,
        dp_shard=degrees.data_parallel_shard_degree,
        cp=degrees.context_parallel_degree,
        tp=degrees.tensor_parallel_degree,
        pp=degrees.pipeline_parallel_degree,
        ep=degrees.expert_parallel_degree,
        etp=degrees.expert_tensor_parallel_degree,
        world_size=request["world_size"],
    )
    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp")
    return {"config": config, "degrees": {name: getattr(dims, name) for name in names}}


def refuse_other_types(section: Any, path: str) -> None:
    """torchtitan takes a text for a number; the run would fail later."""
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        place = f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            refuse_other_types(value, f"{place}.")
            continue
        try:
            typeguard.check_type(value, hints[field.name])
        except typeguard.TypeCheckError as error:
            raise TypeError(f"{place}: {value!r} {error}") from error


serve(answer)
