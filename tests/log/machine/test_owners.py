"""Owners of a log: their doors, refused peers, and what workers say that they claim."""

import errno
import fcntl
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from taskq import TaskLog
from taskq.cli.main import main
from taskq.core.errors import LogError
from taskq.core.rates import Limit, Rate
from taskq.core.views import Hold, OwnerView, Serving
from taskq.log.config import LogConfig
from taskq.log.machine import posix
from taskq.log.machine.access import replace_file
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.owners import ask_to_stop, publish, read_servings
from taskq.log.machine.peers import LocalPeers
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.machine.posix import make_pipe, open_pipe
from taskq.log.machine.system import system
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
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


@pytest.mark.parametrize("name", ["log", "owners", "taskq.json"])
def test_a_log_with_a_file_for_a_folder_or_without_its_identity_is_named_in_full(
    tmp_path: Path, name: str
) -> None:
    log = tmp_path / "data"
    with TaskLog.open(log) as opened:
        opened.put_sync(b"x")
    (log / name).rename(tmp_path / "away")
    if name != "taskq.json":
        (log / name).touch()
    with pytest.raises(LogError) as refused, TaskLog.open(log):
        pass
    assert str(refused.value).startswith((f"{log}: {name} is missing", f"{log / name}: "))
    done = CliRunner().invoke(main, ["ls", "-d", str(log)])
    assert done.exit_code == (name != "owners"), done.output
    wanted = f"{log}: {name} is missing" if name == "taskq.json" else f"{log / name}: "
    assert name == "owners" or wanted in done.output


def test_a_log_goes_on_with_the_identity_that_the_error_of_a_lost_one_shows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs: list[str] = []
    for _ in range(3):  # the second time its first segments are a parent's
        with TaskLog.open(log) as opened:
            assert [opened.get_sync(job).payload for job in jobs] == [b"x"] * len(jobs)
            jobs.append(opened.put_sync(b"x"))
        (log / "taskq.json").unlink()
        with pytest.raises(LogError) as refused, TaskLog.open(log):
            pass
        (log / "taskq.json").write_text("{" + str(refused.value).partition("{")[2])
    with LogReader.open(str(log)) as reader:
        assert not reader.verify().damage


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


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalPeers, LocalPeers]]:
    both = LocalPeers(str(tmp_path), ""), LocalPeers(str(tmp_path), "")
    yield both
    for item in both:
        item.close()


