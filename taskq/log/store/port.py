"""Ports to the mailbox, for one event loop each, or for threads; and their answers."""

from __future__ import annotations

import contextlib
import os
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from contextvars import ContextVar, copy_context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Protocol, TypeVar, overload

from taskq.core import controls, errors, model, views
from taskq.core.folds.steps import DONE
from taskq.core.kinds import RELEASE
from taskq.core.records import PACKED_MIN, Cause
from taskq.core.views import LogStats
from taskq.log import requests
from taskq.log.config import MAILBOX_MAX
from taskq.log.decide.enqueue import LINE_WIDTH, Run, answer, paired, together
from taskq.log.format.flows import Stepped
from taskq.log.machine.inside import refuse_inside
from taskq.log.machine.system import system
from taskq.log.machine.threads import Pending, Reporter, errands
from taskq.log.read.gauges import age_ns
from taskq.log.requests import Op, Order, Settlement, Trait, Withdrawal
from taskq.log.segments.segments import Extent
from taskq.log.state.job_history import job_not_found
from taskq.log.store.caller_commit import LoneCaller, Reply

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as _Future

    from taskq.log.decide.steps import Fork, NewSignal, NewStep
    from taskq.log.state.facets import LogView
    from taskq.log.store.mailbox import Mailbox

_DRAIN_BYTES = 512
#: Most jobs in one note of an act, and most characters of its text.
_NOTED_MAX: Final = 1_000
_WHAT_MAX: Final = 500
#: Person or program whose acts are noted in the log; "" for none.
actor: Final[ContextVar[str]] = ContextVar("taskq.actor", default="")


class Bell:
    """A pipe that wakes an event loop without releasing the GIL; any thread may ring it.

    It is made on the loop's thread. ``loop.call_soon_threadsafe`` sends through a socket, and
    ``send`` releases the GIL. The woken loop takes it at once, and the storage thread gets it back
    only after all ready handles of the loop. With 64 producers it spent a fifth of its time there,
    before its sync.

    Raises:
        NotImplementedError: this kind of loop cannot read pipes.
    """

    def __init__(self, loop: AbstractEventLoop, on_ring: Callable[[], None]) -> None:
        self._on_ring = on_ring
        self._read = self._write = -1
        self._read, self._write = system.make_channel()
        loop.add_reader(self._read, self._rung)

    def ring(self) -> None:
        """Wake the loop; a full pipe wakes it already, and a closed pipe does nothing."""
        with contextlib.suppress(OSError):
            system.poke(self._write)

    def leave(self, loop: AbstractEventLoop) -> None:
        """Remove the pipe from a running loop, and close it; on the loop's thread."""
        loop.remove_reader(self._read)
        self.close()

    def close(self) -> None:
        """Close the pipe. The loop is closed, or drops the pipe when it closes."""
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


def stats(
    sight: LogView, queues: tuple[views.QueueStats, ...], engine: views.EngineStats
) -> LogStats:
    journal = sight.journal
    return LogStats(
        queues=queues,
        segments=len(journal.files.lsns),
        size=journal.files.total_size(),
        next_lsn=journal.next_lsn,
        engine=engine,
    )


def backlog(sight: LogView) -> tuple[views.Waiting, int | None]:
    """Return counts of waiting jobs, and the wall time at which the next scheduled one is due."""
    from taskq.core.why import waiting_in  # noqa: PLC0415 - rarely needed

    agenda = sight.facets.need_agenda()
    agenda.see(sight.journal.clock.wall_ns())
    return waiting_in(agenda.queues.stats()), agenda.first_due_ns()


def waiting_jobs(sight: LogView) -> tuple[dict[tuple[str, str], views.Waiting], set[str]]:
    from taskq.core.why import waiting_jobs as count_waiting  # noqa: PLC0415 - rarely needed

    agenda = sight.facets.need_agenda()
    return count_waiting(agenda), {stats.queue for stats in agenda.queues.stats()}


P = typing.ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log: Final = Reporter("taskq")
_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
#: A loop with this number of answers gets a bell; a short-lived one (``async_to_sync``) needs no
#: pipe.
_SETTLED_IN: Final = 16
#: Reads this process's folds, without the writer lock.
Look: typing.TypeAlias = "Callable[[LogView], T]"


