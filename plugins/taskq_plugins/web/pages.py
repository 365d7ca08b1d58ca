"""The pages, rendered on the server and readable without scripts."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import keyword
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from taskq import Call, Record, State, Task, TaskQ, engine, errors, hooks, values, views
from taskq.cli import render
from taskq.text import hidden, printable, without_secrets
from taskq_plugins.looks import reading
from taskq_plugins.web import door, endpoints

Respond = Callable[[Request], Awaitable[Response]]
Read = Callable[[Callable[[engine.LogReader], Any]], Awaitable[Any]]


#: Steps of the slider, back from now: minutes, then hours and days.
_STEPS: Final = tuple(
    minutes * 60 * values.SECOND_NS
    for minutes in (
        1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 540, 720, 1_080,
        *(days * 1_440 for days in (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 180, 365)),
    )
)  # fmt: skip


def moment_asked(text: str) -> str:
    """Return a fixed moment for links between pages, since a span back from now would move.

    Raises:
        UsageError: the text is not a moment.
    """
    if not text:
        return ""
    at = engine.Moment.parse(text[:_AT_CHARACTERS_MAX], time.time_ns(), "at")
    return str(at.lsn) if at.time_ns is None else views.moment(at.time_ns) or "0"


def steps_of(begun_ns: int) -> tuple[str, ...]:
    """Return the slider's steps, from now back to the first record."""
    age_ns = time.time_ns() - begun_ns
    spans = [render.duration(step) for step in _STEPS if step < age_ns]
    return ("now", *(f"{span} ago" for span in spans), "the first record")


def step_of(back_ns: int, steps: tuple[str, ...]) -> int:
    number = sum(step < back_ns - values.SECOND_NS for step in _STEPS) + 1
    return min(number, len(steps) - 1)


def moment_back(text: str, begun_ns: int) -> str:
    """Return the moment of a step of the slider; "" for now.

    Raises:
        Problem: the text is not a step.
    """
    now_ns = time.time_ns()
    if not re.fullmatch(r"-?\d{1,3}", text):
        raise endpoints.Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"back={text!r:.40} is no step of the slider"
        )
    number = abs(int(text))
    if not number:
        return ""
    steps = [step for step in _STEPS if step < now_ns - begun_ns]
    return (views.moment(now_ns - steps[number - 1]) or "1") if number <= len(steps) else "1"


_LINE_CHARACTERS_MAX: Final = 160
#: Characters of a payload or result that are shown, and bytes that are parsed.
_BODY_CHARACTERS_MAX: Final = 65_536
_READ_BYTES_MAX: Final = 4 << 20
#: Arguments of a call in its table, and characters of each.
_ROWS_MAX: Final = 30
_CELL_MAX: Final = 300


class FormField(NamedTuple):
    """One parameter of a call; ``kind`` is the type of its input field."""

    name: str
    kind: str
    says: str
    is_required: bool


def fields_of(task: Task[..., Any] | None) -> list[FormField]:
    """Return the parameters of a task, except ``*args`` and ``**kwargs``."""
    if task is None:
        return []
    hints = task.signature.hints()
    return [
        FormField(
            name,
            _kind(hints.get(name)),
            str(parameter).partition(":")[2].strip(),
            parameter.default is parameter.empty,
        )
        for name, parameter in task.signature.signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def call_of(task: Task[..., Any] | None, form: Mapping[str, str]) -> Call[Any]:
    """Return a form's call, with the usual checks of its arguments.

    Raises:
        Problem: the task does not exist.
        InvalidCall: an argument is wrong.
    """
    if task is None:
        raise endpoints.Problem(
            HTTPStatus.NOT_FOUND, "this program has no such task: load the page again"
        )
    arguments: dict[str, Any] = {}
    for field in fields_of(task):
        text = form.get(field.name, "")
        if text or (field.is_required and field.kind == "text"):
            arguments[field.name] = text if field.kind == "text" else _value(text)
    return task.call(**arguments)


def _kind(hint: object) -> str:
    if hint is str:
        return "text"
    return "number" if hint in (int, float) else "json"


def _value(text: str) -> Any:
    try:
        return values.parse_json(text.encode())
    except ValueError:
        return text  # for example a date


def line(text: str) -> str:
    first = printable(text.partition("\n")[0])
    return first if len(first) <= _LINE_CHARACTERS_MAX else f"{first[:_LINE_CHARACTERS_MAX]}…"


def as_it_is(value: Any, _name: str = "") -> Any:
    return value


def shown_body(body: bytes, cleaned: Callable[[Any], Any]) -> str:
    if len(body) > _READ_BYTES_MAX:
        return f"({len(body)} bytes)"
    try:
        text = json.dumps(cleaned(values.parse_json(body)), indent=2, ensure_ascii=False)
    except ValueError:
        text = cleaned(render.body_text(body))
    if len(text) <= _BODY_CHARACTERS_MAX:
        return printable(text)
    return f"{printable(text[:_BODY_CHARACTERS_MAX])}… ({len(body)} bytes)"


def table_of(job: views.JobView, cleaned: Callable[[Any], Any]) -> list[tuple[str, str]]:
    """Return the arguments of a call as rows; [] unless they are plain, short values."""
    values = cleaned(job.arguments or {})
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in values.items()]
    is_flat = not any(isinstance(value, dict | list) for value in values.values())
    are_short = all(len(text) <= _CELL_MAX for _, text in rows)
    return rows if is_flat and are_short and len(rows) <= _ROWS_MAX else []


