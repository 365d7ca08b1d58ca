"""The first and the next open of a log, after any crash."""

import hashlib
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from taskq import TaskLog, TaskQ
from taskq.cli.main import main
from taskq.core.errors import FormatError, LogError, refusal
from taskq.core.model import Extras
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.journal.lock import LockWatch, WriterLock
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import REPLICA
from taskq.log.store.store import open_store
from tests.effort import ended, some
from tests.log.world import PATH, World
from tests.machine import sharing
from tests.machine.crashable import CrashableDisk, ProcessKilled
from tests.processes.harness import memory_disk

_FIRST = f"{PATH}/log/00000000000000000001.log"


def _steps_of_first_open() -> int:
    world = World()
    world.process()
    return world.machine.steps


@pytest.mark.parametrize("step", range(1, _steps_of_first_open() + 1))
def test_a_first_open_killed_at_any_step_leaves_a_directory_that_the_next_one_uses(
    step: int,
) -> None:
    for seed in range(some(2, 8)):
        world = World(seed)
        world.machine.stop_at(step, power=False)
        with pytest.raises(ProcessKilled):
            world.process()
        job = world.process().enqueue(b"kept")
        world.lose_power()
        again = world.process()
        world.job(job)
        assert again.enqueue() > job


def test_a_lost_identity_beside_segments_is_an_error_that_says_so() -> None:
    world = World()
    world.process().enqueue()
    CrashableDisk(world.machine).remove(f"{PATH}/taskq.json")
    with pytest.raises(FormatError, match=r"taskq\.json is missing"):
        world.process()


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("offset", [0, 12, 16, 30, 40, 50, 58])
def test_a_damaged_segment_header_costs_no_record(offset: int, *, same_boot: bool) -> None:
    """Name and first frame say again what it said; the damage is reported."""
    world = World()
    first = world.process()
    jobs = [first.enqueue(bytes([number])) for number in range(3)]
    first.close()
    (byte,) = world.machine.content(_FIRST)[offset : offset + 1]
    world.machine.corrupt(_FIRST, offset, bytes([byte ^ 0xFF]))
    if not same_boot:
        world.machine.put(f"{PATH}/write.lock", b"")
        world.lose_power()
    second = world.process()
    last = second.enqueue(b"last")
    assert last > jobs[-1]
    assert [delivery.job for delivery in second.claim(9)] == [*jobs, last]
    assert all(world.view(job) is not None for job in (*jobs, last))
    damage = second.catch_up().damage
    assert [(gap.segment, gap.offset, gap.size) for gap in damage] == [(_FIRST[-24:], 0, 64)]


def test_a_segment_that_cannot_be_read_at_all_keeps_its_ids() -> None:
    """Header and first frame are gone, and the hint too: what is left is never written over."""
    world = World()
    first = world.process()
    first.append(b"".join(codec.encode_clock(0, 1) for _ in range(1_000)), 1_000)
    lost = first.enqueue(b"x" * 200)
    first.close()
    world.machine.corrupt(_FIRST, 0, bytes(200))
    world.machine.put(f"{PATH}/write.lock", b"")
    world.lose_power()
    before = world.machine.content(_FIRST)
    second = world.process()
    assert second.enqueue() > lost
    assert world.machine.content(_FIRST) == before


def test_log_time_does_not_go_back_over_segments_without_frames() -> None:
    """Two power losses in a row, the second into 1970: the fall is recorded, delays go on."""
    world = World()
    first = world.process()
    job = first.enqueue(extras=Extras(due_ns=3_600 * 10**9))
    world.lose_power()
    world.process()
    world.machine.lose_power()
    world.neighbourhood.living.clear()
    world.clock.reboot(wall_seconds=1_000)
    third = world.process()
    assert third.claim() == []
    world.clock.advance(3_500)
    assert third.claim() == []
    world.clock.advance(200)
    assert [delivery.job for delivery in third.claim()] == [job]


_CONFIG: Final = LogConfig(min_free_bytes=0, reserve_bytes=0)
#: More descriptors than opening a log takes.
_ENOUGH: Final = 24


def _descriptors() -> set[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {str(link.readlink()) for link in links}


def test_without_descriptors_the_limit_is_named_and_nothing_leaks(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    refused = 0
    for more in range(_ENOUGH):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        try:
            open_store(path, _CONFIG).close()
        except LogError as error:
            refused += 1
            assert "ulimit -n" in str(error)  # noqa: PT017 - with enough of them it opens
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not [name for name in _descriptors() if name.startswith(path)]
    assert refused


def _file(path: Path) -> Path:
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (_file, "another path"),
        (lambda path: _file(path) / "below", "another path"),
        (lambda path: path / ("x" * 300), r"shorter path: it has \d+ characters, .* 300 of 255"),
        (lambda path: path.joinpath(*["y" * 200] * 200), r"shorter path: it has \d{4,} characters"),
    ],
    ids=["a file", "below a file", "a long name", "a long path"],
)
def test_a_path_that_can_be_no_directory_is_one_line_that_says_what_to_do(
    tmp_path: Path, make: Callable[[Path], Path], advice: str
) -> None:
    path = make(tmp_path / "data")
    with pytest.raises(LogError, match=advice):
        TaskQ(path).open_sync()
    with pytest.raises(LogError):
        LogReader.open(str(path))


