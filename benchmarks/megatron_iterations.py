"""Trains the real megatron-core on one GPU and times whole iterations: `--cases dev --out DIR`.

Needs torch and megatron-core 0.16.1 on the path, neither TransformerEngine nor Apex: layers of
`get_gpt_layer_local_spec` with torch's scaled dot product attention, gradients of fp32 in the
buffers of `DistributedDataParallel`, the bf16 optimizer with AdamW and clipping.
Writes one CSV row per case, with the columns of published measurements first, and a JSON of kernel
times for the cases marked so. Cases run in their order until `--seconds` are used up.
Not measured: several GPUs, mixtures of experts, learning-rate schedules, data loading.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional
from megatron_cases import LISTS, Case

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

warnings.filterwarnings("ignore")
Loss = Callable[[torch.Tensor], tuple[torch.Tensor, dict[str, Any]]]

PUBLISHED = (
    "source,url_or_repo_path,framework,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,"
    "seq_len,moe_experts,moe_topk,gpu,num_gpus,gpus_per_node,intra_link,inter_link_gbps_per_gpu,"
    "precision,tp,pp,vpp,dp,cp,ep,sp,zero_or_fsdp,distributed_optimizer,micro_batch,global_batch,"
    "recompute,attention_impl,overlap,iter_time_s,tokens_per_s_per_gpu,tflops_per_gpu_model,mfu,"
    "peak_mem_gb,notes"
)
EXTRA = (
    "head_dim,gated_mlp,tied_embeddings,num_micro_batches,fused,reserved_mem_gb,static_mem_gb,"
    "forward_backward_peak_gb,optimizer_peak_gb,iter_time_min_s,iter_time_max_s,zero_grad_s,"
    "forward_backward_s,optimizer_s,host_forward_backward_s,grad_norm,clipped,parameters,tensors,build_s"
)
WARM_UP = 3
CLIP = 1.0  # the gradient norm above which the optimizer scales gradients, two more kernels each
TOP_KERNELS = 40
PEAK_BF16_FLOPS = 989e12  # H100 and H200, dense, the vendor's datasheet
GB = 1e9


class TorchAttention(torch.nn.Module):
    """Megatron-core's core attention by torch's kernels: [s, b, heads, d] in, [s, b, h] out."""

    def __init__(self, backend: str = "default", **_: object) -> None:
        super().__init__()
        self.backend = backend

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        with self._kernel():
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=grouped
            )
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)

    def _kernel(self) -> contextlib.AbstractContextManager[Any]:
        if self.backend != "flash":
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


class Training:
    """One model with its optimizer, and one call per iteration."""

    def __init__(
        self,
        case: Case,
        device: torch.device,
        gpt: Callable[[Any], torch.nn.Module] | None = None,
    ) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.case = case
        self.model = _wrapped(case, (gpt or _gpt)(case).to(device))
        self.optimizer = _optimizer(case, self.model)
        self.run = get_forward_backward_func()
        shape = (case.micro_batch, case.seq)
        tokens = torch.randint(0, case.shape.vocab, (case.micro_batch, case.seq + 1), device=device)
        self.batch = (
            tokens[:, :-1].contiguous(),
            torch.arange(case.seq, device=device).expand(shape).contiguous(),
            tokens[:, 1:].contiguous(),
            torch.ones(shape, device=device),
        )

    def zero(self) -> None:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def forward_backward(self) -> list[Any]:
        case = self.case
        return self.run(
            forward_step_func=self._forward,
            data_iterator=None,
            model=[self.model],
            num_microbatches=case.micro_batches,
            seq_length=case.seq,
            micro_batch_size=case.micro_batch,
            forward_only=False,
        )

    def _forward(self, _: object, model: torch.nn.Module) -> tuple[torch.Tensor, Loss]:
        tokens, positions, labels, mask = self.batch
        return model(tokens, positions, None, labels=labels), partial(_masked_mean, mask)


def _masked_mean(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    loss = (losses.float() * mask).sum() / mask.sum()
    return loss, {"loss": loss.detach()}


def settings_of(case: Case) -> dict[str, Any]:
    """Arguments of megatron-core's `TransformerConfig`."""
    shape = case.shape
    recompute = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    return dict(
        num_layers=case.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.ffn,
        gated_linear_unit=shape.gated,
        activation_func=functional.silu if shape.gated else functional.gelu,
        normalization="RMSNorm" if shape.gated else "LayerNorm",
        add_bias_linear=not shape.gated,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bias_activation_fusion=case.fused,
        bias_dropout_fusion=case.fused,
        **(recompute if case.recompute == "full" else {}),
    )


def _config(case: Case) -> TransformerConfig:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(**settings_of(case))
    config.finalize_model_grads_func = finalize_model_grads
    return config


def _gpt(case: Case) -> torch.nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    shape = case.shape
    config = _config(case)
    spec = get_gpt_layer_local_spec(normalization=config.normalization)
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = partial(TorchAttention, backend=case.attention)
    return GPTModel(
        config,
        spec,
        vocab_size=shape.vocab,
        max_sequence_length=case.seq,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope" if shape.gated else "learned_absolute",
    )