class Sent(Protocol[T_co]):
    """The future answer to a request, of the kind that the port makes."""


#: Futures of one kind of port.
F = TypeVar("F", bound=Sent[Any])

if TYPE_CHECKING:

    class _request(Generic[P, T]):  # noqa: N801 - a decorator
        """A method of both kinds of port, which returns a future of the port's kind."""

        def __init__(self, method: Callable[Concatenate[Any, P], Sent[T]]) -> None: ...

        @overload
        def __get__(self, port: None, kind: type) -> typing.Self: ...

        @overload
        def __get__(self, port: LoopPort, kind: type) -> Callable[P, _Future[T]]: ...

        @overload
        def __get__(self, port: ThreadPort, kind: type) -> Callable[P, Pending[T]]: ...

        def __get__(self, port: object, kind: type) -> object: ...

else:

    def _request(method: T) -> T:
        return method


class _Port(Generic[F]):
    """Methods of both kinds of port; ``make`` makes their futures.

    Attributes:
        late: number of answers with deliveries for cancelled callers; the deliveries were given
            back.
    """

    def __init__(self, mailbox: Mailbox, make: Callable[[], F]) -> None:
        self._mailbox = mailbox
        self._requests = mailbox.requests
        self._future = make
        self.late: int = 0

    def _send(self, op: int, operand: object) -> F:
        mailbox = self._mailbox
        if not mailbox.usable:
            raise mailbox.closed()
        future = self._future()
        self._requests.append((op, self, future, operand))
        if mailbox.asleep:
            self._summon()
        return future

    def _summon(self) -> None:
        self._mailbox.wake_up()

    def _send_soon(self, op: int, items: object, on_error: object) -> None:
        mailbox = self._mailbox
        if not mailbox.usable:
            raise mailbox.closed()
        self._requests.append((op, self, None, (items, on_error)))
        if mailbox.asleep:
            self._summon()

    def _act(self, op: int, operand: object, what: str, jobs: list[int] | None = None) -> F:
        """Send an act, after a note with its author, if known."""
        for note in _notes(what, jobs or []):
            self._send_note(note)
        return self._send(op, operand)

    def note(self, what: str, jobs: list[int]) -> list[F]:
        """Note an act in the log with its author, if known; each answer is None."""
        return [self._send(Op.ACT, note) for note in _notes(what, jobs)]

    def _send_note(self, note: requests.Act) -> None:
        if not self._mailbox.usable:
            raise self._mailbox.closed()
        # If the disk refuses the note, it refuses the act as well, whose caller gets the error.
        self._requests.append((Op.ACT, self, Pending(), note))

    @property
    def full(self) -> bool:
        """Return whether the mailbox is at its limit: wait for ``room`` before sending more."""
        return len(self._requests) >= MAILBOX_MAX

    @_request
    def enqueue_many(
        self, items: list[requests.Item] | requests.Plain
    ) -> Sent[list[int | requests.Duplicate]]:
        """Enqueue jobs in one transaction; return their lsns, or the holders of their keys."""
        return self._send(Op.ENQUEUE_MANY, together(items))

    @_request
    def ingest(self, asked: requests.Ingest) -> Sent[list[int | requests.Duplicate]]:
        """Do as ``enqueue_many``, and move a source in the same transaction."""
        return self._send(Op.INGEST, asked)

    @_request
    def claim(self, request: requests.ClaimRequest) -> Sent[list[requests.Delivery]]:
        """Claim jobs; return their deliveries once there is one, or the request's wait is over."""
        return self._send(Op.CLAIM, request)

    def forget(
        self, asked: _Future[list[requests.Delivery]] | Pending[list[requests.Delivery]]
    ) -> None:
        """Cancel a claim whose caller is gone: its deliveries are given back."""
        if not asked.cancel() and asked.exception() is None:
            self._late(asked.result())

    @_request
    def settle(self, items: list[Settlement]) -> Sent[list[errors.TaskqError | None]]:
        """End deliveries; return for each None, or its error."""
        op = Op.SETTLE_PARENTS if all(item.children for item in items) else Op.SETTLE
        return self._send(op, items)

    def succeed_soon(
        self,
        deliveries: list[requests.Delivery],
        on_error: Callable[[Settlement, errors.TaskqError], None],
    ) -> None:
        """End successful deliveries without result or children, like ``settle_soon``."""
        self._send_soon(Op.SUCCEED_NOWAIT, deliveries, on_error)

    def settle_soon(
        self, items: list[Settlement], on_error: Callable[[Settlement, errors.TaskqError], None]
    ) -> None:
        """End deliveries without waiting; requests that the disk refuses are retried."""
        self._send_soon(Op.SETTLE_NOWAIT, items, on_error)

    @_request
    def cancel(self, lsn: int) -> Sent[requests.Cancel]:
        """Cancel a waiting job, or ask for the end of a running one; return a ``Cancel``."""
        return self._act(Op.CANCEL, lsn, "cancel", [lsn])

    @_request
    def transact(self, bundle: requests.Bundle) -> Sent[requests.Done]:
        """Apply a whole transaction, or nothing; return a ``Done``, or raise a part's error."""
        return self._send(Op.TRANSACT, bundle)

    @_request
    def extend(self, delivery: requests.Delivery, lease_ns: int) -> Sent[None]:
        """Set the end of a delivery's lease to this many nanoseconds from now."""
        return self._send(Op.EXTEND, (delivery, lease_ns))

    @_request
    def step(self, new: NewStep) -> Sent[Stepped | None]:
        """Write a step of a running job and return it; None if its signal has not come."""
        return self._send(Op.STEP if new.form in DONE else Op.ASK, new)

    @_request
    def begin_waits(self, delivery: requests.Delivery, waits: bytes) -> Sent[None]:
        """Write that a running job begins these packed waits."""
        return self._send(Op.WAIT, (delivery, waits))

    @_request
    def admit(self, size: int) -> Sent[None]:
        """Return once the log can be written and has room for ``size`` bytes of new jobs."""
        return self._send(Op.ROOM, size)

    @_request
    def fork(self, fork: Fork) -> Sent[int]:
        return self._send(Op.FORK, fork)

    @_request
    def signal(self, new: NewSignal) -> Sent[bool]:
        """Write a signal; return False if the job has one with the same ``once``."""
        return self._act(Op.SIGNAL, new, f"signal {new.name}", [new.job])

    @_request
    def outcome(self, lsn: int) -> Sent[requests.Outcome]:
        """Return the outcome of a job, once it is settled."""
        return self._send(Op.OUTCOME, lsn)

    @_request
    def view(self, lsn: int) -> Sent[views.JobView | None]:
        """Return a job with all data as stored; None if the log has no such job."""
        return self._send(Op.LOOK, (lambda sight: sight.view(lsn), False))

    @_request
    def not_found(self, lsn: int) -> Sent[errors.JobNotFound]:
        """Return the error for a job that the log does not have."""
        return self._send(Op.LOOK, (lambda sight: job_not_found(sight.journal, lsn), False))

    @_request
    def stats(self) -> Sent[LogStats]:
        """Return the counts of the log and of this process's engine."""
        return self._send(Op.STATS, stats)

    @_request
    def peek(self, count: int, queue: str | None = None) -> Sent[list[views.JobView]]:
        """Return the next ready jobs of a queue, or of all, in the order of claims."""
        return self._send(Op.LOOK, (lambda sight: sight.peek(count, queue), True))

    @_request
    def look(
        self, look: Look[T], *, needs_agenda: bool = True, needs_keys: bool = False
    ) -> Sent[T]:
        """Return the result of a function of this process's folds, which reads without the lock."""
        needs = needs_agenda * Trait.AGENDA | needs_keys * Trait.KEYS
        return self._send(Op.LOOK, (look, needs))

    @_request
    def age_ns(self, job: int) -> Sent[int]:
        """Return nanoseconds since a job's enqueue; 0 if the log no longer knows the job."""
        return self._send(Op.LOOK, (lambda sight: age_ns(sight.journal, job), False))

    @_request
    def backlog(self) -> Sent[tuple[views.Waiting, int | None]]:
        """Return counts of waiting jobs, and the wall time when the next scheduled one is due."""
        return self._send(Op.LOOK, (backlog, Trait.AGENDA))

    @_request
    def waiting_jobs(self) -> Sent[tuple[dict[tuple[str, str], views.Waiting], set[str]]]:
        """Return the waiting jobs by queue and task, and the names of all known queues."""
        return self._send(Op.LOOK, (waiting_jobs, Trait.AGENDA))

    @_request
    def requeue(self, letters: list[requests.Letter]) -> Sent[list[errors.TaskqError | None]]:
        """Make dead letters ready again; return for each None, or its error."""
        return self._act(Op.REQUEUE, letters, "requeue", [letter.job for letter in letters])

    @_request
    def purge(self, lsns: list[int]) -> Sent[list[errors.TaskqError | None]]:
        """Remove dead letters; return for each None, or its error."""
        return self._act(Op.PURGE, lsns, "purge", lsns)

    @_request
    def pause(self, queue: str, *, paused: bool) -> Sent[bool]:
        """Pause or resume a queue; return False if it was so already."""
        op = Op.PAUSE if paused else Op.RESUME
        return self._act(op, queue, f"{'pause' if paused else 'resume'} queue {queue}")

    @_request
    def withdraw(
        self, lsns: list[int], cause: Cause = Cause.CALLER, *, expired: bool = False
    ) -> Sent[list[int]]:
        """Cancel waiting jobs, or let them expire; return the lsns of the ended jobs."""
        withdrawal = Withdrawal(lsns, cause, expired)
        if expired or not lsns:
            return self._send(Op.WITHDRAW, withdrawal)
        return self._act(Op.WITHDRAW, withdrawal, "cancel", lsns)

    @_request
    def edit(self, wish: requests.Edit) -> Sent[bool | None]:
        """Edit a waiting job; return whether it changed, None if the job is not as it was found."""
        return self._act(Op.EDIT, wish, "edit", [wish.item.job])

    @_request
    def tick(self, turn: requests.Turn) -> Sent[list[int | requests.Duplicate] | None]:
        """Write ticks of a schedule with their jobs; None if another process was faster."""
        return self._send(Op.TICK, turn)

    @_request
    def enrol(self, schedules: list[requests.Enrolment]) -> Sent[None]:
        """Write schedules as a worker declares them, or as added at run time."""
        names = ", ".join(schedule.name for schedule in schedules)
        return self._act(Op.ENROL, schedules, f"add schedule {names}"[:_WHAT_MAX])

    @_request
    def control(self, change: controls.Change) -> Sent[bool]:
        """Change a control; False if it has that value, or is not as the change expects."""
        changes = ", ".join(f"{name}={value}" for name, value in change.changes.items())
        return self._act(Op.CONTROL, change, f"change {change.name} {changes}"[:_WHAT_MAX])

    @_request
    def alerts(self) -> Sent[tuple[float, tuple[float, ...], dict[str, dict[str, object]]]]:
        """Return the log's time, the age of each dead letter's death, and alerts by name."""
        return self._send(Op.LOOK, (_alerts, Trait.AGENDA))

    @_request
    def set_alert(
        self, name: str, before: Mapping[str, object], after: Mapping[str, object]
    ) -> Sent[bool]:
        """Change an alert if its state is still ``before``; empty for no alert."""
        changes = {**dict.fromkeys(before), **after}
        return self._send(Op.CONTROL, controls.Change(controls.ALERT + name, changes, before))

    @_request
    def slots_wished(self, owner: int) -> Sent[int | None]:
        """Return the slots that operators set for a process; None if they set none."""
        return self._send(Op.LOOK, (lambda sight: _slots_of(sight, owner), Trait.AGENDA))

    @_request
    def steer(self, wish: requests.Steer) -> Sent[bool]:
        """Pause, resume, reset or forget a schedule; return False if nothing changed."""
        return self._act(Op.STEER, wish, f"{wish.action} schedule {wish.name}")

    @_request
    def extent(self, beyond: int | None = None) -> Sent[Extent]:
        """Return the readable end of the log, once it is beyond an lsn; None: the present end."""
        return self._send(Op.FOLLOW, beyond)

    @_request
    def compact(self, keep_seconds: float | None, *, dry_run: bool) -> Sent[views.CompactReport]:
        """Remove old segments; ``keep_seconds`` of None is the log's own retention."""
        return self._order(lambda future: Order(keep_seconds, dry_run, self, future))

    def _order(self, make: Callable[[F], Order]) -> F:
        mailbox = self._mailbox
        if not mailbox.usable:
            raise mailbox.closed()
        future = self._future()
        mailbox.order(make(future))
        return future

    def _resolve(self, answers: Iterable[requests.Answer]) -> None:
        for _, future, value in answers:
            if future is None:
                _call(*value)
            elif future.done():
                self._late(value)
            elif type(value) is int:  # the lsn of a new job: the most frequent answer
                answer(future, value)
            elif isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _late(self, value: object) -> None:
        """Give back the deliveries of an answer whose caller is gone."""
        if self._mailbox.usable and _are_deliveries(value):
            self.late += 1
            given_back = [Settlement(RELEASE, delivery, None, 0, Cause.DRAIN) for delivery in value]
            self.settle_soon(given_back, _ignore)


