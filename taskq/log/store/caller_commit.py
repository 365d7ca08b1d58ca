"""Commits on a caller's own thread, while the storage thread sleeps and no other caller waits."""

from __future__ import annotations

import errno
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Sized
from functools import partial
from threading import get_ident, main_thread
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskq.core.errors import LogError, OutcomeUnknown
from taskq.core.kinds import RETRY, SUCCESS
from taskq.log.commit.answers import refusals
from taskq.log.config import BATCH_BYTES_MAX
from taskq.log.decide.context import BatchNeeds
from taskq.log.decide.enqueue import LINE_WIDTH
from taskq.log.machine.inside import inside, refuse_inside
from taskq.log.requests import Answer, Item, Op, Request

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from taskq.log.commit.committer import Committer
    from taskq.log.store.mailbox import Mailbox

#: Operations answered in their own batch: an interrupted caller leaves no other caller waiting.
_OPS: Final = frozenset(
    map(
        int,
        (
            Op.ENQUEUE,
            Op.ENQUEUE_MANY,
            Op.INGEST,
            Op.TRANSACT,
            Op.SETTLE,
            Op.CANCEL,
            Op.EXTEND,
        ),
    )
)
#: A commit that waits longer for the disk delays a loop. Then loops make no commits for this
#: multiple of its time.
_SLOW_SECONDS: Final = 0.001
_PATIENCE: Final = 20
#: Jobs that a loop commits on its own thread before its next turn.
_ALONE_MAX: Final = 16
_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
_SETTLE: Final = int(Op.SETTLE_NOWAIT)
_SUCCEED: Final = int(Op.SUCCEED_NOWAIT)
_CLAIM: Final = int(Op.CLAIM)
#: Most jobs that a loop commits at once, and most bytes of them, or of other processes before them:
#: less than a millisecond.
_TURN_JOBS: Final = 256
_TURN_BYTES: Final = 65_536
#: Ends of jobs without effects on files or listeners.
_SIMPLE: Final = (SUCCESS, RETRY)
_SIGNALS: Final = range(1, signal.NSIG)
#: Windows lacks it.
_PIPE: Final = getattr(signal, "SIGPIPE", None)


class Reply:
    """The answer to a plain job committed by its own thread: a future that no other code sees.

    A future of ``concurrent.futures`` costs a quarter of the commit.
    """

    __slots__ = ("_value", "done")

    #: no callbacks; see ``enqueue.answer``
    _callbacks: Final = ()

    def __init__(self) -> None:
        self._value: Any = None
        self.done: Callable[[], bool] = _no

    def set_result(self, value: object) -> None:
        self._value, self.done = value, _yes

    set_exception = set_result

    def result(self) -> Any:
        """Return the answer, or raise its error."""
        assert self.done(), "a plain job is answered in its own batch"
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def _no() -> bool:
    return False


def _yes() -> bool:
    return True


class Port(Protocol):
    """The port of a loop, for answers."""

    def deliver(self, answers: list[Answer]) -> None: ...


class Cycles(Protocol):
    """Parts of the storage thread that a caller uses in its place."""

    committer: Committer

    def commit_here(self, requests: list[Request], needs: BatchNeeds, *, syncs: bool) -> bool: ...


