"""The same question gets the same answer, whatever the hash seed of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

QUESTION = ["plan", "mixtral-8x7b", "--gpus", "h100:32", "--seq-length", "4096"]
QUESTION += ["--global-batch", "64", "--rule", "$pp > 4", "--json"]


def answer(seed: str) -> dict[str, object]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "astrarium", *QUESTION]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    document: dict[str, object] = json.loads(done.stdout)
    search = document["search"]
    assert isinstance(search, dict)
    del search["seconds"]
    return document


def test_hash_seeds_change_nothing() -> None:
    assert answer("1") == answer("4242")
