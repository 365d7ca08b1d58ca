"""A hostile neighbour: another user of the machine tries everything against a log that is in use.

Usage: python -m tests.processes.neighbour

Needs root, to be two other users. Prints as JSON the error of each attack, "" for a success:
against a log whose modes were opened to all, which shows that it is one, and against a private and
a shared log while processes write to them. Exits with 2 when it cannot switch users. No mode
defends against root, or against writers of the directory above, unless that is sticky as here.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from taskq import TaskLog
from taskq.core.errors import LogError
from taskq.log.read.reader import LogReader
from tests.processes.harness import eventually, is_readable

#: The log's owner, and the attacker.
VICTIM, NEIGHBOUR = "daemon", "nobody"
SECRET: Final = b"the secret of a payload"
_SEGMENT: Final = "log/00000000000000000001.log"
#: Jobs that each writer must do while everything is attacked and held, and again afterwards.
_JOBS_MIN: Final = 20
_SECONDS_MAX: Final = 20.0


class Target:
    """The neighbour's knowledge of a log: everything, as if he had seen its names once."""

    def __init__(self, path: Path, pids: list[int]) -> None:
        self.path = path
        self.pids = pids
        self.owners = sorted(path.glob("owners/*.lock"))
        self.pipes = sorted(path.glob("owners/*.pipe"))
        #: files held open until the end
        self.held: list[object] = []

    def open(self, file: Path | str, flags: int) -> int:
        descriptor = os.open(self.path / file, flags | os.O_NONBLOCK)
        self.held.append(descriptor)
        return descriptor


def lock_out(name: str) -> Callable[[Target], object]:
    return lambda at: fcntl.flock(at.open(name, os.O_RDONLY), fcntl.LOCK_SH)


