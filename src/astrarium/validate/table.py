"""Tables of measured iterations, as CSV with the header that docs/commands.md lists.

A blank cell means "not stated". Columns that are not known are kept for `--out` and otherwise
ignored. What is wrong with the file as a whole is an `InputError`; what is wrong with one row is
kept with the row, which is then reported and not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from astrarium.documents.parsing import csv_rows
from astrarium.errors import InputError, did_you_mean
from astrarium.value import Value

# Without these columns nothing can be predicted or compared; their cells may be blank.
REQUIRED: Final = (
    "source",
    "framework",
    "model",
    "seq_len",
    "gpu",
    "num_gpus",
    "tp",
    "pp",
    "micro_batch",
    "global_batch",
    "iter_time_s",
)
# What people and tools write where nothing is stated.
BLANKS: Final = frozenset({"", "-", "--", "n/a", "na", "none stated", "null"})
# Columns where 0 means "not used", or too little to print.
MAY_BE_ZERO: Final = frozenset({"vpp", "cp", "ep", "moe_experts", "moe_topk", "mfu"})
# What other programs put between cells.
SEPARATORS: Final = {";": "';'", "\t": "tabs"}
LARGEST_COUNT: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One row; None and "" stand for blank cells. Names and units are those of the columns."""

    place: str  # file and line, for messages
    cells: Mapping[str, str] = field(repr=False)
    problem: str = ""  # why the row cannot be used, if so
    source: str = ""
    framework: str = ""
    model: str = ""
    gpu: str = ""
    intra_link: str = ""
    precision: str = ""
    sp: str = ""
    zero_or_fsdp: str = ""
    distributed_optimizer: str = ""
    recompute: str = ""
    attention_impl: str = ""
    overlap: str = ""
    notes: str = ""
    gated_mlp: str = ""
    tied_embeddings: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    moe_experts: int | None = None
    moe_topk: int | None = None
    moe_shared_ffn: int | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    num_micro_batches: int | None = None
    params_b: float | None = None
    inter_link_gbps_per_gpu: float | None = None
    iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    peak_mem_gb: float | None = None

    @property
    def address(self) -> str:
        """The place where the figures were published, in lower case."""
        return self.cells.get("url_or_repo_path", "").lower()


_KINDS: Final = {
    column.name: str(column.type).removesuffix(" | None")
    for column in fields(MeasuredRow)
    if column.name not in ("place", "cells", "problem")
}


class Table(Value, frozen=True):
    path: str
    columns: tuple[str, ...]
    rows: tuple[MeasuredRow, ...]


def read_table(path: Path | str) -> Table:
    """Read a table; complaints name the file, the columns and the way out."""
    (_, first), *lines = csv_rows(Path(path)) or [(1, [])]
    header = [name.strip() for name in first]
    _check_header(header, path)
    rows = tuple(_row(header, cells, f"{path}:{number}") for number, cells in lines)
    if not rows:
        raise InputError(f"{path}: the table has a header and no rows; nothing to compare with")
    return Table(str(path), tuple(header), rows)


def _check_header(header: Sequence[str], path: Path | str) -> None:
    missing = [name for name in REQUIRED if name not in header]
    for mark, name in SEPARATORS.items():
        if missing and len(header) == 1 and mark in header[0]:
            raise InputError(f"{path}: its cells are separated by {name}; save it with commas")
    if missing:
        strangers = [name for name in header if name not in _KINDS]
        hints = [hint for name in missing if (hint := did_you_mean(name, strangers))]
        what = "column" if len(missing) == 1 else "columns"
        raise InputError(
            f"{path}: missing {what} {', '.join(missing)}{hints[0] if hints else ''}; "
            "the header of a measurement table is in docs/commands.md"
        )
    doubled = sorted({name for name in header if name in _KINDS and header.count(name) > 1})
    if doubled:
        raise InputError(f"{path}: column {', '.join(doubled)} stands in the header twice")


def _row(header: Sequence[str], cells: Sequence[str], place: str) -> MeasuredRow:
    values: dict[str, Any] = {}
    problem = ""
    if len(cells) > len(header):
        problem = f"{len(cells)} cells under a header of {len(header)}"
    named = dict(zip(header, cells, strict=False))
    for name, kind in _KINDS.items():
        text = named.get(name, "").strip()
        if text.lower() in BLANKS:
            continue
        try:
            values[name] = text if kind == "str" else _number(name, text, kind)
        except ValueError as error:
            problem = problem or str(error)
    return MeasuredRow(place=place, cells=named, problem=problem, **values)


def _number(name: str, text: str, kind: str) -> float | int | None:
    """A positive number, or None for a zero that stands for "not used"."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is not a number: '{text}'") from None
    if value == 0 and name in MAY_BE_ZERO:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{name} is not a finite number: '{text}'")
    if value <= 0:
        raise ValueError(f"{name} is not above zero: '{text}'")
    if kind == "float":
        return value
    if value != int(value) or value > LARGEST_COUNT:
        raise ValueError(f"{name} is not a whole number below {LARGEST_COUNT}: '{text}'")
    return int(value)
