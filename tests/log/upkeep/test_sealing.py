"""Segments are sealed and removed; nobody reads one that went, and its room comes back."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from taskq import State, TaskLog
from taskq.core.errors import JobNotFound
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.config import KEEP_PARTS, SEGMENT_BYTES_MIN, QueuePolicy
from taskq.log.journal.lock import TailHint
from taskq.log.requests import Cancel, EnqueueSpec, Op
from taskq.log.segments.segments import SegmentGone
from taskq.log.upkeep.upkeep import LOOK_NS, Upkeep
from tests.log.world import Process, World, keeping, tend

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


# -- segment gone ----------------------------------------------------------------------------------


def rotate(process: Process) -> None:
    process.enqueue(bytes(SEGMENT_BYTES_MIN))
    for delivery in process.claim(9):
        process.settle(delivery)


def test_keys_that_were_freed_in_a_segment_that_went_are_free() -> None:
    world = World()
    idle, busy = world.process(), world.process()
    idle.enqueue(b"held", Extras(key=b"k"))
    rotate(busy)
    rotate(busy)
    busy.enqueue(b"the last segment")
    world.remove_oldest(2)
    assert isinstance(idle.offer(b"again", Extras(key=b"k")), int)


def test_who_waits_for_a_job_is_told_of_its_end_though_the_segment_with_the_start_went() -> None:
    world = World()
    idle, busy = world.process(), world.process()
    job = idle.enqueue(b"watched")
    outcome: Future[Any] = idle.send(Op.OUTCOME, job)
    idle.follow()
    assert not outcome.done()
    rotate(busy)
    busy.enqueue(b"lives")
    world.remove_oldest(1)
    idle.follow()
    idle.sync()
    with pytest.raises(JobNotFound, match="it is not kept any more"):
        outcome.result(0)


@pytest.mark.parametrize("facet", ["agenda", "dedup"])
def test_segments_that_go_while_it_folds_make_it_begin_again(facet: str) -> None:
    world = World()
    busy = world.process()
    for _ in range(3):
        rotate(busy)
    job = busy.enqueue(b"lives", Extras(key=b"k"))
    late = world.process()
    opened = late.disk.open

    def open_late(path: str, **options: Any) -> int:
        # Others are faster than this process, twice.
        if path in world.segments()[:2] and len(world.segments()) > 2:
            world.machine.unlink(path)
        return opened(path, **options)

    late.disk.open = open_late  # type: ignore[method-assign]
    late.journal.refresh()
    facets = late.committer.facets
    if facet == "agenda":
        assert facets.need_agenda().order.next_ready(9, None) == [job]
    else:
        assert facets.need_dedup().size == 1
    assert len(world.segments()) == 2


def test_a_reader_whose_end_is_gone_gets_an_error_and_not_the_later_log() -> None:
    world = World()
    process = world.process()
    process.enqueue(b"the reader knows this much")
    reader = world.reader()
    rotate(process)
    process.enqueue(b"lives")
    world.remove_oldest(1)
    with pytest.raises(SegmentGone, match="is gone"):
        list(reader.frames(reader.start()))


# -- room given back -------------------------------------------------------------------------------


def _open_files(path: Path) -> list[str]:
    targets: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    return [target.rpartition("/")[2] for target in targets if target.startswith(str(path))]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
async def test_no_removed_file_of_a_compacted_log_stays_open(tmp_path: Path) -> None:
    async with TaskLog.open(
        tmp_path, segment_bytes=SEGMENT_BYTES_MIN, durability="os", keep="1h"
    ) as log:
        jobs = []
        for _ in range(40):
            jobs.append(await log.put(b"." * 10_000))
            (delivery,) = await log.claim()
            await log.ack(delivery)
        await log.compact()  # by then upkeep has written the indexes
        for job in jobs:
            assert (await log.get(job)).state is State.SUCCEEDED
        assert any(name.endswith(".idx") for name in _open_files(tmp_path)), "none is looked into"
        assert [segment for segment in (await log.compact(keep=0)).segments if segment.removed]
        assert [name for name in _open_files(tmp_path) if name.endswith("(deleted)")] == []
