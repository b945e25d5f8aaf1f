#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Megatron-LM 0.19.2.
# gpt-oss-20b, 20.91B parameters, on 8 x B200-SXM6-180GB; 64 sequences of 2048 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (B200-SXM6-180GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM, tag core_v0.19.2}"

nodes=1
processes=8

arguments=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 1
  --context-parallel-size 1
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --micro-batch-size 1
  --global-batch-size 64
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --bf16
  --hidden-dropout 0.0
  --attention-dropout 0.0
  --moe-router-dtype fp32
  --moe-permute-fusion
  --accumulate-allreduce-grads-in-fp32
  --no-create-attention-mask-in-dataloader
  --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall
  --num-layers 24
  --hidden-size 2880
  --ffn-hidden-size 2880
  --num-attention-heads 64
  --kv-channels 64
  --group-query-attention
  --num-query-groups 8
  --seq-length 2048
  --max-position-embeddings 131072
  --position-embedding-type yarn
  --rotary-base 150000
  --rotary-scaling-factor 32.0
  --mscale 1.0
  --mscale-all-dim 0.0
  --yarn-original-max-position-embeddings 4096
  --yarn-beta-fast 32.0
  --yarn-beta-slow 1.0
  --no-yarn-correction-range-round-to-int
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --quick-geglu
  --glu-linear-offset 1.0
  --activation-func-clamp-value 7.0
  --softmax-type learnable
  --window-size 127,0
  --window-attn-skip-freq '([1]*1+[0]*1)*12'
  --untie-embeddings-and-output-weights
  --num-experts 32
  --moe-router-topk 4
  --moe-ffn-hidden-size 2880
  --moe-router-score-function softmax
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
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
  data=(--data-path $DATA_PATH --split "${DATA_SPLIT:-99,1,0}" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER_MODEL:?name a tokenizer of Hugging Face}" --padded-vocab-size 201088)
else
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 201088)
fi

# SMOKE=1 tries 20 iterations and keeps nothing.
CHECKPOINTS="${CHECKPOINTS-}"
if [[ "${SMOKE:-}" == 1 ]]; then
  run=(--train-iters 20)
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 201088)
elif [[ -n "$CHECKPOINTS" ]]; then
  run=(--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 1800 --save-retain-interval 43200)
else
  run=()
fi

exec torchrun --nnodes="$nodes" --nproc-per-node="$processes" --standalone \
  "$MEGATRON_PATH"/pretrain_gpt.py \
  "${arguments[@]}" ${run[@]+"${run[@]}"} ${data[@]+"${data[@]}"} "$@"
