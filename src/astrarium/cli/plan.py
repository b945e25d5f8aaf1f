"""`astrarium plan`: the best strategies for a workload on a cluster."""

from __future__ import annotations

import typer

from astrarium.cli import options


def plan(  # noqa: PLR0913  one parameter per flag
    ctx: typer.Context,
    model: options.MODEL,
    global_batch: options.GLOBAL_BATCH,
    gpus: options.GPUS = None,
    cluster: options.CLUSTER = None,
    seq_length: options.SEQ_LENGTH = None,
    tokens: options.TOKENS = None,
    objective: options.OBJECTIVE = "throughput",
    budget: options.BUDGET = None,
    deadline: options.DEADLINE = None,
    mode: options.MODE = "exact",
    as_type: options.AS_TYPE = None,
    precision: options.PRECISION = "bf16",
    rule: options.RULES = None,
    top: options.TOP = "5",
    profile: options.PROFILE = None,
    market: options.MARKET = None,
    region: options.REGION = None,
    max_gpus: options.MAX_GPUS = None,
    mix: options.MIX = None,
    prices: options.PRICE_FILES = None,
    price: options.PRICES = None,
    discount: options.DISCOUNTS = None,
    power_price: options.POWER_PRICE = None,
    power_utilisation: options.POWER_UTILISATION = None,
    epochs: options.EPOCHS = None,
    dataset_tokens: options.DATASET_TOKENS = None,
    rampup_batch: options.RAMPUP_BATCH = None,
    eval_every: options.EVAL_EVERY = None,
    eval_iterations: options.EVAL_ITERATIONS = None,
    spot: options.SPOT = "never",
    interruptions: options.INTERRUPTIONS = None,
    failures: options.FAILURES = None,
    checkpoint_every: options.CHECKPOINT_EVERY = None,
    storage_bandwidth: options.STORAGE_BANDWIDTH = None,
    restart_time: options.RESTART_TIME = None,
    co2: options.CO2 = None,
    compare: options.COMPARE = None,
    compare_gpus: options.COMPARE_GPUS = None,
    sensitivity: options.SENSITIVITY = False,
    json: options.JSON = False,
    out: options.OUT = None,
    front: options.FRONT = None,
    plot: options.PLOT = None,
    report: options.REPORT = None,
) -> None:
    """The best strategies: time, memory, money, why others fell out."""
    from astrarium.cli.planning import answer

    answer(ctx)
