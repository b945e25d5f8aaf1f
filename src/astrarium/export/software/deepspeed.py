"""DeepSpeed: its JSON, and a script that trains a model of Transformers with it.

What the JSON cannot say is lacking. Tensor parallelism is AutoTP, expert parallelism AutoEP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from astrarium.catalog.optimizers import find_optimizer
from astrarium.export.header import estimate_note
from astrarium.export.program import RankProgram
from astrarium.export.software import causal_models as causal
from astrarium.export.software.model_facts import scan_needs
from astrarium.export.target import target_of
from astrarium.model.workload import Precision
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

VERSION: Final = "0.19.8"
RUNTIME: Final = "deepspeed"
FILE: Final = "ds_config.json"
# Models whose experts AutoEP finds.
EXPERT_TYPES: Final = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")

_PARAMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "AdamW": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    "Lion": {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.3},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}
_TESTED: Final = ("AdamW", "Lion")  # with ZeRO, by DeepSpeed

_COMPILER: Final = ("a C++ compiler: the optimizer in host memory is built at the first start",)


def model_refused(job: Job) -> str:
    """Why the model cannot be trained, "" if it can."""
    why = causal.causal_refused(job)
    if why or job.strategy.ep == 1 or job.config["model_type"] in EXPERT_TYPES:
        return why
    return (
        f"AutoEP finds the experts of {', '.join(EXPERT_TYPES)} only, and ep is {job.strategy.ep}"
    )


def settings(job: Job) -> dict[str, Any]:
    s = job.strategy
    zero: dict[str, Any] = {
        "stage": s.zero_stage,
        "overlap_comm": s.overlap.grad_reduce,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    kind = find_optimizer(job.workload.optimizer).software["deepspeed"]
    written: dict[str, Any] = {
        # With AutoTP the parser counts ranks, not replicas, and would refuse the true number.
        **({"train_batch_size": job.workload.global_batch} if s.tp == 1 else {}),
        "train_micro_batch_size_per_gpu": s.micro_batch,
        "gradient_accumulation_steps": s.num_micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": job.workload.precision is Precision.BF16},
        "fp16": {"enabled": job.workload.precision is Precision.FP16},
        "zero_optimization": zero,
        "optimizer": {"type": kind, "params": dict(_PARAMS[kind])},
    }
    if kind not in _TESTED:
        written["zero_allow_untested_optimizer"] = True
    if s.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif kind == "AdamW":
        written["optimizer"]["params"]["torch_adam"] = True  # nothing to compile
    if s.zero_stage:
        written["data_types"] = {"grad_accum_dtype": "fp32"}
    if s.tp > 1:
        written["tensor_parallel"] = {"autotp_size": s.tp}
    if s.ep > 1:
        written["expert_parallel"] = {"enabled": True, "autoep_size": s.ep}
    return written


def _gradients(job: Job) -> str:
    """A note on the sums of gradients, where they differ from the plan."""
    if job.strategy.zero_stage == 0:
        return (
            "Without ZeRO it sums the gradients of micro-batches in 16 bits and reduces them after"
            " the last one; the plan counts on 32 bits and on overlap."
        )
    if job.strategy.zero_stage == 1:
        return (
            "With stage 1 and sums in 32 bits it reduces gradients after the last micro-batch,"
            " without overlap, even if the plan has it."
        )
    return "Gradients of micro-batches are summed in 32 bits, as the plan has it."


def program(job: Job) -> RankProgram:
    recompute = job.strategy.recompute.granularity is Granularity.FULL
    files = {
        FILE: json.dumps(settings(job), indent=2) + "\n",
        **causal.training_files(job, TARGET.label, "train_deepspeed.txt", {"RECOMPUTE": recompute}),
    }
    return RankProgram(
        software=TARGET.label,
        script=causal.SCRIPT,
        files=files,
        needs=(
            f"DeepSpeed {VERSION} (`pip install deepspeed=={VERSION}`) and Transformers"
            f" {causal.TRANSFORMERS}, on every node",
            *(_COMPILER if job.strategy.offload_optimizer else ()),
            *scan_needs(job),
        ),
        notes=(
            estimate_note(job, RUNTIME, causal.KERNELS),
            f"`{FILE}` holds everything that the plan decides except recomputation, which the"
            " script switches on in the model. The learning rate is not part of the plan.",
            _gradients(job),
            *causal.script_notes(job),
        ),
    )


TARGET = target_of(__name__)
