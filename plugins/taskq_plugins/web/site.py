"""Put the pages, the API and the door together, of a log or of a hub with the logs of many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from taskq.engine import LogReader
from taskq.errors import TaskqError
from taskq.values import SECOND_NS
from taskq_plugins.looks.reading import Looks
from taskq_plugins.web.acts import Acts
from taskq_plugins.web.api import Api
from taskq_plugins.web.door import API, ENTRY, Door, Place, path_of, root_of
from taskq_plugins.web.keys import Keys
from taskq_plugins.web.pages import Pages
from taskq_plugins.web.problems import Problem, problem_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from taskq import TaskQ


#: What a request ends in that is answered with a problem, and with no traceback.
_ERRORS: Final = (Problem, TaskqError, HTTPException, ClientDisconnect)


def make_site(
    path: str, place: Place, keys: Keys, app: TaskQ | None = None, *, is_copy: bool = False
) -> Door:
    """Yield the page of the log in a directory, as an ASGI app.

    Args:
        path: the directory.
        place: where the page is found.
        keys: what shows who asks.
        app: the app that has it open, if it is this program's own.
        is_copy: it is a copy of a device's log, on the page of a hub.
    """
    looks = Looks(path, None if app is None else app.stats)
    acts = Acts(looks, app, hides=not place.show_secrets)
    api = Api(looks, acts)
    pages = Pages(looks, api.acts, place, keys, app, is_copy=is_copy)

    def refuse(scope: Scope, problem: Problem) -> Response:
        if not path_of(scope).startswith(API):
            return pages.refusal(problem, root_of(scope))
        return JSONResponse(
            problem.as_dict(), problem.status, problem.headers, "application/problem+json"
        )

    async def refuse_error(request: Request, error: Exception) -> Response:
        return refuse(request.scope, _problem(error))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        # The first look folds the whole log: better before the first page is asked for. Of an app
        # that has not opened it yet there may be none.
        with contextlib.suppress(TaskqError):
            await looks.read(LogReader.stats)
        try:
            yield
        finally:
            await acts.close()
            looks.close()

    inner = Starlette(
        routes=[*pages.routes(), *api.routes()],
        exception_handlers=dict.fromkeys(_ERRORS, refuse_error),
        lifespan=life,
    )
    return Door(inner, place, keys, refuse)


#: How the devices of a hub stand, by name, as the hub has it.
Standing: TypeAlias = "Callable[[], dict[str, dict[str, Any]]]"

#: A device that was not heard of for so long is late.
_LATE_NS: Final = 3_600 * SECOND_NS
_ID_CHARACTERS_MAX: Final = 80
#: A clock that is wrong by more is worth a word.
_SKEW_NS: Final = SECOND_NS


def make_hub(path: str, place: Place, keys: Keys, standing: Standing) -> Door:
    """Return the page of a hub: its devices, and below ``/logs`` the page of each of their logs.

    Args:
        path: the hub's directory.
        place: where the page is found; copies are changed by their devices alone.
        keys: what shows who asks.
        standing: tells how the devices stand.
    """
    place = replace(place, allow_actions=False)
    pages, sites = Pages(Looks(path), {}, place, keys), dict[str, Door]()

    def refuse(scope: Scope, problem: Problem) -> Response:
        return pages.refusal(problem, root_of(scope))

    async def refuse_error(request: Request, error: Exception) -> Response:
        return refuse(request.scope, _problem(error))

    async def devices(request: Request) -> Response:
        known = await anyio.to_thread.run_sync(_rows, path, standing)
        known.sort(key=lambda row: (not row["is_late"], -row["behind"]))
        links = (("/", "Devices"),)
        return pages.render(
            "hub.html", root_of(request.scope), devices=known, pages=links, is_live=True
        )

    async def find(request: Request) -> Response:
        text = request.query_params.get("q", "").strip()[:_ID_CHARACTERS_MAX]
        names = await anyio.to_thread.run_sync(_log_with, path, text)
        if names is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"no device has job {text!r}: give its whole id")
        device, log_id = names
        return RedirectResponse(f"{root_of(request.scope)}/logs/{device}/{log_id}/jobs/{text}")

    async def log(scope: Scope, receive: Receive, send: Send) -> None:
        names = scope["path_params"]["device"], scope["path_params"]["log"]
        if names not in await anyio.to_thread.run_sync(_logs, path):
            raise Problem(HTTPStatus.NOT_FOUND, "this hub has no such log")
        home = str(Path(path, "devices", *names))
        if home not in sites:
            sites[home] = make_site(home, place, keys, is_copy=True)
        await sites[home](scope, receive, send)

    inner = Starlette(
        routes=[
            Route("/", devices), Route("/find", find),
            Route(ENTRY, pages.enter), Route("/static/{name}", pages.file),
            Mount("/logs/{device}/{log}", log),
        ],
        exception_handlers=dict.fromkeys(_ERRORS, refuse_error),
    )  # fmt: skip
    return Door(inner, place, keys, refuse)


def _rows(path: str, standing: Standing) -> list[dict[str, Any]]:
    now_ns, logs = time.time_ns(), _logs(path)
    return [
        {
            "device": device,
            "logs": [log for owner, log in logs if owner == device],
            "is_late": facts["state"] == "active"
            and now_ns - (facts.get("heard_ns") or facts.get("enrolled_ns") or 0) > _LATE_NS,
            "skew_ns": skew if abs(skew := facts.get("clock_ns", 0)) > _SKEW_NS else 0,
            **facts,
        }
        for device, facts in standing().items()
    ]


def _logs(hub: str) -> set[tuple[str, str]]:
    return {
        (file.parts[-3], file.parts[-2]) for file in Path(hub, "devices").glob("*/*/taskq.json")
    }


def _log_with(hub: str, job_id: str) -> tuple[str, str] | None:
    tag = job_id.rpartition("-")[0]
    for device, log_id in sorted(_logs(hub)):
        if tag and log_id.startswith(tag):
            with (
                contextlib.suppress(TaskqError),
                LogReader.open(str(Path(hub, "devices", device, log_id))) as reader,
            ):
                reader.find_job(job_id)
                return device, log_id
    return None


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, TaskqError):
        return problem_of(error)
    if isinstance(error, ClientDisconnect):
        return Problem(
            HTTPStatus.BAD_REQUEST, "the body ended early, or is not chunked as its head says"
        )
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    remedies = {
        HTTPStatus.NOT_FOUND: "there is nothing at this address: begin at /, or /api/openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: "this address takes another method: see /api/openapi.json",
    }
    return Problem(status, remedies.get(status, error.detail), headers=dict(error.headers or {}))
