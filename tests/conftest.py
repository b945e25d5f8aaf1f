"""Settings for all tests: a slow machine is no failure, and a run can be repeated exactly."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("astrarium", deadline=None, derandomize=True)
settings.load_profile("astrarium")
