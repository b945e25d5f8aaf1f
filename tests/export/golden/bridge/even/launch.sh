#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Megatron-Bridge 0.6.2.
# Llama-3.1-8B, 8.03B parameters, on 16 x H100-SXM5-80GB; 64 sequences of 2048 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour, $1,000,000 for the run of 10.0 days.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${BRIDGE_PATH:?set it to a checkout of Megatron-Bridge, tag v0.6.2}"

# NODE_RANK 0 to 1: nodes with 8 x H100-SXM5-80GB; neighbours in the network should be neighbours in number.
: "${NODE_RANK:?set it to the number of this node, 0 to 1}"
: "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"
nodes=2
processes=8

export CUDA_DEVICE_MAX_CONNECTIONS=1

arguments=(
  --recipe llama31_8b_pretrain_2gpu_h100_bf16_config
  model.tensor_model_parallel_size=2
  model.pipeline_model_parallel_size=2
  model.virtual_pipeline_model_parallel_size=null
  model.pipeline_model_parallel_layout=null
  model.mtp_num_layers=null
  model.context_parallel_size=1
  model.sequence_parallel=true
  dist.use_tp_pp_dp_mapping=false
  train.micro_batch_size=1
  train.global_batch_size=64
  model.recompute_granularity=null
  model.recompute_method=null
  model.recompute_num_layers=null
  model.recompute_modules=null
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  ddp.num_distributed_optimizer_instances=1
  ddp.use_megatron_fsdp=false
  ddp.data_parallel_sharding_strategy=no_shard
  checkpoint.ckpt_format=torch_dist
  optimizer.optimizer_cpu_offload=false
  optimizer.use_precision_aware_optimizer=false
  ddp.overlap_grad_reduce=true
  ddp.overlap_param_gather=true
  optimizer.overlap_param_gather=true
  model.overlap_p2p_comm=false
  model.batch_p2p_comm=true
  model.tp_comm_overlap=true
  comm_overlap=null
  model.hidden_dropout=0.0
  model.attention_dropout=0.0
  model.cross_entropy_loss_fusion=false
  model.cuda_graph_impl=none
  model.fine_grained_activation_offloading=false
  model.num_layers_in_first_pipeline_stage=null
  model.num_layers_in_last_pipeline_stage=null
  model.account_for_embedding_in_pipeline_split=false
  model.account_for_loss_in_pipeline_split=false
  model.cp_comm_type=p2p
  ddp.grad_reduce_in_fp32=true
  ddp.average_in_collective=false
  mixed_precision=bf16_mixed
  model.seq_length=2048
  dataset.seq_length=2048
  model.vocab_size=128256
  model.should_pad_vocab=true
  model.make_vocab_size_divisible_by=128
  tokenizer.vocab_size=128256
  train.train_iters=7629395
  validation.eval_iters=0
  scheduler.lr_warmup_iters=76293
  logger.log_interval=10
)

# Generated data, unless DATA_PATH names your own.
if [[ -n "${DATA_PATH:-}" ]]; then
  data=(--dataset llm-pretrain "dataset.blend=[[$DATA_PATH],null]")
else
  data=(--dataset llm-pretrain-mock)
fi

# SMOKE=1 tries 20 iterations and keeps nothing.
CHECKPOINTS="${CHECKPOINTS-$PWD/checkpoints}"
if [[ "${SMOKE:-}" == 1 ]]; then
  run=(train.train_iters=20 scheduler.lr_warmup_iters=0 checkpoint.save=null checkpoint.load=null)
  data=(--dataset llm-pretrain-mock)
elif [[ -n "$CHECKPOINTS" ]]; then
  run=(checkpoint.save="$CHECKPOINTS" checkpoint.load="$CHECKPOINTS" checkpoint.save_interval=17763 checkpoint.most_recent_k=3)
else
  run=()
fi

exec torchrun --nnodes="$nodes" --nproc-per-node="$processes" --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="${MASTER_PORT:-29500}" \
  "$BRIDGE_PATH"/scripts/training/run_recipe.py \
  "${arguments[@]}" ${run[@]+"${run[@]}"} ${data[@]+"${data[@]}"} "$@"
