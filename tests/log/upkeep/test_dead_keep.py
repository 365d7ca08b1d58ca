"""How long dead letters stay, and how many: kept by upkeep, per log and per queue."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import UsageError
from taskq.core.records import Cause, Kind
from taskq.log.config import LogConfig, QueuePolicy
from taskq.log.requests import LETTERS_MAX, EnqueueSpec, Op, Settlement
from taskq.log.upkeep import retention as deadkeep
from tests.log.tending import keeping, tend
from tests.log.world import Process, World

HOUR = 3_600


def dead_letters(process: Process, count: int, queue: str = "mail") -> list[int]:
    spec = EnqueueSpec(queue=queue)
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, [(spec, b"x", None)] * count)
    deliveries = process.claim(count)
    assert [delivery.job for delivery in deliveries] == jobs
    items = [
        Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED) for delivery in deliveries
    ]
    assert process.ask(Op.SETTLE, items) == [None] * count
    return jobs


def left(process: Process) -> list[int]:
    agenda = process.catch_up().need_agenda()
    return [chunk.ids[index] for chunk, index in agenda.dead]


def world_with(**options: Any) -> tuple[World, Process]:
    world = World(config=keeping(**options))
    return world, world.process()


def test_letters_go_when_they_are_dead_for_too_long() -> None:
    """Counted from their death, not from their birth; not a second too early."""
    world, process = world_with(keep_dead_seconds=HOUR)
    slow = process.enqueue(spec=EnqueueSpec(queue="mail", priority=0))
    old = dead_letters(process, 2)
    world.clock.advance(HOUR)
    (delivery,) = process.claim()
    process.settle(delivery, Kind.DEAD, body=b"at last")
    tend(process)
    assert left(process) == [slow, *old]
    world.clock.advance(2)
    tend(process)
    assert left(process) == [slow]
    assert world.view(old[0]) is None
    assert world.kinds().count(Kind.PURGED) == 2


def test_of_too_many_letters_the_oldest_deaths_go() -> None:
    world, process = world_with(dead_max=3)
    first = process.enqueue(spec=EnqueueSpec(queue="mail", priority=0))
    early = dead_letters(process, 3)
    world.clock.advance(60)
    (delivery,) = process.claim()
    process.settle(delivery, Kind.DEAD, body=b"last of all")
    tend(process)
    assert left(process) == [first, *early[1:]]
    tend(process)
    assert len(left(process)) == 3


def test_a_queue_may_keep_more_or_less_than_its_log() -> None:
    policies = {
        "mail": QueuePolicy(dead_max=1),
        "sync": QueuePolicy(keep_dead_seconds=10 * HOUR),
    }
    world, process = world_with(keep_dead_seconds=HOUR, queues=policies)
    mail = dead_letters(process, 3, "mail")
    sync = dead_letters(process, 2, "sync")
    other = dead_letters(process, 2, "other")
    tend(process)
    assert left(process) == [mail[2], *sync, *other]
    world.clock.advance(2 * HOUR)
    tend(process)
    assert left(process) == sync
    world.clock.advance(9 * HOUR)
    tend(process)
    assert left(process) == []


def test_a_queue_with_a_number_of_its_own_is_counted_by_itself() -> None:
    world, process = world_with(dead_max=2, queues={"mail": QueuePolicy(dead_max=4)})
    mail = dead_letters(process, 5, "mail")
    sync = dead_letters(process, 2, "sync")
    world.clock.advance(1)
    other = dead_letters(process, 1, "other")
    tend(process)
    assert left(process) == [*mail[1:], sync[1], *other]


def test_thousands_go_in_slices_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch holds the lock for long, and no pass remembers more than its share."""
    monkeypatch.setattr(deadkeep, "_EXCESS_MAX", LETTERS_MAX + 30)
    monkeypatch.setattr(deadkeep, "_SCANNED", 100)
    world, process = world_with(dead_max=5)
    jobs = dead_letters(process, 3 * LETTERS_MAX)
    before = process.journal.meters.batches
    tend(process)
    assert left(process) == jobs[-5:]
    assert process.journal.meters.batches - before >= 4
    assert world.fold().need_agenda().dead.live == 5


@pytest.mark.parametrize("wrong", [-1, -100])
def test_a_number_below_nothing_is_refused(wrong: int) -> None:
    for make in (LogConfig, QueuePolicy):
        with pytest.raises(UsageError, match=f"dead_max is {wrong}"):
            make(dead_max=wrong)
