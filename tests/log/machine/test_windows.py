"""Facts of Windows about files, locks and processes, which ``machine.windows`` needs.

``WINE`` names the facts in which Wine 8 differs: code that needs these was tried on no Windows.
Appends of two processes, the fineness of clocks, and whether ``os.kill(pid, 0)`` ends a
process have no one answer there; the log uses none of them.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from taskq.log.machine import windows

pytestmark = pytest.mark.skipif(os.name != "nt", reason="asks Windows")

Fact = Callable[[Path], object]
#: name -> (probe, Windows' answer)
FACTS: Final[dict[str, tuple[Fact, object]]] = {}
#: name -> Wine's answer
WINE: Final[dict[str, object]] = {
    "a folder with an open file is renamed": "done",
    "a locked range is read by another handle": "done",
    "a name is free at once while its removed file is open": 80,
    "a locked range is written by another handle": "done",
}
PAUSE: Final = "import sys, time; print(flush=True); time.sleep(100)"
NO_SHARING: Final = 0


def fact(answer: object) -> Callable[[Fact], Fact]:
    def note(probe: Fact) -> Fact:
        FACTS[probe.__name__.replace("_", " ").strip()] = probe, answer
        return probe

    return note


def said(call: Callable[[], object]) -> object:
    try:
        call()
    except OSError as error:
        return getattr(error, "winerror", None) or f"errno {error.errno}"
    return "done"


def made(folder: Path, name: str = "a", data: bytes = b"x" * 100) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@contextlib.contextmanager
def shared(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    descriptor = windows.open_file(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def child(code: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", code, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@fact(32)
def an_open_file_is_removed(folder: Path) -> object:
    with made(folder).open("rb"):
        return said((folder / "a").unlink)


@fact(32)
def a_file_that_another_process_has_open_is_removed(folder: Path) -> object:
    code = "import sys, time; f = open(sys.argv[1]); print(flush=True); time.sleep(100)"
    with child(code, made(folder)):
        return said((folder / "a").unlink)


@fact(5)
def an_open_file_is_replaced(folder: Path) -> object:
    with made(folder).open("rb"):
        return said(lambda: made(folder, "b").replace(folder / "a"))


@fact(5)
def a_folder_with_an_open_file_is_renamed(folder: Path) -> object:
    (folder / "inner").mkdir()
    with made(folder / "inner").open("rb"):
        return said(lambda: (folder / "inner").rename(folder / "other"))


@fact(["done", "done"])
def a_file_of_ours_is_removed_and_made_anew_while_open(folder: Path) -> object:
    with shared(made(folder)):
        return [said((folder / "a").unlink), said(lambda: made(folder))]


@fact("done")
def a_name_is_free_at_once_while_its_removed_file_is_open(folder: Path) -> object:
    with shared(made(folder)):
        (folder / "a").unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return said(lambda: os.close(windows.open_file(folder / "a", flags)))


@fact([32, "done"])
def a_file_is_removed_after_the_death_of_the_process_that_had_it_open(folder: Path) -> object:
    code = "import sys, time; f = open(sys.argv[1]); print(flush=True); time.sleep(100)"
    with child(code, made(folder)) as process:
        before = said((folder / "a").unlink)
        process.kill()
        process.wait()
        return [before, said((folder / "a").unlink)]


@fact("done")
def a_file_of_ours_is_renamed_while_open(folder: Path) -> object:
    with shared(made(folder)):
        return said(lambda: (folder / "a").rename(folder / "b"))


@fact(5)
def a_file_of_ours_is_replaced_while_open(folder: Path) -> object:
    with shared(made(folder)):
        return said(lambda: made(folder, "b").replace(folder / "a"))


@fact("errno 13")
def a_file_that_is_shared_with_nobody_is_opened(folder: Path) -> object:
    path = str(made(folder))
    handle = windows._create_file(path, windows._READ, NO_SHARING, None, 3, 0, None)
    try:
        return said(lambda: os.close(os.open(path, os.O_RDONLY)))
    finally:
        windows._close_handle(handle)


@fact("errno 13")
def a_folder_is_opened_by_os_open(folder: Path) -> object:
    return said(lambda: os.close(os.open(folder, os.O_RDONLY)))


@fact([True, False, False, True])
def a_lock_belongs_to_a_handle_and_goes_with_it(folder: Path) -> object:
    pace, path = windows.Pace(), made(folder)
    with shared(path) as other:
        with shared(path) as ours:
            answers = [windows.try_flock(pace, each) for each in (ours, other, ours)]
        return [*answers, windows.try_flock(pace, other)]


@fact([True, True, False, False])
def owners_are_seen_by_sharing_their_lock(folder: Path) -> object:
    with shared(made(folder)) as owner, shared(folder / "a", os.O_RDONLY) as other:
        windows.lock_owner(owner)
        answers = [windows.is_owned(other), windows.is_owned(other)]
        windows.unflock(windows.Pace(), owner)
        return [*answers, windows.is_owned(other), windows.is_owned(owner)]


@fact([True, True, False])
def shared_locks_keep_an_exclusive_one_out(folder: Path) -> object:
    path = made(folder)
    with shared(path) as first, shared(path) as second, shared(path) as third:
        shares = [windows._lock(each, windows._LOCK_AT_ONCE) for each in (first, second)]
        return [*shares, windows.try_flock(windows.Pace(), third)]


@fact([False, True])
def a_lock_ends_with_its_process(folder: Path) -> object:
    code = (
        "import os, sys, time; from taskq.log.machine import windows as w\n"
        "w.lock_owner(w.open_file(sys.argv[1], os.O_RDWR)); print(flush=True); time.sleep(100)"
    )
    with shared(made(folder)) as ours:
        with child(code, folder / "a"):
            before = windows.try_flock(windows.Pace(), ours)
        until = time.monotonic() + 20
        while not windows.try_flock(windows.Pace(), ours):
            if time.monotonic() > until:
                return [before, False]
        return [before, True]


@fact(33)
def a_locked_range_is_read_by_another_handle(folder: Path) -> object:
    return _in_locked_range(folder, lambda other: windows._read(other, _buffer(), 1, 0))


@fact(33)
def a_locked_range_is_written_by_another_handle(folder: Path) -> object:
    return _in_locked_range(folder, lambda other: windows._write(other, b"x", 0))


def _buffer() -> Any:
    return ctypes.create_string_buffer(1)


def _in_locked_range(folder: Path, call: Callable[[int], object]) -> object:
    with shared(made(folder)) as owner, shared(folder / "a") as other:
        handle = windows.msvcrt.get_osfhandle(owner)
        assert windows._lock_file(handle, windows._LOCK_EXCLUSIVE, 0, 10, 0, windows._place(0))
        return said(lambda: call(other))


@fact([3, b"POS", b""])
def bytes_are_read_and_written_at_their_place(folder: Path) -> object:
    with shared(made(folder)) as file:
        count = windows.pwrite(file, b"POS", 50)
        return [count, windows.pread(file, 3, 50), windows.pread(file, 3, 5_000)]


@fact(["done", "done", "done"])
def files_and_folders_are_flushed(folder: Path) -> object:
    pace = windows.Pace()
    with shared(made(folder)) as file, shared(folder / "a", os.O_RDONLY) as read_only:
        files = [said(functools.partial(windows.sync, pace, each)) for each in (file, read_only)]
    return [*files, said(lambda: windows.sync_directory(str(folder)))]


@fact([False, 5])
def a_handle_for_reading_is_flushed(folder: Path) -> object:
    """Which is why ``sync`` opens another."""
    with shared(made(folder), os.O_RDONLY) as file:
        done = windows._flush_file(windows.msvcrt.get_osfhandle(file))
        return [bool(done), windows._last_error()]


@fact([True, True, None])
def the_room_of_a_disk_is_known(folder: Path) -> object:
    free, total, files = windows.room(folder / "missing")
    return [0 < free < total, windows.room(folder)[1] == total, files]


@fact([True, True, True])
def files_have_numbers_and_second_names(folder: Path) -> object:
    first, other = made(folder).stat(), made(folder, "b").stat()
    windows.link(str(folder / "a"), str(folder / "c"))
    with shared(folder / "a") as file:
        same = all(
            os.path.samestat(first, each) for each in (os.fstat(file), (folder / "c").stat())
        )
    return [first.st_ino != other.st_ino, first.st_ino > 0, same]


@fact(["done", "done"])
def paths_are_long(folder: Path) -> object:
    """By the prefix that ``windows`` gives them."""
    deep = folder / ("k" * 200)
    return [
        said(lambda: windows.make_directory(deep)),
        said(lambda: os.close(windows.open_file(deep / ("v" * 100), os.O_RDWR | os.O_CREAT))),
    ]


@fact([True, False])
def a_process_is_asked_for_and_not_ended(folder: Path) -> object:
    del folder
    with child(PAUSE) as process:
        before = windows.lives(process.pid)
    return [before, windows.lives(process.pid)]


@fact(True)
def children_of_a_killed_process_end_by_its_job(folder: Path) -> object:
    code = (
        "import subprocess, sys, time; from taskq.log.machine import windows as w\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "w.end_with_parent(p); open(sys.argv[1], 'w').write(str(p.pid))\n"
        "print(flush=True); time.sleep(100)"
    )
    with child(code, folder / "pid"):
        pid = int((folder / "pid").read_text())
        assert windows.lives(pid)
    return _has_ended(pid)


@fact([True, True])
def a_program_out_of_time_ends_with_its_children(folder: Path) -> object:
    """By ``tests.windows``: they would keep its pipes open, and the test would read for ever."""
    del folder
    code = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {PAUSE!r}])\n"
        "sys.stderr.write(f'{p.pid}\\n'); sys.stderr.flush(); time.sleep(100)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        pid = int(process.stderr.readline())
        before = windows.lives(pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0)
        return [before, _has_ended(pid)]


def _has_ended(pid: int) -> bool:
    until = time.monotonic() + 20
    while windows.lives(pid) and time.monotonic() < until:
        pass
    return not windows.lives(pid)


@fact(["True", True])
def an_event_wakes_another_process(folder: Path) -> object:
    bell = windows.Bell(folder, 7, make=True)
    code = (
        "import sys, time; from pathlib import Path; from taskq.log.machine import windows as w\n"
        "w.Bell(Path(), 7).ring(); print('True', flush=True); time.sleep(100)"
    )
    with child(code):
        rang = bell.wait(20_000)
    bell.close()
    return ["True", rang]


@fact([True, 0])
def a_process_is_asked_to_stop(folder: Path) -> object:
    del folder
    code = (
        "import os, time; from taskq.log.machine import windows as w\n"
        "w.watch_stop(lambda: os._exit(0)); print(flush=True); time.sleep(100)"
    )
    with child(code) as process:
        return [windows.ask_to_stop(process.pid), process.wait(20)]


@fact([True, b"asked", False])
def a_process_is_asked_to_stop_as_long_as_it_watches(folder: Path) -> object:
    del folder
    code = (
        "import sys, threading, time; from taskq.log.machine import windows as w\n"
        "asked = threading.Event(); stop = w.watch_stop(asked.set); print(flush=True)\n"
        "asked.wait(); stop(); print('asked', flush=True); time.sleep(100)"
    )
    with child(code) as process:
        assert process.stdout is not None
        first = windows.ask_to_stop(process.pid)
        return [first, process.stdout.readline().strip(), windows.ask_to_stop(process.pid)]


@fact(1)
def a_killed_process_ends_with(folder: Path) -> object:
    del folder
    with child(PAUSE) as process:
        process.kill()
        return process.wait()


@fact(True)
def clocks_go_on(folder: Path) -> object:
    del folder
    began = windows.steady_ns()
    until = time.time() + 0.1
    while time.time() < until:
        pass
    return windows.steady_ns() > began


@pytest.mark.parametrize("name", FACTS)
def test_windows_does_as_the_port_takes_it(tmp_path: Path, name: str) -> None:
    probe, answer = FACTS[name]
    is_wine = hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")  # type: ignore[attr-defined]
    assert probe(tmp_path) == (WINE.get(name, answer) if is_wine else answer)
