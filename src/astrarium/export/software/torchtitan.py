"""torchtitan 0.3.0: a Python module with a function that returns the configuration.

Data parallelism is FSDP2. Without a pipeline gradients are reduced after every micro-batch: ZeRO 3
if weights are released after the forward pass, ZeRO 2 if they are kept. In a pipeline torch keeps
weights and gradients whole until the last micro-batch, which is ZeRO 1.

A model is taken from torchtitan's registry where a flavor has its sizes. Other models of the Llama
kind are put together in the module from the same blocks (`torchtitan_models.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from astrarium.catalog.optimizers import find_optimizer
from astrarium.errors import InputError
from astrarium.export.features import recomputes_operators
from astrarium.export.header import commented, estimate_note, header_lines
from astrarium.export.program import RankProgram, filled
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
)
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
from astrarium.export.target import target_of
from astrarium.model.workload import Precision, Workload
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

VERSION: Final = "0.3.0"
MODULE: Final = "planned"
FUNCTION: Final = "plan"
HEAD: Final = "lm_head"
EPSILON: Final = "epsilon"
TOKENIZER: Final = "./tokenizer"  # a folder beside the launch script
DATASET: Final = "c4"
FLOAT8: Final = "rowwise"  # torchao's recipe: 0.3.0 has no other but one that mixes formats
RUNTIME: Final = "torchtitan"  # whose profile says what is assumed: layers and loss compiled

_GATHERS: Final = (
    "Context parallelism there gathers all keys and values of a layer at once; the plan counts on a"
    " ring, which needs less memory and hides the exchange behind attention."
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
        recipe_name="{FLOAT8}", filter_fqns=["{HEAD}"], model_compile_enabled=True
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
    flavor = flavor_of(job.model)
    is_own = flavor is not None and _is_model(flavor)
    return flavor_refused(job, flavor) if flavor and is_own else ""


def workload_refused(work: Workload) -> str:
    """Why the model cannot be trained, "" if it can."""
    flavor = flavor_of(work.model)
    if flavor is not None and _is_model(flavor):
        return ""
    why = llama_refused(work.model)
    if flavor is not None:
        other = ", ".join(flavor.differences.values())
        return why and f"{flavor.label} has its sizes, but {other}, and {why}"
    return why and f"no flavor has its sizes ({known_flavors()}), and {why}"


def _is_model(flavor: Flavor) -> bool:
    """Whether it is the plan's model; the epsilon of norms can be set."""
    return not flavor.differences.keys() - {EPSILON}


def settings(job: Job) -> dict[str, dict[str, Any]]:
    """The parts of the configuration that the plan decides."""
    return {
        # The predicted launches are not those of graphs, and pipelines run without them.
        "training": {**training(job), "disable_cuda_graphs": True},
        "parallelism": {
            **parallelism(job),
            "enable_sequence_parallel": job.strategy.sequence_parallel or job.strategy.tp == 1,
        },
        "compile": {
            "enable": True,
            "components": ["model", "loss"],
            "enable_async_tensor_parallel": overlaps_tensor(job),
        },
    }


def module(job: Job) -> str:
    flavor = flavor_of(job.model)
    flavor = flavor if flavor and _is_model(flavor) else None
    sets_epsilon = flavor is not None and EPSILON in flavor.differences
    epsilon = (trained_facts(job.config) or {}).get(EPSILON)
    is_float8, kept = job.workload.precision is Precision.FP8, _KINDS[checkpointing(job)]
    body = filled(
        "torchtitan_plan.txt",
        model_spec=f'model_registry("{flavor.name}", attn_backend="flex")' if flavor else "model()",
        changes=(_NORMS.format(epsilon=epsilon) if sets_epsilon else "")
        + (_CONVERTED if is_float8 else ""),
        vocab=job.model.vocab,
        tokenizer=TOKENIZER,
        dataset=DATASET,
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


def parallelism(job: Job) -> dict[str, Any]:
    """Degrees and pipeline."""
    s = job.strategy
    copies = s.dp if s.zero_stage == 0 else s.shard_groups
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": s.dp // copies,
        "fsdp_reshard_after_forward": "always" if s.zero_stage == 3 else "never",
        "tensor_parallel_degree": s.tp,
        "context_parallel_degree": s.cp,
        "expert_parallel_degree": s.ep,
        "pipeline_parallel_degree": s.pp,
    }
    if s.pp > 1:
        schedule = "Interleaved1F1B" if s.virtual_stages > 1 else "1F1B"
        settings["pipeline_parallel_schedule"] = schedule
        settings["pipeline_parallel_microbatch_size"] = s.micro_batch
        settings["module_fqns_per_model_part"] = list(modules_of_stages(job))
    return settings


