"""Refusals of the system while a log is opened or read are errors of ours, and nothing leaks."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.errors import LogError
from taskq.log.config import LogConfig
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.syscalls import Reader, StatusReader
from taskq.log.read.reader import LogReader
from taskq.log.store.store import open_store

_CONFIG: Final = LogConfig(min_free_bytes=0, reserve_bytes=0)
_CALLS: Final = (
    "open", "names", "read", "write", "sync", "sync_directory", "rename", "truncate", "size",
    "try_lock", "status", "make_directory", "identity",
)  # fmt: skip
_CODES: Final = (
    errno.EROFS, errno.EMFILE, errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR, errno.EIO,
)  # fmt: skip
#: More descriptors than opening a log takes.
_ENOUGH: Final = 24


def _descriptors() -> set[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {str(link.readlink()) for link in links}


def _refuse(patch: pytest.MonkeyPatch, name: str, number: int, code: int) -> None:
    """Let this call of the disk fail, and all of its name that follow."""
    owner: type = {"read": Reader, "status": StatusReader}.get(name, LocalDisk)
    call = vars(owner)[name]
    left = [number]

    def refused(self: Any, *args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code), "somewhere")
        return call.__get__(self)(*args, **options)

    patch.setattr(owner, name, refused)


@pytest.mark.parametrize("name", _CALLS)
def test_what_the_disk_refuses_at_opening_is_a_log_error_and_leaves_nothing_open(
    tmp_path: Path, name: str
) -> None:
    path = str(tmp_path / "data")
    for number in range(4):
        code = _CODES[(number + len(name)) % len(_CODES)]
        with pytest.MonkeyPatch.context() as patch:
            _refuse(patch, name, number, code)
            with contextlib.suppress(LogError):  # it may open without that, too
                open_store(path, _CONFIG).close()
        assert not [link for link in _descriptors() if link.startswith(path)]
    open_store(path, _CONFIG).close()


def test_without_descriptors_the_limit_is_named_and_nothing_leaks(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    refused = 0
    for more in range(_ENOUGH):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        try:
            open_store(path, _CONFIG).close()
        except LogError as error:
            refused += 1
            assert "ulimit -n" in str(error)  # noqa: PT017 - with enough of them it opens
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not [name for name in _descriptors() if name.startswith(path)]
    assert refused


def _file(path: Path) -> Path:
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (_file, "another path"),
        (lambda path: _file(path) / "below", "another path"),
        (lambda path: path / ("x" * 300), "shorter path"),
        (lambda path: path.joinpath(*["y" * 200] * 30), "shorter path"),
    ],
    ids=["a file", "below a file", "a long name", "a long path"],
)
def test_a_path_that_can_be_no_directory_is_one_line_that_says_what_to_do(
    tmp_path: Path, make: Callable[[Path], Path], advice: str
) -> None:
    path = make(tmp_path / "data")
    with pytest.raises(LogError, match=advice):
        TaskQ(path).open_sync()
    with pytest.raises(LogError):
        LogReader.open(str(path))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Yield a log on a file system that nobody may write to."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        with TaskQ(place / "data") as app:
            app.enqueue_by_name_sync("some.task")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "data"
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "peek", "dead ls", "workers", "tail"])
def test_read_commands_work_on_a_read_only_file_system(read_only: Path, command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "-d", str(read_only)])
    assert result.exit_code == 0, result.output


def test_who_would_write_on_a_read_only_file_system_is_told_what_to_do(read_only: Path) -> None:
    with pytest.raises(LogError, match=r"Read-only file system\. Mount the file system"):
        TaskQ(read_only).open_sync()
    with pytest.raises(LogError, match="Read-only"):
        TaskQ(read_only / "new").open_sync()
