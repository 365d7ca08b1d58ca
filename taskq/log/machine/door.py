"""The one door to the files of a task log: how they are made, and what is not opened.

Whoever may open ``write.lock`` can stop all writers with a lock on it, whoever may read an owner's
lock file can keep a dead worker "alive", and whoever may write into a directory can put a pipe or a
symbolic link where a file is looked for. So a log belongs to one user, or to a group that shares
it, and what is inside is made and opened accordingly, whatever the umask:

- A directory that is set-group-ID and writable by its group is shared: what is made in it is open
  to that group (2770 and 660). What is made anywhere else is its owner's alone (700 and 600). No
  file says which: each process that opens the log sees it in the directory itself.
- What root makes belongs to the owner and the group of the directory that it is made in.
- Modes are given to what is made, never changed of what is there: that somebody chose.
- Only regular files are opened, and pipes where a pipe is expected. A symbolic link is refused, for
  a file and, where something is written, for the directory that it is in. The data directory itself
  may be one: who opens a log resolves it first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: Opening a pipe that nobody writes to would wait for ever; files do not mind.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_PRIVATE, _FILE_SHARED = 0o600, 0o660
_DIRECTORY_PRIVATE, DIRECTORY_SHARED = 0o700, 0o2770
#: Of directories on the way to a log that are missing: others may pass through them.
_DIRECTORY_ABOVE: Final = 0o755
_ROOT: Final = 0
_SYMLINK: Final = "it is a symbolic link, and nothing inside a task log may be one"


class NotAFile(OSError):
    """Something else stands where a file, a pipe or a directory is looked for."""


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that no executed child inherits; with ``O_CREAT`` a missing one is made.

    Raises:
        NotAFile: it is a symbolic link, a pipe, a device or a directory.
        OSError: the system refuses.
    """
    path = str(path)
    if not flags & (os.O_RDWR | os.O_WRONLY):
        return _opened(path, flags, stat.S_ISREG)
    with _directory_of(path) as (directory, name):
        if not flags & os.O_CREAT:
            return _opened(path, flags, stat.S_ISREG, name, directory)
        while True:
            with contextlib.suppress(FileNotFoundError):
                return _opened(path, flags & ~os.O_CREAT, stat.S_ISREG, name, directory)
            with contextlib.suppress(FileExistsError):  # another process was faster
                return _made(path, flags | os.O_EXCL, name, directory)


def open_pipe(path: str | Path, flags: int) -> int:
    """Open a named pipe without waiting for its other end.

    Raises:
        OSError: the system refuses, nobody is there to read it, or it is no pipe.
    """
    return _opened(str(path), flags, stat.S_ISFIFO)


def make_pipe(path: str | Path) -> int:
    with _directory_of(str(path)) as (directory, name):
        # Nobody knows of it yet, so nobody misses the mode that the umask takes from it.
        os.mkfifo(path, _FILE_PRIVATE)
        descriptor = _opened(str(path), os.O_RDWR, stat.S_ISFIFO, name, directory)
        _give(descriptor, os.fstat(directory), _FILE_PRIVATE, _FILE_SHARED)
        return descriptor


def make_directory(path: str | Path) -> None:
    """Make a directory, open to whom the one that it is in is open to; one may be there already.

    Directories on the way that are missing are made, too.

    Raises:
        OSError: the system refuses, or something else has the name, be it a link to a directory.
    """
    path = Path(path)
    if not path.parent.exists():
        make_private(path.parent)
    with _directory_of(str(path)) as (directory, name):
        try:
            mode = (
                DIRECTORY_SHARED if is_shared(os.fstat(directory).st_mode) else _DIRECTORY_PRIVATE
            )
            os.mkdir(name, mode, dir_fd=directory)
        except FileExistsError:
            os.close(_open_directory(str(path), name, directory))
        else:
            made = _open_directory(str(path), name, directory)
            try:
                _give(made, os.fstat(directory), _DIRECTORY_PRIVATE, DIRECTORY_SHARED)
            finally:
                os.close(made)


