"""Keys of overrides are fields of the configuration classes that Megatron-Bridge takes over.

Megatron-Bridge itself cannot be imported without a GPU's libraries.
"""

from __future__ import annotations

from exported_plans import job
from upstream.client import Driver

from astrarium.export.software.bridge import overrides, program

# Of Megatron-Bridge's own classes, read in its package 0.6.2: training/config.py for the sections,
# models/gpt_provider.py for the model.
OWN = {
    "comm_overlap",
    "mixed_precision",
    "dataset.seq_length",
    "model.seq_length",
    "model.vocab_size",
    "model.should_pad_vocab",
    "model.make_vocab_size_divisible_by",
}


def test_keys_are_fields(megatron: Driver) -> None:
    sections = megatron.ask(operation="keys")
    for case in ("even", "uneven", "experts", "predicting", "sinks", "sharded"):
        made = program(job(case))
        more = {word.partition("=")[0] for word in (*made.checkpoints, *made.smoke)}
        for key in (overrides(job(case)).keys() | more) - OWN:
            section, _, field = key.partition(".")
            assert field in sections[section], key
