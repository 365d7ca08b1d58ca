"""Commits on the caller's own thread, while the storage thread sleeps and nobody else waits."""

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
from taskq.log.machine.threads import inside, refuse_inside
from taskq.log.requests import Answer, Item, Op, Request

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from taskq.log.commit.committer import Committer
    from taskq.log.store.mailbox import Mailbox

#: Operations that are answered in their own batch: an interrupted caller leaves nobody waiting.
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
#: A commit that waits longer for the disk holds up a loop; then none is made there for this
#: multiple of that time.
_SLOW_SECONDS: Final = 0.001
_PATIENCE: Final = 20
#: Jobs of a loop that are committed on its own thread before it comes to its next turn.
_ALONE_MAX: Final = 16
_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
_SETTLE: Final = int(Op.SETTLE_NOWAIT)
_SUCCEED: Final = int(Op.SUCCEED_NOWAIT)
_CLAIM: Final = int(Op.CLAIM)
#: Jobs that a loop commits in one go, and bytes of them, or of other processes before them: less
#: than a millisecond.
_TURN_JOBS: Final = 256
_TURN_BYTES: Final = 65_536
#: Ends of jobs that concern no file and no listener.
_SIMPLE: Final = (SUCCESS, RETRY)
_SIGNALS: Final = range(1, signal.NSIG)
#: Windows has none.
_PIPE: Final = getattr(signal, "SIGPIPE", None)


class Reply:
    """The answer to a plain job that its own thread commits: a future that nobody else sees.

    One of ``concurrent.futures`` costs as much as a quarter of the commit.
    """

    __slots__ = ("_value", "done")

    #: nobody waits for it; see ``runs.answer``
    _callbacks: Final = ()

    def __init__(self) -> None:
        self._value: Any = None
        self.done: Callable[[], bool] = _no

    def set_result(self, value: object) -> None:
        self._value, self.done = value, _yes

    set_exception = set_result

    def result(self) -> Any:
        """Return the answer, or raise the error."""
        assert self.done(), "a plain job is answered in its own batch"
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def _no() -> bool:
    return False


def _yes() -> bool:
    return True


class Port(Protocol):
    """The port of a loop."""

    def deliver(self, answers: list[Answer]) -> None: ...


class Cycles(Protocol):
    """The storage thread, as far as a caller takes its place."""

    committer: Committer

    def commit_here(self, requests: list[Request], needs: BatchNeeds, *, syncs: bool) -> bool: ...


