"""A process that has imported what ranks import, and forks a rank for everybody who asks.

`warm_ranks` starts it with the name of a socket. Whoever connects there (`CLIENT`, in place of
Python) says what it was called with and hands over its standard streams. A fork goes on with them,
as Python would, and its exit code goes back.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

# Waits as long as the fork works: who started it sees one process that ends as the rank does.
CLIENT = f"""\
#!{sys.executable} -IS
import json, os, socket, sys
asked = {{"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[0] + ".socket")
    socket.send_fds(server, [b" "], [0, 1, 2])
    server.sendall(json.dumps(asked).encode() + b"\\n")
    code = int(server.recv(99))
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""
SPMD = (
    "astrarium.runtime.spmd.train.checkpoint",
    "astrarium.runtime.spmd.execute.interpreter",
    "astrarium.runtime.spmd.model",
    "astrarium.runtime.spmd.train.trainer",
    "torch._dynamo",
    "torch.distributed",
)
# What these modules import once they work; a script has no name of a module.
IMPORTED = {
    "astrarium.runtime.megatron.worker": (
        "astrarium.runtime.megatron.training",
        "megatron.core.distributed",
        "megatron.core.models.gpt.gpt_layer_specs",
        "megatron.core.optimizer",
        "megatron.core.pipeline_parallel",
        "torch._dynamo",
        "torch.distributed",
    ),
    "astrarium.runtime.spmd.worker": (*SPMD, "transformers.models.gpt2.modeling_gpt2"),
    "torch.distributed.run": ("torch.distributed.run",),
    "": SPMD,
}


def main() -> None:
    """Serve until standard input ends; every fork ends as the module that it runs."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        while 0 not in _ready(0, server.fileno()):
            client, _ = server.accept()
            asked, streams = _heard(client)
            for module in IMPORTED[_called(asked["words"])[0]]:
                with suppress(ImportError):  # the rank will say so
                    importlib.import_module(module)
            gc.freeze()  # the end of a fork would look through all that is imported
            if os.fork() == 0:
                server.close()
                _stand_for(client, asked, streams)
            for open_file in (client.detach(), *streams):
                os.close(open_file)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _ready(*files: int) -> list[int]:
    """Those that can be read, or have come to their end; waits for the first."""
    return select.select(files, [], [])[0]


def _called(words: list[str]) -> tuple[str, list[str]]:
    """The module that Python is called with, or none, and the words from it or the script on."""
    while words[0] in ("-P", "-u"):
        words = words[1:]
    return (words[1], words[1:]) if words[0] == "-m" else ("", words)


def _heard(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The question of a client, and its standard streams."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile() as lines:
        return json.loads(lines.readline()), streams


def _stand_for(client: socket.socket, asked: dict[str, Any], streams: list[int]) -> None:
    """Fork the rank; tell the client how it ended, or end it where the client is gone."""
    process = os.fork()
    if process == 0:
        client.close()
        _become(asked, streams)
    for stream in streams:
        os.close(stream)
    end = os.pidfd_open(process)
    if end not in _ready(end, client.fileno()):
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with suppress(OSError):
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    """Run the module in place of the client, and leave."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    module, sys.argv = _called(asked["words"])
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
