"""Reading the log as a story: records one by one, and the fold of all that concerns one job.

For people and tools; the live queue folds frames without making an object of any record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound
from taskq.core.model import AttemptView, JobView, State
from taskq.core.records import Cause, Kind
from taskq.core.transitions import BY_TIME, after
from taskq.log.fold import FINAL_KINDS
from taskq.log.logrecord import LogRecord, decode_record, places
from taskq.log.requests import Outcome
from taskq.log.segment import Gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.log.cursor import Cursor
    from taskq.log.journal import Journal

#: Attempts of one job that are kept for display; of more, the latest.
_ATTEMPTS_SHOWN: Final = 100
_KIND_AT: Final = 4
_STATES: Final = {kind: after(State.RUNNING, kind) for kind in (Kind.SUCCEEDED, Kind.DIED)} | {
    kind: after(State.READY, kind) for kind in (Kind.CANCELLED, Kind.EXPIRED)
}


def records(
    journal: Journal, cursor: Cursor, on_gap: Callable[[int, Gap], None] | None = None
) -> Iterator[LogRecord]:
    """Every record from the cursor to the journal's known end; damage goes to ``on_gap``."""
    for base, item in journal.frames(cursor):
        if isinstance(item, Gap):
            if on_gap is not None:
                on_gap(base, item)
            continue
        header = item.header
        for lsn, at, length in places(item):
            record = item.data[at : at + length]
            yield decode_record(record, lsn, header.epoch, header.time_ns)


def is_job(journal: Journal, lsn: int) -> bool:
    """Whether the record of this number brought a job into being."""
    for _, item in journal.frames(journal.cursor_at(lsn)):
        if isinstance(item, Gap) or item.header.next_lsn <= lsn:
            continue
        found = (at for number, at, _ in places(item) if number == lsn)
        at = next(found, None)
        return at is not None and item.data[at + _KIND_AT] == Kind.ENQUEUED
    return False


def read_outcome(journal: Journal, location: int) -> Outcome:
    """What the settling record at a location says.

    Raises:
        JobNotFound: the job was purged.
    """
    record = decode_record(journal.files.unchecked_record(location), 0, 0, 0)
    if record.kind == Kind.PURGED:
        raise JobNotFound(f"job {journal.tag}-{record.job} was a dead letter and has been purged")
    if record.carried is not None:
        return Outcome(record.carried.state, record.carried.body, record.carried.flags)
    return Outcome(_STATES[Kind(record.kind)], record.body, record.body_flags)


class Story:
    """The fold of one job's records into a view."""

    __slots__ = (
        "_attempts",
        "_born",
        "_due_is_wall",
        "_due_ns",
        "_expires_ns",
        "_reason",
        "_result",
        "_result_flags",
        "_settled_ns",
        "_tag",
        "attempt",
        "state",
    )

    def __init__(self, tag: str, born: LogRecord) -> None:
        self._tag = tag
        self._born = born
        self._attempts: list[AttemptView] = []
        self._reason = ""
        self._result: bytes | None = None
        self._result_flags = 0
        self._settled_ns = 0
        self.attempt = 0
        extras = born.extras
        self._due_ns = extras.due_ns if extras else 0
        self._due_is_wall = extras.due_is_wall if extras else False
        self._expires_ns = extras.expires_ns if extras else 0
        self.state = after(State.ABSENT, Kind.ENQUEUED, waits=self._due_ns > born.time_ns)

    def add(self, record: LogRecord) -> None:
        """Apply the next record that concerns the job."""
        if record.kind in (Kind.REQUEUED, Kind.PURGED):
            self._is_dead_no_more(Kind(record.kind))
            return
        kind = Kind(record.kind)
        waits = record.due_ns > record.time_ns
        self.state = after(self.state, kind, waits=waits)
        self.attempt = record.attempt
        self._due_ns, self._due_is_wall = record.due_ns, False
        body = record.body
        if kind is Kind.CLAIMED:
            view = AttemptView(number=record.attempt, owner=record.token, started_ns=record.time_ns)
            self._attempts = [*self._attempts[1 - _ATTEMPTS_SHOWN :], view]
            return
        if kind is Kind.SUCCEEDED:
            self._result = body
            self._result_flags = record.body_flags
            self._reason = ""
        elif body:
            self._reason = body.decode("utf-8", "replace")
        if record.kind in FINAL_KINDS:
            self._settled_ns = record.time_ns
        if self._attempts and not self._attempts[-1].ended_ns:
            last = self._attempts[-1]
            self._attempts[-1] = AttemptView(
                number=last.number,
                owner=last.owner,
                started_ns=last.started_ns,
                ended_ns=record.time_ns,
                outcome=_outcome(kind, record.cause),
                reason=body.decode("utf-8", "replace")
                if body and kind is not Kind.SUCCEEDED
                else "",
            )

    def _is_dead_no_more(self, kind: Kind) -> None:
        """A dead letter begins anew, keeping its earlier attempts for display; or it is gone."""
        self.state = after(self.state, kind)
        self.attempt = self._settled_ns = self._expires_ns = 0
        self._reason = ""

    def clock_stepped(self, step_ns: int) -> None:
        """Wall time made a step: a delay moves with it, a date does not."""
        if self._due_ns and not self._due_is_wall:
            self._due_ns += step_ns

    def view(self, now_ns: int) -> JobView:
        """The job as of ``now_ns``."""
        born = self._born
        state = self.state
        if state is State.SCHEDULED and self._due_ns <= now_ns:
            state = BY_TIME[state]
        extras = born.extras
        return JobView(
            lsn=born.lsn,
            job_id=f"{self._tag}-{born.lsn}",
            queue=born.queue.decode("utf-8", "replace"),
            task=born.task.decode("utf-8", "replace"),
            priority=born.priority,
            state=state,
            attempt=self.attempt,
            attempts_max=born.attempts_max,
            enqueued_ns=born.time_ns,
            due_ns=self._due_ns if state is State.SCHEDULED else 0,
            expires_ns=self._expires_ns,
            settled_ns=self._settled_ns,
            key=extras.key if extras else None,
            headers=extras.headers if extras else {},
            payload=born.body or b"",
            payload_flags=born.body_flags,
            result=self._result,
            result_flags=self._result_flags,
            reason=self._reason,
            attempts=tuple(self._attempts),
        )


def tell(journal: Journal, lsn: int, now_ns: int) -> JobView | None:
    """Everything the log says of one job, None if there is no such job."""
    story: Story | None = None
    for record in records(journal, journal.cursor_at(lsn)):
        if record.lsn == lsn:
            if record.kind != Kind.ENQUEUED:
                return None
            story = Story(journal.tag, record)
        elif story is not None and record.kind == Kind.CLOCK:
            story.clock_stepped(record.step_ns)
        elif story is not None and record.job == lsn:
            story.add(record)
            if record.kind in FINAL_KINDS and story.state is not State.DEAD:
                break  # a dead letter may be requeued or purged
        elif story is None and record.lsn > lsn:
            return None
    if story is None or story.state is State.ABSENT:
        return None
    return story.view(now_ns)


def _outcome(kind: Kind, cause: Cause) -> str:
    if kind is Kind.RELEASED and cause is Cause.OWNER_LOST:
        return "lost"
    return kind.name.lower()