def modules_of_stages(job: Job) -> Iterator[list[str]]:
    """Names of the modules of every stage, in the order of the model."""
    stages = job.strategy.ordered_stages
    if len(stages) != job.strategy.pp * job.strategy.virtual_stages:
        raise InputError("the plan does not say which layers each stage holds; make it again")
    for index, stage in enumerate(stages):
        first = ["tok_embeddings"] if index == 0 else []
        layers = [f"layers.{layer}" for layer in range(stage.first_layer, stage.last_layer)]
        last = ["norm", HEAD] if index == len(stages) - 1 else []
        yield [*first, *layers, *last]


def training(job: Job) -> dict[str, Any]:
    """Batches: a pipeline takes all micro-batches of a step at once, otherwise they accumulate."""
    s, work = job.strategy, job.workload
    at_once = s.num_micro_batches if s.pp > 1 else 1
    return {
        "local_batch_size": s.micro_batch * at_once,
        "global_batch_size": work.global_batch,
        "seq_len": work.seq_length,
        "steps": iterations(job),
        "max_norm": 1.0,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        **({"enable_cpu_offload": True} if s.offload_optimizer else {}),
    }


def checkpointing(job: Job) -> str:
    """Its word for what is computed again in the backward pass."""
    if job.strategy.recompute.granularity is not Granularity.FULL:
        return "none"
    return "selective" if recomputes_operators(job) else "full"


def overlaps_tensor(job: Job) -> bool:
    return job.strategy.tp > 1 and job.strategy.overlap.tp


def program(job: Job) -> RankProgram:
    every = f"--checkpoint.interval {iterations_between(job)}"
    return RankProgram(
        software=f"torchtitan {VERSION}",
        script="-m torchtitan.train",
        arguments=("--module", MODULE, "--config", FUNCTION),
        checkpoints=("--checkpoint.enable", f'--checkpoint.folder "${CHECKPOINTS}"', every),
        smoke=("--training.steps", str(SMOKE_ITERATIONS)),
        files={f"{MODULE}.py": module(job)},
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        needs=(
            f"torchtitan {VERSION} (`pip install torchtitan=={VERSION}`) with the PyTorch it asks"
            " for, on every node",
            f"the tokenizer of the model in the folder `{TOKENIZER[2:]}` beside the launch script,"
            " as its Hugging Face repository has it",
        ),
        notes=tuple(notes(job)),
    )


def notes(job: Job) -> Iterator[str]:
    s = job.strategy
    yield estimate_note(job, RUNTIME, "torchtitan with compiled layers")
    if job.workload.precision is Precision.FP8:
        yield f"fp8 is torchao's float8 with a scale for each row ({FLOAT8}); install torchao."
    if s.pp > 1 and s.dp * s.cp > 1:
        yield (
            "In a pipeline torch reduces gradients after the last micro-batch, without overlap,"
            " even if the plan has it."
        )
    yield (
        "Learning rate, warm-up and data are torchtitan's defaults and not part of the plan;"
        f" `{DATASET}` is streamed from the Hugging Face hub unless DATASET_PATH names a copy."
    )
    yield kept_note(job)
    if is_trial(job):
        yield f"The plan states no number of tokens: it trains {TRIAL_ITERATIONS} steps."
    if job.strategy.cp > 1:
        yield _GATHERS


TARGET = target_of(__name__)
