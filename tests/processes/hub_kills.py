"""A hub and its device go through sessions in which all goes wrong, and either is killed.

``python -m tests.processes.hub_kills``. A proxy cuts, stalls, delivers late or twice, repeats what
was asked long ago, answers from a cache, takes only small requests, finds no hub, or wants a login
first. Meanwhile either side is killed at one of the moments below, or set back to an earlier day,
and the clock of each is off by up to a day.

In the end, when all are left alone, nothing is lost, nothing is there twice, and nobody repaired
anything.
"""

import argparse
import asyncio
import contextlib
import importlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn

from taskq import State, TaskLog, TaskQ
from taskq.connection.settings import HubSettings
from taskq.core.errors import TaskqError
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import read_identity
from taskq.views import LIVE_STATES
from taskq_plugins.hub import Hub
from taskq_plugins.hub import line as ways
from taskq_plugins.hub.client import Outbox
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import Protocol, Server
from taskq_plugins.hub.sync import sync
from tests.hub.place import faults
from tests.processes.harness import is_readable, log_records
from tests.processes.striker import STRUCK, strike

_DEVICE: Final = "edge-7"
_SMALL: Final = 64 * 1024
_JOBS: Final = 3
_TRIES: Final = 30
_STEP_SECONDS: Final = 120.0
#: Zeros after a last frame, and a sync point or two, are not sent.
_REST_BYTES: Final = 256
_DAY_NS: Final = 86_400 * 10**9
#: Milliseconds between two kills at any time.
_APART: Final = 25


class Moment(NamedTuple):
    """The moment of a kill: the victim, a function as ``module:name``, and how (see ``strike``)."""

    side: str
    where: str
    how: str


_HUB: Final = "taskq_plugins.hub"
MOMENTS: Final = (
    Moment("hub", f"{_HUB}.server:_read", "calls"),
    Moment("hub", f"{_HUB}.copies:Copies._make", "steps"),
    Moment("hub", f"{_HUB}.copies:Copy.append", "steps"),
    Moment("hub", f"{_HUB}.copies:Copy.append", "ends"),
    Moment("hub", f"{_HUB}.copies:Copy._note_end", "steps"),
    Moment("hub", f"{_HUB}.registry:Registry.leave", "steps"),
    Moment("hub", f"{_HUB}.copies:Gaps.declare", "steps"),
    Moment("hub", f"{_HUB}.server:Server._answer", "ends"),
    Moment("hub", f"{_HUB}.outbox:OutboxServer.given", "ends"),
    Moment("device", f"{_HUB}.line:Line.request", "calls"),
    Moment("device", f"{_HUB}.line:Http._pieces", "pieces"),
    Moment("device", f"{_HUB}.line:Line.request", "ends"),
    Moment("device", f"{_HUB}.sync:_Session._pin", "steps"),
    Moment("device", "taskq.engine:fork", "steps"),
    Moment("device", f"{_HUB}.outbox:DeviceOutbox.take", "steps"),
    Moment("device", f"{__name__}:_work", "steps"),
    Moment("hub", f"{_HUB}.server:_read", "time"),
    Moment("device", "", "time"),
)
#: Late imports of processes, here once for all.
_LATE: Final = (
    "anyio._backends._asyncio", "taskq_workers.pool", "taskq_workers.slots.settling",
    "uvicorn.lifespan.on", "uvicorn.loops.auto",
)  # fmt: skip


# -- in the process that is killed -----------------------------------------------------------------


def _serve(folder: Path, listening: socket.socket) -> None:
    app = Server(folder / "hub").app
    config = uvicorn.Config(app, http=Protocol, log_level="critical", lifespan="on")
    uvicorn.Server(config).run([listening])


def _live_badly(folder: Path, listening: socket.socket) -> None:
    """Write, and try to send over a line that fails, with a clock that is off."""
    ways._ANSWER_SECONDS = 0.25  # type: ignore[misc]

    async def live() -> None:
        await _put(folder / _DEVICE, random.randrange(1, 6), compacts=True)
        await _sent(folder, listening.getsockname()[1])

    _turn_clock()
    with contextlib.suppress(TaskqError, OSError):
        asyncio.run(live())


