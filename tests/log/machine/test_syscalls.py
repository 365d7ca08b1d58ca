"""The calls that keep the GIL do what Python's own do, or Python's own are used."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq.log.machine import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

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


#: What offsets of the wrong size came to on 32-bit machines.
_WRONG: Final[dict[str, Callable[..., int]]] = {
    "lseek": lambda _descriptor, _offset, _whence: 0,
    "pwrite": _write_elsewhere,
    "pread": _read_elsewhere,
}


def _library(wrong: dict[str, Callable[..., int]]) -> Any:
    """The C library with some calls of it exchanged."""
    real = _PyDLL(None, use_errno=True)
    return SimpleNamespace(**{name: wrong.get(name) or getattr(real, name) for name in _CALLS})


@pytest.mark.parametrize("name", _WRONG)
def test_a_c_library_that_means_other_places_of_a_file_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 32-bit machines it destroyed logs, and found others empty."""
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: _library({name: _WRONG[name]}))
    assert syscalls._load() is None


def test_where_offsets_are_short_the_calls_with_long_ones_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_args, **_options: _library(_WRONG))
    monkeypatch.setattr(ctypes, "c_long", ctypes.c_int32)
    library = syscalls._load()
    assert library is not None
    assert library.pread is library.pread64


def test_the_c_library_of_this_machine_is_used() -> None:
    assert syscalls._library is not None
