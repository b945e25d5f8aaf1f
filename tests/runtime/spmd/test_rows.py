"""What a trainer asks of the user: rows, a module, an optimizer; here mostly of one rank."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model
from spmd_examples import factory
from spmd_programs import on_one_rank
from spmd_ranks import Ranks
from spmd_trainer import BATCH, Asked, Net, batch_of, grouped, made, program_of, trainer_on
from torch import nn

from astrarium.errors import InputError
from astrarium.runtime.spmd.execute import Peers
from astrarium.runtime.spmd.train import Trainer
from astrarium.runtime.spmd.train.trainer import check_module, meet
from astrarium.spmd.program import SourcePart

ROWS = 27
NOWHERE = SourcePart("nowhere.py:make", BATCH)


def dataset() -> list[dict[str, Any]]:
    rows = [{name: x[0] for name, x in batch_of(seed).items()} for seed in range(ROWS)]
    return [{"text": row["text"], "labels": row["labels"]} for row in rows]


def read(peers: Peers, program: Any, folder: Path | None) -> tuple[list[list[int]], list[float]]:
    """Rows that a rank reads in two epochs, and losses; with a folder, by two trainers."""
    _, trainer = trainer_on(peers, program, Asked([]))
    assert next(iter(trainer.sampler(dataset(), training=False))) == [*trainer.rows]
    weights = {"weights": batch_of(0)["weights"]}
    found: list[list[int]] = []
    losses: list[float] = []
    while len(found) < 2 * (ROWS // BATCH):
        sampler = trainer.sampler(dataset(), shuffle=True, seed=4)
        loader = trainer.loader(dataset(), shuffle=True, seed=4)
        for rows, batch in zip(sampler, loader, strict=True):
            losses.append(trainer.step({**batch, **weights}).loss)
            found.append(rows)
            if folder is not None and len(found) == 2:
                trainer.save(folder)
                _, trainer = trainer_on(peers, program, Asked([]))
                trainer.load(folder)
                break
    return found, losses


@pytest.mark.parametrize(("mesh", "micro_batches"), [((3,), 2), ((4,), 1), ((2, 2), 1)])
def test_ranks_read_every_row_once(
    ranks: Ranks, tmp_path: Path, mesh: tuple[int, ...], micro_batches: int
) -> None:
    """Some read none; a training that is resumed goes on in the epoch; the next is another."""
    program = program_of(mesh, micro_batches, seed=2)
    found = ranks.run(read, [(program, None)] * prod(mesh))
    assert len({tuple(losses) for _, losses in found}) == 1
    parts = zip(*(rows for rows, _ in found), strict=True)
    together = [[row for part in batch for row in part] for batch in parts]
    half = len(together) // 2
    epochs = [[row for batch in together[k : k + half] for row in batch] for k in (0, half)]
    for rows in epochs:
        assert len(set(rows)) == len(rows) == half * BATCH
    assert epochs[0] != epochs[1]
    resumed = ranks.run(read, [(program, tmp_path / "two")] * prod(mesh))
    assert [rows for rows, _ in resumed] == [rows for rows, _ in found]
    assert resumed[0][1] == found[0][1]


@pytest.fixture
def trainer() -> Trainer:
    module, found = trainer_on(Peers(), on_one_rank(program_of((2,))), Asked([]))
    found.kept_alive = module  # type: ignore[attr-defined]
    return found


def test_batches_that_do_not_fit_are_named(trainer: Trainer) -> None:
    batch = batch_of(0)
    with pytest.raises(InputError, match="no input 'labels', which the program reads; it has 't"):
        trainer.step({"text": batch["text"]})
    with pytest.raises(InputError, match=r"'labels' is int64 of shape \(7, 5\), .*8 of 8 rows"):
        trainer.step({**batch, "labels": batch["labels"][1:]})
    with pytest.raises(InputError, match=r"'weights' is float32 of .*not divided along the batch"):
        trainer.evaluate({**batch, "weights": batch["weights"].float()})
    with pytest.raises(InputError, match=r"step\(\) has no batch"):
        trainer.step()
    with pytest.raises(InputError, match="has 5 rows, fewer than the 8 of a batch"):
        trainer.sampler(range(5))


def test_an_optimizer_of_the_modules_parameters_gets_pieces() -> None:
    module = made()
    optimizer = grouped(module.named_parameters())
    asked = Asked([], lambda named: optimizer)
    with pytest.raises(InputError, match=r"has a parameter of shape .* that the module has not"):
        trainer_on(Peers(), on_one_rank(program_of((2,))), asked)
    with pytest.raises(InputError, match="optimizer is a value of type int"):
        trainer_on(Peers(), on_one_rank(program_of((2,))), Asked([], lambda named: 3))


def test_weights_for_others(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.step(batch_of(0))
    path = tmp_path / "new" / "weights.safetensors"
    trainer.save_safetensors(path)
    other = made(seed=9)
    load_model(other, path)
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(InputError, match="pip install safetensors"):
        trainer.save_safetensors(path)


def test_what_is_no_checkpoint_is_not_replaced(trainer: Trainer, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(InputError, match=r"holds something else than a checkpoint \(mine\.txt\)"):
        trainer.save(tmp_path)
    assert mine.read_text() == "mine"


def test_a_module_that_is_gone_is_missed() -> None:
    trainer = trainer_on(Peers(), on_one_rank(program_of((2,))), Asked([]))[1]
    assert trainer.step(batch_of(0)).loss > 0.0
    with pytest.raises(InputError, match="the module is gone"):
        trainer.gather()


def _wider() -> nn.Module:
    return Net(16).double()


def _single() -> nn.Module:
    return made().float()


def _frozen() -> nn.Module:
    module = made()
    module.both.bias.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_wider, r"no tensor 'words\.weight' of shape \(10, 12\)"),
        (_single, r"'\S+' is float32 in the module, and float64 in the program"),
        (_frozen, r"parameter 'both\.bias' is frozen in the module, and trained in the program"),
    ],
)
def test_other_modules_are_refused_by_name(make: Any, said: str) -> None:
    check_module(NOWHERE, program_of((2,)).graph, made())
    with pytest.raises(InputError, match=said):
        check_module(NOWHERE, program_of((2,)).graph, make())


def test_what_a_program_does_not_use_is_compared_with_its_factory() -> None:
    from spmd_examples import SIZES, example

    one = example("mlp")
    source = SourcePart(factory("mlp"), 5, SIZES["mlp"])
    check_module(source, one.graph, one.model.module)
    more = one.model.copied().module
    more.extra = nn.Linear(2, 2).double()
    with pytest.raises(InputError, match=r"the module has 'extra\.bias', and .*mlp\.py:make has"):
        check_module(source, one.graph, more)


def test_scripts_are_started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="start the script with torchrun, one process for each"):
        meet(4, torch.device("cpu"))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_other_micro_batches_go_on_with_the_next_batch(tmp_path: Path, micro_batches: int) -> None:
    _, trainer = trainer_on(Peers(), program_of((1,), 4), Asked([]))
    for seed in range(2):
        trainer.step(trainer.own_rows(batch_of(seed)))
    trainer.save(tmp_path / "kept")
    _, other = trainer_on(Peers(), program_of((1,), micro_batches), Asked([]))
    other.load(tmp_path / "kept")
    assert other.batches_done == trainer.batches_done == 2


def test_going_back_forgets_what_the_optimizer_kept(tmp_path: Path) -> None:
    _, trainer = trainer_on(Peers(), program_of((1,)), Asked([]))
    rows = trainer.own_rows(batch_of(0))
    trainer.save(tmp_path / "first")
    losses = [trainer.step(rows).loss for _ in range(3)]
    trainer.load(tmp_path / "first")
    assert [trainer.step(rows).loss for _ in range(3)] == losses


def test_checkpoints_in_another_format_are_refused(tmp_path: Path) -> None:
    _, trainer = trainer_on(Peers(), program_of((1,)), Asked([]))
    trainer.save(tmp_path / "wide")
    _, other = trainer_on(Peers(), program_of((1,), dtype=torch.float32), Asked([]))
    with pytest.raises(InputError, match=r"in torch\.float64, not in torch\.float32"):
        other.load(tmp_path / "wide")
