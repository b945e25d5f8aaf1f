"""Results of ranks become losses, times and a verdict; what is missing is named."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest

from astrarium.errors import InputError
from astrarium.runtime import execute
from astrarium.runtime.job import Device, RankResult


def rank(
    number: int,
    losses: tuple[float, ...],
    norms: tuple[float, ...] = (2.0, 1.0),
    seconds: float = 1,
) -> RankResult:
    return RankResult(0, number, losses, norms, (seconds, seconds), 1000, 10)


def test_losses_are_those_of_the_last_stage_averaged() -> None:
    ranks = [rank(0, ()), rank(1, (3.0, 2.0)), rank(2, ()), rank(3, (5.0, 4.0))]
    assert execute.mean_losses(ranks) == (4.0, 3.0)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert execute.step_seconds([rank(0, (), seconds=1), rank(1, (), seconds=3)]) == (3, 3)


@pytest.mark.parametrize(
    ("losses", "norms", "equal"),
    [
        ((4.0, 3.0), (2.0, 1.0), True),
        ((4.0, 3.0002), (2.0, 1.0), True),
        ((4.0, 3.001), (2.0, 1.0), False),
        ((4.0, 3.0), (2.0, 1.001), False),
        ((4.0, float("nan")), (2.0, 1.0), False),
    ],
)
def test_losses_and_gradients_must_agree(
    losses: tuple[float, ...], norms: tuple[float, ...], equal: bool
) -> None:
    compared = execute.compared([rank(0, losses, norms)], [rank(0, (4.0, 3.0))], Device.CPU)
    assert compared.equal is equal
    assert compared.losses == (4.0, 3.0)


def test_the_largest_difference_is_absolute() -> None:
    compared = execute.compared([rank(0, (3.5, 3.1))], [rank(0, (4.0, 3.0))], Device.CUDA)
    assert compared.largest_difference == 0.5
    assert not compared.equal


def test_what_is_not_installed_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_torch(name: str) -> ModuleSpec | None:
        if name != "torch":
            raise ModuleNotFoundError(name)
        return ModuleSpec("torch", None)

    monkeypatch.setattr(execute, "find_spec", only_torch)
    with pytest.raises(InputError, match=r"needs megatron-core, .*pip install 'astrarium\[run\]'"):
        execute.versions()
    monkeypatch.setattr(execute, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs torch and megatron-core"):
        execute.versions()
