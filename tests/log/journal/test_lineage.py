"""A copied or forked directory goes on as another log, and no name is given twice."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import LogError, LogGone, WrongLog
from taskq.core.parsing import Tag
from taskq.engine import LogReader
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.frames import Frame
from taskq.log.format.record import places
from taskq.log.journal import recovery
from taskq.log.journal.lock import TailHint
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.readers import NamedReader, ReaderPosition, read_position
from taskq.log.requests import Op
from taskq.log.segments.identity import Identity, LockMark, Parent
from taskq.log.upkeep.backup import fork_journal
from tests.effort import grows, some
from tests.log.world import PLAIN, Process, World, cuts
from tests.machine.crashable import CrashableDisk, Machine, PowerLost, ProcessKilled

#: Content of a directory by path, without the path of the directory.
Files = dict[str, bytes]
#: (log that wrote it, lsn) -> record
Records = dict[tuple[UUID, int], bytes]
_KEPT: Final = b"kept"


def records_of(world: World) -> Records:
    """Return every record of a directory; its segments are whole, and name their log."""
    journal = world.reader()
    records: Records = {}
    if not journal.segment:  # its first opening was cut short
        return records
    for base, item in journal.frames(journal.start()):
        assert isinstance(item, Frame)
        owner = journal.identity.owner(journal.files.segment_at(base)).log_id
        for lsn, at, length in places(item):
            assert journal.identity.owner(lsn).log_id == owner
            records[owner, lsn] = bytes(item.data[at : at + length])
    return records


def files_of(world: World) -> Files:
    start = len(world.path)
    paths = [path for path in world.machine.paths() if path.startswith(f"{world.path}/")]
    return {path[start:]: world.machine.content(path) for path in paths}


def put_back(world: World, files: Files) -> None:
    """Roll the file system back: the same files hold what they held, and no others are there."""
    for path in files_of(world).keys() - files.keys():
        world.machine.unlink(world.path + path)
    for path, content in files.items():
        world.machine.put(world.path + path, content)


def copied(world: World, path: str) -> World:
    other = World(0, world.config)
    other.machine, other.clock, other.path = world.machine, world.clock, path
    disk = CrashableDisk(world.machine)
    for folder in sorted({f"{path}{name}".rpartition("/")[0] for name in files_of(world)}):
        disk.make_directory(folder)
        for synced in (folder, path, "/srv", "/"):
            disk.sync_directory(synced)
    for name, content in files_of(world).items():
        world.machine.put(path + name, content)
    return other


def at_lsn(world: World, at: int) -> None:
    process = world.process()
    try:
        process.journal.lock()
        fork_journal(process.journal, at)
        process.journal.writer.release()
        process.close()
    except BaseException:
        process.kill()
        raise


class Family:
    """A log, its copies and their copies, on one machine that fails at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        first = World(seed)
        self.machine: Machine = first.machine
        self.worlds = [first]
        self.processes: dict[str, Process] = {}
        self._paths = count(1)
        self._bodies = count(1)
        #: by id, what was acknowledged and is not gone with a fork or a loss of power
        self.jobs: dict[str, bytes] = {}
        self.seen: Records = {}

    def run(self, steps: int) -> None:
        acts = [self.write] * 5 + [self.copy, self.close, self.gone, self.fork, self.lose_power]
        for _ in range(steps):
            act, world = self.chance.choice(acts), self.chance.choice(self.worlds)
            if self.chance.random() < 0.3:
                cut = self.machine.steps + self.chance.randrange(1, 30)
                self.machine.stop_at(cut, power=self.chance.random() < 0.3)
            try:
                act(world)
            except ProcessKilled:
                self.gone(world)
            except PowerLost:
                self.processes.clear()
                world.everyone_is_gone()
            self.machine.stop_at(None)
            for other in self.worlds:
                other.neighbourhood.living &= {p.peers.owner for p in self.processes.values()}
            self.look()

    def opened(self, world: World) -> Process:
        process = self.processes.get(world.path)
        if process is None:
            process = self.processes[world.path] = world.process()
        return process

    def write(self, world: World) -> None:
        process = self.opened(world)
        for _ in range(self.chance.randrange(1, 6)):
            body = b"%d " % next(self._bodies) + bytes(self.chance.choice((0, 9_000)))
            job_id = process.journal.tag.id(process.enqueue(body))
            assert job_id not in self.jobs
            self.jobs[job_id] = body
        for delivery in process.claim(self.chance.randrange(3)):
            process.settle(delivery)

    def copy(self, world: World) -> None:
        if len(self.worlds) < 6:
            self.worlds.append(copied(world, f"/srv/copy{next(self._paths)}"))

    def fork(self, world: World) -> None:
        """Go on from an earlier frame, which then has two different frames after it."""
        self.opened(world)
        self.close(world)
        if starts := [lsn for _, lsn in records_of(world)]:
            at = self.chance.choice([*starts, max(starts) + 1])
            try:
                at_lsn(world, at)
            except LogError as error:
                assert "within a frame" in str(error)  # noqa: PT017 - of two that may come

    def close(self, world: World) -> None:
        if (process := self.processes.pop(world.path, None)) is not None:
            process.close()

    def gone(self, world: World) -> None:
        if (process := self.processes.pop(world.path, None)) is not None:
            process.kill()

    def lose_power(self, world: World) -> None:
        self.processes.clear()
        world.lose_power()

    def has_log(self, world: World) -> bool:
        return f"{world.path}/taskq.json" in self.machine.paths()

    def look(self) -> None:
        for world in self.worlds:
            if not self.has_log(world):
                continue
            try:
                records = records_of(world)
            except LogError as error:
                assert "was cut short" in str(error)  # noqa: PT017 - of a killed fork
                continue
            for name, record in records.items():
                assert self.seen.setdefault(name, record) == record, name


