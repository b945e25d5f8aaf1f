"""The model of a row: by name, by sizes, by what the notes say."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.blocks import Block, Model
from astrarium.validate.models import model_of


def model(tmp_path: Path, **changes: object) -> Model:
    row = row_of(tmp_path, **changes)
    return model_of(row, row.seq_len or 2048)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LLAMA3_8B", "llama-3-8b"),
        ("LLAMA2-70B", "llama-2-70b"),
        ("Llama3-405B (truncated)", "llama-3.1-405b"),
        ("Llama3-8B (dense; model not named in table)", "llama-3-8b"),
        ("Qwen3_235B_a22B (tokendrop)", "qwen3-235b-a22b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("GPT3-175B", "gpt3-175b"),
        ("Nemotron-340B", "nemotron-4-340b"),
        ("Llama4 Scout", "llama-4-scout"),
    ],
)
def test_public_models(tmp_path: Path, text: str, name: str) -> None:
    assert model(tmp_path, model=text) == load_model(name)


def test_a_shorter_stack(tmp_path: Path) -> None:
    whole = load_model("llama-3-70b")
    sizes = {"hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
    short = model(tmp_path, model="Llama3-70B (truncated)", layers=12, **sizes)
    assert short.blocks == whole.blocks[:12]
    assert short.head == whole.head


def test_a_shorter_stack_with_experts(tmp_path: Path) -> None:
    """The notes say how many of the first layers are without experts."""
    sizes = {"layers": 4, "hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 18432}
    notes = "MLA; moe_ffn 2048, dense_layers=1"
    short = model(tmp_path, model="DeepSeek-V3 (truncated)", moe_experts=256, notes=notes, **sizes)
    kinds = [block.experts for block in short.blocks if isinstance(block, Block)]
    assert kinds == [0, 256, 256, 256]


def test_stated_sizes_win_over_a_name(tmp_path: Path) -> None:
    """A "GPT-2" of other sizes is no entry of the catalog."""
    found = model(tmp_path, model="GPT-2", layers=24, hidden=1024, heads=16, vocab=52256)
    assert (found.num_layers, found.hidden, found.vocab) == (24, 1024, 52256)
    shard = model(
        tmp_path, model="Llama-2-7B", layers=2, hidden=4096, heads=4, head_dim=128, ffn=1376
    )
    block = shard.blocks[0]
    assert isinstance(block, Block)
    assert (block.attentions[0].heads, block.attentions[0].key_dim, gated(shard)) == (4, 128, True)
    other = model(tmp_path, model="Llama-2-7B", vocab=50000, tied_embeddings="true")
    assert (other.vocab, other.head.outputs, other.head.tied) == (50000, 50000, True)


def gated(found: Model) -> bool:
    block = found.blocks[0]
    assert isinstance(block, Block)
    return block.gated


@pytest.mark.parametrize(
    ("changes", "is_gated", "tied"),
    [
        ({"model": "GPT 7.5B"}, False, True),
        ({"model": "mine", "ffn": 4096 * 4}, False, True),
        ({"model": "mine", "ffn": 11008}, True, False),
        ({"model": "Llama-like"}, True, False),
        ({"model": "GPT", "gated_mlp": "true"}, True, True),
        ({"model": "GPT", "notes": "other flags: swiglu"}, True, True),
        ({"model": "GPT", "notes": "untied embeddings"}, False, False),
        ({"model": "Llama-like", "notes": "tied embeddings for 1B"}, True, True),
        ({"model": "Llama-like", "tied_embeddings": "true"}, True, True),
    ],
)
def test_families(tmp_path: Path, changes: dict[str, str], is_gated: bool, tied: bool) -> None:
    sizes = {"layers": 32, "hidden": 4096, "heads": 32}
    found = model(tmp_path, **{**sizes, **changes})
    assert (gated(found), found.head.tied) == (is_gated, tied)


def test_the_number_of_parameters_decides(tmp_path: Path) -> None:
    """nanotron's 3.57B model is tied; the number says so where the notes do not."""
    sizes = {"layers": 28, "hidden": 3072, "heads": 32, "ffn": 8192, "vocab": 131072}
    found = model(tmp_path, model="Llama-like 3.57B", params_b=3.57, **sizes)
    assert found.head.tied
    assert found.parameters / 1e9 == pytest.approx(3.57, abs=0.005)


def test_encoders_and_experts(tmp_path: Path) -> None:
    sizes = {"layers": 24, "hidden": 1024, "heads": 16}
    bert = model(tmp_path, model="bert tiny (bert_mcore_tp1_pp2)", **sizes)
    assert bert.architecture == "encoder"
    moe = model(tmp_path, model="moe tiny", moe_experts=8, moe_topk=2, **sizes)
    assert moe.max_experts == 8
    wide = model(tmp_path, model="mine", head_dim=128, **sizes)
    block = wide.blocks[0]
    assert isinstance(block, Block)
    assert block.attentions[0].key_dim == 128


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "GPT 105B"}, "layers not stated, and 'GPT 105B' is no known model"),
        ({"model": "t5 tiny (t5_11b)", "layers": 24}, "decoders and encoders are not modelled"),
        ({"model": "mine", "layers": 2, "hidden": 8, "heads": 16}, "16 heads do not fit"),
    ],
)
def test_models_that_cannot_be_built(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        model(tmp_path, **changes)
