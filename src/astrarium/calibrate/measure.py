"""A device as torch sees it, and a case's timing on it: where bench and kernels meet."""

from __future__ import annotations

import platform
import subprocess
import warnings
from collections.abc import Callable
from typing import Any

import torch

from astrarium import __version__
from astrarium.calibrate.bench import Bench
from astrarium.calibrate.cases import Case
from astrarium.calibrate.kernels import OPERATORS
from astrarium.errors import InputError


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
    """What a profile says about the device it was measured on."""
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
        "name": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


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
    """The function that prepares and times one case."""
    torch.manual_seed(0)

    def measure(case: Case) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on kernels that a case asks for
            call = OPERATORS[case.operator](bench, case)
            return bench.time(case, call).columns()

    return measure
