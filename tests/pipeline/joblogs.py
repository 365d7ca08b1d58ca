"""Logs for the pipeline, and their jobs by the Python fold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from taskq.arrow import Corrupt, decode
from taskq.log.config import LogConfig
from taskq.log.read.jobs import JobFilter, each_job
from taskq.log.read.reader import open_journal
from taskq.log.segments.bodystore import BodyStore
from taskq_plugins.spark.source.plan import Plan, UnreadRest
from taskq_plugins.spark.sql import _Fold
from taskq_plugins.spark.tables.fold import rows_of
from taskq_plugins.spark.tables.logs import log_rows, logs_of
from tests.arrow.rows_of_log import pieces, save
from tests.pipeline.rowmaking import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.core.views import JobView
    from taskq_plugins.spark.tables.logs import Lineage
    from tests.log.world import World

Row = dict[str, Any]
#: name of the log and number of the job -> its row
Jobs = dict[tuple[str, int], Row]


class JobLog(NamedTuple):
    """Records, columns as the source gives the tables, and the jobs as of the last of them."""

    records: pa.Table
    jobs: Jobs


def of_world(world: World, directory: Path) -> JobLog:
    return of_directory(save(world.machine, directory))


def of_directory(directory: Path) -> JobLog:
    name = directory.name
    journal = open_journal(str(directory))
    try:
        batches = [
            batch
            for piece in pieces(journal, directory, name)
            for batch in decode(piece, COLUMNS, corrupt=Corrupt.SKIP)
        ]
        result = pa.Table.from_batches(batches, COLUMNS)
        place = COLUMNS.get_field_index("log_id")
        named = pa.array([name] * result.num_rows, pa.string())
        table = result.set_column(place, COLUMNS.field(place), named)
        if not table.num_rows:
            return JobLog(table, {})
        now_ns = table["ts_ns"][-1].as_py()
        bodies = BodyStore(str(directory), LogConfig())
        views = [bodies.open_view(view) for view in each_job(journal, JobFilter(), now_ns)]
        return JobLog(table, {(name, view.lsn): _row(view) for view in views})
    finally:
        journal.close()


def joined(logs: Iterable[JobLog]) -> JobLog:
    logs = list(logs)
    jobs: Jobs = {}
    for log in logs:
        assert not jobs.keys() & log.jobs.keys(), "each log has a name of its own"
        jobs |= log.jobs
    return JobLog(pa.concat_tables(log.records for log in logs), jobs)


class FoldedRows(NamedTuple):
    """Results of the fold, in plain values."""

    jobs: list[Row]
    attempts: pa.Table


def folded_rows(
    records: pa.Table, nows: dict[str, int] | None = None, lineage: Lineage | None = None
) -> FoldedRows:
    """Fold records; a log of ``lineage`` begins with its parents' records."""
    logs = logs_of(log_rows(records), lineage)
    if lineage:
        planned = Plan([], {}, {}, [], UnreadRest())
        records = _Fold(planned, lineage, Path(), has_payload=True)._inherited(records, logs)
    for log_id, now_ns in (nows or {}).items():
        logs[log_id] = logs[log_id]._replace(now_ns=now_ns)
    rows = rows_of(records, logs)
    return FoldedRows(plain(rows.jobs), rows.attempts)


def plain(jobs: pa.Table) -> list[Row]:
    result: list[Row] = jobs.to_pylist(maps_as_pydicts="strict")
    return result


def by_job(rows: Iterable[Row]) -> Jobs:
    result: Jobs = {}
    for row in rows:
        key = row["log_id"], row["job"]
        assert key not in result, f"job {key} has two rows"
        result[key] = row
    return result


def check_equal(shown: Jobs, wanted: Jobs) -> None:
    assert shown.keys() == wanted.keys()
    for key, row in wanted.items():
        got = comparable(shown[key])
        different = {name: (got[name], row[name]) for name in row if got[name] != row[name]}
        assert not different, (key, row["state"])


def comparable(row: Row) -> Row:
    attempts = [
        {name: item[name] for name in item if name not in {"wait_ns", "run_ns"}}
        for item in row["attempts"]
    ]
    return row | {"attempts": attempts}


def _row(view: JobView) -> Row:
    return {
        "job_id": view.job_id,
        "queue": view.queue,
        "task": view.task or None,
        "priority": view.priority,
        "state": view.state.name.lower(),
        "attempt": view.attempt,
        "attempts_max": view.attempts_max or None,
        "enqueued_ns": view.enqueued_ns,
        "due_ns": view.due_ns or None,
        "expires_ns": view.expires_ns or None,
        "first_started_ns": view.attempts[0].started_ns if view.attempts else None,
        "settled_ns": view.settled_ns or None,
        "key": view.key,
        "headers": view.headers or None,
        "payload": view.payload,
        "result": view.result,
        "reason": view.reason or None,
        "stores_result": view.stores_result,
        "replay_of": view.headers.get("replay_of"),
        "is_over": view.state.name.lower() in {"succeeded", "cancelled", "expired"},
        "attempts": [
            {
                "number": attempt.number,
                "owner": f"{attempt.owner:016x}",
                "started_ns": attempt.started_ns,
                "ended_ns": attempt.ended_ns or None,
                "outcome": attempt.outcome or None,
                "reason": attempt.reason or None,
            }
            for attempt in view.attempts
        ],
    }
