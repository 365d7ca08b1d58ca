"""The attempts of a job, as long as the job is kept: through requeues and compaction."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ, retry
from taskq.core.fingerprints import failure_of, fingerprint, pattern_of
from taskq.core.model import SECOND_NS
from taskq.errors import JobFailed
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.views import AttemptView

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("outcome", "reason", "error", "message"),
    [
        ("dead", "ValueError: order 17 is bad\n  File x", "ValueError", "order 17 is bad"),
        ("retried", "sqlite3.OperationalError: locked", "sqlite3.OperationalError", "locked"),
        ("dead", "ValueError", "ValueError", ""),
        ("dead", "no such task here", "", "no such task here"),
        ("lost", "", "WorkerLost", "the worker process died"),
        ("dead", "", "", "(no reason given)"),
        ("released", "OSError: down", "OSError", "down"),
    ],
)
def test_an_attempt_that_failed_tells_class_message_and_fingerprint(
    outcome: str, reason: str, error: str, message: str
) -> None:
    view = AttemptView(
        number=1, owner=7, started_ns=SECOND_NS, outcome=outcome, reason=reason, task="mail.send"
    )
    assert (view.error, view.message) == (error, message)
    assert view.fingerprint == failure_of("mail.send", outcome, reason)[2]
    assert len(view.fingerprint) == 16
    if reason:
        assert view.fingerprint == fingerprint("mail.send", pattern_of(reason))


@pytest.mark.parametrize("outcome", ["", "succeeded", "released", "cancelled", "expired"])
def test_an_attempt_that_did_not_fail_has_no_fingerprint(outcome: str) -> None:
    view = AttemptView(number=1, owner=7, started_ns=1, outcome=outcome)
    assert (view.error, view.message, view.fingerprint) == ("", "", "")


def test_failures_of_one_kind_share_a_fingerprint_and_tasks_do_not() -> None:
    def of(task: str, reason: str) -> str:
        view = AttemptView(
            number=1, owner=7, started_ns=1, outcome="dead", reason=reason, task=task
        )
        return view.fingerprint

    assert of("a", "ValueError: order 17 is bad") == of("a", "ValueError: order 18 is bad")
    assert of("a", "ValueError: order 17 is bad") != of("b", "ValueError: order 17 is bad")
    assert of("a", "ValueError: order 17 is bad") != of("a", "KeyError: order 17 is bad")


def test_moments_are_datetimes_with_a_time_zone() -> None:
    view = AttemptView(number=1, owner=7, started_ns=1_500_000_000, ended_ns=2 * SECOND_NS)
    assert view.started_at.isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert view.ended_at is not None
    assert (view.ended_at - view.started_at).total_seconds() == 0.5
    assert AttemptView(number=1, owner=7, started_ns=1).ended_at is None


def told(attempts: tuple[AttemptView, ...]) -> list[tuple[int, str, str, str]]:
    return [
        (attempt.number, attempt.outcome, attempt.error, attempt.message) for attempt in attempts
    ]


def test_attempts_stay_through_requeue_and_compaction(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", segment_bytes=SEGMENT_BYTES_MIN, durability="os")
    orders = iter(range(100))

    @app.task(name="charge", retry=retry.fixed(attempts=2, delay=0))
    def charge() -> None:
        raise ValueError(f"order {next(orders)} is bad")

    @app.task(name="fill", store_result=False)
    def fill(text: str) -> None:
        del text

    with app:
        job = charge.enqueue_sync()
        for _ in range(2):
            with app.worker_thread(), pytest.raises(JobFailed):
                job.result_sync(timeout=20)
            job.requeue_sync()
        before = job.attempts_sync()
        for _ in range(3):
            fill.enqueue_many_sync([("x" * 10_000,)] * (SEGMENT_BYTES_MIN // 10_000))
        app.run_worker(burst=True, queues=["default"])
        report = app.compact_sync(keep=0)
        assert any(segment.removed for segment in report.segments)
        after = job.attempts_sync()
    expected = [
        (1, "retried", "ValueError", "order 0 is bad"),
        (2, "dead", "ValueError", "order 1 is bad"),
        (1, "retried", "ValueError", "order 2 is bad"),
        (2, "dead", "ValueError", "order 3 is bad"),
    ]
    assert told(before) == expected
    assert {entry.pid for entry in before} == {os.getpid()}
    assert told(after)[:4] == expected
    assert len({entry.fingerprint for entry in after if entry.outcome == "dead"}) == 1
    assert [entry.started_ns for entry in after[:4]] == [entry.started_ns for entry in before]
    assert [entry.owner for entry in after[:4]] == [entry.owner for entry in before]
