"""Exported plans are read back as they were, by the readers of other programs' configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from exported_others import expressible
from exported_plans import MODELS, document, jobs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from astrarium.configs.detect import read_config
from astrarium.configs.imported import Imported, sizes_of
from astrarium.export.features import layers_of_stages
from astrarium.export.folder import folder_of
from astrarium.export.target import Target, find_target, refusals, target_names
from astrarium.model.blocks import Model
from astrarium.plans.job import Job, job_of
from astrarium.strategy.document import strategy_from_dict
from astrarium.strategy.types import Granularity, RecomputeModule, Strategy

Facts = Mapping[str, Any]
SLOW: Final = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TITAN_MODELS: Final = ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite")
CAUSAL_MODELS: Final = ("llama-3-8b", "qwen2.5-7b", "mistral-7b-v0.1")
EXPERT_MODELS: Final = ("llama-3-8b", "qwen3-30b-a3b", "mixtral-8x7b")
NOT_REBUILT: Final = {"gpt-oss-20b": "windows in some layers are not rebuilt from options"}


@dataclass(frozen=True)
class Written:
    """A file of an exported folder, and what it does not state: facts, and where they are."""

    target: str
    file: str
    models: tuple[str, ...]
    unstated: Mapping[str, str] = field(default_factory=dict)
    unstated_unshared: Mapping[str, str] = field(default_factory=dict)  # replicas are whole
    unstated_alone: Mapping[str, str] = field(default_factory=dict)  # a single replica

    def leaves_out(self, one: Job) -> Mapping[str, str]:
        strategy = one.strategy
        alone = strategy.dp * strategy.cp == 1
        return {
            **self.unstated,
            **(self.unstated_unshared if alone or not strategy.zero_stage else {}),
            **(self.unstated_alone if alone else {}),
            **({"model": NOT_REBUILT[one.model.name]} if one.model.name in NOT_REBUILT else {}),
        }

    @property
    def software(self) -> Target:
        return find_target(self.target)

    def plans(self) -> st.SearchStrategy[Job]:
        if self.target in ("megatron", "bridge"):
            return jobs(self.models)
        return expressible(self.software, self.models)


REDUCED: Final = "torch decides how gradients and weights travel"
SCRIPT: Final = "train.py"
NOBODY: Final = "there is nobody to share with"
FORMATS: Final = (
    Written("megatron", "launch.sh", MODELS),
    Written(
        "bridge",
        "overrides.txt",
        ("llama-3-8b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"),
        {"gpus": "launch.sh", "model": "the recipe"},
    ),
    Written(
        "deepspeed",
        "ds_config.json",
        EXPERT_MODELS,
        {
            "gpus": "launch.sh",
            "model": SCRIPT,
            "seq_length": SCRIPT,
            "recompute": SCRIPT,
            "overlap.param_gather": "overlap_comm is for both; only stage 3 has weights to gather",
        },
    ),
    Written(
        "torchtitan",
        "planned.py",
        TITAN_MODELS,
        {
            "overlap.grad_reduce": REDUCED,
            "overlap.param_gather": REDUCED,
            "overlap.p2p": REDUCED,
        },
        unstated_alone={"zero_stage": NOBODY},
    ),
    Written(
        "accelerate",
        "accelerate.yaml",
        CAUSAL_MODELS,
        {
            "model": SCRIPT,
            "seq_length": SCRIPT,
            "global_batch": SCRIPT,
            "micro_batch": SCRIPT,
            "num_micro_batches": SCRIPT,
            "overlap.grad_reduce": REDUCED,
            "overlap.param_gather": REDUCED,
        },
        {"recompute": SCRIPT},
        {"zero_stage": NOBODY},
    ),
)


def facts_of_strategy(strategy: Strategy, layers: int) -> dict[str, Any]:
    """What a strategy says, whichever way; without a pipeline there is one stage."""
    names = ["tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "num_micro_batches"]
    names += ["virtual_stages", "sequence_parallel", "pipeline_inside", "zero_stage"]
    names += ["shard_groups"]
    chunks = strategy.pp * strategy.virtual_stages
    stages = layers_of_stages(strategy) if strategy.stages else (layers // chunks,) * chunks
    return {
        **{name: getattr(strategy, name) for name in names},
        "layers": tuple(stages),
        "recompute": strategy.recompute,
        "offload_optimizer": strategy.offload_optimizer,
        **{
            f"overlap.{name}": getattr(strategy.overlap, name)
            for name in ("grad_reduce", "param_gather", "p2p", "tp")
        },
    }


def figures_of(model: Model) -> Facts:
    return {**sizes_of(model), "vocabulary": model.vocab, "parameters": model.parameters}


def planned(one: Job) -> Facts:
    work = one.workload
    return {
        **facts_of_strategy(one.strategy, one.model.num_layers),
        "precision": work.precision,
        "global_batch": work.global_batch,
        "seq_length": work.seq_length,
        "gpus": one.world_size,
        "model": figures_of(one.model),
    }


def read_back(one: Job, read: Imported) -> Facts:
    """What was read; of what the file leaves out, the GPUs and the batch are the plan's."""
    described, layers = read.described, one.model.num_layers
    gpus = described.gpus or one.world_size
    batch = read.batch(gpus)
    strategy = strategy_from_dict(
        read.strategy_of(layers, gpus),
        where="read",
        gpus=gpus,
        global_batch=batch or one.workload.global_batch,
        layers=layers,
    )
    stated = described.model or described.shape
    return {
        **facts_of_strategy(strategy, layers),
        "precision": described.precision,
        "global_batch": batch,
        "seq_length": described.seq_length,
        "gpus": described.gpus,
        "model": figures_of(read.model()) if stated else None,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


def imported(one: Job, written: Written, folder: Path) -> Imported:
    made = folder_of(one, written.software, written.software)
    path = folder / written.file
    path.write_text(made.files[written.file], encoding="utf-8")
    read = read_config(str(path))
    assert read is not None
    return read


LAUNCHERS = [name for name in target_names() if find_target(name).is_launcher]
PROGRAMS = [name for name in target_names() if not find_target(name).is_launcher]
STARTING = {
    "slurm": "job.sbatch",
    "skypilot": "task.yaml",
    "kubernetes": "jobset.yaml",
    "ray": "start_ray.py",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", [*LAUNCHERS, ""])
def test_folders_of_every_target_are_read_back(name: str, program: str, tmp_path: Path) -> None:
    """The file that starts the training, with all that lies beside it; "": the program's own."""
    software = find_target(program)
    target = find_target(name) if name else software
    strategy = {
        "tp": 1,
        "pp": 1,
        "micro_batch": 1,
        "zero_stage": 2 if program != "megatron" else 1,
        "recompute": "full",
    }
    gpus, batch = 16, 128
    one = job_of(
        document("llama-3.1-8b", f"h100:{gpus}", strategy, seq_length=4096, global_batch=batch)
    )
    assert not refusals(one, software)
    for file, text in folder_of(one, target, software).files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    read = read_config(str(tmp_path / STARTING.get(name, "launch.sh")))
    assert read is not None
    assert not read.conflicts
    described = read.described
    assert described.gpus == gpus
    assert described.seq_length == 4096
    assert read.batch(gpus) == batch
    keys = read.strategy_of(32, gpus)
    found = strategy_from_dict(keys, where="read", gpus=gpus, global_batch=batch, layers=32)
    assert found.recompute.granularity is Granularity.FULL
    assert (keys.get("tp", 1), keys.get("pp", 1), keys["micro_batch"]) == (1, 1, 1)
    assert figures_of(read.model())["parameters"] == one.model.parameters


@pytest.mark.parametrize("written", FORMATS, ids=lambda written: written.target)
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_plans_are_read_back(written: Written, folder: Path, data: st.DataObject) -> None:
    one = data.draw(written.plans())
    assume(not refusals(one, written.software))
    read = imported(one, written, folder)
    assert not read.unknown
    assert not read.conflicts
    plan, found = planned(one), read_back(one, read)
    stated = plan.keys() - written.leaves_out(one).keys()
    assert {key: found[key] for key in stated} == {key: plan[key] for key in stated}
    # What is called unstated is not read from somewhere either.
    for key in ("global_batch", "seq_length", "gpus", "model"):
        assert (found[key] is None) == (key in written.leaves_out(one))


def test_every_module_of_selective_recomputation_is_read() -> None:
    """Drawn plans have those of some models only."""
    names = [module.value for module in RecomputeModule]
    modules = f"--recompute-granularity selective --recompute-modules {' '.join(names)}"
    read = read_config(f"{modules} --micro-batch-size 1 --num-layers 8 --bf16")
    assert read is not None
    assert not read.unknown
    assert read.strategy_of(8)["recompute"]["modules"] == names
