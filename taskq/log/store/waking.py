"""How the storage thread wakes an event loop without giving up the GIL.

``loop.call_soon_threadsafe`` sends a byte through a socket, and ``send`` gives the GIL up. The
woken loop takes it at once, and the storage thread gets it back only when the loop has run
everything that was ready: with 64 producers it spent a fifth of its time there, before it could
even begin to sync. A bell is a pipe that the loop reads, rung by a write that keeps the GIL.
"""

from __future__ import annotations

import contextlib
import os
from asyncio import CancelledError, InvalidStateError
from typing import TYPE_CHECKING, Any

from taskq.log.machine import syscalls

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Generator
    from contextvars import Context

    from taskq.log.requests import Duplicate

_DRAIN_BYTES = 512


class Bell:
    """Calls ``on_ring`` in a loop. Made there; rung from anywhere.

    Raises:
        NotImplementedError: this kind of loop reads no pipes.
    """

    def __init__(self, loop: AbstractEventLoop, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._read, self._write = os.pipe()
        try:
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
            loop.add_reader(self._read, self._rung)
        except BaseException:
            self.close()
            raise

    def ring(self) -> None:
        """Wake the loop; a pipe that is full rings already, and one that is closed wakes nobody."""
        with contextlib.suppress(OSError):
            syscalls.write(self._write, b"\1")

    def leave(self, loop: AbstractEventLoop) -> None:
        """Let the loop, which goes on, forget the pipe, and give it back; on the loop's thread."""
        loop.remove_reader(self._read)
        self.close()

    def close(self) -> None:
        """Give the pipe back. The loop is closed, or lets go of it as it closes."""
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._read = self._write = -1

    def __del__(self) -> None:
        if self._read >= 0:
            self.close()

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, _DRAIN_BYTES)
        self._on_ring()


# What one awaited enqueue waits for: a future that wakes its task at once.
#
# ``asyncio.Future`` wakes its task through ``loop.call_soon``: one more handle, made, queued and
# run in Python for every job, about 1 µs of the 12 that a job costs in all. Answers come in
# batches, on a turn of the loop that belongs to no task, so the waiting tasks can be stepped right
# there. This is the part of a future's protocol that a task uses, for one waiter; other answers are
# ordinary futures.


class Reply:
    """An answer to come, awaited by one task."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_context",
        "_done",
        "_error",
        "_loop",
        "_value",
        "_wake",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._done = False
        self._error: BaseException | None = None
        self._wake: Callable[[Reply], object] | None = None
        self._asyncio_future_blocking = False

    def __await__(self) -> Generator[Any, None, int | Duplicate]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> AbstractEventLoop:
        """The loop of the task that waits."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Reply], object], *, context: Context) -> None:
        """A task waits."""
        if self._wake is not None:
            raise InvalidStateError("a reply is awaited once")
        self._wake = wake
        self._context = context

    def done(self) -> bool:
        """Whether it was answered or withdrawn; the storage thread asks, too."""
        return self._done

    def cancelled(self) -> bool:
        """Whether the task gave up."""
        return isinstance(self._error, CancelledError)

    def cancel(self, msg: object = None) -> bool:
        """The task gives up: it is woken as by any other future."""
        if self._done:
            return False
        self._done = True
        self._error = CancelledError() if msg is None else CancelledError(msg)
        if self._wake is not None:
            self._loop.call_soon(self._wake, self, context=self._context)
        return True

    def result(self) -> int | Duplicate:
        """The answer."""
        if self._error is not None:
            raise self._error
        return self._value

    def set_result(self, value: int | Duplicate) -> None:
        """Answer, and step the task; called on a turn of the loop that is no task's."""
        self._value = value
        self._done = True
        if self._wake is not None:
            self._context.run(self._wake, self)

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error."""
        self._error = error
        self._done = True
        if self._wake is not None:
            self._context.run(self._wake, self)
