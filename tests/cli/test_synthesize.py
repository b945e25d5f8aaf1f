"""`astrarium synthesize`, and programs given to `explain` and `run`: what is shown and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hand_programs
import pytest
from click.testing import Result

from astrarium.api import synthesis
from astrarium.cluster import parse_gpus
from astrarium.errors import InputError, NoFeasiblePlanError
from astrarium.runtime.spmd import job, timed
from astrarium.spmd.program import DevicePart, ProgramDocument, load_program, to_text

Run = Callable[..., Result]

MODULE = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, width, odd):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.odd = odd

    def forward(self, x):
        y = self.inner(x)
        if self.odd:
            y = torch.special.bessel_j0(y.detach()) + y
        return y.square().mean()


def make(batch, width=8, odd=False):
    return Small(width, odd), {"x": torch.randn(batch, width)}


def broken(batch):
    raise RuntimeError("no data here")


SETTING = 3
"""


class Answered:
    """Takes the place of the synthesis; remembers what was asked for."""

    def __init__(self) -> None:
        self.question: synthesis.SynthesisQuestion | None = None
        self.document = hand_programs.document()

    def __call__(self, question: synthesis.SynthesisQuestion, progress: Any) -> ProgramDocument:
        self.question = question
        progress("searching", 1, 2)
        return self.document


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Answered:
    made = Answered()
    monkeypatch.setattr(synthesis, "answer", made)
    return made


@pytest.fixture
def program(project: Path) -> str:
    text = to_text(hand_programs.document())
    (project / "examples").mkdir()
    (project / "examples/mlp.py").touch()
    (project / "program.json").write_text(text, encoding="utf-8")
    return "program.json"


@pytest.fixture
def small(project: Path) -> str:
    (project / "small.py").write_text(MODULE, encoding="utf-8")
    return "small.py:make"


