"""The routes: each hands a checked request to a worker, and its answer on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astrarium import __version__
from astrarium.value import Value
from astrarium.web import example, flags, static
from astrarium.web.flags import ExportRequest, PlanRequest, ReportRequest, SweepRequest, complaint
from astrarium.web.guard import BodyLimit, Guard, error_response
from astrarium.web.jobs import NoAnswerError, Workers
from astrarium.web.reply import IN_FORM, OK, REFUSED, ZIP_TYPE, Answer, encoded
from astrarium.web.settings import ServerSettings

T = TypeVar("T")
HEARTBEAT_SECONDS: Final = 10.0  # a proxy may close an idle connection


class EventStream(Response):
    """Asks a worker and streams its events, or sends the known answer."""

    media_type = "text/event-stream"

    def __init__(
        self, workers: Workers, kind: str, body: Mapping[str, Any], known: bytes | None = None
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.workers, self.kind, self.asked, self.known = workers, kind, body, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": OK, "headers": self.raw_headers})
        if await unless_left(receive, self._search(send)):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _search(self, send: Send) -> bool:
        begin = monotonic()

        async def event(name: str, content: bytes) -> None:
            body = b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

        waiting = self.workers.waiting
        first = {"seconds": 0.0, "phase": "waiting", "done": 0, "total": waiting}
        await event("progress", json.dumps(first).encode())
        beats = asyncio.ensure_future(_heartbeat(send))
        try:
            answer = (
                await self.workers.answer(self.kind, self.asked, event)
                if self.known is None
                else Answer(OK, self.known)
            )
        except NoAnswerError as error:
            answer = error.answer
        finally:
            beats.cancel()
        if answer.status == OK:
            last = {"seconds": monotonic() - begin, "phase": "done", "done": 1, "total": 1}
            await event("progress", json.dumps(last).encode())
            await event("document", answer.content)
        else:
            said = json.loads(answer.content)["error"]
            await event("error", json.dumps({**said, "status": answer.status}).encode())
        return True


async def _heartbeat(send: Send) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        await send({"type": "http.response.body", "body": b": \n\n", "more_body": True})


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of some work; if the client leaves first, the work is ended."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


BAD_REQUEST, TOO_MANY = 400, 429
READER: Final = "x-astrarium-reader"  # "form": messages speak of its fields, others of flags
LEFT: Final = 499  # the client closed the connection: nobody reads this


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
    """The document or errors of a route; `problems` have other schemas ("s409")."""
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


def create_app(settings: ServerSettings) -> FastAPI:
    """The page and its API; workers start with it and end with it."""
    workers = Workers(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        workers.warm_up()
        yield
        await workers.close()

    app = FastAPI(
        title="Astrarium",
        version=__version__,
        description="Which GPUs, how many, and how to split a Transformer across them.",
        openapi_url=None,  # its pages would load scripts from elsewhere
        lifespan=lifespan,
        middleware=[Middleware(Guard, settings=settings), Middleware(BodyLimit, settings=settings)],
    )
    app.state.workers = workers
    app.openapi = cache(partial(_openapi, app))  # type: ignore[method-assign]
    _add_errors(app)
    _add_catalog(app, workers)
    if settings.shared is None:
        _add_searches(app, workers)
    else:
        _add_shared(app, settings.shared)
    if settings.sweep is not None:
        _add_sweep(app, workers, settings.sweep)
    for name, route in ROUTES.items():
        if settings.shared is None or not route.searches:
            _add_route(app, workers, name, route)
    _add_files(app, workers)
    _add_page(app, settings)
    return app


def _add_catalog(app: FastAPI, workers: Workers) -> None:
    catalogs: dict[bool, Answer] = {}  # compressed, and not

    @app.get("/api/health", responses=responses("Health", "The server answers."))
    async def health() -> Response:
        """Whether the server answers, and how busy it is."""
        settings = workers.settings
        state = {"status": "ok", "version": __version__, "workers": settings.workers}
        return _response(
            Answer(OK, encoded({**state, "working": workers.working, "waiting": workers.waiting}))
        )

    @app.get("/api/catalog", responses=responses("Catalog", "All that can be chosen."))
    async def catalog(request: Request) -> Response:
        """GPU types, models, targets of exports, and the example that the page opens with."""
        takes_gzip = _takes_gzip(request)
        answer = catalogs.get(takes_gzip)
        if answer is None:
            asked = _answer(workers, "catalog", {"gzip": takes_gzip})
            answer = await _unless_left(request, asked)
            if answer.status == OK:
                catalogs[takes_gzip] = answer
        return _response(answer)


def _add_searches(app: FastAPI, workers: Workers) -> None:
    plans = responses("PlanDocument", "What `astrarium plan --json` prints.", s409="NoPlan")

    @app.post("/api/plan", responses=plans)
    async def plan(request: Request, body: PlanRequest) -> Response:  # type: ignore[valid-type]
        """The best strategies: as `astrarium plan`."""
        return await _answered(request, workers, "plan", body)

    events = {"text/event-stream": {"schema": {"$ref": REFERENCE.format(name="StreamEvent")}}}
    streamed = responses("Problem", "Progress, plans so far, and the document or an error.")
    streamed[OK]["content"] = events
    first = example.kept()

    @app.post(
        "/api/plan/stream",
        response_class=Response,  # its own schema would be mixed with this one
        status_code=OK,
        responses=streamed,
    )
    async def stream(request: Request, body: PlanRequest) -> Response:  # type: ignore[valid-type]
        """The same, while the search runs; closing the connection ends it."""
        given = _given(request, body)
        known = first if given[IN_FORM] and example.is_example(given) else None
        return EventStream(workers, "plan", given, known)


def _add_shared(app: FastAPI, shared: bytes) -> None:
    @app.get("/api/shared", responses=responses("PlanDocument", "The plans of --share."))
    async def saved() -> Response:
        """A saved answer, which is all that this server shows."""
        return _response(Answer(OK, shared))


def _add_sweep(app: FastAPI, workers: Workers, path: str) -> None:
    @app.post("/api/sweep", responses=responses("SweepDocument", "As `sweep show --json` prints."))
    async def sweep(request: Request, body: SweepRequest) -> Response:
        """The sweep of --sweep: a table over two keys, the best scenarios, the front."""
        given = {**_given(request, body), "path": path, "gzip": _takes_gzip(request)}
        return _response(await _unless_left(request, _answer(workers, "sweep", given)))


class _Route(Value, frozen=True):
    """A question whose body goes to a worker as it is; the answer of a large one is compressed."""

    body: str  # a request of `astrarium.web.flags`
    answer: str  # a schema
    gives: str
    about: str
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    large: bool = False
    searches: bool = False  # not beside a shared document


ROUTES: Final = msgspec.json.decode(
    (Path(__file__).parent / "data" / "routes.json").read_bytes(), type=dict[str, _Route]
)


def _add_route(app: FastAPI, workers: Workers, name: str, route: _Route) -> None:
    kind = name.replace("_", "")

    async def answered(request: Request, body: BaseModel) -> Response:
        return await _answered(request, workers, kind, body, large=route.large)

    answered.__annotations__["body"] = getattr(flags, route.body)
    found = responses(route.answer, route.gives, **route.problems)
    described = app.post(f"/api/{kind}", name=name, description=route.about, responses=found)
    described(answered)


def _add_files(app: FastAPI, workers: Workers) -> None:
    pages = responses("Problem", "One HTML file with all pictures.")
    pages[OK]["content"] = {"text/html": {"schema": {"type": "string"}}}

    @app.post("/api/report", response_class=Response, status_code=OK, responses=pages)
    async def report(request: Request, body: ReportRequest) -> Response:
        """All about the plans of a document: as `astrarium plan --report`."""
        response = await _answered(request, workers, "report", body)
        response.headers["content-disposition"] = 'attachment; filename="report.html"'
        return response

    exports = responses("ExportedFiles", "An archive, or its files as JSON.", s422="ExportRefused")
    exports[OK]["content"]["application/zip"] = {"schema": {"type": "string", "format": "binary"}}

    @app.post("/api/export", responses=exports)
    async def export(request: Request, body: ExportRequest) -> Response:
        """What starts a plan: as `astrarium export`; JSON for those who accept JSON."""
        zipped = "application/json" not in request.headers.get("accept", "*/*")
        answer = _answer(workers, "export", {**_given(request, body), "zipped": zipped})
        response = _response(await _unless_left(request, answer))
        if response.media_type == ZIP_TYPE:
            name = f"{body.target.lower()}.zip"
            response.headers["content-disposition"] = f'attachment; filename="{name}"'
        return response


def _add_page(app: FastAPI, settings: ServerSettings) -> None:
    mark = "data-sweep" if settings.sweep is not None else ""
    files = static.files(mark="data-shared" if settings.shared is not None else mark)
    asked = {
        route.path: sorted(route.methods or ())
        for route in app.routes
        if isinstance(route, APIRoute)
    }

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return _response(Answer(OK, await asyncio.to_thread(lambda: encoded(app.openapi()))))

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        file = files.get(path or "index.html")
        if file is not None:
            return file.response(request)
        methods = asked.get(f"/{path}")
        if methods is not None:
            refused = error_response(405, f"/{path} takes {', '.join(methods)}")
            refused.headers["allow"] = ", ".join(methods)
            return refused
        return error_response(404, f"there is nothing at '/{path}'; /openapi.json lists what is")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> Response:
        return _response(complaint(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        # FastAPI has a status of its own for a body that is no text, or nested too deeply.
        status = REFUSED if error.status_code == BAD_REQUEST else error.status_code
        response = error_response(status, str(error.detail))
        response.headers.update(error.headers or {})
        return response


def _openapi(app: FastAPI) -> dict[str, Any]:
    from astrarium.web.schemas import openapi

    return openapi(app, REFERENCE)


def _given(request: Request, body: BaseModel) -> dict[str, Any]:
    in_form = request.headers.get(READER) == "form"
    return {**body.model_dump(exclude_unset=True), IN_FORM: in_form}


async def _answered(
    request: Request, workers: Workers, kind: str, body: BaseModel, *, large: bool = False
) -> Response:
    """The answer; a large one is compressed for clients that accept it."""
    given = {**_given(request, body), **({"gzip": _takes_gzip(request)} if large else {})}
    return _response(await _unless_left(request, _answer(workers, kind, given)))


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


async def _answer(workers: Workers, kind: str, body: dict[str, Any]) -> Answer:
    try:
        return await workers.answer(kind, body)
    except NoAnswerError as error:
        return error.answer


def _response(answer: Answer) -> Response:
    headers = {"retry-after": "1"} if answer.status == TOO_MANY else {}
    if answer.encoding:
        headers |= {"content-encoding": answer.encoding, "vary": "accept-encoding"}
    return Response(answer.content, answer.status, headers, answer.media_type)


async def _unless_left(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer; if the client leaves first, the work is ended."""
    answer = await unless_left(request.receive, work)
    return Answer(LEFT, b"") if answer is None else answer
