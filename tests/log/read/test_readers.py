"""Readers: named places and permissions, what grows meanwhile, and one open reader."""

import os
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import LogDamaged, LogError, LogFailed, ReaderBusy
from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import Scanner
from taskq.log.journal.journal import Journal
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.follow import Onlooker
from taskq.log.read.reader import LogReader
from taskq.log.read.readers import NamedReader, ReaderPosition, read_position, reader_positions
from taskq.log.read.timetravel import Moment
from taskq.log.requests import Answer, ClaimRequest, EnqueueSpec, Op, Settlement
from taskq.log.segments.identity import Identity, LockMark, read_or_create_identity
from taskq.log.segments.segments import Extent, SegmentFiles
from taskq.log.state.facets import Facets
from taskq.log.store.store import open_store
from tests.log.world import PATH, PLAIN, Process, World
from tests.machine.crashable import CrashableDisk, Machine, PowerLost, ProcessKilled
from tests.processes.harness import removed

LOG_ID = uuid.UUID(int=7)
IDENTITY = Identity(LOG_ID, 1)
HERE = ReaderPosition(segment=1, lsn=42, offset=64, epoch=9, time_ns=5)
THERE = ReaderPosition(segment=40, lsn=2**63 - 1, offset=2**31, epoch=2**64 - 1, time_ns=2**62)


def take(path: Path, name: str = "billing", log_id: uuid.UUID = LOG_ID) -> NamedReader:
    return NamedReader.take(LocalDisk(), str(path), Identity(log_id, 1), name)


def found(path: Path, name: str = "billing", log_id: uuid.UUID = LOG_ID) -> ReaderPosition | None:
    return read_position(LocalDisk(), str(path), Identity(log_id, 1), name)


@given(steps=st.integers(1, 40), seed=st.integers(0, 2**32), power=st.booleans())
def test_a_crash_at_any_step_leaves_a_position_that_was_saved(
    steps: int, seed: int, power: bool
) -> None:
    """The last one or the one before it, and never a file that does not read back."""
    machine = Machine(seed)
    disk = CrashableDisk(machine)
    disk.make_directory(PATH)
    disk.sync_directory("/srv")
    disk.sync_directory("/")
    saved: list[ReaderPosition] = []
    machine.stop_at(machine.steps + steps, power=power)
    try:
        reader = NamedReader.take(disk, PATH, IDENTITY, "billing")
        for number in range(20):
            saved.append(HERE._replace(lsn=HERE.lsn + number))
            reader.save(saved[-1])
    except (ProcessKilled, PowerLost):
        pass
    machine.stop_at(None)
    position = read_position(CrashableDisk(machine), PATH, IDENTITY, "billing")
    if position is None:
        assert len(saved) <= 1
    else:
        assert position in saved[-2:]


def test_what_does_not_read_back_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    reader = take(tmp_path)
    reader.save(HERE)
    reader.release()
    file = tmp_path / "readers" / "billing.place"
    whole = file.read_bytes()
    other, bad = whole.replace(b"42", b"43"), whole[:20] + b"\xff" + whole[21:]
    for junk in (b"", b"\0" * len(whole), whole[:-1], bad, other, b"[" * 4_096, b"{}"):
        file.write_bytes(junk)
        with pytest.raises(LogDamaged, match=r"billing\.place.*does not read back.*seek\(\)"):
            found(tmp_path)
    # Files that were copied, or that a file system takes for the same ("Billing", "billing").
    file.write_bytes(whole)
    file.with_name("Billing.place").write_bytes(whole)
    for name, log_id in (("Billing", LOG_ID), ("billing", uuid.UUID(int=8))):
        with pytest.raises(LogDamaged):
            found(tmp_path, name, log_id)
    # A move writes a whole file again.
    file.write_bytes(bad)
    again = take(tmp_path)
    with pytest.raises(LogDamaged):
        again.load()
    again.save(THERE)
    again.release()
    assert found(tmp_path) == THERE


def test_checking_whether_a_reader_lives_does_not_lock_one_out(tmp_path: Path) -> None:
    """The question takes the lock for a moment: a reader that comes just then tries again."""
    take(tmp_path).release()
    asked = os.open(tmp_path / "readers" / "billing.lck", os.O_RDWR)
    disk = LocalDisk()
    assert disk.try_lock(asked)

    class Impatient(LocalDisk):
        tries = 0

        def try_lock(self, descriptor: int) -> bool:  # type: ignore[misc]
            Impatient.tries += 1
            if Impatient.tries == 3:
                disk.unlock(asked)
            return super().try_lock(descriptor)

    NamedReader.take(Impatient(), str(tmp_path), IDENTITY, "billing").release()
    os.close(asked)


