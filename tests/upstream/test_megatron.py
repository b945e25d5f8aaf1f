"""The real Megatron-LM 0.19.2 answers: arguments, layers of stages, groups of ranks, keys."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upstream.client import Driver, RefusedError

from astrarium.configs.pipeline import layout_chunks
from astrarium.cost.groups import copies_group
from astrarium.errors import InputError
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Strategy

SMALL = """
    --num-layers 8 --hidden-size 128 --num-attention-heads 8 --seq-length 128
    --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 32 --bf16 --lr 1e-4
    --train-iters 10 --tokenizer-type NullTokenizer --vocab-size 1000
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
"""
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def parsed(megatron: Driver, *more: str, world_size: int = 8, **named: Any) -> Any:
    named.setdefault("env", ONE_CONNECTION)
    return megatron.ask(
        operation="arguments", argv=[*SMALL.split(), *more], world_size=world_size, **named
    )


def test_arguments_are_read_back(megatron: Driver) -> None:
    read = parsed(megatron, "--use-distributed-optimizer", "--overlap-grad-reduce")
    assert read["args"]["data_parallel_size"] == 2
    assert read["num_micro_batches"] == 16
    assert read["stages"] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert read["config"]["tensor_model_parallel_size"] == 2
    assert read["optimizer"]["use_distributed_optimizer"] is True
    assert read["ddp"]["overlap_grad_reduce"] is True


def test_layouts_give_the_layers_of_every_chunk(megatron: Driver) -> None:
    read = parsed(megatron, "--pipeline-model-parallel-layout", "Et|tt|ttt|ttL")
    assert read["args"]["virtual_pipeline_model_parallel_size"] == 2
    assert read["stages"] == [[[0], [3, 4, 5]], [[1, 2], [6, 7]]]


PIECES = ("t", "tt", "t*3", "|", "|", ",", "(t|)*2", "(|t*2)*3", "(tt|t|)*2", "|*2", "t*0", "t*2*2")
ODD = ("E", "L", "x", " ", "(t", ")*2", "*", "(t|)*2*2", "((t|)*2,t|)*2", "()*2", "(t|)*0")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
    odd=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(ODD)), max_size=1),
)
def test_layouts_are_read_as_megatron_reads_them(
    megatron: Driver, pieces: list[str], odd: list[tuple[int, str]]
) -> None:
    """Whatever repeats, with stages of the embedding or the loss alone, and with empty ones."""
    words = ["E", *pieces, "L"]
    for place, word in odd:
        words.insert(place, word)
    text = "".join(words)
    try:
        real = megatron.ask(operation="layout", text=text)
    except RefusedError:
        with pytest.raises(InputError):
            layout_chunks(text)
        return
    assert layout_chunks(text) == real


@pytest.mark.parametrize("text", ["E|t*8||L", "E||t*4|t*4L", "Et*8|||L", "E|t*8|L|", "|E|t*8|L"])
def test_layouts_may_have_empty_stages(megatron: Driver, text: str) -> None:
    read = parsed(megatron, "--pipeline-model-parallel-layout", text)
    stages = [layers for chunks in zip(*read["stages"], strict=True) for layers in chunks]
    assert list(map(len, stages)) == layout_chunks(text)


@pytest.mark.parametrize(
    ("more", "named", "message"),
    [
        (["--tensor-parallel", "2"], {}, "unrecognized arguments: --tensor-parallel 2"),
        (["--bf17"], {}, "unrecognized arguments: --bf17"),
        ([], {"world_size": 6}, r"world size \(6\) is not divisible by total_model_size"),
        (["--pipeline-model-parallel-layout", "Et|ttL"], {}, "num_layers"),
        ([], {"env": {}}, "CUDA_DEVICE_MAX_CONNECTIONS to 1"),
        (["--optimizer-cpu-offload"], {}, "precision"),
        (["--fp16"], {}, "AssertionError: assert not args.bf16"),
    ],
)
def test_megatron_refuses(
    megatron: Driver, more: list[str], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        parsed(megatron, *more, **named)


def test_requests_do_not_know_of_each_other(megatron: Driver) -> None:
    before = parsed(megatron)
    parsed(
        megatron, "--use-megatron-fsdp", "--ckpt-format", "fsdp_dtensor", env={}, capability=[10, 0]
    )
    with pytest.raises(RefusedError):
        parsed(megatron, "--pipeline-model-parallel-layout", "Et|ttL")
    assert parsed(megatron) == before


DEGREES = [
    (tp, pp, cp, dp, inside)
    for tp, pp, cp, dp, inside in itertools.product(
        (1, 2, 4), (1, 2, 4), (1, 2), (1, 2, 3), (False, True)
    )
    if tp * pp * cp * dp in (4, 8, 12, 24, 48)
]


@pytest.mark.parametrize("degrees", DEGREES, ids=lambda d: "-".join(map(str, d)))
def test_ranks_lie_where_we_put_them(
    megatron: Driver, degrees: tuple[int, int, int, int, bool]
) -> None:
    tp, pp, cp, dp, inside = degrees
    ours = Strategy(tp=tp, pp=pp, cp=cp, dp=dp, pipeline_inside=inside)
    request = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "expert_tensor_parallel_size": tp * cp,
        "order": "tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp",
    }
    groups = megatron.ask(operation="groups", world_size=ours.gpus, degrees=request)
    strides = {
        "TENSOR_MODEL_PARALLEL_GROUP": (tp, 1),
        "CONTEXT_PARALLEL_GROUP": (cp, tp),
        "DATA_PARALLEL_GROUP": (dp, tp * cp * (pp if inside else 1)),
        "PIPELINE_MODEL_PARALLEL_GROUP": (pp, int(degrees_of([ours]).stage_stride[0])),
    }
    for name, (size, stride) in strides.items():
        ranks = np.array(groups[name])
        assert ranks.shape == (ours.gpus // size, size)
        assert (np.diff(ranks, axis=1) == stride).all()
        assert sorted(ranks.ravel()) == list(range(ours.gpus))


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("inside", [False, True])
def test_groups_that_divide_are_neighbours(megatron: Driver, groups: int, inside: bool) -> None:
    ours = Strategy(tp=2, pp=2, cp=2, dp=8, pipeline_inside=inside, shard_groups=groups)
    request = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "context_parallel_size": 2,
        "expert_tensor_parallel_size": 4,
        "num_distributed_optimizer_instances": groups,
        "order": "tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp",
    }
    made = megatron.ask(operation="groups", world_size=ours.gpus, degrees=request)
    shards = np.array(made["INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"])
    assert shards.shape == (ours.gpus // ours.shard_ranks, ours.shard_ranks)
    # Where the first members of two groups that hold copies of the same lie apart.
    together = np.array(made["DATA_PARALLEL_GROUP_WITH_CP"])
    copies = together.reshape(-1, groups, ours.shard_ranks)[:, :, 0]
    assert {tuple(group) for group in shards} == {
        tuple(group) for group in together.reshape(-1, ours.shard_ranks)
    }
    across = copies_group(degrees_of([ours]), np.array([8]))
    assert (np.diff(copies, axis=1) == np.asarray(across.stride).item()).all()


def test_groups_of_experts(megatron: Driver) -> None:
    request = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4}
    request |= {"expert_tensor_parallel_size": 1}
    groups = megatron.ask(operation="groups", world_size=8, degrees=request)
    assert groups["EXPERT_MODEL_PARALLEL_GROUP"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(RefusedError, match=r"world_size \(8\) is not divisible by"):
        megatron.ask(
            operation="groups", world_size=8, degrees={**request, "expert_model_parallel_size": 3}
        )
    with pytest.raises(RefusedError, match="unexpected keyword argument"):
        megatron.ask(operation="groups", world_size=8, degrees={"tensor_parallel": 2})


BRIDGE_KEYS = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_layout",
    "model.virtual_pipeline_model_parallel_size",
    "model.recompute_modules",
    "model.q_lora_rank",
    "train.micro_batch_size",
    "train.global_batch_size",
    "ddp.use_distributed_optimizer",
    "ddp.data_parallel_sharding_strategy",
    "optimizer.optimizer_cpu_offload",
)


def test_keys_of_configuration_sections(megatron: Driver) -> None:
    keys = megatron.ask(operation="keys")
    known = {f"{section}.{key}" for section, names in keys.items() for key in names}
    assert set(BRIDGE_KEYS) <= known
    assert "model.tensor_parallel_size" not in known
    assert "train.micro_batch" not in known