class CallerCommit:
    """The right to commit: of the storage thread, which makes this, and of callers.

    Handing a single request to another thread, and its answer back, costs more than its commit. So
    one lock guards the right to commit. The storage thread has it whenever it does not sleep. A
    caller that gets it without waiting acts as the storage thread for one request, and an event
    loop for the requests of one turn.

    On the main thread a signal handler may raise between any two byte codes. So a caller commits
    only if no request of another caller is pending, and does not undo an interrupted commit. The
    commit is marked as in doubt, and the storage thread drops its folds and known end, and reads
    the log again. An ordinary exception of a handler would look like the disk's, so the storage
    thread commits if a handler may raise one. It also commits for a caller that would wait for the
    writer lock or a new segment.

    Attributes:
        in_doubt: a commit was interrupted at an unknown point.
        count: number of commits by callers.
    """

    def __init__(
        self, thread: Cycles, mailbox: Mailbox, is_calm: Callable[[], bool] | None = None
    ) -> None:
        self.in_doubt: bool = False
        self.count: int = 0
        self._thread, self._mailbox = thread, mailbox
        self._is_calm = is_calm or Handlers().are_calm
        self._committer = thread.committer
        self._journal = thread.committer.journal
        self._patient_until = 0.0
        #: reentrant, since its owner is checked
        self._lock: Any = threading.RLock()
        #: for the storage thread: wait for a committing caller; allow callers to commit
        self.take: Final = self._lock.acquire
        self.leave: Final = self._lock.release
        self.take()

    def commit_for_thread(self, request: Request) -> bool:
        """Commit and sync the request of a blocking thread; False: send it.

        Raises:
            UsageError: the thread is within a commit, and would wait for itself.
        """
        refuse_inside(self._mailbox.path)
        return request[0] in _OPS and self._commit(partial(self._try_commit, request, syncs=True))

    def commit_for_loop(self, request: Request) -> bool:
        """Commit a plain job of an event loop without waiting; False: send it."""
        return self._commit_in_time(partial(self._try_commit, request, syncs=False))

    def commit_turn(self, port: Port) -> bool:
        """Commit a loop's requests in the mailbox if they are few; False: wake the thread."""
        return self._commit_in_time(partial(self._try_turn, port))

    def _commit_in_time(self, attempt: Callable[[], bool]) -> bool:
        if get_ident() in inside:
            return False
        began, busy = perf_counter(), thread_time()
        if began < self._patient_until or not self._commit(attempt):
            return False
        now = perf_counter()
        waited = now - began - (thread_time() - busy)
        if waited > _SLOW_SECONDS:
            self._patient_until = now + _PATIENCE * waited
        return True

    def _commit(self, attempt: Callable[[], bool]) -> bool:
        try:
            # Nested, since one of both may be interrupted.
            try:
                # A signal handler may enqueue at any step. The mark refuses it while this thread
                # may hold the lock, which the handler would take and release as its own.
                inside.add(get_ident())
                return attempt()
            finally:
                self._let_go()
        finally:
            self._let_go()

    def _try_commit(self, request: Request, *, syncs: bool) -> bool:
        if not (self._mailbox.asleep and self._lock.acquire(blocking=False) and self._is_free()):
            return False
        needs = BatchNeeds.of([request])
        self.in_doubt = True
        try:
            is_done = self._try_lock()
            is_due = is_done and self._thread.commit_here([request], needs, syncs=syncs)
        except BaseException as error:
            error.__cause__ = error.__cause__ or self._unknown()
            raise
        self.in_doubt = False
        self.count += is_done
        if is_due:
            self._mailbox.wake_up()
        return is_done

    def _is_free(self) -> bool:
        """Return whether no other request or answer is pending, and no rare step is due."""
        journal = self._journal
        return (
            not (self.in_doubt or self._mailbox.has_work or self._committer.has_company)
            and journal.offset < journal.segment_bytes
            and self._is_calm()
        )

    def _try_turn(self, port: Port) -> bool:
        mailbox = self._mailbox
        if not (mailbox.asleep and self._lock.acquire(blocking=False) and self._takes_turn(port)):
            return False
        left = [
            (request, request[3][2::LINE_WIDTH] if request[0] == _ENQUEUE_RUN else [])
            for request in list(mailbox.requests)
        ]
        self.in_doubt = True
        try:
            is_done = self._try_lock()
            is_due = is_done and self._commit_first(len(left))
        except BaseException as error:
            error.__cause__ = error.__cause__ or self._refuse(port, left)
            raise
        self.in_doubt = False
        self.count += is_done
        if is_due:
            mailbox.wake_up()
        return is_done

    def _commit_first(self, count: int) -> bool:
        """Commit this number of requests: other threads may have sent more since the check."""
        mailbox = self._mailbox
        taken = [mailbox.next(BATCH_BYTES_MAX) for _ in range(count)]
        requests = [request for request in taken if request is not None]
        return self._thread.commit_here(requests, BatchNeeds.of(requests), syncs=False)

    def _takes_turn(self, port: Port) -> bool:
        """Return whether all requests are few small ones of this port, and no rare step is due."""
        mailbox, committer, journal = self._mailbox, self._committer, self._journal
        return (
            not (self.in_doubt or mailbox.closing or mailbox.chores or mailbox.orders)
            and not (mailbox.waiting_for_room or committer.undecided.held)
            and not committer.facets.unfinished
            and journal.offset < journal.segment_bytes
            and self._is_little(port)
            and self._is_calm()
        )

    def _is_little(self, port: Port) -> bool:
        """Return whether the requests take less than a millisecond, and read no file."""
        jobs = size = 0
        claims = bool(self._committer.waiters.claims)
        # A copy, made in one step, since other threads go on sending.
        for op, owner, _, operand in list(self._mailbox.requests):
            if owner is not port:
                return False
            if op == _ENQUEUE_RUN:
                bodies = operand[1::LINE_WIDTH]
                jobs += len(bodies)
                size += sum(map(len, bodies))
            elif op == _SUCCEED:
                jobs += len(operand[0])
            elif op == _CLAIM:
                claims = True
            elif op != _SETTLE or any(item.kind not in _SIMPLE for item in operand[0]):
                return False
        agenda = self._committer.facets.agenda
        if claims:
            recent = self._committer.operations.context.recent.records
            waiting = _TURN_JOBS if agenda is None else agenda.table.live - len(agenda.running)
            # Other records would be read from their segment, perhaps from the disk.
            if waiting > len(recent):
                return False
            jobs += waiting
        return jobs <= _TURN_JOBS and size <= _TURN_BYTES

    def _refuse(self, port: Port, left: list[tuple[Request, list[Any]]]) -> OutcomeUnknown:
        """Answer every request that an interrupted commit of a loop may have answered."""
        unknown = self._unknown()
        requests = [request for request, futures in left if not futures]
        requests += self._committer.waiters.claim_requests()
        answers = [answer for answer in refusals(requests, unknown) if answer[0] is port]
        answers += [(port, future, unknown) for _, futures in left for future in futures]
        port.deliver(answers)
        return unknown

    def _try_lock(self) -> bool:
        """Take the writer lock if it is free, and the log continues in the open segment."""
        journal, writer = self._journal, self._journal.writer
        try:
            if not writer.try_acquire():
                return False
            hint = writer.acquire()
            here = journal.segment, journal.generation, 0
            is_known = hint and (hint.segment, hint.generation, hint.failed) == here
            # Records of other processes are read first.
            if hint and is_known and hint.offset - journal.offset <= _TURN_BYTES:
                return True
        except (LogError, OSError):  # the storage thread handles it
            pass
        writer.release()
        return False

    def _let_go(self) -> None:
        if self._lock._is_owned():
            self._lock.release()
            if self.in_doubt:
                self._mailbox.wake_up()
        inside.discard(get_ident())

    def _unknown(self) -> OutcomeUnknown:
        error = InterruptedError(errno.EINTR, "a signal handler raised")
        advice = "Look the job up before it is sent again"
        return OutcomeUnknown(self._mailbox.path, error, "the commit", advice)


