"""From the body of a request to what is asked, without touching any file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from astrarium.api.asked import AskedValues, asked
from astrarium.api.flags import CONFIG_FLAGS, FLAGS, Flag
from astrarium.api.readers import entries
from astrarium.documents import check_values
from astrarium.errors import AstrariumError, InputError, about, flag, refusal

Body = Mapping[str, Any]
Kind = TypeVar("Kind", bound=AskedValues)


def asked_by(body: Body, kind: type[Kind], table: Mapping[str, Flag]) -> Kind:
    """What a body asks; `table` has the flags of the command."""
    given = {name: body[name] for name in table if body.get(name) is not None}
    if body.get("pools") is not None:
        _read_pools(body["pools"], given)
    if "cluster" in given:
        from astrarium.cluster.clusterfile import cluster_of_content

        with about("cluster"):
            given["cluster"] = cluster_of_content(given["cluster"], "cluster")
    if not (table is CONFIG_FLAGS and _has_no_model(body)):
        given["model"] = _model(body)
    if not isinstance(given.get("strategy", {}), Mapping):
        given["strategy"] = _strategy(str(given["strategy"]))
    for name, one in table.items():
        if one.required and given.get(name) is None:
            raise InputError(f"Missing option '{flag(name)}'", name)
    return asked(kind, table, given)


def _has_no_model(body: Body) -> bool:
    return body.get("model") is None and body.get("config") is None


def _read_pools(rows: Sequence[Body], given: dict[str, Any]) -> None:
    """The rows of a form as --gpus and --price; what is wrong with a row is said of it."""
    from astrarium.cluster import parse_gpus

    if "gpus" in given:
        raise refusal("gpus", " and pools are both given; keep one")
    counts = [(row["type"], row["count"]) for row in rows]
    for index, pair in enumerate(counts):
        with about(f"pools[{index}]"):
            parse_gpus([pair])
    with about("pools"):
        parse_gpus(counts)
    given["gpus"] = counts
    priced = [(row["type"], row.get("usd_per_gpu_hour")) for row in rows]
    for index, pair in enumerate(priced):
        if pair[1] is not None:
            try:
                FLAGS["price"].read("price", [pair])
            except InputError as error:
                raise InputError(str(error), f"pools[{index}].usd_per_gpu_hour") from None
    stated = [pair for pair in priced if pair[1] is not None]
    given["price"] = [*entries(given.get("price", ())), *stated]


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
        find_model_entry(str(name))
    return str(name)


def _strategy(given: str) -> Mapping[str, Any]:
    """The keys of `k=v,...`: files are not read."""
    from astrarium.strategy.document import strategy_pairs

    with about("strategy"):
        if "=" not in given:
            raise InputError(f"{flag('strategy')}: {given!r} is not of the form key=value,...")
        return strategy_pairs(given, flag("strategy"))


def field_of(error: AstrariumError, body: Body) -> str | None:
    """Where in the request the mistake is, by the name under which the request has it."""
    found = error.part
    if found == "gpus" and body.get("gpus") is None and body.get("pools") is not None:
        return "pools"
    if found == "model" and body.get("config") is not None:
        return "config"
    return found
