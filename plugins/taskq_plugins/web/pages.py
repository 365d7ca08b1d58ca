"""The pages: made on this side, readable without scripts."""

from __future__ import annotations

import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from taskq.cli import render
from taskq.cli.commands.jobs import served
from taskq.core.errors import JobNotFound, command
from taskq.core.model import LIVE_STATES
from taskq.core.views import moment
from taskq.reading.looking import look
from taskq.reading.named import look_at_readers
from taskq.reading.record import Choice
from taskq_plugins.web.asked import Jobs, OneJob, OneQueue
from taskq_plugins.web.door import ENTRY, same
from taskq_plugins.web.looks import DEAD_MAX, failures_of, job_of, now_of, schedules_of
from taskq_plugins.web.problems import Problem
from taskq_plugins.web.search import Search, find_jobs

if TYPE_CHECKING:
    from starlette.requests import Request

    from taskq.core.views import JobView
    from taskq.log.read.reader import LogReader
    from taskq.reading.record import Record
    from taskq_plugins.web.acts import Acts
    from taskq_plugins.web.asked import Asked
    from taskq_plugins.web.door import Keys, Place
    from taskq_plugins.web.looks import Looks

_HERE: Final = Path(__file__).parent
_STATIC: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_PAGES: Final = (
    ("/", "Now"),
    ("/jobs", "Jobs"),
    ("/failures", "Failures"),
    ("/schedules", "Schedules"),
    ("/log", "Log"),
)
#: Pages that are shown anew every two seconds; the others may take long to make.
_LIVE: Final = frozenset({"now.html", "job.html"})
_MILLISECONDS: Final = len("2026-01-01T00:00:00.000")
_LINE_CHARACTERS_MAX: Final = 160
#: Of a payload or result.
_BODY_BYTES_MAX: Final = 65_536
_EVENTS_MAX: Final = 200
_BARS_MAX: Final = 30
_BAR_UNITS: Final = 1_000
_RECORDS_MAX: Final = 50
#: Records among which the last ends are looked for, and ends that are shown.
_LOOKED_MAX: Final = 1_000
_ENDS_MAX: Final = 15
_ENDS: Final = frozenset({"succeeded", "dead", "cancelled", "expired"})
_FIELDS_MAX: Final = 20


class Bar(NamedTuple):
    """A stretch of a job's life, in thousandths of it."""

    kind: str
    start: float
    width: float
    title: str


