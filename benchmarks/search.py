"""How long a plan takes: whole commands, cold, and against brute force without pruning.

    python benchmarks/search.py [--repeat N] [--json]

Every case starts a fresh process, as a user does; the best and the median of N runs are shown,
because other work on the machine only ever adds time. The last part prices a whole space without
rules of thumb, bounds or pruning and compares: same answer, and how much longer it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time

from cold import run_cold

CASES = (
    ("llama-2-70b", "h100:64", 4096, 1024),
    ("llama-2-70b", "h100:1024", 4096, 1024),
    ("llama-2-70b", "h100:16384", 4096, 1024),
    ("llama-2-70b", "h100:1048576", 4096, 1024),
    ("deepseek-v3", "h100:2048", 4096, 8192),
)
BRUTE_FORCE = ("llama-2-7b", "h100:16", 4096, 64)


def run(case: tuple[str, str, int, int]) -> dict[str, float]:
    """One cold command: wall seconds, peak megabytes, and what the search says of itself."""
    model, gpus, seq_length, batch = case
    command = ["-m", "astrarium", "plan", model, "--gpus", gpus, "--json", "--tokens", "2T"]
    done = run_cold([*command, "--seq-length", str(seq_length), "--global-batch", str(batch)])
    search = json.loads(done.output)["search"]
    return {
        "wall_seconds": done.wall,
        "search_seconds": search["seconds"],
        "space": search["space"],
        "evaluated": search["evaluated"],
        "peak_megabytes": done.megabytes,
    }


def measured(repeat: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for case in CASES:
        runs = [run(case) for _ in range(repeat)]
        walls = [one["wall_seconds"] for one in runs]
        best = min(runs, key=lambda one: one["wall_seconds"])
        rows.append(
            {
                "case": f"{case[0]} {case[1]}",
                **best,
                "median_wall_seconds": statistics.median(walls),
                "strategies_per_second": best["space"] / best["search_seconds"],
            }
        )
    return rows


def brute_force() -> dict[str, object]:
    """The same small plan by pruned search and by pricing every strategy."""
    import numpy as np

    from astrarium.cluster import parse_gpus
    from astrarium.cost.layouts import CostModel
    from astrarium.cost.memory import memory_of
    from astrarium.cost.step import seconds_of
    from astrarium.model import load_model
    from astrarium.model.workload import Workload
    from astrarium.search.fields import Fields, Rows, constant_fields
    from astrarium.search.planner import plan
    from astrarium.search.space import OVERLAP_SWITCHES, Space
    from astrarium.strategy.columns import SPLITS
    from astrarium.strategy.validity import megatron_rules

    name, gpus, seq_length, batch = BRUTE_FORCE
    workload, cluster = Workload(load_model(name), seq_length, batch), parse_gpus(gpus)
    begin = time.perf_counter()
    planned = plan(workload, cluster, top=1)
    pruned_seconds = time.perf_counter() - begin

    begin = time.perf_counter()
    pool = cluster.pools[0]
    model = CostModel(workload, pool)
    space = Space(
        workload, pool, model.planner, exact=True, expanded_overlaps=frozenset(OVERLAP_SWITCHES)
    )
    constants, best, size = constant_fields(workload, pool), float("inf"), 0
    for row in range(len(space.degrees)):
        one = space.degrees.take(np.array([row]))
        shards = model.shard_costs(one)
        for layout in space.layouts(int(one.pp[0])):
            options = space.options(layout.chunk_layers)
            rows = np.zeros(len(options), np.int64)
            virtual, split = np.array([layout.virtual]), np.array([SPLITS.index(layout.split)])
            layouts = model.layouts(one, virtual, split, shards)
            at_hand = Rows(one.take(rows), virtual[rows], split[rows], options)
            fits = memory_of(layouts, rows, options).peak <= pool.gpu.memory_bytes
            for rule in megatron_rules():
                fits &= ~np.broadcast_to(rule.rejects(Fields(constants, at_hand)), fits.shape)
            seconds = seconds_of(layouts, rows, options).total
            best = min(best, float(np.where(fits, seconds, np.inf).min()))
            size += len(options)
    return {
        "case": f"{name} {gpus}",
        "space": size,
        "pruned_seconds": pruned_seconds,
        "brute_force_seconds": time.perf_counter() - begin,
        "same_answer": abs(best / planned.plans[0].iteration_seconds - 1) < 1e-9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, brute = measured(arguments.repeat), brute_force()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if arguments.json:
        print(json.dumps({"machine": machine, "commands": rows, "brute_force": brute}, indent=1))
        return
    print(f"{machine}; best of {arguments.repeat} cold commands\n")
    head = f"{'case':28}{'wall s':>8}{'median':>8}{'search s':>10}{'strategies':>16}"
    print(head + f"{'priced':>11}{'per second':>12}{'MB':>6}")
    for r in rows:
        print(
            f"{r['case']:28}{r['wall_seconds']:8.2f}{r['median_wall_seconds']:8.2f}"
            f"{r['search_seconds']:10.3f}{r['space']:16,}{r['evaluated']:11,}"
            f"{r['strategies_per_second']:12.1e}{r['peak_megabytes']:6.0f}"
        )
    ratio = brute["brute_force_seconds"] / brute["pruned_seconds"]  # type: ignore[operator]
    print(
        f"\n{brute['case']}: {brute['space']:,} strategies; pruned {brute['pruned_seconds']:.2f} s,"
        f" brute force {brute['brute_force_seconds']:.1f} s ({ratio:,.0f} times), "
        f"same answer: {brute['same_answer']}; this process used {own:.0f} MB"
    )


if __name__ == "__main__":
    main()
