"""Adapters for encoder-decoders: T5, BART, Whisper.

The decoder's input comes in at its first block, which also holds the encoder's final norm. Both
halves read sequences of the workload's length; `decoder_seq_length`, a key of our own, gives the
decoder another one. Whisper's encoder always reads the 30 seconds of sound that its positions
cover.
"""

from __future__ import annotations

from dataclasses import replace

from astrarium.model.blocks import Block, Embedding, Head, Model, Norm
from astrarium.model.build import (
    FIRST,
    Architecture,
    Shape,
    behind,
    transformer_block,
    with_cross_attention,
)
from astrarium.model.huggingface.config import MOST_LAYERS, Config, stack
from astrarium.model.huggingface.decoders import LAYER_NORM_VECTORS, OPT_POSITION_OFFSET

CONVOLUTION_WIDTH = 3  # frames that each of Whisper's two convolutions sees
BIASES_WITHOUT_KEYS = 2  # Whisper's queries and values have a bias, its keys have none


def t5(name: str, family: str, config: Config) -> Model:
    """T5: position tables in the first block of each half; v1.1 has a head of its own."""
    layers = config.count("num_hidden_layers", most=MOST_LAYERS)
    decoder_layers = layers
    if config.get("num_decoder_layers") is not None:
        decoder_layers = config.count("num_decoder_layers", most=MOST_LAYERS)
    hidden, vocab = config.count("hidden_size"), config.count("vocab_size")
    heads = config.count("num_attention_heads")
    projection = config.get("feed_forward_proj")
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=config.count("head_dim"),
        ffn=config.count("intermediate_size"),
        vocab=vocab,
        max_seq_length=config.count("max_position_embeddings"),
        gated=isinstance(projection, str) and projection.startswith("gated-"),
        causal=False,
    )
    table = config.count("relative_attention_num_buckets") * heads
    encoder = replace(transformer_block(shape, None, False), name="encoder")
    decoder = _decoder(config, replace(shape, causal=True), None)
    begin = _with_exit_norm(decoder, 1)
    halves = (
        _stack(replace(encoder, extra_parameters=table), encoder, layers),
        _stack(replace(begin, extra_parameters=table), decoder, decoder_layers),
    )
    head = Head(hidden, vocab, config.flag("tie_word_embeddings"), False, hidden)
    tables = Embedding(vocab, hidden), Embedding(vocab, hidden, shared=True)
    return _both_halves(name, family, shape, halves, tables, head)


def bart(name: str, family: str, config: Config) -> Model:
    """BART: norms after the sublayers, and positions and a norm at both inputs."""
    shape = _biased(config, "encoder", config.count("max_position_embeddings"))
    hidden, vocab = shape.hidden, shape.vocab
    own = (shape.max_seq_length + OPT_POSITION_OFFSET + LAYER_NORM_VECTORS) * hidden
    encoder = replace(transformer_block(shape, None, False), name="encoder")
    reading = replace(_biased(config, "decoder", shape.max_seq_length), causal=True)
    decoder = _decoder(config, reading, None)
    halves = (_stack(encoder, encoder, shape.layers), _stack(decoder, decoder, reading.layers))
    tables = Embedding(vocab, hidden, own), Embedding(vocab, hidden, own, shared=True)
    head = Head(hidden, vocab, config.flag("tie_word_embeddings"))
    return _both_halves(name, family, shape, halves, tables, head)


def whisper(name: str, family: str, config: Config) -> Model:
    """Whisper: two convolutions make the encoder's frames; the token table is the decoder's."""
    frames = config.count("max_source_positions")
    shape = _biased(config, "encoder", config.count("max_target_positions"))
    shape = replace(shape, qkv_bias=False, seq_length=frames)
    hidden, vocab = shape.hidden, shape.vocab
    biases = BIASES_WITHOUT_KEYS * hidden
    encoder = transformer_block(shape, None, False)
    encoder = replace(encoder, name="encoder", extra_parameters=biases)
    reading = _biased(config, "decoder", shape.max_seq_length)
    reading = replace(reading, qkv_bias=False, causal=True)
    decoder = replace(_decoder(config, reading, frames), extra_parameters=2 * biases)
    halves = (
        _stack(encoder, encoder, shape.layers),
        _stack(_with_exit_norm(decoder, LAYER_NORM_VECTORS), decoder, reading.layers),
    )
    bands = config.count("num_mel_bins")
    convolutions = hidden * (CONVOLUTION_WIDTH * (bands + hidden) + 2)
    tables = (
        Embedding(0, hidden, convolutions + frames * hidden),
        Embedding(vocab, hidden, shape.max_seq_length * hidden),
    )
    tied = config.flag("tie_word_embeddings")
    head = Head(hidden, vocab, tied, False, LAYER_NORM_VECTORS * hidden)
    return _both_halves(name, family, shape, halves, tables, head)


def _biased(config: Config, half: str, positions: int) -> Shape:
    """One half as BART names its sizes: a bias on every weight, layer norms, no rotation."""
    ffn, vocab = config.count(f"{half}_ffn_dim"), config.count("vocab_size")
    shape = stack(config, half, config.count("hidden_size"), ffn, vocab, positions)
    return replace(shape, norm_vectors=LAYER_NORM_VECTORS)


def _decoder(config: Config, shape: Shape, context_length: int | None) -> Block:
    """A decoder block; only the decoder's length can differ from the workload's here."""
    block = transformer_block(shape, None, False)
    block = with_cross_attention(block, shape, context_length=context_length)
    own = config.optional_count("decoder_seq_length")
    return replace(block, name="decoder", seq_length=own)


def _with_exit_norm(block: Block, vectors: int) -> Block:
    """Let a decoder's first block hold the final norm of the encoder."""
    norm = Norm("encoder_final_norm", block.hidden, vectors, context=True)
    return replace(block, norms=(*block.norms, norm))


def _stack(first: Block, others: Block, layers: int) -> tuple[Block, ...]:
    """Repeat a block; the first one may hold more."""
    begin = first if first == others else replace(first, name=others.name + FIRST)
    return (begin, *[others] * (layers - 1))


def _both_halves(
    name: str,
    family: str,
    shape: Shape,
    halves: tuple[tuple[Block, ...], tuple[Block, ...]],
    tables: tuple[Embedding, Embedding],
    head: Head,
) -> Model:
    blocks, carried = behind(*halves, tables[1])
    return Model(
        name=name,
        family=family,
        architecture=Architecture.ENCODER_DECODER,
        hidden=shape.hidden,
        max_seq_length=shape.max_seq_length,
        embedding=tables[0],
        blocks=blocks,
        head=head,
        carried=carried,
    )