class Pages:
    """Makes pages of what the log says.

    Args:
        looks: reads the log.
        acts: changes it.
        place: where the pages are found.
        keys: what shows who asks.
    """

    def __init__(self, looks: Looks, acts: Acts, place: Place, keys: Keys) -> None:
        self._looks = looks
        self._acts = acts
        self._place = place
        self._keys = keys
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            # All that a log holds was written by others: nothing is a page's own but the template.
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "ago": lambda moment_ns: render.when(moment_ns, time.time_ns()),
            "span": render.precise,
            "size": render.size,
            "plain": render.printable,
            "line": _line,
            "body": _body,
            "moment": lambda moment_ns: (moment(moment_ns) or "")[:_MILLISECONDS],
            "served": served,
            "tick": lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S %Z"),
        }
        self._files = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}

    def routes(self) -> list[Route]:
        """Every page there is."""
        return [
            Route(ENTRY, self._enter),
            Route("/", self._now),
            Route("/jobs", self._jobs),
            Route("/jobs/{id}", self._job),
            Route("/failures", self._failures),
            Route("/schedules", self._schedules),
            Route("/log", self._log),
            Route("/act/{name}", self._act, methods=["POST"]),
            Route("/static/{name}", self._file),
        ]

    def refusal(self, problem: Problem) -> Response:
        """A page that says what is wrong."""
        return self._render("problem.html", problem.status, is_live=False, problem=problem)

    async def _enter(self, request: Request) -> Response:
        if not self._keys.enter(request.query_params.get("token", "")):
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "this address was used before, or is not the one that taskq web printed: start it "
                "again for a new one",
            )
        # A redirect would count as one from wherever the address was opened, and without a cookie.
        response = self._render("entered.html", HTTPStatus.OK, is_live=False)
        response.headers["Set-Cookie"] = self._place.cookie_header(self._keys.session)
        return response

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no file {name!r:.80} here")
        return Response(self._files[name], media_type=_STATIC[name])

    async def _now(self, request: Request) -> Response:
        records = await self._records(_LOOKED_MAX, Choice())
        ended = [record for record in records if record.kind in _ENDS][-_ENDS_MAX:]

        def work(reader: LogReader) -> dict[str, Any]:
            return {
                "ends": [(one, reader.job(reader.parse_id(one.job_id))) for one in reversed(ended)],
                **now_of(reader),
            }

        return self._page(request, "now.html", **await self._looks.read(work))

    async def _jobs(self, request: Request) -> Response:
        asked = _checked(Jobs, dict(request.query_params))
        search = Search.parse(asked.q)
        found = await self._looks.read(
            lambda reader: find_jobs(reader, search, asked.limit, asked.before)
        )
        return self._page(request, "jobs.html", q=asked.q, limit=asked.limit, found=found)

    async def _job(self, request: Request) -> Response:
        asked = _checked(OneJob, request.path_params)
        seen = await self._looks.read(lambda reader: job_of(reader, asked.id))
        job, flow = seen.job, render.flow_json(seen.ties, seen.tag)
        return self._page(
            request,
            "job.html",
            seen=seen,
            events=seen.timeline[-_EVENTS_MAX:],
            is_open=job.state in LIVE_STATES,
            bars=_bars(job, time.time_ns()),
            command=command(self._looks.path, "show", job.job_id),
            flow=[(name.replace("_", " "), ids[:_FIELDS_MAX]) for name, ids in flow.items() if ids],
        )

    async def _failures(self, request: Request) -> Response:
        failures = await self._looks.read(failures_of)
        return self._page(request, "failures.html", failures=failures, dead_max=DEAD_MAX)

    async def _schedules(self, request: Request) -> Response:
        schedules = await self._looks.read(schedules_of)
        return self._page(request, "schedules.html", schedules=schedules)

    async def _log(self, request: Request) -> Response:
        def work(reader: LogReader) -> dict[str, Any]:
            return {
                "stats": reader.stats(),
                "log_id": reader.log_id,
                "created_at": reader.created_at,
                "readers": look_at_readers(reader.path),
            }

        told = await self._looks.read(work)
        records = await self._records(_RECORDS_MAX, Choice(name_all=True))
        return self._page(request, "log.html", records=records, **told)

    async def _records(self, count: int, choice: Choice) -> list[Record]:
        found = look(self._looks.path, count, choice, follow=False, body_bytes_max=0)
        return [record async for record in found]

    # -- acts --------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        form = _form(await request.body())
        if not same(form.pop("token", ""), self._keys.form):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "this form is not of a page that is open here: load the page again, then repeat it",
            )
        back, name = form.pop("back", "/"), request.path_params["name"]
        if name == "requeue_kind":
            await self._requeue_kind(form.get("fingerprint", ""))
        elif name in {"cancel", "requeue", "purge"}:
            await getattr(self._acts, name)(_checked(OneJob, form))
        elif name in {"pause", "resume"}:
            await getattr(self._acts, name)(_checked(OneQueue, form))
        else:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no act {name!r:.80}")
        return RedirectResponse(_inside(back), HTTPStatus.SEE_OTHER)

    async def _requeue_kind(self, fingerprint: str) -> None:
        failures = await self._looks.read(failures_of)
        jobs = [job for one in failures if one.fingerprint == fingerprint for job in one.jobs]
        if not jobs:
            raise JobNotFound(
                f"no dead letter has the fingerprint {fingerprint!r:.40} any more: load the page "
                f"of failures again"
            )
        await self._acts.requeue_many(jobs)

    # -- how they look -----------------------------------------------------------------------------

    def _page(self, request: Request, template: str, **told: Any) -> HTMLResponse:
        query = f"?{request.url.query}" if request.url.query else ""
        is_live, here = template in _LIVE, f"{request.url.path}{query}"
        return self._render(template, HTTPStatus.OK, is_live=is_live, here_now=here, **told)

    def _render(
        self, template: str, status: HTTPStatus, *, is_live: bool, **told: Any
    ) -> HTMLResponse:
        text = self._templates.get_template(template).render(
            directory=self._looks.path,
            allow_actions=self._place.allow_actions,
            form_token=self._keys.form,
            now_ns=time.time_ns(),
            pages=_PAGES,
            to=_to,
            is_live=is_live,
            **told,
        )
        return HTMLResponse(text, status)


def _checked(model: type[Asked], given: dict[str, Any]) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}: mend the address",
        ) from None


def _to(path: str, **query: Any) -> str:
    """The address of a page."""
    return f"{path}?{urlencode(query)}" if query else path


def _form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"this is no form: {error}") from None


def _inside(back: str) -> str:
    """Where a form leads back to: a page of ours, whatever it says."""
    # Browsers read two slashes, of either kind, as the beginning of another host.
    is_ours = back.startswith("/") and not back.startswith("//") and "\\" not in back
    return back if is_ours and back.isprintable() else "/"


def _line(text: str) -> str:
    line = render.printable(text.partition("\n")[0])
    return line if len(line) <= _LINE_CHARACTERS_MAX else f"{line[:_LINE_CHARACTERS_MAX]}…"


def _body(body: bytes) -> str:
    if len(body) <= _BODY_BYTES_MAX:
        return render.body_text(body)
    shown = render.printable(body[:_BODY_BYTES_MAX].decode(errors="replace"))
    return f"{shown}… ({len(body)} bytes)"


def _bars(job: JobView, now_ns: int) -> list[Bar]:
    """How long it waited, and each of its latest attempts."""
    attempts = job.attempts[-_BARS_MAX:]
    first_ns = job.enqueued_ns if len(attempts) == len(job.attempts) else attempts[0].started_ns
    end_ns = max(job.settled_ns or now_ns, first_ns + 1)

    def bar(kind: str, start_ns: int, stop_ns: int, title: str) -> Bar:
        start = _BAR_UNITS * (start_ns - first_ns) / (end_ns - first_ns)
        width = max(_BAR_UNITS * (stop_ns - start_ns) / (end_ns - first_ns), 2)
        return Bar(kind, round(start, 1), round(width, 1), title)

    started_ns = attempts[0].started_ns if attempts else end_ns
    waited = bar("wait", first_ns, started_ns, f"waited {render.precise(started_ns - first_ns)}")
    ran = [
        bar(
            one.outcome or "running",
            one.started_ns,
            one.ended_ns or now_ns,
            f"attempt {one.number}: {one.outcome or 'running'}, "
            f"{render.precise((one.ended_ns or now_ns) - one.started_ns)}",
        )
        for one in attempts
    ]
    return [waited, *ran]
