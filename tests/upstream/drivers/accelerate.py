"""HF accelerate 1.15: a YAML file as `accelerate launch` reads it, and the plugins it leads to.

accelerate accepts any key inside a section. Here each must be an option of its launcher, which is
what the launcher makes of it.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from upstream.drivers.serving import serve

# Sections whose keys are options of the launcher, with the prefix that it adds where it is missing.
SECTIONS = {"fsdp_config": "fsdp_", "parallelism_config": "", "megatron_lm_config": ""}


def answer(request: dict[str, Any]) -> Any:
    """`text` of the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(request["text"])
        file.flush()
        config = load_config_from_file(file.name)
        parser = launch.launch_command_parser()
        refuse_unknown(config, {action.dest for action in parser._actions})
        args, *_ = launch._validate_launch_command(
            parser.parse_args(["--config_file", file.name, "train.py"])
        )
    before = dict(os.environ)
    os.environ.update(prepare_multi_gpu_env(args))
    try:
        return {
            "config": vars(config),
            "arguments": {k: v for k, v in vars(args).items() if not callable(v)},
            "parallelism": sizes() if args.use_parallelism_config else None,
            "environment": {k: v for k, v in os.environ.items() if before.get(k) != v},
            "fsdp": vars(FullyShardedDataParallelPlugin()) if args.use_fsdp else None,
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def refuse_unknown(config: Any, known: set[str]) -> None:
    for section, prefix in SECTIONS.items():
        for key in getattr(config, section):
            option = key if key.startswith(prefix) else prefix + key
            if option not in known:
                raise ValueError(f"{section}.{key}: accelerate's launcher has no such option")


def sizes() -> dict[str, Any]:
    """What the program itself would make of the environment that the launcher sets."""
    parallelism = ParallelismConfig()
    names = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    found = {name: getattr(parallelism, f"{name}_size") for name in names}
    return {**found, "total": parallelism.total_size}


serve(answer)
