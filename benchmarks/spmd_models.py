"""Public models, captured, divided and trained: which work without help, and why others do not.

    python benchmarks/spmd_models.py [--models Bert ResNet-18] [--page docs/spmd-models.md] [--json]

Each model of `benchmarks/spmd_zoo`, tiny and with random weights, is captured as it is, a program
is synthesised for three unequal cores, and three processes train 20 steps with it over gloo.
Losses of all steps, gradients of the first, and buffers after the last are compared with the module
in one process. For the synthesis cores are taken to be slow and messages quick, so that small
models are divided at all. A model that is refused is listed with the reason.

Programs are run in groups by one set of processes; where a group fails, one by one.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import scipy.optimize  # noqa: F401  its import is not the synthesis's time
import torch
from page import table
from spmd_zoo import MODELS

from astrarium.cluster import parse_gpus
from astrarium.cost.tuning import Tuning
from astrarium.errors import AstrariumError
from astrarium.runtime.job import Device
from astrarium.runtime.spmd.job import Compared, ProgramSettings, compared_with, run_programs
from astrarium.runtime.spmd.model import make_model
from astrarium.spmd.capture import capture, taken_apart
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Devices, devices_of, document_of
from astrarium.spmd.program import DeviceProgram, ProgramDocument, SourcePart, SynthesisPart
from astrarium.spmd.rules import operators_without_rule
from astrarium.spmd.synthesis import synthesize

CORES = "CPU-core:1,CPU-core@60%:1,CPU-core@30%:1"
BATCH, STEPS = 12, 20
GROUP = 12  # programs that one set of processes runs
TIMEOUT_SECONDS = 300.0
SECONDS_OF_FLOP, SECONDS_OF_ELEMENT = 1e-6, 1e-7
MESSAGE_SECONDS, SECONDS_OF_BYTE = 1e-6, 1e-8
_KINDS = ("residual", "layer_norm", "gelu", "embedding", "bias_gradient")
SLOW = Tuning(
    laws={
        "linear": (0.0, SECONDS_OF_FLOP, 0.0),
        "attention_forward": (0.0, 0.0, SECONDS_OF_FLOP, 0.0),
        "attention_backward": (0.0, 0.0, SECONDS_OF_FLOP, 0.0),
        "update": (0.0, SECONDS_OF_ELEMENT),
        **{
            f"{kind}_{way}": (0.0, SECONDS_OF_ELEMENT)
            for kind in _KINDS
            for way in ("forward", "backward")
        },
    },
    messages=dict.fromkeys(
        ("send", "all_reduce", "all_gather", "reduce_scatter"), (MESSAGE_SECONDS, SECONDS_OF_BYTE)
    ),
)


@dataclass(frozen=True)
class Row:
    """What came of one model; `reason` says why it was not compared."""

    model: str
    family: str
    captured: bool = False
    operators: int = 0
    missing: tuple[str, ...] = ()
    synthesis_seconds: float | None = None
    divided: float = 0.0  # of the operators, those of which ranks have pieces
    equal: bool | None = None  # losses of all steps, gradients of the first, buffers
    loss_difference: float | None = None
    gradient_difference: float | None = None
    rounding: float = 0.0  # of the module itself, where it was looked at
    buffers: int = 0
    buffer_difference: float | None = None
    reason: str = ""


def cores() -> Devices:
    """Three cores of different speed, with links as the messages say."""
    cluster = parse_gpus(CORES)
    bandwidth = 1.0 / SECONDS_OF_BYTE
    pools = tuple(
        replace(pool, intra_node_bandwidth=bandwidth, inter_node_bandwidth=bandwidth,
                intra_node_latency=MESSAGE_SECONDS, inter_node_latency=MESSAGE_SECONDS)
        for pool in cluster.pools
    )  # fmt: skip
    return devices_of(replace(cluster, pools=pools), tuning=SLOW)


def divided_share(program: DeviceProgram) -> float:
    """The share of operators whose results lie in pieces or parts."""
    nodes = program.graph.nodes
    computed = [
        one
        for one in program.instructions
        if one.conversion is None and not nodes[one.node].is_source
    ]
    spread = [one for one in computed if any(rule.name != "replicate" for rule in one.rules)]
    return len(spread) / max(len(computed), 1)


def prepared(name: str, devices: Devices) -> tuple[Row, ProgramDocument | None]:
    """The program of a model, or a row that says why there is none."""
    row = Row(name, MODELS[name].family)
    try:
        source, graph = captured(name)
        missing = tuple(dict.fromkeys(node.op for node in operators_without_rule(graph)))
        row = replace(
            row, captured=True, operators=sum(not node.is_source for node in graph.nodes),
            missing=missing, buffers=len(graph.state),
        )  # fmt: skip
        if missing:
            return replace(row, reason=f"no rule for {', '.join(missing)}"), None
        began = time.perf_counter()
        done = synthesize(taken_apart(graph), devices)
        row = replace(row, synthesis_seconds=time.perf_counter() - began)
    except AstrariumError as error:
        return replace(row, reason=_first_line(error)), None
    search = SynthesisPart(done.seconds, done.rounds, done.expanded, done.optimal, done.bound_gap)
    row = replace(row, divided=divided_share(done.program))
    return row, document_of(source, devices, done.program, search)


def captured(name: str) -> tuple[SourcePart, Graph]:
    """A model and its graph; one that keeps statistics is computed in double precision.

    In 20 steps of batch norm over few images, rounding in fp32 grows until it says nothing.
    """
    source = SourcePart("spmd_zoo:make", BATCH, {"model": name})
    graph = _captured(source)
    if graph.state:
        source = replace(source, sizes={"model": name, "dtype": "float64"})
        graph = _captured(source)
    return source, graph


def _captured(source: SourcePart) -> Graph:
    made = make_model(source)
    return capture(made.module, made.inputs, source.sizes["model"])


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    cause = [line for line in lines[1:] if "Error" in line][-1:]
    return " ".join(" ".join([*lines[:1], *cause]).split())


Prepared = tuple[Row, ProgramDocument]


def judged(group: Sequence[Prepared]) -> Iterator[Row]:
    """Train with the programs of a group, and compare."""
    try:
        reports = run_programs(
            [document for _, document in group],
            Device.CPU,
            ProgramSettings(steps=STEPS),
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except AstrariumError as error:
        if len(group) == 1:
            yield replace(group[0][0], equal=False, reason=_first_line(error))
            return
        for one in group:
            yield from judged([one])
        return
    for (row, _), of_program in zip(group, reports, strict=True):
        compared = compared_with(of_program[0], "the module", Device.CPU)
        assert compared is not None
        yield _with(row, compared)


def _with(row: Row, compared: Compared) -> Row:
    tensors = [one for one in (compared.gradients, compared.buffers) if one is not None]
    return replace(
        row,
        equal=compared.equal,
        loss_difference=compared.largest_loss_difference,
        gradient_difference=compared.gradients.largest,
        rounding=max(compared.loss_rounding, *(one.rounding for one in tensors)),
        buffer_difference=compared.buffers.largest if compared.buffers else None,
        reason="" if compared.equal else f"differs most in {compared.gradients.name}",
    )


def rows_of(names: Sequence[str]) -> Iterator[Row]:
    devices = cores()
    ready: list[Prepared] = []
    for number, name in enumerate(names, 1):
        row, document = prepared(name, devices)
        said = row.reason or f"synthesised in {row.synthesis_seconds or 0.0:.2f} s"
        print(f"{number}/{len(names)} {name}: {said}", file=sys.stderr, flush=True)
        if document is None:
            yield row
            continue
        ready.append((row, document))
        if len(ready) == GROUP:
            yield from judged(ready)
            ready = []
    if ready:
        yield from judged(ready)


def read_rows(path: Path) -> list[Row]:
    """Rows that `--json` printed."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Row(**{**data, "missing": tuple(data["missing"])}) for data in map(json.loads, lines)]


