"""Puts the pages, the API and the door together."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from taskq.engine import LogReader
from taskq.errors import TaskqError
from taskq_plugins.looks.reading import Looks
from taskq_plugins.web.acts import Acts
from taskq_plugins.web.api import Api
from taskq_plugins.web.door import API, Door, path_of, root_of
from taskq_plugins.web.pages import Pages
from taskq_plugins.web.problems import Problem, problem_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope

    from taskq import TaskQ
    from taskq_plugins.web.door import Place
    from taskq_plugins.web.keys import Keys


def make_site(path: str, place: Place, keys: Keys, app: TaskQ | None = None) -> Door:
    """Yield the page of the log in a directory, as an ASGI app.

    Args:
        path: the directory.
        place: where the page is found.
        keys: what shows who asks.
        app: the app that has it open, if it is this program's own.
    """
    looks = Looks(path, None if app is None else app.stats)
    acts = Acts(looks, app, hides=not place.show_secrets)
    api = Api(looks, acts)
    pages = Pages(looks, api.acts, place, keys, app)

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
        exception_handlers=dict.fromkeys((Problem, TaskqError, HTTPException), refuse_error),
        lifespan=life,
    )
    return Door(inner, place, keys, refuse)


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, TaskqError):
        return problem_of(error)
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    remedies = {
        HTTPStatus.NOT_FOUND: "there is nothing at this address: begin at /, or /api/openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: "this address takes another method: see /api/openapi.json",
    }
    return Problem(status, remedies.get(status, error.detail), headers=dict(error.headers or {}))
