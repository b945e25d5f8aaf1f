"""The flags of `astrarium synthesize`, as a table like those of `api/flags.py`."""

from __future__ import annotations

from typing import Any, Final

from astrarium.api import readers
from astrarium.api.flags import Flag, flags

MOST_BATCH: Final = 2**24
MOST_MICRO_BATCHES: Final = 2**16
MOST_BYTES: Final = 2**50


def _micro_batches(name: str, given: Any) -> int | None:  # noqa: ANN401
    """A number, or None: the best number."""
    return None if given == "auto" else readers.count(MOST_MICRO_BATCHES)(name, given)


SYNTHESIZE_FLAGS: Final = {
    "model": Flag(
        "FILE.py:FUNCTION that makes a torch module and its inputs, such as"
        " examples/bert.py:make; or a name of `astrarium catalog models`, or a config.json.",
        "MODEL",
        required=True,
        is_argument=True,
    ),
    "batch": Flag(
        "Samples in a step, over all devices.", "N", readers.count(MOST_BATCH), required=True
    ),
    **flags("gpus", "cluster"),
    "memory": Flag(
        "Most memory to use on each device, such as 15GiB. Default: all of it.",
        "SIZE",
        readers.number("parse_bytes", MOST_BYTES),
        read_argument=readers.number("parse_bytes", MOST_BYTES, bare_unit="B"),
    ),
    "micro_batches": Flag(
        "Parts of the batch, one after the other; auto: more than one if memory is short.",
        "auto|K",
        _micro_batches,
        default="auto",
    ),
    "mesh": Flag(
        "All devices side by side, or nodes and the devices inside them; auto: the faster.",
        read=readers.choice("api.synthesis:Mesh"),
        default="auto",
        words=("auto", "flat", "nodes"),
    ),
    "all_devices": Flag(
        "Give work to all devices, even those that cost more time than they save.",
        default=False,
        is_switch=True,
    ),
    "set": Flag("Argument of the factory; repeatable.", "NAME=VALUE", several=True),
    "optimizer": Flag(
        "What updates the weights.",
        read=readers.choice("api.synthesis:Optimizer"),
        default="adam",
        words=("adam", "sgd"),
    ),
    "allow_replicate": Flag(
        "Operator without a rule that every device may repeat; repeatable.",
        "OP",
        readers.texts,
        several=True,
    ),
    **flags("profile"),
}
