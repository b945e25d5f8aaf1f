"""PEFT: the file of adapters, and what a training script does to have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from astrarium.export.program import Files
from astrarium.model.adapters import module_names
from astrarium.model.workload import Precision
from astrarium.plans.job import Job

FILE: Final = "adapter_config.json"
VERSION: Final = "0.21.2"  # with which adapters were counted
_FUNCTION: Final = Path(__file__).parent / "data" / "train_adapters.txt"
_WHOLE: Final = """\
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    )
"""
_MAIN: Final = "def main() -> None:\n"
_TRAINED: Final = "model.parameters(), "
_IMPORT: Final = "from transformers import AutoConfig, AutoModelForCausalLM\n"
_FROZEN: Final = {Precision.BF16: "bfloat16", Precision.FP16: "float16"}


def adapter_files(job: Job) -> Files:
    adapters = job.workload.adapters
    if adapters is None:
        return {}
    named = module_names(job.model, adapters)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapters.rank,
        "lora_alpha": 2 * adapters.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": named if isinstance(named, str) else list(named),
        "use_dora": adapters.has_magnitudes,
    }
    return {FILE: json.dumps(settings, indent=2) + "\n"}


def adapted(job: Job, script: str) -> str:
    """The script with adapters beside frozen weights, where a plan has them."""
    adapters = job.workload.adapters
    if adapters is None:
        return script
    imports = "from peft import PeftConfig, get_peft_model\n" + _IMPORT
    if adapters.is_quantised:
        imports = imports.rstrip() + ", BitsAndBytesConfig\n"
    loaded = _QUANTISED if adapters.is_quantised else _LOADED
    function = _FUNCTION.read_text(encoding="utf-8").replace("# LOADED\n", loaded)
    function = function.replace("FROZEN", f"torch.{_FROZEN[job.workload.precision]}")
    trained = "[one for one in model.parameters() if one.requires_grad], "
    return (
        script.replace(_IMPORT, imports)
        .replace(_WHOLE, "    model = with_adapters(config)\n")
        .replace(_TRAINED, trained)
        .replace(_MAIN, function + _MAIN)
    )


_LOADED: Final = """\
    if path:
        model = AutoModelForCausalLM.from_pretrained(path, **options)
    else:
        model = AutoModelForCausalLM.from_config(config, **options)
"""
_QUANTISED: Final = """\
    if not path:
        raise SystemExit("weights of 4 bits are made of given ones: set MODEL_PATH")
    options["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=FROZEN,
        bnb_4bit_quant_storage=FROZEN,
    )
    model = AutoModelForCausalLM.from_pretrained(path, **options)
"""


def adapter_needs(job: Job) -> tuple[str, ...]:
    adapters = job.workload.adapters
    if adapters is None:
        return ()
    also = " and bitsandbytes" if adapters.is_quantised else ""
    return (f"PEFT {VERSION}{also}, on every node",)


def adapter_notes(job: Job) -> tuple[str, ...]:
    adapters = job.workload.adapters
    if adapters is None:
        return ()
    frozen = "4 bits" if adapters.is_quantised else str(job.workload.precision)
    return (
        f"`{FILE}` has the adapters. They are kept in fp32, as the plan counts them, beside frozen"
        f" weights in {frozen}.",
    )
