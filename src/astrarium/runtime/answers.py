"""Shared by ranks: their answers to the command that started them, and their end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from threading import Thread
from typing import Any, TextIO

from astrarium.runtime.job import Device

# A machine without a network has this interface alone, and ranks of one machine need no other.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def own_output() -> TextIO:
    """Standard output for answers alone; what libraries print there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def say(answers: TextIO, **content: Any) -> None:  # noqa: ANN401  any JSON value
    import json

    import msgspec

    # Losses may be no numbers, which only the standard library's JSON can say.
    answers.write(json.dumps(msgspec.to_builtins(content)) + "\n")
    answers.flush()


def peak_bytes(device: Device) -> int:
    """The most memory that this process, or its device, ever held."""
    if device is Device.CUDA:
        import torch

        return int(torch.cuda.max_memory_allocated())
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def leave_with_parent() -> None:
    """End with the parent, even at SIGKILL: by the kernel of Linux, or at the end of input."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_leave_at_end_of_input, daemon=True).start()


def _leave_at_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
