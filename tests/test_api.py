"""From Python the same questions have the same answers as on the command line."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from doc_examples import run_command

import astrarium
from astrarium.api.calls import PriceTerms, RunFlags
from astrarium.api.flags import PLAN_FLAGS, PREDICT_FLAGS, Flag, as_keyword, flags
from astrarium.cli.plan import plan as plan_command
from astrarium.cli.plan import predict as predict_command
from astrarium.cli.synthesize import synthesize as synthesize_command
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.model import load_model

SMALL: dict[str, Any] = {"gpus": "h100:8", "seq_length": 4096, "global_batch": 64}
TEXTS = ["llama-2-7b", "--gpus", "h100:8", "--seq-length", "4096", "--global-batch", "64"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1794787200")  # 2026-11-16
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def plans() -> astrarium.Plans:
    return astrarium.plan("llama-2-7b", **SMALL)


def printed(*arguments: str) -> dict[str, Any]:
    """What the command line prints as JSON, less what differs from run to run."""
    code, text = run_command([*arguments, "--json"])
    assert code == 0, text
    return steady(json.loads(text))


def steady(data: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of a file, less the seconds of the search."""
    data = json.loads(json.dumps(data))
    if data["search"]:
        del data["search"]["seconds"]
    return data


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    (
        {"tokens": "2T", "objective": "cost", "mode": "up-to", "deadline_seconds": 400 * 86400},
        ["--tokens", "2T", "--objective", "cost", "--mode", "up-to", "--deadline", "400"],
    ),
    (
        {"tokens": 2e12, "budget_usd": 2e6, "rules": ["$tp>4"], "top": 2, "price": {"h100": 2.5}},
        [
            "--tokens",
            "2T",
            "--budget",
            "2M",
            "--rule",
            "$tp>4",
            "--top",
            "2",
            "--price",
            "h100=2.5",
        ],
    ),
    (
        {"tokens": 10**12, "spot": "mix", "interruptions": ["h100=10%/day"], "market": "aws"},
        ["--tokens", "1T", "--spot", "mix", "--interruptions", "h100=10%/day", "--market", "aws"],
    ),
    (
        {"compare": "tp=8", "precision": "fp16"},
        ["--compare", "tp=8", "--precision", "fp16"],
    ),
]


@pytest.mark.parametrize(("arguments", "flags"), CASES)
def test_the_document_is_that_of_the_command(arguments: dict[str, Any], flags: list[str]) -> None:
    found = astrarium.plan("llama-2-7b", **SMALL, **arguments)
    assert steady(found.to_dict()) == printed("plan", *TEXTS, *flags)


def test_a_prediction_is_that_of_the_command(plans: astrarium.Plans) -> None:
    found = astrarium.predict("llama-2-7b", "tp=2,pp=2", **SMALL, tokens="1T")
    assert steady(found.to_dict()) == printed(
        "predict", *TEXTS, "--strategy", "tp=2,pp=2", "--tokens", "1T"
    )
    keys = astrarium.predict("llama-2-7b", {"tp": 2, "pp": 2}, **SMALL, tokens=1e12)
    assert steady(keys.to_dict()) == steady(found.to_dict())
    again = astrarium.predict("llama-2-7b", plans.best.strategy, **SMALL)
    assert again.best.strategy == plans.best.strategy
    assert again.best.iteration_seconds == pytest.approx(plans.best.iteration_seconds)


def test_models_and_clusters_may_be_objects(plans: astrarium.Plans, tmp_path: Path) -> None:
    model = load_model("llama-2-7b")
    assert model.config is not None
    file = tmp_path / "config.json"
    file.write_text(json.dumps(dict(model.config)))
    rest: dict[str, Any] = {"seq_length": "4096", "global_batch": "64"}
    for given in (model, dict(model.config), file, str(file)):
        found = astrarium.plan(given, cluster=parse_gpus("h100:8"), **rest)
        assert found.document.plans[0] == plans.document.plans[0]
    by_name = astrarium.plan(model, gpus={"h100": 8}, **rest)
    assert by_name.document.plans[0] == plans.document.plans[0]
    assert found.document.workload.model_as_given == str(file)


def test_plans_are_a_sequence(plans: astrarium.Plans) -> None:
    assert [plan.rank for plan in plans] == [1, 2, 3, 4, 5]
    assert len(plans) == 5
    assert plans.best == plans[0]
    assert plans[1:3] == (plans[1], plans[2])
    assert [plan.iteration_seconds for plan in plans[1:]] == sorted(
        plan.iteration_seconds for plan in plans[1:]
    )
    assert plans.best.gpus == {"H100-SXM5-80GB": 8}
    assert "8 x H100-SXM5-80GB" in repr(plans.best)
    assert {plan.rank for plan in plans.pareto} <= {1, 2, 3, 4, 5}
    assert plans.best.peak_bytes < 80 * 2**30


def test_saved_plans_come_back(plans: astrarium.Plans, tmp_path: Path) -> None:
    assert plans.save(tmp_path / "mine.json") == tmp_path / "mine.json"
    assert astrarium.load(tmp_path / "mine.json") == plans
    assert plans.save(tmp_path / "folder") == tmp_path / "folder" / "plan.json"
    assert astrarium.load(tmp_path / "folder") == plans
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="not a plan"):
        astrarium.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"gpus": "h100:8", "global_batch": 0}, "^global_batch '0'"),
        ({"gpus": "h100:8", "global_batch": 8, "budget_usd": "much"}, "^budget_usd 'much'"),
        ({"gpus": "h100:8", "global_batch": 8, "deadline_seconds": -1}, "^deadline_seconds '-1'"),
        ({"global_batch": 8}, "^no GPUs are given; use gpus TYPE:N"),
        ({"gpus": "h1000:8", "global_batch": 8}, "did you mean"),
        ({"gpus": "h100:8", "global_batch": 8, "mode": "all"}, "^mode 'all': expected one of"),
        ({"gpus": "h100:8", "global_batch": 8, "rules": "$tq > 1"}, "tq"),
    ],
)
def test_mistakes_are_named_as_arguments(call: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        astrarium.plan("llama-2-7b", **call)


def test_a_mistake_in_a_strategy_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"^strategy: .*'foo'"):
        astrarium.predict("llama-2-7b", {"tp": 2, "foo": 1}, gpus="h100:8", global_batch=8)


