"""Messages with unequal parts: the collective model where parts are equal, bounds where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_priced import CORE, cluster

from astrarium.cost.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)
from astrarium.spmd.price.messages import (
    HOWS,
    Mailbox,
    MessageRequest,
    direct_bytes,
    exchanged_share,
    unequal_seconds,
)
from astrarium.spmd.program import How
from astrarium.spmd.rules import MessageKind

EQUAL = {
    MessageKind.ALL_GATHER: all_gather_seconds,
    MessageKind.REDUCE_SCATTER: reduce_scatter_seconds,
}
PARTS = st.lists(st.floats(0, 1e8), min_size=8, max_size=8).filter(lambda parts: max(parts) > 1)


@pytest.mark.parametrize("collective", EQUAL)
@pytest.mark.parametrize("spec", ["v100:8", "v100:4,p100:4", "h100:16"])
def test_equal_parts_cost_what_the_collective_model_says(
    spec: str, collective: MessageKind
) -> None:
    devices = cluster(spec)
    fabric, group = devices.fabrics[0], devices.groups[0]
    parts = np.array([np.full(devices.count, size) for size in (1.0, 1e4, 1e7)])
    seconds, hows = unequal_seconds(fabric, group, collective, parts)
    expected = EQUAL[collective](fabric, parts.sum(axis=1), group)
    assert seconds == pytest.approx(expected, rel=1e-9)
    assert [HOWS[how] for how in hows] == [How.PLAIN] * 3


def test_a_mailbox_prices_every_message_as_its_collective() -> None:
    devices = cluster("v100:16")
    fabric, group = devices.fabrics[0], devices.groups[0]
    mail = Mailbox()
    shares = (1 / 16,) * 16
    asked = [
        mail.ask(MessageRequest(0, MessageKind.ALL_REDUCE, 3e6)),
        mail.ask(MessageRequest(0, MessageKind.ALL_GATHER, 5e6, shares)),
        mail.ask(MessageRequest(0, MessageKind.ALL_TO_ALL, 2e6 * 15 / 16)),
        mail.ask(MessageRequest(0, MessageKind.ALL_REDUCE, 3e6)),
    ]
    assert asked == [0, 1, 2, 0]
    seconds, _ = mail.seconds(devices)
    assert seconds[0] == all_reduce_seconds(fabric, 3e6, group)
    assert seconds[1] == pytest.approx(float(all_gather_seconds(fabric, 5e6, group)))
    assert seconds[2] == pytest.approx(float(all_to_all_seconds(fabric, 2e6, group)))


@settings(max_examples=60, deadline=None)
@given(parts=PARTS, collective=st.sampled_from(list(EQUAL)))
def test_unequal_parts_cost_between_equal_ones_and_padded_ones(
    parts: list[float], collective: MessageKind
) -> None:
    devices = cluster("v100:8")
    fabric, group = devices.fabrics[0], devices.groups[0]
    given_parts = np.array(parts)
    seconds, _ = unequal_seconds(fabric, group, collective, given_parts)
    of_equal = EQUAL[collective]
    assert seconds <= of_equal(fabric, 8 * given_parts.max(), group)
    assert seconds >= of_equal(fabric, given_parts.sum(), group) * (1 - 1e-9)
    turned, _ = unequal_seconds(fabric, group, collective, given_parts[::-1])
    assert turned == pytest.approx(float(seconds))
    more, _ = unequal_seconds(fabric, group, collective, 2 * given_parts)
    assert more >= seconds


def test_one_large_part_is_broadcast_and_small_ones_are_padded() -> None:
    devices = cluster("v100:8")
    fabric, group = devices.fabrics[0], devices.groups[0]
    lone = np.array([1e8, 0, 0, 0, 0, 0, 0, 0])
    nearly = np.array([1.1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6])
    for parts, how in ((lone, How.GROUPED), (nearly, How.PADDED)):
        _, found = unequal_seconds(fabric, group, MessageKind.ALL_GATHER, parts)
        assert HOWS[int(found)] is how
    # A broadcast passes all of its bytes over each link: 8/7 of what a gather of as many does.
    seconds, _ = unequal_seconds(fabric, group, MessageKind.ALL_GATHER, lone)
    assert seconds == pytest.approx(float(all_gather_seconds(fabric, 1e8 * 8 / 7, group)))


def test_gloo_sends_pieces_of_any_size_directly() -> None:
    devices = cluster("cpu-core:4", tuning=CORE)
    parts = np.array([3e6, 1e6, 0.0, 0.0])
    assert direct_bytes(parts) == 9e6  # the largest part to three others
    seconds, hows = unequal_seconds(
        devices.fabrics[0], devices.groups[0], MessageKind.ALL_GATHER, parts
    )
    expected = all_to_all_seconds(devices.fabrics[0], 12e6, devices.groups[0])
    assert seconds <= expected
    assert HOWS[int(hows)] in (How.PLAIN, How.GROUPED)


@pytest.mark.parametrize("more", [0.25, 0.3])
def test_slopes_are_those_of_a_larger_piece(more: float) -> None:
    """Of an exchange, and of a gather that will be padded: seconds of a share of the whole."""
    devices = cluster("v100:4")
    rest = (1 - more) / 3
    even = np.full(4, 0.25)
    mail = Mailbox()
    uneven = np.array([more, rest, rest, rest])
    for parts in (even, uneven):
        mail.ask(MessageRequest(0, MessageKind.ALL_GATHER, 1e9, tuple(parts)))
        sent = 1e9 * exchanged_share(parts, even)
        mail.ask(MessageRequest(0, MessageKind.ALL_TO_ALL, sent, (float(parts.max()),)))
    seconds, _ = mail.seconds(devices)
    slopes, levels = mail.slopes(devices)
    assert levels.tolist() == [0] * len(seconds)
    for kind in (0, 1):
        line = seconds[kind] + slopes[kind] * (more - 0.25)
        assert line == pytest.approx(seconds[kind - 2 if more > 0.25 else kind], rel=0.01)


def test_groups_of_one_send_nothing() -> None:
    devices = cluster("v100:1")
    seconds, hows = unequal_seconds(
        devices.fabrics[0], devices.groups[0], MessageKind.ALL_GATHER, np.array([[1e6]])
    )
    assert (seconds.tolist(), hows.tolist()) == ([0.0], [0])


def test_exchanges_count_what_leaves_the_busiest_device() -> None:
    quarter = np.full(4, 0.25)
    assert exchanged_share(quarter, quarter) == pytest.approx(3 / 16)
    assert exchanged_share(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(parts=PARTS, factor=st.floats(1.0, 8.0))
def test_more_bandwidth_is_never_slower(parts: list[float], factor: float) -> None:
    from dataclasses import replace

    devices = cluster("v100:16")
    fabric, group = devices.fabrics[0], devices.groups[0]
    faster = replace(fabric, inter_bandwidth=fabric.inter_bandwidth * factor)
    given_parts = np.array([*parts, *parts])
    for collective in EQUAL:
        before, _ = unequal_seconds(fabric, group, collective, given_parts)
        after, _ = unequal_seconds(faster, group, collective, given_parts)
        assert after <= before
