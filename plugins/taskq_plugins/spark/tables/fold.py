"""Fold the records of logs by columns, without Spark, into a row per job and per attempt.

``taskq.log.read.jobs.each_job`` is the reference. A job begins with its ENQUEUED record or, if that
segment was not read, with the first record that carries the whole job. Without either, and after a
purge, the job has no row. Relative moments shift by later steps of the clock.

``wait_ns`` of an attempt is the time from when a worker could have claimed the job to the claim. It
counts from the enqueue, or from the due time if later; after a retried or released attempt from its
end or the end of its backoff; after a requeue from the requeue. A job that compaction rewrote waits
from the moment in its record. For attempts known only from such a record the backoff is unknown:
they count from the end of the attempt before, the first from the enqueue. ``run_ns`` is the time
from claim to end. Clock changes that the log recorded are excluded from both. Both are at least 0,
and null if unknown: while the job runs, and after lost attempts or ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq import State
from taskq.arrow import attempts_in
from taskq.engine import Flag
from taskq_plugins.spark.lake.files import DATE, REPLAY_OF
from taskq_plugins.spark.tables.logs import (
    CONCERNING,
    FINISHED,
    IS_ANEW,
    IS_BIRTH,
    IS_CARRYING,
    IS_CLAIM,
    IS_EDIT,
    IS_END,
    IS_EVENT,
    IS_LAST,
    IS_OUTSIDE,
    IS_OVER,
    IS_REMOVAL,
    IS_REPEAT,
    IS_RETURN,
    IS_REVIVAL,
    IS_SUCCESS,
    IS_WHOLE,
    KINDS,
    LOST,
    NEVER,
    NONE,
    STATE,
    STATES,
    Events,
    Ints,
    Log,
    Mask,
    text,
)

if TYPE_CHECKING:
    from taskq.views import AttemptView

#: Latest attempts of one job that are kept, as in the Python fold.
ATTEMPTS_SHOWN: Final = 100
_LONG: Final = pa.int64()
_TEXT: Final = pa.string()
_READY, _SCHEDULED, _DONE = (
    STATE[str(state)] for state in (State.READY, State.SCHEDULED, State.SUCCEEDED)
)
_LOST: Final = STATE[LOST]
#: Outcomes of an attempt: the event that ends it, or lost with its worker.
_OUTCOMES: Final = pa.array([*KINDS, "lost"], _TEXT)
#: An attempt within a carried record; ``of`` is the index of its job.
_ATTEMPT: Final = pa.schema(
    [
        ("of", _LONG), ("number", pa.int32()), ("owner", _TEXT), ("started_ns", _LONG),
        ("ended_ns", _LONG), ("outcome", _TEXT), ("reason", _TEXT), ("wait_ns", _LONG),
        ("run_ns", _LONG), ("is_own", pa.bool_()),
    ]
)  # fmt: skip


def numbers(values: Ints, kind: pa.DataType = _LONG) -> pa.Array:
    return pa.array(values, mask=values == NONE).cast(kind)


class _Jobs:
    """All jobs with events; jobs without a row keep nothing.

    Attributes:
        events: all of them.
        born: first event of each job.
        is_acting, acting: mask of the events that change jobs, and their indexes in order.
        last: last of these events for each job.
        placed: last event with the job's queue or due time.
        settling: last event that settled or restarted the job.
        state, due_ns: state as a code, and due time, also of lost jobs.
        exists: whether the job has a row; jobs that ended before a log began belong to its parent.
        is_over: whether the row is final.
        continued_in: the child log that continues the job.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        begins = events.begins()
        self._carried_at = events.first(begins & ~IS_BIRTH[events.kind])
        self._was_read = self._were_read()
        self._was_finished = events.first(events.kind == KINDS.index(FINISHED)) >= 0
        self.born = events.first(begins)
        is_carried = self._carried_at == self.born
        self.exists = (self.born >= 0) & ~self._was_finished & ~(is_carried & self._was_read)
        self.is_acting = self._act()
        self.acting = np.flatnonzero(self.is_acting)
        self.last = self._last_of(self.is_acting)
        edit = self._last_of(IS_EDIT[events.kind])
        self.placed = np.where(edit >= 0, edit, self.born)
        self.settling = self._last_of((IS_END | IS_ANEW)[events.kind])
        self._stand()

    def _last_of(self, which: Mask) -> Ints:
        return self.events.last(self.is_acting & which)

    def _were_read(self) -> Mask:
        events = self.events
        carried = np.flatnonzero(events.first(IS_CARRYING[events.kind]) >= 0)
        were_read = np.zeros(len(events.number), np.bool_)
        were_read[carried] = events.logs.were_read(events.log[carried], events.number[carried])
        return were_read

    def _act(self) -> Mask:
        events, born = self.events, self.born
        begun = events.after[born]
        is_live = self.exists & (~IS_OVER[begun] | IS_REVIVAL[events.kind[born]])
        acts: Mask = is_live[events.of] & IS_EVENT[events.kind]
        acts &= events.lsn > events.lsn[born][events.of]
        end = events.first(acts & IS_LAST[events.kind])
        self.exists &= (end < 0) | ~IS_REMOVAL[events.kind[end]] | IS_OVER[begun]
        until = np.where(end < 0, len(events), end)
        acts &= (np.arange(len(events)) <= until[events.of]) & self.exists[events.of]
        return acts

    def _stand(self) -> None:
        """Set the state as of the last records of the logs; gaps and children change it."""
        events, logs = self.events, self.events.logs
        source = np.where(self.last >= 0, self.last, self.born)
        may_be_wall = (self.last < 0) | IS_EDIT[events.kind[source]]
        due_ns = events.due_ns[source]
        is_wall = may_be_wall & events.due_is_wall[source]
        shifted = due_ns + np.where(is_wall, 0, logs.stepped(events.log, events.lsn[source]))
        state = events.after[source]
        waits = state == _SCHEDULED
        is_due = (due_ns == NONE) | (shifted <= logs.now_ns[events.log])
        is_over, last_lsn = IS_OVER[state], events.lsn[events.ends]
        self.exists &= ~is_over | (last_lsn >= logs.begins[events.log])
        is_lost = ~is_over & (last_lsn < logs.lost_before[events.log])
        self.is_over = is_over | is_lost
        child = logs.continued_in(events.log, events.number)
        self.continued_in = pc.if_else(pa.array(self.is_over), pa.scalar(None, _TEXT), child)
        is_left = ~self.is_over & self.continued_in.is_null().to_numpy(False)
        is_lost |= is_left & logs.is_replaced[events.log]
        self.due_ns = np.where(waits & ~is_due & ~is_lost, shifted, NONE)
        self.state = np.where(is_lost, _LOST, np.where(waits & is_due, _READY, state))

    def writers(self) -> dict[str, pa.Array]:
        """Return the logs of each job's enqueue and end."""
        events, logs = self.events, self.events.logs
        ended = np.where(self.settling >= 0, self.settling, self.born)
        settled = pa.array(self.settled_ns() == NONE)
        return {
            "enqueued_in": logs.writers(events.log, events.lsn[self.born]),
            "settled_in": pc.if_else(
                settled, pa.scalar(None, _TEXT), logs.writers(events.log, events.lsn[ended])
            ),
        }

    def attempt(self) -> Ints:
        events, last = self.events, self.last
        begun = np.where(IS_WHOLE[events.kind[self.born]], events.attempt[self.born], 0)
        after = np.where(IS_ANEW[events.kind[last]], 0, events.attempt[last])
        return np.where(last >= 0, after, np.where(begun == NONE, 0, begun))

    def enqueued_ns(self) -> Ints:
        events, born = self.events, self.born
        is_birth = IS_BIRTH[events.kind[born]]
        return np.where(is_birth, events.ts_ns[born], events.enqueued_ns[born])

    def settled_ns(self) -> Ints:
        events, born, settling = self.events, self.born, self.settling
        begun = np.where(IS_WHOLE[events.kind[born]], events.ended_ns[born], NONE)
        ended = np.where(IS_END[events.kind[settling]], events.ts_ns[settling], NONE)
        return np.where(settling >= 0, ended, begun)

    def expires_ns(self) -> Ints:
        events, settling, born = self.events, self.settling, self.born
        claimed = self._last_of((IS_CLAIM | IS_REVIVAL)[events.kind]) >= 0
        over = np.where(IS_OVER[events.after[born]], events.lsn[born], NEVER)
        is_over = (IS_END & IS_LAST)[events.kind[settling]]
        over = np.where(settling < 0, over, np.where(is_over, events.lsn[settling], NEVER))
        spent = events.logs.stepped(events.log, events.lsn[born], over)
        expires_ns = np.where(claimed, NONE, events.expires_ns[born])
        shifts = (expires_ns != NONE) & ~events.expires_is_wall[born]
        return expires_ns + np.where(shifts, spent, 0)

    def bodies(self, early: Mapping[int, str]) -> tuple[pa.Array, pa.Array]:
        """Return (last error, unless restarted or succeeded since; results).

        ``early`` holds the errors from carried records, by job.
        """
        events, last, born = self.events, self.last, self.born
        fresh = (IS_SUCCESS | IS_ANEW)[events.kind]
        source = self._last_of(fresh | events.have_text)
        has_error = (source >= 0) & ~fresh[source]
        is_from_birth = (source < 0) & self.exists & IS_WHOLE[events.kind[born]]
        is_done = is_from_birth & (events.state[born] == _DONE)
        is_success = (last >= 0) & IS_SUCCESS[events.kind[last]]
        result = pc.coalesce(
            events.taken("value", np.where(is_success, last, -1)),
            events.taken("result", np.where(is_done, born, -1)),
        )
        reason = pc.coalesce(
            text(events.taken("value", np.where(has_error, source, -1))),
            text(events.taken("result", np.where(is_from_birth & ~is_done, born, -1))),
        )
        # Attempts before a requeue no longer give the reason.
        asked = is_from_birth & ~is_done & (np.maximum(events.attempt[born], 0) > 0)
        asked &= np.isin(np.arange(len(asked)), list(early)) & reason.is_null().to_numpy(False)
        others = [early[job] for job in np.flatnonzero(asked).tolist()]
        return pc.replace_with_mask(reason, asked, pa.array(others, _TEXT)), result

    def kept(self) -> tuple[Ints, Ints]:
        """Return (events for later batches, jobs to skip when carried again).

        Later batches need the first event that carries a job. After a gap, the last event shows
        that the job still exists.
        """
        events = self.events
        repeats = IS_REPEAT[events.kind]
        first = events.first(repeats & events.begins())
        needed = ~repeats
        needed[first[(first >= 0) & ~self._was_read]] = True
        needed[events.ends[events.logs.has_gaps[events.log]]] = True
        passed = self._was_finished | ((self._carried_at >= 0) & ~self._was_read)
        is_open = self.exists & ~self.is_over
        return np.flatnonzero(needed & is_open[events.of]), np.flatnonzero(passed & ~is_open)


