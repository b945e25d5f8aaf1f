"""A module trained by ranks in the user's loop is the module trained by torch in one process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from spmd_ranks import Ranks
from spmd_trainer import (
    Asked,
    Done,
    alone,
    batch_of,
    grouped,
    made,
    of_kind,
    program_of,
    sgd,
    train,
)

from astrarium.errors import InputError
from astrarium.runtime.spmd.train import HowTrained
from astrarium.runtime.spmd.train.autocast import under_autocast
from astrarium.runtime.spmd.train.optimizers import check_elementwise
from astrarium.spmd.capture import capture

BATCHES = [batch_of(seed) for seed in range(6)]


def _assert_equal(found: Done, expected: Done, tolerance: float = 1e-9) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=tolerance)
    assert found.rates == expected.rates
    if found.state:
        assert found.state.keys() == expected.state.keys()
        for name, tensor in expected.state.items():
            torch.testing.assert_close(
                found.state[name], tensor, rtol=100 * tolerance, atol=tolerance
            )


@pytest.mark.parametrize(("mesh", "micro_batches"), [((3,), 2), ((4,), 1), ((2, 2), 1)])
def test_steps_are_those_of_torch(ranks: Ranks, mesh: tuple[int, ...], micro_batches: int) -> None:
    """Groups by name, accumulation, clipping, a schedule, dropout; weights of the first rank."""
    asked = Asked(BATCHES, accumulate=2, how=HowTrained(seed=5, clip_norm=0.3), evaluate=True)
    expected = alone(asked, micro_batches)
    assert min(expected.norms) > 0.3
    program = program_of(mesh, micro_batches)
    found = ranks.run(train, [(program, asked)] * prod(mesh))
    for one in found:
        _assert_equal(one, expected)
        assert one.norms == pytest.approx(expected.norms, rel=1e-9)
        assert one.evaluated == pytest.approx(expected.evaluated, rel=1e-9)
    assert found[0].state
    assert not found[1].state


ELEMENTWISE: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adadelta": {},
    "Adamax": {},
    "ASGD": {},
    "RMSprop": {"centered": True},
    "Rprop": {},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_any_optimizer_that_treats_elements_for_themselves(
    ranks: Ranks, tmp_path: Path, name: str
) -> None:
    """Also through a checkpoint, into a program for other ranks."""
    make = partial(of_kind, name=name, **ELEMENTWISE[name])
    expected = alone(Asked(BATCHES[:4], make), 1)
    first = Asked(BATCHES[:2], make, save=tmp_path / "two")
    ranks.run(train, [(program_of((2,), seed=1), first)] * 2)
    then = Asked(BATCHES[2:4], make, load=tmp_path / "two")
    (found, *_) = ranks.run(train, [(program_of((3,)), then)] * 3)
    _assert_equal(found, replace(expected, losses=expected.losses[2:], rates=expected.rates[2:]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LBFGS", "optimizer LBFGS cannot be used on pieces"),
        ("Adafactor", "optimizer Adafactor looks at parameters as a whole"),
        ("Muon", "optimizer Muon looks at parameters as a whole"),
        ("SparseAdam", "optimizer SparseAdam cannot be used on pieces"),
    ],
)
def test_other_optimizers_are_refused_by_name(name: str, said: str) -> None:
    optimizer = getattr(torch.optim, name)([torch.zeros(3, 4, requires_grad=True)])
    with pytest.raises(InputError, match=said):
        check_elementwise(optimizer)


class Trusting(torch.optim.SGD):  # type: ignore[misc]  # torch has no types here
    """As LAMB and LARS: a parameter's norm says how far it goes."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                ratio = parameter.norm() / parameter.grad.norm()
                parameter.sub_(group["lr"] * ratio * parameter.grad)


def test_optimizers_of_others_are_tried_out() -> None:
    optimizer = Trusting([torch.zeros(3, 4, requires_grad=True)])
    with pytest.raises(InputError, match="optimizer Trusting looks at parameters as a whole"):
        check_elementwise(optimizer)
    with pytest.raises(InputError, match="clip_norm is 0; give a norm above 0"):
        HowTrained(clip_norm=0)


def test_a_resumed_training_is_one_that_went_on(ranks: Ranks, tmp_path: Path) -> None:
    """Of AdamW with groups, a schedule, dropout and statistics of batch norm, on other ranks."""
    how = HowTrained(seed=3, clip_norm=1.0)
    asked = Asked(BATCHES, kind="batch norm", how=how)
    (whole, *_) = ranks.run(train, [(program_of((2,), kind="batch norm"), asked)] * 2)
    first = replace(asked, batches=BATCHES[:3], save=tmp_path / "three")
    then = replace(asked, batches=BATCHES[3:], load=tmp_path / "three")
    ranks.run(train, [(program_of((2, 2), kind="batch norm", seed=2), first)] * 4)
    (found, *_) = ranks.run(train, [(program_of((3,), kind="batch norm", seed=3), then)] * 3)
    _assert_equal(found, replace(whole, losses=whole.losses[3:], rates=whole.rates[3:]))
    assert float(found.state["calls"]) == 6.0
    assert float(found.state["batch_norm.running_var"].mean()) != 1.0


