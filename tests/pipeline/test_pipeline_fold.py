"""The fold by columns, of records that no log of a test's length has: written by hand, row by row.

Real logs are held to the log's own fold (``test_pipeline_jobs``) and to a fold in SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from taskq.core.views import AttemptView
from taskq.log.format.carried import encode_history
from taskq_plugins.spark.tables.fold import rows_of
from taskq_plugins.spark.tables.logs import Log, log_rows, logs_of
from tests.pipeline.rowmaking import COLUMNS

if TYPE_CHECKING:
    from taskq_plugins.spark.tables.fold import JobRows

LOG = {"device": "edge", "log_id": "a", "segment": 1, "epoch": "e", "job": 1}


def made(*rows: dict[str, Any], read: tuple[int, int] = (1, 999)) -> JobRows:
    plain = {"job_id": "a-1", "queue": "q", "priority": 5, "flags": 0, "moments": 0}
    return rows_of(
        pa.Table.from_pylist([LOG | plain | row for row in rows], COLUMNS),
        {"a": Log(9**9, [], [read])},
    )


def test_of_many_attempts_the_latest_are_shown() -> None:
    rows: list[dict[str, Any]] = [{"lsn": 1, "kind": "enqueued", "ts_ns": 0}]
    for turn in range(130):
        claim = {"lsn": 2 + 2 * turn, "kind": "claimed", "ts_ns": turn, "attempt": turn}
        rows += [claim, claim | {"lsn": 3 + 2 * turn, "kind": "retried", "cause": "caller"}]
    assert made(*rows).attempts["number"].to_pylist() == list(range(30, 130))


def test_no_records_make_no_rows() -> None:
    assert not any(table.num_rows for table in rows_of(COLUMNS.empty_table(), {}))


TRIED = AttemptView(number=1, owner=7, started_ns=11, ended_ns=14, outcome="retried", reason="no")
RUNNING = AttemptView(number=2, owner=7, started_ns=20)
CARRIED = {
    "lsn": 20, "kind": "carried", "ts_ns": 90, "attempt": 2, "state": "running", "enqueued_ns": 5,
    "history": encode_history([TRIED, RUNNING]),
}  # fmt: skip


def test_attempts_that_a_record_carries_tell_how_long_they_waited_and_ran() -> None:
    end = {"lsn": 21, "kind": "retried", "cause": "caller", "ts_ns": 33, "attempt": 2}
    rows = made(CARRIED, end, read=(15, 999)).attempts
    assert rows["number"].to_pylist() == [1, 2]
    assert rows["wait_ns"].to_pylist() == [6, 6]
    assert rows["run_ns"].to_pylist() == [3, 13]
    assert rows["outcome"].to_pylist() == ["retried", "retried"]


def test_what_was_told_before_is_not_told_again() -> None:
    over = {"kind": "told"}
    assert not made(over, {"lsn": 1, "kind": "enqueued", "ts_ns": 0}).jobs.num_rows
    assert not made(CARRIED).jobs.num_rows
    assert made(CARRIED, read=(15, 999)).jobs["state"].to_pylist() == ["running"]


def test_what_was_read_is_one_stretch_in_whatever_order_its_segments_come() -> None:
    """Two logs have segments of the same numbers; one of them lacks a record."""
    ends = [("b", 5, 9), ("a", 5, 9), ("b", 1, 4), ("a", 1, 3), ("a", 1, 2), ("b", 5, 6)]
    rows = [
        {"log_id": log_id, "segment": segment, "lsn": lsn, "ts_ns": lsn, "kind": ""}
        for log_id, segment, lsn in ends
    ]
    logs = logs_of(log_rows(pa.Table.from_pylist(rows, COLUMNS)))
    assert {key: (log.stretches, log.now_ns) for key, log in logs.items()} == {
        "a": ([(1, 3), (5, 9)], 9),
        "b": ([(1, 9)], 9),
    }