def code_of(job: views.JobView, cleaned: Callable[[Any], Any], *, takes: bool = False) -> str:
    """Return Python code that enqueues the same call; "" for bytes, and for a long call.

    A job that ``takes`` results of others is a step of a flow, and lacks its first argument.
    """
    if job.arguments is None or len(job.payload) > _LINE_CHARACTERS_MAX * 10:
        return ""
    values = cleaned(job.arguments)
    given = list(map(repr, values.pop("*", ())))
    values |= values.pop("**", {})
    given += [f"{name}={value!r}" for name, value in values.items()]
    name = re.sub(r"\W", "_", job.task.rpartition(".")[2])
    if keyword.iskeyword(name) or not name.isidentifier():
        name = f"{name}_"
    arguments = ", ".join(given)
    return f"{name}.step({arguments})" if takes else f"await {name}.enqueue({arguments})"


_HERE: Final = Path(__file__).parent
_PAGES: Final = (
    ("/", "Now"),
    ("/jobs", "Jobs"),
    ("/tasks", "Tasks"),
    ("/history", "History"),
    ("/workers", "Workers"),
    ("/failures", "Failures"),
    ("/schedules", "Schedules"),
    ("/limits", "Limits"),
    ("/log", "Log"),
    ("/audit", "Audit"),
)
#: Pages that refresh every two seconds; others may take long to render.
_LIVE: Final = frozenset({"now.html", "job.html", "tasks.html", "workers.html"})
_MILLISECONDS: Final = len("2026-01-01T00:00:00.000")
_SECONDS: Final = len("2026-01-01T00:00:00")
_HOUR_AND_MINUTE: Final = slice(len("2026-01-01T"), len("2026-01-01T00:00"))
#: Characters of a job's arguments in a list, and bytes of a payload that are read for this.
_BRIEF_MAX: Final = 60
_BRIEF_BYTES_MAX: Final = 16_384
_EVENTS_MAX: Final = 200
_RECORDS_MAX: Final = 50
_SEGMENTS_MAX: Final = 50
_AT_CHARACTERS_MAX: Final = 60
_CAUSES_MAX: Final = 60
#: Fields of a form, since a task may have many parameters. Names of our own fields have a dot.
_FIELDS_MAX: Final = 512
_MINUTE_NS: Final = 60 * values.SECOND_NS
#: Suggestions of the search box.
_GOALS_MAX: Final = 9
#: Sort keys of tables, by column.
_OF_TASKS: Final[dict[str, Callable[[reading.Fare], Any]]] = {
    "task": lambda fare: fare.name,
    "a minute": lambda fare: fare.rate,
    "waiting": lambda fare: fare.counts["ready"] + fare.counts["scheduled"],
    "running": lambda fare: fare.counts["running"],
    "p50": lambda fare: fare.p50_ns,
    "p95": lambda fare: fare.p95_ns,
    "success": lambda fare: 2 if fare.success is None else fare.success,
    "dead": lambda fare: fare.counts["dead"],
    "last failure": lambda fare: fare.failed_ns,
    "next": lambda fare: fare.next_at.timestamp() if fare.next_at else float("inf"),
}
_OF_JOBS: Final[dict[str, Callable[[views.JobView], Any]]] = {
    "state": lambda job: int(job.state),
    "task": lambda job: job.task,
    "queue": lambda job: job.queue,
    "attempt": lambda job: job.attempt,
    "took": lambda job: _took_ns(job) or 0,
}
#: Results of an act that a list shows.
_COUNTS: Final = ("act", "done", "stopping")
#: Ids shown of each kind of related jobs in a flow.
_IDS_MAX: Final = 20


