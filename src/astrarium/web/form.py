"""The form of the page: what its fields are called, and in which words messages speak to its user.

What a flag takes and defaults to stands in the table of flags. `tools/page_types.py` writes all of
it into the sources of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from astrarium.api.flags import PLAN_FLAGS
from astrarium.errors import Words


class FormField(NamedTuple):
    """A field of the form; `says` are what its choices are called."""

    label: str
    hint: str = ""
    placeholder: str = ""
    says: Mapping[str, str] = {}


SOFTWARE: Final = {
    "": "The usual",
    "megatron": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "torchtitan": "torchtitan",
    "fsdp": "FSDP (Transformers)",
    "deepspeed": "DeepSpeed (Transformers)",
    "nemo": "NeMo",
    "all": "All side by side",
}
# Groups in the order of the page; the page has places of its own for the first two.
FORM: Final[Mapping[str, Mapping[str, FormField]]] = {
    "Training run": {
        "global_batch": FormField("Global batch", "Sequences"),
        "seq_length": FormField("Sequence length", "Tokens each"),
        "tokens": FormField("Tokens in all", "Such as 2T, 300B"),
        "precision": FormField(
            "Precision", says={"best": "all that the GPUs have", "fp4": "nvfp4"}
        ),
    },
    "Goal and limits": {
        "objective": FormField(
            "Objective",
            says={"throughput": "Fastest", "time": "Shortest run", "cost": "Cheapest run"},
        ),
        "mode": FormField(
            "GPUs to use", says={"exact": "All of them", "up-to": "Fewer, if better"}
        ),
        "budget": FormField("Budget, $", "At most, such as 200k"),
        "deadline": FormField("Deadline, days", "At most"),
        "rule": FormField("Rules", "One a line; drops matches", "$tp > 8"),
    },
    "Software, fine-tuning, optimizer, memory": {
        "runtime": FormField("Software", "Usual: Megatron-LM; FSDP for adapters", says=SOFTWARE),
        "finetune": FormField(
            "What trains",
            says={
                "full": "All weights",
                "lora": "LoRA",
                "qlora": "QLoRA",
                "dora": "DoRA",
                "all": "All side by side",
            },
        ),
        "lora_rank": FormField("Rank of adapters", "", "16"),
        "lora_modules": FormField("Weights with adapters", "", "q_proj,v_proj"),
        "freeze": FormField("Frozen layers", "", "vision"),
        "teacher": FormField("Teacher (distillation)", "", "llama-3.1-70b"),
        "reference": FormField("Reference (DPO)", "Frozen copy of the model, or another"),
        "lengths": FormField("Lengths of sequences", "", "lognormal:600,3000"),
        "packing": FormField("Packed rows", says={"off": "No: padded", "on": "Yes"}),
        "optimizer": FormField("Optimizer"),
        "numerics": FormField("Gradients, moments", says={"strict": "32 bits", "reduced": "bf16"}),
        "expert_messages": FormField(
            "Expert messages",
            says={"alltoall": "All-to-all", "deepep": "DeepEP", "overlapped": "DeepEP, overlapped"},
        ),
        "expert_imbalance": FormField("Expert imbalance", "Busiest over mean", "1"),
        "fit_chance": FormField("Chance to fit, %", "At least", "95"),
        "memory_margin": FormField("Memory kept free", "In place of the chance", "4GiB"),
        "prefer": FormField(
            "Of equal plans", says={"recommended": "The simplest", "fastest": "The fastest"}
        ),
        "top": FormField("Plans to list", "", "5"),
    },
    "Clouds, spot, checkpoints, power": {
        "spot": FormField(
            "Spot nodes", says={"never": "None", "always": "All", "mix": "As many as is best"}
        ),
        "market": FormField("Clouds", "Prices of these; all: every one", "aws,gcp"),
        "region": FormField("Regions", "", "us, europe, asia"),
        "max_gpus": FormField("Most GPUs of a type", "With clouds and no GPU rows"),
        "mix": FormField("Most pools in one job"),
        "checkpoint_every": FormField("Checkpoint every", "", "30min; empty: best"),
        "storage_bandwidth": FormField("Checkpoint bandwidth", "", "1GB/s/node"),
        "restart_time": FormField("Restart takes", "", "10min"),
        "failures": FormField("Failures of a node", "", "1%/day"),
        "epochs": FormField("Epochs", "In place of tokens"),
        "dataset_tokens": FormField("Tokens of the dataset", "For epochs"),
        "rampup_batch": FormField("Batch ramp", "", "START,STEP,SAMPLES"),
        "eval_every": FormField("Evaluate every", "Iterations"),
        "eval_iterations": FormField("Batches of an evaluation", "", "100"),
        "power_price": FormField("Power, $ per kWh", "For machines of your own"),
        "power_utilisation": FormField("Power drawn, %", "", "90"),
        "co2": FormField("CO₂, kg per kWh"),
        "discount": FormField("Discounts, %", "One a line", "aws=30"),
        "interruptions": FormField("Interruptions", "Of a spot node; one a line", "h100=10%/day"),
    },
}
_FIELDS: Final = {name: field for group in FORM.values() for name, field in group.items()}
# Of other parts of the page.
_NAMES: Final = {
    "gpus": "GPUs",
    "model": "Model",
    "price": "Price",
    "strategy": "Your strategy",
    "sensitivity": "Say which price …",
    "vocab_size": "Vocabulary",
    "arguments": "Called with",
}


def _name(flag: str) -> str:
    label = _FIELDS[flag].label if flag in _FIELDS else _NAMES.get(flag, flag.replace("_", " "))
    return label.partition(",")[0]


def _value(flag: str, value: str) -> str:
    """A choice as the form calls it; of other values only the place is named."""
    choice = _FIELDS[flag].says.get(value) if flag in _FIELDS else None
    return f"“{_name(flag)}: {choice}”" if choice else f"“{_name(flag)}”"


WORDS: Final = Words(lambda flag: f"“{_name(flag)}”", _value, has_shell=False)


def described() -> list[dict[str, Any]]:
    """The form as the page reads it."""
    return [
        {"title": title, "fields": [_described(*one) for one in group.items()]}
        for title, group in FORM.items()
    ]


def _described(name: str, field: FormField) -> dict[str, Any]:
    flag = PLAN_FLAGS[name]
    choices = {**({} if name == "runtime" else {word: word for word in flag.words}), **field.says}
    found = {
        "name": name,
        "label": field.label,
        "hint": field.hint,
        "placeholder": field.placeholder,
        "lines": flag.several,
        # A choice is always made; what else is left empty has no default to be shown.
        "choices": list(map(list, choices.items())) if _is_choice(name) else [],
        "default": "" if flag.default is None or name == "runtime" else str(flag.default),
    }
    return {key: value for key, value in found.items() if value}


def _is_choice(name: str) -> bool:
    return name == "runtime" or (bool(PLAN_FLAGS[name].words) and name != "region")
