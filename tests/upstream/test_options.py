"""What we say about Megatron's options is about the options that it has."""

from __future__ import annotations

from upstream.client import Driver
from upstream.options import RECORDED, recorded, text_of

from astrarium.strategy.options import megatron_options


def test_every_option_of_megatron_is_treated() -> None:
    ours = [(option.dest, option.flags) for option in megatron_options()]
    assert ours == recorded()


def test_what_is_recorded_is_what_the_parser_has(megatron: Driver) -> None:
    real = text_of(megatron.ask(operation="options"))
    assert real == RECORDED.read_text(encoding="utf-8")
