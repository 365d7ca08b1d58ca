"""A backup is of one moment, despite writers, and becomes a log of its own."""

import contextlib
import errno
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner

from taskq import State, TaskQ
from taskq.cli.main import main
from taskq.core.errors import LogError
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader, verify
from taskq.log.read.readers import NamedReader, ReaderPosition, reader_positions
from taskq.log.requests import Op
from taskq.log.state.facets import Facets
from taskq.log.upkeep import backup
from taskq.log.upkeep.backup import back_up, restore, survey_damage
from tests.effort import every, grows, some
from tests.log.world import PATH, PLAIN, Process, World
from tests.processes.harness import Child

pytestmark = grows

#: The smallest that a log may have.
SEGMENT_BYTES = 64 * 1024

WRITER = """
import sys
from taskq import TaskQ
app = TaskQ(sys.argv[1], segment_bytes=65536, keep=0, upkeep=False)
while True:
    kept = [app.enqueue_by_name_sync("keep", "x" * 200).id for _ in range(8)]
    for _ in range(8):
        app.enqueue_by_name_sync("drop", "y" * 3000).cancel_sync()
    print(*kept, flush=True)
"""
COMPACTOR = """
import sys
from taskq import TaskQ
app = TaskQ(sys.argv[1], segment_bytes=65536, keep=0, upkeep=False)
while True:
    if app.compact_sync(keep=0).segments:
        print("gone", flush=True)
"""


