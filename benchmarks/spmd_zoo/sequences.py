"""Recurrent, convolutional and other networks for sequences and graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from spmd_zoo.entry import Entry, Made, WithLoss, classifier

WORDS, LENGTH, WIDTH, CLASSES = 60, 12, 16, 5


class LanguageModel(nn.Module):
    """Words, a network over them, scores of the next word."""

    def __init__(self, network: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.words, self.network = nn.Embedding(WORDS, WIDTH), network
        self.scores = nn.Linear(width, WORDS)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        found = self.network(self.words(words))
        found = found[0] if isinstance(found, tuple) else found
        scores = self.scores(found)
        return functional.cross_entropy(scores.view(-1, WORDS), labels.view(-1))


class LastState(nn.Module):
    """A recurrent network that is asked for its last state."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.scores = network, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.network(x)
        return self.scores(states[:, -1])


class TemporalBlock(nn.Module):
    """TCN: convolution that sees only what was before."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(channels, channels, 3, dilation=dilation)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.drop(torch.relu(self.conv(functional.pad(x, (self.pad, 0))))))


class Temporal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TemporalBlock(WIDTH, d) for d in (1, 2, 4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x.transpose(1, 2)).transpose(1, 2)


class WaveNet(nn.Module):
    """Gated convolutions with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=d) for d in (1, 2, 4))
        self.outs = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, total = x.transpose(1, 2), 0.0
        for gate, out, skip in zip(self.gates, self.outs, self.skips, strict=True):
            filtered, opened = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            seen = torch.tanh(filtered) * torch.sigmoid(opened)
            total = total + skip(seen)
            x = x + out(seen)
        return torch.relu(total).transpose(1, 2)


class SelectiveScan(nn.Module):
    """Mamba's block with a loop over time."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        inner = 2 * WIDTH
        self.enter, self.leave = nn.Linear(WIDTH, 2 * inner), nn.Linear(inner, WIDTH)
        self.conv = nn.Conv1d(inner, inner, 3, groups=inner, padding=2)
        self.select = nn.Linear(inner, 2 * states + 1)
        self.step = nn.Linear(1, inner)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.through = nn.Parameter(torch.ones(inner))
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.enter(x).chunk(2, dim=-1)
        length = x.shape[1]
        values = functional.silu(self.conv(values.transpose(1, 2))[..., :length].transpose(1, 2))
        step, into, out = self.select(values).split([1, self.states, self.states], dim=-1)
        step = functional.softplus(self.step(step))
        kept = torch.exp(step.unsqueeze(-1) * -torch.exp(self.decay))
        new = (step * values).unsqueeze(-1) * into.unsqueeze(2)
        state, found = torch.zeros_like(new[:, 0]), []
        for t in range(length):
            state = kept[:, t] * state + new[:, t]
            found.append((state * out[:, t, None]).sum(-1))
        return self.leave((torch.stack(found, 1) + values * self.through) * functional.silu(gate))


class LinearAttention(nn.Module):
    """Attention without softmax (Performer, linear transformers)."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.three = heads, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = self.three(x).view(b, s, 3, self.heads, d // self.heads).unbind(2)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        summary = torch.einsum("bshd,bshe->bhde", k, v)
        size = 1.0 / torch.einsum("bshd,bhd->bsh", q, k.sum(dim=1))
        return torch.einsum("bshd,bhde,bsh->bshe", q, summary, size).reshape(b, s, d)


class Encoder(nn.Module):
    """torch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Translator(nn.Module):
    """torch's own `nn.Transformer`, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.both = nn.Transformer(WIDTH, 4, 1, 1, 32, batch_first=True)
        self.scores = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(labels.shape[1] - 1)
        found = self.both(
            self.words(words), self.words(labels[:, :-1]), tgt_mask=mask, tgt_is_causal=True
        )
        return functional.cross_entropy(self.scores(found).transpose(1, 2), labels[:, 1:])


