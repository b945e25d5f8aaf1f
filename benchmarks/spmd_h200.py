"""All that programs are measured by, in one call on a machine with a GPU and a dozen idle cores.

    python benchmarks/spmd_h200.py --out FOLDER [--seconds 540]

Three things at once, each on cores of its own: `spmd_against.py` (equal ranks against DDP, FSDP2
and DTensor), `spmd_cpu.py` (a slow rank), and on the GPU:

- two ranks that share it, over gloo with tensors on the GPU, against one device;
- one rank over NCCL, in float32 and in bfloat16, against one device;
- the memory that ranks took at most, against the prediction;
- a step of a program for one device against one of the module itself, in turn.

What is not begun in time is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.spmd.capture import NAMED_FACTORY
from astrarium.spmd.program import SourcePart

if TYPE_CHECKING:
    from astrarium.spmd.graph import Graph
    from astrarium.spmd.program import ProgramDocument

EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_OFF = 0.10  # of predicted memory
CASE_SECONDS = 100.0
LAST_SECONDS = 60.0  # before the end no case is begun any more
ONE = "h200:1"
TURNS = 20
WARM_UP = 3
# Cores of each part: those of its ranks and one more for what starts them.
CORES = {"against": range(3), "cpu": range(4, 7), "gpu": range(8, 16)}


@dataclass(frozen=True)
class Case:
    """A program that is run on the GPU."""

    name: str
    model: str  # an example, or a model of the catalog
    batch: int
    gpus: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    memory: str | None = None
    compare: bool = True

    @property
    def factory(self) -> str:
        example = EXAMPLES / f"{self.model}.py"
        return f"{example}:make" if example.is_file() else self.model

    @property
    def source(self) -> SourcePart:
        if self.factory != self.model:
            return SourcePart(self.factory, self.batch, dict(self.sizes))
        return SourcePart(NAMED_FACTORY, self.batch, {"model": self.model, **self.sizes})


SMALL = {"layers": 2, "hidden": 256, "heads": 4}
CASES = (
    Case("memory", "bert", 64, ONE, {}, compare=False),
    Case("memory, two ranks", "bert", 64, "h200:2", {}, compare=False),
    Case("memory", "vit", 512, ONE, {}, compare=False),
    Case("memory", "vgg19", 64, ONE, {"image": 64}, compare=False),
    Case("memory, bfloat16", "gpt2-medium", 16, "h200:1",
         {"sequence": 1024, "dtype": "bfloat16"}, compare=False),
    Case("memory, bfloat16", "llama-3.2-1b", 4, "h200:1",
         {"sequence": 2048, "dtype": "bfloat16"}, compare=False),
    Case("two ranks, data parallel", "bert", 24, "h200:1,a100:1", SMALL),
    Case("two ranks, weights in pieces", "mlp", 64, "h200:1,a100:1", {}, "260MiB"),
    Case("two ranks, experts", "moe", 24, "h200:1,a100:1", {**SMALL, "experts": 4}),
    Case("NCCL, float32", "gpt2", 8, ONE, {"layers": 4}),
    Case("NCCL, bfloat16", "gpt2-small", 8, ONE, {"sequence": 512, "dtype": "bfloat16"}),
)  # fmt: skip
AGAINST_MODULE: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("bert", 32, {"dropout": 0.0, "attention_dropout": 0.0}),
    ("llama-3.2-1b", 4, {"sequence": 1024, "dtype": "bfloat16"}),
)


def synthesised(case: Case) -> ProgramDocument:
    import astrarium

    return astrarium.synthesize(
        case.factory,
        batch=case.batch,
        gpus=case.gpus,
        memory=case.memory,
        sizes=dict(case.sizes),
        all_devices=True,
    ).document


def for_one_device(case: Case) -> ProgramDocument:
    """The module as it is, as a program: there is nothing to search for."""
    from spmd_measured import whole_program

    from astrarium.cluster import parse_gpus
    from astrarium.spmd.price import devices_of, document_of, price_program, with_price
    from astrarium.spmd.program import SynthesisPart

    devices = devices_of(parse_gpus(case.gpus))
    whole = whole_program(captured(case))
    program = with_price(whole, price_program(whole, devices))
    return document_of(case.source, devices, program, SynthesisPart(0.0, 0, 0, True, 0.0))


def captured(case: Case) -> Graph:
    import torch

    from astrarium.spmd.capture import capture, taken_apart
    from astrarium.spmd.capture.factory import load_factory

    with torch.device("meta"):
        module, inputs = load_factory(case.source.factory)(case.batch, **case.source.sizes)
    return taken_apart(capture(module, inputs))


def run_case(case: Case) -> dict[str, Any]:
    """Synthesise and run; what is wrong is part of the answer."""
    from astrarium.runtime.job import Device
    from astrarium.runtime.spmd.job import ProgramSettings, run_program

    document = for_one_device(case) if case.gpus == ONE else synthesised(case)
    done = run_program(
        document,
        device=Device.CUDA,
        settings=ProgramSettings(steps=4, compare=case.compare, share_gpus=document.ranks > 1),
        timeout_seconds=CASE_SECONDS,
    )
    compared = done.single_process
    ranks = [
        {
            "peak_gib": one.peak_bytes / 2**30,
            "predicted_gib": one.predicted_bytes / 2**30,
            "off": one.predicted_bytes / one.peak_bytes - 1.0,
        }
        for one in done.processes
    ]
    messages = sorted(
        {
            operation
            for one in document.program.instructions
            if one.conversion is not None
            for operation in (one.conversion.forward, one.conversion.backward)
        }
    )
    return {
        "median_step_seconds": done.median_step_seconds,
        "predicted_seconds": done.predicted_seconds,
        "equal": None if compared is None else compared.equal,
        "loss_difference": None if compared is None else compared.largest_loss_difference,
        "gradient_difference": None if compared is None else compared.gradients.largest,
        "conversions": messages,
        "memory": ranks,
        "memory_is_close": all(abs(rank["off"]) <= MOST_OFF for rank in ranks),
    }


def against_module(model: str, batch: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of a program for one device and of the module, in turn."""
    import torch
    from spmd_measured import whole_program

    from astrarium.runtime.spmd.execute import Interpreter, take_place
    from astrarium.runtime.spmd.model import make_model
    from astrarium.runtime.spmd.train import Recipe, Training
    from astrarium.spmd.capture import loss_of

    device = torch.device("cuda")
    case = Case("", model, batch, "", sizes)
    made, graph = make_model(case.source), captured(case)
    program = whole_program(graph)
    training = Training(
        Interpreter(program, take_place((1,), 0), device), made.state(graph), Recipe().make
    )
    batches = [
        {name: tensor.to(device) for name, tensor in one.items()} for one in made.batches(graph, 1)
    ]
    module = made.module.to(device)
    inputs = {name: tensor.to(device) for name, tensor in made.inputs.items()}
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> None:
        loss = loss_of(module(**inputs), "the module")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())

    times: dict[str, list[float]] = {"module": [], "program": []}
    for _ in range(TURNS + WARM_UP):
        for name, call in (("module", step), ("program", partial(training.step, batches))):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - began)
    module_seconds, program_seconds = (one[WARM_UP:] for one in times.values())
    ratios = [ours / its for ours, its in zip(program_seconds, module_seconds, strict=True)]
    return {
        "module_seconds": statistics.median(module_seconds),
        "program_seconds": statistics.median(program_seconds),
        "ratio": statistics.median(ratios),
    }


