"""All at once between a device and its hub: ``python -m tests.processes.hub_chaos``.

Between the two stands a proxy that cuts, stalls, delivers late or twice, repeats what was asked
long ago, answers from a cache, takes only small requests, finds no hub, or wants a login first. The
hub is killed with -9, either side is set back to an earlier day, and the clock of each is off by up
to a day. In the end, when all are left alone, the copy is the log byte for byte with every large
body, each of the hub's jobs ran once by the log, and nobody repaired anything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from examples.hub.line import free_port
from taskq import State, TaskLog, TaskQ
from taskq.connection.settings import HubSettings
from taskq.core.errors import TaskqError
from taskq.core.records import Kind
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import read_identity
from taskq_plugins.hub import Hub
from taskq_plugins.hub import line as ways
from taskq_plugins.hub.client import Outbox
from taskq_plugins.hub.copies import faults
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import SyncResult, Verdict, sync
from tests.processes.harness import log_records
from tests.processes.hub_matrix import content_of

_DEVICE: Final = "edge-7"
_SMALL: Final = 64 * 1024
_LARGE: Final = 2 * 2**20
_DAY_NS: Final = 86_400 * 10**9
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
#: ``taskq hub serve`` whose clock is off.
_HUB: Final = """
import runpy, sys, time
off, real = int(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + off
time.time = lambda: time.time_ns() / 1e9
runpy.run_module("taskq", run_name="__main__", alter_sys=True)
"""
#: Faults of a proxy, beside none.
FAULTS: Final = (
    "cut", "cut answer", "stall", "half-open", "late", "twice", "replayed", "stale", "413", "502",
    "portal",
)  # fmt: skip
_PAGES: Final = {
    "413": b"HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\n\r\n<html>",
    "502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
    "portal": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
}


class Proxy:
    """A faulty proxy of a hub.

    Attributes:
        port: where it listens; ``to``: where the hub listens.
        faults: the fraction of requests that go wrong.
        seen: how often each fault was.
    """

    def __init__(self, chance: random.Random) -> None:
        self.port = self.to = 0
        self.faults = 0.0
        self.seen = Counter[str]()
        self._chance = chance
        self._late: list[bytes] = []
        self._answers: dict[bytes, bytes] = {}
        self._lines = set[asyncio.Task[Any] | None]()  # the loop itself holds none of them

    async def serve(self) -> asyncio.Server:
        """Listen."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(task := asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while request := await _message(reader):
                answer = await self._answer(request)
                writer.write(answer)
                await writer.drain()
                if not answer or b"content-length" not in answer.lower():
                    break
        writer.transport.abort()
        self._lines.discard(task)

    async def _answer(self, request: bytes) -> bytes:
        """Return what a request is answered, or as much of it as comes."""
        what = self._chance.choice(FAULTS) if self._chance.random() < self.faults else ""
        self.seen[what] += 1
        kind = b" ".join(request.split(b" ", 2)[:2])
        if what in _PAGES:
            return _PAGES[what]
        if what == "stale" and kind in self._answers:
            return self._answers[kind]
        if what in ("late", "stall"):
            self._late.append(request)
        if what in ("half-open", "stall", "late"):
            await asyncio.sleep(3 * ways._ANSWER_SECONDS)
            return b""
        if what == "cut":
            await self._ask(request[: self._chance.randrange(len(request))], is_whole=False)
            return b""
        if what == "replayed" and self._late:
            await self._ask(self._chance.choice(self._late))
        if what == "twice":
            await self._ask(request)
        answer = await self._ask(request)
        if answer:
            self._answers[kind] = answer
        if self._chance.random() < 0.05:
            self._late = [*self._late[-50:], request]
        return answer[: self._chance.randrange(len(answer) + 1)] if what == "cut answer" else answer

    async def _ask(self, request: bytes, *, is_whole: bool = True) -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.to)
            writer.write(request)
            await writer.drain()
            answer = await _message(reader) if is_whole else b""
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            return _PAGES["502"]
        return answer or _PAGES["502"]


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return a request or an answer as it came; b"" at the end of the line."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = _LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


