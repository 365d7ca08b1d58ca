"""Past jobs are enqueued once more, and dead letters requeued and purged."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from taskq import Put, State, TaskLog, TaskQ, retry
from taskq.core.fingerprints import fingerprint, pattern_of
from taskq.core.model import HEADERS_BYTES_MAX, SECOND_NS
from taskq.core.why import Why
from taskq.errors import DiskFull, JobFailed, JobNotFound, UsageError, WrongLog
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read import diagnosis as asking
from taskq.log.read.reader import LogReader
from taskq.log.requests import LETTERS_MAX
from taskq.log.state.job_history import DROPPED_FILE
from taskq.reading.replay import REPLAY_HEADER
from taskq.views import AttemptView, JobView
from tests.cli.helpers import taskq


async def one_of_each(log: TaskLog) -> dict[str, str]:
    ids = {
        "succeeded": await log.put(
            b"1" * 9_000, queue="mail", priority=9, headers={"a": "b"}, key="k", compress="zlib"
        ),
        "dead": await log.put(b"2", queue="mail", priority=8, attempts=1, headers={"c": "d"}),
        "cancelled": await log.put(b"3", priority=1, delay="1h"),
        "expired": await log.put(b"4", priority=1, expires=0.001),
    }
    won, lost = await log.claim(2, queues=["mail"])
    await log.ack(won, b"done")
    await log.nack(lost, "no")
    await log.cancel(ids["cancelled"])
    while (await log.get(ids["expired"])).state is not State.EXPIRED:
        await log.claim(1, queues=["nothing"])
    ids["ready"] = await log.put(b"5", priority=1)
    return ids


async def ack_all(log: TaskLog, count: int) -> None:
    await asyncio.gather(*(log.ack(delivery) for delivery in await log.claim(count)))


async def waiting(log: TaskLog) -> list[JobView]:
    return [view for view in await log.peek(10_000) if REPLAY_HEADER in view.headers]


async def test_a_replayed_job_is_a_new_one_like_the_old(log: TaskLog) -> None:
    """The same payload, queue, task, priority, attempts and headers; its key is not repeated."""
    ids = await one_of_each(log)
    report = await log.replay(state="succeeded")
    assert (report.count, report.problems, report.dry_run) == (1, 0, False)
    (job,) = report.jobs
    assert (job.job_id, job.state, job.queue) == (ids["succeeded"], State.SUCCEEDED, "mail")
    old, new = await log.get(job.job_id), await log.get(job.new_id)
    assert new.headers == {"a": "b", "replay_of": job.job_id}
    for name in ("queue", "task", "priority", "attempts_max", "payload"):
        assert getattr(new, name) == getattr(old, name)
    assert (new.state, new.key, new.attempt, new.result) == (State.READY, None, 0, None)
    assert (old.state, old.key, old.result) == (State.SUCCEEDED, b"k", b"done")


async def test_only_jobs_that_are_over_are_replayed(log: TaskLog) -> None:
    ids = await one_of_each(log)
    report = await log.replay(everything=True)
    assert {job.job_id for job in report.jobs} == set(ids.values()) - {ids["ready"]}
    assert [job.job_id for job in report.jobs] == sorted(
        (job.job_id for job in report.jobs), key=lambda job: int(job.split("-")[1])
    )
    views = {view.headers[REPLAY_HEADER]: view for view in await waiting(log)}
    assert set(views) == set(ids.values()) - {ids["ready"]}
    # Neither the delay of the one nor the end of the other is repeated.
    assert views[ids["cancelled"]].due_ns == 0
    assert views[ids["expired"]].expires_ns == 0


async def test_many_jobs_are_replayed_in_bounded_transactions(log: TaskLog) -> None:
    """More than one frame could hold, across segments."""
    payloads = [bytes([n % 256]) * 900_000 for n in range(12)]
    for payload in payloads:
        await log.put(payload)
    await log.put_many([Put(payload=b"%d" % n) for n in range(600)])
    await ack_all(log, 612)
    before = log._connection.store().batches
    report = await log.replay(state="succeeded")
    assert report.count == 612
    # Two of the large ones in each, and 256 of the others.
    assert log._connection.store().batches - before >= 6 + 3
    views = await waiting(log)
    assert [view.payload for view in views] == [*payloads, *(b"%d" % n for n in range(600))]


async def test_what_a_replay_enqueues_is_not_replayed_by_it(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x")] * 600)
    await ack_all(log, 600)
    assert (await log.replay(queue="default")).count == 600
    await ack_all(log, 600)
    again = await log.replay(queue="default")
    assert again.count == 1_200
    views = {view.job_id: view for view in await waiting(log)}
    # The link names the job that was enqueued again, which may itself be one.
    last = again.jobs[-1]
    assert views[last.new_id].headers == {REPLAY_HEADER: last.job_id}


async def test_a_job_that_cannot_be_enqueued_again_keeps_no_other_from_it(log: TaskLog) -> None:
    room = HEADERS_BYTES_MAX - 4 - len("x") - 10
    ids = [
        await log.put(b"1"),
        await log.put(b"2", headers={"x": "y" * room}),
        await log.put(b"3"),
    ]
    await ack_all(log, 3)
    report = await log.replay(state="succeeded")
    assert (report.count, report.problems) == (2, 1)
    first, full, last = report.jobs
    assert [job.job_id for job in report.jobs] == ids
    assert "the headers has" in full.problem
    assert full.new_id == ""
    assert first.new_id
    assert last.new_id


# -- dead ------------------------------------------------------------------------------------------


#: More than two slices.
MANY = 2 * LETTERS_MAX + 345


async def die(log: TaskLog, *jobs: Put, reason: str = "ValueError: no") -> list[str]:
    ids = await log.put_many(jobs)
    while deliveries := await log.claim(4_000):
        await asyncio.gather(*(log.nack(delivery, reason) for delivery in deliveries))
    return ids


def once(payload: bytes = b"x", **options: Any) -> Put:
    return Put(payload=payload, attempts=1, **options)


async def test_thousands_are_requeued_and_purged_in_slices(log: TaskLog) -> None:
    await die(log, *(once(b"%d" % number) for number in range(MANY)))
    assert await log.dead.count() == MANY
    assert (await log.dead.requeue_all(dry_run=True)).count == MANY
    assert (await log.dead.requeue_all(limit=LETTERS_MAX + 1)).count == LETTERS_MAX + 1
    assert (await log.dead.requeue_all()).count == MANY - LETTERS_MAX - 1
    assert await log.dead.count() == 0
    claimed = await log.claim(4_000)
    assert [delivery.payload for delivery in claimed] == [b"%d" % number for number in range(MANY)]
    await asyncio.gather(*(log.nack(delivery, "again") for delivery in claimed))
    assert (await log.dead.purge_all(dry_run=True)).count == MANY
    assert (await log.dead.purge_all()).count == MANY
    (queue,) = (await log.stats()).queues
    assert (queue.dead, queue.ready) == (0, 0)


def send(to: str, count: int = 1, *rest: int) -> list[int]:
    return [count, *rest]


class Answer(BaseModel):
    """A web app's answer."""

    state: State


