"""Megatron-LM 0.19.2 without a GPU: its arguments, rank groups, options and configuration keys.

A GPU and Transformer Engine are pretended, because validation asks for their versions.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import sys
import typing
from types import SimpleNamespace
from typing import Any

import typing_extensions
from upstream.drivers.serving import serve, without_kernels

vars(typing)["override"] = typing_extensions.override  # the wheel is for Python 3.12
torch = without_kernels()
HOPPER = (9, 0)

from megatron.core import parallel_state  # noqa: E402
from megatron.core import utils as core_utils  # noqa: E402
from megatron.core.models.common.embeddings import rope_utils  # noqa: E402
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    ConstantNumMicroBatchesCalculator,
)
from megatron.core.transformer.enums import LayerType  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout,
)
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset  # noqa: E402
from megatron.training import arguments  # noqa: E402
from megatron.training.training import (  # noqa: E402
    get_megatron_ddp_config,
    get_megatron_optimizer_config,
)
from packaging.version import Version  # noqa: E402


def pretend_gpu(capability: tuple[int, int]) -> None:
    torch.cuda.get_device_capability = lambda *_: capability
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(
        major=capability[0], minor=capability[1], multi_processor_count=132
    )


core_utils._te_version = Version("2.12.0")
rope_utils.fused_apply_rotary_pos_emb = lambda *_: None
for kernel in (
    "fused_permute",
    "fused_permute_with_probs",
    "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
    "fused_unpermute",
):
    setattr(moe_utils, kernel, lambda *_: None)


class Parser(argparse.ArgumentParser):
    """Megatron's parser, made once: reading 808 options takes longer than all checks together."""

    def print_usage(self, *_: Any) -> None:
        """Left out: the message comes after it."""

    def parse_args(self, *args: Any, **named: Any) -> Any:
        # Validation appends to lists that are defaults of options.
        return copy.deepcopy(super().parse_args(*args, **named))


PARSER = arguments.add_megatron_arguments(Parser("pretrain_gpt.py", allow_abbrev=False))
arguments.add_megatron_arguments = lambda _: PARSER
arguments._print_args = lambda *_: None


def arguments_of(request: dict[str, Any]) -> dict[str, Any]:
    """`argv` for `world_size` processes with `env`: arguments, configuration, layers by stage."""
    pretend_gpu(tuple(request.get("capability", HOPPER)))
    before = dict(os.environ)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(WORLD_SIZE=str(request["world_size"]), RANK="0", **request.get("env", {}))
    sys.argv = ["pretrain_gpt.py", *request["argv"]]
    try:
        args = arguments.parse_args()
        arguments.validate_args(args)
        config = arguments.core_transformer_config_from_args(args)
        batches = ConstantNumMicroBatchesCalculator(
            args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False, 0
        )
        return {
            "args": vars(args),
            "config": config,
            "optimizer": get_megatron_optimizer_config(args)[0],
            "ddp": get_megatron_ddp_config(args),
            "num_micro_batches": batches.get(),
            "stages": stages_of(config),
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def stages_of(config: Any) -> list[list[list[int]]]:
    """Numbers of the layers on each pipeline rank, chunk by chunk."""
    chunks = config.virtual_pipeline_model_parallel_size
    pp = config.pipeline_model_parallel_size
    parallel_state.set_virtual_pipeline_model_parallel_world_size(chunks)
    layers = []
    for rank in range(pp):
        parallel_state.set_pipeline_model_parallel_rank(rank)
        layers.append(
            [layers_of(config, None if chunks is None else c, rank) for c in range(chunks or 1)]
        )
    return layers


def layers_of(config: Any, chunk: int | None, rank: int) -> list[int]:
    first = get_transformer_layer_offset(config, chunk, rank)
    return list(range(first, first + get_num_layers_to_build(config, chunk, rank)))


def layout_of(request: dict[str, Any]) -> list[int]:
    """Layers of every stage of the layout `text`, in model order; those of one rank."""
    layout = PipelineParallelLayerLayout(request["text"], 1)
    layout.validate_layer_layout(layout.flatten_layout.count(LayerType.decoder), None)
    return [stage.count(LayerType.decoder) for stage in layout.layout[0]]


def groups_of(request: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Groups of ranks by Megatron's name, for `world_size` and what initialisation takes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    made: dict[str, list[list[int]]] = {}
    create = parallel_state.create_group

    def recorded(ranks: list[int] | None = None, *args: Any, **named: Any) -> Any:
        made.setdefault(str(named.get("group_desc")), []).append(list(ranks or ()))
        return create(ranks, *args, **named)

    torch.distributed.init_process_group(
        backend="fake", rank=0, world_size=request["world_size"], store=FakeStore()
    )
    parallel_state.create_group = recorded
    try:
        parallel_state.initialize_model_parallel(
            **request["degrees"], create_gloo_process_groups=False
        )
    finally:
        parallel_state.create_group = create
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    return made


def segments_of(request: dict[str, Any]) -> list[list[Any]]:
    """Letters and first layer of every stage of a hybrid `pattern`, in model order."""
    from megatron.core.models.hybrid import hybrid_layer_allocation as allocation

    allocation.log_on_each_pipeline_stage = lambda *_, **__: None
    pp, chunks = request["pp"], request["chunks"]
    segments = []
    for number in range(pp * chunks):
        chunk, rank = divmod(number, pp)
        # The group of ranks is asked for its size and for this rank alone.
        allocation.torch = SimpleNamespace(
            distributed=SimpleNamespace(
                get_rank=lambda _, rank=rank: rank, get_world_size=lambda _: pp
            )
        )
        stage = chunk if chunks > 1 else None
        letters, first = allocation.select_pipeline_segment(request["pattern"], "pp", stage)
        segments.append(["".join(letters), first])
    return segments


def options_of(_: dict[str, Any]) -> list[dict[str, Any]]:
    """Every option of the parser."""
    return [
        {
            "flags": action.option_strings,
            "dest": action.dest,
            "nargs": action.nargs,
            "choices": action.choices and list(action.choices),
            "type": getattr(action.type, "__name__", None),
            "default": None if action.default is argparse.SUPPRESS else action.default,
        }
        for action in PARSER._actions
    ]


def keys_of(_: dict[str, Any]) -> dict[str, list[str]]:
    """Keys of each section of a configuration, as Megatron-Bridge's overrides name them."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig
    from megatron.training.config.container import PretrainConfigContainer

    sections = {}
    for name, hint in typing.get_type_hints(PretrainConfigContainer).items():
        classes = [c for c in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(c)]
        sections[name] = {f.name for c in classes for f in dataclasses.fields(c)}
    # Bridge's model holds the fields of the transformer itself.
    sections["model"] |= {f.name for f in dataclasses.fields(MLATransformerConfig)}
    return {name: sorted(keys) for name, keys in sections.items()}


OPERATIONS = {
    "arguments": arguments_of,
    "groups": groups_of,
    "layout": layout_of,
    "segments": segments_of,
    "options": options_of,
    "keys": keys_of,
}

serve(lambda request: OPERATIONS[request.pop("operation")](request))