class CallerCommit:
    """The right to commit: of the storage thread, which makes this, and of callers.

    To hand a lone request to another thread, and its answer back, costs more than to commit it. So
    one lock guards the right to commit. The storage thread has it whenever it does not sleep; a
    caller who gets it without waiting is the storage thread for one request, or a loop for those of
    one turn.

    On the main thread a signal handler may raise between any two byte codes. So a caller commits
    only where no request of another caller is on its way, and does not undo an interrupted commit:
    it is marked as in doubt, and the storage thread drops its folds and known end, and reads again.
    An ordinary exception of a handler would pass for the disk's: the storage thread commits if a
    handler may raise one. It commits as well for a caller that waits at the writer lock or for a
    new segment.

    Attributes:
        in_doubt: a commit was interrupted, and nobody knows how far it came.
        count: how many callers committed.
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
        #: reentrant, as it is asked whose it is
        self._lock: Any = threading.RLock()
        #: for the storage thread: wait for the caller that commits; let callers, while it sleeps
        self.take: Final = self._lock.acquire
        self.leave: Final = self._lock.release
        self.take()

    def commit_for_thread(self, request: Request) -> bool:
        """Commit and sync the request of a thread that blocks; False: send it.

        Raises:
            UsageError: the thread is within a commit, which would wait for itself.
        """
        refuse_inside(self._mailbox.path)
        return request[0] in _OPS and self._commit(partial(self._try_commit, request, syncs=True))

    def commit_for_loop(self, request: Request) -> bool:
        """Commit a plain job of an event loop, which waits for nothing; False: send it."""
        return self._commit_in_time(partial(self._try_commit, request, syncs=False))

    def commit_turn(self, port: Port) -> bool:
        """Commit what a loop left in the mailbox, if that is little; False: wake the thread."""
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
            # Twice, as one of them may be what is interrupted.
            try:
                # A signal handler may enqueue at any step: the mark refuses it for as long as this
                # thread may hold the lock, which it would take and give back as its own.
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
        """Return whether nobody else's request or answer is on its way, and no step is rare."""
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
        """Commit as many requests: other threads may have sent more since they were looked at."""
        mailbox = self._mailbox
        taken = [mailbox.next(BATCH_BYTES_MAX) for _ in range(count)]
        requests = [request for request in taken if request is not None]
        return self._thread.commit_here(requests, BatchNeeds.of(requests), syncs=False)

    def _takes_turn(self, port: Port) -> bool:
        """Return whether all requests are few small ones of this port, and no step is rare."""
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
        # A copy, made in one step: other threads go on sending.
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
            # Others would have to be read from their segment, which may be on the disk alone.
            if waiting > len(recent):
                return False
            jobs += waiting
        return jobs <= _TURN_JOBS and size <= _TURN_BYTES

    def _refuse(self, port: Port, left: list[tuple[Request, list[Any]]]) -> OutcomeUnknown:
        """Answer all that an interrupted commit of a loop may have answered."""
        unknown = self._unknown()
        requests = [request for request, futures in left if not futures]
        requests += self._committer.waiters.claim_requests()
        answers = [answer for answer in refusals(requests, unknown) if answer[0] is port]
        answers += [(port, future, unknown) for _, futures in left for future in futures]
        port.deliver(answers)
        return unknown

    def _try_lock(self) -> bool:
        """Take the writer lock if it is free, and the log goes on in the segment that is open."""
        journal, writer = self._journal, self._journal.writer
        try:
            if not writer.try_acquire():
                return False
            hint = writer.acquire()
            here = journal.segment, journal.generation, 0
            is_known = hint and (hint.segment, hint.generation, hint.failed) == here
            # What others wrote is read first.
            if hint and is_known and hint.offset - journal.offset <= _TURN_BYTES:
                return True
        except (LogError, OSError):  # the storage thread knows what to do
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

    The storage thread commits jobs that come together, in one frame, and jobs of a loop that has
    more to do. A caller that enqueues again and again does not keep the loop from its next turn.

    Attributes:
        is_crowded: several callers get their answers just now, and may each enqueue again.
    """

    def __init__(self, mailbox: Mailbox, loop: AbstractEventLoop) -> None:
        self.is_crowded = False
        self._mailbox = mailbox
        self._loop = loop
        #: the loop's other handles that are ready; only asyncio's own loops have them
        self._ready: Sized = getattr(loop, "_ready", " ")
        self._committed = 0

    def try_commit(self, item: Item, future: Future[Any]) -> bool:
        """Commit a job if it is alone, and its answer waits for no disk; False: send it."""
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
    """The program's signal handlers, as they were when somebody last looked."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._are_calm = False

    def are_calm(self) -> bool:
        """Return whether none raises on this thread what looks like an error."""
        if get_ident() != main_thread().ident:
            # To wake the dead is no reason to die: the storage thread has this signal blocked.
            return bool(_PIPE is None or getsignal(_PIPE) != signal.SIG_DFL)
        # ``signal.getsignal`` makes enums of its answers: 64 take as long as a commit.
        handlers = list(map(getsignal, _SIGNALS))
        if handlers != self._seen:
            self._seen = handlers
            is_deadly = _PIPE is not None and getsignal(_PIPE) == signal.SIG_DFL
            self._are_calm = not (is_deadly or any(map(_may_raise, handlers)))
        return self._are_calm


def _may_raise(handler: Any) -> bool:
    """Return whether a handler may raise an ordinary exception; asyncio's raise none."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return not str(getattr(handler, "func", handler).__module__).startswith("asyncio.")