def test_a_state_is_printed_and_serialized_by_its_name() -> None:
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


async def test_a_view_has_aware_times_and_arguments_by_name(app: TaskQ) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=2)
    async with app:
        call = app.task(send).call("a@b.c", 2, 3)
        job = await app.enqueue(call.options(delay="1h", expires="2h"))
        view = await job.view()
        assert view.arguments == {"to": "a@b.c", "count": 2, "*": [3]}
        assert view.due_at is not None
        assert view.expires_at is not None
        assert begin < view.enqueued_at < view.due_at < view.expires_at
        assert view.due_at.tzinfo is view.enqueued_at.tzinfo is UTC
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


def attempt_of(outcome: str, reason: str = "", task: str = "mail.send") -> AttemptView:
    return AttemptView(
        number=1, owner=7, started_ns=SECOND_NS, outcome=outcome, reason=reason, task=task
    )


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
        *((outcome, "", "", "") for outcome in ("", "succeeded", "released", "cancelled")),
    ],
)
def test_a_failed_attempt_has_class_message_and_fingerprint(
    outcome: str, reason: str, error: str, message: str
) -> None:
    view = attempt_of(outcome, reason)
    assert (view.error, view.message) == (error, message)
    assert len(view.fingerprint) == (16 if message or error else 0)
    if reason:
        assert view.fingerprint == fingerprint("mail.send", pattern_of(reason))


def test_failures_of_one_kind_share_a_fingerprint_and_tasks_do_not() -> None:
    same, other, task, error = (
        attempt_of("dead", *given).fingerprint
        for given in (
            ("ValueError: order 17 is bad", "a"), ("ValueError: order 18 is bad", "a"),
            ("ValueError: order 17 is bad", "b"), ("KeyError: order 17 is bad", "a"),
        )
    )  # fmt: skip
    assert same == other
    assert len({same, task, error}) == 3


