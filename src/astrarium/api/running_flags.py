"""The flags of commands about a running job: replan, simulate and sites."""

from __future__ import annotations

from typing import Final

from astrarium.api import readers
from astrarium.api.flags import CONFIG_BATCH, GPUS, Flag, flags, switch

_ALL: Final = "all"
# What the commands about a running job share: `astrarium.api.operations`.
RUNNING_FLAGS: Final = {
    "plan": Flag(
        "The running plan: a plan.json or its folder; or what --strategy reads, with --gpus,"
        " --global-batch and, unless it states one, --model.",
        "PLAN",
        required=True,
        is_argument=True,
    ),
    "rank": Flag("Rank of the plan in PLAN; 1 is the best.", "K", readers.rank, default=1),
    **flags(
        *("model", "gpus", "cluster", "global_batch", "seq_length", "precision", "runtime"),
        *("price", "failures", "checkpoint_every", "storage_bandwidth"),
        model={"help": "The model, where PLAN is only a strategy.", "is_argument": False},
        global_batch={"help": CONFIG_BATCH},
    ),
}
CHANGE_FLAGS: Final = {
    **{
        name: Flag(
            f"GPUs that the cluster {name}, by type or pool; repeatable.",
            GPUS,
            readers.gpu_counts,
            several=True,
            is_table=True,
        )
        for name in ("lost", "gained")
    },
    "slowed": Flag(
        "Factor by which a pipeline stage, or a type or pool, computes more slowly; repeatable.",
        "stage=N:FACTOR|TYPE:FACTOR",
        readers.slowed,
        several=True,
    ),
    **flags("objective", objective={"words": ("throughput", "cost")}),
    "horizon": Flag(
        "Time over which the answers are compared.", "TIME", readers.duration(), default="24h"
    ),
    "restart_time": Flag(
        "Time to start the processes again, without moving state. Default: 10 min.",
        "TIME",
        readers.duration(allow_zero=True),
    ),
    "since_checkpoint": Flag(
        "Time since the last checkpoint. Default: half the time between checkpoints.",
        "TIME",
        readers.duration(allow_zero=True),
    ),
    "exact": switch("Search all strategies, not only those near the running one."),
    **flags("price", "failures", "checkpoint_every", "storage_bandwidth"),
}
REPLAN_FLAGS: Final = {**RUNNING_FLAGS, **CHANGE_FLAGS}
_MOST_SITES: Final = 4096
SIMULATE_FLAGS: Final = {
    "trace": Flag(
        "A CSV file with the columns hours, gpu, gpus and usd_per_gpu_hour; or draw.",
        "TRACE",
        readers.text,
        required=True,
        is_argument=True,
    ),
    **RUNNING_FLAGS,
    "policy": Flag(
        "What the job does when capacity changes; all: one after the other.",
        read=readers.choice("operations.simulate:Policy", also=(_ALL,)),
        default=_ALL,
        words=("static", "replan", "overprovision", _ALL),
    ),
    "seed": Flag(
        "Seed of failures, and of a trace that is drawn.",
        "N",
        readers.count(2**31, allow_zero=True),
        default=0,
    ),
    "spare": Flag("Nodes that overprovision keeps in reserve.", "PERCENT", readers.share, "10"),
    "restart_time": REPLAN_FLAGS["restart_time"],
    "hours": Flag("Length of a trace that is drawn.", "TIME", readers.duration(), default="7 days"),
    "losses": Flag(
        "Losses of a group of nodes an hour, if drawn. Default: 10%/day.",
        "RATE",
        readers.number("parse_per_hour", readers.MOST_INTERRUPTIONS_PER_HOUR, allow_zero=True),
    ),
    "away": Flag("Mean time until such nodes are back.", "TIME", readers.duration(), default="4h"),
    "together": Flag("Nodes of a group.", "N", readers.count(_MOST_SITES), default=4),
    "price_swing": Flag(
        "Hourly deviation of a drawn price. Default: none.", "PERCENT", readers.share
    ),
    "save_trace": Flag("Write the trace as CSV.", "FILE.csv", readers.text),
}
SITES_FLAGS: Final = {
    **RUNNING_FLAGS,
    "sites": Flag("Data centres that run the plan.", "N", readers.count(_MOST_SITES), default=2),
    "link": Flag(
        "Speed of the link of a site, such as 10Gbit/s.",
        "RATE",
        readers.number("parse_bandwidth", readers.MOST_BANDWIDTH),
        required=True,
    ),
    "latency": Flag("Latency between sites.", "TIME", readers.duration(), default="50ms"),
    "every": Flag(
        "Iterations between outer steps.", "N", readers.count(readers.MOST_TOKENS), default=100
    ),
    "bits": Flag("Bits of a weight that is sent.", "N", readers.count(32), default=32),
    "overlap": switch("Send messages beside the iterations until the next outer step."),
}
