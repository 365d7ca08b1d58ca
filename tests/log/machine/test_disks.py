"""The simulated disk does what the real one does, and forgets what a real one may forget."""

import ctypes
import errno
import fcntl
import functools
import itertools
import os
import queue
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.log.config import BATCH_BYTES_MAX
from taskq.log.format.codec import FRAME_BODY_MAX
from taskq.log.machine import disk as machine_disk
from taskq.log.machine import posix, windows
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.meters import Histogram
from taskq.log.machine.ports import Disk
from tests.machine.crashable import CrashableDisk, Machine
from tests.machine.sharing import Held

_SEEDS: Final = range(60)
#: a folder's name, too long for Windows beside others
_DEEP: Final = "d" * 200


@pytest.fixture(params=["local", "simulated"])
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Disk, str]:
    if request.param == "local":
        return LocalDisk(), LocalDisk(), str(tmp_path)
    machine = Machine()
    CrashableDisk(machine).make_directory("/srv/here")
    return CrashableDisk(machine), CrashableDisk(machine), "/srv/here"


@pytest.mark.disk
@pytest.mark.parametrize("session", [b"", b"0C9D-5F\0"])
def test_without_proc_the_boot_is_one_after_a_sleep(
    monkeypatch: pytest.MonkeyPatch, session: bytes
) -> None:
    """By macOS's name of it, or by a clock that goes on while the machine sleeps."""

    def missing(path: Path) -> bytes:
        raise FileNotFoundError(path)

    guess = machine_disk._boot.__wrapped__
    monkeypatch.setattr(Path, "read_bytes", missing)
    monkeypatch.setattr(posix, "boot_session", lambda: session)
    before, monotonic = guess(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() - 3_600)
    after = guess()
    monkeypatch.setattr(SystemClock, "wall_ns", lambda: time.time_ns() + 10**12)
    assert before == after
    assert (guess() == before) == bool(session)  # a clock that is set is no sleep


