"""Model files: what they give, and what is said about malformed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.errors import InputError
from astrarium.model import Block, CustomBlock, LayerTiming, load_model
from astrarium.model.modelfile import load_model_file, model_from_mapping

EXAMPLES = Path(__file__).parents[2] / "examples"

HEAD = "hidden: 64\nvocab: 100\nlayers:\n"


def refused(folder: Path, text: str, name: str = "model.yaml") -> str:
    """Expect a file to be refused; return the message without the folder."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_model_file(path)
    return str(error.value).replace(str(path), name)


def test_uneven_example() -> None:
    model = load_model(str(EXAMPLES / "uneven.yaml"))
    assert model.name == "uneven-moe"
    assert model.kind_of_layer == (0,) * 4 + (1,) * 20
    attention = 1024 * (1024 + 2 * 256) + 1024 * 1024
    dense = attention + 3 * 1024 * 4096 + 2 * 1024
    sparse = attention + 17 * 3 * 1024 * 1024 + 16 * 1024 + 2 * 1024
    assert model.parameters == 32000 * 1024 + 4 * dense + 20 * sparse + 1024
    assert model.active_parameters == model.parameters - 20 * 14 * 3 * 1024 * 1024


def test_gan_example() -> None:
    model = load_model(str(EXAMPLES / "gan.yaml"))
    assert model.architecture == "custom"
    assert model.num_layers == 25
    first = model.blocks[0]
    assert isinstance(first, CustomBlock)
    assert first.timings["V100-SXM2-16GB"][2] == LayerTiming(2.3e-3, 4.6e-3)
    assert model.blocks[-1].parameters == 16 * 3 + 3
    assert model.parameters == 42550272 + 12 * (12592128 + 3216) + 51


def test_a_plain_stack_equals_the_same_config(folder: Path) -> None:
    path = folder / "mine.toml"
    path.write_text(
        "hidden = 64\nvocab = 100\n[[layers]]\nblock = 'transformer'\ncount = 3\nheads = 8\n"
        "kv_heads = 2\nffn = 96\nqk_norm = true\n"
    )
    mine = load_model(str(path))
    config = folder / "config.json"
    config.write_text(
        '{"model_type": "qwen3", "hidden_size": 64, "vocab_size": 100, "num_hidden_layers": 3,'
        '"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 96,'
        '"head_dim": 8}'
    )
    assert mine.blocks == load_model(str(config)).blocks
    assert mine.parameters == load_model(str(config)).parameters
    assert mine.name == "mine"


def test_options_of_a_transformer_block(folder: Path) -> None:
    path = folder / "model.yaml"
    path.write_text(
        HEAD + "  - {block: embedding, hidden: 32, parameters: 7}\n"
        "  - {block: transformer, heads: 4, head_dim: 8, ffn: 96, gated: false, bias: true,\n"
        "     norm: layernorm, causal: false, window: 16, rotary: false, parallel: true,\n"
        "     hidden: 48}\n"
        "  - {block: head, outputs: 10, hidden: 48, bias: true}\n"
    )
    model = load_model_file(path)
    assert model.architecture == "encoder"
    (block,) = model.blocks
    assert isinstance(block, Block)
    assert block.parallel_residual
    assert (block.attentions[0].window, block.attentions[0].causal) == (16, False)
    assert block.attentions[0].rotary_dim == 0
    assert block.parameters == 48 * 96 + 96 + 32 * 48 + 48 + 2 * 48 * 96 + 96 + 48 + 4 * 48
    assert model.embedding.parameters == 3207
    assert model.head.parameters == 48 * 10 + 10 + 2 * 48
    assert model.max_seq_length == 2048


def test_convolutions(folder: Path) -> None:
    path = folder / "conv.yaml"
    path.write_text(
        "hidden: 8\nlayers:\n  - {block: conv, inputs: 3, outputs: 8, kernel: 3, height: 9,"
        " width: 10, stride: 2, bias: false}\n"
    )
    model = load_model_file(path)
    (block,) = model.blocks
    assert isinstance(block, CustomBlock)
    assert block.parameters == 3 * 8 * 9
    assert block.forward_flops == 2 * 3 * 8 * 9 * 25
    assert (block.output_bytes, block.activation_bytes) == (2 * 8 * 25, 2 * 3 * 90)
    assert model.max_seq_length == 1


def test_gpu_names_of_measurements_may_be_aliases() -> None:
    layer = {
        "block": "custom",
        "name": "x",
        "parameters": 1,
        "output_bytes": 1,
        "activation_bytes": 1,
        "seconds": {"h100": {"4": {"forward": 1e-3, "backward": 2e-3}}},
    }
    model = model_from_mapping({"hidden": 1, "layers": [layer]}, "mine", "test")
    (block,) = model.blocks
    assert isinstance(block, CustomBlock)
    assert block.timings == {"H100-SXM5-80GB": {4: LayerTiming(1e-3, 2e-3)}}