def _wrapped(case: Case, model: torch.nn.Module) -> torch.nn.Module:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import Float16Module

    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=case.distributed_optimizer
    )
    return DistributedDataParallel(model.config, settings, Float16Module(model.config, model))


def _optimizer(case: Case, model: torch.nn.Module) -> MegatronOptimizer:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        weight_decay=0.1,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=case.distributed_optimizer,
        clip_grad=CLIP,
    )
    return get_megatron_optimizer(settings, [model])


class Clock:
    """Times and memory peaks of the parts of an iteration; on a CPU, of times only."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self.rows: list[dict[str, float]] = []

    def iteration(self, training: Training) -> None:
        """One iteration; the memory peaks are the host's record, so nothing waits for the GPU."""
        self._wait()
        row = {"static": self._peak_then_reset(current=True)}
        marks = [self._mark()]
        start = time.perf_counter()
        training.zero()
        marks.append(self._mark())
        training.forward_backward()
        marks.append(self._mark())
        row["host"] = time.perf_counter() - start
        row["forward_backward_peak"] = self._peak_then_reset()
        row["grad_norm"] = float(training.optimizer.step()[1])
        marks.append(self._mark())
        self._wait()
        row["time"] = time.perf_counter() - start
        row["optimizer_peak"] = self._peak_then_reset()
        for name, before, after in zip(("zero", "run", "step"), marks, marks[1:], strict=False):
            row[name] = before.elapsed_time(after) / 1e3 if self.gpu else after - before
        self.rows.append(row)

    def median(self, name: str) -> float:
        return statistics.median(row[name] for row in self.rows)

    def most(self, name: str) -> float:
        return max(row[name] for row in self.rows)

    def _wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def _mark(self) -> torch.cuda.Event | float:
        if not self.gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _peak_then_reset(self, current: bool = False) -> float:
        if not self.gpu:
            return 0.0
        held = torch.cuda.memory_allocated() if current else torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return held / GB


