"""A hub and its devices beside their baselines: ``python -m tests.bench.hub``. See README.md.

``copy``: a backlog over loopback, beside copying, hashing and syncing the same files. ``herd``:
many devices, all at once. ``--mib`` is of the backlog.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from examples.hub.line import HubProcess
from taskq.core.model import Durability
from taskq.engine import Border, DurableLog
from taskq.log.config import LogConfig
from taskq.log.machine.disk import LocalDisk
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.models import SPOKEN, Append, CopyEnd, Sync, carried, understood
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import sync
from tests.bench.harness import MIB, Table, cpu_seconds, options, percentile, rss_bytes, scratch

#: Connections of the herd. The time that a device waits for one is not the hub's.
LINES = 60
BUSY = (408, 429, 503)


def fill(path: Path, size: int, frame_bytes: int) -> None:
    """Make a log of ``size`` bytes with one job a frame."""
    store = open_store(str(path), LogConfig(durability=Durability.OS, keep_seconds=None))
    payload = os.urandom(max(frame_bytes - 120, 1))
    try:
        for _ in range(size // frame_bytes):
            store.thread_port.enqueue(EnqueueSpec(), payload).result()
    finally:
        store.close()


@contextlib.contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the address of a hub, once it answers, and its process id."""
    (path / "devices").mkdir(parents=True, exist_ok=True)
    hub = HubProcess(path)
    try:
        asyncio.run(hub.start())
        yield f"http://127.0.0.1:{hub.port}", hub.pid
    finally:
        hub.stop()


def plain_copy(log: Path, target: Path) -> tuple[float, float]:
    """Copy, hash and sync a log's files; return the seconds and the CPU seconds."""
    target.mkdir()
    start, cpu = time.perf_counter(), time.process_time()
    for file in sorted((log / "log").glob("*.log")):
        hashed = hashlib.sha256()
        with file.open("rb") as read, (target / file.name).open("wb") as write:
            while piece := read.read(MIB):
                hashed.update(piece)
                write.write(piece)
            write.flush()
            os.fsync(write.fileno())
    return time.perf_counter() - start, time.process_time() - cpu


def copy(given: Any) -> None:
    """Measure a backlog over loopback, at several sizes of frames."""
    table = Table(
        "a backlog over loopback, beside copy + SHA-256 + fsync of its files",
        *("frame", "MiB", "plain MiB/s", "sync MiB/s", "of plain"),
        *("hub CPU s/GiB", "device's", "plain's"),
    )
    for frame_bytes in (256, 4_096, 65_536):
        with scratch(given.dir) as folder:
            log, hub = folder / "log", folder / "hub"
            mib = given.mib if frame_bytes > 256 else max(given.mib // 8, 1)
            fill(log, mib * MIB, frame_bytes)
            size = sum(path.stat().st_size for path in (log / "log").glob("*.log")) / MIB
            token = Registry(hub).enroll("edge-7")
            with served(hub) as (url, pid):
                plain, plain_cpu = plain_copy(log, folder / "plain")
                cpu, own, start = cpu_seconds(pid), time.process_time(), time.perf_counter()
                asyncio.run(sync(str(log), Line(url, token)))
                seconds, own = time.perf_counter() - start, time.process_time() - own
                cpu = cpu_seconds(pid) - cpu
        table.row(
            frame_bytes, f"{size:.0f}", f"{size / plain:.0f}", f"{size / seconds:.1f}",
            f"{plain / seconds:.2f}",
            *(f"{item / size * 1024:.1f}" for item in (cpu, own, plain_cpu)),
        )  # fmt: skip
    table.print()


class Herd:
    """Many devices on a few connections, and how the hub answers them."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=120, trust_env=False)
        self._lines = asyncio.Semaphore(LINES)
        self.seconds: list[float] = []
        self.busy, self.broken = 0, 0

    async def ask(self, token: str, asked: Any) -> object:
        """Ask until the hub has time, over another connection after a broken one."""
        method, path, headers, body = carried(asked)
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
            elif answer.status_code in BUSY:
                self.busy += 1
                await asyncio.sleep(float(answer.headers["Retry-After"]) * random.random())
            else:
                self.seconds.append(seconds)
                return understood(asked, answer.status_code, answer.content)

    async def come(self, tokens: list[str], log: DurableLog, data: bytes, within: float) -> None:
        """Let each device send its log at some moment."""
        log_id, border = log.identity.log_id, Border(log.segments[0])

        async def one_device(token: str) -> None:
            await asyncio.sleep(random.uniform(0, within))
            answer = await self.ask(token, Sync(log_id, 1, frozenset(), log.end))
            assert isinstance(answer, CopyEnd)
            await self.ask(token, Append(answer.session, log_id, border, data))

        await asyncio.gather(*map(one_device, tokens))
        await self._client.aclose()


def herd(given: Any) -> None:
    """Measure devices with 64 KiB each that come within ``--seconds``."""
    with scratch(given.dir) as folder:
        fill(folder / "log", 60_000, 4_096)
        log, registry = DurableLog(LocalDisk(), str(folder / "log")), Registry(folder / "hub")
        data, _ = log.part(Border(log.segments[0]), MIB)
        tokens = [registry.enroll(f"edge-{number}") for number in range(given.devices)]
        with served(folder / "hub") as (url, pid):
            devices, cpu, began = Herd(url), cpu_seconds(pid), time.perf_counter()
            asyncio.run(devices.come(tokens, log, data, given.seconds))
            took, cpu, rss = time.perf_counter() - began, cpu_seconds(pid) - cpu, rss_bytes(pid)
        log.close()
    table = Table(
        f"{given.devices} devices with {len(data) // 1024} KiB each within {given.seconds:.0f} s",
        *("all stored after", "p99 of a request", "told to wait", "lines broken", "hub CPU s"),
        "hub RSS MiB",
    )
    p99 = percentile(devices.seconds, 99)
    counts = (devices.busy, devices.broken, f"{cpu:.0f}", f"{rss / MIB:.0f}")
    table.row(f"{took:.0f} s", f"{p99:.2f} s", *counts)
    table.print()


LOADS = {"copy": copy, "herd": herd}


def main() -> None:
    """Run the benchmarks."""
    given = options(__doc__, mib=256, devices=10_000, seconds=60.0, only=tuple(LOADS))
    for load in given.only or LOADS:
        LOADS[load](given)


if __name__ == "__main__":
    main()