@pytest.fixture
def on_macos(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The module for POSIX takes this system for macOS (.ci/fallbacks has what Linux lacks)."""
    monkeypatch.setattr(
        posix, "sys", SimpleNamespace(platform="darwin", getswitchinterval=lambda: 1.0)
    )
    return monkeypatch


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        (0, ["full"]),
        (errno.ENOTSUP, ["full", "fsync"]),
        (errno.ENOTTY, ["full", "fsync"]),
        (errno.EINVAL, ["full", "fsync"]),
        (errno.EIO, ["full", "error"]),
    ],
)
def test_macos_flushes_the_drive_unless_the_file_system_has_no_such_call(
    on_macos: pytest.MonkeyPatch, number: int, calls: list[str]
) -> None:
    seen = list[str]()

    def flush(descriptor: int, command: int) -> None:
        assert (descriptor, command) == (7, 51)
        seen.append("full")
        if number:
            raise OSError(number, "refused")

    on_macos.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    on_macos.setattr(fcntl, "fcntl", flush)
    on_macos.setattr(os, "fsync", lambda _: seen.append("fsync"))
    try:
        posix.sync(posix.Pace(), 7)
    except OSError:
        seen.append("error")
    assert seen == calls


def test_macos_has_its_own_birth_boot_memory_and_device(
    on_macos: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = SimpleNamespace(st_birthtime=1.5, st_dev=-3, st_ino=7, st_size=9)
    with on_macos.context() as patch:
        patch.setattr(os, "fstat", lambda _: facts)
        assert posix.born_ns(0) == 1_500_000_000
        patch.setattr(os, "stat", lambda _: facts)
        patch.setattr(posix, "_statx", None)
        reader = posix.StatusReader(posix.Pace())
        assert reader.status("there") == (2**64 - 3, 7, 9)

    def session(_: bytes, name: Any, size: Any, *__: object) -> int:
        name.value = b"0C9D"
        size._obj.value = 5
        return 0

    on_macos.setattr(posix, "_libc", lambda: SimpleNamespace(sysctlbyname=session))
    assert posix.boot_session() == b"0C9D\0"
    on_macos.setattr(posix, "_libc", SimpleNamespace)
    assert posix.boot_session() == b""
    on_macos.setattr(posix, "Path", lambda _: tmp_path / "none")
    peak = posix.memory_bytes()
    on_macos.setattr(posix, "sys", SimpleNamespace(platform="freebsd"))
    assert posix.memory_bytes() >= peak * 1_024
    assert posix.has_open(1, tmp_path)  # nothing shows it


@pytest.mark.disk
def test_two_containers_of_one_machine_are_in_one_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    boots = set()
    monkeypatch.setattr(machine_disk, "_boot", machine_disk._boot.__wrapped__)  # each time anew
    for machine in (b"one image's", b"another image's", None):

        def read_bytes(path: Path, machine: bytes | None = machine) -> bytes:
            if str(path) == "/proc/sys/kernel/random/boot_id":
                return b"0a1b"
            if machine is None:
                raise FileNotFoundError
            return machine

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        boots.add(LocalDisk().boot_id())
    assert len(boots) == 1


@pytest.mark.disk
def test_a_missing_file_is_an_error_unless_it_is_to_be_made(disks: tuple[Disk, Disk, str]) -> None:
    disk, _, path = disks
    with pytest.raises(FileNotFoundError):
        disk.open(f"{path}/a")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{path}/a", write=False)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{path}/none/a", create=True)
    descriptor = disk.open(f"{path}/a", create=True)
    assert disk.size(descriptor) == 0
    assert disk.names(path) == ["a"]
    assert disk.names(f"{path}/none") == []


@pytest.mark.disk
def test_reads_end_at_the_end_and_writes_reach_beyond_it(disks: tuple[Disk, Disk, str]) -> None:
    disk, other, path = disks
    descriptor = disk.open(f"{path}/a", create=True)
    assert disk.write(descriptor, b"abc", 5) == 3
    reader = other.open(f"{path}/a", write=False)
    assert other.read(reader, 100, 0) == b"\0\0\0\0\0abc"
    assert other.read(reader, 2, 6) == b"bc"
    assert other.read(reader, 10, 8) == b""
    assert other.read(reader, 10, 1_000) == b""
    disk.truncate(descriptor, 6)
    assert other.read(reader, 100, 0) == b"\0\0\0\0\0a"
    disk.truncate(descriptor, 9)
    assert other.size(reader) == 9
    assert other.read(reader, 100_000, 4) == b"\0a\0\0\0"
    disk.sync(descriptor)
    disk.sync_directory(path)


@pytest.mark.posix("nobody replaces an open file")
@pytest.mark.disk
def test_a_rename_replaces_and_a_removed_file_stays_readable(disks: tuple[Disk, Disk, str]) -> None:
    disk, other, path = disks
    old, new = disk.open(f"{path}/old", create=True), disk.open(f"{path}/new", create=True)
    disk.write(old, b"old", 0)
    disk.write(new, b"new", 0)
    disk.rename(f"{path}/new", f"{path}/old")
    assert disk.names(path) == ["old"]
    assert other.read(other.open(f"{path}/old"), 9, 0) == b"new"
    assert disk.read(old, 9, 0) == b"old"
    disk.remove(f"{path}/old")
    disk.remove(f"{path}/old")
    assert disk.names(path) == []
    assert disk.read(new, 9, 0) == b"new"
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{path}/old", f"{path}/other")


@pytest.mark.disk
def test_directories_are_made_with_their_parents_and_listed(disks: tuple[Disk, Disk, str]) -> None:
    disk, _, path = disks
    disk.make_directory(f"{path}/x/y")
    disk.make_directory(f"{path}/x/y")
    assert disk.names(path) == ["x"]
    assert disk.names(f"{path}/x") == ["y"]
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{path}/z")


@pytest.mark.posix("a handle that has the lock is refused it")
@pytest.mark.disk
def test_a_lock_belongs_to_an_open_file_and_goes_with_it(disks: tuple[Disk, Disk, str]) -> None:
    disk, other, path = disks
    mine = disk.open(f"{path}/lock", create=True)
    theirs, third = other.open(f"{path}/lock"), other.open(f"{path}/lock")
    assert disk.try_lock(mine)
    assert disk.try_lock(mine)
    assert not other.try_lock(theirs)
    disk.unlock(mine)
    assert other.try_lock(theirs)
    assert not other.try_lock(third)
    assert not disk.try_lock(mine)
    other.close(theirs)
    disk.lock(mine)
    assert not other.try_lock(third)


@pytest.mark.disk
def test_a_boot_has_one_number_and_a_disk_has_room(disks: tuple[Disk, Disk, str]) -> None:
    disk, other, path = disks
    assert disk.boot_id() == other.boot_id() < 2**64
    assert 0 < disk.free_bytes(path) <= disk.total_bytes(path)


@pytest.mark.disk
def test_room_that_was_set_aside_is_the_files_own_and_keeps_what_is_in_it(
    disks: tuple[Disk, Disk, str],
) -> None:
    disk, _, path = disks
    descriptor = disk.open(f"{path}/a", create=True)
    disk.write(descriptor, b"abc", 0)
    disk.allocate(descriptor, 100_000)
    assert disk.size(descriptor) == 100_000
    assert disk.read(descriptor, 3, 0) == b"abc"
    disk.allocate(descriptor, 10)
    assert disk.size(descriptor) == 100_000


@pytest.mark.disk
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_a_disk_without_fallocate_gets_incompressible_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    def refuse(*_: int) -> None:
        assert code is not None
        raise OSError(code, os.strerror(code))

    if code is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    disk = LocalDisk()
    descriptor = disk.open(f"{tmp_path}/a", create=True)
    disk.write(descriptor, b"abc", 0)
    disk.allocate(descriptor, 200_000)
    data = disk.read(descriptor, 300_000, 0)
    assert len(data) == 200_000
    assert data.startswith(b"abc")
    assert len(zlib.compress(data)) > 190_000, "a compressing file system would set nothing aside"
    disk.close(descriptor)


def _after_power_loss(seed: int, act: Callable[[CrashableDisk], None]) -> tuple[Machine, bytes]:
    machine = Machine(seed)
    disk = CrashableDisk(machine)
    disk.make_directory("/d")
    disk.sync_directory("/")
    descriptor = disk.open("/d/f", create=True)
    disk.write(descriptor, b"a" * 2_000, 0)
    disk.sync(descriptor)
    disk.sync_directory("/d")
    act(disk)
    machine.lose_power()
    return machine, machine.content("/d/f")


def _write(disk: CrashableDisk) -> None:
    disk.write(disk.open("/d/f"), b"b" * 3_000, 1_800)


def _truncate(disk: CrashableDisk) -> None:
    disk.truncate(disk.open("/d/f"), 700)


def _fail(disk: CrashableDisk) -> None:
    descriptor = disk.open("/d/f")
    disk.write(descriptor, b"b" * 4_096, 0)
    disk.machine.fail_next_syncs()
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(descriptor)
    disk.sync(descriptor)
    assert disk.read(descriptor, 9_999, 0) == b"b" * 4_096


def _name(disk: CrashableDisk) -> None:
    disk.close(disk.open("/d/new", create=True))
    disk.close(disk.open("/d/tmp", create=True))
    disk.rename("/d/tmp", "/d/name")
    disk.make_directory("/d/e")


@pytest.mark.disk
def test_what_was_not_synced_is_kept_in_any_part_and_nothing_else_is_touched() -> None:
    seen = {_after_power_loss(seed, _write)[1] for seed in _SEEDS}
    assert all(data[:1_800] == b"a" * 1_800 for data in seen)
    assert {len(data) for data in seen} == {2_000, 4_800}
    tails = {data[1_800:] for data in seen}
    assert {b"a" * 200, b"b" * 3_000} <= tails, "none of it, and all of it"
    assert any(b"\0" in tail and b"b" in tail for tail in tails), "holes"
    assert any(tail[:200] == b"a" * 200 and b"b" in tail for tail in tails), "the end first"
    seen = {_after_power_loss(seed, _truncate)[1] for seed in _SEEDS}
    assert {len(data) for data in seen} >= {700, 2_000}, "a cut may come back"
    assert all(data[:512] == b"a" * 512 for data in seen)
    seen = {_after_power_loss(seed, _fail)[1] for seed in _SEEDS}
    assert len(seen) > 10, "pages of a failed sync read back, and are lost"
    assert all(set(data) <= set(b"ab\0") for data in seen)
    names = {tuple(CrashableDisk(_after_power_loss(s, _name)[0]).names("/d")) for s in _SEEDS}
    assert {("f",), ("e", "f", "name", "new"), ("f", "tmp")} <= names
    assert not any({"tmp", "name"} <= set(some) for some in names), "a rename is one step"


_PyDLL: Final = ctypes.PyDLL
_CALLS: Final = (
    "pread", "pread64", "pwrite", "pwrite64", "lseek", "lseek64", "write", "read", "flock",
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


@pytest.mark.posix("the calls are those of kernel32")
@pytest.mark.parametrize("name", _WRONG)
def test_a_c_library_that_means_other_places_of_a_file_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 32-bit machines it destroyed logs, and found others empty."""
    library = _library({name: _WRONG[name], f"{name}64": _WRONG[name]})
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: library)
    assert posix._load() is None