class LoneCaller:
    """Decides for one event loop which plain jobs are committed on its own thread.

    The storage thread commits jobs that come together, in one frame, and jobs of a busy loop. A
    caller that enqueues repeatedly does not keep the loop from its next turn.

    Attributes:
        is_crowded: several callers are getting answers now, and may each enqueue again.
    """

    def __init__(self, mailbox: Mailbox, loop: AbstractEventLoop) -> None:
        self.is_crowded = False
        self._mailbox = mailbox
        self._loop = loop
        #: other ready handles of the loop; only asyncio's own loops have them
        self._ready: Sized = getattr(loop, "_ready", " ")
        self._committed = 0

    def try_commit(self, item: Item, future: Future[Any]) -> bool:
        """Commit a job if it is alone, and its answer need not wait for a sync; False: send it."""
        here = self._mailbox.here
        if here is None or self._ready or self.is_crowded:
            return False
        return here.commit_for_loop((_ENQUEUE, self, future, item))

    @staticmethod
    def deliver(answers: list[Answer]) -> None:
        for _, future, value in answers:
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

    def answered(self, future: Future[Any]) -> Future[Any]:
        self._committed += 1
        if self._committed % _ALONE_MAX or future.exception() is not None:
            return future
        later: Future[Any] = self._loop.create_future()
        self._loop.call_soon(_set_result, later, future.result())
        return later


def _set_result(future: Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


class Handlers:
    """The program's signal handlers at the last check."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._are_calm = False

    def are_calm(self) -> bool:
        """Return whether no handler may raise an ordinary error on this thread."""
        if get_ident() != main_thread().ident:
            # SIGPIPE of a write to a dead process must not end this one: the storage thread blocks
            # it.
            return bool(_PIPE is None or getsignal(_PIPE) != signal.SIG_DFL)
        # ``signal.getsignal`` makes enums of its answers: 64 take as long as a commit.
        handlers = list(map(getsignal, _SIGNALS))
        if handlers != self._seen:
            self._seen = handlers
            is_deadly = _PIPE is not None and getsignal(_PIPE) == signal.SIG_DFL
            self._are_calm = not (is_deadly or any(map(_may_raise, handlers)))
        return self._are_calm


def _may_raise(handler: Any) -> bool:
    """Return whether a handler may raise an ordinary exception; asyncio's handlers do not."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return not str(getattr(handler, "func", handler).__module__).startswith("asyncio.")
