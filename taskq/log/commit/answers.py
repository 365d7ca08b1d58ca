"""A committer's answers on their way out, and its undecided and waiting requests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

from taskq.core.errors import JobNotFound, LogFailed, TaskqError, refusal
from taskq.core.kinds import SUCCESS
from taskq.core.model import Durability
from taskq.log.journal.journal import Journal
from taskq.log.machine.ports import INTEREST_GROWTH, INTEREST_OUTCOME, INTEREST_READY
from taskq.log.machine.threads import Reporter
from taskq.log.requests import Answer, ClaimRequest, Op, Outcome, Request, Settlement
from taskq.log.segments.segments import Extent, SegmentGone
from taskq.log.state.facets import NO_JOB, Facets
from taskq.log.state.job_history import find_end, job_not_found, read_outcome

#: Settlements without a waiting caller: they are retried while the disk is full.
NOWAIT: Final = frozenset({int(Op.SETTLE_NOWAIT), int(Op.SUCCEED_NOWAIT)})


class Answers:
    """Answers not handed out yet.

    Attributes:
        now: answers that may go out at once.
        later: answers that wait until the log is durable up to ``later_lsn``.
    """

    def __init__(self) -> None:
        self.now: list[Answer] = []
        self.later: list[Answer] = []
        self.later_lsn: int = 0

    def add_later(self, answers: list[Answer], lsn: int) -> None:
        if answers:
            self.later += answers
            self.later_lsn = max(self.later_lsn, lsn)

    def refuse_later(self, error: TaskqError) -> None:
        self.later = [(port, future, error) for port, future, _ in self.later if future is not None]

    def take_now(self) -> list[Answer]:
        answers, self.now = self.now, []
        return answers

    def take_all(self) -> list[Answer]:
        answers = self.now + self.later
        self.now, self.later, self.later_lsn = [], [], 0
        return answers

    def go_back_to(self, now: int, later: int, later_lsn: int) -> None:
        """Drop answers beyond these counts, after a batch that was not written."""
        del self.now[now:], self.later[later:]
        self.later_lsn = later_lsn


class Undecided:
    """Requests that a committer has not decided; the thread that takes them out answers them.

    While one thread waits for the lock, another thread may answer for it.

    Attributes:
        in_flight: the batch that waits for the lock.
        held: requests for the next batch: settlements without a caller that the disk refused, and
            requests that need a fold that is still being built.
    """

    def __init__(self) -> None:
        self.in_flight: list[Request] = []
        self.held: list[Request] = []
        self._guard = threading.Lock()

    def take_in_flight(self) -> list[Request]:
        with self._guard:
            requests, self.in_flight = self.in_flight, []
            return requests

    def take_held(self) -> list[Request]:
        with self._guard:
            requests, self.held = self.held, []
            return requests

    def hold(self, requests: list[Request]) -> None:
        with self._guard:
            self.held += requests


def settlements(op: int, items: list[Any]) -> list[Settlement]:
    """Return the settlements in a request of ``NOWAIT``."""
    if op == Op.SETTLE_NOWAIT:
        return items
    return [Settlement(SUCCESS, delivery) for delivery in items]


def refusals(requests: Iterable[Request], error: TaskqError) -> list[Answer]:
    answers: list[Answer] = []
    for op, port, future, operand in requests:
        if op in NOWAIT:
            items, on_error = operand
            answers += [(port, None, (on_error, item, error)) for item in settlements(op, items)]
        else:
            answers.append((port, future, error))
    return answers


def fail_all(waiting: Iterable[tuple[Any, Any]], error: TaskqError) -> list[Answer]:
    return [(port, future, error) for port, future in waiting]


def failure(error: BaseException) -> TaskqError:
    if isinstance(error, TaskqError):
        return error
    if isinstance(error, OSError):
        return refusal("the log", error)
    return TaskqError(f"{type(error).__name__}: {error}")


# Requests of one process for the log to grow: of streams, and of readers without an open log.
#
# A stream reads only durable records. It asks the storage thread for more. The thread sleeps until
# a process has appended, and syncs records that no other process syncs. With durability ``os`` no
# record is known to be durable, so every written record counts.

#: Longest delay of a sync for streams, since another sync may cover it.
_COMPANY_SECONDS: Final = 0.002


class Growth:
    """Wake streams that wait for the log to grow; on the storage thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._durability = journal.config.durability
        #: (lsn to read beyond, port, future)
        self.waiting: list[tuple[int, Any, Any]] = []

    def __bool__(self) -> bool:
        if self.waiting:
            self.waiting = [waiting for waiting in self.waiting if not waiting[2].done()]
        return bool(self.waiting)

    def add(self, lsn: int | None, port: Any, future: Any) -> None:
        """Answer with the readable end of the log once that is beyond ``lsn``.

        None: once all records that the log has now may be read.
        """
        if lsn is None:
            lsn = self._journal.next_lsn - 1
        self.waiting.append((lsn, port, future))

    def take_answers(self) -> list[Answer]:
        journal = self._journal
        extent = Extent(journal.segment, journal.offset, self._limit)
        left: list[tuple[int, Any, Any]] = []
        answers: list[Answer] = []
        for waiting in self.waiting:
            lsn, port, future = waiting
            if lsn < extent.lsn:
                answers.append((port, future, extent))
            else:
                left.append(waiting)
        self.waiting = left
        hint = journal.writer.peek() if left else None
        if hint is not None and hint.failed:
            error = LogFailed(journal.path, "an fsync failed in one of its processes")
            answers += [(port, future, error) for port, future in self.take_all()]
        return answers

    @property
    def _limit(self) -> int:
        journal = self._journal
        if self._durability is Durability.OS:
            return journal.next_lsn
        return min(journal.durable_lsn, journal.next_lsn)

    @property
    def lacking(self) -> bool:
        return bool(self.waiting) and self._limit < self._journal.next_lsn

    def sync_seconds(self, usual: float) -> float:
        if self._durability is Durability.FSYNC and self.lacking:
            return min(usual, _COMPANY_SECONDS)
        return usual

    def take_all(self) -> list[tuple[Any, Any]]:
        everyone, self.waiting = self.all(), []
        return everyone

    def all(self) -> list[tuple[Any, Any]]:
        return [(port, future) for _, port, future in self.waiting]