@pytest.mark.posix("the calls are those of kernel32")
def test_where_offsets_are_short_the_long_calls_of_the_c_library_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = _library(_WRONG)
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: library)
    monkeypatch.setattr(ctypes, "c_long", ctypes.c_int32)
    assert posix._load() is library
    assert library.pread is library.pread64


def test_the_c_library_of_this_machine_is_used() -> None:
    assert posix._library is not None


class Times:
    """A clock that advances by each call's cost; notes the calls that released the GIL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        self.takes = 0.0
        self.patient = False
        monkeypatch.setattr(posix, "perf_counter", lambda: self.now)
        monkeypatch.setattr(posix, "_library", SimpleNamespace(pwrite=self._hurried))
        plain = SimpleNamespace(**{**vars(os), "pwrite": self._plain})
        monkeypatch.setattr(posix, "os", plain)

    def _hurried(self, _descriptor: int, data: bytes, size: int, _offset: int) -> int:
        self.now += self.takes
        self.patient = False
        assert len(data) == size
        return size

    def _plain(self, _descriptor: int, data: bytes, _offset: int) -> int:
        self.now += self.takes
        self.patient = True
        return len(data)

    def gives_up(self, pace: posix.Pace, takes: float = 0.0, size: int = 3) -> bool:
        self.takes = takes
        assert posix.write_at(pace, 0, bytes(size), 0) == size
        return self.patient


def test_after_a_slow_call_the_gil_is_released_until_calls_stay_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, pace = Times(monkeypatch), posix.Pace()
    slow, quick = posix.SLOW_SECONDS * 1.01, posix.SLOW_SECONDS * 0.9
    assert not times.gives_up(pace, quick)
    assert not times.gives_up(pace, slow)
    for _ in range(3):  # each slow one counts from its own end
        assert times.gives_up(pace, 0.05)
        times.now += posix.PATIENT_SECONDS * 0.9
        assert times.gives_up(pace)
    times.now += posix.PATIENT_SECONDS
    assert times.gives_up(pace)
    assert not times.gives_up(pace)


@pytest.mark.parametrize(
    "call",
    [
        lambda pace: posix.Reader(8, pace).read(0, 1, 0),
        lambda pace: posix.size(pace, 0),
        lambda pace: posix.try_flock(pace, 0),
        lambda pace: posix.unflock(pace, 0),
    ],
    ids=["read", "size", "try_flock", "unflock"],
)
def test_whichever_call_was_slow_the_next_ones_give_the_gil_up(
    call: Callable[[posix.Pace], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, seconds = posix.Pace(), itertools.count()
    monkeypatch.setattr(posix, "perf_counter", lambda: next(seconds))
    quiet = SimpleNamespace(**dict.fromkeys(_CALLS, lambda *_: 0))
    monkeypatch.setattr(posix, "_library", quiet)
    call(pace)
    assert pace.patient_until


def test_a_large_frame_is_written_without_the_gil_however_quick_the_disk_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, pace = Times(monkeypatch), posix.Pace()
    assert times.gives_up(pace, 0.05, FRAME_BODY_MAX)
    assert not times.gives_up(pace, 0, BATCH_BYTES_MAX + 4_096)


def _histogram(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=50), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_at_most_an_eighth_beside_the_true_one(
    values: list[int], share: float
) -> None:
    rank = max(-int(-share * len(values) // 1), 1)
    true = sorted(values)[rank - 1]
    assert _histogram(values).quantile(share) == pytest.approx(true, rel=0.125)
    assert _histogram(values).total == sum(values)


@pytest.mark.parametrize("code", [5, 32, 33])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("replace", lambda: windows.rename("a", "b")),
        ("unlink", lambda: windows.remove("a")),
        ("link", lambda: windows.link("a", "b")),
        ("stat", lambda: windows.StatusReader(windows.Pace()).status(".")),
    ],
)
def test_a_file_that_a_scanner_holds_is_tried_again_for_a_second(
    monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], object], code: int
) -> None:
    slept, refusals = list[float](), itertools.repeat(Held(code), 9)
    real = os.stat

    def refuse(*_: object) -> Any:
        for refusal in refusals:
            raise refusal
        return real(".")

    monkeypatch.setattr(time, "sleep", slept.append)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        call()
        assert 1 < sum(slept) < 1.2
        assert sorted(slept) == slept
        refusals = itertools.repeat(Held(code), 10)
        with pytest.raises(Held):
            call()
        refusals = itertools.repeat(Held(2), 1)  # no other program's doing
        slept.clear()
        with pytest.raises(Held):
            call()
        assert not slept


class _Events:
    """Events of Windows: each set of a named one shows a waiting thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = dict[int, str | None]()
        self._set = set[int]()
        self._changed = threading.Condition()
        for name in ("create_event", "open_event", "set_event", "wait_for_any", "close_handle"):
            monkeypatch.setattr(windows, f"_{name}", getattr(self, f"_{name}"))

    def _create_event(self, _: None, _is_manual: bool, _is_set: bool, name: str | None) -> int:
        handle = max(self.names, default=0) + 1
        self.names[handle] = name
        return handle

    def _open_event(self, _access: int, _inherits: bool, name: str) -> int | None:
        same = [handle for handle, known in self.names.items() if known == name]
        if not same:
            return None
        self.names[-same[0]] = name
        return -same[0]

    def _set_event(self, handle: int) -> bool:
        with self._changed:
            self._set.add(abs(handle))
            self._changed.notify_all()
        return True

    def _wait_for_any(self, _: int, handles: Any, _all: bool, _milliseconds: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._set & {*handles})
            first = next(number for number, each in enumerate(handles) if each in self._set)
            if self.names[handles[first]] is not None:
                self._set.remove(handles[first])
            return first

    def _close_handle(self, handle: int) -> bool:
        del self.names[handle]
        self._set.discard(handle)
        return True