@grows
@pytest.mark.parametrize("seed", range(some(3, 2_000)))
def test_no_record_and_no_job_of_a_family_of_logs_share_a_name(seed: int) -> None:
    """Copies of copies, forks, kills at any step and losses of power: (log id, lsn) is one."""
    family = Family(seed)
    family.run(40)
    owners = {owner for owner, _ in family.seen}
    assert len({owner.hex[:8] for owner in owners}) == len(owners)
    for world in family.worlds:
        family.gone(world)
        if family.has_log(world):
            process = world.process()
            assert process.enqueue(_KEPT)
            process.close()
    family.look()


def _before_opening(seed: int) -> World:
    world = World(seed)
    process = world.process()
    process.enqueue(_KEPT)
    child = copied(world, "/srv/child")
    process.enqueue(b"not in the child")
    process.close()
    return child


@pytest.mark.parametrize("power", [False, True])
def test_a_copy_whose_first_opening_is_cut_short_is_a_child_at_the_next(*, power: bool) -> None:
    for cut in cuts(power=power, stride=1):
        child = _before_opening(cut.step)
        with cut.during(child):
            child.process()
        process = child.process()
        identity, tag = process.journal.identity, process.journal.tag
        new = process.enqueue(b"new")
        assert (len(identity.parents), identity.begins) == (1, 2)
        assert tag.id(1) == f"{identity.parents[0].log_id.hex[:8]}-1"
        assert tag.id(new) == f"{tag}-{new}"
        assert child.reader().lost == ()
        process.kill()
        assert child.process().journal.identity == identity


def test_two_processes_that_open_a_copy_at_once_are_one_child() -> None:
    child = _before_opening(0)
    first, second = child.process(), child.process()
    assert first.journal.identity == second.journal.identity
    assert len({first.enqueue(), second.enqueue(), first.enqueue()}) == 3
    assert child.reader().identity == first.journal.identity


