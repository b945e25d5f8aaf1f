"""Megatron-LM: the options of `pretrain_gpt.py` for a plan, started by torchrun.

The strategy, the assumptions of the cost model (options whose value differs from Megatron's
default, `strategy/data/megatron_options.json`), the model, and a training run with usual values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from astrarium.catalog.optimizers import find_optimizer
from astrarium.catalog.runtimes import GRAPHS, offloaded_layers
from astrarium.export.features import layers_of_stages
from astrarium.export.program import MEGATRON_OFF, Data, RankProgram, on_amd
from astrarium.export.run_length import (
    CHECKPOINTS,
    SMOKE_ITERATIONS,
    TRIAL_ITERATIONS,
    checkpoint_variables,
    evaluation_of,
    is_trial,
    iterations,
    iterations_between,
    kept_note,
    ramp_of,
    samples,
)
from astrarium.export.software.megatron_hybrid import SCRIPT as HYBRID_SCRIPT
from astrarium.export.software.megatron_hybrid import is_hybrid, parts_per_layer
from astrarium.export.software.megatron_model import Flags, model_flags, words
from astrarium.export.software.megatron_model import model_refused as model_refused
from astrarium.export.software.model_facts import scan_needs
from astrarium.export.target import target_of
from astrarium.model.workload import ExpertMessages, Numerics, Precision
from astrarium.plans.job import Job
from astrarium.strategy.options import Option, Treatment, megatron_options
from astrarium.strategy.types import Granularity

VERSION: Final = "0.19.2"
SOFTWARE: Final = f"Megatron-LM {VERSION}"
SCRIPT: Final = "pretrain_gpt.py"
VOCABULARY_MULTIPLE: Final = 128  # of the padded vocabulary, on each tensor-parallel rank
SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}
NEEDS_NO_SINGLE_QUEUE: Final = "Blackwell"
CUDA_QUEUES: Final = "8"  # CUDA's own default; Megatron-FSDP refuses 1

# Of models with experts, or of Megatron-FSDP; the others hold for every plan.
_ONLY_WITH: Final[Mapping[str, str]] = {
    "moe_router_dtype": "experts",
    "moe_permute_fusion": "experts",
    "megatron_fsdp_main_grads_dtype": "fsdp",
    "accumulate_allreduce_grads_in_fp32": "strict",
}
# Usual values for a run from scratch, which the user may override. Not part of the plan.
OPTIMISER: Final[Flags] = {
    "optimizer": "adam",
    "lr": 3e-4,
    "min-lr": 3e-5,
    "lr-decay-style": "cosine",
    "lr-warmup-fraction": 0.01,
    "weight-decay": 0.1,
    "adam-beta1": 0.9,
    "adam-beta2": 0.95,
    "clip-grad": 1.0,
    "init-method-std": 0.02,
}
RETAINED: Final = 24  # intervals between two checkpoints that stay
LOGGING: Final[Flags] = {"log-interval": 10, "log-throughput": True}


def flags(job: Job) -> Flags:
    """All options of a plan but those of the data."""
    return {
        **dict(strategy_flags(job)),
        **dict(precision_flags(job)),
        **dict(fixed_flags(job)),
        **({"cuda-graph-impl": "local"} if job.runtime.name == GRAPHS else {}),
        **model_flags(job),
        "make-vocab-size-divisible-by": VOCABULARY_MULTIPLE,
        **dict(run_flags(job)),
        **OPTIMISER,
        **find_optimizer(job.workload.optimizer).software["megatron"],
        **LOGGING,
    }


def strategy_flags(job: Job) -> Iterator[tuple[str, object]]:
    """Degrees, batch, the split into stages, recomputation and what is shared or overlapped."""
    strategy = job.strategy
    yield "tensor-model-parallel-size", strategy.tp
    yield "pipeline-model-parallel-size", strategy.pp
    yield "context-parallel-size", strategy.cp
    if job.model.max_experts:
        yield "expert-model-parallel-size", strategy.ep
        yield "expert-tensor-parallel-size", strategy.etp
    elif strategy.pipeline_inside and strategy.cp > 1:
        # Megatron lays out ranks for experts that are not there, with as many replicas.
        yield "expert-tensor-parallel-size", strategy.tp * strategy.cp
    if strategy.sequence_parallel:
        yield "sequence-parallel", True
    if strategy.pipeline_inside:
        yield "use-tp-pp-dp-mapping", True
    yield "micro-batch-size", strategy.micro_batch
    yield "global-batch-size", job.workload.global_batch
    yield from _stages(job)
    yield from _recompute(job)
    yield from _sharing(job)
    yield from _overlap(job)


def _stages(job: Job) -> Iterator[tuple[str, object]]:
    strategy = job.strategy
    layers = layers_of_stages(strategy)
    predictions = job.model.mtp_layers
    if is_hybrid(job.model):
        pass  # its pattern of layers says where stages end
    elif len(set(layers)) > 1 or (predictions and len(layers) > 1):
        yield "pipeline-model-parallel-layout", layout(layers, predictions)
    elif strategy.virtual_stages > 1:
        yield "num-virtual-stages-per-pipeline-rank", strategy.virtual_stages
    if strategy.virtual_stages > 1 and not strategy.overlap.p2p:
        yield "no-overlap-p2p-communication", True


def layout(layers: Sequence[int], predictions: int = 0) -> str:
    """Stages as Megatron's layout: the embedding first, the loss last, a letter for each layer.

    Stages without layers are empty: E|t|t||L. The last layers may predict further tokens: m.
    """
    stages, left = list[str](), predictions
    for count in reversed(layers):
        ahead = min(left, count)
        left -= ahead
        plain = count - ahead
        stages.insert(0, (f"t*{plain}" if plain > 1 else "t" * plain) + "m" * ahead)
    return "E" + "|".join(stages) + "L"


def _recompute(job: Job) -> Iterator[tuple[str, object]]:
    recompute = job.strategy.recompute
    if recompute.granularity is Granularity.NONE:
        return
    yield "recompute-granularity", recompute.granularity.value
    if recompute.granularity is Granularity.SELECTIVE:
        yield "recompute-modules", [module.value for module in recompute.modules]
        return
    yield "recompute-method", recompute.method.value
    yield "recompute-num-layers", recompute.layers * _layers_for_one(job)


def _layers_for_one(job: Job) -> int:
    return parts_per_layer(job.model) if is_hybrid(job.model) else 1


def _sharing(job: Job) -> Iterator[tuple[str, object]]:
    """State that data-parallel ranks share, and state in host memory."""
    strategy = job.strategy
    if strategy.zero_stage:
        yield "use-distributed-optimizer", True
    if strategy.shard_groups > 1:
        yield "num-distributed-optimizer-instances", strategy.shard_groups
    if strategy.zero_stage in SHARDING:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", SHARDING[strategy.zero_stage]
        yield "ckpt-format", "fsdp_dtensor"
        yield "init-model-with-meta-device", True
    if moved := offloaded_layers(job.runtime, job.model.num_layers):
        yield "cpu-offloading-num-layers", moved
    if strategy.offload_optimizer:
        yield "optimizer-cpu-offload", True
        yield "optimizer-offload-fraction", 1.0
        yield "use-precision-aware-optimizer", True


def _overlap(job: Job) -> Iterator[tuple[str, object]]:
    overlap, strategy = job.strategy.overlap, job.strategy
    if overlap.grad_reduce:
        yield "overlap-grad-reduce", True
    if overlap.param_gather and strategy.zero_stage:
        yield "overlap-param-gather", True
    if overlap.tp and strategy.tp > 1 and strategy.sequence_parallel:
        yield "tp-comm-overlap", True


def precision_flags(job: Job) -> Iterator[tuple[str, object]]:
    """The format of matrix products; fp8 scales each tensor by its present values."""
    precision = job.workload.precision
    yield "fp16" if precision is Precision.FP16 else "bf16", True
    if precision is Precision.FP8:
        yield "fp8-format", "hybrid"
        yield "fp8-recipe", "tensorwise"
    if precision is Precision.MXFP8:
        yield "fp8-format", "e4m3"
        yield "fp8-recipe", "mxfp8"
    if precision is Precision.FP4:
        yield "fp4-format", "e2m1"
        yield "fp4-recipe", "nvfp4"
    if job.workload.numerics is Numerics.REDUCED:
        yield "grad-reduce-in-bf16", True
        yield "use-precision-aware-optimizer", True
        yield from ((f"{state}-dtype", "bf16") for state in ("main-grads", "exp-avg", "exp-avg-sq"))


def fixed_flags(job: Job) -> Iterator[tuple[str, object]]:
    """Assumptions of the cost model that differ from Megatron's defaults."""
    present = {
        "experts": bool(job.model.max_experts),
        "fsdp": job.strategy.zero_stage in SHARDING,
        "strict": job.workload.numerics is Numerics.STRICT,
    }
    for option in megatron_options():
        if option.treatment is not Treatment.FIXED or not option.differs_from_default:
            continue
        if present.get(_ONLY_WITH.get(option.dest, ""), True):
            yield option.flags[0].removeprefix("--"), _value(option)
    if job.model.max_experts:
        yield "moe-grouped-gemm", True
        yield from expert_messages(job)
    if on_amd(job):
        yield from ((switch, True) for switch in MEGATRON_OFF)


