"""Jobs that need a host which is down for a day: what is written meanwhile, and how they come back.

Two worker processes share the log. The clocks of all processes are sent a day ahead while the host
is down; then a TCP server begins to listen, counts who talks to it at a time, and the jobs run.

Run: ``python -m tests.bench.offline``. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import TaskQ
from taskq.conditions import online
from taskq.testing.clock import TravelClock, use_clock
from taskq_workers.pool import Worker
from tests.bench.process import cpu_seconds
from tests.bench.tables import Table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DAY_SECONDS: Final = 24 * 3_600
WORKERS: Final = 2
#: How long the host takes to answer a job.
ANSWER_SECONDS: Final = 0.02
_MODULE: Final = "tests.bench.offline"


def make_app(directory: str, port: int, clock: TravelClock) -> TaskQ:
    """Return an app with one task that needs the host."""
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


async def work(directory: str, port: int, concurrency: int) -> None:
    """A worker process: says when it keeps jobs back, and goes ahead a day when told to."""
    clock = TravelClock()
    app = make_app(directory, port, clock)
    async with app, Worker(app, concurrency=concurrency) as worker:
        gates = worker._gates
        assert gates is not None
        while not gates.holds():
            gates.moved.clear()
            await gates.moved.wait()
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        clock.advance(DAY_SECONDS)
        print("advanced", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


class Host:
    """The host that the jobs need, once it listens."""

    def __init__(self) -> None:
        self.now = 0
        #: jobs that talked to it at a time, as each came
        self.most: list[int] = []
        self.first_at = 0.0
        self.probes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one job; a probe says nothing and hangs up."""
        try:
            if not await reader.readline():
                self.probes += 1
                return
            self.first_at = self.first_at or time.monotonic()
            self.now += 1
            self.most.append(self.now)
            await asyncio.sleep(ANSWER_SECONDS)
            self.now -= 1
            writer.write(b"thanks\n")
        finally:
            writer.close()


async def _worker(directory: str, port: int, concurrency: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, "--work", directory, str(port),
        "--concurrency", str(concurrency),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _say(workers: list[asyncio.subprocess.Process]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        await worker.stdin.drain()


async def _heard(workers: list[asyncio.subprocess.Process], word: str) -> None:
    for worker in workers:
        assert worker.stdout is not None
        line = await asyncio.wait_for(worker.stdout.readline(), 60)
        assert line.decode().strip() == word, (line, word)


async def _kinds(app: TaskQ) -> AsyncIterator[str]:
    async for record in app.stream(follow=False):
        yield f"{record.kind} {record.cause}".strip()


async def measure(directory: str, jobs: int, concurrency: int, seconds: float) -> dict[str, object]:
    """Return one run; what it found, all of it asserted."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    clock = TravelClock()
    app = make_app(directory, port, clock)
    host = Host()
    async with app:
        handles = await app._tasks["upload"].enqueue_many([(number,) for number in range(jobs)])
        workers = [await _worker(directory, port, concurrency) for _ in range(WORKERS)]
        try:
            await _heard(workers, "held")
            before = (await app.stats()).next_lsn
            clock.advance(DAY_SECONDS)
            await _say(workers)
            await _heard(workers, "advanced")
            spent = -sum(cpu_seconds(worker.pid) for worker in workers)
            await asyncio.sleep(seconds)
            spent += sum(cpu_seconds(worker.pid) for worker in workers)
            written = (await app.stats()).next_lsn - before
            reason = (await app.why(handles[-1].id)).text
            server = await asyncio.start_server(host.serve, "127.0.0.1", port, backlog=1_000)
            up_at = time.monotonic()
            await asyncio.gather(*(handle.result(timeout=300) for handle in handles))
            done = time.monotonic() - up_at
        finally:
            await _say(workers)
            codes = [await worker.wait() for worker in workers]
        server.close()
        kinds: Counter[str] = Counter()
        async for kind in _kinds(app):
            kinds[kind] += 1
        attempts = Counter([(await handle.view()).attempt for handle in handles[:: jobs // 50]])
    assert codes == [0] * WORKERS, codes
    assert written == 0, f"{written} records were written while the host was down"
    assert host.first_at - up_at < 1.0
    assert kinds["succeeded"] == kinds["claimed"] - _released(kinds) == jobs, kinds
    assert _released(kinds) <= WORKERS * concurrency, kinds
    assert set(attempts) == {1}, attempts
    for step in (1, 2, 4):
        # Each process begins with one job, and doubles: 1 + 2 + 4 … jobs have come by then.
        assert max(host.most[: 2 * step - 1]) <= WORKERS * step, host.most[:32]
    assert max(host.most) <= WORKERS * concurrency
    return {
        "why, meanwhile": reason,
        "records written while down": written,
        "a worker, meanwhile": f"{spent / WORKERS / seconds * 100:.2f} % of a core",
        "first job after": f"{host.first_at - up_at:.3f} s",
        "all jobs after": f"{done:.2f} s",
        "at a time, as the first came": " ".join(map(str, host.most[:24])),
        "most at a time": max(host.most),
        "probes of the host once up": host.probes,
        "claims": kinds["claimed"],
        "given back": _released(kinds),
        "attempts": dict(attempts),
    }


def _released(kinds: Counter[str]) -> int:
    return sum(count for kind, count in kinds.items() if kind.startswith("released"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--concurrency", type=int, default=16, help="of each worker process")
    parser.add_argument("--seconds", type=float, default=5, help="how long the host stays down")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.work[0], int(given.work[1]), given.concurrency))
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        found = asyncio.run(
            measure(os.fspath(directory), given.jobs, given.concurrency, given.seconds)
        )
    if given.json:
        print(json.dumps(found))
        return
    table = Table(f"{given.jobs} jobs whose host was down for a day", ("what", "found"))
    for what, value in found.items():
        table.row(what, str(value))
    table.print()


if __name__ == "__main__":
    main()
