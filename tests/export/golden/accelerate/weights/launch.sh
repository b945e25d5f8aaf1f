#!/usr/bin/env bash
# Written by Astrarium 0.1.0 for Accelerate 1.15.0.
# Llama-3-8B, 8.03B parameters, on 8 x H100-SXM5-80GB; 64 sequences of 2048 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 65,536 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec accelerate launch --config_file accelerate.yaml \
  train.py "$@"
