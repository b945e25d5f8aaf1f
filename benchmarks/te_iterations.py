"""Trains megatron-core with TransformerEngine on one GPU: `--cases iterations --out DIR`.

Needs torch, megatron-core 0.19.2 and TransformerEngine 2.20.2 on the path. Layers are those of
`get_gpt_layer_with_transformer_engine_spec` with the fusions that Megatron-LM switches on: weight
gradients added in the product, activation with bias, rotary positions, permutation of tokens. The
output layer adds its gradient in a kernel of its own, as Apex is not there. Experts get random
tokens: equal shares on average, or shares by a random bias (`skewed`).
Cases marked `local` are megatron-core's own layers with attention by torch, for comparison. Writes
one CSV row per case, with the columns of published measurements first: device seconds of forward
and backward pass, seconds of the host for both, bytes that stay after the forward pass, the peak.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron_iterations import (
    GB,
    WARM_UP,
    Clock,
    Loss,
    TorchAttention,
    Training,
    one_rank,
    settings_of,
)
from te_cases import AGAIN, DRAWN, LISTS, MIXTURE, TeCase, unseen

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

warnings.filterwarnings("ignore")

COLUMNS = (
    "source,url_or_repo_path,framework,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,"
    "seq_len,moe_experts,moe_topk,gpu,num_gpus,gpus_per_node,precision,tp,pp,vpp,dp,cp,ep,sp,"
    "zero_or_fsdp,distributed_optimizer,micro_batch,global_batch,recompute,attention_impl,overlap,"
    "iter_time_s,tokens_per_s_per_gpu,peak_mem_gb,notes,head_dim,gated_mlp,tied_embeddings,"
    "num_micro_batches,iter_time_min_s,iter_time_max_s,forward_s,forward_backward_s,optimizer_s,"
    "host_forward_s,host_forward_backward_s,static_mem_gb,kept_mem_gb,"
    "kernel_s,moe_shared_ffn,kv_lora_rank,q_lora_rank,shares"
)
PROFILED = (MIXTURE, "long")  # cases whose kernels are summed, too
TOP_KERNELS = 70
LEFT_BEHIND = 25e9  # bytes of memory: the largest case needs 110e9
ENGINE = "TransformerEngine 2.20.2"
SKEW = 1.0  # standard deviation of the bias added to the logits of experts


class TeTraining(Training):
    """Also knows what the forward passes of an iteration took and left in memory."""

    def __init__(self, case: TeCase, device: torch.device) -> None:
        super().__init__(case, device, _gpt)
        self.forward_host: list[float] = []
        self.forward_marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.kept: list[float] = []

    def _forward(self, _: object, model: torch.nn.Module) -> tuple[torch.Tensor, Loss]:
        before = self._mark()
        start = time.perf_counter()
        out = super()._forward(_, model)
        self.forward_host.append(time.perf_counter() - start)
        after = self._mark()
        self.forward_marks.append((before, after))
        self.kept.append(torch.cuda.memory_allocated() / GB)
        return out

    @staticmethod
    def _mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def forward_seconds(self) -> float:
        """Of the device, for all micro-batches of an iteration."""
        passes = [before.elapsed_time(after) / 1e3 for before, after in self.forward_marks]
        return statistics.median(passes) * self.case.micro_batches

    def release(self) -> None:
        """Gives weights, gradients and their copies back: parameters of experts are held on to."""
        for parameter in self.model.parameters():
            for name in ("main_grad", "main_param", "grad"):
                tensor = getattr(parameter, name, None)
                if tensor is not None:
                    tensor.untyped_storage().resize_(0)
            parameter.untyped_storage().resize_(0)


def _config(case: TeCase) -> TransformerConfig:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    shape = case.shape
    settings = settings_of(case)
    if not case.local:
        settings |= {
            "gradient_accumulation_fusion": True,
            "apply_rope_fusion": shape.gated,
            "moe_permute_fusion": bool(shape.experts),
        }
    if case.precision != "bf16":
        settings |= {"fp8": "hybrid", "fp8_recipe": case.precision}
    if shape.experts:
        settings |= {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.topk,
            "moe_ffn_hidden_size": shape.ffn,
            "moe_grouped_gemm": not case.local,
            "moe_token_dispatcher_type": "alltoall",
            "moe_aux_loss_coeff": 0.01,
            "moe_router_force_load_balancing": True,
            "moe_router_force_biased": -SKEW if case.skewed else None,
            "moe_router_pre_softmax": shape.topk == 1,
            "moe_shared_expert_intermediate_size": shape.shared or None,
        }
    if case.graphs:
        modules = ["attn", "moe_router"] if shape.experts else []
        settings |= {"cuda_graph_impl": "local", "cuda_graph_modules": modules}
    if shape.latent:
        settings |= {"qk_layernorm": True, "q_lora_rank": shape.query_rank}
    config = (MLATransformerConfig if shape.latent else TransformerConfig)(**settings)
    config.finalize_model_grads_func = finalize_model_grads
    return config


def _gpt(case: TeCase) -> torch.nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.tensor_parallel import layers

    shape, config = case.shape, _config(case)
    choice = {
        "num_experts": shape.experts or None,
        "moe_grouped_gemm": bool(shape.experts) and not case.local,
        "qk_layernorm": shape.latent,
        "multi_latent_attention": shape.latent,
    }
    if case.local:
        spec = get_gpt_layer_local_spec(**choice, normalization=config.normalization)
        attention = spec.submodules.self_attention.submodules
        attention.core_attention = partial(TorchAttention, backend=case.attention)
    else:
        spec = get_gpt_layer_with_transformer_engine_spec(**choice)
        layers._grad_accum_fusion_available = True  # TransformerEngine has its own
    model = GPTModel(
        config,
        spec,
        vocab_size=shape.vocab,
        max_sequence_length=case.seq,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope" if shape.gated else "learned_absolute",
    )
    for module in model.modules():
        if type(module) is layers.ColumnParallelLinear:
            module.gradient_accumulation_fusion = False  # that would be Apex's
    return model


def _measure(case: TeCase, device: torch.device) -> dict[str, Any]:
    before = torch.cuda.memory_allocated() / GB  # what libraries hold on to from earlier cases
    training = TeTraining(case, device)
    try:
        return _timed(case, training, device, before)
    finally:
        training.release()  # also of a case that found no memory


def _timed(
    case: TeCase, training: TeTraining, device: torch.device, before: float
) -> dict[str, Any]:
    warm_up = Clock(device)
    for _ in range(WARM_UP):
        warm_up.iteration(training)
    training.forward_host.clear()
    training.forward_marks.clear()
    training.kept.clear()
    clock = Clock(device)
    for _ in range(8 if warm_up.rows[-1]["time"] < 0.1 else 5):
        clock.iteration(training)
    times = [row["time"] for row in clock.rows]
    parameters = sum(p.numel() for p in training.model.parameters())
    peak = max(clock.most("forward_backward_peak"), clock.most("optimizer_peak"))
    kernels = _kernels(training) if case.model.startswith(PROFILED) else {}
    seconds = clock.median("time")
    return {
        "kernel_s": f"{kernels['device_s']:.6f}" if kernels else "",
        "kernels": kernels,
        "params_b": f"{parameters / 1e9:.5f}",
        "iter_time_s": f"{seconds:.6f}",
        "tokens_per_s_per_gpu": f"{case.tokens / seconds:.1f}",
        "iter_time_min_s": f"{min(times):.6f}",
        "iter_time_max_s": f"{max(times):.6f}",
        "forward_s": f"{training.forward_seconds():.6f}",
        "forward_backward_s": f"{clock.median('run'):.6f}",
        "optimizer_s": f"{clock.median('step'):.6f}",
        "host_forward_s": f"{statistics.median(training.forward_host) * case.micro_batches:.6f}",
        "host_forward_backward_s": f"{clock.median('host'):.6f}",
        "static_mem_gb": f"{clock.median('static') - before:.3f}",
        "kept_mem_gb": f"{statistics.median(training.kept) - before:.3f}",
        "peak_mem_gb": f"{peak - before:.3f}",
    }


def _stated(case: TeCase) -> dict[str, Any]:
    """What the row says of the case itself, in the columns of published measurements."""
    shape = case.shape
    side = "unseen" if case.model in unseen() else "development"
    drawn = next((name for name in (DRAWN, AGAIN) if case.model.startswith(name)), None)
    side = f"{drawn}-unseen" if drawn else side
    return {
        "source": f"Megatron-core-TE-H200-{side}",
        "url_or_repo_path": "benchmarks/te_iterations.py, own measurement",
        "framework": f"Megatron-core 0.19.2, {'local spec' if case.local else ENGINE}",
        "model": case.model,
        "layers": case.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "ffn": shape.ffn,
        "vocab": shape.vocab,
        "gated_mlp": str(shape.gated).lower(),
        "tied_embeddings": str(shape.tied).lower(),
        "moe_experts": shape.experts or "",
        "moe_topk": shape.topk or "",
        "moe_shared_ffn": shape.shared or "",
        "kv_lora_rank": 512 if shape.latent else "",
        "q_lora_rank": shape.query_rank or "",
        "shares": "unequal" if case.skewed else "",
        "seq_len": case.seq,
        "gpu": "H200",
        **dict.fromkeys(("num_gpus", "gpus_per_node", "tp", "pp", "vpp", "dp", "cp", "ep"), 1),
        "precision": "bf16" if case.precision == "bf16" else f"fp8 {case.precision}",
        "sp": "false",
        "zero_or_fsdp": "ZeRO-1",
        "distributed_optimizer": "true",
        "micro_batch": case.micro_batch,
        "global_batch": case.micro_batch * case.micro_batches,
        "num_micro_batches": case.micro_batches,
        "recompute": case.recompute,
        "attention_impl": "torch SDPA" if case.local else "TransformerEngine",
        "overlap": "CUDA graphs" if case.graphs else "none",
        "notes": "max_memory_allocated",
    }


def _kernels(training: TeTraining) -> dict[str, Any]:
    """Device seconds by kernel of one iteration, the longest first, and how many were launched."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        Clock(torch.device("cuda")).iteration(training)
    kernels: dict[str, list[float]] = {}
    spans = []
    for event in recorded.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA:
            continue
        entry = kernels.setdefault(event.name()[:150], [0, 0.0])
        entry[0] += 1
        entry[1] += event.duration_ns() / 1e9
        spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    busy = end = 0
    for start, stop in sorted(spans):
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    ranked = sorted(kernels.items(), key=lambda item: -item[1][1])
    return {
        "device_s": busy / 1e9,
        "launches": len(spans),
        "kernels": [[name, int(count), seconds] for name, (count, seconds) in ranked[:TOP_KERNELS]],
    }