# -- attempts --------------------------------------------------------------------------------------


def _early(jobs: _Jobs) -> tuple[pa.Table, dict[int, str]]:
    """Return attempts within carried records, and the last error among them by job.

    Truncated errors are left out.
    """
    events, enqueued_ns = jobs.events, jobs.enqueued_ns()
    histories = events.taken("history", jobs.born)
    begins = events.logs.begins[events.log]
    rows: list[dict[str, Any]] = []
    reasons: dict[int, str] = {}
    open_rows: list[tuple[int, int]] = []
    holds = pc.fill_null(pc.greater(pc.binary_length(histories), 0), fill_value=False)
    for job in np.flatnonzero(holds).tolist():
        views, is_whole = attempts_in(histories[job].as_py())
        before_ns = None if enqueued_ns[job] == NONE else int(enqueued_ns[job])
        for number, view in enumerate(views):
            is_own = not view.ended_ns or bool(begins[job] <= events.lsn[jobs.born[job]])
            row = _attempt_row(view, before_ns if number or is_whole else None)
            rows.append({"of": job, "is_own": is_own} | row)
            before_ns = view.ended_ns or None
            if view.reason:
                reasons[job] = view.reason
        if views and before_ns is None:
            open_rows.append((len(rows) - 1, job))
    return _closed(jobs, pa.Table.from_pylist(rows, _ATTEMPT), open_rows), reasons


