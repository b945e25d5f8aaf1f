# Written by Astrarium 0.1.0 for Ray Train 2.60.0, Trainer 1.2.
# Llama-3-8B, 8.03B parameters, on 8 x H100-SXM5-80GB; 96 sequences of 4096 tokens an iteration, bf16.
# Predicted: 2.00 s an iteration (1.80 s to 2.40 s), 196,608 tokens/s;
# 60.0 GiB of 80.0 GiB on the fullest GPU (H100-SXM5-80GB, stage 0);
# $100.00 an hour.
"""Starts launch.sh on every node of a Ray cluster: one worker a node, numbered in rank order."""

import os
import subprocess

import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

SCALING = {
    "num_workers": 1,
    "resources_per_worker": {
        "GPU": 8
    },
    "placement_strategy": "STRICT_SPREAD",
    "label_selector": [
        {
            "ray.io/accelerator-type": "H100"
        }
    ]
}


def run_node():
    """Run all processes of this node."""
    rank = ray.train.get_context().get_world_rank()
    check_labels(rank)
    address = broadcast_from_rank_zero(ray.util.get_node_ip_address())
    numbers = {"NODE_RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    subprocess.run(["bash", "launch.sh"], check=True, env={**os.environ, **numbers})


def check_labels(rank):
    """A node of another pool than the plan has at this rank would compute the wrong layers."""
    labels = ray.get_runtime_context().get_node_labels()
    for name, wanted in SCALING["label_selector"][rank].items():
        if labels.get(name) != wanted:
            found = labels.get(name)
            raise RuntimeError(f"node {rank}: its label {name} is {found}, not {wanted}")


if __name__ == "__main__":
    TorchTrainer(
        run_node,
        torch_config=TorchConfig(backend="gloo"),  # the GPUs belong to launch.sh
        scaling_config=ScalingConfig(use_gpu=True, **SCALING),
    ).fit()