@pytest.mark.parametrize(
    ("event", "answer", "below"),
    [
        pytest.param(0, [False], [True], id="Ctrl-C, a signal"),
        pytest.param(1, [False], [True], id="Ctrl-Break, another"),
        pytest.param(2, ["asked", 20.0, True], [20.0, True], id="the console is closed"),
        pytest.param(5, [True], [True], id="some user logs off"),
        pytest.param(6, ["asked", 20.0, True], [20.0, True], id="the machine shuts down"),
    ],
)
def test_a_closing_console_of_windows_asks_a_worker_to_stop(
    monkeypatch: pytest.MonkeyPatch, event: int, answer: list[object], below: list[object]
) -> None:
    """The process ends when the handler returns; Wine closes no console."""
    seen, handlers = list[object](), list[Any]()
    _Events(monkeypatch)
    call = lambda handler, added: (handlers.append if added else handlers.remove)(handler)  # noqa: E731 - a call of the system
    monkeypatch.setattr(windows, "_function", lambda *_: call)
    monkeypatch.setattr(time, "sleep", seen.append)
    stop = windows.watch_stop(lambda: seen.append("asked"))
    [leave] = handlers
    seen.append(bool(leave(event)))
    assert seen == answer
    stop()
    assert (bool(leave(event)), seen, handlers) == (False, answer, []), "as without a worker"
    seen.clear()
    monkeypatch.setattr(windows, "_is_below", threading.Event())
    windows.leave_console()
    stop = windows.watch_stop(lambda: seen.append("asked"))
    seen.append(bool(leave(event)))
    stop()
    assert (seen, handlers) == (below, [leave]), "its guard asks it"


