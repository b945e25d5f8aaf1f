"""Every cause, rejection and module of the package has words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astrarium.cost.memory import MEMORY_CAUSES
from astrarium.cost.step import SECONDS_CAUSES
from astrarium.plans.document import MEMORY_KEYS, PlanDocument, Recompute
from astrarium.report import wording
from astrarium.search.outcome import Rejection
from astrarium.strategy.types import Granularity, Method, Overlap, RecomputeModule


def test_bytes_of_a_parameter_are_not_stated_as_they_differ_by_plan() -> None:
    """QLoRA's weights are of 4 bits, and Lion, SGD and reduced moments are not of 12 bytes."""
    assert not [words for _, words in wording.WORDS.memory.values() if "byte" in words]


def test_every_cause_has_words() -> None:
    assert set(wording.WORDS.time) == set(SECONDS_CAUSES)
    assert set(wording.WORDS.memory) == set(MEMORY_CAUSES)
    assert set(MEMORY_KEYS) == set(MEMORY_CAUSES)
    assert set(wording.WORDS.rejections) == {cause.value for cause in Rejection}
    assert set(wording.WORDS.modules) == set(RecomputeModule)


def test_an_unknown_cause_is_shown_under_its_key() -> None:
    assert wording.time_cause("data_loading").title == "data loading"
    assert wording.rejection("carbon") == "carbon"


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        (Recompute(Granularity.NONE, Method.NONE, 0), "none"),
        (
            Recompute(
                Granularity.SELECTIVE,
                Method.NONE,
                0,
                (RecomputeModule.CORE_ATTN, RecomputeModule.MLP),
            ),
            "attention, MLP",
        ),
        (Recompute(Granularity.FULL, Method.UNIFORM, 1), "all layers"),
        (Recompute(Granularity.FULL, Method.UNIFORM, 4), "all, in groups of 4"),
        (Recompute(Granularity.FULL, Method.BLOCK, 1), "1 layer per chunk"),
        (Recompute(Granularity.FULL, Method.BLOCK, 3), "3 layers per chunk"),
    ],
)
def test_recompute_in_words(recompute: Recompute, expected: str) -> None:
    assert wording.recompute_words(recompute) == expected


def test_rules_in_words() -> None:
    assert wording.rule_words("heads_by_tp") == "heads by tp"
    assert wording.rule_words("$zero_stage > 1") == "$zero_stage > 1"


def test_a_switch_is_advised_only_where_it_is_off(document: PlanDocument) -> None:
    on = document.plans[0].strategy
    off = replace(on, overlap=Overlap(tp=False))
    assert "overlap_tp" not in wording.remedy("tp_communication", on)
    assert "overlap_tp" in wording.remedy("tp_communication", off)
    assert wording.remedy("forward", off) == ""


def test_a_strategy_in_one_line(document: PlanDocument) -> None:
    strategy = document.plans[0].strategy
    assert wording.strategy_words(strategy) == (
        "tp 4, pp 4, vpp 2, dp 4, micro-batch 1 x 256, ZeRO 1, recompute attention"
    )
    with_experts = wording.strategy_words(strategy, experts=True)
    assert with_experts.startswith("tp 4, pp 4, vpp 2, ep 1, etp 1, dp 4")
    assert "etp 2" in wording.strategy_words(replace(strategy, etp=2))
    assert "optimizer in host memory" not in wording.switches_words(strategy)
    offloaded = replace(strategy, offload_optimizer=True)
    assert "optimizer in host memory" in wording.switches_words(offloaded)
    assert "ZeRO 1 + host" in wording.strategy_words(offloaded)


def test_a_type_is_shortened_to_its_first_number() -> None:
    names = ["RTX-4090-24GB", "RTX-PRO-6000-Blackwell-96GB", "H100-SXM5-80GB", "own-card"]
    short = ["RTX-4090", "RTX-PRO-6000", "H100", "own"]
    assert list(wording.short_types(names).values()) == short
    assert list(wording.short_types(["A100-SXM4-40GB", "A100-SXM4-80GB"]).values()) == [
        "A100-40GB",
        "A100-80GB",
    ]
