"""Programs for unequal devices, predicted: HAP's testbed, and how long synthesis takes.

    python benchmarks/spmd_testbed.py [--quick] [--json]

The testbed (HAP, EuroSys 2024): 2 machines of 8 V100 and 6 of 8 P100, 10.4 Gb/s between machines;
VGG19, ViT, BERT-Base and BERT-MoE with 12 layers, hidden size 768, 12 heads, 128 tokens or 64
patches, 32 samples for each GPU, 2 experts for each GPU, fp32. Times are predicted by one cost
model for all programs, ours and those of other spaces (`spmd.synthesis.baselines`): nothing here
was run. Other spaces have no memory limit, ours has; what would not fit is marked with *.

Then the time of synthesis: rules, axes, prices, searches and ratios, everything from a captured
graph to the program. Capture and imports (scipy's solver among them) are not in it. CPU seconds of
this process are shown beside wall-clock seconds, as both cores may be busy otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import scipy.optimize  # noqa: F401  its import is not the synthesis's time
import torch
from page import table

from astrarium.catalog import find_gpu
from astrarium.cluster import Cluster
from astrarium.cluster.build import Machines, build_pool
from astrarium.spmd.capture import capture, taken_apart
from astrarium.spmd.capture.factory import load_factory
from astrarium.spmd.graph import Graph
from astrarium.spmd.price import Devices, devices_of
from astrarium.spmd.program import DeviceProgram
from astrarium.spmd.synthesis import synthesize
from astrarium.spmd.synthesis.baselines import SPACES, ProgramSpace
from astrarium.spmd.synthesis.synthesis import Synthesis

EXAMPLES = Path(__file__).parents[1] / "examples"
NETWORK = 10.4e9 / 8  # bytes per second between machines
PER_GPU = 32  # samples
EXPERTS_PER_GPU = 2


@dataclass(frozen=True)
class Row:
    """Predicted seconds of a step of one model."""

    model: str
    ours: float
    others: dict[str, float]
    fitting: dict[str, bool]
    optimal: bool
    breakdown: str


@dataclass(frozen=True)
class Timing:
    """How long a synthesis took."""

    case: str
    most_seconds: float | None
    nodes: int
    rounds: int
    states: int
    cpu_seconds: float
    wall_seconds: float


def machines_of(v100_nodes: int, p100_nodes: int, per_node: int) -> Devices:
    """Machines of V100 and of P100 on HAP's network."""
    machines = Machines(inter_node_bandwidth=NETWORK)
    counts = {"v100-16gb": v100_nodes, "p100": p100_nodes}
    pools = [
        build_pool(gpu, find_gpu(gpu), nodes, per_node, gpu, machines=machines)
        for gpu, nodes in counts.items()
        if nodes
    ]
    return devices_of(Cluster(tuple(pools)))


def graph_of(example: str, batch: int, **sizes: int) -> Graph:
    """An example model, captured without weights."""
    factory = load_factory(f"{EXAMPLES / example}.py:make")
    with torch.device("meta"):
        module, inputs = factory(batch, **sizes)
    return taken_apart(capture(module, inputs))


MODELS: Mapping[str, Callable[[int], Graph]] = {
    "VGG19": lambda gpus: graph_of("vgg19", PER_GPU * gpus),
    "ViT": lambda gpus: graph_of("vit", PER_GPU * gpus),
    "BERT-Base": lambda gpus: graph_of("bert", PER_GPU * gpus),
    "BERT-MoE": lambda gpus: graph_of("moe", PER_GPU * gpus, experts=EXPERTS_PER_GPU * gpus),
}


def without_memory(space: ProgramSpace) -> ProgramSpace:
    return replace(space, memory=False)


def fits(program: DeviceProgram, devices: Devices) -> bool:
    """Whether every device has room for its part."""
    return all(size <= room for size, room in zip(program.bytes, devices.room, strict=True))