def test_a_copy_of_a_copy_names_only_logs_that_wrote_what_it_has() -> None:
    child = _before_opening(0)
    child.process().close()
    idle = copied(child, "/srv/idle")
    idle.process().close()
    assert idle.reader().identity.parents == child.reader().identity.parents
    child.process().enqueue()
    busy = copied(child, "/srv/busy")
    busy.process().close()
    logs = [parent.log_id for parent in busy.reader().identity.parents]
    assert logs == [child.reader().identity.parents[0].log_id, child.reader().identity.log_id]


def test_a_copy_of_an_empty_log_has_no_parent() -> None:
    world = World()
    world.process().close()
    child = copied(world, "/srv/child")
    assert child.process().enqueue() == 1
    assert child.reader().identity.parents == ()
    assert child.reader().identity.log_id != world.reader().identity.log_id


def _forked(seed: int) -> tuple[World, Records, list[int]]:
    """Return a log of two segments and more that was rolled back and went on, and a hub's copy."""
    world = World(seed)
    process = world.process()
    for _ in range(8):
        process.enqueue(bytes(9_000))
    files = files_of(world)
    lost = [process.enqueue(b"lost %d" % number) for number in range(3)]
    process.close()
    hub = records_of(world)
    put_back(world, files)
    process = world.process()
    for number in range(9):
        process.enqueue(b"%d " % number + bytes(9_000))
    process.settle(process.claim()[0])
    process.close()
    return world, hub, lost


def _common(hub: Records, here: Records) -> int:
    return min(lsn for name, record in here.items() for lsn in [name[1]] if hub.get(name) != record)


@pytest.mark.parametrize("power", [False, True])
def test_a_fork_that_is_cut_short_is_the_former_log_or_the_child(*, power: bool) -> None:
    former = forked = 0
    for cut in cuts(power=power):
        world, hub, _ = _forked(cut.step)
        before = records_of(world)
        at, bodies = _common(hub, before), sorted(before.values())
        with cut.during(world):
            at_lsn(world, at)
        world.process().close()
        identity, records = world.reader().identity, records_of(world)
        files = world.reader().files
        assert not [seam for seam in recovery.seams(files) if recovery.is_broken(files, *seam)]
        assert sorted(records.values()) == bodies
        if identity.parents:
            forked += 1
            assert identity.parents == (Parent(next(iter(hub))[0], at),)
            assert all(hub.get(name, record) == record for name, record in records.items())
        else:
            former += 1
            assert records == before
        assert not [path for path in world.machine.paths() if path.endswith(".fork")]
    assert former > 10
    assert forked > 5


def test_a_process_loses_its_log_by_a_fork_that_another_began_and_was_killed_in() -> None:
    steps = 0
    for cut in cuts(power=False):
        world, hub, _ = _forked(cut.step)
        other = world.process()
        at = _common(hub, records_of(world))
        with cut.during(world):
            at_lsn(world, at)
        before = files_of(world)
        if '"cut"' in before["/taskq.json"].decode():
            steps += 1
            with pytest.raises(LogGone):
                other.enqueue()
            assert {p: c for p, c in files_of(world).items() if p.startswith("/log/")} == {
                p: c for p, c in before.items() if p.startswith("/log/")
            }
            with pytest.raises(LogError, match="cut short"):
                world.reader()
            assert world.process().journal.identity.parents
    assert steps > 3


@pytest.mark.parametrize("at", [0, 99, 2])
def test_a_fork_is_between_two_frames_of_the_log(at: int) -> None:
    world = World()
    process = world.process()
    process.commit([(Op.ENQUEUE, None, Future(), (PLAIN, b"x", None)) for _ in range(3)])
    process.close()
    with pytest.raises(LogError, match="cannot be forked at"):
        at_lsn(world, at)


