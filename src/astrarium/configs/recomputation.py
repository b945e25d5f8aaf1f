"""What is recomputed, in the words of tables, logs and configuration files."""

from __future__ import annotations

import re

from astrarium.errors import InputError
from astrarium.strategy.types import Granularity, Method, Recompute, RecomputeModule


def recompute_of(text: str, layers: int, chunks: int) -> Recompute:
    """Recomputation in words; `chunks` are the runs of layers the pipeline makes.

    Dropping every second product and all between them, as torchtitan can, leaves the bytes that
    four of seven layers redone would (counted for Llama: of a layer, its input, queries, values,
    attention's output and two products of the feed-forward part stay, 0.46 of all).
    """
    lowered = text.lower()
    if re.search(r"^$|none|^no\b|false|off$", lowered):
        return Recompute()
    number = re.search(r"\d+", lowered)
    if "block" in lowered and number:
        return Recompute(Granularity.FULL, Method.BLOCK, int(number[0]))
    if re.search(r"layer|\bop\b|per-op|sac", lowered) and "select" in lowered:
        redone = layers // (2 * chunks) if "layer" in lowered else layers * 4 // (7 * chunks)
        return Recompute(Granularity.FULL, Method.BLOCK, max(redone, 1))
    if "select" in lowered or "core_attn" in lowered:
        return Recompute(Granularity.SELECTIVE, modules=_modules(lowered))
    if re.search(r"full|true|^yes|^on$|uniform|activation checkpoint", lowered):
        each = int(number[0]) if "uniform" in lowered and number else 1
        return Recompute(Granularity.FULL, Method.UNIFORM, each)
    raise InputError(f"recompute '{text}' is not understood; write none, selective or full")


def _modules(text: str) -> tuple[RecomputeModule, ...]:
    named = tuple(module for module in RecomputeModule if re.search(rf"\b{module}\b", text))
    return named or (RecomputeModule.CORE_ATTN,)
