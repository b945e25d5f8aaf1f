"""Files of other programs, and Megatron's settings in other spellings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from astrarium import documents
from astrarium.configs.accelerate import read_accelerate
from astrarium.configs.deepspeed import read_deepspeed
from astrarium.configs.detect import read_config
from astrarium.configs.imported import Imported, NotModelledError
from astrarium.configs.megatron.nested import read_bridge_file
from astrarium.configs.megatron.overrides import read_overrides, read_yaml_cfg
from astrarium.configs.nanotron import read_nanotron
from astrarium.configs.torchtitan_file import read_torchtitan
from astrarium.errors import InputError
from astrarium.model.workload import Precision

EXAMPLES = Path(__file__).parent / "examples"
PIPELINE = {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "1F1B"}


def example(name: str) -> Imported:
    found = read_config(str(EXAMPLES / name))
    assert found is not None
    return found


def deepspeed(**changes: Any) -> Imported:
    content = json.loads((EXAMPLES / "deepspeed.json").read_text(encoding="utf-8"))
    return read_deepspeed({**content, **changes}, "ds.json")


def titan(**sections: dict[str, Any]) -> Imported:
    content = tomllib.loads((EXAMPLES / "torchtitan.toml").read_text(encoding="utf-8"))
    merged = {**content, **{k: {**content.get(k, {}), **v} for k, v in sections.items()}}
    return read_torchtitan(merged, "t.toml")


def accelerate(**changes: Any) -> Imported:
    content = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 16}
    return read_accelerate({**content, **changes}, "a.yaml")


def test_deepspeed() -> None:
    read = example("deepspeed.json")
    keys = read.strategy_of(32)
    assert (keys["micro_batch"], keys["zero_stage"], keys["offload_optimizer"]) == (2, 3, True)
    assert read.batch(16) == 2 * 4 * 16
    assert [*read.unknown, *read.conflicts, *read.as_if] == []
    assert "optimizer" in read.neutral


def test_deepspeed_fills_in_what_the_batch_leaves_open() -> None:
    whole = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": None}
    assert deepspeed(**whole).strategy_of(32, 16)["micro_batch"] == 256 // 16 // 4
    assert deepspeed(train_batch_size=256).strategy_of(32, 16)["num_micro_batches"] == 4


def test_typos_of_deepspeed() -> None:
    """At the top they are ignored, inside zero_optimization refused."""
    read = deepspeed(gradient_cliping=1.0, zero_optimization={"stage": 2, "reduce_bucket": 5})
    says = {one.option: one.says for one in read.unknown}
    assert "DeepSpeed would ignore it" in says["gradient_cliping"]
    assert "'gradient_clipping'" in says["gradient_cliping"]
    assert "refuses it" in says["zero_optimization.reduce_bucket"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fp16": {"enabled": True}}, "cannot both be enabled"),
        ({"train_batch_size": 100}, "train_batch_size 100 is not micro batch 2"),
        ({"amp": {"enabled": True}}, "no longer supported"),
        ({"train_micro_batch_size_per_gpu": None}, "needs to be provided"),
    ],
)
def test_conflicts_of_deepspeed(changes: dict[str, Any], reason: str) -> None:
    assert reason in "; ".join(deepspeed(**changes).conflicts)


def test_what_deepspeed_leaves_open() -> None:
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    read = deepspeed(**auto, gradient_accumulation_steps="auto", activation_checkpointing={})
    assert read.batch(8) is None
    assert read.conflicts == ()
    assert len(read.notes) == 3
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "zero_hpz_partition_size": 8}
    as_if = deepspeed(zero_optimization=zero, sequence_parallel_size=4, bf16={}).as_if
    assert [one.option for one in as_if] == [
        "zero_optimization.offload_param",
        "zero_optimization.zero_hpz_partition_size",
        "bf16",
        "sequence_parallel_size",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"train_batch_size": -1},
        {"train_batch_size": "many"},
        {"train_batch_size": 10**30},
        {"zero_optimization": {"stage": 7}},
        {"zero_optimization": [1]},
        {"bf16": True},
    ],
)
def test_deepspeed_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"ds\.json: "):
        deepspeed(**changes)


def test_torchtitan() -> None:
    read = example("torchtitan.toml")
    said = read.described
    assert (said.model, said.gpus, said.seq_length, said.global_batch) == (
        "Llama-3.1-70B",
        64,
        8192,
        32,
    )
    assert said.runtime == "torchtitan"
    keys = read.strategy_of(80)
    assert (keys["tp"], keys["pp"], keys["dp"], keys["micro_batch"]) == (8, 4, 2, 1)
    assert keys["recompute"] == "full"
    assert [b - a for a, b in (s["layers"] for s in keys["stages"])] == [20, 21, 20, 19]
    assert [*read.unknown, *read.conflicts, *read.as_if] == []


def test_pipelines_of_torchtitan() -> None:
    looped = {**PIPELINE, "pipeline_parallel_schedule": "Interleaved1F1B"}
    assert titan(parallelism=looped).strategy_of(80)["virtual_stages"] == 2
    deeper = {**looped, "pipeline_parallel_layers_per_stage": 7}
    assert titan(parallelism=deeper).strategy_of(80)["virtual_stages"] == 3
    with pytest.raises(InputError, match="no multiple of pipeline_parallel_degree 4"):
        titan(parallelism={**looped, "pipeline_parallel_layers_per_stage": 9}).strategy_of(80)
    one = {**PIPELINE, "pipeline_parallel_layers_per_stage": 7}
    with pytest.raises(InputError, match="3 stages on each rank, and 1f1b takes exactly one"):
        titan(parallelism=one).strategy_of(80)
    named = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3", "norm"]]
    own = {"pipeline_parallel_degree": 3, "module_fqns_per_model_part": named}
    stages = titan(parallelism=own).strategy_of(4)["stages"]
    assert [stage["layers"] for stage in stages] == [[0, 1], [1, 3], [3, 4]]
    zero_bubble = {**PIPELINE, "pipeline_parallel_schedule": "ZBVZeroBubble"}
    assert titan(parallelism=zero_bubble).as_if[0].assumed == "Interleaved1F1B"


def test_what_torchtitan_recomputes() -> None:
    def recompute(**options: Any) -> Any:
        keys = titan(activation_checkpoint=options, parallelism={"pipeline_parallel_degree": 1})
        return keys.strategy_of(80)["recompute"]

    assert recompute(mode="none") == "none"
    assert recompute(mode="selective", selective_ac_option="op")["layers"] == 46
    assert recompute(mode="selective", selective_ac_option="2")["layers"] == 40
    assert recompute(mode="selective", selective_ac_option="4")["layers"] == 20


def test_torchtitan_recomputes_in_every_chunk() -> None:
    looped = {**PIPELINE, "pipeline_parallel_schedule": "Interleaved1F1B"}
    for option, layers in (("op", round(80 / 8 * 4 / 7)), ("5", 80 // 8 // 5)):
        read = titan(
            parallelism=looped,
            activation_checkpoint={"mode": "selective", "selective_ac_option": option},
        )
        assert read.strategy_of(80)["recompute"]["layers"] == layers


@pytest.mark.parametrize(
    ("pp", "policy", "stage"),
    [
        (1, "default", 3),
        (1, "always", 3),
        (1, "never", 2),
        (4, "default", 1),
        (4, "never", 1),
        (4, "always", 3),
    ],
)
def test_what_ranks_of_torchtitan_share(pp: int, policy: str, stage: int) -> None:
    parallelism = {"pipeline_parallel_degree": pp, "fsdp_reshard_after_forward": policy}
    assert titan(parallelism=parallelism).strategy_of(80)["zero_stage"] == stage


def test_float8_of_torchtitan_has_a_recipe() -> None:
    model = {"converters": ["quantize.linear.float8"]}
    rows = {"linear": {"float8": {"recipe_name": "rowwise"}}}
    read, plain = titan(model=model, quantize=rows), titan(model=model)
    assert read.described.precision is plain.described.precision is Precision.FP8
    assert not [one for one in read.as_if if "float8" in one.option]
    (other,) = (one for one in plain.as_if if "float8" in one.option)
    assert (other.given, other.assumed) == ("tensorwise", "rowwise")


def test_copies_of_torchtitan_share_nothing() -> None:
    alone = {"tensor_parallel_degree": 1, "pipeline_parallel_degree": 1}
    copies = {**alone, "data_parallel_replicate_degree": 8, "data_parallel_shard_degree": -1}
    read = titan(parallelism=copies)
    assert read.strategy_of(80, 8)["zero_stage"] == 0
    assert read.strategy_of(80, 16)["zero_stage"] == 3
    around = titan(parallelism={**copies, "context_parallel_degree": 2})
    assert around.strategy_of(80, 16)["zero_stage"] == 3
    split = {"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 1}
    assert "must be sharded" in titan(parallelism=split).conflicts[0]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("parallelism", "pipeline_parallel_first_stage_less_layers", "x"),
        ("parallelism", "pipeline_parallel_last_stage_less_layers", -2),
        ("parallelism", "module_fqns_per_model_part", 3),
        ("parallelism", "module_fqns_per_model_part", [3]),
        ("parallelism", "enable_async_tensor_parallel", "yes"),
        ("parallelism", "fsdp_reshard_after_forward", "sometimes"),
        ("parallelism", "pipeline_parallel_schedule", ["1F1B"]),
        ("model", "converters", 5),
        ("model", "converters", [5]),
        ("training", "seq_len", True),
        ("compile", "enable", {"on": 1}),
    ],
)
def test_values_of_torchtitan_that_are_none(section: str, key: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"t\.toml: {section}\.{key} is "):
        titan(**{section: {key: value}}).strategy_of(80)


def test_torchtitan_names_what_it_refuses() -> None:
    read = titan(parallelism={"tensor_paralel_degree": 2}, trainning={"seq_len": 1})
    assert [one.option for one in read.unknown] == [
        "parallelism.tensor_paralel_degree",
        "trainning",
    ]
    assert "'tensor_parallel_degree'" in read.unknown[0].says
    assert titan(training={"global_batch_size": 33}).conflicts
    assert titan(training={"local_batch_size": 2}).conflicts
    with pytest.raises(InputError, match=r"t\.toml: parallelism\.tensor_parallel_degree is 0"):
        titan(parallelism={"tensor_parallel_degree": 0})
    with pytest.raises(InputError, match=r"no model of the catalog is llama3 debugmodel"):
        titan(model={"flavor": "debugmodel"}).model()


def test_accelerate() -> None:
    read = example("accelerate.yaml")
    assert read.described.gpus == 16
    keys = read.strategy_of(32)
    assert (keys["tp"], keys["zero_stage"], keys["recompute"]) == (2, 3, "full")
    assert [*read.unknown, *read.conflicts, *read.as_if] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
            {"zero_stage": 2},
        ),
        (
            {"fsdp_config": {"fsdp_version": "2", "fsdp_sharding_strategy": "NO_SHARD"}},
            {"zero_stage": 3},
        ),
        ({"fsdp_config": {"fsdp_reshard_after_forward": False}}, {"zero_stage": 3}),
        ({"fsdp_config": {"sharding_strategy": 2}}, {"zero_stage": 2}),
        ({"fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}}, {"zero_stage": 0}),
        ({"distributed_type": "MULTI_GPU"}, {"zero_stage": 0}),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"},
            },
            {"zero_stage": 2, "offload_optimizer": True},
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": "3"}},
            {"zero_stage": 3},
        ),
        (
            {
                "distributed_type": "MEGATRON_LM",
                "megatron_lm_config": {
                    "megatron_lm_tp_degree": "4",
                    "megatron_lm_pp_degree": 2,
                    "megatron_lm_sequence_parallelism": True,
                    "megatron_lm_use_distributed_optimizer": "true",
                },
            },
            {"tp": 4, "pp": 2, "sequence_parallel": True, "zero_stage": 1},
        ),
    ],
)
def test_accelerate_wraps(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    keys = accelerate(**changes).strategy_of(32)
    assert {name: keys[name] for name in expected} == expected


def test_accelerate_names_what_is_wrong() -> None:
    assert "'mixed_precision'" in accelerate(mixed_precison="bf16").unknown[0].says
    sizes = {"parallelism_config_cp_size": 2, "parallelism_config_sp_size": 2}
    assert "takes one of them" in accelerate(parallelism_config=sizes).conflicts[0]
    odd = {"parallelism_config_tp_size": 3}
    assert "num_processes is 16" in accelerate(parallelism_config=odd).conflicts[0]
    half = {"parallelism_config_tp_size": 8}
    assert "make 8, num_processes is 16" in accelerate(parallelism_config=half).conflicts[0]
    with pytest.raises(InputError, match="fsdp_reshard_after_forward is 'maybe'"):
        accelerate(fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": "maybe"})
    with pytest.raises(InputError, match="fsdp_sharding_strategy is 'MAYBE'"):
        accelerate(fsdp_config={"fsdp_sharding_strategy": "maybe"})
    with pytest.raises(InputError, match=r"deepspeed_config\.zero_stage is 'three'"):
        accelerate(distributed_type="DEEPSPEED", deepspeed_config={"zero_stage": "three"})
    elsewhere = {"deepspeed_config_file": "zero.json"}
    with pytest.raises(InputError, match=r"are in zero\.json; name that file"):
        accelerate(distributed_type="DEEPSPEED", deepspeed_config=elsewhere)


def test_what_accelerate_says_and_nothing_models() -> None:
    offloaded = {"zero_stage": 3, "offload_param_device": "cpu"}
    (one,) = accelerate(distributed_type="DEEPSPEED", deepspeed_config=offloaded).as_if
    assert (one.option, one.given, one.assumed) == ("offload_param_device", "cpu", "none")
    both = {"fsdp_version": 2, "fsdp_sharding_strategy": "NO_SHARD"}
    notes = accelerate(fsdp_config=both).notes
    assert any("reads fsdp_reshard_after_forward, not fsdp_sharding" in note for note in notes)


@pytest.mark.parametrize(
    ("table", "key", "meant"),
    [
        ("fsdp_config", "fsdp_reshard_after_foward", "fsdp_reshard_after_forward"),
        ("deepspeed_config", "zero_stag", "zero_stage"),
        ("parallelism_config", "parallelism_config_tp_siz", "parallelism_config_tp_size"),
        ("megatron_lm_config", "megatron_lm_tp_degre", "megatron_lm_tp_degree"),
    ],
)
def test_typos_in_the_tables_of_accelerate(table: str, key: str, meant: str) -> None:
    (one,) = accelerate(**{table: {key: 2}}).unknown
    assert one.option == f"{table}.{key}"
    assert "would ignore it" in one.says
    assert f"'{meant}'" in one.says


def test_nanotron() -> None:
    read = example("nanotron.yaml")
    assert (read.described.gpus, read.described.global_batch) == (16, 128)
    assert read.model().num_layers == 24
    assert read.strategy_of(24)["sequence_parallel"]
    assert "tokens.train_steps" in read.neutral
    assert [*read.unknown, *read.as_if] == []
    content = documents.read(EXAMPLES / "nanotron.yaml")
    assert isinstance(content, dict)
    content["model"]["model_config"]["num_hidden_layers"] = 10**12
    with pytest.raises(InputError, match="at most 10,000 are read"):
        read_nanotron(content, "n.yaml").model()
    with pytest.raises(InputError, match="nanotron needs"):
        read_nanotron({**content, "parallelism": {"tp": 0}}, "n.yaml")


def nanotron(**sections: dict[str, Any]) -> Imported:
    content = documents.read(EXAMPLES / "nanotron.yaml")
    assert isinstance(content, dict)
    merged = {**content, **{k: {**content.get(k, {}), **v} for k, v in sections.items()}}
    return read_nanotron(merged, "n.yaml")


def test_the_same_name_in_two_sections_of_nanotron() -> None:
    data = {"dataset": {"vocab_size": 7, "sequence_length": 5}, "dp": 3}
    read = nanotron(profiler=data)
    assert read.described.seq_length == 4096
    assert read.described.shape is not None
    assert read.described.shape.vocab == 49152
    assert read.strategy_of(24)["dp"] == 4


def test_what_nanotron_refuses_is_listed() -> None:
    read = nanotron(parallelism={"recompute_layers": True}, tokenss={"micro_batch_size": 3})
    says = {one.option: one.says for one in read.unknown}
    assert "'recompute_layer'" in says["parallelism.recompute_layers"]
    assert "'tokens'" in says["tokenss"]
    assert not {"parallelism.recompute_layers", "tokenss.micro_batch_size"} & set(read.neutral)


def test_what_nanotron_does_and_nothing_models() -> None:
    read = nanotron(parallelism={"pp_engine": "afab", "context_parallel_size": 2})
    assert [one.given for one in read.as_if] == ["afab", "2"]
    assert nanotron(parallelism={"pp_engine": None}).as_if[0].given == "afab by default"
    assert nanotron(parallelism={"pp_engine": "afab", "pp": 1}).as_if == ()
    mamba = {"model_config": {"is_mamba_config": True}}
    with pytest.raises(NotModelledError, match="layers of Mamba"):
        nanotron(model=mamba)


def test_yaml_cfg() -> None:
    read = example("megatron.yaml")
    keys = read.strategy_of(24)
    assert (keys["tp"], keys["pp"], keys["zero_stage"]) == (2, 2, 1)
    shape = read.described.shape
    assert shape is not None
    assert (shape.gated, shape.mlp_bias) == (True, False)
    assert read.unknown == ()
    typo = read_yaml_cfg({"micro_batch_size": 1, "sequence_paralel": True}, "m.yaml")
    assert "'sequence_parallel'" in typo.unknown[0].says


@pytest.mark.parametrize(
    "layout",
    [
        "'E|t*3||t,L'",
        "[['embedding'],['decoder','decoder','decoder'],[],['decoder','loss']]",
        "[[E],[t,t,t],[],[t,L]]",
    ],
)
def test_bridge_layouts_with_empty_stages(layout: str) -> None:
    degrees = "model.pipeline_model_parallel_size=2 model.virtual_pipeline_model_parallel_size=2"
    texts = [read_overrides(f'{degrees} "model.pipeline_model_parallel_layout={layout}"', "b")]
    if layout.startswith("[["):
        rows = [["embedding"], ["decoder"] * 3, [], ["decoder", "loss"]]
        model = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": rows}
        texts.append(read_bridge_file({"model": model}, "b.yaml"))
    for read in texts:
        keys = read.strategy_of(4)
        assert [stage["layers"] for stage in keys["stages"]] == [[0, 0], [0, 3], [3, 3], [3, 4]]
        assert keys["virtual_stages"] == 2
    with pytest.raises(InputError, match="the layout names 'decode'"):
        read_overrides("model.pipeline_model_parallel_layout=[[embedding,decode],[loss]]", "b")


def test_overrides_of_bridge() -> None:
    read = example("bridge.txt")
    assert read.described.runtime == "megatron-bridge"
    keys = read.strategy_of(32)
    assert (keys["tp"], keys["virtual_stages"]) == (4, 4)
    assert keys["recompute"]["modules"] == ["core_attn", "layernorm"]
    assert [*read.conflicts, *read.as_if, *read.unknown] == []
    one = read_overrides("model.tensor_model_paralel_size=8", "--strategy")
    assert "'tensor_model_parallel_size'" in one.unknown[0].says
    file = read_bridge_file({"model": {"context_parallel_size": 2}, "train": {}}, "b.yaml")
    assert file.strategy_of(8)["cp"] == 2
    with pytest.raises(InputError, match="no closing quotation"):
        read_overrides("model.x='8", "--strategy")