def test_requests_to_stop_a_worker_of_windows_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, seen = _Events(monkeypatch), queue.SimpleQueue[str]()
    monkeypatch.setattr(windows, "_function", lambda *_: lambda *_: True)
    for worker in ("first", "second"):
        stop = windows.watch_stop(functools.partial(seen.put, worker))
        for _ in range(2):
            assert windows.ask_to_stop(os.getpid())
            assert seen.get() == worker
        stop()
        assert not windows.ask_to_stop(os.getpid())
    assert (seen.empty(), kernel.names) == (True, {})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("C:\\log", "C:\\log"),
        (f"C:\\{_DEEP}/a/../log", f"\\\\?\\C:\\{_DEEP}\\log"),
        (f"\\\\host\\all\\{_DEEP}", f"\\\\?\\UNC\\host\\all\\{_DEEP}"),
        (f"\\\\?\\C:\\{_DEEP}/log/.", f"\\\\?\\C:\\{_DEEP}\\log"),
    ],
)
def test_a_long_path_gets_the_name_that_windows_takes(path: str, name: str) -> None:
    assert windows.named(path) == windows.named(Path(path)) == name


def test_a_drive_that_resolves_no_links_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> str:
        raise Held(234)

    monkeypatch.setattr(os.path, "realpath", refuse)
    assert windows.resolved("/log/../data") == os.path.abspath("/data")  # noqa: PTH100 - its own


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks for the names of open files")
def test_no_place_of_the_source_minds_a_file_that_is_held_for_a_moment(tmp_path: Path) -> None:
    """A segment that is held for longer is removed later; the log goes on."""
    command = [sys.executable, "-m", "tests.machine.sharing", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.posix("posix cannot be imported")
def test_each_system_has_every_call_that_is_asked_for() -> None:
    root = Path(machine_disk.__file__).parents[3]
    sources = [*root.glob("taskq/**/*.py"), *root.glob("workers/**/*.py")]
    asked: set[str] = set()
    for text in (path.read_text() for path in sources):
        asked.update(re.findall(r"engine\.system\.(\w+)", text))
        if "machine.system import system" in text:
            asked.update(re.findall(r"(?<![.\w])system\.(\w+)", text))
    assert {"open_file", "try_flock", "Bell", "ask_to_stop"} <= asked
    for system in (posix, windows):
        assert not asked - vars(system).keys()
