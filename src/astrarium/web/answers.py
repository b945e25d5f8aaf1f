"""Answers of a worker: each kind of question with the code that the command line has.

A body is read without touching any file. An answer is bytes, ready to be sent: the server itself
never reads a document. A listener hears how far a search is, and the plans found so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec
from msgspec import to_builtins

from astrarium.api import planning, readers
from astrarium.api.asked import AskedValues, PlanAsked, asked
from astrarium.api.flags import (
    ANSWER_FLAGS,
    CONFIG_FLAGS,
    FLAGS,
    PLAN_FLAGS,
    PREDICT_FLAGS,
    WHY_NOT_FLAGS,
    Flag,
    flags,
    read,
)
from astrarium.catalog.models import find_model_entry, is_model_name
from astrarium.configs.imported import OpenQuestionError
from astrarium.documents import check_values
from astrarium.errors import (
    THIS,
    AstrariumError,
    InputError,
    NoFeasiblePlanError,
    about,
    flag,
    naming,
    refusal,
)
from astrarium.plans.document import Plan, PlanDocument, document_of_content, plan_of_rank, to_dict
from astrarium.report.plan.document import document_without_plans
from astrarium.strategy.document import strategy_pairs
from astrarium.value import replace
from astrarium.web.reply import (
    FAILED,
    HTML_TYPE,
    IN_FORM,
    NOTHING_FEASIBLE,
    OK,
    REFUSED,
    ZIP_TYPE,
    Answer,
    Body,
    compressed,
    encoded,
    problem,
)

PROGRESS_EVERY_SECONDS: Final = 0.1
PLANS_EVERY_SECONDS: Final = 0.4
MOST_SHARE: Final = 0.04  # of the time that may go into documents of what is known so far

Tell = Callable[[str, Any], None]  # the name of an event, and what it holds


def progress(seconds: float, phase: str, done: int, total: int) -> dict[str, Any]:
    return {"seconds": seconds, "phase": phase, "done": done, "total": total}


class Reporter:
    """Called by the search (`astrarium.search.listing.Progress`)."""

    def __init__(self, question: planning.Question, tell: Tell) -> None:
        self._question, self._tell = question, tell
        self._begin = self._progress_sent = self._plans_sent = monotonic()
        self._spent = 0.0
        self._last: Sequence[Plan] = ()

    def __call__(
        self, phase: str, done: int, total: int, plans: Callable[[], Sequence[Plan]]
    ) -> None:
        now = monotonic()
        if now - self._progress_sent >= PROGRESS_EVERY_SECONDS:
            self._progress_sent = now
            self._tell("progress", progress(now - self._begin, phase, done, total))
        waited = now - self._plans_sent >= PLANS_EVERY_SECONDS
        # The only pool is searched: the answer itself follows at once, or the next part tells.
        is_answer = phase == "pools" and done == total == 1
        if waited and not is_answer and self._spent <= MOST_SHARE * (now - self._begin):
            self._tell_plans(plans())
            self._plans_sent = monotonic()
            self._spent += self._plans_sent - now

    def _tell_plans(self, plans: Sequence[Plan]) -> None:
        if plans and plans != self._last:
            self._last = plans
            seconds = monotonic() - self._begin
            self._tell("plans", to_dict(planning.so_far(self._question, plans, seconds)))


Kind = TypeVar("Kind", bound=AskedValues)


def asked_by(body: Body, kind: type[Kind], table: Mapping[str, Flag]) -> Kind:
    """The question of a body; `table` has the flags of the command."""
    given = {name: body[name] for name in table if body.get(name) is not None}
    if body.get("pools") is not None:
        _read_pools(body["pools"], given)
    if "cluster" in given:
        from astrarium.cluster.clusterfile import cluster_of_content

        with about("cluster"):
            given["cluster"] = cluster_of_content(given["cluster"], "cluster")
    has_model = body.get("model") is not None or body.get("config") is not None
    if has_model or table is not CONFIG_FLAGS:
        given["model"] = _model(body)
    for name in ("teacher", "reference"):
        if name in given:
            given[name] = _frozen(name, given[name])
    if not isinstance(given.get("strategy", {}), Mapping):
        given["strategy"] = _strategy(str(given["strategy"]))
    if "lengths" in given:
        from astrarium.model.lengths import checked_lengths

        with about("lengths"):  # a path would be read from here
            given["lengths"] = checked_lengths(str(given["lengths"]))
    for name, one in table.items():
        if one.required and given.get(name) is None:
            raise InputError(f"Missing option '{flag(name)}'", name)
    return asked(kind, table, given)


def _read_pools(rows: Sequence[Body], given: dict[str, Any]) -> None:
    """The rows of a form as --gpus and --price; an error names its row."""
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
                error.part = f"pools[{index}].usd_per_gpu_hour"
                raise
    stated = [pair for pair in priced if pair[1] is not None]
    given["price"] = [*readers.entries(given.get("price", ())), *stated]


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

    with about("model"):
        if name is None:
            raise InputError("Missing argument 'MODEL'")
        find_model_entry(str(name))
    return str(name)


def _frozen(name: str, given: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A frozen model: the content of a config.json, or a name of the catalog."""
    if isinstance(given, Mapping):
        check_values(given, name)
        return dict(given)
    with about(name):
        find_model_entry(str(given))
    return str(given)


