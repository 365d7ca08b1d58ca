"""Who takes the writer lock without passing the turnstile, and how he learns of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskq.log.journal.lock import LockWatch, WriterLock
from taskq.log.machine.disk import LocalDisk
from tests.effort import ended

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


def test_who_is_alone_waits_behind_those_in_line_every_now_and_then(
    make: Callable[[], WriterLock],
) -> None:
    lock, disk = make(), LocalDisk()
    gate = make().descriptors[0]
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
        disk.unlock(gate)
    assert waited == [16, 33, 50]


def test_who_was_alone_sees_that_another_came_though_both_have_the_same_number(
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