def make_private(path: Path) -> bool:
    """Make a data directory for this user alone; False if it is there already.

    Raises:
        OSError: the system refuses.
    """
    _make_above(path)
    try:
        path.mkdir(_DIRECTORY_PRIVATE)
    except FileExistsError:
        return False
    # Set-group-ID comes with the directory above, and means nothing while the group has no access.
    _set_mode(path, path.stat(), _DIRECTORY_PRIVATE)
    return True


def is_shared(mode: int) -> bool:
    return mode & (stat.S_ISGID | stat.S_IWGRP) == stat.S_ISGID | stat.S_IWGRP


def read_file(path: str | Path, size_max: int) -> bytes:
    """Read a file up to ``size_max`` bytes, however large it is.

    Raises:
        OSError: the system refuses, or it is no regular file.
    """
    with open(open_file(path), "rb") as file:
        return file.read(size_max)


def replace_file(path: Path, temporary: Path, data: bytes) -> None:
    """Put a file in place of another in one step; it is not synced.

    Raises:
        OSError: the system refuses.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(open_file(temporary, flags), "wb") as file:
        file.write(data)
    temporary.replace(path)


def _make_above(path: Path) -> None:
    for parent in reversed(path.parents):
        with contextlib.suppress(FileExistsError):
            if not parent.exists():
                parent.mkdir(_DIRECTORY_ABOVE)


@contextlib.contextmanager
def _directory_of(path: str) -> Iterator[tuple[int, str]]:
    above, name = os.path.split(path)
    directory = _open_directory(above or ".")
    try:
        yield directory, name
    finally:
        os.close(directory)


def _open_directory(path: str, name: str | None = None, directory: int | None = None) -> int:
    try:
        return os.open(name or path, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        # Systems differ in what they say of a link.
        if error.errno in {errno.ENOTDIR, errno.ELOOP} and os.path.islink(path):  # noqa: PTH114 - text, maybe no UTF-8
            raise NotAFile(errno.ELOOP, _SYMLINK, path) from None
        raise


def _opened(
    path: str,
    flags: int,
    is_right: Callable[[int], bool],
    name: str | None = None,
    directory: int | None = None,
) -> int:
    try:
        descriptor = os.open(name or path, flags | _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFile(errno.ELOOP, _SYMLINK, path) from None
        error.filename = path
        raise
    if not is_right(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        what = "file" if is_right is stat.S_ISREG else "pipe"
        raise NotAFile(errno.EINVAL, f"it is no regular {what}", path)
    return descriptor


def _made(path: str, flags: int, name: str, directory: int) -> int:
    facts = os.fstat(directory)
    mode = _FILE_SHARED if is_shared(facts.st_mode) else _FILE_PRIVATE
    try:
        descriptor = os.open(name, flags | _FLAGS, mode, dir_fd=directory)
    except OSError as error:
        error.filename = path
        raise
    try:
        _give(descriptor, facts, _FILE_PRIVATE, _FILE_SHARED)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _give(descriptor: int, directory: os.stat_result, private: int, shared: int) -> None:
    """Let what was just made belong to whom its directory belongs, and give it its mode."""
    facts = os.fstat(descriptor)
    wanted = (directory.st_uid, directory.st_gid)
    if os.geteuid() == _ROOT != directory.st_uid and (facts.st_uid, facts.st_gid) != wanted:
        # Where root is not root, as in some containers and over some networks, it stays as it is.
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *wanted)
    mode = shared if is_shared(directory.st_mode) else private
    _set_mode(descriptor, os.fstat(descriptor), mode)


def _set_mode(file: int | Path, facts: os.stat_result, mode: int) -> None:
    now = stat.S_IMODE(facts.st_mode)
    # Linux lets a directory have the bit of the one above. Who is no member of the group would
    # lose it by asking, so what is right already is left alone.
    if now != (wanted := mode | now & stat.S_ISGID):
        # Some file systems have no modes: what comes of that is told when the log is opened.
        with contextlib.suppress(PermissionError):
            os.chmod(file, wanted)  # noqa: PTH101 - it takes a descriptor as well
