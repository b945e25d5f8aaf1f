"""What the search returns as parts of the plan document: one plan, its strategy, its stages."""

from __future__ import annotations

from dataclasses import asdict, fields

from astrarium.cost.uncertainty import chance_within
from astrarium.plans.document import (
    MemoryPart,
    PlanPart,
    RecomputePart,
    RunPart,
    StagePart,
    StageTimePart,
    StrategyPart,
)
from astrarium.search.outcome import Limits
from astrarium.search.pace import StageSeconds
from astrarium.search.plan import Plan, Run
from astrarium.strategy.types import Strategy


def plan_part(plan: Plan, rank: int, limits: Limits | None = None) -> PlanPart:
    """A plan; `limits` are those whose chances are stated."""
    return PlanPart(
        rank=rank,
        gpus=dict(plan.gpus),
        strategy=strategy_part(plan.strategy),
        iteration_seconds=plan.iteration_seconds,
        interval_seconds=plan.interval_seconds,
        tokens_per_second=plan.tokens_per_second,
        mfu=plan.mfu,
        breakdown_seconds=dict(plan.breakdown_seconds),
        memory=tuple(
            MemoryPart(
                stage=stage.stage,
                gpu=stage.gpu,
                peak_bytes=stage.peak_bytes,
                capacity_bytes=stage.capacity_bytes,
                **stage.by_cause,
            )
            for stage in plan.memory
        ),
        fits=plan.fits,
        usd_per_hour=plan.usd_per_hour,
        usd_total=plan.usd_total,
        train_seconds=plan.train_seconds,
        ideal_seconds=plan.ideal_seconds,
        stage_seconds=tuple(stage_time_part(plan, stage) for stage in plan.stages),
        precision=plan.precision.value,
        runtimes=plan.runtimes,
        megatron_lacks=plan.megatron_lacks,
        run=None if plan.run is None else run_part(plan, plan.run, limits or Limits()),
        fit_chance=plan.fit_chance,
    )


def run_part(plan: Plan, run: Run, limits: Limits) -> RunPart:
    def chance(limit: float | None, predicted: float | None) -> float | None:
        if limit is None or not predicted:
            return None
        seconds = plan.iteration_seconds
        return chance_within(limit / predicted * seconds, seconds, plan.interval_seconds)

    return RunPart(
        breakdown_seconds=dict(run.seconds),
        goodput=run.goodput,
        spot_gpus=dict(run.spot_gpus),
        interruptions_per_hour=run.interruptions_per_hour,
        checkpoint_interval_seconds=run.checkpoint_interval_seconds,
        kwh=run.kwh,
        co2_kilograms=run.co2_kilograms,
        deadline_chance=chance(limits.deadline_seconds, plan.train_seconds),
        budget_chance=chance(limits.budget_usd, plan.usd_total),
    )


def stage_time_part(plan: Plan, stage: StageSeconds) -> StageTimePart:
    apart = ("pools", "busy_share")
    same = {f.name: getattr(stage, f.name) for f in fields(StageTimePart) if f.name not in apart}
    return StageTimePart(**same, pools=dict(stage.pools), busy_share=plan.busy_share(stage))


def strategy_part(strategy: Strategy) -> StrategyPart:
    """The same keys as `strategy_to_dict`; a test holds the two together."""
    apart = ("recompute", "stages")
    same = {f.name: getattr(strategy, f.name) for f in fields(StrategyPart) if f.name not in apart}
    return StrategyPart(
        **same,
        recompute=RecomputePart(**asdict(strategy.recompute)),
        stages=tuple(
            StagePart(
                gpu=stage.gpu,
                layers=(stage.first_layer, stage.last_layer),
                devices=stage.devices,
                pipeline_rank=stage.rank,
                chunk=stage.chunk,
                pools=dict(stage.pools),
            )
            for stage in strategy.stages
        ),
    )
