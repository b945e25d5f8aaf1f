"""Keys of overrides are fields of the configuration classes that Megatron-Bridge takes over.

Megatron-Bridge itself cannot be imported without a GPU's libraries.
"""

from __future__ import annotations

from dataclasses import replace

from exported_plans import job
from upstream.client import Driver

from astrarium.export.software.bridge import overrides, program
from astrarium.model.adapters import Adapters, Finetune

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
    # Of peft/lora.py and peft/dora.py, and of data/builders/gpt_sft.py and data/packing/config.py.
    "peft.dim",
    "peft.alpha",
    "peft.dropout",
    "peft.target_modules",
    "dataset.dataset_kwargs",
    "dataset.enable_offline_packing",
    "dataset.offline_packing_specs.packed_sequence_size",
    "dataset.offline_packing_specs.pad_seq_to_mult",
}


def test_keys_are_fields(megatron: Driver) -> None:
    sections = megatron.ask(operation="keys")
    adapters = Adapters(Finetune.LORA, names="megatron_gpt")
    lent = job("even")
    adapted = replace(lent, workload=replace(lent.workload, adapters=adapters))
    cases = ("even", "uneven", "experts", "predicting", "sinks", "sharded")
    for one in (*map(job, cases), adapted):
        made = program(one)
        more = {word.partition("=")[0] for word in (*made.checkpoints, *made.smoke)}
        for key in (overrides(one).keys() | more) - OWN:
            section, _, field = key.partition(".")
            assert field in sections[section], key
