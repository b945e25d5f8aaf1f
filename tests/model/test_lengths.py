"""Distributions of lengths: what is read, and what is computed of them, against draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.errors import InputError
from astrarium.model.lengths import Lengths, binned, checked_lengths, lengths_of_file

NUMBERS = st.lists(st.integers(1, 50_000), min_size=1, max_size=200)


@given(NUMBERS)
def test_bins_keep_the_mean_and_what_is_longest(numbers: list[int]) -> None:
    draws = Lengths(binned(numbers)).draws(10**9)
    assert draws.shares.sum() == pytest.approx(1.0)
    assert draws.mean == pytest.approx(np.mean(numbers), rel=1e-4)
    # A bin is a twentieth wide.
    assert draws.lengths[-1] == pytest.approx(max(numbers), rel=0.05)
    squares = np.square(np.array(numbers, float))
    assert draws.seen == pytest.approx(squares.sum() / sum(numbers), rel=0.01)


@given(NUMBERS, st.integers(1, 60_000))
def test_longer_sequences_are_cut(numbers: list[int], most: int) -> None:
    draws = Lengths(binned(numbers)).draws(most)
    assert draws.lengths[-1] <= most
    assert draws.mean == pytest.approx(np.minimum(numbers, most).mean(), rel=0.03)


def test_the_longest_of_some_is_that_of_draws() -> None:
    draws = Lengths("100*5,400*3,1000*2").draws(10**6)
    drawn = np.random.default_rng(1).choice(draws.lengths, (200_000, 3), p=draws.shares)
    longest = draws.longest_of(3)
    assert longest.mean == pytest.approx(drawn.max(axis=1).mean(), rel=0.005)
    assert longest.shares.sum() == pytest.approx(1.0)
    assert draws.longest_of(1).mean == pytest.approx(draws.mean)


def test_a_lognormal_distribution_has_its_median_and_its_tail() -> None:
    draws = Lengths("lognormal:600,3000").draws(10**9)
    below = np.cumsum(draws.shares)
    for share, length in ((0.5, 600), (0.95, 3000)):
        assert np.interp(share, below, draws.lengths) == pytest.approx(length, rel=0.05)
    deviation = math.log(5) / 1.6449
    assert draws.mean == pytest.approx(600 * math.exp(deviation**2 / 2), rel=0.01)


def test_rows_vary_as_rows_that_were_packed() -> None:
    """Documents drawn one after the other, cut where a row is full, as packers do."""
    draws = Lengths("lognormal:400,1500").draws(4096)
    drawn = np.random.default_rng(2).choice(draws.lengths, 400_000, p=draws.shares)
    ends = np.cumsum(drawn)
    row = 65_536
    of_row = np.bincount((ends // row).astype(int), drawn**2)[1:-1]
    assert draws.unevenness(row) == pytest.approx(of_row.std() / of_row.mean(), rel=0.05)


def test_equal_sequences_are_even() -> None:
    draws = Lengths("512*3").draws(2048)
    assert (draws.mean, draws.seen, draws.unevenness(2048)) == (512.0, 512.0, 0.0)


def test_files(tmp_path: Path) -> None:
    lines, listed = tmp_path / "lengths.txt", tmp_path / "lengths.json"
    lines.write_text("100\n200\n\n300\n")
    listed.write_text("[100, 200, 300]")
    assert lengths_of_file(lines) == lengths_of_file(listed) == "100*1,200*1,300*1"


@pytest.mark.parametrize("text", ["", "a b", "[1, {}]", "100\n0", "[[1]]", "nan"])
def test_files_that_list_no_lengths_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=r"lengths.txt: expected a length in tokens in each line"):
        lengths_of_file(path)


@pytest.mark.parametrize(
    "text",
    ["lognormal:600", "lognormal:3000,600", "lognormal:0,5", "normal:1,2", "5", "5*0", "", "5*x"],
)
def test_texts_that_describe_no_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="lognormal:MEDIAN,P95"):
        checked_lengths(text)
