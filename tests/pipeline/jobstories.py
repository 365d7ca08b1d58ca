"""Logs with one kind of story each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq import TaskLog
from taskq.core.flows import Policy
from taskq.core.model import SECOND_NS, Conflict, Extras
from taskq.core.records import Cause, Flag, Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.selection import letters
from taskq.log.requests import EnqueueSpec, Op
from tests.log.world import (
    SMALL,
    Process,
    World,
    chord,
    edit,
    fill_segment,
    items_of,
    keeping,
    tend,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskq.log.requests import Delivery

_TIGHT: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
_HOUR_NS: Final = 3_600 * SECOND_NS
_REASON: Final = "ValueError: né".encode()


def _one(process: Process) -> Delivery:
    (delivery,) = process.claim()
    return delivery


def _requeue(process: Process, job: int) -> None:
    process.catch_up()
    assert process.ask(Op.REQUEUE, letters(process.committer.sight, [job]).items) == [None]


def _dead(process: Process, body: bytes = _REASON, extras: Extras | None = None) -> int:
    job = process.enqueue(b"to die", extras)
    process.settle(_one(process), Kind.DEAD, body=body, cause=Cause.REJECTED)
    return job


def jobs_that_succeed_wait_and_run(world: World) -> None:
    process = world.process()
    for _ in range(5):
        process.enqueue()
        world.clock.advance(1)
    process.settle(_one(process), body=b"42")
    process.settle(_one(process), body=b"")
    process.settle(_one(process))
    _one(process)


def retries_with_and_without_delay(world: World) -> None:
    process = world.process()
    process.enqueue()
    for delay_ns in (0, 60 * SECOND_NS, 0):
        process.settle(_one(process), Kind.RETRIED, body=_REASON, delay_ns=delay_ns)
        world.clock.advance(61)
    process.settle(_one(process), body=b"at last")
    process.enqueue()
    process.settle(_one(process), Kind.RETRIED, body=b"\xff no text", delay_ns=_HOUR_NS)


def releases_by_drain_and_snooze(world: World) -> None:
    process = world.process()
    process.enqueue()
    process.settle(_one(process), Kind.RELEASED, cause=Cause.DRAIN)
    world.clock.advance(2)
    process.settle(_one(process), Kind.RELEASED, cause=Cause.SNOOZE, delay_ns=_HOUR_NS)


def an_owner_that_is_lost(world: World) -> None:
    process, other = world.process(), world.process()
    process.enqueue()
    process.enqueue()
    _one(other)
    world.clock.advance(3)
    other.kill()
    process.commit([])
    process.sync()
    process.settle(_one(process), body=b"done by another")


def dead_letters_requeued_and_purged(world: World) -> None:
    process = world.process()
    expires = Extras(expires_ns=_HOUR_NS, key=b"k")
    first, second, third = _dead(process, extras=expires), _dead(process, b""), _dead(process)
    for job in (first, second):
        _requeue(process, job)
        world.clock.advance(1)
    process.settle(_one(process), Kind.RETRIED, body=b"again", delay_ns=60 * SECOND_NS)
    world.clock.step(-7_200)
    process.enqueue()
    process.ask(Op.PURGE, [third])
    _dead(process)


def dead_letters_that_still_expire(world: World) -> None:
    """Have it as a span or a date, requeued before and after it; the clock is set meanwhile."""
    process = world.process()
    date_ns = world.clock.wall_ns() + 2 * _HOUR_NS
    spans = [_dead(process, extras=Extras(expires_ns=n * _HOUR_NS)) for n in (1, 2, 3, 4)]
    date = _dead(process, extras=Extras(expires_ns=date_ns, expires_is_wall=True))
    world.clock.step(-1_800)
    process.enqueue()
    world.clock.advance(3_601)
    for job in (*spans[:2], date):
        _requeue(process, job)
    world.clock.step(600)
    claimed = {item.job: item for item in process.claim(9)}
    process.settle(claimed[spans[0]])
    process.settle(claimed[spans[1]], Kind.DEAD, body=b"again", cause=Cause.REJECTED)
    world.clock.step(-60)
    process.enqueue()
    _requeue(process, spans[1])


def jobs_withdrawn_and_expired(world: World) -> None:
    process = world.process()
    job = process.enqueue()
    process.ask(Op.CANCEL, job)
    later = process.enqueue(extras=Extras(due_ns=_HOUR_NS))
    process.ask(Op.CANCEL, later)
    running = process.enqueue()
    delivery = _one(process)
    process.ask(Op.CANCEL, running)
    world.clock.advance(1)
    process.settle(delivery, Kind.CANCELLED, body=_REASON, cause=Cause.ASKED)
    process.enqueue(extras=Extras(expires_ns=60 * SECOND_NS))
    process.enqueue(extras=Extras(expires_ns=world.clock.wall_ns() + 1, expires_is_wall=True))
    world.clock.advance(120)
    for _ in range(3):
        process.commit([])
        process.sync()


def keys_and_headers(world: World) -> None:
    process = world.process()
    keyed = Extras(key=b"\x00key", headers={"replay_of": "other-7", "trace": "é"})
    process.enqueue(extras=keyed)
    process.offer(b"second", Extras(key=b"\x00key"))
    process.offer(b"third", Extras(key=b"\x00key", on_conflict=Conflict.REPLACE))
    process.enqueue(extras=Extras(headers={"empty": ""}), spec=EnqueueSpec("réseau", "", 9, 0))
    dropping = EnqueueSpec("mail", "drop", 9, 1, flags=int(Flag.DROP_RESULT))
    process.enqueue(spec=dropping)
    process.settle(_one(process))


def clocks_that_are_set(world: World) -> None:
    """Delays, expiries and backoff shift; dates do not. One job runs meanwhile."""
    process = world.process()
    date_ns = world.clock.wall_ns() + 2 * _HOUR_NS
    process.enqueue(b"runs")
    _one(process)
    process.enqueue(extras=Extras(due_ns=10 * SECOND_NS))
    process.enqueue(extras=Extras(due_ns=_HOUR_NS, expires_ns=9 * _HOUR_NS))
    process.enqueue(extras=Extras(due_ns=date_ns, due_is_wall=True, expires_ns=9 * _HOUR_NS))
    process.enqueue(extras=Extras(expires_ns=date_ns, expires_is_wall=True))
    process.enqueue(b"backs off", spec=EnqueueSpec(priority=9))
    process.settle(_one(process), Kind.RETRIED, body=b"no", delay_ns=_HOUR_NS)
    for step in (-3_000, 10**8, -(10**8), 600):
        world.clock.step(step)
        process.enqueue()
    world.clock.advance(20)
    for _ in range(9):
        for delivery in process.claim():
            process.settle(delivery, body=b"ok")


def flows(world: World) -> None:
    process = world.process()
    runs, fails, waits = (
        process.ask(Op.ENQUEUE_MANY, items_of(chord(2, policy)))
        for policy in (Policy.CANCEL, Policy.CANCEL, Policy.WAIT)
    )
    for delivery in process.claim(6):
        world.clock.advance(1)
        is_bad = delivery.job in {fails[1], waits[1]}
        kind = Kind.DEAD if is_bad else Kind.SUCCEEDED
        process.settle(delivery, kind, body=b"1")
    world.clock.advance(5)
    callback = _one(process)
    assert callback.job == runs[0]
    process.settle(callback, body=b"2")


def compacted_logs(world: World) -> None:
    process = world.process()
    keep = Extras(keep_ns=999 * _HOUR_NS, headers={"replay_of": "1"})
    process.enqueue(b"kept", keep)
    process.settle(_one(process), Kind.RETRIED, body=b"first", delay_ns=SECOND_NS)
    world.clock.advance(2)
    process.settle(_one(process), body=b"kept result")
    _dead(process)
    process.enqueue(b"waits", Extras(due_ns=_HOUR_NS, expires_ns=5 * _HOUR_NS))
    process.enqueue(b"dated", Extras(due_ns=world.clock.wall_ns() + _HOUR_NS, due_is_wall=True))
    low = EnqueueSpec(priority=0)
    process.enqueue(b"is ready", spec=low)
    process.enqueue(b"tried", spec=EnqueueSpec(priority=9))
    process.settle(_one(process), Kind.RETRIED, body=b"", delay_ns=900 * _HOUR_NS)
    process.enqueue(b"runs", spec=EnqueueSpec(priority=9))
    running = _one(process)
    for _ in range(4):
        fill_segment(process)
        tend(process)
    world.clock.step(-600)
    process.enqueue(spec=low)
    process.settle(running, Kind.RETRIED, body=b"carried while it ran", delay_ns=SECOND_NS)


def dead_letters_requeued_in_compacted_logs(world: World) -> None:
    process = world.process()
    dead = [_dead(process), _dead(process)]
    begun = process.journal.segment
    while process.journal.segment == begun:
        process.enqueue(bytes(20_000), spec=EnqueueSpec(priority=0))
    for job in dead:
        _requeue(process, job)
    process.settle(_one(process), Kind.RETRIED, body=b"once more", delay_ns=SECOND_NS)
    process.journal.files.remove(begun)


def jobs_that_are_edited(world: World) -> None:
    """Before a first attempt and between two, to another place or moment; and carried."""
    process = world.process(_TIGHT)
    later = process.enqueue(b"later", Extras(due_ns=_HOUR_NS, key=b"k"))
    early = process.enqueue(b"early")
    again = process.enqueue(b"again", spec=EnqueueSpec(priority=9))
    process.settle(_one(process), Kind.RETRIED, body=_REASON, delay_ns=_HOUR_NS)
    world.clock.advance(7)
    edit(process, again, due=(0, False), priority=1)
    edit(process, early, queue=b"mail", due=(5 * SECOND_NS, False))
    world.clock.step(-60)
    edit(process, later, due=(world.clock.wall_ns() + 3 * SECOND_NS, True))
    world.clock.advance(9)
    process.settle(_one(process), Kind.RETRIED, body=b"no", delay_ns=_HOUR_NS)
    edit(process, later, due=(0, False), priority=7)
    process.settle(_one(process))
    wait = process.enqueue(b"wait", Extras(due_ns=9 * _HOUR_NS, expires_ns=99 * _HOUR_NS))
    for _ in range(3):
        fill_segment(process)
        tend(process)
    edit(process, wait, queue=b"slow", due=(_HOUR_NS, False))
    edit(process, wait, priority=0)
    world.clock.step(-30)
    fill_segment(process)
    tend(process)


STORIES: Final[dict[str, Callable[[World], None]]] = {
    story.__name__: story
    for story in (
        jobs_that_succeed_wait_and_run, retries_with_and_without_delay,
        releases_by_drain_and_snooze, an_owner_that_is_lost, dead_letters_requeued_and_purged,
        jobs_withdrawn_and_expired, keys_and_headers, clocks_that_are_set, compacted_logs,
        dead_letters_requeued_in_compacted_logs, dead_letters_that_still_expire, flows,
        jobs_that_are_edited,
    )
}  # fmt: skip


def world_of(story: str) -> World:
    world = World(config=_TIGHT if story == "compacted_logs" else SMALL)
    STORIES[story](world)
    return world


async def bodies(path: Path) -> None:
    """Return a log whose payloads and results are compressed or in files, each in every way."""
    large = b"all work and no play " * 80_000
    async with TaskLog.open(path, durability="os", min_free=0, reserve=0) as log:
        for compress in ("none", "zlib", "zstd"):
            for body in (b"small", large[:9_000], large):
                await log.put(body, compress=compress)
                (delivery,) = await log.claim()
                await log.ack(delivery, body, compress=compress)