def test_flags_are_read(run: Run, answered: Answered) -> None:
    done = run(
        "synthesize", "m.py:make", "--gpus", "a100:2,v100:2", "--batch", "64", "--memory", "15GiB",
        "--micro-batches", "4", "--mesh", "nodes", "--set", "layers=24", "--set", "rate=0.5",
        "--set", "kind=deep", "--set", "tied=true", "--optimizer", "sgd",
        "--allow-replicate", "aten.foo.default",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    asked = answered.question
    assert asked is not None
    assert asked.sizes == {"layers": 24, "rate": 0.5, "kind": "deep", "tied": True}
    assert (asked.batch, asked.micro_batches, asked.memory_bytes) == (64, 4, 15 * 2**30)
    assert (asked.mesh, asked.optimizer) == ("nodes", "sgd")
    assert asked.allow_replicate == ("aten.foo.default",)
    assert asked.cluster.num_gpus == 4


def test_the_program_is_shown(run: Run, answered: Answered) -> None:
    done = run("synthesize", "m.py:make", "--gpus", "a100:1,v100:1", "--batch", "6")
    assert done.exit_code == 0, done.output
    for text in (
        "examples/mlp.py:make, layers=2, hidden=8: 128 parameters, 3 operators",
        "columns",
        "all-reduce",
        "2.00 x as fast",
        "with these pieces, no program's instructions add up to less time",
        "program.json is written",
        "-m astrarium.runtime.spmd.worker program.json",
    ):
        assert text in done.output, text
    assert "Longest instructions" not in done.output


def test_the_longest_instructions_are_listed(run: Run, answered: Answered) -> None:
    flags = ("--gpus", "a100:1,v100:1", "--batch", "6", "--top-instructions", "2")
    shown = run("synthesize", "m.py:make", *flags).output
    listed = shown.partition("Longest instructions")[2].partition("Where the")[0]
    assert "mlp.py:12" in listed
    assert "all-reduce" not in listed  # takes half as long as the two products


def test_json_is_the_file(run: Run, answered: Answered, project: Path) -> None:
    common = ("synthesize", "m.py:make", "--gpus", "a100:1,v100:1", "--batch", "6")
    printed = run(*common, "--json", "--out", "p.json").stdout
    assert printed == (project / "p.json").read_text(encoding="utf-8")
    assert json.loads(printed)["schema"] == "astrarium.program/3"
    assert "p.json is written" in run(*common, "--out", "p.json").output
    assert to_text(load_program(project / "p.json")) == printed


def test_nothing_fits_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(question: object, progress: object) -> ProgramDocument:
        raise NoFeasiblePlanError("rank 1 lacks 3 GiB")

    monkeypatch.setattr(synthesis, "answer", refuse)
    done = run("synthesize", "m.py:make", "--gpus", "a100:1,v100:1", "--batch", "6")
    assert (done.exit_code, done.stderr) == (1, "Error: rank 1 lacks 3 GiB\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "bert.py --gpus t4:2 --batch 8",
            "'bert.py': expected a function that makes a torch module",
        ),
        ("m.py: --gpus t4:2 --batch 8", "as examples/bert.py:make or package.module:make"),
        ("m.py:make --gpus t4:2", "Missing option '--batch'"),
        ("m.py:make --gpus t4:2 --batch 0", "--batch"),
        ("m.py:make --gpus t4:2 --batch many", "--batch 'many'"),
        ("m.py:make --gpus t4:1 --batch 8", "one device has nothing to divide the work with"),
        ("m.py:make --gpus h1000:2 --batch 8", "unknown GPU type 'h1000' (did you mean 'h100'?)"),
        ("m.py:make --batch 8", "no GPUs are given"),
        ("m.py:make --gpus t4:2 --cluster c.yaml --batch 8", "both given; keep one"),
        ("m.py:make --cluster c.yaml --batch 8", "c.yaml: no such file"),
        ("m.py:make --gpus t4:2 --batch 8 --micro-batches 3", "does not divide into 3 micro-batc"),
        ("m.py:make --gpus t4:2 --batch 8 --memory lots", "--memory 'lots'"),
        (
            "m.py:make --gpus t4:2 --batch 8 --mesh cube",
            "--mesh 'cube': expected one of auto, flat",
        ),
        ("m.py:make --gpus t4:2 --batch 8 --mesh nodes", "two levels, and there is one node"),
        ("m.py:make --gpus t4:1,v100:1 --batch 8 --mesh nodes", "one device in each node"),
        ("m.py:make --gpus t4:2,v100:4 --batch 8 --mesh nodes", "and these have 2 and 4; leave"),
        ("m.py:make --gpus t4:2 --batch 8 --optimizer lion", "expected one of adam, sgd"),
        ("m.py:make --gpus t4:2 --batch 8 --set layers", "--set 'layers': expected NAME=VALUE"),
        ("m.py:make --gpus t4:2 --batch 8 --set batch=3", "the batch is that of --batch"),
        ("m.py:make --gpus t4:2 --batch 8 --set a=1 --set a=2", "--set a=... is given twice"),
        ("m.py:make --gpus t4:2 --batch 8 --top-instructions few", "--top-instructions 'few'"),
        ("m.py:make --gpus t4:2 --batch 8 --profile p.csv", "--profile p.csv: unknown kind of"),
        ("m.py:make --gpus t4:2 --batch 8 --out here", "expected a name that ends in .json"),
        ("m.py:make --gpus t4:2 --batch 8 --out no/p.json", "there is no folder no"),
        ("m.py:make --gpus t4:2 --batch 8 --out taken.json", "a file of another kind is there"),
    ],
)
def test_bad_flags_are_refused(
    run: Run, answered: Answered, project: Path, flags: str, said: str
) -> None:
    (project / "taken.json").write_text('{"mine": 1}', encoding="utf-8")
    done = run("synthesize", *flags.split())
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
    assert answered.question is None


@pytest.mark.parametrize(
    ("factory", "flags", "said"),
    [
        ("absent.py:make", (), "no file 'absent.py'"),
        ("small.py:mak", (), "has no 'mak' (did you mean 'make'?)"),
        ("small.py:SETTING", (), "not a function"),
        ("small.py:broken", (), "RuntimeError: no data here"),
        ("small.py:make", ("--set", "depth=3"), "takes no size 'depth'"),
        ("small.py:make", ("--set", "odd=true"), "aten.special_bessel_j0.default, "),
        ("small.py:make", ("--set", "odd=true"), "small.py:15"),
        ("small.py:make", ("--set", "odd=true"), "--allow-replicate aten.special_bessel_j0.defa"),
        ("small.py:make", ("--allow-replicate", "bessel"), "the module has no such operator"),
    ],
)
def test_bad_modules_are_refused(
    run: Run, small: str, factory: str, flags: tuple[str, ...], said: str
) -> None:
    done = run("synthesize", factory, "--gpus", "a100:1,v100:1", "--batch", "8", *flags)
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_without_torch_the_way_is_said(
    run: Run, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesis, "find_spec", lambda name: None)
    done = run("synthesize", small, "--gpus", "a100:1,v100:1", "--batch", "8")
    assert done.exit_code == 2
    assert "torch and scipy must be installed for this: pip install 'astrarium[" in done.stderr


