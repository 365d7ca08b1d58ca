"""Index files are never needed and never trusted: a wrong one is made anew."""

from __future__ import annotations

import random
import struct
from typing import Final

import pytest

from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.requests import Op
from taskq.log.segments.index import index_name
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.job_history import job_view
from tests.effort import grows, some
from tests.log.segments.plainscan import Scan
from tests.log.segments.test_index import check_lookups, index_files, random_log, save
from tests.log.world import PATH, PLAIN, Process, World, cuts

pytestmark = grows

_FIRST: Final = f"{PATH}/log/{index_name(1)}"


@pytest.fixture(scope="module")
def saved() -> dict[str, bytes]:
    """Return the files of a log of some segments with their indexes."""
    process = random_log(3)
    save(process)
    process.close()
    return {path: process.world.machine.content(path) for path in process.world.machine.paths()}


def _revive(files: dict[str, bytes]) -> World:
    world = World()
    world.process().close()
    for path, data in files.items():
        world.machine.put(path, data)
    return world


def _check_and_repair(world: World, whole: bytes) -> None:
    """Lookups are right, and upkeep brings the very same file back."""
    check_lookups(world.reader())
    process = world.process()
    save(process)
    assert world.machine.content(_FIRST) == whole
    assert not process.journal.indexes.missing()
    process.close()


def test_every_sealed_segment_gets_a_file_beside_it(saved: dict[str, bytes]) -> None:
    segments = sorted(path for path in saved if path.endswith(".log"))
    assert len(segments) > 2
    files = sorted(path for path in saved if ".idx" in path)
    assert files == [path.replace(".log", ".idx") for path in segments[:-1]]


@pytest.mark.parametrize("seed", range(some(2, 12)))
def test_a_file_with_a_flipped_bit_is_written_anew(saved: dict[str, bytes], seed: int) -> None:
    """Wherever the bit is: what is asked before is answered from the segment itself."""
    data = bytearray(saved[_FIRST])
    data[random.Random(seed).randrange(len(data))] ^= 1 << seed % 8
    world = _revive(saved | {_FIRST: bytes(data)})
    check_lookups(world.reader())
    process = world.process()
    check_lookups(process.journal)
    following = process.journal.files.lsns[1]
    about = Scan.of(process.journal).about
    for job in about:
        alike = (lsns for other, lsns in about.items() if (other - job) % 2**32 == 0)
        places = process.journal.indexes._places(1, job)
        assert len(places) == sum(lsn < following for lsns in alike for lsn in lsns)
    save(process)
    assert world.machine.content(_FIRST) == saved[_FIRST]
    check_lookups(process.journal)


@pytest.mark.parametrize("size", [0, 111, 5_000, -1])
def test_a_short_file_is_written_anew(saved: dict[str, bytes], size: int) -> None:
    _check_and_repair(_revive(saved | {_FIRST: saved[_FIRST][:size]}), saved[_FIRST])


def test_the_index_of_another_log_is_written_anew(saved: dict[str, bytes]) -> None:
    other = random_log(3)
    save(other)
    foreign = other.world.machine.content(_FIRST)
    assert len(foreign) == len(saved[_FIRST])
    _check_and_repair(_revive(saved | {_FIRST: foreign}), saved[_FIRST])


def test_the_index_of_a_segment_that_was_longer_or_ended_otherwise_is_written_anew() -> None:
    """A backup that was put together of two states of a log."""
    files = []
    for body in (b"x" * 300, b"y" * 300, b"z" * 700):
        process = World().process()
        files.append(_rotated(process, body))
    ends = {data[PATH + "/taskq.json"] for data in files}
    assert len(ends) == 3
    identity = files[0][f"{PATH}/taskq.json"]
    log_id = files[0][_FIRST][8:24]
    for other in files[1:]:
        index = bytearray(other[_FIRST])
        index[8:24] = log_id
        index[108:112] = struct.pack("<I", codec.crc32(bytes(index[:108])))
        world = _revive(files[0] | {_FIRST: bytes(index), f"{PATH}/taskq.json": identity})
        _check_and_repair(world, files[0][_FIRST])


def _rotated(process: Process, body: bytes) -> dict[str, bytes]:
    while process.journal.offset < SEGMENT_BYTES_MIN:
        process.enqueue(body)
    process.enqueue(b"next")
    save(process)
    machine = process.world.machine
    return {path: machine.content(path) for path in machine.paths()}


def test_a_file_that_cannot_be_read_is_made_do_without(saved: dict[str, bytes]) -> None:
    world = _revive(saved)
    reader = world.reader()
    check_lookups(reader)
    world.machine.unreadable = {(_FIRST, number) for number in range(1_000)}
    check_lookups(world.reader())
    reader.indexes._blocks.clear()
    check_lookups(reader)