def test_known_blocks_may_be_measured() -> None:
    seconds = {"t4": {"1": {"forward": 1e-3}}}
    layers = [
        {"block": "transformer", "heads": 8, "ffn": 64, "seconds": seconds, "measured_samples": 2},
        {"block": "head", "seconds": seconds},
    ]
    content = {"hidden": 64, "vocab": 128, "layers": layers}
    model = model_from_mapping(content, "mine", "test")
    (block,) = model.blocks
    assert block.timings == {"T4-16GB": {1: LayerTiming(1e-3, None, 2)}}
    assert model.head.timings == {"T4-16GB": {1: LayerTiming(1e-3)}}
    wrong = {"block": "transformer", "heads": 8, "ffn": 64, "seconds": {"t44": {}}}
    with pytest.raises(InputError, match=r"test: transformer: seconds: .*'t44'"):
        model_from_mapping(content | {"layers": [wrong]}, "mine", "test")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("  - {block: transformer, heads: 8}\n", "model.yaml:4: layers[0]: the required key 'ffn'"),
        ("  - {block: transfomer}\n", "model.yaml:4: layers[0].block: expected one of "),
        ("  - {block: transformer, heads: 8, fnn: 4}\n", "layers[0].fnn: unknown key (did you"),
        ("  - {block: transformer, heads: 0, ffn: 4}\n", "layers[0].heads: expected int >= 1"),
        ("  - {block: transformer, heads: 8, ffn: 4, count: 0}\n", "layers[0].count: expected"),
        ("  - {block: transformer, heads: 8, ffn: 4, count: 99999}\n", "layers[0].count: expected"),
        ("  - {block: transformer, heads: 8, ffn: 4, norm: x}\n", "expected one of rmsnorm, layer"),
        ("  - {block: transformer, heads: 8, ffn: 4, kv_heads: 3}\n", "kv_heads: expected a divis"),
        ("  - {block: transformer, heads: 7, ffn: 4}\n", "layers[0].heads: expected a divisor of"),
        ("  - {block: transformer, heads: 8, ffn: 4, experts: 2}\n", "experts_per_token: expected"),
        ("  - {block: transformer, heads: 8, ffn: 4, shared_ffn: 2}\n", "experts: missing"),
        (
            "  - {block: transformer, heads: 8, ffn: 4, cross: true}\n",
            "model.yaml:4: layers[0].cross: nothing to attend to; an embedding must come",
        ),
        (
            "  - {block: transformer, heads: 8, ffn: 4}\n"
            "  - {block: transformer, heads: 8, ffn: 4, sequences: 2}\n",
            "model.yaml:5: layers[1]",
        ),
        (
            "  - {block: transformer, heads: 8, ffn: 4, seq_length: 0}\n",
            "model.yaml:4: layers[0].seq_length: expected",
        ),
        (
            "  - {block: embedding, shared: true}\n  - {block: transformer, heads: 8, ffn: 4}\n",
            "model.yaml:4: layers[0].shared: there is no table before the first",
        ),
        (
            "  - {block: transformer, heads: 8, ffn: 4}\n  - {block: embedding}\n"
            "  - {block: projector, inputs: 8}\n",
            "model.yaml:5: layers[1]: an embedding can only come first, or before a transformer",
        ),
        (
            "  - {block: projector, inputs: 8, count: 2}\n",
            "model.yaml:4: layers[0].count: expected int <= 1, got 2",
        ),
        ("  - {block: head}\n  - {block: conv}\n", "layers[1]: the required key 'inputs'"),
        ("  - {block: embedding}\n", "layers: expected 1..10000 layers between the ends"),
        ("  - {block: head}\n  - {block: embedding}\n", "layers[0]: a head can only come last"),
        (
            "  - {block: custom, name: x, parameters: 1, output_bytes: 1, activation_bytes: 1}\n",
            "forward_flops: missing; give it, or measured seconds",
        ),
        (
            "  - {block: custom, name: x, parameters: 1, output_bytes: -1, activation_bytes: 1}\n",
            "layers[0].output_bytes: expected float >= 0.0, got -1",
        ),
    ],
)
def test_malformed_layers(folder: Path, layers: str, message: str) -> None:
    assert message in refused(folder, HEAD + layers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden: 64\nlayers: []\n", "model.yaml:2: layers: expected list of length >= 1"),
        ("layers: [{block: head}]\n", "model.yaml: the required key 'hidden' is missing"),
        ("hidden: x\nlayers: [{block: head}]\n", "model.yaml:1: hidden: expected int, got 'x'"),
        ("hidden: 64\nlayers: [\n", "malformed YAML"),
    ],
)
def test_malformed_files(folder: Path, text: str, message: str) -> None:
    assert message in refused(folder, text)


MEASURED = """
  - block: custom
    name: x
    parameters: 1
    output_bytes: 1
    activation_bytes: 1
    seconds: {%s: {%s: {forward: %s, backward: 1}}}
"""


@pytest.mark.parametrize(
    ("gpu", "degree", "forward", "message"),
    [
        ("H1000", 1, 1, "model.yaml: x: seconds: unknown GPU type 'H1000' (did you mean"),
        ("H100", "two", 1, "seconds.H100: expected int as key"),
        ("H100", 0, 1, "expected int >= 1"),
        ("H100", 1, 0, "forward: expected float > 0.0, got 0"),
    ],
)
def test_malformed_measurements(
    folder: Path, gpu: str, degree: object, forward: object, message: str
) -> None:
    assert message in refused(folder, HEAD + MEASURED % (gpu, degree, forward))


