"""The API returns what the command line prints with --json."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import pytest
from click.testing import CliRunner
from web_server import running

from astrarium.cli.app import app
from astrarium.plans.document import from_dict
from astrarium.report.timeline import timeline_of, trace_of

FLAGS = (
    "llama-2-7b --gpus h100:16 --seq-length 4096 --global-batch 256 --tokens 1T".split()  # noqa: SIM905
)


def printed(*arguments: str, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that the search took."""
    if document.get("search"):
        document = {**document, "search": {**document["search"], "seconds": 0.0}}
    return document


@pytest.fixture
def plan_file(tmp_path: Path, document: dict[str, Any]) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_plan(document: dict[str, Any]) -> None:
    assert timeless(document) == timeless(printed("plan", *FLAGS, "--top", "3"))


def test_a_plan_of_rows_rules_and_numbers(client: httpx.Client) -> None:
    body = {
        "model": "llama-2-7b",
        "pools": [
            {"type": "h100", "count": 8, "usd_per_gpu_hour": 2.5},
            {"type": "a100", "count": "8", "usd_per_gpu_hour": "1.5"},
        ],
        "global_batch": 256.0,
        "seq_length": "4096",
        "tokens": 1e12,
        "mode": "up-to",
        "objective": "cost",
        "rule": ["$tp > 4"],
        "deadline": 400,
    }
    found = client.post("/api/plan", json=body).json()
    flags = "--gpus h100:8,a100:8 --price h100=2.5 --price a100=1.5 --global-batch 256"
    flags += " --seq-length 4096 --tokens 1T --mode up-to --objective cost --deadline 400"
    expected = printed("plan", "llama-2-7b", *flags.split(), "--rule", "$tp > 4")
    assert timeless(found) == timeless(expected)


