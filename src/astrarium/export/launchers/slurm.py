"""Slurm: a batch script whose job runs launch.sh on every node.

Nodes of several sorts make a heterogeneous job, one component per group in the order of ranks. srun
numbers its tasks in that order, so the number of a task is that of its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from astrarium.export.header import commented, header_lines
from astrarium.export.launchers import shared, torchrun
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.target import target_of
from astrarium.plans.job import Job

SCRIPT: Final = "job.sbatch"


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    """The batch script beside launch.sh."""
    files = {torchrun.SCRIPT: torchrun.script(job, program), SCRIPT: script(job, program)}
    variables = "".join(f"{name}=<{name.lower()}> " for name in program.variables)
    return LaunchFiles(
        files,
        f"{variables}sbatch {SCRIPT}",
        "on a login node, where all nodes see the folder",
        tuple(_notes(job)),
    )


def script(job: Job, program: RankProgram) -> str:
    parts = [
        "#!/usr/bin/env bash\n"
        + commented(header_lines(job, f"{TARGET.title}, {program.software}")),
        "#SBATCH hetjob\n".join(
            "".join(_component(job, nodes)) for nodes in shared.named_nodes(job)
        ),
        "set -euo pipefail\n" + 'cd "$SLURM_SUBMIT_DIR"\n',
        torchrun.variables_asked(program) + "".join(_master(job)),
        "".join(_start(job)),
    ]
    return "\n".join(part for part in parts if part)


def _component(job: Job, nodes: shared.NamedNodes) -> Iterator[str]:
    if len(job.nodes) > 1:
        yield f"# {nodes.words}\n"
    if nodes.first == 0:
        yield f"#SBATCH --job-name={shared.job_name(job)}\n#SBATCH --output=%x-%j.log\n"
    yield f"#SBATCH --nodes={nodes.group.nodes}\n#SBATCH --ntasks-per-node=1\n"
    gpus = f"{_gres(job, nodes.gpu)}:{nodes.group.gpus_per_node}"
    yield f"#SBATCH --gpus-per-node={gpus}\n#SBATCH --exclusive\n"
    if feature := _features(job).get(nodes.pool):
        yield f"#SBATCH --constraint={feature}\n"
    yield "##SBATCH --partition=NAME\n##SBATCH --account=NAME\n##SBATCH --time=DAYS-HOURS\n"


def _gres(job: Job, gpu: str) -> str:
    """The name of a GPU type for Slurm; in full where the short name is ambiguous."""
    short = shared.family(gpu)
    alike = sum(shared.family(other) == short for other in job.gpu_types) > 1
    return gpu.lower() if alike else short


def _features(job: Job) -> dict[str, str]:
    return shared.pool_labels(job, lambda gpu: _gres(job, gpu))


def _master(job: Job) -> Iterator[str]:
    if job.num_nodes == 1:
        return
    nodes = "SLURM_JOB_NODELIST" + ("_HET_GROUP_0" if len(job.nodes) > 1 else "")
    yield f'mapfile -t hosts < <(scontrol show hostnames "${nodes}")\n'
    port = f'MASTER_PORT="${{MASTER_PORT:-{torchrun.PORT}}}"'
    yield f'export MASTER_ADDR="${{hosts[0]}}" {port}\n'


def _start(job: Job) -> Iterator[str]:
    several = len(job.nodes) > 1
    groups = f" --het-group=0-{len(job.nodes) - 1}" if several else ""
    if several:
        yield "# Tasks are numbered component by component: this is the order of the pipeline.\n"
    yield f"srun{groups} --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\\n"
    yield f'  bash -c \'NODE_RANK="$SLURM_PROCID" exec ./{torchrun.SCRIPT} "$@"\' launch "$@"\n'


def _notes(job: Job) -> Iterator[str]:
    yield (
        f"Lines of {SCRIPT} that begin with `##SBATCH` are inactive: if your site requires a"
        " partition, an account or a time limit, remove one `#` and fill it in."
    )
    types = ", ".join(f"`{_gres(job, gpu)}`" for gpu in job.gpu_types)
    yield (
        f"The script asks for GPUs called {types}. If `sinfo -o '%P %G'` shows other names, write"
        " those; Slurm refuses names that it does not know."
    )
    yield from shared.pool_notes(
        _features(job),
        f"They are the --constraint lines of {SCRIPT}: replace them with features of your nodes,"
        " which `sinfo -o '%N %f'` shows, or with a partition for each.",
    )
    yield from torchrun.node_notes(job)
    yield from torchrun.mixed_notes(job)


TARGET = target_of(__name__)
