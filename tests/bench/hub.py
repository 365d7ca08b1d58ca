"""A hub and its devices beside their baselines: ``python -m tests.bench.hub copy``. See README.md.

``copy``: a backlog over loopback, beside copying, hashing and syncing the same files. ``idle``,
``herd``, ``lag`` and ``attack``: see ``hub_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq_plugins.hub.device.line import Line
from taskq_plugins.hub.devices import enrol
from taskq_plugins.hub.sync import sync
from tests.bench.hub_load import attack, herd, idle, lag
from tests.bench.process import MIB, cpu_seconds
from tests.bench.tables import Table

_PIECE: Final = MIB
#: Each load with its devices and seconds.
_LOADS: Final = {
    "idle": (idle, 10_000, 600.0),
    "herd": (herd, 10_000, 60.0),
    "lag": (lag, 100, 30.0),
    "attack": (attack, 50, 10.0),
}


def fill(path: Path, size: int, frame_bytes: int) -> None:
    """Make a log of so many bytes whose frames have that size: one job a batch."""
    config = LogConfig(durability=Durability.OS, keep_seconds=None)
    store = open_store(str(path), config)
    payload = os.urandom(max(frame_bytes - 120, 1))
    try:
        port = store.thread_port
        for _ in range(size // frame_bytes):
            port.enqueue(EnqueueSpec(), payload).result()
    finally:
        store.close()


def free_port() -> int:
    """Return one that nobody listens at just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def serve(hub: Path, port: int) -> subprocess.Popen[bytes]:
    """Return a hub in a process of its own, once it answers."""
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
    columns = (
        "frame",
        "MiB",
        "plain MiB/s",
        "sync MiB/s",
        "of plain",
        "hub CPU s/GiB",
        "device's",
        "plain's",
    )
    table = Table("a backlog over loopback, beside copy + SHA-256 + fsync of its files", columns)
    for frame_bytes in (256, 4_096, 65_536):
        log, hub, port = folder / f"log-{frame_bytes}", folder / f"hub-{frame_bytes}", free_port()
        fill(log, (mib if frame_bytes > 256 else max(mib // 8, 1)) * MIB, frame_bytes)
        size = sum(one.stat().st_size for one in (log / "log").glob("*.log")) / MIB
        token, process = enrol(hub, "edge-7"), serve(hub, port)
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
            *(f"{one / size * 1024:.1f}" for one in (cpu, own, plain_cpu)),
        )  # fmt: skip
        for one in (log, hub, folder / f"plain-{frame_bytes}"):
            shutil.rmtree(one)
    table.print()


def main() -> None:
    """Run one of the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["copy", *_LOADS])
    parser.add_argument("--mib", type=int, default=256, help="of the backlog, for copy")
    parser.add_argument("--devices", type=int, help="of idle, herd (10 000) and lag (100)")
    parser.add_argument("--seconds", type=float, help="of idle (600), herd (60), lag and attack")
    parser.add_argument("--dir", default=".", help="on the disk that is to be measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="hub-bench-") as name:
        folder = Path(name).absolute()
        if given.what == "copy":
            copy(folder, given.mib)
            return
        load, devices, seconds = _LOADS[given.what]
        hub, port = folder / "hub", free_port()
        process = serve(hub, port)
        try:
            asyncio.run(
                load(
                    folder, f"http://127.0.0.1:{port}", hub, process.pid,
                    given.devices or devices, given.seconds or seconds,
                )
            )  # fmt: skip
        finally:
            stop(process)


if __name__ == "__main__":
    main()
