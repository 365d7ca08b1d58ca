"""Make a fleet's task logs, as a hub would have collected them, by running the devices' jobs."""

from __future__ import annotations

import asyncio
import enum
import os
from typing import TYPE_CHECKING, Any, Final

from taskq_workers.pool import Worker

from .jobs import Device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskq import JobHandle
    from taskq_workers.events import JobFinished

HOUR_SECONDS: Final = 3_600
#: Begin of the fleet's day: 2026-11-02 00:00 UTC, in seconds.
DAY_SECONDS: Final = 1_793_577_600
#: Average of each device.
JOBS_PER_HOUR: Final = 12
#: Error of the one wrong clock, which is ahead.
WRONG_SECONDS: Final = 26 * HOUR_SECONDS
#: Hours without an upload by the late device.
LATE_HOURS: Final = 5
#: In every seventh hour a device runs no worker, and jobs pile up.
ASLEEP_EVERY: Final = 7
#: Percentage of waiting jobs that are cancelled.
CANCELLED_PERCENT: Final = 3
PATIENCE_SECONDS: Final = 30
#: Size of a frame's part that was written before the power loss.
TORN_BYTES: Final = 100
_SECOND_NS: Final = 1_000_000_000


class Special(enum.Enum):
    """The faults of a device."""

    SICK = "its firmware update fails"
    SICK_TOO = "its firmware update fails, too"
    WRONG_CLOCK = f"its clock is {WRONG_SECONDS // HOUR_SECONDS} hours ahead"
    LATE = f"it was last heard of {LATE_HOURS} hours before the others"
    REINSTALLED = "it was installed anew in the middle of the day"
    TORN = "it lost its power while it wrote"
    STUCK = "it has had no worker for the last two hours"


SPECIAL: Final = {
    3: Special.SICK,
    5: Special.SICK_TOO,
    7: Special.WRONG_CLOCK,
    8: Special.LATE,
    9: Special.REINSTALLED,
    10: Special.TORN,
    11: Special.STUCK,
}


def make_fleet(root: Path, devices: int, hours: int) -> Iterator[str]:
    """Make every device's log below ``root``; yield a line for each fault.

    12 devices and 6 hours show every kind of fault.
    """
    for number in range(devices):
        name, special = f"device-{number:02}", SPECIAL.get(number)
        asyncio.run(_live(root / name, special, hours))
        yield "" if special is None else f"  {name}: {special.value}\n"


async def _live(path: Path, special: Special | None, hours: int) -> None:
    start = float(DAY_SECONDS)
    sick = special in {Special.SICK, Special.SICK_TOO}
    if special is Special.WRONG_CLOCK:
        start += WRONG_SECONDS
    if special is Special.LATE:
        hours -= LATE_HOURS
    logs = [path]
    if special is Special.REINSTALLED:
        # The hub keeps both logs below the device's name.
        logs = [path / "first", path / "second"]
    share = hours // len(logs)
    for number, log in enumerate(logs):
        device = Device(f"{path.name} {number}", log, start, sick=sick)
        idle = 2 if special is Special.STUCK else 0
        await _work(device, range(number * share, (number + 1) * share), idle)
        start += share * HOUR_SECONDS
    if special is Special.TORN:
        _tear(logs[-1])
    for log in logs:
        _arrive(log, DAY_SECONDS + hours * HOUR_SECONDS)


async def _work(device: Device, hours: range, idle: int) -> None:
    """Run the jobs of these hours as they arrive; in the last ``idle`` hours no worker runs."""
    async with device.app:
        await device.firmware.enqueue("7.2")
        for hour in hours:
            until = device.clock.wall_ns() + HOUR_SECONDS * _SECOND_NS
            jobs = device.draw.randrange(JOBS_PER_HOUR // 2, JOBS_PER_HOUR * 3 // 2)
            if hour >= hours.stop - idle:
                await _pile_up(device, hour, jobs)
            elif device.draw.randrange(ASLEEP_EVERY):
                await _awake(device, hour, jobs)
            else:
                await _pile_up(device, hour, jobs)
                await Worker(device.app, concurrency=1, burst=True).run()
            device.clock.advance(max(until - device.clock.wall_ns(), 0) / _SECOND_NS)


async def _awake(device: Device, hour: int, jobs: int) -> None:
    ended = _Ended()
    async with Worker(device.app, concurrency=1, on_event=ended):
        for _ in range(jobs):
            device.clock.advance(device.draw.expovariate(jobs / HOUR_SECONDS) / 2)
            job = await device.app.enqueue(device.call(hour))
            if not job.duplicate:
                await asyncio.wait_for(ended.wait(job), PATIENCE_SECONDS)


async def _pile_up(device: Device, hour: int, jobs: int) -> None:
    """Let the hour's jobs wait; some are cancelled, some expire before a worker starts."""
    for _ in range(jobs):
        device.clock.advance(device.draw.uniform(0, HOUR_SECONDS / jobs))
        job = await device.app.enqueue(device.call(hour))
        if device.draw.randrange(100) < CANCELLED_PERCENT:
            await job.cancel()


class _Ended:
    """Collects the jobs with an ended attempt."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._event = asyncio.Event()

    def __call__(self, finished: JobFinished) -> None:
        self._seen.add(finished.job_id)
        self._event.set()

    async def wait(self, job: JobHandle[Any]) -> None:
        while job.id not in self._seen:
            self._event.clear()
            await self._event.wait()


def _tear(log: Path) -> None:
    """Leave a torn frame after the last one, like a power loss."""
    newest = max((log / "log").glob("*.log"))
    with newest.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - TORN_BYTES)
        piece = file.read(TORN_BYTES)
        file.write(b"TKQ\xf3" + piece)


def _arrive(log: Path, seconds: float) -> None:
    """Set the files' times to the last upload to the hub."""
    for file in (log / "log").iterdir():
        os.utime(file, (seconds, seconds))
