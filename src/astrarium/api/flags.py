"""The table of flags: the name, meaning, values and default of each, for all interfaces.

The command line, the functions of the package, the web form and the REST API are made from it.
`astrarium.api.asked` holds the values that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from astrarium.api import completion as complete
from astrarium.api import readers
from astrarium.api.readers import Reader


class Flag(NamedTuple):
    """A flag: what it means, what it takes, and its default."""

    help: str
    metavar: str = ""
    read: Reader = readers.as_given
    default: Any = None  # as it could be given; None: nothing
    words: tuple[str, ...] = ()  # where it is one of a few
    complete: Callable[[str], list[str]] | None = None
    several: bool = False  # may be repeated
    is_switch: bool = False  # takes no value
    is_table: bool = False  # may also be names with values
    is_file: bool = False  # names a file, or makes sense with one only: the server reads none
    required: bool = False
    # Of the command line alone: its spellings, where they are not made of the name.
    spellings: tuple[str, ...] = ()
    is_argument: bool = False  # without a name, by its place
    # Of Python alone: how a bare number is read, where its argument names another unit.
    read_argument: Reader | None = None

    @property
    def takes(self) -> str:
        """What stands for the value in a help text."""
        return self.metavar or "|".join(self.words)

    def completed(self, incomplete: str) -> list[str]:
        found = self.complete or complete.one_of(*self.words)
        return found(incomplete)


def switch(help_text: str, *spellings: str) -> Flag:
    """A flag without a value."""
    return Flag(help_text, default=False, is_switch=True, spellings=spellings)


# Arguments of Python that say their unit, or that there may be several; others are called alike.
KEYWORDS: Final[Mapping[str, str]] = {
    "budget": "budget_usd",
    "deadline": "deadline_seconds",
    "rule": "rules",
    "set": "sizes",
}


def as_keyword(name: str) -> str:
    """The Python argument of a flag."""
    return KEYWORDS.get(name, name)


_MODEL = "Catalog name, a config.json or its folder, or a model file."
_STRATEGY = (
    "Strategy file, plan.json, pairs such as tp=8,pp=4,recompute=full, or what you launch with:"
    " a Megatron-LM script, a DeepSpeed, torchtitan or accelerate file."
)
_MOST_RANK = 2**14
_TOKENS = readers.count(readers.MOST_TOKENS)
GPUS = "TYPE:N[,TYPE:N...]"
_PAIRS = "FILE|k=v,..."

FLAGS: Final[Mapping[str, Flag]] = {
    "model": Flag(_MODEL, "MODEL", complete=complete.complete_model, is_argument=True),
    "global_batch": Flag(
        "Sequences in an iteration.", "SEQUENCES", readers.count(readers.MOST_GLOBAL_BATCH)
    ),
    "strategy": Flag(_STRATEGY, _PAIRS, readers.text_or_table, is_table=True),
    "gpus": Flag(
        "GPUs that are available, such as h100:64.",
        GPUS,
        readers.gpus,
        complete=complete.complete_gpus,
        is_table=True,
    ),
    "cluster": Flag("Cluster file, instead of --gpus.", "FILE"),
    "seq_length": Flag(
        "Tokens in a sequence. Default: the model's maximum, up to 8192.",
        "TOKENS",
        readers.count(readers.MOST_SEQ_LENGTH),
    ),
    "tokens": Flag(
        "Tokens to train on, such as 2T; adds days and dollars to the answer.", "TOKENS", _TOKENS
    ),
    "objective": Flag(
        "What to optimise.",
        read=readers.choice("search.outcome:Objective", without=("gpus",)),
        default="throughput",
        words=("throughput", "cost", "time"),
    ),
    "budget": Flag(
        "The most the run may cost, such as 200k.",
        "USD",
        readers.number("parse_usd", readers.MOST_USD),
    ),
    "deadline": Flag(
        "The longest the run may take.",
        "DAYS",
        readers.duration(bare_unit="days"),
        read_argument=readers.duration(bare_unit="s"),
    ),
    "mode": Flag(
        "Use all GPUs, or fewer if that is better.",
        read=readers.choice("search.outcome:Mode"),
        default="exact",
        words=("exact", "up-to"),
    ),
    "as_type": Flag(
        "Read MODEL, a config.json, as this model_type.",
        "TYPE",
        readers.text,
        is_file=True,
        spellings=("--as",),
    ),
    "precision": Flag(
        "Number format of matrix products.",
        read=readers.choice("model.workload:Precision", without=("fp32",)),
        default="bf16",
        words=("bf16", "fp16", "fp8", "mxfp8", "fp4"),
    ),
    "numerics": Flag(
        "Gradients and moments of Adam: 32 bits (strict), or bf16 (reduced).",
        read=readers.choice("model.workload:Numerics"),
        default="strict",
        words=("strict", "reduced"),
    ),
    "optimizer": Flag(
        "What updates the weights: adamw, adamw-bf16, adamw-8bit, adafactor, lion, sgd or muon.",
        "NAME",
        readers.text,
        default="adamw",
        words=("adamw", "adamw-bf16", "adamw-8bit", "adafactor", "lion", "sgd", "muon"),
    ),
    "finetune": Flag(
        "What trains: full (all weights), adapters (lora, qlora or dora), or all side by side.",
        "WHAT",
        readers.text,
        words=("full", "lora", "qlora", "dora", "all"),
    ),
    "lora_rank": Flag("Rank of adapters. Default: 16.", "RANK", readers.count(_MOST_RANK)),
    "lora_modules": Flag(
        "Weights with adapters, such as q_proj,v_proj, or all-linear, attention, mlp. Default:"
        " all-linear, attention where there are experts.",
        "NAME,...",
        readers.text,
    ),
    "freeze": Flag(
        "Layers at the front that do not train: vision, of models that see and read.",
        "NAME",
        readers.text,
    ),
    "lengths": Flag(
        "Lengths of the sequences: a file with one in each line, or lognormal:MEDIAN,P95.",
        "LENGTHS",
        readers.lengths,
    ),
    "packing": Flag(
        "Fill rows with sequences of --lengths, each for itself, instead of padding. Default: off.",
        read=readers.choice("model.lengths:Packing"),
        words=("off", "on"),
    ),
    "mtp_layers": Flag(
        "Layers that predict further tokens and train beside the model (MTP), such as 1.",
        "N",
        readers.count(8),
    ),
    "teacher": Flag(
        "Frozen model whose logits are in the loss (distillation).",
        "MODEL",
        complete=complete.complete_model,
    ),
    "reference": Flag(
        "Frozen model of preference training (DPO), such as MODEL itself; sequences are pairs.",
        "MODEL",
        complete=complete.complete_model,
    ),
    "expert_imbalance": Flag(
        "Tokens of the busiest rank of experts over the mean.",
        "FACTOR",
        readers.factor,
        default=1.0,
    ),
    "expert_messages": Flag(
        "How tokens travel to experts: all-to-all or DeepEP, with or without overlap.",
        read=readers.choice("model.workload:ExpertMessages"),
        default="alltoall",
        words=("alltoall", "overlapped", "deepep", "deepep-overlapped"),
    ),
    "runtime": Flag(
        "Software that runs it; `astrarium catalog runtimes` lists them.",
        "NAME",
        readers.text,
        default="megatron",
        complete=complete.complete_runtime,
    ),
    "rule": Flag(
        "Drop strategies that match, such as '$tp > 8'; repeatable.",
        "EXPR",
        readers.texts,
        several=True,
    ),
    "top": Flag("Number of plans to list.", "K", readers.count(readers.MOST_PLANS), default=5),
    "prefer": Flag(
        "Which of nearly equal plans is first: the simplest with room in memory, or the fastest.",
        read=readers.choice("search.outcome:Prefer"),
        default="recommended",
        words=("recommended", "fastest"),
    ),
    "fit_chance": Flag(
        "Least chance that a plan fits in memory. Default: 95.", "PERCENT", readers.share
    ),
    "memory_margin": Flag(
        "Memory to leave free on each GPU, such as 4GiB, instead of --fit-chance.",
        "SIZE",
        readers.number("parse_bytes", readers.MOST_MEMORY, allow_zero=True),
    ),
    "profile": Flag(
        "Profile of the cluster, written by `astrarium calibrate`.",
        "FILE",
        readers.text,
        is_file=True,
    ),
    "market": Flag(
        "Take prices and instances from these clouds. Without --gpus, consider all they offer.",
        "CLOUD,...|all",
        readers.text,
        complete=complete.complete_clouds,
    ),
    "region": Flag(
        "Consider only offers of this region.",
        read=readers.text,
        words=("us", "europe", "asia", "other"),
    ),
    "max_gpus": Flag(
        "Most GPUs of each type, with --market alone. Default: 1024.", "N", readers.max_gpus
    ),
    "mix": Flag(
        "Most pools in one job. Default: all, or 1 with --market alone.",
        "N",
        readers.count(readers.MOST_POOLS),
    ),
    "prices": Flag(
        "Your own prices: CSV, YAML, or SkyPilot's ~/.sky/catalogs; repeatable.",
        "FILE",
        readers.texts,
        several=True,
        is_file=True,
    ),
    "price": Flag(
        "Price of one GPU for one hour; repeatable.", "TYPE=USD", readers.prices, several=True
    ),
    "discount": Flag(
        "Discount on on-demand prices, for reserved or committed use; repeatable.",
        "[CLOUD=]PERCENT",
        readers.discounts,
        several=True,
    ),
    "power_price": Flag(
        "Price of a kWh, for machines that you own (--price TYPE=0).",
        "USD",
        readers.number("parse_usd", readers.MOST_USD, allow_zero=True),
    ),
    "power_utilisation": Flag(
        "Share of the boards' power limit that is drawn. Default: 90.",
        "PERCENT",
        readers.share_or_all,
    ),
    "epochs": Flag(
        "Passes over --dataset-tokens, instead of --tokens.",
        "NUMBER",
        readers.number("parse_number", readers.MOST_EPOCHS),
    ),
    "dataset_tokens": Flag("Tokens in the dataset, for --epochs.", "TOKENS", _TOKENS),
    "rampup_batch": Flag(
        "Let the batch grow to --global-batch, like Megatron's --rampup-batch-size.",
        "START,INCREMENT,SAMPLES",
        readers.ramp,
    ),
    "eval_every": Flag("Evaluate after every N iterations.", "N", _TOKENS),
    "eval_iterations": Flag(
        "Batches in an evaluation. Default: 100, as in Megatron.", "M", _TOKENS
    ),
    "spot": Flag(
        "Rent spot nodes: none, all, or the best number.",
        read=readers.choice("cost.training_run:Spot"),
        default="never",
        words=("never", "always", "mix"),
    ),
    "interruptions": Flag(
        "Interruptions of a spot node per hour, or a rate such as 10%/day; repeatable.",
        "[TYPE=]RATE",
        readers.interruptions,
        several=True,
    ),
    "failures": Flag(
        "Failures of any node per hour, or a rate such as 1%/day. Default: 0.00016.",
        "RATE",
        readers.number("parse_per_hour", readers.MOST_INTERRUPTIONS_PER_HOUR, allow_zero=True),
    ),
    "checkpoint_every": Flag(
        "Time between checkpoints, such as 30min. Default: the best.", "TIME", readers.duration()
    ),
    "storage_bandwidth": Flag(
        "Bandwidth for checkpoints, of all nodes together or of each. Default: 1GB/s/node.",
        "RATE[/node]",
        readers.storage,
    ),
    "restart_time": Flag(
        "Time from an interruption to full speed. Default: 10 min, plus loading the checkpoint.",
        "TIME",
        readers.duration(allow_zero=True),
    ),
    "co2": Flag(
        "Kilograms of CO2 per kWh; adds the emissions of the run.",
        "KG",
        readers.number("parse_number", readers.MOST_CO2, allow_zero=True),
    ),
    "compare": Flag(
        f"Your current strategy, to see what the plan saves. {_STRATEGY}",
        _PAIRS,
        readers.text,
        is_file=True,
    ),
    "compare_gpus": Flag(
        "The GPUs that you have. Default: those of a plan.json, or of --gpus.",
        GPUS,
        readers.gpus,
        complete=complete.complete_gpus,
        is_file=True,
    ),
    "sensitivity": switch("Show how much a price or a network must change to change the answer."),
}

CONFIG_BATCH = "Sequences in an iteration. Default: what a configuration says."
_CONFIG_MODEL = f"{_MODEL} Not needed if --strategy is a configuration that states the model."
PRICES: Final = (
    "profile",
    "market",
    "region",
    "prices",
    "price",
    "discount",
    "power_price",
    "power_utilisation",
)


def flags(*names: str, **changes: Mapping[str, Any]) -> dict[str, Flag]:
    """These flags in this order, with the changes that one question makes to them."""
    return {name: FLAGS[name]._replace(**changes.get(name, {})) for name in names}


OF_TRAINING: Final = (
    *("numerics", "optimizer", "finetune", "lora_rank", "lora_modules", "mtp_layers"),
    *("freeze", "lengths", "packing", "teacher", "reference"),
    *("expert_imbalance", "expert_messages"),
)
NEEDED: Final = {"required": True}
PLAN_FLAGS: Final = flags(
    *(name for name in FLAGS if name != "strategy"),
    model=NEEDED,
    global_batch=NEEDED,
    precision={
        "help": "Number format of matrix products; best: those that the GPUs have, side by side.",
        "read": readers.precision_or_best,
        "words": ("bf16", "fp16", "fp8", "mxfp8", "fp4", "best"),
    },
    expert_messages={
        "help": "How tokens travel to experts. Default: the faster of alltoall and overlapped.",
        "default": None,
    },
    runtime={
        "help": "Software to plan for (`astrarium catalog runtimes`), or all side by side. Default:"
        " megatron, with CUDA graphs where layers are launch-bound.",
        "default": None,
    },
)
# One strategy, as if it were an answer.
WHY_NOT_FLAGS: Final = {**PLAN_FLAGS, **flags("strategy", strategy=NEEDED)}
PREDICT_FLAGS: Final = flags(
    *("strategy", "model", "global_batch", "gpus", "cluster", "seq_length", "tokens"),
    *("as_type", "precision", *OF_TRAINING, "runtime", *PRICES),
    strategy=NEEDED,
    model={"help": _CONFIG_MODEL},
    global_batch={"help": CONFIG_BATCH},
)
_MOST_ENTRIES: Final = 2**24
# What a script is started with, and what else it leaves open.
ANSWER_FLAGS: Final = {
    "arguments": Flag(
        "Arguments of the script.", "ARGUMENTS", several=True, is_argument=True, read=readers.texts
    ),
    "set": Flag(
        "Set a variable of the script, as its caller would; without a value, take it from the"
        " environment; repeatable.",
        "NAME[=VALUE]",
        readers.texts,
        several=True,
    ),
    "vocab_size": Flag(
        "Entries of the vocabulary, where the script does not state it.",
        "ENTRIES",
        readers.count(_MOST_ENTRIES),
    ),
}
FIT_FLAGS: Final = flags(
    *("model", "gpus", "cluster", "strategy", "seq_length", "global_batch", "as_type"),
    *("precision", *OF_TRAINING, "runtime", *PRICES),
    model={"help": _CONFIG_MODEL},
    strategy={"help": f"{_STRATEGY} Default: any that fits."},
    global_batch={"help": "Sequences in an iteration. Default: 1024."},
)
# `astrarium explain` of what one launches with.
CONFIG_FLAGS: Final = flags(
    *("gpus", "cluster", "model", "seq_length", "global_batch", "tokens", "precision", "runtime"),
    *PRICES,
    model={"help": "The model, if a configuration does not state it.", "is_argument": False},
    global_batch={"help": CONFIG_BATCH},
)


def read(
    table: Mapping[str, Flag], given: Mapping[str, Any], *, from_python: bool = False
) -> dict[str, Any]:
    """The values of all flags of a table: as they were given, or their defaults."""
    return dict(_values(table, given, from_python))


def _values(
    table: Mapping[str, Flag], given: Mapping[str, Any], from_python: bool
) -> Iterator[tuple[str, Any]]:
    for name, one in table.items():
        value = given.get(name)
        reader = (from_python and one.read_argument) or one.read
        if value is None or (one.several and not value):
            yield name, None if one.default is None else reader(name, one.default)
        else:
            yield name, reader(name, value)
