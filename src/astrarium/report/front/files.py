"""The front as a file: CSV and Parquet with every point and its plan, SVG as a picture.

The ending of the name decides. Tables have one row for each point in the order of `pareto`, so that
`tied_with` names rows; units are in the names of their columns. Parquet alone needs a further
package, pyarrow.
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
from astrarium.report.front.picture import front_drawing, to_svg
from astrarium.report.front.points import front_of
from astrarium.report.wording import strategy_words

DEGREES: Final = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "num_micro_batches")
CHOICES: Final = (*DEGREES, "virtual_stages", "zero_stage")
PICTURES: Final = (".svg",)
LIST_MARK: Final = ";"  # between the numbers of a list in a cell of CSV

TYPES: Final[Mapping[str, type]] = {  # of columns, without the GPU type; others are floats
    **dict.fromkeys(("point", "plan_rank", "gpus", "spot_gpus", *CHOICES), int),
    **{"chosen": bool, "cloud": str, "tied_with": list, "strategy": str},
}

Cell = str | int | float | bool | list[int] | None


def check_front(flag: str, path: str, endings: Sequence[str] = ()) -> None:
    """Refuse before any work a file that cannot be written, or has none of the `endings`."""
    if _writer(flag, path, endings) is _parquet and find_spec("pyarrow") is None:
        raise InputError(
            f"{flag} {path}: needs pyarrow; install it with: pip install 'astrarium[parquet]', or"
            " name a file that ends in .csv"
        )
    if Path(path).is_dir():
        raise InputError(f"{flag} {path}: is a folder; name a file")
    if not Path(path).parent.is_dir():
        raise InputError(f"{flag} {path}: there is no folder {Path(path).parent}")


def write_front(flag: str, path: str, document: PlanDocument) -> None:
    """Write the front of a document in the format that the name asks for."""
    content = _writer(flag, path)
    if not document.pareto:
        raise InputError(f"{flag} {path}: the document has no front; plan again to get one")
    write_atomic_bytes(Path(path), content(document))


def _writer(flag: str, path: str, endings: Sequence[str] = ()) -> Callable[[PlanDocument], bytes]:
    ending = Path(path).suffix.lower()
    taken = endings or tuple(KINDS)
    if ending not in taken:
        raise InputError(f"{flag} {path}: expected a name that ends in {', '.join(taken)}")
    return KINDS[ending]


def front_rows(document: PlanDocument) -> tuple[dict[str, type], list[dict[str, Cell]]]:
    types = list(dict.fromkeys(name for part in document.pareto for name in part.gpus))
    experts = document.workload.has_experts
    rows = [
        dict(_cells(index, part, document.plans[part.plan], types, experts))
        for index, part in enumerate(document.pareto)
    ]
    return {name: TYPES.get(name.partition(".")[0], float) for name in rows[0]}, rows


def _cells(
    index: int, part: ParetoPart, plan: Plan, types: Sequence[str], experts: bool
) -> Iterator[tuple[str, Cell]]:
    yield from (("point", index), ("plan_rank", plan.rank), ("chosen", part.plan == 0))
    yield "gpus", sum(part.gpus.values())
    yield from ((f"gpus.{name}", part.gpus.get(name, 0)) for name in types)
    yield from ((f"spot_gpus.{name}", part.spot_gpus.get(name, 0)) for name in types)
    yield from ((f"cloud.{name}", part.cloud.get(name)) for name in types)
    for middle, name, interval in (
        ("train_seconds", "train_seconds", part.train_seconds_interval),
        ("usd_total", "usd", part.usd_interval),
    ):
        yield middle, getattr(part, middle)
        yield f"{name}_low", None if interval is None else interval[0]
        yield f"{name}_high", None if interval is None else interval[1]
    yield from (("usd_per_hour", part.usd_per_hour), ("iteration_seconds", plan.iteration_seconds))
    yield from ((key, getattr(part, key)) for key in ("tokens_per_second", "goodput", "kwh"))
    yield "tied_with", list(part.tied_with)
    yield from ((key, getattr(plan.strategy, key)) for key in CHOICES)
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


KINDS: Final = {".csv": _csv, ".parquet": _parquet, ".svg": _svg}
