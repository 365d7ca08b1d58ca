"""Jobs for a group of devices that come and go, hub and devices killed with -9 at random.

``python -m tests.processes.hub_jobs``. Some jobs are cancelled and some expire before any device is
there; each of the others runs once on each device by its log, and its result is in the outbox.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from examples.hub.line import BadLine, HubProcess
from taskq import JobHandle, State, TaskLog, TaskQ
from taskq.connection.settings import HubSettings
from taskq.core.errors import JobError, LogError
from taskq.log.read.reader import LogReader
from taskq_plugins.hub import Hub
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import sync

_OF_PROCESS: Final = 25
_DROPS: Final = 0.05
#: The interval of a device's looks, which grows while there is nothing.
_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 10.0
#: The fraction of a device's turns that are cut short: it goes off.
_CUT: Final = 0.2
_CHANCE: Final = random.Random(7)


# -- devices ---------------------------------------------------------------------------------------


async def _live(path: Path, port: int) -> None:
    """Come and go, until killed."""
    async with TaskLog.open(path):
        """There is a log."""
    line = Line(
        f"http://127.0.0.1:{port}", path.with_suffix(".token").read_text(encoding="ascii"), None,
        HubSettings(accept=("update",), metered="all"),
    )  # fmt: skip
    pause = _PAUSE_SECONDS
    while True:
        done = await _for_a_while(sync(str(path), line))
        if done is None or done.sent_bytes or any(done.taken):
            pause = _PAUSE_SECONDS
            await _for_a_while(_work(path))
        await asyncio.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


async def _for_a_while(doing: Any) -> Any:
    """Do something, which may be cut short; returns what came of it, None if nothing did."""
    limit = random.uniform(0.05, 0.5) if random.random() < _CUT else 60.0
    with contextlib.suppress(TimeoutError, LogError):
        return await asyncio.wait_for(doing, limit)


async def _work(path: Path) -> None:
    app = TaskQ(path)

    @app.task(name="update", retry=5)
    async def update(version: str) -> str:
        return f"{path.name} has {version}"

    async with app:
        await app.worker(burst=True).run()


async def _live_all(paths: list[Path], port: int) -> None:
    await asyncio.gather(*(_live(path, port) for path in paths))


class _Devices:
    """Processes that play several devices each, started anew when they are killed."""

    def __init__(self, paths: list[Path], port: int) -> None:
        self.kills = 0
        self._port = port
        self._parts = [paths[at : at + _OF_PROCESS] for at in range(0, len(paths), _OF_PROCESS)]
        self._processes = list(map(self._start, self._parts))

    def _start(self, paths: list[Path]) -> subprocess.Popen[bytes]:
        words = (sys.executable, "-m", __spec__.name, "--part", self._port, *paths)
        return subprocess.Popen(tuple(map(str, words)), stderr=subprocess.DEVNULL)

    def kill_one(self) -> None:
        """Kill one with -9, and start it anew."""
        number = _CHANCE.randrange(len(self._parts))
        self.stop(number)
        self.kills += 1
        self._processes[number] = self._start(self._parts[number])

    def stop(self, number: int) -> None:
        """Kill one."""
        self._processes[number].kill()
        self._processes[number].wait()

    def stop_all(self) -> None:
        """Kill them all."""
        for number in range(len(self._parts)):
            self.stop(number)


# -- the hub's programs ----------------------------------------------------------------------------


async def _run(folder: Path, devices: int, rounds: int, kills: int) -> str:
    began, names = time.monotonic(), [f"edge-{number}" for number in range(devices)]
    for name in names:
        (folder / f"{name}.token").write_text(
            Registry(folder / "hub").enroll(name), encoding="ascii"
        )
        Registry(folder / "hub").join("all", name)
    server = HubProcess(folder / "hub")
    async with Hub(folder / "hub") as hub:
        update, group = hub.call_by_name, hub.group("all")
        called_off = await group.enqueue(update("update", version="off"))
        assert all([await job.cancel() for job in called_off])
        late = await group.enqueue(update("update", version="late").options(expires=0.001))
        jobs = [
            job
            for number in range(rounds)
            for job in await group.enqueue(update("update", version=f"7.{number}"))
        ]
        await server.start()
        try:
            async with BadLine(server.port, _DROPS) as bad:
                there = _Devices([folder / name for name in names], bad.port)
                try:
                    await _until([*jobs, *late], server, there, kills)
                finally:
                    there.stop_all()
        finally:
            server.stop()
        await _check(folder, names, jobs, called_off, late)
    return (
        f"{len(jobs)} jobs for {devices} devices ran once on each by its log, all results are in "
        f"the outbox, {len(called_off)} were cancelled and {len(late)} expired before; hub killed "
        f"{server.kills} times, processes of devices {there.kills} times, the line broke "
        f"{bad.dropped} times; {time.monotonic() - began:.0f} s"
    )


async def _until(
    jobs: list[JobHandle[Any]], server: HubProcess, there: _Devices, kills: int
) -> None:
    """Kill now and then until all of these have ended, and ``kills`` were killed."""

    async def all_ended() -> None:
        for job in jobs:
            with contextlib.suppress(JobError):
                await job.result()

    ended = asyncio.create_task(all_ended())
    while server.kills + there.kills < kills:
        await asyncio.wait((ended,), timeout=_CHANCE.uniform(1.0, 8.0))
        if there.kills < server.kills:
            there.kill_one()
        else:
            await server.kill()
    await ended


async def _check(
    folder: Path, names: list[str], jobs: list[JobHandle[Any]], called_off: list[JobHandle[Any]],
    late: list[JobHandle[Any]],
) -> None:  # fmt: skip
    results = Counter([await job.result() for job in jobs])
    rounds = len(jobs) // len(names)
    assert results == Counter(
        f"{name} has 7.{number}" for name in names for number in range(rounds)
    )
    assert {await job.status() for job in called_off} == {State.CANCELLED}
    assert {await job.status() for job in late} == {State.EXPIRED}
    there = Counter[tuple[str, State]]()
    for name in names:
        with LogReader.open(str(folder / name)) as reader:
            views = reader.jobs(None, None, None, 10_000)
        there += Counter((view.headers["hub-job"], view.state) for view in views)
    assert there == Counter((job.id, State.SUCCEEDED) for job in jobs)


def main() -> None:
    """Run it, or one process of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10, help="Jobs for each of them.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--dir", default=".", help="on a real disk")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        port, *paths = given.part
        asyncio.run(_live_all(list(map(Path, paths)), int(port)))
        return
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="hub-jobs-") as folder:
        output = asyncio.run(
            _run(Path(folder).absolute(), given.devices, given.rounds, given.kills)
        )
    sys.stdout.write(f"{output}\n")


if __name__ == "__main__":
    main()
