"""Hub and devices are killed with -9 at random: ``python -m tests.processes.hub_kills``.

Each process works as several devices: it writes jobs, notes the acknowledged ones, and sends its
logs as ``taskq sync --follow`` does. In the end, when all are left alone, each copy is the device's
log byte for byte, every acknowledged job is in it, and nobody repaired anything by hand.
``--matrix``: at each named moment instead, see ``hub_matrix``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from examples.hub.line import free_port
from taskq import TaskLog
from taskq.connection.settings import HubSettings
from taskq.log.read.reader import LogReader, verify
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub.copies import faults
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import follow
from tests.bench.hub import serve
from tests.processes import hub_matrix
from tests.processes.hub_matrix import content_of

_OF_PROCESS: Final = 5
_SMALL: Final = 64 * 1024


async def _device(path: Path, url: str, token: str) -> None:
    """Write, note what was acknowledged, and follow; until killed."""
    line = Line(url, token, None, HubSettings(every=0.1))
    async with TaskLog.open(path, segment_bytes=_SMALL) as log:
        following = asyncio.create_task(follow(str(path), line, at_once=True))
        with path.with_suffix(".ids").open("a", encoding="ascii") as noted:
            while not following.done():
                mark = os.urandom(12).hex()
                await log.put(mark.encode() + bytes(random.randrange(3_000)))
                noted.write(mark + "\n")
                noted.flush()
                await asyncio.sleep(random.uniform(0, 0.2))
        await following


async def _devices(folder: Path, url: str, first: int) -> None:
    names = [f"edge-{first + number}" for number in range(_OF_PROCESS)]
    tokens = {name: (folder / f"{name}.token").read_text() for name in names}
    await asyncio.gather(*(_device(folder / name, url, tokens[name]) for name in names))


async def _last_sync(folder: Path, url: str, name: str) -> None:
    async with TaskLog.open(folder / name) as log:  # remains of a kill are found and noted
        await log.put(b"last")
    line = Line(url, (folder / f"{name}.token").read_text())
    try:
        await follow(str(folder / name), line, once=True)
    finally:
        await line.close()


def _start(folder: Path, url: str, first: int) -> subprocess.Popen[bytes]:
    words = (sys.executable, "-m", "tests.processes.hub_kills", "--part", folder, url, first)
    return subprocess.Popen(tuple(map(str, words)), stderr=subprocess.DEVNULL)


def _check(folder: Path, hub: Path, name: str) -> int:
    """Return how many acknowledged jobs of a device its copy holds: all."""
    (copy,) = (hub / "devices" / name).glob("*-*")
    marks = (folder / f"{name}.ids").read_text().split()
    content, at = content_of(folder / name, copy), 0
    for mark in marks:  # in the order in which they were acknowledged
        at = content.find(mark.encode(), at)
        assert at >= 0, (name, mark)
    assert not (copy / BREAKS).exists(), name
    with LogReader.open(str(copy)) as reader:
        assert not verify(reader.journal).damage, name
    return len(marks)


def run(folder: Path, count: int, seconds: float, seed: int) -> None:
    """Kill for ``seconds``; then all must be there."""
    hub, port, chance = folder / "hub", free_port(), random.Random(seed)
    url, firsts = f"http://127.0.0.1:{port}", range(0, count, _OF_PROCESS)
    names = [f"edge-{number}" for number in range(firsts[-1] + _OF_PROCESS)]
    for name in names:
        (folder / f"{name}.token").write_text(Registry(hub).enroll(name))
    server, kills = serve(hub, port), [0, 0]
    pause = threading.Event()
    processes = {first: _start(folder, url, first) for first in firsts}
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            pause.wait(chance.uniform(0.2, 2.0))
            if chance.random() < 1 / 3:
                kills[0] += 1
                server.kill()
                server.wait()
                server = serve(hub, port)
            else:
                kills[1] += 1
                first = chance.choice(list(firsts))
                processes[first].kill()
                processes[first].wait()
                processes[first] = _start(folder, url, first)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        try:
            for name in names:
                asyncio.run(_last_sync(folder, url, name))
        finally:
            server.kill()
            server.wait()
    jobs = sum(_check(folder, hub, name) for name in names)
    assert not list(faults(hub, deep=True))
    sys.stdout.write(
        f"{len(names)} devices, {jobs} acknowledged jobs, hub killed {kills[0]} times, devices "
        f"{kills[1]} times: nothing lost, nothing twice, nothing declared\n"
    )


def main() -> None:
    """Run it, or one process of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dir", default=".", help="on a real disk")
    parser.add_argument("--matrix", action="store_true", help="At each named moment instead.")
    parser.add_argument("--times", type=int, default=10_000, help="So many of each; 0: a few.")
    parser.add_argument("--only", default="", help="At those that have this in their name.")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        folder, url, first = given.part
        asyncio.run(_devices(Path(folder), url, int(first)))
        return
    if given.matrix:
        hub_matrix.main(given.dir, given.times, given.only)
        return
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="hub-kills-") as folder:
        run(Path(folder).absolute(), given.devices, given.seconds, given.seed)


if __name__ == "__main__":
    main()