#: Template values of a page without a log.
_NOTHING: Final[dict[str, Any]] = {
    "is_live": False, "here_now": "", "kept": (), "dead": 0, "steps": (),
    "step": 0, "beside": ("", ""),
}  # fmt: skip


class Redirect(Exception):
    """Redirect to another page; the argument is the path below the page's root."""


async def _nothing(_job_id: str) -> None: ...


class Look(NamedTuple):
    """A request of one page: its query, and a way to read the log at its moment."""

    request: Request
    at: str
    read: Read

    @property
    def visitor(self) -> endpoints.Visitor:
        """Return the visitor of the request."""
        visitor: endpoints.Visitor = self.request.state.visitor
        return visitor


def _read(work: Callable[[engine.LogReader], dict[str, Any]]) -> Callable[[Look], Awaitable[Any]]:
    return lambda look: look.read(work)


def _status(*parts: str) -> Callable[[Look], Awaitable[Any]]:
    """Return the reader of a page's values: these parts of the log's status."""
    return _read(lambda reader: hooks.LogStatus(reader).take(*parts))


class Pages:
    """Pages of a log.

    Args:
        looks: reads the log.
        acts: acts of the forms, by name.
        place: address and rights.
        keys: keys of programs and browsers.
        app: this program's own app on the log, if any.
        note_enqueued: writes the visitor who enqueued a job into the log.
        is_copy: whether the log is a hub's copy of a device's log.
    """

    def __init__(
        self,
        looks: reading.Looks,
        acts: Mapping[str, endpoints.Endpoint],
        place: door.SiteAddress,
        keys: door.AccessKeys,
        app: TaskQ | None = None,
        note_enqueued: Callable[[str], Awaitable[None]] = _nothing,
        *,
        is_copy: bool = False,
    ) -> None:
        self._looks = looks
        self._acts = acts
        self._place = place
        self._keys = keys
        self._app = app
        self._note_enqueued = note_enqueued
        self._is_copy = is_copy
        self._shared_key = ""
        clean, value = (str, as_it_is) if place.show_secrets else (hidden, without_secrets)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            # Values from a log are foreign text; only templates are trusted.
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "ago": _ago,
            # A long name may wrap after its dots.
            "dotted": lambda text: Markup(".<wbr>").join(text.split(".")),
            "brief": lambda job: brief(job, value),
            "ago_now": lambda moment_ns: render.when(moment_ns, time.time_ns()),
            "span": render.precise,
            "size": render.size,
            "plain": lambda text: printable(clean(text)),
            "without_secrets": value,
            "line": lambda text: line(clean(text)),
            "body": lambda body: shown_body(body, value),
            "table": lambda job: table_of(job, value),
            "code": lambda job, takes: printable(code_of(job, value, takes=takes)),
            "moment": lambda moment_ns: timed(moment_ns, iso(moment_ns, _MILLISECONDS)),
            "iso": lambda moment_ns, characters=_SECONDS: iso(moment_ns, characters),
            "clock": lambda moment_ns: (views.moment(moment_ns) or "")[_HOUR_AND_MINUTE],
            "minute": lambda moment_ns: (
                f"{(views.moment(moment_ns) or '')[: _HOUR_AND_MINUTE.stop]}Z"
            ),
            "took": _took,
            "count": "{:,}".format,
            "served": render.served,
            "tick": lambda moment: timed(
                at_ns := round(moment.timestamp() * values.SECOND_NS), iso(at_ns, _SECONDS)
            ),
        }
        self._files = {name: (_HERE / "static" / name).read_bytes() for name in door.FILES}

    def routes(self) -> list[Route]:
        return [
            Route(door.ENTRY, self.enter, methods=["GET", "POST"]),
            Route("/", self._page("now.html", self._now)),
            Route("/jobs", self._page("jobs.html", self._jobs)),
            Route("/jobs/{id}", self._page("job.html", self._job)),
            Route("/go", self._page("go.html", self._go)),
            Route("/tasks", self._page("tasks.html", self._tasks)),
            Route("/history", self._page("history.html", self._history)),
            Route("/audit", self._page("audit.html", self._audit)),
            Route("/workers", self._page("workers.html", _read(reading.workers_of))),
            Route("/many", self._page("many.html", self._many)),
            Route("/failures", self._page("failures.html", _status("failures"))),
            Route("/schedules", self._page("schedules.html", _status("schedules"))),
            Route("/limits", self._page("limits.html", _status("limits", "holds", "controls"))),
            Route("/log", self._page("log.html", self._log)),
            Route("/enqueue", self._page("enqueue.html", self._enqueue)),
            Route("/act/{name}", self._act, methods=["POST"]),
            Route("/static/{name}", self.file),
        ]

    def refusal(self, problem: endpoints.Problem, root: str) -> Response:
        return self.render("problem.html", root, problem.status, problem=problem)

    async def enter(self, request: Request) -> Response:
        """Admit a browser with the printed address, or a person with a token."""
        if request.method == "POST":
            cookie = self._keys.log_in(_form(await request.body()).get("token", "").strip())
        else:  # histories and links keep addresses, so a lasting token must not be in one
            cookie = self._keys.enter(request.query_params.get("token", "").strip())
        if not cookie:
            raise endpoints.Problem(
                HTTPStatus.UNAUTHORIZED,
                "this address was used before, or taskq web did not print it: start taskq web "
                "again for a new one",
            )
        # After a redirect a browser would send a cross-site request, without the new cookie.
        response = self.render("entered.html", door.root_of(request.scope))
        response.headers["Set-Cookie"] = self._place.cookie_header(cookie, request.url.scheme)
        return response

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in door.FILES:
            raise endpoints.Problem(HTTPStatus.NOT_FOUND, f"there is no file {name!r:.80} here")
        return Response(self._files[name], media_type=door.FILES[name])

    async def _now(self, look: Look) -> dict[str, Any]:
        def work(reader: engine.LogReader) -> dict[str, Any]:
            causes = reading.Causes(_CAUSES_MAX) if look.at else self._looks.causes
            return {"tag": reader.tag, **reading.first_of(reader, causes)}

        shown: dict[str, Any] = await look.read(work)
        return shown

    async def _jobs(self, look: Look) -> dict[str, Any]:
        asked = _checked(endpoints.JobsPage, dict(look.request.query_params))
        named = await look.read(lambda reader: hooks.Search.job_named(reader, asked.q))
        if named is not None:
            raise Redirect(f"/jobs/{named}")
        search = hooks.Search.parse(asked.q, hides=not self._place.show_secrets)
        jobs, lanes = await look.read(
            lambda reader: (
                search.find(reader, asked.limit, asked.before),
                reader.lanes(),
            )
        )
        acts = {"requeue": State.DEAD, "purge": State.DEAD, "cancel": State.READY}
        states, words = search.states, hooks.Search.words_of(asked.q)
        return {
            "asked": asked,
            "found": jobs,
            "rows": _ordered(jobs.jobs, _OF_JOBS, asked.sort),
            "sort": asked.sort,
            "acts": [
                act
                for act, state in acts.items()
                if state in (states or {state})
                and look.visitor.role >= self._acts["many"].needs(act)
            ],
            "looked": asked.looked + jobs.looked_at,
            "total": sum(counts.total() for counts in lanes.values()),
            "rest": hooks.Search.without_states(asked.q),
            "counts": search.counts(lanes),
            "state_asked": str(next(iter(states))) if states and len(states) == 1 else "",
            "states": tuple(views.STATES),
            "chips": [
                (word, " ".join(words[:at] + words[at + 1 :])) for at, word in enumerate(words)
            ],
        }

    async def _go(self, look: Look) -> dict[str, Any]:
        """Return suggestions for some letters: pages, tasks, queues and jobs."""
        text = look.request.query_params.get("q", "")[:_AT_CHARACTERS_MAX].strip()
        job, lanes = await look.read(
            lambda reader: (hooks.Search.job_named(reader, text), reader.lanes())
        )
        goals: list[tuple[str, str, str, dict[str, str]]]
        goals = [(name, "page", path, {}) for path, name in self._pages_of(look.visitor)]
        for what, names in (
            ("task", {name for _, name in lanes}),
            ("queue", {q for q, _ in lanes}),
        ):
            goals += [
                (name, what, "/jobs", {"q": f"{what}:={_quoted(name)}"})
                for name in sorted(names)
                if name
            ]
        fitting = [goal for goal in goals if text.casefold() in goal[0].casefold()]
        if job:
            fitting.insert(0, (job, "job", f"/jobs/{job}", {}))
        return {"goals": fitting[:_GOALS_MAX], "text": text}

    async def _tasks(self, look: Look) -> dict[str, Any]:
        sort = look.request.query_params.get("sort", "")[:_AT_CHARACTERS_MAX]
        fares, tag, controls = await look.read(
            lambda reader: (reading.tasks_of(reader), reader.tag, reader.controls())
        )
        rows = _ordered(fares, _OF_TASKS, sort)
        return {"fares": rows, "sort": sort, "tag": tag, "controls": controls}

    async def _history(self, look: Look) -> dict[str, Any]:
        query = look.request.query_params
        span, task = query.get("span", reading.SPANS[0]), query.get("task", "")
        if span not in reading.SPANS:
            raise endpoints.Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"span={span!r:.40} is none of {', '.join(reading.SPANS)}",
            )
        # The history counts the whole log, at any moment of the slider.
        return await self._looks.read(lambda reader: reading.history_of(reader, span, task))

    async def _audit(self, look: Look) -> dict[str, Any]:
        del look
        return await self._looks.read(reading.acts_of)

    async def _many(self, look: Look) -> dict[str, Any]:
        before = await look.read(lambda reader: reader.extent.lsn)
        query = look.request.query_params
        given = {"before": before, **query, "ids": query.getlist("id"), "dry_run": True}
        given.pop("id", None)
        asked = _checked(endpoints.Many, given)
        return {"asked": asked, **await self._acts["many"].answer(asked)}

    async def _job(self, look: Look) -> dict[str, Any]:
        asked = _checked(endpoints.OneJob, look.request.path_params)
        seen = await look.read(lambda reader: reading.job_page(reader, asked.id))
        job, ties, flow = seen["job"], seen["ties"], seen["flow"]
        return {
            "seen": seen,
            "bars": seen["bars"],
            "events": seen["timeline"][-_EVENTS_MAX:],
            "is_open": job.state in views.LIVE_STATES,
            "command": values.command(self._looks.path, "show", job.job_id),
            "takes": bool(ties and ties.shape),
            "flow": [(name.replace("_", " "), ids[:_IDS_MAX]) for name, ids in flow.items()],
        }

    async def _log(self, look: Look) -> dict[str, Any]:
        def work(reader: engine.LogReader) -> dict[str, Any]:
            return {
                "stats": reader.stats(),
                "log_id": reader.log_id,
                "created_at": reader.created_at,
                "segments": reader.segments()[-_SEGMENTS_MAX:],
                "readers": hooks.LogStatus(reader).readers,
            }

        shown = await look.read(work)
        cookie = look.request.cookies.get(self._place.cookie, "")
        may_invite = self._place.allows is None and self._keys.may_invite(cookie)
        invites = may_invite and look.request.query_params.get("invite")
        home = self._place.address if self._place.hosts else str(look.request.base_url).rstrip("/")
        shown["invites"] = may_invite
        shown["invitation"] = (
            f"{home}{door.ENTRY}?token={self._keys.entry(look.visitor)}" if invites else ""
        )
        records = await self._records(look, _RECORDS_MAX, hooks.Choice(name_all=True))
        app = None if look.at else self._app
        return {
            **shown,
            "records": records,
            "engine": None if app is None else (await app.stats()).engine,
            "settings": None if app is None else app.settings,
            "command": values.command(self._looks.path, "compact", "--dry-run"),
        }

    async def _enqueue(self, look: Look) -> dict[str, Any]:
        may = self._app is not None and look.visitor.role >= endpoints.Role.OPERATE
        tasks = dict(self._app.tasks) if self._app is not None and may else {}
        name = look.request.query_params.get("task", "") if may else ""
        if name and name not in tasks:
            raise endpoints.Problem(HTTPStatus.NOT_FOUND, f"this program has no task {name!r:.80}")
        return {"tasks": sorted(tasks), "task": name, "fields": fields_of(tasks.get(name))}

    async def _records(self, look: Look, count: int, choice: hooks.Choice) -> list[Record]:
        until = await look.read(lambda reader: reader.extent) if look.at else None
        path = self._looks.path
        records = hooks.look_at_records(
            path, count, choice, follow=False, body_bytes_max=0, until=until
        )
        return [record async for record in records]

    # -- acts --------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        form = _form(await request.body())
        if not door.same(form.pop("taskq.token", ""), self._form_key()):
            raise endpoints.Problem(
                HTTPStatus.FORBIDDEN,
                "this form is not of a page that is open here: load the page again, then repeat it",
            )
        back, act = form.pop("taskq.back", "/"), self._acts.get(request.path_params["name"])
        if act is None:
            raise endpoints.Problem(HTTPStatus.NOT_FOUND, "there is no such act")
        form = {name: value for name, value in form.items() if value}
        root = door.root_of(request.scope)
        if act.name != "enqueue":
            asked = _checked(act.asked, form)
            act.check(request.state.visitor, asked)
            answer = await act.answer(asked)
            if act.name == "purge":  # the job's page no longer exists
                back = f"{root}/jobs?act=purge&done=1"
            elif act.name == "many":
                query = {"q": form.get("q", ""), **{key: answer[key] for key in _COUNTS}}
                query["changed"] = answer["count"] - answer["done"] - answer["stopping"]
                back = f"{root}/jobs?{urlencode(query)}"
        elif self._app is not None:
            call = call_of(self._app.tasks.get(form.pop("taskq.task", "")), form)
            job = await self._app.enqueue(call)
            await self._note_enqueued(job.id)
            back = f"{root}/jobs/{job.id}"
        return RedirectResponse(_inside(back), HTTPStatus.SEE_OTHER)

    def _form_key(self) -> str:
        """Return the token of forms; with an outer login it is equal in all processes.

        The token is derived from the log's id, which other sites do not know.
        """
        if self._place.allows is None:
            return self._keys.form
        if not self._shared_key:
            identity = None
            with contextlib.suppress(errors.TaskqError, OSError):
                identity = engine.Identity.read(engine.PatientDisk(), self._looks.path)
            if identity is None:
                return self._keys.form
            key = identity.log_id.bytes
            self._shared_key = hmac.new(key, b"form", hashlib.sha256).hexdigest()
        return self._shared_key

    # -- rendering ---------------------------------------------------------------------------------

    def _page(self, template: str, show: Callable[[Look], Awaitable[dict[str, Any]]]) -> Respond:
        async def respond(request: Request) -> Response:
            began_ns = time.process_time_ns()
            root, query = door.root_of(request.scope), request.query_params
            kept = [pair for pair in query.multi_items() if pair[0] not in ("at", "back")]
            begun_ns, dead = await self._looks.read(_edges)  # also creates the log of an app
            if "back" in query:  # the slider sends steps
                at = moment_back(query["back"], begun_ns)
                there = urlencode([*kept, *([("at", at)] if at else [])])
                return RedirectResponse(f"{request.url.path}?{there}", HTTPStatus.SEE_OTHER)
            at = moment_asked(query.get("at", ""))
            try:
                shown = await show(Look(request, at, partial(self._looks.read, at=at)))
            except Redirect as other:
                more = f"?{urlencode({'at': at})}" if at else ""
                return RedirectResponse(f"{root}{other}{more}", HTTPStatus.SEE_OTHER)
            now_ns = time.time_ns()
            shown |= {"dead": dead, "kept": kept, "steps": steps_of(begun_ns)}
            if at:
                shown["now_ns"] = await self._looks.read(lambda reader: reader.now_ns, at)
                shown["step"] = step_of(now_ns - shown["now_ns"], shown["steps"])
                beside = [shown["now_ns"] - _MINUTE_NS, shown["now_ns"] + _MINUTE_NS]
                shown["beside"] = [views.moment(each) if each < now_ns else "" for each in beside]
            is_live = shown.pop("is_live", template in _LIVE) and not at
            order = partial(
                _sorted_by, request.url.path, {**dict(kept), **({"at": at} if at else {})}
            )
            shown["sorted_by"] = order
            shown["here_now"] = request.url.path + (f"?{urlencode(kept)}" if kept else "")
            response = self.render(
                template, root, at=at, is_live=is_live, visitor=request.state.visitor, **shown
            )
            # The page's script chooses its refresh interval by this time.
            taken = (time.process_time_ns() - began_ns) / 1e6
            response.headers["Server-Timing"] = f"cpu;dur={taken:.1f}"
            return response

        return respond

    def render(
        self, template: str, root: str, status: HTTPStatus = HTTPStatus.OK, **values: Any
    ) -> HTMLResponse:
        at = values.setdefault("at", "")
        values.setdefault("now_ns", time.time_ns())
        visitor = values.setdefault("visitor", endpoints.Visitor("", endpoints.Role.READ))

        def may(name: str, which: str = "") -> bool:
            """Return whether the visitor may do this now; ``which`` is the act on ``many``."""
            return not at and name in self._acts and visitor.role >= self._acts[name].needs(which)

        def to(path: str, **query: Any) -> str:
            given = query | ({"at": at} if at and not path.startswith("/static") else {})
            return f"{root}{path}?{urlencode(given)}" if given else root + path

        text = self._templates.get_template(template).render(
            directory=self._looks.path,
            dead_max=hooks.LogStatus.dead_max,
            allow_actions=visitor.role >= endpoints.Role.OPERATE and not at,
            may=may,
            form_token=self._form_key(),
            hub=root.rpartition("/logs/")[0] + "/" if self._is_copy else "",
            to=to,
            **{**_NOTHING, "pages": self._pages_of(visitor), **values},
        )
        return HTMLResponse(text, status)

    def _pages_of(self, visitor: endpoints.Visitor) -> tuple[tuple[str, str], ...]:
        if self._app is None or visitor.role < endpoints.Role.OPERATE:
            return _PAGES
        return (*_PAGES, ("/enqueue", "Enqueue"))


