"""A hub and its devices beside their baselines: ``python -m tests.bench.hub``. See README.md.

A backlog over loopback, beside copying, hashing and syncing the same files. ``--mib`` is its size.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.hub.line import HubProcess
from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import sync
from tests.bench.harness import MIB, Table, cpu_seconds, options, scratch


def fill(path: Path, size: int, frame_bytes: int) -> None:
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


if __name__ == "__main__":
    copy(options(__doc__, mib=256))
