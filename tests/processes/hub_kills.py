"""A hub or its device is killed at each named moment, and at any time in a bad world.

``python -m tests.processes.hub_kills``. Calls of the moments below are counted while a device,
whose file system was rolled back and which went on, leaves its log and goes on as another, sends
that, takes jobs and reports their ends. One of the two is killed at the first of them, in another
run at the second, and so on until a run has no more. Then the same requests come once more, or
turned around, with another token, or cut; or the victim's disk is full for a while.

``--sessions N`` instead: sessions through a proxy that cuts, stalls, delivers late or twice,
repeats what was asked long ago, answers from a cache, takes only small requests, finds no hub, or
wants a login first. Meanwhile either side is killed or set back to an earlier day, and the clock of
each is off by up to a day.

In the end, when all are left alone, nothing is lost, nothing is there twice, and nobody repaired
anything.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import errno
import hashlib
import http.client
import importlib
import json
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
from taskq.log.read.reader import LogReader, verify
from taskq.log.segments.identity import read_identity
from taskq.views import LIVE_STATES
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub import Hub
from taskq_plugins.hub import line as ways
from taskq_plugins.hub.client import Outbox
from taskq_plugins.hub.copies import faults
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import Protocol, Server
from taskq_plugins.hub.sync import sync
from tests.processes.harness import is_readable, log_records, same_log
from tests.processes.striker import STRUCK, on_changes, strike

_DEVICE, _OTHER = "edge-7", "edge-8"
_SMALL: Final = 64 * 1024
_JOBS: Final = 3
_TRIES: Final = 30
_STEP_SECONDS: Final = 120.0
#: Zeros after a last frame, and a sync point or two, are not sent.
_REST_BYTES: Final = 256
_ANSWERED: Final = 500
_DAY_NS: Final = 86_400 * 10**9
#: Jobs that a device writes while it sends, so that what is left to send stays small.
_BESIDE_MAX: Final = 100
#: Milliseconds between two kills at any time.
_APART: Final = 25


class Moment(NamedTuple):
    """The moment of a kill.

    Attributes:
        side: the victim.
        name: for people.
        where: a function, as ``module:name``.
        how: see ``strike``.
        world: how the device's log stands to the hub's copy.
    """

    side: str
    name: str
    where: str
    how: str
    world: str = "fork"


_HUB: Final = "taskq_plugins.hub"
MOMENTS: Final = (
    Moment("hub", "before a body", f"{_HUB}.server:_read", "calls"),
    Moment("hub", "in first contact", f"{_HUB}.copies:Copies._make", "steps", "new"),
    Moment("hub", "in a part: written, not synced", f"{_HUB}.copies:Copy.append", "steps"),
    Moment("hub", "after fsync, before the answer", f"{_HUB}.copies:Copy.append", "ends"),
    Moment("hub", "in seal", f"{_HUB}.copies:Copy.seal", "steps"),
    Moment("hub", "while a log is left", f"{_HUB}.registry:Registry.leave", "steps"),
    Moment("hub", "in set-aside of a gap", f"{_HUB}.copies:Gaps.declare", "steps", "gap"),
    Moment("hub", "before any answer goes", f"{_HUB}.server:Server._answer", "ends"),
    Moment("hub", "after handing over", f"{_HUB}.outbox:OutboxServer.given", "ends"),
    Moment("device", "before a body", f"{_HUB}.line:Line.request", "calls"),
    Moment("device", "mid-frame, and all sent", f"{_HUB}.line:Http._pieces", "pieces"),
    Moment("device", "after the answer, before the pin", f"{_HUB}.line:Line.request", "ends"),
    Moment("device", "in the pin", f"{_HUB}.sync:_Session._pin", "steps"),
    Moment("device", "while it goes on as another log", "taskq.engine:fork", "steps"),
    Moment("device", "in ingestion", f"{_HUB}.outbox:DeviceOutbox.take", "steps"),
    Moment("device", "in settle", f"{__name__}:_work", "steps"),
    Moment("hub", "at any time", f"{_HUB}.server:_read", "time", "new"),
    Moment("device", "at any time, while it writes", "", "time", "new"),
)
#: Late imports of processes, here once for all.
_LATE: Final = (
    "anyio._backends._asyncio", "taskq_workers.pool", "taskq_workers.slots.settling",
    "uvicorn.lifespan.on", "uvicorn.loops.auto",
)  # fmt: skip
AFTERWARDS: Final = ("again", "other order", "wrong token", "cut", "disk full")


# -- in the process that is killed -----------------------------------------------------------------


def _fill_disk() -> None:
    def look(half: Callable[[], object]) -> None:
        half()
        raise OSError(errno.ENOSPC, "no room")

    on_changes(look)


def _serve(folder: Path, listening: socket.socket) -> None:
    app = Server(folder / "hub").app
    config = uvicorn.Config(app, http=Protocol, log_level="critical", lifespan="on")
    uvicorn.Server(config).run([listening])


def _live(folder: Path, listening: socket.socket) -> None:
    """The device's own: it sends its log, works off what came, and sends it again."""
    asyncio.run(_sent(folder, listening.getsockname()[1]))


