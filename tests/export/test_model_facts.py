"""Defaults of configs are those of the transformers classes."""

from __future__ import annotations

import pytest

from astrarium.export.software.model_facts import FAMILIES, Key, Router, rope_of

# Our own type, one that transformers reads as another, and keys that are not in its classes.
OURS = {"megatron_gpt", "kimi_k2"}
ABSENT = {"", "topk_method", "aux_loss_alpha", "router_aux_loss_coef"}


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - OURS))
def test_defaults_are_those_of_transformers(name: str) -> None:
    from transformers import CONFIG_MAPPING

    stated = CONFIG_MAPPING[name]().to_dict()
    family = FAMILIES[name]
    keys: list[Key] = [family.epsilon, family.activation]
    if router := family.router:
        keys += [router.scaling, router.groups, router.group_topk]
        keys += [router.normalised] if "norm_topk_prob" in stated else []
    for key, default in keys:
        if key not in ABSENT and stated.get(key) is not None:
            assert stated[key] == default, key
    own, theirs = rope_of({}, family), rope_of(stated, family)
    assert (own.theta, own.kind) == (theirs.theta, theirs.kind)
    if own.kind:
        assert dict(own.scaling) == {k: v for k, v in theirs.scaling.items() if k != "rope_theta"}


def test_routers_without_a_bias_score_by_softmax() -> None:
    assert not Router().has_bias
    assert Router("sigmoid").has_bias
