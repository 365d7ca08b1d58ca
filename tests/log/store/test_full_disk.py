"""The whole store on a disk that is full, replaced or gone: a small tmpfs."""

import asyncio
import contextlib
import errno
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import AppendFailed, DiskFull, LogGone, TaskqError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.log.commit import committer
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.read.follow import Onlooker
from taskq.log.read.reader import LogReader, open_journal
from taskq.log.requests import Cancel, ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store import thread
from taskq.log.store.store import Store, open_store
from taskq.testing import use_clock
from taskq.testing.sandbox import FakeClock
from tests.effort import grows, some
from tests.processes.harness import eventually, memory_disk, mounted, removed
from tests.programs import run_python

_SPEC: Final = EnqueueSpec(task="mail.send")
_SIZE_BYTES: Final = 4 * 1024 * 1024
_BALLAST_BYTES: Final = 1024 * 1024
_SECONDS: Final = 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with memory_disk(tmp_path / "disk", _SIZE_BYTES) as place:
        yield place


def _unexpected(item: Settlement, error: TaskqError) -> None:
    raise AssertionError(f"{item.delivery!r}: {error}")


def _fill(store: Store, size: int) -> list[int]:
    jobs: list[int] = []
    refused: AppendFailed | None = None
    while refused is None:
        try:
            answer = store.thread_port.enqueue(_SPEC, bytes(size)).result(_SECONDS)
        except AppendFailed as error:
            refused = error
        else:
            assert isinstance(answer, int)
            jobs.append(answer)
    assert refused.errno == errno.ENOSPC
    assert "Free some space" in str(refused)
    return jobs


