from __future__ import annotations

from random import Random

import pytest
import torch
from spmd_examples import example
from spmd_programs import drawn_program
from spmd_ranks import Ranks
from spmd_training import trained

from astrarium.errors import InputError
from astrarium.runtime.spmd.alone import ModuleAlone
from astrarium.runtime.spmd.train import Recipe

RECIPES = {
    "adam": Recipe("adam", 1e-2),
    "adamw, clipped": Recipe("adamw", 1e-2, (("weight_decay", 0.1),), clip_norm=0.5),
    "sgd with momentum": Recipe("sgd", 0.1, (("momentum", 0.9),)),
}


@pytest.mark.parametrize("name", [*RECIPES])
def test_steps_are_those_of_the_module(ranks: Ranks, name: str) -> None:
    """Each rank changes its own pieces; the norm of gradients is that of all of them."""
    recipe = RECIPES[name]
    one = example("bert", batch=6)
    alone = ModuleAlone(one.model.copied(), recipe, torch.device("cpu"))
    state, batches = one.model.state(one.graph), [one.model.inputs]
    expected = [alone.step(batches) for _ in range(3)]
    program = drawn_program(one.graph, (3,), Random(name))
    arguments = (program, state, batches, recipe, 3)
    for found in ranks.run(trained, [arguments] * 3):
        assert [loss for loss, _ in found] == pytest.approx(expected, rel=1e-8)
        if recipe.clip_norm is not None:
            norm = sum(float(g.square().sum()) for g in one.gradients.values()) ** 0.5
            assert norm > recipe.clip_norm
            assert found[0][1] == pytest.approx(norm, rel=1e-9)


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(InputError, match="'lion' is unknown; choose one of adam, adamw, sgd"):
        Recipe("lion").make([torch.zeros(1)])
