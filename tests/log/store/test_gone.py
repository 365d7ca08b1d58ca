"""Files of an open log are taken away: no answer claims that anything was kept."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.model import SECOND_NS
from taskq.errors import LogGone
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.read.follow import Onlooker
from taskq.log.read.reader import open_journal
from taskq.log.requests import ClaimRequest, Op
from taskq.testing import use_clock
from taskq.testing.sandbox import FakeClock
from tests.log.world import PATH, World

_NOTICED_SECONDS: Final = 3 * LOOK_AROUND_NS / SECOND_NS


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


@pytest.mark.parametrize("take", _TAKEN.values(), ids=_TAKEN)
async def test_who_only_waits_is_told_within_a_second_or_so(
    path: Path, take: Callable[[Path], object]
) -> None:
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
        done, _ = await asyncio.wait(waits, timeout=_NOTICED_SECONDS)
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
        lock.unlink()
    clock.advance(LOOK_AROUND_NS / SECOND_NS)
    with pytest.raises(LogGone, match="owners"):
        await app.enqueue_by_name("a.b")
    await app.close()


@pytest.mark.parametrize("has_lock_file", [False, True])
def test_who_looks_from_outside_is_told_too(path: Path, *, has_lock_file: bool) -> None:
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


def test_a_claim_that_waits_is_answered_when_the_lock_file_goes() -> None:
    world = World()
    process = world.process()
    future: Future[Any] = Future()
    process.commit([(Op.CLAIM, None, future, ClaimRequest(1))])
    world.machine.unlink(f"{PATH}/write.lock")
    process.committer.look_around()
    process.sync()
    assert isinstance(future.exception(0), LogGone)
