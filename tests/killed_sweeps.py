"""Answers of processes that die; imported by the processes of the local engine."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL

from astrarium.sweep.engines import Batch, rows_of
from astrarium.sweep.rows import Row


def once(batch: Batch) -> list[Row]:
    """Kills its process the first time that it is asked about a batch of 48 sequences."""
    mark = Path(os.environ["KILLED_ONCE"])
    if any(one.question["global_batch"] == 48 for one in batch) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), SIGKILL)
    return rows_of(batch)


def always(batch: Batch) -> list[Row]:
    """Kills its process whenever it is asked about a batch of 48 sequences."""
    if any(one.question["global_batch"] == 48 for one in batch):
        os.kill(os.getpid(), SIGKILL)
    return rows_of(batch)
