"""Compaction: the oldest segment goes, and the log means what it meant."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskq import TaskLog
from taskq.core.errors import JobNotFound, TaskqError
from taskq.core.folds.steps import Form
from taskq.core.kinds import RETURNS
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.config import KEEP_PARTS, SEGMENT_BYTES_MIN, LogConfig, QueuePolicy
from taskq.log.decide.steps import NewStep
from taskq.log.format import frames as segment
from taskq.log.format.carried import encode_lines
from taskq.log.journal.lock import TailHint
from taskq.log.read.readers import NamedReader, ReaderPosition
from taskq.log.read.selection import letters
from taskq.log.read.timeline import steps_of
from taskq.log.requests import Cancel, EnqueueSpec, Op, Order, Rewrite
from taskq.log.state import snapshot
from taskq.log.state.job_history import read_job
from taskq.log.upkeep import retention
from taskq.log.upkeep import upkeep as errand
from taskq.log.upkeep.upkeep import LOOK_NS, Upkeep
from tests.effort import every, grows, some
from tests.log.mix import ACTS, CONFIGS, Mix
from tests.log.world import FILLER, PATH, Process, World, edit, fill_segment, keeping, meaning, tend
from tests.machine.crashable import PowerLost, ProcessKilled
from tests.processes.harness import eventually

HOUR, DAY = 3_600, 86_400
SMALL = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)
WEEK = keeping(keep_seconds=7 * DAY)
OTHER = EnqueueSpec("other", "mail.send", 2, 3)


def world_of(config: LogConfig) -> tuple[World, Process]:
    world = World(config=config)
    return world, world.process()


def grown(process: Process, segments: int = 4) -> list[int]:
    return [fill_segment(process) for _ in range(segments)]


def test_time_counts_from_the_end_of_a_job() -> None:
    world, process = world_of(WEEK)
    slow = process.enqueue(b"slow", Extras(due_ns=10 * DAY * SECOND_NS))
    quick = process.enqueue(b"quick")
    process.settle(process.claim()[0])
    grown(process, 2)
    world.clock.advance(11 * DAY)
    (delivery,) = process.claim()
    assert delivery.job == slow
    process.settle(delivery, body=b"done")
    tend(process)
    assert world.view(quick) is None
    view = world.job(slow)
    assert (view.state, view.result, view.payload) == (State.SUCCEEDED, b"done", b"slow")
    assert view.enqueued_ns < view.settled_ns - 10 * DAY * SECOND_NS
    assert [attempt.outcome for attempt in view.attempts] == ["succeeded"]
    grown(process, 1)
    world.clock.advance(8 * DAY)
    tend(process)
    assert world.view(slow) is None


@pytest.mark.parametrize("reboots", [False, True])
def test_a_clock_years_ahead_removes_no_ended_job_until_it_has_stood_for_an_hour(
    reboots: bool,
) -> None:
    world, process = world_of(keeping(keep_seconds=7 * DAY, keep_dead_seconds=7 * DAY))
    jobs = [process.enqueue(b"done"), process.enqueue(b"dead")]
    for delivery, kind in zip(process.claim(2), (Kind.SUCCEEDED, Kind.DEAD), strict=True):
        process.settle(delivery, kind)
    grown(process, 2)

    def removed(seconds: float) -> list[bool]:
        world.clock.advance(seconds)
        tend(process)
        return [world.view(job) is None for job in jobs]

    if reboots:
        process.close()
        world.everyone_is_gone(10 * 365 * DAY)
        process = world.process()
    else:
        world.clock.step(10 * 365 * DAY)
    assert removed(1) == removed(HOUR // 2) == [False, False]
    world.clock.step(-10 * 365 * DAY)
    assert removed(1) == removed(2 * HOUR) == [False, False]
    world.clock.step(10 * 365 * DAY)
    assert removed(1) == [False, False]
    assert removed(HOUR) == [True, True]


def test_a_segment_that_is_needed_for_the_most_part_stays_until_the_log_has_grown() -> None:
    world, process = world_of(SMALL)
    while len(world.segments()) < 6:
        process.enqueue(FILLER)
    upkeep = tend(process)
    first = len(world.records())
    tend(process, upkeep)
    assert len(world.records()) == first
    assert len(world.segments()) == 6


def test_what_is_carried_in_one_batch_is_bounded() -> None:
    """The writer lock is held for a few milliseconds at a time."""
    process = World(config=keeping(keep_segments=1)).process()
    for _ in range(800):
        process.send(Op.ENQUEUE, (OTHER, b"x", Extras(due_ns=DAY * SECOND_NS)))
    grown(process, 3)
    sizes: list[int] = []
    carry = process.committer.operations.table[Op.CARRY]

    def noted(batch: Any, items: list[Rewrite]) -> object:
        sizes.append(len(items))
        return carry(batch, items)

    process.committer.operations.table[Op.CARRY] = noted
    tend(process)
    assert sum(sizes) >= 800
    assert max(sizes) <= 256


def test_a_damaged_segment_and_all_after_it_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    world, process = world_of(SMALL)
    grown(process, 8)
    path = world.segments()[0]
    world.machine.corrupt(path, 3_000, b"#")
    before = world.segments()
    process.journal._forget_files()
    tend(process)
    assert world.segments() == before
    assert "taskq repair" in caplog.text


def mixed(world: World, process: Process) -> None:
    """Jobs in every state, with keys, then enough segments for the first to be due."""
    process.enqueue(b"later", Extras(due_ns=DAY * SECOND_NS, key=b"k1"))
    process.enqueue(b"ready", Extras(key=b"k2", window_ns=DAY * SECOND_NS), OTHER)
    process.enqueue(b"expires", Extras(due_ns=SECOND_NS, expires_ns=DAY * SECOND_NS))
    for kind in (Kind.DEAD, Kind.SUCCEEDED, Kind.RETRIED):
        process.enqueue(b"run", Extras(key=kind.name.encode(), window_ns=DAY * SECOND_NS))
        process.settle(process.claim()[0], kind, body=b"why")
    grown(process, 2)
    world.clock.step(3_600)
    grown(process, 4)


@grows
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.timeout(180)
def test_a_crash_at_any_step_loses_nothing_and_doubles_nothing(power: bool) -> None:
    step, survived = 0, 0
    while not survived:
        world = World(seed=step, config=SMALL)
        process = world.process()
        mixed(world, process)
        expected = meaning(process.catch_up(), world.clock.wall_ns())
        world.machine.stop_at(world.machine.steps + step, power=power)
        try:
            tend(process)
            survived = 1
        except (PowerLost, ProcessKilled):
            pass
        world.machine.stop_at(None)
        if power:
            world.lose_power(0)
        now_ns = world.clock.wall_ns()
        fresh = world.process()
        assert meaning(world.fold(), now_ns) == expected, f"step {step}"
        tend(fresh)
        assert len(world.segments()) <= 4
        assert meaning(world.fold(), now_ns) == expected, f"step {step}, then"
        step += 1 + step // some(1, 8)
    assert step > 100


def history(seed: int) -> int:
    mix = Mix(seed, CONFIGS[seed % 3], locked=seed % 5 == 0)
    mix.run(ACTS)
    assert mix.counts["folds that began with snapshots"]
    files = mix.observer.journal.files
    files.refresh()
    return len(files.numbered()) - len(files.lsns)


@grows
@pytest.mark.parametrize("start", range(1, 1 + some(2, 200), some(2, 8)))
def test_processes_that_compact_at_once_lose_nothing_and_bring_nothing_back(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a machine that does a step in a millisecond.
    monkeypatch.setattr(errand, "STEPS_MAX", 1)
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 512)
    seeds = range(start, start + some(2, 8))
    assert sum(history(seed) for seed in seeds) > len(seeds) // 2


def steps(process: Process) -> Iterator[int]:
    care = Upkeep(process.committer)
    process.catch_up()
    for number in range(100_000):
        requests = care.step()
        yield number
        if requests:
            process.commit(requests)
            process.sync()
            yield number
        elif not care.busy:
            return


def requeue(process: Process, job: int) -> None:
    process.catch_up()
    page = letters(process.committer.sight, [job])
    assert process.ask(Op.REQUEUE, page.items) == [None]


@grows
def test_a_job_that_ends_in_the_midst_of_it_is_kept_with_its_steps_and_result() -> None:
    """It was alive when the segment was looked through, and its time counts from its end."""
    number, more = 0, True
    while more:
        world = World(config=WEEK)
        process = world.process()
        job = process.enqueue(b"slow")
        (delivery,) = process.claim()
        process.ask(Op.STEP, NewStep(delivery, Form.STEP, "charge", 1, body=b"receipt"))
        first = world.segments()[0]
        fill_segment(process)
        world.clock.advance(8 * DAY)
        more = False
        for step in steps(process):
            if step == number and not more:
                process.settle(delivery, body=b"result")
                more = True
        if more:
            assert first not in world.segments()
            view = world.job(job)
            assert (view.state, view.result, view.payload) == (State.SUCCEEDED, b"result", b"slow")
            story = read_job(world.reader(), job)
            assert story is not None
            assert [step.title for step in steps_of(story.records)] == ["charge#1"]
        number += every(3)
    assert number > 5


def test_waiting_for_a_kept_job_returns_its_result_from_its_new_place() -> None:
    """The process that settled it remembers where; compaction wrote it elsewhere since."""
    config = keeping(keep_seconds=DAY, queues={"other": QueuePolicy(keep_seconds=30 * DAY)})
    world = World(config=config)
    process, other = world.process(), world.process()
    job = process.enqueue(b"x", spec=OTHER)
    process.settle(process.claim()[0], body=b"result")
    fill_segment(process)
    world.clock.advance(2 * DAY)
    first = world.segments()[0]
    tend(other)
    assert first not in world.segments()
    process.journal.files.refresh()
    assert process.ask(Op.OUTCOME, job).body == b"result"


def test_a_segment_that_is_read_in_the_midst_of_many_others_is_no_damaged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files that were not used for the longest time are closed, and their numbers used again."""
    monkeypatch.setattr(segment, "READ_SIZE", 4_096)
    world = World(config=keeping(keep_segments=60, keep_seconds=None))
    process = world.process()
    job = process.enqueue(b"retried", Extras(due_ns=DAY * SECOND_NS))
    world.clock.advance(DAY + 1)
    for _ in range(61):
        (delivery,) = process.claim()
        assert delivery.job == job
        process.settle(delivery, Kind.RETRIED, delay_ns=SECOND_NS, body=b"again")
        fill_segment(process)
        world.clock.advance(2)
    first = world.segments()[0]
    before = meaning(process.catch_up(), world.clock.wall_ns())
    for _ in steps(process):
        for lsn in process.journal.files.lsns:
            process.journal.files.descriptor(lsn)
    assert first not in world.segments()
    assert meaning(world.fold(), world.clock.wall_ns()) == before


