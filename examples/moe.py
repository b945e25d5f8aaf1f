"""BERT with mixtures of experts: every `every`-th layer sends each token to two of its experts.

Gating is GShard's (Lepikhin et al., 2020): each sequence is a group of its own, an expert takes at
most `capacity` tokens of it, what does not fit passes by the experts. So all shapes are fixed, and
batch, experts and features can each be divided. Names of axes: b sequences, s tokens, e experts,
c places of an expert, d features, f features inside of an expert.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def one_hot(index: torch.Tensor, count: int) -> torch.Tensor:
    return index.unsqueeze(-1) == torch.arange(count, device=index.device)


class Gate(nn.Module):
    """Which two experts take each token, in which of their places, and with which weights."""

    def __init__(self, hidden: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, experts, bias=False)
        self.experts = experts
        self.capacity = capacity

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = functional.softmax(self.scores(x), dim=-1)  # bse
        first = one_hot(chances.argmax(dim=-1), self.experts)
        second = one_hot(chances.masked_fill(first, 0.0).argmax(dim=-1), self.experts)
        balance = (chances.mean(dim=1) * first.to(x.dtype).mean(dim=1)).mean()

        first_count, second_count = first.to(torch.int64), second.to(torch.int64)
        # First choices are seated before second ones, each in the order of the sequence.
        first_place = first_count.cumsum(dim=1) - first_count
        second_place = second_count.cumsum(dim=1) - second_count + first_count.sum(1, keepdim=True)
        first = first & (first_place < self.capacity)
        second = second & (second_place < self.capacity)

        taken = chances * (first | second).to(x.dtype)
        weights = taken / taken.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        place = torch.where(first, first_place, second_place)
        combine = weights.unsqueeze(-1) * one_hot(place, self.capacity).to(x.dtype)  # bsec
        return combine, balance * self.experts**2


class Experts(nn.Module):
    """A gate, and feed-forward networks that each take their tokens."""

    def __init__(
        self, hidden: int, feed_forward: int, experts: int, sequence: int, capacity_factor: float
    ) -> None:
        super().__init__()
        capacity = max(1, math.ceil(2 * sequence / experts * capacity_factor))
        self.gate = Gate(hidden, experts, capacity)
        self.inner = nn.Parameter(torch.randn(experts, hidden, feed_forward) * hidden**-0.5)
        self.outer = nn.Parameter(torch.randn(experts, feed_forward, hidden) * feed_forward**-0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        combine, balance = self.gate(x)
        dispatch = (combine > 0).to(x.dtype)
        tokens = torch.einsum("bsec,bsd->becd", dispatch, x)
        inside = functional.gelu(torch.einsum("becd,edf->becf", tokens, self.inner))
        results = torch.einsum("becf,efd->becd", inside, self.outer)
        return torch.einsum("bsec,becd->bsd", combine, results), balance


class FeedForward(nn.Module):
    """The dense layer that experts stand in for; nothing to balance."""

    def __init__(self, hidden: int, feed_forward: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, feed_forward)
        self.outer = nn.Linear(feed_forward, hidden)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.outer(functional.gelu(self.inner(x))), None


class Attention(nn.Module):
    """Every token looks at all others of its sequence."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.heads = heads
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Attention, then a feed-forward network or experts, each normalised after its residual."""

    def __init__(
        self, feed_forward: nn.Module, hidden: int, heads: int, dropout: float, attention: float
    ) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, attention)
        self.attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        result, balance = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(result)), balance


class BertMoE(nn.Module):
    """A masked language model; gives its loss, with the balance of experts if it is asked for."""

    def __init__(
        self, layers: list[nn.Module], hidden: int, sequence: int, vocabulary: int, balance: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(layers)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.balance = balance

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        balances = []
        for layer in self.layers:
            x, balance = layer(x)
            if balance is not None:
                balances.append(balance)
        loss = functional.cross_entropy(self.decoder(x).flatten(0, 1), labels.flatten())
        return loss + self.balance * sum(balances) if self.balance and balances else loss


def make(  # noqa: PLR0913  every size can be set
    batch: int,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    sequence: int = 128,
    vocabulary: int = 33_000,
    experts: int = 8,
    every: int = 2,
    capacity_factor: float = 1.0,
    balance: float = 0.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    def layer(number: int) -> nn.Module:
        chosen = (
            Experts(hidden, 4 * hidden, experts, sequence, capacity_factor)
            if number % every == every - 1
            else FeedForward(hidden, 4 * hidden)
        )
        return Layer(chosen, hidden, heads, dropout, attention_dropout)

    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, sequence)),
        "labels": torch.randint(vocabulary, (batch, sequence)),
    }
    stack = [layer(number) for number in range(layers)]
    return BertMoE(stack, hidden, sequence, vocabulary, balance), inputs
