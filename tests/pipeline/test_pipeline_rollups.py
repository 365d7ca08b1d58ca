from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.pipeline.tablerows import (
    HOUR,
    NOON,
    NOON_HOUR,
    SECOND,
    attempt,
    job,
    rollup_hour,
    tables,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Rows = dict[tuple[Any, ...], dict[str, Any]]

JOB_ROWS = [
    job(1, state="succeeded", settled_ns=NOON + SECOND),
    job(2, state="dead", settled_ns=NOON + 2 * SECOND),
    job(3, state="succeeded", settled_ns=NOON + HOUR),
    job(4, state="cancelled", settled_ns=NOON + 2 * HOUR - 1),
    job(5, state="expired", settled_ns=NOON + HOUR, enqueued_ns=NOON - 1),
    job(6, state="running"),
    job(7, state="ready", task=None),
    job(1, state="dead", settled_ns=NOON + 5 * SECOND, device="d2"),
]
ATTEMPT_ROWS = [
    attempt(1, wait_ns=2 * SECOND, run_ns=1 * SECOND),
    attempt(2, outcome="retried", wait_ns=4 * SECOND, run_ns=3 * SECOND),
    attempt(2, outcome="dead", wait_ns=-1, run_ns=5 * SECOND, number=2),
    attempt(3, outcome="lost", ended_ns=NOON + HOUR - 1),
    attempt(3, ended_ns=NOON + HOUR, wait_ns=SECOND, run_ns=SECOND),
    attempt(6, outcome=None, ended_ns=None, wait_ns=SECOND),
    attempt(4, outcome="released", wait_ns=0, run_ns=0),
    attempt(1, outcome="dead", wait_ns=9 * SECOND, run_ns=7 * SECOND, device="d2"),
]


def at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3_600, UTC)


def collected(table: pa.Table, *names: str) -> Rows:
    rows = table.to_pylist()
    return {tuple(row[name] for name in names): row for row in rows}


@pytest.fixture(scope="module")
def by_device(spark: SparkSession) -> Rows:
    rows = tables(spark, jobs=JOB_ROWS, attempts=ATTEMPT_ROWS)
    return collected(rollup_hour(spark, rows), "device", "task", "hour")


def test_each_thing_counts_in_the_hour_in_which_it_happened(by_device: Rows) -> None:
    shown = {
        key: (row["enqueued"], row["succeeded"], row["dead"], row["cancelled"], row["expired"])
        for key, row in by_device.items()
    }
    noon = NOON_HOUR
    assert shown == {
        ("d1", "app.send", at(noon - 1)): (1, 0, 0, 0, 0),
        ("d1", "app.send", at(noon)): (5, 1, 1, 0, 0),
        ("d1", "app.send", at(noon + 1)): (0, 1, 0, 1, 1),
        ("d1", None, at(noon)): (1, 0, 0, 0, 0),
        ("d2", "app.send", at(noon)): (1, 0, 1, 0, 0),
    }
    assert by_device["d1", "app.send", at(noon + 1)]["settled"] == 3


def test_attempts_count_by_outcome_and_released_ones_do_not_make_a_rate(by_device: Rows) -> None:
    row = by_device["d1", "app.send", at(NOON_HOUR)]
    names = ("succeeded", "retried", "dead", "released", "lost", "ended")
    assert [row[f"attempts_{name}"] for name in names] == [1, 1, 1, 1, 1, 5]
    assert row["failure_rate"] == pytest.approx(3 / 4)
    assert row["dead_rate"] == pytest.approx(1 / 2)


def test_rates_and_spreads_of_nothing_are_null(by_device: Rows) -> None:
    row = by_device["d1", None, at(NOON_HOUR)]
    assert row["attempts_ended"] == 0
    assert row["failure_rate"] is row["dead_rate"] is None
    assert row["wait_p50_seconds"] is row["run_p99_seconds"] is row["run_max_seconds"] is None


def test_negative_and_unknown_spans_are_left_out(by_device: Rows) -> None:
    row = by_device["d1", "app.send", at(NOON_HOUR)]
    assert row["wait_p50_seconds"] == pytest.approx(2)  # of 0, 2 and 4
    assert row["wait_max_seconds"] == pytest.approx(4)
    assert row["run_p50_seconds"] == pytest.approx(2)  # of 0, 1, 3 and 5


def test_some_hours_have_the_rows_that_they_have_in_the_whole_table(
    spark: SparkSession, by_device: Rows
) -> None:
    hours = [NOON_HOUR - 1, NOON_HOUR + 1]
    wanted = {key: row for key, row in by_device.items() if key[-1] in {at(hour) for hour in hours}}
    rows = tables(spark, jobs=JOB_ROWS, attempts=ATTEMPT_ROWS)
    result = rollup_hour(spark, rows, hours)
    assert collected(result, "device", "task", "hour") == wanted


def test_percentiles_are_those_of_numpy(spark: SparkSession) -> None:
    """Groups of 1 to 400 values, with ties, and one of spans of years."""
    chance = random.Random(7)
    groups = {
        f"t{size}": [chance.choice([0, 1, chance.randrange(10**12)]) for _ in range(size)]
        for size in (1, 2, 3, 50, 100, 101, 400)
    } | {"years": [chance.randrange(10**17) for _ in range(30)]}
    rows = [
        attempt(number, task=task, wait_ns=wait, run_ns=wait // 3)
        for task, waits in groups.items()
        for number, wait in enumerate(waits)
    ]
    table = rollup_hour(spark, tables(spark, attempts=rows))
    result = collected(table, "task")
    for task, waits in groups.items():
        row = result[task,]
        for name, values in (("wait", waits), ("run", [wait // 3 for wait in waits])):
            shown = [row[f"{name}_p{p}_seconds"] for p in (50, 95, 99)]
            wanted = np.percentile(np.array(values), [50, 95, 99]) / SECOND
            assert shown == pytest.approx(list(wanted), rel=1e-12)
            assert row[f"{name}_max_seconds"] == pytest.approx(max(values) / SECOND)