def _attempt_row(view: AttemptView, before_ns: int | None) -> dict[str, Any]:
    """Return an attempt from a carried record; the job could be claimed since ``before_ns``."""
    ended_ns = view.ended_ns or None
    return {
        "number": view.number,
        "owner": f"{view.owner:016x}",
        "started_ns": view.started_ns,
        "ended_ns": ended_ns,
        "outcome": view.outcome or None,
        "reason": view.reason or None,
        "wait_ns": None if before_ns is None else max(0, view.started_ns - before_ns),
        "run_ns": None if ended_ns is None else max(0, ended_ns - view.started_ns),
    }


def _closed(jobs: _Jobs, early: pa.Table, open_rows: list[tuple[int, int]]) -> pa.Table:
    if not open_rows:
        return early
    events, of = jobs.events, early["of"].to_numpy()
    end = np.full(len(of), -1)
    rows, of_rows = np.array(open_rows, np.int64).T
    end[rows] = events.first(jobs.is_acting)[of_rows]
    end[IS_OUTSIDE[events.kind[end]]] = -1
    ends = _ends(events, of, early["started_ns"].to_numpy(), jobs.born[of], end)
    columns = dict(zip(early.column_names, early.columns, strict=True))
    return pa.table(columns | {name: pc.coalesce(ends[name], columns[name]) for name in ends})


