"""A small module with all that training can meet, and what ranks do with a trainer of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from spmd_programs import drawn_program
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from astrarium.runtime.spmd.alone import drawn_by_position
from astrarium.runtime.spmd.execute import Peers, take_place
from astrarium.runtime.spmd.model import MadeModule
from astrarium.runtime.spmd.operators import key_of
from astrarium.runtime.spmd.train import HowTrained, Trainer
from astrarium.runtime.spmd.train.rows import Batch
from astrarium.runtime.spmd.train.trainer import USUAL
from astrarium.spmd.capture import capture, taken_apart
from astrarium.spmd.program import DeviceProgram

BATCH = 8
SIZES = {"width": 12}
Make = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Tied weights, a fused projection, dropout, norms, a buffer, a parameter that none reads."""

    def __init__(self, width: int, kind: str = "") -> None:
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(10, width)
        self.both = nn.Linear(width, 2 * width)
        self.norm, self.batch_norm = nn.LayerNorm(width), nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.25)
        self.guess = nn.Linear(width, 10, bias=False)
        self.guess.weight = self.words.weight
        self.unread = nn.Parameter(torch.randn(3))
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, text: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        self.calls += 1
        first, second = self.both(self.words(text)).chunk(2, -1)
        hidden = self.drop(self.norm(first * torch.sigmoid(second)))
        if self.kind == "batch norm":
            hidden = self.batch_norm(hidden.transpose(1, 2)).transpose(1, 2)
        if self.kind == "other in evaluation" and not self.training:
            hidden = torch.tanh(hidden)
        scores = (self.guess(hidden * weights)).flatten(0, 1)
        return nn.functional.cross_entropy(scores, labels.flatten())


def made(kind: str = "", seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return Net(12, kind).to(dtype).train()


def batch_of(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A whole batch; `weights` is not divided along it."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(10, (BATCH, 6), generator=generator)
    weights = torch.rand(12, generator=generator, dtype=dtype) + 0.5
    return {"text": text[:, :-1], "labels": text[:, 1:], "weights": weights}


@cache
def program_of(
    mesh: tuple[int, ...],
    micro_batches: int = 1,
    kind: str = "",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> DeviceProgram:
    whole = batch_of(0, dtype)
    rows = BATCH // micro_batches
    part = {name: x[:rows] if name != "weights" else x for name, x in whole.items()}
    graph = taken_apart(capture(made(kind, dtype=dtype), part))
    return drawn_program(graph, mesh, Random(f"{seed} {mesh}"), micro_batches)


def grouped(named: Any) -> torch.optim.Optimizer:
    """No decay of norms and of what has one dimension, as most trainings have it."""
    pairs = list(named)
    plain = [p for name, p in pairs if p.dim() < 2 or "norm" in name]
    others = [p for name, p in pairs if not (p.dim() < 2 or "norm" in name)]
    return torch.optim.AdamW(
        [{"params": plain, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.1}],
        lr=0.02,
        eps=1e-4,
    )


def of_kind(named: Any, name: str, **settings: float) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, name)
    found: torch.optim.Optimizer = kind([p for _, p in named], **settings)
    return found


@dataclass(frozen=True)
class Asked:
    """What ranks do: steps of so many batches each, between a checkpoint read and one written."""

    batches: Sequence[Batch]
    optimizer: Make = grouped
    accumulate: int = 1
    kind: str = ""
    how: HowTrained = USUAL
    load: Path | None = None
    save: Path | None = None
    evaluate: bool = False


@dataclass
class Done:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    scale: float = 1.0
    state: dict[str, Tensor] = field(default_factory=dict)


def dtype_of(program: DeviceProgram) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, program.graph.usual_dtype)
    return dtype


def trainer_on(peers: Peers, program: DeviceProgram, asked: Asked) -> tuple[nn.Module, Trainer]:
    """Only the first rank has the right weights."""
    module = made(asked.kind, peers.index, dtype_of(program))
    place = take_place(program.mesh, peers.index, peers.group)
    trainer = Trainer(
        program,
        MadeModule(module, {}),
        asked.optimizer,
        place,
        torch.device("cpu"),
        batch=BATCH,
        how=asked.how,
    )
    return module, trainer


def train(peers: Peers, program: DeviceProgram, asked: Asked) -> Done:
    module, trainer = trainer_on(peers, program, asked)
    schedule, done = StepLR(trainer.optimizer, 1, 0.9), Done()
    if asked.load is not None:
        trainer.load(asked.load, schedule=schedule)
    rows = [trainer.own_rows(batch) for batch in asked.batches]
    for number in range(0, len(rows), asked.accumulate):
        if asked.evaluate:
            done.evaluated.append(trainer.evaluate(rows[number]))
        step = trainer.step(*rows[number : number + asked.accumulate])
        done.losses.append(step.loss)
        done.norms.append(step.gradient_norm)
        done.skipped.append(step.is_skipped)
        done.rates.append(trainer.optimizer.param_groups[0]["lr"])
        schedule.step()
    if asked.save is not None:
        trainer.save(asked.save, schedule=schedule)
    done.state = trainer.state_dict()
    assert trainer.gather() is module
    if peers.index == 0:
        torch.testing.assert_close(module.state_dict(), done.state, rtol=0.0, atol=0.0)
    if trainer.scaler is not None:
        done.scale = trainer.scaler.get_scale()
    return done


def alone(asked: Asked, micro_batches: int, dtype: torch.dtype = torch.float64) -> Done:
    """The same by torch: the whole module in one process."""
    module, passes, done = made(asked.kind, dtype=dtype), 0, Done()
    optimizer = asked.optimizer(list(module.named_parameters()))
    schedule = StepLR(optimizer, 1, 0.9)
    for number in range(0, len(asked.batches), asked.accumulate):
        group = asked.batches[number : number + asked.accumulate]
        if asked.evaluate:
            done.evaluated.append(evaluated(module, group[0], micro_batches, asked.how.autocast))
        optimizer.zero_grad()
        total = 0.0
        parts = [part for batch in group for part in divided(batch, micro_batches)]
        for part in parts:
            dtype = asked.how.autocast
            with (
                drawn_by_position(key_of(asked.how.seed, passes)),
                torch.autocast("cpu", dtype, enabled=dtype is not None),
            ):
                loss = module(**part) / len(parts)
            loss.backward()
            passes, total = passes + 1, total + float(loss.detach())
        norm = nn.utils.clip_grad_norm_(module.parameters(), asked.how.clip_norm or torch.inf)
        done.losses.append(total)
        done.norms.append(float(norm))
        done.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    done.state = module.state_dict()
    return done


def divided(batch: Batch, micro_batches: int) -> list[dict[str, Tensor]]:
    rows = BATCH // micro_batches
    return [
        {n: x if n == "weights" else x[k * rows : (k + 1) * rows] for n, x in batch.items()}
        for k in range(micro_batches)
    ]


def evaluated(
    module: nn.Module, batch: Batch, micro_batches: int, dtype: torch.dtype | None
) -> float:
    before = {name: x.clone() for name, x in module.state_dict().items()}
    module.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        losses = [float(module(**part)) for part in divided(batch, micro_batches)]
    module.train()
    module.load_state_dict(before)
    return sum(losses) / len(losses)


sgd = partial(of_kind, name="SGD", lr=0.1)