def gpu_jobs() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for model, batch, sizes in AGAINST_MODULE:
        yield f"against the module: {model}", partial(against_module, model, batch, sizes)
    for case in CASES:
        yield f"{case.name}: {case.model}", partial(run_case, case)


def on_gpu(out: Path, until: float) -> None:
    """All that needs the GPU, one after another; written down as it is found."""
    import traceback

    found: dict[str, Any] = {}
    for name, job in gpu_jobs():
        began = time.monotonic()
        if began > until:
            found[name] = {"left_out": "no time was left"}
        else:
            try:
                found[name] = job()
            except Exception as error:
                found[name] = {
                    "failed": f"{type(error).__name__}: {error}",
                    "where": traceback.format_exc().splitlines()[-8:],
                }
        found[name]["took_seconds"] = time.monotonic() - began
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        (out / "spmd_gpu.json").write_text(json.dumps(found, indent=1))


def started(part: str, out: Path, script: str, *flags: str) -> subprocess.Popen[bytes]:
    """A benchmark beside others, on cores of its own."""
    there = sorted(os.sched_getaffinity(0))
    cores = {there[core % len(there)] for core in CORES[part]}
    with (out / f"{part}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), "--out", str(out), *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )


def end(processes: Sequence[subprocess.Popen[bytes]], until: float) -> None:
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its ranks
            process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0, help="in all")
    parser.add_argument("--models", default="bert,vit,gpt2,vgg19", help="on equal ranks")
    parser.add_argument("--families", default="vgg19,bert,moe,vit", help="with a slow rank")
    parser.add_argument("--ratios", default="3,2")
    parser.add_argument("--only-gpu", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    beside = []
    if not options.only_gpu:
        beside.append(
            started("against", options.out, "spmd_against.py", "--models", options.models)
        )
        flags = ("--families", options.families, "--ratios", options.ratios)
        beside.append(started("cpu", options.out, "spmd_cpu.py", *flags, "--rounds", "7"))
    there = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {there[core % len(there)] for core in CORES["gpu"]})
    on_gpu(options.out, until - LAST_SECONDS)
    end(beside, until)
    for name in ("spmd_against.txt", "spmd_cpu.txt"):
        path = options.out / name
        print(path.read_text() if path.is_file() else f"{name}: nothing was done in time")


if __name__ == "__main__":
    main()
