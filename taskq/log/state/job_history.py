"""History of one job: its records, and their fold."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from taskq.core import kinds, parsing
from taskq.core.durations import utc_moment
from taskq.core.errors import JobNotFound, LogError
from taskq.core.kinds import (
    BIRTH,
    BIRTHS,
    BY_TIME,
    CARRYING,
    CLAIMS,
    ENDS,
    LAST,
    NEUTRAL,
    REMOVALS,
    REPEATS,
    RETURNS,
    REVIVALS,
    SUCCESSES,
    after,
)
from taskq.core.model import SETTLED_STATES, State
from taskq.core.records import PACKED, Cause
from taskq.core.views import AttemptView, JobView
from taskq.log.format.carried import Carried, decode_history
from taskq.log.format.codec import KIND_AT, LSN_MAX, STATE_AT
from taskq.log.format.flows import Takes, takes_of
from taskq.log.format.frames import Cursor, Gap
from taskq.log.format.record import Record, records_in
from taskq.log.machine.ports import read_file, replace_file
from taskq.log.requests import Outcome

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal
    from taskq.log.segments.indexes import RecordFound


#: File that records when ended jobs were dropped to make room on a full disk.
DROPPED_FILE: Final = "dropped.json"
_DROPPED_BYTES_MAX: Final = 4_096

#: Most attempts of a job for display, the latest ones.
_ATTEMPTS_SHOWN: Final = 100
_OWNER_LOST: Final = str(Cause.OWNER_LOST)
_DEATH: Final = kinds.name_of(kinds.DEATH)
_LETTER: Final = after(State.RUNNING, kinds.DEATH)
_OVER: Final = SETTLED_STATES - {_LETTER}


def records(
    journal: Journal, cursor: Cursor, on_gap: Callable[[int, Gap], None] | None = None
) -> Iterator[Record]:
    """Yield every record from the cursor to the known end; damage goes to ``on_gap``."""
    for base, item in journal.frames(cursor):
        if isinstance(item, Gap):
            if on_gap is not None:
                on_gap(base, item)
            continue
        yield from records_in(item)


def is_job(journal: Journal, lsn: int) -> bool:
    place = _patiently(journal, lambda: journal.indexes.find(lsn))
    if place is not None:
        return place.record[KIND_AT] in BIRTHS
    return any(_begins(place.record) for place in _about(journal, lsn))


def find_end(journal: Journal, job: int) -> int | None:
    """Return the location of the record that settled or purged a job, None if not settled."""
    end: int | None = None
    known = False
    for place in _about(journal, job):
        kind = place.record[KIND_AT]
        if not known:
            known = _begins(place.record)
            if kind in REPEATS and place.record[STATE_AT] in SETTLED_STATES:
                end = place.location
        elif kind in ENDS | REMOVALS:
            end = place.location
        elif kind in REVIVALS:
            end = None
    if not known:
        raise job_not_found(journal, job)
    return end


def read_outcome(journal: Journal, location: int) -> Outcome:
    record = Record(journal.files.unchecked_record(location), 0, 0, 0)
    if record.type in REMOVALS:
        raise JobNotFound(f"job {journal.tag.id(record.job)} was a dead letter and has been purged")
    return Outcome(*end_of(record)[:3])


def end_of(end: Record) -> tuple[State, bytes | None, int, int]:
    """Return (state, stored result or reason, its flags, time) of a record that ends a job."""
    if end.carried is not None:
        carried = end.carried
        return carried.state, carried.body, carried.flags & PACKED, carried.ended_ns
    return after(State.RUNNING, end.type), end.body, end.body_flags, end.time_ns


class Story:
    """Fold of one job's records, from which views, lists and explanations are made.

    It is for people and tools; the live queue folds frames without an object per record.

    Attributes:
        records, ties: the job's records, and its relations to other jobs; set by ``read_job``.
        state, attempt: after the last record.
        claim: (token, owner) of the job's present claim.
        end: the record that settled it.
        snapshot_lsn: of the last record with the job's whole state.
    """

    def __init__(self, tag: parsing.Tag, born: Record) -> None:
        self._tag = tag
        self._born = born
        self.records: list[Record] = []
        self.ties: Takes = Takes()
        self.claim: tuple[int, int] | None = None
        self.end: Record | None = None
        self.snapshot_lsn: int = born.lsn
        self._attempts: list[AttemptView] = []
        self._reason = ""
        self._result: bytes | None = None
        self._result_flags = 0
        self._settled_ns = 0
        self.attempt: int = 0
        extras = born.extras
        self._due_ns, self._expires_ns = born.due_ns, born.expires_ns
        self._due_is_wall = extras.due_is_wall if extras else False
        self._expires_is_wall = extras.expires_is_wall if extras else False
        # Steps of the clock after a record shift the record's moments.
        self._due_lsn, self._expires_lsn, self._ended_lsn = born.lsn, born.lsn, LSN_MAX
        self._enqueued_ns = born.time_ns
        self.state: State = after(State.ABSENT, BIRTH, waits=self._due_ns > born.time_ns)
        if born.carried is not None:
            self._begin_carried(born.type, born.carried)

    def _begin_carried(self, kind: int, carried: Carried) -> None:
        """Begin with a record that carries the job's state: its earlier records are gone."""
        self._enqueued_ns = carried.enqueued_ns
        self._attempts = decode_history(carried.history)
        if carried.lines and self._attempts:
            self._attempts[-1] = replace(self._attempts[-1], stored_lines=carried.lines)
        self.attempt = carried.attempt
        self._expires_ns = carried.expires_ns or self._expires_ns
        if kind in REVIVALS:
            self._due_ns = 0
            self._is_dead_no_more(kind)
            return
        self.state = carried.state
        self._note_repeat(self._born, carried)
        self._due_ns, self._due_is_wall = carried.due_ns, carried.due_is_wall
        self._settled_ns = carried.ended_ns
        if self.state in _OVER:
            self._ended_lsn = self._born.lsn
        if self.state is State.SUCCEEDED:
            self._result, self._result_flags = carried.body, carried.flags & PACKED
        else:
            self._reason = (carried.body or b"").decode("utf-8", "replace") or self._last_reason()

    def _last_reason(self) -> str:
        for attempt in reversed(self._attempts):
            if attempt.outcome == _DEATH and self.state is not _LETTER:
                break  # it was requeued since
            if attempt.reason:
                return attempt.reason
        return ""

    def add(self, record: Record) -> None:
        if record.carried is not None:
            self._note_carried(record, record.carried)
        elif record.type in REMOVALS:
            self._is_dead_no_more(record.type)
        elif record.type not in NEUTRAL:
            self._move(record)

    def _note_carried(self, record: Record, carried: Carried) -> None:
        self.snapshot_lsn = record.lsn
        if record.type in REPEATS:
            self._note_repeat(record, carried)
        elif record.type in REVIVALS:
            self._is_dead_no_more(record.type)
        else:
            self.claim = None
            self._born, self.state = record, carried.state
            self._due_ns, self._due_is_wall = carried.due_ns, carried.due_is_wall
            self._due_lsn = record.lsn

    def _note_repeat(self, record: Record, carried: Carried) -> None:
        is_running = carried.state is State.RUNNING
        self.claim = (carried.token, carried.claim[1]) if is_running else None
        if carried.state in SETTLED_STATES:
            self.end = self.end or record

    def _move(self, record: Record) -> None:
        kind, body = record.type, record.body
        self.state = after(self.state, kind, waits=record.due_ns > record.time_ns)
        self.attempt = record.attempt
        self._due_ns, self._due_is_wall, self._due_lsn = record.due_ns, False, record.lsn
        if kind in CLAIMS:
            self._expires_ns = 0  # a claimed job does not expire
            self.claim = record.lsn, record.token
            view = AttemptView(number=record.attempt, owner=record.token, started_ns=record.time_ns)
            self._attempts = [*self._attempts[1 - _ATTEMPTS_SHOWN :], view]
            return
        self.claim = None
        reason = ""
        if kind in SUCCESSES:
            self._result, self._result_flags = body, record.body_flags
            self._reason = ""
        elif body:
            self._reason = reason = record.reason
        if kind in ENDS:
            self.end, self._settled_ns = record, record.time_ns
            self._ended_lsn = record.lsn
        if self._attempts and not self._attempts[-1].ended_ns:
            is_lost = kind in RETURNS and record.cause == _OWNER_LOST
            self._attempts[-1] = replace(
                self._attempts[-1],
                ended_ns=record.time_ns,
                outcome="lost" if is_lost else record.kind,
                reason=reason,
                stored_lines=record.lines,
            )

    def _is_dead_no_more(self, kind: int) -> None:
        """Note a requeue, which keeps earlier attempts for display, or a purge."""
        self.state = after(self.state, kind)
        self.attempt = self._settled_ns = 0
        self._ended_lsn = LSN_MAX
        self.end, self._reason = None, ""

    def moved_between(self) -> tuple[int, int] | None:
        """Return the lsns between which clock steps shift the job's moments; None if none do."""
        if self._expires_ns and not self._expires_is_wall:
            return self._expires_lsn, self._ended_lsn
        is_delayed = self.state is State.SCHEDULED and not self._due_is_wall
        return (self._due_lsn, self._ended_lsn) if is_delayed else None

    def clock_stepped(self, lsn: int, step_ns: int) -> None:
        """Apply a step of wall time: relative moments move with it, dates do not.

        Steps may come in order with the job's records, or all after them.
        """
        if self._due_ns and not self._due_is_wall and lsn > self._due_lsn:
            self._due_ns += step_ns
        is_moved = self._expires_lsn < lsn < self._ended_lsn
        if self._expires_ns and not self._expires_is_wall and is_moved:
            self._expires_ns += step_ns

    def view(self, now_ns: int) -> JobView:
        born = self._born
        state = self.state
        if state is State.SCHEDULED and self._due_ns <= now_ns:
            state = BY_TIME[state]
        return JobView(
            lsn=born.job,
            job_id=self._tag.id(born.job),
            queue=born.queue,
            task=born.task,
            priority=born.priority or 0,
            state=state,
            attempt=self.attempt,
            attempts_max=born.attempts_max,
            enqueued_ns=self._enqueued_ns,
            due_ns=self._due_ns if state is State.SCHEDULED else 0,
            expires_ns=self._expires_ns,
            settled_ns=self._settled_ns,
            key=born.key,
            headers=born.headers,
            payload=born.body or b"",
            payload_flags=born.body_flags,
            result=self._result,
            stores_result=born.stores_result,
            result_flags=self._result_flags,
            reason=self._reason,
            attempts=tuple(replace(attempt, task=born.task) for attempt in self._attempts),
        )


