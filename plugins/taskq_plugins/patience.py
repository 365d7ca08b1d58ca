"""Time limits for requests, and the choice of the connection to close on a full server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from taskq.errors import TaskqError

#: For a request line with its headers, and for a body, from the beginning of the wait.
HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 60.0


class Patient(H11Protocol):
    """HTTP/1.1 with time limits for heads and bodies; uvicorn has none.

    When all connections are taken, the connection with the longest wait is closed, so idle
    strangers cannot lock other clients out.
    """

    #: limit for a body; None: ``BODY_SECONDS``
    body_seconds: float | None = None
    #: connections without authentication; None: no limit of their own
    strangers_max: int | None = None
    _deadline: TimerHandle | None = None
    _awaited: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._awaited = None
        self._set_deadline(None)

    def _watch(self) -> None:
        state = self.conn.their_state
        if state is self._awaited or self.transport.is_closing():
            return
        self._awaited = state
        body_seconds = BODY_SECONDS if self.body_seconds is None else self.body_seconds
        self._set_deadline({h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: body_seconds}.get(state))

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    @property
    def is_known(self) -> bool:
        return False

    def _make_room(self) -> None:
        """Close the connection with the longest wait for a request, when there is one too many.

        If strangers have too many, choose from the address with most of their connections.
        """
        lines = [line for line in self.connections if isinstance(line, Patient)]
        strangers = [line for line in lines if not line.is_known]
        if self.strangers_max is not None and len(strangers) > self.strangers_max:
            of = Counter(_address(line) for line in strangers)
            busiest = max(of, key=lambda address: of[address])
            _close_longest(line for line in strangers if _address(line) == busiest)
        elif self.limit_concurrency is not None and len(lines) >= self.limit_concurrency:
            waits = (line for line in lines if line.cycle is None or line.cycle.response_complete)
            _close_longest(line for line in waits if line is not self)


def _address(line: Patient) -> str:
    return line.client[0] if line.client else ""


def _close_longest(lines: Iterable[Patient]) -> None:
    waiting = [(line._deadline.when(), line) for line in lines if line._deadline is not None]
    if waiting:
        min(waiting, key=lambda waiter: waiter[0])[1]._give_up()


def config_of(
    site: ASGIApp, tls: tuple[str | None, str | None], *, lines_max: int, **more: Any
) -> uvicorn.Config:
    """Return uvicorn's configuration for a site.

    Args:
        site: the ASGI application.
        tls: files of certificate and key, or None.
        lines_max: connections at a time.
        more: further arguments of ``uvicorn.Config``.
    """
    cert, key = tls
    config = uvicorn.Config(
        site,
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=lines_max,
        ssl_certfile=cert,
        ssl_keyfile=key,
        **more,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise TaskqError(
            f"certificate {cert} and key {key} are of no use: {error.strerror or error}. Give both "
            f"as PEM files"
        ) from error
    return config


@contextlib.contextmanager
def listen(address: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens at the address; port 0 takes a free port.

    Raises:
        TaskqError: this process may not listen there, or another one already does.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # asyncio sets TCP_NODELAY, for small answers, only if the socket names its protocol.
        made = socket.create_server((address, port), family=family)
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, made.detach())
    except OSError as error:
        raise TaskqError(f"cannot listen at {address}:{port}: {error.strerror or error}") from error
    with listener:
        yield listener
