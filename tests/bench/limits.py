"""Limits over three worker processes: never exceeded in the log, and nearly all of them used.

``python -m tests.bench.limits [--seconds 20]``: jobs that sleep, of a task with 50 a second and of
one with a concurrency of 3 for each of eight keys. What is checked is what the log says: the
times of its frames, and which claims were open at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Final

from taskq import TaskQ
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.format.frames import Gap
from taskq.log.format.record import LogRecord, decode_record, places
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.machine.disk import LocalDisk, SystemClock
from tests.bench.process import ROOT

RATE: Final = 50
CONCURRENCY: Final = 3
KEYS: Final = tuple(f"account-{number}" for number in range(8))
#: How long a job of a limited key sleeps.
SLEEP_SECONDS: Final = 0.25
WORKERS: Final = 3
SHARE_MIN: Final = 0.95
_SECOND_NS: Final = 1_000_000_000


def make(directory: str) -> tuple[TaskQ, Any, Any]:
    """Return an app and its two tasks."""
    app = TaskQ(directory)

    @app.task(name="rated", queue="rated", rate=f"{RATE}/s", store_result=False)
    async def rated(_number: int) -> None:
        await asyncio.sleep(0.005)

    @app.task(
        name="keyed",
        queue="keyed",
        concurrency=CONCURRENCY,
        concurrency_key=lambda account, _number: account,
        store_result=False,
    )
    async def keyed(account: str, _number: int) -> None:
        await asyncio.sleep(SLEEP_SECONDS)

    return app, rated, keyed


#: What the workers import; they are told another directory.
app, _, _ = make("./data")


async def fill(directory: str, seconds: float) -> None:
    """More jobs than the limits let through in that time."""
    filler, rated, keyed = make(directory)
    async with filler:
        await rated.enqueue_many([(number,) for number in range(int(RATE * seconds * 1.5) + 100)])
        each = int(CONCURRENCY / SLEEP_SECONDS * seconds * 1.5) + 20
        for account in KEYS:
            await keyed.enqueue_many([(account, number) for number in range(each)])


def run_workers(directory: str, seconds: float) -> None:
    """Three worker processes for so long; then they are told to stop."""
    command = [sys.executable, "-m", "taskq", "worker", "tests.bench.limits:app", "-d", directory]
    workers = [
        subprocess.Popen([*command, "-c", "40", "--quiet"], cwd=ROOT, stdout=subprocess.DEVNULL)
        for _ in range(WORKERS)
    ]
    time.sleep(seconds)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        worker.wait()


class Findings:
    """What the records say of the limits."""

    def __init__(self) -> None:
        self.claims: list[int] = []
        self.most_in_window = 0
        self.most_running: dict[str, int] = defaultdict(int)
        self.ended: dict[str, int] = defaultdict(int)
        self.first_ns = self.last_ns = 0
        self.owners: set[int] = set()
        self._window: deque[int] = deque()
        self._accounts: dict[int, str] = {}
        self._open: dict[str, set[int]] = defaultdict(set)

    def see(self, record: LogRecord) -> None:
        """The next record of the log."""
        if record.kind == Kind.ENQUEUED and record.task == b"keyed":
            assert record.extras is not None
            self._accounts[record.lsn] = record.extras.concurrency_key.decode()
        elif record.kind == Kind.CLAIMED:
            self._claimed(record.job, record.token, record.time_ns)
        elif record.kind in {Kind.SUCCEEDED, Kind.RELEASED, Kind.RETRIED, Kind.DEAD}:
            self._left(record.job, is_end=record.kind == Kind.SUCCEEDED)

    def _claimed(self, job: int, owner: int, time_ns: int) -> None:
        self.owners.add(owner)
        self.first_ns = self.first_ns or time_ns
        self.last_ns = max(self.last_ns, time_ns)
        account = self._accounts.get(job)
        if account is not None:
            self._open[account].add(job)
            running = len(self._open[account])
            self.most_running[account] = max(self.most_running[account], running)
            return
        self.claims.append(time_ns)
        window = self._window
        window.append(time_ns)
        while window[0] <= time_ns - _SECOND_NS:
            window.popleft()
        self.most_in_window = max(self.most_in_window, len(window))

    def _left(self, job: int, *, is_end: bool) -> None:
        account = self._accounts.get(job)
        if account is not None:
            self._open[account].discard(job)
            self.ended[account] += is_end


def look(directory: str) -> Findings:
    """Return all frames of the log, one after the other."""
    disk = LocalDisk()
    writer = WriterLock(disk, directory, os.getpid(), 10.0)
    journal = Journal(disk, SystemClock(), directory, LogConfig(), writer)
    journal.open()
    found = Findings()
    try:
        for _, frame in journal.frames(journal.start()):
            assert not isinstance(frame, Gap)
            for lsn, at, length in places(frame):
                data = frame.data[at : at + length]
                record = decode_record(data, lsn, frame.header.epoch, frame.header.time_ns)
                found.see(record)
    finally:
        journal.unlock()
        journal.close()
    return found


def main() -> None:
    """Run, print a table, and assert what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="taskq-limits-") as parent:
        directory = str(Path(parent) / "data")
        asyncio.run(fill(directory, seconds))
        run_workers(directory, seconds)
        found = look(directory)
    span = (found.last_ns - found.first_ns) / _SECOND_NS
    # The window is open at one end: at 0 s there are 50, at 1 s 50 more, and so on.
    allowed = RATE * (int(span) + 1)
    rate_share = len(found.claims) / allowed
    each = CONCURRENCY / SLEEP_SECONDS * span
    key_share = sum(found.ended.values()) / (each * len(KEYS))
    print(f"{len(found.owners)} worker processes, {span:.2f} s from the first claim to the last")
    print("limit                   | most seen | allowed | done  | share of what is allowed")
    print(
        f"rate 50/s               | {found.most_in_window:9} | {RATE:7} | {len(found.claims):5} "
        f"| {rate_share:6.1%} of {allowed}"
    )
    most = max(found.most_running.values())
    print(
        f"concurrency 3, 8 keys   | {most:9} | {CONCURRENCY:7} | {sum(found.ended.values()):5} "
        f"| {key_share:6.1%} of {each * len(KEYS):.0f}"
    )
    assert len(found.owners) == WORKERS
    assert found.most_in_window <= RATE
    assert most <= CONCURRENCY
    assert rate_share >= SHARE_MIN
    assert key_share >= SHARE_MIN


if __name__ == "__main__":
    main()