@pass_context
def _ago(context: Context, moment_ns: int) -> str:
    return timed(moment_ns, render.when(moment_ns, context["now_ns"]))


def iso(moment_ns: int, characters: int = _SECONDS) -> str:
    """Return a moment in UTC for the script, "" for never."""
    # A whole second has no fraction.
    return (views.moment(moment_ns) or "").partition("+")[0][:characters].replace("T", " ")


def timed(moment_ns: int, text: str) -> Markup:
    """Return a text about a moment; the script converts it to the browser's time zone."""
    if not moment_ns:
        return Markup("")
    utc = iso(moment_ns, _MILLISECONDS)
    mark = Markup('<time datetime="{}Z" title="{} UTC">{}</time>')
    return mark.format(utc.replace(" ", "T"), utc, text)


def brief(job: views.JobView, cleaned: Callable[[Any], Any]) -> str:
    """Return the arguments of a call in a few words: ``to=ada, subject=hi``."""
    if len(job.payload) > _BRIEF_BYTES_MAX:
        return f"({render.size(len(job.payload))})"
    given = cleaned(job.arguments or {})
    parts = [
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    ]
    text = printable(", ".join(parts)).replace("\n", " ")
    return text if len(text) <= _BRIEF_MAX else f"{text[:_BRIEF_MAX]}…"