def _claimed(jobs: _Jobs) -> pa.Table:
    events, acting = jobs.events, jobs.acting
    at = np.flatnonzero(IS_CLAIM[events.kind[acting]])
    claim, of = acting[at], events.of[acting[at]]
    before, after = np.append(acting, -1)[at - 1], np.append(acting, -1)[at + 1]
    is_first = (before < 0) | (events.of[before] != of)
    before = np.where(is_first, jobs.born[of], before)
    is_end = (after >= 0) & (events.of[after] == of) & ~IS_OUTSIDE[events.kind[after]]
    columns = {
        "of": pa.array(of), "number": numbers(events.attempt[claim], pa.int32()),
        "owner": events.taken("owner", claim), "started_ns": numbers(events.ts_ns[claim]),
        "wait_ns": numbers(_wait_ns(events, before, claim, is_first)),
    } | _ends(events, of, events.ts_ns[claim], claim, np.where(is_end, after, -1))  # fmt: skip
    return pa.table(columns).select(_ATTEMPT.names).cast(_ATTEMPT)


def _wait_ns(events: Events, before: Ints, claim: Ints, is_first: Mask) -> Ints:
    """Return the wait of each claim.

    Args:
        events: all events.
        before: for each claim the earlier event that placed the job, or ended an attempt.
        claim: indexes of the claims.
        is_first: whether ``before`` is the job's first event.
    """
    kind, ts_ns, due_ns = events.kind[before], events.ts_ns[before], events.due_ns[before]
    enqueued_ns, is_wall = events.enqueued_ns[before], events.due_is_wall[before]
    is_placed = is_first | IS_EDIT[kind]
    later = np.maximum(ts_ns, due_ns)  # NONE is the least number
    waits, is_ready = (events.state[before] == state for state in (_SCHEDULED, _READY))
    due = np.where(is_ready & (due_ns == NONE) | waits & is_wall, enqueued_ns, due_ns)
    due = np.where(is_ready | waits, due, NONE)
    placed = np.where(IS_WHOLE[kind], due, np.where(is_wall, ts_ns, later))
    back = np.where(IS_RETURN[kind], later, np.where(IS_REVIVAL[kind], ts_ns, NONE))
    since_ns = np.where(is_placed, placed, back)
    is_known = since_ns != NONE
    since_ns += events.logs.stepped(
        events.log[events.of[claim]], events.lsn[before], events.lsn[claim]
    )
    # A date does not shift with the clock.
    is_dated = is_placed & is_wall & (events.after[before] == _SCHEDULED)
    since_ns = np.where(is_dated, np.maximum(since_ns, due_ns), since_ns)
    return np.where(is_known, np.maximum(events.ts_ns[claim] - since_ns, 0), NONE)


