"""What a controller does when GPUs come or go: ask, export, start again.

    python examples/replan_hook.py PLAN.json DIR --lost a100:8

Call it from what notices the change: the `run` commands of a managed job of SkyPilot, which start
again after a recovery; a requeued job of Slurm, before `srun`; the driver of a Ray job, when
`ray.nodes()` has changed. It prints the decision, and writes the plan and its launch script into
DIR unless the job goes on as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import astrarium


def decide(plan: Path, out: Path, lost: str | None, gained: str | None) -> str:
    """Write what to start, if anything; "stay", "reshape" or "move"."""
    answer = astrarium.replan(plan, lost=lost, gained=gained, horizon="12h", restart_time="3min")
    best = answer.answers[answer.decision]
    if best.pause_seconds:  # also to stay, processes start again without the GPUs that are gone
        answer.plans.save(out)
        answer.best.export("megatron", out / "megatron", nearest=True, force=True)
    return answer.decision


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lost")
    parser.add_argument("--gained")
    given = parser.parse_args()
    print(decide(given.plan, given.out, given.lost, given.gained))
