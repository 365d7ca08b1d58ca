"""Each tick exactly once: a week of fake time over three worker processes that are killed.

``python -m tests.bench.schedules --seconds 120`` lets a week with a change to or from daylight
saving pass in two minutes, by a clock that runs thousands of times too fast. Three worker processes
tick six schedules; one of them, at random, is killed with -9 every two seconds, and all of them
sleep (SIGSTOP) for eight hours of that week. In the end the log is read record by record, and
compared with moments that are worked out here without a cron library.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from taskq import TaskQ
from taskq.core.model import SECOND_NS
from taskq.core.records import Kind
from taskq.log.read.reader import open_journal
from taskq.log.state.story import records
from taskq_workers import Worker
from taskq_workers.services.scheduler import Scheduler

BERLIN: Final = ZoneInfo("Europe/Berlin")
STARTS: Final = {
    "spring": datetime(2024, 3, 28, 12, tzinfo=BERLIN),
    "autumn": datetime(2024, 10, 24, 12, tzinfo=BERLIN),
}
WEEK_SECONDS: Final = 7 * 86_400
ASLEEP_SECONDS: Final = 8 * 3_600
PROCESSES: Final = 3
KILL_SECONDS: Final = 2.0
#: What a stopped process may have had in hand.
_SLACK: Final = timedelta(minutes=40)


@dataclass(frozen=True)
class FastClock:
    """The machine's clock since some boot time, so many times as fast; the same in all processes.

    Attributes:
        start_ns: what its wall clock showed at ``since_ns``.
        since_ns: of the machine's clock since boot.
        rate: its nanoseconds a real one.
    """

    start_ns: int
    since_ns: int
    rate: int

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self.since_ns + (_boot_ns() - self.since_ns) * self.rate

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self.start_ns - self.since_ns + self.steady_ns()


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def make_app(path: Path, clock: FastClock) -> TaskQ:
    """Return the app with its six schedules."""
    app = TaskQ(path, upkeep=False)
    app._connection.config = replace(app._connection.config, clock=clock)

    @app.cron("*/5 * * * *", tz="Europe/Berlin", catch_up="all", name="five")
    @app.cron("30 2 * * *", tz="Europe/Berlin", catch_up="all", name="nightly")
    @app.cron("0 * * * *", tz="Europe/Berlin", catch_up="all", name="hourly")
    @app.every("7m", jitter="60s", catch_up="all", name="jittery")
    @app.cron("*/10 * * * *", tz="Europe/Berlin", catch_up="last", name="last")
    @app.cron("*/10 * * * *", tz="Europe/Berlin", catch_up="skip", name="skip")
    @app.task(name="report")
    async def report() -> None: ...

    return app


async def work(path: Path, clock: FastClock) -> None:
    """One worker process, until SIGTERM."""
    app = make_app(path, clock)
    worker = Worker(app, concurrency=4, schedules=False)
    worker.services.append(Scheduler(app, look_seconds=0.02))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.request_stop)
    await worker.run()
    await app.close()


async def begin(path: Path, clock: FastClock) -> None:
    """Let the log know the schedules."""
    async with make_app(path, clock) as app:
        await Scheduler(app).look(app.store())


async def finish(path: Path, clock: FastClock) -> dict[str, datetime]:
    """Run what is left; up to when each schedule is done with."""
    app = make_app(path, clock)
    await Worker(app, burst=True).run()
    views = await app.schedules.list()
    await app.close()
    return {view.name: view.done_until for view in views}


def expected(name: str, start: datetime, end: datetime) -> list[datetime]:
    """Return the moments of a schedule behind ``start`` and up to ``end``, worked out by hand."""
    if name == "nightly":
        days = [start.date() + timedelta(days=number) for number in range(12)]
        nights = [
            datetime(day.year, day.month, day.day, 2, 30, tzinfo=BERLIN).astimezone(UTC)
            for day in days
        ]
        # A time that is left out comes right behind the gap.
        nights = [
            one if one.astimezone(BERLIN).hour == 2 else one.replace(minute=0) for one in nights
        ]
        return [one for one in nights if start < one <= end]
    step = {"five": 300, "hourly": 3_600, "jittery": 420}.get(name, 600)
    first = int(start.timestamp()) // step + 1
    last = int(end.timestamp()) // step
    return [datetime.fromtimestamp(n * step, UTC) for n in range(first, last + 1)]


class Fleet:
    """The worker processes."""

    def __init__(self, path: Path, clock: FastClock) -> None:
        self._command = [
            sys.executable, "-m", "tests.bench.schedules", "--work", str(path),
            str(clock.start_ns), str(clock.since_ns), str(clock.rate),
        ]  # fmt: skip
        self.kills = 0
        self._processes = [subprocess.Popen(self._command) for _ in range(PROCESSES)]

    def kill_one(self, chance: random.Random) -> None:
        """Kill one of them, and start another."""
        number = chance.randrange(PROCESSES)
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = subprocess.Popen(self._command)
        self.kills += 1

    def signal(self, number: int) -> None:
        """Send all of them a signal."""
        for one in self._processes:
            one.send_signal(number)

    def end(self) -> None:
        """Let them stop."""
        self.signal(signal.SIGTERM)
        for one in self._processes:
            # One that had not yet begun has no handler, and dies of it.
            if one.wait(60) not in {0, -signal.SIGTERM}:
                raise SystemExit(f"a worker ended with {one.returncode}")


def drive(fleet: Fleet, clock: FastClock, seed: int) -> tuple[datetime, datetime]:
    """Let the week pass; from when to when all were asleep."""
    chance = random.Random(seed)
    asleep = awake = 0
    began = clock.start_ns
    sleep_at = began + WEEK_SECONDS // 2 * SECOND_NS
    while (now := clock.wall_ns()) < began + WEEK_SECONDS * SECOND_NS:
        if not asleep and now >= sleep_at:
            fleet.signal(signal.SIGSTOP)
            asleep = clock.wall_ns()
            time.sleep(ASLEEP_SECONDS / clock.rate)
            awake = clock.wall_ns()
            fleet.signal(signal.SIGCONT)
        time.sleep(KILL_SECONDS)
        fleet.kill_one(chance)
    time.sleep(1.0)
    fleet.end()
    return _moment(asleep), _moment(awake)


class Told(NamedTuple):
    """What the log says: by schedule its ticks and when it was first known; successes by job."""

    ticks: dict[str, list[datetime]]
    starts: dict[str, datetime]
    ended: Counter[int]


def read(path: Path) -> Told:
    """Read the log record by record."""
    told = Told(defaultdict(list), {}, Counter())
    journal = open_journal(str(path))
    for record in records(journal, journal.start()):
        if record.kind == Kind.ENQUEUED and record.extras is not None:
            headers = record.extras.headers
            at = datetime.fromisoformat(headers["taskq-scheduled-at"]).astimezone(UTC)
            told.ticks[headers["taskq-schedule"]].append(at)
        elif record.ticked is not None:
            told.starts.setdefault(record.ticked.name, _moment(record.ticked.state.done_ns))
        elif record.kind == Kind.SUCCEEDED:
            told.ended[record.job] += 1
    journal.close()
    return told


def check(path: Path, done: dict[str, datetime], asleep: datetime, awake: datetime) -> None:
    """Compare the log with what is expected, and print it.

    Raises:
        SystemExit: it is not so.
    """
    ticks, starts, ended = read(path)
    wrong: list[str] = []
    print(
        f"{'schedule':10} {'expected':>9} {'ticked':>7} {'twice':>6} {'missing':>8} {'asleep':>7}"
    )
    for name, found in sorted(ticks.items()):
        wanted = expected(name, starts[name], done[name])
        twice, missing = len(found) - len(set(found)), len(set(wanted) - set(found))
        night = [one for one in found if asleep + _SLACK < one < awake - timedelta(minutes=1)]
        print(f"{name:10} {len(wanted):9} {len(found):7} {twice:6} {missing:8} {len(night):7}")
        if twice or found != sorted(found) or not set(found) <= set(wanted):
            wrong.append(f"{name}: twice, out of order, or at no moment of its own")
        if name not in {"last", "skip"} and missing:
            wrong.append(f"{name}: {missing} are missing")
        if name in {"last", "skip"} and len(night) > (name == "last"):
            wrong.append(f"{name}: {len(night)} of the hours asleep were made up for")
    total = sum(map(len, ticks.values()))
    if len(ended) != total or max(ended.values()) != 1:
        wrong.append(f"of {total} jobs {len(ended)} succeeded, one {max(ended.values())} times")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"{total} ticks, each once; each of their jobs succeeded once")


def _moment(moment_ns: int) -> datetime:
    # In UTC: Python compares datetimes of a zone by their wall times, of which some come twice.
    return datetime.fromtimestamp(moment_ns / SECOND_NS, UTC)


def main() -> None:
    """Run a week, or be one of its workers."""
    # By such a clock every fsync takes minutes.
    logging.getLogger("taskq").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="what the week takes")
    parser.add_argument("--season", choices=sorted(STARTS), default="spring")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        path, *numbers = options.work
        asyncio.run(work(Path(path), FastClock(*map(int, numbers))))
        return
    path = Path(tempfile.mkdtemp(prefix="taskq-schedules-"))
    start_ns = round(STARTS[options.season].timestamp()) * SECOND_NS
    clock = FastClock(start_ns, _boot_ns(), round(WEEK_SECONDS / options.seconds))
    try:
        asyncio.run(begin(path, clock))
        fleet = Fleet(path, clock)
        asleep, awake = drive(fleet, clock, options.seed)
        done = asyncio.run(finish(path, clock))
        print(
            f"a week from {STARTS[options.season]:%Y-%m-%d %H:%M %Z}, {clock.rate} times as fast, "
            f"{PROCESSES} workers, {fleet.kills} killed, all asleep from {asleep:%d %H:%M} "
            f"to {awake:%d %H:%M}"
        )
        check(path, done, asleep, awake)
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
