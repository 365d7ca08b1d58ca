"""Schedules of an app, as its workers tick them."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from taskq import TaskQ, current_job
from taskq.app.schedules import Schedule
from taskq.core.errors import InvalidCall, UsageError
from taskq.core.views import JobView
from taskq.schedules import CATCH_UP_MAX
from taskq.testing.sandbox import FakeClock, TravelClock, use_clock
from taskq_workers.pool import Worker
from taskq_workers.services.scheduler import LOOK_SECONDS, Scheduler

BERLIN = ZoneInfo("Europe/Berlin")
#: Half an hour before the clocks go forward there.
NIGHT = datetime(2024, 3, 31, 1, 30, tzinfo=BERLIN)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NIGHT.timestamp())


@pytest.fixture
async def app(tmp_path: Path, clock: FakeClock) -> AsyncIterator[TaskQ]:
    app = TaskQ(tmp_path / "data")
    use_clock(app, clock)
    yield app
    await app.close()


async def look(app: TaskQ, *schedulers: Scheduler) -> float:
    """Let schedulers look, all at once; the shortest sleep that they want."""
    await app.open()
    return min(await asyncio.gather(*(scheduler.look(app.store()) for scheduler in schedulers)))


async def ticks(app: TaskQ, clock: FakeClock, scheduler: Scheduler, *waits: float) -> list[str]:
    for seconds in (0, *waits):
        clock.advance(seconds)
        await look(app, scheduler)
    return await moments(app)


async def jobs(app: TaskQ) -> list[JobView]:
    waiting: list[JobView] = await app.store().port().peek(5_000)
    return waiting


async def moments(app: TaskQ) -> list[str]:
    return [job.headers["taskq-scheduled-at"][5:16] for job in await jobs(app)]


async def test_a_tick_enqueues_the_task_with_its_own_options(app: TaskQ, clock: FakeClock) -> None:
    @app.cron("*/15 * * * *", tz="Europe/Berlin", args=(7,), kwargs={"b": "x"})
    @app.task(queue="reports", priority=8, retry=2, name="report", expires="1h")
    def report(a: int, b: str) -> None: ...

    scheduler = Scheduler(app)
    assert await look(app, scheduler) == LOOK_SECONDS
    clock.advance(15 * 60 - 3)
    assert await look(app, scheduler) == 3
    assert await jobs(app) == []
    clock.advance(3)
    await look(app, scheduler)
    (job,) = await jobs(app)
    assert (job.task, job.queue, job.priority, job.attempts_max) == ("report", "reports", 8, 2)
    assert job.payload == report.call(7, "x").body
    assert job.expires_ns == clock.wall_ns() + 3_600 * 10**9
    assert job.headers == {
        "taskq-schedule": "report", "taskq-scheduled-at": "2024-03-31T01:45:00+01:00",
    }  # fmt: skip
    clock.advance(15 * 60)
    await look(app, scheduler)
    assert await moments(app) == ["03-31T01:45", "03-31T03:00"]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", []), ("last", ["03-31T10:00"]), ("all", [f"03-31T{n:02}:00" for n in range(3, 11)])],
)
async def test_after_hours_asleep_it_makes_up_for_what_was_declared(
    app: TaskQ, clock: FakeClock, catch_up: Any, expected: list[str]
) -> None:
    @app.cron("0 * * * *", tz="Europe/Berlin", catch_up=catch_up)
    def report() -> None: ...

    scheduler = Scheduler(app)
    assert await ticks(app, clock, scheduler, 8 * 3_600) == expected
    clock.advance(1_800)
    await look(app, scheduler, Scheduler(app))
    assert await moments(app) == [*expected, "03-31T11:00"]


async def test_what_all_leaves_out_is_logged(
    app: TaskQ, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.every("1m", catch_up="all", name="minutely")
    @app.task
    def report(text: str = "") -> None: ...

    scheduler = Scheduler(app)
    await look(app, scheduler)
    clock.advance(2 * 60 * CATCH_UP_MAX)
    with caplog.at_level(logging.WARNING, "taskq.worker"):
        await look(app, scheduler)
    assert "schedule minutely missed more than 1000 ticks" in caplog.text
    ticks = await jobs(app)
    assert len(ticks) == CATCH_UP_MAX
    assert ticks[-1].headers["taskq-scheduled-at"].startswith("2024-04-01T09:50")


async def test_a_clock_that_is_set_back_ticks_nothing_twice(app: TaskQ, clock: FakeClock) -> None:
    @app.every("10m", catch_up="all")
    def report() -> None: ...

    scheduler = Scheduler(app)
    await look(app, scheduler)
    clock.advance(1_200)
    await look(app, scheduler)
    assert await moments(app) == ["03-31T00:40", "03-31T00:50"]
    clock.step(-3_600)
    for _ in range(13):
        assert await look(app, scheduler, Scheduler(app)) <= LOOK_SECONDS
        clock.advance(300)
    assert await moments(app) == ["03-31T00:40", "03-31T00:50"]
    clock.advance(300)
    await look(app, scheduler)
    assert (await moments(app))[2:] == ["03-31T01:00"]


async def test_a_schedule_of_a_clock_that_was_wrong_is_named_and_counts_from_now_when_reset(
    app: TaskQ, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.every("10m", name="often")
    def report() -> None: ...

    clock.step(10 * 365 * 86_400)
    scheduler = Scheduler(app)
    await look(app, scheduler)
    clock.step(-10 * 365 * 86_400)
    assert await ticks(app, clock, scheduler, 350, 350) == []
    (warning,) = caplog.messages
    assert warning.startswith("schedule often waits for 3650d, since the clock was set back")
    assert await app.schedules.reset("often")
    assert len(await ticks(app, clock, scheduler, 600)) == 1


async def test_a_rule_that_changed_at_a_deploy_counts_from_then(
    app: TaskQ, clock: FakeClock
) -> None:
    old = app.schedule("nightly", app.call_by_name("report"), cron="0 3 * * *", catch_up="all")
    await look(app, Scheduler(app))
    clock.advance(2 * 86_400)
    del app.hooks.schedules.all[old.name]
    app.schedule("nightly", app.call_by_name("report"), cron="*/5 * * * *", catch_up="all")
    scheduler = Scheduler(app)
    assert await ticks(app, clock, scheduler) == []
    assert await ticks(app, clock, scheduler, 300) == ["04-02T00:35"]


async def test_of_two_versions_the_one_that_was_started_last_ticks(
    app: TaskQ, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedule("report", app.call_by_name("report"), every="10m", catch_up="all")
    old = Scheduler(app)
    await look(app, old)
    new_app = TaskQ(app.data_dir)
    use_clock(new_app, clock)
    new_app.schedule("report", app.call_by_name("report"), every="15m", catch_up="all")
    new = Scheduler(new_app)
    await look(new_app, new)
    with caplog.at_level(logging.WARNING, "taskq.worker"):
        for _ in range(12):
            clock.advance(300)
            await look(app, old)
            await look(new_app, new)
    assert [moment[-5:] for moment in await moments(app)] == ["00:45", "01:00", "01:15", "01:30"]
    assert caplog.text.count("schedule report is not ticked here (every 0:10:00)") == 1
    await new_app.close()


async def test_jitter_moves_ticks_but_not_what_they_stand_for(app: TaskQ, clock: FakeClock) -> None:
    @app.every("10m", name="often", jitter="5m", catch_up="all")
    def report() -> None: ...

    scheduler = Scheduler(app)
    await look(app, scheduler)
    for _ in range(6 * 60):
        clock.advance(60)
        await look(app, scheduler)
    late = [job.enqueued_ns // 10**9 % 600 for job in await jobs(app)]
    assert len(late) == len(set(await moments(app))) >= 35
    assert max(late) <= 360
    assert len(set(late)) >= 5  # minutes


async def test_overlap_skip_makes_no_job_while_another_is_open(
    app: TaskQ, clock: FakeClock
) -> None:
    @app.every("10m", name="often", overlap="skip")
    def report() -> None: ...

    scheduler = Scheduler(app)
    await ticks(app, clock, scheduler, 600, 600, 600)
    (job,) = await jobs(app)
    assert await app.job(job.job_id).cancel()
    assert await ticks(app, clock, scheduler, 600) == ["03-31T01:10"]


async def test_a_tick_whose_key_is_held_by_another_job_stands(app: TaskQ, clock: FakeClock) -> None:
    @app.every("10m")
    @app.task(key=lambda: "one", on_conflict="raise")
    def report() -> None: ...

    await report.enqueue()
    scheduler = Scheduler(app)
    for _ in range(3):
        clock.advance(600)
        await look(app, scheduler)
    assert len(await jobs(app)) == 1
    assert (await app.schedules.list())[0].last_tick is not None


async def test_a_worker_ticks_and_its_jobs_know_for_when_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq_workers.services.scheduler.LOOK_SECONDS", 0.01)
    app, clock = TaskQ(tmp_path), TravelClock(NIGHT.timestamp())
    use_clock(app, clock)
    ran: asyncio.Queue[tuple[Any, str]] = asyncio.Queue()

    worker = Worker(app, queues=["none of this"], schedules=False)
    scheduler = Scheduler(app)
    worker.services.append(scheduler)
    async with app, worker:
        # Known only once the worker runs.
        @app.every("1h", name="hourly", catch_up="all")
        @app.task
        async def report() -> None:
            job = current_job()
            await ran.put((job.scheduled_at, job.headers.get("taskq-schedule", "")))

        async with app.worker():
            await scheduler.look(app.store())  # the log knows it from here on
            clock.advance(7_200)
            handed = [await asyncio.wait_for(ran.get(), 30) for _ in range(2)]
            job = await report.enqueue()
            await asyncio.wait_for(job.result(), 30)
        assert await ran.get() == (None, "")
    assert handed == [
        (datetime(2024, 3, 31, 1, tzinfo=UTC), "hourly"),
        (datetime(2024, 3, 31, 2, tzinfo=UTC), "hourly"),
    ]


async def test_a_schedule_whose_arguments_do_not_fit_stops_the_worker(app: TaskQ) -> None:
    @app.cron("* * * * *", args=("x",))
    @app.task
    def report(number: int) -> None: ...

    with pytest.raises(InvalidCall, match="number"):
        async with app.worker():
            raise AssertionError("it started")


@pytest.mark.parametrize(
    "error", [kind("too long") for kind in (UsageError, KeyError, SystemExit, BaseException)]
)
@pytest.mark.parametrize("step", ["enrol", "pack"])
async def test_a_schedule_that_fails_keeps_no_other_from_its_ticks(
    app: TaskQ, clock: FakeClock, step: str, error: BaseException, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    @app.task
    def note(which: str) -> None: ...

    for name in ("a", "bad", "c"):
        app.schedule(name, note.call(name), every="1h")
    method = {"enrol": "enrolment", "pack": "call_at"}[step]
    call = getattr(Schedule, method)

    def fails(schedule: Schedule, *args: int) -> Any:
        if schedule.name == "bad":
            raise error
        return call(schedule, *args)

    monkeypatch.setattr(Schedule, method, fails)
    scheduler = Scheduler(app)
    await look(app, scheduler)
    for _ in range(2):
        clock.advance(3_600)
        await look(app, scheduler)
    ticked = sorted(json.loads(job.payload)["which"] for job in await jobs(app))
    assert ticked == ["a", "a", "c", "c"]
    assert caplog.text.count(f"schedule bad does not tick: {error}") == 1


async def test_a_burst_ticks_nothing(app: TaskQ) -> None:
    assert await look(app, Scheduler(app)) == math.inf

    @app.every("1s")
    def report() -> None: ...

    await app.worker(burst=True).run()
    assert await app.schedules.list() == []


async def test_a_list_of_schedules_has_what_is_done_and_the_next_ticks(
    app: TaskQ, clock: FakeClock
) -> None:
    call = app.call_by_name("report")
    app.schedule("nightly", call, cron="30 2 * * *", tz="Europe/Berlin", catch_up="skip")
    await look(app, Scheduler(app))
    clock.advance(47 * 3_600)
    await look(app, Scheduler(app))
    (nightly,) = await app.schedules.list(next_count=2)
    done = datetime(2024, 4, 1, 2, 30, tzinfo=BERLIN)
    assert (nightly.last_tick, nightly.done_until) == (None, done)
    assert nightly.next_ticks == (done.replace(day=2), done.replace(day=3))