def _notes(what: str, jobs: list[int]) -> list[requests.Act]:
    by = actor.get()
    starts = range(0, len(jobs) or 1, _NOTED_MAX) if by else ()
    return [requests.Act(jobs[at : at + _NOTED_MAX], f"{by}: {what}") for at in starts]


def _are_deliveries(value: object) -> typing.TypeGuard[list[requests.Delivery]]:
    return isinstance(value, list) and bool(value) and hasattr(value[0], "token")


def _take_all(source: list[requests.Delivery], taken: list[requests.Delivery]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            taken.append(source.pop())


def keeps_callbacks(future: _Future[Any]) -> bool:
    """Return whether ``answer`` can read a new future's callback and its context."""
    context = copy_context()
    future.add_done_callback(_wake, context=context)
    kept = getattr(future, "_callbacks", None)
    future.remove_done_callback(_wake)
    return kept == [(_wake, context)]


class LoopPort(_Port["_Future[Any]"]):
    """The port of one event loop; only that loop's thread uses it.

    Answers come back in one wake-up per batch: the storage thread hands a port the whole list.
    """

    def __init__(self, mailbox: Mailbox, loop: AbstractEventLoop) -> None:
        # A program of threads alone never loads asyncio.
        from asyncio import Future  # noqa: PLC0415

        # A plain future: the storage thread reads whether it is done, which other loops' futures
        # may not allow.
        super().__init__(mailbox, partial(Future, loop=loop))
        self.loop = loop
        Run.steps_waiters = keeps_callbacks(Future(loop=loop))
        home = getattr(type(loop).call_soon_threadsafe, "__module__", None)
        #: whether its ``call_soon_threadsafe`` is no code of the program
        self._is_known = home == "asyncio.base_events" or type(loop).__module__ == "uvloop"
        #: plain jobs that the thread has not taken yet; see ``enqueue.take``
        self._line: list[Any] = []
        self._lone = LoneCaller(mailbox, loop)
        #: the loop commits the mailbox's requests before its next turn
        self.is_due: bool = False
        #: the thread that commits them, meanwhile
        self._commits = 0
        self._turns = 0
        self._bell: Bell | None = None
        self._inbox: deque[list[requests.Answer]] = deque()
        self._stranded: list[Callable[[], list[Settlement]]] = []

    def enqueue(
        self, spec: requests.EnqueueSpec, body: bytes, extras: model.Extras | None = None
    ) -> _Future[int | requests.Duplicate]:
        """Return the new job's lsn once it is durable, or the job that holds its key."""
        mailbox = self._mailbox
        if not mailbox.usable:
            raise mailbox.closed()
        future: _Future[int | requests.Duplicate] = self._future()
        kind = spec if extras is None and spec.flags < PACKED_MIN else paired(spec, extras)
        if kind is not None:
            line = self._line
            is_alone = kind is spec and mailbox.asleep and mailbox.serves_loops and not line
            if is_alone and self._lone.try_commit((spec, body, None), future):
                return self._lone.answered(future)
            # One step of the interpreter; see ``enqueue.take``.
            line += (kind, body, future)
            if len(line) != LINE_WIDTH:
                return future  # the first job in the line has sent the request
            self._requests.append((_ENQUEUE_RUN, self, None, line))
        else:
            # Later jobs must come after this one, so a new line begins.
            self._line = []
            self._requests.append((_ENQUEUE, self, future, (spec, body, extras)))
        if mailbox.asleep:
            self._summon()
        return future

    def _summon(self) -> None:
        mailbox = self._mailbox
        if not (mailbox.rests and mailbox.serves_loops):
            mailbox.wake_up()
        elif not self.is_due:
            # Another thread may settle for a closed loop.
            if getattr(self.loop, "_thread_id", None) != get_ident():
                mailbox.wake_up()
                return
            self.is_due = True
            self.loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Commit the requests of the last turn here, so that no thread waits for the other."""
        mailbox, self.is_due = self._mailbox, False
        if not mailbox.asleep or not self._requests:
            return
        here, self._commits = mailbox.here, get_ident()
        try:
            is_done = here is not None and here.commit_turn(self)
        except BaseException:
            mailbox.wake_up()
            self.loop.call_soon(self._rung)
            raise
        finally:
            self._commits = 0
        if not is_done and mailbox.asleep:
            mailbox.wake_up()
        if self._inbox:
            self._rung()

    @property
    def full(self) -> bool:
        """Return whether the mailbox is full; each job of the line counts."""
        return len(self._requests) + len(self._line) // LINE_WIDTH >= MAILBOX_MAX

    async def room(self) -> None:
        """Wait until the mailbox has room."""
        while self.full:
            await self._emptied()

    def _emptied(self) -> _Future[None]:
        future: _Future[None] = self.loop.create_future()
        self._mailbox.when_room(lambda: self._call_soon(partial(_wake, future)))
        return future

    def deliver(self, answers: list[requests.Answer]) -> None:
        """Deliver answers with one wake-up of the loop; on the storage thread."""
        self._inbox.append(answers)
        if self._commits == get_ident():
            return
        bell = self._bell
        if bell is None or (self._is_known and self.loop.is_closed()):
            self._call_soon(self._rung, self.give_up)
        else:
            bell.ring()

    def _call_soon(
        self,
        call: Callable[[], object],
        otherwise: Callable[[], object] = lambda: None,
        *,
        is_errand: bool = False,
    ) -> None:
        """Call ``call`` in the loop, or ``otherwise`` if the loop is closed.

        It runs on the storage thread, or as an errand: a program's own loop may run any code.
        """
        if not (self._is_known or is_errand):
            errands.put(partial(self._call_soon, call, otherwise, is_errand=True))
            return
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            otherwise()

    @property
    def busy(self) -> bool:
        """Return whether answers are pending."""
        return bool(self._inbox)

    def when_closed(self, stranded: Callable[[], list[Settlement]]) -> Callable[[], None]:
        """Settle the loop's remaining jobs once it is closed, on the first thread that notices.

        Args:
            stranded: returns outcomes that were not handed over, and releases.

        Return a function to stop.
        """
        self._stranded.append(stranded)

        def undo() -> None:
            with contextlib.suppress(ValueError):
                self._stranded.remove(stranded)

        return undo

    def give_up(self) -> None:
        """Give back claims whose answers a closed loop will not take."""
        with contextlib.suppress(IndexError):
            while self._mailbox.usable:
                items = self._stranded.pop()()
                if items:
                    self.settle_soon(items, _ignore)
        with contextlib.suppress(IndexError):
            while True:
                for _, _, value in self._inbox.popleft():
                    self._late(value)

    def surrender(self) -> list[requests.Delivery]:
        """Take the claims that a stalled loop has not handled yet, from another thread.

        To the loop they are empty. Each claim is taken separately: the first thread gets it.
        """
        taken: list[requests.Delivery] = []
        with contextlib.suppress(RuntimeError):  # more came in meanwhile: they are for the next try
            for answers in list(self._inbox):
                for _, _, value in answers:
                    if _are_deliveries(value):
                        _take_all(value, taken)
        return taken

    def _rung(self) -> None:
        lone = self._lone
        while self._inbox:
            answers = self._inbox.popleft()
            self._turns += 1
            if self._turns == _SETTLED_IN and self._mailbox.usable:
                with contextlib.suppress(NotImplementedError, OSError):
                    self._bell = Bell(self.loop, self._rung)
            lone.is_crowded = len(answers) > 1 or len(getattr(answers[0][1], "futures", ())) > 1
            left = iter(answers)
            try:
                self._resolve(left)
            except BaseException:
                # A task stepped here raised, SystemExit for example; the others still get their
                # answers.
                if rest := list(left):
                    self._inbox.appendleft(rest)
                self.loop.call_soon(self._rung)
                raise
            finally:
                lone.is_crowded = False

    def leave(self) -> None:
        """Deliver the last answers after the close of the log, and drop the pipe."""
        self._call_soon(self._leave, self.close)

    def _leave(self) -> None:
        self._rung()
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.leave(self.loop)

    def close(self) -> None:
        """Drop the pipe of a closed loop, and give its claims back."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self.give_up()


class ThreadPort(_Port[Pending[Any]]):
    """The port of threads without an event loop; any thread may use it."""

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(mailbox, Pending)

    def _send(self, op: int, operand: object) -> Pending[Any]:
        refuse_inside(self._mailbox.path)
        here = self._mailbox.here
        if here is None or not self._mailbox.usable:
            return super()._send(op, operand)
        future: Pending[Any] = Pending()
        if not here.commit_for_thread((op, self, future, operand)):
            return super()._send(op, operand)
        return future

    def _send_note(self, note: requests.Act) -> None:
        self._send(Op.ACT, note)

    def enqueue(
        self, spec: requests.EnqueueSpec, body: bytes, extras: model.Extras | None = None
    ) -> Pending[int | requests.Duplicate]:
        return self._send(_ENQUEUE, (spec, body, extras))

    def enqueued(
        self, spec: requests.EnqueueSpec, body: bytes, extras: model.Extras | None
    ) -> int | requests.Duplicate:
        mailbox = self._mailbox
        refuse_inside(mailbox.path)
        here = mailbox.here
        if extras is not None or here is None or not mailbox.usable:
            return self.enqueue(spec, body, extras).result()
        reply, item = Reply(), (spec, body, extras)
        if here.commit_for_thread((_ENQUEUE, self, reply, item)):
            lsn: int = reply.result()
            return lsn
        sent: Pending[int] = super()._send(_ENQUEUE, item)
        return sent.result()

    def room(self) -> None:
        refuse_inside(self._mailbox.path)
        while self.full:
            emptied: Pending[None] = Pending()
            self._mailbox.when_room(partial(emptied.set_result, None))
            emptied.result()

    def deliver(self, answers: list[requests.Answer]) -> None:
        for reply in answers:
            try:
                self._resolve([reply])
            except futures.InvalidStateError:  # cancelled just now
                self._late(reply[2])


def _wake(future: _Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ignore(item: Settlement, error: errors.TaskqError) -> None:
    _log.debug("settling %r too late: %s", item.delivery, error)


def _call(on_error: Callable[[Any, Any], None], item: object, error: object) -> None:
    try:
        on_error(item, error)
    except Exception:  # noqa: BLE001 - an error of a callback stops nothing
        _log.exception("a settlement's error callback raised")


def _slots_of(sight: LogView, owner: int) -> int | None:
    known = sight.facets.need_agenda().controls
    return controls.slots_wished(controls.value_of(known, controls.SLOTS), owner)


def _alerts(sight: LogView) -> tuple[float, tuple[float, ...], dict[str, dict[str, object]]]:
    agenda, now = sight.facets.need_agenda(), sight.journal.clock.wall_ns() / model.SECOND_NS
    deaths = tuple(now - chunk.metas[at] for chunk, at in agenda.dead)
    known: dict[str, dict[str, object]] = {
        name.removeprefix(controls.ALERT): dict(state)
        for name, state in controls.values_of(agenda.controls).items()
        if name.startswith(controls.ALERT)
    }
    return now, deaths, known
