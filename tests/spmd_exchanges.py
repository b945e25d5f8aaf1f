"""What the processes of tests do with collectives: everything here is run on ranks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from astrarium.runtime.spmd.execute import Peers
from astrarium.runtime.spmd.execute.collectives import Route


def there_and_back(
    peers: Peers, routes: list[tuple[Route, Tensor, Tensor]]
) -> list[tuple[Tensor, Tensor]]:
    """Each value on its route, each gradient back."""
    found = []
    for route, value, gradient in routes:
        here = replace(route, peers=peers)
        found.append((here.start(value).wait(), here.start_back(gradient).wait()))
    return found


def whole(parts: list[Tensor], spread: str, dim: int) -> Tensor:
    """What tensors of ranks are together."""
    if spread == "shard":
        return torch.cat(parts, dim)
    if spread == "sum":
        return torch.stack(parts).sum(0)
    for part in parts[1:]:
        assert torch.equal(part, parts[0])
    return parts[0]
