"""The rows of jobs told record by record: what the fold by columns is held to.

It reads as rules, one record after the other, and shares no step with that one; it in turn is held
to ``taskq.log.read.walks.each_job``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from taskq import State
from taskq.arrow import attempts_in
from taskq.engine import Cause, Flag, kinds
from taskq_plugins.spark.parts import DATE, DEAD, OPEN, PART_COLUMN
from taskq_plugins.spark.tables.batches import Rows
from taskq_plugins.spark.tables.logs import LOG, Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from taskq_plugins.spark.tables.logs import LogKey

KEYS: Final = [*LOG, "job"]
_REPLAY_OF: Final = "replay_of"
_LONG: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
#: Attempts of one job that are kept; of more, the latest: as many as the Python fold keeps.
ATTEMPTS_SHOWN: Final = 100
#: ``kind`` of a row that stands for a job which was told as over: no record tells of it again.
TOLD: Final = "told"
#: Bits of ``moments``: what does not shift with the clock.
_DUE_IS_WALL: Final = 1
_EXPIRES_IS_WALL: Final = 2


def named(numbers: frozenset[int]) -> frozenset[str]:
    """Return kinds of records as the tables have them."""
    return frozenset(map(kinds.name_of, numbers))


BIRTHS: Final = named(kinds.BIRTHS)
REPEATS: Final = named(kinds.REPEATS)
_LOST: Final = Cause.OWNER_LOST.name.lower()
_DONE, _SCHEDULED = str(State.SUCCEEDED), str(State.SCHEDULED)
_READY, _ABSENT = str(State.READY), str(State.ABSENT)
_SUCCESSES: Final = named(kinds.SUCCESSES)
_CLAIMS: Final = named(kinds.CLAIMS)
_EDITS: Final = named(kinds.EDITS)
_REVIVALS: Final = named(kinds.REVIVALS)
_REMOVALS: Final = named(kinds.REMOVALS)
_ENDS: Final = named(kinds.ENDS)
_ANEW: Final = _REVIVALS | _REMOVALS
_RETURNS: Final = named(kinds.RETURNS)
#: Behind these nothing concerns the job any more.
_LAST: Final = named(kinds.LAST)
CARRYING: Final = named(kinds.CARRYING)
#: Kinds of records that do something to a job which an earlier one brought.
EVENTS: Final = named(kinds.OF_JOBS - kinds.BESIDE)
#: Those that end no attempt.
_BESIDE: Final = _ANEW | _CLAIMS | _EDITS
#: Those that tell all of a job as it stands.
_WHOLE: Final = REPEATS | _EDITS
#: Kinds of records that concern one job.
CONCERNING: Final = EVENTS | CARRYING | BIRTHS
#: State of a job that was not over where its log broke off, and that is not told of behind.
LOST: Final = "lost"
#: States that a job stays in.
OVER: Final = {LOST} | {str(kinds.after(State.RUNNING, kind)) for kind in kinds.ENDS - kinds.DEATHS}
_STATES: Final = {
    (row.name, waits): str(kinds.after(State.ABSENT, kind, waits=waits))
    for kind, row in kinds.ROWS.items()
    for waits in (False, True)
}


class RowLog(Log):
    """A log, asked of one job or record at a time."""

    def has_lost(self, last_lsn: int) -> bool:
        """Return whether a job that is not over, and was told of last there, is told of no more."""
        if self.left is not None:
            return True
        return any(last_lsn < gap[0] and self.is_past(gap) for gap in self.gaps)

    def was_read(self, lsn: int) -> bool:
        """Return whether a job's number lies in what was read, and so its ENQUEUED record."""
        return any(first <= lsn <= last for first, last in self.stretches)

    def stepped(self, first: int, last: int | None = None) -> int:
        """Return nanoseconds that the clock was set by between records; None: since the first."""
        if not self.steps:
            return 0
        return sum(step for lsn, step in self.steps if lsn > first and (last is None or lsn < last))


class Event(NamedTuple):
    """One record of a job; ``row`` is its place in the table."""

    row: int
    lsn: int
    kind: str
    ts_ns: int
    attempt: int | None
    owner: Any
    cause: str | None
    due_ns: int | None
    expires_ns: int | None
    moments: int | None
    state: str | None
    enqueued_ns: int | None
    ended_ns: int | None

    def begins(self) -> bool:
        """Return whether a job's story may begin with it."""
        return self.kind in BIRTHS or (self.kind in CARRYING and self.state != _ABSENT)

    def state_behind(self) -> str:
        """Return the job's state behind it."""
        if self.kind in _WHOLE:
            return self.state or _ABSENT
        waits = self.due_ns is not None and self.due_ns > self.ts_ns
        return _STATES[self.kind, waits]


