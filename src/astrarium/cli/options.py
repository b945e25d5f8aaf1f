"""Flags that several commands have, and the values a shell can complete them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

import typer


def complete_model(incomplete: str) -> list[str]:
    from astrarium.catalog.models import model_names

    return _completed(incomplete, model_names())


def complete_gpus(incomplete: str) -> list[str]:
    """Types of GPU, also after a comma; the count stays with the user."""
    before, comma, last = incomplete.rpartition(",")
    if ":" in last:
        return []
    return [f"{before}{comma}{name}:" for name in complete_gpu(last)]


def complete_gpu(incomplete: str) -> list[str]:
    from astrarium.catalog import gpus

    names = [gpu.aliases[0] if gpu.aliases else gpu.name for gpu in gpus()]
    return _completed(incomplete, names)


def complete_instance(incomplete: str) -> list[str]:
    from astrarium.catalog import instances

    return _completed(incomplete, [instance.name for instance in instances()])


def complete_clouds(incomplete: str) -> list[str]:
    """Clouds of the price book, also after a comma."""
    from astrarium.catalog.prices import cloud_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _completed(last, ["all", *cloud_names()])]


def complete_runtime(incomplete: str) -> list[str]:
    from astrarium.catalog.runtimes import runtime_names

    return _completed(incomplete, runtime_names())


def _completed(incomplete: str, names: Iterable[str]) -> list[str]:
    """Names that go on from what was typed, whatever its case; the typed part stays."""
    typed = incomplete.lower()
    return [incomplete + name[len(typed) :] for name in names if name.lower().startswith(typed)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completes a flag that takes one of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


MODEL: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Catalog name, a config.json or its folder, or a model file.",
        autocompletion=complete_model,
    ),
]
_MODEL_OF_CONFIG = "Not needed where --strategy is a configuration that states the model."
OPTIONAL_MODEL: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"Catalog name, a config.json or its folder, or a model file. {_MODEL_OF_CONFIG}",
        show_default=False,
        autocompletion=complete_model,
    ),
]
MODEL_OPTION: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model, where a configuration does not state it.",
        autocompletion=complete_model,
    ),
]
GPUS: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE:N[,TYPE:N...]",
        help="GPUs that are available, such as h100:64.",
        autocompletion=complete_gpus,
    ),
]
CLUSTER: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Cluster file, in place of --gpus."),
]
_REGIONS = ("us", "europe", "asia", "other")
CLOUDS: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="CLOUD,...", help="Only these clouds.", autocompletion=complete_clouds),
]
MARKET: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="CLOUD,...|all",
        help="Prices and instances of these clouds; without --gpus: all they offer.",
        autocompletion=complete_clouds,
    ),
]
REGION: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(_REGIONS),
        help="Only offers of these regions.",
        autocompletion=one_of(*_REGIONS),
    ),
]
MAX_GPUS: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help="Of each type, with --market alone; default: 1024."),
]
MIX: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="Most pools in one job; default: all, or 1 with --market alone."
    ),
]
PRICE_FILES: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="Own prices: CSV, YAML, or SkyPilot's ~/.sky/catalogs; repeatable.",
    ),
]
PRICES: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="TYPE=USD", help="Price of a GPU and hour; repeatable."),
]
DISCOUNTS: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--discount",
        metavar="[CLOUD=]PERCENT",
        help="Off on-demand prices, for reserved or committed use; repeatable.",
    ),
]
POWER_PRICE: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="USD", help="Per kWh, for owned machines (--price TYPE=0)."),
]
POWER_UTILISATION: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="Of the boards' power that is drawn; default: 90."),
]
SEQ_LENGTH: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS", help="Tokens in a sequence; default: the model's most, up to 8192."
    ),
]
GLOBAL_BATCH: TypeAlias = Annotated[
    str, typer.Option(metavar="SEQUENCES", help="Sequences in an iteration.")
]
STATED_GLOBAL_BATCH: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SEQUENCES", help="Sequences in an iteration; default: what a configuration says."
    ),
]
OPTIONAL_GLOBAL_BATCH: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="SEQUENCES", help="Sequences in an iteration; default: 1024."),
]
TOKENS: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TOKENS", help="Length of the run, such as 2T: gives days and dollars."),
]
EPOCHS: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Passes over --dataset-tokens, in place of --tokens."),
]
DATASET_TOKENS: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Tokens of the dataset, for --epochs.")
]
RAMPUP_BATCH: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="START,INCREMENT,SAMPLES",
        help="Let the batch grow to --global-batch, as Megatron's --rampup-batch-size does.",
    ),
]
EVAL_EVERY: TypeAlias = Annotated[
    str | None, typer.Option(metavar="N", help="Evaluate after every N iterations.")
]
EVAL_ITERATIONS: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="M", help="Batches of an evaluation; default: 100, as Megatron's."),
]
SPOT: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="never|always|mix",
        help="Rent spot nodes: none, all, or as many as is best.",
        autocompletion=one_of("never", "always", "mix"),
    ),
]
INTERRUPTIONS: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TYPE=]RATE",
        help="Interruptions of a spot node an hour, or such as 10%/day; repeatable.",
    ),
]
AS_TYPE: TypeAlias = Annotated[
    str | None,
    typer.Option("--as", metavar="TYPE", help="Read MODEL, a config.json, as this model_type."),
]
FAILURES: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Breakdowns of any node an hour, or such as 1%/day; default: 0.00016.",
    ),
]
CHECKPOINT_EVERY: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Work between checkpoints, such as 30min; default: best."),
]
STORAGE_BANDWIDTH: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RATE[/node]",
        help="Of checkpoints, all nodes together or each; default: 1GB/s/node.",
    ),
]
RESTART_TIME: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="From an interruption to full speed; default: 10 min, and loading the checkpoint.",
    ),
]
CO2: TypeAlias = Annotated[
    str | None, typer.Option(metavar="KG", help="Kilograms of CO2 a kWh: gives the run's.")
]
PRECISION: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="bf16|fp16|fp8",
        help="Number format of matrix products.",
        autocompletion=one_of("bf16", "fp16", "fp8"),
    ),
]
OBJECTIVE: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="throughput|cost|time",
        help="What is best.",
        autocompletion=one_of("throughput", "cost", "time"),
    ),
]
BUDGET: TypeAlias = Annotated[
    str | None, typer.Option(metavar="USD", help="The most the run may cost, such as 200k.")
]
DEADLINE: TypeAlias = Annotated[
    str | None, typer.Option(metavar="DAYS", help="The longest the run may take.")
]
MODE: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="exact|up-to",
        help="Use all GPUs, or fewer where that is better.",
        autocompletion=one_of("exact", "up-to"),
    ),
]
RUNTIME: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Software that runs it; `astrarium catalog runtimes` lists them.",
        autocompletion=complete_runtime,
    ),
]
RULES: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="EXPR", help="Drop strategies, e.g. '$tp > 8'; repeatable."),
]
PROFILE: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Profile of the cluster, written by `astrarium calibrate`."),
]
TOP: TypeAlias = Annotated[str, typer.Option(metavar="K", help="How many plans to list.")]
OUT: TypeAlias = Annotated[str | None, typer.Option(metavar="DIR", help="Write DIR/plan.json.")]
FRONT: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE.csv|parquet|svg|png",
        help="Write the front of time against money; repeatable.",
    ),
]
PLOT: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE.svg|png", help="Draw the front as a picture; repeatable."),
]
REPORT: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.html", help="Write one HTML file with all pictures, for mailing around."
    ),
]
_STRATEGY = (
    "Strategy file, plan.json, pairs such as tp=8,pp=4,recompute=full, or what you launch with:"
    " a Megatron-LM script, a DeepSpeed, torchtitan or accelerate file."
)
STRATEGY: TypeAlias = Annotated[str, typer.Option(metavar="FILE|k=v,...", help=_STRATEGY)]
OPTIONAL_STRATEGY: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE|k=v,...", help=f"{_STRATEGY} Default: any that fits."),
]
COMPARE: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE|k=v,...", help=f"What you have, to see what is saved. {_STRATEGY}"),
]
COMPARE_GPUS: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE:N[,TYPE:N...]",
        help="GPUs that you have; default: those of a plan.json, or of --gpus.",
        autocompletion=complete_gpus,
    ),
]
SENSITIVITY: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Which price or network, changed by how much, changes the answer."
    ),
]
JSON: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]