def _strategy(given: str) -> Mapping[str, Any]:
    """The keys of `k=v,...`: files are not read."""
    with about("strategy"):
        if "=" not in given:
            raise InputError(f"{flag('strategy')}: {given!r} is not of the form key=value,...")
        return strategy_pairs(given, flag("strategy"))


def field_of(error: AstrariumError, body: Body) -> str | None:
    """The place of the mistake, by the name under which the request has it."""
    found = error.part
    if found == "gpus" and body.get("gpus") is None and body.get("pools") is not None:
        return "pools"
    if found == "model" and body.get("config") is not None:
        return "config"
    return found


def refused(
    status: int, error: AstrariumError, body: Body, more: Mapping[str, Any] | None = None
) -> Answer:
    """The answer for an error that knows ways out."""
    field = field_of(error, body)
    content = {
        "message": str(error),
        "field": field,
        "repairs": [
            {"label": label, "changes": {name or field: value for name, value in changes.items()}}
            for label, changes in error.repairs
            if field or THIS not in changes
        ],
        "asks": list(error.variables) if isinstance(error, OpenQuestionError) else [],
    }
    return Answer(status, encoded({"error": content, **(more or {})}))


def answer(kind: str, body: Body, tell: Tell | None = None) -> Answer:
    """The answer to a question; `tell` is called with progress, if there is any."""
    from astrarium.api.exporting import RefusedError
    from astrarium.web.form import WORDS

    with naming(WORDS) if body.get(IN_FORM) else nullcontext():
        try:
            return _KINDS[kind](body, tell)
        except RefusedError as error:
            return problem(REFUSED, str(error), "target", to_builtins(error.result))
        except InputError as error:
            return refused(REFUSED, error, body)
        except NoFeasiblePlanError as error:
            return refused(NOTHING_FEASIBLE, error, body)
        except AstrariumError as error:
            return problem(FAILED, str(error))


def _catalog(body: Body, tell: Tell | None) -> Answer:
    from astrarium.web.catalog import catalog

    return compressed(Answer(OK, encoded(catalog())), body, least=0)


def learn(body: Body) -> Answer:
    """Keep the answer to a question that everybody asks first, in the words of the form."""
    in_form = {**body, IN_FORM: True}
    found = _learned[_key(_plan_asked(in_form))] = answer("plan", in_form)
    return found


_learned: Final[dict[str, Answer]] = {}


