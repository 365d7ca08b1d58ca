"""A refusal of the disk to sleepers and wakers costs a wake-up, never a job or the log."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from taskq.log.config import LogConfig
from taskq.log.machine import syscalls
from taskq.log.machine.peers import LocalPeers
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import ClaimRequest, EnqueueSpec
from taskq.log.store.store import open_store

_CODES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalPeers, LocalPeers]]:
    """Two owners of one directory."""
    both = LocalPeers(str(tmp_path), ""), LocalPeers(str(tmp_path), "")
    yield both
    for item in both:
        item.close()


def _refuse(*_args: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_woken(owner: LocalPeers) -> bool:
    return bool(owner._poll.poll(0))


def _cut(path: Path, size: int) -> None:
    os.truncate(path / "owners" / "board", size)


def test_who_cannot_tell_that_it_sleeps_does_not_sleep_long(
    two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full file system that never writes in place refuses one byte of the board."""
    slept: list[float | None] = []
    first = two[0]
    monkeypatch.setattr(
        first, "_poll", type("Poll", (), {"poll": lambda _, ms: slept.append(ms)})()
    )
    with monkeypatch.context() as refused:
        refused.setattr(syscalls, "write_at", _refuse)
        first.announce(INTEREST_READY)
        first.sleep(INTEREST_READY, None)
        first.sleep(INTEREST_READY, 30)
        first.sleep(0, 30)
    first.announce(INTEREST_READY)
    first.sleep(INTEREST_READY, None)
    assert slept[:2] == [slept[0]] * 2
    assert slept[0] is not None
    assert 0 < slept[0] <= 250
    assert slept[2:] == [30_000, None]


@pytest.mark.parametrize("code", _CODES)
@pytest.mark.parametrize("is_written", [True, False])
def test_a_poke_that_is_refused_once_wakes_all_the_same(
    two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch, code: int, *,
    is_written: bool,
) -> None:  # fmt: skip
    """A full disk refuses the pipe its new time, with the byte in it."""
    write, calls = syscalls.write, list[int]()

    def once(descriptor: int, data: bytes) -> int:
        calls.append(descriptor)
        if len(calls) > 1 or is_written:
            write(descriptor, data)
        if len(calls) == 1:
            raise OSError(code, os.strerror(code))
        return 1

    monkeypatch.setattr(syscalls, "write", once)
    two[0].poke()
    assert _is_woken(two[0])


@pytest.mark.parametrize("cut", [17, 31, 5])
def test_a_board_of_any_size_wakes_whom_it_still_names(
    tmp_path: Path, two: tuple[LocalPeers, LocalPeers], cut: int
) -> None:
    first, second = two
    second.announce(INTEREST_READY)
    _cut(tmp_path, cut)
    first.wake(INTEREST_READY)
    assert not _is_woken(second)
    second.announce(INTEREST_READY)
    first.wake(INTEREST_READY)
    assert _is_woken(second)


def test_a_board_that_cannot_be_read_wakes_nobody_and_raises_nothing(
    two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two[0]._small, "read", _refuse)
    two[1].announce(INTEREST_READY)
    two[0].wake(INTEREST_READY)
    assert not _is_woken(two[1])


def test_files_of_the_dead_that_cannot_be_removed_stop_nobody(
    tmp_path: Path, two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "owners" / f"{7:016x}.lock"
    dead.write_bytes(b"{}")
    monkeypatch.setattr(Path, "unlink", _refuse)
    two[0].forget(7)
    LocalPeers(str(tmp_path), "").close()
    assert dead.exists()


def test_an_owner_that_cannot_be_asked_lives(
    tmp_path: Path, two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owners" / f"{7:016x}.lock").write_bytes(b"{}")
    assert not two[0].alive(7)
    monkeypatch.setattr(fcntl, "lockf", _refuse)
    assert two[0].alive(7)


def test_an_enqueue_stands_and_is_done_beside_a_board_of_odd_size(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), LogConfig())
    other = LocalPeers(str(tmp_path), "")
    store._open.writer.is_alone = False
    _cut(tmp_path, 33)
    assert store.thread_port.enqueue(EnqueueSpec(), b"x").result(10) == 1
    assert len(store.thread_port.claim(ClaimRequest(2)).result(10)) == 1
    other.close()
    store.close()


def test_a_wake_up_with_a_bug_in_it_is_logged_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: LocalPeers, _interest: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LocalPeers, "wake", fail)
    store = open_store(str(tmp_path), LogConfig())
    for number in (1, 2):
        store._open.writer.is_alone = False
        assert store.thread_port.enqueue(EnqueueSpec(), b"x").result(10) == number
    store.close()
    assert "the others could not be woken" in caplog.text
