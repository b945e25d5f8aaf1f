"""Measure how the time and memory of `plan` and `replan` grow with the number of GPUs.

    python benchmarks/scale.py [GPUS ...]
    python benchmarks/scale.py --decisions

Llama-3.1-405B on H100, one sequence of 8,192 tokens for every two GPUs, at least 512. Each size is
planned in a process of its own; the plan then loses a node. CPU seconds, the largest memory, and
for `replan` the second decision in the process, as a controller makes it. `--decisions`: the second
to sixth decision for 1,024 GPUs of three types, and for DeepSeek-V3 on 2,048.
"""

from __future__ import annotations

import resource
import sys
from multiprocessing import get_context
from time import process_time
from typing import Final

import astrarium

MODEL: Final = "llama-3.1-405b"
SIZES: Final = (1024, 4096, 16384, 65536, 262144, 1048576)
MIB: Final = 1024  # KiB, which the kernel counts in


def measured(gpus: int) -> tuple[float, float, float, float, float]:
    """Seconds of the plan, of two replans, the time of an iteration, and MiB at most."""
    begin = process_time()
    batch = max(gpus // 2, 512)
    plans = astrarium.plan(MODEL, gpus=f"h100:{gpus}", global_batch=batch, seq_length=8192)
    planned = process_time() - begin
    times = []
    for _ in range(2):
        begin = process_time()
        astrarium.replan(plans, lost={"h100": 8})
        times.append(process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    return planned, times[0], times[1], plans.best.iteration_seconds, peak


def decisions() -> None:
    three = {"gpus": "h100:512,a100:256,h200:256", "global_batch": 1024, "seq_length": 4096}
    many = {"gpus": "h100:2048", "global_batch": 8192, "seq_length": 4096}
    changes = {"lost": {"a100": 8}}, {"gained": {"h100": 16}}, {"slowed": "stage=0:1.4"}
    for model, asked, happened in (
        ("llama-2-70b", three, changes),
        ("deepseek-v3", many, ({"lost": {"h100": 8}},)),
    ):
        plans = astrarium.plan(model, **asked, top=1)
        for change in happened:
            times = []
            for _ in range(6):
                begin = process_time()
                astrarium.replan(plans, **change)
                times.append(1000 * (process_time() - begin))
            low, high = min(times[1:]), max(times[1:])
            print(f"{model} on {asked['gpus']}, {change}: {low:.0f} to {high:.0f} ms")


def main(sizes: list[int]) -> None:
    print(f"{'GPUs':>9} {'plan s':>8} {'replan s':>9} {'again s':>8} {'MiB':>6}  iteration s")
    for gpus in sizes:
        with get_context("spawn").Pool(1) as pool:
            plan, first, again, seconds, peak = pool.apply(measured, (gpus,))
        print(f"{gpus:>9,} {plan:8.2f} {first:9.2f} {again:8.2f} {peak:6,.0f}  {seconds:.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--decisions"]:
        decisions()
    else:
        main([int(size) for size in sys.argv[1:]] or list(SIZES))
