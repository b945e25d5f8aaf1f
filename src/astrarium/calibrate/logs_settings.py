"""From a log to a measured run: model, strategy and runtime as the program printed them.

What a log does not say comes from flags (`Given`), and a flag wins where both speak, because logs
of wrappers show defaults that were changed later. What neither says ends in an error that names
the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from astrarium.calibrate.logs import Log, Pace, Program, pace_of
from astrarium.calibrate.measurement import Measurement
from astrarium.catalog.runtimes import ReportedMemory, find_runtime
from astrarium.cluster import Pool
from astrarium.errors import InputError
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Experts, Shape, assemble
from astrarium.model.workload import Precision, Workload
from astrarium.strategy.document import strategy_from_dict
from astrarium.validate.words import recompute_of

_NONE: Final = frozenset({"", "None", "none", "null", "-1"})
_TRUE: Final = frozenset({"True", "true"})
# Settings that change what a layer is beyond what a log states in full.
_NEEDS_MODEL: Final = {
    "multi_latent_attention": "latent attention",
    "mtp_num_layers": "multi-token prediction",
    "moe_layer_freq": "layers with and without experts",
    "hybrid_override_pattern": "layers of several kinds",
}


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says about the runs: the machines always, the rest where logs are silent."""

    pool: Pool
    model: Model | None = None
    seq_length: int | None = None
    global_batch: int | None = None
    strategy: Mapping[str, Any] | None = None
    runtime: str | None = None


@dataclass(slots=True)
class Described:
    """A log's settings in the words of the project; None and missing keys: not stated."""

    runtime: str
    shape: Shape | None = None
    why_no_shape: str = "the log does not state the model"
    gpus: int | None = None
    seq_length: int | None = None
    global_batch: int | None = None
    precision: Precision = Precision.BF16
    strategy: dict[str, Any] = field(default_factory=dict)
    recompute: str = ""  # words for it, where the strategy depends on the number of layers


def measurement_of(log: Log, given: Given) -> tuple[Measurement, Pace]:
    """The run of a log."""
    pace = pace_of(log)
    described = _DESCRIBE[log.program](_Settings(log.settings))
    seq_length = given.seq_length or described.seq_length
    batch = given.global_batch or pace.global_batch or described.global_batch
    if seq_length is None:
        raise _missing(log, "the sequence length", "--seq-length")
    if batch is None:
        raise _missing(log, "the global batch", "--global-batch")
    model = given.model or _model(log, described, seq_length)
    gpus = described.gpus or given.pool.num_gpus
    if gpus > given.pool.num_gpus:
        raise InputError(
            f"{log.path}: the run used {gpus} GPUs, --gpus or --cluster gives"
            f" {given.pool.num_gpus}; give as many as the largest run used"
        )
    asked = dict(described.strategy if given.strategy is None else given.strategy)
    if not asked:
        raise _missing(log, "the strategy", "--strategy")
    asked.pop("num_micro_batches", None)
    if given.strategy is None and described.recompute:
        chunks = asked["pp"]
        asked["recompute"] = asdict(recompute_of(described.recompute, model.num_layers, chunks))
        del asked["recompute"]["modules"]
    strategy = strategy_from_dict(
        asked, where=log.path, gpus=gpus, global_batch=batch, layers=model.num_layers
    )
    seconds = pace.median
    if log.program is Program.TORCHTITAN:  # tokens per second and GPU
        seconds = batch * seq_length / (pace.median * gpus)
    peak, reported, stage = _peak(log, gpus, strategy.pp)
    run = Measurement(
        label=log.path,
        workload=Workload(model, seq_length, batch, precision=described.precision),
        pool=given.pool,
        strategy=strategy,
        runtime=find_runtime(given.runtime or described.runtime),
        seconds=seconds,
        peak_bytes=peak,
        reported=reported,
        stage=stage,
    )
    return run, pace


def _missing(log: Log, what: str, flag: str) -> InputError:
    return InputError(f"{log.path}: the log does not state {what}; give {flag}")


