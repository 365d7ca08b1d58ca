"""The events of one job, in order, with their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.model import SECOND_NS, State
from taskq.core.records import Kind
from taskq.core.views import AttemptView
from taskq.errors import JobNotFound
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.carried import Carried, encode_carried, encode_history
from taskq.log.format.record import Record
from taskq.log.read.reader import LogReader
from taskq.log.read.timeline import events_of, timeline
from tests.log.world import World


def test_every_record_about_a_job_is_an_event_with_its_time_and_outcome() -> None:
    world = World()
    process, other = world.process(), world.process()
    start_ns = world.clock.wall_ns()
    job = process.enqueue()
    process.enqueue(b"another")
    world.clock.advance(10)
    [first] = process.claim()
    world.clock.advance(5)
    process.settle(first, Kind.RETRIED, body=b"ValueError: no\nline 2", delay_ns=60 * SECOND_NS)
    world.clock.advance(60)
    [second] = other.claim()
    assert second.job == job
    other.kill()
    world.clock.advance(1)
    [third] = [delivery for delivery in process.claim(9) if delivery.job == job]
    process.settle(third, body=b"42")
    events = timeline(world.reader(), job)
    assert [
        (e.kind, (e.time_ns - start_ns) // SECOND_NS, e.attempt, e.owner, e.cause) for e in events
    ] == [
        ("enqueued", 0, 0, 0, ""),
        ("claimed", 10, 1, 1, ""),
        ("retried", 15, 1, 1, "exhausted"),
        ("claimed", 75, 2, 2, ""),
        ("released", 76, 2, 2, "owner_lost"),
        ("claimed", 76, 3, 1, ""),
        ("succeeded", 76, 3, 1, ""),
    ]
    assert events[2].reason == "ValueError: no\nline 2"
    assert events[2].due_ns == start_ns + 75 * SECOND_NS
    lsns = [event.lsn for event in events]
    assert lsns == sorted(lsns)
    assert lsns[0] == job


async def test_a_worker_is_named_though_it_is_gone_and_came_segments_before(tmp_path: Path) -> None:
    """A process introduces itself in the log once, before its first claim."""
    async with TaskLog.open(tmp_path, name="early bird", segment_bytes=SEGMENT_BYTES_MIN) as log:
        await log.put(b"first")
        await log.ack((await log.claim())[0])
        for _ in range(3):
            await log.put(bytes(SEGMENT_BYTES_MIN), queue="rest")
        job_id = await log.put(b"last")
        await log.ack((await log.claim(queues=["default"]))[0])
        alive = await log.timeline(job_id)
    with LogReader.open(str(tmp_path)) as reader:
        assert len(reader.journal.files.lsns) > 2
        gone = reader.timeline(reader.parse_id(job_id))
    for events in (alive, gone):
        assert [event.kind for event in events] == ["enqueued", "claimed", "succeeded"]
        assert {event.worker for event in events[1:]} == {"early bird"}
        assert all(event.pid and event.host for event in events[1:])
        assert not events[0].worker
    assert alive == gone


async def test_a_timeline_of_no_job_is_refused(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job_id = await log.put(b"x")
        tag = job_id.partition("-")[0]
        with pytest.raises(JobNotFound):
            await log.timeline(f"{tag}-99")


def _carried(state: State, attempts: list[AttemptView], ended_ns: int) -> bytes:
    world = World()
    process = world.process()
    process.enqueue(b"payload")
    born = process.journal.files.record(process.catch_up().need_agenda().location(1), 1)
    carried = Carried(
        job=1, state=state, born=born, enqueued_ns=100, attempt=len(attempts), ended_ns=ended_ns,
        history=encode_history(attempts), body=b"because",
    )  # fmt: skip
    return encode_carried(Kind.CARRIED, carried, 50)


def test_what_compaction_wrote_again_tells_what_came_before() -> None:
    attempts = [
        AttemptView(
            number=1, owner=7, started_ns=200, ended_ns=300, outcome="retried", reason="no"
        ),
        AttemptView(
            number=2, owner=8, started_ns=400, ended_ns=500, outcome="dead", reason="never"
        ),
    ]
    record = Record(_carried(State.DEAD, attempts, 500), 50, 1, 900)
    events = events_of([record])
    assert [(e.kind, e.time_ns, e.lsn, e.attempt, e.owner, e.reason) for e in events] == [
        ("enqueued", 100, 0, 0, 0, ""),
        ("claimed", 200, 0, 1, 7, ""),
        ("retried", 300, 0, 1, 7, "no"),
        ("claimed", 400, 0, 2, 8, ""),
        ("dead", 500, 0, 2, 8, "never"),
        ("carried", 900, 50, 2, 0, ""),
    ]
    withdrawn = Record(_carried(State.CANCELLED, [], 500), 50, 1, 900)
    assert [event.kind for event in events_of([withdrawn])] == ["enqueued", "cancelled", "carried"]