def read_job(journal: Journal, lsn: int) -> Story | None:
    story: Story | None = None
    records: list[Record] = []
    for place in _about(journal, lsn):
        record = Record(place.record, place.lsn, place.epoch, place.time_ns)
        records.append(record)
        if story is not None:
            story.add(record)
        elif _begins(place.record):
            story = Story(journal.tag, record)
            born = place.record if record.carried is None else record.carried.born
            story.ties = takes_of(born)
        # If its first segment is gone, a later record repeats the job.
    if story is None:
        return None
    story.records = records
    moved = story.moved_between()
    if moved is not None:
        for step in _patiently(journal, lambda: list(journal.indexes.steps_after(*moved))):
            story.clock_stepped(*step)
    return story


def job_view(journal: Journal, lsn: int, now_ns: int) -> JobView | None:
    story = read_job(journal, lsn)
    return None if story is None or story.state is State.ABSENT else story.view(now_ns)


def _about(journal: Journal, job: int) -> list[RecordFound]:
    return _patiently(journal, lambda: list(_until_final(journal.indexes.about(job))))


def _until_final(about_job: Iterator[RecordFound]) -> Iterator[RecordFound]:
    begun = False
    for place in about_job:
        yield place
        # If its first segment is gone, later records repeat the job, and perhaps its steps.
        begun = begun or place.record[KIND_AT] in BIRTHS
        if begun and place.record[KIND_AT] in LAST:
            return


