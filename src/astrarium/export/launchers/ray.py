"""Ray Train: a script that starts launch.sh on every node, one worker a node.

Ranks of workers follow the order of their label selectors, node by node, so that the number of a
worker is that of its node; the script checks the labels before it starts anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.export.features import Feature
from astrarium.export.header import commented, header_lines
from astrarium.export.launchers import torchrun
from astrarium.export.launchers.node_blocks import (
    POOL_LABEL,
    RENTS_NOTHING,
    family,
    pool_labels,
    pool_notes,
)
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.target import Target
from astrarium.plans.job import Job, NodeGroup

SCRIPT: Final = "start_ray.py"
TYPE_LABEL: Final = "ray.io/accelerator-type"
# What Ray finds out about a node by itself; forms and sizes of a card are not told apart.
SAME_NAME: Final = frozenset(
    [
        "A10G",
        "A100",
        "B200",
        "B300",
        "GB200",
        "GB300",
        "H20",
        "H100",
        "H200",
        "K80",
        "L4",
        "L40S",
        "P100",
        "T4",
        "V100",
    ]
)
OTHER_NAMES: Final[Mapping[str, str]] = {
    "MI210-64GB": "AMD-Instinct-MI210",
    "MI250X-64GB": "AMD-Instinct-MI250X",
    "MI300X-192GB": "AMD-Instinct-MI300X-OAM",
    "MI325X-256GB": "AMD-Instinct-MI325X-OAM",
    "MI350X-288GB": "AMD-Instinct-MI350X-OAM",
    "MI355X-288GB": "AMD-Instinct-MI355X-OAM",
    "RTX-PRO-6000-Blackwell-96GB": "RTX-PRO-6000",
}

_TEXT: Final = '''\
"""Starts {launch} on every node of a Ray cluster: one worker a node, numbered in rank order."""

import os
import subprocess
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

SCALING = {scaling}
FILES = {files}


def run_node(texts):
    """Run all processes of this node, from a copy of the files."""
    rank = ray.train.get_context().get_world_rank()
    check_labels(rank)
    address = broadcast_from_rank_zero(ray.util.get_node_ip_address())
    numbers = {{"NODE_RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": "{port}"}}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = ["bash", f"{{folder}}/{launch}"]
        subprocess.run(command, check=True, env={{**os.environ, **numbers}})


def check_labels(rank):
    """A node of another pool than the plan has at this rank would compute the wrong layers."""
    labels = ray.get_runtime_context().get_node_labels()
    for name, wanted in SCALING["label_selector"][rank].items():
        if labels.get(name) != wanted:
            found = labels.get(name)
            raise RuntimeError(f"node {{rank}}: its label {{name}} is {{found}}, not {{wanted}}")


if __name__ == "__main__":
    here = Path(__file__).parent
    TorchTrainer(
        run_node,
        train_loop_config={{name: (here / name).read_text() for name in FILES}},
        torch_config=TorchConfig(backend="gloo"),  # the GPUs belong to {launch}
        scaling_config=ScalingConfig(use_gpu=True, **SCALING),
    ).fit()
'''


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    """The script beside launch.sh."""
    files = {torchrun.SCRIPT: torchrun.script(job, program), SCRIPT: script(job, program)}
    where = "where RAY_ADDRESS names the cluster"
    return LaunchFiles(files, _command(program), where, tuple(_notes(job)))


def script(job: Job, program: RankProgram) -> str:
    """The text of the script."""
    text = _TEXT.format(
        launch=torchrun.SCRIPT,
        scaling=json.dumps(scaling(job), indent=4),
        files=json.dumps([torchrun.SCRIPT, *program.files]),
        port=torchrun.PORT,
    )
    return commented(header_lines(job, f"{TARGET.label}, {program.software}")) + text


def scaling(job: Job) -> dict[str, Any]:
    """What ScalingConfig takes beside GPUs: a selector for each worker, in the order of ranks."""
    selectors = [_selector(job, group) for group in job.nodes for _ in range(group.nodes)]
    return {
        "num_workers": job.num_nodes,
        "resources_per_worker": {"GPU": job.nodes[0].gpus_per_node},
        "placement_strategy": "STRICT_SPREAD",
        "label_selector": selectors,
    }


def _selector(job: Job, group: NodeGroup) -> dict[str, str]:
    name = _accelerator_type(group.pool.gpu.name)
    pool = _pools(job).get(group.pool.name)
    return {**({TYPE_LABEL: name} if name else {}), **({POOL_LABEL: pool} if pool else {})}


def _pools(job: Job) -> dict[str, str]:
    return pool_labels(job, _accelerator_type)


def _accelerator_type(gpu: str) -> str:
    """What Ray calls a GPU type; "" if that is not known."""
    short = family(gpu).upper()
    return OTHER_NAMES.get(gpu, short if short in SAME_NAME else "")


def _command(program: RankProgram) -> str:
    """What is set where the command is typed does not reach the nodes; the job's own does."""
    values = {name: f"<{name.lower()}>" for name in program.variables}
    given = f" --runtime-env-json '{json.dumps({'env_vars': values})}'" if values else ""
    return f"ray job submit --working-dir .{given} -- python {SCRIPT}"


def _notes(job: Job) -> Iterator[str]:
    pools = _pools(job)
    for gpu in job.gpu_types:
        if not _accelerator_type(gpu) and not pools:
            yield f"Ray has no label for {gpu}: any nodes with enough GPUs are taken."
    yield from pool_notes(
        pools, f"Give them to your nodes: `ray start --labels={POOL_LABEL}=LABEL ...`."
    )
    yield from torchrun.node_notes(job)
    yield from torchrun.mixed_notes(job)


TARGET = Target(
    name="ray",
    title="Ray Train",
    version="2.60.0",
    launch=launch,
    lacks={
        **RENTS_NOTHING,
        Feature.UNEQUAL_NODES: "a ScalingConfig gives every worker, which is a node, the same"
        " number of GPUs",
    },
)
