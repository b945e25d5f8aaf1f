"""An independent check of what the planner claims: nothing better than its plans can be found.

    python benchmarks/climber.py [--problems 1-60] [--seed 1] [--seconds 20] [--json]

Problems are drawn by seed: 1 to 60 on one GPU type, 61 to 100 on mixed clusters. The planner
answers by its command line. Then strategies are climbed (`climbing.py`), from its plans and from
random ones: any degrees, options and dealing of the layers that Megatron permits and that fit. It
is a violation if one is faster than the planner's best by more than the stated gap.

Results are appended to a file of JSON lines as they come; problems that stand there are not asked
about again. Strategies that violate a claim lie beside it, as `predict --strategy` reads them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from climbing import ROUNDING, Climber, Prices

from astrarium.cluster import parse_gpus
from astrarium.model import load_model
from astrarium.model.workload import Workload

ON_ONE_TYPE, IN_ALL = 60, 100  # problems; those after the first are on mixed clusters
MODELS = (
    *("llama-3.2-1b", "tinyllama-1.1b", "gpt3-2.7b", "llama-3.2-3b", "llama-2-7b", "qwen2.5-7b"),
    *("llama-3.1-8b", "mistral-nemo-12b", "llama-2-13b", "phi-4", "megatron-18.4b", "yi-34b"),
    *("gpt-neox-20b", "qwen2.5-32b", "opt-66b", "llama-3.1-70b", "qwen2.5-72b", "gpt3-175b"),
    *("mistral-large-2407", "falcon-180b", "nemotron-4-340b", "llama-3.1-405b", "mixtral-8x7b"),
    *("mixtral-8x22b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "dbrx-132b"),
    *("deepseek-v2-lite", "gpt-oss-20b"),
)
GPUS = ("h100", "a100", "a100-40gb", "h200", "b200", "v100", "l40s", "rtx-4090", "h20", "a800")
NODES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
PER_NODE = 8
SEQUENCES = (2048, 4096, 8192, 16384, 32768)
BATCHES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 480, 512, 768, 1024, 1536, 2048)
MOST_PLANNING = 12  # CPU seconds of the planner; problems that take longer are drawn again
MOST_GPUS = 1024


class Problem(NamedTuple):
    number: int
    model: str
    gpus: str
    seq_length: int
    global_batch: int

    @property
    def words(self) -> list[str]:
        asked = [self.model, "--gpus", self.gpus, "--seq-length", str(self.seq_length)]
        return [*asked, "--global-batch", str(self.global_batch)]

    @property
    def workload(self) -> Workload:
        return Workload(load_model(self.model), self.seq_length, self.global_batch)


class Claim(NamedTuple):
    """What the planner says: its best, how far that can be from the optimum, and its plans."""

    seconds: float
    optimal: bool
    bound_gap: float
    cpu_seconds: float
    strategies: tuple[dict[str, Any], ...]

    @property
    def floor(self) -> float:
        """Nothing may be faster."""
        return self.seconds * (1 - (0.0 if self.optimal else self.bound_gap)) * (1 - ROUNDING)


def drawn(seed: int, number: int, attempt: int) -> Problem:
    """A problem by its number; further attempts where the planner has no answer."""
    rng = random.Random(f"{seed} {number} {attempt}")
    pools = 1 if number <= ON_ONE_TYPE else rng.choice((2, 2, 3))
    most = MOST_GPUS // PER_NODE // pools
    counts = [PER_NODE * rng.choice([n for n in NODES if n <= most]) for _ in range(pools)]
    gpus = ",".join(f"{g}:{n}" for g, n in zip(rng.sample(GPUS, pools), counts, strict=True))
    sequence, batch = rng.choice(SEQUENCES), rng.choice(BATCHES)
    return Problem(number, rng.choice(MODELS), gpus, sequence, batch)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PLANNING, MOST_PLANNING))


# What is proved is about the fastest plan whose predicted peak fits.
# Layers are launched one by one and tokens sent to experts all to all, as strategies are predicted.
PLAIN = ("--runtime", "megatron", "--expert-messages", "alltoall")
FASTEST = ("--prefer", "fastest", "--memory-margin", "0 B", *PLAIN)


def claimed(problem: Problem) -> Claim | None:
    """The answer of the command line; None if there is none, or it takes too long."""
    command = [sys.executable, "-m", "astrarium", "plan", *problem.words, *FASTEST, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, preexec_fn=_limited, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return None
    document = json.loads(done.stdout)
    plans, search = document["plans"], document["search"]
    return Claim(
        plans[0]["iteration_seconds"],
        search["optimal"],
        search["bound_gap"],
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        tuple(plan["strategy"] for plan in plans),
    )


def checked(
    problem: Problem, claim: Claim, seed: int, seconds: float, *, idle: bool = False
) -> dict[str, Any]:
    """One line of the results."""
    prices = Prices(problem.workload, parse_gpus(problem.gpus), idle=idle)
    if prices.seconds_of(claim.strategies[0]) != claim.seconds:
        raise AssertionError(f"{problem}: the planner's seconds are not those of its strategy")
    found = Climber(prices, f"{seed} {problem.number}", seconds).run(claim.strategies)
    climbed = found.seconds if found else math.inf
    return {
        "seed": seed,
        **problem._asdict(),
        "command": shlex.join(["astrarium", "plan", *problem.words]),
        "planner_seconds": claim.seconds,
        "optimal": claim.optimal,
        "bound_gap": claim.bound_gap,
        "cpu_seconds": claim.cpu_seconds,
        "climber_seconds": climbed,
        "gain": 1 - climbed / claim.seconds,
        "predictions": prices.predictions,
        "violation": climbed < claim.floor,
        "planner_strategy": claim.strategies[0],
        "strategy": prices.written(found.candidate) if found else None,
    }


def asked(seed: int, number: int) -> tuple[Problem, Claim]:
    """The first problem of this number that the planner answers in time."""
    for attempt in range(1000):
        problem = drawn(seed, number, attempt)
        claim = claimed(problem)
        if claim is not None:
            return problem, claim
    raise SystemExit(f"problem {number}: the planner answers none")


def shown(row: dict[str, Any]) -> str:
    claim = "optimal" if row["optimal"] else f"{row['bound_gap']:.3%}"
    return (
        f"{row['number']:>3} {row['model']:<18} {row['gpus']:<28} {row['seq_length']:>5}"
        f" {row['global_batch']:>5} {row['planner_seconds']:>10.4f} {claim:>8}"
        f" {row['cpu_seconds']:>5.1f} {row['climber_seconds']:>10.4f} {row['gain']:>8.4%}"
        f" {row['predictions']:>7}{'  VIOLATION' if row['violation'] else ''}"
    )


HEADER = (
    f"{'no.':>3} {'model':<18} {'GPUs':<28} {'seq':>5} {'batch':>5} {'planner s':>10} {'claim':>8}"
    f" {'CPU s':>5} {'climber s':>10} {'gain':>8} {'priced':>7}"
)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    broken = [row["number"] for row in rows if row["violation"]]
    optimal = [row for row in rows if row["optimal"]]
    inside = max((row["gain"] for row in rows if not row["violation"]), default=0.0)
    return (
        f"{len(rows)} problems, {len(optimal)} claimed optimal; {len(broken)} violations"
        f" ({', '.join(map(str, broken)) or 'none'}); largest gain inside a stated gap {inside:.4%}"
    )


def numbers(text: str) -> list[int]:
    """1-60,70: numbers and ranges of them."""
    ranges = [part.partition("-") for part in text.split(",")]
    return [n for low, _, high in ranges for n in range(int(low), int(high or low) + 1)]


def read_results(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {(row["seed"], row["number"]): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=numbers, default=numbers(f"1-{IN_ALL}"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU, per problem")
    parser.add_argument("--results", type=Path, default=Path("climber.jsonl"))
    parser.add_argument("--idle", action="store_true", help="also ranks that hold no layer")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    known, rows = read_results(given.results), []
    print(HEADER, file=sys.stderr if given.json else sys.stdout, flush=True)
    for number in given.problems:
        row = known.get((given.seed, number))
        if row is None:
            found = asked(given.seed, number)
            row = checked(*found, given.seed, given.seconds, idle=given.idle)
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(shown(row), file=sys.stderr if given.json else sys.stdout, flush=True)
        if row["violation"]:
            better = given.results.with_suffix(f".{given.seed}.{number}.json")
            better.write_text(json.dumps(row["strategy"], indent=1), encoding="utf-8")
    print(json.dumps(rows, indent=1) if given.json else summary(rows))
    sys.exit(int(any(row["violation"] for row in rows)))


if __name__ == "__main__":
    main()
