"""A device as torch sees it, and a whole calibration of it: where bench and kernels meet."""

from __future__ import annotations

import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from astrarium import __version__
from astrarium.calibrate.measure.bench import Bench
from astrarium.calibrate.measure.cases import SECTION as PROCESSOR
from astrarium.calibrate.measure.cases import Case, scale_for
from astrarium.calibrate.measure.collectives import Ranks
from astrarium.calibrate.measure.cores import one_core, physical_cores
from astrarium.calibrate.measure.journal import Journal, JournalContents
from astrarium.calibrate.measure.kernels import OPERATORS
from astrarium.calibrate.measure.run import Outcome, Progress, failure_text, run
from astrarium.calibrate.measure.sections import (
    COLLECTIVES,
    SECTIONS,
    check_sections,
    collective_cases,
    list_cases,
)
from astrarium.errors import InputError

DEFAULT_SECONDS: Final = 600.0
CORES_BY_DEFAULT: Final = 2  # of a processor that exchange messages
# Of a calibration's time that collectives may take, where there are several devices.
COLLECTIVES_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """The measurements wanted: `ranks` devices for collectives, None for all GPUs."""

    journal: Path
    device: str | None = None
    sections: Sequence[str] = SECTIONS
    quick: bool = False
    seconds: float = DEFAULT_SECONDS
    ranks: int | None = None


def calibrate(asked: MeasureRequest, progress: Progress) -> tuple[JournalContents, Outcome]:
    """Measure what the journal does not have yet; returns all it has then, and how it went."""
    device = find_device(asked.device)
    names = check_sections(asked.sections)
    scale = scale_for(device.type, quick=asked.quick)
    cases = list_cases(names, scale, device.type)
    ranks = _ranks(asked, device) if COLLECTIVES in names else 0
    together = collective_cases(scale, device.type, ranks) if ranks else []
    began = time.monotonic()
    header = {
        "device": describe(device),
        "versions": versions(device),
        "scale": scale,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    with Journal(asked.journal, header) as journal:
        share = 1.0 - COLLECTIVES_SHARE if together and cases else 1.0
        outcome = Outcome()
        if _waiting(cases, journal):
            disturbed = PROCESSOR in names and not asked.quick
            with one_core(disturbed=disturbed) if device.type == "cpu" else nullcontext():
                bench = _bench(device)
                outcome += run(
                    cases,
                    journal,
                    bench,
                    measurer(bench),
                    seconds=asked.seconds * share,
                    progress=progress,
                )
                del bench
        if _waiting(together, journal):
            left = asked.seconds - (time.monotonic() - began)
            with Ranks(device.type, ranks) as all_ranks:
                outcome += run(
                    together, journal, all_ranks, all_ranks.measure, seconds=left, progress=progress
                )
        return journal.contents, outcome


def _bench(device: torch.device) -> Bench:
    try:
        bench = Bench(device)
        bench.warm_up()
    except (RuntimeError, MemoryError) as error:
        raise InputError(
            f"{device} cannot be used ({failure_text(error)}); "
            "end what else runs on it, or choose another --device"
        ) from None
    return bench


def _ranks(asked: MeasureRequest, device: torch.device) -> int:
    """The number of devices in collectives; none if there is one, or in a quick trial."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if asked.ranks is None:
        cores = 0 if gpus or asked.quick else min(len(physical_cores()), CORES_BY_DEFAULT)
        return max((n for n in (gpus, cores) if n > 1), default=0)
    most, what = (gpus, "GPUs") if gpus else (os.cpu_count() or 1, "cores")
    if asked.ranks < 2:
        raise InputError(f"--ranks {asked.ranks}: collectives need at least 2")
    if asked.ranks > most:
        raise InputError(
            f"--ranks {asked.ranks}: there are {most} {what}, and every rank needs one of its own;"
            f" give at most {most}"
        )
    return asked.ranks


def _waiting(cases: Sequence[Case], journal: Journal) -> bool:
    done = journal.contents.done
    return any(case.key not in done for case in cases)


def find_device(kind: str | None) -> torch.device:
    """The device to measure: the one asked for, else a GPU if there is one."""
    if kind not in (None, "cpu", "cuda"):
        raise InputError(f"--device {kind}: choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "--device cuda: torch sees no GPU here; "
            "check the driver and that torch was built for it, or use --device cpu"
        )
    chosen = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(chosen)


def describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return {
            "kind": "cuda",
            "name": found.name,
            "memory_bytes": found.total_memory,
            "multiprocessors": found.multi_processor_count,
            "capability": f"{found.major}.{found.minor}",
            "count": torch.cuda.device_count(),
        }
    return {
        "kind": "cpu",
        "name": _processor(),
        "cores": len(physical_cores()),
        "memory_bytes": _memory_bytes(),
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    """The name of the processor; Linux tells it in a file."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions(device: torch.device) -> dict[str, str]:
    """Versions of everything that decides how fast kernels are."""
    found = {
        "astrarium": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()
        found |= {"cuda": str(torch.version.cuda or torch.version.hip), "cudnn": str(cudnn)}
        found["driver"] = _driver()
    return found


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.split("\n")[0].strip() or "unknown"


def measurer(bench: Bench) -> Callable[[Case], dict[str, float]]:
    torch.manual_seed(0)

    def measure(case: Case) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on kernels that a case asks for
            call = OPERATORS[case.operator](bench, case)
            return bench.time(case, call).columns()

    return measure
