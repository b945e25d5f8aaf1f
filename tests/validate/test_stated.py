"""What rows say of their program beyond its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.validate.names import resolve_program
from astrarium.validate.table import REQUIRED, read_table


def runtime_of(tmp_path: Path, **cells: str) -> Runtime:
    row = dict.fromkeys(REQUIRED, "1") | {"source": "a table", "gpu": "H100"}
    row |= {"framework": "Megatron-Bridge", "model": "Qwen3_30B_a3B"} | cells
    table = tmp_path / "table.csv"
    table.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    return resolve_program(read_table(str(table)).rows[0])[1]


@pytest.mark.parametrize(
    ("cells", "name", "value"),
    [
        ({}, "dispatch", "node"),
        ({"model": "Qwen3_30B_a3B (tokendrop)"}, "dispatch", "copy"),
        ({}, "gradient_bytes", 2),
        ({"framework": "Megatron-LM"}, "gradient_bytes", 4),
        ({"framework": "InternEvo", "zero_or_fsdp": "ZeRO-1 over 8 ranks"}, "broadcast_seconds", 0),
        ({"framework": "InternEvo", "notes": "zero stage 1 over 8 ranks"}, "broadcast_seconds", 0),
        ({"notes": "no capacity factor"}, "dispatch", "node"),
        ({}, "name", "megatron-bridge"),
        ({"source": "NeMo-24.07-perf"}, "name", "megatron-bridge"),
        ({"url_or_repo_path": "github:NVIDIA/NeMo@164b docs"}, "name", "nemo"),
        ({"framework": "NeMo"}, "name", "nemo"),
        ({"framework": "InternEvo"}, "name", "internevo"),
    ],
)
def test_words_of_a_row(tmp_path: Path, cells: dict[str, str], name: str, value: object) -> None:
    assert getattr(runtime_of(tmp_path, **cells), name) == value


def test_a_fused_loss_is_one_kernel(tmp_path: Path) -> None:
    plain = runtime_of(tmp_path, framework="Megatron-LM")
    fused = runtime_of(tmp_path, framework="Megatron-LM", notes="micro-batches 4; fused CE")
    assert "cross_entropy" not in plain.fused
    assert fused.fused == plain.fused | {"cross_entropy"}


def test_memory_over_ranks_is_not_sharding(tmp_path: Path) -> None:
    said = runtime_of(tmp_path, framework="InternEvo", notes="peak over 8 ranks")
    assert said.broadcast_seconds == find_runtime("internevo").broadcast_seconds > 0


@pytest.mark.parametrize(
    "notes",
    [
        "no fused CE",
        "without fused cross-entropy",
        "loss not fused; w/o fused loss",
        "non-fused CE",
        "unfused CE",
        "fused CE off",
        "fused loss: disabled",
        "fused CE=false",
    ],
)
def test_a_denied_fusion_is_none(tmp_path: Path, notes: str) -> None:
    plain = runtime_of(tmp_path, framework="Megatron-LM")
    assert runtime_of(tmp_path, framework="Megatron-LM", notes=notes) is plain


def test_a_fused_loss_adds_to_what_the_program_fuses(tmp_path: Path) -> None:
    """Other programs keep their own plain kernels."""
    for framework in ("nanotron", "PyTorch FSDP", "InternEvo"):
        plain = runtime_of(tmp_path, framework=framework)
        fused = runtime_of(tmp_path, framework=framework, notes="fused CE")
        assert fused.fused == plain.fused | {"cross_entropy"}


def test_gpt_oss_leaves_both_ends_plain_where_megatron_runs_it(tmp_path: Path) -> None:
    bridge = runtime_of(tmp_path)
    assert runtime_of(tmp_path, model="GPT OSS 120B").fused == bridge.fused - {
        "rotary",
        "cross_entropy",
    }
    plain = runtime_of(tmp_path, framework="torchtitan + compile")
    assert runtime_of(tmp_path, framework="torchtitan + compile", model="gpt-oss-20b") is plain
    both = runtime_of(tmp_path, model="GPT OSS 120B", notes="fused CE")
    assert both.fused == bridge.fused - {"rotary"}


def test_equal_words_give_the_same_runtime(tmp_path: Path) -> None:
    assert runtime_of(tmp_path) is runtime_of(tmp_path)