def test_a_log_is_itself_by_the_file_of_its_lock() -> None:
    """By inode and birth; by inode and times where nobody knows the birth."""
    here = LockMark(7, 100)
    log = Identity(UUID(int=1), 1, lock=here)
    assert not log.is_copied(here, was_restored=False)
    assert not log.is_copied(here, was_restored=True)
    assert log.is_copied(LockMark(8, 100), was_restored=False)
    assert log.is_copied(LockMark(7, 101), was_restored=False)
    for known, seen in ((0, 0), (0, 5), (5, 0)):
        unsure = log._replace(lock=LockMark(7, known))
        assert not unsure.is_copied(LockMark(7, seen), was_restored=False)
        assert unsure.is_copied(LockMark(7, seen), was_restored=True)
    assert Identity(UUID(int=1), 1).is_copied(here, was_restored=False)


def test_an_id_names_a_job_of_the_log_that_enqueued_it() -> None:
    tag = Tag("cccccccc", (("aaaaaaaa", 10), ("bbbbbbbb", 20)))
    ids = [tag.id(job) for job in (9, 10, 19, 20)]
    assert ids == ["aaaaaaaa-9", "bbbbbbbb-10", "bbbbbbbb-19", "cccccccc-20"]
    assert all(tag.takes(*Tag.of_id(job_id)) for job_id in [*ids, "17"])
    assert not any(tag.takes(*Tag.of_id(f"{prefix}-15")) for prefix in ("aaaaaaaa", "cccccccc"))


def test_a_readers_position_counts_in_a_child_as_far_as_the_parents_records(tmp_path: Path) -> None:
    parent, disk = Identity(UUID(int=1), 1), LocalDisk()
    reader = NamedReader.take(disk, str(tmp_path), parent, "billing")
    reader.save(ReaderPosition(1, 50, 64, 9, 5))
    for begins, expected in ((60, ReaderPosition(1, 50, 64, 9, 5)), (40, ReaderPosition(1, 40))):
        child = parent.child(begins, 1)
        assert read_position(disk, str(tmp_path), child, "billing") == expected


def _open(path: Path) -> TaskLog:
    return TaskLog.open(path, segment_bytes=SEGMENT_BYTES_MIN, durability="os", upkeep=False)


def _put(path: Path, number: int, size: int = 1) -> list[str]:
    with _open(path) as log:
        return [log.put_sync(bytes(size)) for _ in range(number)]


