"""Steps within a task: their cost beside a lone enqueue, and the time to replay a thousand.

And how soon a job goes on in another process: by a signal, beside many waiting jobs, and after
``kill -9`` of its worker. Run: ``python -m tests.bench.steps``; ``--dbos`` adds a workflow of dbos
on SQLite, installed on demand, ``--dura python3.13`` one of dura, whose Python that is. Ratios are
taken in turn within one run; other rows show processor time, which load on the machine changes
less.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import TaskQ, current_job, durable, retry
from taskq.errors import JobFailed
from tests.bench.harness import hear as listen
from tests.bench.harness import installed, kept_for, median, options, scratch, start

if TYPE_CHECKING:
    from taskq import JobHandle, Task

LONE: Final = 300
JOBS: Final = 64
EACH: Final = 100
MANY: Final = 1_000
ROUNDS: Final = 5
SIGNALS: Final = 200
KILLS: Final = 5
CONTENDERS: Final = Path(__file__).parent / "contenders"


async def add(number: int) -> int:
    """Do nothing."""
    return number


class Bench:
    """An app whose tasks measure themselves."""

    def __init__(self, path: Path) -> None:
        self.app = TaskQ(path)
        self.spent: list[float] = []

        @self.app.task(name="lone")
        async def lone() -> float:
            await durable.step("first", add, 0)
            began = time.perf_counter()
            for number in range(LONE):
                await durable.step("add", add, number)
            return (time.perf_counter() - began) / LONE

        @self.app.task(name="noop")
        async def noop(number: int) -> None:
            del number

        @self.app.task(name="many")
        async def many() -> None:
            for number in range(EACH):
                await durable.step("add", add, number)

        @self.app.task(name="back", retry=retry.fixed(ROUNDS + 1, delay=0))
        async def back() -> None:
            began = time.perf_counter()
            for number in range(MANY):
                await durable.step("add", add, number)
            self.spent.append(time.perf_counter() - began)
            raise OSError("once more")

        self.lone, self.noop, self.many, self.back = lone, noop, many, back

    async def measure(self) -> dict[str, float]:
        """Return the figures."""
        figures: dict[str, float] = {}
        async with self.app, self.app.worker(concurrency=JOBS):
            ratios, steps = [], []
            for _ in range(ROUNDS):
                steps.append(await (await self.lone.enqueue()).result())
                began = time.perf_counter()
                for number in range(LONE):
                    await self.noop.enqueue(number)
                ratios.append(steps[-1] * LONE / (time.perf_counter() - began))
            figures["a lone step, µs"] = median(steps) * 1e6
            figures["beside a lone enqueue"] = median(ratios)
            began, cpu = time.perf_counter(), time.process_time()
            jobs = [await self.many.enqueue() for _ in range(JOBS)]
            for job in jobs:
                await job.result()
            figures["64 jobs, steps/s"] = JOBS * EACH / (time.perf_counter() - began)
            figures["of a second of processor time"] = JOBS * EACH / (time.process_time() - cpu)
            job = await self.back.enqueue()
            with contextlib.suppress(JobFailed):
                await job.result()
            figures["1 000 steps are back after, ms"] = median(self.spent[1:]) * 1e3
        return figures


# -- in another process ----------------------------------------------------------------------------


def going_on(path: Path) -> tuple[TaskQ, Task[..., float], Task[..., float]]:
    """Return an app, a task that is signalled, and one whose worker is killed.

    Each returns what the clock that all processes share says once it has gone on.
    """
    app = TaskQ(path)

    @app.task(name="hear")
    async def hear() -> float:
        sent = await durable.event("go", float)
        return time.monotonic() - sent

    @app.task(name="outlive", retry=retry.fixed(KILLS + 1, delay=0))
    async def outlive() -> float:
        job = current_job()
        await durable.step("begun", add, job.attempt)
        if job.attempt == 1:
            await asyncio.Event().wait()
        return time.monotonic()

    return app, hear, outlive


def work(path: str) -> None:
    """Be a worker until somebody kills it."""

    async def run() -> None:
        app, _, _ = going_on(Path(path))
        async with app, app.worker(concurrency=JOBS):
            await app.peek(1)  # it knows what waits, as a worker does that has been there a while
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


async def begun(app: TaskQ, job: JobHandle[float]) -> bool:
    """Return whether a job has done a step."""
    return any(event.kind == "stepped" for event in await app.timeline(job))


async def elsewhere(path: Path, waiting: int) -> dict[str, float]:
    """Signal jobs, and kill workers."""
    figures: dict[str, float] = {}
    app, hear, outlive = going_on(path)
    workers = [start(__spec__.name, "work", path)]
    listen(workers[0], "ready")
    async with app:
        for _ in range(0, waiting, MANY):
            await app.enqueue_many([hear.call() for _ in range(MANY)])
        jobs = await app.enqueue_many([hear.call() for _ in range(SIGNALS)])
        while (await app.stats()).queues[0].scheduled < waiting + SIGNALS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        heard = []
        for job in jobs:
            await app.signal(job, "go", time.monotonic())
            heard.append(await job.result())
        heard.sort()
        figures[f"a signal beside {waiting} waiting, p50 ms"] = heard[SIGNALS // 2] * 1e3
        figures["p99 ms"] = heard[SIGNALS * 99 // 100] * 1e3
        went_on = []
        for _ in range(KILLS):
            job = await outlive.enqueue()
            while not await begun(app, job):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.01)
            workers.append(start(__spec__.name, "work", path))
            listen(workers[-1], "ready")
            killed = time.monotonic()
            workers[-2].kill()
            went_on.append(await job.result() - killed)
            workers[-2].wait()
        figures["goes on after kill -9, ms"] = median(went_on) * 1e3
        figures["at most, ms"] = max(went_on) * 1e3
    workers[-1].kill()
    return figures


def of_another(python: str, contender: str, path: Path) -> list[float]:
    """Return the seconds of a step of another framework, and of all of them again."""
    words = [python, str(CONTENDERS / contender), str(path), str(LONE)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
    given = options(__doc__, dbos=False, dura="", waiting=20_000)
    with scratch(given.dir) as path:
        figures = asyncio.run(Bench(path / "log").measure())
        figures |= asyncio.run(elsewhere(path / "elsewhere", given.waiting))
        if given.dbos:
            python, _ = installed(sys.executable, "dbos", directory=kept_for(sys.executable))
            figures["a step of dbos, µs"] = of_another(python, "dbos_steps.py", path)[-1] * 1e6
        if given.dura:
            python, _ = installed(given.dura, "dura", directory=kept_for(given.dura))
            step, again = of_another(python, "dura_steps.py", path)
            figures["a step of dura, µs"] = step * 1e6
            figures["1 000 steps of dura are back after, ms"] = again * 1e3 * MANY / LONE
    for name, value in figures.items():
        print(f"{name:44} {value:10.2f}")


if __name__ == "__main__":
    main()
