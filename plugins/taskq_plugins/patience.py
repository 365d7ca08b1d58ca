"""How long a server waits for what a stranger said would come, and who goes when it is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from asyncio import TimerHandle

#: For a request line and its headers, and for a body, from when it is waited for.
HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 60.0


class Patient(H11Protocol):
    """HTTP/1.1 whose heads and bodies come soon, or the line is closed: uvicorn waits for ever.

    Where all lines are taken that may be, the one that was waited for longest makes room, so that
    who sends nothing shuts nobody out.
    """

    #: of a body; a server that takes large ones has its own
    body_seconds: float | None = None
    _deadline: TimerHandle | None = None
    _awaited: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; wait for the rest."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._awaited = None
        self._set_deadline(None)

    def _watch(self) -> None:
        """Set a deadline for what is waited for now, unless it has one already."""
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

    def _make_room(self) -> None:
        """Close the line whose request is waited for longest, when there is one too many."""
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        waiting = [
            (line._deadline.when(), line)
            for line in self.connections
            if isinstance(line, Patient) and line is not self and line._deadline is not None
            if line.cycle is None or line.cycle.response_complete
        ]
        if waiting:
            min(waiting, key=lambda waiter: waiter[0])[1]._give_up()