def _refuse(*_args: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_woken(owner: LocalPeers) -> bool:
    return owner.sleep(0, 0)


def _cut(path: Path, size: int) -> None:
    os.truncate(path / "owners" / "board", size)


def test_a_process_that_cannot_announce_its_sleep_sleeps_briefly(
    two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full file system that never writes in place refuses one byte of the board."""
    slept: list[float | None] = []
    first = two[0]
    monkeypatch.setattr(first._bell, "wait", slept.append)
    with monkeypatch.context() as refused:
        refused.setattr(posix, "write_at", _refuse)
        first.announce(INTEREST_READY)
        first.sleep(INTEREST_READY, None)
        first.sleep(INTEREST_READY, 30)
        first.sleep(0, 30)
    first.announce(INTEREST_READY)
    first.sleep(INTEREST_READY, None)
    assert slept[:2] == [slept[0]] * 2
    assert slept[0] is not None
    assert 0 < slept[0] <= 250
    assert slept[2:] == [30_000, None]


@pytest.mark.parametrize("cut", [17, 31, 5])
def test_a_truncated_board_wakes_the_processes_on_it(
    tmp_path: Path, two: tuple[LocalPeers, LocalPeers], cut: int
) -> None:
    first, second = two
    for owner in two:
        owner.announce(INTEREST_READY)
    _cut(tmp_path, cut)
    second.wake(INTEREST_READY)
    assert _is_woken(first) is (cut >= 16)
    first.wake(INTEREST_READY)
    assert not _is_woken(second)
    second.announce(INTEREST_READY)
    first.wake(INTEREST_READY)
    assert _is_woken(second)


def test_what_a_disk_refuses_of_owners_stops_nobody(
    tmp_path: Path, two: tuple[LocalPeers, LocalPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    dead = tmp_path / "owners" / f"{7:016x}.lock"
    dead.write_bytes(b"{}")
    assert not first.alive(7)
    with monkeypatch.context() as refused:
        refused.setattr(fcntl, "lockf", _refuse)
        assert first.alive(7), "it cannot be asked"
    monkeypatch.setattr(system, "remove", _refuse)
    first.forget(7)
    LocalPeers(str(tmp_path), "").close()
    assert dead.exists()
    monkeypatch.setattr(first._small, "read", _refuse)
    second.announce(INTEREST_READY)
    first.wake(INTEREST_READY)
    assert not _is_woken(second), "the board cannot be read"


def test_a_wake_up_with_a_bug_in_it_is_logged_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: LocalPeers, _interest: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LocalPeers, "wake", fail)
    store = open_store(str(tmp_path), LogConfig())
    for number in (1, 2):
        store._open.writer.is_alone = False
        assert store.thread_port.enqueue(EnqueueSpec(), b"x").result(10) == number
    store.close()
    assert "the others could not be woken" in caplog.text


_NAMES = st.none() | st.frozensets(st.text(max_size=5), max_size=3)
_COUNT = st.integers(0, 2**40)
_LIMITS = st.builds(
    Limit,
    concurrency=st.integers(1, 9),
    rate=st.none() | st.builds(Rate, st.integers(1, 9), st.integers(10**7, 10**9)),
    scope=st.text(max_size=5),
)
_HOLDS = st.builds(
    Hold, queues=_NAMES, tasks=_NAMES, is_breaker=st.booleans(), text=st.text(), since_ns=_COUNT
)
_SERVINGS = st.builds(
    Serving,
    queues=_NAMES,
    tasks=_NAMES,
    slots=_COUNT,
    holds=st.lists(_HOLDS, max_size=2).map(tuple),
    limits=st.none() | st.dictionaries(st.text(max_size=5), _LIMITS, min_size=1, max_size=2),
)


@given(servings=st.lists(_SERVINGS, max_size=3))
def test_published_servings_read_back_unchanged(
    servings: list[Serving], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp()
    publish(directory, 7, servings)
    assert read_servings(directory, 7) == tuple(servings)


@pytest.mark.parametrize("value", [None, 1, "a", [], ["a"], {}, {"a": "b"}], ids=repr)
@pytest.mark.parametrize("name", ["queues", "tasks", "slots", "holds", "limits"])
def test_a_value_of_another_type_is_left_out(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / f"{7:016x}.serves").write_text(json.dumps([{name: value}, {"slots": 3}]))
    serving, whole = read_servings(tmp_path, 7)
    fits = {"queues": list, "tasks": list, "slots": int}.get(name)
    if fits is None or not isinstance(value, fits):
        assert serving == Serving()
    assert whole == Serving(slots=3)


@pytest.mark.parametrize(
    ("group", "members", "is_alone"),
    [
        ("ada", [], True), ("ada", ["ada"], True), ("ada", ["ada", "bob"], False),
        ("staff", [], False), ("staff", ["ada"], False),
    ],
)  # fmt: skip
def test_a_group_of_the_users_name_without_others_lets_nobody_in(
    monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], is_alone: bool
) -> None:
    user = SimpleNamespace(pw_name="ada")
    monkeypatch.setattr("pwd.getpwuid", lambda _: user)
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=group, gr_mem=members))
    assert posix.is_alone(Path().stat()) is is_alone


@pytest.mark.posix("signals a process by its number")
def test_no_process_has_a_number_below_one() -> None:
    """A damaged lock file may have one; to the system it is a group, and that lives."""
    assert [posix.lives(pid) for pid in (-1, 0, os.getpid())] == [False, False, True]


@pytest.mark.posix("signals a process by its number")
@pytest.mark.parametrize("proc", ["/proc", "/nowhere"])
def test_nobody_is_asked_to_stop_but_a_worker_or_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: str
) -> None:
    """The number is from a file that others may write, or of a parent that died since."""
    if proc != "/proc" and shutil.which("ps") is None:
        pytest.skip("without /proc a parent is asked of ps, which is not here")
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # of sanitizers, with which ps never ends
    ask = Mock(return_value=True)
    monkeypatch.setattr(posix, "ask_to_stop", ask)
    monkeypatch.setattr(posix, "Path", lambda name: Path(str(name).replace("/proc", proc)))
    me, parent, another = os.getpid(), os.getppid(), os.getsid(0)

    def is_asked(pid: int, stops: int) -> bool:
        serves = (SimpleNamespace(stops=stops),)
        view = SimpleNamespace(owner=7, pid=pid, host=socket.gethostname(), serves=serves)
        return ask_to_stop(tmp_path, cast("OwnerView", view))

    is_asked(me, 0)  # its file is gone since
    with (tmp_path / f"{7:016x}.lock").open("wb"):
        taken = {stops: is_asked(me, stops) for stops in (-1, 0, 1, me + 1, another, me, parent)}
    assert {stops for stops, is_taken in taken.items() if is_taken} == {me, parent}
    assert {given.args for given in ask.call_args_list} == {(me,), (parent,)}