def _model(log: Log, described: Described, seq_length: int) -> Model:
    if described.shape is None:
        raise InputError(f"{log.path}: {described.why_no_shape}; give --model")
    shape = described.shape
    if not shape.vocab:
        raise InputError(f"{log.path}: the log does not state the vocabulary; give --model")
    return assemble(log.path, "log", Architecture.DECODER, shape)


def _peak(log: Log, gpus: int, pp: int) -> tuple[float | None, ReportedMemory, int | None]:
    """The highest reported peak, what it counts, and its stage if not all stages reported."""
    kind = ReportedMemory.ALLOCATED if log.allocated else ReportedMemory.RESERVED
    peaks = log.allocated or log.reserved
    if not peaks:
        return None, kind, None
    rank = max(peaks, key=peaks.__getitem__)
    ranks_of_stage = max(gpus // pp, 1) if log.program is Program.MEGATRON else 1
    stages = {min(member // ranks_of_stage, pp - 1) for member in peaks}
    if log.program is Program.TORCHTITAN or len(stages) == pp:
        return peaks[rank], kind, None
    return peaks[rank], kind, min(rank // ranks_of_stage, pp - 1)


class _Settings:
    """Typed access to printed settings."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name, "None") not in _NONE

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        return "" if value in _NONE else value

    def flag(self, name: str) -> bool:
        return self._values.get(name) in _TRUE

    def count(self, *names: str) -> int | None:
        """The first of the names that is a whole number above zero."""
        for name in names:
            text = self.text(name)
            if text.isdigit() and int(text) > 0:
                return int(text)
        return None

    def number(self, name: str) -> float | None:
        try:
            return float(self.text(name))
        except ValueError:
            return None


def _describe_megatron(settings: _Settings) -> Described:
    s = settings
    shape, why = _megatron_shape(s)
    return Described(
        runtime=_megatron_runtime(s),
        shape=shape,
        why_no_shape=why,
        gpus=s.count("world_size"),
        seq_length=s.count("seq_length", "encoder_seq_length"),
        global_batch=s.count("global_batch_size"),
        precision=_megatron_precision(s),
        strategy=_megatron_strategy(s) if s.count("tensor_model_parallel_size") else {},
    )


def _megatron_runtime(s: _Settings) -> str:
    if s.flag("deepspeed"):
        return "deepspeed"
    implementation = s.text("transformer_impl")
    if implementation:
        return "megatron" if implementation == "transformer_engine" else "megatron-local"
    return "megatron-local" if s.flag("use_flash_attn") else "megatron-2021"


def _megatron_precision(s: _Settings) -> Precision:
    if "fp8" in s and s.text("fp8") != "False":
        return Precision.FP8
    return Precision.FP16 if s.flag("fp16") else Precision.BF16


def _megatron_strategy(s: _Settings) -> dict[str, Any]:
    out: dict[str, Any] = {
        "tp": s.count("tensor_model_parallel_size") or 1,
        "pp": s.count("pipeline_model_parallel_size") or 1,
        "cp": s.count("context_parallel_size") or 1,
        "ep": s.count("expert_model_parallel_size") or 1,
        "micro_batch": s.count("micro_batch_size") or 1,
        "virtual_stages": _virtual_stages(s),
        "sequence_parallel": s.flag("sequence_parallel"),
        "zero_stage": _megatron_zero(s),
        "recompute": _megatron_recompute(s),
        "overlap": {
            "grad_reduce": s.flag("overlap_grad_reduce"),
            "param_gather": s.flag("overlap_param_gather"),
            "p2p": s.flag("overlap_p2p_comm"),
            "tp": s.flag("tp_comm_overlap"),
        },
    }
    if s.count("num_experts"):
        out["etp"] = s.count("expert_tensor_parallel_size") or out["tp"]
    if s.flag("optimizer_cpu_offload"):
        out["offload_optimizer"] = True
    return out


def _virtual_stages(s: _Settings) -> int:
    stated = s.count("virtual_pipeline_model_parallel_size")
    per_stage, layers = s.count("num_layers_per_virtual_pipeline_stage"), s.count("num_layers")
    if stated or not (per_stage and layers):
        return stated or 1
    return max(layers // ((s.count("pipeline_model_parallel_size") or 1) * per_stage), 1)


def _megatron_zero(s: _Settings) -> int:
    if s.flag("deepspeed"):
        return s.count("zero_stage") or 0
    if s.flag("use_torch_fsdp2"):
        return 3
    if s.flag("use_megatron_fsdp") or s.flag("use_custom_fsdp"):
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return stages.get(s.text("data_parallel_sharding_strategy"), 3)
    return 1 if s.flag("use_distributed_optimizer") else 0


def _megatron_recompute(s: _Settings) -> dict[str, Any]:
    granularity = s.text("recompute_granularity")
    if s.flag("checkpoint_activations") or s.text("activations_checkpoint_method"):
        granularity = "full"  # the names before 2022
    if granularity == "full":
        method = s.text("recompute_method") or s.text("activations_checkpoint_method")
        layers = s.count("recompute_num_layers", "activations_checkpoint_num_layers") or 1
        return {"granularity": "full", "method": method or "uniform", "layers": layers}
    if granularity == "selective":
        names = s.text("recompute_modules").strip("[]").replace("'", "").replace('"', "")
        modules = [name.strip() for name in names.split(",") if name.strip()]
        return {"granularity": "selective", "modules": modules or ["core_attn"]}
    return {"granularity": "none"}


def _megatron_shape(s: _Settings) -> tuple[Shape | None, str]:
    for name, what in _NEEDS_MODEL.items():
        if name in s and s.text(name) not in ("False", "1", "0"):
            return None, f"{what} ({name}) cannot be rebuilt from a log"
    hidden, layers = s.count("hidden_size"), s.count("num_layers")
    heads = s.count("num_attention_heads")
    if not (hidden and layers and heads):
        return None, "the log does not state the model (hidden_size, num_layers, heads)"
    head_dim = s.count("kv_channels") or hidden // heads
    grouped = s.flag("group_query_attention")
    ffn = s.count("ffn_hidden_size") or 4 * hidden
    length = s.count("seq_length", "encoder_seq_length") or 0
    learned = s.text("position_embedding_type") in ("", "learned_absolute")
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=(s.count("num_query_groups") or heads) if grouped else heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=s.count("vocab_size_before_padding", "vocab_size", "padded_vocab_size") or 0,
        max_seq_length=s.count("max_position_embeddings") or length,
        gated=s.flag("swiglu"),
        qkv_bias=s.flag("add_bias_linear") or s.flag("add_qkv_bias"),
        out_bias=s.flag("add_bias_linear"),
        mlp_bias=s.flag("add_bias_linear"),
        norm_vectors=1 if s.text("normalization") == "RMSNorm" else 2,
        rotary_dim=0 if learned else head_dim,
        experts=_megatron_experts(s, ffn),
        expert_layers=(True,) * layers if s.count("num_experts") else (),
        tied=not s.flag("untie_embeddings_and_output_weights"),
        embedding_parameters=hidden * length if learned else 0,
    ), ""


def _megatron_experts(s: _Settings, ffn: int) -> Experts | None:
    count = s.count("num_experts")
    if not count:
        return None
    return Experts(
        count=count,
        per_token=s.count("moe_router_topk") or 2,
        ffn=s.count("moe_ffn_hidden_size") or ffn,
        shared_ffn=s.count("moe_shared_expert_intermediate_size") or 0,
    )


def _describe_nanotron(settings: _Settings) -> Described:
    s = settings
    tp, pp, dp = (s.count(name) for name in ("tp", "pp", "dp"))
    micro_batch = s.count("micro_batch_size")
    accumulation = s.count("batch_accumulation_per_replica") or 1
    out = Described(runtime="nanotron", seq_length=s.count("sequence_length"))
    if tp and pp and dp and micro_batch:
        out.gpus = tp * pp * dp
        out.global_batch = dp * micro_batch * accumulation
        scatter = "REDUCE_SCATTER" in s.text("tp_mode")
        overlap = s.flag("tp_linear_async_communication") and scatter and tp > 1
        out.strategy = {
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "micro_batch": micro_batch,
            "ep": s.count("expert_parallel_size") or 1,
            "split": "balanced" if pp > 1 else "even",
            "sequence_parallel": scatter and tp > 1,
            "zero_stage": s.count("zero_stage") or 0,
            "recompute": "full" if s.flag("recompute_layer") else "none",
            "overlap": {"grad_reduce": True, "param_gather": False, "p2p": False, "tp": overlap},
        }
    if s.text("dtype").endswith("float16") and "bfloat" not in s.text("dtype"):
        out.precision = Precision.FP16
    out.shape = _nanotron_shape(s)
    return out


def _nanotron_shape(s: _Settings) -> Shape | None:
    hidden, layers = s.count("hidden_size"), s.count("num_hidden_layers")
    heads, ffn = s.count("num_attention_heads"), s.count("intermediate_size")
    if not (hidden and layers and heads and ffn):
        return None
    head_dim = s.count("head_dim") or hidden // heads
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=s.count("num_key_value_heads") or heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=s.count("vocab_size") or 0,
        max_seq_length=s.count("max_position_embeddings", "sequence_length") or 0,
        rotary_dim=head_dim,
        tied=s.flag("tie_word_embeddings"),
    )


def _describe_torchtitan(settings: _Settings) -> Described:
    s = settings
    degrees = {
        "tp": s.count("mesh_tp", "tensor_parallel_degree") or 1,
        "pp": s.count("mesh_pp", "pipeline_parallel_degree") or 1,
        "cp": s.count("mesh_cp", "context_parallel_degree") or 1,
        "ep": s.count("mesh_ep", "expert_parallel_degree") or 1,
    }
    shards = s.count("mesh_dp_shard", "mesh_dp", "data_parallel_shard_degree")
    copies = s.count("mesh_dp_replicate", "data_parallel_replicate_degree") or 1
    out = Described(
        runtime="torchtitan" if s.flag("compiled") else "torchtitan-eager",
        shape=_torchtitan_shape(s),
        why_no_shape="this version of torchtitan does not print the model's sizes",
        seq_length=s.count("seq_len"),
        global_batch=s.count("global_batch_size"),
    )
    # Unless told otherwise, torchtitan's selective checkpointing drops every second operator.
    out.recompute = {"full": "full", "selective": "selective op"}.get(s.text("recompute"), "none")
    local = s.count("local_batch_size")
    if shards is None or local is None:
        return out
    dp = shards * copies
    out.gpus = degrees["tp"] * degrees["pp"] * degrees["cp"] * dp
    out.global_batch = out.global_batch or local * dp
    out.strategy = {
        **degrees,
        "dp": dp,
        # A pipeline cuts the local batch into single sequences unless told otherwise.
        "micro_batch": 1 if degrees["pp"] > 1 else local,
        "zero_stage": 3 if shards > 1 else 0,
    }
    return out


def _torchtitan_shape(s: _Settings) -> Shape | None:
    hidden, layers = s.count("model_dim"), s.count("model_n_layers")
    heads = s.count("model_n_heads")
    if not (hidden and layers and heads) or s.flag("model_moe_enabled"):
        return None
    ffn = s.count("model_hidden_dim") or _llama_ffn(s, hidden)
    head_dim = s.count("model_head_dim") or hidden // heads
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=s.count("model_n_kv_heads") or heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=s.count("model_vocab_size") or 0,
        max_seq_length=s.count("model_max_seq_len", "seq_len") or 0,
        rotary_dim=head_dim,
        tied=s.flag("model_enable_weight_tying"),
    )


def _llama_ffn(s: _Settings, hidden: int) -> int:
    """Llama's rule: two thirds of 4 h, times a factor, rounded up to a multiple."""
    ffn = int(2 * (4 * hidden) / 3)
    ffn = int((s.number("model_ffn_dim_multiplier") or 1.0) * ffn)
    multiple = s.count("model_multiple_of") or 256
    return multiple * -(-ffn // multiple)


_DESCRIBE: Final = {
    Program.MEGATRON: _describe_megatron,
    Program.TORCHTITAN: _describe_torchtitan,
    Program.NANOTRON: _describe_nanotron,
}