def _content(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_copied_log_becomes_a_child_at_its_first_write_and_a_moved_log_does_not(
    tmp_path: Path,
) -> None:
    data, copy, moved = tmp_path / "data", tmp_path / "copy", tmp_path / "moved"
    shared = _put(data, 3)
    subprocess.run(["cp", "-a", data, copy], check=True)
    before = _content(copy)
    with LogReader.open(str(copy)) as reader:
        assert [job.job_id for job in reader.jobs(None, None, None, 9)] == shared[::-1]
        assert not reader.verify().damage
    assert _content(copy) == before
    copy.rename(moved)
    data.rename(copy)
    old, new = _put(copy, 2), _put(moved, 2)
    assert [job_id.split("-")[1] for job_id in old] == [job_id.split("-")[1] for job_id in new]
    assert {job_id[:8] for job_id in old} == {shared[0][:8]} != {job_id[:8] for job_id in new}
    with TaskQ(moved) as app:
        assert app.job(shared[0]).view_sync().job_id == shared[0]
        with pytest.raises(WrongLog, match=f"which has jobs of log {shared[0][:8]} below"):
            app.job(old[0]).view_sync()
    shown = subprocess.run(
        [sys.executable, "-m", "taskq", "show", shared[1], "-d", moved],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shared[1] in shown.stdout
    for command in ("stats", "verify", "check"):
        printed = subprocess.run(
            [sys.executable, "-m", "taskq", command, "-d", moved],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert f"with the records of log {shared[0][:8]}" in " ".join(printed.stdout.split())


def test_a_removed_directory_and_its_copy_in_its_place_are_two_logs(tmp_path: Path) -> None:
    """Its file system may give the copy's lock the number of the removed one."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    _put(data, 1)
    shutil.copytree(data, backup)
    lost = _put(data, 2)
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    assert not {*_put(data, 2)} & {*lost}


def _copied(path: Path) -> Path:
    return shutil.copytree(path, path.with_name("copy"))


def _hard_linked(path: Path) -> Path:
    return shutil.copytree(path, path.with_name("linked"), copy_function=os.link)


def _restored_over(path: Path) -> Path:
    """A backup is written over the directory, file by file and in place, as ``cp -a`` does."""
    backup = _copied(path)
    _put(path, 5, 1_000)
    return shutil.copytree(backup, path, dirs_exist_ok=True)


def _restored_over_longer(path: Path) -> Path:
    backup = _copied(path)
    _put(path, 80, 1_000)
    return shutil.copytree(backup, path, dirs_exist_ok=True, copy_function=shutil.copyfile)


@pytest.mark.parametrize("copy", [_copied, _restored_over, _restored_over_longer, _hard_linked])
def test_what_a_copy_and_its_original_write_never_has_the_same_name(
    copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    original = tmp_path / "data"
    ids = _put(original, 10, 1_000)
    other = copy(original)
    with _open(other) as first, _open(original) as second:
        for _ in range(80):
            for log in (first, second):
                # Hard links share the lock's file: the second one misses the other's segment.
                with contextlib.suppress(LogGone):
                    ids.append(log.put_sync(bytes(1_000)))
    assert len(ids) > 80
    assert len(set(ids)) == len(ids)


def _hints() -> dict[str, TailHint]:
    world = World()
    process = world.process()
    for _ in range(3):
        process.enqueue()
    hint = process.journal.writer.peek()
    assert hint is not None
    odd: dict[str, dict[str, int]] = {
        "an offset within the header": {"offset": 8, "clean_offset": 8, "last_frame": 0},
        "an offset of 0": {"offset": 0, "clean_offset": 0, "last_frame": 0},
        "an offset between two frames": {"offset": hint.offset - 8},
        "an offset that no frame has": {"offset": hint.offset - 4},
        "an offset beyond the file": {"offset": hint.offset + 8},
        "an offset beyond any file": {"offset": 2**63},
        "a last frame behind the end": {"last_frame": hint.offset},
        "a last frame at no multiple of 8": {"last_frame": 65},
        "an lsn beyond what the segment can hold": {"next_lsn": 2**40},
        "the last lsn of all": {"next_lsn": 2**63 - 1},
        "an lsn beyond all": {"next_lsn": 2**64 - 1},
        "an lsn before the segment": {"next_lsn": 0, "durable_lsn": 0},
        "more on disk than there is": {"durable_lsn": hint.next_lsn + 1},
        "clean beyond the end": {"clean_offset": hint.offset + 8},
        "clean within the header": {"clean_offset": 0},
        "no segment": {"segment": 0},
        "a segment that is not there": {"segment": 2},
        "a time before 1970": {"time_ns": -1},
        "a time beyond all": {"time_ns": 2**63 - 1},
        "a clock far ahead": {"clock_base_ns": 2**63 - 1},
        "a clock far behind": {"clock_base_ns": -(2**63)},
    }
    return {name: hint._replace(**values) for name, values in odd.items()}


_HINTS: Final = _hints()


@pytest.mark.parametrize("name", _HINTS)
def test_a_hint_of_odd_numbers_costs_neither_a_job_nor_a_process(name: str) -> None:
    world = World()
    first = world.process()
    jobs = [first.enqueue() for _ in range(3)]
    here = first.journal.home
    hint = _HINTS[name]._replace(boot=here[0], device=here[1], inode=here[2])
    first.journal.writer.write_hint(hint)
    second = world.process()
    jobs += [first.enqueue(), second.enqueue()]
    assert len(set(jobs)) == len(jobs)
    assert max(jobs) < 2**40 + 2**22
    frames = [item for _, item in world.reader().frames(world.reader().start())]
    assert all(isinstance(item, Frame) for item in frames)
    assert [delivery.job for delivery in world.process().claim(9)] == sorted(jobs)
