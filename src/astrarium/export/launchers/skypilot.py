"""SkyPilot: a task that rents the nodes and runs launch.sh on each.

Nodes of several sorts make a job group, one task for each group in the order of ranks; its tasks
find each other by name. Cloud, region and instance are those of the plan's prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from astrarium.catalog.gpus import name_in, names_of
from astrarium.catalog.prices import ANY_REGION, REGIONS, offers
from astrarium.cluster.interconnect import Network
from astrarium.errors import flag
from astrarium.export.launchers import shared, torchrun
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.run_length import CHECKPOINTS
from astrarium.export.target import target_of
from astrarium.plans.job import Job

TASK_FILE: Final = "task.yaml"
BUCKET: Final = "BUCKET"  # the variable with the address of a bucket for checkpoints
CATALOG: Final = "skypilot-catalog"  # the source of prices whose names of instances are SkyPilot's
COMMENT_WIDTH: Final = 90
WITHOUT_GPUS: Final = "n1-"  # instances of Google to which GPUs are added
# Of the clouds of the price book, those that SkyPilot rents from.
CLOUDS: Final = frozenset(names_of("skypilot")["clouds"])


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    """The task, or the group of tasks, beside launch.sh."""
    group = len(job.nodes) > 1
    tasks = [_task(job, program, nodes) for nodes in shared.named_nodes(job)]
    header = [{"name": shared.job_name(job), "execution": "parallel"}] if group else []
    files = {
        torchrun.SCRIPT: torchrun.script(job, program),
        TASK_FILE: shared.yaml_text(job, f"{TARGET.label}, {program.software}", [*header, *tasks]),
    }
    comes_back = group or any(shared.spot_gpus(job, nodes.gpu) for nodes in shared.named_nodes(job))
    names = [BUCKET if name == CHECKPOINTS else name for name in program.variables]
    given = "".join(f" --env {name}=<{name.lower()}>" for name in names)
    verb = "jobs launch" if comes_back else "launch"
    return LaunchFiles(files, f"sky {verb} {TASK_FILE}{given}", "", tuple(_notes(job, program)))


def nodes_refused(job: Job) -> str:
    """Why these nodes cannot be rented, or not together; "" if they can."""
    clouds = dict.fromkeys(group.pool.cloud for group in job.nodes if group.pool.cloud)
    unknown = [cloud for cloud in clouds if cloud not in CLOUDS]
    if unknown:
        return (
            f"it does not rent from {' and '.join(unknown)}, and the plan has prices of there; plan"
            f" with {flag('market')} and clouds that it knows, or export to slurm or kubernetes"
        )
    if len(clouds) > 1:
        return f"tasks of a job group lie in one cloud; plan with {flag('market')} and one of them"
    unnamed = [
        nodes.gpu
        for nodes in shared.named_nodes(job)
        if not accelerator(nodes.gpu) and "accelerators" in dict(_resources(job, nodes))
    ]
    if unnamed:
        return (
            f"its name for {' and '.join(dict.fromkeys(unnamed))} is not known; export to torchrun,"
            " slurm or kubernetes"
        )
    return _twins_refused(job)


def _twins_refused(job: Job) -> str:
    """Refuse pools that would rent the same instances: their nodes could not be told apart."""
    pools: dict[str, str] = {}
    for nodes in shared.named_nodes(job):
        asked = str(dict(_resources(job, nodes)))
        other = pools.setdefault(asked, nodes.pool)
        if other != nodes.pool:
            return (
                f"for the pools {other} and {nodes.pool} it would rent the same, though the plan"
                " has them unlike; export to slurm or kubernetes, which ask for labels of nodes"
            )
    return ""


def _task(job: Job, program: RankProgram, nodes: shared.NamedNodes) -> dict[str, Any]:
    envs: dict[str, str | None] = {**shared.usual_values(program)}
    mounts: dict[str, Any] = {}
    if CHECKPOINTS in envs:
        mounts = {f"${{{CHECKPOINTS}}}": {"source": f"${{{BUCKET}}}", "mode": "MOUNT"}}
        envs[BUCKET] = None  # refused by SkyPilot until it is given
    return {
        "name": shared.job_name(job) if len(job.nodes) == 1 else nodes.name,
        "num_nodes": nodes.group.nodes,
        "resources": dict(_resources(job, nodes)),
        "workdir": ".",
        **({"envs": envs} if envs else {}),
        **({"file_mounts": mounts} if mounts else {}),
        **({"setup": setup} if (setup := _setup(program)) else {}),
        "run": _run(job, nodes),
    }


def _resources(job: Job, nodes: shared.NamedNodes) -> Iterator[tuple[str, Any]]:
    pool = nodes.group.pool
    if pool.cloud:
        place = "" if pool.region in ("", ANY_REGION, *REGIONS) else f"/{pool.region}"
        yield "infra", f"{pool.cloud}{place}"
    known = _instance_gpus(nodes) == nodes.group.gpus_per_node
    if known:
        yield "instance_type", pool.instance
    # An instance brings its GPUs, under a name that differs between clouds; some take them apart.
    if not known or pool.instance.startswith(WITHOUT_GPUS):
        yield "accelerators", f"{accelerator(nodes.gpu)}:{nodes.group.gpus_per_node}"
    if job.num_nodes > 1 and pool.network is Network.INFINIBAND:
        yield "network_tier", "best"  # the plan assumes it, and clouds give less unless asked
    yield "use_spot", shared.spot_gpus(job, nodes.gpu) > 0


def accelerator(gpu: str) -> str:
    """SkyPilot's name of a GPU type; "" if it is not known."""
    return name_in("skypilot", gpu)