#: Columns of the records that an event has.
COLUMNS: Final = Event._fields[1:]


@dataclass(slots=True)
class Attempt:
    """One delivery of a job to a worker; None where a record does not tell."""

    number: int | None
    owner: Any
    started_ns: int | None
    ended_ns: int | None = None
    outcome: str | None = None
    reason: str | None = None
    wait_ns: int | None = None
    run_ns: int | None = None

    def end(self, event: Event, bodies: Bodies, log: RowLog, since_lsn: int) -> None:
        """Note what ended it."""
        self.ended_ns = event.ts_ns
        is_lost = event.kind in _RETURNS and event.cause == _LOST
        self.outcome = "lost" if is_lost else event.kind
        self.reason = bodies.reason(event)
        if self.started_ns is not None:
            gone_ns = event.ts_ns - self.started_ns - log.stepped(since_lsn, event.lsn)
            self.run_ns = max(0, gone_ns)


@dataclass(slots=True)
class Job:
    """A job as its records tell it."""

    born: Event
    #: what told last in which place it waits
    placed: Event
    state: str
    attempt: int | None
    enqueued_ns: int | None
    due_ns: int | None = None
    expires_ns: int | None = None
    settled_ns: int | None = None
    result: Any = None
    reason: str | None = None
    attempts: list[Attempt] = field(default_factory=list)


