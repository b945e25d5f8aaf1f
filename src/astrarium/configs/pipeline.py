"""Uneven stages, as the options of Megatron and torchtitan describe them.

All functions return the layers of every chunk in model order: chunk c runs on pipeline rank
c mod pp, as in the `stages` of a strategy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from astrarium.errors import InputError

_MOST_LETTERS: Final = 100_000
# As Megatron unrolls them, and in this order: groups are not nested, and any letter repeats.
_REPEATS: Final = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))


def layout_chunks(text: str) -> list[int]:
    """Layers of every stage of `--pipeline-model-parallel-layout`.

    Stages are divided by `|`; `E` is the embedding, `t` a layer, `m` a layer that predicts a
    further token, `L` the loss; `x*n` and `(...)*n` repeat; commas mean nothing. Stages may be
    empty: `E|t|t||L`. Embedding and loss are those of the first and the last
    stage wherever they stand, as Megatron builds them.
    """
    flat = text.replace(",", "")
    for pattern in _REPEATS:
        made = sum(len(what) * _number(times) for what, times in pattern.findall(flat))
        if made > _MOST_LETTERS:
            raise InputError(f"the layout repeats more than {_MOST_LETTERS:,} layers")
        flat = pattern.sub(lambda found: found[1] * _number(found[2]), flat)
    strange = re.search(r"[^EtmL|]", flat)
    if strange:
        raise InputError(
            f"the layout '{text}' has '{strange[0]}'; it is made of E, t, m, L, | and repeats"
            " such as t*8 or (tt|)*4"
        )
    _check_ends(text, flat)
    return [stage.count("t") + stage.count("m") for stage in flat.split("|")]


def _number(digits: str) -> int:
    """The number of repeats; too many if it has too many digits."""
    shown = digits.lstrip("0")
    return int(shown or "0") if len(shown) < 10 else _MOST_LETTERS + 1


def layout_text(rows: Sequence[Sequence[str]]) -> str:
    """Stages given as lists of names, such as Megatron-Bridge's, in letters."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    known = {**letters, **{letter: letter for letter in letters.values()}}
    try:
        return "|".join("".join(known[name.strip()] for name in row) for row in rows)
    except KeyError as error:
        raise InputError(f"the layout names {error}; known are {', '.join(letters)}") from None


def _check_ends(text: str, flat: str) -> None:
    """Exactly one embedding and it is first, exactly one loss and it is last."""
    letters = flat.replace("|", "")
    if letters.count("E") != 1 or not letters.startswith("E"):
        raise InputError(f"the layout '{text}' needs exactly one E, before all else")
    if letters.count("L") != 1 or not letters.endswith("L"):
        raise InputError(f"the layout '{text}' needs exactly one L, after all else")


def ends_chunks(
    layers: int, pp: int, virtual: int, first: int | None, last: int | None
) -> list[int]:
    """Layers of chunks where the first or last rank has a number of its own."""
    ends = (first is not None) + (last is not None)
    middle = layers - (first or 0) - (last or 0)
    ranks = pp - ends
    if ranks < 0 or middle < 0 or (middle % ranks if ranks else middle):
        raise InputError(
            f"{layers} layers less {first or 0} and {last or 0} at the ends leave {middle}, which"
            f" {ranks} stages between them cannot share evenly"
        )
    each = middle // ranks if ranks else 0
    of_rank = [each] * pp
    if first is not None:
        of_rank[0] = first
    if last is not None:
        of_rank[-1] = last
    if min(of_rank) < 1:
        raise InputError(
            f"stages of {', '.join(map(str, of_rank))} layers: numbers of the first or last stage"
            " leave each stage at least one; a layout (--pipeline-model-parallel-layout) need not"
        )
    odd = [n for n in of_rank if n % virtual]
    if odd:
        raise InputError(f"{odd[0]} layers of a stage do not divide into {virtual} virtual stages")
    return [n // virtual for _ in range(virtual) for n in of_rank]


def counted_chunks(layers: int, pp: int, virtual: int, *, embedding: bool, loss: bool) -> list[int]:
    """Layers of chunks where the embedding or the loss counts as a layer."""
    whole, chunks = layers + embedding + loss, pp * virtual
    if whole % chunks:
        raise InputError(
            f"{whole} layers, embedding and loss counted, cannot be dealt evenly to {chunks} stages"
        )
    out = [whole // chunks] * chunks
    out[0] -= embedding
    out[-1] -= loss
    return out


def filled_chunks(layers: int, pp: int, *, ends: bool) -> list[int]:
    """Layers of stages, each as full as the fullest must be; `ends` count as layers."""
    whole = layers + 2 * ends
    if whole % pp == 0 and not ends:
        return []
    most = -(-whole // pp)
    out = [max(min(most, whole - most * stage), 0) for stage in range(pp)]
    out[0] -= ends
    out[-1] -= ends
    if min(out) < 0:
        raise InputError(f"{layers} layers are too few for {pp} stages")
    return out


def titan_chunks(layers: int, chunks: int, first_less: int = 1, last_less: int = 1) -> list[int]:
    """Layers of stages as torchtitan deals them: early ones get what does not divide."""
    if chunks == 1:
        return [layers]
    whole = layers + first_less + last_less
    if whole < chunks:
        raise InputError(
            f"{whole} layers, {first_less} and {last_less} counted for the ends, are too few for"
            f" {chunks} stages"
        )
    out = [whole // chunks + (number < whole % chunks) for number in range(chunks)]
    out[0] -= first_less
    out[-1] -= last_less
    return out


def stages_of(chunks: Sequence[int]) -> list[dict[str, Any]]:
    if any(n < 0 for n in chunks):
        raise InputError(
            f"stages of {', '.join(map(str, chunks))} layers: there are too few layers"
        )
    ends = list(accumulate(chunks))
    return [{"layers": [end - n, end]} for n, end in zip(chunks, ends, strict=True)]
