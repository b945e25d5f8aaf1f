#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Accelerate 1.15.0.
# Qwen2.5-7B, 7.616B parameters, on 16 x H100-SXM5-80GB; 64 sequences of 2048 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

: "${NODE_RANK:?set it to the number of this node, 0 to 1}"
: "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"

exec accelerate launch --config_file accelerate.yaml \
  --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" \
  --main_process_port "${MASTER_PORT:-29500}" \
  train.py "$@"