def test_attempts_stay_through_requeue_and_compaction(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", segment_bytes=SEGMENT_BYTES_MIN, durability="os")
    orders = iter(range(100))

    @app.task(name="charge", retry=retry.fixed(attempts=2, delay=0))
    def charge() -> None:
        raise ValueError(f"order {next(orders)} is bad")

    @app.task(name="fill", store_result=False)
    def fill(text: str) -> None: ...

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
    assert [(it.number, it.outcome, it.error, it.message) for it in before] == [
        (1, "retried", "ValueError", "order 0 is bad"),
        (2, "dead", "ValueError", "order 1 is bad"),
        (1, "retried", "ValueError", "order 2 is bad"),
        (2, "dead", "ValueError", "order 3 is bad"),
    ]
    assert {entry.pid for entry in before} == {os.getpid()}
    assert after[:4] == before
    assert len({entry.fingerprint for entry in after if entry.outcome == "dead"}) == 1


# -- why not running -------------------------------------------------------------------------------


async def test_why_counts_the_jobs_that_workers_claim_first(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.claim(queues=["q"])
        ids = [await log.put(b"x", queue="q") for _ in range(3)]
        for _ in range(2):
            await log.put(b"x", queue="q", priority=9)
            await log.put(b"x", queue="elsewhere", priority=9)
        await log.put(b"x", queue="q", priority=1)
        reason = await log.why(ids[2])
        assert (reason.code, reason.ahead) == (Why.BEHIND_PRIORITY, 4)
        assert reason.text == "2 jobs of higher priority and 2 older jobs are before it"
        await log.claim(2, queues=["q"])
        reason = await log.why(ids[2])
        assert (reason.code, reason.ahead) == (Why.BEHIND_OLDER, 2)
        await log.claim(2, queues=["q"])
        assert (await log.why(ids[2])).code is Why.NEXT
        running = await log.why(ids[0])
        assert running.code is Why.RUNNING
        assert "attempt 1 of 5" in running.text


async def test_a_process_that_keeps_the_writer_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_LOOK_SECONDS", 0)
    async with TaskLog.open(tmp_path) as log:
        await log.claim()
        job_id = await log.put(b"x")
        assert (await log.why(job_id)).code is Why.NEXT
        monkeypatch.setattr(asking, "process_state", lambda _: "stopped: python app.py")
        with (tmp_path / "write.lock").open("rb") as file, LogReader.open(str(tmp_path)) as reader:
            fcntl.flock(file, fcntl.LOCK_EX)
            seen = reader.why(int(job_id.rpartition("-")[2]))
            assert seen is not None
            assert seen.code is Why.LOCKED
        monkeypatch.setattr(asking, "flock_holders", lambda *_: [4711])
        reason = await log.why(job_id)
        assert reason.code is Why.LOCKED
        assert reason.text.startswith("process 4711 (stopped: python app.py) keeps")
        looks = iter([[4711], [4711], [0]])
        monkeypatch.setattr(asking, "flock_holders", lambda *_: next(looks))
        assert (await log.why(job_id)).code is Why.NEXT


async def test_a_job_that_a_full_disk_took_is_explained(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job = await log.put(b"x", queue="q")
        gone = f"{job.rpartition('-')[0]}-999"
        with pytest.raises(JobNotFound):
            await log.why(gone)
        note = {"before_lsn": 1_000, "at_ns": 1}
        (tmp_path / DROPPED_FILE).write_text(json.dumps(note), encoding="utf-8")
        reason = await log.why(gone)
        assert reason.code is Why.DROPPED
        assert "the disk was full" in reason.text


# -- stats -----------------------------------------------------------------------------------------


_MORE_THAN_ANY_DISK_HAS = 2**60


async def test_too_little_room_on_the_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os") as log:
        await log.put(b"kept")
    async with TaskLog.open(tmp_path / "log", min_free=_MORE_THAN_ANY_DISK_HAS, reserve=0) as log:
        with pytest.raises(DiskFull, match="Free some space, raise the quota or lower min_free"):
            await log.put(b"refused")
        [delivery] = await log.claim()
        await log.ack(delivery)
    app = TaskQ(tmp_path / "log", min_free=_MORE_THAN_ANY_DISK_HAS)
    async with app:
        with pytest.raises(DiskFull) as caught:
            await app.enqueue_by_name("mail.send")
        assert caught.value.limit_bytes == _MORE_THAN_ANY_DISK_HAS
