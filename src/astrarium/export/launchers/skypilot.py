"""SkyPilot: a task that rents the nodes and runs launch.sh on each.

Nodes of several sorts make a job group, one task for each block in the order of ranks; its tasks
find each other by name. Cloud, region and instance are those of the plan's prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from astrarium.catalog.prices import offers
from astrarium.catalog.regions import ANY_REGION, REGIONS
from astrarium.errors import flag
from astrarium.export.features import Feature
from astrarium.export.launchers import torchrun
from astrarium.export.launchers.checkpoints import CHECKPOINTS
from astrarium.export.launchers.node_blocks import (
    NodeBlock,
    blocks,
    job_name,
    spot_gpus,
    usual_value,
    usual_values,
    variable_notes,
    yaml_text,
)
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.target import Target
from astrarium.plans.job import Job

TASK_FILE: Final = "task.yaml"
BUCKET: Final = "BUCKET"  # the variable with the address of a bucket for checkpoints
CATALOG: Final = "skypilot-catalog"  # the source of prices whose names of instances are SkyPilot's
COMMENT_WIDTH: Final = 90
WITHOUT_GPUS: Final = "n1-"  # instances of Google to which GPUs are added
# Short names of theirs that mean another card here, or that are not the beginning of ours.
ACCELERATORS: Final[Mapping[str, str]] = {
    "A100-PCIe-40GB": "A100",
    "A100-SXM4-40GB": "A100",
    "A100-PCIe-80GB": "A100-80GB",
    "A100-SXM4-80GB": "A100-80GB",
    "GB200-NVL72-186GB": "GB200",
    "GB300-NVL72-288GB": "GB300",
    "RTX-6000-Ada-48GB": "RTX6000-Ada",
    "RTX-A4000-16GB": "RTXA4000",
    "RTX-A5000-24GB": "RTXA5000",
    "RTX-A6000-48GB": "RTXA6000",
    "RTX-PRO-6000-Blackwell-96GB": "RTXPRO6000",
    "T4G-16GB": "T4g",
    "V100-PCIe-16GB": "V100",
    "V100-SXM2-16GB": "V100",
    "V100-SXM2-32GB": "V100-32GB",
}
SAME_NAME: Final = [
    "A10",
    "A10G",
    "A30",
    "A40",
    "B200",
    "B300",
    "GH200",
    "H100",
    "H200",
    "K80",
    "L4",
    "L40",
    "L40S",
    "MI300X",
    "P100",
    "T4",
]
# Of the clouds of the price book, those that SkyPilot rents from.
CLOUDS: Final = frozenset(
    [
        "aws",
        "azure",
        "cudo",
        "do",
        "fluidstack",
        "gcp",
        "hyperbolic",
        "ibm",
        "lambda",
        "mithril",
        "nebius",
        "oci",
        "paperspace",
        "primeintellect",
        "runpod",
        "scp",
        "shadeform",
        "vast",
        "verda",
        "yotta",
    ]
)


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    """The task, or the group of tasks, beside launch.sh."""
    group = len(job.nodes) > 1
    tasks = [_task(job, program, block) for block in blocks(job)]
    header = [{"name": job_name(job), "execution": "parallel"}] if group else []
    files = {
        torchrun.SCRIPT: torchrun.script(job, program),
        TASK_FILE: yaml_text(job, f"{TARGET.label}, {program.software}", [*header, *tasks]),
    }
    comes_back = group or any(spot_gpus(job, block.gpu) for block in blocks(job))
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
            f"it does not rent from {' and '.join(unknown)}, whose prices the plan has; plan with"
            f" {flag('market')} and clouds that it knows, or export to slurm or kubernetes"
        )
    if len(clouds) > 1:
        return f"tasks of a job group lie in one cloud; plan with {flag('market')} and one of them"
    unnamed = [
        block.gpu
        for block in blocks(job)
        if not accelerator(block.gpu) and "accelerators" in dict(_resources(job, block))
    ]
    if unnamed:
        return (
            f"it is not known what it calls {' and '.join(dict.fromkeys(unnamed))}; export to"
            " torchrun, slurm or kubernetes"
        )
    return _twins_refused(job)


def _twins_refused(job: Job) -> str:
    """Pools that would rent the same: nothing says which nodes are whose."""
    pools: dict[str, str] = {}
    for block in blocks(job):
        asked = str(dict(_resources(job, block)))
        other = pools.setdefault(asked, block.pool)
        if other != block.pool:
            return (
                f"for the pools {other} and {block.pool} it would rent the same, though the plan"
                " has them unlike; export to slurm or kubernetes, which ask for labels of nodes"
            )
    return ""


def _task(job: Job, program: RankProgram, block: NodeBlock) -> dict[str, Any]:
    envs: dict[str, str | None] = {**usual_values(program)}
    mounts: dict[str, Any] = {}
    if CHECKPOINTS in envs:
        mounts = {f"${{{CHECKPOINTS}}}": {"source": f"${{{BUCKET}}}", "mode": "MOUNT"}}
        envs[BUCKET] = None  # refused by SkyPilot until it is given
    return {
        "name": job_name(job) if len(job.nodes) == 1 else block.name,
        "num_nodes": block.group.nodes,
        "resources": dict(_resources(job, block)),
        "workdir": ".",
        **({"envs": envs} if envs else {}),
        **({"file_mounts": mounts} if mounts else {}),
        **({"setup": setup} if (setup := _setup(program)) else {}),
        "run": _run(job, block),
    }


def _resources(job: Job, block: NodeBlock) -> Iterator[tuple[str, Any]]:
    pool = block.group.pool
    if pool.cloud:
        place = "" if pool.region in ("", ANY_REGION, *REGIONS) else f"/{pool.region}"
        yield "infra", f"{pool.cloud}{place}"
    known = _instance_gpus(block) == block.group.gpus_per_node
    if known:
        yield "instance_type", pool.instance
    # An instance brings its GPUs, under a name that differs between clouds; some take them apart.
    if not known or pool.instance.startswith(WITHOUT_GPUS):
        yield "accelerators", f"{accelerator(block.gpu)}:{block.group.gpus_per_node}"
    yield "use_spot", spot_gpus(job, block.gpu) > 0


def accelerator(gpu: str) -> str:
    """What SkyPilot calls a GPU type; "" if that is not known."""
    short = gpu.partition("-")[0]
    return ACCELERATORS.get(gpu, short if short in SAME_NAME else "")


def _instance_gpus(block: NodeBlock) -> int:
    """GPUs of the instance that the price is of; 0 if it is not known to SkyPilot."""
    pool = block.group.pool
    if pool.price_origin != CATALOG:
        return 0
    of_cloud = offers(pool.gpu.name, [pool.cloud])
    return next((offer.gpus for offer in of_cloud if offer.instance == pool.instance), 0)


def _setup(program: RankProgram) -> str:
    """What is missing shows before the GPUs are waited for."""
    needs = [line for need in program.needs for line in wrap(f"Needs {need}", COMMENT_WIDTH)]
    wanted = "".join(f"# {line}\n" for line in needs)
    paths = [name for name in program.variables if usual_value(name)]
    return wanted + "".join(f'test -e "${name}"\n' for name in paths)


def _run(job: Job, block: NodeBlock) -> str:
    if job.num_nodes == 1:
        return f'exec ./{torchrun.SCRIPT} "$@"\n'
    if len(job.nodes) == 1:
        address = '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"'
    else:
        address = f'"{blocks(job)[0].name}-0.$SKYPILOT_JOBGROUP_NAME"'
    return (
        f"export MASTER_ADDR={address}\n"
        f"export NODE_RANK=$(( {block.first} + SKYPILOT_NODE_RANK ))\n"
        f'exec ./{torchrun.SCRIPT} "$@"\n'
    )


def _notes(job: Job, program: RankProgram) -> Iterator[str]:
    yield from variable_notes(program, f"{TASK_FILE}, under envs")
    yield (
        f"`setup` of {TASK_FILE} installs nothing: write there what does, or name an `image_id`"
        " that holds it."
    )
    for pool in dict.fromkeys(block.group.pool for block in blocks(job)):
        if not pool.cloud:
            yield (
                f"The price of {pool.gpu.name} is not one cloud's, so that SkyPilot chooses; its"
                f" {accelerator(pool.gpu.name)} may be another form of the card on some clouds."
            )
        elif pool.region in REGIONS:
            yield (
                f"Prices of {pool.cloud} are those of regions in the class `{pool.region}`: add the"
                " one you want to `infra`."
            )
    if len(job.nodes) > 1:
        yield "Job groups, which mixed plans need, are experimental in SkyPilot."
    yield from torchrun.mixed_notes(job)
    if program.checkpoints:
        yield (
            f"{BUCKET} is the address of a bucket of yours, such as `s3://NAME`, which is mounted"
            f" where {CHECKPOINTS} says."
        )
    yield from torchrun.spot_notes(job, program)


TARGET = Target(
    name="skypilot",
    title="SkyPilot",
    version="0.14.1",
    launch=launch,
    nodes_refused=nodes_refused,
    lacks={
        Feature.SPOT_BESIDE: "nodes of a task are all spot or none, and tasks of a group come back"
        " one by one, while all ranks have to start again together"
    },
)
