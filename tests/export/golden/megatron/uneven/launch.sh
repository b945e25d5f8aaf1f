#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Megatron-LM 0.19.2.
# Llama-3-8B, 8.03B parameters, on 8 x H100-SXM5-80GB + 8 x A100-SXM4-80GB; 64 sequences of 2048 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM, tag core_v0.19.2}"

# NODE_RANK 0: pool H100-SXM5-80GB, 8 x H100-SXM5-80GB each, ranks 0 to 7, stage 0.
# NODE_RANK 1: pool A100-SXM4-80GB, 8 x A100-SXM4-80GB each, ranks 8 to 15, stage 1.
: "${NODE_RANK:?set it to the number of this node, 0 to 1}"
: "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"
nodes=2
processes=8

export CUDA_DEVICE_MAX_CONNECTIONS=1

arguments=(
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 2
  --context-parallel-size 1
  --sequence-parallel
  --micro-batch-size 1
  --global-batch-size 64
  --pipeline-model-parallel-layout 'Et*20|t*12L'
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --tp-comm-overlap
  --bf16
  --hidden-dropout 0.0
  --attention-dropout 0.0
  --accumulate-allreduce-grads-in-fp32
  --no-create-attention-mask-in-dataloader
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --kv-channels 128
  --group-query-attention
  --num-query-groups 8
  --seq-length 2048
  --max-position-embeddings 8192
  --position-embedding-type rope
  --rotary-base 500000
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --make-vocab-size-divisible-by 128
  --train-iters 100
  --eval-iters 0
  --optimizer adam
  --lr 0.0003
  --min-lr 3e-05
  --lr-decay-style cosine
  --lr-warmup-fraction 0.01
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --clip-grad 1.0
  --init-method-std 0.02
  --log-interval 10
  --log-throughput
)

# Generated data, unless DATA_PATH names your own.
if [[ -n "${DATA_PATH:-}" ]]; then
  data=(--data-path $DATA_PATH --split "${DATA_SPLIT:-99,1,0}" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER_MODEL:?name a tokenizer of Hugging Face}" --padded-vocab-size 128512)
else
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128256)
fi

# SMOKE=1 tries 20 iterations and keeps nothing.
CHECKPOINTS="${CHECKPOINTS-}"
if [[ "${SMOKE:-}" == 1 ]]; then
  run=(--train-iters 20)
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 128256)
elif [[ -n "$CHECKPOINTS" ]]; then
  run=(--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 1800 --save-retain-interval 43200)
else
  run=()
fi

exec torchrun --nnodes="$nodes" --nproc-per-node="$processes" --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="${MASTER_PORT:-29500}" \
  "$MEGATRON_PATH"/pretrain_gpt.py \
  "${arguments[@]}" ${run[@]+"${run[@]}"} ${data[@]+"${data[@]}"} "$@"
