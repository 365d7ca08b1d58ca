"""Two worker processes and a host that comes up: nothing is written before, few run at first.

``python -m tests.processes.test_offline_processes DIRECTORY PORT`` is one of the workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from taskq import TaskQ
from taskq.conditions import online
from taskq.testing.sandbox import TravelClock, use_clock
from taskq_workers.pool import Worker
from tests.processes.harness import Child
from tests.programs import free_port

ROOT: Final = Path(__file__).parents[2]
DAY_SECONDS: Final = 24 * 3_600
JOBS: Final = 200
WORKERS: Final = 2
CONCURRENCY: Final = 8
#: How long the host takes to answer a job, and stays down after the day.
ANSWER_SECONDS: Final = 0.02
DOWN_SECONDS: Final = 0.5


def make_app(directory: str, port: int, clock: TravelClock) -> TaskQ:
    app = TaskQ(directory)
    use_clock(app, clock)

    @app.task(name="upload", requires=[online(f"127.0.0.1:{port}")], retry=3)
    async def upload(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"{number}\n".encode())
            if not await reader.readline():
                raise ConnectionResetError("the host hung up")
        finally:
            writer.close()
            await writer.wait_closed()

    return app


async def work(directory: str, port: int) -> None:
    clock = TravelClock()
    app = make_app(directory, port, clock)
    async with app, Worker(app, concurrency=CONCURRENCY) as worker:
        gates = worker._parts[0].gates
        assert gates is not None
        while not gates.holds():
            gates.moved.clear()
            await gates.moved.wait()
        os.write(1, b"held\n")
        await asyncio.to_thread(sys.stdin.readline)
        clock.advance(DAY_SECONDS)
        os.write(1, b"advanced\n")
        await asyncio.to_thread(sys.stdin.readline)


class Host:
    """The host that the jobs need, once it listens."""

    def __init__(self) -> None:
        self.now = 0
        #: jobs that talked to it at a time, as each came
        self.most: list[int] = []
        self.first_at = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one job; a probe says nothing and hangs up."""
        try:
            if not await reader.readline():
                return
            self.first_at = self.first_at or time.monotonic()
            self.now += 1
            self.most.append(self.now)
            await asyncio.sleep(ANSWER_SECONDS)
            self.now -= 1
            writer.write(b"thanks\n")
        finally:
            writer.close()


async def test_two_processes_wait_a_day_for_a_host_and_then_ramp_up(tmp_path: Path) -> None:
    """No record while it is down, the first job within 1 s, no stampede, one attempt each."""
    directory = str(tmp_path / "data")
    port = free_port()
    clock, host = TravelClock(), Host()
    app = make_app(directory, port, clock)
    command = (sys.executable, "-m", "tests.processes.test_offline_processes", directory, port)
    async with app:
        handles = await app.tasks["upload"].enqueue_many([(number,) for number in range(JOBS)])
        with Child(*command, cwd=ROOT) as first, Child(*command, cwd=ROOT) as second:
            workers = (first, second)
            for worker in workers:
                await asyncio.to_thread(worker.expect, "held")
            before = (await app.stats()).next_lsn
            clock.advance(DAY_SECONDS)
            for worker in workers:
                worker.say("a day")
            for worker in workers:
                await asyncio.to_thread(worker.expect, "advanced")
            await asyncio.sleep(DOWN_SECONDS)
            assert (await app.stats()).next_lsn == before, "it wrote while the host was down"
            server = await asyncio.start_server(host.serve, "127.0.0.1", port, backlog=1_000)
            up_at = time.monotonic()
            await asyncio.gather(*(handle.result(timeout=300) for handle in handles))
            for worker in workers:
                worker.say("enough")
            assert [await asyncio.to_thread(worker.wait) for worker in workers] == [0, 0]
        server.close()
        kinds: Counter[str] = Counter()
        async for record in app.stream(follow=False):
            kinds[record.kind] += 1
        attempts = {(await handle.view()).attempt for handle in handles[::4]}
    assert host.first_at - up_at < 1.0
    assert kinds["succeeded"] == kinds["claimed"] - kinds["released"] == JOBS, kinds
    assert kinds["released"] <= WORKERS * CONCURRENCY, kinds
    assert attempts == {1}
    for step in (1, 2, 4):
        # Each process begins with one job, and doubles: 1 + 2 + 4 … jobs have come by then.
        assert max(host.most[: 2 * step - 1]) <= WORKERS * step, host.most[:32]
    assert max(host.most) <= WORKERS * CONCURRENCY


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
