"""The hub as a process: sockets, limits, and a prompt end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl

from taskq_plugins.hub.server import BODY_SECONDS
from taskq_plugins.patience import Patient, config_of

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from taskq_plugins.hub.server import Server

_log: Final = logging.getLogger("taskq")
#: Connections: long polls of devices, and others.
_LINES_MAX: Final = 2_500
_STRANGERS_MAX: Final = 400
#: Descriptors for these, and for their files.
_FILES: Final = 4_096
#: Read-ahead of a body: the size of one read.
_AHEAD_BYTES: Final = 256 * 1024
_HEAD_BYTES_MAX: Final = 16 * 1024
#: Parameters of mallopt(3): arenas, bytes from which on memory is mapped, and is given back.
_MALLOC: Final = {-8: 1, -3: 16 * 2**20, -1: 64 * 2**20}
#: Time for running requests at the end, and for the process to exit.
_DRAIN_SECONDS: Final = 2
_END_SECONDS: Final = 5.0
_TELL_SECONDS: Final = 1.0


class _Flow(FlowControl):
    """Reads on from a device while little of its body waits: a pause is two system calls."""

    def __init__(self, line: Protocol) -> None:
        super().__init__(line.transport)
        self._line = line

    def pause_reading(self) -> None:
        line = self._line
        is_coming = line.conn.their_state is h11.SEND_BODY
        if not (is_coming and len(line.cycle.body) <= _AHEAD_BYTES and line.is_known):
            super().pause_reading()


class Protocol(Patient):
    """A line to a device: how slowly a body may come is seen to where it is read."""

    body_seconds = BODY_SECONDS
    strangers_max = _STRANGERS_MAX
    _was_known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(self)

    @property
    def is_known(self) -> bool:
        scope = getattr(self, "scope", None) or {}
        self._was_known |= "device" in scope.get("state", {})
        return self._was_known


class Listener(uvicorn.Server):
    """Serves a hub until it is asked to end, then ends promptly.

    Answers are on the disk already, so aborting the rest loses nothing.
    """

    def __init__(
        self,
        hub: Server,
        tls: tuple[str | None, str | None] = (None, None),
        site: ASGIApp | None = None,
        **more: Any,
    ) -> None:
        self._hub = hub
        super().__init__(
            config_of(
                site or hub.app,
                tls,
                lines_max=_LINES_MAX,
                http=Protocol,
                h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
                **more,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        super().run(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._hub.end()
        timer = threading.Timer(_END_SECONDS, self._give_up)
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        text = "hub: something hangs, so it ends without: what was answered is on the disk"
        telling = threading.Thread(target=_log.warning, args=(text,), daemon=True)
        telling.start()
        telling.join(_TELL_SECONDS)  # the reader of the log may hang
        os._exit(1)


def keep_memory() -> None:
    """Make malloc keep a body's memory for the next one: each MiB costs 160 page faults otherwise.

    ``MALLOC_…`` variables of the user stay in force.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        with contextlib.suppress(AttributeError, OSError):  # it is the GNU library's
            library = ctypes.CDLL(None)
            for parameter, value in _MALLOC.items():
                library.mallopt(parameter, value)
