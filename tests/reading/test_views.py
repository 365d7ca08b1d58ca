"""A job as people see it: by names, with readable moments, by any name of the job."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from taskq import State, TaskQ, retry
from taskq.core.fingerprints import failure_of, fingerprint, pattern_of
from taskq.core.model import SECOND_NS
from taskq.errors import JobFailed, JobNotFound, UsageError, WrongLog
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.views import AttemptView, JobView
from tests.cli.helpers import taskq


def send(to: str, count: int = 1, *rest: int) -> list[int]:
    return [count, *rest]


class Answer(BaseModel):
    """A web app's answer."""

    state: State


def test_a_state_is_told_by_its_name() -> None:
    """Printed, formatted, and by pydantic, which reads it back."""
    for state in State:
        name = state.name.lower()
        assert str(state) == f"{state}" == f"{state:}" == name
        assert f"{state:>12}" == name.rjust(12)
        assert json.loads(Answer(state=state).model_dump_json()) == {"state": name}
        assert Answer.model_validate_json(f'{{"state": "{name}"}}').state is state
        assert Answer(state=state).state is state
    with pytest.raises(ValueError, match="state"):
        Answer.model_validate({"state": "asleep"})


async def test_a_view_tells_moments_with_their_zone_and_arguments_by_name(app: TaskQ) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=2)
    async with app:
        call = app.task(send).call("a@b.c", 2, 3)
        job = await app.enqueue(call.options(delay="1h", expires="2h"))
        view = await job.view()
        assert view.arguments == {"to": "a@b.c", "count": 2, "*": [3]}
        assert view.due_at is not None
        assert view.expires_at is not None
        assert begin < view.enqueued_at < view.due_at < view.expires_at
        assert view.due_at.utcoffset() == view.settled_at or view.due_at.tzinfo is UTC
        assert view.settled_at is None
        assert TypeAdapter(JobView).dump_python(view, mode="json")["state"] == "scheduled"


async def test_as_dict_is_what_json_prints(app: TaskQ) -> None:
    task = app.task(send)
    async with app, app.worker():
        job = await task.enqueue("a@b.c")
        assert await job == [1]
        view = await job.view()
        assert view.as_dict()["state"] == "succeeded"
        shown = json.loads(taskq("show", "--json", "-d", app.data_dir, job.id).stdout)
        own = view.as_dict()
        assert own["result"] == {"encoding": "json", "data": [1]}
        # The process of an attempt is known if the attempts are asked for.
        own["attempts"] = [attempt.as_dict() for attempt in await job.attempts()]
        assert own == {name: shown[name] for name in own}
        (listed,) = json.loads(taskq("ls", "--json", "-d", app.data_dir).stdout)
        assert listed == {name: own[name] for name in listed}
        seen = [event.as_dict() for event in await app.timeline(job)]
        assert seen == json.loads(taskq("timeline", "--json", "-d", app.data_dir, job.id).stdout)
        reason = await job.why()
        printed = json.loads(taskq("why", "--json", "-d", app.data_dir, job.id).stdout)
        # As of another moment: "it succeeded 1s ago".
        assert {**reason.as_dict(), "text": ""} | {"id": job.id} == {**printed, "text": ""}
        assert str(reason) == reason.text


async def test_a_job_is_found_by_handle_id_and_number(app: TaskQ) -> None:
    async with app:
        task = app.task(send)
        job = (await task.enqueue_many([("a",)] * 12))[11]
        for name in (job, job.id, str(job.lsn), job.lsn, f" {job.id} "):
            assert app.job(name) == task.job(name) == job
            assert (await app.why(name)).code == (await job.why()).code
            assert [event.kind for event in await app.timeline(name)] == ["enqueued"]
            assert await app.attempts(name) == ()
        assert await task.job(job.id).cancel()
        assert await app.job(job).status() is State.CANCELLED


async def test_the_beginning_of_a_number_finds_the_only_job_of_it(app: TaskQ) -> None:
    async with app:
        task = app.task(send)
        first = await task.enqueue("a")
        assert first.lsn == 1
        assert await first.cancel()
        jobs = await task.enqueue_many([("a",)] * 18)
        assert 2 not in [job.lsn for job in jobs]
        twenty = next(job for job in jobs if job.lsn == 20)
        assert (await app.timeline("2"))[0].lsn == twenty.lsn
        assert taskq("why", "-d", app.data_dir, "2").stdout.startswith(f"{twenty.id}: ")
        (further,) = await task.enqueue_many([("a",)])
        assert further.lsn == 21
        for ask in (app.why, app.timeline, app.attempts):
            with pytest.raises(JobNotFound, match=f"2 begin so: {further.id}, {twenty.id}. Give"):
                await ask("2")
        done = taskq("show", "-d", app.data_dir, "2")
        assert (done.exit_code, further.id in done.stderr) == (1, True)


async def test_all_that_say_no_such_job_are_one_error(app: TaskQ, tmp_path: Path) -> None:
    async with app:
        await app.task(send).enqueue("a")
        wrong: Any
        for wrong in ("9999", "00000000-1", "hello", "", "a b-1", "-1", None, 1.5, b"1"):
            with pytest.raises(JobNotFound):
                await app.why(wrong)
            with pytest.raises(JobNotFound):
                await app.job(wrong).status()
        with pytest.raises(WrongLog):
            app.job("00000000-1")
        with pytest.raises(UsageError, match="is no job id: give a handle, or text such as"):
            app.job(None)  # type: ignore[arg-type]


def test_a_number_opens_the_log_that_it_is_of(app: TaskQ) -> None:
    with app:
        job = app.task(send).enqueue_sync("a")
    app.open_sync()
    twin = TaskQ(app.data_dir, durability="os")
    assert twin.job(job.lsn).id == job.id
    twin.close_sync()
    app.close_sync()


def test_attempts_of_a_view_are_documents_too(app: TaskQ) -> None:
    with app:
        job = app.task(send).enqueue_sync("a")
        assert job.view_sync().as_dict()["attempts"] == []
        assert asdict(job.why_sync())["code"] == job.why_sync().code


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
