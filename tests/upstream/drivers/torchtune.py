"""torchtune 0.6.1: a recipe's configuration with arguments merged in, and the model it builds."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from upstream.drivers.serving import plain, serve, without_kernels

torch = without_kernels()
for name in (
    *("sentencepiece", "tiktoken", "tiktoken.load", "kagglehub", "blobfile", "psutil"),
    *("datasets", "datasets.distributed", "torchdata", "torchdata.stateful_dataloader"),
    "torchdata.nodes",
):
    stand_in = MagicMock(name=name)
    stand_in.__spec__, stand_in.__path__ = ModuleSpec(name, None), []
    sys.modules[name] = stand_in

import torchtune  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from torchtune import config  # noqa: E402
from torchtune.config._parse import TuneRecipeArgumentParser  # noqa: E402
from torchtune.config._utils import _merge_yaml_and_cli_args  # noqa: E402
from torchtune.modules.peft import get_adapter_params  # noqa: E402

RECIPES = Path(torchtune.__file__).parents[1] / "recipes"


def answer(request: dict[str, Any]) -> Any:
    """`recipe` and `config` by name, `arguments` of the command line; `without`: no model."""
    assert (RECIPES / f"{request['recipe']}.py").is_file(), request["recipe"]
    path = RECIPES / "configs" / f"{request['config']}.yaml"
    before = set(leaves(OmegaConf.to_container(OmegaConf.load(path))))
    parser = TuneRecipeArgumentParser()
    settings, given = parser.parse_known_args(["--config", str(path), *request["arguments"]])
    merged = _merge_yaml_and_cli_args(settings, given)
    config.validate(merged)
    with torch.device("meta"):
        model = config.instantiate(merged.model)
    adapters = get_adapter_params(model).values()
    found = OmegaConf.to_container(merged)
    code = (RECIPES / f"{request['recipe']}.py").read_text()
    return {
        "settings": plain(found),
        # Keys that the configuration does not have, and the recipe never mentions.
        "unread": [
            key
            for key in leaves(found)
            if key not in before and "." not in key and f'"{key}"' not in code
        ],
        "parameters": sum(one.numel() for one in model.parameters()),
        "trained": sum(one.numel() for one in adapters),
    }


def leaves(tree: Any, path: str = "") -> list[str]:
    if not isinstance(tree, dict):
        return [path]
    return [one for key, each in tree.items() for one in leaves(each, f"{path}.{key}".strip("."))]


serve(answer)