class Bodies:
    """What records carry, looked up where it is needed: most of it is moved by the column."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = {name: table[name] for name in ("value", "result", "history")}

    def of(self, column: str, row: int) -> Any:
        """Return one value."""
        return self._columns[column][row].as_py()

    def reason(self, event: Event) -> str | None:
        """Return what an event says of why, if it says anything."""
        if event.kind in _SUCCESSES or event.kind in CARRYING:
            return None
        return _text(self.of("value", event.row))

    def early(self, born: Event) -> list[Attempt]:
        """Return the attempts that a carried record holds; what is cut short is left out."""
        data = self.of("history", born.row)
        if not data:
            return []
        views, is_whole = attempts_in(data)
        attempts: list[Attempt] = []
        before_ns: int | None = born.enqueued_ns if born.kind not in BIRTHS else born.ts_ns
        for view in views:
            ended_ns = view.ended_ns or None
            wait_ns = None
            if (attempts or is_whole) and before_ns is not None:
                wait_ns = max(view.started_ns, before_ns) - before_ns
            run_ns = None if ended_ns is None else max(0, ended_ns - view.started_ns)
            attempts.append(
                Attempt(
                    number=view.number,
                    owner=f"{view.owner:016x}",
                    started_ns=view.started_ns,
                    ended_ns=ended_ns,
                    outcome=view.outcome or None,
                    reason=view.reason or None,
                    wait_ns=wait_ns,
                    run_ns=run_ns,
                )
            )
            before_ns = ended_ns
        return attempts


def _text(value: Any) -> str | None:
    if not value:
        return None
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def fold(number: int, events: Sequence[Event], bodies: Bodies, log: RowLog) -> Job | None:
    """Return the job that these records tell of, by lsn; None: none, or it was told before.

    Args:
        number: of the job.
        events: all records that concern it, and rows of kind "told".
        bodies: what they carry.
        log: what is known of the log, these records included.
    """
    if any(event.kind == TOLD for event in events):
        return None
    born = next((event for event in events if event.begins()), None)
    if born is None or (born.kind not in BIRTHS and log.was_read(number)):
        return None
    behind = [event for event in events if event.kind in EVENTS and event.lsn > born.lsn]
    state = born.state_behind()
    if state in OVER and born.kind not in _REVIVALS:
        behind = []
    ends = next((at for at, event in enumerate(behind) if event.kind in _LAST), None)
    if ends is not None:
        if behind[ends].kind in _REMOVALS and state not in OVER:
            return None
        behind = behind[: ends + 1]
    return _job(born, behind, bodies, log)


def _job(born: Event, acting: Sequence[Event], bodies: Bodies, log: RowLog) -> Job:
    """Return what came of a job that began with one record and was acted upon by others."""
    is_carried = born.kind in _WHOLE
    job = Job(
        born=born,
        placed=next((event for event in reversed(acting) if event.kind in _EDITS), born),
        state=acting[-1].state_behind() if acting else born.state_behind(),
        attempt=(born.attempt or 0) if is_carried else 0,
        enqueued_ns=born.ts_ns if born.kind in BIRTHS else born.enqueued_ns,
        settled_ns=born.ended_ns if is_carried else None,
    )
    early = bodies.early(born)
    _tell_reason(job, acting, early, bodies)
    _tell_moments(job, acting, log)
    if acting:
        last = acting[-1]
        job.attempt = 0 if last.kind in _ANEW else last.attempt
        if last.kind in _SUCCESSES:
            job.result = bodies.of("value", last.row)
    if early and early[-1].ended_ns is None and acting and acting[0].kind not in _BESIDE:
        early[-1].end(acting[0], bodies, log, born.lsn)
    job.attempts = [*early, *_attempts(job, acting, bodies, log)][-ATTEMPTS_SHOWN:]
    return job


def _tell_reason(
    job: Job, acting: Sequence[Event], early: Sequence[Attempt], bodies: Bodies
) -> None:
    """Tell why it failed last, unless it began anew or succeeded since; and its carried result."""
    born = job.born
    for event in reversed(acting):
        if event.kind in _SUCCESSES or event.kind in _ANEW:
            return
        if (reason := bodies.reason(event)) is not None:
            job.reason = reason
            return
    if born.kind in _WHOLE:
        body = bodies.of("result", born.row)
        if born.state == _DONE:
            job.result = body
            return
        job.reason = _text(body)
        # Attempts that were counted before a requeue are not asked for a reason any more.
        if job.reason is None and born.attempt:
            job.reason = next(
                (attempt.reason for attempt in reversed(early) if attempt.reason), None
            )


def _tell_moments(job: Job, acting: Sequence[Event], log: RowLog) -> None:
    """Tell when it is due, expires and was settled."""
    born, last = job.born, acting[-1] if acting else None
    settling = next(
        (event for event in reversed(acting) if event.kind in _ENDS or event.kind in _ANEW), None
    )
    if settling is not None:
        job.settled_ns = settling.ts_ns if settling.kind in _ENDS else None
    if job.state == _SCHEDULED:
        told_by = last or born
        due_ns = told_by.due_ns
        tells = last is None or last.kind in _EDITS
        is_wall = tells and (told_by.moments or 0) & _DUE_IS_WALL
        if due_ns is not None and not is_wall:
            due_ns += log.stepped(told_by.lsn)
        if due_ns is None or due_ns <= log.now_ns:
            job.state = _READY
        else:
            job.due_ns = due_ns
    # What told last when it expires: a requeue, or the birth.
    told_by = next((event for event in reversed(acting) if event.kind in _REVIVALS), born)
    if told_by.expires_ns is None:
        return
    job.expires_ns = told_by.expires_ns
    if not (told_by.moments or 0) & _EXPIRES_IS_WALL:
        # A dead letter may be requeued, so that when it expires goes on to matter.
        over_lsn = None
        if settling is None:
            over_lsn = born.lsn if born.state_behind() in OVER else None
        elif settling.kind in _ENDS and settling.kind in _LAST:
            over_lsn = settling.lsn
        job.expires_ns += log.stepped(told_by.lsn, over_lsn)


def _attempts(job: Job, acting: Sequence[Event], bodies: Bodies, log: RowLog) -> Iterator[Attempt]:
    """Yield the attempts that records of their own tell of."""
    for at, claim in enumerate(acting):
        if claim.kind not in _CLAIMS:
            continue
        attempt = Attempt(claim.attempt, claim.owner, claim.ts_ns)
        before = acting[at - 1] if at else job.born
        is_placed = not at or before.kind in _EDITS
        since_ns = _since_placed(before) if is_placed else _since(before)
        if since_ns is not None:
            since_ns += log.stepped(before.lsn, claim.lsn)
            if is_placed:
                since_ns = max(since_ns, _wall_due_ns(before))
            attempt.wait_ns = max(0, claim.ts_ns - since_ns)
        if at + 1 < len(acting) and acting[at + 1].kind not in _BESIDE:
            attempt.end(acting[at + 1], bodies, log, claim.lsn)
        yield attempt


def _since(before: Event) -> int | None:
    """Return since when it could be claimed, by the event before, as the clock stood then."""
    if before.kind in _RETURNS:
        return max(before.ts_ns, before.due_ns or before.ts_ns)
    return before.ts_ns if before.kind in _REVIVALS else None


def _wall_due_ns(born: Event) -> int:
    """Return the date before which it was not due, 0 for none: it does not shift."""
    is_wall = (born.moments or 0) & _DUE_IS_WALL
    return (born.due_ns or 0) if is_wall and born.state_behind() == _SCHEDULED else 0


def _since_placed(born: Event) -> int | None:
    """Return the same by the record that brought it, or let it wait otherwise."""
    is_wall = (born.moments or 0) & _DUE_IS_WALL
    if born.kind not in _WHOLE:
        return born.ts_ns if is_wall or born.due_ns is None else max(born.ts_ns, born.due_ns)
    if born.state == _SCHEDULED:
        return born.enqueued_ns if is_wall else born.due_ns
    if born.state == _READY:
        return born.enqueued_ns if born.due_ns is None else born.due_ns
    return None


def rows_of(records: pa.Table, logs: Mapping[LogKey, Log]) -> Rows:
    """Fold the records of some jobs.

    Args:
        records: all of these jobs: of the batch, and what was kept of them. Their order is of no
            account.
        logs: what is known of their logs, the batch included.
    """
    known = pa.array(sorted(CONCERNING | {TOLD}))
    chosen = records.filter(pc.is_in(records["kind"], known))
    order = pc.sort_indices(chosen, [(name, "ascending") for name in (*KEYS, "lsn")])
    chosen = chosen.take(order).combine_chunks()
    bodies = Bodies(chosen)
    columns = [chosen[name].to_pylist() for name in COLUMNS]
    events = map(Event._make, zip(range(chosen.num_rows), *columns, strict=True))
    keys = list(zip(*(chosen[name].to_pylist() for name in KEYS), strict=True))
    jobs: list[Job] = []
    kept: list[int] = []
    kept_parts: list[str] = []
    told_jobs: list[tuple[str, int, int]] = []
    for key, group in groupby(events, key=lambda event: keys[event.row]):
        log_id, branch, number = key
        of_job, log = list(group), RowLog(*logs[log_id, branch])
        job = _settled(fold(number, of_job, bodies, log), of_job[-1].lsn, log)
        if job is not None:
            jobs.append(job)
        if job is None or job.state in OVER:
            if any(event.kind == TOLD for event in of_job) or (
                any(event.begins() and event.kind not in BIRTHS for event in of_job)
                and not log.was_read(number)
            ):
                told_jobs.append(key)
            continue
        rows = list(_needed(of_job, log, is_brought=log.was_read(number)))
        kept += rows
        kept_parts += [part_of(job.state)] * len(rows)
    made = _jobs(jobs, chosen)
    return Rows(*made, _kept(chosen, kept, kept_parts, told_jobs))


def _settled(job: Job | None, last_lsn: int, log: RowLog) -> Job | None:
    """Return the job as its branch has it, where it parts from another; None: the other has it."""
    if job is None:
        return None
    if job.state in OVER:
        # Of what was over where a branch begins, the one before tells.
        return None if last_lsn < log.begins else job
    if log.left is not None and last_lsn < log.left:
        return None
    if log.has_lost(last_lsn):
        job.state, job.due_ns = LOST, None
    return job


def part_of(state: str) -> str:
    """Return the part of the tables that a job in this state is in."""
    return "over" if state in OVER else DEAD if state == DEAD else OPEN


def _needed(events: Sequence[Event], log: RowLog, *, is_brought: bool) -> Iterable[int]:
    """Yield the rows of a job that is not over: of those that carry it, the first.

    Behind a gap the last record says that the job is still told of, whatever that record is.
    """
    for event in events:
        if event.kind in REPEATS and not (log.gaps and event is events[-1]):
            if is_brought or not event.begins():
                continue
            is_brought = True
        yield event.row


def _kept(
    chosen: pa.Table,
    rows: Sequence[int],
    parts: Sequence[str],
    told_jobs: Iterable[tuple[str, int, int]],
) -> pa.Table:
    needed = chosen.take(pa.array(rows, _LONG)).append_column(
        PART_COLUMN, pa.array(parts, pa.string())
    )
    over = [
        dict(zip(KEYS, key, strict=True)) | {"kind": TOLD, PART_COLUMN: DEAD} for key in told_jobs
    ]
    return pa.concat_tables([needed, pa.Table.from_pylist(over, needed.schema)])


def _jobs(jobs: Sequence[Job], records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of ``jobs``, and those of ``attempts``."""
    born = records.take(pa.array([job.born.row for job in jobs], _LONG))
    placed = records.take(pa.array([job.placed.row for job in jobs], _LONG))
    tried = _tried(
        [attempt for job in jobs for attempt in job.attempts], records.schema.field("owner").type
    )
    counts = [len(job.attempts) for job in jobs]
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _structs(tried))
    body = records.schema.field("value").type
    states = [job.state for job in jobs]
    parts = [part_of(state) for state in states]
    enqueued = pa.array([job.enqueued_ns for job in jobs], _LONG)
    settled = pa.array([job.settled_ns for job in jobs], _LONG)
    first = [job.attempts[0].started_ns if job.attempts else None for job in jobs]
    dropped = pc.bit_wise_and(born["flags"], pa.scalar(int(Flag.DROP_RESULT), born["flags"].type))
    columns = {
        **{name: placed[name] for name in ("device", *LOG, "job_id", "job", "queue", "task")},
        "priority": placed["priority"],
        "state": pa.array(states, pa.string()),
        "attempt": pa.array([job.attempt for job in jobs], pa.int32()),
        "attempts_max": born["attempts_max"],
        "enqueued_at": moment(enqueued),
        "enqueued_ns": enqueued,
        "due_ns": pa.array([job.due_ns for job in jobs], _LONG),
        "expires_ns": pa.array([job.expires_ns for job in jobs], _LONG),
        "first_started_ns": pa.array(first, _LONG),
        "settled_ns": settled,
        "settled_at": moment(settled),
        "key": born["key"],
        "headers": born["headers"],
        "payload": born["value"],
        "result": pa.array([job.result for job in jobs], body),
        "reason": pa.array([job.reason for job in jobs], pa.string()),
        "stores_result": pc.equal(dropped, 0),
        "replay_of": pc.map_lookup(born["headers"], pa.scalar(_REPLAY_OF), "first"),
        "epoch": born["epoch"],
        "is_over": pa.array([state in OVER for state in states], pa.bool_()),
        "attempts": lists,
        PART_COLUMN: pa.array(parts, pa.string()),
        DATE: moment(enqueued).cast(pa.date32()),
    }
    table = pa.table(columns)
    return table, _attempt_rows(table, tried, counts)


