#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Megatron-LM 0.19.2.
# DeepSeek-V3 / R1, 682.6B parameters, on 1024 x H100-SXM5-80GB; 2048 sequences of 4096 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM, tag core_v0.19.2}"

# NODE_RANK 0 to 127: nodes with 8 x H100-SXM5-80GB; neighbours in the network should be neighbours in number.
: "${NODE_RANK:?set it to the number of this node, 0 to 127}"
: "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"
nodes=128
processes=8

export CUDA_DEVICE_MAX_CONNECTIONS=1

arguments=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 16
  --context-parallel-size 1
  --expert-model-parallel-size 32
  --expert-tensor-parallel-size 1
  --sequence-parallel
  --micro-batch-size 1
  --global-batch-size 2048
  --pipeline-model-parallel-layout 'Et|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2m|L'
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
  --mtp-num-layers 1
  --num-layers 61
  --hidden-size 7168
  --ffn-hidden-size 18432
  --num-attention-heads 128
  --multi-latent-attention
  --q-lora-rank 1536
  --kv-lora-rank 512
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --seq-length 4096
  --max-position-embeddings 163840
  --position-embedding-type rope
  --rotary-base 10000
  --rope-type yarn
  --rotary-scaling-factor 40.0
  --mscale 1.0
  --mscale-all-dim 1.0
  --normalization RMSNorm
  --norm-epsilon 1e-06
  --qk-layernorm
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-shared-expert-intermediate-size 2048
  --moe-router-score-function sigmoid
  --moe-router-topk-scaling-factor 2.5
  --moe-router-enable-expert-bias
  --moe-router-num-groups 8
  --moe-router-group-topk 4
  --moe-router-load-balancing-type seq_aux_loss
  --moe-aux-loss-coeff 0.0001
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
  data=(--data-path $DATA_PATH --split "${DATA_SPLIT:-99,1,0}" --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER_MODEL:?name a tokenizer of Hugging Face}" --padded-vocab-size 129280)
else
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 129280)
fi

# SMOKE=1 tries 20 iterations and keeps nothing.
CHECKPOINTS="${CHECKPOINTS-}"
if [[ "${SMOKE:-}" == 1 ]]; then
  run=(--train-iters 20)
  data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 129280)
elif [[ -n "$CHECKPOINTS" ]]; then
  run=(--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 1800 --save-retain-interval 43200)
else
  run=()
fi

exec torchrun --nnodes="$nodes" --nproc-per-node="$processes" --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="${MASTER_PORT:-29500}" \
  "$MEGATRON_PATH"/pretrain_gpt.py \
  "${arguments[@]}" ${run[@]+"${run[@]}"} ${data[@]+"${data[@]}"} "$@"
