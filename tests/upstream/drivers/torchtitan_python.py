"""torchtitan 0.3.0: a module with a function that returns a configuration."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from upstream.drivers.serving import serve, without_kernels

torch = without_kernels("torch._functorch.partitioners")  # brings the whole compiler

from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.models.common import Linear, RMSNorm  # noqa: E402


def answer(request: dict[str, Any]) -> Any:
    """A module, the sizes of a model of the registry, or parameters of parts with an optimizer."""
    if "parts" in request:
        return optimized(request)
    return flavor(request) if "flavor" in request else configuration(request)


def flavor(request: dict[str, Any]) -> Any:
    """`family` and `flavor`; parameters are counted where `build` is asked for."""
    registry = importlib.import_module(f"torchtitan.models.{request['family']}")
    model = registry.model_registry(request["flavor"], attn_backend="flex").model
    attention = model.first_attention
    return {
        "layers": len(model.layers),
        "hidden": model.dim,
        "heads": attention.n_heads,
        "kv_heads": getattr(attention, "n_kv_heads", None) or attention.n_heads,
        "vocab": model.vocab_size,
        "longest": model.max_seq_len,
        **facts(model, attention),
        "parameters": parameters(model) if request["build"] else None,
    }


STRETCHES = {"llama": "llama3", "yarn": "yarn", "none": ""}


def facts(model: Any, attention: Any) -> dict[str, Any]:
    """What decides neither time nor memory."""
    rope = attention.rope
    routers = [layer.moe.router for layer in model.layers if getattr(layer, "moe", None)]
    found = {
        "theta": rope.theta,
        "rope_type": STRETCHES[rope.scaling],
        "factor": {"llama": rope.scaling_factor, "yarn": rope.rope_factor}.get(rope.scaling),
        "epsilon": {norm.eps for _, norm, *_ in model.traverse(RMSNorm.Config)},
    }
    if routers:
        found |= {
            "score": routers[0].score_func,
            "normalised": routers[0].route_norm,
            "route_scale": routers[0].route_scale,
            "groups": routers[0].num_expert_groups or 1,
            "group_topk": routers[0].num_limited_groups or 1,
        }
    (found["epsilon"],) = found["epsilon"]
    return found


def optimized(request: dict[str, Any]) -> list[int]:
    """Parts of a model, each as wide as `parts` says (0: nothing), with torchtitan's optimizer."""
    from torchtitan.components.optimizer import default_adamw

    made = [torch.nn.Linear(n, n) if n else torch.nn.Module() for n in request["parts"]]
    optimizers = default_adamw().build(model_parts=made)
    return [len(one.param_groups) for one in optimizers.optimizers]


def parameters(model: Any) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in model.build().parameters())


def on_hopper() -> None:
    """torchao's float8 is made on GPUs that have it only; here nothing is computed."""
    from torchtitan.components.quantization import float8

    float8.has_cuda_capability = lambda *_: True


def configuration(request: dict[str, Any]) -> Any:
    """`path` of the module, the `function` to call, and `world_size`.

    Where `build` is asked for, the model checks the degrees as the trainer has it do, and its
    parameters are counted.
    """
    module = Path(request["path"])
    sys.path.insert(0, str(module.parent))
    # Bytecode is taken for that of a file of the same second and size, which the next one may be.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        importlib.invalidate_caches()
        sys.modules.pop(module.stem, None)
        config = ConfigManager().parse_args(
            ["--module", module.stem, "--config", request["function"], *request.get("more", ())]
        )
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(module.parent))
        sys.modules.pop(module.stem, None)
    dims = ParallelDims.from_config(config.parallelism, request["world_size"])
    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
    count = None
    if request.get("build"):
        config.model_spec.model.update_from_config(config=config)
        count = parameters(config.model_spec.model)
    float8 = [
        name
        for name, linear, *_ in config.model_spec.traverse(Linear.Config)
        if type(linear).__qualname__ == "Float8Linear.Config"
    ]
    norms = {norm.eps for _, norm, *_ in config.model_spec.traverse(RMSNorm.Config)}
    config.model_spec.model = None  # every tensor of every layer
    degrees = {name: getattr(dims, name) for name in names}
    return {"config": config, "degrees": degrees, "parameters": count, "epsilon": norms} | {
        "float8": float8
    }


on_hopper()
serve(answer)
