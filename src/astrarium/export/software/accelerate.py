"""Hugging Face Accelerate: its YAML, and a script that trains a model of Transformers with it.

Plans are FSDP2 with a `parallelism_config`, or plain DDP where replicas share nothing. Its
`megatron_lm_config` is not used, as it passes only a few of Megatron's options. The environment
variables that `accelerate launch` makes of the YAML are part of the program, so that other
launchers can start the script with torchrun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from astrarium.catalog.optimizers import find_optimizer
from astrarium.export.header import commented, estimate_note, header_lines
from astrarium.export.launchers import torchrun
from astrarium.export.launchers.shared import yaml_text
from astrarium.export.program import LaunchFiles, RankProgram
from astrarium.export.software import causal_models as causal
from astrarium.export.software.model_facts import scan_needs
from astrarium.export.software.peft import adapted, adapter_files, adapter_needs, adapter_notes
from astrarium.export.target import target_of
from astrarium.plans.job import Job
from astrarium.strategy.types import Granularity

VERSION: Final = "1.15.0"
FILE: Final = "accelerate.yaml"

_TORCH: Final = "import torch\n"
_ADAMW_ENDS: Final = "\n    )\n    model, optimizer ="
_ARGUMENTS: Final[Mapping[str, str]] = {
    "torch.optim.AdamW": "lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1",
    "torchao.optim.AdamW8bit": "lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1",
    "torch.optim.Adafactor": "lr=1e-2",
    "torch.optim.SGD": "lr=0.1, momentum=0.9",
}


def settings(job: Job) -> dict[str, Any]:
    sharded = _is_sharded(job)
    kind = "FSDP" if sharded else "MULTI_GPU" if job.world_size > 1 else "NO"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": str(job.workload.precision),
        "num_machines": job.num_nodes,
        "num_processes": job.world_size,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        **({"fsdp_config": _fsdp(job), "parallelism_config": _degrees(job)} if sharded else {}),
    }


def _is_sharded(job: Job) -> bool:
    return job.strategy.dp * job.strategy.cp > 1 and job.strategy.zero_stage > 0


def _recomputes(job: Job) -> bool:
    return job.strategy.recompute.granularity is Granularity.FULL


def _fsdp(job: Job) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": job.strategy.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": causal.layer_class(job),
        "fsdp_activation_checkpointing": _recomputes(job),
        "fsdp_offload_params": job.strategy.offload_optimizer,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _degrees(job: Job) -> dict[str, Any]:
    """Degrees; keys and values travel round the ring, as the plan has it."""
    cp, groups = job.strategy.cp, job.strategy.shard_groups
    degrees: dict[str, Any] = {
        "dp_replicate_size": groups,
        "dp_shard_size": job.strategy.dp // groups,
        "tp_size": 1,
        "cp_size": cp,
        **({"cp_backend": "torch", "cp_comm_strategy": "alltoall"} if cp > 1 else {}),
    }
    return {f"parallelism_config_{name}": value for name, value in degrees.items()}


def environment(job: Job) -> dict[str, str]:
    """The environment variables that `accelerate launch` would set."""
    words = {"ACCELERATE_MIXED_PRECISION": str(job.workload.precision)}
    if _is_sharded(job):
        words |= {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_USE_PARALLELISM_CONFIG": "true"}
        named = _fsdp(job) | _degrees(job)
        texts = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in named.items()}
        words |= {_RENAMED.get(key, key.upper()): text for key, text in texts.items()}
    return words


_RENAMED: Final = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}


def text(job: Job) -> str:
    return yaml_text(job, TARGET.label, [settings(job)])


def program(job: Job) -> RankProgram:
    constants = {
        # Under FSDP2 it is the wrapper that recomputes.
        "RECOMPUTE": _recomputes(job) and not _is_sharded(job),
        # Otherwise whole gradients would be kept from micro-batch to micro-batch.
        "SYNC_EACH_BATCH": _is_sharded(job),
    }
    files = dict(causal.training_files(job, TARGET.label, "train_accelerate.txt", constants))
    files[causal.SCRIPT] = adapted(job, _updated(job, files[causal.SCRIPT]))
    return RankProgram(
        software=TARGET.label,
        script=causal.SCRIPT,
        files={FILE: text(job), **files, **adapter_files(job)},
        environment=environment(job),
        needs=(
            f"Accelerate {VERSION} (`pip install accelerate=={VERSION}`) and Transformers"
            f" {causal.TRANSFORMERS}, on every node",
            *adapter_needs(job),
            *scan_needs(job),
        ),
        notes=(
            estimate_note(job, causal.RUNTIME, causal.KERNELS),
            *_script_sets(job),
            *causal.script_notes(job),
            *adapter_notes(job),
        ),
    )


def _script_sets(job: Job) -> Iterator[str]:
    times = "each one" if _is_sharded(job) else "the last one"
    reduced = f" and reduces gradients after {times}" if job.world_size > 1 else ""
    yield (
        f"The script sets the number of micro-batches{reduced}, because the YAML has no keys for"
        " this."
    )
    adapters = job.workload.adapters
    if adapters is None or not adapters.is_quantised:  # which are loaded on the GPU
        yield f"`{causal.SCRIPT}` builds the whole model in the host memory of every process."


def _updated(job: Job, script: str) -> str:
    made = find_optimizer(job.workload.optimizer).software["fsdp"]
    begin, end = script.index("torch.optim.AdamW("), script.index(_ADAMW_ENDS)
    own = f"{made}(\n        model.parameters(), {_ARGUMENTS[made]}"
    script = script[:begin] + own + script[end:]
    module = made.rpartition(".")[0]
    return (
        script if module == "torch.optim" else script.replace(_TORCH, f"{_TORCH}import {module}\n")
    )


def launch(job: Job, program: RankProgram) -> LaunchFiles:
    alone = job.num_nodes == 1
    words = [f"exec accelerate launch --config_file {FILE}"]
    if not alone:
        words += [
            '--machine_rank "$NODE_RANK"',
            '--main_process_ip "$MASTER_ADDR"',
            f'--main_process_port "${{MASTER_PORT:-{torchrun.PORT}}}"',
        ]
    script = (
        "#!/usr/bin/env bash\n"
        + commented(header_lines(job, program.software))
        + '\nset -euo pipefail\ncd "$(dirname "${BASH_SOURCE[0]}")"\n\n'
        + ("" if alone else torchrun.numbers_asked(job) + "\n")
        + " \\\n  ".join([*words, f'{program.script} "$@"'])
        + "\n"
    )
    return torchrun.on_every_node(job, program, script, torchrun.node_notes(job))


model_refused = causal.causal_refused
TARGET = target_of(__name__)