@pytest.mark.parametrize("seed", range(some(2, 10)))
def test_what_rots_in_a_segment_after_it_was_indexed_is_told_by_nobody(
    saved: dict[str, bytes], seed: int
) -> None:
    chance = random.Random(seed)
    world = _revive(saved)
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
    world = _revive({path: data for path, data in saved.items() if path != _FIRST})
    segment = _FIRST.replace(".idx", ".log")
    world.machine.corrupt(segment, 5_000, b"\xff\xff")
    process = world.process()
    save(process)
    assert _FIRST not in world.machine.paths()
    assert not process.journal.indexes.missing()
    for job in range(1, process.journal.next_lsn, 11):
        job_view(process.journal, job, 0)


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_writing_costs_nothing(
    saved: dict[str, bytes], *, power: bool
) -> None:
    rest = {path: data for path, data in saved.items() if not path.endswith(".idx")}
    for cut in cuts(power=power):
        world = _revive(rest)
        world.machine.random.seed(cut.step)
        process = world.process()
        with cut.during(world, process):
            save(process)
        reader = world.reader()
        for path in index_files(world):
            if path.endswith(".idx"):
                assert world.machine.content(path) == saved[path]
        assert job_view(reader, 1, 0) == job_view(_revive(rest).reader(), 1, 0)
        save(world.process())
        segments = world.reader().files.lsns
        assert index_files(world) == [f"{PATH}/log/{index_name(lsn)}" for lsn in segments[:-1]]
    assert cut.step > 10


def test_processes_that_write_the_same_index_at_a_time_do_not_harm_it(
    saved: dict[str, bytes],
) -> None:
    rest = {path: data for path, data in saved.items() if not path.endswith(".idx")}
    world = _revive(rest)
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


def test_lookups_between_the_steps_of_indexing_are_right(saved: dict[str, bytes]) -> None:
    rest = {path: data for path, data in saved.items() if not path.endswith(".idx")}
    process = _revive(rest).process()
    indexes = process.journal.indexes
    expected = [entry.lsn for entry in indexes.about(200)]
    indexes.forget()
    steps = 0
    for steps, _ in enumerate(indexes.save_steps(1)):
        if steps % 3 == 1:
            assert [entry.lsn for entry in indexes.about(200)] == expected
    assert steps > 3
    assert process.world.machine.content(_FIRST) == saved[_FIRST]


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
    world = _revive(saved)
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


def test_the_file_is_as_its_format_says(saved: dict[str, bytes]) -> None:
    data = saved[_FIRST]
    segment = saved[_FIRST.replace(".idx", ".log")]
    following = sorted(path for path in saved if path.endswith(".log"))[1]
    assert data[:24] == b"taskqidx" + segment[32:48]
    first, next_lsn, size = struct.unpack_from("<3Q", data, 24)
    assert (first, size) == (1, len(segment))
    assert next_lsn == int(following.removesuffix(".log")[-20:])
    pairs, entries = struct.unpack_from("<2Q", data, 64)
    clocks, tail_crc, crc = struct.unpack_from("<3I", data, 100)
    assert crc == codec.crc32(data[:108])
    start, blocks = 112, list[bytes]()
    for count in (pairs, entries, entries, entries):
        numbers = struct.unpack_from(f"<{count}Q", data, start)
        assert list(numbers) == sorted(numbers)
        column = data[start : start + 8 * count]
        blocks += [column[at : at + 4_096] for at in range(0, len(column), 4_096)]
        start += len(column)
    assert tail_crc == codec.crc32(data[start:])
    directory = b"".join(block[:8] for block in blocks)
    directory += b"".join(struct.pack("<I", codec.crc32(block)) for block in blocks)
    assert data[start + 16 * clocks :] == directory


@pytest.mark.parametrize("place", [64, 72, 100])
@pytest.mark.parametrize("count", [0, 1, 2**31])
def test_a_count_that_does_not_fit_is_not_taken(
    saved: dict[str, bytes], place: int, count: int
) -> None:
    data = bytearray(saved[_FIRST])
    data[place : place + 4] = struct.pack("<I", count)
    data[108:112] = struct.pack("<I", codec.crc32(bytes(data[:108])))
    _check_and_repair(_revive(saved | {_FIRST: bytes(data)}), saved[_FIRST])


def test_the_index_of_a_segment_that_is_gone_is_open_in_no_process() -> None:
    process = random_log(3)
    save(process)
    other = process.world.process()
    lsns = list(process.journal.files.lsns)
    process.world.is_whole = False
    for item in (process, other):
        for lsn in lsns[:-1]:
            item.journal.indexes._entry_at(lsn, lsn)
        assert set(item.journal.indexes._open) == set(lsns[:-1])
    process.journal.files.remove(lsns[0])
    other.journal.files.refresh()
    for item in (process, other):
        assert set(item.journal.indexes._open) == set(lsns[1:-1])
        with pytest.raises(SegmentGone):
            item.journal.indexes._entry_at(lsns[0], 1)


def test_what_was_read_of_indexes_is_forgotten_with_their_files(saved: dict[str, bytes]) -> None:
    """Frames were moved: no lookup goes to a file that was open before."""
    process = _revive(saved).process()
    indexes = process.journal.indexes
    indexes._entry_at(1, 1)
    before, descriptors = dict(indexes._open), process.disk.open_files
    indexes.forget()
    assert process.disk.open_files == descriptors - len(before) < descriptors
    indexes._entry_at(1, 1)
    assert indexes._open[1] is not before[1]