@pytest.mark.parametrize("kind", ["", "batch norm"])
def test_bfloat16_is_that_of_autocast(ranks: Ranks, kind: str) -> None:
    """Formats agree on all ranks, also where pieces are empty."""
    batches = [batch_of(seed, torch.float32) for seed in range(3)]
    how = HowTrained(autocast=torch.bfloat16)
    asked = Asked(batches, sgd, kind=kind, how=how, evaluate=True)
    exact = alone(replace(asked, how=HowTrained()), 1, torch.float32)
    expected = alone(asked, 1, torch.float32)
    off = max(abs(a - b) for a, b in zip(exact.losses, expected.losses, strict=True))
    assert off > 1e-5
    for seed in range(3):
        program = program_of((4,), kind=kind, seed=seed, dtype=torch.float32)
        for found in ranks.run(train, [(program, asked)] * 4):
            assert found.losses == pytest.approx(expected.losses, abs=4 * off)
            assert found.losses != pytest.approx(exact.losses, abs=1e-7)
            assert found.evaluated == pytest.approx(expected.evaluated, abs=4 * off)


def test_operators_that_torch_does_not_know_stay_in_their_format() -> None:
    graph = program_of((2,), dtype=torch.float32).graph
    at = next(k for k, node in enumerate(graph.nodes) if node.op == "aten.sigmoid.default")
    formats = under_autocast(graph, torch.bfloat16, torch.device("cpu")).nodes
    assert (formats[at].dtype, formats[at].computed_in) == ("float32", "")
    einsum = next(node for node in formats if node.op == "aten.einsum.default")
    assert (einsum.dtype, einsum.computed_in) == ("bfloat16", "bfloat16")
    other = replace(graph.nodes[at], op="own.experts.default")
    nodes = (*graph.nodes[:at], other, *graph.nodes[at + 1 :])
    changed = under_autocast(replace(graph, nodes=nodes), torch.bfloat16, torch.device("cpu"))
    assert (changed.nodes[at].dtype, changed.nodes[at].computed_in) == ("float32", "float32")
    with pytest.raises(InputError, match=r"autocast is torch\.float64; expected torch\.bfloat16"):
        under_autocast(graph, torch.float64, torch.device("cpu"))


def test_whole_numbers_say_nothing_of_an_operators_format() -> None:
    class Products(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            counted = numbers.prod(-1).float().mean()
            return self.linear(x).prod(-1).mean() + counted

    inputs = {"x": torch.empty(4, 8), "numbers": torch.empty(4, 3, dtype=torch.int64)}
    graph = under_autocast(capture(Products(), inputs), torch.bfloat16, torch.device("cpu"))
    products = [node for node in graph.nodes if node.op.startswith("aten.prod")]
    assert [node.computed_in for node in products] == ["", "float32"]


def test_gradients_beyond_float16_are_used_on_no_rank(ranks: Ranks) -> None:
    """The scale is halved until they fit; weights stay as they were."""
    batches = [batch_of(0, torch.float32)] * 8
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=50)
    how = HowTrained(autocast=torch.float16, scaler=scaler)
    program = program_of((3,), dtype=torch.float32)
    for found in ranks.run(train, [(program, Asked(batches, sgd, how=how))] * 3):
        count = found.skipped.index(False)
        assert 0 < count < 7
        assert found.skipped == [True] * count + [False] * (8 - count)
        assert found.scale == 2.0 ** (21 - count)
    first = Asked(batches[:1], sgd, how=how)
    found, *_ = ranks.run(train, [(program, first)] * 3)
    assert torch.equal(found.state["words.weight"], made(dtype=torch.float32).words.weight)
    small = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    asked = Asked(batches, sgd, how=HowTrained(autocast=torch.float16, scaler=small))
    found, *_ = ranks.run(train, [(program, asked)] * 3)
    expected = alone(asked, 1, torch.float32)
    assert not any(found.skipped)
    assert found.losses == pytest.approx(expected.losses, abs=3e-3)


def test_evaluation_reads_statistics_and_changes_nothing(ranks: Ranks) -> None:
    asked = Asked(BATCHES[:3], kind="batch norm", evaluate=True)
    expected = alone(asked, 2)
    for found in ranks.run(train, [(program_of((3,), 2, "batch norm"), asked)] * 3):
        assert found.evaluated == pytest.approx(expected.evaluated, rel=1e-9)
        _assert_equal(found, expected)


def test_a_module_that_is_another_in_evaluation_is_refused(ranks: Ranks) -> None:
    kind = "other in evaluation"
    asked = Asked(BATCHES[:1], grouped, kind=kind, evaluate=True)
    said = r"aten\.tanh\.default \(spmd_trainer\.py:\d+\), and a program has the one alone"
    with pytest.raises(AssertionError, match=said):
        ranks.run(train, [(program_of((2,), kind=kind), asked)] * 2)
