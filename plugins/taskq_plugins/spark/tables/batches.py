"""A batch of records, and what was kept of those before it, as rows of the tables. No Spark.

However a log's records are cut into batches, folding each with what was kept of those before gives
the rows that folding all at once gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq.engine import Flag
from taskq_plugins.spark.parts import DATE, DEAD, OPEN, OVER, PART_COLUMN, REPLAY_OF
from taskq_plugins.spark.tables.events import CONCERNING, IS_OVER, STATES, TOLD
from taskq_plugins.spark.tables.fold import Folded, fold
from taskq_plugins.spark.tables.logs import LOG, Log, LogKey

#: What names a job.
KEYS: Final = [*LOG, "job"]
_TIME: Final = pa.timestamp("us", tz="UTC")
_STATES: Final = pa.array(STATES, pa.string())
#: What a row has of the event that its job began with, and of what told last where it waits.
_OF_BIRTH: Final = ("attempts_max", "key", "headers", "value", "flags", "epoch")
_OF_PLACE: Final = ("device", *LOG, "job_id", "job", "queue", "task", "priority")
#: By state: the part of the tables that a job in it is in.
_PARTS: Final = pa.array(
    OVER if is_over else DEAD if state == DEAD else OPEN
    for state, is_over in zip(STATES, IS_OVER, strict=True)
)


class Rows(NamedTuple):
    """What a batch makes of the jobs that it touches, with the columns ``part`` and ``date``."""

    jobs: pa.Table
    attempts: pa.Table
    #: without days: records that later batches need, and a row of kind "told" for each job that
    #: began with a record that carries it and is over or purged: compaction may write it again
    kept: pa.Table


def touched_by(records: pa.Table) -> pa.Table:
    chosen = records.filter(pc.is_in(records["kind"], pa.array(sorted(CONCERNING))))
    return chosen.select(KEYS).group_by(KEYS, use_threads=False).aggregate([])


def rows_of(records: pa.Table, logs: Mapping[LogKey, Log]) -> Rows:
    """Fold the records of some jobs.

    Args:
        records: all of these jobs: of the batch, and what was kept of them. Their order is of no
            account.
        logs: what is known of their logs, the batch included.
    """
    folded = fold(records, logs)
    jobs = _jobs(folded)
    return Rows(jobs, _attempts(jobs, folded.attempts), _kept(folded))


def _kept(folded: Folded) -> pa.Table:
    events = folded.events
    rows = events.records.take(pa.array(events.row[folded.kept]))
    needed = rows.append_column(PART_COLUMN, _PARTS.take(pa.array(folded.kept_states)))
    keys = [events.keys[log] for log in events.log[folded.passed].tolist()]
    over = [
        {"log_id": log_id, "branch": branch, "job": job, "kind": TOLD, PART_COLUMN: DEAD}
        for (log_id, branch), job in zip(keys, events.number[folded.passed].tolist(), strict=True)
    ]
    return pa.concat_tables([needed, pa.Table.from_pylist(over, needed.schema)])


def _jobs(folded: Folded) -> pa.Table:
    tried, count = folded.attempts, len(folded.born)
    offsets = np.searchsorted(tried["of"].to_numpy(), np.arange(count + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), _structs(tried.drop_columns(["of"])))
    born = {name: folded.events.taken(name, folded.born) for name in _OF_BIRTH}
    placed = {name: folded.events.taken(name, folded.placed) for name in _OF_PLACE}
    made, state = folded.columns, pa.array(folded.state)
    dropped = pc.bit_wise_and(born["flags"], pa.scalar(int(Flag.DROP_RESULT), born["flags"].type))
    first = pa.array(offsets[:-1], mask=offsets[:-1] == offsets[1:])
    return pa.table(
        {
            **placed,
            "state": _STATES.take(state),
            "attempt": made["attempt"].cast(pa.int32()),
            "attempts_max": born["attempts_max"],
            "enqueued_at": moment(made["enqueued_ns"]),
            "enqueued_ns": made["enqueued_ns"],
            "due_ns": made["due_ns"],
            "expires_ns": made["expires_ns"],
            "first_started_ns": tried["started_ns"].take(first),
            "settled_ns": made["settled_ns"],
            "settled_at": moment(made["settled_ns"]),
            "key": born["key"],
            "headers": born["headers"],
            "payload": born["value"],
            "result": made["result"],
            "reason": made["reason"],
            "stores_result": pc.equal(dropped, 0),
            "replay_of": pc.map_lookup(born["headers"], pa.scalar(REPLAY_OF), "first"),
            "epoch": born["epoch"],
            "is_over": pa.array(IS_OVER[folded.state]),
            "attempts": lists,
            PART_COLUMN: _PARTS.take(state),
            DATE: moment(made["enqueued_ns"]).cast(pa.date32()),
        }
    )


def _attempts(jobs: pa.Table, tried: pa.Table) -> pa.Table:
    names = ["device", *LOG, "job_id", "job", "queue", "task", "key", "is_over", PART_COLUMN]
    job = jobs.select(names).take(tried["of"])
    columns = {name: job[name] for name in names[:8]}
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


def _structs(table: pa.Table) -> pa.StructArray:
    plain = table.combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in plain.columns
    ]
    return pa.StructArray.from_arrays(columns, fields=list(plain.schema))


def moment(nanoseconds: Any) -> Any:
    return pc.divide(nanoseconds, 1_000).cast(_TIME)
