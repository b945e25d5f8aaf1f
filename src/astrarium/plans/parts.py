"""What the search returns as parts of the plan document: one plan, and its run."""

from __future__ import annotations

from astrarium.plans.document import PlanPart, RunPart
from astrarium.search.plan import Plan, Run


def plan_part(plan: Plan, rank: int) -> PlanPart:
    return PlanPart(
        rank=rank,
        gpus=dict(plan.gpus),
        strategy=plan.strategy,
        iteration_seconds=plan.iteration_seconds,
        interval_seconds=plan.interval_seconds,
        tokens_per_second=plan.tokens_per_second,
        mfu=plan.mfu,
        breakdown_seconds=dict(plan.breakdown_seconds),
        memory=plan.memory,
        fits=plan.fits,
        usd_per_hour=plan.usd_per_hour,
        usd_total=plan.usd_total,
        train_seconds=plan.train_seconds,
        ideal_seconds=plan.ideal_seconds,
        stage_seconds=plan.stages,
        precision=plan.precision.value,
        runtimes=plan.runtimes,
        megatron_lacks=plan.megatron_lacks,
        run=None if plan.run is None else run_part(plan.run),
        fit_chance=plan.fit_chance,
    )


def run_part(run: Run) -> RunPart:
    return RunPart(
        breakdown_seconds=dict(run.seconds),
        goodput=run.goodput,
        spot_gpus=dict(run.spot_gpus),
        interruptions_per_hour=run.interruptions_per_hour,
        checkpoint_interval_seconds=run.checkpoint_interval_seconds,
        kwh=run.kwh,
        co2_kilograms=run.co2_kilograms,
    )