def _row(case: TeCase, device: torch.device) -> dict[str, Any]:
    stated = _stated(case)
    try:
        return stated | _measure(case, device)
    except torch.OutOfMemoryError as problem:
        return stated | {"notes": f"OOM: {str(problem).splitlines()[0][:120]}"}
    except Exception as problem:  # one bad case must not cost the others
        if "smoke" in case.model:
            import traceback

            traceback.print_exc(limit=-6)
        return stated | {"notes": f"FAILED: {type(problem).__name__}: {str(problem)[:200]}"}
    finally:
        _free()


def _free() -> None:
    """Forgets what is kept of a case, compiled kernels too.

    A run has one batch: kernels compiled for sizes that change, as a second case would get them,
    take the gated activation three to four times as long.
    """
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.transformer.cuda_graphs import delete_cuda_graphs
    from megatron.core.transformer.moe import moe_logging
    from megatron.core.transformer.moe.moe_utils import RandomSTEShared
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    RotaryEmbedding.forward.cache_clear()
    RandomSTEShared._cache.clear()  # the shares of experts, by layer
    moe_logging._MOE_METRICS_TRACKER = None  # it has the size of the first model
    FP8GlobalStateManager.reset()
    delete_cuda_graphs()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


# What tells the cases of one list apart.
IDENTITY = (
    *("model", "layers", "precision", "seq_len", "micro_batch", "num_micro_batches"),
    *("overlap", "shares"),
)


