"""The queue between callers and the storage thread: requests, and what wakes either side."""

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
    """Take what callers leave for the storage thread of a log; any thread may send.

    Attributes:
        requests: not yet taken by the thread; ``next`` takes one. The operand of an ENQUEUE_RUN is
            a line here, which its port goes on filling; see ``runs``.
        orders: compactions that somebody asked for.
        chores: calls for the thread to make between two batches.
        waiting_for_room: called by ``emptied``.
        asleep: whether the thread must be poked to look.
        turns: how often the thread has looked.
        poke: wakes the thread; does nothing before the log is open.
        here: commits on callers' threads, while the log is open.
        serves_loops: whether calls that are awaited wait for no disk.
        rests: whether the thread looks by itself again in a few milliseconds.
        usable: False once closed, and in a forked child.
        closing: set once; the thread answers what it has and ends.
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
        #: of the two threads that may empty it, one takes of a line at a time
        self._taking = threading.RLock()
        self.waiting_for_room: deque[Callable[[], object]] = deque()

    @property
    def has_work(self) -> bool:
        """Return whether the thread must not go to sleep."""
        return bool(
            self.requests or self.closing or self.chores or self.orders or self.waiting_for_room
        )

    def closed(self) -> LogClosed:
        return LogClosed(f"{self.path}: the log is closed here; open it again")

    def order(self, order: Order) -> None:
        self.orders.append(order)
        self.wake_up()

    def between_batches(self, chore: Callable[[], object]) -> None:
        """Run ``chore`` on the storage thread, while it holds no lock."""
        self.chores.append(chore)
        self.wake_up()

    def when_room(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once the requests have been taken."""
        self.waiting_for_room.append(wake)
        self.wake_up()

    def wake_up(self) -> None:
        """Make the thread look; once it has ended nobody does, so it is answered here."""
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
            # More than there is room for, or that came at this very moment: it stays the oldest.
            self.requests.appendleft(request)
        return (op, port, run, run) if run.futures else None

    def emptied(self) -> None:
        while self.waiting_for_room:
            run_chore(self.waiting_for_room.popleft())

    def end(self) -> None:
        self._ended = True
        self.here = None
        # A sender looks at ``asleep`` after it has sent: if it saw the log open, and sends only
        # now, it has to call ``wake_up``, and answers itself.
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
        """In a forked child: the thread that reads this belongs to the parent."""
        self.poke, self.here = _nobody_there, None
        self.closing = True


def _nobody_there() -> None: ...


def run_chore(chore: Callable[[], object]) -> None:
    """Call it; what it raises is logged."""
    try:
        chore()
    except Exception:  # noqa: BLE001 - the thread outlives it
        _log.exception("a chore on the storage thread raised")
