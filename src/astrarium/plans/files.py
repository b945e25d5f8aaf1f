"""Plan files: read with checks that name the key, so that what is read can be relied on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astrarium.errors import InputError, check_printable
from astrarium.plans.document import (
    LATER_KEYS,
    PLAN_FILE,
    SCHEMA,
    ParetoPart,
    Plan,
    PlanDocument,
    Strategy,
    to_dict,
)
from astrarium.units import LARGEST_QUANTITY

BEGINNING_BYTES = 128
_AGAIN = "write the file again with `astrarium plan ... --out DIR`"
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "num_micro_batches")
_POSITIVE = frozenset(
    (
        *_DEGREES,
        "virtual_stages",
        "capacity_bytes",
        "iteration_seconds",
        "tokens_per_second",
        "ideal_seconds",
        "model_seconds",
    )
)


def load_document(path: Path) -> PlanDocument:
    """Read a plan file, or that of a folder; InputError says what is wrong and where."""
    from astrarium import documents

    path = _plan_file(path)
    content = documents.read(path)
    _check_schema(content, str(path))
    return _checked(documents.load(path, PlanDocument), content, str(path))


def document_of_content(content: object, where: str) -> PlanDocument:
    """The document of the content of a plan file; complaints call it `where`."""
    from astrarium import documents

    _check_schema(content, where)
    return _checked(documents.checked(content, PlanDocument, where), content, where)


def _check_schema(content: object, where: str) -> None:
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema == SCHEMA:
        return
    family, _, version = str(schema).partition("/")
    if version and family == SCHEMA.partition("/")[0]:
        raise InputError(
            f"{where}: made by another version of Astrarium (its schema is '{schema}', this one"
            f" reads '{SCHEMA}'); {_AGAIN}"
        )
    found = f"its schema is '{schema}'" if schema else "it has no schema"
    raise InputError(
        f"{where}: not a plan ({found}, expected '{SCHEMA}');"
        " `astrarium plan ... --out DIR` writes one"
    )


def _checked(document: PlanDocument, content: Any, where: str) -> PlanDocument:  # noqa: ANN401
    check_names(document, where)
    for index, plan in enumerate(content["plans"]):
        _check_whole(plan["strategy"], f"{where}: plans[{index}].strategy")
    plain = to_dict(document)
    del plain["workload"]["model_config"]  # has its own checks, where a model is made of it
    for key, value in _numbers(plain):
        _check_number(key, value, where)
    own = document.compare.plan if document.compare else None
    for plan in (*document.plans, *([own] if own else [])):
        _check_plan(plan, where)
    for index, point in enumerate(document.pareto):
        _check_point(document, point, f"{where}: pareto[{index}]")
    return document


def _check_whole(strategy: Mapping[str, Any], where: str) -> None:
    """A strategy in a plan file states every key; only code may leave keys to defaults."""
    for key in Strategy.__struct_fields__:
        if key not in strategy and key not in LATER_KEYS:
            raise InputError(f"{where}: the required key '{key}' is missing; {_AGAIN}")


def check_names(document: PlanDocument, where: str) -> None:
    """Names go into the comments of scripts: none of them may end a line."""
    check_printable(f"{where}: workload.model", document.workload.model)
    for index, pool in enumerate(document.cluster.pools):
        check_printable(f"{where}: cluster.pools[{index}].name", pool.name)


def is_plan(path: Path) -> bool:
    """Whether a folder or a file is meant to be a plan: its first lines name a schema of ours."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return SCHEMA.partition("/")[0].encode() in file.read(BEGINNING_BYTES)
    except OSError:
        return False


def _plan_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if not (path / PLAN_FILE).is_file():
        raise InputError(
            f"{path}: is a folder without {PLAN_FILE}; `astrarium plan ... --out {path}` writes one"
        )
    return path / PLAN_FILE


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:  # noqa: ANN401
    """Every number of a document under its key, such as plans[0].mfu."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{key}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def _check_number(key: str, value: float, where: str) -> None:
    """Refuse numbers that no plan has: NaN, infinite, negative, zero where it is divided by."""
    name = key.rpartition(".")[2]
    if not abs(value) <= LARGEST_QUANTITY:
        raise InputError(
            f"{where}: {key}: expected a number up to {LARGEST_QUANTITY:.0e}; {_AGAIN}"
        )
    # Rounding may leave -1e-17 of a cause; what is saved may be a loss.
    signed = ".breakdown_seconds." in key or name.startswith("saved_")
    if value < 0 and not signed:
        expected = "a number that is not negative"
    elif value == 0 and name in _POSITIVE:
        expected = "a number above zero"
    else:
        return
    raise InputError(f"{where}: {key}: expected {expected}, got {value:g}; {_AGAIN}")


def _check_plan(plan: Plan, where: str) -> None:
    if not plan.memory:
        raise InputError(f"{where}: plan {plan.rank} has no memory entries; {_AGAIN}")
    ranks = len({stage.pipeline_rank for stage in plan.strategy.stages})
    if plan.stage_seconds and ranks != len(plan.stage_seconds):
        raise InputError(
            f"{where}: plan {plan.rank} has {len(plan.stage_seconds)} entries of stage_seconds for"
            f" {ranks} pipeline ranks; {_AGAIN}"
        )
    chunks = plan.strategy.virtual_stages
    for stage in plan.stage_seconds:
        if {len(stage.chunk_forward_seconds), len(stage.chunk_backward_seconds)} != {chunks}:
            raise InputError(
                f"{where}: plan {plan.rank}, stage {stage.stage}: expected {chunks} entries of"
                f" chunk_forward_seconds and chunk_backward_seconds; {_AGAIN}"
            )


def _check_point(document: PlanDocument, point: ParetoPart, where: str) -> None:
    if point.plan >= len(document.plans):
        raise InputError(
            f"{where}.plan: expected the index of one of {len(document.plans)} plans,"
            f" got {point.plan}; {_AGAIN}"
        )
    if any(other >= len(document.pareto) for other in point.tied_with):
        raise InputError(
            f"{where}.tied_with: expected indices of {len(document.pareto)} points; {_AGAIN}"
        )


def plan_of_rank(document: PlanDocument, rank: int, where: str) -> Plan:
    """The plan of a rank."""
    for plan in document.plans:
        if plan.rank == rank:
            return plan
    ranks = [plan.rank for plan in document.plans]
    listed = f"{min(ranks)} to {max(ranks)}" if len(ranks) > 1 else ", ".join(map(str, ranks))
    raise InputError(f"{where}: there is no plan of rank {rank}; it holds rank {listed or 'none'}")
