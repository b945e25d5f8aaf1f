"""`astrarium sweep --engine ray` on a Ray cluster of this machine, a worker of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest
from upstream.client import REQUIRED, ROOT

SWEEP = """
model: gpt2-small
gpus: a100:1
global_batch: {batches}
seq_length: 1024
top: 1
"""
COUNT = 80


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    if not (ROOT / "ray" / "ray").is_dir():
        assert not REQUIRED, f"Ray is not installed in {ROOT}"
        pytest.skip(f"Ray is not installed in {ROOT}")
    batches = list(range(1, COUNT + 1))
    (tmp_path / "s.yaml").write_text(SWEEP.format(batches=batches), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "ray"), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "astrarium", "sweep", "s.yaml", "--engine", "ray"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        killed = False
        while process.poll() is None:
            if not killed and list((tmp_path / "s").glob("part-*")):
                killed = _kill_a_worker()
            time.sleep(0.05)
        assert process.stdout is not None
        assert process.returncode == 0, process.stdout.read()
    assert killed
    rows = [
        row
        for part in (tmp_path / "s").glob("part-*")
        for row in pyarrow.parquet.read_table(part).to_pylist()
    ]
    assert {row["status"] for row in rows} == {"planned"}
    found = Counter(int(row["asked.global_batch"]) for row in rows)
    assert found == dict.fromkeys(batches, 1)


def _kill_a_worker() -> bool:
    """Kill a process that answers a batch."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if name.startswith(b"ray::rows_of"):
            os.kill(int(path.parent.name), signal.SIGKILL)
            return True
    return False
