"""A batch of records, and what was kept of those before it, as rows of the tables. No Spark.

However a log's records are cut into batches, folding each with what was kept of those before gives
the rows that folding all at once gives.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import BREAK
from taskq.engine import Flag, kinds
from taskq_plugins.spark.parts import DATE, DEAD, OPEN, PART_COLUMN, POSITION
from taskq_plugins.spark.tables.fold import (
    BIRTHS,
    COLUMNS,
    CONCERNING,
    LOST,
    OVER,
    REPEATS,
    TOLD,
    Bodies,
    Event,
    Log,
    fold,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taskq_plugins.spark.tables.fold import Attempt, Job

STEPS: Final = named(kinds.STEPS)
#: Header that links a job to the one that it runs again.
_REPLAY_OF: Final = "replay_of"
_LONG: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
#: What is told of the last record of a stretch.
_LAST: Final = ("device", "epoch", "timestamp", "ts_ns")
#: What names a branch of a log, and a job in it: records before the fork are of both branches.
LOG: Final = ("log_id", "branch")
KEYS: Final = [*LOG, "job"]
LogKey: TypeAlias = tuple[str, int]


class Rows(NamedTuple):
    """What a batch makes of the jobs that it touches, with the columns ``part`` and ``date``."""

    jobs: pa.Table
    attempts: pa.Table
    #: without days: records that later batches need, and a row of kind "told" for each job that
    #: began with a record that carries it and is over or purged: compaction may write it again
    kept: pa.Table


# -- logs as a whole -------------------------------------------------------------------------------


def log_rows(records: pa.Table) -> pa.Table:
    """Return the rows that tell of logs as a whole: steps of the clock, breaks, and what was read.

    Args:
        records: of a batch, and these rows of the batches before.
    """
    read = records.filter(pc.and_(pc.is_valid(records["segment"]), pc.is_valid(records["ts_ns"])))
    others = records.filter(pc.is_in(records["kind"], pa.array([*STEPS, BREAK])))
    keys = [*LOG, "segment", "lsn"]
    rows = pa.array(range(read.num_rows), _LONG)
    places = read.select(keys).append_column("row", rows).sort_by("lsn")
    ends = places.group_by(keys[:3], use_threads=False).aggregate([("row", "last")])
    lasts = read.take(ends["row_last"]).select([*keys, *_LAST]).to_pylist()
    lasts.sort(key=itemgetter(*keys))
    merged: list[dict[str, Any]] = []
    for last in lasts:
        before = merged[-1] if merged else None
        if before and _log_of(before) == _log_of(last) and last["segment"] <= before["lsn"] + 1:
            if last["lsn"] > before["lsn"]:
                merged[-1] = last | {"segment": before["segment"]}
        else:
            merged.append(last)
    told_rows = [stretch | {"kind": POSITION} for stretch in merged]
    return pa.concat_tables([others, pa.Table.from_pylist(told_rows, records.schema)])


def logs_of(rows: pa.Table) -> dict[LogKey, Log]:
    """Return each branch of each log.

    Args:
        rows: of ``log_rows``.
    """
    names = [*LOG, "kind", "segment", "lsn", "ts_ns", "step_ns", "value"]
    logs: defaultdict[LogKey, Log] = defaultdict(lambda: Log(0, [], []))
    forks: dict[LogKey, int] = {}
    for row in rows.select(names).to_pylist():
        log = logs[_log_of(row)]
        if row["kind"] in STEPS:
            log = log._replace(steps=sorted({*log.steps, (row["lsn"], row["step_ns"] or 0)}))
        elif row["kind"] == BREAK:
            told_break = json.loads(row["value"])
            if told_break["what"] == "fork":
                forks[_log_of(row)] = row["lsn"]
            elif "end_lsn" in told_break:
                gap = (told_break["goes_on"], told_break["end_lsn"])
                log = log._replace(gaps=sorted({*log.gaps, gap}))
        else:
            is_last = all(row["lsn"] > last for _, last in log.stretches)
            stretches = [*log.stretches, (row["segment"], row["lsn"])]
            now_ns = row["ts_ns"] if is_last else log.now_ns
            log = log._replace(stretches=stretches, now_ns=now_ns)
        logs[_log_of(row)] = log
    for (log_id, branch), lsn in sorted(forks.items()):
        left = logs[log_id, branch - 1]
        logs[log_id, branch - 1] = left._replace(left=lsn)
        logs[log_id, branch] = _grown(logs[log_id, branch], left, lsn)
    return dict(logs)


def _log_of(row: Mapping[str, Any]) -> LogKey:
    return row["log_id"], row["branch"]


def _grown(own: Log, left: Log, lsn: int) -> Log:
    """Return a branch with what it shares with the one that was left: what is before that lsn."""
    shared = [(first, min(last, lsn - 1)) for first, last in left.stretches if first < lsn]
    return own._replace(
        now_ns=own.now_ns or left.now_ns,
        steps=[*(step for step in left.steps if step[0] < lsn), *own.steps],
        stretches=[*shared, *own.stretches],
        begins=lsn,
        gaps=[*(gap for gap in left.gaps if gap[0] < lsn), *own.gaps],
    )


# -- jobs ------------------------------------------------------------------------------------------


def touched_by(records: pa.Table) -> pa.Table:
    """Return the jobs (by KEYS) that records concern."""
    chosen = records.filter(pc.is_in(records["kind"], pa.array(sorted(CONCERNING))))
    return chosen.select(KEYS).group_by(KEYS).aggregate([])


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
        of_job, log = list(group), logs[log_id, branch]
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


def _settled(job: Job | None, last_lsn: int, log: Log) -> Job | None:
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


def _needed(events: Sequence[Event], log: Log, *, is_brought: bool) -> Iterable[int]:
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
    return table, _attempts(table, tried, counts)


def _attempts(jobs: pa.Table, tried: pa.Table, counts: Sequence[int]) -> pa.Table:
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