def _ends(
    events: Events, of: Ints, started_ns: Ints, first: Ints, end: Ints
) -> dict[str, pa.Array]:
    """Return columns about the ends of attempts.

    Args:
        events: all events.
        of: indexes of the jobs, in order.
        started_ns: begin of each attempt.
        first: first event of each attempt.
        end: last event of each attempt, or -1.
    """
    has_end = end >= 0
    steps = events.logs.stepped(events.log[of], events.lsn[first], events.lsn[end])
    run_ns = np.maximum(events.ts_ns[end] - started_ns - steps, 0)
    outcome = np.where(events.were_lost[end], len(KINDS), events.kind[end])
    return {
        "ended_ns": numbers(np.where(has_end, events.ts_ns[end], NONE)),
        "outcome": _OUTCOMES.take(pa.array(outcome, mask=~has_end)),
        "reason": text(events.taken("value", np.where(has_end & events.have_text[end], end, -1))),
        "run_ns": numbers(np.where(has_end, run_ns, NONE)),
        "is_own": pa.array(events.lsn[end] >= events.logs.begins[events.log[of]], mask=~has_end),
    }


def _shown(attempts: pa.Table, jobs: Ints) -> pa.Table:
    of = attempts["of"].to_numpy()
    place = np.searchsorted(jobs, of)
    is_shown = np.append(jobs, -1)[place] == of
    rows = np.flatnonzero(is_shown)
    rows = rows[np.argsort(place[rows], kind="stable")]
    place = place[rows]
    ends = np.searchsorted(place, place, side="right")
    latest = ends - np.arange(len(rows)) <= ATTEMPTS_SHOWN
    chosen = attempts.take(pa.array(rows[latest])).combine_chunks()
    return chosen.set_column(0, "of", pa.array(place[latest]))


#: Identity of a job.
KEYS: Final = ["log_id", "job"]
_TIME: Final = pa.timestamp("us", tz="UTC")
_STATES: Final = pa.array(STATES, pa.string())
#: Columns of a job from its first event, and from the last event with its queue or due time.
_OF_BIRTH: Final = ("attempts_max", "key", "headers", "value", "flags", "epoch")
_OF_PLACE: Final = ("device", "log_id", "job_id", "job", "queue", "task", "priority")


class JobRows(NamedTuple):
    """Rows of the jobs in a batch."""

    jobs: pa.Table
    attempts: pa.Table
    #: records for later batches, and a row of kind "finished" for each finished or purged job that
    #: began with a carrying record, since compaction may write such a record again
    kept: pa.Table


def touched_by(records: pa.Table) -> pa.Table:
    chosen = records.filter(pc.is_in(records["kind"], pa.array(sorted(CONCERNING))))
    return chosen.select(KEYS).group_by(KEYS, use_threads=False).aggregate([])


def rows_of(records: pa.Table, logs: Mapping[str, Log]) -> JobRows:
    """Fold the records of some jobs.

    Args:
        records: all records of these jobs, from the batch and kept from earlier ones, in any order.
        logs: state of their logs, including the batch.
    """
    folded = _Jobs(Events(records, logs))
    early, reasons = _early(folded)
    rows = np.flatnonzero(folded.exists)
    tried = _shown(pa.concat_tables([early, _claimed(folded)]), rows)
    jobs = _jobs(folded, rows, reasons, tried)
    return JobRows(jobs, _attempts(jobs, tried), _kept(folded))


