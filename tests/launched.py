"""Plans to launch, programs that record how they are started, and files as they should be.

`python tests/launched.py` writes the files of tests/export/golden anew, after a change that is
meant.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from astrarium.api.calls import predict
from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster, parse_gpus
from astrarium.export.folder import folder_of, write_folder
from astrarium.export.program import Data, LaunchFiles, RankProgram
from astrarium.export.target import Target, find_target, refusals
from astrarium.plans.document import Run
from astrarium.plans.job import Job, NodeGroup, job_of

GOLDEN: Final = Path(__file__).parent / "export" / "golden"
LAUNCHERS: Final = ("torchrun", "slurm", "kubernetes", "skypilot", "ray")

PROGRAM: Final = RankProgram(
    software="Trainer 1.2",
    script='"$TRAINER_PATH"/train.py',
    arguments=("--layout", "Et*8|t*12|t*12L", "--note", "it's one word", "--fast"),
    data=Data(generated=("--mock-data",), variable="DATA_PATH", own=("--data", '"$DATA_PATH"')),
    files={"config/model.json": "{}\n"},
    environment={"QUEUES": "1"},
    variables={"TRAINER_PATH": "the folder of Trainer"},
    needs=("Trainer 1.2, the same on every node",),
)
KEEPING: Final = replace(
    PROGRAM,
    checkpoints=('--keep "$CHECKPOINTS"', "--every 300"),
    variables={**PROGRAM.variables, "CHECKPOINTS": "a folder that stays"},
)
SOFTWARE: Final = Target(
    name="trainer", title="Trainer", version="1.2", program=lambda job: PROGRAM
)


def _planned(cluster: Cluster, stages: list[tuple[int, dict[str, int]]]) -> Job:
    """A plan with stages of so many layers on pools, and round figures in place of predicted."""
    first, written = 0, []
    for layers, pools in stages:
        written.append({"layers": [first, first + layers], "pools": pools})
        first += layers
    strategy = {"tp": 4, "pp": len(stages), **({"stages": written} if len(stages) > 1 else {})}
    document = predict(
        "llama-3-8b", strategy, cluster=cluster, seq_length=4096, global_batch=96
    ).document
    job = job_of(document)
    memory = tuple(
        replace(m, peak_bytes=60.0 * 2**30, capacity_bytes=80 * 2**30) for m in job.plan.memory
    )
    plan = replace(
        job.plan,
        memory=memory,
        iteration_seconds=2.0,
        interval_seconds=(1.8, 2.4),
        tokens_per_second=196608.0,
        usd_per_hour=100.0,
    )
    return replace(job, plan=plan)


H100, A100 = "H100-SXM5-80GB", "A100-SXM4-80GB"
TYPES: Final = (H100, A100, "H200-SXM5-141GB", "V100-SXM2-32GB", "L40S-48GB", "B200-SXM6-180GB")
CASES: Final[Mapping[str, tuple[str, list[tuple[int, dict[str, int]]]]]] = {
    "one-node": ("h100:8", [(32, {})]),
    "alike": ("h100:16", [(32, {})]),
    "mixed": ("h100:16,a100:8", [(8, {A100: 8}), (12, {H100: 8}), (12, {H100: 8})]),
    "unequal": ("h100:8,a100:4", [(12, {H100: 4}), (12, {H100: 4}), (8, {A100: 4})]),
    "twins": ("twins", [(16, {"Fast racks": 8}), (16, {"slow": 8})]),
}


def _cluster(gpus: str) -> Cluster:
    """Pools of types, or two of one type that differ in their network."""
    if gpus != "twins":
        return parse_gpus(gpus)
    (pool,) = parse_gpus("h100:8").pools
    fast, slow = replace(pool, name="Fast racks"), replace(pool, name="slow")
    return Cluster((fast, replace(slow, inter_node_bandwidth=50e9 / 8)))


@cache
def job(case: str) -> Job:
    """The plan of a case, with four GPUs for each tensor."""
    gpus, stages = CASES[case]
    return _planned(_cluster(gpus), stages)


Nodes = list[tuple[str, int, int]]  # GPU type, nodes, GPUs in use on each

any_nodes: Final = st.lists(
    st.tuples(st.sampled_from(TYPES), st.integers(1, 40), st.sampled_from([4, 8])),
    min_size=1,
    max_size=3,
)


def job_on(nodes: Nodes) -> Job:
    """A plan on these nodes, as far as launchers read it."""
    base = job("mixed")
    pool = base.nodes[0].pool
    groups = [
        NodeGroup(
            replace(pool, name=f"pool {index}", gpu=find_gpu(gpu), nodes=number), number, gpus
        )
        for index, (gpu, number, gpus) in enumerate(nodes)
    ]
    return replace(base, nodes=tuple(groups))


def with_spot(one: Job, gpus: Mapping[str, int]) -> Job:
    """The plan with some of its GPUs as spot."""
    run = Run({}, 1.0, dict(gpus), 0.01, 600.0, 1.0, None)
    return replace(one, plan=replace(one.plan, run=run))


def with_offer(one: Job, **offer: Any) -> Job:
    """The plan on pools with the prices of an offer."""
    groups = tuple(replace(g, pool=replace(g.pool, **offer)) for g in one.nodes)
    return replace(one, nodes=groups)


def launch_of(target: str, one: Job, program: RankProgram = PROGRAM) -> LaunchFiles:
    start = find_target(target).launch
    assert start is not None
    return start(one, program)


def written(target: str, one: Job, folder: Path) -> Path:
    """The folder of a plan."""
    write_folder(str(folder), folder_of(one, find_target(target), SOFTWARE).files)
    return folder


@dataclass(frozen=True, slots=True)
class Start:
    """One call of torchrun: its options, the words behind them, and the environment."""

    options: dict[str, str]
    words: list[str]
    environment: dict[str, str]


_TORCHRUN: Final = """\
#!/usr/bin/env python3
import json, os, sys
with open(os.environ["STARTS"], "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
"""


class Bench:
    """A folder for PATH in which torchrun only writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "starts.jsonl"
        self.tool("torchrun", _TORCHRUN)

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command: str, cwd: Path, **environment: str) -> None:
        """Run a command; what it prints on failure is the message of the error."""
        base = {"PATH": f"{self.bin}:{os.environ['PATH']}", "STARTS": str(self.log)}
        done = subprocess.run(
            command, cwd=cwd, env=base | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def starts(self) -> list[Start]:
        lines = self.log.read_text().splitlines()
        return [_start(*json.loads(line)) for line in lines]


def _start(words: list[str], environment: dict[str, str]) -> Start:
    options = {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        options[name.removeprefix("--")] = value
    return Start(options, words, environment)


def check_ranks(one: Job, starts: list[Start], address: str) -> None:
    """All nodes are there, agree on the first, and their ranks are on the pools of their stages."""
    by_node = {int(start.options["node-rank"]): start for start in starts}
    assert sorted(by_node) == list(range(one.num_nodes)) == list(range(len(starts)))
    assert {start.options["master-addr"] for start in starts} == {address}
    assert {start.options["nnodes"] for start in starts} == {str(one.num_nodes)}
    processes = [int(by_node[node].options["nproc-per-node"]) for node in range(one.num_nodes)]
    assert sum(processes) == one.strategy.gpus
    stage_size = one.strategy.gpus // one.strategy.pp
    pool_of_node = [group.pool.name for group in one.nodes for _ in range(group.nodes)]
    ranks = [
        pool for pool, count in zip(pool_of_node, processes, strict=True) for _ in range(count)
    ]
    for rank, pool in enumerate(ranks):
        stage = next(s for s in one.strategy.stages if s.pipeline_rank == rank // stage_size)
        assert pool in dict(stage.pools), (rank, pool)
    for start in starts:
        assert start.words[0] == "/opt/trainer/train.py"
        assert start.words[1:] == [*PROGRAM.arguments, "--mock-data"]
        assert start.environment["QUEUES"] == "1"


_ASIDE: Final = {".py": ".txt"}  # nothing for the checks of this project's own code


def golden(target: str) -> dict[str, str]:
    """The launcher's own files for every case that it takes."""
    found = {}
    for case in CASES:
        if refusals(job(case), find_target(target)):
            continue
        for name, text in launch_of(target, job(case)).files.items():
            if target == "torchrun" or name != "launch.sh":
                found[f"{target}/{case}/{name}{_ASIDE.get(Path(name).suffix, '')}"] = text
    return found


def main() -> None:
    for target in LAUNCHERS:
        for name, text in golden(target).items():
            path = GOLDEN / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
