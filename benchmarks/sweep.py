"""Measure the CPU seconds of a scenario among many of one model.

    python benchmarks/sweep.py [MODEL ...] [--every N] [--alone N]

Each grid has four GPU types, four counts, four batches, two sequence lengths, two objectives and
two prices: 512 scenarios, 128 searches. They are answered in one process, in the order of a sweep;
`--every` takes every Nth search alone. The reference is a fixed computation that is timed between
them: on a busy machine compare its multiples. `--alone` asks N scenarios again, each in a process
of its own, and compares the rows.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from statistics import mean, median
from time import process_time
from typing import Any, Final

import numpy as np

from astrarium.sweep.engines import batches
from astrarium.sweep.rows import Row, answered
from astrarium.sweep.scenarios import SweepScenario

TYPES: Final = ("h100", "a100", "h200", "b200")
COUNTS: Final = {"llama-3-8b": (8, 16, 32, 64), "llama-2-70b": (64, 128, 192, 256)}
BATCHES: Final = (256, 512, 768, 1024)
LENGTHS: Final = (4096, 8192)
OBJECTIVES: Final = ("throughput", "cost")
DISCOUNTS: Final = ("0", "40")
OWN: Final = ("scenario", "cpu_seconds")  # columns that differ from run to run


def scenarios(model: str, every: int) -> list[SweepScenario]:
    found: list[SweepScenario] = []
    searches = product(TYPES, COUNTS[model], BATCHES, LENGTHS)
    for number, (gpu, count, batch, length) in enumerate(searches):
        if number % every:
            continue
        for objective, discount in product(OBJECTIVES, DISCOUNTS):
            question = {
                "model": model,
                "gpus": f"{gpu}:{count}",
                "global_batch": batch,
                "seq_length": length,
                "tokens": "1T",
                "objective": objective,
                "discount": [discount],
            }
            found.append(SweepScenario(str(len(found)), question))
    return [one for batch in batches(found, 1) for one in batch]


def reference() -> float:
    """CPU seconds of a fixed computation on arrays as long as those of a search."""
    begin = process_time()
    values = np.random.default_rng(0).random(4000)
    for _ in range(300):
        values = np.sort(np.where(values > 0.5, 1 - values, values + 0.1)) % 1.0
    sum(i % 7 for i in range(100_000))
    return process_time() - begin


def timed(asked: list[SweepScenario]) -> Iterator[tuple[Row, float, float]]:
    """Rows with their seconds and those of the reference."""
    for one in asked:
        begin = process_time()
        (row,) = answered(one)
        yield row, process_time() - begin, reference()


def of_search(row: Row) -> tuple[Any, ...]:
    return tuple(row[f"asked.{name}"] for name in ("gpus", "global_batch", "seq_length"))


def alone(scenario: SweepScenario) -> Row:
    return answered(scenario)[0]


def main(models: list[str], every: int, asked_alone: int) -> None:
    for model in models:
        asked = scenarios(model, every)
        answered(asked[0])  # starts everything
        found = list(timed(asked))
        seen, first, again = set(), list[float](), list[float]()
        for row, seconds, _ in found:
            (again if of_search(row) in seen else first).append(seconds)
            seen.add(of_search(row))
        unit = median(seconds for _, _, seconds in found)
        print(f"{model}: {len(found)} scenarios; reference {1000 * unit:.1f} ms")
        for name, some in (("all", first + again), ("first", first), ("again", again)):
            each = [1000 * seconds for seconds in some]
            print(
                f"  {name:6} {len(each):4} x mean {mean(each):6.1f} median {median(each):6.1f}"
                f" most {max(each):6.1f} ms, {mean(each) / 1000 / unit:.2f} references"
            )
        print(f"  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
        unlike = 0
        for row, one in list(zip((row for row, _, _ in found), asked, strict=True))[
            :: max(len(asked) // max(asked_alone, 1), 1)
        ][:asked_alone]:
            with get_context("spawn").Pool(1) as pool:
                other = pool.apply(alone, (one,))
            unlike += any(row[name] != other[name] for name in row.keys() - set(OWN))
        if asked_alone:
            print(f"  {asked_alone} asked alone: {unlike} differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(COUNTS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--alone", type=int, default=0)
    given = parser.parse_args()
    main(given.models, given.every, given.alone)