def _plan_asked(body: Body) -> PlanAsked:
    return asked_by(body, PlanAsked, PLAN_FLAGS)


def _key(asked: PlanAsked) -> str:
    """The same for all that ask the same; files that were sent are not looked into."""
    sent = not isinstance(asked.model, str) or asked.cluster is not None
    return "" if sent else repr(replace(asked, given=frozenset()))


def _plan(body: Body, tell: Tell | None) -> Answer:
    asked = _plan_asked(body)
    known = _learned.get(_key(asked)) if body.get(IN_FORM) else None
    if known is not None:
        return known
    question = planning.read(asked)
    try:
        planned = planning.search(question, Reporter(question, tell) if tell else None)
    except NoFeasiblePlanError as error:
        more = {"document": _without(question, error)}
        return refused(NOTHING_FEASIBLE, error, body, more)
    changes = None
    if asked.sensitivity:
        if tell:
            tell("progress", progress(planned.seconds, "sensitivity", 0, 1))
        changes = planning.changes(question, planned)
    return Answer(OK, encoded(to_dict(planning.document(question, planned, changes))))


def _without(question: Any, error: NoFeasiblePlanError) -> dict[str, Any]:  # noqa: ANN401

    asked = question.asked
    why = asked.workload, asked.cluster, question.reference, str(error), asked.notes
    return to_dict(document_without_plans(*why))


def _predict(body: Body, tell: Tell | None) -> Answer:
    asked = asked_by(body, AskedValues, PREDICT_FLAGS)
    return Answer(OK, encoded(to_dict(planning.prediction(asked))))


def _why_not(body: Body, tell: Tell | None) -> Answer:
    try:
        asked = asked_by(body, PlanAsked, WHY_NOT_FLAGS)
    except InputError as error:
        if error.part != "strategy" or body.get("strategy") is None:
            raise
        return Answer(OK, encoded({"document": None, "broken": [str(error)]}))
    document, broken = planning.why_not(asked)
    shown = None if document is None else to_dict(document)
    return Answer(OK, encoded({"document": shown, "broken": broken}))


def _review(body: Body, tell: Tell | None) -> Answer:
    from astrarium.api import imports, review
    from astrarium.configs.detect import read_sent
    from astrarium.report.plan.imported import import_to_dict

    name = body.get("name") or "pasted"
    said = read(ANSWER_FLAGS, {one: body[one] for one in ANSWER_FLAGS if one in body})
    answers = imports.answers(said["arguments"], said["set"], said["vocab_size"], {})
    with about("text"):
        imported = read_sent(body["text"], name, answers)
        if imported is None:
            raise imports.not_recognised(name)
        case = review.reviewed(asked_by(body, AskedValues, CONFIG_FLAGS), imported)
    return Answer(OK, encoded(import_to_dict(review.document(case))))


def _chosen(body: Body, where: str = "document") -> tuple[PlanDocument, Plan]:
    rank = readers.rank("rank", body.get("rank", 1))
    with about(where):
        document = document_of_content(body["document"], "document")
    with about("rank"):
        return document, plan_of_rank(document, rank, "document")


def _with_model(body: Body) -> tuple[PlanDocument, Plan]:
    """The same; refuses a document without its model, whose name may be a path on this machine."""
    document, plan = _chosen(body)
    workload = document.workload
    if workload.model_config is None and not is_model_name(workload.model_as_given):
        raise InputError(
            f"document: it does not hold the config of '{workload.model_as_given}', and the server"
            " reads no files; `astrarium export` on the command line does",
            "document",
        )
    return document, plan


