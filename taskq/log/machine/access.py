"""Permissions of a data directory, private or shared, and of its files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskq.core import errors, parsing
from taskq.core.model import Mode
from taskq.log.machine.system import system

open_file: Final = system.open_file
make_directory: Final = system.make_directory
is_shared: Final = system.is_shared
geteuid: Final = system.geteuid
_user, _group, _ROOT = system.user, system.group, system.ROOT


def read_file(path: str | Path, size_max: int) -> bytes:
    """Read a file up to ``size_max`` bytes.

    Raises:
        OSError: the system refuses, or it is no regular file.
    """
    with open(open_file(path), "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read(size_max)


def replace_file(path: Path, temporary: Path, data: bytes) -> None:
    """Replace a file in one step, without a sync.

    Raises:
        OSError: the system refuses.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(open_file(temporary, flags), "wb") as file:  # noqa: PTH123 - likewise
        file.write(data)
    system.rename(temporary, path)


#: First files of a new log, of which one proves a log: writers pass the turnstile first.
_MARKS: Final = ("turnstile.lock", "write.lock", "taskq.json")
_SEGMENTS: Final = "log"
_FOREIGN: Final = ("lost+found", "taskq.toml")
_NAMED_MAX: Final = 3
_GROUP, _OTHERS = 0o070, 0o007
_WRITE_ALL: Final = 0o022
#: Names in a data directory. Readers of the files could stop writers or read payloads.
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
    """Make the data directory of a log to open, or check that this process may use it.

    Args:
        path: the directory, without symbolic links.
        mode: users of a new log; None: this user, or the group of an existing shared directory. An
            existing log must have this mode.

    Raises:
        UsageError: an existing log has more users than ``mode``.
        LogError: the directory cannot be made, is another user's, has a link as a subdirectory, or
            has other files and no log.
    """
    directory = Path(path)
    try:
        is_new = system.make_private(directory)
        status = directory.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if not is_new:
            refuse_foreign(directory)
        if mode is not None and is_shared(status.st_mode) != (mode == "group"):
            if not is_new and (mode == "private" or (directory / "taskq.json").exists()):
                raise errors.UsageError(_other_mode(path, mode, status))
            directory.chmod(system.DIRECTORY_SHARED)
            status = directory.stat()
            if not is_shared(status.st_mode):
                raise errors.LogError(f"{path}: this user is not in its group {_group(status)}")
    except PermissionError as error:
        raise errors.LogError(denied(path, error)) from error
    except OSError as error:
        raise errors.refusal(path, error) from error
    # A read-only file system is not a matter of permissions.
    needed = os.R_OK | os.X_OK | (0 if system.is_read_only(directory) else os.W_OK)
    if not os.access(directory, needed):
        raise errors.LogError(denied(path))
    if _is_left_open(status):
        raise errors.LogError(
            f"{path} belongs to {_user(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):o}), "
            f"who can read and change all of it: give the log a directory of its own, or make this "
            f"one yours: chown -R {geteuid()} {errors.as_typed(path)}"
        )
    refuse_links(path)
    return status


def _is_left_open(status: os.stat_result) -> bool:
    """Return whether another user made the directory, and so controls the files in it."""
    if status.st_uid in (geteuid(), _ROOT) or is_shared(status.st_mode):
        return False
    # Root may open users' directories; a directory open to all may be a trap.
    return geteuid() != _ROOT or bool(status.st_mode & stat.S_IWOTH)


def read_private(file: Path, limit: int) -> str:
    """Return the text of a file with a secret, up to a number of characters.

    Raises:
        UsageError: the file is another user's, who could have written anything, or not regular.
        OSError: it cannot be read.
    """
    # Opening a pipe would block.
    with open(os.open(file, os.O_RDONLY | system.NONBLOCK), encoding="utf-8") as opened:  # noqa: PTH123
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise errors.UsageError(f"{file} is no regular file: give a file with the secret alone")
        if status.st_uid not in (geteuid(), _ROOT):
            raise errors.UsageError(
                f"{file} belongs to {_user(status.st_uid)}: give a file of your own, since its "
                f"owner could have put any secret there"
            )
        return opened.read(limit)


