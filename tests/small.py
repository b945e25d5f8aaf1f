"""Small workloads and pools that brute force can exhaust."""

from __future__ import annotations

from dataclasses import replace

from astrarium.cluster import Pool, parse_gpus
from astrarium.model.blocks import Model
from astrarium.model.build import Architecture, Experts, Shape, assemble


def small_model(layers: int = 6, *, experts: int = 0, vocab: int = 32000) -> Model:
    shape = Shape(
        hidden=2048,
        layers=layers,
        heads=8,
        kv_heads=4,
        head_dim=256,
        ffn=8192,
        vocab=vocab,
        max_seq_length=4096,
        rotary_dim=256,
        experts=Experts(count=experts, per_token=2, ffn=2048) if experts else None,
        expert_layers=tuple(i > 0 for i in range(layers)) if experts else (),
    )
    return assemble("small", "test", Architecture.DECODER, shape)


def pool_of(text: str, memory_bytes: float | None = None) -> Pool:
    pool = parse_gpus(text).pools[0]
    if memory_bytes is None:
        return pool
    return replace(pool, gpu=replace(pool.gpu, memory_bytes=int(memory_bytes)))