def _kept(folded: _Jobs) -> pa.Table:
    events = folded.events
    kept, passed = folded.kept()
    over = [
        {"log_id": events.keys[log], "job": job, "kind": FINISHED}
        for log, job in zip(events.log[passed], events.number[passed].tolist(), strict=True)
    ]
    needed = events.records.take(pa.array(events.row[kept]))
    return pa.concat_tables([needed, pa.Table.from_pylist(over, needed.schema)])


def _jobs(folded: _Jobs, rows: Ints, reasons: Mapping[int, str], tried: pa.Table) -> pa.Table:
    offsets = np.searchsorted(tried["of"].to_numpy(), np.arange(len(rows) + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(
        pa.array(offsets), _structs(tried.drop_columns(["of", "is_own"]))
    )
    events, at = folded.events, pa.array(rows)
    born = {name: events.taken(name, folded.born[rows]) for name in _OF_BIRTH}
    placed = {name: events.taken(name, folded.placed[rows]) for name in _OF_PLACE}
    enqueued_ns = numbers(folded.enqueued_ns()[rows])
    settled_ns = numbers(folded.settled_ns()[rows])
    reason, result = folded.bodies(reasons)
    dropped = pc.bit_wise_and(born["flags"], pa.scalar(int(Flag.DROP_RESULT), born["flags"].type))
    first = pa.array(offsets[:-1], mask=offsets[:-1] == offsets[1:])
    return pa.table(
        {
            **placed,
            "state": _STATES.take(pa.array(folded.state[rows])),
            "attempt": numbers(folded.attempt()[rows], pa.int32()),
            "attempts_max": born["attempts_max"],
            "enqueued_at": moment(enqueued_ns),
            "enqueued_ns": enqueued_ns,
            "due_ns": numbers(folded.due_ns[rows]),
            "expires_ns": numbers(folded.expires_ns()[rows]),
            "first_started_ns": tried["started_ns"].take(first),
            "settled_ns": settled_ns,
            "settled_at": moment(settled_ns),
            "key": born["key"],
            "headers": born["headers"],
            "payload": born["value"],
            "result": result.take(at),
            "reason": reason.take(at),
            "stores_result": pc.equal(dropped, 0),
            "replay_of": pc.map_lookup(born["headers"], pa.scalar(REPLAY_OF), "first"),
            "epoch": born["epoch"],
            "continued_in": folded.continued_in.take(at),
            **{name: logs.take(at) for name, logs in folded.writers().items()},
            "attempts": lists,
            "is_over": pa.array(folded.is_over[rows]),
            DATE: moment(enqueued_ns).cast(pa.date32()),
        }
    )


def _attempts(jobs: pa.Table, tried: pa.Table) -> pa.Table:
    names = ["device", "log_id", "job_id", "job", "queue", "task", "key", "is_over"]
    # Attempts that ended in a parent are rows of the parent.
    tried = tried.filter(pc.fill_null(tried["is_own"], fill_value=True))
    job = jobs.select(names).take(tried["of"])
    columns = {name: job[name] for name in names[:-1]}
    columns |= {name: tried[name] for name in ("number", "owner", "started_ns", "ended_ns")}
    columns |= {
        "started_at": moment(tried["started_ns"]),
        "ended_at": moment(tried["ended_ns"]),
        **{name: tried[name] for name in ("outcome", "reason", "wait_ns", "run_ns")},
        "is_over": job["is_over"],
        DATE: moment(pc.coalesce(tried["started_ns"], tried["ended_ns"])).cast(pa.date32()),
    }
    return pa.table(columns)


def _structs(table: pa.Table) -> pa.StructArray:
    plain = table.combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in plain.columns
    ]
    return pa.StructArray.from_arrays(columns, fields=list(plain.schema))


def moment(nanoseconds: Any) -> Any:
    return pc.divide(nanoseconds, 1_000).cast(_TIME)
