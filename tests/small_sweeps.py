"""The folder of a sweep for tests: two models, two batches, and a scenario without a plan."""

from __future__ import annotations

from pathlib import Path

from astrarium.sweep.folder import SweepFolder
from astrarium.sweep.rows import answered
from astrarium.sweep.scenarios import read_sweep

SWEEP = """
gpus: [h100:8, h100:16]
seq_length: 1024
tokens: 1B
top: 1
scenarios:
- {model: gpt2-small, global_batch: [64, 128]}
- {model: tinyllama-1.1b, global_batch: [64, 128], runtime: fsdp}
- {model: llama-2-70b, global_batch: 64, gpus: "rtx4090:1"}
"""


def written(folder: Path) -> SweepFolder:
    """A folder with the rows of all scenarios."""
    file = folder / "sweep.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    made = SweepFolder(folder / "rows")
    made.create()
    made.add([row for one in read_sweep(file) for row in answered(one)])
    return made
