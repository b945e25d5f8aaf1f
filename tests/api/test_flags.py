"""The table of flags: one way to read what is given, wherever it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.api.asked import AskedValues, PlanAsked, asked
from astrarium.api.flags import (
    FIT_FLAGS,
    FLAGS,
    PLAN_FLAGS,
    PREDICT_FLAGS,
    WHY_NOT_FLAGS,
    as_keyword,
    read,
)
from astrarium.cost.checkpoints import Storage
from astrarium.cost.training_run import Ramp
from astrarium.errors import InputError, flag, naming

NEEDED = {"model": "gpt2", "global_batch": 64}
ALIKE: list[tuple[str, Any, Any, Any]] = [
    ("global_batch", "4k", 4000, 4000),
    ("seq_length", "4096", 4096.0, 4096),
    ("tokens", "2T", 2e12, 2 * 10**12),
    ("top", "3", 3, 3),
    ("budget", "$1.5M", 1.5e6, 1.5e6),
    ("deadline", "10", 10, 864000.0),
    ("epochs", "0.1", 0.1, 0.1),
    ("price", ["h100=2.5", "a100=1"], {"h100": 2.5, "a100": 1}, None),
    ("discount", ["30", "aws=40"], [30, ("aws", 40)], {"": 0.3, "aws": 0.4}),
    ("interruptions", ["0.02"], [0.02], {"": 0.02}),
    ("power_utilisation", "100 %", 100, 1.0),
    ("power_price", "0.1", 0.1, 0.1),
    ("rampup_batch", "16,16,6M", (16, 16, 6e6), Ramp(16, 16, 6_000_000)),
    ("storage_bandwidth", "2 GB/s/node", "2 GB/s/node", Storage(2e9)),
    ("co2", "0.39", 0.39, 0.39),
]


@pytest.mark.parametrize(("name", "text", "number", "value"), ALIKE)
def test_numbers_are_read_as_the_texts_that_stand_for_them(
    name: str, text: Any, number: Any, value: Any
) -> None:
    of_text, of_number = (FLAGS[name].read(name, given) for given in (text, number))
    assert of_text == of_number
    assert type(of_text) is type(of_number)
    if name == "discount":  # every cloud has a name of its own
        assert list(of_text.values()) == list(value.values())
    elif value is not None:
        assert of_text == value


def test_a_float_comes_out_as_it_went_in() -> None:
    for value in (0.1, 2.5e-3, 1 / 3, 123456.789):
        assert FLAGS["budget"].read("budget", value) == value
        assert FLAGS["epochs"].read("epochs", value) == value


def test_bare_numbers_of_python_have_the_unit_of_the_name() -> None:
    given = {**NEEDED, "deadline": 86400}
    assert asked(PlanAsked, PLAN_FLAGS, given, from_python=True).deadline == 86400.0
    assert asked(PlanAsked, PLAN_FLAGS, {**given, "deadline": 1}).deadline == 86400.0
    text = {**given, "deadline": "2 h"}
    assert asked(PlanAsked, PLAN_FLAGS, text, from_python=True).deadline == 7200.0


@pytest.mark.parametrize("given", [True, float("nan"), float("inf"), [1], None, -1, 0, 0.5])
def test_what_is_no_count_is_refused(given: Any) -> None:
    if given is None or isinstance(given, list):
        given = str(given)
    with pytest.raises(InputError, match=r"^--top '") as caught:
        FLAGS["top"].read("top", given)
    assert caught.value.part == "top"


def test_messages_call_a_flag_as_the_one_who_asks_does() -> None:
    assert (flag("seq_length"), flag("budget")) == ("--seq-length", "--budget")
    with naming(as_keyword):
        assert (flag("seq_length"), flag("budget")) == ("seq_length", "budget_usd")
        with pytest.raises(InputError, match=r"^budget_usd 'much': not a number") as caught:
            FLAGS["budget"].read("budget", "much")
    assert caught.value.part == "budget"
    assert flag("budget") == "--budget"


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (PlanAsked, PLAN_FLAGS),
        (PlanAsked, WHY_NOT_FLAGS),
        (AskedValues, PREDICT_FLAGS),
        (AskedValues, FIT_FLAGS),
    ],
)
def test_every_flag_is_a_field(kind: type[AskedValues], table: dict[str, Any]) -> None:
    assert set(table) <= set(kind.__struct_fields__)
    required = {"model": "gpt2", "global_batch": 8, "strategy": "tp=2"}
    found = asked(kind, table, {name: required[name] for name in required if name in table})
    assert found.given == {name for name in required if name in table}
    assert found.precision == "bf16"


def test_what_was_given_is_known_from_what_is_default() -> None:
    found = asked(AskedValues, PREDICT_FLAGS, {"precision": "bf16", "prices": ()})
    assert found.given == {"precision"}
    assert found.runtime == "megatron"
    assert read(PREDICT_FLAGS, {})["prices"] is None
