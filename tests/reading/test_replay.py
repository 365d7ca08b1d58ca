"""Past jobs are enqueued once more, and dead letters requeued and purged."""

import asyncio
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from taskq import Put, State, TaskLog, TaskQ
from taskq.core.fingerprints import fingerprint, pattern_of
from taskq.core.model import SECOND_NS
from taskq.core.why import Why
from taskq.errors import JobNotFound
from taskq.log.read import diagnosis as asking
from taskq.log.read.reader import LogReader
from taskq.log.requests import LETTERS_MAX
from taskq.log.state.job_history import DROPPED_FILE
from taskq.reading.replay import REPLAY_HEADER
from taskq.views import AttemptView, JobView
from tests.cli.helpers import taskq


async def ack_all(log: TaskLog, count: int) -> None:
    await asyncio.gather(*(log.ack(delivery) for delivery in await log.claim(count)))


async def waiting(log: TaskLog) -> list[JobView]:
    return [view for view in await log.peek(10_000) if REPLAY_HEADER in view.headers]


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


async def test_a_view_has_arguments_by_name(app: TaskQ) -> None:
    async with app:
        view = await (await app.enqueue(app.task(send).call("a@b.c", 2, 3))).view()
        assert view.arguments == {"to": "a@b.c", "count": 2, "*": [3]}
        assert TypeAdapter(JobView).dump_python(view, mode="json")["state"] == "ready"


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


def attempt_of(outcome: str, reason: str = "", task: str = "mail.send") -> AttemptView:
    return AttemptView(
        number=1, owner=7, started_ns=SECOND_NS, outcome=outcome, reason=reason, task=task
    )


@pytest.mark.parametrize(("outcome", "reason", "error", "message"), [
    ("dead", "ValueError: order 17 is bad\n  File x", "ValueError", "order 17 is bad"),
    ("retried", "sqlite3.OperationalError: locked", "sqlite3.OperationalError", "locked"),
    ("dead", "ValueError", "ValueError", ""),
    ("dead", "no such task here", "", "no such task here"),
    ("lost", "", "WorkerLost", "the worker process died"),
    ("dead", "", "", "(no reason given)"),
    ("released", "OSError: down", "OSError", "down"),
    *((outcome, "", "", "") for outcome in ("", "succeeded", "released", "cancelled")),
])  # fmt: skip
def test_a_failed_attempt_has_class_message_and_fingerprint(
    outcome: str, reason: str, error: str, message: str
) -> None:
    view = attempt_of(outcome, reason)
    assert (view.error, view.message) == (error, message)
    assert len(view.fingerprint) == (16 if message or error else 0)
    if reason:
        assert view.fingerprint == fingerprint("mail.send", pattern_of(reason))


# -- why not running -------------------------------------------------------------------------------


async def test_a_process_that_keeps_the_lock_is_named(
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
