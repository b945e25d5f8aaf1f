"""One server for the tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from web_server import Running, running

EXAMPLE = {
    "model": "llama-2-7b",
    "gpus": "h100:16",
    "seq_length": 4096,
    "global_batch": 256,
    "tokens": "1T",
    "top": 3,
}


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers keep nothing in the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="session")
def document(client: httpx.Client) -> dict[str, Any]:
    """A plan document, as the API returns it."""
    response = client.post("/api/plan", json=EXAMPLE)
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found
