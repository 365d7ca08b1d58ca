"""A hub and its devices beside their baselines: ``python -m tests.bench.hub copy``. See README.md.

``copy``: a backlog over loopback, beside copying, hashing and syncing the same files. What a hub
bears: ``idle``, known devices that poll; ``herd``, all at once. ``--mib`` is of the backlog,
``--devices`` of the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx

from examples.hub.line import free_port
from taskq import TaskLog
from taskq.core.model import Durability
from taskq.engine import Border, DurableLog
from taskq.log.config import LogConfig
from taskq.log.machine.disk import LocalDisk
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.models import (
    SPOKEN,
    Append,
    CopyEnd,
    Sync,
    carried,
    understood,
)
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import sync
from tests.bench.harness import MIB, Table, cpu_seconds, options, percentile, rss_bytes, scratch

_LINES: Final = 60
_BUSY: Final = (408, 429, 503)
_PIECE: Final = MIB


def fill(path: Path, size: int, frame_bytes: int) -> None:
    """Make a log of ``size`` bytes in frames of ``frame`` bytes: one job a batch."""
    config = LogConfig(durability=Durability.OS, keep_seconds=None)
    store = open_store(str(path), config)
    payload = os.urandom(max(frame_bytes - 120, 1))
    try:
        port = store.thread_port
        for _ in range(size // frame_bytes):
            port.enqueue(EnqueueSpec(), payload).result()
    finally:
        store.close()


def serve(hub: Path, port: int) -> subprocess.Popen[bytes]:
    """Return a hub in a process of its own, once it answers."""
    (hub / "devices").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "taskq", "hub", "serve", str(hub)]
    process = subprocess.Popen([*command, "--bind", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
        except httpx.HTTPError:
            assert process.poll() is None
            time.sleep(0.05)
            continue
        return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a hub."""
    process.terminate()
    process.wait()


def plain_copy(log: Path, target: Path) -> tuple[float, float]:
    """(seconds, CPU seconds) of copy, SHA-256 and fsync of a log's files."""
    target.mkdir()
    start, cpu = time.perf_counter(), time.process_time()
    for file in sorted((log / "log").glob("*.log")):
        hashed = hashlib.sha256()
        with file.open("rb") as read, (target / file.name).open("wb") as write:
            while piece := read.read(_PIECE):
                hashed.update(piece)
                write.write(piece)
            write.flush()
            os.fsync(write.fileno())
    return time.perf_counter() - start, time.process_time() - cpu


