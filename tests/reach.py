"""Note which test enters which function, in a copy of the code made by tests/mutants.py.

Each function of the copy calls :func:`enter` first. This module is a pytest plugin: it clears the
notes before each test and writes them after it. Other processes write at once, for the test that
started them. Functions that a fixture enters count for all tests of the file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

#: Folder for one file of each process.
FOLDER: Final = os.environ.get("REACH_FOLDER", "")
#: Flags of functions that are already noted, by number.
seen: Final = bytearray(1 << 16)
_entered: Final[list[int]] = []
_notes: Final[list[bool]] = []
_open, _write, _close = os.open, os.write, os.close


def enter(number: int) -> None:
    seen[number] = 1
    if _notes:
        _entered.append(number)
    else:
        put(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], 0, (number,))


def put(test: str, seconds: float, numbers: Iterable[int]) -> None:
    line = f"{test}\t{seconds:.3f}\t{' '.join(map(str, numbers))}\n"
    try:
        file = _open(Path(FOLDER, str(os.getpid())), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:  # another user's process
        return
    _write(file, line.encode())
    _close(file)


def clear() -> None:
    seen[:] = bytes(len(seen))
    _entered.clear()


def _begin_child() -> None:
    clear()
    _notes.clear()


def pytest_configure() -> None:
    _notes.append(True)
    os.register_at_fork(after_in_child=_begin_child)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    clear()
    started = time.monotonic()
    yield
    put(item.nodeid.partition("::")[0], time.monotonic() - started, _entered)
    clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    started = time.monotonic()
    try:
        yield
    except pytest.skip.Exception:
        raise
    except BaseException:
        put(item.nodeid, -1, ())  # it fails without a mutant
        raise
    put(item.nodeid, time.monotonic() - started, _entered)
