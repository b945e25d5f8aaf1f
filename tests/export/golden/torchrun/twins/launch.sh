#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Trainer 1.2.
# Llama-3-8B, 8.03B parameters, on 16 x H100-SXM5-80GB; 96 sequences of 4096 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 196,608 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${TRAINER_PATH:?set it to the folder of Trainer}"

# NODE_RANK 0: pool Fast racks, 8 x H100-SXM5-80GB each, ranks 0 to 7, stage 0.
# NODE_RANK 1: pool slow, 8 x H100-SXM5-80GB each, ranks 8 to 15, stage 1.
: "${NODE_RANK:?set it to the number of this node, 0 to 1}"
: "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"
nodes=2
processes=8

export QUEUES=1

arguments=(
  --layout 'Et*8|t*12|t*12L'
  --note 'it'"'"'s one word'
  --fast
)

# Generated data, unless DATA_PATH names your own.
if [[ -n "${DATA_PATH:-}" ]]; then
  data=(--data "$DATA_PATH")
else
  data=(--mock-data)
fi

exec torchrun --nnodes="$nodes" --nproc-per-node="$processes" --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="${MASTER_PORT:-29500}" \
  "$TRAINER_PATH"/train.py \
  "${arguments[@]}" ${data[@]+"${data[@]}"} "$@"
