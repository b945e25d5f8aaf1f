"""How a tensor is spread over devices, and what that says of its gradient.

A value and its gradient are spread as a pair, so that both passes of training are decided at once:

| layout    | value                        | gradient                     |
|-----------|------------------------------|------------------------------|
| replicate | the same on every device     | the same on every device     |
| copied    | the same on every device     | parts that add up            |
| shard(d)  | pieces along dimension d     | pieces along dimension d     |
| partial   | parts that add up            | the same on every device     |

`copied` is what a device takes of a whole tensor to do its own share of the work with it: the
weights of data parallel training, the input of a column-parallel product. It differs from
`replicate` in the backward pass alone: going from one to the other is an all-reduce of gradients.
Tensors without a gradient are never `copied`: there it is the same as `replicate`.

On a mesh of several levels a tensor has one layout per level, the outermost first (`Placement`);
a piece of the outer level is what the inner level divides again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Holding(StrEnum):
    """What devices hold of a tensor; see the table above."""

    REPLICATE = "replicate"
    COPIED = "copied"
    SHARD = "shard"
    PARTIAL = "partial"


class TensorLayout(NamedTuple):
    """How a tensor is spread over the devices of one level of the mesh.

    A tuple, as layouts are keys of most tables of the synthesis: hashing them must be cheap.
    """

    spread: Holding
    dim: int = -1  # of a shard: which dimension, never negative

    @property
    def is_shard(self) -> bool:
        return self.spread is Holding.SHARD

    def __str__(self) -> str:
        return f"shard({self.dim})" if self.is_shard else self.spread.value


REPLICATE = TensorLayout(Holding.REPLICATE)
COPIED = TensorLayout(Holding.COPIED)
PARTIAL = TensorLayout(Holding.PARTIAL)

Placement = tuple[TensorLayout, ...]


def shard(dim: int) -> TensorLayout:
    """Pieces along a dimension."""
    return TensorLayout(Holding.SHARD, dim)


def parse_layout(text: str) -> TensorLayout:
    """Read what `str` of a layout writes."""
    name, _, dim = text.partition("(")
    return shard(int(dim.removesuffix(")"))) if dim else TensorLayout(Holding(name))
