"""torchtitan 0.2.2: a TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.export.features import lacks, recomputes_operators
from astrarium.export.header import commented, header_lines
from astrarium.export.program import Data, RankProgram
from astrarium.export.software import torchtitan_models as titan
from astrarium.export.software.torchtitan_models import flavor_of, flavor_refused, known_flavors
from astrarium.export.target import Target
from astrarium.model.workload import Precision
from astrarium.plans.job import Job

VERSION: Final = "0.2.2"
FILE: Final = "plan.toml"


_FLOAT8: Final = {
    "quantize.linear.float8": {"recipe_name": titan.FLOAT8, "filter_fqns": ["output"]}
}


def model_refused(job: Job) -> str:
    """Why the model cannot be trained, "" if it can."""
    flavor = flavor_of(job.model, VERSION)
    if flavor is None:
        return f"no flavor has its sizes; there are {known_flavors(VERSION)}"
    if flavor.differences:
        return f"{flavor.label} has its sizes, but {', '.join(flavor.differences.values())}"
    return flavor_refused(job, flavor)


def settings(job: Job) -> dict[str, dict[str, Any]]:
    flavor = flavor_of(job.model, VERSION)
    assert flavor is not None  # others are refused
    s = job.strategy
    return {
        "job": {"description": f"{job.model.name}, planned by Astrarium"},
        "model": {
            "name": flavor.family,
            "flavor": flavor.name,
            "hf_assets_path": titan.TOKENIZER,
            **({"converters": [*_FLOAT8]} if job.workload.precision is Precision.FP8 else {}),
        },
        "training": {"dataset": titan.DATASET, **titan.training(job)},
        "parallelism": {
            **titan.parallelism(job, "output"),
            # The other method gathers all keys and values at once; plans have a ring.
            **({"context_parallel_rotate_method": "alltoall"} if s.cp > 1 else {}),
            "enable_async_tensor_parallel": titan.overlaps_tensor(job),
            "expert_tensor_parallel_degree": s.etp if s.ep > 1 else 1,
        },
        "activation_checkpoint": {
            "mode": titan.checkpointing(job),
            **({"selective_ac_option": "op"} if recomputes_operators(job) else {}),
        },
        "compile": {"enable": True, "components": ["model", "loss"]},
        **(_FLOAT8 if job.workload.precision is Precision.FP8 else {}),
    }


def text(job: Job, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The sections as TOML; values are such that JSON writes them as TOML does."""
    return "\n".join([commented(header_lines(job, TARGET.label)), *_sections(sections)])


def _sections(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, values in sections.items():
        lines = "".join(f"{key} = {_value(value)}\n" for key, value in values.items())
        yield f"[{name}]\n{lines}"


def _value(value: object) -> str:
    """A value, lists of lists a row each."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"  {json.dumps(row)},\n" for row in value) + "]"
    return json.dumps(value)


def program(job: Job) -> RankProgram:
    data = Data(
        variable="DATASET_PATH",
        own=("--training.dataset_path", '"$DATASET_PATH"'),
        otherwise=f"{titan.DATASET}, streamed from the Hugging Face hub",
    )
    arguments = ("--job.config_file", FILE)
    return titan.titan_program(job, VERSION, arguments, {FILE: text(job, settings(job))}, data)


TARGET = Target(
    name="torchtitan-0.2",
    title="torchtitan",
    version=VERSION,
    runtime=titan.RUNTIME,
    program=program,
    lacks=lacks("torchtitan", "torchtitan 0.2"),
    model_refused=model_refused,
)
