#! /bin/bash
# Mixtral 8x7B, strings of options, a case for the size and srun with a command in quotes.
set -euo pipefail
MODEL_SIZE=${MODEL_SIZE:-8x7B}
case $MODEL_SIZE in
  8x22B)
    LAYERS=56; HIDDEN=6144; FFN=16384; HEADS=48
    ;;
  8x7B | small)
    LAYERS=32; HIDDEN=4096; FFN=14336; HEADS=32
    ;;
esac
NODES=4; GPUS=8
EP=8
if [[ $NODES -gt 2 ]]; then
  PP=2
else
  PP=1
fi
if [ -z "${USE_FP8:-}" ]; then
  PRECISION="--bf16"
else
  PRECISION="--bf16 --fp8-format hybrid"
fi

options=" \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size ${PP} \
  --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1 \
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
  --num-layers ${LAYERS} --hidden-size ${HIDDEN} --ffn-hidden-size $FFN \
  --num-attention-heads ${HEADS} --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 32768 --vocab-size 32000 \
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \
  --untie-embeddings-and-output-weights --no-masked-softmax-fusion \
  --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
  --moe-aux-loss-coeff 1e-2 \
  --micro-batch-size 1 --global-batch-size 256 --train-samples 1000000 \
  --attention-dropout 0.0 --hidden-dropout 0.0 \
  --recompute-granularity selective --recompute-modules core_attn moe_act \
"
options+=" ${PRECISION}"
run_cmd="python -u pretrain_gpt.py ${options}"
export CUDA_DEVICE_MAX_CONNECTIONS=1
srun --nodes=${NODES} --ntasks-per-node=$GPUS --container-image=some/image bash -c "${run_cmd}"
