"""What sources say about their rows in other places than the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.validate.names import resolve_program
from astrarium.validate.readings import as_run, runtime_as_run
from astrarium.validate.scenario import scenario_of


def runtime_of(tmp_path: Path, **cells: str) -> Runtime:
    row = row_of(tmp_path, **cells)
    return runtime_as_run(row, resolve_program(row)[1])


def test_rows_of_vtrain_did_not_recompute(tmp_path: Path) -> None:
    row = row_of(
        tmp_path,
        source="vTrain",
        url_or_repo_path="github:VIA-Research/vTrain data/ground_truth_single.csv",
        recompute="full",
    )
    assert (as_run(row).vocab, as_run(row).recompute) == (50257, "none")


def test_other_rows_are_read_as_they_are(tmp_path: Path) -> None:
    row = row_of(tmp_path, source="some paper", recompute="full", framework="Megatron-LM")
    assert as_run(row) == row
    assert runtime_of(tmp_path, framework="Megatron-LM") == find_runtime("megatron")


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ({"framework": "HF Transformers + DeepSpeed"}, "pads_vocabulary", False),
        ({"framework": "HF Transformers + DeepSpeed"}, "fused", frozenset()),
        ({"framework": "Megatron-LM v1.1.5 3D"}, "fuses_mask", False),
        ({"framework": "Megatron-DeepSpeed", "precision": "fp16"}, "reduced_gradient_bytes", 2),
        (
            {"framework": "Megatron-DeepSpeed", "precision": "fp16 (fp32 allreduce)"},
            "reduced_gradient_bytes",
            4,
        ),
        ({"framework": "Megatron-DeepSpeed"}, "gradient_bytes", 6),
        ({"framework": "Megatron-LM + DeepSpeed ZeRO-3"}, "gradient_bytes", 2),
        ({"framework": "Megatron-LM + DeepSpeed ZeRO-3"}, "checkpoints_on_host", True),
        ({"framework": "DeepSpeed ZeRO-3"}, "checkpoints_on_host", False),
        ({"framework": "Megatron-LM (Megatron-Core CI)"}, "dropout", True),
        ({"framework": "Megatron-LM (Megatron-Core CI)", "model": "mixtral"}, "dropout", False),
        ({"framework": "Megatron-DeepSpeed", "notes": "8-bit BNB Adam"}, "optimizer_bytes", 6),
    ],
)
def test_runtimes(tmp_path: Path, cells: dict[str, str], field: str, value: object) -> None:
    assert getattr(runtime_of(tmp_path, **cells), field) == value


def test_old_megatron_had_no_sequence_parallelism(tmp_path: Path) -> None:
    row = row_of(tmp_path, framework="Megatron-LM", gpu="V100-32GB", precision="fp16")
    scenario = scenario_of(row)
    assert scenario.runtime.name == "megatron-2021"
    assert not scenario.strategies[0].sequence_parallel
    assert not scenario.strategies[0].overlap.tp


def test_experts_need_gpus(tmp_path: Path) -> None:
    keys = {"num_gpus": "", "gpus_per_node": "", "dp": "", "model": "Mixtral-8x7B"}
    row = row_of(tmp_path, tp="2", pp="4", ep="8", global_batch="256", **keys)
    assert scenario_of(row).pool.num_gpus == 2 * 4 * 8


@pytest.mark.parametrize(
    ("cells", "captured"),
    [
        ({"gpu": "GB200"}, True),
        ({"gpu": "B200"}, False),
        ({"gpu": "H100", "pp": "2", "model": "Qwen3 30B (tokendrop)"}, False),
        ({"gpu": "B200", "pp": "1", "model": "Qwen3 30B (tokendrop)"}, True),
        ({"gpu": "B200", "pp": "1", "notes": "pretrain; container 25.09"}, True),
        ({"gpu": "B200", "pp": "1", "notes": "pretrain; container 25.11"}, False),
        ({"gpu": "B200", "overlap": "CUDA graphs"}, True),
    ],
)
def test_recipes_capture_experts_in_graphs_on_some_machines(
    tmp_path: Path, cells: dict[str, str], captured: bool
) -> None:
    runtime = runtime_of(tmp_path, **{"framework": "Megatron-Bridge"} | cells)
    plain = find_runtime("megatron")
    expected = 0.0 if captured else plain.router_launch_seconds
    assert runtime.router_launch_seconds == expected
    assert (runtime.expert_launch_seconds == 0.0) is captured


def test_gpt_3_of_nemo_has_dropout(tmp_path: Path) -> None:
    cells = {"source": "NeMo-24.07-perf", "framework": "NeMo"}
    assert runtime_of(tmp_path, model="GPT3-5B", **cells).dropout
    assert not runtime_of(tmp_path, model="LLAMA2-7B", **cells).dropout
