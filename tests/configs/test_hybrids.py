"""Models with scans in Megatron's options: what is exported is read back, the rest is named."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from exported_plans import document

from astrarium.configs.imported import Imported, OpenQuestionError
from astrarium.configs.megatron.importing import read_arguments
from astrarium.export.software.megatron import program
from astrarium.plans.job import Job, job_of

SIZES = (
    "--hidden-size 512 --ffn-hidden-size 1024 --num-attention-heads 8 --seq-length 2048"
    " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --bf16"
    " --vocab-size 1000 --position-embedding-type none --normalization RMSNorm"
    " --disable-bias-linear"
)


def read(text: str) -> Imported:
    return read_arguments(text, "script.sh")


def exported(one: Job) -> Imported:
    made = program(one)
    return read_arguments(shlex.join([*made.arguments, *made.data.generated]), "launch.sh")


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("nemotron-h-8b", {"tp": 4, "pp": 4, "split": "balanced"}),
        ("nemotron-h-8b", {"tp": 2, "pp": 2, "virtual_stages": 13}),
        ("nemotron-3-nano-30b-a3b", {"tp": 1, "ep": 8, "etp": 1}),
        ("qwen3-next-80b-a3b", {"tp": 2, "pp": 4, "ep": 8, "etp": 1, "overlap_tp": False}),
    ],
)
def test_an_exported_model_is_read_back(model: str, strategy: dict[str, Any]) -> None:
    one = job_of(document(model, "h100:64", strategy, seq_length=4096))
    found = exported(one)
    assert not found.conflicts
    assert not found.unknown
    again = found.model()
    assert again.blocks == one.model.blocks
    assert again.parameters == one.model.parameters
    assert again.config is not None  # so it can be exported again
    keys = found.strategy_of(again.num_layers)
    assert (keys["tp"], keys["pp"], keys["ep"]) == (
        one.strategy.tp,
        one.strategy.pp,
        one.strategy.ep,
    )
    assert keys["virtual_stages"] == one.strategy.virtual_stages
    if keys["split"] == "free":
        layers = [stage["layers"] for stage in keys["stages"]]
        planned = [[s.first_layer, s.last_layer] for s in one.strategy.ordered_stages]
        assert layers == planned


def test_layers_of_two_parts_are_read_as_two() -> None:
    one = job_of(document("bamba-9b", "h100:64", {"tp": 1, "pp": 4}, seq_length=4096))
    again = exported(one).model()
    assert again.num_layers == 2 * one.model.num_layers
    assert again.parameters == one.model.parameters


def test_sizes_that_are_not_given_are_megatrons() -> None:
    model = read(f"{SIZES} --hybrid-layer-pattern M-M*-M|-M-*-M/*-").model()
    assert [block.name for block in model.blocks][:4] == ["mamba", "mlp", "mamba", "attention"]
    scan = model.blocks[0].scans[0]  # type: ignore[union-attr]
    assert (scan.heads, scan.head_dim, scan.groups, scan.state) == (16, 64, 8, 128)


def test_what_predicts_further_tokens_is_left_out_and_said() -> None:
    found = read(f"{SIZES} --hybrid-layer-pattern M-M*/*-/*-")
    assert found.model().num_layers == 4
    assert any("further tokens" in note for note in found.notes)


def test_the_older_spelling_and_its_spec_are_read() -> None:
    spec = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
    found = read(f"{SIZES} --hybrid-override-pattern M*M- {spec} --is-hybrid-model")
    assert found.model().num_layers == 4
    assert not [one for one in found.as_if if one.option in ("--spec", "--is-hybrid-model")]
    other = read(f"{SIZES} --hybrid-override-pattern M*M- --spec my.module my_spec")
    assert [one for one in other.as_if if one.option == "--spec"]


def test_delta_nets_by_letter() -> None:
    model = read(f"{SIZES} --hybrid-layer-pattern G-G-*-").model()
    assert [block.name for block in model.blocks] == ["delta", "mlp"] * 2 + ["attention", "mlp"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hybrid-layer-pattern M+M-", "latent attention"),
        ("--hybrid-layer-pattern MDM-", "sparse attention"),
        ("--hybrid-layer-pattern MXM-", "no layer of Megatron's"),
        ("--hybrid-layer-pattern MGM-", "in one pattern"),
        ("--hybrid-layer-pattern M-M- --mamba-num-groups 3", "does not divide the 16 heads"),
        (
            "--num-layers 4 --experimental-attention-variant gated_delta_net"
            " --linear-attention-freq 4 --linear-num-key-heads 5",
            "do not divide 32 heads",
        ),
        ("--num-layers 4 --experimental-attention-variant dsa", "another sort of attention"),
    ],
)
def test_what_is_not_modelled_is_named(options: str, message: str) -> None:
    with pytest.raises(OpenQuestionError, match=message):
        read(f"{SIZES} {options}").model()
