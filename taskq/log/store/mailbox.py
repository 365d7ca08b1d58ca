"""The queue between callers and the storage thread, with functions to wake either side."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from taskq.core.errors import LogClosed
from taskq.log.commit.answers import refusals
from taskq.log.config import BATCH_BYTES_MAX
from taskq.log.decide.enqueue import take
from taskq.log.machine.threads import Reporter
from taskq.log.requests import Op, Order, Request
from taskq.log.store.caller_commit import CallerCommit

_log: Final = Reporter("taskq")
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)


class Mailbox:
    """Requests and chores for a log's storage thread; any thread may send.

    Attributes:
        requests: not yet taken by the thread; ``next`` takes one. The operand of an ENQUEUE_RUN is
            a line here, which its port keeps filling; see ``enqueue.take``.
        orders: requested compactions.
        chores: calls for the thread between two batches.
        waiting_for_room: called by ``emptied``.
        asleep: whether the thread must be poked.
        turns: number of the thread's checks of the mailbox.
        poke: wakes the thread; does nothing before the log is open.
        here: commits on callers' threads, while the log is open.
        serves_loops: whether awaited calls need not wait for the disk.
        rests: whether the thread checks the mailbox in a few milliseconds by itself.
        usable: False once closed, and in a forked child.
        closing: set once; the thread answers pending requests and ends.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.requests: deque[Request] = deque()
        self.orders: deque[Order] = deque()
        self.chores: deque[Callable[[], object]] = deque()
        self.asleep: bool = False
        self.turns = 0
        self.poke: Callable[[], None] = _nobody_there
        self.here: CallerCommit | None = None
        self.serves_loops = self.rests = False
        self.usable = True
        self.closing: bool = False
        self._ended = False
        #: two threads may empty it: one takes from a line at a time
        self._taking = threading.RLock()
        self.waiting_for_room: deque[Callable[[], object]] = deque()

    @property
    def has_work(self) -> bool:
        """Return whether the thread must not sleep."""
        return bool(
            self.requests or self.closing or self.chores or self.orders or self.waiting_for_room
        )

    def closed(self) -> LogClosed:
        return LogClosed(f"{self.path}: the log is closed here; open it again")

    def order(self, order: Order) -> None:
        self.orders.append(order)
        self.wake_up()

    def between_batches(self, chore: Callable[[], object]) -> None:
        """Run ``chore`` on the storage thread, while that holds no lock."""
        self.chores.append(chore)
        self.wake_up()

    def when_room(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once requests have been taken."""
        self.waiting_for_room.append(wake)
        self.wake_up()

    def wake_up(self) -> None:
        """Wake the thread; if it has ended, answer the requests here."""
        self.asleep = False
        if self._ended:
            self.asleep = True
            self.refuse_rest()
            return
        self.poke()

    def next(self, room: int) -> Request | None:
        """Take the oldest request, of a line up to ``room`` bytes of jobs; None for an empty line.

        Raises:
            IndexError: the mailbox is empty.
        """
        request = self.requests.popleft()
        if request[0] != _ENQUEUE_RUN:
            return request
        op, port, _, line = request
        with self._taking:
            run = take(line, room)
        if line:
            # Jobs beyond the room, or new ones: the line stays the oldest request.
            self.requests.appendleft(request)
        return (op, port, run, run) if run.futures else None

    def emptied(self) -> None:
        while self.waiting_for_room:
            run_chore(self.waiting_for_room.popleft())

    def end(self) -> None:
        self._ended = True
        self.here = None
        # A sender checks ``asleep`` after it has sent. If it sends only now, it must call
        # ``wake_up``, which answers the request.
        self.asleep = True
        self.refuse_rest()

    def refuse_rest(self) -> None:
        closed = LogClosed(f"{self.path}: the log was closed")
        with contextlib.suppress(IndexError):
            while True:
                request = self.next(BATCH_BYTES_MAX)
                for answer in refusals([request] if request else [], closed):
                    answer[0].deliver([answer])
        with contextlib.suppress(IndexError):
            while True:
                order = self.orders.popleft()
                order.port.deliver([(order.port, order.future, closed)])
        with contextlib.suppress(IndexError):
            while True:
                run_chore(self.waiting_for_room.popleft())

    def leave_to_parent(self) -> None:
        """Detach the mailbox in a forked child: its reading thread belongs to the parent."""
        self.poke, self.here = _nobody_there, None
        self.closing = True


def _nobody_there() -> None: ...


def run_chore(chore: Callable[[], object]) -> None:
    """Call a chore, and log its error."""
    try:
        chore()
    except Exception:  # noqa: BLE001 - the thread goes on
        _log.exception("a chore on the storage thread raised")