def _patiently(journal: Journal, look: Callable[[], Answer]) -> Answer:
    """Return the result of ``look``; repeat it if compaction removed a segment meanwhile."""
    known = journal.files.lsns
    try:
        return look()
    except LogError:
        journal.files.refresh()
        if journal.files.lsns == known:
            raise
    return look()


def _begins(record: bytes) -> bool:
    kind = record[KIND_AT]
    return kind in BIRTHS or (kind in CARRYING and record[STATE_AT] != State.ABSENT)


def note_dropped(journal: Journal, lsn: int) -> None:
    """Record that jobs ended before an lsn were dropped, since the disk was full."""
    data = json.dumps({"before_lsn": lsn, "at_ns": journal.clock.wall_ns()}).encode()
    with contextlib.suppress(OSError):  # the next pass tries again
        replace_file(journal.disk, f"{journal.path}/{DROPPED_FILE}", data)


def why_dropped(journal: Journal, lsn: int) -> str:
    """Return why a job of this lsn may have been removed early; "" if none was dropped."""
    try:
        path = f"{journal.path}/{DROPPED_FILE}"
        dropped = json.loads(read_file(journal.disk, path, _DROPPED_BYTES_MAX))
        if lsn >= dropped["before_lsn"]:
            return ""
        moment = utc_moment(dropped["at_ns"]).isoformat(timespec="seconds")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"the disk was full at {moment}, and the oldest jobs that had ended went to make room"


def job_not_found(journal: Journal, job: int) -> JobNotFound:
    why = why_dropped(journal, job) or "it is not kept any more, or never was"
    return JobNotFound(f"there is no job {journal.tag.id(job)} in {journal.path}: {why}")
