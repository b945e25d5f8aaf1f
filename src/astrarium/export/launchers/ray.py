"""Ray Train: a script that starts launch.sh on every node, one worker a node.

Ranks of workers follow the order of their label selectors, node by node, so that the number of a
worker is that of its node; the script checks the labels before it starts anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from astrarium.catalog.gpus import name_in
from astrarium.export.header import commented, header_lines
from astrarium.export.launchers import torchrun
from astrarium.export.launchers.shared import POOL_LABEL, pool_labels, pool_notes
from astrarium.export.program import LaunchFiles, RankProgram, filled
from astrarium.export.target import target_of
from astrarium.plans.job import Job, NodeGroup

SCRIPT: Final = "start_ray.py"
TYPE_LABEL: Final = "ray.io/accelerator-type"


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    files = {torchrun.SCRIPT: torchrun.script(job, program), SCRIPT: script(job, program)}
    where = "where RAY_ADDRESS names the cluster"
    return LaunchFiles(files, _command(program), where, tuple(_notes(job)))


def script(job: Job, program: RankProgram) -> str:
    """The text of the script."""
    text = filled(
        "start_ray.txt",
        launch=torchrun.SCRIPT,
        scaling=json.dumps(scaling(job), indent=4),
        files=json.dumps([torchrun.SCRIPT, *program.files]),
        port=torchrun.PORT,
    )
    return commented(header_lines(job, f"{TARGET.label}, {program.software}")) + text


def scaling(job: Job) -> dict[str, Any]:
    """Arguments of ScalingConfig: a selector for each worker, in the order of ranks."""
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
    """Ray's name of a GPU type; "" if it is not known."""
    return name_in("ray", gpu)


def _command(program: RankProgram) -> str:
    """The command passes variables as those of the job: others do not reach the nodes."""
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


TARGET = target_of(__name__)
