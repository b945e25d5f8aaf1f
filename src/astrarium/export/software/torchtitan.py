"""torchtitan 0.3.0: a Python module with a function that returns the configuration.

A model is taken from torchtitan's registry where a flavor has its sizes. Other models of the Llama
kind are put together in the module from the same blocks (`torchtitan_models.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from astrarium.catalog.optimizers import find_optimizer
from astrarium.export.features import lacks
from astrarium.export.header import commented, header_lines
from astrarium.export.program import RankProgram, filled
from astrarium.export.software import torchtitan_models as titan
from astrarium.export.software.model_facts import trained_facts
from astrarium.export.software.torchtitan_models import (
    IMPORTS,
    Flavor,
    flavor_of,
    flavor_refused,
    known_flavors,
    llama_refused,
    llama_spec,
)
from astrarium.export.target import Target
from astrarium.model.workload import Precision, Workload
from astrarium.plans.job import Job

VERSION: Final = "0.3.0"
MODULE: Final = "planned"
FUNCTION: Final = "plan"
HEAD: Final = "lm_head"
EPSILON: Final = "epsilon"

_GATHERS: Final = (
    "Context parallelism there gathers all keys and values of a layer at once; the plan counts on a"
    " ring, which needs less memory and hides the exchange behind attention.",
)


_IMPORTS: Final = (
    "from torchtitan.components.loss import CrossEntropyLoss",
    "from torchtitan.components.optimizer import default_adamw",
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
    "from torchtitan.trainer import Trainer",
)

_REPLACE: Final = "from dataclasses import replace"
_FLOAT8: Final = "from torchtitan.components.quantization import Float8LinearConverter"
_CONVERTED: Final = f"""\
    float8 = Float8LinearConverter.Config(
        recipe_name="{titan.FLOAT8}", filter_fqns=["{HEAD}"], model_compile_enabled=True
    )
    model_spec = replace(model_spec, model=float8.build().convert(model_spec.model))
"""
_CHECKPOINTING: Final = "from torchtitan.distributed.activation_checkpoint import {}"
_KINDS: Final = {"none": "", "full": "FullAC", "selective": "SelectiveAC"}

_LAYERS: Final = """\
def layers(first: int, last: int) -> list[str]:
    return [f"layers.{number}" for number in range(first, last)]
"""

_NORM: Final = "from torchtitan.models.common import RMSNorm"
_NORMS: Final = """\
    for _, norm, *_ in model_spec.traverse(RMSNorm.Config):
        norm.eps = {epsilon!r}
"""


def model_refused(job: Job) -> str:
    """Why the model cannot be trained as the plan has it, "" if it can."""
    flavor = flavor_of(job.model, VERSION)
    is_own = flavor is not None and _is_model(flavor)
    return flavor_refused(job, flavor) if flavor and is_own else ""


def workload_refused(work: Workload) -> str:
    """Why the model cannot be trained, "" if it can."""
    flavor = flavor_of(work.model, VERSION)
    if flavor is not None and _is_model(flavor):
        return ""
    why = llama_refused(work.model)
    if flavor is not None:
        other = ", ".join(flavor.differences.values())
        return why and f"{flavor.label} has its sizes, but {other}, and {why}"
    return why and f"no flavor has its sizes ({known_flavors(VERSION)}), and {why}"


def _is_model(flavor: Flavor) -> bool:
    """Whether it is the plan's model; the epsilon of norms can be set."""
    return not flavor.differences.keys() - {EPSILON}


def settings(job: Job) -> dict[str, dict[str, Any]]:
    """The parts of the configuration that the plan decides."""
    return {
        # The predicted launches are not those of graphs, and pipelines run without them.
        "training": {**titan.training(job), "disable_cuda_graphs": True},
        "parallelism": {
            **titan.parallelism(job, HEAD),
            "enable_sequence_parallel": job.strategy.sequence_parallel or job.strategy.tp == 1,
        },
        "compile": {
            "enable": True,
            "components": ["model", "loss"],
            "enable_async_tensor_parallel": titan.overlaps_tensor(job),
        },
    }


def module(job: Job) -> str:
    flavor = flavor_of(job.model, VERSION)
    flavor = flavor if flavor and _is_model(flavor) else None
    sets_epsilon = flavor is not None and EPSILON in flavor.differences
    epsilon = (trained_facts(job.config) or {}).get(EPSILON)
    is_float8, kept = job.workload.precision is Precision.FP8, _KINDS[titan.checkpointing(job)]
    body = filled(
        "torchtitan_plan.txt",
        model_spec=f'model_registry("{flavor.name}", attn_backend="flex")' if flavor else "model()",
        changes=(_NORMS.format(epsilon=epsilon) if sets_epsilon else "")
        + (_CONVERTED if is_float8 else ""),
        vocab=job.model.vocab,
        tokenizer=titan.TOKENIZER,
        dataset=titan.DATASET,
        optimizer=find_optimizer(job.workload.optimizer).software["torchtitan"],
        checkpoint=f"{kept}.Config()" if kept else "None",
        **{name: _arguments(values) for name, values in settings(job).items()},
    )
    imports = [*_IMPORTS, *([_CHECKPOINTING.format(kept)] if kept else [])]
    functions = [_LAYERS] if job.strategy.pp > 1 else []
    if sets_epsilon:
        imports.append(_NORM)
    if is_float8:
        imports.extend((_FLOAT8, *([_REPLACE] if flavor else [])))
    if flavor:
        imports.append(f"from torchtitan.models.{flavor.family} import model_registry")
    else:
        imports.extend(IMPORTS)
        functions.append(llama_spec(job.model, job.workload.seq_length))
    head = commented(header_lines(job, TARGET.label))
    return "\n\n".join([f"{head}\n{_sorted(imports)}", *functions, body])


def _sorted(imports: Sequence[str]) -> str:
    """Imports of the standard library first, then torch and torchtitan."""
    standard = sorted(line for line in imports if "torch" not in line)
    others = sorted(line for line in imports if "torch" in line)
    return "\n".join(["import os", *standard, "", *others]) + "\n"


def _arguments(values: Mapping[str, Any]) -> str:
    """Keyword arguments, one a line."""
    return "\n".join(f"            {name}={_python(value)}," for name, value in values.items())


def _python(value: object) -> str:
    """A value as Python text; names of layers that follow each other by their range."""
    if not isinstance(value, list):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    if value and isinstance(value[0], list):
        rows = "".join(f"                {_python(row)},\n" for row in value)
        return f"[\n{rows}            ]"
    words: list[str] = []
    for is_layer, names in groupby(value, key=lambda name: name.startswith("layers.")):
        run = list(names)
        if is_layer:
            first, last = (int(name.partition(".")[2]) for name in (run[0], run[-1]))
            run = [f"*layers({first}, {last + 1})"]
        else:
            run = [json.dumps(name) for name in run]
        words.extend(run)
    return f"[{', '.join(words)}]"


def program(job: Job) -> RankProgram:
    arguments = ("--module", MODULE, "--config", FUNCTION)
    made = titan.titan_program(job, VERSION, arguments, {f"{MODULE}.py": module(job)})
    return replace(made, notes=(*made.notes, *_GATHERS)) if job.strategy.cp > 1 else made


TARGET = Target(
    name="torchtitan",
    title="torchtitan",
    version=VERSION,
    runtime=titan.RUNTIME,
    program=program,
    lacks=lacks("torchtitan", "torchtitan 0.3"),
    workload_refused=workload_refused,
    model_refused=model_refused,
    optimizers="torchtitan",
)