def test_explain_shows_a_program_from_its_file(run: Run, program: str) -> None:
    done = run("explain", program)
    assert done.exit_code == 0, done.output
    assert "Pieces of each axis" in done.output
    printed = run("explain", program, "--json").stdout
    assert printed == Path(program).read_text(encoding="utf-8")
    refused = run("explain", program, "--gpus", "h100:8")
    assert refused.exit_code == 2
    assert "--gpus: program.json is a program" in refused.output


class Ran:
    """Takes the place of processes; remembers how they were to run."""

    def __init__(self) -> None:
        self.settings: job.ProgramSettings | None = None
        self.off = 0.0

    def __call__(self, document: ProgramDocument, **asked: Any) -> job.ProgramRun:
        self.settings = asked["settings"]
        losses = tuple(2.0 - step / 10 for step in range(self.settings.steps))
        gradients = job.Difference(1e-7, "w0")
        right = self.off == 0.0
        alone = job.Compared("the module", losses, self.off, 0.0, right, gradients, None, 1e-4)
        parts = tuple(
            job.RankRunPart(rank, device.pool, 64, 10**9, 1e9, 0.5 + rank)
            for rank, device in enumerate(document.devices)
        )
        return job.ProgramRun(
            job.SCHEMA, document.source.factory, "cpu", document.ranks, self.settings.steps,
            losses, alone, (1.5,) * len(losses), 1.5, document.program.seconds, parts,
        )  # fmt: skip


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    made = Ran()
    monkeypatch.setattr(job, "run_program", made)
    return made


def test_a_program_runs(run: Run, program: str, ran: Ran, project: Path) -> None:
    (project / "before").mkdir()
    (project / "before" / "astrarium.json").touch()
    flags = ("--steps", "3", "--ranks", "2", "--checkpoint", "kept", "--resume", "before")
    done = run("run", program, *flags)
    assert done.exit_code == 0, done.output
    assert ran.settings is not None
    assert (ran.settings.steps, ran.settings.save, ran.settings.load) == (3, "kept", "before")
    for text in (
        "3 steps by 2 processes on cpu",
        "V100-SXM2-32GB",
        "1.900000",
        "equal to the module: losses",
    ):
        assert text in done.output, text
    assert json.loads(run("run", program, "--json").stdout)["losses"] == [2.0, 1.9, 1.8, 1.7]


def test_a_program_that_computes_something_else_is_exit_code_1(
    run: Run, program: str, ran: Ran
) -> None:
    ran.off = 0.1
    done = run("run", program)
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "NOT equal to the module: losses differ by 1.0e-01 of each at most, gradients by" in said
    assert "by 1.0e-07 (w0); tolerance 1e-04" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--ranks", "3"), "--ranks 3: the program is for 2 ranks"),
        (("--rank", "2"), "--rank: program.json is a program, which does not use it"),
        (("--dry",), "--dry: program.json is a program"),
        (("--device", "tpu"), "--device 'tpu': expected one of cpu, cuda"),
        (("--steps", "0"), "--steps"),
        (("--timeout", "soon"), "--timeout"),
        (("--resume", "nowhere"), "--resume nowhere: no checkpoint is there (no astrarium.json)"),
        (("--checkpoint", "program.json"), "--checkpoint program.json: something else is there"),
        (("--checkpoint", "no/where"), "--checkpoint no/where: there is no folder no"),
        (("--measure",), "--measure: the program is for A100-SXM4-80GB, V100-SXM2-32GB"),
        (
            ("--measure", "--steps", "3"),
            "--steps: program.json is a program, and --measure only times",
        ),
        (("--measure", "--device", "cuda"), "leave --device cuda out"),
    ],
)
def test_bad_flags_of_a_run_are_refused(
    run: Run, program: str, ran: Ran, flags: tuple[str, ...], said: str
) -> None:
    done = run("run", program, *flags)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert ran.settings is None


