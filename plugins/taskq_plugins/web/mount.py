"""Answer with a site: at a port until stopped, within a web app, or beside a worker."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.requests import Request

from taskq.errors import TaskqError
from taskq_plugins.patience import Patient, config_of
from taskq_plugins.web.door import ENTRY, Place
from taskq_plugins.web.keys import Keys, kept_root
from taskq_plugins.web.site import make_site

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from taskq import TaskQ


#: Connections at a time; more are answered with 503 until one ends.
_CONNECTIONS_MAX: Final = 256
#: Request line and headers together.
_HEAD_BYTES_MAX: Final = 32 * 1024
#: For answers that are under way when it is stopped.
_DRAIN_SECONDS: Final = 3


def taskq_web(
    app: TaskQ,
    *,
    allow_actions: bool = False,
    allows: Callable[[Request], bool] | None = None,
) -> ASGIApp:
    """Show the app's page within a web app, which mounts what this gives.

    ``site.mount("/taskq", taskq_web(app, allows=is_admin))``

    Args:
        app: whose log it shows.
        allow_actions: whether it has buttons that change it.
        allows: whether the one who asks may look, by the web app's own login. None: who opens the
            address that is told to the log once, as with ``taskq web``; that fits one process.
    """
    keys = Keys(root=kept_root(str(app.data_dir)))
    if allows is None:
        line = "the page of taskq: below where it is mounted open %s?token=%s, once"
        logging.getLogger("taskq").warning(line, ENTRY, keys.entry())
    place = Place(scheme="http", hosts=(), allow_actions=allow_actions, allows=allows)
    return make_site(str(app.data_dir), place, keys, app)


@contextlib.contextmanager
def worker_page(app: TaskQ) -> Iterator[str]:
    """Show the app's page on a thread while the block runs; gives the address to open, once.

    Raises:
        TaskqError: nobody may listen here.
    """
    keys = Keys(root=kept_root(str(app.data_dir)))
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        place = Place(scheme="http", hosts=hosts, allow_actions=True)
        server = server_of(make_site(str(app.data_dir), place, keys, app), None)
        thread = Thread(target=server.run, args=([listener],), name="taskq-web")
        thread.start()
        try:
            yield f"{place.address}{ENTRY}?token={keys.entry()}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def listen(address: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens there, at a free port for 0.

    Raises:
        TaskqError: nobody may listen there, or somebody does.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # With its protocol named asyncio sends small answers at once (TCP_NODELAY).
        made = socket.create_server((address, port), family=family)
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, made.detach())
    except OSError as error:
        raise TaskqError(f"cannot listen at {address}:{port}: {error.strerror or error}") from error
    with listener:
        yield listener


def serve(
    site: ASGIApp, listener: socket.socket, tls: tuple[str, str] | None, ready: Callable[[], None]
) -> None:
    """Answer until Ctrl-C or SIGTERM.

    Args:
        site: what answers.
        listener: a socket that listens.
        tls: files of certificate and key.
        ready: called before the first answer.
    """
    server = server_of(site, tls)
    ready()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def server_of(site: ASGIApp, tls: tuple[str, str] | None) -> uvicorn.Server:
    """Return what answers with a site; certificate and key as for ``serve``.

    Raises:
        TaskqError: those are of no use.
    """
    config = config_of(
        site,
        tls or (None, None),
        lines_max=_CONNECTIONS_MAX,
        http=Patient,
        # Nobody stands between: what a request says of others is not believed.
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    return uvicorn.Server(config)
