"""What sources say about their rows in other places than the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.validate.names import resolve_program
from astrarium.validate.readings import (
    CORRECTIONS,
    TableCorrection,
    as_run,
    corrections_of,
    runtime_as_run,
)
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


@pytest.mark.parametrize(
    "title",
    [
        "Hugging Face Ultra-Scale Playbook",
        "GPT with Transformers",
        "vTrain data/ground_truth_single.csv",
        "BigScience-V100",
        "torchtitan-nvfp4",
        "NeMo-24.07-perf",
        "Megatron-LM v1.1.5 + DeepSpeed ZeRO-3 (Megatron-Core CI)",
        "SC21",
        "mine 2022",
    ],
)
@pytest.mark.parametrize(
    "framework", ["Megatron-LM", "Megatron-DeepSpeed", "Megatron-Bridge", "nanotron", "torchtitan"]
)
def test_the_title_of_a_source_changes_nothing(tmp_path: Path, title: str, framework: str) -> None:
    cells = {"framework": framework, "model": "GPT-3 175B", "recompute": "full", "num_gpus": 8}
    plain, titled = (
        scenario_of(row_of(tmp_path, source=source, **cells)) for source in ("mine", title)
    )
    assert titled == plain


@pytest.mark.parametrize("known", CORRECTIONS, ids=lambda known: known.title)
def test_every_correction_says_why(known: TableCorrection) -> None:
    assert known.reason.endswith(".")
    assert known.fills or known.replaces or known.runtime or known.program


@pytest.mark.parametrize(
    ("address", "cells", "titles"),
    [
        ("github:VIA-Research/vTrain data/ground_truth_single.csv", {}, "vTrain, single node"),
        (
            "github:bigscience-workshop/bigscience experiments/tr8-104B.md#L17",
            {},
            "BigScience on V100",
        ),
        (
            "github:pytorch/torchtitan torchtitan/components/quantization/nvfp4.md",
            {},
            "torchtitan, NVFP4",
        ),
        ("github:NVIDIA/NeMo@164b docs/summary.md", {"model": "GPT3-175B"}, "NeMo, NeMo, GPT-3"),
        ("github:NVIDIA/NeMo@164b docs/summary.md", {"model": "Llama-3-8B"}, "NeMo"),
        ("github:NVIDIA-NeMo/Megatron-Bridge docs/summary.md", {"model": "GPT3-175B"}, ""),
        ("", {}, ""),
    ],
)
def test_corrections_go_by_address(
    tmp_path: Path, address: str, cells: dict[str, str], titles: str
) -> None:
    row = row_of(tmp_path, url_or_repo_path=address, **cells)
    assert ", ".join(known.title for known in corrections_of(row)) == titles


def test_blank_cells_are_filled_and_stated_ones_kept(tmp_path: Path) -> None:
    address = "github:pytorch/torchtitan torchtitan/components/quantization/nvfp4.md"
    blank = row_of(tmp_path, url_or_repo_path=address, seq_len=None)
    assert as_run(blank).seq_len == 2048
    assert as_run(row_of(tmp_path, url_or_repo_path=address, seq_len=8192)).seq_len == 8192


def test_what_a_row_says_to_be_fused_stays(tmp_path: Path) -> None:
    cells = {"framework": "HF Transformers + DeepSpeed", "notes": "fused CE"}
    assert runtime_of(tmp_path, **cells).fused == {"cross_entropy"}


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
        ({"framework": "Megatron-LM (Megatron-Core CI)", "model": "mixtral"}, "dropout", True),
        (
            {
                "framework": "Megatron-LM (Megatron-Core CI)",
                "url_or_repo_path": "github:NVIDIA/Megatron-LM"
                " tests/functional_tests/test_cases/mixtral/8x7b/golden_values.json",
            },
            "dropout",
            False,
        ),
        ({"framework": "DeepSpeed ZeRO-3 + Megatron-LM"}, "gradient_bytes", 2),
        ({"framework": "DeepSpeed ZeRO-3 + Megatron-LM"}, "checkpoints_on_host", True),
        ({"framework": "Megatron-FSDP (ZeRO-3)"}, "checkpoints_on_host", False),
        (
            {"framework": "Megatron-Bridge FSDP", "pp": "1", "model": "LLAMA3_70B", "gpu": "GB200"},
            "activations_on_host",
            0.5,
        ),
        (
            {"framework": "Megatron-Bridge FSDP", "pp": "1", "model": "LLAMA3_8B"},
            "activations_on_host",
            0,
        ),
        (
            {"framework": "Megatron-Bridge FSDP", "pp": "1", "model": "Llama 3.1 405B"},
            "activations_on_host",
            0.75,
        ),
        ({"framework": "Megatron-Bridge", "pp": "1"}, "activations_on_host", 0),
        (
            {"framework": "Megatron-Bridge", "precision": "fp8 blockwise"},
            "scaled_product_ratio",
            1.35,
        ),
        ({"framework": "Megatron-Bridge", "precision": "FP8-CS"}, "scaled_product_ratio", 1),
        ({"framework": "Megatron-Bridge", "precision": "FP8-MX"}, "scaled_product_ratio", 1.05),
        (
            {"framework": "Megatron-DeepSpeed", "model": "zero-3 transformers"},
            "checkpoints_on_host",
            False,
        ),
        ({"framework": "Hugging Face nanotron"}, "pads_vocabulary", True),
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
    cells = {"url_or_repo_path": "github:NVIDIA/NeMo docs", "framework": "NeMo"}
    assert runtime_of(tmp_path, model="GPT3-5B", **cells).dropout
    assert not runtime_of(tmp_path, model="LLAMA2-7B", **cells).dropout


def test_recipes_of_torchao_cast_at_their_own_rates(tmp_path: Path) -> None:
    def rate(precision: str) -> float:
        return runtime_of(tmp_path, framework="torchtitan", precision=precision).cast_rate

    tensors, rows = rate("fp8 (float8 tensorwise)"), rate("fp8 (float8 rowwise)")
    assert rows < tensors < rate("mxfp8")


def test_torchtitan_compiled_its_loss_later(tmp_path: Path) -> None:
    cells = {"framework": "torchtitan", "overlap": "compile"}
    address = "github.com/pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
    now, then = (runtime_of(tmp_path, **cells, url_or_repo_path=at) for at in ("", address))
    assert (now.logit_bytes, then.logit_bytes) == (4, 12)
    assert now.fused - then.fused == {"cross_entropy"}


def test_one_gpu_of_torchtune_gathers_nothing(tmp_path: Path) -> None:
    cells = {"overlap": "compile", "precision": "bf16 (pure bf16)"}
    alone = runtime_of(tmp_path, framework="torchtune single device full finetune", **cells)
    assert (alone.sharded_moved_bytes, alone.gathered_moved_bytes) == (0, 0)
