"""Reads a config.json: one spelling for every key, class defaults, checked values.

`ALIASES` maps the spellings of a key (`n_embd`, `d_model`) to one name. An absent key takes the
default of the transformers class. Errors name the file, the line, the key and the expected value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from astrarium.errors import InputError
from astrarium.model.build import Shape
from astrarium.value import Value

# Class defaults of transformers 5.22.2 for keys that decide sizes, spelled as in `ALIASES`. Null is
# derived: key/value heads equal the heads, the head size is hidden / heads, the feed-forward width
# 4 x hidden. `megatron_gpt` and `vit_parallel` are types of our own, see `published`. Qwen's images
# have any size: 448 pixels, 256 tokens, are our guess.
_DATA: Final = Path(__file__).parent / "data" / "defaults.json"
_TABLES: Final[Mapping[str, Any]] = json.loads(_DATA.read_bytes())
Defaults = Mapping[str, object]
DEFAULTS: Final[Mapping[str, Defaults]] = _TABLES["models"]
TOWERS: Final[Mapping[str, Defaults]] = _TABLES["towers"]  # the parts of models that see
PARTS: Final[Mapping[str, Defaults]] = _TABLES["parts"]  # sections of a config
LEFT_OUT: Final[Mapping[str, str]] = _TABLES["left_out"]  # keys that decide, in words: not counted

# Limits that keep a mistyped number from filling the memory; no known model comes near.
LARGEST_COUNT = 10**9
MOST_LAYERS = 10**4

ALIASES: Final[Mapping[str, Sequence[str]]] = _TABLES["aliases"]

# What a model's size comes from, and how like a key must be to one that is missing to be meant.
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
LIKENESS = 0.9


class ConfigSource(Value, frozen=True):
    """The source of a config: a file, or an entry known by its label."""

    label: str
    path: Path | None = None
    inside: tuple[str, ...] = ()

    def failure(self, key: str, what: str) -> InputError:
        """Build the error "file:line: key: what"."""
        where = (*self.inside, key) if key else self.inside
        line = _line_of(self.path, where) if self.path and where else None
        place = f"{self.label}:{line}" if line else self.label
        named = ".".join(where)
        return InputError(f"{place}: {named}: {what}" if named else f"{place}: {what}")

    def within(self, key: str) -> ConfigSource:
        return ConfigSource(self.label, self.path, (*self.inside, key))


def _line_of(path: Path, where: tuple[str, ...]) -> int | None:
    """Return the line of a key of a JSON file, following its parents from the top."""
    text = path.read_text(encoding="utf-8-sig")
    at = 0
    for key in where:
        found = text.find(f'"{key}"', at)
        if found < 0:
            return None
        at = found
    return text.count("\n", 0, at) + 1


class Config:
    """The keys of one config file, read through checks."""

    def __init__(
        self, values: Mapping[str, object], defaults: Mapping[str, object], source: ConfigSource
    ) -> None:
        self.source = source
        self.read = set[str]()  # keys that were asked for
        self._spelling: dict[str, str] = {}
        self._values = dict(defaults)
        for name, others in ALIASES.items():
            written = next((key for key in (name, *others) if key in values), None)
            if written is not None:
                self._values[name] = values[written]
                self._spelling[name] = written
        aliased = {other for others in ALIASES.values() for other in others} | ALIASES.keys()
        others_given = {key: v for key, v in values.items() if key not in aliased}
        self._check_sizes(others_given)
        self._values.update(others_given)

    def _check_sizes(self, others: Mapping[str, object]) -> None:
        """Refuse a size under a mistyped name, which would silently get its default."""
        absent = [name for name in SIZES if name not in self._spelling and name not in others]
        if not absent:
            return
        from difflib import get_close_matches

        for key in others:
            meant = get_close_matches(key, absent, 1, LIKENESS)
            if meant and key not in self._values:
                raise self.source.failure(key, f"unknown, and {meant[0]} is missing; rename it")

    def failure(self, key: str, what: str) -> InputError:
        return self.source.failure(self._spelling.get(key, key), what)

    def get(self, key: str) -> object:
        self.read.add(key)
        return self._values.get(key)

    @property
    def values(self) -> Mapping[str, object]:
        """All that is stated or default, under one spelling."""
        return self._values

    def count(self, key: str, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
        value = self.get(key)
        if value is None:
            raise self.failure(key, f"missing; expected a whole number of at least {least}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.failure(key, f"expected a whole number, got {value!r}")
        if not least <= value <= most:
            raise self.failure(key, f"expected a whole number in {least}..{most}, got {value}")
        return value

    def count_or(self, key: str, default: int, *, least: int = 1) -> int:
        """Return a whole number, or `default` where the key is absent or null."""
        return default if self.get(key) is None else self.count(key, least=least)

    def optional_count(self, key: str) -> int | None:
        return None if self.get(key) is None else self.count(key)

    def flag(self, key: str) -> bool:
        """Return a truth value; absent and null are false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.failure(key, f"expected true or false, got {value!r}")
        return bool(value)

    def text(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.get(key)
        if value not in allowed:
            raise self.failure(key, f"expected one of {', '.join(allowed)}, got {value!r}")
        return str(value)

    def items(self, key: str) -> list[object] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.failure(key, f"expected a list, got {value!r}")
        return value

    def layer_numbers(self, key: str, layers: int) -> frozenset[int]:
        numbers = self.items(key) or []
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int):
                raise self.failure(key, f"expected layer numbers, got {number!r}")
            if not 0 <= number < layers:
                raise self.failure(key, f"expected layers in 0..{layers - 1}, got {number}")
        return frozenset(number for number in numbers if isinstance(number, int))

    def layer_flags(self, key: str, layers: int) -> tuple[object, ...] | None:
        """Return a list with one entry per layer, or None where the key is absent or empty."""
        entries = self.items(key)
        if not entries:
            return None
        if len(entries) != layers:
            what = f"expected one entry for each of the {layers} layers, got {len(entries)}"
            raise self.failure(key, what)
        return tuple(entries)

    def section(self, key: str, defaults: Mapping[str, object]) -> Config:
        """Return a nested mapping as a config of its own; absent means all defaults."""
        value = self.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.failure(key, f"expected a mapping, got {value!r}")
        return Config(value, defaults, self.source.within(key))

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.failure(key, f"expected a number, got {value!r}")
        if not 0 < value <= LARGEST_COUNT:
            raise self.failure(key, f"expected a number in 0..{LARGEST_COUNT}, got {value}")
        return float(value)

    def fraction(self, key: str) -> float:
        value = self.number(key)
        if value > 1:
            raise self.failure(key, f"expected at most 1, got {value}")
        return value

    def rotary_fraction(self) -> float:
        """Return the share of each head that is rotated; newer configs nest the key."""
        nested = self.get("rope_parameters")
        value = self.get("partial_rotary_factor")
        if isinstance(nested, Mapping):
            value = nested.get("partial_rotary_factor", value)
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.failure("partial_rotary_factor", f"expected a number, got {value!r}")
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise self.failure("partial_rotary_factor", f"expected 0..1, got {value}")
        return float(value)


