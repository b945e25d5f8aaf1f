"""Layers that predict further tokens: what they hold, what the head does, where inputs go."""

from __future__ import annotations

import pytest

from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.model import load_model
from astrarium.model.prediction import with_predictions, without_predictions
from astrarium.model.workload import Workload
from astrarium.search.planner import predict
from astrarium.strategy.types import Overlap, Stage, Strategy

ALONE = Overlap(p2p=False, tp=False)


def test_deepseek_v3_has_the_published_layer() -> None:
    model = load_model("deepseek-v3")
    further = with_predictions(model, 1)
    own = further.parameters - model.parameters
    # The model card: 14B of weights, of which the table and the head are those of the model.
    shared = model.embedding.parameters + model.head.projection_parameters
    assert own == pytest.approx(11.5e9, rel=0.01)
    assert own + shared == pytest.approx(14e9, rel=0.05)
    assert (further.num_layers, further.mtp_layers) == (62, 1)
    assert further.vocab == model.vocab
    assert not further.later_inputs  # it has a place in a pipeline's layout


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_flops_are_those_of_the_layers_a_product_and_the_head_again(name: str, count: int) -> None:
    model, length = load_model(name), 4096
    further = with_predictions(model, count)
    joined = 2.0 * 2 * model.hidden * model.hidden
    each = model.blocks[-1].flops_per_token(length) + joined + model.head.flops_per_token
    added = further.flops_per_token(length) - model.flops_per_token(length)
    assert added == pytest.approx(3 * count * each)
    assert without_predictions(further) == model
    assert with_predictions(further, 0) == model
    assert with_predictions(further, count) is further


def test_every_stream_reaches_the_head() -> None:
    model = with_predictions(load_model("llama-3.1-8b"), 2)
    streams = [model.boundary_elements(cut, 512) / (512 * model.hidden) for cut in range(31, 35)]
    assert streams == [1, 1, 2, 3]  # the last cut is before a stage of the head alone
    plain = load_model("llama-3.1-8b")
    assert plain.boundary_elements(plain.num_layers, 512) == 0


def test_models_without_such_a_layer_are_refused() -> None:
    for name in ("t5-large", "nemotron-h-8b"):
        with pytest.raises(InputError, match="layers that predict further tokens follow"):
            with_predictions(load_model(name), 1)


def test_the_head_works_twice_and_the_table_is_there_again() -> None:
    model = load_model("llama-3.1-8b")
    cluster = parse_gpus("h100:2")
    plain, further = (
        predict(
            Workload(with_predictions(model, count), 4096, 8),
            cluster,
            Strategy(pp=2, num_micro_batches=8, overlap=ALONE, stages=_stages(32 + count)),
        )
        for count in (0, 1)
    )
    (first, last), (_, longer) = plain.memory, further.memory
    gib = 2**30
    table = model.vocab * model.hidden * 2 / gib
    layer = model.blocks[0].parameters * 2 / gib
    joined = 2 * model.hidden**2 * 2 / gib
    grown = (longer.weights - last.weights) / gib
    assert grown == pytest.approx(table + layer + joined, rel=0.01)
    logits = 4096 * model.vocab * 6  # fp32 beside 16 bits
    assert longer.activations - last.activations > logits
    assert further.memory[0].weights == first.weights
    flops = with_predictions(model, 1).flops_per_token(4096) / model.flops_per_token(4096)
    assert further.stage_seconds[1].model_seconds / plain.stage_seconds[1].model_seconds > 1
    assert flops > 1.05


def _stages(layers: int) -> tuple[Stage, ...]:
    gpu, pools = "H100-SXM5-80GB", {"H100-SXM5-80GB": 1}
    cuts = [(0, 16), (16, layers)]
    return tuple(Stage(gpu, cut, 1, rank, 0, pools) for rank, cut in enumerate(cuts))
