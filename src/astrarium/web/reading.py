"""From the body of a request to the flags of the command line, without touching any file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from astrarium.documents import check_values
from astrarium.errors import AstrariumError, InputError, about
from astrarium.web.table import SEVERAL

Body = Mapping[str, Any]
_FLAG: Final = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])")


def flags_of(body: Body, defaults: Mapping[str, object]) -> dict[str, Any]:
    """The flags that a body stands for; `defaults` are all that the command has."""
    flags: dict[str, Any]
    flags = {name: text(one) if type(one) is int else one for name, one in defaults.items()}
    for name, value in body.items():
        if name in defaults and value is not None:
            flags[name] = _value(name, value)
    if body.get("pools") is not None:
        _read_pools(body["pools"], flags)
    if body.get("cluster") is not None:
        from astrarium.cluster.clusterfile import cluster_of_content

        with about("cluster"):
            flags["cluster"] = cluster_of_content(body["cluster"], "cluster")
    flags["model"] = _model(body)
    if isinstance(flags.get("strategy"), str):
        flags["strategy"] = _strategy(flags["strategy"])
    return flags


def _value(name: str, value: Any) -> Any:  # noqa: ANN401  JSON
    if name in ("sensitivity", "cluster"):
        return value
    if name in SEVERAL:
        return _texts(value)
    if name == "gpus" and isinstance(value, Mapping):
        return ",".join(f"{gpu}:{text(number)}" for gpu, number in value.items())
    return value if isinstance(value, Mapping) else text(value)


def text(value: Any) -> str:  # noqa: ANN401  JSON
    """A value as it would be typed; numbers without a fraction have none."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _texts(value: Any) -> list[str]:  # noqa: ANN401  JSON
    if isinstance(value, Mapping):
        return [f"{name}={text(amount)}" for name, amount in value.items()]
    return [text(one) for one in value] if isinstance(value, list) else [text(value)]


def _read_pools(rows: Sequence[Body], flags: dict[str, Any]) -> None:
    """The rows of a form as --gpus and --price; what is wrong with a row is said of it."""
    from astrarium.cluster import parse_gpus

    if flags["gpus"] is not None:
        raise InputError("--gpus and pools are both given; keep one")
    entries = []
    for index, row in enumerate(rows):
        entries.append(f"{row['type']}:{text(row['count'])}")
        with about(f"pools[{index}]"):
            parse_gpus(entries[-1])
    every = ",".join(entries)
    with about("pools"):
        parse_gpus(every)
    flags["gpus"] = every
    priced = [row for row in rows if row.get("usd_per_gpu_hour") is not None]
    stated = [f"{row['type']}={text(row['usd_per_gpu_hour'])}" for row in priced]
    flags["price"] = [*(flags["price"] or ()), *stated] or None


def _model(body: Body) -> str | Mapping[str, Any]:
    """The content of a config.json, or a name of the catalog: a path would be read from here."""
    name, config = body.get("model"), body.get("config")
    if config is not None:
        from astrarium.model.load import CONFIG_FILE, model_of_config

        with about("config"):
            if name is not None:
                raise InputError("model and config are both given; keep one")
            check_values(config, CONFIG_FILE)
            # Built here for its mistakes alone: they name the file, as on the command line.
            model_of_config(config, CONFIG_FILE, CONFIG_FILE)
        return dict(config)
    from astrarium.catalog.models import find_model_entry

    with about("model"):
        if name is None:
            raise InputError("Missing argument 'MODEL'")
        find_model_entry(text(name))
    return text(name)


def _strategy(given: str) -> Mapping[str, Any]:
    """The keys of `k=v,...`: files are not read."""
    from astrarium.strategy.document import strategy_pairs

    with about("strategy"):
        if "=" not in given:
            raise InputError(f"--strategy: {given!r} is not of the form key=value,...")
        return strategy_pairs(given, "--strategy")


def field_of(error: AstrariumError, body: Body) -> str | None:
    """Where in the request the mistake is: the flag that the message begins with or names."""
    message = str(error)
    named = _FLAG.search(message)
    begins = named is not None and named.start() == 0
    found = error.part
    if named is not None and (begins or found is None):
        found = named[1].replace("-", "_")
    if found == "price":
        return _of_row(message, body)
    return "target" if found == "to" else _as_given(found, body)


def _of_row(message: str, body: Body) -> str:
    """A price of the form, if it is one."""
    for index, row in enumerate(body.get("pools") or ()):
        price = f"{row['type']}={text(row.get('usd_per_gpu_hour'))}"
        if message.startswith((f"--price {price}", f"--price '{price}'")):
            return f"pools[{index}].usd_per_gpu_hour"
    return "price"


def _as_given(found: str | None, body: Body) -> str | None:
    """The name under which the request has it."""
    if found == "gpus" and body.get("gpus") is None and body.get("pools") is not None:
        return "pools"
    if found == "model" and body.get("config") is not None:
        return "config"
    return found
