"""Jobs of ``on_dead`` are in the frame of the death, for every cause of death."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from taskq import DeadLetter
from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS
from taskq.core.records import Cause, Kind
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Settlement
from tests.log.world import Process, World

TELL = EnqueueSpec(task="tell")
ONCE = EnqueueSpec(attempts=1, task="mail")


def told(world: World) -> list[bytes]:
    records = world.records()
    deaths = [record for record in records if record.type == Kind.DEAD]
    jobs = [record for record in records if (record.type, record.task) == (Kind.ENQUEUED, "tell")]
    assert [job.time_ns for job in jobs] == [death.time_ns for death in deaths]
    return [job.body or b"" for job in jobs]


def telling(process: Process) -> Process:
    def write(letter: DeadLetter) -> list[Any]:
        return [(TELL, letter.job_id.rpartition("-")[2].encode(), None)]

    for app in "one", "other":
        process.committer.operations.deaths.write(app, write)
    return process


def of_its_task(world: World, process: Process, job: int) -> None:
    (delivery,) = process.claim()
    world.clock.advance(1)
    process.settle(delivery, Kind.DEAD, body=b"no")


def of_its_worker(world: World, process: Process, job: int) -> None:
    other = world.process()
    other.claim()
    other.kill()
    world.clock.advance(1)
    process.claim()


def of_its_lease(world: World, process: Process, job: int) -> None:
    process.ask(Op.CLAIM, ClaimRequest(1, wait_until_ns=0, lease_ns=SECOND_NS))
    world.clock.advance(2)
    process.claim()


def of_its_record(world: World, process: Process, job: int) -> None:
    process.catch_up()
    process.committer.operations.context.recent.clear()
    (path,) = world.segments()
    world.machine.corrupt(path, world.machine.content(path).index(b"payload"), b"P")
    process.claim()


@pytest.mark.parametrize("die", [of_its_task, of_its_worker, of_its_lease, of_its_record])
def test_each_death_is_told_once_in_its_own_frame(
    die: Callable[[World, Process, int], None],
) -> None:
    world = World()
    process = telling(world.process())
    job = process.enqueue(b"payload", spec=ONCE)
    world.clock.advance(1)
    die(world, process, job)
    assert told(world) == [b"%d" % job]
    process.claim()
    assert told(world) == [b"%d" % job]


def test_the_claim_of_a_batch_gets_what_tells_of_its_deaths() -> None:
    world = World()
    process = telling(world.process())
    process.enqueue(spec=ONCE)
    (delivery,) = process.claim()
    claimed: Future[Any] = Future()
    died = Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED)
    process.commit([
        (Op.CLAIM, None, claimed, ClaimRequest(1, wait_until_ns=0)),
        (Op.SETTLE_NOWAIT, None, None, ([died], print)),
    ])  # fmt: skip
    assert [taken.task for taken in claimed.result(0)] == ["tell"]


def test_a_death_in_a_batch_that_broke_is_told_once() -> None:
    world = World()
    process = telling(world.process())
    job = process.enqueue(spec=ONCE)
    (delivery,) = process.claim()
    died = Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED)
    nonsense: Future[Any] = Future()
    process.commit([
        (Op.SETTLE_NOWAIT, None, None, ([died], print)),
        (Op.PURGE, None, nonsense, ["no number"]),
    ])  # fmt: skip
    process.sync()
    assert isinstance(nonsense.exception(0), TaskqError)
    assert told(world) == [b"%d" % job]


def test_what_fails_to_tell_of_a_death_does_not_keep_it_from_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    process = telling(world.process())

    def fail(letter: DeadLetter) -> list[Any]:
        raise ValueError(letter)

    process.committer.operations.deaths.write("bad", fail)
    job = process.enqueue(spec=ONCE)
    with caplog.at_level(logging.ERROR, logger="taskq"):
        of_its_task(world, process, job)
    assert "the death of job" in caplog.text
    assert told(world) == [b"%d" % job]
