"""torchtitan's settings as its log prints them; its files are read by `torchtitan_file`."""

from __future__ import annotations

from astrarium.configs.settings import Described, Settings
from astrarium.model.build import Shape


def describe_torchtitan(settings: Settings) -> Described:
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
    # By default torchtitan's selective checkpointing drops every second operator.
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
        # A pipeline cuts the local batch into single sequences by default.
        "micro_batch": 1 if degrees["pp"] > 1 else local,
        "zero_stage": 3 if shards > 1 else 0,
        "shard_groups": copies if shards > 1 else 1,
    }
    return out


def _torchtitan_shape(s: Settings) -> Shape | None:
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


def _llama_ffn(s: Settings, hidden: int) -> int:
    """Llama's rule: two thirds of 4 h, times a factor, rounded up to a multiple."""
    ffn = int(2 * (4 * hidden) / 3)
    ffn = int((s.number("model_ffn_dim_multiplier") or 1.0) * ffn)
    multiple = s.count("model_multiple_of") or 256
    return multiple * -(-ffn // multiple)