def _edges(reader: engine.LogReader) -> tuple[int, int]:
    dead = sum(counts["dead"] for counts in reader.lanes().values())
    return round(reader.created_at.timestamp() * values.SECOND_NS), dead


def _sorted_by(path: str, query: dict[str, str], name: str) -> str:
    """Return the address of the page sorted by a column; a second click reverses the order."""
    sort = name if query.get("sort") == f"-{name}" else f"-{name}"
    return f"{path}?{urlencode({**query, 'sort': sort})}"


def _ordered(rows: Iterable[Any], keys: Mapping[str, Callable[[Any], Any]], sort: str) -> list[Any]:
    key = keys.get(sort.removeprefix("-"))
    return list(rows) if key is None else sorted(rows, key=key, reverse=sort.startswith("-"))


def _took_ns(job: views.JobView, now_ns: int = 0) -> int | None:
    """Return the duration of the last attempt so far, or None."""
    if not job.attempts:
        return None
    last = job.attempts[-1]
    return max((last.ended_ns or now_ns or time.time_ns()) - last.started_ns, 0)


@pass_context
def _took(context: Context, job: views.JobView) -> str:
    took_ns = _took_ns(job, context["now_ns"])
    return "" if took_ns is None else render.precise(took_ns)


def _quoted(name: str) -> str:
    return name if " " not in name else f'"{name}"'


def _checked(model: type[endpoints.Asked], given: dict[str, Any]) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise endpoints.Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}: mend the address",
        ) from None


def _form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise endpoints.Problem(HTTPStatus.BAD_REQUEST, f"this is no form: {error}") from None


def _inside(back: str) -> str:
    # Browsers take two slashes, forward or backward, for the beginning of a host.
    is_ours = back.startswith("/") and not back.startswith("//") and "\\" not in back
    return back if is_ours and back.isprintable() else "/"