def test_a_config_and_a_cluster_file_may_be_sent(client: httpx.Client, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
    cluster = {"pools": [{"gpu": "h100", "nodes": 1, "inter_node": "100 Gb/s"}]}
    body = {"config": config, "cluster": cluster, "global_batch": 64}
    found = client.post("/api/plan", json=body).json()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    where = [str(tmp_path / "config.json"), "--cluster", str(tmp_path / "cluster.json")]
    expected = printed("plan", *where, "--global-batch", "64")
    assert found["plans"] == expected["plans"]
    assert found["cluster"] == expected["cluster"]


def test_the_example_is_answered_as_it_is_searched(client: httpx.Client) -> None:
    """Workers have its answer from the start; whoever changes it gets another."""
    example = client.get("/api/catalog").json()["defaults"]
    gpus, count = example["gpus"].split(":")
    pool = {"type": gpus, "count": count}
    texts = {name: str(value) for name, value in example.items() if name != "gpus"}
    asked = {**texts, "pools": [pool]}
    found = client.post("/api/plan", json=asked).json()
    flags = [f"--{name.replace('_', '-')}={example[name]}" for name in example if name != "model"]
    assert timeless(found) == timeless(printed("plan", example["model"], *flags))
    other = client.post("/api/plan", json={**asked, "global_batch": 512}).json()
    assert other["workload"]["global_batch"] == 512
    dear = client.post("/api/plan", json={**asked, "pools": [{**pool, "usd_per_gpu_hour": 99}]})
    assert dear.json()["plans"][0]["usd_per_hour"] == 64 * 99


def test_nothing_feasible_is_a_conflict_with_its_reason(client: httpx.Client) -> None:
    body = {"model": "llama-2-70b", "gpus": "t4:4", "global_batch": 64}
    response = client.post("/api/plan", json=body)
    flags = ["llama-2-70b", "--gpus", "t4:4", "--global-batch", "64"]
    expected = printed("plan", *flags, exit_code=1)
    assert response.status_code == 409
    told = response.json()
    fewest = {"label": "Use 40 GPUs", "changes": {"gpus": "t4:40"}}
    assert told["error"]["message"] == expected["error"]
    assert told["error"]["field"] is None
    assert told["error"]["repairs"] == [fewest]
    assert told["document"] == expected


@pytest.mark.parametrize("strategy", ["tp=4,pp=2,recompute=full", {"tp": 4, "pp": 2}])
def test_predict(client: httpx.Client, strategy: str | dict[str, int]) -> None:
    body = {"model": "llama-2-7b", "gpus": "h100:16", "global_batch": 256, "strategy": strategy}
    found = client.post("/api/predict", json=body).json()
    text = strategy if isinstance(strategy, str) else "tp=4,pp=2"
    flags = ["--gpus", "h100:16", "--global-batch", "256", "--strategy", text]
    assert found == printed("predict", "llama-2-7b", *flags)


WHY_NOT = {"model": "llama-2-7b", "gpus": "h100:16", "global_batch": 256, "tokens": "1T"}


def why_not(client: httpx.Client, strategy: str, **flags: Any) -> dict[str, Any]:
    response = client.post("/api/whynot", json={**WHY_NOT, "strategy": strategy, **flags})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_why_not_has_the_estimate_of_the_plan(client: httpx.Client) -> None:
    """A strategy that is one of the plans is priced as that plan is."""
    listed = client.post("/api/plan", json={**WHY_NOT, "objective": "cost"}).json()["plans"]
    text = "tp={tp},pp={pp},micro_batch={micro_batch},zero_stage={zero_stage}"
    own = why_not(client, text.format_map(listed[0]["strategy"]), objective="cost")
    assert own["broken"] == []
    for key in ("iteration_seconds", "interval_seconds", "usd_total", "train_seconds", "memory"):
        assert own["document"]["plans"][0][key] == listed[0][key]


@pytest.mark.parametrize("strategy", ["tp=4,pp=2,num_micro_batches=7", "tp=3", "tpp=2", "tp"])
def test_why_not_what_the_command_line_refuses(client: httpx.Client, strategy: str) -> None:
    flags = ["--gpus", "h100:16", "--global-batch", "256", "--strategy", strategy]
    result = CliRunner().invoke(app, ["predict", "llama-2-7b", *flags])
    assert result.exit_code == 2
    found = why_not(client, strategy)
    assert found["document"] is None
    if "=" in strategy:  # anything else names a file there
        assert result.stderr == f"Error: {found['broken'][0]}\n"


def test_why_not_what_the_form_forbids(client: httpx.Client) -> None:
    broken = why_not(client, "tp=8", rule=["$tp > 4", "$pp > 1", "$dp < 4"])["broken"]
    assert broken == ["--rule '$tp > 4' drops it", "--rule '$dp < 4' drops it"]
    found = why_not(client, "tp=2", budget=10, deadline=1)
    (plan,) = found["document"]["plans"]
    late, dear = found["broken"]
    assert late.startswith("Its run takes ")
    assert late.endswith(" longer than --deadline 24.0 h")
    assert dear == f"Its run costs ${plan['usd_total']:,.0f}, more than --budget $10.00"
    assert why_not(client, "tp=2", rule="$tp > 4", budget="10M", deadline=9999)["broken"] == []


def test_why_not_what_does_not_fit(client: httpx.Client) -> None:
    found = why_not(client, "tp=1,pp=1,micro_batch=16")
    stage = found["document"]["plans"][0]["memory"][0]
    lacking = (stage["peak_bytes"] - stage["capacity_bytes"]) / 2**30
    (told,) = found["broken"]
    assert told.startswith("It does not fit: stage 0 needs ")
    assert told.endswith(f" GiB on H100-SXM5-80GB, {lacking:.1f} too much")


def test_why_not_with_flags_that_are_wrong(client: httpx.Client) -> None:
    response = client.post("/api/whynot", json={**WHY_NOT, "strategy": "tp=2", "rule": "$tp >"})
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "rule"


def test_explain_and_compare(
    client: httpx.Client, document: dict[str, Any], plan_file: str
) -> None:
    first, second = {"document": document, "rank": 2}, {"document": document}
    explained = client.post("/api/explain", json=first).json()
    assert explained == printed("explain", plan_file, "--rank", "2")
    compared = client.post("/api/compare", json={"first": first, "second": second}).json()
    assert compared == printed("explain", plan_file, "--rank", "2", "--against", plan_file)


def test_timeline_and_trace(client: httpx.Client, document: dict[str, Any]) -> None:
    plan = from_dict(document).plans[0]
    found = client.post("/api/timeline", json={"document": document}).json()
    events, timeline = found["events"], timeline_of(plan)
    assert found["seconds"] == plan.iteration_seconds
    lengths = {len(column) for column in events.values()}
    assert lengths == {len(list(timeline.events()))}
    assert events["end"] == [event.end for event in timeline.events()]
    assert [found["kinds"][kind] for kind in events["kind"]] == [
        event.name or event.kind.value for event in timeline.events()
    ]
    assert len(found["memory"]) == len(found["stages"]) == len(plan.stage_seconds)
    traced = client.post("/api/trace", json={"document": document, "rank": 1}).json()
    assert traced == json.loads(json.dumps(trace_of(from_dict(document), plan)))


def test_a_large_timeline_is_compressed_for_who_takes_that(client: httpx.Client) -> None:
    body = {**WHY_NOT, "gpus": "h100:32", "global_batch": 1024, "strategy": "pp=32,micro_batch=1"}
    document = client.post("/api/predict", json=body).json()
    sizes = {}
    for encoding in ("gzip", "identity"):
        headers = {"accept-encoding": encoding}
        request = {"document": document}
        with client.stream("POST", "/api/timeline", json=request, headers=headers) as response:
            sizes[encoding] = sum(map(len, response.iter_raw()))
            assert response.headers.get("content-encoding", "identity") == encoding
    assert sizes["gzip"] < sizes["identity"] / 3
    assert sizes["identity"] < 7_000_000
    found = client.post("/api/timeline", json={"document": document}).json()
    assert found["left_out"] > 0


def test_export(
    client: httpx.Client, document: dict[str, Any], plan_file: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    told = printed("export", plan_file, "--to", "slurm", "--out", str(out))
    body = {"document": document, "target": "slurm"}
    found = client.post("/api/export", json=body, headers={"accept": "application/json"}).json()
    files = {path.name: path.read_text() for path in out.iterdir()}
    assert found["files"] == files
    assert {**found, "files": 0, "folder": 0} == {**told, "files": 0, "folder": 0}
    response = client.post("/api/export", json=body)
    assert response.headers["content-type"] == "application/zip"
    with ZipFile(BytesIO(response.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files


def test_an_export_that_is_refused_says_why_and_what_is_near(client: httpx.Client) -> None:
    asked = {"model": "mixtral-8x7b", "gpus": "h100:16", "global_batch": 64}
    document = client.post("/api/plan", json=asked).json()
    body = {"document": document, "target": "torchtitan"}
    response = client.post("/api/export", json=body)
    assert response.status_code == 422
    told = response.json()
    assert "cannot express plan 1" in told["error"]["message"]
    assert told["refused"][0]["why"]


def test_catalog(client: httpx.Client) -> None:
    found = client.get("/api/catalog").json()
    assert [gpu["name"] for gpu in found["gpus"]] == [
        gpu["name"] for gpu in printed("catalog", "gpus")["gpus"]
    ]
    names = [model["name"] for model in printed("catalog", "models")["models"]]
    assert [model["name"] for model in found["models"]] == names
    assert all(model["layers"] > 0 for model in found["models"])
    assert client.post("/api/plan", json={**found["defaults"], "top": 1}).status_code == 200


def events_of(lines: list[str]) -> list[tuple[str, Any]]:
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(zip(names, data, strict=True))


def stream(client: httpx.Client, body: dict[str, Any]) -> list[tuple[str, Any]]:
    with client.stream("POST", "/api/plan/stream", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(list(response.iter_lines()))


def test_a_stream_ends_with_the_document(client: httpx.Client) -> None:
    body = {
        "model": "llama-2-70b",
        "gpus": "h100:64,a100:64",
        "global_batch": 256,
        "tokens": "2T",
        "mode": "up-to",
    }
    events = stream(client, body)
    names = [name for name, _ in events]
    assert names[-1] == "document"
    assert names.count("document") == 1
    assert {"progress", "plans"} <= set(names)
    for name, data in events:
        if name == "progress":
            assert set(data) == {"seconds", "phase", "done", "total"}
        elif name == "plans":
            assert from_dict(data).plans
            assert not data["search"]["optimal"]
    expected = client.post("/api/plan", json=body).json()
    assert timeless(events[-1][1]) == timeless(expected)


def test_a_stream_tells_what_is_wrong(client: httpx.Client) -> None:
    body = {"model": "llama-2-70b", "gpus": "h1000:8", "global_batch": 64}
    name, data = stream(client, body)[-1]
    assert (name, data["status"], data["field"]) == ("error", 422, "gpus")
    assert data["message"].startswith("unknown GPU type 'h1000'")
    body["gpus"] = "t4:4"
    name, data = stream(client, body)[-1]
    assert (name, data["status"]) == ("error", 409)


def test_a_report_is_that_of_the_command_line(
    client: httpx.Client, document: dict[str, Any], plan_file: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    CliRunner().invoke(app, ["explain", plan_file, "--report", str(path)], catch_exceptions=False)
    sent = client.post("/api/report", json={"document": document, "command": ["astrarium", "x"]})
    assert sent.status_code == 200
    assert sent.headers["content-type"].startswith("text/html")
    told = [text.partition("<h2>Command</h2>")[0] for text in (sent.text, path.read_text())]
    assert told[0] == told[1]


def test_a_saved_answer_is_all_that_is_shown(document: dict[str, Any]) -> None:
    with running(shared=json.dumps(document).encode()) as server, server.client() as client:
        assert client.get("/api/shared").json() == document
        assert "<html data-shared " in client.get("/").text
        for path in ("plan", "plan/stream", "predict", "whynot", "review"):
            assert client.post(f"/api/{path}", json={}).status_code in (404, 405)
        sent = {"document": document}
        assert client.post("/api/timeline", json=sent).status_code == 200