def run(*words: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def stands(path: Path | str) -> tuple[dict[str, State], int, int]:
    """(state of each job, end, epoch) of a log that verifies clean."""
    with LogReader.open(str(path)) as reader:
        report = reader.verify()
        assert not report.damage
        assert not report.torn_bytes
        jobs = {view.job_id: view.state for view in reader.jobs(None, None, None, 10**6)}
        return jobs, reader.journal.next_lsn, reader.journal.epoch


def test_a_backup_beside_writers_and_a_compactor_holds_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """Three processes write, one compacts; what is restored elsewhere verifies clean."""
    data, target, again = (tmp_path / name for name in ("data", "backup", "again"))
    TaskQ(data, segment_bytes=SEGMENT_BYTES).store().close()
    acknowledged: set[str] = set()
    reports = []
    with contextlib.ExitStack() as stack:
        *writers, compactor = (
            stack.enter_context(Child(sys.executable, "-c", program, data))
            for program in (WRITER, WRITER, WRITER, COMPACTOR)
        )
        for _ in range(2):
            assert compactor.line() == "gone"
            for writer in writers:
                for _ in range(3):
                    acknowledged.update(writer.line().split())
            before = set(acknowledged)
            reports.append(back_up(str(data), str(target)))
            jobs, next_lsn, epoch = stands(target)
            assert {jobs.get(entry) for entry in before} == {State.READY}
            assert next_lsn == reports[-1].next_lsn
        assert len(before) == 2 * 3 * 3 * 8
    report = restore(str(target), str(again))
    restored, restored_lsn, restored_epoch = stands(again)
    assert restored == jobs
    assert restored_epoch != epoch
    assert restored_lsn == report.next_lsn
    with TaskQ(again) as app:
        new = app.enqueue_by_name_sync("keep", "z")
    assert int(new.id.partition("-")[2]) >= restored_lsn
    assert new.id in stands(again)[0]


def test_a_log_restored_with_an_empty_last_segment_goes_on_at_its_end(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    with TaskQ(data) as app:
        app.enqueue_by_name_sync("keep")
    with LogReader.open(str(data)) as reader:
        journal = reader.journal
        journal.files.create(journal.next_lsn, journal.epoch, 0, codec.NO_LINK)
    report = restore(str(data), str(again))
    assert stands(again)[1] == report.next_lsn


def test_records_compacted_after_the_copied_end_are_no_gap_in_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    opened = 0
    with TaskQ(data, segment_bytes=SEGMENT_BYTES, keep=0, upkeep=False) as app:
        kept = {app.enqueue_by_name_sync("keep", "k").id}
        for _ in range(90):
            app.enqueue_by_name_sync("drop", "y" * 3_000).cancel_sync()
        kept |= {app.enqueue_by_name_sync("keep", "y" * 3_000).id for _ in range(50)}
        genuine = LogReader.open

        def open_and_compact(path: str) -> LogReader:
            nonlocal opened
            reader = genuine(path)
            opened += 1
            if opened == 2:  # the first one looks whose backup it is
                assert app.compact_sync(keep=0).segments
            return reader

        monkeypatch.setattr(LogReader, "open", open_and_compact)
        back_up(str(data), str(target))
        monkeypatch.undo()
    assert stands(target)[0] == dict.fromkeys(kept, State.READY)


def test_nobody_writes_to_a_backup_and_read_commands_open_it(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "data") as app:
        job = app.enqueue_by_name_sync("keep", "x")
    run("backup", "-d", app.data_dir, tmp_path / "backup")
    assert job.id in run("ls", tmp_path / "backup").stdout
    with pytest.raises(LogError, match=r"is a backup, and nobody writes to it.*restore"):
        TaskQ(tmp_path / "backup").store()
    assert run("restore", tmp_path / "backup", "-d", tmp_path / "again").stdout.count("again") == 2
    with TaskQ(tmp_path / "again") as app:
        app.enqueue_by_name_sync("keep", "x")


def test_a_backup_goes_nowhere_but_to_its_place(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for path in (data, other):
        TaskQ(path).store().close()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.txt").write_text("x")
    back_up(str(other), str(tmp_path / "backup"))
    for target, item in (
        (other, "is a task log and no backup"),
        (tmp_path / "backup", "is the backup of another log"),
        (tmp_path / "thesis", "holds what is no backup"),
        (data / "backup", "lie within each other"),
    ):
        with pytest.raises(LogError, match=item):
            back_up(str(data), str(target))
    with pytest.raises(LogError, match="lie within each other"):
        restore(str(data), str(data / "new"))
    with pytest.raises(LogError, match="is not empty"):
        restore(str(data), str(other))
    assert (tmp_path / "thesis" / "one.txt").read_text() == "x"


def test_a_log_that_lacks_segments_leaves_the_older_backup_alone(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "data", segment_bytes=SEGMENT_BYTES) as app:
        for _ in range(8):
            app.enqueue_by_name_sync("keep", "x" * 30_000)
    back_up(str(app.data_dir), str(tmp_path / "backup"))
    min((app.data_dir / "log").glob("*.log")).unlink()
    with pytest.raises(LogError, match="An older backup is left as it is"):
        back_up(str(app.data_dir), str(tmp_path / "backup"))
    assert len(stands(tmp_path / "backup")[0]) == 8


#: Operations that need room on the disk.
GROWING = frozenset({"open", "write", "truncate", "make_directory"})


class Cut:
    """The moment from which the disk refuses operations: all, or writes alone."""

    def __init__(self, left: int, *, full: bool) -> None:
        self.left, self.full = left, full

    def step(self, operation: str) -> bool:
        if self.full and operation not in GROWING:
            return False
        self.left -= 1
        return self.left < 0

    def check(self, operation: str) -> None:
        if self.step(operation):
            self.refuse()

    def refuse(self) -> None:
        number = errno.ENOSPC if self.full else errno.EIO
        raise OSError(number, os.strerror(number))


def cut_disk(cut: Cut) -> type[LocalDisk]:
    class CutDisk(LocalDisk):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
            if create:
                cut.check("open")
            return super().open(path, create=create, write=write)

        def write(self, descriptor: int, data: bytes, offset: int) -> int:  # type: ignore[misc]
            if cut.step("write"):
                super().write(descriptor, data[: len(data) // 2], offset)
                cut.refuse()
            return super().write(descriptor, data, offset)

    def cutting(name: str) -> Any:
        whole = getattr(LocalDisk, name)

        def act(self: LocalDisk, *values: Any) -> Any:
            cut.check(name)
            return whole(self, *values)

        return act

    for name in ("truncate", "sync", "sync_directory", "rename", "remove", "make_directory"):
        setattr(CutDisk, name, cutting(name))
    return CutDisk


class Stands(NamedTuple):
    jobs: dict[str, int]
    sources: dict[str, object]
    readers: dict[str, tuple[int, int]]


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def shape(path: Path) -> Stands:
    with LogReader.open(str(path)) as reader:
        report = reader.verify()
        assert (report.damage, report.torn_bytes) == ((), 0)
        jobs = {view.job_id: int(view.state) for view in reader.jobs(None, None, None, 10**6)}
        sources = {source.name: source.position for source in reader.sources()}
    return Stands(jobs, sources, reader_positions(LocalDisk(), str(path)))


def read_up_to(path: Path, lsn: int) -> None:
    with LogReader.open(str(path)) as reader:
        identity = reader.journal.identity
    named = NamedReader.take(LocalDisk(), str(path), identity, "billing")
    named.load()
    named.save(ReaderPosition(1, lsn))
    named.release()


class Case(NamedTuple):
    data: Path
    first: Path
    old: Stands
    new: Stands


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A log, a backup of it from before jobs were ingested, and what stands in it and now."""
    tmp_path = tmp_path_factory.mktemp("case")
    data, first = tmp_path / "data", tmp_path / "first"
    with TaskQ(data, segment_bytes=65_536, upkeep=False) as app:
        handles = [app.enqueue_by_name_sync("keep", "x" * 30_000) for _ in range(4)]
        app.enqueue_by_name_sync("keep", "x" * (2 << 20))
        read_up_to(data, 2)
        app.ingest_sync("bulk", [], 0)
        back_up(str(data), str(first))
        app.ingest_sync("bulk", [app.call_by_name("keep", "x")] * 500, 500)
        for handle in handles:
            handle.cancel_sync()
        for _ in range(4):
            app.enqueue_by_name_sync("keep", "y" * 30_000)
        app.enqueue_by_name_sync("keep", "y" * (3 << 20))
        read_up_to(data, int(app.enqueue_by_name_sync("keep", "z").id.partition("-")[2]))
        assert app.compact_sync(keep=0).freed > 100_000
    restore(str(first), str(tmp_path / "old"))
    back_up(str(data), str(tmp_path / "second"))
    restore(str(tmp_path / "second"), str(tmp_path / "new"))
    case = Case(data, first, shape(tmp_path / "old"), shape(tmp_path / "new"))
    assert (case.old.sources, case.new.sources) == ({"bulk": 0}, {"bulk": 500})
    assert len(case.old.jobs) == 5
    assert len(case.new.jobs) == 507
    assert case.old.readers != case.new.readers
    return case


def ends_early(case: Case, target: Path, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patched:
        patched.setattr(backup, "LocalDisk", cut_disk(cut))
        try:
            back_up(str(case.data), str(target))
        except LogError:
            return True
    return False


@grows
@pytest.mark.parametrize(
    ("is_first", "full", "stride"), [(False, False, 23), (False, True, 23), (True, False, 73)]
)
def test_a_backup_that_is_cut_anywhere_leaves_the_older_one_or_is_whole(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *,
    is_first: bool, full: bool, stride: int,
) -> None:  # fmt: skip
    """With jobs ingested in between, a reader that went on, and segments that went."""
    step, is_cut, seen = 0, True, []
    target, again = tmp_path / "backup", tmp_path / "again"
    while is_cut:
        if not is_first:
            shutil.copytree(case.first, target)
        is_cut = ends_early(case, target, Cut(step, full=full), monkeypatch)
        try:
            restore(str(target), str(again))
        except LogError:
            assert is_first
            assert is_cut
        else:
            seen.append(shape(again))
            assert seen[-1] == case.new or (seen[-1] == case.old and not is_first), step
            shutil.rmtree(again)
        back_up(str(case.data), str(target))
        assert names(target) == names(case.first)
        restore(str(target), str(again))
        assert shape(again) == case.new, f"cut at operation {step}, and then whole"
        for path in (again, target):
            shutil.rmtree(path)
        step += every(stride)
    assert seen[-1] == case.new
    assert is_first or case.old in seen


_FIRST: Final = f"{PATH}/log/00000000000000000001.log"
_BODY: Final = codec.FRAME_HEADER_SIZE


def _group(process: Process, count: int, extras: Extras | None = None) -> list[int]:
    items = [(PLAIN, b"payload %d" % number, extras) for number in range(count)]
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return jobs


def _written(seed: int = 0) -> tuple[World, list[list[int]]]:
    """Groups of jobs in two segments; of the first group one succeeded, one is to be retried."""
    world = World(seed)
    process = world.process()
    groups = [_group(process, 4) for _ in range(3)]
    first, second = process.claim(2)
    process.settle(first, body=b"result")
    process.settle(second, Kind.RETRIED, body=b"again", delay_ns=60 * SECOND_NS)
    process.enqueue(bytes(70_000))
    groups.append(_group(process, 3, Extras(due_ns=3_600 * SECOND_NS)))
    process.close()
    return world, groups


def _flip(world: World, offset: int, segment: int = 0) -> None:
    path = world.segments()[segment]
    byte = world.machine.content(path)[offset]
    world.machine.corrupt(path, offset, bytes((byte ^ 0x40,)))


def _in_record(world: World, frame: Frame, number: int) -> int:
    body = frame.data[frame.at : frame.at + frame.header.body_size]
    at = -1
    for _ in range(number + 1):
        at = body.index(b"payload", at + 1)
    return frame.offset + _BODY + at


def _one_payload(world: World) -> None:
    _flip(world, _in_record(world, world.frames()[1], 2))


def _picture(world: World) -> Any:
    facets = Facets(world.reader())
    agenda = facets.need_agenda()
    agenda.promote(world.clock.wall_ns(), 2**62)
    states = [
        (job, agenda.table.state(job), agenda.attempt(job), world.reader().files.record(place, job))
        for job, place in [
            (chunk.ids[index], chunk.locations[index]) for chunk, index in agenda.table
        ]
    ]
    return agenda.queues.stats(), dict(agenda.running), agenda.order.next_ready(99, None), states


def test_jobs_that_are_lost_are_named_as_far_as_other_records_tell() -> None:
    world, groups = _written()
    world.clock.advance(3_600)
    process = world.process()
    delivery = next(delivery for delivery in process.claim(99) if delivery.job == groups[1][2])
    process.settle(delivery)
    process.close()
    _one_payload(world)
    tag = world.reader().tag
    expected = ((f"{tag}-{groups[1][2]}",), 1)
    planned = survey_damage(world.reader())
    assert (planned.lost_jobs, planned.lost_records) == expected
    done = world.repair()
    assert (done.lost_jobs, done.lost_records) == expected


def test_a_last_segment_whose_beginning_is_damaged_is_found_and_repaired() -> None:
    world, groups = _written()
    for offset in (17, codec.SEGMENT_HEADER.size + 20):
        _flip(world, offset, 1)
    process = world.process()
    process.close()
    result = verify(world.reader()).damage
    assert {item.segment for item in result} == {world.segments()[1].rpartition("/")[2]}
    world.repair()
    assert not verify(world.reader()).damage
    assert groups[3][0] in [chunk.ids[i] for chunk, i in world.fold().need_agenda().table]


@pytest.mark.parametrize("seed", range(some(8, 40)))
def test_whatever_is_damaged_a_repaired_log_is_clean_and_holds_all_that_was_still_read(
    seed: int,
) -> None:
    chance = random.Random(seed)
    world, _ = _written()
    size = len(world.machine.content(_FIRST))
    for _ in range(chance.choice((1, 3, 12))):
        start = chance.randrange(size)
        count = min(chance.choice((1, 4, 64, 512, 5_000)), size - start)
        world.machine.corrupt(_FIRST, start, chance.choice((bytes(count), chance.randbytes(count))))
    before, damaged = _picture(world), verify(world.reader())
    report = world.repair()
    assert report.damage == damaged.damage
    repaired = verify(world.reader())
    assert not repaired.damage
    assert not repaired.torn_bytes
    assert repaired.records == damaged.records + sum(gap.salvaged for gap in damaged.damage)
    assert _picture(world) == before
    assert world.process().enqueue() > 0