def _serve_badly(folder: Path, listening: socket.socket) -> None:
    _turn_clock()
    _serve(folder, listening)


def _turn_clock() -> None:
    """Let the clock of this process be off by up to a day."""
    off_ns, real = round(random.uniform(-1, 1) * _DAY_NS), time.time_ns
    time.time_ns = lambda: real() + off_ns
    SystemClock.wall_ns = staticmethod(time.time_ns)


def _live_on(folder: Path, listening: socket.socket) -> None:
    for _ in range(_TRIES):
        with contextlib.suppress(TaskqError, OSError):
            asyncio.run(_sent(folder, listening.getsockname()[1]))
            jobs = Outbox(folder / "hub", _DEVICE).jobs()
            if all(job.state not in LIVE_STATES for job in jobs):
                return
        threading.Event().wait(0.01)
    raise AssertionError("it does not come to an end")


async def _sent(folder: Path, port: int) -> None:
    line = _line(folder, port)
    for _ in range(2):
        await sync(str(folder / _DEVICE), line)
        await _work(folder)
    await sync(str(folder / _DEVICE), line)
    await line.close()


def _line(folder: Path, port: int) -> Line:
    hub = HubSettings(accept=("update",), grace=0, metered="all")
    token, url = (folder / "token").read_text(encoding="ascii"), f"http://127.0.0.1:{port}"
    line = Line(url, token, ways.Http(url), hub)
    line._part_bytes, ways._PIECE_BYTES = 20_000, 40_000  # type: ignore[misc]
    return line


async def _work(folder: Path) -> None:
    app = TaskQ(folder / _DEVICE)

    @app.task(name="update", retry=5)
    async def update(version: str) -> str:
        return f"{_DEVICE} has {version}" + "!" * 3_000

    async with app:
        await app.worker(burst=True, queues=["default"]).run()


# -- the line --------------------------------------------------------------------------------------

_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
#: The fraction of requests that go wrong.
_FAULTY: Final = 0.08
#: Faults of a proxy, beside none.
_FAULTS: Final = (
    "cut", "cut answer", "stall", "half-open", "late", "twice", "replayed", "stale", "413", "502",
    "portal",
)  # fmt: skip
_PAGES: Final = {
    "413": b"HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\n\r\n<html>",
    "502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
    "portal": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
}