def test_a_lock_file_that_was_forgotten_meanwhile_is_no_lock(tmp_path: Path) -> None:
    first = take(tmp_path)
    first.save(HERE)

    class Slow(LocalDisk):
        waited = False

        def try_lock(self, descriptor: int) -> bool:  # type: ignore[misc]
            if not Slow.waited:
                Slow.waited = True
                first.forget()
            return super().try_lock(descriptor)

    second = NamedReader.take(Slow(), str(tmp_path), IDENTITY, "billing")
    with pytest.raises(ReaderBusy):
        take(tmp_path)
    assert second.load() is None
    second.release()
    second.release()


def test_the_compactor_learns_of_every_reader_and_stumbles_over_no_junk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, path = LocalDisk(), str(tmp_path)
    assert reader_positions(disk, path) == {}
    log_id = read_or_create_identity(disk, path, LockMark(1, 1), 1).log_id
    assert reader_positions(disk, path) == {}
    for name, position in (("billing", HERE), ("audit", THERE)):
        reader = take(tmp_path, name, log_id)
        reader.save(position)
        reader.release()
    folder = tmp_path / "readers"
    (folder / "empty.place").touch()
    (folder / "junk.place").write_bytes(b"junk" * 5_000)
    (folder / ".hidden.place").touch()
    (folder / "README").write_text("no reader")
    (folder / "folder.place").mkdir()
    before = sorted(folder.iterdir())
    assert reader_positions(disk, path) == {"audit": (40, 2**63 - 1), "billing": (1, 42)}
    assert sorted(folder.iterdir()) == before
    assert caplog.text.count("does not read back") == 2


@pytest.fixture
def long_log(tmp_path: Path) -> str:
    """Return a job in each of five segments; what became of four of them stands in a sixth."""
    config = LogConfig(segment_bytes=SEGMENT_BYTES_MIN)
    store = open_store(str(tmp_path), config)
    port = store.thread_port
    for number in range(5):
        port.enqueue(EnqueueSpec("q", "t"), b"%d" % number + bytes(70_000)).result(10)
    deliveries = port.claim(ClaimRequest(4)).result(10)
    last = deliveries.pop()
    port.settle([Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]).result(10)
    port.settle([Settlement(Kind.DEAD, last, b"because")]).result(10)
    store.close()
    return str(tmp_path)


