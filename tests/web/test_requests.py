"""What is wrong with a request is said in the words of the command line, and where it is wrong."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from astrarium.cli.app import app

GOOD = {"model": "llama-2-7b", "gpus": "h100:8", "global_batch": 64}


def refused(client: httpx.Client, body: Any, route: str = "plan") -> dict[str, Any]:
    response = client.post(f"/api/{route}", json=body)
    assert response.status_code == 422, response.text
    told: dict[str, Any] = response.json()["error"]
    return told


@pytest.mark.parametrize(
    ("change", "flags", "field"),
    [
        ({"gpus": "h1000:8"}, ["--gpus", "h1000:8"], "gpus"),
        ({"gpus": "h100:9"}, ["--gpus", "h100:9"], "gpus"),
        ({"tokens": "many"}, ["--tokens", "many"], "tokens"),
        ({"seq_length": 0}, ["--seq-length", "0"], "seq_length"),
        ({"objective": "speed"}, ["--objective", "speed"], "objective"),
        ({"mode": "upto"}, ["--mode", "upto"], "mode"),
        ({"precision": "fp4"}, ["--precision", "fp4"], "precision"),
        ({"rule": "$tp >"}, ["--rule", "$tp >"], "rule"),
        ({"price": {"h100": "x"}}, ["--price", "h100=x"], "price"),
        ({"top": 1000}, ["--top", "1000"], "top"),
        ({"spot": "mix"}, ["--spot", "mix"], "tokens"),
        ({"sensitivity": True}, ["--sensitivity"], "sensitivity"),
    ],
)
def test_the_message_is_that_of_the_command_line(
    client: httpx.Client, change: dict[str, Any], flags: list[str], field: str
) -> None:
    told = refused(client, {**GOOD, **change})
    given = ["plan", "llama-2-7b", "--global-batch", "64", *flags]
    if "--gpus" not in flags:
        given += ["--gpus", "h100:8"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {told['message']}\n"
    assert told["field"] == field


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"gpus": "h100:8", "global_batch": 64}, "model", "Missing argument 'MODEL'"),
        ({**GOOD, "model": "lama-2-7b"}, "model", "unknown model 'lama-2-7b'"),
        ({**GOOD, "global_batch": None}, "global_batch", "Missing option '--global-batch'"),
        ({"model": "gpt2", "global_batch": 8}, "gpus", "no GPUs are given"),
        ({**GOOD, "config": {}}, "config", "model and config are both given"),
        ({**GOOD, "pools": []}, "gpus", "--gpus and pools are both given"),
        ({**GOOD, "cluster": {"pools": []}}, "cluster", "cluster: pools: "),
        ({**GOOD, "cluster": {"pool": []}}, "cluster", "cluster: "),
        ({**GOOD, "gpu": "h100:8"}, "gpu", "unknown flag 'gpu' (did you mean 'gpus'?)"),
        ({**GOOD, "top": [1]}, "top", "top: "),
        ({**GOOD, "top": True}, "top", "top: "),
        ({**GOOD, "sensitivity": 1}, "sensitivity", "sensitivity: "),
        ([], None, "the body has to be a JSON object such as"),
        ({**GOOD, "gpus": ["h100", 8]}, "gpus", "gpus: expected a number or a text or an object"),
    ],
)
def test_the_field_is_named(
    client: httpx.Client, body: Any, field: str | None, message: str
) -> None:
    told = refused(client, body)
    assert told["message"].startswith(message)
    assert told["field"] == field


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"type": "h1000", "count": 8}, "pools[1]"),
        ({"type": "a100", "count": 0}, "pools[1]"),
        ({"type": "h100", "count": 8}, "pools"),
        ({"type": "a100", "count": 8, "usd_per_gpu_hour": "x"}, "pools[1].usd_per_gpu_hour"),
        ({"type": "a100"}, "pools[1].count"),
    ],
)
def test_the_row_is_named(client: httpx.Client, row: dict[str, Any], field: str) -> None:
    rows = [{"type": "h100", "count": 8}, row]
    told = refused(client, {"model": "llama-2-7b", "pools": rows, "global_batch": 64})
    assert told["field"] == field


@pytest.mark.parametrize("flag", ["profile", "prices", "compare", "compare_gpus"])
def test_flags_that_name_files_are_refused(client: httpx.Client, flag: str) -> None:
    told = refused(client, {**GOOD, flag: "/etc/passwd"})
    assert told == {
        "message": f"--{flag.replace('_', '-')} names a file, and the server reads none",
        "field": flag,
        "repairs": [],
        "asks": [],
    }


@pytest.mark.parametrize("path", ["/etc/passwd", "./config.json", "~/config.json", "..", "a.yaml"])
def test_a_path_is_no_model_strategy_or_cluster(client: httpx.Client, path: str) -> None:
    told = refused(client, {**GOOD, "model": path})
    assert told["message"].startswith(f"unknown model '{path}'")
    assert refused(client, {**GOOD, "cluster": path})["field"] == "cluster"
    told = refused(client, {**GOOD, "strategy": path}, "predict")
    assert told["message"] == f"--strategy: {path!r} is not of the form key=value,..."


def test_a_bad_config_is_said_to_be_one(client: httpx.Client) -> None:
    asked = {"gpus": "h100:8", "global_batch": 64}
    for config in ({}, {"model_type": "lama"}, {"model_type": "llama", "hidden_size": "x"}):
        assert refused(client, {**asked, "config": config})["field"] == "config"
    heads = {"model_type": "llama", "num_attention_heads": 33, "num_key_value_heads": 8}
    told = refused(client, {**asked, "config": heads})
    assert told["message"].startswith("config.json: num_key_value_heads: expected a divisor of")
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    told = refused(client, {**asked, "config": {"model_type": "llama", "deep": deep}})
    assert (
        told["message"]
        == "config.json: nested deeper than the limit of 64 levels; put values further up"
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"null", b'{"model": 1e999}', b"[" * 100_000]
)
def test_bodies_that_are_no_json(client: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/api/plan", content=content, headers=headers)
    assert response.status_code == 422
    assert response.json()["error"]["message"]


def test_a_document_is_checked(client: httpx.Client, document: dict[str, Any]) -> None:
    for bad in ({}, {"schema": "astrarium.plan/0"}, {**document, "plans": "x"}):
        for route in ("explain", "timeline", "trace"):
            told = refused(client, {"document": bad}, route)
            assert told["field"] == "document"
            assert told["message"].startswith("document: ")
    told = refused(client, {"document": document, "rank": 99}, "explain")
    assert told["field"] == "rank"
    assert "there is no plan of rank 99" in told["message"]
    sides = {"first": {"document": document}, "second": {"document": {}}}
    assert refused(client, sides, "compare")["field"] == "second"
    told = refused(client, {"document": document, "target": "slurn"}, "export")
    assert told["field"] == "target"
    assert "did you mean 'slurm'?" in told["message"]


@pytest.mark.parametrize("path", ["/etc/passwd", "config.json", "~/config.json", "..", ""])
def test_a_document_does_not_name_files(
    client: httpx.Client, document: dict[str, Any], path: str
) -> None:
    """Without its config a document says only what the model was called: a path, maybe."""
    named = {**document["workload"], "model_config": None, "model_as_given": path}
    body: dict[str, Any] = {"document": {**document, "workload": named}}
    for route in ("trace", "explain", "timeline"):  # of the plan alone: no file is looked for
        found = client.post(f"/api/{route}", json=body)
        assert found.content == client.post(f"/api/{route}", json={"document": document}).content
    for route, further in (("export", {"target": "megatron"}), ("targets", {})):
        told = refused(client, {**body, **further}, route)
        assert told["field"] == "document"
        assert told["message"] == (
            f"document: it does not hold the config of '{path}', and the server reads no files;"
            " `astrarium export` on the command line does"
        )
    assert client.post("/api/report", json=body).status_code == 200
    known = {**named, "model_as_given": "llama-2-7b"}
    body = {"document": {**document, "workload": known}, "target": "megatron"}
    assert client.post("/api/export", json=body).status_code == 200


def test_what_a_config_names_is_not_read(client: httpx.Client) -> None:
    """Code and files that a config.json refers to are for those who run the model."""
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "_name_or_path": "/etc/passwd",
        "auto_map": {"AutoConfig": "../../etc/passwd--evil.Config"},
        "trust_remote_code": True,
    }
    asked = {"gpus": "h100:8", "global_batch": 64, "top": 1, "seq_length": 2048}
    found = client.post("/api/plan", json={**asked, "config": config})
    plain = {name: value for name, value in config.items() if name[0] not in "_at"}
    expected = client.post("/api/plan", json={**asked, "config": plain})
    assert found.status_code == expected.status_code == 200
    assert found.json()["plans"] == expected.json()["plans"]
    remote = {**config, "model_type": "evil", "architectures": ["/etc/passwd"]}
    assert refused(client, {**asked, "config": remote})["field"] == "config"


def test_a_body_that_is_no_json_says_where(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    told = client.post("/api/plan", content='{"gpus": h100}', headers=headers).json()["error"]
    assert told["field"] is None
    assert told["message"].startswith("the body is no JSON that can be read: ")
    assert told["message"].endswith(", character 9")