class Proxy:
    """A faulty proxy of a hub at a port."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._late: list[bytes] = []
        self._answers: dict[bytes, bytes] = {}
        self._lines = set[asyncio.Task[Any] | None]()  # the loop itself holds none of them

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        what = random.choice(_FAULTS) if random.random() < _FAULTY else ""
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
            await self._ask(request[: random.randrange(len(request))], is_whole=False)
            return b""
        if what == "replayed" and self._late:
            await self._ask(random.choice(self._late))
        if what == "twice":
            await self._ask(request)
        answer = await self._ask(request)
        if answer:
            self._answers[kind] = answer
        if random.random() < 0.05:
            self._late = [*self._late[-50:], request]
        return answer[: random.randrange(len(answer) + 1)] if what == "cut answer" else answer

    async def _ask(self, request: bytes, *, is_whole: bool = True) -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._to)
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


def _stand_between(_folder: Path, listening: socket.socket, to: int) -> None:
    async def carry() -> None:
        async with await asyncio.start_server(Proxy(to).carry, sock=listening) as server:
            await server.serve_forever()

    asyncio.run(carry())


# -- what is there before --------------------------------------------------------------------------


async def _prepared(folder: Path) -> None:
    (folder / "token").write_text(Registry(folder / "hub").enroll(_DEVICE), encoding="ascii")
    await _put(folder / _DEVICE, 36, large=1)
    for _ in range(_JOBS):
        await _ordered(folder)


async def _ordered(place: Path) -> None:
    async with Hub(place / "hub") as hub:
        version = f"7.{os.urandom(4).hex()}"
        await hub.device(_DEVICE).enqueue(hub.call_by_name("update", version=version))


async def _put(log: Path, count: int, large: int = 0, *, compacts: bool = False) -> None:
    async with TaskLog.open(log, segment_bytes=_SMALL) as opened:
        for number in range(count):
            size = 2 * 2**20 if number < large else 9_000
            await opened.put(os.urandom(size), queue="own")
        if compacts and random.random() < 0.1:
            for delivery in await opened.claim(3, queues=["own"]):
                await opened.ack(delivery)
            await opened.compact()


# -- one run ---------------------------------------------------------------------------------------


def _started(what: Callable[..., None], *given: Any) -> int:
    sys.stdout.flush()
    seed = random.random()
    child = os.fork()
    if child:
        return child
    random.seed(seed)
    code = 1
    try:
        with contextlib.suppress(KeyboardInterrupt):
            what(*given)
            code = 0
    except Exception:  # noqa: BLE001 - it has nobody above it
        (given[0] / "trouble").write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(code)


def _ended(child: int) -> int:
    if not _is_over(child, _STEP_SECONDS):
        os.kill(child, signal.SIGABRT)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _is_over(child: int, seconds: float = 0.0) -> bool:
    with open(os.pidfd_open(child)) as descriptor:  # noqa: PTH123 - a descriptor
        return is_readable(descriptor.fileno(), seconds)


class _Run:
    def __init__(self, folder: Path, listening: socket.socket) -> None:
        self.folder = folder
        self._listening = listening
        self._server = 0

    def stop(self) -> None:
        if self._server:
            _killed(self._server)
            self._server = 0

    def _serve_anew(self) -> None:
        self.stop()
        self._server = self._process(_serve)

    def _process(
        self, what: Callable[..., None], moment: Moment | None = None, nth: int = 0,
        *, line: socket.socket | None = None,
    ) -> int:  # fmt: skip
        if moment is not None and (moment.side == "hub") != (what is _serve_badly):
            moment = None
        return _started(_struck, self.folder, line or self._listening, what, moment, nth)

    def walk(self, sessions: int) -> Counter[str]:
        """Let everything go wrong; returns how often either side was killed or set back."""
        counts = Counter[str]()
        self._server = self._process(_serve_badly)
        with _listening() as line:
            proxy = _started(_stand_between, self.folder, line, self._listening.getsockname()[1])
            try:
                for _ in range(sessions):
                    self._go_on_badly(line, counts)
            finally:
                _killed(proxy)
        self._serve_anew()
        self._let_go_on()
        # Until a restored log writes, the copy is rightly ahead of it: Verdict.AHEAD.
        asyncio.run(_put(self.folder / _DEVICE, 1))
        assert _ended(self._process(_live_on)) == 0
        self.stop()
        self._check(counts)
        return counts

    def _go_on_badly(self, line: socket.socket, counts: Counter[str]) -> None:
        chance = random.random()
        if chance < 0.1:
            asyncio.run(_ordered(self.folder))
        elif chance < 0.2:
            side = random.choice((_DEVICE, "hub"))
            counts[f"{side} set back"] += self._set_back(self.folder / side)
        moment = random.choice(MOMENTS) if random.random() < 0.6 else None
        nth = random.choice((1, 1, 2, 3, 5, 8))
        if not self._server or (moment and moment.side == "hub"):
            self.stop()
            self._server = self._process(_serve_badly, moment, nth)
        ended = _ended(self._process(_live_badly, moment, nth, line=line))
        assert ended in (0, *STRUCK), f"the device ended with {ended}"
        counts["device killed"] += ended in STRUCK
        if _is_over(self._server):
            assert _ended(self._server) in STRUCK, "the hub ended by itself"
            counts["hub killed"] += 1
            self._server = 0

    def _set_back(self, what: Path) -> bool:
        """Let one of the two be what it was when it was last backed up; or back it up."""
        self.stop()
        backup = what.with_suffix(".backup")
        is_there = backup.exists()
        if is_there:
            shutil.rmtree(what)
            backup.rename(what)
        else:
            subprocess.run(["cp", "-a", what, backup], check=True)
        with contextlib.suppress(TaskqError, OSError):
            self._let_go_on()
        return is_there

    def _let_go_on(self) -> None:
        """Let a device that is held go on, as a person does, but with its token."""
        registry = Registry(self.folder / "hub")
        with registry._changed(_DEVICE) as facts:
            facts.update(machine="", left=[], state="active")
        registry.close()

    def _check(self, counts: Counter[str]) -> None:
        hub, log = self.folder / "hub", self.folder / _DEVICE
        identity = read_identity(LocalDisk(), str(log))
        assert identity is not None
        content_of(log, hub / "devices" / _DEVICE / str(identity.log_id))
        broken = list(faults(hub, deep=True))
        assert not broken, broken
        ran, views = self._jobs(log)
        assert set(ran.values()) <= {1}, ran
        # A hub that is set back after its device has lost the end of a job with it.
        others = [view for view in views if view.state is not State.SUCCEEDED]
        assert not others or (counts["hub set back"] and counts[f"{_DEVICE} set back"]), others
        assert all("its log does not show" in view.reason for view in others), others

    def _jobs(self, log: Path) -> tuple[Counter[str], list[JobView]]:
        """Return how often the device's log has the success of each job, and the hub's jobs."""
        ends = Counter(record.job for record in log_records(log) if record.type == Kind.SUCCEEDED)
        with LogReader.open(str(log)) as reader:
            there = reader.jobs(None, None, None, 100_000)
        ran = Counter[str]()
        for job in there:
            if job.state is State.SUCCEEDED and "hub-job" in job.headers:
                ran[job.headers["hub-job"]] += ends[job.lsn]
        return ran, Outbox(self.folder / "hub", _DEVICE).jobs()


def _struck(
    folder: Path, listening: socket.socket, what: Callable[..., None], moment: Moment | None,
    nth: int,
) -> None:  # fmt: skip
    if moment is not None:
        nth = nth * _APART if moment.how == "time" else nth
        strike(moment.how, nth, *filter(None, [moment.where]))
    what(folder, listening)


def content_of(log: Path, copy: Path) -> bytes:
    content, files = b"", sorted((log / "log").glob("*.log"))
    ahead = {file.name for file in (copy / "log").glob("*.log") if file.name > files[0].name}
    assert ahead <= {file.name for file in files}, "the copy goes on behind the log"
    for file in files:
        ours, theirs = file.read_bytes(), copy / "log" / file.name
        sent = theirs.read_bytes() if theirs.exists() else b""
        rest = ours[len(sent) :]
        assert ours.startswith(sent), file
        assert not rest.strip(b"\0") or len(rest) < _REST_BYTES, (file, len(rest))
        content += sent
    return content


def run(folder: Path, sessions: int) -> str:
    for name in _LATE:
        importlib.import_module(name)
    asyncio.run(_prepared(folder))
    with _listening() as listening:
        run = _Run(folder, listening)
        try:
            counts = run.walk(sessions)
        except BaseException as error:
            trouble = folder / "trouble"
            error.add_note(trouble.read_text(encoding="utf-8") if trouble.exists() else "")
            raise
        finally:
            run.stop()
    kills = ", ".join(f"{what} {count} times" for what, count in sorted(counts.items()))
    return f"{kills}: nothing lost, nothing twice, no hand repair"


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    # Its protocol is named: only then does asyncio send answers at once.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening


def main() -> None:
    """Run it in memory if there is such a file system: what is killed needs no disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dir", default="/dev/shm")  # noqa: S108 - a new one is made there
    given = parser.parse_args()
    random.seed(given.seed)
    place = given.dir if Path(given.dir).is_dir() else None
    with tempfile.TemporaryDirectory(dir=place, prefix="hub-kills-") as folder:
        done = run(Path(folder), given.sessions)
    sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main()