def test_a_place_that_cannot_be_written(plans: astrarium.Plans) -> None:
    with pytest.raises(InputError, match="cannot write /proc/x: "):
        plans.save("/proc/x")


def test_plans_may_be_keys(plans: astrarium.Plans) -> None:
    assert {plans.best: 1}[plans[0]] == 1
    assert len({plans, astrarium.Plans(plans.document)}) == 1
    assert len(set(plans)) == len(plans)


def test_nothing_feasible_is_an_error_of_its_own() -> None:
    with pytest.raises(NoFeasiblePlanError):
        astrarium.plan("llama-2-70b", gpus="t4:1", global_batch=8)
    with pytest.raises(TypeError, match="no argument 'bugdet_usd'"):
        astrarium.plan("llama-2-7b", **SMALL, bugdet_usd=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("function", "terms", "table", "command"),
    [
        (astrarium.plan, RunFlags, PLAN_FLAGS, plan_command),
        (astrarium.predict, PriceTerms, PREDICT_FLAGS, predict_command),
        (astrarium.synthesize, None, flags("synthesize"), synthesize_command),
    ],
)
def test_every_flag_is_an_argument_with_its_default(
    function: Callable[..., Any],
    terms: type | None,
    table: dict[str, Flag],
    command: click.Command,
) -> None:
    own = dict(inspect.signature(function).parameters)
    if terms is not None:
        del own["terms"]
    names = {*own, *(terms.__annotations__ if terms else ())}
    assert names == {as_keyword(name) for name in table}
    shown = {"json", "out", "front", "plot", "report", "top_instructions"}
    shown |= {"stragglers", "repair_time"}  # `Plans.under_stragglers` in Python
    assert {one.name for one in command.params} - shown == set(table)
    for name, one in table.items():
        parameter = own.get(as_keyword(name))
        if parameter is not None and parameter.default is not inspect.Parameter.empty:
            assert parameter.default in (one.default, ())


def test_a_document_without_plans_says_why(plans: astrarium.Plans) -> None:
    code, text = run_command(
        ["plan", "llama-2-70b", "--gpus", "t4:1", "--global-batch", "8", "--json"]
    )
    assert code == 1
    Path("none.json").write_text(text[text.index("{") : text.rindex("}") + 1])
    empty = astrarium.load("none.json")
    assert len(empty) == 0
    with pytest.raises(NoFeasiblePlanError, match="does not fit"):
        empty.best  # noqa: B018


def test_the_page_names_everything() -> None:
    page = (Path(__file__).parents[1] / "docs/python.md").read_text(encoding="utf-8")
    members = {
        name
        for kind in (astrarium.Plan, astrarium.Plans)
        for name in dir(kind)
        if not name.startswith("_") and name not in dir(tuple)
    }
    asked = inspect.signature(astrarium.plan).parameters
    for name in {*astrarium.__all__, *members, *asked} - {"__version__", "terms"}:
        assert re.search(rf"\b{name}\b", page), name


def test_importing_the_package_loads_nothing() -> None:
    code = "import astrarium, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {name for name in loaded if name.startswith("astrarium.")}
    assert not loaded & {"numpy", "click", "msgspec", "yaml"}
    assert set(astrarium.__all__) <= set(dir(astrarium))
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        astrarium.plam  # noqa: B018  # type: ignore[attr-defined]


def test_plans_are_exported_as_the_command_does(plans: astrarium.Plans, tmp_path: Path) -> None:
    plans.save(tmp_path / "plan.json")
    folder = plans.best.export("slurm", tmp_path / "python")
    run = ["export", "plan.json", "--to", "slurm", "--out", "command"]
    assert run_command(run)[0] == 0
    assert {path.name for path in folder.iterdir()} >= {"job.sbatch", "launch.sh", "README.md"}
    for path in folder.iterdir():
        assert path.read_text() == (tmp_path / "command" / path.name).read_text()
    with pytest.raises(InputError, match="the folder is not empty"):
        plans.best.export("slurm", folder)
    assert plans[1].export("torchrun", str(folder), force=True) == folder
    assert astrarium.load(folder).best.strategy == plans[1].strategy


def test_what_a_launcher_or_its_program_lacks_is_refused(tmp_path: Path) -> None:
    spot = astrarium.plan("llama-2-7b", **SMALL, tokens="1T", spot="always", market="aws")
    with pytest.raises(InputError, match="cannot express plan 1") as refused:
        spot.best.export("slurm", tmp_path / "out")
    assert "8 x H100-SXM5-80GB as spot: it uses existing nodes" in str(refused.value)
    assert "8 GPUs as spot -> on demand" in str(refused.value)
    assert "--" not in str(refused.value)
    assert "plan with spot never" in str(refused.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="did you mean 'slurm'"):
        spot.best.export("slrum", tmp_path / "out")
    folder = spot.best.export("slurm", tmp_path / "out", nearest=True)
    assert (folder / "job.sbatch").is_file()
    with pytest.raises(InputError, match="starts programs and is none"):
        spot.best.export("skypilot", tmp_path / "other", program="torchrun")
