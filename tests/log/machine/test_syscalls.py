"""The calls that keep the GIL do what Python's own do, or Python's own are used."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from taskq.log.config import BATCH_BYTES_MAX
from taskq.log.format.codec import FRAME_BODY_MAX
from taskq.log.machine import syscalls
from taskq.log.machine.disk import LocalDisk

_PyDLL: Final = ctypes.PyDLL
_CALLS: Final = (
    "pread", "pread64", "pwrite", "pwrite64", "lseek", "lseek64", "write", "read", "flock",
    "utimes",
)  # fmt: skip


def _write_elsewhere(descriptor: int, data: bytes, _size: int, offset: int) -> int:
    return os.pwrite(descriptor, data, offset + 1)


def _read_elsewhere(descriptor: int, buffer: Any, size: int, offset: int) -> int:
    data = os.pread(descriptor, size, offset + 1)
    ctypes.memmove(buffer, data, len(data))
    return len(data)


#: Results of offsets of the wrong size on 32-bit machines.
_WRONG: Final[dict[str, Callable[..., int]]] = {
    "lseek": lambda _descriptor, _offset, _whence: 0,
    "pwrite": _write_elsewhere,
    "pread": _read_elsewhere,
}


def _library(wrong: dict[str, Callable[..., int]]) -> Any:
    real = _PyDLL(None, use_errno=True)
    return SimpleNamespace(**{name: wrong.get(name) or getattr(real, name) for name in _CALLS})


@pytest.mark.parametrize("name", _WRONG)
def test_a_c_library_that_means_other_places_of_a_file_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 32-bit machines it destroyed logs, and found others empty."""
    library = _library({name: _WRONG[name], f"{name}64": _WRONG[name]})
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: library)
    assert syscalls._load() is None


def test_where_offsets_are_short_the_calls_with_long_ones_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = _library(_WRONG)
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: library)
    monkeypatch.setattr(ctypes, "c_long", ctypes.c_int32)
    assert syscalls._load() is library
    assert library.pread is library.pread64


def test_the_c_library_of_this_machine_is_used() -> None:
    assert syscalls._library is not None


# -- pace ------------------------------------------------------------------------------------------


class Times:
    """A clock that advances by each call's cost; notes the calls that released the GIL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        self.takes = 0.0
        self.patient = False
        monkeypatch.setattr(syscalls, "perf_counter", lambda: self.now)
        monkeypatch.setattr(syscalls, "_library", SimpleNamespace(pwrite=self._hurried))
        plain = SimpleNamespace(**{**vars(os), "pwrite": self._plain})
        monkeypatch.setattr(syscalls, "os", plain)

    def _hurried(self, _descriptor: int, data: bytes, size: int, _offset: int) -> int:
        self.now += self.takes
        self.patient = False
        assert len(data) == size
        return size

    def _plain(self, _descriptor: int, data: bytes, _offset: int) -> int:
        self.now += self.takes
        self.patient = True
        return len(data)

    def gives_up(self, pace: syscalls.Pace, takes: float = 0.0, size: int = 3) -> bool:
        self.takes = takes
        assert syscalls.write_at(pace, 0, bytes(size), 0) == size
        return self.patient


def test_behind_a_slow_call_the_gil_is_given_up_until_all_were_quick_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, pace = Times(monkeypatch), syscalls.Pace()
    slow, quick = syscalls.SLOW_SECONDS * 1.01, syscalls.SLOW_SECONDS * 0.9
    assert not times.gives_up(pace, quick)
    assert not times.gives_up(pace, slow)
    for _ in range(3):  # each slow one counts from its own end
        assert times.gives_up(pace, 0.05)
        times.now += syscalls.PATIENT_SECONDS * 0.9
        assert times.gives_up(pace)
    times.now += syscalls.PATIENT_SECONDS
    assert times.gives_up(pace)
    assert not times.gives_up(pace)


@pytest.mark.parametrize(
    "call",
    [
        lambda pace: syscalls.Reader(8, pace).read(0, 1, 0),
        lambda pace: syscalls.size(pace, 0),
        lambda pace: syscalls.touch(pace, "x"),
        lambda pace: syscalls.try_flock(pace, 0),
        lambda pace: syscalls.unflock(pace, 0),
    ],
    ids=["read", "size", "touch", "try_flock", "unflock"],
)
def test_whichever_call_was_slow_the_next_ones_give_the_gil_up(
    call: Callable[[syscalls.Pace], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, seconds = syscalls.Pace(), itertools.count()
    monkeypatch.setattr(syscalls, "perf_counter", lambda: next(seconds))
    quiet = SimpleNamespace(**dict.fromkeys(_CALLS, lambda *_: 0))
    monkeypatch.setattr(syscalls, "_library", quiet)
    call(pace)
    assert pace.patient_until


def test_to_wait_for_the_gil_is_not_to_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    times, pace = Times(monkeypatch), syscalls.Pace()
    times.gives_up(pace, 0.05)
    times.now += syscalls.PATIENT_SECONDS
    assert times.gives_up(pace, sys.getswitchinterval() + 0.001)
    assert not times.gives_up(pace)


def test_a_large_frame_is_written_without_the_gil_however_quick_the_disk_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, pace = Times(monkeypatch), syscalls.Pace()
    assert times.gives_up(pace, 0.05, FRAME_BODY_MAX)
    assert not times.gives_up(pace, 0, BATCH_BYTES_MAX + 4_096)


def test_each_log_has_a_pace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    times, disk, other = Times(monkeypatch), LocalDisk(), LocalDisk()
    times.gives_up(disk, 0.05)
    assert times.gives_up(disk)
    assert not times.gives_up(other)
