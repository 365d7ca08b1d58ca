"""Lookups through the indexes find what a walk over the whole log finds, however they were made."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.model import Durability, State
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.format.frames import Gap
from taskq.log.format.record import Record, places
from taskq.log.journal.journal import Journal
from taskq.log.segments.index import IndexBuilder
from taskq.log.state.job_history import Story, find_end, job_view, records
from tests.effort import grows, some
from tests.log.segments.plainscan import Scan, Writer
from tests.log.simulation import Simulation
from tests.log.world import PATH, Process, World

pytestmark = grows

_FAR: Final = 2**40


def save(process: Process) -> None:
    process.journal.refresh()
    for _ in process.journal.indexes.upkeep_steps():
        pass


def index_files(world: World) -> list[str]:
    return [path for path in world.machine.paths() if ".idx" in path]


def random_log(seed: int, frames: int = 40) -> Process:
    process = World(seed).process()
    Writer(process, seed).write(frames)
    return process


def check_lookups(journal: Journal) -> None:
    """Everything that can be asked, against a plain scan."""
    scan, indexes = Scan.of(journal), journal.indexes
    for lsn in sorted({*range(1, journal.next_lsn, 5), *(lsn for lsn, _ in scan.times)}):
        record = scan.records[lsn]
        result = indexes.find(lsn)
        assert result is not None
        assert (result.lsn, result.record) == (lsn, record)
        assert journal.files.unchecked_record(result.location) == record
    assert indexes.find(journal.next_lsn) is None
    others = range(1, journal.next_lsn, 5)
    for job in {*others, *scan.about, journal.next_lsn, _FAR + 20}:
        expected = [lsn for lsn in scan.about.get(job, ()) if lsn > job]
        if job in scan.births:
            expected = [job, *expected]
        elif job >= journal.files.lsns[0]:
            expected = []
        found_lsns = [entry.lsn for entry in indexes.about(job)]
        assert found_lsns == expected, job
    for lsn in (0, len(scan.records) // 2, journal.next_lsn):
        assert list(indexes.steps_after(lsn)) == [step for step in scan.steps if step[0] > lsn]


def check_times(journal: Journal) -> None:
    """The first frame of each time, and of those around it; clocks may have been set back."""
    times = Scan.of(journal).times
    for moment in {time_ns + more for _, time_ns in times[::3] for more in (-1, 0, 1)}:
        first = next((lsn for lsn, time_ns in times if time_ns >= moment), journal.next_lsn)
        assert journal.indexes.lsn_at(moment) == first
        cursor = journal.indexes.cursor_at_time(moment)
        items = [item for _, item in journal.frames(cursor) if not isinstance(item, Gap)]
        assert (items[0].header.first_lsn if items else journal.next_lsn) == first


def check_cursors(journal: Journal) -> None:
    for lsn in range(1, journal.next_lsn, 29):
        cursor = journal.indexes.cursor_at(lsn)
        item = next(item for _, item in journal.frames(cursor) if not isinstance(item, Gap))
        assert item.header.first_lsn <= lsn < item.header.next_lsn


@given(st.integers(0, 2**32))
@settings(max_examples=some(2, 5), deadline=None)
def test_lookups_in_files_find_what_a_plain_scan_finds(seed: int) -> None:
    process = random_log(seed)
    save(process)
    reader = process.world.reader()
    assert len(index_files(process.world)) == len(reader.files.lsns) - 1
    assert not reader.indexes.missing()
    check_lookups(reader)
    check_times(reader)
    check_cursors(reader)


@given(st.integers(0, 2**32))
@settings(max_examples=some(2, 4), deadline=None)
def test_lookups_while_the_log_grows_find_what_a_plain_scan_finds(seed: int) -> None:
    process = World(seed).process()
    other = process.world.process()
    writer = Writer(process, seed)
    for turn in range(4):
        writer.write(6)
        other.journal.refresh()
        check_lookups(process.journal)
        check_lookups(other.journal)
        if turn % 2:
            save(other)


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=some(5, 15), deadline=None)
def test_a_frame_that_is_indexed_in_steps_is_indexed_as_if_at_once(seed: int, records: int) -> None:
    journal = random_log(seed, frames=6).world.reader()
    whole, stepped = IndexBuilder(1), IndexBuilder(1)
    for number, (_, item) in enumerate(journal.frames(journal.start())):
        assert not isinstance(item, Gap)
        assert whole.feed(item)
        while not stepped.feed(item, records):
            assert stepped.offset == item.offset
            if number % 3 == 1:
                assert stepped.feed(item)
                break
        assert (stepped.offset, stepped.next_lsn) == (whole.offset, whole.next_lsn)
    assert list(whole.sorted_parts()) == list(stepped.sorted_parts())
    assert whole.lsns == stepped.lsns
    assert whole.times == stepped.times
    assert whole.places == stepped.places
    assert whole.clocks == stepped.clocks


def test_jobs_that_share_their_lower_bits_are_told_apart() -> None:
    process = World().process()
    low = process.enqueue(b"low")
    for job in (low, low + 2**32):
        lsn = process.journal.next_lsn
        process.append(codec.encode_job(Kind.PURGED, 0, 1, job, 7, None, lsn), 1)
    indexes = process.journal.indexes
    for step in range(2):
        assert [entry.lsn for entry in indexes.about(low)] == [low, low + 1]
        assert len(indexes._places(1, low)) == 1 + step
        indexes._built[1].sort()


def test_a_long_index_is_sorted_in_parts() -> None:
    """Claims and outcomes of jobs that end in another order than they began."""
    process = World().process(LogConfig(segment_bytes=64 * 1024 * 1024))
    builder = IndexBuilder(1)
    expected: list[int] = []
    for first in range(1, 40_001, 64):
        claimed = list(range(first, first + 64))
        jobs = (*claimed, *claimed[32:], *claimed[:32])
        records = [codec.encode_job(Kind.CLAIMED, 0, 1, job, 7, None, 0) for job in jobs]
        process.append(b"".join(records), len(records))
    for _, item in process.journal.frames(process.journal.start()):
        assert not isinstance(item, Gap)
        builder.feed(item)
        for lsn, at, _ in places(item):
            record = Record(item.data[at:], lsn, 0, 0)
            expected.append(record.job << 32 | item.end - item.header.body_size - item.at + at)
    parts = list(builder.sorted_parts())
    assert [pair for part in parts for pair in part] == sorted(expected)
    assert max(map(len, parts)) < len(expected) / 4
    for job in range(1, 40_001, 997):
        assert builder.job_places(job) == [
            pair % 2**32 for pair in sorted(expected) if pair >> 32 == job
        ]


# -- stories ---------------------------------------------------------------------------------------


def told_by_walking(journal: Journal, job: int, now_ns: int) -> JobView | None:
    story: Story | None = None
    for record in records(journal, journal.start()):
        if record.lsn == job and record.type == Kind.ENQUEUED:
            story = Story(journal.tag, record)
        elif story is not None and record.type == Kind.CLOCK:
            story.clock_stepped(record.lsn, record.step_ns)
        elif story is not None and record.job == job:
            story.add(record)
    if story is None or story.state is State.ABSENT:
        return None  # never there, or a dead letter that was purged
    return story.view(now_ns)


@pytest.mark.parametrize("seed", range(some(2, 8)))
@pytest.mark.parametrize("steps_of_clock", [False, True])
def test_the_story_of_every_job_is_that_of_a_walk(seed: int, *, steps_of_clock: bool) -> None:
    """Through crashes, power losses and steps of the clock; with files and without."""
    simulation = Simulation(1_000 + seed, Durability.FSYNC, steps_of_clock=steps_of_clock)
    simulation.run(60)
    world = simulation.world
    now_ns = world.clock.wall_ns()
    reader = world.reader()
    jobs = [record.lsn for record in world.records() if record.type == Kind.ENQUEUED]
    assert jobs
    expected = {job: told_by_walking(reader, job, now_ns) for job in (*jobs, jobs[-1] + 1, 2**40)}
    for _ in range(2):
        reader = world.reader()
        for job, view in expected.items():
            assert job_view(reader, job, now_ns) == view
        for job, view in expected.items():
            if view is not None:
                assert (find_end(reader, job) is not None) == (view.settled_ns > 0)
        save(world.process())


def test_a_salvaged_job_has_its_story() -> None:
    world = World()
    process = world.process()
    first = process.enqueue(b"first")
    jobs = [process.enqueue(b"x" * 9_000) for _ in range(3)]
    process.enqueue(b"last")
    path = f"{PATH}/log/{1:020d}.log"
    place = world.machine.content(path).index(b"x" * 9_000)
    # The header of the frame: what is in it is whole.
    world.machine.corrupt(path, place - 60, b"\xff")
    world.lose_power()
    process = world.process()
    assert process.catch_up().damage
    [delivery] = [delivery for delivery in process.claim(9) if delivery.job == jobs[0]]
    process.settle(delivery)
    for journal in (process.journal, world.reader()):
        for job in (first, *jobs):
            view = job_view(journal, job, world.clock.wall_ns())
            assert view is not None
            assert view.lsn == job
        view = job_view(journal, jobs[0], world.clock.wall_ns())
        assert view is not None
        assert [attempt.outcome for attempt in view.attempts] == ["succeeded"]