def _measure(case: Case, device: torch.device, kernels: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    training = Training(case, device)
    warm_up = Clock(device)
    for _ in range(WARM_UP):
        warm_up.iteration(training)
    build = time.perf_counter() - began
    clock = Clock(device)
    last = warm_up.rows[-1]["time"]
    for _ in range(8 if last < 0.35 else 6 if last < 0.8 else 5):
        clock.iteration(training)
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"] / GB if clock.gpu else 0.0
    if case.profile:
        kernels[case.label] = _kernels(training, clock)
    peak = max(clock.most("forward_backward_peak"), clock.most("optimizer_peak"))
    times = [row["time"] for row in clock.rows]
    parameters = [p.numel() for p in training.model.parameters()]
    return {
        **_rates(case, clock.median("time"), sum(parameters)),
        "iter_time_min_s": f"{min(times):.6f}",
        "iter_time_max_s": f"{max(times):.6f}",
        "peak_mem_gb": f"{peak:.4f}",
        "reserved_mem_gb": f"{reserved:.4f}",
        "static_mem_gb": f"{clock.median('static'):.4f}",
        "forward_backward_peak_gb": f"{clock.most('forward_backward_peak'):.4f}",
        "optimizer_peak_gb": f"{clock.most('optimizer_peak'):.4f}",
        "zero_grad_s": f"{clock.median('zero'):.6f}",
        "forward_backward_s": f"{clock.median('run'):.6f}",
        "optimizer_s": f"{clock.median('step'):.6f}",
        "host_forward_backward_s": f"{clock.median('host'):.6f}",
        "grad_norm": f"{clock.rows[-1]['grad_norm']:.4g}",
        "clipped": f"{statistics.mean(row['grad_norm'] > CLIP for row in clock.rows):.2f}",
        "parameters": sum(parameters),
        "tensors": len(parameters),
        "build_s": f"{build:.2f}",
        "notes": "peak_mem_gb is max_memory_allocated; no TransformerEngine or Apex",
    }


def _rates(case: Case, seconds: float, parameters: int) -> dict[str, Any]:
    """Model FLOP count: six per weight and token without the input embedding, and attention."""
    shape, tokens = case.shape, case.seq * case.micro_batch * case.micro_batches
    embedding = shape.vocab * shape.hidden * (not shape.tied)
    embedding += 0 if shape.gated else case.seq * shape.hidden
    attention = 6 * case.layers * case.seq * shape.heads * shape.head_dim  # causal: half of 12
    flops = tokens * (6 * (parameters - embedding) + attention)
    return {
        "params_b": f"{parameters / 1e9:.5f}",
        "iter_time_s": f"{seconds:.6f}",
        "tokens_per_s_per_gpu": f"{tokens / seconds:.1f}",
        "tflops_per_gpu_model": f"{flops / seconds / 1e12:.2f}",
        "mfu": f"{flops / seconds / PEAK_BF16_FLOPS:.4f}",
    }


def _kernels(training: Training, clock: Clock) -> dict[str, Any]:
    """Device seconds by kernel of one iteration, the longest first, and how many were launched."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if clock.gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as recorded:
        Clock(torch.device("cuda" if clock.gpu else "cpu")).iteration(training)
    kernels: dict[str, list[float]] = {}
    for event in recorded.events():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if on_device == clock.gpu and not event.name.startswith("Optimizer."):
            cost = event.time_range.elapsed_us() if clock.gpu else event.self_cpu_time_total
            entry = kernels.setdefault(event.name, [0, 0.0])
            entry[0] += 1
            entry[1] += cost / 1e6
    ranked = sorted(kernels.items(), key=lambda item: -item[1][1])
    return {
        "iteration_s": clock.median("time"),
        "device_s": sum(seconds for _, (_, seconds) in ranked),
        "launches": sum(count for _, (count, _) in ranked),
        "kernels": [
            [name[:220], count, seconds] for name, (count, seconds) in ranked[:TOP_KERNELS]
        ],
    }


def _stated(case: Case, gpu: str) -> dict[str, Any]:
    """What the row says of the case itself."""
    shape = case.shape
    attention = "torch SDPA" if case.attention == "default" else f"torch SDPA {case.attention}"
    return {
        "source": "astrarium-h200-megatron-core",
        "url_or_repo_path": "benchmarks/megatron_iterations.py",
        "framework": f"Megatron-core 0.16.1 local spec, torch {torch.__version__}",
        "model": case.model,
        "layers": case.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn": shape.ffn,
        "vocab": shape.vocab,
        "seq_len": case.seq,
        "gpu": gpu,
        **dict.fromkeys(("num_gpus", "gpus_per_node", "tp", "pp", "vpp", "dp", "cp", "ep"), 1),
        "precision": "bf16",
        "sp": "false",
        "zero_or_fsdp": "ZeRO-1" if case.distributed_optimizer else "none",
        "distributed_optimizer": str(case.distributed_optimizer).lower(),
        "micro_batch": case.micro_batch,
        "global_batch": case.micro_batch * case.micro_batches,
        "recompute": case.recompute,
        "attention_impl": attention,
        "overlap": "none",
        "head_dim": shape.head_dim,
        "gated_mlp": str(shape.gated).lower(),
        "tied_embeddings": str(shape.tied).lower(),
        "num_micro_batches": case.micro_batches,
        "fused": str(case.fused).lower(),
    }


def _row(case: Case, device: torch.device, kernels: dict[str, Any]) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    stated = _stated(case, "H200" if "H200" in gpu else gpu)
    try:
        return stated | _measure(case, device, kernels)
    except torch.OutOfMemoryError as problem:
        return stated | {"notes": f"OOM: {str(problem).splitlines()[0][:120]}"}
    except Exception as problem:  # one bad case must not cost the others
        return stated | {"notes": f"FAILED: {type(problem).__name__}: {str(problem)[:200]}"}
    finally:
        _free(device)


def _free(device: torch.device) -> None:
    """Forgets what is kept of a case: rotary tables, compiled kernels, blocks of memory."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    RotaryEmbedding.forward.cache_clear()
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextlib.contextmanager
def one_rank(device: torch.device, *, graphs: bool = False) -> Iterator[None]:
    """A process group of one, with megatron-core's groups and random states.

    Those of TransformerEngine where CUDA graphs are captured, which megatron-core's own are not.
    """
    from megatron.core import parallel_state, tensor_parallel

    for library in ("GLOO", "NCCL"):  # a machine without a network has this interface alone
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = f"file://{folder}/store"
        torch.distributed.init_process_group(backend, store, world_size=1, rank=0)
        parallel_state.initialize_model_parallel()
        if device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(1, te_rng_tracker=graphs)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


class _OnCpu(torch.overrides.TorchFunctionMode):
    """Sends what asks for a GPU to the CPU, so that the script can be tried without one."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        return function(*args, **kwargs)


@contextlib.contextmanager
def pretend_gpu() -> Iterator[None]:
    from megatron.core.tensor_parallel import random as megatron_random

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign]
    megatron_random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    megatron_random._get_cuda_rng_state = lambda **_: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, **_: torch.set_rng_state(state)
    with _OnCpu():
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default="dev", choices=list(LISTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--only", default="", help="part of a case's label")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(1)
    kernels: dict[str, Any] = {}
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    rehearsal = pretend_gpu() if device.type == "cpu" else contextlib.nullcontext()
    csv_path = options.out / f"megatron_{options.cases}.csv"
    with rehearsal, one_rank(device), csv_path.open("w", newline="") as file:
        writer = csv.DictWriter(file, f"{PUBLISHED},{EXTRA}".split(","))
        writer.writeheader()
        for case in LISTS[options.cases]:
            if options.only not in case.label or time.monotonic() - began > options.seconds:
                continue
            row = _row(case, device, kernels)
            writer.writerow(row)
            file.flush()
            seconds = row.get("iter_time_s", row["notes"])
            spent = time.monotonic() - began
            sys.stderr.write(f"{spent:6.0f} s  {case.label}: {seconds}\n")
    (options.out / f"kernels_{options.cases}.json").write_text(json.dumps(kernels, indent=1))


if __name__ == "__main__":
    main()
