"""Patterns of layers in Megatron's settings, and models with scans.

A pattern of letters has a letter for each layer; a bar ends a stage, and letters behind a slash
predict further tokens, which are not counted. A list expression has a number for each layer.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import chain
from typing import Final

from astrarium.configs.settings import Settings
from astrarium.errors import InputError
from astrarium.model.build import Shape
from astrarium.model.scans import Recurrence, Scan

# Defaults of Megatron.
MAMBA: Final = {"mamba_state_dim": 128, "mamba_head_dim": 64, "mamba_num_groups": 8}
DELTA: Final = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
EXPAND: Final = 2  # features of a scan for one of the residual stream
TAPS: Final = 4
CHUNKS: Final = {Recurrence.SSD: 128, Recurrence.DELTA: 64}  # of their kernels
_DELTA_LETTER: Final = "G"
_LETTERS: Final = "MG*-E"
_OTHERS: Final = {"D": "sparse attention", "+": "latent attention"}


def segments_of(s: Settings) -> list[str]:
    """The letters of every stage, in model order; empty: no pattern is given."""
    pattern = s.text("hybrid_layer_pattern") or s.text("hybrid_override_pattern")
    main = pattern.partition("/")[0]
    return main.split("|") if main else []


def behind_slash(s: Settings) -> str:
    """The part of a pattern that predicts further tokens."""
    pattern = s.text("hybrid_layer_pattern") or s.text("hybrid_override_pattern")
    return pattern.partition("/")[2]


def with_scans(s: Settings, shape: Shape) -> Shape:
    """The shape with its scans; InputError names what is not modelled."""
    letters = "".join(segments_of(s))
    if letters:
        for letter in letters:
            if letter not in _LETTERS:
                what = _OTHERS.get(letter, "no layer of Megatron's")
                raise InputError(f"'{letter}' ({what}) in a pattern of layers is not modelled")
        if _DELTA_LETTER in letters and "M" in letters:
            raise InputError("Mamba (M) and gated delta nets (G) in one pattern are not modelled")
        scan = _delta_net(s) if _DELTA_LETTER in letters else _mamba(s, shape.hidden)
        letters = letters.replace(_DELTA_LETTER, "M")
        return replace(shape, layers=len(letters), letters=letters, scan=scan, windows=())
    if s.text("experimental_attention_variant") != "gated_delta_net":
        return shape
    every = s.text("linear_attention_freq")
    if every.isdigit() and int(every):
        scanning = tuple((layer + 1) % int(every) != 0 for layer in range(shape.layers))
    else:
        scanning = layer_pattern(every, shape.layers, "linear_attention_freq")
    gate = s.flag("attention_output_gate")
    return replace(shape, scan=_delta_net(s), scan_layers=scanning, gated_attention=gate)


def _mamba(s: Settings, hidden: int) -> Scan:
    state, width, groups = (s.count(name) or usual for name, usual in MAMBA.items())
    heads = s.count("mamba_num_heads") or EXPAND * hidden // width
    if heads % groups:
        raise InputError(f"mamba_num_groups {groups} does not divide the {heads} heads of Mamba")
    return Scan(
        Recurrence.SSD,
        heads=heads,
        head_dim=width,
        groups=groups,
        state=state,
        chunk=CHUNKS[Recurrence.SSD],
        taps=TAPS,
        taps_bias=True,
        norm_width=heads * width,
    )


def _delta_net(s: Settings) -> Scan:
    taps, state, width, groups, heads = (s.count(name) or usual for name, usual in DELTA.items())
    if heads % groups:
        raise InputError(f"linear_num_key_heads {groups} do not divide {heads} heads of values")
    return Scan(
        Recurrence.DELTA,
        heads=heads,
        head_dim=width,
        groups=groups,
        state=state,
        chunk=CHUNKS[Recurrence.DELTA],
        taps=taps,
        norm_width=width,
    )


_KNOWN: Final = re.compile(r"[\d\[\](),+*\s]{1,2000}")
_DEEPEST: Final = 200  # parentheses and operators in one another
_MOST_LAYERS: Final = 10_000


def layer_pattern(text: str, layers: int, option: str) -> tuple[bool, ...]:
    """The layers that a pattern marks: every n-th for a number n, or those of its list."""
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return tuple(layer % int(text) == 0 for layer in range(layers))
    try:
        marks = _value(ast.parse(text.strip(), mode="eval").body) if _KNOWN.fullmatch(text) else 0
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        marks = 0
    if not isinstance(marks, list) or any(mark > 1 for mark in marks):
        raise InputError(
            f"{option} '{text}' cannot be read; expected a number above 0 or a pattern of 0 and 1"
            " such as ([1]*3+[0]*1)*3"
        )
    if len(marks) != layers:
        raise InputError(f"{option} '{text}' is of {len(marks)} layers, the model has {layers}")
    return tuple(mark == 1 for mark in marks)


def _value(node: ast.expr, depth: int = 0) -> list[int] | int:
    """A list or a number; ValueError for anything else, and for what is too large."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        numbers = [_value(one, _DEEPEST) for one in node.elts]
        return [one for one in numbers if isinstance(one, int)]
    if isinstance(node, ast.BinOp) and depth < _DEEPEST:
        sides = [_value(side, depth + 1) for side in (node.left, node.right)]
        lists = [side for side in sides if isinstance(side, list)]
        times = [side for side in sides if isinstance(side, int)]
        summed = isinstance(node.op, ast.Add) and not times
        if summed or (isinstance(node.op, ast.Mult) and len(times) == 1):
            whole = list(chain(*lists))
            if len(whole) * sum(times, start=summed) <= _MOST_LAYERS:
                return whole * sum(times, start=summed)
    raise ValueError