def _explain(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report.explain.terms import explain

    document, plan = _chosen(body)
    return Answer(OK, encoded(explain(plan, document.cluster)))


def _compare(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report.explain.terms import compare

    first, second = (_chosen(body[name], name) for name in ("first", "second"))
    return Answer(OK, encoded(compare(first, second)))


def _timeline(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report.timeline import timeline_document

    return compressed(Answer(OK, msgspec.json.encode(timeline_document(_chosen(body)[1]))), body)


def _trace(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report.timeline import trace_of

    return compressed(Answer(OK, encoded(trace_of(*_chosen(body)))), body)


def _replan(body: Body, tell: Tell | None) -> Answer:
    from astrarium.api.operations import replanned

    document, plan = _with_model(body)
    given = {**body, "plan": document, "rank": plan.rank}
    return Answer(OK, encoded(replanned(read(flags("replan"), given, from_python=True)).document))


def _stragglers(body: Body, tell: Tell | None) -> Answer:
    from astrarium.api.operations import under_stragglers
    from astrarium.cost.training_run import RunTerms

    document, _ = _with_model(body)
    speeds = readers.stragglers("stragglers", body.get("stragglers", "spread"))
    given = body.get("repair_time")
    repair = None if given is None else readers.duration()("repair_time", given)
    return Answer(OK, encoded(under_stragglers(document, speeds, RunTerms(), repair)))


def _report(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report.page import report_html

    document, plan = _chosen(body)
    page = report_html(document, [str(word) for word in body.get("command", ())], plan.rank)
    return Answer(OK, page.encode(), HTML_TYPE)


def _export(body: Body, tell: Tell | None) -> Answer:
    from astrarium.api import exporting
    from astrarium.export.target import find_target

    with about("target"):
        target = find_target(body["target"])
    with about("program"):
        exporting.software_of(target, body.get("program"))
    document, plan = _with_model(body)
    done = exporting.made(
        document,
        plan.rank,
        target.name,
        program=body.get("program"),
        nearest=body.get("nearest", False),
        where="document",
    )
    if body["zipped"]:
        return Answer(OK, _zipped(done.files), ZIP_TYPE)
    return Answer(OK, encoded({**to_builtins(done.result), "files": dict(done.files)}))


def _targets(body: Body, tell: Tell | None) -> Answer:
    from astrarium.api import exporting

    document, plan = _with_model(body)
    return Answer(OK, encoded({"times": exporting.times_of_targets(document, plan.rank)}))


def _zipped(files: Mapping[str, str]) -> bytes:
    """An archive; scripts may be executed, and the same plan always gives the same bytes."""
    from io import BytesIO
    from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

    archive = BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as written:
        for name, text in sorted(files.items()):
            entry = ZipInfo(name)
            entry.compress_type = ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".sh") else 0o100644) << 16
            written.writestr(entry, text)
    return archive.getvalue()


def _sweep(body: Body, tell: Tell | None) -> Answer:
    from astrarium.report import sweep
    from astrarium.sweep.folder import SweepFolder

    folder = SweepFolder.there(Path(body["path"]))
    conditions = [str(one) for one in body.get("where", ())]
    rows = sweep.where(_rows(folder.path, folder.state()), conditions)
    keys, value = (body.get("rows"), body.get("columns")), body.get("value") or sweep.PREFERRED
    document = sweep.sweep_document(rows, keys, value, body.get("top", 1))
    return compressed(Answer(OK, encoded(to_builtins(document))), body)


@lru_cache(1)
def _rows(path: Path, state: tuple[object, ...]) -> list[dict[str, Any]]:
    """The rows of a sweep, which are read again once there are others."""
    from astrarium.sweep.folder import SweepFolder

    return SweepFolder(path).rows()


_KINDS: Final[Mapping[str, Callable[[Body, Tell | None], Answer]]] = {
    "catalog": _catalog,
    "plan": _plan,
    "predict": _predict,
    "whynot": _why_not,
    "review": _review,
    "explain": _explain,
    "compare": _compare,
    "timeline": _timeline,
    "trace": _trace,
    "replan": _replan,
    "report": _report,
    "stragglers": _stragglers,
    "sweep": _sweep,
    "export": _export,
    "targets": _targets,
}
