from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from spmd_examples import example
from spmd_programs import drawn_program, on_one_rank
from spmd_ranks import Ranks
from spmd_training import resumed, saved, training_on
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from astrarium.errors import InputError
from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.execute import Peers, Piece
from astrarium.runtime.spmd.train import Reader, Recipe
from astrarium.runtime.spmd.train.boxes import stored_boxes
from astrarium.runtime.spmd.train.checkpoint import MANIFEST, SCHEMA, load, reassemble
from astrarium.spmd.graph import PARAMETER, Node

# GPT-2's loss is computed in single precision; a large epsilon keeps Adam from dividing by the
# rounding errors of gradients that are zero.
RECIPE = Recipe("adam", 1e-2, (("eps", 1e-3),))


@pytest.fixture(scope="module")
def checkpoint(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Of GPT-2, which has a tied weight, after two steps of three ranks; the loss later on."""
    folder = tmp_path_factory.mktemp("checkpoints") / "two"
    one = example("gpt2")
    program = drawn_program(one.graph, (3,), Random(3))
    state, batches = one.model.state(one.graph), [one.model.inputs]
    aliases = one.model.aliases(one.graph)
    assert aliases
    for _ in range(2):  # the second takes the place of the first
        losses = ranks.run(saved, [(program, state, batches, RECIPE, folder, aliases)] * 3)
    assert [path.name for path in folder.parent.iterdir()] == ["two"]
    return folder, losses[0]


@pytest.mark.parametrize("count", [2, 4])
def test_other_programs_go_on(ranks: Ranks, checkpoint: tuple[Path, float], count: int) -> None:
    folder, expected = checkpoint
    one = example("gpt2")
    program = drawn_program(one.graph, (count,), Random(count))
    state, batches = one.model.state(one.graph), [one.model.inputs]
    for loss in ranks.run(resumed, [(program, state, batches, RECIPE, folder)] * count):
        assert loss == pytest.approx(expected, rel=1e-6)


def test_the_plain_state_dict(checkpoint: tuple[Path, float]) -> None:
    """Equal to that of the module after the same steps, optimizer included."""
    folder, _ = checkpoint
    one = example("gpt2")
    model = one.model.copied()
    alone = ModuleAlone(model, RECIPE, torch.device("cpu"))
    for _ in range(2):
        alone.step([model.inputs])
    state = torch.load(reassemble(folder), weights_only=True)
    assert torch.equal(state.pop("buffer"), torch.arange(3))
    expected = {name: p for name, p in model.module.named_parameters(remove_duplicate=False)}
    assert state.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(state[name], parameter.detach(), rtol=1e-5, atol=1e-6)
    kept = Reader(folder).optimizer_state()["transformer.ln_f.bias"]
    assert float(kept["step"]) == 2.0
    assert kept["exp_avg"].shape == kept["exp_avg_sq"].shape == (12,)


def test_fused_projections_have_the_shape_that_the_module_stores(
    checkpoint: tuple[Path, float],
) -> None:
    """Programs use them taken apart."""
    folder, _ = checkpoint
    name = "transformer.h.0.attn.c_attn.weight"
    (used,) = [node for node in example("gpt2").graph.nodes if node.target == name]
    assert (used.shape, used.stored_shape) == ((12, 3, 12), (12, 36))
    reader = Reader(folder)
    assert reader.shapes[name] == (12, 36)
    assert reader.optimizer_state()[name]["exp_avg"].shape == (12, 36)


def test_torch_reads_it_without_us(checkpoint: tuple[Path, float], tmp_path: Path) -> None:
    path = tmp_path / "all.pt"
    dcp_to_torch_save(checkpoint[0], path)
    found = torch.load(path, weights_only=True)
    expected = Reader(checkpoint[0]).state_dict()
    aliases = expected.keys() - found["model"].keys()
    assert aliases == {"lm_head.weight"}
    for name, tensor in found["model"].items():
        assert torch.equal(tensor, expected[name])
    kept = found["optimizer"]["state"]["transformer.ln_f.bias"]
    assert kept.keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert found["trainer"]["groups"][0]["eps"] == 1e-3


@pytest.mark.parametrize("piece", [Piece((2, 1, 5), (7, 2, 4)), Piece((0, 0, 0), (3, 3, 8))])
def test_pieces_of_one_dimension_as_two_are_boxes_of_it(piece: Piece) -> None:
    node = Node("w", PARAMETER, (9, 3, 10), "float32", ([9, 30],), target="w")
    whole = torch.arange(270.0).reshape(9, 3, 10)
    found = stored_boxes(node, piece, piece.of(whole))
    assert found.shape == (9, 30)
    assert len(found.parts) == piece.sizes[1]
    for box, tensor in found.parts:
        assert torch.equal(box.of(whole.reshape(9, 30)), tensor)


def _copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_missing_and_damaged_files_are_named(
    checkpoint: tuple[Path, float], tmp_path: Path
) -> None:
    folder = _copied(checkpoint[0], tmp_path / "copy")
    part = folder / "__1_0.distcp"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"__1_0\.distcp has \d+ bytes instead of \d+"):
        Reader(folder)
    part.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    with pytest.raises(InputError, match=r"__1_0\.distcp is damaged"):
        Reader(folder)
    part.unlink()
    with pytest.raises(InputError, match=r"__1_0\.distcp is missing"):
        Reader(folder)


def test_other_folders_are_refused_by_name(checkpoint: tuple[Path, float], tmp_path: Path) -> None:
    folder = _copied(checkpoint[0], tmp_path / "copy")
    manifest = folder / MANIFEST
    text = manifest.read_text()
    manifest.write_text(text.replace(SCHEMA, "astrarium.checkpoint/9"))
    with pytest.raises(InputError, match=r"'astrarium\.checkpoint/9'; this reads astrarium\.ch"):
        Reader(folder)
    manifest.write_text("{")
    with pytest.raises(InputError, match=r"astrarium\.json is damaged"):
        Reader(folder)
    manifest.unlink()
    with pytest.raises(InputError, match=r"torch can read it, but it has no astrarium\.json"):
        Reader(folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json is of an earlier release"):
        Reader(folder)
    with pytest.raises(InputError, match="is no checkpoint: there is no such folder"):
        Reader(tmp_path / "nowhere")


def test_one_that_was_being_replaced_is_read(
    checkpoint: tuple[Path, float], tmp_path: Path
) -> None:
    """A process that ends between two renamings leaves what was there before."""
    _copied(checkpoint[0], tmp_path / "two.older")
    assert Reader(tmp_path / "two").manifest.step == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimizer": "sgd"}, "was trained with Adam, not SGD"),
        ({"model": "mlp"}, "holds no parameter"),
    ],
)
def test_checkpoints_of_other_trainings_are_refused(
    checkpoint: tuple[Path, float], change: dict[str, str], said: str
) -> None:
    one = example(change.get("model", "gpt2"))
    program = on_one_rank(drawn_program(one.graph, (2,), Random(1)))
    recipe = replace(RECIPE, optimizer=change.get("optimizer", "adam"))
    if "optimizer" in change:
        recipe = replace(recipe, settings=())
    training = training_on(Peers(), program, one.model.state(one.graph), recipe)
    with pytest.raises(InputError, match=said):
        load(checkpoint[0], training, {"buffer": torch.zeros(3)})