class Chaos:
    """A device, its hub, and their faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hub, self.log, self.folder = folder / "hub", folder / _DEVICE, folder
        self.token = Registry(self.hub).enroll(_DEVICE)
        self.proxy = Proxy(self.chance)
        self.counts = Counter[str]()
        self._process: subprocess.Popen[bytes] | None = None
        self._off_ns = 0

    # -- what they do -----------------------------------------------------------------------------

    async def write(self) -> None:
        """Enqueue and end some jobs on the device, now and then with a large body."""
        async with TaskLog.open(self.log, segment_bytes=_SMALL) as log:
            for _ in range(self.chance.randrange(1, 6)):
                is_large = self.chance.random() < 0.02
                size = _LARGE if is_large else self.chance.randrange(6_000)
                await log.put(os.urandom(24) + bytes(size), queue="own")
                self.counts["bodies"] += is_large
            for delivery in await log.claim(self.chance.randrange(1, 4), queues=["own"]):
                await log.ack(delivery)
            if self.chance.random() < 0.1:
                await log.compact()

    async def order(self) -> None:
        """Enqueue a job for the device on the hub."""
        async with Hub(self.hub) as hub:
            self.counts["jobs"] += 1
            call = hub.call_by_name("update", version=f"7.{self.counts['jobs']}")
            await hub.device(_DEVICE).enqueue(call)

    async def work(self) -> None:
        """Work off what came down."""
        app = TaskQ(self.log)

        @app.task(name="update", retry=5)
        async def update(version: str) -> str:
            return f"has {version}" + "!" * 3_000

        async with app:
            await app.worker(burst=True).run()

    async def session(self) -> SyncResult:
        """Let the device sync once."""
        line = Line(
            f"http://127.0.0.1:{self.proxy.port}", self.token, None,
            HubSettings(accept=("update",), metered="all", machine="a"),
        )  # fmt: skip
        try:
            self.counts["sessions"] += 1
            return await sync(str(self.log), line)
        finally:
            await line.close()

    # -- what befalls them ------------------------------------------------------------------------

    def turn_clock(self) -> None:
        """Let the device's clock be off by something else."""
        self._off_ns = round(self.chance.uniform(-1, 1) * _DAY_NS)

    def clock_ns(self, real: Any = time.time_ns) -> int:
        """Return what time the device believes it is."""
        return int(real()) + self._off_ns

    async def start(self) -> None:
        """Start the hub, with a clock of its own."""
        off_ns = round(self.chance.uniform(-1, 1) * _DAY_NS)
        command = [sys.executable, "-c", _HUB, str(off_ns), "hub", "serve", str(self.hub)]
        self.proxy.to = self.proxy.to or free_port()
        place = ("--bind", f"127.0.0.1:{self.proxy.to}")
        self._process = subprocess.Popen([*command, *place], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        while await self.proxy._ask(b"GET /healthz HTTP/1.1\r\n\r\n") == _PAGES["502"]:
            assert self._process.poll() is None, "the hub ended by itself"
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """Kill the hub with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.counts["kills"] += 1

    async def set_back(self, what: Path) -> None:
        """Let one of the two be what it was when it was last backed up; then back it up."""
        backup = what.with_suffix(".backup")
        if what == self.hub:
            self.kill()
        if backup.exists():
            shutil.rmtree(what)
            backup.rename(what)
            self.counts[f"set back {what.name}"] += 1
        else:
            subprocess.run(["cp", "-a", what, backup], check=True)  # noqa: ASYNC221 - alone here
        if what == self.hub:
            await self.start()
        with contextlib.suppress(TaskqError, OSError):
            self._let_go_on()

    def _let_go_on(self) -> None:
        """Let a device that is held go on, as a person does, but with its token."""
        with Registry(self.hub)._changed(_DEVICE) as facts:
            facts.update(machine="", left=[], state="active")

    async def run(self, sessions: int, kills: int) -> str:
        """Run ``count`` sessions, each of which may fail; then all records must be there."""
        began, every = time.monotonic(), max(sessions // kills, 1)
        server = await self.proxy.serve()
        await self.start()
        self.proxy.faults = 0.08
        await self.order()  # the final check finds its data
        try:
            while self.counts["sessions"] < sessions:
                await self.write()
                if self.chance.random() < 0.1:
                    await self.order()
                    self.turn_clock()
                with contextlib.suppress(TaskqError, OSError):
                    await self.session()
                    self.counts["whole"] += 1
                if self.chance.random() < 0.1:
                    await self.work()
                if self.counts["sessions"] % every == 0:
                    await self._strike()
            await self._settle()
        finally:
            self.kill()
            server.close()
        self.check()
        requests = ", ".join(f"{count} {name or 'well'}" for name, count in self.proxy.seen.items())
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{counts}; requests: {requests}; {time.monotonic() - began:.0f} s"

    async def _strike(self) -> None:
        chance = self.chance.random()
        if chance < 0.5:
            during = asyncio.create_task(self.session())
            await asyncio.sleep(self.chance.uniform(0, 0.05))
            self.kill()
            await self.start()
            await asyncio.wait((during,))
            during.exception()
        else:
            await self.set_back(self.hub if chance < 0.75 else self.log)

    async def _settle(self) -> None:
        """Let nothing go wrong any more, until both rest."""
        self.proxy.faults, ways._ANSWER_SECONDS = 0.0, 60.0  # type: ignore[misc]
        self._let_go_on()
        # Until a restored log writes, the copy is rightly ahead of it: Verdict.AHEAD.
        await self.write()
        for _ in range(20):
            await self.work()
            done = await self.session()
            assert Verdict.AHEAD not in done.verdicts, done.verdicts
            if not any(done.taken):
                return
        raise AssertionError("it does not come to rest")

    # -- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Compare log and copy, and what became of the hub's jobs."""
        identity = read_identity(LocalDisk(), str(self.log))
        assert identity is not None
        copy = self.hub / "devices" / _DEVICE / str(identity.log_id)
        content_of(self.log, copy)
        assert not [*faults(self.hub, deep=True)]
        ran = Counter[str]()
        ends = Counter(item.job for item in log_records(self.log) if item.type == Kind.SUCCEEDED)
        with LogReader.open(str(self.log)) as reader:
            for view in reader.jobs(None, None, None, 100_000):
                if "hub-job" in view.headers:
                    ran[(view.result or b"").decode()] += ends[view.lsn]
        assert set(ran.values()) <= {0, 1}, ran
        views = Outbox(self.hub, _DEVICE).jobs()
        assert {view.state for view in views} <= {State.SUCCEEDED}, Counter(v.state for v in views)
        assert all((view.result or b"").startswith(b'"has 7.') for view in views)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=100, help="And set-backs.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dir", default=".", help="on a real disk")
    given = parser.parse_args()
    ways._ANSWER_SECONDS = 0.25  # type: ignore[misc]
    # The directory of a failed run stays for a look.
    folder = Path(tempfile.mkdtemp(dir=given.dir, prefix="hub-chaos-")).absolute()
    chaos = Chaos(folder, given.seed)
    time.time_ns = chaos.clock_ns
    SystemClock.wall_ns = staticmethod(chaos.clock_ns)
    result = asyncio.run(chaos.run(given.sessions, given.kills))
    shutil.rmtree(folder)
    sys.stdout.write(f"{result}: nothing lost, nothing twice, no hand repair\n")


if __name__ == "__main__":
    main()