def expert_messages(job: Job) -> Iterator[tuple[str, object]]:
    messages = job.workload.expert_messages
    if job.strategy.ep == 1:
        messages = ExpertMessages.ALLTOALL
    if messages.is_deepep:
        yield "moe-token-dispatcher-type", "flex"
        yield "moe-flex-dispatcher-backend", "deepep"
    else:
        yield "moe-token-dispatcher-type", "alltoall"
    if messages.is_overlapped:
        yield "overlap-moe-expert-parallel-comm", True


def _value(option: Option) -> object:
    """A switch stands for its value, true or false."""
    return True if isinstance(option.value, bool) else option.value


def run_flags(job: Job) -> Iterator[tuple[str, object]]:
    ramp, evaluation = ramp_of(job), evaluation_of(job)
    if ramp is None:
        yield "train-iters", iterations(job)
    else:
        yield "rampup-batch-size", [ramp.start, ramp.increment, ramp.samples]
        yield "train-samples", samples(job)
    if evaluation is None:
        yield "eval-iters", 0
    else:
        yield "eval-interval", evaluation.every
        yield "eval-iters", evaluation.iterations


def padded_vocabulary(job: Job) -> int:
    multiple = VOCABULARY_MULTIPLE * job.strategy.tp
    return -(-job.model.vocab // multiple) * multiple


def data_of(job: Job) -> Data:
    """Random tokens, or the user's files with their tokenizer and the same padded vocabulary."""
    own = (
        "--data-path $DATA_PATH",
        '--split "${DATA_SPLIT:-99,1,0}"',
        "--tokenizer-type HuggingFaceTokenizer",
        '--tokenizer-model "${TOKENIZER_MODEL:?name a tokenizer of Hugging Face}"',
        f"--padded-vocab-size {padded_vocabulary(job)}",
    )
    mock = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size")
    return Data((*mock, str(job.model.vocab)), "DATA_PATH", own)


def environment(job: Job) -> Mapping[str, str]:
    """Environment variables that Megatron's validation asks for."""
    strategy = job.strategy
    if strategy.zero_stage in SHARDING:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": CUDA_QUEUES}
    names = [group.pool.gpu.architecture for group in job.nodes]
    older = not all(name.startswith(NEEDS_NO_SINGLE_QUEUE) for name in names)
    split = strategy.tp > 1 or strategy.cp > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if split and older else {}


def checkpoints(job: Job) -> tuple[str, ...]:
    """Options that go on from the last checkpoint; an empty folder starts from scratch."""
    folder = f'"${CHECKPOINTS}"'
    often = iterations_between(job)
    # Of all but the last, one in a day or so stays: disks end.
    kept = f"--save-retain-interval {often * RETAINED}"
    return (f"--save {folder}", f"--load {folder}", f"--save-interval {often}", kept)


def smoke(job: Job) -> tuple[str, ...]:
    """Options of a short try; a growing batch counts samples."""
    if ramp_of(job) is None:
        return ("--train-iters", str(SMOKE_ITERATIONS))
    return ("--train-samples", str(SMOKE_ITERATIONS * job.workload.global_batch))


def program(job: Job) -> RankProgram:
    return RankProgram(
        software=SOFTWARE,
        script=f'"$MEGATRON_PATH"/{HYBRID_SCRIPT if is_hybrid(job.model) else SCRIPT}',
        arguments=words(flags(job)),
        data=data_of(job),
        checkpoints=checkpoints(job),
        smoke=smoke(job),
        environment=environment(job),
        variables={
            "MEGATRON_PATH": f"a checkout of Megatron-LM, tag core_v{VERSION}",
            **checkpoint_variables(job),
        },
        needs=(
            f"Megatron-LM, tag core_v{VERSION}, with PyTorch, Transformer Engine and Apex as its"
            " own documentation asks, the same on every node.",
            *scan_needs(job),
        ),
        notes=tuple(_notes(job)),
    )


def _notes(job: Job) -> Iterator[str]:
    yield (
        "Without DATA_PATH it trains on random tokens. DATA_PATH takes files as Megatron's"
        " tools/preprocess_data.py makes them; TOKENIZER_MODEL then names their tokenizer."
    )
    yield (
        "The learning rate and similar settings have common values and are not part of the plan."
        " Arguments that you add to the command override them: `./launch.sh --lr 1e-4`."
    )
    yield kept_note(job)
    if is_trial(job):
        yield f"The plan states no number of tokens: it trains {TRIAL_ITERATIONS} iterations."
    if job.strategy.zero_stage in SHARDING and (job.strategy.tp > 1 or job.strategy.cp > 1):
        yield (
            "Megatron warns that tensor or context parallelism and Megatron-FSDP need different"
            " values of CUDA_DEVICE_MAX_CONNECTIONS; the script sets the one that FSDP requires."
        )


TARGET = target_of(__name__)
