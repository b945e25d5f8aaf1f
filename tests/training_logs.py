"""Logs as Megatron-LM, torchtitan and nanotron write them, made up for tests."""

from __future__ import annotations

from collections.abc import Sequence

_ARGUMENTS = {
    "add_bias_linear": "False",
    "bf16": "True",
    "context_parallel_size": "1",
    "data_parallel_size": "2",
    "expert_model_parallel_size": "1",
    "ffn_hidden_size": "11008",
    "fp16": "False",
    "fp8": "None",
    "global_batch_size": "128",
    "group_query_attention": "False",
    "hidden_size": "4096",
    "kv_channels": "128",
    "max_position_embeddings": "4096",
    "micro_batch_size": "1",
    "moe_layer_freq": "1",
    "multi_latent_attention": "False",
    "normalization": "RMSNorm",
    "num_attention_heads": "32",
    "num_experts": "None",
    "num_layers": "32",
    "overlap_grad_reduce": "True",
    "overlap_p2p_comm": "True",
    "overlap_param_gather": "True",
    "padded_vocab_size": "32256",
    "pipeline_model_parallel_size": "4",
    "position_embedding_type": "rope",
    "recompute_granularity": "selective",
    "recompute_method": "None",
    "recompute_modules": "['core_attn']",
    "recompute_num_layers": "None",
    "seq_length": "4096",
    "sequence_parallel": "True",
    "swiglu": "True",
    "tensor_model_parallel_size": "2",
    "tp_comm_overlap": "False",
    "transformer_impl": "transformer_engine",
    "untie_embeddings_and_output_weights": "True",
    "use_distributed_optimizer": "True",
    "virtual_pipeline_model_parallel_size": "2",
    "world_size": "16",
}
MEGATRON_ARGUMENTS: Sequence[str] = tuple(
    f"  {name} {'.' * (48 - len(name))} {value}" for name, value in _ARGUMENTS.items()
)


def megatron_log(arguments: Sequence[str] = MEGATRON_ARGUMENTS, milliseconds: float = 2000) -> str:
    """Sixteen GPUs; the first iterations are slow, the others alike."""
    lines = [
        "using world size: 16, data-parallel size: 2, tensor-model-parallel size: 2",
        "------------------------ arguments ------------------------",
        *arguments,
        "-------------------- end of arguments ---------------------",
    ]
    if arguments:
        lines.append(" > padded vocab (size: 32000) with 256 dummy tokens (new size: 32256)")
    for number in range(1, 31):
        time = 60000.0 if number == 1 else milliseconds * (1 + 0.001 * (number % 5))
        lines.append(
            f" [2026-01-02 10:00:{number:02}] iteration {number:8}/     500 | consumed samples:"
            f" {128 * number:12} | elapsed time per iteration (ms): {time:.1f} | throughput per GPU"
            " (TFLOP/s/GPU): 400.1 | learning rate: 1.0E-05 | global batch size:   128 | lm loss:"
            " 1.0E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if number == 2:
            lines += [
                "[Rank 0] (after 2 iterations) memory (MB) | allocated: 20000.1 | max allocated:"
                " 40000.0 | reserved: 42000.0 | max reserved: 42000.0",
                "[Rank 12] (after 2 iterations) memory (MB) | allocated: 15000.1 | max allocated:"
                " 30000.0 | reserved: 32000.0 | max reserved: 32000.0",
            ]
    return "\n".join(lines) + "\n"


_TITAN_MODEL = (
    "Building llama3 8B with ModelArgs(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8,"
    " vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.3, norm_eps=1e-05,"
    " rope_theta=500000, max_seq_len=8192, depth_init=True)"
)


def torchtitan_log(
    mesh: str = "Building 1-D device mesh with ['dp_shard'], [8]", model: str = _TITAN_MODEL
) -> str:
    """Eight GPUs; every second step is logged."""
    said = [
        "Starting job: Llama 3 8B training",
        "CUDA capacity: NVIDIA H100 with 94.99GiB memory",
        mesh,
        model,
        "Applied selective activation checkpointing to the model",
        "Compiling each TransformerBlock with torch.compile",
        "Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation"
        " steps 1, sequence length 8192, total steps 1000 (warmup 200)",
    ]
    for step in range(1, 40, 2):
        speed = "375" if step == 1 else f"7,0{step % 5:02}"
        memory = 27.34 if step == 1 else 30.99
        said.append(
            f"\x1b[31mstep: {step:2}  \x1b[32mloss: 12.2254  \x1b[33mmemory: {memory}GiB(28.78%) "
            f" \x1b[34mtps: {speed}  \x1b[36mtflops: 407.35  \x1b[35mmfu: 41.19%\x1b[39m"
        )
    return "\n".join(f"[rank0]:[titan] 2025-06-04 08:51:48,074 - root - INFO - {s}" for s in said)


def nanotron_log() -> str:
    """Sixteen GPUs; the configuration is printed as nested calls."""
    said = [
        "Config:",
        "Config(general=GeneralArgs(project='debug',",
        "                           seed=42),",
        "       parallelism=ParallelismArgs(dp=4,",
        "                                   pp=2,",
        "                                   tp=2,",
        "                                   pp_engine=<engine.OneForward object at 0x7>,",
        "                                   tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: 2>,",
        "                                   tp_linear_async_communication=True,",
        "                                   recompute_layer=False,",
        "                                   expert_parallel_size=1),",
        "       model=ModelArgs(model_config=LlamaConfig(bos_token_id=1,",
        "                                                hidden_size=2048,",
        "                                                intermediate_size=8192,",
        "                                                max_position_embeddings=4096,",
        "                                                num_attention_heads=32,",
        "                                                num_hidden_layers=16,",
        "                                                num_key_value_heads=8,",
        "                                                tie_word_embeddings=True,",
        "                                                vocab_size=49152),",
        "                       dtype=torch.bfloat16,",
        "       tokens=TokensArgs(sequence_length=4096,",
        "                         micro_batch_size=2,",
        "                         batch_accumulation_per_replica=4,",
        "       optimizer=OptimizerArgs(zero_stage=1,",
        "                               accumulate_grad_in_fp32=True,",
    ]
    for number in range(1, 13):
        time = "14.7K" if number == 1 else "215"
        said += [
            " Memory usage: 9000.00MiB. Peak allocated 20000.00MiB. Peak reserved: 22000.00MiB",
            f"iteration: {number} / 15 | consumed_tokens: 131K | elapsed_time_per_iteration_ms:"
            f" {time} | tokens_per_sec: 610K | tokens_per_sec_per_gpu: 38.1K | global_batch_size:"
            " 32 | lm_loss: 5.32 | lr: 0.00015 | model_tflops_per_gpu: 210 |"
            " hardware_tflops_per_gpu: 210 | grad_norm: 2.96",
        ]
    return "\n".join(f"[default0]:08/31/2024 14:37:22 [INFO|DP=0|PP=0|TP=0|n1]: {s}" for s in said)
