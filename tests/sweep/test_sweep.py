"""Sweeps: which questions a file asks, rows that survive a kill, and what is shown of them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killed_sweeps as killed
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import astrarium
from astrarium.cli.app import app
from astrarium.cost import replay, shard_memory
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.search import remembered
from astrarium.sweep import engines
from astrarium.sweep.folder import SweepFolder
from astrarium.sweep.rows import answered
from astrarium.sweep.scenarios import SweepScenario, read_sweep
from astrarium.value import replace

SMALL = """
model: gpt2-small
gpus: [a100:1, a100:2]
global_batch: [16, 32, 48]
seq_length: 1024
top: 2
"""
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def run() -> Run:
    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["sweep", *words], catch_exceptions=False)

    return call


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# What is asked


def test_lists_make_a_grid(file: Path) -> None:
    scenarios = read_sweep(file)
    asked = [(one.question["gpus"], one.question["global_batch"]) for one in scenarios]
    assert asked == [(gpus, batch) for gpus in ("a100:1", "a100:2") for batch in (16, 32, 48)]
    assert len({one.key for one in scenarios}) == 6
    assert {one.question["seq_length"] for one in scenarios} == {1024}


def test_tables_replace_keys_and_questions_are_asked_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "model: gpt2-small\nglobal-batch: [8, 16]\ngpus: a100:1\nscenarios:\n"
        "- {}\n- {gpus: h100:1}\n- {global_batch: 8}\n- {price: [[a100=1], [a100=2]]}\n",
    )
    asked = [
        tuple(one.question.get(name) for name in ("gpus", "global_batch", "price"))
        for one in read_sweep(path)
    ]
    assert asked == [
        ("a100:1", 8, None),
        ("a100:1", 16, None),
        ("h100:1", 8, None),
        ("h100:1", 16, None),
        *(("a100:1", batch, [price]) for batch in (8, 16) for price in ("a100=1", "a100=2")),
    ]


def test_a_file_that_changed_is_another_question(tmp_path: Path) -> None:
    path = written(tmp_path, "model: m.json\nglobal_batch: 8\ngpus: a100:1\n")
    (tmp_path / "m.json").write_text("{}", encoding="utf-8")
    before = read_sweep(path)[0].key
    (tmp_path / "m.json").write_text('{"a": 1}', encoding="utf-8")
    assert read_sweep(path)[0].key != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: a\nglobal_batch: 8\ngpu: h100:8\n", "unknown key 'gpu' \\(did you mean 'gpus'"),
        ("model: a\n", "global_batch is missing"),
        ("global_batch: 8\n", "model is missing"),
        ("model: []\nglobal_batch: 8\n", "model has no value"),
        ("model: a\nglobal_batch: 8\nscenarios: 3\n", "scenarios: expected a list of tables"),
        ("model: a\nglobal_batch: 8\nscenarios: [3]\n", "scenarios\\[0\\]: expected a table"),
        ("model: a\nglobal_batch: 8\nsensitivity: true\n", "unknown key 'sensitivity'"),
        ("- 1\n", "expected a table of the flags"),
        (
            f"model: a\nglobal_batch: [{'8, ' * 1100}9]\nseq_length: [{'8, ' * 1100}9]\n",
            "asks 1,212,201 questions, at most 1,000,000",
        ),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_sweep(written(tmp_path, text))


# What is answered


def test_rows_are_what_plan_says(file: Path) -> None:
    scenario = read_sweep(file)[3]
    rows = answered(scenario)
    plans = astrarium.plan("gpt2-small", gpus="a100:2", global_batch=16, seq_length=1024, top=2)
    assert [row["iteration_seconds"] for row in rows] == [one.iteration_seconds for one in plans]
    assert [(row["tp"], row["dp"]) for row in rows] == [
        (one.strategy.tp, one.strategy.dp) for one in plans
    ]
    assert {row["asked.gpus"] for row in rows} == {"a100:2"}
    assert {row["status"] for row in rows} == {"planned"}


DRAWN = 6
OF_DRAWN: dict[str, list[Any]] = {
    "model": ["llama-3-8b", "llama-2-70b", "mixtral-8x7b"],
    "gpus": ["h100:16", "a100:64", "rtx-4090:24", "h100:128"],
    "global_batch": [64, 192, 768],
    "seq_length": [2048, 4096, 8192],
}


@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_sweep_finds_the_first_plan_of_plan(seed: int) -> None:
    drawn = random.Random(seed)
    question: dict[str, Any] = {name: drawn.choice(values) for name, values in OF_DRAWN.items()}
    (row,) = answered(SweepScenario(str(seed), question))
    try:
        plans = astrarium.plan(**question)
    except NoFeasiblePlanError:
        assert row["status"] == "no plan"
        return
    strategy = plans.best.strategy
    assert row["iteration_seconds"] == plans.best.iteration_seconds
    names = ("tp", "pp", "virtual_stages", "cp", "ep", "dp", "micro_batch", "zero_stage")
    assert [row[name] for name in names] == [getattr(strategy, name) for name in names]
    search = plans.document.search
    assert search is not None
    assert search.bound_gap <= row["bound_gap"] + 1e-9  # it proves less, and says so


def test_rows_do_not_depend_on_the_scenarios_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, after its neighbours, and before them: what processes remember changes no answer."""
    common = {"model": "llama-2-70b", "seq_length": 4096, "tokens": "1T"}
    asked = [
        SweepScenario(f"{gpus} {batch} {objective} {discount}", question)
        for gpus in ("h100:64", "a100:64")
        for batch in (256, 192)
        for objective in ("cost", "throughput")
        for discount in ("0", "40")
        for question in [
            {"gpus": gpus, "global_batch": batch, "objective": objective, "discount": [discount]}
            | common
        ]
    ]

    def forget() -> None:
        monkeypatch.setattr(remembered, "_memory", [])
        monkeypatch.setattr(remembered, "_begun", [])
        monkeypatch.setattr(shard_memory, "_memory", [])
        monkeypatch.setattr(replay, "_executed", OrderedDict())

    def row(scenario: SweepScenario) -> tuple[str, dict[str, Any]]:
        (found,) = answered(scenario)
        assert found["status"] == "planned"
        return scenario.key, {name: found[name] for name in found.keys() - {"cpu_seconds"}}

    forget()
    forth = dict(map(row, asked))
    forget()
    assert dict(map(row, reversed(asked))) == forth
    for scenario in asked[2::5]:
        forget()
        assert row(scenario) == (scenario.key, forth[scenario.key])


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"gpus": "h1000:8"}, "refused", "unknown GPU type 'h1000'"),
        ({"model": "llama-2-70b", "gpus": "t4:4"}, "no plan", "does not fit"),
        ({"seq_length": -1}, "refused", "negative"),
    ],
)
def test_what_has_no_answer_is_a_row(
    file: Path, changes: dict[str, Any], status: str, message: str
) -> None:
    scenario = read_sweep(file)[0]
    (row,) = answered(replace(scenario, question=scenario.question | changes))
    assert row["status"] == status
    assert message in row["message"]


