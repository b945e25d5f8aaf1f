"""Layers that work on other tokens than the workload's: towers, encoders, decoders behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astrarium.cluster import parse_gpus
from astrarium.cost.ends import boundary_bytes
from astrarium.cost.layouts import CostModel, Layouts, ShardCosts
from astrarium.cost.tally import Shards
from astrarium.model import Block, Model, load_model
from astrarium.model.blocks import CustomBlock
from astrarium.model.huggingface import from_config
from astrarium.model.modelfile import model_from_mapping
from astrarium.model.workload import Workload
from astrarium.search.planner import predict
from astrarium.strategy.columns import degrees_of
from astrarium.strategy.types import Overlap, Strategy

TEXT = {"block": "transformer", "heads": 16, "ffn": 4096, "count": 4}
TOWER = {**TEXT, "hidden": 1024, "causal": False}


def seeing(**tower: object) -> Model:
    layers = [
        {**TOWER, **tower},
        {"block": "projector", "inputs": 1024, "ffn": 2048, "seq_length": 576},
        {"block": "embedding"},
        TEXT,
    ]
    return model_from_mapping({"hidden": 2048, "vocab": 32000, "layers": layers}, "x", "test")


def costs(model: Model, seq_length: int, **strategy: int | bool) -> ShardCosts:
    chosen = Strategy(**strategy)  # type: ignore[arg-type]
    pool = parse_gpus(f"h100:{chosen.gpus}").pools[0]
    return CostModel(Workload(model, seq_length, 64), pool).shard_costs(degrees_of([chosen]))


@pytest.mark.parametrize("name", ["forward", "backward", "activations", "inputs"])
def test_a_tower_costs_the_same_whatever_the_text(name: str) -> None:
    model = seeing(seq_length=576)
    short, long = (getattr(costs(model, n, micro_batch=2).layers, name)[0] for n in (512, 8192))
    assert short[0] == long[0]
    assert short[1] == long[1]
    assert short[-1] < long[-1]


def test_a_layer_of_its_own_length_costs_what_that_workload_would() -> None:
    own, plain = costs(seeing(seq_length=512), 4096).layers, costs(seeing(), 512).layers
    for name in ("forward", "backward", "activations", "dense_parameters"):
        assert getattr(own, name)[0, 0] == pytest.approx(getattr(plain, name)[0, 0])


def test_sequences_of_a_sample_are_like_more_samples() -> None:
    many = costs(seeing(seq_length=512, sequences=4), 4096, micro_batch=2, tp=2).layers
    more = costs(seeing(seq_length=512), 4096, micro_batch=8, tp=2).layers
    joined = costs(seeing(seq_length=2048), 4096, micro_batch=2, tp=2).layers
    for name in ("forward", "backward", "activations", "tp_forward", "inputs"):
        assert getattr(many, name)[0, 0] == pytest.approx(getattr(more, name)[0, 0])
    assert joined.forward[0, 0] > many.forward[0, 0]  # attention sees four times as much


def test_the_token_table_is_where_the_text_comes_in() -> None:
    model = seeing(seq_length=576)
    plain, split = costs(model, 4096), costs(model, 4096, tp=2)
    table = 32000 * 2048
    first, other = plain.layers.dense_parameters[0, -2:]
    assert first - other == table
    assert plain.ends.embedding_parameters[0] == 0
    first, other = split.layers.dense_parameters[0, -2:]
    assert first - other == table / 2


def test_a_shared_table_is_counted_once() -> None:
    model = load_model("t5-large")
    table = model.vocab * model.hidden
    found = costs(model, 512)
    padded = float(found.ends.embedding_parameters[0])
    assert table <= padded < 1.01 * table
    kinds = {kind.name: i for i, kind in enumerate(model.kinds)}
    parameters = found.layers.dense_parameters[0]
    more = parameters[kinds["decoder-first"]] - parameters[kinds["decoder"]]
    assert more == 1024 + 32 * 16  # the encoder's norm, relative positions


def test_cross_attention_costs_what_it_reads() -> None:
    def decoder(encoder_length: int) -> ShardCosts:
        values = {
            "model_type": "whisper",
            "max_source_positions": encoder_length,
            "max_target_positions": 448,
        }
        return costs(from_config(values, "x", "test"), 448)

    short, long = decoder(512).layers, decoder(4096).layers
    for name in ("forward", "backward", "activations", "inputs"):
        assert getattr(short, name)[0, -1] <= getattr(long, name)[0, -1]
    assert short.forward[0, -1] < long.forward[0, -1]
    assert short.inputs[0, -1] == long.inputs[0, -1]
    kept = 2 * 384 * 2 * (4096 - 512)  # keys and values of 6 heads of 64, 16 bits
    assert long.activations[0, -1] - short.activations[0, -1] == pytest.approx(kept)


def test_the_head_sees_the_tokens_of_the_last_layer() -> None:
    whole = from_config({"model_type": "t5"}, "x", "test")
    short = from_config({"model_type": "t5", "decoder_seq_length": 128}, "x", "test")
    logits = [costs(model, 512).ends.head_activations[0] for model in (whole, short)]
    assert logits[0] == pytest.approx(4 * logits[1])
    entered = [costs(model, 512).ends.embedding_forward[0] for model in (whole, short)]
    assert entered[0] == entered[1]


def shards(**changes: int) -> Shards:
    ones = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "micro_batch": 1, **changes}
    columns = {name: np.array([value]) for name, value in ones.items()}
    return Shards(**columns, sequence_parallel=np.array([ones["tp"] > 1]), domain=np.array([8]))


def test_bytes_at_every_cut() -> None:
    model = load_model("t5-large")
    workload = Workload(model, 512, 64)
    found = boundary_bytes(workload, shards())[0]
    stream = 512 * 1024 * 2
    assert list(found) == [stream, *[stream] * 24, *[2 * stream] * 23, stream]
    assert list(boundary_bytes(workload, shards(micro_batch=3, cp=2))[0]) == list(found * 1.5)
    assert list(boundary_bytes(workload, shards(tp=4))[0]) == list(found / 4)
    assert list(costs(model, 512, pp=2).ends.boundary_bytes[0]) == list(found)


def test_outputs_of_custom_layers_go_whole() -> None:
    custom = {
        "block": "custom",
        "name": "x",
        "parameters": 1,
        "output_bytes": 1000,
        "activation_bytes": 1,
        "forward_flops": 1,
    }
    layers = [custom, {**TOWER, "count": 2}]
    model = model_from_mapping({"hidden": 1024, "layers": layers}, "x", "test")
    workload = Workload(model, 64, 8)
    stream = 64 * 1024 * 2 / 4
    assert list(boundary_bytes(workload, shards(tp=4))[0]) == [1000, 1000, stream, stream]


def test_equal_layers_cost_what_they_did() -> None:
    """Stating the workload's own length changes nothing."""
    model = load_model("llama-2-7b")
    blocks = tuple(replace(b, seq_length=4096) for b in model.blocks if isinstance(b, Block))
    stated = replace(model, blocks=blocks)
    for strategy in ({"micro_batch": 2}, {"tp": 2, "sequence_parallel": True, "cp": 2}):
        plain, own = costs(model, 4096, **strategy), costs(stated, 4096, **strategy)
        for name in plain.layers.__struct_fields__:
            assert np.array_equal(getattr(plain.layers, name), getattr(own.layers, name)), name