def compared(name: str, graph: Graph, devices: Devices) -> Row:
    """Our program beside the best of every other space."""
    programs: dict[str, DeviceProgram] = {
        space.name: synthesize(graph, devices, space=without_memory(space)).program
        for space in SPACES
    }
    fitting = [program for program in programs.values() if fits(program, devices)]
    ours = synthesize(graph, devices, candidates=fitting)  # as `astrarium synthesize` does
    return Row(
        name,
        ours.program.seconds,
        {title: program.seconds for title, program in programs.items()},
        {title: fits(program, devices) for title, program in programs.items()},
        ours.optimal,
        described(ours.program),
    )


def described(program: DeviceProgram) -> str:
    """What a program does: messages by kind, and the part of the batch of each kind of device."""
    counts: dict[str, int] = {}
    for one in program.instructions:
        if one.conversion is not None:
            for operation in (one.conversion.forward, one.conversion.backward):
                if operation in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
                    counts[operation] = counts.get(operation, 0) + 1
    batch = program.divisions[0].granules[program.axes.of[0][0]]
    messages = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{messages or 'no messages'}; batch {batch[0]}:{batch[-1]}"


def timed(case: str, most: float | None, graph: Graph, devices: Devices) -> Timing:
    """One synthesis, cold: nothing of an earlier one is kept that a user's first would not have."""
    cpu, wall = time.process_time(), time.perf_counter()
    found: Synthesis = synthesize(graph, devices)
    return Timing(
        case,
        most,
        len(graph.nodes),
        found.rounds,
        found.expanded,
        time.process_time() - cpu,
        time.perf_counter() - wall,
    )


def timings(*, quick: bool) -> list[Timing]:
    """The cases that have a limit, then growth with layers."""
    eight, sixty_four = machines_of(1, 1, 4), machines_of(2, 6, 8)
    found = [timed("ViT, 24 layers, 8 devices", 1.0, graph_of("vit", 256, layers=24), eight)]
    if quick:
        return found
    found += [
        timed("BERT-MoE, 12 layers, 8 devices", 1.0, graph_of("moe", 256, experts=16), eight),
        timed("ViT, 12 layers, 64 devices", 2.0, MODELS["ViT"](64), sixty_four),
        timed("BERT-Base, 12 layers, 64 devices", 2.0, MODELS["BERT-Base"](64), sixty_four),
        timed("VGG19, 64 devices", 2.0, MODELS["VGG19"](64), sixty_four),
    ]
    for layers in (6, 12, 24, 48):
        graph = graph_of("vit", 256, layers=layers)
        found.append(timed(f"ViT, {layers} layers, 8 devices", None, graph, eight))
    return found


def testbed_table(rows: list[Row]) -> list[str]:
    """Speed-ups of our program over the others."""
    titles = [space.name for space in SPACES]
    lines = [
        [
            row.model,
            f"{row.ours:.3f}",
            *(
                f"{row.others[title]:.3f} ({row.others[title] / row.ours:.2f}x)"
                + ("" if row.fitting[title] else " *")
                for title in titles
            ),
            row.breakdown,
        ]
        for row in rows
    ]
    return table(["model", "ours, s", *titles, "our program"], lines)


def timing_table(found: list[Timing]) -> list[str]:
    lines = [
        [
            one.case,
            "" if one.most_seconds is None else f"{one.most_seconds:.0f}",
            f"{one.cpu_seconds:.2f}",
            f"{one.wall_seconds:.2f}",
            str(one.nodes),
            str(one.rounds),
            str(one.states),
        ]
        for one in found
    ]
    heads = ["synthesis", "limit, s", "CPU s", "wall s", "nodes", "rounds", "states"]
    return table(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="VGG19 and one timing only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    options = parser.parse_args()
    devices = machines_of(2, 6, 8)
    names = ["VGG19"] if options.quick else [n for n in options.models.split(",") if n]
    rows = [compared(name, MODELS[name](devices.count), devices) for name in names]
    found = timings(quick=options.quick)
    if options.json:
        print(json.dumps({"testbed": [*map(asdict, rows)], "timings": [*map(asdict, found)]}))
        return
    print("\n".join([*testbed_table(rows), "", *timing_table(found)]))


if __name__ == "__main__":
    main()