class ConvLSTM(nn.Module):
    """A cell whose gates are convolutions, over frames."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.channels = channels
        self.gates = nn.Conv2d(1 + channels, 4 * channels, 3, padding=1)
        self.scores = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _, h, w = x.shape
        hidden = cell = x.new_zeros(b, self.channels, h, w)
        for k in range(t):
            i, f, o, g = self.gates(torch.cat([x[:, k], hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.scores(hidden)


class MessagePassing(nn.Module):
    """GraphSAGE on one graph: neighbours' features are added up by `index_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList((nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)))
        self.others = nn.ModuleList((nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, into = edges.T
        for k, (own, others) in enumerate(zip(self.own, self.others, strict=True)):
            seen = torch.zeros_like(x).index_add(0, into, x[source])
            x = own(x) + others(seen)
            x = torch.relu(x) if k == 0 else x
        return x


class GraphConvolution(nn.Module):
    """GCN with a dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency = adjacency + torch.eye(adjacency.shape[-1])
        scaled = adjacency / adjacency.sum(-1, keepdim=True)
        return self.two(scaled @ torch.relu(self.one(scaled @ x))).mean(1)


class GraphAttention(nn.Module):
    """GAT with a dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.left, self.right = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.enter(x)
        scores = functional.leaky_relu(self.left(x) + self.right(x).transpose(1, 2), 0.2)
        scores = scores.masked_fill(adjacency == 0, -1e9)
        return self.leave(functional.elu(torch.softmax(scores, -1) @ x)).mean(1)


def _language(network: Callable[[], nn.Module], width: int, batch: int) -> Made:
    inputs = {name: torch.randint(WORDS, (batch, LENGTH)) for name in ("words", "labels")}
    return LanguageModel(network(), width), inputs


def _states(network: Callable[[], nn.Module], width: int, batch: int) -> Made:
    return classifier(LastState(network(), width), CLASSES, batch, x=torch.randn(batch, LENGTH, 8))


def _translator(batch: int) -> Made:
    return Translator(), {n: torch.randint(WORDS, (batch, LENGTH)) for n in ("words", "labels")}


def _frames(batch: int) -> Made:
    inputs = {"x": torch.randn(batch, 4, 1, 8, 8), "target": torch.rand(batch, 1, 8, 8)}
    return WithLoss(ConvLSTM(), nn.BCEWithLogitsLoss()), inputs


def _one_graph(batch: int) -> Made:
    nodes = 5 * batch
    return classifier(
        MessagePassing(),
        CLASSES,
        nodes,
        x=torch.randn(nodes, 8),
        edges=torch.randint(nodes, (4 * nodes, 2)),
    )


def _graphs(network: Callable[[], nn.Module], batch: int) -> Made:
    adjacency = (torch.rand(batch, 6, 6) < 0.4).float()
    return classifier(network(), CLASSES, batch, x=torch.randn(batch, 6, 8), adjacency=adjacency)


RNN = {"input_size": WIDTH, "hidden_size": WIDTH, "batch_first": True}
MODELS = {
    "LSTM language model": Entry(
        "recurrent", partial(_language, partial(nn.LSTM, **RNN, num_layers=2, dropout=0.2), WIDTH)),
    "GRU language model": Entry("recurrent", partial(_language, partial(nn.GRU, **RNN), WIDTH)),
    "LSTM, both ways": Entry("recurrent", partial(
        _states, partial(nn.LSTM, 8, WIDTH, batch_first=True, bidirectional=True), 2 * WIDTH)),
    "RNN": Entry("recurrent", partial(_states, partial(nn.RNN, 8, WIDTH, batch_first=True), WIDTH)),
    "ConvLSTM": Entry("recurrent", _frames),
    "TCN": Entry("audio", partial(_language, Temporal, WIDTH)),
    "WaveNet": Entry("audio", partial(_language, WaveNet, WIDTH)),
    "Selective scan": Entry("state space", partial(_language, SelectiveScan, WIDTH)),
    "Linear attention": Entry("language", partial(_language, LinearAttention, WIDTH)),
    "nn.TransformerEncoder": Entry("encoder", partial(_language, Encoder, WIDTH)),
    "nn.Transformer": Entry("encoder-decoder", _translator),
    "GraphSAGE": Entry("graph", _one_graph),
    "GCN": Entry("graph", partial(_graphs, GraphConvolution)),
    "GAT": Entry("graph", partial(_graphs, GraphAttention)),
}  # fmt: skip