def translator(layers: int = 4, *, tied: bool) -> Model:
    values = {"model_type": "t5", "num_layers": layers, "num_decoder_layers": layers}
    return from_config({**values, "tie_word_embeddings": tied}, "x", "test")


def layouts_of(model: Model, pp: int) -> Layouts:
    chosen = degrees_of([Strategy(pp=pp, dp=2, num_micro_batches=8)])
    priced = CostModel(Workload(model, 512, 64), parse_gpus(f"h100:{2 * pp}").pools[0])
    one = np.ones(1, np.int64)
    return priced.layouts(chosen, one, 0 * one, priced.shard_costs(chosen), all_ranks=True)


@pytest.mark.parametrize(
    ("pp", "tied", "tables"),
    [
        (1, True, [1]),
        (2, True, [1, 1]),  # the decoder reads the copy of the head
        (4, True, [1, 0, 1, 1]),
        (1, False, [2]),
        (2, False, [1, 2]),
        (4, False, [1, 0, 1, 1]),  # here the last is the head's own
    ],
)
def test_stages_apart_hold_copies_of_a_shared_table(pp: int, tied: bool, tables: list[int]) -> None:
    model = translator(tied=tied)
    found = layouts_of(model, pp)
    ends = costs(model, 512).ends
    layers = (found.stages.layers[0] * found.costs.dense_parameters[0]).sum(axis=1)
    table = ends.embedding_parameters[0] - model.embedding.other_parameters
    other = np.zeros(pp)
    other[0] += model.embedding.other_parameters
    other[-1] += model.head.other_parameters
    held = (found.dense_parameters[0] - layers - other) / table
    assert list(held) == pytest.approx(tables, rel=1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_copies_of_a_shared_table_agree_on_their_gradients(tied: bool) -> None:
    """As copies of a tied one do: the same message, if it is as large."""
    messages = [layouts_of(translator(tied=tied), pp).messages for pp in (1, 2, 4)]
    apart = [list(found.shared[0] > 0) for found in messages]
    assert apart == [[False], [False, not tied], [False, False, True, False]]
    assert all((found.tied[0] > 0) == (tied and i > 0) for i, found in enumerate(messages))
    both = layouts_of(translator(tied=True), 4).messages
    assert both.shared[0].max() == pytest.approx(both.tied[0], rel=1e-9)
    chosen = Strategy(pp=4, dp=2, num_micro_batches=8, overlap=Overlap(p2p=False, tp=False))
    cluster = parse_gpus("h100:8")
    model = translator(tied=tied)
    own = replace(model, blocks=tuple(_own_table(block) for block in model.blocks))
    shared, apart_by_design = (predict(Workload(m, 512, 16), cluster, chosen) for m in (model, own))
    # A copy takes as much memory as a table of its own would.
    peaks = [[stage.peak_bytes for stage in plan.memory] for plan in (shared, apart_by_design)]
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-9)


def _own_table(block: Block | CustomBlock) -> Block | CustomBlock:
    if isinstance(block, CustomBlock) or block.embedding is None:
        return block
    return replace(block, embedding=replace(block.embedding, shared=False))
