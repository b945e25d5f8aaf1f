"""How long the front of time against money takes over GPU types and counts, and with `--mix 2`.

    python benchmarks/money.py [--model NAME] [--repeat N] [--quick]

Every case starts a fresh process. Shown are wall and CPU seconds of the whole process, the best of
N runs, then seconds of the single types and of the whole question with mixes of two, strategies in
both spaces, how many were priced and what share was not, points on the front and how many of them
are mixes, peak memory, and whether the answer is proven. Then how all of it grows with types and
with GPUs of each.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass

from cold import run_cold

MOST_SECONDS = 10.0  # of the whole process, 12 types x 1,024 GPUs, alone and with mixes of two
# As many as are asked for, from the first on.
TYPES = ("b200", "h100", "mi325x", "h200", "b300", "a100")
TYPES += ("l40s", "gb200", "mi300x", "a100-40g", "h100-nvl", "v100")
SEQ_LENGTH, BATCH, TOKENS, DAYS = 8192, 1024, 10**12, 30


@dataclass(frozen=True)
class Case:
    model: str
    types: int
    gpus: int


@dataclass(frozen=True)
class Front:
    """What one process found."""

    single_seconds: float
    mixed_seconds: float
    space: int
    priced: int
    points: int
    mixes: int
    optimal: bool
    gap: float


def front(case: Case) -> Front:
    """In this process: single types, then the cheapest plan in time with mixes of any two."""
    from astrarium.cluster import parse_gpus
    from astrarium.cost.training_run import RunTerms
    from astrarium.model import load_model
    from astrarium.model.workload import Workload
    from astrarium.search.money.frontier import find_front
    from astrarium.search.money.runs import Runs
    from astrarium.search.outcome import Limits, Mode, Objective
    from astrarium.search.planner import plan
    from astrarium.units import DAY

    cluster = parse_gpus(",".join(f"{name}:{case.gpus}" for name in TYPES[: case.types]))
    workload = Workload(load_model(case.model), SEQ_LENGTH, BATCH, TOKENS)
    begin = time.perf_counter()
    find_front(Runs(workload, cluster, RunTerms()), ())
    middle = time.perf_counter()
    found = plan(
        workload,
        cluster,
        objective=Objective.COST,
        mode=Mode.UP_TO,
        limits=Limits(None, DAYS * DAY),
        most_types=2,
    )
    return Front(
        middle - begin,
        time.perf_counter() - middle,
        found.space,
        found.evaluated,
        len(found.front),
        sum(len(point.gpus) > 1 for point in found.front),
        found.optimal,
        found.bound_gap,
    )


def shown(case: Case, repeat: int) -> None:
    command = [__file__, "--one", json.dumps(asdict(case))]
    best = min((run_cold(command) for _ in range(repeat)), key=lambda r: r.cpu)
    f = Front(**json.loads(best.output))
    proven = "proven" if f.optimal else f"gap {f.gap:.1%}"
    print(
        f"{case.types:>5} {case.gpus:>6,} {best.wall:7.2f} {best.cpu:6.2f} {f.single_seconds:7.2f}"
        f" {f.mixed_seconds:6.2f} {f.space:9.2e} {f.priced:>8,} {1 - f.priced / f.space:9.6%}"
        f" {f.points:>7} {f.mixes:>6} {best.megabytes:6.0f}  {proven}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="12 types x 1,024 GPUs only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(asdict(front(Case(**json.loads(asked.one))))))
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(f"{asked.model}; 12 types x 1,024 GPUs within {MOST_SECONDS:.0f} s")
    print(
        "types   GPUs    wall    CPU  single  mixed     space   priced    pruned  points  mixes"
        "     MB  answer is"
    )
    shown(Case(asked.model, 12, 1024), asked.repeat)
    if not asked.quick:
        for types in (4, 8):
            shown(Case(asked.model, types, 1024), asked.repeat)
        for gpus in (128, 512):
            shown(Case(asked.model, 12, gpus), asked.repeat)


if __name__ == "__main__":
    main()