def test_an_unexpected_error_in_upkeep_does_not_end_the_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(config=SMALL)
    process = world.process()
    for _ in range(6):
        fill_segment(process)

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("nobody thought of this")

    with monkeypatch.context() as patched:
        patched.setattr(retention, "due", broken)
        care = tend(process)
        future: Future[Any] = Future()
        care.order(Order(None, False, None, future))
        tend(process, care)
        process.sync()
    assert "nobody thought of this" in caplog.text
    with pytest.raises(TaskqError, match="nobody thought of this"):
        future.result(0)
    world.clock.advance(60)
    tend(process, care)
    assert len(world.segments()) <= 3


#: Acts on a job, one after the other; each claim ends as named.
STORIES = {
    "snoozed": ("released",),
    "snoozed again": ("released", "released"),
    "retried": ("retried",),
    "requeued": ("dead", "requeue"),
    "requeued and snoozed": ("retried", "dead", "requeue", "released"),
    "requeued twice": ("dead", "requeue", "retried", "dead", "requeue"),
    "edited": ("released", "edit"),
    "running after a requeue": ("dead", "requeue", "claim"),
    "running after a snooze": ("released", "claim"),
    "dead without words": ("retried", "wordless"),
    "cancelled": ("released", "cancel"),
}


def compacted(process: Process) -> None:
    """Have the segment that is the first one go, and some more."""
    first, segment = process.world.segments()[0], process.journal.segment
    while process.journal.segment == segment or len(process.world.segments()) < 4:
        assert process.ask(Op.CANCEL, process.enqueue(FILLER)) == Cancel.WITHDRAWN
    process.world.clock.advance(2 * HOUR)
    tend(process)
    assert first not in process.world.segments()


