"""What each route may return, by the names of the schemas (`schemas`, which loads much more)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REFERENCE: Final = "#/components/schemas/{name}"


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=name)}}}


_PROBLEMS: Final[Mapping[int, str]] = {
    401: "The token is missing.",
    403: "The request comes from another site.",
    408: "The request did not arrive in time.",
    413: "The request, or what it asks for, is too large.",
    422: "The request cannot be used.",
    429: "Too many requests wait already.",
    500: "A mistake of the server.",
    503: "The search ended before its answer.",
    504: "The search took too long.",
}


def responses(name: str, description: str, **problems: str) -> dict[int | str, dict[str, Any]]:
    """What a route returns: a document, or errors; `problems` have other schemas ("s409")."""
    found: dict[int | str, dict[str, Any]] = {
        200: {"description": description, "content": _json(name)}
    }
    for status, text in _PROBLEMS.items():
        found[status] = {"description": text, "content": _json("Problem")}
    for key, schema in problems.items():
        status = int(key.removeprefix("s"))
        text = _PROBLEMS.get(status, "No plan is feasible.")
        found[status] = {"description": text, "content": _json(schema)}
    return found
