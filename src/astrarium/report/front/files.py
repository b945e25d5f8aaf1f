"""The front as a file: CSV and Parquet with every point and its plan, SVG and PNG as pictures.

The ending of the name decides. Tables have one row for each point in the order of `pareto`, so that
`tied_with` names rows; units are in the names of their columns. SVG and CSV need no further
package; Parquet needs pyarrow, PNG matplotlib, and both are imported only here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from astrarium.documents import write_atomic_bytes
from astrarium.errors import InputError
from astrarium.plans.document import ParetoPart, Plan, PlanDocument
from astrarium.report.front.drawing import to_png, to_svg
from astrarium.report.front.picture import front_drawing
from astrarium.report.front.points import front_of
from astrarium.report.wording import strategy_words
from astrarium.value import Value

DEGREES: Final = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "num_micro_batches")
CHOICES: Final = (*DEGREES, "virtual_stages", "zero_stage")
PICTURES: Final = (".svg", ".png")
LIST_MARK: Final = ";"  # between the numbers of a list in a cell of CSV

Cell = str | int | float | bool | list[int] | None


class FileKind(Value, frozen=True):
    """A format: what it needs, the extra that brings it, and the format that needs nothing."""

    content: Callable[[PlanDocument], bytes]
    package: str = ""
    extra: str = ""
    instead: str = ""


def check_front(flag: str, path: str, endings: Sequence[str] = ()) -> None:
    """Refuse before any work what cannot be written afterwards.

    `endings` are those that the flag takes; all if none are named.
    """
    kind = _kind_of(flag, path, endings)
    if kind.package and find_spec(kind.package) is None:
        raise InputError(
            f"{flag} {path}: needs {kind.package}; install it with: pip install"
            f" 'astrarium[{kind.extra}]', or name a file that ends in {kind.instead}"
        )
    if Path(path).is_dir():
        raise InputError(f"{flag} {path}: is a folder; name a file")
    if not Path(path).parent.is_dir():
        raise InputError(f"{flag} {path}: there is no folder {Path(path).parent}")


def write_front(flag: str, path: str, document: PlanDocument) -> None:
    """Write the front of a document in the format that the name asks for."""
    kind = _kind_of(flag, path)
    if not document.pareto:
        raise InputError(f"{flag} {path}: the document has no front; plan again to get one")
    write_atomic_bytes(Path(path), kind.content(document))


def _kind_of(flag: str, path: str, endings: Sequence[str] = ()) -> FileKind:
    ending = Path(path).suffix.lower()
    taken = endings or tuple(KINDS)
    if ending not in taken:
        raise InputError(f"{flag} {path}: expected a name that ends in {', '.join(taken)}")
    return KINDS[ending]


def front_rows(document: PlanDocument) -> tuple[dict[str, type], list[dict[str, Cell]]]:
    """The columns with their types, and a row for each point."""
    types = list(dict.fromkeys(name for part in document.pareto for name in part.gpus))
    columns: dict[str, type] = {
        "point": int,
        "plan_rank": int,
        "chosen": bool,
        "gpus": int,
        **{f"gpus.{name}": int for name in types},
        **{f"spot_gpus.{name}": int for name in types},
        **{f"cloud.{name}": str for name in types},
        "train_seconds": float,
        "train_seconds_low": float,
        "train_seconds_high": float,
        "usd_total": float,
        "usd_low": float,
        "usd_high": float,
        "usd_per_hour": float,
        "iteration_seconds": float,
        "tokens_per_second": float,
        "goodput": float,
        "kwh": float,
        "tied_with": list,
        **dict.fromkeys(CHOICES, int),
        "strategy": str,
    }
    experts = document.workload.has_experts
    rows = [
        dict(_cells(index, part, document.plans[part.plan], types, experts))
        for index, part in enumerate(document.pareto)
    ]
    return columns, rows


def _cells(
    index: int, part: ParetoPart, plan: Plan, types: Sequence[str], experts: bool
) -> Iterator[tuple[str, Cell]]:
    yield from (("point", index), ("plan_rank", plan.rank), ("chosen", part.plan == 0))
    yield "gpus", sum(part.gpus.values())
    for name in types:
        yield f"gpus.{name}", part.gpus.get(name, 0)
        yield f"spot_gpus.{name}", part.spot_gpus.get(name, 0)
        yield f"cloud.{name}", part.cloud.get(name)
    for middle, low, interval in (
        ("train_seconds", "train_seconds", part.train_seconds_interval),
        ("usd_total", "usd", part.usd_interval),
    ):
        yield middle, getattr(part, middle)
        yield f"{low}_low", None if interval is None else interval[0]
        yield f"{low}_high", None if interval is None else interval[1]
    for key in ("usd_per_hour", "tokens_per_second", "goodput", "kwh"):
        yield key, getattr(part, key)
    yield "iteration_seconds", plan.iteration_seconds
    yield "tied_with", list(part.tied_with)
    for key in CHOICES:
        yield key, getattr(plan.strategy, key)
    yield "strategy", strategy_words(plan.strategy, experts=experts)


def _csv(document: PlanDocument) -> bytes:
    columns, rows = front_rows(document)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_cell(row[key]) for key in columns} for row in rows)
    return text.getvalue().encode("utf-8")


def _csv_cell(cell: Cell) -> str:
    if isinstance(cell, list):
        return LIST_MARK.join(map(str, cell))
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if cell is None else str(cell)


def _parquet(document: PlanDocument) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    columns, rows = front_rows(document)
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    kinds[list] = pa.list_(pa.int64())
    about = {"schema": document.schema, "model": document.workload.model}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata=about)
    content = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema), content, compression="zstd")
    return content.getvalue()


def _svg(document: PlanDocument) -> bytes:
    return to_svg(front_drawing(front_of(document), document.workload)).encode("utf-8")


def _png(document: PlanDocument) -> bytes:
    return to_png(front_drawing(front_of(document), document.workload))


KINDS: Final[Mapping[str, FileKind]] = {
    ".csv": FileKind(_csv),
    ".parquet": FileKind(_parquet, "pyarrow", "parquet", ".csv"),
    ".svg": FileKind(_svg),
    ".png": FileKind(_png, "matplotlib", "plot", ".svg"),
}
