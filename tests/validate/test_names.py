"""GPUs, programs and number formats as tables write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import row_of

from astrarium.catalog import find_gpu
from astrarium.catalog.runtimes import Runtime, find_runtime
from astrarium.cost.efficiency import operator_model
from astrarium.errors import InputError
from astrarium.model.workload import Precision
from astrarium.validate.names import resolve_gpu, resolve_precision, resolve_program

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-80GB", "A100-SXM4-80GB"),
        ("A100-80GB-SXM", "A100-SXM4-80GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("A100-40GB PCIe", "A100-PCIe-40GB"),
        ("A100", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("8x A100-80GB", "A100-SXM4-80GB"),
        ("DGX H100", "H100-SXM5-80GB"),
        ("H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("H100-95GB-HBM2e", "H100-SXM5-80GB-HBM2e"),
        ("H200", "H200-SXM5-141GB"),
        ("B200-SXM", "B200-SXM6-180GB"),
        ("B200 (power limited)", "B200-SXM6-180GB"),
        ("Blackwell (B200-class, ~184 GiB)", "B200-SXM6-180GB"),
        ("GB200", "GB200-NVL72-186GB"),
        ("GB300", "GB300-NVL72-288GB"),
        ("V100-32GB", "V100-SXM2-32GB"),
        ("V100-16GB", "V100-SXM2-16GB"),
        ("A800-80GB", "A800-SXM4-80GB"),
        ("T4", "T4-16GB"),
        ("MI300X", "MI300X-192GB"),
    ],
)
def test_gpus(text: str, name: str) -> None:
    assert resolve_gpu(text).name == name


def test_a_memory_of_its_own() -> None:
    assert resolve_gpu("H100-95GB-HBM2e").memory_bytes == 95 * GIB
    assert resolve_gpu("A100-64GB").memory_bytes == 64 * GIB
    assert resolve_gpu("H100-80GB").memory_bytes == find_gpu("h100").memory_bytes


@pytest.mark.parametrize(
    "text",
    [
        "H100 + A100",
        "8x H100 + 8x A100",
        "A100/V100",
        "V100, T4",
        "2xA100+2xV100",
        "A100 and V100 mixed",
        "RTX 4090 (2x) + RTX 3090",
        "A100-40GB & A100-80GB",
        "V100-16GB x 8, P100 x 8",
    ],
)
def test_gpus_of_several_types_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"several types \(.*, .*\).*predict --gpus"):
        resolve_gpu(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-80GB, NVLink", "A100-SXM4-80GB"),
        ("8x A100, 80GB", "A100-SXM4-80GB"),
        ("H100 + NVSwitch", "H100-SXM5-80GB"),
        ("H100/H100", "H100-SXM5-80GB"),
        ("L40S x4", "L40S-48GB"),
        ("B300-SXM-270GB", "B300-SXM6-288GB"),
    ],
)
def test_what_only_looks_like_several_types(text: str, name: str) -> None:
    assert resolve_gpu(text).name == name


def test_an_unknown_gpu() -> None:
    with pytest.raises(InputError, match=r"unknown GPU type 'H1000'.*did you mean"):
        resolve_gpu("H1000")


@pytest.mark.parametrize(
    ("framework", "runtime"),
    [
        ("megatron-core 0.16.1 (local spec, SDPA)", "megatron-local"),
        ("PyTorch NVIDIA Release 24.09", "nemo"),
        ("NVIDIA PyTorch release 25.04", "nemo"),
        ("Megatron-LM core without TE", "megatron-local"),
        ("megatron-core, local", "megatron-local"),
        ("Megatron-LM on localhost", "megatron"),
        ("Megatron-LM, allocally tuned", "megatron"),
        ("mcore, no TransformerEngine", "megatron-local"),
        ("Megatron-LM core (23e00ed) + TE 2.11", "megatron"),
        ("Megatron-Core r0.8.0", "megatron"),
        ("Megatron-Bridge/NeMo (Megatron-Core)", "megatron-bridge"),
        ("NeMo 24.07", "nemo"),
        ("Megatron-LM", "megatron"),
        ("Megatron-LM (PTD-P)", "megatron-2021"),
        ("Megatron-DeepSpeed", "megatron-2021"),
        ("DeepSpeed/Megatron-LM v1.1.5 3D", "deepspeed-megatron"),
        ("Megatron-LM + DeepSpeed ZeRO-3", "deepspeed-2021"),
        ("DeepSpeed ZeRO3 mp=4", "deepspeed"),
        ("HF Transformers + DeepSpeed", "deepspeed"),
        ("nanotron", "nanotron"),
        ("InternEvo", "internevo"),
        ("torchtitan (FSDP2/DTensor)", "torchtitan-eager"),
        ("torchtitan (FSDP2/DTensor) + torch.compile", "torchtitan"),
        ("Composer/llm-foundry (PyTorch FSDP1)", "llm-foundry"),
        ("torchtune single device full finetune", "fsdp"),
        ("litgpt Thunder nvfuser", "fsdp"),
        ("PyTorch FSDP", "fsdp"),
        ("PyTorch FSDP, compiled with torch.compile", "torchtitan"),
        ("Zero Bubble (Megatron fork)", "megatron"),
    ],
)
def test_programs(tmp_path: Path, framework: str, runtime: str) -> None:
    assert resolve_program(row_of(tmp_path, framework=framework))[1].name == runtime


def test_torchtitan_compiles_what_it_runs_in_8_bits(tmp_path: Path) -> None:
    for changes in ({"precision": "fp8 (float8 linear)"}, {"overlap": "compile"}):
        row = row_of(tmp_path, framework="torchtitan", **changes)
        assert resolve_program(row)[1].name == "torchtitan"


def test_policies_of_fsdp_decide_bytes(tmp_path: Path) -> None:
    def runtime(**changes: str) -> Runtime:
        return resolve_program(row_of(tmp_path, framework="llm-foundry", **changes))[1]

    assert runtime(zero_or_fsdp="FSDP mixed_precision=PURE").reduced_gradient_bytes == 2
    assert runtime(zero_or_fsdp="FSDP mixed_precision=DEFAULT").reduced_gradient_bytes == 4
    half = runtime(precision="bf16 (pure bf16)")
    # Weights of 16 bits are the optimizer's own: 2 bytes beside 4 of its moments.
    assert (half.gradient_bytes, half.optimizer_bytes) == (2, 6)
    narrow = runtime(precision="bf16 (pure bf16)", notes="8-bit AdamW")
    assert narrow.optimizer_bytes == 4
    assert runtime(notes="chunked cross entropy").logit_bytes == 1.5
    assert runtime(notes="optimizer in backward").gradient_bytes == 0
    assert runtime(notes="activation offload").checkpoints_on_host


def test_another_attention_kernel_runs_at_its_own_speed(tmp_path: Path) -> None:
    usual, other = (
        resolve_program(row_of(tmp_path, framework="llm-foundry", attention_impl=text))[1]
        for text in ("flash", "cuDNN fused attention")
    )
    assert usual.attention_backward_ratio == 2.0
    assert (other.attention, other.attention_backward_ratio) == ("fused", 1.0)


def test_h100_with_hbm2e_is_slower_than_the_catalogs() -> None:
    board, usual = resolve_gpu("H100-95GB-HBM2e"), resolve_gpu("H100-80GB")
    assert board.memory_bytes > usual.memory_bytes
    assert board.memory_bandwidth < usual.memory_bandwidth
    assert board.tdp_watts < usual.tdp_watts
    assert board.peak_flops == usual.peak_flops


@pytest.mark.parametrize(
    ("changes", "runtime", "attention"),
    [
        ({"attention_impl": "unfused (fused softmax)"}, "megatron-2021", "unfused"),
        ({"attention_impl": "flash"}, "megatron", "flash2"),
        ({"attention_impl": "TE fused attention"}, "megatron", "fused"),
        ({"gpu": "V100-32GB"}, "megatron-2021", "unfused"),
        ({"gpu": "8x Tesla V100-32GB"}, "megatron-2021", "unfused"),
        ({"gpu": "T4"}, "megatron-2021", "unfused"),
        ({"framework": "Megatron-LM v2.5"}, "megatron-2021", "unfused"),
        ({"source": "mine 2022"}, "megatron", "fused"),
        ({"source": "Megatron-2020"}, "megatron", "fused"),
        ({"source": "SC21", "attention_impl": "flash-attn"}, "megatron", "flash2"),
        ({"attention_impl": "not fused"}, "megatron-2021", "unfused"),
        ({"attention_impl": "no flash attention"}, "megatron-2021", "unfused"),
    ],
)
def test_megatron_of_old(
    tmp_path: Path, changes: dict[str, str], runtime: str, attention: str
) -> None:
    _, found = resolve_program(row_of(tmp_path, **{"framework": "Megatron-LM", **changes}))
    assert (found.name, found.attention) == (runtime, attention)


@pytest.mark.parametrize(
    ("changes", "runtime"),
    [
        ({"framework": "Megatron-LM", "attention_impl": "torch SDPA"}, "megatron-local"),
        ({"framework": "megatron-core 0.16", "num_gpus": 1, "dp": 1, "tp": 1}, "megatron-local"),
        ({"framework": "megatron-core 0.16"}, "megatron"),
        ({"framework": "megatron-core + TE", "num_gpus": 1, "dp": 1, "tp": 1}, "megatron"),
    ],
)
def test_megatron_without_its_engine(
    tmp_path: Path, changes: dict[str, object], runtime: str
) -> None:
    """torch's attention, or a single GPU, tell the plain library from tuned releases."""
    found = resolve_program(row_of(tmp_path, **changes))[1]
    assert found.name == runtime
    assert found.attention == find_runtime(runtime).attention


