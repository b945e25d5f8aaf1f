"""A rank never outlives the command that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from threading import Thread

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def leave_with_parent() -> None:
    """End this process when its parent ends, even by SIGKILL.

    The kernel does it on Linux. Elsewhere, and if the parent is gone already, the end of standard
    input tells: its other end is held by the parent alone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_leave_at_end_of_input, daemon=True).start()


def _leave_at_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
