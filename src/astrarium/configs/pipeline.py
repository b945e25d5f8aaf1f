"""How Megatron and torchtitan are told to cut a model into stages that are not all alike.

All functions return the layers of every chunk in model order: chunk c runs on pipeline rank
c mod pp, as in the `stages` of a strategy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from astrarium.errors import InputError

_MOST_LAYERS: Final = 100_000
_GROUP: Final = re.compile(r"\(([^()]*)\)\*(\d+)")
_LETTER: Final = re.compile(r"([EtmL])\*(\d+)")


def layout_chunks(text: str) -> list[int]:
    """Decoder layers of every stage of `--pipeline-model-parallel-layout`.

    Stages are divided by `|`; `E` is the embedding, `t` a layer, `m` a layer of multi-token
    prediction, `L` the loss; `x*n` and `(...)*n` repeat; commas mean nothing.
    """
    flat = re.sub(r"[\s,]", "", text)
    for pattern in (_LETTER, _GROUP):
        repeats = [int(found[1]) for found in pattern.findall(flat)]
        if sum(min(n, _MOST_LAYERS + 1) for n in repeats) > _MOST_LAYERS:
            raise InputError(f"the layout repeats more than {_MOST_LAYERS:,} layers")
        flat = pattern.sub(lambda found: found[1] * int(found[2]), flat)
    strange = re.search(r"[^EtmL|]", flat)
    if strange:
        raise InputError(
            f"the layout '{text}' has '{strange[0]}'; it is made of E, t, m, L, | and repeats"
            " such as t*8 or (tt|)*4"
        )
    if "m" in flat:
        raise InputError(f"the layout '{text}' has layers of multi-token prediction (m)")
    _check_ends(text, flat)
    return [stage.count("t") for stage in flat.split("|")]


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


def titan_chunks(layers: int, chunks: int, first_less: int = 1, last_less: int = 1) -> list[int]:
    """Layers of stages as torchtitan deals them: early ones get what does not divide."""
    if chunks == 1:
        return [layers]
    whole = layers + first_less + last_less
    out = [whole // chunks + (number < whole % chunks) for number in range(chunks)]
    out[0] -= first_less
    out[-1] -= last_less
    return out


def stages_of(chunks: Sequence[int]) -> list[dict[str, Any]]:
    """The `stages` of a strategy."""
    if any(n < 1 for n in chunks):
        raise InputError(
            f"stages of {', '.join(map(str, chunks))} layers: a stage without layers is not"
            " modelled; give each at least one"
        )
    ends = list(accumulate(chunks))
    return [{"layers": [end - n, end]} for n, end in zip(chunks, ends, strict=True)]