_log: Final = Reporter("taskq")


class Waiters:
    """Requests that wait for future records.

    Attributes:
        claims: claims without a ready job: (request, port, future).
        outcomes: requests for the end of a job, here or in another process.
        growth: requests for the log to grow.
    """

    def __init__(self, journal: Journal, facets: Facets) -> None:
        self.claims: list[tuple[ClaimRequest, Any, Any]] = []
        self.outcomes: Outcomes = Outcomes(journal, facets)
        self.growth: Growth = Growth(journal)

    @property
    def has_any(self) -> bool:
        return bool(self.claims or self.outcomes.waiting or self.growth.waiting)

    def claim_requests(self) -> list[Request]:
        return claim_requests(list(self.claims))

    def take_claims(self) -> list[Request]:
        claims, self.claims = self.claims, []
        return claim_requests(claims)

    def take_listeners(self) -> list[tuple[Any, Any]]:
        return [*self.outcomes.take_all(), *self.growth.take_all()]

    def listeners(self) -> list[tuple[Any, Any]]:
        return [*self.outcomes.all(), *self.growth.all()]

    def interest(self) -> int:
        interest = INTEREST_READY if self.claims else 0
        interest |= INTEREST_OUTCOME if self.outcomes else 0
        return interest | (INTEREST_GROWTH if self.growth else 0)


def claim_requests(claims: list[tuple[ClaimRequest, Any, Any]]) -> list[Request]:
    return [(int(Op.CLAIM), port, future, operand) for operand, port, future in claims]


class Outcomes:
    """Requests for the end of a job; the watch facet finds the end."""

    def __init__(self, journal: Journal, facets: Facets) -> None:
        self._journal = journal
        self._facets = facets
        #: job -> requests for its end
        self.waiting: dict[int, list[tuple[Any, Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, job: int, port: Any, future: Any) -> None:
        waiting = self.waiting.get(job)
        if waiting is not None:
            waiting.append((port, future))
            return
        agenda = self._facets.agenda
        journal = self._journal
        known = agenda is not None and (
            agenda.table.find(job) is not None or job in self._facets.ended
        )
        # A later search without the lock shows whether this number is a job's.
        if not known and not 0 < job < journal.next_lsn:
            raise job_not_found(self._journal, job)
        self.waiting[job] = [(port, future)]
        self._facets.watch_for(job)

    def has(self, job: int, future: Any) -> bool:
        return any(waiter is future for _, waiter in self.waiting.get(job, ()))

    def settled(self) -> Iterator[tuple[Any, Any, Outcome | TaskqError]]:
        """Yield (port, future, outcome or error) for each job settled since the last call.

        Raises nothing: the batch is in the log, even if something fails here.
        """
        try:
            self._facets.look_back()
        except Exception:  # noqa: BLE001 - the next batch tries again
            _log.exception("%s: cannot look for outcomes", self._journal.path)
        for job, location in self._facets.watch.take():
            outcome: Outcome | TaskqError
            try:
                is_settled = location != NO_JOB
                outcome = (
                    read_outcome(self._journal, location)
                    if is_settled
                    else job_not_found(self._journal, job)
                )
            except SegmentGone:
                outcome = self._look_again(job)
            except Exception as error:  # noqa: BLE001 - the waiting caller gets it
                outcome = failure(error)
            for port, future in self.waiting.pop(job, ()):
                yield port, future, outcome

    def _look_again(self, job: int) -> Outcome | TaskqError:
        """Return the outcome of a job whose end was rewritten since, or is not kept."""
        try:
            location = find_end(self._journal, job)
            if location is not None:
                return read_outcome(self._journal, location)
            return job_not_found(self._journal, job)
        except JobNotFound:
            return job_not_found(self._journal, job)
        except Exception as error:  # noqa: BLE001 - as in ``settled``
            return failure(error)

    def forget_cancelled(self) -> None:
        for job, waiting in list(self.waiting.items()):
            left = [(port, future) for port, future in waiting if not future.cancelled()]
            if left:
                self.waiting[job] = left
            else:
                del self.waiting[job]
                self._facets.watch.jobs.discard(job)

    def take_all(self) -> list[tuple[Any, Any]]:
        everyone = self.all()
        self.waiting.clear()
        self._facets.watch.jobs.clear()
        return everyone

    def all(self) -> list[tuple[Any, Any]]:
        return [waiter for waiting in self.waiting.values() for waiter in waiting]
