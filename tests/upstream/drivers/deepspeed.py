"""DeepSpeed 0.19.8: a configuration as DeepSpeedConfig reads it.

DeepSpeed itself ignores keys that it does not know outside its typed sections. Here a key that
its code never asks for is refused too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepspeed.runtime import config as deepspeed_config
from upstream.drivers.serving import serve

FREE = ("params",)  # of optimizers and schedulers, handed on as they are


class Watched(dict[str, Any]):
    """A mapping that knows which of its keys were asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({k: watched(k, v) for k, v in values.items()})
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.asked.update(super().keys())
        return super().__iter__()

    def items(self) -> Any:
        self.asked.update(super().keys())
        return super().items()

    def keys(self) -> Any:
        return self  # `in` asks for one key; a loop asks for all of them

    def __copy__(self) -> Watched:
        return self

    def unasked(self, path: str = "") -> list[str]:
        """Keys that nobody asked for, of this mapping and those in it.

        An inner one that is handed on whole is read by pydantic, which refuses unknown keys.
        """
        found = []
        for key, value in super().items():
            if key not in self.asked:
                found.append(path + key)
            elif isinstance(value, Watched) and (value.asked or not path):
                found += value.unasked(f"{path}{key}.")
        return found


def watched(key: str, value: Any) -> Any:
    return Watched(value) if isinstance(value, dict) and key not in FREE else value


def answer(request: dict[str, Any]) -> Any:
    """`config`, and the `world_size` of the ranks that share a batch."""
    deepspeed_config.dist.get_rank = lambda *_: 0
    deepspeed_config.dist.get_world_size = lambda *_: request["world_size"]
    config = Watched(request["config"])
    parsed = deepspeed_config.DeepSpeedConfig(config)
    unknown = config.unasked()
    if unknown:
        raise ValueError(f"DeepSpeed never reads {', '.join(unknown)}")
    found = {k: v for k, v in vars(parsed).items() if not k.startswith("_")}
    return {k: v.model_dump() if hasattr(v, "model_dump") else v for k, v in found.items()}


serve(answer)
