"""What rows say of their program beyond its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.catalog.runtimes import Runtime
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
        ({}, "name", "megatron-bridge"),
        ({"source": "NeMo-24.07-perf"}, "name", "nemo"),
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


def test_equal_words_give_the_same_runtime(tmp_path: Path) -> None:
    assert runtime_of(tmp_path) is runtime_of(tmp_path)
