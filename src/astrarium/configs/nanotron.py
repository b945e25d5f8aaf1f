"""nanotron's settings, as its log prints them and its YAML holds them."""

from __future__ import annotations

from astrarium.configs.settings import Described, Settings
from astrarium.model.build import Shape
from astrarium.model.workload import Precision


def describe_nanotron(settings: Settings) -> Described:
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


def _nanotron_shape(s: Settings) -> Shape | None:
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
