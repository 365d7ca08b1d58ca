"""Jobs of several steps whose workers are killed: recorded steps are not done again.

``python -m tests.processes.test_kill_steps DIRECTORY [COUNT]`` is one of the workers; it kills
itself at its COUNT-th turn of a step.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from taskq import TaskQ, durable, retry
from taskq.core import kinds
from taskq.core.folds.steps import Form
from taskq.log.format.record import Record
from tests.effort import every, grows, some
from tests.processes.harness import Child, eventually, log_records
from tests.processes.striker import KILLED, strike

pytestmark = grows
JOBS: Final = 12
WORKERS: Final = 3
#: The number of written bytes that brings the next kill: some ten records at most.
_BYTES_MAX: Final = 1_000
#: A job that is claimed ahead by a worker that is killed has had an attempt, too.
_FOR_EVER: Final = retry.fixed(10_000, delay=0)
_LINES: Final = "lines"
_SUM: Final = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 20 + 30


def note(path: Path, line: str) -> None:
    """Do what cannot be undone: write a line outside of the log, in one step."""
    descriptor = os.open(path / _LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line} {time.time_ns()}\n".encode())
    os.close(descriptor)


def make_app(path: Path) -> tuple[TaskQ, Any]:
    """Return the app and the task of six steps, a sleep, two waits and two children."""
    app = TaskQ(path / "log")

    async def add(number: int) -> int:
        note(path, durable.key())
        for _ in range(random.randrange(4)):  # whichever ends first
            await asyncio.sleep(0)
        return number

    async def flaky(number: int) -> int:
        if random.random() < 0.2:
            raise OSError("not now")
        return await add(number)

    async def pages() -> int:
        return sum(await asyncio.gather(*(durable.step("page", add, at) for at in (2, 3, 4))))

    async def grouped() -> int:
        async with asyncio.TaskGroup() as group:
            steps = [group.create_task(durable.step("page", add, at)) for at in (2, 3, 4)]
        return sum(step.result() for step in steps)

    @app.task(name="child", retry=_FOR_EVER)
    async def child(number: int) -> int:
        return number * 10

    @app.task(name="long", retry=_FOR_EVER)
    async def long(number: int = 0) -> int:
        total = await durable.step("first", flaky, 1, retry=_FOR_EVER)
        async with durable.undo("undone", add, 0):
            total += await (grouped() if number % 2 else pages())
            await durable.sleep(1)
            total += await durable.step("then", add, 5)
            late: int | None = await durable.first(durable.event("go", int), durable.sleep("9d"))
            total += late or 0
            total += sum(await durable.call([child.call(2), child.call(3)]))
        return total + await durable.step("last", add, 6)

    return app, long


async def work(path: Path) -> None:
    app, _ = make_app(path)
    async with app, app.worker(concurrency=4):
        await asyncio.Event().wait()


def start_worker(path: Path, *count: object) -> Child:
    module = "tests.processes.test_kill_steps"
    return Child(sys.executable, "-m", module, path, *count, cwd=Path(__file__).parents[2])


def lines_of(path: Path) -> list[tuple[str, int]]:
    written = path / _LINES
    rows = written.read_text().splitlines() if written.exists() else []
    return [(key, int(moment)) for key, moment in (row.split() for row in rows)]


def check(path: Path, jobs: list[Any], kills: int) -> None:
    """A step that is recorded never ran again, and no child came twice."""
    records = log_records(path / "log")
    ran = [record for record in records if record.step and record.step.form == Form.STEP]
    done = {_key(record, jobs): record.time_ns for record in ran if record.type == kinds.STEP}
    effects = Counter(key for key, _ in lines_of(path))
    named = {f"{job.id}:{title}" for job in jobs for title in _TITLES}
    assert effects.keys() == named
    assert named <= done.keys()
    for key, moment in lines_of(path):
        assert moment <= done[key], f"{key} ran again though it was recorded"
    # Each worker has at most four jobs, of which one has three steps in flight.
    assert effects.total() - len(named) <= kills * 12
    steps = Counter(_key(record, jobs) for record in ran if record.type == kinds.STEP)
    assert set(steps.values()) == {1}, "a step was recorded twice"
    births = Counter(record.task for record in records if record.type == kinds.BIRTH)
    assert births["long"] == len(jobs)
    assert births["child"] == 2 * len(jobs)


_TITLES: Final = ("first#1", "page#1", "page#2", "page#3", "then#1", "last#1")


def _key(record: Record, jobs: list[Any]) -> str:
    assert record.step is not None
    return f"{jobs[0].id.partition('-')[0]}-{record.job}:{record.step.title}"


async def run_with_kills(path: Path, seed: int, most: int) -> int:
    """Kill workers as soon as something has moved, ``most`` times; return how often."""
    draw, kills = random.Random(seed), 0
    app, long = make_app(path)
    async with app:
        jobs = await app.enqueue_many([long.call(number) for number in range(JOBS)])
        for job in jobs:
            assert await app.signal(job, "go", 7, once="once")
        results = asyncio.gather(*(job.result() for job in jobs))
        workers = [start_worker(path) for _ in range(WORKERS)]
        try:
            while kills < most and not results.done():
                wanted = _size(path) + draw.randrange(1, _BYTES_MAX)

                def has_moved(wanted: int = wanted) -> bool:
                    return results.done() or _size(path) >= wanted

                await asyncio.to_thread(eventually, has_moved)
                victim = draw.randrange(WORKERS)
                workers[victim].__exit__()
                workers[victim] = start_worker(path)
                kills += 1
            ends = await results
        finally:
            for worker in workers:
                worker.__exit__()
    assert ends == [_SUM] * JOBS
    check(path, jobs, kills)
    return kills


def _size(path: Path) -> int:
    return sum(segment.stat().st_size for segment in (path / "log" / "log").glob("*.log"))


def test_three_workers_are_killed_at_random_and_no_recorded_step_runs_again(tmp_path: Path) -> None:
    kills = seed = 0
    while kills < some(4, 500):
        path = tmp_path / str(seed)
        path.mkdir()
        kills += asyncio.run(run_with_kills(path, seed, some(4, 500) - kills))
        seed += 1


def test_a_worker_dying_at_each_turn_repeats_only_the_step_in_flight(tmp_path: Path) -> None:
    codes: list[int | None] = []

    async def run() -> None:
        for count in range(1, 60, every(22)):
            path = tmp_path / str(count)
            path.mkdir()
            app, long = make_app(path)
            async with app:
                job = await long.enqueue(count)
                assert await app.signal(job, "go", 7)
                with start_worker(path, count) as worker:
                    died = await asyncio.to_thread(_dies, worker, path)
                    codes.append(worker.process.poll())
                if died:
                    async with app.worker(concurrency=4):
                        assert await job.result("40s") == _SUM
                else:
                    assert await job.result("40s") == _SUM
            check(path, [job], 1)

    asyncio.run(run())
    assert codes[0] == KILLED
    assert set(codes) <= {KILLED, None}


def _dies(worker: Child, path: Path) -> bool:
    eventually(lambda: worker.process.poll() is not None or _is_done(path))
    return worker.process.poll() is not None


def _is_done(path: Path) -> bool:
    records = log_records(path / "log")
    return any(r.type == kinds.SUCCESS and r.body == b"%d" % _SUM for r in records)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        methods = ("_begin", "_record", "_wait", "_ends")
        turns = [f"taskq.durable.waits:DurableRun.{name}" for name in methods]
        strike("turns", int(sys.argv[2]), *turns)
    asyncio.run(work(Path(sys.argv[1])))
