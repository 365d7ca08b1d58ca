"""Each tick exactly once: a week of fake time over three worker processes that are killed.

The clock runs thousands of times too fast. One worker, at random, is killed with -9 every two
seconds, and all of them sleep (SIGSTOP) for eight hours of the week. In the end the log is read
record by record, and compared with moments that are worked out here without a cron library.
``python -m tests.processes.test_schedule_processes DIRECTORY …`` is one of the workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from taskq import TaskQ
from taskq.core.model import SECOND_NS
from taskq.core.records import Kind
from taskq_workers import Worker
from taskq_workers.services.scheduler import Scheduler
from tests.processes.harness import Child, log_records

ROOT: Final = Path(__file__).parents[2]
BERLIN: Final = ZoneInfo("Europe/Berlin")
#: Summer time begins, or ends, within the week.
STARTS: Final = {
    "spring": datetime(2024, 3, 28, 12, tzinfo=BERLIN),
    "autumn": datetime(2024, 10, 24, 12, tzinfo=BERLIN),
}
WEEK_SECONDS: Final = 7 * 86_400
ASLEEP_SECONDS: Final = 8 * 3_600
#: The length of the week.
REAL_SECONDS: Final = 30
PROCESSES: Final = 3
KILL_SECONDS: Final = 2.0
#: Jobs that a stopped process may have had in hand.
_SLACK: Final = timedelta(minutes=40)


@dataclass(frozen=True)
class FastClock:
    """The machine's clock since some boot time, ``rate`` times as fast; the same in all processes.

    Attributes:
        start_ns: its wall clock at ``since_ns``.
        since_ns: of the machine's clock since boot.
        rate: its nanoseconds a real one.
    """

    start_ns: int
    since_ns: int
    rate: int

    def steady_ns(self) -> int:
        """Return nanoseconds since boot."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return self.since_ns + (now - self.since_ns) * self.rate

    def wall_ns(self) -> int:
        return self.start_ns - self.since_ns + self.steady_ns()

    def let_pass(self, seconds: float) -> None:
        threading.Event().wait(seconds / self.rate)


def make_app(path: Path, clock: FastClock) -> TaskQ:
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
    # By such a clock every fsync takes minutes.
    logging.getLogger("taskq").setLevel(logging.ERROR)
    app = make_app(path, clock)
    worker = Worker(app, concurrency=4, schedules=False)
    worker.services.append(Scheduler(app, look_seconds=0.02))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.request_stop)
    await worker.run()
    await app.close()


async def begin(path: Path, clock: FastClock) -> None:
    async with make_app(path, clock) as app:
        await Scheduler(app).look(app.store())


async def finish(path: Path, clock: FastClock) -> dict[str, datetime]:
    app = make_app(path, clock)
    await Worker(app, burst=True).run()
    views = await app.schedules.list()
    await app.close()
    return {view.name: view.done_until for view in views}


def expected(name: str, start: datetime, end: datetime) -> set[datetime]:
    if name == "nightly":
        days = [start.date() + timedelta(days=number) for number in range(12)]
        nights = [
            datetime(day.year, day.month, day.day, 2, 30, tzinfo=BERLIN).astimezone(UTC)
            for day in days
        ]
        # A time in the gap comes right after it.
        nights = [
            night if night.astimezone(BERLIN).hour == 2 else night.replace(minute=0)
            for night in nights
        ]
        return {night for night in nights if start < night <= end}
    step = {"five": 300, "hourly": 3_600, "jittery": 420}.get(name, 600)
    first = int(start.timestamp()) // step + 1
    last = int(end.timestamp()) // step
    return {datetime.fromtimestamp(number * step, UTC) for number in range(first, last + 1)}


def start_worker(path: Path, clock: FastClock) -> Child:
    numbers = (clock.start_ns, clock.since_ns, clock.rate)
    module = "tests.processes.test_schedule_processes"
    return Child(sys.executable, "-m", module, path, *numbers, cwd=ROOT)


def drive(path: Path, clock: FastClock) -> tuple[datetime, datetime]:
    """Let the week pass; return from when to when all were asleep."""
    chance = random.Random(1)
    workers = [start_worker(path, clock) for _ in range(PROCESSES)]
    asleep = awake = 0
    sleep_at = clock.start_ns + WEEK_SECONDS // 2 * SECOND_NS
    try:
        while (now := clock.wall_ns()) < clock.start_ns + WEEK_SECONDS * SECOND_NS:
            if not asleep and now >= sleep_at:
                for worker in workers:
                    worker.send(signal.SIGSTOP)
                asleep = clock.wall_ns()
                clock.let_pass(ASLEEP_SECONDS)
                awake = clock.wall_ns()
                for worker in workers:
                    worker.send(signal.SIGCONT)
            clock.let_pass(KILL_SECONDS * clock.rate)
            number = chance.randrange(PROCESSES)
            workers[number].__exit__()
            workers[number] = start_worker(path, clock)
        clock.let_pass(clock.rate)
        for worker in workers:
            worker.send(signal.SIGTERM)
        # A process that had not yet begun has no handler, and dies of it.
        assert all(worker.wait(60) in {0, -signal.SIGTERM} for worker in workers)
    finally:
        for worker in workers:
            worker.__exit__()
    return _moment(asleep), _moment(awake)


@dataclass
class Week:
    """Hold what the log says: ticks by schedule, when each was first known; successes by job."""

    ticks: dict[str, list[datetime]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[str, datetime] = field(default_factory=dict)
    ended: Counter[int] = field(default_factory=Counter)


def read(path: Path) -> Week:
    week = Week()
    for record in log_records(path):
        if record.type == Kind.ENQUEUED and record.extras is not None:
            headers = record.extras.headers
            at = datetime.fromisoformat(headers["taskq-scheduled-at"]).astimezone(UTC)
            week.ticks[headers["taskq-schedule"]].append(at)
        elif record.ticked is not None:
            week.starts.setdefault(record.ticked.name, _moment(record.ticked.state.done_ns))
        elif record.type == Kind.SUCCEEDED:
            week.ended[record.job] += 1
    return week


def _moment(moment_ns: int) -> datetime:
    # In UTC: Python compares datetimes of a zone by their wall times, of which some come twice.
    return datetime.fromtimestamp(moment_ns / SECOND_NS, UTC)


@pytest.mark.slow
@pytest.mark.parametrize("season", ["spring", "autumn"])
def test_each_tick_of_a_week_is_written_once_though_workers_are_killed(
    season: str, tmp_path: Path
) -> None:
    start_ns = round(STARTS[season].timestamp()) * SECOND_NS
    since_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    clock = FastClock(start_ns, since_ns, WEEK_SECONDS // REAL_SECONDS)
    path = tmp_path / "data"
    asyncio.run(begin(path, clock))
    asleep, awake = drive(path, clock)
    done = asyncio.run(finish(path, clock))
    week = read(path)
    assert len(week.ticks) == 6
    for name, ticks in week.ticks.items():
        wanted = expected(name, week.starts[name], done[name])
        night = [tick for tick in ticks if asleep + _SLACK < tick < awake - timedelta(minutes=1)]
        assert ticks == sorted(set(ticks)), f"{name}: twice, or out of order"
        assert set(ticks) <= wanted, f"{name}: at no moment of its own"
        if name in {"last", "skip"}:
            assert len(night) <= (name == "last"), f"{name}: hours asleep were made up for"
        else:
            assert set(ticks) == wanted, f"{name}: some are missing"
    assert sorted(week.ended.values()) == [1] * sum(map(len, week.ticks.values()))


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), FastClock(*map(int, sys.argv[2:]))))