def test_a_program_for_cores_is_measured(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = parse_gpus("cpu:1,cpu@50%:1")
    devices = tuple(
        DevicePart(rank, pool.name, pool.gpu.name, rank) for rank, pool in enumerate(cores.pools)
    )
    document = replace(hand_programs.document(), cluster=cores, devices=devices)
    (project / "examples").mkdir()
    (project / "examples/mlp.py").touch()
    (project / "p.json").write_text(to_text(document), encoding="utf-8")
    asked: dict[str, Any] = {}

    def pretended(documents: Any, device: Any, settings: job.ProgramSettings, **others: Any) -> Any:
        asked.update(others, settings=settings)
        times = (9.0, 9.0, 0.009, 0.010, 0.010, 0.011, 0.012)
        return [tuple(job.RankReport(0, r, (), times, (), 64, 10**6) for r in (0, 1))]

    monkeypatch.setattr(timed, "run_programs", pretended)
    monkeypatch.setattr(timed, "cores_for", lambda ranks: list(range(ranks)))
    done = run("run", "p.json", "--measure")
    assert done.exit_code == 0, done.output
    assert "note: rank 1 is held back to 50 % of its core's time" in done.output
    assert "measured   10.0 ms a step (9.00 ms to 12.0 ms)" in done.output
    assert "predicted  7.50 ms, -25.0 %" in done.output
    assert asked["settings"].compare is False
    assert asked["environment"]["CORES"] == "0,1"
    printed = json.loads(run("run", "p.json", "--measure", "--json").stdout)
    assert printed["schema"] == "astrarium.measured-program/1"
    assert printed["error"] == pytest.approx(-0.25)


def test_checkpoints_are_those_of_programs(run: Run, plan: Run) -> None:
    plan("--out", "here")
    done = run("run", "here", "--checkpoint", "kept")
    assert done.exit_code == 2
    assert "--checkpoint: here is not a program" in done.output
    done = run("run", "here", "--share-gpus")
    assert done.exit_code == 2
    assert "--share-gpus: here is not a program" in done.output


def test_a_program_without_its_module_is_refused(run: Run, program: str, ran: Ran) -> None:
    Path("examples/mlp.py").unlink()
    done = run("run", program)
    assert done.exit_code == 2
    assert "examples/mlp.py is not here" in done.stderr
    assert run("explain", program).exit_code == 0


def test_an_edited_program_is_refused(run: Run, program: str) -> None:
    text = Path(program).read_text(encoding="utf-8")
    Path(program).write_text(text.replace("[[4, 2]]", "[[4, 1]]"), encoding="utf-8")
    for command in ("run", "explain"):
        done = run(command, program)
        assert done.exit_code == 2
        assert "changed since it was written: its checksum does not match" in done.stderr
        assert "synthesise it again" in done.stderr


def test_python_asks_the_same(answered: Answered, project: Path) -> None:
    import astrarium

    found = astrarium.synthesize(
        "m.py:make", batch=6, gpus={"a100": 1, "v100": 1}, sizes={"layers": 2}, memory="15GiB",
        allow_replicate=["foo"],
    )  # fmt: skip
    asked = answered.question
    assert asked is not None
    assert (asked.sizes, asked.memory_bytes) == ({"layers": 2}, 15 * 2**30)
    assert asked.allow_replicate == ("foo",)
    assert found.document is answered.document
    assert (found.ranks, found.pieces("batch")) == (2, (4, 2))
    assert found.speedups["data parallel, even"] == pytest.approx(2.0)
    assert repr(found) == "<Program of examples/mlp.py:make: 2 ranks, 0.0075 s>"
    saved = found.save(project / "p.json")
    assert astrarium.load_program(saved).to_dict() == found.to_dict()
    with pytest.raises(InputError, match=r"^micro_batches '0'"):
        astrarium.synthesize("m.py:make", batch=6, gpus="t4:2", micro_batches=0)
    with pytest.raises(InputError, match="no axis is called 'bach'"):
        found.pieces("bach")


def test_python_runs_a_program(ran: Ran) -> None:
    from astrarium.api.plans import Program

    done = Program(hand_programs.document()).run(steps=2, checkpoint=Path("kept"))
    assert ran.settings == replace(job.ProgramSettings(), steps=2, save="kept")
    assert done.is_right


def test_models_of_the_catalog_need_no_function(
    run: Run, project: Path, answered: Answered
) -> None:
    shown = run("synthesize", "gpt2-small", "--gpus", "v100:2", "--batch", "4")
    assert shown.exit_code == 0, shown.output
    assert answered.question is not None
    assert answered.question.factory == "astrarium.runtime.spmd.hf:make"
    assert answered.question.sizes == {"model": "gpt2-small", "sequence": 1024}
    assert any("--set sequence=N" in note for note in answered.question.notes)
    given = ("--set", "sequence=64", "--set", "dtype=float16")
    run("synthesize", "gpt2-small", "--gpus", "v100:2", "--batch", "4", *given)
    assert answered.question.sizes["sequence"] == 64
    assert answered.question.notes == ()
    unknown = run("synthesize", "gpt2-smal", "--gpus", "v100:2", "--batch", "4")
    assert "did you mean 'gpt2-small'" in unknown.output