def _identity(cells: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(cells.get(name, "")) for name in IDENTITY)


def _measured(tables: Iterable[Path]) -> set[tuple[str, ...]]:
    """The cases that tables of an earlier run hold."""
    found = set()
    for table in tables:
        with table.open(encoding="utf-8", newline="") as file:
            found |= {_identity(row) for row in csv.DictReader(file)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default="iterations", choices=list(LISTS))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="part of a case's label")
    parser.add_argument("--skip", type=Path, nargs="*", default=[], help="tables already measured")
    parser.add_argument("--until", type=float, help="seconds since 1970, instead of --seconds")
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 64
    gc.freeze()  # what was imported is not looked through again
    until = options.until or time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    csv_path = options.out / f"te_{options.cases}.csv"
    done = _measured([*options.skip, *([csv_path] if csv_path.exists() else [])])
    left = [case for case in LISTS[options.cases] if options.only in case.label]
    left = [case for case in left if _identity(_stated(case)) not in done]
    again = False
    with one_rank(device, graphs=options.cases == "graphs"):
        for case in left:
            again = bool(torch.cuda.memory_allocated() > LEFT_BEHIND)
            if again or time.time() > until:
                break
            row = _row(case, device)
            kernels = row.pop("kernels", {})
            with (options.out / f"kernels_{options.cases}.jsonl").open("a") as file:
                file.write(json.dumps({"case": case.label} | kernels) + "\n")
            with csv_path.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS.split(","), lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)
            found = row.get("iter_time_s", row["notes"])
            sys.stderr.write(f"{until - time.time():6.1f} s left  {case.label}: {found}\n")
    if again:  # what a case without memory leaves behind, only a new process gives back
        rest = [x for x in sys.argv if not x.startswith("--until")]
        os.execv(sys.executable, [sys.executable, *rest, f"--until={until}"])


if __name__ == "__main__":
    main()