def refuse_links(path: str) -> None:
    """Check that no directory inside a log is a link to another place.

    Raises:
        LogError: one is a symbolic link.
    """
    for name in _DIRECTORIES:
        if os.path.islink(system.named(f"{path}/{name}")):  # noqa: PTH114 - text, maybe no UTF-8
            raise errors.LogError(
                f"{path}/{name} is a symbolic link, and nothing inside a task log may be one: "
                f"move it back, or put all of {path} elsewhere and link that"
            )


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory with other files and no log, since its name is probably wrong.

    Hidden files, settings and a file system's own entries may be in a new log's directory. An
    interrupted creation may leave an empty folder of segments without a lock file.
    """
    names = set(os.listdir(directory))  # noqa: PTH208 - only names are needed
    others = sorted(name for name in names - {*_INNER, *_FOREIGN} if not name.startswith("."))
    if _SEGMENTS in names and os.listdir(directory / _SEGMENTS):  # noqa: PTH208 - likewise
        others = sorted({*others, _SEGMENTS})
    # Checked last: another process may be making the log right now.
    if others and not any((directory / name).exists() for name in _MARKS):
        raise errors.LogError(
            f"{directory} is no task log, and has other files in it: "
            f"{parsing.listed(map(repr, others), _NAMED_MAX)}. Give the log a directory of its "
            f"own, such as {directory / 'taskq-data'}"
        )


def denied(path: str, error: OSError | None = None) -> str:
    """Return why this process cannot use a directory or its files, and what to do."""
    reason = f" ({error.strerror})" if error is not None else ""
    nearest = Path(path)
    while not os.access(nearest, os.F_OK) and nearest != nearest.parent:
        nearest = nearest.parent
    if system.is_read_only(nearest):
        return str(errors.refusal(path, OSError(errno.EROFS, os.strerror(errno.EROFS))))
    status = nearest.stat()
    mine = f"{path} cannot be used{reason}: {nearest} belongs to {_user(status.st_uid)} "
    mine += f"(mode {stat.S_IMODE(status.st_mode):o}), this process is {_user(geteuid())}; "
    if system.HAS_MODES and status.st_uid == geteuid():
        return f"{mine}give it the right: chmod -R u+rwX {errors.as_typed(str(nearest))}"
    return f'{mine}run it as that user, or share the log with a group (mode="group")'


def exposures(path: str) -> list[str]:
    """Return the exposures of a log to users other than its user or sharing group.

    Each is one sentence that ends in the command to fix it. Modes set by people are reported and
    kept.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    except OSError:
        return []
    return list(_exposures(path, status)) if system.HAS_MODES else []


def users_text(path: str) -> str:
    """Describe the users of a log: one user, or the group that shares it."""
    status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    return f"group {_group(status)}" if is_shared(status.st_mode) else _user(status.st_uid)


def _exposures(path: str, status: os.stat_result) -> Iterator[str]:
    mode, shared = status.st_mode, is_shared(status.st_mode)
    if status.st_uid not in (geteuid(), _ROOT) and geteuid() != _ROOT and not shared:
        yield (
            f"{path} belongs to {_user(status.st_uid)}, who can read and change all of it: "
            f"chown -R {geteuid()} {errors.as_typed(path)}"
        )
    strangers = _OTHERS if shared or system.is_alone(status) else _OTHERS | _GROUP
    remedy = f"chmod -R {'o=' if shared else 'go='} {errors.as_typed(path)}"
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


def _other_mode(path: str, mode: Mode, status: os.stat_result) -> str:
    held = f"{path} holds a log of mode {stat.S_IMODE(status.st_mode):o}"
    sign = "+" if mode == "group" else "-"
    quoted = errors.as_typed(path)
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