def test_an_embedding_can_only_come_first(folder: Path) -> None:
    layers = (
        "  - {block: transformer, heads: 8, ffn: 4}\n  - {block: embedding}\n  - {block: head}\n"
    )
    assert "layers[1]: an embedding can only come first" in refused(folder, HEAD + layers)


def test_mappings_are_checked_too() -> None:
    with pytest.raises(InputError, match="catalog model 'x': Expected `array` of length >= 1"):
        model_from_mapping({"hidden": 1, "layers": []}, "x", "catalog model 'x'")


def test_complaints_across_keys_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    entry = "  - {block: transformer, count: 2, heads: 7, ffn: 400}\n"
    path.write_text("name: x\nhidden: 100\nvocab: 1000\nlayers:\n" + entry)
    with pytest.raises(InputError, match=r"odd\.yaml:5: layers\[0\]\.heads: expected a divisor"):
        load_model(str(path))


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_vision_tower_before_a_language_model() -> None:
    """The file has the sizes of a published model: every parameter is there."""
    model = load_model_file(EXAMPLES / "vision.yaml")
    assert model.architecture == "multimodal"
    assert model.parameters == 7_063_427_072  # llava-1.5-7b
    assert [kind.name for kind in model.kinds] == ["vision", "projector", "dense-first", "dense"]
    assert [block.tokens(2048) for block in model.blocks[23:26]] == [4 * 577, 4 * 576, 2048]
    assert (model.embedding.vocab, model.vocab) == (0, 32064)
    assert [model.boundary_elements(cut, 2048) for cut in (24, 25, 26)] == [
        4 * 577 * 1024,
        4 * 576 * 4096,
        2048 * 4096,
    ]


def test_an_encoder_before_a_decoder() -> None:
    model = load_model_file(EXAMPLES / "encoder-decoder.yaml")
    assert model.architecture == "encoder-decoder"
    assert [kind.name for kind in model.kinds] == ["encoder", "decoder-first", "decoder"]
    # T5-large without its tables of relative positions and the encoder's final norm
    assert model.parameters == load_model("t5-large").parameters - 2 * 32 * 16 - 1024
    decoder = model.blocks[-1]
    assert isinstance(decoder, Block)
    assert [attention.cross for attention in decoder.attentions] == [False, True]
    assert (decoder.tokens(512), decoder.context_tokens(512)) == (128, 512)
    assert [model.boundary_elements(cut, 512) / 1024 for cut in (24, 25, 47)] == [512, 640, 640]


def test_cross_attention_reads_the_width_and_length_of_its_encoder() -> None:
    layers = [
        {"block": "transformer", "heads": 4, "ffn": 8, "hidden": 32, "seq_length": 10},
        {"block": "projector", "inputs": 32, "outputs": 48, "seq_length": 7, "sequences": 3},
        {"block": "embedding"},
        {"block": "transformer", "heads": 8, "ffn": 8, "cross": True, "count": 2},
        {"block": "transformer", "heads": 8, "ffn": 8},
    ]
    model = model_from_mapping({"hidden": 64, "vocab": 9, "layers": layers}, "x", "test")
    reader = model.blocks[3]
    assert isinstance(reader, Block)
    widths = {x.name: (x.inputs, x.context) for x in reader.linears}
    assert widths["cross_kv"] == (48, True)
    assert widths["cross_q"] == (64, False)
    assert reader.context_tokens(100) == 21
    projected, text = 21 * 48, 100 * 64
    assert [model.boundary_elements(cut, 100) for cut in (1, 2, 3, 4)] == [
        320,
        projected,
        text + projected,
        text,
    ]


def test_layers_known_by_totals_hand_over_their_output(folder: Path) -> None:
    layers = [
        {"block": "conv", "inputs": 3, "outputs": 8, "kernel": 3, "height": 9, "width": 10},
        {"block": "transformer", "heads": 8, "ffn": 8},
        {"block": "transformer", "heads": 8, "ffn": 8},
    ]
    model = model_from_mapping({"hidden": 64, "layers": layers}, "x", "test")
    assert [model.boundary_elements(cut, 50) for cut in (1, 2)] == [8 * 90, 50 * 64]


@pytest.mark.parametrize(
    ("name", "parameters", "gigaflops"),
    [
        ("dit.yaml", 749_826_464, 118.6 * 2),  # a forward pass: arXiv 2212.09748, table 1
        ("flux.yaml", 11_901_408_320, None),
    ],
)
def test_diffusion_transformers(name: str, parameters: int, gigaflops: float | None) -> None:
    """As many parameters as diffusers 0.42.1 builds them with."""
    model = load_model_file(EXAMPLES / name)
    assert model.parameters == parameters
    assert model.architecture == "encoder"
    if gigaflops:
        sample = model.flops_per_token(256) * 256 / 3
        assert sample / 1e9 == pytest.approx(gigaflops, rel=0.005)
