"""Arguments are cut as Megatron's parser cuts them: argparse over the same table is the judge."""

from __future__ import annotations

import argparse
import contextlib
import io

from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.configs.megatron.arguments import parse_arguments
from astrarium.strategy.options import Takes, megatron_options

SAMPLE = [
    option
    for option in megatron_options()
    if option.dest
    in (
        "tensor_model_parallel_size",
        "sequence_parallel",
        "overlap_p2p_comm",
        "recompute_modules",
        "recompute_granularity",
        "rampup_batch_size",
        "data_path",
        "lr",
        "rl_partial_rollouts",
        "cp_comm_type",
        "micro_batch_size",
    )
]


def argparse_of_table() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    kinds = {Takes.INT: int, Takes.FLOAT: float, Takes.TEXT: str}
    for option in SAMPLE:
        if option.takes is Takes.SWITCH:
            parser.add_argument(
                option.flags[0], dest=option.dest, action=argparse.BooleanOptionalAction
            )
        elif option.takes.is_flag:
            action = "store_true" if option.takes is Takes.ON else "store_false"
            parser.add_argument(*option.flags, dest=option.dest, action=action)
        else:
            parser.add_argument(
                *option.flags,
                dest=option.dest,
                type=kinds[option.takes],
                nargs=option.many,
                choices=option.choices or None,
            )
    return parser


PARSER = argparse_of_table()
FLAGS = [flag for option in SAMPLE for flag in option.flags]
WORDS = st.one_of(
    st.sampled_from(FLAGS),
    st.sampled_from(
        ["8", "-1", "0.5", "full", "selective", "a b", "core_attn", "x", "1_0", "-0.5"]
    ),
    st.sampled_from(FLAGS).map(lambda flag: f"{flag}=4"),
)


@settings(max_examples=400)
@given(st.lists(WORDS, max_size=10))
def test_as_argparse(words: list[str]) -> None:
    ours = parse_arguments(words)
    stray = [text for text in ours.complaints if "unrecognized" in text]
    fine = not ours.complaints and not ours.unknown
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            theirs, rest = PARSER.parse_known_args(words)
    except (argparse.ArgumentError, SystemExit):
        assert not fine
        return
    assert bool(rest) == bool(stray or any("ignored" in text for text in ours.complaints))
    assert not [t for t in ours.complaints if "ignored" not in t and "unrecognized" not in t]
    for dest, one in ours.given.items():
        value = getattr(theirs, dest)
        if isinstance(value, bool):
            assert str(value) == one.setting
        elif isinstance(value, list):
            assert [str(part) for part in value] == [
                str(type(part)(text)) for part, text in zip(value, one.values, strict=True)
            ]
        elif value is not None:
            assert value == type(value)(one.values[0])


def test_complaints_are_those_of_argparse() -> None:
    cases = {
        "--num-layers many": "argument --num-layers: invalid int value: 'many'",
        "--lr high": "argument --lr: invalid float value: 'high'",
        "--num-layers --bf16": "argument --num-layers: expected one argument",
        "--rampup-batch-size 1 2": "argument --rampup-batch-size: expected 3 arguments",
        "--bf16=1": "argument --bf16: ignored explicit argument '1'",
        "--recompute-modules": "argument --recompute-modules: expected at least one argument",
    }
    for text, complaint in cases.items():
        assert parse_arguments(text.split()).complaints == [complaint]
    found = parse_arguments(["--recompute-granularity", "ful"]).complaints[0]
    assert "invalid choice: 'ful'" in found
    assert "did you mean 'full'" in found


def test_unknown_options_are_named_with_the_likely_one() -> None:
    found = parse_arguments(
        ["--tensor-model-paralel-size", "8", "--nothing-like-it", "1", "2", "--bf16"]
    )
    assert [one.option for one in found.unknown] == [
        "--tensor-model-paralel-size",
        "--nothing-like-it",
    ]
    assert "not an option of Megatron-LM 0.19.2" in found.unknown[0].says
    assert "'--tensor-model-parallel-size'" in found.unknown[0].says
    assert list(found.given) == ["bf16"]


def test_names_of_older_versions_are_understood() -> None:
    found = parse_arguments(["--zero-stage", "2", "--fp8-hybrid", "--use-custom-fsdp"])
    assert found.settings() == {
        "zero_stage": "2",
        "fp8": "hybrid",
        "use_custom_fsdp": "True",
    }
    assert "--use-megatron-fsdp now" in found.unknown[2].says


def test_the_last_counts() -> None:
    found = parse_arguments(["--num-layers", "4", "--num-layers", "8"])
    assert found.given["num_layers"].setting == "8"
    assert found.notes == ["--num-layers is given twice; the last, --num-layers 8, counts"]


def test_every_option_is_recognised() -> None:
    for option in megatron_options():
        many = option.many if isinstance(option.many, int) else 1
        value = str(option.choices[0]) if option.choices else "1"
        words = [option.flags[0], *([] if option.takes.is_flag else [value] * many)]
        found = parse_arguments(words)
        assert list(found.given) == [option.dest]
        assert not found.complaints
        assert not found.unknown
