"""torchtune: arguments for its own recipes; its parser reads them in tests/upstream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exported_others import job, kept, written

from astrarium.export.software.torchtune import CONFIGS, TARGET, program
from astrarium.export.target import refusals
from astrarium.model import load_model
from astrarium.model.adapters import Adapters, Finetune


def test_files_are_as_they_should_be() -> None:
    found = written("torchtune")
    assert found == kept("torchtune"), "run `python tests/exported_others.py` if it is meant"


def test_recipes_are_those_of_what_trains() -> None:
    weights, adapters = (program(job("torchtune", case)).script for case in ("weights", "adapters"))
    assert "full_finetune_distributed.py" in weights
    assert weights.endswith("llama3_1/8B_full.yaml")
    assert "lora_finetune_distributed.py" in adapters
    assert adapters.endswith("qwen2_5/7B_lora.yaml")


@pytest.mark.parametrize(
    ("model", "adapters", "why"),
    [
        ("llama-2-70b", None, "no distributed configuration of all weights"),
        ("qwen3-8b", None, "none has its sizes"),
        ("llama-3.1-8b", Adapters(Finetune.LORA), "on modules that it divides otherwise"),
    ],
)
def test_what_it_has_no_configuration_for_is_refused(
    model: str, adapters: Adapters | None, why: str
) -> None:
    lent = job("torchtune", "weights")
    work = replace(lent.workload, model=load_model(model), adapters=adapters)
    (found,) = refusals(replace(lent, workload=work), TARGET)
    assert why in found.why
    assert "llama-2-70b" not in CONFIGS