def test_a_sweep_says_why_scenarios_have_no_plan(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("a100:1", "h1000:8"))
    shown = " ".join(run(str(path), "--out", "swept", "--workers", "1").output.split())
    assert "3 planned" in shown
    assert "3 without a plan: unknown GPU type 'h1000'" in shown
    (messages,) = json.loads(run("show", "swept", "--json").output)["messages"].items()
    assert messages[1] == 3


def test_a_fault_is_a_row_and_asked_again(file: Path, tmp_path: Path) -> None:
    def fails(_: object) -> Any:
        raise ZeroDivisionError("x")

    scenario = read_sweep(file)[0]
    rows = answered(scenario, fails)
    assert (rows[0]["status"], rows[0]["message"]) == ("failed", "ZeroDivisionError: x")
    folder = SweepFolder(tmp_path / "out")
    folder.create()
    folder.add(rows)
    assert folder.finished() == frozenset()
    folder.add(answered(scenario))
    assert folder.finished() == {scenario.key}
    assert {row["status"] for row in folder.rows()} == {"planned"}


def test_a_sweep_goes_on_where_it_stopped(run: Run, file: Path) -> None:
    first = run("small.yaml", "--workers", "1")
    assert first.exit_code == 0, first.output
    assert "6 scenarios answered, 0 were there before; rows in small" in first.stdout
    table = pyarrow.parquet.read_table("small").to_pylist()  # any reader takes the folder
    assert set(Counter(row["scenario"] for row in table).values()) <= {1, 2}
    file.write_text(SMALL.replace("48]", "64]"), encoding="utf-8")
    again = run("small.yaml", "--workers", "1")
    assert "2 scenarios answered, 4 were there before" in again.stdout
    assert "6 scenarios: 6 planned" in again.stdout  # of the file as it is now


