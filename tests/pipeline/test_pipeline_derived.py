"""Golden rows of the derived tables, each of its query in Spark SQL."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from taskq.core.fingerprints import LOST_REASON, NO_REASON, fingerprint
from taskq_plugins.spark.lake.state import RECORD
from taskq_plugins.spark.tables import queries
from tests.pipeline.kit import (
    HOUR,
    NOON,
    NOON_HOUR,
    SECOND,
    attempt,
    job,
    rollup_hour,
    tables,
    tried,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

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


Rows_of_failures = dict[tuple[str | None, str], dict[str, Any]]

OFFLINE = "OSError: host {} is offline\n  File app.py"
BROKEN = "ValueError: broken"
LOST = "WorkerLost: the worker process died while it ran"

#: Two jobs of d1 and one of d2 that were offline; the first died of it.
JOB_ROWS_OF_FAILURES = [
    job(1, state="dead", reason=OFFLINE.format(3), settled_ns=NOON + 3 * SECOND, payload=b"[1]"),
    job(2, state="succeeded", settled_ns=NOON + 9 * SECOND),
    job(3, device="d2", queue="slow"),
    job(4, task=None, state="dead", settled_ns=NOON + SECOND),
]
ATTEMPT_ROWS_OF_FAILURES = [
    attempt(1, outcome="retried", reason=OFFLINE.format(1), owner=1),
    attempt(1, outcome="dead", reason=OFFLINE.format(3), owner=1, ended_ns=NOON + 3 * SECOND),
    attempt(2, outcome="retried", reason=OFFLINE.format(4), owner=2, ended_ns=NOON),
    attempt(2, outcome="lost", owner=2),
    attempt(2, outcome="released", reason="CompressionUnavailable: zstd", owner=2),
    attempt(2, outcome="succeeded", owner=3),
    attempt(
        3,
        device="d2",
        queue="slow",
        outcome="retried",
        reason=OFFLINE.format(2),
        owner=5,
        ended_ns=NOON + 7 * SECOND,
    ),
    attempt(3, device="d2", outcome=None, ended_ns=None, owner=5),
]


def failures(spark: SparkSession, **rows: Iterable[dict[str, Any]]) -> pa.Table:
    from taskq_plugins.spark.run import derived  # noqa: PLC0415 - 1 s to import

    frames = tables(spark, **rows)
    there = {name: frames[name] for name in ("jobs", "attempts")}
    return derived._fingerprinted(derived._failures(spark, there).toArrow())


def by_kind(table: pa.Table) -> Rows_of_failures:
    return {(row["task"], row["pattern"]): row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def kinds(spark: SparkSession) -> Rows_of_failures:
    return by_kind(failures(spark, jobs=JOB_ROWS_OF_FAILURES, attempts=ATTEMPT_ROWS_OF_FAILURES))


def test_failures_that_differ_in_numbers_only_are_of_one_kind(kinds: Rows_of_failures) -> None:
    pattern = "OSError: host <n> is offline"
    row = kinds["app.send", pattern]
    assert row["fingerprint"] == fingerprint("app.send", pattern)
    names = ("failed_attempts", "jobs", "dead_jobs", "devices", "workers")
    assert [row[name] for name in names] == [4, 3, 1, 2, 3]
    assert row["queues"] == ["default", "slow"]
    assert row["first_seen"].isoformat() == "2024-05-01T12:00:00+00:00"
    assert row["last_seen"].isoformat() == "2024-05-01T12:00:07+00:00"
    assert not row["poison"]


def test_the_example_is_the_one_seen_last_with_its_whole_reason(kinds: Rows_of_failures) -> None:
    row = kinds["app.send", "OSError: host <n> is offline"]
    assert (row["example_device"], row["example_job_id"]) == ("d2", "log-d2-3")
    assert row["example_reason"] == OFFLINE.format(2)


def test_a_lost_attempt_is_a_failure_and_a_released_one_is_not(kinds: Rows_of_failures) -> None:
    assert kinds["app.send", LOST_REASON]["failed_attempts"] == 1
    assert {key[1] for key in kinds} == {
        "OSError: host <n> is offline",
        LOST_REASON,
        NO_REASON,
    }


def test_a_dead_job_without_attempts_or_reason_counts_by_itself(kinds: Rows_of_failures) -> None:
    row = kinds[None, NO_REASON]
    names = ("failed_attempts", "jobs", "dead_jobs", "devices", "workers")
    assert [row[name] for name in names] == [0, 1, 1, 1, 0]
    assert row["fingerprint"] == fingerprint(None, NO_REASON)


def poisoned(
    spark: SparkSession, cases: dict[str, Iterable[dict[str, Any]]]
) -> dict[str, list[str]]:
    rows = [
        {"reason": BROKEN} | row | {"state": "dead", "settled_ns": NOON, "task": case}
        for case, jobs in cases.items()
        for row in jobs
    ]
    rows = failures(spark, jobs=rows).to_pylist()
    assert all(row["poison"] is (row["poison_jobs"] > 0) for row in rows)
    assert all(len(row["poison_job_ids"]) == row["poison_jobs"] for row in rows)
    return {row["task"]: row["poison_job_ids"] for row in rows if row["poison"]}


def test_poison_is_a_call_that_was_exhausted_in_two_places(spark: SparkSession) -> None:
    died_at_1, died_at_2 = [tried("dead", 1)], [tried("dead", 2)]
    same = {"payload": b'{"x":1}'}
    cases: dict[str, Iterable[dict[str, Any]]] = {
        "same payload, two devices": [
            job(1, attempts=died_at_1, **same),
            job(2, attempts=died_at_2, device="d2", **same),
        ],
        "same key, two workers": [
            job(3, attempts=died_at_1, key=b"k", payload=b"[1]"),
            job(4, attempts=died_at_2, key=b"k", payload=b"[2]"),
        ],
        "requeued, died at another": [job(5, attempts=[*died_at_1, *died_at_2], **same)],
        "cost two workers": [
            job(6, attempts=[tried("lost", 1), tried("dead", 2, LOST)], reason=LOST, **same)
        ],
        "attempts not known": [job(7, **same), job(7, device="d2", **same)],
        "no: failed at two, died once": [
            job(8, attempts=[tried("retried", 1), tried("lost", 3), *died_at_2], **same)
        ],
        "no: one worker": [job(n, attempts=died_at_1, **same) for n in (9, 10)],
        "no: two calls": [
            job(11, attempts=died_at_1, payload=b"[1]", key=b"a"),
            job(12, attempts=died_at_2, payload=b"[2]", key=b"b"),
        ],
        "no: same key in two queues": [
            job(13, attempts=died_at_1, payload=b"[1]", key=b"a"),
            job(14, attempts=died_at_2, payload=b"[2]", key=b"a", queue="slow"),
        ],
        "no: without arguments": [
            job(15, attempts=died_at_1, payload=b"{}"),
            job(16, attempts=died_at_2, payload=b"{}", device="d2"),
            job(17, attempts=died_at_1),
            job(18, attempts=died_at_2, device="d2"),
        ],
    }
    assert poisoned(spark, cases) == {
        "same payload, two devices": ["log-d1-1", "log-d2-2"],
        "same key, two workers": ["log-d1-3", "log-d1-4"],
        "requeued, died at another": ["log-d1-5"],
        "cost two workers": ["log-d1-6"],
        "attempts not known": ["log-d1-7", "log-d2-7"],
    }


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


AS_OF = NOON + HOUR


def segment(first: int, device: str, record_ns: int | None, arrived_ns: int, **shown: Any) -> Any:
    plain = {"device": device, "log_id": f"log-{device}", "segment": first, "size_bytes": 100}
    times = {"last_record_ns": record_ns, "modified_ns": arrived_ns, "is_missing": False}
    return plain | times | shown


def gap(first: int, device: str) -> Any:
    return {"device": device, "log_id": f"log-{device}", "segment": first, "is_missing": True}


JOB_ROWS_OF_LAG = [
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
    frames = tables(spark, jobs=JOB_ROWS_OF_LAG, segments=SEGMENT_ROWS, read=READ_ROWS)
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


def record(lsn: int, place: int, /, **details: Any) -> dict[str, Any]:
    plain = {"log_id": "a", "job": 1, "kind": "stepped", "step": f"s#{place + 1}"}
    return plain | {"lsn": lsn, "place": place, "ts_ns": NOON + lsn, "value": b"1"} | details


def made(
    spark: SparkSession, rows: list[dict[str, Any]], known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    records = spark.createDataFrame(pa.Table.from_pylist(rows, RECORD))
    frame = spark.sql(queries.STEPS, records=records)
    if known is not None:
        keys = pa.schema([("log_id", pa.string()), ("job", pa.int64()), ("place", pa.int64())])
        there = spark.createDataFrame(pa.Table.from_pylist(known, keys))
        frame = spark.sql(queries.NEW_STEPS, steps=frame, known=there)
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["log_id"], row["place"]))


def test_a_step_that_is_written_again_counts_as_it_was_told_first(spark: SparkSession) -> None:
    again = [record(9, 0), record(2, 0), record(3, 1), record(4, 1, log_id="b")]
    rows = made(spark, again)
    assert [(row["place"], row["log_id"], row["ended_ns"] - NOON) for row in rows] == [
        (0, "a", 2), (1, "a", 3), (1, "b", 4),
    ]  # fmt: skip
    rows = made(spark, again, [{"log_id": "a", "job": 1, "place": 0}])
    assert [(row["place"], row["log_id"]) for row in rows] == [(1, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, None),
        (b"", 0),
        (b"12", 2),
        (b'{"left out": {"sha256": "ab", "size": 70000}}', 70_000),
    ],
)
def test_the_size_is_that_of_the_value_also_where_it_was_left_out(
    spark: SparkSession, value: bytes | None, size: int | None
) -> None:
    (row,) = made(spark, [record(1, 0, value=value)])
    assert row["size_bytes"] == size


def test_what_began_behind_its_end_by_the_clock_took_no_time(spark: SparkSession) -> None:
    (row,) = made(spark, [record(1, 0, began_ns=NOON + SECOND)])
    assert row["took_ns"] == 0
    assert made(spark, [record(1, 0, kind="signalled", place=None)]) == []
