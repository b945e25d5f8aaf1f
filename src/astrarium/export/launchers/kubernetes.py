"""Kubernetes: a JobSet with one replicated job for each group of nodes, in the order of ranks.

Where all nodes are alike there is a TrainJob for Kubeflow Trainer, too. kustomize makes a ConfigMap
of the folder. A pod is a node: its number is the group's first plus its index in the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from astrarium.catalog.gpus import name_in
from astrarium.export.launchers import shared, torchrun
from astrarium.export.program import Files, LaunchFiles, RankProgram
from astrarium.export.run_length import CHECKPOINTS, usual_folder
from astrarium.export.target import target_of
from astrarium.plans.job import Job

JOBSET_FILE: Final = "jobset.yaml"
TRAINJOB_FILE: Final = "trainjob.yaml"
KUSTOMIZE_FILE: Final = "kustomization.yaml"
IMAGE: Final = "training:latest"
TRAINER: Final = "Kubeflow Trainer v1alpha1"
RUNTIME: Final = "torch-distributed"  # that Kubeflow Trainer ships
RUNTIME_JOB: Final = "node"  # the names of its replicated job and container
PLAN_FOLDER, RUN_FOLDER, SHARED_MEMORY = "/plan", "/run/plan", "/dev/shm"
DATA_FOLDER: Final = "/data"  # of the claim that outlives the pods
CLAIM: Final = "training"
NAMED: Final = re.compile(r"\$\{?([A-Z_]+)(?!:-|\w)")  # variables of a shell without a default
SCRIPT_MODE: Final = 0o755
GPU_RESOURCES: Final[Mapping[str, str]] = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
PRODUCT_LABELS: Final[Mapping[str, str]] = {
    "NVIDIA": "nvidia.com/gpu.product",
    "AMD": "amd.com/gpu.product-name",
}
PATCHED: Final = "trainingRuntimeSpec.template.spec.replicatedJobs"
Yaml = dict[str, Any]


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    start = {torchrun.SCRIPT: torchrun.script(job, program)}
    read = {**program.files, **start}
    software = f"{TARGET.label}, {program.software}"
    trainer = f"{TRAINER}, {program.software}"
    files = {
        **start,
        JOBSET_FILE: shared.yaml_text(job, software, [jobset(job, program)]),
        KUSTOMIZE_FILE: shared.yaml_text(job, software, [_kustomization(job, read)]),
    }
    if len(job.nodes) == 1:
        files[TRAINJOB_FILE] = shared.yaml_text(job, trainer, [trainjob(job, program)])
    return LaunchFiles(files, "kubectl apply -k .", "", tuple(_notes(job, program)))


def jobset(job: Job, program: RankProgram) -> Yaml:
    name = shared.job_name(job)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": name,
                "publishNotReadyAddresses": True,
            },
            "replicatedJobs": [
                _replicated_job(job, program, nodes) for nodes in shared.named_nodes(job)
            ],
        },
    }


def _replicated_job(job: Job, program: RankProgram, nodes: shared.NamedNodes) -> Yaml:
    count = nodes.group.nodes
    pod: Yaml = {
        "restartPolicy": "Never",
        "nodeSelector": _selector(job, nodes),
        "containers": [_container(job, program, nodes)],
        "volumes": _volumes(job, program),
    }
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {"name": nodes.name, "replicas": 1, **_within("template.spec", spec)}


def _within(path: str, value: object) -> Yaml:
    """A value under nested keys: {"a": {"b": value}} of "a.b"."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return cast("Yaml", value)


def _container(job: Job, program: RankProgram, nodes: shared.NamedNodes) -> Yaml:
    name, first = shared.job_name(job), shared.named_nodes(job)[0].name
    address = f"{name}-{first}-0-0.{name}"  # set, job, index of the job, index of the pod
    environment = {
        "FIRST_NODE": str(nodes.first),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(torchrun.PORT),
        **_places(job, program),
    }
    return {
        "name": "training",
        "image": IMAGE,
        "command": _command("declare -ix NODE_RANK=FIRST_NODE+JOB_COMPLETION_INDEX"),
        "env": _env(environment),
        "resources": _resources(nodes),
        "volumeMounts": _mounts(),
    }


def trainjob(job: Job, program: RankProgram) -> Yaml:
    """The same for Kubeflow Trainer, whose runtime gives every node its number."""
    (nodes,) = shared.named_nodes(job)
    number = "export NODE_RANK=$PET_NODE_RANK MASTER_ADDR=$PET_MASTER_ADDR"
    pod = {
        "nodeSelector": _selector(job, nodes),
        "containers": [{"name": RUNTIME_JOB, "volumeMounts": _mounts()}],
        "volumes": _volumes(job, program),
    }
    patched = {"name": RUNTIME_JOB, **_within("template.spec.template.spec", pod)}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": shared.job_name(job)},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": IMAGE,
                "numNodes": nodes.group.nodes,
                "numProcPerNode": nodes.group.gpus_per_node,
                "command": _command(f"{number} MASTER_PORT=$PET_MASTER_PORT"),
                "env": _env(_places(job, program)),
                "resourcesPerNode": _resources(nodes),
            },
            "runtimePatches": [{"manager": "astrarium", **_within(PATCHED, [patched])}],
        },
    }


