"""Listens, and answers with a site until it is stopped."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

import uvicorn

from taskq.errors import TaskqError
from taskq_plugins.patience import Patient, config_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

#: Connections at a time; more are answered with 503 until one ends.
_CONNECTIONS_MAX: Final = 256
#: Request line and headers together.
_HEAD_BYTES_MAX: Final = 32 * 1024
#: For answers that are under way when it is stopped.
_DRAIN_SECONDS: Final = 3


@contextlib.contextmanager
def listen(address: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens there, at a free port for 0.

    Raises:
        TaskqError: nobody may listen there, or somebody does.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
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