def test_an_unknown_program(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown framework 'MaxText'; known are megatron-core"):
        resolve_program(row_of(tmp_path, framework="MaxText"))
    with pytest.raises(InputError, match="did you mean 'torchtitan'"):
        resolve_program(row_of(tmp_path, framework="trochtitan"))
    with pytest.raises(InputError, match="framework is not stated"):
        resolve_program(row_of(tmp_path, framework=None))


@pytest.mark.parametrize(
    ("text", "gpu", "precision"),
    [
        ("bf16 (fp32 grad accumulation)", "h100", Precision.BF16),
        ("amp_bf16", "a100", Precision.BF16),
        ("fp16 (fp32 allreduce)", "t4", Precision.FP16),
        ("FP8-CS", "h100", Precision.FP8),
        ("FP8-MX", "b200", Precision.FP8),
        ("mxfp8_cublas_rceil", "b200", Precision.FP8),
        ("float8 tensorwise", "b200", Precision.FP8),
        ("nvfp4 (layers 27-31 bf16)", "b200", Precision.FP4),
        ("", "a100", Precision.BF16),
        ("", "v100", Precision.FP16),
    ],
)
def test_precisions(tmp_path: Path, text: str, gpu: str, precision: Precision) -> None:
    assert resolve_precision(row_of(tmp_path, precision=text), find_gpu(gpu)) is precision


@pytest.mark.parametrize(
    ("model", "gpu", "precision"),
    [
        ("Llama3-8B-FP8", "H100", Precision.FP8),
        ("llama3 70b nvfp4", "B200", Precision.FP4),
        ("Llama3-8B", "H100 (FP8)", Precision.FP8),
        ("GPT-2 fp16", "A100", Precision.FP16),
        ("Llama3-8B", "H100", Precision.BF16),
        ("gpt-345m-v16", "V100", Precision.FP16),
    ],
)
def test_a_precision_that_only_names_tell(
    tmp_path: Path, model: str, gpu: str, precision: Precision
) -> None:
    row = row_of(tmp_path, precision="", model=model, gpu=gpu)
    assert resolve_precision(row, resolve_gpu(gpu)) is precision
    assert resolve_precision(row_of(tmp_path, precision="bf16", model=model), find_gpu("b200")) is (
        Precision.BF16
    )


def test_a_name_may_tell_a_precision_that_is_not_modelled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fp32 is not modelled"):
        resolve_precision(row_of(tmp_path, precision="", model="gpt2-fp32"), find_gpu("a100"))


@pytest.mark.parametrize(("text", "gpu"), [("fp32", "a100"), ("fp8", "a100"), ("bf16", "v100")])
def test_precisions_that_are_not_modelled(tmp_path: Path, text: str, gpu: str) -> None:
    with pytest.raises(InputError, match=r"not modelled|has no"):
        resolve_precision(row_of(tmp_path, precision=text), find_gpu(gpu))


@pytest.mark.parametrize(
    ("text", "watts"),
    [("H100 (500 W)", 500), ("H100-SXM 350W", 350), ("H100 1000W", 700), ("H100", 700)],
)
def test_a_power_limit_slows_a_board_down(text: str, watts: int) -> None:
    gpu = resolve_gpu(text)
    assert gpu.tdp_watts == watts
    rate = operator_model(gpu).gemm(8192, 8192, 8192)
    assert (rate > operator_model(resolve_gpu("H100")).gemm(8192, 8192, 8192)) == (watts < 700)
