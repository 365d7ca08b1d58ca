from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskq_plugins.spark.tables import queries
from tests.pipeline.tablerows import NOON, SECOND, job, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_MAX = 20

RAN = {"state": "succeeded", "first_started_ns": NOON + 1_999, "key": b"k"}


def duplicates(spark: SparkSession, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    jobs = tables(spark, jobs=rows)["jobs"]
    made: list[dict[str, Any]] = spark.sql(queries.DUPLICATES, jobs=jobs).toArrow().to_pylist()
    return made


def test_a_key_that_ran_on_several_devices_is_told_with_its_first_runs(spark: SparkSession) -> None:
    rows = [
        job(1, **RAN | {"first_started_ns": NOON + 5 * SECOND}),
        job(2, **RAN | {"state": "dead"}),
        job(1, device="d2", **RAN | {"first_started_ns": NOON + 2 * SECOND, "task": "app.other"}),
        job(3, device="d3", **RAN | {"first_started_ns": None, "state": "cancelled"}),
        job(4, queue="slow", **RAN),
        job(5, **RAN | {"key": b"other"}),
        job(6, log_id="log-again", **RAN | {"key": b"other"}),
        job(7, **RAN | {"key": None}),
        job(7, device="d2", **RAN | {"key": None}),
    ]
    (row,) = duplicates(spark, rows)
    assert (row["queue"], row["key"], row["tasks"]) == ("default", b"k", ["app.other", "app.send"])
    assert (row["devices"], row["jobs"], row["succeeded"]) == (2, 3, 2)
    assert row["first_at"].isoformat() == "2024-05-01T12:00:00.000001+00:00"
    assert row["last_at"].isoformat() == "2024-05-01T12:00:05+00:00"
    runs = [(*list(run.values())[:2], run["started_at"].second, run["jobs"]) for run in row["runs"]]
    assert runs == [("d1", "log-d1-2", 0, 2), ("d2", "log-d2-1", 2, 1)]


def test_the_list_of_runs_is_bounded(spark: SparkSession) -> None:
    count = RUNS_MAX + 5
    rows = [job(1, device=f"d{n}", **RAN) for n in range(count)]
    (row,) = duplicates(spark, rows)
    assert (row["devices"], len(row["runs"])) == (count, RUNS_MAX)