def _attempt_rows(jobs: pa.Table, tried: pa.Table, counts: Sequence[int]) -> pa.Table:
    """Return one row per attempt: what is known of its job beside what is of itself."""
    of = pa.array([at for at, count in enumerate(counts) for _ in range(count)], _LONG)
    job = jobs.select(
        ["device", *LOG, "job_id", "job", "queue", "task", "key", "is_over", PART_COLUMN]
    ).take(of)
    columns = {name: job[name] for name in job.column_names[:8]}
    columns |= {name: tried[name] for name in ("number", "owner", "started_ns", "ended_ns")}
    columns |= {
        "started_at": moment(tried["started_ns"]),
        "ended_at": moment(tried["ended_ns"]),
        **{name: tried[name] for name in ("outcome", "reason", "wait_ns", "run_ns")},
        "is_over": job["is_over"],
        PART_COLUMN: job[PART_COLUMN],
        DATE: moment(pc.coalesce(tried["started_ns"], tried["ended_ns"])).cast(pa.date32()),
    }
    return pa.table(columns)


def _tried(attempts: Sequence[Attempt], owner: pa.DataType) -> pa.Table:
    kinds = {
        "number": pa.int32(), "owner": owner, "started_ns": _LONG, "ended_ns": _LONG,
        "outcome": pa.string(), "reason": pa.string(), "wait_ns": _LONG, "run_ns": _LONG,
    }  # fmt: skip
    return pa.table(
        {
            name: pa.array([getattr(attempt, name) for attempt in attempts], kind)
            for name, kind in kinds.items()
        }
    )


def _structs(table: pa.Table) -> pa.StructArray:
    plain = table.combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in plain.columns
    ]
    return pa.StructArray.from_arrays(columns, fields=list(plain.schema))


def moment(nanoseconds: Any) -> Any:
    """Return nanoseconds since 1970 as a timestamp, cut to the microsecond."""
    return pc.divide(nanoseconds, 1_000).cast(_TIME)
