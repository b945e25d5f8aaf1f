"""Models that are left to Transformers: it has them, with layers of these names."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from astrarium.export.software.causal_models import LAYERS, TRANSFORMERS, without_dropout
from astrarium.model.huggingface import ADAPTERS


def sources(model_type: str) -> str:
    """The modelling code of a type, read and not imported."""
    spec = find_spec("transformers")
    assert spec
    assert spec.origin
    models = Path(spec.origin).parent / "models"
    folder = models / model_type.removesuffix("_text")
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("modeling_*.py")))


@pytest.mark.parametrize("model_type", LAYERS)
def test_layers_have_these_names(model_type: str) -> None:
    assert f"class {LAYERS[model_type]}(" in sources(model_type)


@pytest.mark.parametrize("model_type", LAYERS)
def test_nothing_is_left_out_at_random(model_type: str) -> None:
    from transformers import AutoConfig

    for said in ({}, dict.fromkeys(("attention_dropout", "resid_pdrop"), 0.2)):
        config = without_dropout({**said, "model_type": model_type})
        read = AutoConfig.for_model(**config).to_dict()
        others = ("classifier_dropout", "summary_first_dropout")  # of heads that are not trained
        shares = {k: v for k, v in read.items() if "drop" in k and k not in others}
        assert shares or model_type == "mamba2"  # which has none
        assert not any(shares.values()), shares


def test_the_version_is_the_one_of_the_tests() -> None:
    assert version("transformers") == TRANSFORMERS


def test_every_type_is_one_that_plans_can_have() -> None:
    assert LAYERS.keys() <= ADAPTERS.keys()