def page_of(rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    equal = [row for row in rows if row.equal]
    wrong = [row for row in rows if row.equal is False]
    refused = [row for row in rows if row.equal is None]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    lines = [
        "# Models that were tried",
        "",
        f"{len(equal)} of {len(rows)} public architectures are captured, divided and trained as"
        f" they are, equal to the module on one device; {len(refused)} are refused with a reason;"
        f" {len(wrong)} ran and were not equal.",
        "",
        "Each is tiny and has random weights; settings other than sizes are as they come, but that"
        " speech models leave no layers out and mask no frames by chance (`layerdrop` and"
        " `mask_time_prob` are 0). A [program](spmd.md) is synthesised for three cores"
        f" of speeds 100, 60 and 30 %, and three processes train {STEPS} steps with it, a batch of"
        f" {BATCH}, over gloo. Losses of all steps, gradients of the first, and buffers (statistics"
        " of batch norm and the like) after the last are compared with the module in one process."
        " Equal means within 1e-4, or within 8 times the module's own rounding; the tables have"
        " the largest relative differences. Models with buffers are computed in fp64: in fp32,"
        " rounding grows in 20 steps of batch norm until it says nothing. The others are in fp32."
        " `divided` is the share of operators that ranks compute pieces of. `synthesis` is seconds"
        " on a core of a machine that did other work as well.",
        "",
        f"Written by `python benchmarks/spmd_models.py` on {datetime.now(UTC):%Y-%m-%d} with"
        f" Python {platform.python_version()}, {versions}.",
        "",
        "## Equal",
        "",
    ]
    for family, count in Counter(row.family for row in equal).items():
        lines += [f"### {family[0].upper()}{family[1:]}: {count}", ""]
        lines += table(
            ("model", "operators", "divided", "synthesis", "losses", "gradients", "buffers"),
            [_cells(row) for row in equal if row.family == family],
        )
    if wrong:
        lines += ["## Not equal", ""]
        lines += table(
            ("model", "family", "losses", "gradients", "rounding", "what"),
            [(row.model, row.family, _small(row.loss_difference), _small(row.gradient_difference),
              _small(row.rounding), row.reason) for row in wrong],
        )  # fmt: skip
    lines += ["## Refused", ""]
    lines += table(
        ("model", "family", "captured", "missing operators", "reason"),
        [(row.model, row.family, "yes" if row.captured else "no", ", ".join(row.missing),
          row.reason.replace("|", "\\|")) for row in refused],
    )  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    kept = f"{row.buffers} of them: {_small(row.buffer_difference)}" if row.buffers else ""
    return (
        row.model, str(row.operators), f"{row.divided:.0%}", f"{row.synthesis_seconds or 0.0:.2f}",
        _small(row.loss_difference), _small(row.gradient_difference), kept,
    )  # fmt: skip


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--models", nargs="+", default=[*MODELS], choices=MODELS, metavar="MODEL",
        help="by default all",
    )  # fmt: skip
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation")
    parser.add_argument("--json", action="store_true", help="a line for each model, as it is done")
    parser.add_argument(
        "--rows", type=Path, action="append", default=[],
        help="such lines of an earlier run: these models are not run again",
    )  # fmt: skip
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = {row.model: row for path in given.rows for row in read_rows(path)}
    for row in rows_of([name for name in given.models if name not in found]):
        found[row.model] = row
        if given.json:
            print(json.dumps(asdict(row)), flush=True)
    rows = [found[name] for name in MODELS if name in found]
    if given.page:
        given.page.write_text(page_of(rows), encoding="utf-8")
    elif not given.json:
        print(page_of(rows))
    print(f"{sum(row.equal is True for row in rows)} of {len(rows)} equal", file=sys.stderr)
    return int(any(row.equal is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
