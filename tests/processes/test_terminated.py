"""Kills that every system has, and files that other programs hold.

Acknowledged jobs are done, and nothing waits for ever.
"""

import asyncio
import contextlib
import random
import threading
from pathlib import Path
from typing import Final

import pytest

from taskq import State, TaskQ
from taskq.log.read.reader import LogReader
from taskq_workers import Worker
from tests.effort import ended
from tests.processes.harness import STEP_SECONDS, Child, eventually

BATCH: Final = 20
HELD_SECONDS: Final = 0.2
JOBS_MAX: Final = 10**6


def echo(text: str) -> str:
    return text


class Role(Child):
    """A process of the script; ``acked``: jobs of it that are acknowledged."""

    def __init__(self, path: Path, role: str, name: str, count: int, batch: int = BATCH) -> None:
        self.role, self.name, self.acked = role, name, 0
        self.has_begun = self.is_done = False
        super().__init__("terminated.py", path, role, name, count, batch)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, number = line.rstrip("\n").partition(" ")
            if line.endswith("\n") and word == "acked":
                self.acked = int(number)
            self.has_begun = self.has_begun or word in {"acked", "began"}
            self.is_done = self.is_done or word == "done"

    def end(self) -> None:
        eventually(lambda: self.has_begun or self.process.poll() is not None, STEP_SECONDS * 10)
        assert self.process.poll() is None
        self.kill()

    def finish(self) -> None:
        eventually(lambda: self.is_done, STEP_SECONDS * 10)

    def kill(self) -> None:
        super().kill()
        ended(self._reader)


def check(path: Path, roles: list[Role]) -> list[bytes]:
    """Let what is left be done here, and return the keys of all jobs; each has its own result."""
    app = TaskQ(path, durability="os")
    app.task(name="echo")(echo)
    asyncio.run(Worker(app, burst=True, concurrency=64).run())
    app.close_sync()
    with LogReader.open(str(path)) as reader:
        assert not reader.verify().damage
        jobs = reader.jobs(None, None, None, JOBS_MAX)
    keys = [job.key or b"" for job in jobs]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert [job.result for job in jobs] == [b'"%s"' % key for key in keys]
    assert len({*keys}) == len(keys)
    acked = {b"%s-%d" % (role.name.encode(), n) for role in roles for n in range(role.acked)}
    assert not acked - {*keys}
    return keys


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_what_was_acknowledged_before_a_kill_is_done(tmp_path: Path, kills: int) -> None:
    """Each is killed in the midst of its work, and another takes its place."""
    chance = random.Random(kills)
    roles: list[Role] = []
    with contextlib.ExitStack() as stack:

        def start(role: str) -> Role:
            roles.append(Role(tmp_path, role, f"p{len(roles)}", 10**6))
            return stack.enter_context(roles[-1])

        alive = [start(role) for role in ("paced", "worker", "paced", "worker")]
        for _ in range(kills):
            place = chance.randrange(len(alive))
            alive[place].end()
            alive[place] = start(alive[place].role)
        for role in alive:
            role.end()
    assert len(check(tmp_path, roles)) >= sum(role.acked for role in roles)


def test_a_segment_that_a_reader_has_open_is_removed_once_it_is_closed(tmp_path: Path) -> None:
    """On Windows nobody removes what another program has open so; elsewhere it goes at once."""
    app = TaskQ(tmp_path, durability="os", segment_bytes=65_536, keep="0s", keep_segments=1)
    app.task(name="echo")(echo)

    def work() -> None:
        app.enqueue_many_sync([app.call_by_name("echo", "x" * 200) for _ in range(400)])
        asyncio.run(Worker(app, burst=True).run())
        app.connection.reopen()

    work()
    first = min((tmp_path / "log").glob("*.log"))
    with first.open("rb"):
        work()
        app.compact_sync()
    work()
    app.compact_sync()
    app.close_sync()
    assert not first.exists()
    assert not [*(tmp_path / "log").glob("*.gone")]


def test_a_program_that_opens_each_new_file_for_a_while_stops_nobody(tmp_path: Path) -> None:
    """As a virus scanner does."""
    over = threading.Event()
    seen: set[Path] = set()

    def look() -> None:
        while True:
            with contextlib.ExitStack() as stack:
                new = {path for path in tmp_path.rglob("*") if path.is_file()} - seen
                for path in new:
                    with contextlib.suppress(OSError):  # gone, or not to be opened
                        stack.enter_context(path.open("rb"))
                if over.wait(HELD_SECONDS if new else HELD_SECONDS / 10):
                    return
                seen.update(new)

    scanner = threading.Thread(target=look)
    scanner.start()
    try:
        with (
            Role(tmp_path, "both", "a", 2_000) as first,
            Role(tmp_path, "both", "b", 2_000) as last,
        ):
            for role in (first, last):
                role.finish()
    finally:
        over.set()
        scanner.join()
    assert seen
    assert len(check(tmp_path, [first, last])) == 4_000