def _use_up(place: Path) -> None:
    with (place / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4_096))


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_full_disk_refuses_enqueues_and_still_settles_enqueued_jobs(
    small_disk: Path, *, opened_again: bool
) -> None:
    """With the limits that a log has by itself; also by a worker that is started only then.

    Nobody makes room: finished jobs would go, with the outcomes that are asked for here.
    """
    (small_disk / "ballast").write_bytes(bytes(_BALLAST_BYTES))
    data = str(small_disk / "data")
    store = open_store(data, LogConfig(upkeep=False))
    port = store.thread_port
    jobs = _fill(store, 20_000)
    assert len(jobs) > 100
    assert shutil.disk_usage(small_disk).free > _SIZE_BYTES // 60
    assert (small_disk / "data" / "reserve").stat().st_size == _SIZE_BYTES // 50
    _use_up(small_disk)
    assert not shutil.disk_usage(small_disk).free
    if opened_again:
        store.close()
        store = open_store(data, LogConfig(upkeep=False))
        port = store.thread_port
    deliveries = port.claim(ClaimRequest(len(jobs) // 2)).result(_SECONDS)
    assert len(deliveries) == len(jobs) // 2
    for delivery in deliveries[::2]:
        ended = [Settlement(Kind.SUCCEEDED, delivery, b"42")]
        assert port.settle(ended).result(_SECONDS) == [None]
    port.settle_soon(
        [Settlement(Kind.SUCCEEDED, delivery, b"43") for delivery in deliveries[1::2]], _unexpected
    )
    for job in jobs[len(jobs) // 2 :]:
        assert port.cancel(job).result(_SECONDS) == Cancel.WITHDRAWN
    for delivery in deliveries:
        assert port.outcome(delivery.job).result(_SECONDS).body in {b"42", b"43"}
    assert not (small_disk / "data" / "reserve").exists()
    with pytest.raises(DiskFull, match="Free some space"):
        port.enqueue(_SPEC, b"refused").result(_SECONDS)
    (small_disk / "ballast").unlink()
    last = port.enqueue(_SPEC, b"last").result(_SECONDS)
    port.enqueue(_SPEC, b"one more").result(_SECONDS)
    assert (small_disk / "data" / "reserve").stat().st_size == _SIZE_BYTES // 50
    store.close()

    reader = LogReader.open(data)
    counts = reader.stats().queues[0]
    assert (counts.succeeded, counts.ready) == (len(deliveries), 2)
    assert counts.cancelled == len(jobs) - len(deliveries)
    assert last in {view.lsn for view in reader.jobs({State.READY}, None, None, 10)}
    assert not reader.verify().damage
    reader._journal.close()


@grows
@pytest.mark.parametrize("keep_seconds", [None, 0.0])
def test_the_log_frees_itself_on_a_full_disk_and_goes_on(
    small_disk: Path, keep_seconds: float | None
) -> None:
    """Disks full of work pass through; of its finished jobs the oldest go, no others."""
    config = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, keep_seconds=keep_seconds)
    store = open_store(str(small_disk / "data"), config)
    port = store.thread_port
    delayed = Extras(due_ns=3_600 * SECOND_NS)
    first = port.enqueue(EnqueueSpec("later", "task"), b"later", delayed).result(_SECONDS)
    passed = 0
    while passed < some(3, 6) * _SIZE_BYTES // 2:
        try:
            port.enqueue(_SPEC, bytes(20_000)).result(_SECONDS)
        except DiskFull:
            # Claims go on; each batch gives upkeep its turn.
            port.claim(ClaimRequest(1, wait_until_ns=0)).result(_SECONDS)
            continue
        (delivery,) = port.claim(ClaimRequest(1, frozenset({"default"}))).result(_SECONDS)
        assert port.settle([Settlement(Kind.SUCCEEDED, delivery)]).result(_SECONDS) == [None]
        passed += 20_000
    assert isinstance(first, int)
    view = port.view(first).result(_SECONDS)
    assert view is not None
    assert view.state is State.SCHEDULED
    assert view.payload == b"later"
    store.close()
    with LogReader.open(str(small_disk / "data")) as reader:
        assert not reader.verify().damage
        assert reader.stats().size < _SIZE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["the oldest", "every other"])
def test_a_full_disk_takes_jobs_again_once_a_hundred_and_twenty_have_ended(
    tmp_path: Path, pattern: str
) -> None:
    """With the limits that a log has by itself: by its upkeep, or by a compaction by hand."""
    by_hand = pattern == "every other"
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(memory_disk(tmp_path / "disk", 6 * _SIZE_BYTES))
        store = open_store(str(place / "data"), LogConfig(upkeep=not by_hand))
        stack.callback(store.close)
        port = store.thread_port
        jobs = _fill(store, 100_000)
        assert len(jobs) > 200
        ended = jobs[:240:2] if by_hand else jobs[:120]
        for job in ended:
            assert port.cancel(job).result(_SECONDS) == Cancel.WITHDRAWN
        _use_up(place)
        (place / "ballast").unlink()
        if by_hand:
            report = port.compact(0.0, dry_run=False).result(_SECONDS)
            assert report.freed > 10_000_000
        _enqueue_within(store, 100, 100_000)
        counts = port.stats().result(_SECONDS).queues[0]
        assert counts.ready == len(jobs) - len(ended) + 100
        with LogReader.open(str(place / "data")) as reader:
            assert not reader.verify().damage


def _enqueue_within(store: Store, count: int, size: int) -> None:
    give_up_at = time.monotonic() + _SECONDS
    while count:
        assert time.monotonic() < give_up_at, f"stuck {count} jobs before the end"
        with contextlib.suppress(DiskFull):
            store.thread_port.enqueue(_SPEC, bytes(size)).result(_SECONDS)
            count -= 1


def test_the_disk_of_a_killed_test_is_unmounted(small_disk: Path) -> None:
    program = (
        "import os, sys, pathlib; from tests.processes.harness import memory_disk\n"
        "disk = memory_disk(pathlib.Path(sys.argv[1]) / 'disk', 65536)\n"
        "disk.__enter__()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert run_python("-c", program, small_disk).returncode == -9
    eventually(lambda: not (small_disk / "disk").is_mount())


_JOBS: Final = 120
_REFILLED_AT: Final = 48
#: Long enough to sleep and wake up a few times.
_REFUSED_SECONDS: Final = 2.5
#: The least that a btrfs takes.
_IMAGE_BYTES: Final = 128 * 1024 * 1024


@pytest.fixture(params=["ext4", "btrfs"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    image, place = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    make, mount = [f"mkfs.{request.param}", "-q", str(image)], ["mount", "-o", "loop", str(image)]
    with mounted(place, make, [*mount, str(place)]):
        yield place


def _use_up_all(place: Path) -> None:
    """Another program takes every byte that it can get, in large pieces and in small ones."""
    for size in (1024 * 1024, 4_096, 64):
        for number in range(100_000 // size + 1):
            name = place / f"ballast-{size}-{number}"
            with contextlib.suppress(OSError), name.open("ab", buffering=0) as ballast:
                while ballast.write(bytes(size)) == size:
                    pass


@pytest.fixture
def two(disk: Path) -> Iterator[tuple[Store, Store]]:
    data = disk / "data"
    data.mkdir(0o700)
    both = Store(str(data), LogConfig()), Store(str(data), LogConfig())
    for store in both:
        store.wait_open()
    yield both
    for store in both:
        store.close()


@pytest.mark.slow
def test_a_worker_ends_its_jobs_on_the_full_disk_and_goes_on_when_there_is_room(
    disk: Path, two: tuple[Store, Store]
) -> None:
    """It sleeps between them, beside another process that is to be woken."""
    store, other = two
    port = store.thread_port
    jobs = port.enqueue_many([(_SPEC, bytes(200), None)] * _JOBS).result(_SECONDS)
    _use_up_all(disk)
    for number, job in enumerate(jobs):
        assert isinstance(job, int)
        outcome = other.thread_port.outcome(job)
        if not number % 10:
            eventually(lambda: store.mailbox.asleep and other.mailbox.asleep)
        if number == _REFILLED_AT:
            _use_up_all(disk)  # the log gave this up for room, too
        limit = store.steady_ns() + _SECONDS * SECOND_NS
        claim = port.claim(ClaimRequest(1, wait_until_ns=limit))
        if number == _REFILLED_AT:
            with contextlib.suppress(TimeoutError):
                claim.result(_REFUSED_SECONDS)  # where it never writes in place, it is not served
            with pytest.raises(AppendFailed, match="Free some space"):
                port.enqueue(_SPEC, bytes(20_000)).result(_SECONDS)
            for name in disk.glob("ballast-*"):
                name.unlink()
        [delivery] = claim.result(_SECONDS)
        ends = [Settlement(Kind.SUCCEEDED, delivery, b"done")]
        assert port.settle(ends).result(_SECONDS) == [None]
        assert outcome.result(_SECONDS).body == b"done"

    def enqueued() -> bool:
        with contextlib.suppress(AppendFailed):
            port.enqueue(_SPEC, b"again").result(_SECONDS)
            return True
        return False

    eventually(enqueued)
    with LogReader.open(store.path) as reader:
        assert not reader.verify().damage
        assert reader.stats().queues[0].succeeded >= _JOBS


def _segments(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.log"))


def _replace(path: Path) -> None:
    shutil.copytree(path, path.with_name("backup"), ignore=shutil.ignore_patterns("*.pipe"))
    _remove(path)
    path.with_name("backup").rename(path)


def _restore_segment(path: Path) -> None:
    segment = _segments(path)[-1]
    copy = segment.with_suffix(".new")
    shutil.copy(segment, copy)
    copy.rename(segment)


def _remove(path: Path) -> None:
    while path.exists():  # a file may be made in it meanwhile
        shutil.rmtree(path, ignore_errors=True)


async def _read_all(log: TaskLog) -> None:
    async for _ in log.stream():
        pass


def _put_file(path: Path) -> None:
    _remove(path)
    path.write_bytes(b"")


def _all(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


_TAKEN: Final[dict[str, Callable[[Path], object]]] = {
    "the directory is removed": _remove,
    "the directory is moved": lambda path: path.rename(path.with_name("elsewhere")),
    "its parent is moved": lambda path: path.parent.rename(path.parent.with_name("other")),
    "another log is put in its place": _replace,
    "a file is put in its place": _put_file,
    "the segments are removed": lambda path: _remove(path / "log"),
    "the segments are moved": lambda path: (path / "log").rename(path / "old"),
    "the last segment is removed": lambda path: _segments(path)[-1].unlink(),
    "the last segment is restored": _restore_segment,
    "the lock file is removed": lambda path: (path / "write.lock").unlink(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "data"


@pytest.mark.posix("a directory with open files stays there")
@pytest.mark.parametrize("take", _TAKEN.values(), ids=_TAKEN)
@pytest.mark.parametrize("exclusive", [False, True])
async def test_once_the_files_are_gone_no_call_is_answered_as_if_they_were_there(
    path: Path, take: Callable[[Path], object], *, exclusive: bool
) -> None:
    async with TaskLog.open(path, exclusive=exclusive, upkeep=False) as log:
        await log.put(b"before")
        (delivery,) = await log.claim()
        take(path)
        before = _all(path)
        for call in (
            lambda: log.put(b"after"),
            lambda: log.ack(delivery),
            lambda: log.claim(wait=0),
            log.stats,
            lambda: log.put(b"again"),
        ):
            with pytest.raises(LogGone, match="removed, moved or replaced while it was open"):
                await call()
    assert set(_all(path)) <= set(before), "nothing is made where the log was"


@pytest.mark.posix("a directory with open files stays there")
@pytest.mark.parametrize("take", _TAKEN.values(), ids=_TAKEN)
async def test_waiting_calls_fail_within_a_second_once_the_log_is_removed(
    path: Path, take: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next look around, which comes each second; here sooner."""
    for module in (committer, thread):
        monkeypatch.setattr(module, "LOOK_AROUND_NS", SECOND_NS // 20)
    async with TaskLog.open(path) as log, TaskLog.open(path) as other:
        job = await log.put(b"never done", delay=3_600)
        app = await TaskQ(path).open()
        waits = [
            asyncio.ensure_future(log.claim(wait=None)),
            asyncio.ensure_future(app.job(job).result()),
            asyncio.ensure_future(_read_all(other)),
        ]
        await app.stats()  # they were sent before it
        take(path)
        done, _ = await asyncio.wait(waits, timeout=_SECONDS)
        assert done == set(waits)
        for wait in waits:
            with pytest.raises(LogGone):
                wait.result()
        await app.close()


async def test_a_process_that_others_must_take_for_dead_notices_in_a_second(path: Path) -> None:
    app, clock = TaskQ(path), FakeClock()
    use_clock(app, clock)
    await app.enqueue_by_name("a.b")
    for lock in (path / "owners").glob("*.lock"):
        removed(lock)
    clock.advance(LOOK_AROUND_NS / SECOND_NS)
    with pytest.raises(LogGone, match="owners"):
        await app.enqueue_by_name("a.b")
    await app.close()


@pytest.mark.posix("a directory with open files stays there")
@pytest.mark.parametrize("has_lock_file", [False, True])
def test_an_onlooker_of_a_removed_log_raises_log_gone(path: Path, *, has_lock_file: bool) -> None:
    with TaskQ(path) as app:
        app.open_sync()
    if not has_lock_file:
        (path / "write.lock").unlink()
    onlooker = Onlooker(open_journal(str(path)))
    onlooker.look()
    _remove(path)
    with pytest.raises(LogGone):
        onlooker.look()
    onlooker.close()