def _instance_gpus(nodes: shared.NamedNodes) -> int:
    """GPUs of the instance that the price is of; 0 if it is not known to SkyPilot."""
    pool = nodes.group.pool
    if pool.price_origin != CATALOG:
        return 0
    of_cloud = offers(pool.gpu.name, [pool.cloud])
    return next((offer.gpus for offer in of_cloud if offer.instance == pool.instance), 0)


def _setup(program: RankProgram) -> str:
    """Checks that fail before the job waits for GPUs."""
    needs = [line for need in program.needs for line in wrap(f"Needs {need}", COMMENT_WIDTH)]
    wanted = "".join(f"# {line}\n" for line in needs)
    paths = [name for name in program.variables if shared.usual_value(name)]
    return wanted + "".join(f'test -e "${name}"\n' for name in paths)


def _run(job: Job, nodes: shared.NamedNodes) -> str:
    if job.num_nodes == 1:
        return f'exec ./{torchrun.SCRIPT} "$@"\n'
    if len(job.nodes) == 1:
        address = '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"'
    else:
        address = f'"{shared.named_nodes(job)[0].name}-0.$SKYPILOT_JOBGROUP_NAME"'
    return (
        f"export MASTER_ADDR={address}\n"
        f"export NODE_RANK=$(( {nodes.first} + SKYPILOT_NODE_RANK ))\n"
        f'exec ./{torchrun.SCRIPT} "$@"\n'
    )


def _notes(job: Job, program: RankProgram) -> Iterator[str]:
    yield from shared.variable_notes(program, f"{TASK_FILE}, under envs")
    yield (
        f"`setup` in {TASK_FILE} installs nothing: install the software there, or name an"
        " `image_id` that contains it."
    )
    for pool in dict.fromkeys(nodes.group.pool for nodes in shared.named_nodes(job)):
        if not pool.cloud:
            yield (
                f"The price of {pool.gpu.name} is not that of one cloud, so SkyPilot chooses;"
                f" on some clouds {accelerator(pool.gpu.name)} is another form of the card."
            )
        elif pool.region in REGIONS:
            yield (
                f"Prices of {pool.cloud} are for regions of the class `{pool.region}`: add the"
                " region that you want to `infra`."
            )
    if len(job.nodes) > 1:
        yield "Job groups, which mixed plans need, are experimental in SkyPilot."
    yield from torchrun.mixed_notes(job)
    if CHECKPOINTS in program.variables:
        yield (
            f"{BUCKET} is the address of a bucket of yours, such as `s3://NAME`, which is mounted"
            f" where {CHECKPOINTS} says."
        )
    yield from torchrun.spot_notes(job, program)


TARGET = target_of(__name__)
