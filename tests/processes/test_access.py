"""The owner of a log's files: its user, or its group, with any umask."""

import contextlib
import grp
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.connection.settings import load_settings
from taskq.core.errors import LogError
from taskq.errors import UsageError
from taskq.log.machine.access import exposures
from taskq.log.machine.threads import reports
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.health import check_health
from tests.processes.harness import Child

AM_ROOT = os.geteuid() == 0
#: Two users and a group that both may be in; without root's rights this process is both.
USER, OTHER = (pwd.getpwnam(name).pw_uid for name in ("daemon", "nobody"))
GROUP = grp.getgrnam("daemon").gr_gid if AM_ROOT else os.getgid()
PLACES = {
    "", "log", "owners", "readers", "snapshot", "torn",
}  # fmt: skip


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def facts(path: Path) -> dict[str, os.stat_result]:
    seen = {}
    for item in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # a temporary file, renamed meanwhile
            seen[str(item.relative_to(path)).removeprefix(".")] = item.lstat()
    return seen


def used(path: Path, *arguments: object) -> dict[str, os.stat_result]:
    with Child("actors.py", "use_all", path, *arguments) as child:
        child.expect("open")
        result = facts(path)
        assert any(stat.S_ISFIFO(item.st_mode) for item in result.values())
        child.say("")
        child.expect("closed")
        assert child.wait() == 0
    result |= facts(path)
    assert {name for name, item in result.items() if stat.S_ISDIR(item.st_mode)} == PLACES
    return result


def modes(values: dict[str, os.stat_result]) -> tuple[set[int], set[int]]:
    of = {True: set[int](), False: set[int]()}
    for item in values.values():
        of[stat.S_ISDIR(item.st_mode)].add(stat.S_IMODE(item.st_mode))
    return of[True], of[False]


@pytest.mark.parametrize("umask", ["0", pytest.param("177", marks=pytest.mark.slow)])
def test_all_of_a_log_is_its_users_alone_at_any_umask(place: Path, umask: str) -> None:
    """Directories 700; segments, indexes, locks, pipes, uploads, bodies and readers 600."""
    assert modes(used(place / "log", umask)) == ({0o700}, {0o600})


def test_a_directory_that_its_group_shares_is_shared_in_all_that_is_in_it(place: Path) -> None:
    log = place / "log"
    log.mkdir()
    os.chown(log, -1, GROUP)
    log.chmod(0o2770)
    for user, umask in ((USER, "77"), (OTHER, "27")):
        switch = (user, GROUP, GROUP) if AM_ROOT else ()
        result = used(log, umask, *switch)
        assert modes(result) == ({0o2770}, {0o660})
        assert {item.st_gid for item in result.values()} == {GROUP}
    assert not exposures(str(log))


def test_what_root_makes_in_a_users_log_is_the_users(place: Path) -> None:
    log = place / "log"
    log.mkdir(0o700)
    if AM_ROOT:
        os.chown(log, OTHER, GROUP)
    result = used(log, "22")
    owners = {(item.st_uid, item.st_gid) for item in result.values()}
    assert owners == {(log.stat().st_uid, log.stat().st_gid)}
    if AM_ROOT:
        used(log, "22", OTHER, GROUP)


@pytest.mark.skipif(not AM_ROOT, reason="needs root, to be two users")
@pytest.mark.parametrize("user", [USER, 0])
def test_a_directory_that_somebody_else_left_open_is_refused(place: Path, user: int) -> None:
    log = place / "log"
    log.mkdir()
    os.chown(log, OTHER, GROUP)
    log.chmod(0o777)
    with Child(sys.executable, "-c", SCRIPT, log, user) as child:
        output = child.rest()
    assert "give the log a directory of its own" in output[0]
    assert list(log.iterdir()) == []


def test_mode_group_makes_a_shared_log_and_private_a_private_one(tmp_path: Path) -> None:
    with TaskLog.open(tmp_path / "shared", mode="group"):
        pass
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o2770
    assert stat.S_IMODE((tmp_path / "shared/log").stat().st_mode) == 0o2770
    with TaskLog.open(tmp_path / "private"):
        pass
    with TaskLog.open(tmp_path / "shared"), TaskLog.open(tmp_path / "private", mode="private"):
        pass
    with pytest.raises(UsageError, match=r"is not shared: to share it .* chmod -R g=rwX,o= /"):
        TaskLog.open(tmp_path / "private", mode="group").__enter__()
    with pytest.raises(UsageError, match=r"to make it private, .* chmod -R go= /"):
        TaskLog.open(tmp_path / "shared", mode="private").__enter__()