@pytest.mark.parametrize("code", [2, 3, 123, 206])
def test_whatever_windows_calls_a_name_that_is_too_long_its_length_is_named(code: int) -> None:
    path = f"C:\\data\\{'x' * 300}\\jobs"
    error = sharing.Held(code, path)
    assert "its longest name 300 of 255" in str(refusal(path, error))
    assert str(refusal("C:\\data/jobs", OSError(1, "no"))).startswith("C:\\data\\jobs: no. ")
    assert "longest" not in str(refusal("C:\\data", sharing.Held(3, "C:\\data\\jobs")))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    with memory_disk(tmp_path / "disk", 4 * 1024 * 1024) as place:
        with TaskQ(place / "data") as app:
            app.enqueue_by_name_sync("some.task")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "data"


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "peek", "dead ls", "workers", "tail"])
def test_read_commands_work_on_a_read_only_file_system(read_only: Path, command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "-d", str(read_only)])
    assert result.exit_code == 0, result.output


def test_a_write_on_a_read_only_file_system_fails_with_advice(read_only: Path) -> None:
    with pytest.raises(LogError, match=r"Read-only file system\. Mount the file system"):
        TaskQ(read_only).open_sync()
    with pytest.raises(LogError, match="Read-only"):
        TaskQ(read_only / "new").open_sync()


def _mark(path: Path, *features: str) -> None:
    values = json.loads((path / "taskq.json").read_text())
    values["features"]["read_only_compat"] = list(features)
    (path / "taskq.json").write_text(json.dumps(values))


def _tree(path: Path) -> dict[str, str]:
    return {
        str(item.relative_to(path)): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in path.rglob("*")
        if item.is_file()
    }


@pytest.mark.parametrize(
    ("feature", "error", "says"),
    [(REPLICA, LogError, "copy"), ("sealed-7", FormatError, r"\['sealed-7'\]")],
)
async def test_a_writer_refuses_what_it_may_only_read_and_leaves_every_file_as_it_is(
    tmp_path: Path, feature: str, error: type[LogError], says: str
) -> None:
    path = tmp_path / "edge-7"
    async with TaskLog.open(path) as log:
        job = await log.put(b"one")
    _mark(path, feature)
    before = _tree(path)
    with pytest.raises(error, match=says) as raised:
        await TaskLog.open(path)
    assert "edge-7" in str(raised.value)
    assert _tree(path) == before
    with LogReader.open(str(path)) as reader:
        view = reader.job(reader.find_job(job))
    assert view is not None
    assert view.payload == b"one"
    assert _tree(path) == before


_PID = 7


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], WriterLock]]:
    """Makes locks of one directory, each as a process of its own has it, all with one pid."""
    made: list[WriterLock] = []

    def one() -> WriterLock:
        made.append(WriterLock(LocalDisk(), str(tmp_path), _PID))
        return made[-1]

    yield one
    for lock in made:
        lock.close()


def test_the_fast_path_of_the_writer_lock_queues_at_the_gate_now_and_then(
    make: Callable[[], WriterLock],
) -> None:
    lock, disk = make(), LocalDisk()
    gate = make()._gate
    lock.acquire()
    lock.release()
    lock.is_alone = True
    waited: list[int] = []
    for number in range(64):

        def pass_on(number: int = number) -> None:
            waited.append(number)
            disk.unlock(gate)

        lock.on_wait = pass_on
        assert disk.try_lock(gate), "somebody is in line"
        lock.acquire()
        lock.release()
        if number not in waited:
            disk.unlock(gate)
    assert waited == [16, 33, 50]


def test_a_lone_writer_notices_a_second_one_with_the_same_number(
    make: Callable[[], WriterLock],
) -> None:
    first, second = make(), make()
    first.acquire()
    first.release()
    first.is_alone = True
    first.acquire()
    first.release()
    assert first.is_alone
    second.acquire()
    second.release()
    first.acquire()
    first.release()
    assert not first.is_alone


def test_a_watch_that_is_ended_looks_no_more(make: Callable[[], WriterLock]) -> None:
    """Its thread would otherwise look for ten waits more, at a log that is closed."""
    lock, late = make(), list[float]()
    watch = LockWatch(lock, 0.001, late.append)
    lock.waiting_since = 1.0
    assert lock.on_wait is not None
    lock.on_wait()
    thread = watch._thread
    assert thread is not None
    watch.stop()
    ended(thread)


def test_a_stop_of_the_process_is_no_wait_for_the_lock(
    make: Callable[[], WriterLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, late, looks = make(), list[float](), iter([False] * 9 + [True])
    watch = LockWatch(lock, 8.0, late.append)
    monkeypatch.setattr(watch._stopped, "wait", lambda _: next(looks))
    lock.waiting_since = -1e9  # it was stopped for years
    watch._run()
    assert late == [9.0]
