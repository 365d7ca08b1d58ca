"""Rights of a data directory: private or shared, and its files."""

from __future__ import annotations

import errno
import os
import shlex
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
    """Read a file up to ``size_max`` bytes, however large it is.

    Raises:
        OSError: the system refuses, or it is no regular file.
    """
    with open(open_file(path), "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read(size_max)


def replace_file(path: Path, temporary: Path, data: bytes) -> None:
    """Put a file in place of another in one step; it is not synced.

    Raises:
        OSError: the system refuses.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(open_file(temporary, flags), "wb") as file:  # noqa: PTH123 - likewise
        file.write(data)
    system.rename(temporary, path)


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
    # A file system that nobody may write to is none of the user's doing.
    needed = os.R_OK | os.X_OK | (0 if system.is_read_only(directory) else os.W_OK)
    if not os.access(directory, needed):
        raise errors.LogError(denied(path))
    if _is_left_open(status):
        raise errors.LogError(
            f"{path} belongs to {_user(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):o}), "
            f"who can read and change all of it: give the log a directory of its own, or make this "
            f"one yours: chown -R {geteuid()} {shlex.quote(path)}"
        )
    refuse_links(path)
    return status


def _is_left_open(status: os.stat_result) -> bool:
    """Return whether another user made the directory, who then rules what others put there."""
    if status.st_uid in (geteuid(), _ROOT) or is_shared(status.st_mode):
        return False
    # Root may open users' directories; a directory open to all may be a trap.
    return geteuid() != _ROOT or bool(status.st_mode & stat.S_IWOTH)


def read_private(file: Path, limit: int) -> str:
    """Return the text of a file that holds a secret, up to a number of characters.

    Raises:
        UsageError: it is another user's, who could have put anything there, or no regular file.
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
    """See that the directories inside of a log are none of another place.

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
    if system.is_read_only(seen):
        return str(errors.refusal(path, OSError(errno.EROFS, os.strerror(errno.EROFS))))
    status = seen.stat()
    mine = f"{path} cannot be used{reason}: {seen} belongs to {_user(status.st_uid)} "
    mine += f"(mode {stat.S_IMODE(status.st_mode):o}), this process is {_user(geteuid())}; "
    if system.HAS_MODES and status.st_uid == geteuid():
        return f"{mine}give it the right: chmod -R u+rwX {shlex.quote(str(seen))}"
    return f'{mine}run it as that user, or share the log with a group (mode="group")'


def exposures(path: str) -> list[str]:
    """List exposures of a log to others than its user or sharing group.

    Each is one sentence, which ends in the command that puts it right. Modes that people set are
    reported and kept.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    except OSError:
        return []
    return list(_exposures(path, status)) if system.HAS_MODES else []


def whose(path: str) -> str:
    """Describe the users of a log: its user, or the group that shares it."""
    status = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    return f"group {_group(status)}" if is_shared(status.st_mode) else _user(status.st_uid)


def _exposures(path: str, status: os.stat_result) -> Iterator[str]:
    mode, shared = status.st_mode, is_shared(status.st_mode)
    if status.st_uid not in (geteuid(), _ROOT) and geteuid() != _ROOT and not shared:
        yield (
            f"{path} belongs to {_user(status.st_uid)}, who can read and change all of it: "
            f"chown -R {geteuid()} {shlex.quote(path)}"
        )
    strangers = _OTHERS if shared or system.is_alone(status) else _OTHERS | _GROUP
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
