"""A launch script that is sent: judged as on the command line; no other file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from web_server import LAUNCH

from astrarium.cli.app import app
from astrarium.configs.detect import read_config, read_sent
from astrarium.errors import InputError
from astrarium.web.flags import MOST_LETTERS


def told(document: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that the search took."""
    document["answer"]["search"]["seconds"] = 0.0
    return document


def test_the_verdict_is_that_of_the_command_line(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text(LAUNCH)
    monkeypatch.chdir(tmp_path)
    printed = CliRunner().invoke(app, ["explain", "run.sh", "--gpus", "h100", "--json"])
    sent = {"text": LAUNCH, "name": "run.sh", "gpus": "h100"}
    found = client.post("/api/review", json=sent).json()
    assert told(found) == told(json.loads(printed.stdout))
    # As the page sends it: `alone` of web/src/page/api.ts.
    own = {"document": {**found["answer"], "pareto": [], "plans": [found["fit"]["plan"]]}}
    timeline = client.post("/api/timeline", json=own)
    assert timeline.status_code == 200


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"text": "hello"}, "text", "not recognised"),
        ({"text": LAUNCH.replace("--nnodes 2", "--nnodes $N")}, "gpus", "does not state"),
        ({"text": LAUNCH, "gpus": "h10"}, "gpus", "h10"),
        ({"text": LAUNCH, "set": ["HOME"]}, "set", "not set here"),
        ({"text": "x" * (MOST_LETTERS + 1)}, "text", "200000"),
    ],
)
def test_mistakes_stand_at_their_field(
    client: httpx.Client, change: dict[str, Any], field: str, words: str
) -> None:
    response = client.post("/api/review", json={"gpus": "h100", **change})
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (422, field)
    assert words in error["message"]


def test_files_that_a_script_names_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "source sizes.sh\n" + LAUNCH.replace("--num-layers 32", "--num-layers $LAYERS")
    (tmp_path / "sizes.sh").write_text("LAYERS=48\n")
    (tmp_path / "run.sh").write_text(script)
    monkeypatch.chdir(tmp_path)
    beside = read_config("run.sh")
    assert beside is not None
    assert beside.model().num_layers == 48
    with pytest.raises(InputError):  # the same text, in the same folder
        read_sent(script, "run.sh").model()  # type: ignore[union-attr]


def test_a_script_is_not_executed(client: httpx.Client, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    text = f"touch {mark}\nX=$(touch {mark})\n{LAUNCH} --save `touch {mark}`\n"
    assert client.post("/api/review", json={"text": text, "gpus": "h100"}).status_code == 200
    assert not mark.exists()
