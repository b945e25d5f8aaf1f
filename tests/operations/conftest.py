"""A small plan on two GPU types, and one on a single type, for tests of running jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

import astrarium
from astrarium.plans.job import Job, job_of


@pytest.fixture(scope="session")
def mixed_plans() -> astrarium.Plans:
    return astrarium.predict(
        "llama-2-7b", "pp=3,split=balanced", gpus="a100:16,h100:8", global_batch=240
    )


@pytest.fixture(scope="session")
def single_plans() -> astrarium.Plans:
    """A pipeline of four stages, two replicas of each."""
    return astrarium.predict(
        "llama-2-7b", "tp=4,pp=4,micro_batch=1,recompute=full", gpus="a100:32", global_batch=128
    )


@pytest.fixture(scope="session")
def single(single_plans: astrarium.Plans) -> Job:
    return job_of(single_plans.document)


@pytest.fixture(scope="session")
def mixed(mixed_plans: astrarium.Plans) -> Job:
    return job_of(mixed_plans.document)


@pytest.fixture(scope="session")
def single_file(single_plans: astrarium.Plans, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return single_plans.save(tmp_path_factory.mktemp("plan"))
