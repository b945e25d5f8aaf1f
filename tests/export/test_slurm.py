"""The batch script: components as the plan's nodes, and tasks numbered in the order of ranks."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from launched import (
    CASES,
    Bench,
    Nodes,
    any_nodes,
    check_ranks,
    job,
    job_on,
    launch_of,
    with_spot,
    written,
)

from astrarium.catalog import find_gpu
from astrarium.export.features import Feature
from astrarium.export.launchers.shared import family
from astrarium.export.target import find_target, refusals

SRUN = """\
#!/usr/bin/env bash
# Tasks over the components that are named, one for each node.
[[ "$*" == *--het-group=0-* || "$COMPONENTS" == 1 ]] || exit 3
while [[ "$1" == --* ]]; do shift; done
for (( task = 0; task < NODES; task++ )); do SLURM_PROCID=$task "$@"; done
"""
SCONTROL = """\
#!/usr/bin/env bash
[[ "$1 $2" == "show hostnames" ]] && printf '%s\\n' ${3//,/ }
"""


def components(text: str) -> list[dict[str, str]]:
    """The options of every component."""
    parts = text.split("#SBATCH hetjob\n")
    return [dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", part, re.M)) for part in parts]


@pytest.mark.parametrize("case", CASES)
def test_components_are_the_nodes_of_the_plan(case: str) -> None:
    one = job(case)
    found = components(launch_of("slurm", one).files["job.sbatch"])
    asked = [(int(part["nodes"]), part["gpus-per-node"]) for part in found]
    assert asked == [
        (group.nodes, f"{family(group.pool.gpu.name)}:{group.gpus_per_node}") for group in one.nodes
    ]
    assert all(part["ntasks-per-node"] == "1" and "exclusive" in part for part in found)
    assert found[0]["job-name"] == "llama-3-8b"


@given(any_nodes)
def test_components_are_any_nodes(nodes: Nodes) -> None:
    found = components(launch_of("slurm", job_on(nodes)).files["job.sbatch"])
    asked = [(int(part["nodes"]), int(part["gpus-per-node"].split(":")[-1])) for part in found]
    assert asked == [(number, gpus) for _, number, gpus in nodes]
    chosen = {(part["gpus-per-node"].split(":")[0], part.get("constraint")) for part in found}
    assert len(chosen) == len(nodes)
    alone = Counter(gpu for gpu, _, _ in nodes)
    assert [("constraint" in part) for part in found] == [alone[gpu] > 1 for gpu, _, _ in nodes]


@pytest.mark.parametrize("case", [case for case in CASES if case != "one-node"])
def test_tasks_are_nodes_in_rank_order(case: str, tmp_path: Path) -> None:
    bench, one = Bench(tmp_path), job(case)
    bench.tool("srun", SRUN)
    bench.tool("scontrol", SCONTROL)
    folder = written("slurm", one, tmp_path / "out")
    nodes = "SLURM_JOB_NODELIST" + ("_HET_GROUP_0" if len(one.nodes) > 1 else "")
    values = {
        "COMPONENTS": str(len(one.nodes)),
        "NODES": str(one.num_nodes),
        "SLURM_SUBMIT_DIR": str(folder),
        "TRAINER_PATH": "/opt/trainer",
        nodes: "n1,n2",
    }
    bench.run("bash", str(folder / "job.sbatch"), cwd=tmp_path, **values)
    check_ranks(one, bench.starts(), "n1")


def test_options_stand_before_the_first_command() -> None:
    text = launch_of("slurm", job("mixed")).files["job.sbatch"]
    first_command = re.search(r"^[^#\n]", text, re.M)
    assert first_command is not None
    assert text.rindex("#SBATCH") < first_command.start()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_types_that_share_a_short_name_are_written_in_full() -> None:
    one = job("mixed")
    small = replace(one.nodes[1].pool, gpu=find_gpu("a100-40gb"))
    twins = replace(one, nodes=(one.nodes[0], replace(one.nodes[1], pool=small)))
    found = components(launch_of("slurm", twins).files["job.sbatch"])
    assert [part["gpus-per-node"] for part in found] == ["a100-sxm4-80gb:8", "a100-sxm4-40gb:8"]


@pytest.mark.parametrize("target", ["slurm", "kubernetes", "ray"])
def test_spot_nodes_are_refused_by_what_rents_none(target: str) -> None:
    one = with_spot(job("alike"), {"H100-SXM5-80GB": 16})
    (refusal,) = refusals(one, find_target(target))
    assert refusal.feature is Feature.SPOT
    assert str(refusal).startswith("16 x H100-SXM5-80GB as spot: it uses existing nodes")
