"""How long plans for clusters of several GPU types take: whole commands, cold.

    python benchmarks/mixed.py [--repeat N] [--quick] [--drawn] [--json]

Every case starts a fresh process. Shown are the time a user may expect at most, the best and the
median of N runs, the size of the space, what was priced, how many strategies each bound or cause
dropped, peak memory, and whether the answer is proven. Then how time grows with GPUs, with types
and with layers, each as a ratio to its first case of the same run.

With `--drawn` these are 20 mixes of two to four types that a seed chose from the catalog.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cold import run_cold

AMP = Path(__file__).parent.parent / "examples" / "amp" / "plan.py"
EIGHT = "h100,a100,h200,b200,l40s,a100-40g,h800,v100"


@dataclass(frozen=True)
class Case:
    name: str
    command: tuple[str, ...]
    most_seconds: float | None = None


@dataclass(frozen=True)
class Result:
    name: str
    most_seconds: float | None
    wall_seconds: float
    median_seconds: float
    peak_megabytes: float
    space: int | None = None
    evaluated: int | None = None
    optimal: bool | None = None
    bound_gap: float | None = None
    rejected: dict[str, int] = field(default_factory=dict)


def plan(model: str, gpus: str, *more: str, batch: int = 1024) -> tuple[str, ...]:
    flags = ("--seq-length", "4096", "--global-batch", str(batch), "--json")
    return ("-m", "astrarium", "plan", model, "--gpus", gpus, *flags, *more)


def types(count: int, gpus: int) -> str:
    return mix(",".join(EIGHT.split(",")[:count]), gpus)


def mix(names: str, gpus: int) -> str:
    return ",".join(f"{name}:{gpus}" for name in names.split(","))


# The slowest of many pairs and triples of types, batches and modes: a pool that holds next to
# nothing, few micro-batches, all nodes optional.
HARD = (
    Case(
        "h100,a100,v100 x 1,024, batch 1,024",
        plan("llama-2-70b", mix("h100,a100,v100", 1024)),
        2.0,
    ),
    Case(
        "h100,l40s,b200 x 1,024, batch 512",
        plan("llama-2-70b", mix("h100,l40s,b200", 1024), batch=512),
        2.0,
    ),
    Case(
        "a100,b200,h800 x 1,024, batch 512, up-to",
        plan("llama-2-70b", mix("a100,b200,h800", 1024), "--mode", "up-to", batch=512),
        2.0,
    ),
    Case(
        "a100,a800 x 512, batch 3,072, up-to",
        plan("llama-2-70b", mix("a100,a800", 512), "--mode", "up-to", batch=3072),
        1.5,
    ),
)


CASES = (
    Case("llama-2-70b, 2 types x 512", plan("llama-2-70b", types(2, 512)), 1.5),
    Case("llama-2-70b, 3 types x 1,024", plan("llama-2-70b", types(3, 1024), batch=3072), 2.0),
    Case(
        "llama-3-405b, 4 types x 4,096, up-to",
        plan("llama-3-405b", types(4, 4096), "--mode", "up-to", batch=4096),
        10.0,
    ),
    Case("AMP's three set-ups", (str(AMP),), 2.0),
    Case(
        "llama-3-405b, 8 types x 8,192, up-to",
        plan("llama-3-405b", types(8, 8192), "--mode", "up-to", batch=8192),
        60.0,
    ),
    Case(
        "llama-3-405b, 8 types x 8,192, all of them",
        plan("llama-3-405b", types(8, 8192), batch=8192),
        60.0,
    ),
)
GROWTH = {
    "GPUs of each of 2 types": [
        Case(f"{n:,}", plan("llama-2-70b", types(2, n))) for n in (64, 128, 256, 512, 1024)
    ],
    "types x 128": [
        Case(str(n), plan("llama-2-70b", types(n, 128), "--mode", "up-to")) for n in (1, 2, 3, 4, 6)
    ],
    "layers, 2 types x 128": [
        Case(name, plan(name, types(2, 128)))
        for name in ("llama-2-7b", "llama-2-70b", "llama-3-405b")
    ],
}


DRAWN, SEED = 20, 17
MODELS = ("llama-2-7b", "llama-3-8b", "llama-2-13b", "llama-2-70b", "qwen2.5-32b", "mixtral-8x7b")
MODELS += ("qwen3-30b-a3b", "gpt3-13b", "llama-3-70b", "gpt-oss-20b")
GPUS = ("h100", "h200", "a100", "a100-40gb", "b200", "h800", "a800", "l40s", "l4", "a10g", "v100")
GPUS += ("rtx-4090", "rtx-3090", "rtx-a6000", "rtx-6000-ada", "h20", "h200-nvl", "t4", "a40")


def drawn() -> list[Case]:
    """Mixes that nobody chose; some fit nowhere, others are drawn in their place."""
    rng = random.Random(SEED)
    found: list[Case] = []
    while len(found) < DRAWN:
        count = rng.choice((2, 2, 3, 4))
        chosen = rng.sample(GPUS, count)
        gpus = ",".join(f"{name}:{8 * rng.choice((1, 2, 3, 4, 6, 8, 12))}" for name in chosen)
        mode = rng.choice(("exact", "up-to"))
        model, batch = rng.choice(MODELS), 24 * rng.choice((4, 8, 16, 32))
        command = plan(model, gpus, "--mode", mode, batch=batch)
        done = subprocess.run([sys.executable, *command], capture_output=True, check=False)
        if done.returncode == 0:
            found.append(Case(f"{model} {gpus} {mode} {batch}", command))
    return found


def summary(results: Sequence[Result]) -> str:
    walls = [result.median_seconds for result in results]
    gaps = [result.bound_gap or 0.0 for result in results]
    return (
        f"{len(results)} drawn mixes: median {statistics.median(walls):.2f} s, slowest"
        f" {max(walls):.2f} s; gaps: median {statistics.median(gaps):.1%}, widest {max(gaps):.1%}"
    )


def measured(case: Case, repeat: int) -> Result:
    runs = [run_cold(case.command) for _ in range(repeat)]
    walls = [run.wall for run in runs]
    found = json.loads(runs[0].output)["search"] if "--json" in case.command else {}
    return Result(
        name=case.name,
        most_seconds=case.most_seconds,
        wall_seconds=min(walls),
        median_seconds=statistics.median(walls),
        peak_megabytes=max(run.megabytes for run in runs),
        space=found.get("space"),
        evaluated=found.get("evaluated"),
        optimal=found.get("optimal"),
        bound_gap=found.get("bound_gap"),
        rejected=found.get("rejected", {}),
    )


def shown(result: Result) -> str:
    proven = "" if result.optimal is None else "proven" if result.optimal else "not proven"
    if result.bound_gap:
        proven += f", gap {result.bound_gap:.2%}"
    most = f"{result.most_seconds:5.1f}" if result.most_seconds else "     "
    counts = f"{result.space:.2e} {result.evaluated:>11,}" if result.space else " " * 20
    times = f"{result.wall_seconds:6.2f} {result.median_seconds:6.2f}"
    return f"{result.name:<44}{most} {times} {result.peak_megabytes:6.0f} {counts}  {proven}"


def causes(result: Result) -> str:
    counts = sorted(result.rejected.items(), key=lambda pair: -pair[1])
    return "    dropped: " + ", ".join(f"{name} {count:.2e}" for name, count in counts if count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the cases with a limit only")
    parser.add_argument("--drawn", action="store_true", help="20 drawn mixes only")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = []
    if not asked.json:
        print(f"{'case':<44} most   best median     MB    space      priced")
    for case in drawn() if asked.drawn else (*CASES, *HARD):
        result = measured(case, asked.repeat)
        results.append(result)
        if not asked.json:
            print(shown(result))
            if result.rejected and not asked.drawn:
                print(causes(result))
    if asked.drawn and not asked.json:
        print(summary(results))
    growth: dict[str, list[Result]] = {}
    for name, cases in () if asked.quick or asked.drawn else GROWTH.items():
        growth[name] = [measured(case, asked.repeat) for case in cases]
        if not asked.json:
            print(f"\ngrowth with {name}: seconds, and times the first")
            for result in growth[name]:
                ratio = result.wall_seconds / growth[name][0].wall_seconds
                print(f"  {result.name:<14} {result.wall_seconds:6.2f}  {ratio:5.2f}")
    if asked.json:
        document = {
            "cases": [asdict(result) for result in results],
            "growth": {name: [asdict(r) for r in found] for name, found in growth.items()},
        }
        print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
