"""A server for tests: the real one on a port of its own, in a thread."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import uvicorn

from astrarium.value import Value
from astrarium.web.app import create_app
from astrarium.web.jobs import Workers
from astrarium.web.server import ImpatientProtocol
from astrarium.web.settings import ServerSettings

PATIENCE_SECONDS = 60.0  # a slow machine is no failure
SMALL = {"model": "tinyllama-1.1b", "gpus": "h100:1", "global_batch": 8, "top": 1}
# Takes many seconds: all GPU types of all clouds, for the front of time against money.
LONG = {
    "model": "llama-2-70b",
    "market": "all",
    "global_batch": 1024,
    "tokens": "2T",
    "objective": "cost",
}


class Running(Value, frozen=True):
    """A server that answers at `address`."""

    address: str
    workers: Workers

    def client(self, **further: Any) -> httpx.Client:
        further.setdefault("timeout", PATIENCE_SECONDS)
        return httpx.Client(base_url=self.address, trust_env=False, **further)


@contextmanager
def running(**settings: Any) -> Iterator[Running]:
    """Answers while the block runs."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        app = create_app(ServerSettings(**{"workers": 2, **settings}))
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="on",
            http=ImpatientProtocol,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.workers)
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Until something is so; a failure of the test if it does not become so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.02)


# Sixteen GPUs, and all else that a launch script has to say.
LAUNCH = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000"
    " --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16"
)
