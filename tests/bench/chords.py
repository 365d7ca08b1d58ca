"""Chords under fire: each callback runs once, with all results, while workers are killed with -9.

``python -m tests.bench.chords --chords 10000 --members 10`` enqueues so many chords, while two
worker processes run them, one of which is killed at random each second and replaced. Then the log
is read record by record: every job has exactly one success, every callback was released once, after
the last of its inputs had succeeded, and got all of their results in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq import TaskQ, chord, retry
from taskq.core.records import Cause, Kind
from taskq.log.format.flows import takes_of
from taskq.log.read.reader import LogReader
from taskq.log.state.story import records
from tests.bench.process import start
from tests.bench.tables import Table

if TYPE_CHECKING:
    from subprocess import Popen

MODULE: Final = "tests.bench.chords"
WORKERS: Final = 2
_LOOK_SECONDS: Final = 0.25
#: A job that is claimed ahead by a worker that is killed has had an attempt, too.
_FOR_EVER: Final = retry.fixed(1_000, delay=0)
_WINDOW: Final = 64


def make_app(path: Path) -> tuple[TaskQ, Any, Any]:
    """Return the app of producer and workers, the task of members and that of callbacks."""
    app = TaskQ(path)

    @app.task(name="member", queue="members", retry=_FOR_EVER)
    async def member(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @app.task(name="callback", queue="callbacks", retry=_FOR_EVER)
    async def callback(numbers: list[int], first: int) -> list[int]:
        return [first, *numbers]

    return app, member, callback


async def work(path: Path) -> None:
    """A worker, until it is killed."""
    app, _, _ = make_app(path)
    async with app, app.worker(concurrency=16):
        await asyncio.Event().wait()


async def enqueue(app: TaskQ, member: Any, callback: Any, chords: int, members: int) -> None:
    """All chords, some of them at a time."""
    room = asyncio.Semaphore(_WINDOW)

    async def one(number: int) -> None:
        first = number * members
        calls = [member.call(first + place) for place in range(members)]
        async with room:
            await app.enqueue_flow(chord(calls, callback.step(first)))

    await asyncio.gather(*map(one, range(chords)))


@dataclass(slots=True)
class Verdict:
    """What the log says."""

    callbacks: int = 0
    successes: int = 0
    wrong: int = 0
    twice: int = 0
    missing: int = 0
    early: int = 0
    released_twice: int = 0
    lost: int = 0

    @property
    def is_good(self) -> bool:
        """Return whether nothing went wrong."""
        return not (
            self.wrong or self.twice or self.missing or self.early or self.released_twice
        )  # fmt: skip


def judge(path: Path, members: int) -> Verdict:
    """Read the whole log."""
    verdict = Verdict()
    inputs: dict[int, tuple[int, ...]] = {}
    succeeded: dict[int, int] = {}
    released: dict[int, int] = {}
    times: Counter[int] = Counter()
    with LogReader.open(str(path)) as reader:
        journal = reader.journal
        for record in records(journal, journal.start()):
            if record.kind == Kind.ENQUEUED and record.task == b"callback":
                place = journal.indexes.find(record.lsn)
                assert place is not None
                inputs[record.lsn] = takes_of(place.record).inputs
            elif record.kind == Kind.SUCCEEDED:
                times[record.job] += 1
                succeeded[record.job] = record.lsn
                if record.job in inputs:
                    first, *numbers = json.loads(record.body or b"")
                    verdict.wrong += numbers != list(range(first, first + members))
            elif record.kind == Kind.RELEASED and record.cause is Cause.INPUTS:
                verdict.released_twice += record.job in released
                released[record.job] = record.lsn
            elif record.kind == Kind.RELEASED:
                verdict.lost += 1
    for job, needs in inputs.items():
        verdict.missing += not times[job] or len(needs) != members
        at = released.get(job, 0)
        verdict.early += any(succeeded.get(one, at) >= at for one in needs)
    verdict.callbacks = len(inputs)
    verdict.successes = sum(times.values())
    verdict.twice = sum(count > 1 for count in times.values())
    return verdict


async def run(
    path: Path, chords: int, members: int, kill_seconds: float, seed: int
) -> dict[str, Any]:
    """Enqueue, kill, wait until all callbacks have run; returns seconds and kills."""
    draw = random.Random(seed)
    app, member, callback = make_app(path)
    kills = 0
    began = time.monotonic()
    async with app:
        workers = [start(MODULE, "--work", path) for _ in range(WORKERS)]
        try:
            producing = asyncio.create_task(enqueue(app, member, callback, chords, members))
            killed, progress = time.monotonic(), 0
            while not (producing.done() and await _done(app, "callbacks") >= chords):
                await asyncio.sleep(_LOOK_SECONDS)
                # None before something was done since: on a busy machine workers that are killed as
                # they start would do nothing for ever.
                if time.monotonic() - killed >= kill_seconds and await _done(app) > progress:
                    progress = await _done(app)
                    number = draw.randrange(WORKERS)
                    _kill(workers[number])
                    workers[number] = start(MODULE, "--work", path)
                    killed = time.monotonic()
                    kills += 1
            await producing
            seconds = time.monotonic() - began
        finally:
            for worker in workers:
                _kill(worker)
    return {"seconds": seconds, "kills": kills}


async def _done(app: TaskQ, name: str | None = None) -> int:
    """Return how many jobs of one queue, or of all, are over."""
    queues = [one for one in (await app.stats()).queues if name in {None, one.queue}]
    return sum(one.succeeded + one.dead + one.cancelled for one in queues)


def _kill(worker: Popen[str]) -> None:
    with suppress(ProcessLookupError):
        worker.send_signal(signal.SIGKILL)
    worker.communicate()


def main() -> None:
    """Run it as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chords", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--kill-seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    if options.work is not None:
        asyncio.run(work(options.work))
        return
    path = Path(tempfile.mkdtemp(prefix="taskq-chords-"))
    try:
        done = asyncio.run(
            run(path / "data", options.chords, options.members, options.kill_seconds, options.seed)
        )
        verdict = judge(path / "data", options.members)
        table = Table("Chords under fire", ("what", "count"))
        jobs = options.chords * (options.members + 1)
        for name, value in (
            ("chords", options.chords), ("jobs", jobs), ("kills", done["kills"]),
            ("claims taken back", verdict.lost), ("successes", verdict.successes),
            ("callbacks without a success or an input", verdict.missing),
            ("jobs with two successes", verdict.twice), ("wrong results", verdict.wrong),
            ("released too early", verdict.early), ("released twice", verdict.released_twice),
            ("seconds", round(done["seconds"], 1)),
            ("jobs a second", round(jobs / done["seconds"])),
        ):  # fmt: skip
            table.row(name, str(value))
        table.print()
        if not verdict.is_good or verdict.callbacks != options.chords or verdict.successes != jobs:
            sys.exit("not every callback ran exactly once with all its results")
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
