"""Networks that recommend: sparse features in, a chance of a click out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from spmd_zoo.entry import Entry, Made, WithLoss

ROWS, WIDTH, FIELDS, NUMBERS = 50, 8, 4, 6


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Dense features and bags of sparse ones, which meet in products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(FIELDS))
        self.bottom, self.top = perceptron(NUMBERS, 16, WIDTH), perceptron(WIDTH + 10, 16, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = torch.stack([x, *(bag(sparse[:, k]) for k, bag in enumerate(self.bags))], 1)
        products = torch.bmm(found, found.transpose(1, 2))
        one, two = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
        return self.top(torch.cat([x, products[:, one, two]], 1)).squeeze(1)


class WideAndDeep(nn.Module):
    """A linear model of crossed features beside a perceptron of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(ROWS, 1, mode="sum")
        self.words = nn.Embedding(ROWS, WIDTH)
        self.deep = perceptron(FIELDS * 3 * WIDTH + NUMBERS, 16, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        flat = sparse.flatten(1)
        deep = self.deep(torch.cat([self.words(flat).flatten(1), dense], 1))
        return (self.wide(flat) + deep).squeeze(1)


class NeuralFiltering(nn.Module):
    """NCF: users and items by product and by perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, 2 * WIDTH), nn.Embedding(ROWS, 2 * WIDTH)
        self.deep, self.score = perceptron(2 * WIDTH, 16, WIDTH), nn.Linear(2 * WIDTH, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        user, item = self.users(sparse[:, 0, 0]), self.items(sparse[:, 1, 0])
        product = user[:, :WIDTH] * item[:, :WIDTH]
        deep = self.deep(torch.cat([user[:, WIDTH:], item[:, WIDTH:]], 1))
        return self.score(torch.cat([product, deep], 1)).squeeze(1)


class DeepFM(nn.Module):
    """A factorisation machine and a perceptron on the same embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, 1)
        self.deep = perceptron(FIELDS * WIDTH, 16, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        found = self.words(sparse[..., 0])
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1)).sum(1, keepdim=True)
        first = self.linear(sparse[..., 0]).sum(1)
        return (first + pairs + self.deep(found.flatten(1))).squeeze(1)


class DeepAndCross(nn.Module):
    """DCN v2: products with the input, layer after layer."""

    def __init__(self) -> None:
        super().__init__()
        width = FIELDS * WIDTH + NUMBERS
        self.words = nn.Embedding(ROWS, WIDTH)
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.score = perceptron(width, 16, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        first = x = torch.cat([self.words(sparse[..., 0]).flatten(1), dense], 1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.score(x).squeeze(1)


class AutoInt(nn.Module):
    """Attention between features (`nn.MultiheadAttention`)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.score = nn.Linear(FIELDS * WIDTH, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        found = self.words(sparse[..., 0])
        seen, _ = self.attention(found, found, found)
        return self.score(torch.relu(seen + found).flatten(1)).squeeze(1)


class TwoTowers(nn.Module):
    """Users and items of a batch against each other, the right pairs on the diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH)
        self.users, self.items = perceptron(WIDTH, 16, WIDTH), perceptron(WIDTH, 16, WIDTH)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        user = functional.normalize(self.users(self.words(left).mean(1)), dim=-1)
        item = functional.normalize(self.items(self.words(right).mean(1)), dim=-1)
        scores = user @ item.T / 0.1
        return functional.cross_entropy(scores, torch.arange(scores.shape[0]))


class MixtureOfGates(nn.Module):
    """MMoE: experts for several tasks, each with a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(perceptron(NUMBERS, 16, WIDTH) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(NUMBERS, 3) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        seen = torch.stack([expert(dense) for expert in self.experts], 1)
        tasks = [
            head((torch.softmax(gate(dense), -1).unsqueeze(-1) * seen).sum(1))
            for gate, head in zip(self.gates, self.heads, strict=True)
        ]
        return torch.stack(tasks).sum(0).squeeze(1)


def _clicks(network: Callable[[], nn.Module], batch: int) -> Made:
    return WithLoss(network(), nn.BCEWithLogitsLoss()), {
        "dense": torch.randn(batch, NUMBERS),
        "sparse": torch.randint(ROWS, (batch, FIELDS, 3)),
        "target": torch.randint(2, (batch,)).float(),
    }


def _pairs(batch: int) -> Made:
    return TwoTowers(), {name: torch.randint(ROWS, (batch, 3)) for name in ("left", "right")}


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "DLRM": DLRM, "Wide & Deep": WideAndDeep, "NCF": NeuralFiltering, "DeepFM": DeepFM,
    "DCN v2": DeepAndCross, "AutoInt": AutoInt, "MMoE": MixtureOfGates,
}  # fmt: skip
MODELS = {
    **{name: Entry("recommendation", partial(_clicks, made)) for name, made in NETWORKS.items()},
    "Two towers": Entry("recommendation", _pairs),
}
