"""Settings for all tests: a slow machine is no failure, and a run can be repeated exactly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

settings.register_profile("astrarium", deadline=None, derandomize=True)
settings.load_profile("astrarium")
# Hypothesis also draws constants that it reads in whatever modules a worker has imported by then:
# which test sees which example would depend on the order of the tests.
providers._get_local_constants = lambda: providers._local_constants

# A shell that runs tests in the background lets them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_FILES = Path(__file__).with_name("slow_files.txt")  # written by tools/slow_tests.py


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the slow files of tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("quick"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    return True if name in SLOW_FILES.read_text(encoding="utf-8").split() else None


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A program for ranks in place of Python, that has torch already."""
    import warm_ranks

    with warm_ranks.warm_python() as program:
        yield program


@pytest.fixture
def warm(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of this test are forked from a process that has imported torch."""
    import warm_ranks

    from astrarium.runtime import launch

    monkeypatch.setattr(launch, "_started", warm_ranks.started_by(warm_python, launch._started))
