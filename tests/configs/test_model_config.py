"""Models that a configuration states have the config.json of the same model, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.configs.detect import read_config
from astrarium.model.blocks import Model
from astrarium.model.load import model_of_config

EXAMPLES = Path(__file__).parent / "examples"
PLAIN = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --vocab-size 1000"
)
LLAMA = (
    "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope"
    " --ffn-hidden-size 1024"
)


def model_of(reference: str) -> Model:
    found = read_config(reference)
    assert found is not None
    return found.model()


@pytest.mark.parametrize(
    ("reference", "family"),
    [
        (str(EXAMPLES / "llama3_70b.sh"), "llama"),
        (str(EXAMPLES / "mixtral_strings.sh"), "mixtral"),
        (str(EXAMPLES / "deepseek_uneven.sh"), "deepseek_v3"),
        (str(EXAMPLES / "messy.sh"), "gpt2"),
        (str(EXAMPLES / "nanotron.yaml"), "llama"),
        (f"{PLAIN} {LLAMA}", "llama"),
        (f"{PLAIN} {LLAMA} --add-qkv-bias", "qwen2"),
        (f"{PLAIN} {LLAMA} --qk-layernorm", "qwen3"),
        (f"{PLAIN} {LLAMA} --window-size (63,0)", "mistral"),
    ],
)
def test_the_config_builds_the_same_model(reference: str, family: str) -> None:
    model = model_of(reference)
    assert model.config is not None
    assert model.config["model_type"] == family
    again = model_of_config(model.config, "again", "test")
    assert (again.blocks, again.embedding, again.head) == (
        model.blocks,
        model.embedding,
        model.head,
    )


def test_a_model_of_no_family_has_none() -> None:
    assert model_of(f"{PLAIN} --squared-relu --normalization RMSNorm").config is None