def copy(folder: Path, mib: int) -> None:
    """A backlog over loopback, at several sizes of frames."""
    table = Table(
        "a backlog over loopback, beside copy + SHA-256 + fsync of its files",
        *("frame", "MiB", "plain MiB/s", "sync MiB/s", "of plain"),
        *("hub CPU s/GiB", "device's", "plain's"),
    )
    for frame_bytes in (256, 4_096, 65_536):
        log, hub, port = folder / f"log-{frame_bytes}", folder / f"hub-{frame_bytes}", free_port()
        fill(log, (mib if frame_bytes > 256 else max(mib // 8, 1)) * MIB, frame_bytes)
        size = sum(path.stat().st_size for path in (log / "log").glob("*.log")) / MIB
        token, process = Registry(hub).enroll("edge-7"), serve(hub, port)
        try:
            plain, plain_cpu = plain_copy(log, folder / f"plain-{frame_bytes}")
            cpu, start = cpu_seconds(process.pid), time.perf_counter()
            own = time.process_time()
            asyncio.run(sync(str(log), Line(f"http://127.0.0.1:{port}", token)))
            seconds, own = time.perf_counter() - start, time.process_time() - own
            cpu = cpu_seconds(process.pid) - cpu
        finally:
            stop(process)
        rate, plain_rate = size / seconds, size / plain
        table.row(
            f"{frame_bytes}", f"{size:.0f}", f"{plain_rate:.0f}", f"{rate:.1f}",
            f"{rate / plain_rate:.2f}",
            *(f"{item / size * 1024:.1f}" for item in (cpu, own, plain_cpu)),
        )  # fmt: skip
        for item in (log, hub, folder / f"plain-{frame_bytes}"):
            shutil.rmtree(item)
    table.print()


async def _template(folder: Path, size: int) -> DurableLog:
    async with TaskLog.open(folder / "template") as log:
        for _ in range(max(size // 4_096, 1)):
            await log.put(os.urandom(4_000))
    return DurableLog(LocalDisk(), str(folder / "template"))


def known_devices(folder: Path, hub: Path, count: int, log: DurableLog | None) -> list[str]:
    """Create the tokens of ``count`` devices, each with a copy of the log if there is one."""
    tokens, registry = [], Registry(hub)
    for number in range(count):
        name, secret = f"edge-{number}", hashlib.sha256(b"%d" % number).hexdigest()[:43]
        token, place = f"tq1.{name}.{secret}", hub / "devices" / name
        facts = json.dumps({"tokens": [hashlib.sha256(token.encode()).hexdigest()]})
        registry.run("INSERT INTO devices VALUES (?, ?)", name, facts, syncs=False)
        if log is not None:
            copy = place / str(log.identity.log_id)
            shutil.copytree(folder / "template" / "log", copy / "log")
            identity = json.loads((folder / "template" / "taskq.json").read_text())
            identity["features"]["read_only_compat"] = ["replica-1"]
            (copy / "taskq.json").write_text(json.dumps(identity))
        tokens.append(token)
    return tokens


class Clients:
    """Many devices on a few lines."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=_LINES, max_keepalive_connections=_LINES)
        timeout = httpx.Timeout(120.0)
        self._client = httpx.AsyncClient(
            base_url=url, limits=limits, timeout=timeout, trust_env=False
        )
        #: time that a device waits for a line of this program is none of the hub's
        self._lines = asyncio.Semaphore(_LINES)
        self.seconds: list[float] = []
        self.busy, self.broken = 0, 0

    async def ask(self, token: str, asked: object) -> object:
        """Ask until the hub has time, over another line where it broke; what it is answered."""
        method, path, headers, body = carried(asked)  # type: ignore[arg-type]
        headers |= {"Authorization": f"Bearer {token}", SPOKEN: Line.spoken}
        while True:
            async with self._lines:
                start = time.perf_counter()
                try:
                    answer = await self._client.request(method, path, headers=headers, content=body)
                except httpx.TransportError:
                    answer = None
                seconds = time.perf_counter() - start
            if answer is None:
                self.broken += 1
                await asyncio.sleep(random.uniform(1.0, 2.0))
                continue
            if answer.status_code not in _BUSY:
                self.seconds.append(seconds)
                return understood(asked, answer.status_code, answer.content)  # type: ignore[arg-type]
            self.busy += 1
            await asyncio.sleep(float(answer.headers["Retry-After"]) * random.random())

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()


async def idle(folder: Path, url: str, hub: Path, pid: int, count: int, seconds: float) -> None:
    """Known devices that poll 100 times a second, all in turn."""
    log = await _template(folder, 4_096)
    tokens, clients = known_devices(folder, hub, count, log), Clients(url)
    asked = Sync(log.identity.log_id, 1, frozenset(), log.end)
    table = Table(f"{count} known devices", "after", "polls/s", "hub CPU", "hub RSS MiB", "p99 ms")
    done, began, cpu = 0, time.perf_counter(), cpu_seconds(pid)
    reported = began

    async def poll(token: str) -> None:
        answer = await clients.ask(token, asked)
        assert isinstance(answer, CopyEnd)
        assert answer.has_end

    async with asyncio.TaskGroup() as tasks:
        while (now := time.perf_counter()) - began < seconds:
            tasks.create_task(poll(tokens[done % count]))
            done += 1
            await asyncio.sleep(max(began + done / 100 - now, 0))
            if now - reported > seconds / 4:
                spent = (cpu_seconds(pid) - cpu) / (now - reported)
                rate = len(clients.seconds) / (now - reported)
                p99 = percentile(clients.seconds, 99) * 1e3
                rss = rss_bytes(pid) / MIB
                figures = (f"{rate:.0f}", f"{spent:.1%}", f"{rss:.0f}", f"{p99:.0f}")
                table.row(f"{now - began:.0f} s", *figures)
                clients.seconds.clear()
                reported, cpu = now, cpu_seconds(pid)
    await clients.close()
    log.close()
    table.print()


async def herd(folder: Path, url: str, hub: Path, pid: int, count: int, seconds: float) -> None:
    """Devices with 64 KiB each, which all come within ``seconds``."""
    log = await _template(folder, 60_000)
    tokens, clients = known_devices(folder, hub, count, None), Clients(url)
    data, end = log.part(Border(log.segments[0]), MIB)
    log_id = log.identity.log_id

    async def come(token: str) -> None:
        await asyncio.sleep(random.uniform(0, seconds))
        answer = await clients.ask(token, Sync(log_id, 1, frozenset(), end))
        assert isinstance(answer, CopyEnd)
        await clients.ask(token, Append(answer.session, log_id, Border(log.segments[0]), data))

    began, cpu = time.perf_counter(), cpu_seconds(pid)
    await asyncio.gather(*map(come, tokens))
    took = time.perf_counter() - began
    spent = cpu_seconds(pid) - cpu
    table = Table(
        f"{count} devices with {len(data) // 1024} KiB each within {seconds:.0f} s",
        *(
            "all stored after",
            "p99 of a request",
            "told to wait",
            "lines broken",
            "hub CPU s",
            "hub RSS MiB",
        ),
    )
    p99 = percentile(clients.seconds, 99)
    rss = rss_bytes(pid) / MIB
    waits = f"{clients.busy}", f"{clients.broken}"
    table.row(f"{took:.0f} s", f"{p99:.2f} s", *waits, f"{spent:.0f}", f"{rss:.0f}")
    table.print()
    await clients.close()
    log.close()


#: Each load with its devices and seconds.
_LOADS: Final = {
    "idle": (idle, 10_000, 600.0),
    "herd": (herd, 10_000, 60.0),
}


def main() -> None:
    """Run one of the benchmarks."""
    what = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if what not in {"copy", *_LOADS}:
        sys.exit(f"{__doc__}\nName one of copy, {', '.join(_LOADS)}.")
    given = options(__doc__, mib=256, devices=int, seconds=float)
    with scratch(given.dir) as folder:
        if what == "copy":
            copy(folder, given.mib)
            return
        load, devices, seconds = _LOADS[what]
        hub, port = folder / "hub", free_port()
        process = serve(hub, port)
        try:
            url = f"http://127.0.0.1:{port}"
            many, long = given.devices or devices, given.seconds or seconds
            asyncio.run(load(folder, url, hub, process.pid, many, long))
        finally:
            stop(process)


if __name__ == "__main__":
    main()
