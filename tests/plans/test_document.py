"""The plan document: what is written can be read, and what is wrong with a file is said."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.catalog import find_gpu
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError
from astrarium.plans.document import (
    Plan,
    PlanDocument,
    from_dict,
    load_document,
    pareto_of,
    plan_of_rank,
    to_dict,
)
from astrarium.report.plan.document import cluster_part, price_source, room_notes
from astrarium.strategy.document import strategy_from_dict, strategy_to_dict
from astrarium.strategy.types import (
    Granularity,
    Method,
    Recompute,
    RecomputeModule,
    Stage,
    Strategy,
)

MakeFront = Callable[..., PlanDocument]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def test_a_document_survives_json(document: PlanDocument) -> None:
    assert from_dict(as_json(to_dict(document))) == document


def test_the_keys_are_those_that_others_rely_on(document: PlanDocument) -> None:
    written = as_json(to_dict(document))
    assert set(written) >= {"schema", "workload", "cluster", "search", "plans", "pareto"}
    assert written["schema"] == "astrarium.plan/1"
    assert set(written["search"]) >= {
        "seconds",
        "space",
        "evaluated",
        "rejected",
        "reasons",
        "optimal",
        "bound_gap",
    }
    assert set(written["workload"]) >= {
        "model",
        "parameters",
        "seq_length",
        "global_batch",
        "tokens",
        "precision",
    }
    plan = written["plans"][0]
    assert set(plan) >= {
        "rank",
        "gpus",
        "strategy",
        "iteration_seconds",
        "interval_seconds",
        "tokens_per_second",
        "mfu",
        "breakdown_seconds",
        "memory",
        "usd_per_hour",
        "usd_total",
        "train_seconds",
    }
    assert list(plan["memory"][0]) == [
        "stage",
        "gpu",
        "peak_bytes",
        "capacity_bytes",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "workspace",
        "reserved",
    ]
    assert set(written["pareto"][0]) == {
        "gpus",
        "tokens_per_second",
        "usd_total",
        "train_seconds",
        "plan",
        "usd_per_hour",
        "spot_gpus",
        "cloud",
        "goodput",
        "kwh",
        "train_seconds_interval",
        "usd_interval",
        "tied_with",
    }


@pytest.mark.parametrize(
    "recompute",
    [
        Recompute(),
        Recompute(Granularity.SELECTIVE, modules=(RecomputeModule.MLP, RecomputeModule.MOE)),
        Recompute(Granularity.FULL, Method.BLOCK, 3),
    ],
)
def test_the_strategy_of_a_plan_is_a_strategy_file(recompute: Recompute) -> None:
    strategy = Strategy(tp=2, pp=2, virtual_stages=2, recompute=recompute)
    stages = tuple(Stage("T4-16GB", (i, i + 1), 2, i % 2, i // 2) for i in range(4))
    strategy = replace(strategy, stages=stages)
    written = as_json(strategy_to_dict(strategy))
    assert written == as_json(asdict(strategy))
    assert written["schedule"] == "interleaved"
    assert msgspec.convert(written, Strategy) == strategy
    known = {"gpus": 4, "global_batch": 1, "layers": 4}
    assert strategy_from_dict(written, where="here", **known) == strategy


def test_the_cluster_of_a_plan_is_the_cluster() -> None:
    cluster = parse_gpus("h100:16,a100:8")
    written = cluster.to_dict()["pools"]
    read = [
        {key: getattr(pool, key) for key in entry}
        for pool, entry in zip(cluster_part(cluster).pools, written, strict=True)
    ]
    assert read == written


def test_a_price_has_a_source_and_a_date() -> None:
    pool = parse_gpus("h100:8").pools[0]
    dates = find_gpu("h100").price_dates
    assert dates is not None
    assert dates[1] in price_source(pool)
    assert price_source(replace(pool, usd_per_gpu_hour=1.0)) == "cluster file"
    assert price_source(replace(pool, usd_per_gpu_hour=None)) == ""


def priced(plan: Plan, seconds: float, usd_per_hour: float | None) -> Plan:
    return replace(plan, iteration_seconds=seconds, train_seconds=None, usd_per_hour=usd_per_hour)


def test_pareto_holds_the_plans_that_nothing_beats(document: PlanDocument) -> None:
    plan = document.plans[0]
    plans = [
        priced(plan, 1.0, 40.0),  # fastest
        priced(plan, 2.0, 30.0),  # dearer and slower than the first
        priced(plan, 4.0, 5.0),  # cheapest
        priced(plan, 4.0, 5.0),  # equal to it
    ]
    assert [part.plan for part in pareto_of(plans)] == [0, 2, 3]
    unpriced = [priced(plan, 2.0, None), priced(plan, 1.0, None)]
    assert [part.plan for part in pareto_of(unpriced)] == [1]


def written_to(folder: Path, content: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_file_is_read_back(tmp_path: Path, document: PlanDocument) -> None:
    assert load_document(written_to(tmp_path, to_dict(document))) == document


def test_keys_that_older_files_lack_have_defaults(tmp_path: Path, document: PlanDocument) -> None:
    content = as_json(to_dict(document))
    keys = list(content["plans"][0]["strategy"])
    assert keys.index("sequence_parallel") + 1 == keys.index("pipeline_inside")
    for plan in content["plans"]:
        del plan["strategy"]["pipeline_inside"]
        for key in ("ideal_seconds", "stage_seconds", "precision", "runtimes", "megatron_lacks"):
            del plan[key]
    assert load_document(written_to(tmp_path, content)) == document


def test_keys_of_a_newer_version_are_ignored(tmp_path: Path, document: PlanDocument) -> None:
    newer = {**to_dict(document), "carbon_kg": 1.0}
    assert load_document(written_to(tmp_path, newer)) == document


def test_a_file_from_before_the_front_is_read(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    first = ("gpus", "tokens_per_second", "usd_total", "train_seconds", "plan")
    data["pareto"] = [{key: point[key] for key in first} for point in data["pareto"]]
    del data["search"]["budget_usd"], data["search"]["deadline_seconds"]
    read = load_document(written_to(tmp_path, data))
    (point,) = read.pareto
    assert point.train_seconds == document.pareto[0].train_seconds
    assert (point.goodput, point.kwh, point.tied_with) == (1.0, None, ())
    assert read.plans == document.plans
    assert read.search == document.search


def test_a_front_with_everything_is_read_back(tmp_path: Path, make_front: MakeFront) -> None:
    document = make_front(30)
    assert any(point.tied_with and point.spot_gpus for point in document.pareto)
    assert load_document(written_to(tmp_path, to_dict(document))) == document


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("plan", 2, r"pareto\[0\]\.plan: expected the index of one of 2 plans, got 2"),
        ("plan", -1, r"pareto\[0\]\.plan: expected a number that is not negative"),
        ("tied_with", [1], r"pareto\[0\]\.tied_with: expected indices of 1 points"),
    ],
)
def test_a_point_that_leads_nowhere_is_refused(
    tmp_path: Path, document: PlanDocument, key: str, value: object, message: str
) -> None:
    data = as_json(to_dict(document))
    data["pareto"][0][key] = value
    with pytest.raises(InputError, match=message):
        load_document(written_to(tmp_path, data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "plan.json:1"),
        ("[]", "not a plan"),
        ({"schema": "astrarium.fit/1"}, "its schema is 'astrarium.fit/1'"),
        ({"schema": "astrarium.plan/1"}, "the required key 'workload' is missing"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = written_to(tmp_path, content)
    with pytest.raises(InputError) as error:
        load_document(path)
    assert message in str(error.value)
    assert "plan.json" in str(error.value)


def test_a_wrong_value_is_named(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    data["plans"][1]["mfu"] = "half"
    with pytest.raises(InputError, match=r"plans\[1\]\.mfu: expected float, got 'half'"):
        load_document(written_to(tmp_path, data))


def test_a_strategy_leaves_nothing_out(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    del data["plans"][0]["strategy"]["pipeline_inside"]  # which older files lack
    assert load_document(written_to(tmp_path, data)).plans[0].strategy.tp
    del data["plans"][1]["strategy"]["tp"]
    with pytest.raises(InputError, match=r"plans\[1\]\.strategy: the required key 'tp' is missing"):
        load_document(written_to(tmp_path, data))


def test_a_name_that_breaks_lines_is_refused(tmp_path: Path, document: PlanDocument) -> None:
    data = to_dict(document)
    data["workload"]["model"] = "model\nrm -r ."
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"plan\.json: workload\.model: .* control characters"):
        load_document(tmp_path)


def test_a_plan_without_memory_is_refused(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    data["plans"][0]["memory"] = []
    with pytest.raises(InputError, match="no memory entries"):
        load_document(written_to(tmp_path, data))


def test_a_rank_that_is_not_there_is_refused(document: PlanDocument) -> None:
    assert plan_of_rank(document, 2, "plan.json") is document.plans[1]
    with pytest.raises(InputError, match="no plan of rank 3; it holds rank 1 to 2"):
        plan_of_rank(document, 3, "plan.json")


@pytest.mark.parametrize("value", [0, -1, "80 GiB", None, math.nan, math.inf, 10**400, True])
def test_a_capacity_that_cannot_be_is_refused(
    tmp_path: Path, document: PlanDocument, value: object
) -> None:
    data = to_dict(document)
    data["plans"][0]["memory"][1]["capacity_bytes"] = value
    with pytest.raises(InputError, match=r"plan\.json.*plans\[0\]\.memory\[1\]\.capacity_bytes"):
        load_document(written_to(tmp_path, data))


def test_a_missing_capacity_is_named(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    del data["plans"][0]["memory"][1]["capacity_bytes"]
    with pytest.raises(InputError, match=r"plan\.json.*capacity_bytes"):
        load_document(written_to(tmp_path, data))


@pytest.mark.parametrize(
    ("key", "value"), [("iteration_seconds", 0.0), ("mfu", -0.1), ("usd_total", math.nan)]
)
def test_numbers_that_cannot_be_are_named(
    tmp_path: Path, document: PlanDocument, key: str, value: float
) -> None:
    data = to_dict(document)
    data["plans"][1][key] = value
    with pytest.raises(InputError, match=rf"plan\.json.*plans\[1\]\.{key}"):
        load_document(written_to(tmp_path, data))


def test_rounding_in_the_breakdown_is_no_mistake(tmp_path: Path, document: PlanDocument) -> None:
    data = as_json(to_dict(document))
    data["plans"][0]["breakdown_seconds"]["pipeline_bubble"] = -1e-17
    load_document(written_to(tmp_path, data))


def test_a_folder_stands_for_its_plan(tmp_path: Path, document: PlanDocument) -> None:
    with pytest.raises(InputError, match=r"is a folder without plan\.json"):
        load_document(tmp_path)
    written_to(tmp_path, to_dict(document))
    assert load_document(tmp_path) == document


def with_peak(plan: Plan, share: float) -> Plan:
    stage = plan.memory[0]
    return replace(plan, memory=(replace(stage, peak_bytes=share * stage.capacity_bytes),))


def test_little_room_is_noted_with_the_next_roomier_plan(document: PlanDocument) -> None:
    first, second = document.plans
    full, fuller, roomy = with_peak(first, 0.98), with_peak(first, 0.99), with_peak(second, 0.5)
    (note,) = room_notes([full, fuller, roomy])
    assert note == (
        "little room: plan 1 leaves 1.60 GiB of 80.0 GiB free on stage 0;"
        " plan 2 leaves 40.0 GiB and takes 10.0 % longer"
    )
    assert room_notes([full, fuller])[0].endswith("free on stage 0")
    assert room_notes([with_peak(first, 0.97), full]) == ()
    assert room_notes([with_peak(first, 1.01)]) == ()
