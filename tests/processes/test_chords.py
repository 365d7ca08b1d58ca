"""Chords whose workers are killed: each callback runs once, with all results of its members.

``python -m tests.processes.test_chords DIRECTORY`` is one of the workers.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from taskq import TaskQ, chord, retry
from taskq.core.records import Cause, Kind
from taskq.log.format.flows import takes_of
from taskq.log.read.reader import LogReader
from taskq.log.state.story import records
from tests.processes.harness import Child

ROOT: Final = Path(__file__).parents[2]
CHORDS: Final = 40
MEMBERS: Final = 10
WORKERS: Final = 2
#: So many jobs are over between two kills: workers that are killed as they start do nothing.
JOBS_A_KILL: Final = 100
_LOOK_SECONDS: Final = 0.02
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
    app, _, _ = make_app(path)
    async with app, app.worker(concurrency=16):
        await asyncio.Event().wait()


async def enqueue(app: TaskQ, member: Any, callback: Any) -> None:
    room = asyncio.Semaphore(_WINDOW)

    async def enqueue_chord(first: int) -> None:
        calls = [member.call(first + place) for place in range(MEMBERS)]
        async with room:
            await app.enqueue_flow(chord(calls, callback.step(first)))

    await asyncio.gather(*(enqueue_chord(number * MEMBERS) for number in range(CHORDS)))


async def done(app: TaskQ, name: str | None = None) -> int:
    """Return how many jobs of one queue, or of all, are over."""
    queues = [queue for queue in (await app.stats()).queues if name in {None, queue.queue}]
    return sum(queue.succeeded + queue.dead + queue.cancelled for queue in queues)


async def run_with_kills(path: Path) -> int:
    """Enqueue, kill, wait until all callbacks have run; return how many workers were killed."""
    draw = random.Random(1)
    app, member, callback = make_app(path)
    kills = 0
    async with app:
        workers = [start_worker(path) for _ in range(WORKERS)]
        try:
            producing = asyncio.create_task(enqueue(app, member, callback))
            progress = 0
            while not (producing.done() and await done(app, "callbacks") >= CHORDS):
                await asyncio.sleep(_LOOK_SECONDS)
                if await done(app) >= progress + JOBS_A_KILL:
                    progress = await done(app)
                    number = draw.randrange(WORKERS)
                    workers[number].__exit__()
                    workers[number] = start_worker(path)
                    kills += 1
            await producing
        finally:
            for worker in workers:
                worker.__exit__()
    return kills


def start_worker(path: Path) -> Child:
    return Child(sys.executable, "-m", "tests.processes.test_chords", path, cwd=ROOT)


async def test_callbacks_run_once_with_all_results_while_workers_are_killed(tmp_path: Path) -> None:
    """Read record by record: one success a job, one release a callback, behind all its inputs."""
    assert await run_with_kills(tmp_path / "data") >= 2
    inputs: dict[int, tuple[int, ...]] = {}
    succeeded: dict[int, int] = {}
    released: dict[int, int] = {}
    successes: Counter[int] = Counter()
    with LogReader.open(str(tmp_path / "data")) as reader:
        journal = reader.journal
        for record in records(journal, journal.start()):
            if record.kind == Kind.ENQUEUED and record.task == b"callback":
                place = journal.indexes.find(record.lsn)
                assert place is not None
                inputs[record.lsn] = takes_of(place.record).inputs
            elif record.kind == Kind.SUCCEEDED:
                successes[record.job] += 1
                succeeded[record.job] = record.lsn
                if record.job in inputs:
                    first, *numbers = json.loads(record.body or b"")
                    assert numbers == list(range(first, first + MEMBERS))
            elif record.kind == Kind.RELEASED and record.cause is Cause.INPUTS:
                assert record.job not in released, "it was released twice"
                released[record.job] = record.lsn
    assert len(inputs) == CHORDS
    assert sorted(successes.values()) == [1] * CHORDS * (MEMBERS + 1)
    for job, needs in inputs.items():
        assert len(needs) == MEMBERS
        assert all(succeeded[need] < released[job] for need in needs), "it was released too early"


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
