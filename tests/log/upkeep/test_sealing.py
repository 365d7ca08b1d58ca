"""Old jobs leave the directory, however small the log is."""

from __future__ import annotations

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.config import KEEP_PARTS, QueuePolicy
from taskq.log.journal.lock import TailHint
from taskq.log.requests import Cancel, EnqueueSpec, Op
from taskq.log.upkeep.upkeep import LOOK_NS, Upkeep
from tests.log.tending import keeping, tend
from tests.log.world import Process, World

HOUR = 3_600
MARK = b"4111-1111-1111-1111"
LOOK = LOOK_NS // SECOND_NS


def holders(world: World) -> list[str]:
    return [path for path in world.machine.paths() if MARK in world.machine.content(path)]


def settled(process: Process, kind: str) -> None:
    """Have a job with the marker end, one way or another."""
    if kind == "expired":
        expiry = process.world.clock.wall_ns() + SECOND_NS
        process.enqueue(MARK, Extras(expires_ns=expiry, expires_is_wall=True))
        process.world.clock.advance(2)
        assert process.claim() == []
        return
    job = process.enqueue(b"{}" if kind == "result" else MARK)
    if kind == "cancelled":
        assert process.ask(Op.CANCEL, job) == Cancel.WITHDRAWN
        return
    (delivery,) = process.claim()
    if kind == "dead":
        process.settle(delivery, Kind.DEAD, body=MARK)
    else:
        process.settle(delivery, body=MARK if kind == "result" else b"done")


def work_on(process: Process, upkeep: Upkeep, seconds: float, pause: float) -> None:
    """Let time pass; now and then a job, and upkeep all along."""
    clock = process.world.clock
    until_ns = clock.wall_ns() + int(seconds * SECOND_NS)
    while clock.wall_ns() < until_ns:
        clock.advance(pause)
        if pause < LOOK:
            process.enqueue(b"other")
            process.settle(process.claim()[0])
        tend(process, upkeep)


@pytest.mark.parametrize(
    ("kind", "pause"),
    [
        *((kind, LOOK) for kind in ("succeeded", "result", "cancelled", "expired")),
        ("dead", LOOK - 1),
    ],
)
def test_what_is_kept_for_an_hour_is_gone_ten_minutes_later(kind: str, pause: float) -> None:
    world = World(config=keeping(keep_seconds=HOUR, keep_dead_seconds=0))
    process = world.process()
    settled(process, kind)
    upkeep = Upkeep(process.committer)
    work_on(process, upkeep, HOUR - 60, pause)
    assert holders(world)
    work_on(process, upkeep, 11 * 60, pause)
    assert holders(world) == []
    # As many as the parts of an hour, an open one, and one that is being removed.
    assert len(world.segments()) <= KEEP_PARTS + 2


def test_a_log_that_rests_is_left_alone_once_nothing_in_it_is_to_go() -> None:
    policies = {"kept": QueuePolicy(keep_seconds=30 * 24 * HOUR)}
    world = World(config=keeping(keep_seconds=1, queues=policies))
    process = world.process()
    due_ns = world.clock.wall_ns() + 9 * HOUR * SECOND_NS
    process.enqueue(MARK, Extras(due_ns=due_ns))
    for spec, end in ((EnqueueSpec(queue="kept"), Kind.SUCCEEDED), (EnqueueSpec(), Kind.DEAD)):
        process.enqueue(MARK, spec=spec)
        process.settle(process.claim()[0], end, body=MARK)
    upkeep = Upkeep(process.committer)
    work_on(process, upkeep, 60, LOOK)
    before = [(path, world.machine.content(path)) for path in world.segments()]
    work_on(process, upkeep, HOUR, LOOK)
    assert [(path, world.machine.content(path)) for path in world.segments()] == before
    assert len(before) == 1


def test_who_reads_along_passes_over_a_last_segment_that_was_sealed_and_went_meanwhile() -> None:
    world = World(config=keeping(keep_seconds=0))
    process, other = world.process(), world.process()
    upkeep = Upkeep(process.committer)
    settled(process, "succeeded")
    peek = other.journal.writer.peek

    def overtaken(tries: int = 1) -> TailHint | None:
        other.journal.writer.peek = peek  # type: ignore[method-assign]
        hint = peek(tries)
        work_on(process, upkeep, 4 * LOOK, LOOK)
        return hint

    process.journal.seal(process.journal.segment)
    settled(process, "succeeded")
    other.journal.files.refresh()
    other.journal.writer.peek = overtaken  # type: ignore[method-assign]
    other.journal.refresh()
    assert holders(world) == []
    assert other.claim() == []
    job = other.enqueue(b"after")
    assert [delivery.job for delivery in process.claim()] == [job]