def test_a_killed_sweep_loses_nothing_that_was_finished(file: Path) -> None:
    file.write_text(SMALL.replace("[16, 32, 48]", str(list(range(4, 160, 4)))), encoding="utf-8")
    command = [sys.executable, "-m", "astrarium", "sweep", "small.yaml", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(Path("small").glob("part-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = _children(process.pid)
        process.send_signal(signal.SIGKILL)
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline + 60, "processes outlive the sweep"
        time.sleep(0.02)
    finished = SweepFolder(Path("small")).finished()
    assert 0 < len(finished) < 78
    scenarios = read_sweep(file)
    rest = [one for one in scenarios if one.key not in finished]
    folder = SweepFolder(Path("small"))
    for rows in engines.local(1)(engines.batches(rest, 1)):
        folder.add(rows)
    rows = [row for part in Path("small").glob("part-*") for row in _rows(part)]
    ranks = Counter((row["scenario"], row["rank"]) for row in rows)
    assert set(ranks.values()) == {1}  # nothing was answered twice
    assert {row["scenario"] for row in rows} == {one.key for one in scenarios}


def _children(parent: int) -> list[str]:
    return Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()


def _rows(part: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(part).to_pylist()
    return rows


def test_processes_that_die_lose_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    scenarios = read_sweep(file)
    batches = engines.batches(scenarios, 1)
    once = [row for rows in engines.local(2, killed.once)(batches) for row in rows]
    assert (tmp_path / "killed").exists()
    assert {row["status"] for row in once} == {"planned"}
    assert {row["scenario"] for row in once} == {one.key for one in scenarios}
    always = [row for rows in engines.local(2, killed.always)(batches) for row in rows]
    failed = [row for row in always if row["status"] == "failed"]
    assert [row["asked.global_batch"] for row in failed] == ["48", "48"]
    assert failed[0]["message"] == "its process was killed three times"
    assert {row["scenario"] for row in always} == {one.key for one in scenarios}


def test_batches_have_one_model_and_leave_work_for_all(tmp_path: Path) -> None:
    path = written(tmp_path, f"model: [a, b]\nglobal_batch: {list(range(1, 101))}\ngpus: h100:8\n")
    made = engines.batches(read_sweep(path), 2)
    assert {len({one.question["model"] for one in batch}) for batch in made} == {1}
    assert sum(map(len, made)) == 200
    assert max(map(len, made)) == engines.LARGEST_BATCH
    assert len(engines.batches(read_sweep(path)[:4], 2)) == 4


# What is shown


@pytest.fixture
def swept(file: Path) -> Path:
    folder = SweepFolder(Path("small"))
    folder.create()
    for scenario in read_sweep(file):
        folder.add(answered(scenario))
    return folder.path


def test_a_table_over_two_keys(run: Run, swept: Path) -> None:
    words = ("show", str(swept), "--rows", "gpus", "--columns", "global-batch")
    document = json.loads(run(*words, "--json", "--plot", "t.svg").stdout)
    pivot = document["pivot"]
    assert pivot["row_keys"] == ["a100:1", "a100:2"]
    assert pivot["column_keys"] == ["16", "32", "48"]
    rows = SweepFolder(swept).rows()
    for gpus, cells in zip(pivot["row_keys"], pivot["cells"], strict=True):
        for batch, cell in zip(pivot["column_keys"], cells, strict=True):
            of = [r for r in rows if (r["asked.gpus"], r["asked.global_batch"]) == (gpus, batch)]
            assert cell == max(row["tokens_per_second"] for row in of)
    assert Path("t.svg").read_text(encoding="utf-8").startswith("<svg")
    shown = run(*words).stdout
    assert "tokens_per_second, the highest by gpus and global_batch" in shown
    assert "Best scenarios" in shown


def test_low_figures_are_best_where_they_should_be_low(run: Run, swept: Path) -> None:
    words = ("show", str(swept), "--value", "iteration_seconds", "--where", "gpus=a100:1")
    document = json.loads(run(*words, "--json").stdout)
    seconds = [row["iteration_seconds"] for row in document["best"]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "gpu"), "--rows gpu: no such column (did you mean 'gpus'?)"),
        (("--columns", "gpu"), "--columns gpu: no such column (did you mean 'gpus'?)"),
        (("--value", "speed"), "--value speed: no such column"),
        (("--where", "gpus"), "--where gpus: expected KEY=VALUE"),
        (("--where", "gpus=t4:1"), "no scenario has this; gpus is a100:1, a100:2"),
        (("--plot", "x.pdf"), "expected a name that ends in .svg"),
        (("--plot", "x.svg"), "needs --rows and --columns"),
    ],
)
def test_refusals_of_show(run: Run, swept: Path, words: tuple[str, ...], message: str) -> None:
    result = run("show", str(swept), *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_reasons_of_scenarios_without_a_plan_are_shown(run: Run, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "some")
    folder.create()
    text = SMALL.replace("[a100:1, a100:2]", "[a100:1, h1000:8]")
    for scenario in read_sweep(written(tmp_path, text)):
        folder.add(answered(scenario))
    shown = run("show", "some").stdout
    assert "3 without a plan: unknown GPU type 'h1000' (did you mean 'h100'?)" in shown
    document = json.loads(run("show", "some", "--json").stdout)
    assert list(document["messages"].values()) == [3]


def test_places_that_are_taken(run: Run, file: Path) -> None:
    Path("taken").mkdir()
    Path("taken/notes.txt").touch()
    assert "holds notes.txt, which is no part" in run("small.yaml", "--out", "taken").stderr
    assert "is a file; name a folder" in run("small.yaml", "--out", file.name).stderr
    assert "there is no such folder" in run("show", "nowhere").stderr
    Path("broken").mkdir()
    Path("broken/part-000001.parquet").write_bytes(b"PAR1")
    assert "is no part of a sweep" in run("show", "broken").stderr