def act(process: Process, job: int, what: str) -> None:
    if what == "requeue":
        requeue(process, job)
    elif what == "edit":
        assert edit(process, job, priority=1)
    elif what == "cancel":
        assert process.ask(Op.CANCEL, job) == Cancel.WITHDRAWN
    else:
        process.world.clock.advance(2 * DAY)
        (delivery,) = process.claim()
        assert delivery.job == job
        if what != "claim":
            kind, body = (Kind.DEAD, b"") if what == "wordless" else (Kind[what.upper()], b"why")
            lines = encode_lines(f"log of {what}")
            cause = Cause.SNOOZE if kind is Kind.RELEASED else Cause.EXHAUSTED
            delay_ns = DAY * SECOND_NS if kind in RETURNS else 0
            process.settle(delivery, kind, body=body, cause=cause, delay_ns=delay_ns, lines=lines)


@pytest.mark.parametrize("carried", [0, 1, 2])
@pytest.mark.parametrize("story", STORIES)
def test_what_is_shown_of_a_job_stays_however_often_it_is_written_again(
    story: str, carried: int
) -> None:
    policies = {"other": QueuePolicy(keep_seconds=30 * DAY)}
    world = World(config=keeping(keep_seconds=HOUR, queues=policies))
    process = world.process()
    job = process.enqueue(b"x", spec=OTHER)
    for _ in range(carried):
        compacted(process)
    for what in STORIES[story]:
        act(process, job, what)
    before = world.job(job)
    assert before.attempts
    for _ in range(2):
        compacted(process)
        view = world.job(job)
        *early, last = (replace(attempt, stored_lines=b"") for attempt in before.attempts)
        lines = before.attempts[-1].stored_lines  # lines of earlier attempts go
        assert view == replace(before, attempts=(*early, replace(last, stored_lines=lines)))


