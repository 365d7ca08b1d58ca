"""Lookups through the indexes find what a walk over the whole log finds, however they were made."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.errors import LogDamaged
from taskq.core.kinds import OF_JOBS
from taskq.core.model import Durability, State
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.format.frames import Gap
from taskq.log.format.record import Record, places
from taskq.log.journal.journal import Journal
from taskq.log.requests import Op, Settlement
from taskq.log.segments.index import index_name
from taskq.log.state.job_history import Story, find_end, job_view, records
from tests.effort import grows, some
from tests.log.mix import Mix
from tests.log.simulation import Simulation
from tests.log.world import PATH, PLAIN, SMALL, Process, World, cuts, revived

pytestmark = grows


@dataclass(slots=True)
class Scan:
    """Results of a walk over the whole log.

    Attributes:
        records: by lsn.
        about: records of each job other than its own, in their order.
        births: jobs that an ENQUEUED record brought into being.
        steps: (lsn, step) of the clock.
        times: (first lsn, time) of each frame.
    """

    records: dict[int, bytes] = field(default_factory=dict)
    about: dict[int, list[int]] = field(default_factory=dict)
    births: set[int] = field(default_factory=set)
    steps: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, journal: Journal) -> Scan:
        scan = cls()
        for _, item in journal.frames(journal.start()):
            assert not isinstance(item, Gap)
            scan.times.append((item.header.first_lsn, item.header.time_ns))
            for lsn, at, length in places(item):
                scan._add(lsn, item.data[at : at + length])
        return scan

    def _add(self, lsn: int, data: bytes) -> None:
        record = Record(data, lsn, 0, 0)
        self.records[lsn] = data
        if record.type == Kind.ENQUEUED:
            self.births.add(lsn)
        elif record.type in OF_JOBS:
            self.about.setdefault(record.job, []).append(lsn)
        elif record.type == Kind.CLOCK:
            self.steps.append((lsn, record.step_ns))


class Busy(Mix):
    """A history of much work, some of it of many jobs alike; nobody compacts."""

    ACTS: ClassVar = {"ask": 60, "many": 3, "pass_time": 20, "step_clock": 2, "restart": 1}

    def many(self) -> None:
        process, draw = self.chance.choice(self.processes), self.chance
        body = bytes(draw.randrange(90))
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, body, None)] * draw.choice((2, 40, 300)))
        ends = [Settlement(Kind.SUCCEEDED, delivery, body) for delivery in process.claim(300)]
        process.ask(Op.SETTLE, ends[: draw.randrange(len(ends) + 1)])

    def write(self, segments: int) -> Process:
        """Let all work until this number of segments is full; returns a process."""
        while len(self.world.segments()) <= segments:
            self.act()
        return self.processes[0]


_FAR: Final = 2**40


def save(process: Process) -> None:
    process.journal.refresh()
    for _ in process.journal.indexes.upkeep_steps():
        pass


def index_files(world: World) -> list[str]:
    return [path for path in world.machine.paths() if ".idx" in path]


def check_lookups(journal: Journal) -> None:
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
    for lsn in (0, *(lsn for lsn, _ in scan.steps), journal.next_lsn):
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
    process = Busy(seed, SMALL).write(3)
    save(process)
    reader = process.world.reader()
    assert len(index_files(process.world)) == len(reader.files.lsns) - 1
    check_lookups(reader)
    check_times(reader)
    check_cursors(reader)


@given(st.integers(0, 2**32))
@settings(max_examples=some(2, 4), deadline=None)
def test_lookups_while_the_log_grows_find_what_a_plain_scan_finds(seed: int) -> None:
    busy = Busy(seed, SMALL)
    for turn in range(3):
        for _ in range(20):
            busy.act()
        for process in (busy.processes[0], busy.observer):
            process.journal.refresh()
            check_lookups(process.journal)
        if turn % 2:
            save(busy.observer)


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


_FIRST: Final = f"{PATH}/log/{index_name(1)}"


@pytest.fixture(scope="module")
def saved() -> dict[str, bytes]:
    process = Busy(3, SMALL).write(2)
    save(process)
    process.close()
    return process.world.files()


def _flipped(index: bytes, at: int) -> bytes:
    data = bytearray(index)
    data[at] ^= 1
    return bytes(data)


def _of_another_log(_: bytes) -> bytes:
    other = Busy(3, SMALL).write(2)
    save(other)
    return other.world.machine.content(_FIRST)


def _with_number(index: bytes, place: int, number: int) -> bytes:
    """Return the file with another number in its header, and a CRC that fits."""
    head = bytearray(index[:108])
    struct.pack_into("<I", head, place, number)
    return bytes(head) + struct.pack("<I", codec.crc32(head)) + index[112:]


#: name -> an index that is wrong
HARMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "has a flipped bit in its header": lambda index: _flipped(index, 30),
    "has a flipped bit in a pair": lambda index: _flipped(index, 150),
    "has a flipped bit in a place": lambda index: _flipped(index, len(index) * 2 // 3),
    "has a flipped bit in its tail": lambda index: _flipped(index, -1),
    "is empty": lambda _: b"",
    "ends in its header": lambda index: index[:111],
    "ends in a block": lambda index: index[:5_000],
    "is short": lambda index: index[:-1],
    "is of another log": _of_another_log,
    "is of a longer segment": lambda index: _with_number(index, 40, 2**20),
    "is of a segment with another end": lambda index: _with_number(index, 96, 7),
    "counts too few pairs": lambda index: _with_number(index, 64, 1),
    "counts too many entries": lambda index: _with_number(index, 72, 2**31),
    "counts too many clocks": lambda index: _with_number(index, 100, 2**31),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_wrong_changes_no_answer_and_is_written_anew(
    saved: dict[str, bytes], harm: str
) -> None:
    world = revived(saved | {_FIRST: HARMS[harm](saved[_FIRST])})
    check_lookups(world.reader())
    process = world.process()
    check_lookups(process.journal)
    check_times(process.journal)
    save(process)
    assert world.machine.content(_FIRST) == saved[_FIRST]


def test_a_file_that_cannot_be_read_is_made_do_without(saved: dict[str, bytes]) -> None:
    world = revived(saved)
    reader = world.reader()
    check_lookups(reader)
    world.machine.unreadable = {(_FIRST, number) for number in range(1_000)}
    check_lookups(world.reader())
    reader.indexes._blocks.clear()
    check_lookups(reader)


@pytest.mark.parametrize("seed", range(some(2, 10)))
def test_damage_in_a_segment_after_it_was_indexed_is_not_noticed_by_readers(
    saved: dict[str, bytes], seed: int
) -> None:
    chance = random.Random(seed)
    world = revived(saved)
    scan = Scan.of(world.reader())
    path = _FIRST.replace(".idx", ".log")
    for _ in range(20):
        place = chance.randrange(64, len(saved[path]))
        world.machine.corrupt(path, place, chance.randbytes(chance.choice((1, 8))))
    reader = world.reader()
    lost = 0
    for lsn in range(1, 1_002):
        result = reader.indexes.find(lsn)
        assert result is None or result.record == scan.records[lsn]
        lost += result is None
    assert 0 < lost < 1_001
    for job in scan.about:
        for result in reader.indexes.about(job):
            assert result.record == scan.records[result.lsn]


def test_a_damaged_segment_gets_no_file(saved: dict[str, bytes]) -> None:
    world = revived({path: data for path, data in saved.items() if path != _FIRST})
    segment = _FIRST.replace(".idx", ".log")
    world.machine.corrupt(segment, 5_000, b"\xff\xff")
    process = world.process()
    save(process)
    assert _FIRST not in world.machine.paths()
    for job in range(1, process.journal.next_lsn, 11):
        job_view(process.journal, job, 0)


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_writing_costs_nothing(
    saved: dict[str, bytes], *, power: bool
) -> None:
    rest = {path: data for path, data in saved.items() if not path.endswith(".idx")}
    for cut in cuts(power=power):
        world = revived(rest)
        world.machine.random.seed(cut.step)
        process = world.process()
        with cut.during(world, process):
            save(process)
        reader = world.reader()
        for path in index_files(world):
            if path.endswith(".idx"):
                assert world.machine.content(path) == saved[path]
        assert job_view(reader, 1, 0) == job_view(revived(rest).reader(), 1, 0)
        save(world.process())
        segments = world.reader().files.lsns
        assert index_files(world) == [f"{PATH}/log/{index_name(lsn)}" for lsn in segments[:-1]]
    assert cut.step > 10


def test_processes_that_write_the_same_index_at_a_time_do_not_harm_it(
    saved: dict[str, bytes],
) -> None:
    rest = {path: data for path, data in saved.items() if not path.endswith(".idx")}
    world = revived(rest)
    writers = [world.process().journal.indexes.save_steps(1) for _ in range(3)]
    ended = 0
    while writers:
        for writer in list(writers):
            try:
                next(writer)
            except (StopIteration, FileNotFoundError):
                ended += 1
                writers.remove(writer)
    assert ended == 3
    assert index_files(world) == [_FIRST]
    assert world.machine.content(_FIRST) == saved[_FIRST]


def test_a_segment_is_indexed_in_small_steps() -> None:
    process = World().process(LogConfig(segment_bytes=1024 * 1024))
    while len(process.world.segments()) < 2:
        for _ in range(30):
            process.send(Op.ENQUEUE, (PLAIN, b"x" * 700, None))
        process.enqueue(b"y" * 20_000)
    indexes = process.journal.indexes
    steps = indexes.save_steps(1)
    next(steps)
    offset, sizes = 0, []
    while 1 in indexes._built:
        sizes.append(indexes._built[1].offset - offset)
        offset += sizes[-1]
        next(steps, None)
    assert offset > 1024 * 1024
    assert len(sizes) > 16
    assert max(sizes) < 64 * 1024 + 30_000


def test_files_of_segments_that_are_gone_are_removed(saved: dict[str, bytes]) -> None:
    world = revived(saved)
    world.machine.put(f"{PATH}/log/{index_name(99_999)}", b"index")
    world.machine.put(f"{PATH}/log/{index_name(99_999)}.0a1b2c3d.tmp", b"left over")
    process = world.process()
    save(process)
    assert set(index_files(world)) == {path for path in saved if path.endswith(".idx")}


def test_indexes_of_many_segments_are_not_all_open_at_a_time() -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(b"x" * 40_000) for _ in range(90)]
    for delivery in process.claim(3):
        process.settle(delivery)
    save(process)
    assert len(index_files(world)) > 40
    before = process.disk.open_files
    for job in (*jobs[:6], *jobs[-6:]):
        view = job_view(process.journal, job, 0)
        assert view is not None
        assert view.settled_ns > 0 if job in jobs[:3] else view.settled_ns == 0
    assert process.disk.open_files <= before + 32
    process.close()
    assert process.disk.open_files <= 3


def test_what_was_read_of_indexes_is_forgotten_with_their_files(saved: dict[str, bytes]) -> None:
    """Frames were moved: no lookup goes to a file that was open before."""
    process = revived(saved).process()
    indexes = process.journal.indexes
    indexes._entry_at(1, 1)
    before, descriptors = dict(indexes._open), process.disk.open_files
    indexes.forget()
    assert process.disk.open_files == descriptors - len(before) < descriptors
    indexes._entry_at(1, 1)
    assert indexes._open[1] is not before[1]


def test_a_record_that_does_not_read_back_is_never_one_of_them() -> None:
    process = World().process()
    first, second, third = [process.enqueue(b"%d" % number) for number in range(3)]
    agenda = process.catch_up().need_agenda()
    places = [agenda.location(job) for job in (first, second, third)]
    with pytest.raises(LogDamaged):
        process.journal.files.records(places, [first, third, third])  # its CRC has its own lsn


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_claim_takes_the_records_that_are_at_hand_and_reads_the_others(is_damaged: bool) -> None:
    world = World()
    process = world.process()
    process.catch_up().need_agenda()
    bodies = [b"payload %d." % number for number in range(20)]
    jobs = [process.enqueue(body) for body in bodies]
    recent = process.committer.operations.context.recent
    for job in jobs[5:15]:
        del recent.records[job]
    (segment,) = world.segments()
    if is_damaged:
        world.machine.corrupt(segment, world.machine.content(segment).index(b"payload 7."), b"x")
    given = [(delivery.job, delivery.payload) for delivery in process.claim(99)]
    wanted = list(zip(jobs, bodies, strict=True))
    if is_damaged:
        del wanted[7]
        assert [record.body for record in world.records()][-1] == b"its record is damaged"
    assert given == wanted
    assert not recent.records
