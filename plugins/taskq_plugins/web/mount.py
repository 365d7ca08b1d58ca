"""Build the site of a log, or of a hub with many logs, from the pages, the API and the door."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from taskq import TaskQ, engine, errors, values
from taskq.text import flat
from taskq_plugins.looks.reading import Looks
from taskq_plugins.patience import Patient, config_of, listen
from taskq_plugins.web import door, endpoints
from taskq_plugins.web.api import Acts, Api
from taskq_plugins.web.pages import Pages

#: Characters of a visitor's name in a record of an act.
_NAME_CHARACTERS_MAX: Final = 50
#: Exceptions that become a problem document, without a traceback.
_ERRORS: Final = (endpoints.Problem, errors.TaskqError, HTTPException, ClientDisconnect)


def make_site(
    path: str,
    place: door.SiteAddress,
    keys: door.AccessKeys,
    app: TaskQ | None = None,
    *,
    is_copy: bool = False,
) -> door.Door:
    """Return the page of the log in a directory, as an ASGI app.

    Args:
        path: the directory.
        place: address and rights.
        keys: keys of programs and browsers.
        app: this program's own app on the log, if any.
        is_copy: whether the log is a hub's copy of a device's log.
    """
    looks = Looks(path, None if app is None else app.stats)
    acts = Acts(looks, app, hides=not place.show_secrets)
    api = Api(looks, acts)
    pages = Pages(looks, api.acts, place, keys, app, acts.note_enqueued, is_copy=is_copy)

    def refuse(scope: Scope, problem: endpoints.Problem) -> Response:
        if not door.path_of(scope).startswith(door.API):
            return pages.refusal(problem, door.root_of(scope))
        return JSONResponse(
            problem.as_dict(), problem.status, problem.headers, "application/problem+json"
        )

    async def refuse_error(request: Request, error: Exception) -> Response:
        return refuse(request.scope, _problem(error))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        # The first look folds the whole log, so it runs before the first request. The log of an app
        # may not exist yet.
        with contextlib.suppress(errors.TaskqError):
            await looks.read(engine.LogReader.stats)
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

    async def acting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in door.SAFE:
            await inner(scope, receive, send)
            return
        name = flat(scope["state"]["visitor"].name).replace(":", " ")[:_NAME_CHARACTERS_MAX]
        with acts.app.acting(f"{name} (web)" if name else "web"):
            await inner(scope, receive, send)

    return door.Door(acting, place, keys, refuse)


#: State of a hub's devices, by name.
Standing: TypeAlias = "Callable[[], dict[str, dict[str, Any]]]"

#: A silent device counts as late after this time.
_LATE_NS: Final = 3_600 * values.SECOND_NS
_ID_CHARACTERS_MAX: Final = 80
#: Larger errors of a clock are shown.
_SKEW_NS: Final = values.SECOND_NS


def make_hub(
    path: str, place: door.SiteAddress, keys: door.AccessKeys, standing: Standing
) -> door.Door:
    """Return the page of a hub: its devices, and the page of each log below ``/logs``.

    Args:
        path: the hub's directory.
        place: address and rights, without acts, since a copy must equal its device's log.
        keys: keys of programs and browsers.
        standing: returns the state of the devices.
    """
    place = replace(place, allow_actions=False)
    pages, sites = Pages(Looks(path), {}, place, keys), dict[str, door.Door]()

    def refuse(scope: Scope, problem: endpoints.Problem) -> Response:
        return pages.refusal(problem, door.root_of(scope))

    async def refuse_error(request: Request, error: Exception) -> Response:
        return refuse(request.scope, _problem(error))

    async def devices(request: Request) -> Response:
        known = await anyio.to_thread.run_sync(_rows, path, standing)
        known.sort(key=lambda row: (not row["is_late"], -row["behind"]))
        links = (("/", "Devices"),)
        return pages.render(
            "hub.html", door.root_of(request.scope), devices=known, pages=links, is_live=True
        )

    async def find(request: Request) -> Response:
        text = request.query_params.get("q", "").strip()[:_ID_CHARACTERS_MAX]
        names = await anyio.to_thread.run_sync(_log_with, path, text)
        if names is None:
            whole = "" if "-" in text else ": give its whole id"
            raise endpoints.Problem(HTTPStatus.NOT_FOUND, f"no device has job {text!r}{whole}")
        device, log_id = names
        return RedirectResponse(f"{door.root_of(request.scope)}/logs/{device}/{log_id}/jobs/{text}")

    async def log(scope: Scope, receive: Receive, send: Send) -> None:
        names = scope["path_params"]["device"], scope["path_params"]["log"]
        if names not in await anyio.to_thread.run_sync(_logs, path):
            raise endpoints.Problem(HTTPStatus.NOT_FOUND, "this hub has no such log")
        home = str(Path(path, "devices", *names))
        if home not in sites:
            sites[home] = make_site(home, place, keys, is_copy=True)
        await sites[home](scope, receive, send)

    inner = Starlette(
        routes=[
            Route("/", devices), Route("/find", find),
            Route(door.ENTRY, pages.enter, methods=["GET", "POST"]),
            Route("/static/{name}", pages.file),
            Mount("/logs/{device}/{log}", log),
        ],
        exception_handlers=dict.fromkeys(_ERRORS, refuse_error),
    )  # fmt: skip
    return door.Door(inner, place, keys, refuse)


def _rows(path: str, standing: Standing) -> list[dict[str, Any]]:
    now_ns, logs = time.time_ns(), _logs(path)
    return [
        {
            "device": device,
            "logs": [log for owner, log in logs if owner == device],
            "is_late": facts["state"] == "active"
            and abs(now_ns - (facts.get("heard_ns") or facts.get("enrolled_ns") or 0)) > _LATE_NS,
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
    prefix, lsn = engine.Tag.of_id(job_id)
    for device, log_id in sorted(_logs(hub)):
        path = str(Path(hub, "devices", device, log_id))
        with contextlib.suppress(errors.TaskqError):
            identity = engine.Identity.read(engine.LocalDisk(), path)
            if prefix and identity is not None and identity.tag.takes(prefix, lsn):
                with engine.LogReader.open(path) as reader:
                    reader.find_job(job_id)
                    return device, log_id
    return None


def _problem(error: Exception) -> endpoints.Problem:
    if isinstance(error, endpoints.Problem):
        return error
    if isinstance(error, errors.TaskqError):
        return endpoints.problem_of(error)
    if isinstance(error, ClientDisconnect):
        return endpoints.Problem(
            HTTPStatus.BAD_REQUEST, "the body ended early, or is not chunked as its head says"
        )
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    remedies = {
        HTTPStatus.NOT_FOUND: "there is nothing at this address: begin at /, or /api/openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: "this address takes another method: see /api/openapi.json",
    }
    return endpoints.Problem(
        status, remedies.get(status, error.detail), headers=dict(error.headers or {})
    )


#: Connections at a time; further ones get 503 until one ends.
_CONNECTIONS_MAX: Final = 256
#: Request line and headers together.
_HEAD_BYTES_MAX: Final = 32 * 1024
#: Time for running answers at shutdown.
_DRAIN_SECONDS: Final = 3


def taskq_web(
    app: TaskQ,
    *,
    allow_actions: bool = False,
    allows: Callable[[Request], bool | endpoints.Visitor] | None = None,
) -> ASGIApp:
    """Return the app's page, for mounting in a web app.

    ``site.mount("/taskq", taskq_web(app, allows=is_admin))``

    Args:
        app: the app with the log to show.
        allow_actions: whether the page's buttons may change the log.
        allows: check by the web app's own login. ``True`` is an admin, ``Visitor("ana",
            Role.READ)`` a person with a name for the audit and a role. None: a browser enters
            once by the address in the process's log, as with ``taskq web``; for a single process.
    """
    keys = door.AccessKeys(root=door.kept_root(str(app.data_dir)))
    if allows is None:
        line = "the page of taskq: below where it is mounted open %s?token=%s, once"
        logging.getLogger("taskq").warning(line, door.ENTRY, keys.entry())
    place = door.SiteAddress(scheme="http", hosts=(), allow_actions=allow_actions, allows=allows)
    return make_site(str(app.data_dir), place, keys, app)


@contextlib.contextmanager
def worker_page(app: TaskQ) -> Iterator[str]:
    """Serve the app's page on a thread while the block runs; yield an address that opens once.

    Raises:
        TaskqError: this process may not listen.
    """
    keys = door.AccessKeys(root=door.kept_root(str(app.data_dir)))
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        place = door.SiteAddress(scheme="http", hosts=hosts, allow_actions=True)
        server = server_of(make_site(str(app.data_dir), place, keys, app), None)
        thread = engine.start_thread(partial(server.run, [listener]), "taskq-web")
        try:
            yield f"{place.address}{door.ENTRY}?token={keys.entry()}"
        finally:
            server.should_exit = True
            thread.join()


def serve(
    site: ASGIApp, listener: socket.socket, tls: tuple[str, str] | None, ready: Callable[[], None]
) -> None:
    """Serve a site until Ctrl-C or SIGTERM.

    Args:
        site: the ASGI application.
        listener: a listening socket.
        tls: files of certificate and key.
        ready: called before the first answer.
    """
    server = server_of(site, tls)
    ready()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def server_of(site: ASGIApp, tls: tuple[str, str] | None) -> uvicorn.Server:
    """Return a server of a site; certificate and key as for ``serve``.

    Raises:
        TaskqError: certificate or key cannot be used.
    """
    config = config_of(
        site,
        tls or (None, None),
        lines_max=_CONNECTIONS_MAX,
        http=Patient,
        # Without a proxy, forwarding headers are not trusted.
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    return uvicorn.Server(config)