def test_a_pin_is_logged_once_with_the_name_of_its_reader(caplog: pytest.LogCaptureFixture) -> None:
    process = World(config=keeping(keep_segments=1)).process()
    first = grown(process)[0]
    reader = NamedReader.take(process.disk, PATH, process.journal.identity, "billing")
    reader.load()
    reader.save(ReaderPosition(first, first))
    reader.release()
    upkeep = None
    for _ in range(4):
        process.world.clock.advance(60)
        upkeep = tend(process, upkeep)
    assert caplog.text.count("stays although it is due: the reader 'billing' has not") == 1


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
    # A segment for each part of an hour, an open one, and a vanishing one.
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


def test_a_follower_skips_a_last_segment_that_was_sealed_and_removed() -> None:
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


def rotate(process: Process) -> None:
    process.enqueue(bytes(SEGMENT_BYTES_MIN))
    for delivery in process.claim(9):
        process.settle(delivery)


def test_a_waiter_gets_the_end_of_a_job_whose_first_segment_was_removed() -> None:
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
        eventually(lambda: any(tmp_path.glob("log/*.idx")))  # upkeep writes them
        for job in jobs:
            assert (await log.get(job)).state is State.SUCCEEDED
        assert any(name.endswith(".idx") for name in _open_files(tmp_path)), "none is looked into"
        assert [segment for segment in (await log.compact(keep=0)).segments if segment.removed]
        assert [name for name in _open_files(tmp_path) if name.endswith("(deleted)")] == []
