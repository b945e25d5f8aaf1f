"""The names of GPU types in other software: `data/gpu_names.json`.

`names` differ from the beginning of ours, `same` do not; `read` maps short names that mean another
card there. Kubernetes has the names of NVIDIA's feature discovery: those of nvidia-smi with
hyphens.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from astrarium.catalog.records import read_table


@cache
def names_of(software: str) -> dict[str, Any]:
    """The tables of a program."""
    return read_table("gpu_names.json")[software]


def name_in(software: str, gpu: str) -> str:
    """What the program calls a GPU type; "" if that is not known."""
    tables, short = names_of(software), gpu.partition("-")[0]
    name: str = tables["names"].get(gpu, short if short in tables["same"] else "")
    return name