FULL_ATTENTION = "full_attention"
_USUAL = ("num_attention_heads", "num_hidden_layers")


def base(config: Config) -> Shape:
    """Read the common keys; the result is a llama-like stack without biases."""
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    kv_heads = config.count_or("num_key_value_heads", heads)
    if heads % kv_heads:
        what = f"expected a divisor of the {heads} attention heads, got {kv_heads}"
        raise config.failure("num_key_value_heads", what)
    head_dim = _head_dim(config, hidden, heads)
    return Shape(
        hidden=hidden,
        layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.count_or("intermediate_size", 4 * hidden),
        vocab=config.count("vocab_size"),
        max_seq_length=config.count("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings"),
        rotary_dim=int(head_dim * config.rotary_fraction()),
    )


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    stated = config.optional_count("head_dim")
    if stated is None and hidden % heads:
        what = f"expected a divisor of the hidden size {hidden}, got {heads}; or state head_dim"
        raise config.failure("num_attention_heads", what)
    return stated if stated is not None else hidden // heads


def same_window(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of configs in which all layers have it, or none has."""
    return (config.optional_count("sliding_window"),) * layers


def chosen_windows(config: Config, is_local: Sequence[bool]) -> tuple[int | None, ...]:
    """Return the window of the layers that `is_local` picks; `layer_types` overrules it."""
    types = config.layer_flags("layer_types", len(is_local))
    if types is not None:
        is_local = [entry != FULL_ATTENTION for entry in types]
    if not any(is_local):
        return ()
    window = config.optional_count("sliding_window")
    return tuple(window if local else None for local in is_local)


def alternating_windows(config: Config, layers: int) -> tuple[int | None, ...]:
    """Return windows where every `sliding_window_pattern`-th layer sees everything."""
    period = config.count("sliding_window_pattern")
    return chosen_windows(config, [(layer + 1) % period != 0 for layer in range(layers)])


def stack(config: Config, half: str, hidden: int, ffn: int, vocab: int, positions: int) -> Shape:
    """A stack with biases, no gate and no rotation; `half` begins its keys, "": the usual ones."""
    heads_key, layers_key = (f"{half}_attention_heads", f"{half}_layers") if half else _USUAL
    heads = config.count(heads_key)
    if hidden % heads:
        what = f"expected a divisor of the hidden size {hidden}, got {heads}"
        raise config.failure(heads_key, what)
    return Shape(
        hidden=hidden,
        layers=config.count(layers_key, most=MOST_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        max_seq_length=positions,
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        causal=False,
    )