def test_a_list_of_the_newest_jobs_reads_no_more_segments_than_it_needs(
    long_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogReader.open(long_log) as reader:
        lsns = list(reader._journal.files.lsns)
        assert len(lsns) == 6
        read: set[int] = set()
        scanner = SegmentFiles.scanner

        def spied(files: SegmentFiles, lsn: int, *arguments: Any, **rest: Any) -> Scanner:
            read.add(lsn)
            return scanner(files, lsn, *arguments, **rest)

        monkeypatch.setattr(SegmentFiles, "scanner", spied)
        assert [job.payload[:1] for job in reader.jobs(None, None, None, 1)] == [b"4"]
        assert read == set(lsns[-2:])


@pytest.mark.parametrize("at", [None, Moment(lsn=4)])
def test_a_reader_starts_again_if_compaction_removes_a_segment(
    long_log: str, at: Moment | None
) -> None:
    seen: list[tuple[int, ...]] = []

    def read(journal: Journal, _: Facets, __: int) -> int:
        seen.append(tuple(journal.files.lsns))
        if len(seen) == 1:
            removed(Path(journal.files.file_path(journal.files.lsns[0])))
            journal.files.refresh()
        return len(seen)

    with LogReader.open(long_log, at=at) as reader:
        assert reader._read(read) == 2
    assert seen[1] == seen[0][1:]


def test_a_log_that_is_compacted_faster_than_it_is_read_says_so(long_log: str) -> None:
    def read(journal: Journal, _: Facets, __: int) -> None:
        Path(journal.files.file_path(journal.files.lsns[0])).unlink()

    with LogReader.open(long_log) as reader, pytest.raises(LogError, match="faster than they are"):
        reader._read(read)


HINT: Final = f"{PATH}/write.lock"


def config(durability: Durability) -> LogConfig:
    return LogConfig(durability=durability, segment_bytes=SEGMENT_BYTES_MIN)


def follow(process: Process, beyond: int | None) -> Future[Any]:
    """Ask, and leave the answer to ``told``."""
    future: Future[Any] = Future()
    process.commit([(Op.FOLLOW, None, future, beyond)])
    return future


def told(process: Process) -> list[Answer]:
    return process.committer.waiters.growth.take_answers()


def extent_of(process: Process) -> Extent:
    journal = process.journal
    return Extent(journal.segment, journal.offset, journal.next_lsn)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_only_what_is_on_disk_may_be_read(durability: Durability) -> None:
    """A stream that waits hears of a record once it is synced, and not before."""
    process = World().process(config(durability))
    process.enqueue()
    process.committer.sync()
    end = process.journal.next_lsn
    future = follow(process, end)
    assert told(process) == []
    process.send(Op.ENQUEUE, (PLAIN, b"x", None))
    assert process.journal.next_lsn > end
    assert told(process) == []
    assert process.committer.waiters.growth.lacking
    process.committer.sync()
    assert told(process) == [(None, future, extent_of(process))]
    assert not process.committer.waiters.growth


def test_a_stream_syncs_and_sees_frames_of_another_process() -> None:
    world = World()
    writer, reader = world.process(), world.process()
    writer.enqueue()
    reader.follow()
    reader.committer.sync()
    future = follow(reader, reader.journal.next_lsn)
    writer.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0))
    assert told(reader) == []
    reader.follow()
    assert reader.committer.waiters.growth.lacking
    reader.committer.sync()
    assert [answer[1:] for answer in told(reader)] == [(future, extent_of(reader))]
    world.lose_power()
    assert len(world.records()) >= 3


def test_a_stream_of_a_log_with_a_failed_fsync_raises() -> None:
    world = World()
    process = world.process()
    process.enqueue()
    end = process.journal.next_lsn
    future = follow(process, end)
    world.machine.fail_next_syncs()
    process.send(Op.ENQUEUE, (PLAIN, b"x", None))
    process.committer.sync()
    ((_, answered, error),) = told(process)
    assert answered is future
    assert isinstance(error, LogFailed)


def onlooker(world: World) -> Onlooker:
    return Onlooker(world.reader())


def onlooker_without_a_hint(world: World) -> Onlooker:
    show = world.machine.hide(HINT)
    looking = onlooker(world)
    show()
    return looking


def fill(process: Process) -> None:
    for _ in range(30):
        process.enqueue(b"x" * 5_000)


def test_an_onlooker_sees_the_log_grow_by_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    process = world.process()
    looking = onlooker(world)
    monkeypatch.setattr(looking, "_walk", lambda: pytest.fail("it looks at the files"))
    for _ in range(5):
        assert looking.look() == extent_of(process)
        process.enqueue(b"x" * 30_000)
    assert looking.look() == extent_of(process)
    looking.close()
    looking.close()


@pytest.mark.parametrize("hint", ["none", "junk", "of another boot"])
def test_an_onlooker_without_a_hint_to_believe_looks_at_the_files(hint: str) -> None:
    world = World()
    process = world.process()
    process.enqueue()
    if hint == "of another boot":
        world.machine.boot += 1
        process.disk._boot = world.machine.boot
    size = len(world.machine.content(HINT))
    looking = onlooker_without_a_hint(world) if hint == "none" else onlooker(world)
    fill(process)
    if hint == "junk":
        world.machine.corrupt(HINT, 0, bytes(size))
    assert looking.look() == extent_of(process)
    assert len(world.segments()) > 1


def test_an_onlooker_takes_a_frame_that_is_being_written_for_not_yet_written() -> None:
    world = World()
    process = world.process()
    process.enqueue(b"first")
    looking = onlooker_without_a_hint(world)
    end = looking.look()
    path = world.segments()[-1]
    whole = world.machine.content(path)
    process.enqueue(b"second" * 100)
    grown = world.machine.content(path)
    assert len(grown) > len(whole) + 500
    for size in range(len(whole) + 8, len(grown), 64):
        world.machine.put(path, grown[:size])
        assert looking.look() == end
    world.machine.put(path, grown)
    assert looking.look() == extent_of(process)
