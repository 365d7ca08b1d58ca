from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.fingerprints import LOST_REASON, NO_REASON, fingerprint
from tests.pipeline.tablerows import NOON, SECOND, attempt, job, tables, tried

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

Rows = dict[tuple[str | None, str], dict[str, Any]]

OFFLINE = "OSError: host {} is offline\n  File app.py"
BROKEN = "ValueError: broken"
LOST = "WorkerLost: the worker process died while it ran"

#: Two jobs of d1 and one of d2 that were offline; the first died of it.
JOB_ROWS = [
    job(1, state="dead", reason=OFFLINE.format(3), settled_ns=NOON + 3 * SECOND, payload=b"[1]"),
    job(2, state="succeeded", settled_ns=NOON + 9 * SECOND),
    job(3, device="d2", queue="slow"),
    job(4, task=None, state="dead", settled_ns=NOON + SECOND),
]
ATTEMPT_ROWS = [
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


def by_kind(table: pa.Table) -> Rows:
    return {(row["task"], row["pattern"]): row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def kinds(spark: SparkSession) -> Rows:
    return by_kind(failures(spark, jobs=JOB_ROWS, attempts=ATTEMPT_ROWS))


def test_failures_that_differ_in_numbers_only_are_of_one_kind(kinds: Rows) -> None:
    pattern = "OSError: host <n> is offline"
    row = kinds["app.send", pattern]
    assert row["fingerprint"] == fingerprint("app.send", pattern)
    names = ("failed_attempts", "jobs", "dead_jobs", "devices", "workers")
    assert [row[name] for name in names] == [4, 3, 1, 2, 3]
    assert row["queues"] == ["default", "slow"]
    assert row["first_seen"].isoformat() == "2024-05-01T12:00:00+00:00"
    assert row["last_seen"].isoformat() == "2024-05-01T12:00:07+00:00"
    assert not row["poison"]


def test_the_example_is_the_one_seen_last_with_its_whole_reason(kinds: Rows) -> None:
    row = kinds["app.send", "OSError: host <n> is offline"]
    assert (row["example_device"], row["example_job_id"]) == ("d2", "log-d2-3")
    assert row["example_reason"] == OFFLINE.format(2)


def test_a_lost_attempt_is_a_failure_and_a_released_one_is_not(kinds: Rows) -> None:
    assert kinds["app.send", LOST_REASON]["failed_attempts"] == 1
    assert {key[1] for key in kinds} == {
        "OSError: host <n> is offline",
        LOST_REASON,
        NO_REASON,
    }


def test_a_dead_job_without_attempts_or_reason_counts_by_itself(kinds: Rows) -> None:
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
