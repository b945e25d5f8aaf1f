"""torchrun: a shell script that every node runs; NODE_RANK is its number.

Other launchers can run the same script: it takes NODE_RANK, MASTER_ADDR and MASTER_PORT from the
environment and knows the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from astrarium.export.header import commented, header_lines
from astrarium.export.program import Data, LaunchFiles, RankProgram
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    has_spot,
    iterations_between,
    usual_folder,
)
from astrarium.export.target import target_of
from astrarium.plans.job import Job

SCRIPT: Final = "launch.sh"
PORT: Final = 29500
OVERRIDE: Final = re.compile(r"[A-Za-z_][\w.]*=")


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    notes = (*node_notes(job), *mixed_notes(job), *spot_notes(job, program))
    return on_every_node(job, program, script(job, program), notes)


def on_every_node(job: Job, program: RankProgram, script: str, notes: Iterable[str]) -> LaunchFiles:
    """A script that is started on every node, with the number of the node."""
    alone = job.num_nodes == 1
    numbers = "" if alone else "NODE_RANK=<number of this node> MASTER_ADDR=<address of node 0> "
    variables = "".join(f"{name}=<{name.lower()}> " for name in program.variables)
    where = "" if alone else f"on every node, numbered from 0 to {job.num_nodes - 1}"
    return LaunchFiles({SCRIPT: script}, f"{variables}{numbers}./{SCRIPT}", where, tuple(notes))


def numbers_asked(job: Job) -> str:
    """Lines of a shell that stop where the number or the address of a node is not set."""
    return (
        f': "${{NODE_RANK:?set it to the number of this node, 0 to {job.num_nodes - 1}}}"\n'
        ': "${MASTER_ADDR:?set it to the address of the node with NODE_RANK 0}"\n'
    )


def script(job: Job, program: RankProgram) -> str:
    parts = [
        "#!/usr/bin/env bash\n" + commented(header_lines(job, program.software)),
        "set -euo pipefail\n" + 'cd "$(dirname "${BASH_SOURCE[0]}")"\n',
        variables_asked(program),
        "".join(_nodes(job)),
        "".join(f"export {name}={shlex.quote(v)}\n" for name, v in program.environment.items()),
        f"arguments=(\n{_lines(program.arguments)})\n",
        "".join(_data(program.data)),
        "".join(_kept(job, program)),
        _start(job, program),
    ]
    return "\n".join(part for part in parts if part)


def variables_asked(program: RankProgram) -> str:
    """Lines of a shell that stop where a variable is not set."""
    return "".join(
        f': "${{{name}:?set it to {meaning}}}"\n' for name, meaning in program.variables.items()
    )


def _nodes(job: Job) -> Iterator[str]:
    """The number of this node, of all nodes, and of processes on each."""
    if job.num_nodes == 1:
        yield f"nodes=1\nprocesses={job.nodes[0].gpus_per_node}\n"
        return
    yield commented(tuple(node_notes(job)))
    yield numbers_asked(job)
    yield f"nodes={job.num_nodes}\n"
    counts = [(group.nodes, group.gpus_per_node) for group in job.nodes]
    if len({count for _, count in counts}) == 1:
        yield f"processes={counts[0][1]}\n"
        return
    first, word = 0, "if"
    for number, count in counts:
        first += number
        yield f"{word} (( NODE_RANK < {first} )); then processes={count}\n"
        word = "elif"
    yield "fi\n"


def node_notes(job: Job) -> Iterator[str]:
    """The numbers of the nodes, which follow the order of the pipeline."""
    if job.num_nodes == 1:
        return
    if len(job.nodes) == 1:
        group = job.nodes[0]
        yield (
            f"NODE_RANK 0 to {group.nodes - 1}: nodes with {group.gpus_per_node} x"
            f" {group.pool.gpu.name}; neighbours in the network should be neighbours in number."
        )
        return
    node, rank = 0, 0
    for group in job.nodes:
        last = node + group.nodes - 1
        which = f"{node} to {last}" if last > node else f"{node}"
        stages = _stages(job, rank, rank + group.gpus)
        yield (
            f"NODE_RANK {which}: pool {group.pool.name}, {group.gpus_per_node} x"
            f" {group.pool.gpu.name} each, ranks {rank} to {rank + group.gpus - 1}{stages}."
        )
        node, rank = last + 1, rank + group.gpus


def _stages(job: Job, first: int, last: int) -> str:
    """The pipeline stages on a run of ranks, where stages are runs of ranks themselves."""
    strategy = job.strategy
    if strategy.pipeline_inside or strategy.pp == 1:
        return ""
    each = strategy.tp * strategy.cp * strategy.dp
    begin, end = first // each, (last - 1) // each
    return f", stages {begin} to {end}" if end > begin else f", stage {begin}"


def mixed_notes(job: Job) -> Iterator[str]:
    if len(job.gpu_types) > 1:
        yield (
            f"NVIDIA does not promise that NCCL works between {' and '.join(job.gpu_types)}: try a"
            " collective over all nodes first."
        )


def spot_notes(job: Job, program: RankProgram) -> Iterator[str]:
    """Notes on nodes that may be taken away."""
    run = job.plan.run
    if run is None or not has_spot(job) or not program.checkpoints:
        return
    spot = " and ".join(f"{count} x {gpu}" for gpu, count in run.spot_gpus.items() if count)
    counted = ", as the plan counts" if run.checkpoint_interval_seconds else ""
    yield (
        f"The plan has {spot} as spot, which may be taken away: a checkpoint is written to"
        f" {CHECKPOINTS} after every {iterations_between(job)} iterations{counted}, and every start"
        " continues from the last one."
    )


def _data(data: Data) -> Iterator[str]:
    if not data.variable:
        yield f"data=(\n{_lines(data.generated)})\n" if data.generated else "data=()\n"
        return
    yield f"# {data.otherwise}, unless {data.variable} names your own.\n"
    yield f'if [[ -n "${{{data.variable}:-}}" ]]; then\n'
    yield f"  data=({' '.join(data.own)})\n"
    yield f"else\n  data=({' '.join(map(shlex.quote, data.generated))})\n"
    yield "fi\n"


def _kept(job: Job, program: RankProgram) -> Iterator[str]:
    """Checkpoints, unless the run is only tried."""
    if not program.checkpoints:
        return
    folder = usual_folder(job)
    yield f"# SMOKE=1 tries {SMOKE_ITERATIONS} iterations and keeps nothing.\n"
    if not has_spot(job):
        place = f"$PWD/{folder}" if folder else ""
        yield f'{CHECKPOINTS}="${{{CHECKPOINTS}-{place}}}"\n'
    yield 'if [[ "${SMOKE:-}" == 1 ]]; then\n'
    yield f"  run=({' '.join(map(shlex.quote, program.smoke))})\n"
    if program.data.generated:
        yield f"  data=({' '.join(map(shlex.quote, program.data.generated))})\n"
    yield f'elif [[ -n "${CHECKPOINTS}" ]]; then\n'
    yield f"  run=({' '.join(program.checkpoints)})\n"
    yield "else\n  run=()\nfi\n"


def _start(job: Job, program: RankProgram) -> str:
    words = ["exec torchrun", '--nnodes="$nodes"', '--nproc-per-node="$processes"']
    if job.num_nodes > 1:
        port = f'--master-port="${{MASTER_PORT:-{PORT}}}"'
        words += ['--node-rank="$NODE_RANK"', '--master-addr="$MASTER_ADDR"', port]
    else:
        words += ["--standalone"]
    kept = '${run[@]+"${run[@]}"} ' if program.checkpoints else ""
    given = f'"${{arguments[@]}}" {kept}${{data[@]+"${{data[@]}}"}} "$@"'
    return " \\\n  ".join([" ".join(words), program.script, given]) + "\n"


def _lines(arguments: Sequence[str]) -> str:
    """One flag with its values, or one `key=value`, a line."""
    return "".join(f"  {line}\n" for line in _flags(arguments))


def _flags(arguments: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for word in arguments:
        quoted = shlex.quote(word)
        if word.startswith("--") or OVERRIDE.match(word) or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return lines


TARGET = target_of(__name__)
