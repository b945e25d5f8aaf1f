"""The description of the API is valid, and the server keeps to it whatever it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from web_server import LAUNCH, Running

SMALL_PLAN = {"model": "llama-2-7b", "gpus": "h100:8", "global_batch": 64, "tokens": "1T"}
EXAMPLES = 15  # of each route
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


def test_all_routes_are_described(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    names = "health catalog plan plan/stream predict whynot explain compare timeline trace export"
    names += " targets review report replan stragglers"
    assert set(described["paths"]) == {f"/api/{name}" for name in names.split()}
    schemas = described["components"]["schemas"]
    for flag in ("model", "gpus", "seq_length", "tokens", "rule", "budget", "pools", "config"):
        assert flag in schemas["PlanRequest"]["properties"]
    assert schemas["PlanDocument"]["properties"]["plans"]["items"]["$ref"].endswith("/Plan")
    references = json.dumps(described).split('"$ref": "')[1:]
    for reference in references:
        assert reference.split('"')[0].removeprefix("#/components/schemas/") in schemas


def test_documents_have_the_schemas_that_are_described(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.validate()
    asked = {"document": document, "rank": 1}
    bodies: dict[str, Any] = {
        "explain": asked,
        "timeline": asked,
        "trace": asked,
        "targets": asked,
        "compare": {"first": asked, "second": {**asked, "rank": 2}},
        "export": {**asked, "target": "megatron"},
        "replan": {**asked, "lost": {"h100": 4}, "horizon": "2h"},
        "stragglers": {**asked, "stragglers": "nodes=1%:1.5", "repair_time": "4h"},
        "plan": SMALL_PLAN,
        "whynot": {**SMALL_PLAN, "strategy": "tp=2"},
        "review": {"text": LAUNCH, "gpus": "h100"},
    }
    for name, body in bodies.items():
        headers = {"accept": "application/json"}
        response = client.post(f"/api/{name}", json=body, headers=headers)
        assert response.status_code == 200
        schema[f"/api/{name}"]["POST"].validate_response(response)
    for name in ("catalog", "health"):
        schema[f"/api/{name}"]["GET"].validate_response(client.get(f"/api/{name}"))


QUICKLY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_the_server_keeps_to_its_description(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    for operation in schema.get_all_operations():
        found: Any = operation.ok()  # type: ignore[union-attr]
        modes = list(schemathesis.GenerationMode) if found.body else [None]
        for mode in modes:
            _try(found.as_strategy(mode) if mode else found.as_strategy())


def _try(strategy: Any) -> None:
    @seed(8)
    @QUICKLY
    @given(case=strategy)
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


def test_sound_requests_with_something_odd_in_them(server: Running) -> None:
    """One flag is drawn from its description, so that the request gets far into the server."""
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    good = {"model": "llama-2-7b", "gpus": "h100:8", "global_batch": 64, "tokens": "1T", "top": 1}

    @seed(8)
    @settings(QUICKLY, max_examples=5 * EXAMPLES)
    @given(case=schema["/api/plan"]["POST"].as_strategy(), data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        drawn = case.body if isinstance(case.body, dict) else {}
        flags = {flag: value for flag, value in drawn.items() if flag not in ("config", "model")}
        kept = data.draw(st.sampled_from(sorted(flags))) if flags else "top"
        case.body = {**good, kept: flags.get(kept, 1)}
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    1e300,
    0.5,
    "",
    "x",
    "\n",
    [],
    {},
    [0],
    {"x": 1},
)


def test_documents_with_something_odd_in_them(server: Running, document: dict[str, Any]) -> None:
    """Wherever a document is changed, it is answered or refused, and never a bug."""
    short = {**document, "plans": document["plans"][:1], "pareto": []}
    places = list(_places(short))

    @seed(8)
    @settings(QUICKLY, max_examples=10 * EXAMPLES)
    @given(
        place=st.sampled_from(places),
        value=st.sampled_from(ODD),
        route=st.sampled_from(("explain", "timeline", "trace", "export", "compare")),
    )
    def check(place: tuple[str | int, ...], value: Any, route: str) -> None:
        changed = deepcopy(short)
        part: Any = changed
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
        asked = {"document": changed}
        body: dict[str, Any] = {"first": asked, "second": asked} if route == "compare" else asked
        if route == "export":
            body = {**body, "target": "slurm"}
        response = client.post(f"/api/{route}", json=body)
        assert response.status_code in (200, 422), f"{place} = {value!r}: {response.text}"

    with server.client() as client:
        check()


def _places(part: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if place:
        yield place
    children: list[tuple[Any, Any]] = list(part.items()) if isinstance(part, dict) else []
    if isinstance(part, list):
        children = list(enumerate(part[:2]))
    for key, child in children:
        yield from _places(child, (*place, key))