def _command(numbered: str) -> list[str]:
    """Work on a copy: a ConfigMap cannot be written to, and programs may write beside it."""
    copied = f"cp -rL {PLAN_FOLDER}/. {RUN_FOLDER}"
    return ["bash", "-ec", f"{copied}\n{numbered}\nexec {RUN_FOLDER}/{torchrun.SCRIPT}\n"]


def _places(job: Job, program: RankProgram) -> dict[str, str]:
    """Places of software, data and checkpoints; the user fills in the empty ones."""
    own = dict.fromkeys(NAMED.findall(" ".join(program.data.own)), "")
    folder = usual_folder(job)
    kept = {CHECKPOINTS: f"{DATA_FOLDER}/{folder}"} if folder else {}
    return {**own, **kept, **shared.usual_values(program)}


def _env(values: Mapping[str, str]) -> list[Yaml]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _resources(nodes: shared.NamedNodes) -> Yaml:
    resource = GPU_RESOURCES.get(nodes.group.pool.gpu.vendor, GPU_RESOURCES["NVIDIA"])
    return {"limits": {resource: nodes.group.gpus_per_node}}


def _selector(job: Job, nodes: shared.NamedNodes) -> dict[str, str]:
    product = PRODUCT_LABELS.get(nodes.group.pool.gpu.vendor, PRODUCT_LABELS["NVIDIA"])
    pool = _pools(job).get(nodes.pool)
    return {product: _product(nodes.gpu), **({shared.POOL_LABEL: pool} if pool else {})}


def _product(gpu: str) -> str:
    return name_in("kubernetes", gpu) or re.sub(r"[^\w.]+", "-", gpu)


def _pools(job: Job) -> dict[str, str]:
    return shared.pool_labels(job, _product)


def _mounts() -> list[Yaml]:
    return [
        {"name": "plan", "mountPath": PLAN_FOLDER},
        {"name": "run", "mountPath": RUN_FOLDER},
        {"name": "data", "mountPath": DATA_FOLDER},
        {"name": "shared-memory", "mountPath": SHARED_MEMORY},
    ]


def _volumes(job: Job, program: RankProgram) -> list[Yaml]:
    names = (*program.files, torchrun.SCRIPT)
    items = [{"key": _key(name), "path": name} for name in names]
    config = {"name": shared.job_name(job), "defaultMode": SCRIPT_MODE, "items": items}
    return [
        {"name": "plan", "configMap": config},
        {"name": "run", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def _key(name: str) -> str:
    """The key of a file in a ConfigMap, where folders do not exist."""
    return name.replace("/", "..")


def _kustomization(job: Job, read: Files) -> Yaml:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [JOBSET_FILE],
        "generatorOptions": {"disableNameSuffixHash": True},
        "configMapGenerator": [
            {"name": shared.job_name(job), "files": [f"{_key(name)}={name}" for name in read]}
        ],
    }


def _notes(job: Job, program: RankProgram) -> Iterator[str]:
    yield (
        f"Replace `{IMAGE}` in {JOBSET_FILE} with an image that holds the software listed below."
        " The cluster needs JobSet."
    )
    if len(job.nodes) == 1:
        yield (
            f"With Kubeflow Trainer and its runtime `{RUNTIME}`, {TRAINJOB_FILE} does the same:"
            f" name it in {KUSTOMIZE_FILE} instead of {JOBSET_FILE}."
        )
    wanted = ", ".join(f"`{_product(gpu)}`" for gpu in job.gpu_types)
    yield (
        f"Pods find their nodes by the product labels {wanted}: compare them with"
        " `kubectl get nodes --show-labels`. A pod whose label no node has stays pending."
    )
    yield from shared.pool_notes(
        _pools(job),
        f"Give them to your nodes: `kubectl label nodes NODE {shared.POOL_LABEL}=LABEL`.",
    )
    yield from shared.variable_notes(program, JOBSET_FILE)
    empty = [name for name, value in _places(job, program).items() if not value]
    named = f" {' and '.join(empty)} name your own data there and may stay empty." if empty else ""
    yield (
        f"Pods mount the volume claim `{CLAIM}` at {DATA_FOLDER}, for data and checkpoints; all"
        f" nodes write to it, so it must be ReadWriteMany.{named}"
    )
    yield ("Networks with RDMA need more resources and annotations, which differ between clusters.")
    yield from torchrun.node_notes(job)
    yield from torchrun.mixed_notes(job)


TARGET = target_of(__name__)
