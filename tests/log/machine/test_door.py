"""Files of another kind in a log's place are not opened, and nothing waits for them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.errors import LogError
from taskq.log.machine.access import make_directory, make_pipe, open_file, open_pipe, replace_file
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.health import check_health


def plant_link(path: Path) -> None:
    victim = path.parent.parent / "victim"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)


def plant_dangling(path: Path) -> None:
    path.symlink_to(path.parent.parent / "victim")


PLANTED = [plant_link, plant_dangling, os.mkfifo, os.mkdir]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize(
    "opening",
    [
        lambda path: LocalDisk().open(path, write=False),
        lambda path: LocalDisk().open(path),
        lambda path: LocalDisk().open(path, create=True),
    ],
)
def test_only_regular_files_are_opened_and_at_once(
    tmp_path: Path, plant: Callable[[Path], object], opening: Callable[[str], int]
) -> None:
    (tmp_path / "log").mkdir()
    plant(tmp_path / "log/reserve")
    with pytest.raises(OSError, match=r"symbolic link|no regular file|Is a directory"):
        opening(str(tmp_path / "log/reserve"))
    victim = tmp_path / "victim"
    assert victim.exists() == (plant is plant_link)
    assert plant is not plant_link or victim.read_bytes() == b"precious"


def test_nothing_is_written_through_a_linked_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    for act in (
        lambda: LocalDisk().open(f"{tmp_path}/log/x", create=True),
        lambda: LocalDisk().make_directory(f"{tmp_path}/log/x"),
        lambda: LocalDisk().make_directory(f"{tmp_path}/log"),
        lambda: make_pipe(tmp_path / "log/x"),
    ):
        with pytest.raises(OSError, match="it is a symbolic link"):
            act()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_pipe_is_opened_where_a_pipe_is_expected_and_nothing_else(tmp_path: Path) -> None:
    os.close(make_pipe(tmp_path / "pipe"))
    pipe = open_pipe(tmp_path / "pipe", os.O_RDWR)
    assert stat.S_ISFIFO(os.fstat(pipe).st_mode)
    os.close(pipe)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="it is no regular pipe"):
        open_pipe(tmp_path / "file", os.O_WRONLY)
    with pytest.raises(OSError, match="it is a symbolic link"):
        replace_file(tmp_path / "new", link_to(tmp_path / "file"), b"x")
    assert not (tmp_path / "file").read_bytes()


def link_to(path: Path) -> Path:
    link = path.with_name("link")
    link.symlink_to(path)
    return link


def test_what_is_refused_leaves_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - as many as there are
    for _ in range(10):
        with pytest.raises(OSError, match="no regular file"):
            open_file(tmp_path / "pipe", os.O_RDWR | os.O_CREAT)
        with pytest.raises(OSError, match=r"exists|no regular"):
            make_pipe(tmp_path / "pipe")
        make_directory(tmp_path / "directory")
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208 - likewise


@pytest.mark.parametrize(
    "name", ["log/00000000000000000001.log", "log/00000000000000000009.log", "taskq.json"]
)
@pytest.mark.parametrize("plant", PLANTED)
def test_a_log_with_something_else_for_a_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, plant: Callable[[Path], object]
) -> None:
    """For readers, for ``health`` and for writers, at once."""
    log = tmp_path / "log"
    with TaskLog.open(log) as opened:
        opened.put_sync(b"x")
    (log / name).unlink(missing_ok=True)
    plant(log / name)
    with pytest.raises(LogError, match=name), LogReader.open(str(log)) as reader:
        reader.stats()
    assert any(name in check.detail for check in check_health(log) if not check.ok)
    if "9" not in name:  # no writer needs that one
        with pytest.raises((LogError, OSError), match=name), TaskLog.open(log):
            pass


def test_a_log_is_made_where_modes_cannot_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems let nobody change a mode, and give the right one by themselves."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, refuse)
    for name in ("log", "deep/er/log"):
        with TaskLog.open(tmp_path / name) as opened:
            job = opened.put_sync(b"x")
            assert opened.get_sync(job).payload == b"x"


def test_the_data_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    """People put it on another disk; what is inside is not to be on a third."""
    (tmp_path / "far").mkdir()
    link = tmp_path / "log"
    link.symlink_to(tmp_path / "far")
    with TaskLog.open(link) as opened:
        job = opened.put_sync(b"x")
        assert opened.get_sync(job).payload == b"x"
    with LogReader.open(str(link)) as reader:
        assert reader.stats().queues


@pytest.mark.parametrize("name", ["log", "owners", "uploads", "readers", "snapshot", "torn"])
def test_a_linked_directory_inside_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    with TaskLog.open(log):
        pass
    (log / name).mkdir(exist_ok=True)
    (log / name).rename(tmp_path / "far")
    (log / name).symlink_to(tmp_path / "far")
    text = rf"log/{name} is a symbolic link, .*: move it back, or put all of .*/log elsewhere"
    with pytest.raises(LogError, match=text):
        TaskLog.open(log).__enter__()
    with pytest.raises(LogError, match=text):
        LogReader.open(str(log))
    assert any(name in check.detail for check in check_health(log) if not check.ok)


@pytest.mark.parametrize("plant", PLANTED)
def test_a_reserve_that_is_something_else_grows_nothing(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    log = tmp_path / "log"
    with TaskLog.open(log):
        pass
    (log / "reserve").unlink(missing_ok=True)
    plant(log / "reserve")
    with TaskLog.open(log, reserve=100_000) as opened:
        opened.put_sync(b"x")
    victim = tmp_path / "victim"
    assert not victim.exists() or victim.read_bytes() == b"precious"