def keep_alive(at: Target) -> None:
    for owner in at.owners:
        fcntl.lockf(at.open(owner, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def steal_wake_ups(at: Target) -> None:
    for pipe in at.pipes:
        with contextlib.suppress(BlockingIOError):
            os.read(at.open(pipe, os.O_RDONLY), 4_096)


def flood_pipes(at: Target) -> None:
    for pipe in at.pipes:
        os.write(at.open(pipe, os.O_RDWR), b"\1")


def read_payloads(at: Target) -> None:
    assert SECRET in os.read(at.open(_SEGMENT, os.O_RDONLY), 2**20)


def replace(at: Target) -> None:
    mine = at.path.parent / f"mine-{at.path.name}"
    mine.write_bytes(b"{}")
    mine.replace(at.path / "taskq.json")


def link_reserve(at: Target) -> None:
    with contextlib.suppress(FileNotFoundError):
        (at.path / "reserve").unlink()
    (at.path / "reserve").symlink_to("/etc/hostname")


def read_descriptors(at: Target) -> None:
    for pid in at.pids:
        for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - numbers
            at.held.append(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))


def stop(at: Target) -> None:
    for pid in at.pids:
        os.kill(pid, signal.SIGSTOP)


ATTACKS: Final[dict[str, Callable[[Target], object]]] = {
    "list what is in it": lambda at: os.listdir(at.path),  # noqa: PTH208 - names
    'keep the dead "alive": lock their files': keep_alive,
    "steal wake-ups: read the pipes": steal_wake_ups,
    "keep them awake: write to the pipes": flood_pipes,
    "read the log with taskq": lambda at: at.held.append(LogReader.open(str(at.path))),
    "open the log with taskq": lambda at: at.held.append(
        TaskLog.open(at.path, lock_wait=1).__enter__()
    ),
    "stop all writers: lock write.lock": lock_out("write.lock"),
    "stop all writers: lock turnstile.lock": lock_out("turnstile.lock"),
    "stop all syncs: lock sync.lock": lock_out("sync.lock"),
    "clear the board of those who sleep": lambda at: os.write(
        at.open("owners/board", os.O_RDWR), bytes(16)
    ),
    "read payloads": read_payloads,
    "link a segment to where it can be read": lambda at: os.link(
        at.path / _SEGMENT, at.path.parent / f"linked-{at.path.name}"
    ),
    "write into a segment": lambda at: os.pwrite(at.open(_SEGMENT, os.O_RDWR), b"x", 2_000),
    "a pipe in place of a segment": lambda at: os.mkfifo(at.path / "log/00000000000000000002.log"),
    "a link in place of the reserve": link_reserve,
    "replace taskq.json": replace,
    "plant an upload": lambda at: (at.path / "uploads/planted.json").write_bytes(b"{}"),
    "plant a marker of a failed fsync": lambda at: (at.path / "failed").write_bytes(b"{}"),
    "remove a segment": lambda at: (at.path / _SEGMENT).unlink(),
    "open its modes": lambda at: (at.path / "write.lock").chmod(0o666),
    "move the log away": lambda at: at.path.rename(at.path.with_name("stolen")),
    "take over its processes' descriptors": read_descriptors,
    "stop its processes by a signal": stop,
}
#: Attacks outside of a file's modes: they fail against an open log, too. taskq itself opens no log
#: in another user's directory.
NOT_BY_MODE: Final = frozenset((*list(ATTACKS)[-4:], "open the log with taskq"))


def switch(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setresgid(*[entry.pw_gid] * 3)
    os.setresuid(*[entry.pw_uid] * 3)


def fork(user: str, work: Callable[[int], object]) -> tuple[int, int]:
    """(process, descriptor to read from) of a child that does the work as another user."""
    out, inward = os.pipe()
    pid = os.fork()
    if pid:
        os.close(inward)
        return pid, out
    code = 1
    try:
        os.close(out)
        switch(user)
        work(inward)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent only sees that it ended
        sys.stderr.write(f"{user}: {error!r}\n")
    finally:
        os._exit(code)


def attack(at: Target, inward: int) -> None:
    came_to: dict[str, str] = {}
    for name, call in ATTACKS.items():
        try:
            call(at)
            came_to[name] = ""
        except OSError as error:
            came_to[name] = error.strerror or str(error)
        except (LogError, AssertionError) as error:
            came_to[name] = type(error).__name__
    os.write(inward, json.dumps(came_to).encode())
    os.close(inward)
    signal.pause()


def attacked(at: Target, meanwhile: Callable[[], object]) -> dict[str, str]:
    pid, out = fork(NEIGHBOUR, lambda inward: attack(at, inward))
    with os.fdopen(out, "rb") as answer:
        came_to: dict[str, str] = json.loads(answer.read())
    meanwhile()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return came_to


def work(path: Path, jobs: int | None, inward: int) -> None:
    with TaskLog.open(path, durability="os", lock_wait=5) as log:
        while jobs is None or jobs > 0:
            log.put_sync(SECRET)
            (delivery,) = log.claim_sync(wait=5)
            log.ack_sync(delivery)
            os.write(inward, b".")
            jobs = None if jobs is None else jobs - 1
        log.put_sync(os.urandom(2**20 + 1))
        log.claim_sync(wait=5)
        os.write(inward, b"!")
        signal.pause()


def expect(out: int, count: int) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while count > 0:
        if not is_readable(out, max(deadline - time.monotonic(), 0)):
            raise TimeoutError("a writer stands still")
        output = os.read(out, 4_096)
        if not output:
            raise TimeoutError("a writer ended")
        count -= len(output)


def drain(out: int) -> None:
    """Forget what a writer has told so far."""
    while is_readable(out, 0) and os.read(out, 65_536):
        pass


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[tuple[Target, list[int]]]:
    """A log that two processes write to, where a third was killed with a job in hand."""
    children = [fork(VICTIM, lambda inward: work(path, 3, inward))]
    try:
        expect(children[0][1], 4)
        os.kill(children[0][0], signal.SIGKILL)
        dead = sorted(path.glob("owners/*"))
        os.waitpid(children[0][0], 0)
        children += [fork(VICTIM, lambda inward: work(path, None, inward)) for _ in range(2)]
        for _, out in children[1:]:
            expect(out, 1)
        at = Target(path, [pid for pid, _ in children[1:]])
        at.owners += [letter for letter in dead if letter.suffix == ".lock"]
        yield at, [out for _, out in children[1:]]
    finally:
        for pid, out in children[1:]:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(out)
        os.close(children[0][1])


def at_work(path: Path) -> dict[str, str]:
    """Return the results of attacks on a log whose writers go on meanwhile and afterwards."""
    with in_use(path) as (at, writers):

        def go_on() -> None:
            for out in writers:
                drain(out)
            for out in writers:
                expect(out, _JOBS_MIN)

        came_to = attacked(at, go_on)
        go_on()
        with LogReader.open(str(path)) as reader:
            alive = [owner.owner for owner in reader.owners() if owner.alive]
            assert len(alive) == len(writers), "the dead is not alive, the living are"
    with LogReader.open(str(path)) as reader:
        assert not reader.verify().damage
    return came_to


def opened(path: Path) -> dict[str, str]:
    pid, out = fork(VICTIM, lambda inward: work(path, 3, inward))
    expect(out, 4)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(out)
    (path / "uploads").mkdir()
    for item in (path, *path.rglob("*")):
        item.chmod(0o777)
    return attacked(Target(path, [os.getpid()]), lambda: None)


def can_switch() -> bool:
    try:
        for user in (VICTIM, NEIGHBOUR):
            pid, out = fork(user, lambda _: None)
            os.close(out)
            if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                return False
    except (KeyError, OSError):
        return False
    return True


def tried(place: Path) -> dict[str, dict[str, str]]:
    """Return the results of attacks by the kind of log."""
    victim = pwd.getpwnam(VICTIM)
    # Late imports could not be read as another user.
    codecs.lookup("ascii")
    with TaskLog.open(place / "first") as log:
        log.put_sync(b"x")
        (delivery,) = log.claim_sync(wait=5)
        log.ack_sync(delivery)
        eventually(lambda: log.stats_sync().queues)
    for name, mode in (("open", 0o700), ("private", 0o700), ("shared", 0o2770)):
        (place / name).mkdir()
        os.chown(place / name, victim.pw_uid, victim.pw_gid)
        (place / name).chmod(mode)
    return {"open": opened(place / "open")} | {
        name: at_work(place / name) for name in ("private", "shared")
    }


def main() -> None:
    if os.geteuid() != 0 or not can_switch():
        sys.exit(2)
    place = Path(tempfile.mkdtemp())
    place.chmod(0o1777)
    try:
        sys.stdout.write(json.dumps(tried(place)))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
