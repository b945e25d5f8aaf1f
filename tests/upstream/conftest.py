"""The real parsers as fixtures; a fixture is absent only where its package is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from upstream.client import REQUIRED, Driver, Drivers, why_absent


@pytest.fixture(scope="session")
def drivers() -> Iterator[Drivers]:
    started = Drivers()
    yield started
    started.close()


def _driver(drivers: Drivers, name: str) -> Driver:
    reason = why_absent(name)
    if reason and REQUIRED:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return drivers[name]


@pytest.fixture(scope="session")
def megatron(drivers: Drivers) -> Driver:
    """Megatron-LM 0.19.2: arguments, rank groups, options, keys of its configuration classes."""
    return _driver(drivers, "megatron")


@pytest.fixture(scope="session")
def torchtitan_python(drivers: Drivers) -> Driver:
    """torchtitan 0.3.0."""
    return _driver(drivers, "torchtitan_python")


@pytest.fixture(scope="session")
def deepspeed(drivers: Drivers) -> Driver:
    return _driver(drivers, "deepspeed")


@pytest.fixture(scope="session")
def accelerate(drivers: Drivers) -> Driver:
    return _driver(drivers, "accelerate")


@pytest.fixture(scope="session")
def torchtune(drivers: Drivers) -> Driver:
    return _driver(drivers, "torchtune")


@pytest.fixture(scope="session")
def skypilot(drivers: Drivers) -> Driver:
    return _driver(drivers, "skypilot")


@pytest.fixture(scope="session")
def kubernetes(drivers: Drivers) -> Driver:
    """Kubeflow's TrainJob and JobSet."""
    return _driver(drivers, "kubernetes")


@pytest.fixture(scope="session")
def ray(drivers: Drivers) -> Driver:
    return _driver(drivers, "ray")
