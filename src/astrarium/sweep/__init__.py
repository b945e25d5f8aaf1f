"""Many questions from one file, answered on all cores or on a Ray cluster, one row per plan."""

from __future__ import annotations

__all__ = ["engines", "folder", "rows", "scenarios"]
