from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from spmd_examples import example
from spmd_programs import drawn_program
from spmd_ranks import Ranks
from spmd_training import resumed, saved

from astrarium.errors import InputError
from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.checkpoint import MANIFEST, Reader, reassemble
from astrarium.runtime.spmd.pieces import Piece
from astrarium.runtime.spmd.training import Recipe
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
    """Programs use them taken apart; one that does not can read them all the same."""
    folder, _ = checkpoint
    reader, name = Reader(folder), "transformer.h.0.attn.c_attn.weight"
    assert reader.manifest.shapes[name] == (12, 3, 12)
    assert reader.optimizer_state()[name]["exp_avg"].shape == (12, 36)
    whole = reader.state_dict()[name]
    assert whole.shape == (12, 36)
    node = Node(name, PARAMETER, (12, 36), "float64", target=name)
    piece = Piece((2, 5), (7, 20))
    found = reader.piece_of(node, piece)
    assert torch.equal(found["value"], piece.of(whole))
    assert found["exp_avg"].shape == piece.sizes
    assert float(found["step"]) == 2.0
    wrong = replace(node, shape=(36, 12))
    with pytest.raises(InputError, match=r"attn\.weight' of shape .*; it is of another model"):
        reader.piece_of(wrong, piece)


def _copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_missing_and_damaged_files_are_named(
    checkpoint: tuple[Path, float], tmp_path: Path
) -> None:
    folder = _copied(checkpoint[0], tmp_path / "copy")
    part = folder / "rank-00001.pt"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"rank-00001\.pt has \d+ bytes instead of \d+"):
        Reader(folder)
    part.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    with pytest.raises(InputError, match=r"rank-00001\.pt is damaged"):
        Reader(folder).state_dict()
    part.unlink()
    with pytest.raises(InputError, match=r"rank-00001\.pt is missing"):
        Reader(folder)


def test_a_manifest_that_does_not_fit(checkpoint: tuple[Path, float], tmp_path: Path) -> None:
    folder = _copied(checkpoint[0], tmp_path / "copy")
    with pytest.raises(InputError, match="holds no parameter 'other'"):
        Reader(folder).parameter("other", Piece((0,), (1,)))
    manifest = json.loads((folder / MANIFEST).read_text())
    for part in manifest["files"]:
        part["pieces"].pop("transformer.ln_f.bias", None)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"holds 0 of 12 numbers of 'transformer\.ln_f\.bias'"):
        Reader(folder).state_dict()
    (folder / MANIFEST).write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        Reader(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(InputError, match="is no checkpoint"):
        Reader(folder)
