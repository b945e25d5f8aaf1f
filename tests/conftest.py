"""Settings for all tests: a slow machine is no failure, and a run can be repeated exactly."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.internal.conjecture import providers

settings.register_profile("astrarium", deadline=None, derandomize=True)
settings.load_profile("astrarium")
# Hypothesis also draws constants that it reads in whatever modules a worker has imported by then:
# which test sees which example would depend on the order of the tests.
providers._get_local_constants = lambda: providers._local_constants
