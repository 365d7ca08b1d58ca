"""Rights of a data directory: private or shared, and its files."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from taskq.core import errors, parsing

#: Opening a pipe that nobody writes to would wait for ever; files do not mind.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_PRIVATE, _FILE_SHARED = 0o600, 0o660
_DIRECTORY_PRIVATE, DIRECTORY_SHARED = 0o700, 0o2770
#: Mode of new parent directories of a log: others may pass through them.
_DIRECTORY_ABOVE: Final = 0o755
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
        # Systems differ in the error for a link.
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
        # If root has no rights, as in some containers and networks, the owner stays.
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *wanted)
    mode = shared if is_shared(directory.st_mode) else private
    _set_mode(descriptor, os.fstat(descriptor), mode)


def _set_mode(file: int | Path, facts: os.stat_result, mode: int) -> None:
    now = stat.S_IMODE(facts.st_mode)
    # Linux lets a directory have the bit of the one above. Who is no member of the group would
    # lose it by asking, so what is right already is left alone.
    if now != (wanted := mode | now & stat.S_ISGID):
        # Some file systems have no modes: opening the log reports the effect.
        with contextlib.suppress(PermissionError):
            os.chmod(file, wanted)  # noqa: PTH101 - it takes a descriptor as well


_ROOT: Final = 0
#: Files of which a log has one before all others: writers pass the turnstile first.
_MARKS: Final = ("turnstile.lock", "write.lock", "taskq.json")
_SEGMENTS: Final = "log"
_BESIDE: Final = ("lost+found", "taskq.toml")
_NAMED_MAX: Final = 3
_GROUP, _OTHERS = 0o070, 0o007
_WRITE_ALL: Final = 0o022
#: Files of a data directory: their readers could stop writers or read payloads.
_DIRECTORIES: Final = ("log", "owners", "snapshot", "readers", "torn", "uploads")
_INNER: Final = (
    *_DIRECTORIES,
    "write.lock",
    "turnstile.lock",
    "sync.lock",
    "taskq.json",
    "reserve",
)


def enter(path: str, mode: Mode | None) -> os.stat_result:
    """Make the data directory of a log that is to be opened, or see that this process may use it.

    Args:
        path: the directory, without symbolic links.
        mode: who may use a log that is made here; None: this user, or the group of a directory that
            is there and shared. For a log that is there already it must be what that is.

    Raises:
        UsageError: the log is there, and shared with others than ``mode`` says.
        LogError: it cannot be made, is another user's, has a link as a directory in it, or no log
            but other files.
    """
    directory = Path(path)
    try:
        is_new = make_private(directory)
        status = directory.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if not is_new:
            refuse_foreign(directory)
        if mode is not None and is_shared(status.st_mode) != (mode == "group"):
            if not is_new and (mode == "private" or (directory / "taskq.json").exists()):
                raise errors.UsageError(_other_mode(path, mode, status))
            directory.chmod(DIRECTORY_SHARED)
            status = directory.stat()
            if not is_shared(status.st_mode):
                raise errors.LogError(f"{path}: this user is not in its group {_group(status)}")
    except PermissionError as error:
        raise errors.LogError(denied(path, error)) from error
    except OSError as error:
        raise errors.refusal(path, error) from error
    # A file system that nobody may write to is none of the user's doing.
    needed = os.R_OK | os.X_OK | (0 if os.statvfs(directory).f_flag & os.ST_RDONLY else os.W_OK)
    if not os.access(directory, needed):
        raise errors.LogError(denied(path))
    if _is_left_open(status):
        raise errors.LogError(
            f"{path} belongs to {_user(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):o}), "
            f"who can read and change all of it: give the log a directory of its own, or make this "
            f"one yours: chown -R {os.geteuid()} {shlex.quote(path)}"
        )
    refuse_links(path)
    return status


def _is_left_open(status: os.stat_result) -> bool:
    """Return whether another user made the directory, who then rules what others put there."""
    if status.st_uid in (os.geteuid(), _ROOT) or is_shared(status.st_mode):
        return False
    # Root may open users' directories; a directory open to all may be a trap.
    return os.geteuid() != _ROOT or bool(status.st_mode & stat.S_IWOTH)


def read_private(file: Path, limit: int) -> str:
    """Return the text of a file that holds a secret, up to a number of characters.

    Raises:
        UsageError: it is another user's, who could have put anything there, or no regular file.
        OSError: it cannot be read.
    """
    # Opening a pipe would block.
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as opened:  # noqa: PTH123
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise errors.UsageError(
                f"{file} is no regular file: give one that holds the secret alone"
            )
        if status.st_uid not in (os.geteuid(), _ROOT):
            raise errors.UsageError(
                f"{file} belongs to {_user(status.st_uid)}: give a file of your own, since its "
                f"owner could have put any secret there"
            )
        return opened.read(limit)


def refuse_links(path: str) -> None:
    """See that the directories inside of a log are none of another place.

    Raises:
        LogError: one is a symbolic link.
    """
    for name in _DIRECTORIES:
        if os.path.islink(f"{path}/{name}"):  # noqa: PTH114 - text, maybe no UTF-8
            raise errors.LogError(
                f"{path}/{name} is a symbolic link, and nothing inside a task log may be one: "
                f"move it back, or put all of {path} elsewhere and link that"
            )


def refuse_foreign(directory: Path) -> None:
    """Write nothing among files that are no log's: somebody named the wrong directory.

    Hidden files, settings and what a file system keeps may be in a new log's directory. An empty
    folder of segments may be there before the lock file, of one whose making was interrupted.
    """
    names = set(os.listdir(directory))  # noqa: PTH208 - names are all that is wanted
    others = sorted(name for name in names - {*_INNER, *_BESIDE} if not name.startswith("."))
    if _SEGMENTS in names and os.listdir(directory / _SEGMENTS):  # noqa: PTH208 - likewise
        others = sorted({*others, _SEGMENTS})
    # Looked for last: another process may be making the log at this very moment.
    if others and not any((directory / name).exists() for name in _MARKS):
        raise errors.LogError(
            f"{directory} is no task log, and has other files in it: "
            f"{parsing.listed(map(repr, others), _NAMED_MAX)}. Give the log a directory of its "
            f"own, such as {directory / 'taskq-data'}"
        )


def denied(path: str, error: OSError | None = None) -> str:
    """Say why this process cannot use a directory, or what is in it, and what to do."""
    reason = f" ({error.strerror})" if error is not None else ""
    seen = Path(path)
    while not os.access(seen, os.F_OK) and seen != seen.parent:
        seen = seen.parent
    if os.statvfs(seen).f_flag & os.ST_RDONLY:
        return str(errors.refusal(path, OSError(errno.EROFS, os.strerror(errno.EROFS))))
    status = seen.stat()
    return (
        f"{path} cannot be used{reason}: {seen} belongs to {_user(status.st_uid)} "
        f"(mode {stat.S_IMODE(status.st_mode):o}), this process is {_user(os.geteuid())}; "
        f'run it as that user, or share the log with a group (mode="group")'
    )


def exposures(path: str) -> list[str]:
    """List exposures of a log to others than its user or sharing group.

    Each is one sentence, which ends in the command that puts it right. Modes that people set are
    reported and kept.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    except OSError:
        return []
    return list(_exposures(path, status))


