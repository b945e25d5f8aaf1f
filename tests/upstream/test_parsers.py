"""Each real parser takes a good configuration and refuses bad ones in its own words.

Shows that a driver can fail; what exporters write is fed to them in tests of their own.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from upstream.client import Driver, RefusedError

MODULE = """
from torchtitan.models.llama3.config_registry import llama3_debugmodel

def plan():
    config = llama3_debugmodel()
    config.parallelism.tensor_parallel_degree = 2
    config.training.local_batch_size = 6
    return config

def misspelt():
    config = plan()
    config.parallelism.tensor_parallel = 2
    return config

def piped():
    config = plan()
    config.parallelism.pipeline_parallel_degree = 2
    return config
"""


def test_torchtitan_python(torchtitan_python: Driver, tmp_path: Path) -> None:
    module = tmp_path / "our_plan.py"
    module.write_text(MODULE, encoding="utf-8")
    read = torchtitan_python.ask(path=str(module), function="plan", world_size=2)
    assert read["config"]["training"]["local_batch_size"] == 6
    assert read["degrees"]["tp"] == 2
    module.write_text(MODULE.replace("= 6", "= 12"), encoding="utf-8")
    read = torchtitan_python.ask(path=str(module), function="plan", world_size=2)
    assert read["config"]["training"]["local_batch_size"] == 12


@pytest.mark.parametrize(
    ("function", "world_size", "message"),
    [
        ("misspelt", 2, "no attribute 'tensor_parallel'"),
        ("absent", 2, "Config function 'absent' not found"),
        ("plan", 3, r"tp\(2\) \* pp\(1\) != WORLD_SIZE\(3\)"),
        ("piped", 4, "disable_cuda_graphs"),
    ],
)
def test_torchtitan_python_refuses(
    torchtitan_python: Driver, tmp_path: Path, function: str, world_size: int, message: str
) -> None:
    module = tmp_path / "our_plan.py"
    module.write_text(MODULE, encoding="utf-8")
    with pytest.raises(RefusedError, match=message):
        torchtitan_python.ask(path=str(module), function=function, world_size=world_size)


DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "activation_checkpointing": {"partition_activations": True},
    "tensor_parallel": {"autotp_size": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
}


def test_deepspeed(deepspeed: Driver) -> None:
    read = deepspeed.ask(config=DEEPSPEED, world_size=4)
    assert read["zero_config"]["stage"] == 2
    assert read["bfloat16_config"]["enabled"] is True


@pytest.mark.parametrize(
    ("changes", "world_size", "message"),
    [
        ({}, 8, r"32 != 2 \* 4 \* 8"),
        ({"zero_optimisation": {}}, 4, "never reads zero_optimisation"),
        ({"activation_checkpointing": {"profil": 1}}, 4, "never reads activation_checkpointing.pr"),
        ({"zero_optimization": {"stag": 2}}, 4, "Extra inputs are not permitted"),
    ],
)
def test_deepspeed_refuses(
    deepspeed: Driver, changes: dict[str, Any], world_size: int, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        deepspeed.ask(config={**DEEPSPEED, **changes}, world_size=world_size)


ACCELERATE = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
num_machines: 1
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
parallelism_config:
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""


def test_accelerate(accelerate: Driver) -> None:
    read = accelerate.ask(text=ACCELERATE)
    assert read["parallelism"] | {"total": 8, "tp": 2, "dp_shard": 4} == read["parallelism"]
    assert read["fsdp"]["reshard_after_forward"] is True
    assert read["arguments"]["num_processes"] == 8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_processes", "num_process", r"unknown keys \(\['num_process'\]\)"),
        ("fsdp_reshard_after", "fsdp_reshard_behind", "launcher has no such option"),
        ("tp_size: 2", "cp_size: 2\n  parallelism_config_sp_size: 2", "mutually exclusive"),
        ("distributed_type: FSDP", "distributed_type: FSDB", "not a valid DistributedType"),
    ],
)
def test_accelerate_refuses(accelerate: Driver, old: str, new: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        accelerate.ask(text=ACCELERATE.replace(old, new))


TASK: dict[str, Any] = {
    "name": "train",
    "num_nodes": 2,
    "resources": {"infra": "aws/us-east-1", "accelerators": "H100:8", "use_spot": True},
    "run": "torchrun",
}


def test_skypilot(skypilot: Driver) -> None:
    read = skypilot.ask(config=TASK)
    assert read["num_nodes"] == 2
    assert read["resources"]["accelerators"] == {"H100": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_node": 2}, "Instead of 'num_node', did you mean 'num_nodes'"),
        ({"resources": {"accelerator": "H100:8"}}, "did you mean 'accelerators'"),
        ({"resources": {"infra": "awz/us-east-1"}}, "does not match"),
    ],
)
def test_skypilot_refuses(skypilot: Driver, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        skypilot.ask(config={**TASK, **changes})


JOB_SET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "h100",
                "replicas": 1,
                "template": {
                    "spec": {
                        "parallelism": 2,
                        "completions": 2,
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",
                                "containers": [
                                    {
                                        "name": "train",
                                        "image": "train:1",
                                        "resources": {"limits": {"nvidia.com/gpu": 8}},
                                    }
                                ],
                            }
                        },
                    }
                },
            }
        ]
    },
}
TRAIN_JOB: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "train"},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {"image": "train:1", "numNodes": 2, "numProcPerNode": 8},
    },
}


@pytest.mark.parametrize("manifest", [JOB_SET, TRAIN_JOB], ids=["JobSet", "TrainJob"])
def test_kubernetes(kubernetes: Driver, manifest: dict[str, Any]) -> None:
    assert kubernetes.ask(object=manifest) == manifest


def test_kubernetes_refuses(kubernetes: Driver) -> None:
    misspelt = copy.deepcopy(JOB_SET)
    pod = misspelt["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["resource"] = {}
    with pytest.raises(RefusedError, match=r"containers\[0\].resource: unknown field"):
        kubernetes.ask(object=misspelt)
    mistyped = copy.deepcopy(TRAIN_JOB)
    mistyped["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(RefusedError, match="numNodes\n  Input should be a valid integer"):
        kubernetes.ask(object=mistyped)
    incomplete = copy.deepcopy(TRAIN_JOB)
    del incomplete["spec"]["runtimeRef"]
    with pytest.raises(RefusedError, match="runtimeRef\n  Input should be a valid dictionary"):
        kubernetes.ask(object=incomplete)
    with pytest.raises(RefusedError, match="not one of"):
        kubernetes.ask(object={**TRAIN_JOB, "apiVersion": "trainer.kubeflow.org/v1"})


SCALING: dict[str, Any] = {
    "num_workers": 4,
    "use_gpu": True,
    "resources_per_worker": {"GPU": 1},
    "label_selector": [{"pool": "fast"}] * 2 + [{"pool": "slow"}] * 2,
}


def test_ray(ray: Driver) -> None:
    read = ray.ask(config=SCALING)
    assert read["num_workers"] == 4
    assert read["total_resources"]["GPU"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_worker": 4}, "unexpected keyword argument 'num_worker'"),
        ({"use_gpu": False}, "`use_gpu` is False but `GPU` was found"),
        ({"num_workers": 3}, "must be the same length"),
    ],
)
def test_ray_refuses(ray: Driver, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        ray.ask(config={**SCALING, **changes})
