"""Programs on equal ranks against DDP, FSDP2 and DTensor: one run, step by step in turn.

    python benchmarks/spmd_against.py --out FOLDER [--models bert,vit] [--rounds 15]

Two ranks with a core each train the same model from the same weights: by the program that is
synthesised for them, by even data parallel as a program, by torch's DistributedDataParallel, by
FSDP2 (`fully_shard` of every block) and, where its layers are known below, by tensor parallelism
over DTensor. Every round each of them takes one step; the order turns from round to round. Printed
are medians, and ours against the best of torch's: the median over rounds of the ratio of two steps
of one round, so that what disturbs a machine for a while disturbs both. Losses of the first steps
must agree, or what is timed is not the same training.

Programs are predicted from operators and messages timed on the same cores. Needs two cores that do
nothing else; with three or more, the controller keeps off those of the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spmd_cpu import (
    EVEN,
    MEMORY_BYTES,
    QUIET,
    SYNTHESISED,
    TIMEOUT_SECONDS,
    apart_from,
    cluster_of,
    documents_of,
    note,
    prepared,
)
from spmd_measured import measured_laws, measured_messages

from astrarium.calibrate.measure.cores import one_core, stay_on
from astrarium.cost.tuning import Tuning
from astrarium.runtime.answers import LOOPBACK, leave_with_parent, own_output, say
from astrarium.runtime.launch import launch
from astrarium.runtime.measure import KEEP_MEMORY, cores_for
from astrarium.spmd.price import devices_of
from astrarium.spmd.program import ProgramDocument, SourcePart, to_text

EXAMPLES = Path(__file__).parents[1] / "examples"
RANKS = 2
WARM_UP = 2  # rounds
MOST_SLOWER = 0.03  # than the best of torch's ways
SAME_LOSS = 1e-4  # relative
DDP, FSDP, TENSOR = "DDP", "FSDP2", "DTensor, tensor parallel"
# Batch and sizes: a step takes half a second.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "bert": (16, {"layers": 4, "hidden": 256, "heads": 4, "sequence": 96,
                  "vocabulary": 2000, **QUIET}),
    "vit": (16, {"layers": 4, "hidden": 256, "heads": 4, "image": 64, "patch": 8}),
    "gpt2": (8, {"layers": 4, "hidden": 256, "heads": 4, "sequence": 128,
                 "vocabulary": 4000, **QUIET}),
    "vgg19": (16, {"image": 32, "channels": 32, "hidden": 1024, "classes": 100, "dropout": 0.0}),
}  # fmt: skip
# Linear layers that DTensor divides by columns, and those behind them that it divides by rows.
COLUMNS = ("query", "key", "value", "intermediate.dense", "q_proj", "k_proj", "v_proj", "fc1")
ROWS = ("attention.output.dense", "output.dense", "o_proj", "fc2")
DIVIDED = ("bert", "vit")  # models that DTensor can divide so
BLOCKS = ("BertLayer", "ViTLayer", "GPT2Block")


@dataclass(frozen=True)
class Row:
    """One way to train one model."""

    model: str
    way: str
    seconds: float
    low_seconds: float
    high_seconds: float
    processor_seconds: float  # of the busier rank, all threads: what others do does not change it
    loss: float  # of the first step
    best: str  # of torch's ways
    against_best: float  # times as long
    predicted_seconds: float | None


# What every rank runs.


def main_of_rank(folder: Path) -> None:
    import torch
    from torch import distributed

    leave_with_parent()
    answers = own_output()
    rank = int(os.environ["RANK"])
    stay_on(int(os.environ["CORES"].split(",")[rank]))
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    distributed.init_process_group("gloo", f"file://{folder}/store", world_size=RANKS, rank=rank)
    task = json.loads((folder / "task.json").read_text())
    ways = {name: make() for name, make in ways_of(task, folder, rank)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    works: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    names = [*ways]
    for number in range(task["rounds"] + WARM_UP):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            distributed.barrier()
            began, worked = time.perf_counter(), time.process_time()
            losses[name].append(ways[name]())
            times[name].append(time.perf_counter() - began)
            works[name].append(time.process_time() - worked)
    say(answers, times=times, losses=losses, works=works)
    distributed.barrier()
    os._exit(0)


Step = Callable[[], float]


def ways_of(
    task: Mapping[str, Any], folder: Path, rank: int
) -> Iterator[tuple[str, Callable[[], Step]]]:
    """All ways to train a model, by name: what makes each ready, and gives its step."""
    from functools import partial

    for number, name in enumerate(task["programs"]):
        yield name, partial(_program, folder / f"program-{number}.json", rank)
    source = SourcePart(**task["source"])
    yield DDP, partial(_ddp, source, rank)
    yield FSDP, partial(_fsdp, source, rank)
    if task["model"] in DIVIDED:
        yield TENSOR, partial(_tensor_parallel, source)


def _program(path: Path, rank: int) -> Step:
    from astrarium.runtime.spmd.execute import Interpreter, take_place
    from astrarium.runtime.spmd.model import make_model
    from astrarium.runtime.spmd.train import Recipe, Training
    from astrarium.spmd.program import load_program

    document = load_program(path)
    program, model = document.program, make_model(document.source)
    interpreter = Interpreter(program, take_place(program.mesh, rank))
    recipe = Recipe(document.source.optimizer)
    training = Training(interpreter, model.state(program.graph), recipe.make)
    batches = [*map(training.cut, model.batches(program.graph, program.micro_batches))]
    return lambda: training.step(batches).loss


def _ddp(source: SourcePart, rank: int) -> Step:
    from torch.nn.parallel import DistributedDataParallel

    from astrarium.runtime.spmd.model import make_model

    model = make_model(source)
    return _module_step(DistributedDataParallel(model.module), _share(model.inputs, rank))


def _fsdp(source: SourcePart, rank: int) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from astrarium.runtime.spmd.model import make_model

    model, mesh = make_model(source), init_device_mesh("cpu", (RANKS,))
    for module in model.module.modules():
        if type(module).__name__ in BLOCKS:
            fully_shard(module, mesh=mesh)
    fully_shard(model.module, mesh=mesh)
    return _module_step(model.module, _share(model.inputs, rank))


def _tensor_parallel(source: SourcePart) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from astrarium.runtime.spmd.model import make_model

    model, mesh = make_model(source), init_device_mesh("cpu", (RANKS,))
    plan: dict[str, Any] = {}
    for name, module in model.module.named_modules():
        if type(module).__name__ in BLOCKS:
            for inner, _ in module.named_modules():
                if inner.endswith(COLUMNS):
                    plan[f"{name}.{inner}"] = ColwiseParallel()
                elif inner.endswith(ROWS):
                    plan[f"{name}.{inner}"] = RowwiseParallel()
    parallelize_module(model.module, mesh, plan)
    return _module_step(model.module, model.inputs)


def _share(inputs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """An equal part of the batch."""
    return {name: whole.chunk(RANKS)[rank].clone() for name, whole in inputs.items()}


def _module_step(module: Any, inputs: Mapping[str, Any]) -> Step:  # noqa: ANN401
    import torch

    from astrarium.spmd.capture import loss_of

    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> float:
        loss = loss_of(module(**inputs), "the module")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


# What starts them.


def rows_of(
    model: str, source: SourcePart, documents: Mapping[str, ProgramDocument], rounds: int
) -> list[Row]:
    """Train in all ways in turn; a step is as long as its slower rank takes."""
    task = {
        "model": model,
        "source": {"factory": source.factory, "batch": source.batch, "sizes": source.sizes},
        "programs": [*documents],
        "rounds": rounds,
    }
    files = {
        f"program-{number}.json": to_text(document).encode()
        for number, document in enumerate(documents.values())
    }
    cores = cores_for(RANKS)
    with apart_from(cores):
        answers = launch(
            {**files, "task.json": json.dumps(task).encode()},
            RANKS,
            environment={"CORES": ",".join(map(str, cores)), **KEEP_MEMORY},
            timeout_seconds=TIMEOUT_SECONDS,
            command=(sys.executable, str(Path(__file__).resolve())),
        )
    said = [answer[-1] for answer in answers]
    times = {
        way: [max(pair) for pair in zip(*(one["times"][way] for one in said), strict=True)][
            WARM_UP:
        ]
        for way in said[0]["times"]
    }
    works = {
        way: max(statistics.median(one["works"][way][WARM_UP:]) for one in said) for way in times
    }
    losses = {
        way: statistics.fmean(one["losses"][way][0] for one in said) for way in said[0]["losses"]
    }
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    best = min((way for way in times if way not in documents), key=medians.__getitem__)
    return [
        Row(
            model, way, medians[way], min(seconds), max(seconds), works[way], losses[way], best,
            statistics.median(a / b for a, b in zip(seconds, times[best], strict=True)),
            documents[way].program.seconds if way in documents else None,
        )
        for way, seconds in times.items()
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'model':6} {'way':26} {'step':>9} {'at work':>9} {'predicted':>10}"
        f" {'against the best of torch':>34}"
    )
    for row in rows:
        predicted = f"{1e3 * row.predicted_seconds:7.0f} ms" if row.predicted_seconds else ""
        yield (
            f"{row.model:6} {row.way:26} {1e3 * row.seconds:6.0f} ms"
            f" {1e3 * row.processor_seconds:6.0f} ms {predicted:>10}"
            f" {100 * (row.against_best - 1.0):+6.1f} % {row.best:>24}"
        )


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    for model in dict.fromkeys(row.model for row in rows):
        found = {row.way: row for row in rows if row.model == model}
        losses = [row.loss for row in found.values()]
        differ = max(losses) - min(losses) > SAME_LOSS * abs(max(losses))
        ours = found[SYNTHESISED]
        yield (
            f"{model}: {ours.against_best:.3f} times {ours.best}"
            + (" (MISSED)" if ours.against_best > 1.0 + MOST_SLOWER else "")
            + (" (LOSSES DIFFER)" if differ else "")
        )


def source_of(model: str) -> SourcePart:
    batch, sizes = MODELS[model]
    return SourcePart(f"{EXAMPLES / model}.py:make", batch, sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with one_core(disturbed=True):
        laws = measured_laws()
    tuning = Tuning(laws=laws, messages=measured_messages((1.0,) * RANKS))
    devices = devices_of(cluster_of((1.0,) * RANKS, tuning), MEMORY_BYTES, tuning=tuning)
    rows: list[Row] = []
    for model in options.models.split(","):
        source = source_of(model)
        graph, measured = prepared(source)
        documents = documents_of(source, graph, devices, measured)
        chosen = {way: documents[way] for way in (EVEN, SYNTHESISED)}
        rows.extend(rows_of(model, source, chosen, options.rounds))
        text = "\n".join([*table(rows), *verdicts(rows)])
        found = [asdict(row) for row in rows]
        (options.out / "spmd_against.json").write_text(json.dumps(found, indent=1))
        (options.out / "spmd_against.txt").write_text(text + "\n")
        note(f"{model} done")
    print(text)


if __name__ == "__main__":
    if "RANK" in os.environ:
        main_of_rank(Path(sys.argv[1]))
    else:
        main()