def _live_busily(folder: Path, listening: socket.socket) -> None:
    asyncio.run(_sent_and_written(folder, listening.getsockname()[1]))


async def _sent_and_written(folder: Path, port: int) -> None:
    sending, count = asyncio.create_task(_sent(folder, port)), 0
    async with TaskQ(folder / _DEVICE) as app:
        with (folder / "marks").open("a", encoding="ascii") as noted:
            while not sending.done() and (count := count + 1) < _BESIDE_MAX:
                mark = os.urandom(12).hex()
                await app.enqueue(app.call_by_name("own", mark + "!" * 2_000).options(queue="own"))
                noted.write(f"\n{mark}")
                noted.flush()
    await sending


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
    line = Line(url, token, _Noting(url, folder / "requests"), hub)
    line._part_bytes, ways._PIECE_BYTES = 20_000, 40_000  # type: ignore[misc]
    return line


class _Noting(ways.Http):
    """Notes each request before it is sent."""

    def __init__(self, url: str, file: Path) -> None:
        super().__init__(url)
        self._file = file

    async def __call__(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> ways.HubReply:
        values = [method, path, headers, base64.b64encode(body).decode()]
        with self._file.open("a", encoding="ascii") as file:
            file.write(json.dumps(values) + "\n")
        return await super().__call__(method, path, headers, body)


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


def _prepare(folder: Path, listening: socket.socket, worlds: set[str]) -> None:
    """Make a hub and its device once in each world; the device has gone on since it synced."""
    asyncio.run(_prepared(folder, listening, worlds))


async def _prepared(folder: Path, listening: socket.socket, worlds: set[str]) -> None:
    port = listening.getsockname()[1]
    for world in sorted(worlds):
        place = folder / world
        place.mkdir()
        (place / "token").write_text(Registry(place / "hub").enroll(_DEVICE), encoding="ascii")
        (place / "other").write_text(Registry(place / "hub").enroll(_OTHER), encoding="ascii")
        log = place / _DEVICE
        server = _started(_serve, place, listening)
        try:
            await _put(log, 12)
            if world != "new":
                await _sync(place, port)
            before = {file: file.read_bytes() for file in log.rglob("*") if file.is_file()}
            await _put(log, 9)
            if world != "new":
                await _sync(place, port)
        finally:
            _killed(server)
        if world == "fork":
            roll_back(log, before)
        if world == "gap":
            await _run_over(log)
        ours = await _put(log, 15, large=1)
        (place / "marks").write_text("\n".join(ours), encoding="ascii")
        (place / "requests").write_bytes(b"")
        for _ in range(_JOBS):
            await _ordered(place)


async def _ordered(place: Path) -> None:
    async with Hub(place / "hub") as hub:
        version = f"7.{os.urandom(4).hex()}"
        await hub.device(_DEVICE).enqueue(hub.call_by_name("update", version=version))


def roll_back(log: Path, files: dict[Path, bytes]) -> None:
    """Bring a directory back as a snapshot of its file system does: no file of it is another."""
    for file in log.rglob("*"):
        if file.is_file() and file not in files:
            file.unlink()
    for file, data in files.items():
        file.write_bytes(data)


async def _sync(place: Path, port: int) -> None:
    await sync(str(place / _DEVICE), _line(place, port))


async def _run_over(log: Path) -> None:
    limits: dict[str, Any] = {"keep_segments": 1, "reader_lag_bytes": 3 * _SMALL}
    for count in (100, 30):
        async with TaskLog.open(log, segment_bytes=_SMALL, **limits) as opened:
            while deliveries := await opened.claim(50):
                for delivery in deliveries:
                    await opened.ack(delivery)
            for _ in range(count):
                await opened.put(bytes(4_000))
                (delivery,) = await opened.claim(1)
                await opened.ack(delivery)
            await opened.compact()


async def _put(log: Path, count: int, large: int = 0, *, compacts: bool = False) -> list[str]:
    marks = [os.urandom(12).hex() for _ in range(count)]
    async with TaskLog.open(log, segment_bytes=_SMALL) as opened:
        for number, mark in enumerate(marks):
            size = 2 * 2**20 if number < large else 9_000
            await opened.put(mark.encode() + os.urandom(size), queue="own")
        if compacts and random.random() < 0.1:
            for delivery in await opened.claim(3, queues=["own"]):
                await opened.ack(delivery)
            await opened.compact()
    return marks[large:]


# -- one run ---------------------------------------------------------------------------------------


def _started(what: Callable[..., None], *given: Any) -> int:
    """Run something in a process of its own, a copy of this one; returns its number."""
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
    """Wait until a process is over; returns its exit code, or -9."""
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
    """One kill, and what happens then."""

    def __init__(self, template: Path, folder: Path, listening: socket.socket) -> None:
        self.folder = folder
        self._listening = listening
        shutil.copytree(template, folder)
        for log in (folder / _DEVICE, folder / "hub" / "outbox" / _DEVICE):
            same_log(log)
        self._before = _bytes_of(folder / "hub" / "devices" / _DEVICE)
        self._server = 0

    def run(self, moment: Moment, nth: int, afterwards: str) -> bool:
        self._server = self._process(_serve, moment, nth)
        lives = _live_busily if moment.how == "time" else _live
        ended = _ended(self._process(lives, moment, nth))
        if moment.side == "device":
            is_hit = ended in STRUCK
        elif is_hit := _is_over(self._server, _STEP_SECONDS if ended else 0):
            assert _ended(self._server) in STRUCK, "the hub ended by itself"
            self._server = 0
            (self.folder / "trouble").unlink(missing_ok=True)  # of a device that heard no more
        assert is_hit or ended == 0, f"the device ended with {ended}"
        if moment.side == "hub":  # a survivor would be killed later
            self._serve_anew()
        if is_hit:
            self._go_wrong(afterwards, moment.side)
        assert _ended(self._process(_live_on)) == 0
        self.stop()
        self._check(moment.world)
        return is_hit

    def stop(self) -> None:
        if self._server:
            _killed(self._server)
            self._server = 0

    def _serve_anew(self, *, is_full: bool = False) -> None:
        self.stop()
        self._server = self._process(_serve, is_full=is_full)

    def _process(
        self, what: Callable[..., None], moment: Moment | None = None, nth: int = 0,
        *, is_full: bool = False, line: socket.socket | None = None,
    ) -> int:  # fmt: skip
        if moment is not None and (moment.side == "hub") != (what in (_serve, _serve_badly)):
            moment = None
        line = line or self._listening
        return _started(_struck, self.folder, line, what, moment, nth, is_full)

    # -- what else goes wrong ---------------------------------------------------------------------

    def _go_wrong(self, afterwards: str, side: str) -> None:
        if afterwards == "disk full":
            self._fill(side)
        else:
            lines = (self.folder / "requests").read_text(encoding="ascii").splitlines()
            asked = [(*item[:3], base64.b64decode(item[3])) for item in map(json.loads, lines)]
            self._ask_again(afterwards, asked)
        (self.folder / "trouble").unlink(missing_ok=True)

    def _fill(self, side: str) -> None:
        """Let both go on for a while, with no room where one was killed."""
        if side == "hub":
            self._serve_anew(is_full=True)
        _ended(self._process(_live, is_full=side == "device"))
        if side == "hub":
            self._serve_anew()

    def _ask_again(
        self, afterwards: str, asked: list[tuple[str, str, dict[str, str], bytes]]
    ) -> None:
        token, other = ((self.folder / name).read_text() for name in ("token", "other"))
        if afterwards == "other order":
            asked.reverse()
        else:
            asked = asked[-3:]
        copies = self.folder / "hub" / "devices" / _DEVICE
        before = _tree(copies)
        for item in asked:
            if afterwards == "wrong token":
                self._send(other, *item)
                assert self._send(token[:-1] + "!", *item) in (401, 429)
            else:
                self._send(token, *item, cut=afterwards == "cut")
        assert afterwards != "wrong token" or _tree(copies) == before

    def _send(
        self, token: str, method: str, path: str, headers: dict[str, str], body: bytes,
        *, cut: bool = False,
    ) -> int:  # fmt: skip
        host, port = self._listening.getsockname()
        line = http.client.HTTPConnection(host, port, timeout=_STEP_SECONDS)
        own = {"Authorization": f"Bearer {token}", "Content-Length": str(len(body))}
        try:
            line.request(method, path, body[: len(body) // 2 if cut else None], headers | own)
            if cut:
                return 0
            status = line.getresponse().status
        finally:
            line.close()
        assert status < _ANSWERED or status in (503, 507), (status, method, path)
        return status

    # -- a bad world ------------------------------------------------------------------------------

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
        self._check_walk()
        return counts

    def _go_on_badly(self, line: socket.socket, counts: Counter[str]) -> None:
        chance = random.random()
        if chance < 0.1:
            asyncio.run(_ordered(self.folder))
        elif chance < 0.2:
            side = random.choice((_DEVICE, "hub"))
            counts[f"{side} set back"] += self._set_back(self.folder / side)
        moment = random.choice(MOMENTS) if random.random() < 0.4 else None
        nth = random.randrange(1, 9)
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

    def _check_walk(self) -> None:
        hub, log = self.folder / "hub", self.folder / _DEVICE
        identity = read_identity(LocalDisk(), str(log))
        assert identity is not None
        content_of(log, hub / "devices" / _DEVICE / str(identity.log_id))
        assert not list(faults(hub, deep=True))
        ran, views = self._jobs(log)
        assert set(ran.values()) <= {1}, ran
        assert {view.state for view in views} == {State.SUCCEEDED}

    # -- what must hold ---------------------------------------------------------------------------

    def _check(self, world: str) -> None:
        hub, log = self.folder / "hub", self.folder / _DEVICE
        identity = read_identity(LocalDisk(), str(log))
        assert identity is not None
        copy = hub / "devices" / _DEVICE / str(identity.log_id)
        logs = [str(parent.log_id) for parent in identity.parents] + [copy.name]
        assert {each.name for each in copy.parent.glob("*-*")} == {*logs}
        assert len(logs) == 1 + (world == "fork")
        content = content_of(log, copy)
        for mark in (self.folder / "marks").read_text(encoding="ascii").split():
            assert mark.encode() in content, mark
        # A hub that is killed as it writes an index leaves the file until the next save.
        files = [path for path in hub.rglob("*.tmp") if ".idx." not in path.name]
        left = [*files, *copy.glob("torn/*")]
        assert not left, left
        assert not list(faults(hub, deep=True))
        if world == "fork":
            assert self._before == _bytes_of(copy.parent / logs[0])
        self._check_gaps(copy, world)
        self._check_jobs(log)

    def _check_gaps(self, copy: Path, world: str) -> None:
        file = copy / BREAKS
        lines = (
            [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
        )
        kinds = [line["kind"] for line in lines if line["step"] == "begun"]
        assert kinds == (["gap"] if world == "gap" else []), kinds
        assert [line["step"] for line in lines] == ["begun", "done"] * len(kinds), lines
        for left in copy.glob("old/*"):
            assert self._before == _bytes_of(left)
            with LogReader.open(str(left)) as reader:
                assert not verify(reader.journal).damage, left

    def _check_jobs(self, log: Path) -> None:
        """Each job of the hub's ran once by its log, and its result came home."""
        ran, views = self._jobs(log)
        assert Counter(view.state for view in views) == {State.SUCCEEDED: _JOBS}
        assert ran == Counter(view.job_id for view in views)
        assert all((view.result or b"").startswith(f'"{_DEVICE} has 7.'.encode()) for view in views)

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
    nth: int, is_full: bool,
) -> None:  # fmt: skip
    if moment is not None:
        nth = nth * _APART if moment.how == "time" else nth
        strike(moment.how, nth, *filter(None, [moment.where]))
    if is_full:
        _fill_disk()
    what(folder, listening)


def _bytes_of(folder: Path) -> bytes:
    """Return the segments below a directory, one after the other, as far as they are written."""
    files = sorted([*folder.glob("log/*.log"), *folder.glob("*-*/log/*.log")])
    return b"".join(file.read_bytes().rstrip(b"\0") for file in files)


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


def _tree(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# -- all of them -----------------------------------------------------------------------------------


def _cells(moment: Moment, number: int, times: int) -> Iterator[tuple[int, str]]:
    after = [AFTERWARDS[(number + item) % len(AFTERWARDS)] for item in range(len(AFTERWARDS))]
    if not times:  # half of a write, or where its file is made
        yield 2 if moment.how == "steps" else 1, after[0]
        return
    yield from ((1, entry) for entry in after)
    for nth in range(2, times + 1):
        yield nth, after[nth % len(after)]


def run(folder: Path, times: int, chosen: str, sessions: int) -> str:
    """Return what happened."""
    for name in _LATE:
        importlib.import_module(name)
    moments = [moment for moment in MOMENTS if chosen in f"{moment.side} {moment.name}"]
    if not times:
        moments = [moment for moment in moments if moment.world != "gap"][::4]
    with _listening() as listening:
        worlds = {"new"} if sessions else {moment.world for moment in moments}
        assert _ended(_started(_prepare, folder, listening, worlds)) == 0, _trouble(folder)
        if sessions:
            with _run(folder, listening, "new", f"{sessions} sessions") as run:
                counts = run.walk(sessions)
        else:
            counts = _run_all(folder, listening, moments, times)
    kills = ", ".join(f"{what} {count} times" for what, count in sorted(counts.items()))
    return f"{kills}: nothing lost, nothing twice, no hand repair"


def _run_all(
    folder: Path, listening: socket.socket, moments: list[Moment], times: int
) -> Counter[str]:
    kills = Counter[str]()
    for number, moment in enumerate(moments):
        began, hits = time.monotonic(), 0
        for nth, afterwards in _cells(moment, number, times):
            name = f"{moment.side} {moment.name}, time {nth}, then {afterwards}"
            with _run(folder, listening, moment.world, name) as run:
                if not run.run(moment, nth, afterwards):
                    break
            hits += 1
        assert hits, f"nothing does what is called {moment.name}"
        kills[f"{moment.side} killed"] += hits
        seconds = time.monotonic() - began
        sys.stdout.write(f"{moment.side} {moment.name}: {hits} kills, {seconds:.0f} s\n")
    return kills


@contextlib.contextmanager
def _run(folder: Path, listening: socket.socket, world: str, name: str) -> Iterator[_Run]:
    place = folder / "run"
    run = _Run(folder / world, place, listening)
    try:
        yield run
    except BaseException as error:
        error.add_note(f"{name}: {_trouble(place)}")
        raise
    finally:
        run.stop()
        shutil.rmtree(place)


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    # Its protocol is named: only then does asyncio send answers at once.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening


def _trouble(folder: Path) -> str:
    file = folder / "trouble"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def main() -> None:
    """Run it in memory if there is such a file system: what is killed needs no disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10_000, help="So many of each; 0: a few.")
    parser.add_argument("--only", default="", help="At those that have this in their name.")
    parser.add_argument("--sessions", type=int, default=0, help="In a bad world instead.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dir", default="/dev/shm")  # noqa: S108 - a new one is made there
    given = parser.parse_args()
    random.seed(given.seed)
    place = given.dir if Path(given.dir).is_dir() else None
    with tempfile.TemporaryDirectory(dir=place, prefix="hub-kills-") as folder:
        done = run(Path(folder), given.times, given.only, given.sessions)
    sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main()
