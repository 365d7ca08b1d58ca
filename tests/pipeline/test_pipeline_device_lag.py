from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq_plugins.spark.tables import queries
from tests.pipeline.tablerows import HOUR, NOON, SECOND, job, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AS_OF = NOON + HOUR


def segment(first: int, device: str, record_ns: int | None, arrived_ns: int, **shown: Any) -> Any:
    plain = {"device": device, "log_id": f"log-{device}", "segment": first, "size_bytes": 100}
    times = {"last_record_ns": record_ns, "modified_ns": arrived_ns, "is_missing": False}
    return plain | times | shown


def gap(first: int, device: str) -> Any:
    return {"device": device, "log_id": f"log-{device}", "segment": first, "is_missing": True}


JOB_ROWS = [
    job(1, enqueued_ns=NOON - 9 * SECOND),
    job(2, enqueued_ns=NOON - 30 * SECOND),
    job(3, state="scheduled", enqueued_ns=NOON - HOUR),
    job(4, state="running"),
    job(5, state="dead"),
    job(6, state="succeeded"),
    job(2, device="unseen"),
]
READ_ROWS = [
    {"device": name, "log_id": f"log-{name}", "ts_ns": NOON + 4 * SECOND}
    for name in ("unseen", "over", "d1")
]
SEGMENT_ROWS = [
    segment(1, "d1", NOON - HOUR, NOON - HOUR + 9 * SECOND),
    segment(900, "d1", NOON, NOON + 5 * SECOND, size_bytes=50),
    gap(500, "d1"),
    gap(200, "d1"),
    segment(1, "ahead", NOON + 7_200 * SECOND, NOON + 10 * SECOND),
    segment(1, "behind", NOON - 7_200 * SECOND, NOON),
    segment(50, "behind", NOON - 7_000 * SECOND, NOON + 300 * SECOND),
    segment(1, "late", NOON - 9 * HOUR, NOON),
    segment(70, "late", NOON - 8 * HOUR, NOON),
    segment(1, "twice", NOON - 40 * HOUR, NOON - 40 * HOUR, log_id="log-old"),
    segment(1, "twice", NOON, NOON),
    segment(1, "empty", None, NOON),
]


@pytest.fixture(scope="module")
def lag(spark: SparkSession) -> dict[str, dict[str, Any]]:
    frames = tables(spark, jobs=JOB_ROWS, segments=SEGMENT_ROWS, read=READ_ROWS)
    known = {name: frames[name] for name in ("jobs", "segments", "read")}
    result = spark.sql(queries.DEVICE_LAG, args={"now": AS_OF}, **known).toArrow()
    return {row["log_id"]: row for row in result.to_pylist()}


def test_record_and_arrival_are_measured_to_the_moment_of_looking(
    lag: dict[str, dict[str, Any]],
) -> None:
    row = lag["log-d1"]
    assert row["last_record_at"].isoformat() == "2024-05-01T12:00:00+00:00"
    assert row["last_arrival_at"].isoformat() == "2024-05-01T12:00:05+00:00"
    assert row["record_lag_seconds"] == pytest.approx(3_600)
    assert row["arrival_lag_seconds"] == pytest.approx(3_595)


def test_the_backlog_counts_jobs_by_state_and_the_oldest_that_waits(
    lag: dict[str, dict[str, Any]],
) -> None:
    row = lag["log-d1"]
    assert [row[n] for n in ("waiting", "scheduled", "running", "dead")] == [2, 1, 1, 1]
    assert row["oldest_waiting_seconds"] == pytest.approx(3_630)
    assert row["oldest_waiting_at"].isoformat() == "2024-05-01T11:59:30+00:00"
    assert lag["log-late"]["waiting"] == 0
    assert lag["log-late"]["oldest_waiting_seconds"] is None


def test_segments_and_the_gaps_between_them_are_counted(lag: dict[str, dict[str, Any]]) -> None:
    row = lag["log-d1"]
    names = ("segments", "size_bytes", "missing_segments", "missing_from")
    assert [row[name] for name in names] == [2, 150, 2, [200, 500]]
    assert [lag["log-unseen"][name] for name in names] == [0, 0, 0, []]


def test_the_skew_is_the_least_that_any_segment_proves(lag: dict[str, dict[str, Any]]) -> None:
    shown = {name: (row["clock_skew_seconds"], row["clock"]) for name, row in lag.items()}
    assert shown == {
        "log-d1": (pytest.approx(-5), "ok"),
        "log-ahead": (pytest.approx(7_190), "ahead"),
        "log-behind": (pytest.approx(-7_200), "behind or late"),
        "log-late": (pytest.approx(-8 * 3_600), "behind or late"),
        "log-old": (pytest.approx(0), "ok"),
        "log-twice": (pytest.approx(0), "ok"),
        "log-empty": (None, None),
        "log-unseen": (None, None),
        "log-over": (None, None),
    }


def test_of_a_reinstalled_device_the_log_that_arrived_last_is_current(
    lag: dict[str, dict[str, Any]],
) -> None:
    names = ("logs_of_device", "is_current")
    assert [lag["log-old"][name] for name in names] == [2, False]
    assert [lag["log-twice"][name] for name in names] == [2, True]
    assert [lag["log-d1"][name] for name in names] == [1, True]


def test_a_log_without_segments_is_known_by_what_was_read_of_it(
    lag: dict[str, dict[str, Any]],
) -> None:
    assert lag["log-unseen"]["last_record_at"].isoformat() == "2024-05-01T12:00:04+00:00"
    assert lag["log-over"]["last_record_at"] == lag["log-unseen"]["last_record_at"]
    assert lag["log-over"]["waiting"] == 0
    assert lag["log-unseen"]["arrival_lag_seconds"] is None
    assert lag["log-empty"]["last_record_at"] is None
