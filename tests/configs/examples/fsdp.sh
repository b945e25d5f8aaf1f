#!/bin/bash
ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
  --untie-embeddings-and-output-weights
  --micro-batch-size 2 --global-batch-size 128 --bf16
  --hidden-dropout 0.0 --attention-dropout 0.0
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
  --ckpt-format fsdp_dtensor --init-model-with-meta-device --use-distributed-optimizer
  --no-gradient-accumulation-fusion
)
mpirun -np 16 -x NCCL_DEBUG=WARN python pretrain_gpt.py ${ARGS[@]}
