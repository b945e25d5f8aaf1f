#!/usr/bin/env bash
# Latent attention, dense first layers, fewer layers on the first stage, full recomputation.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 16 --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 \
  --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \
  --v-head-dim 128 --swiglu --normalization RMSNorm --disable-bias-linear \
  --position-embedding-type rope --untie-embeddings-and-output-weights \
  --num-experts 64 --moe-layer-freq "([0]*1+[1]*26)" --moe-ffn-hidden-size 1408 \
  --moe-shared-expert-intermediate-size 2816 --moe-router-topk 6 --moe-grouped-gemm \
  --moe-token-dispatcher-type alltoall \
  --vocab-size 102400 --seq-length 4096 --max-position-embeddings 4096 \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \
  --decoder-first-pipeline-num-layers 6 --expert-model-parallel-size 8 \
  --micro-batch-size 1 --global-batch-size 512 --bf16 --train-iters 100 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --use-distributed-optimizer --hidden-dropout 0 --attention-dropout 0