def whose(path: str) -> str:
    """Describe the users of a log: its user, or the group that shares it."""
    status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    return f"group {_group(status)}" if is_shared(status.st_mode) else _user(status.st_uid)


def _exposures(path: str, status: os.stat_result) -> Iterator[str]:
    mode, shared = status.st_mode, is_shared(status.st_mode)
    if status.st_uid not in (os.geteuid(), _ROOT) and os.geteuid() != _ROOT and not shared:
        yield (
            f"{path} belongs to {_user(status.st_uid)}, who can read and change all of it: "
            f"chown -R {os.geteuid()} {shlex.quote(path)}"
        )
    strangers = _OTHERS if shared or _is_alone(status) else _OTHERS | _GROUP
    remedy = f"chmod -R {'o=' if shared else 'go='} {shlex.quote(path)}"
    if mode & strangers & _WRITE_ALL:
        who = "every user" if mode & _OTHERS & _WRITE_ALL else f"group {_group(status)}"
        yield f"{path} is writable by {who} (mode {stat.S_IMODE(mode):o}): {remedy}"
    elif open_to := mode & strangers & 0o011:
        who = "every user" if open_to & _OTHERS else f"group {_group(status)}"
        inner = [name for name in _INNER if _mode_of(f"{path}/{name}") & strangers]
        if inner:
            yield f"{path}/{inner[0]} is open to {who}, who can stop its writers: {remedy}"


def _mode_of(path: str) -> int:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return 0
    return 0 if stat.S_ISLNK(mode) else mode


def _is_alone(status: os.stat_result) -> bool:
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def _other_mode(path: str, mode: Mode, status: os.stat_result) -> str:
    held = f"{path} holds a log of mode {stat.S_IMODE(status.st_mode):o}"
    sign = "+" if mode == "group" else "-"
    quoted = shlex.quote(path)
    directories = f"find {quoted} -type d -exec chmod g{sign}s {{}} +"
    if mode == "group":
        return (
            f"{held}, which is not shared: to share it with group {_group(status)}, "
            f"stop its processes, then chmod -R g=rwX,o= {quoted} && {directories}"
        )
    return (
        f"{held}, which group {_group(status)} shares: to make it private, stop its processes, "
        f"then chmod -R go= {quoted} && {directories}"
    )


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _group(status: os.stat_result) -> str:
    try:
        return grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return str(status.st_gid)


#: Users of a log: its user alone, or the group of its directory.
Mode = Literal["private", "group"]