def test_a_log_in_a_directory_that_a_group_shares_is_private_all_the_same(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    with TaskLog.open(tmp_path / "opened"):
        pass
    modes_there = {stat.S_IMODE(fact.st_mode) for fact in facts(tmp_path / "opened").values()}
    assert {mode & 0o777 for mode in modes_there} == {0o700, 0o600}


def test_an_unknown_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="mode is 'public', it must be private or group"):
        TaskLog.open(tmp_path, mode="public")  # type: ignore[arg-type]
    monkeypatch.setenv("TASKQ_MODE", "group")
    assert load_settings(None).log_config().mode == "group"
    monkeypatch.setenv("TASKQ_MODE", "0777")
    with pytest.raises(UsageError, match=r"mode \(TASKQ_MODE\) is '0777'"):
        load_settings(None)


@pytest.mark.parametrize(("mode", "inner", "message"), [
    (0o777, 0o700, "is writable by every user"),
    (0o1777, 0o700, "is writable by every user"),
    (0o755, 0o755, "log is open to every user, who can stop its writers"),
    (0o2775, 0o2775, "log is open to every user"),
    (0o755, 0o700, ""),
    (0o700, 0o777, ""),
    (0o2770, 0o2770, ""),
])  # fmt: skip
def test_a_log_open_to_other_users_is_reported_once_and_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, inner: int, message: str
) -> None:
    """With the command that closes it: at opening, and by ``health``, which fails nobody for it."""
    log = tmp_path / "log"
    with TaskLog.open(log):
        pass
    (log / "log").chmod(inner)
    log.chmod(mode)
    with TaskLog.open(log), TaskLog.open(log):
        reports.drain(30)
        warnings = [record.getMessage() for record in caplog.records]
    assert [message in text for text in warnings] == ([True] if message else [])
    assert stat.S_IMODE(log.stat().st_mode) == mode
    (check,) = [item for item in check_health(log) if item.name == "access"]
    assert check.ok, "in a container the other users are nobody"
    assert message in check.detail
    if message:
        assert f": chmod -R {'o=' if mode & 0o2000 else 'go='} {log}" in warnings[0]
        os.system(warnings[0].rpartition(": ")[2])  # noqa: S605 - what we tell people to do
        assert not exposures(str(log))


#: A writer and a reader, as another user.
SCRIPT = """
import os, sys
from taskq import TaskLog
from taskq.core.errors import LogError
from taskq.log.read.reader import LogReader
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
for use in (lambda: TaskLog.open(sys.argv[1]).__enter__(), lambda: LogReader.open(sys.argv[1])):
    try:
        use()
    except LogError as error:
        print(error)
"""


@pytest.mark.parametrize("inside", [True, False])
def test_a_refused_open_names_the_owner_of_the_log(place: Path, inside: bool) -> None:
    """Writers and readers alike: the directory, its user and mode, and what to do."""
    log = place / "log"
    subprocess.run([sys.executable, "-m", "taskq", "put", "-d", log, "x"], check=True)
    if not AM_ROOT:
        (log / "taskq.json").chmod(0 if inside else 0o600)
        log.chmod(0o700 if inside else 0)
        with pytest.raises(LogError, match=r"cannot be used .*belongs to user .*chmod -R u\+rwX"):
            LogReader.open(str(log))
        log.chmod(0o700)
        return
    if inside:
        log.chmod(0o755)
        log.joinpath("log").chmod(0o755)
    with Child(sys.executable, "-c", SCRIPT, log, OTHER) as child:
        output = child.rest()
    assert len(output) == 2
    for line in output:
        assert re.match(
            rf"{log}(/taskq.json)? cannot be used.*: {log}(/taskq.json)? belongs to user root "
            rf"\(mode \d+\), this process is user nobody; run it as that user, or share",
            line,
        )
    os.chown(log, OTHER, GROUP)
    log.chmod(0)
    with Child(sys.executable, "-c", SCRIPT, log, OTHER) as child:
        output = child.rest()
    assert all(line.endswith(f"chmod -R u+rwX {log}") for line in output), output
