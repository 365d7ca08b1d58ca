"""A worker's answer to a failure: wishes, rules, the age of the job, and reports."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from taskq import DeadLetter, Discard, Retry, Snooze, TaskQ, retry
from taskq.core.model import SECOND_NS, State
from taskq.errors import JobFailed, UsageError
from taskq.testing.sandbox import TravelClock, use_clock
from taskq.views import JobView
from tests.effort import within
from tests.workers import afar_jobs, traced_jobs

HOUR_SECONDS = 3_600


@pytest.fixture
def clock(app: TaskQ) -> TravelClock:
    clock = TravelClock()
    use_clock(app, clock)
    return clock


async def settled(job: Any) -> JobView:
    with pytest.raises(JobFailed):
        await job.result(timeout=20)
    view: JobView = await job.view()
    return view


async def until_waiting(job: Any) -> JobView:
    """Return the job, once an attempt has ended and another is to come."""
    while True:
        view: JobView = await job.view()
        if view.attempts and view.attempts[-1].ended_ns and view.state is not State.RUNNING:
            return view


def due_seconds(view: JobView) -> float:
    return (view.due_ns - view.attempts[-1].ended_ns) / SECOND_NS


@pytest.mark.parametrize(
    ("wish", "outcome", "seconds", "attempt", "reason"),
    [
        (Retry(delay="2h"), "retried", 7_200, 1, "OSError: down"),
        (Retry(), "retried", 60, 1, "OSError: down"),
        (Snooze("3h"), "released", 10_800, 0, "OSError: down"),
        (None, "retried", 60, 1, "OSError: down"),
    ],
)
@pytest.mark.parametrize("raised", [False, True])
async def test_decide_says_when_a_failed_job_runs_again(
    app: TaskQ, wish: Any, outcome: str, seconds: int, attempt: int, reason: str, *, raised: bool
) -> None:
    def decide(error: BaseException, number: int) -> Any:
        assert (str(error), number) == ("down", 1)
        if raised and wish is not None:
            raise wish
        return wish

    @app.task(retry=retry.fixed(delay=60, decide=decide))
    async def fetch() -> None:
        raise OSError("down")

    async with app, app.worker():
        view = await until_waiting(await fetch.enqueue())
    assert (view.attempts[-1].outcome, view.attempt) == (outcome, attempt)
    assert view.attempts[-1].reason.startswith(reason)
    assert due_seconds(view) == pytest.approx(seconds, abs=0.5)


async def test_decide_may_discard_and_the_reason_tells_error_and_why(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(decide=lambda *_: Discard("the account is closed")))
    async def charge() -> None:
        raise ValueError("card declined")

    async with app, app.worker():
        view = await settled(await charge.enqueue())
    first = view.reason.partition("\n")[0]
    assert first == "ValueError: card declined [discarded: the account is closed]"
    assert "charge" in view.reason  # where it was raised
    assert len(view.attempts) == 1


async def test_decide_is_not_asked_of_what_a_task_wished_itself(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(attempts=1, decide=lambda *_: Snooze(60)))
    async def wants() -> None:
        raise Retry(reason="again please")

    async with app, app.worker():
        view = await settled(await wants.enqueue())
    assert view.reason.startswith("Retry: again please")


@pytest.mark.parametrize("decide", [lambda *_: 1 / 0, lambda *_: "retry", lambda: None])
async def test_a_decide_that_fails_is_logged_and_the_policy_goes_on_without_it(
    app: TaskQ, caplog: pytest.LogCaptureFixture, decide: Any
) -> None:
    @app.task(name="send", retry=retry.fixed(attempts=2, delay=0, decide=decide))
    async def send() -> None:
        raise OSError("down")

    with caplog.at_level(logging.ERROR, logger="taskq.worker"):
        async with app, app.worker():
            job = await send.enqueue()
            view = await settled(job)
    assert [attempt.outcome for attempt in view.attempts] == ["retried", "dead"]
    assert view.reason.startswith("OSError: down")
    expected = f"decide of send failed on job {job.id}: as without it"
    assert [record.getMessage() for record in caplog.records] == [expected, expected]


async def test_a_retry_waits_at_most_delay_max_and_so_does_a_snooze(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(delay_max="1m"))
    async def wait(*, snooze: bool) -> None:
        raise Snooze("9d") if snooze else Retry(delay="9d")

    async with app, app.worker():
        for snooze in (False, True):
            view = await until_waiting(await wait.enqueue(snooze=snooze))
            assert due_seconds(view) == pytest.approx(60, abs=0.5)


async def test_a_job_over_its_longest_age_is_dead_as_too_old_whatever_attempts_are_left(
    app: TaskQ, clock: TravelClock
) -> None:
    @app.task(retry=retry.fixed(attempts=0, delay="1h", max_age="150m"))
    async def send() -> None:
        raise OSError("down")

    async with app, app.worker():
        job = await send.enqueue()
        for _ in range(2):
            await until_waiting(job)
            clock.advance("1h")
        view = await settled(job)
    assert [attempt.outcome for attempt in view.attempts] == ["retried", "retried", "dead"]
    first = view.reason.partition("\n")[0]
    assert first == "OSError: down [too old: enqueued 2h ago, and max_age is 3h]"


async def test_a_job_that_snoozes_grows_too_old_as_well(app: TaskQ, clock: TravelClock) -> None:
    @app.task(retry=retry.fixed(max_age="1d"))
    async def wait() -> None:
        raise Snooze("10h")

    async with app, app.worker():
        job = await wait.enqueue()
        for _ in range(2):
            await until_waiting(job)
            clock.advance("10h")
        view = await settled(job)
    assert view.reason == "too old: enqueued 20h ago, and max_age is 1d"


async def test_a_job_that_fails_in_a_child_process_grows_too_old_as_well(tmp_path: Path) -> None:
    app = traced_jobs.app
    app.data_dir = tmp_path / "data"
    async with app, app.worker(concurrency=1):
        view = await settled(await traced_jobs.fail_slowly.enqueue())
    assert view.reason.startswith("ValueError: bad [too old: enqueued ")


async def test_a_step_of_the_clock_makes_no_job_old(app: TaskQ) -> None:
    """A machine boots in 1970, enqueues, and then learns what time it is."""
    clock = TravelClock(wall_seconds=1_000)
    use_clock(app, clock)

    @app.task(retry=retry.fixed(delay=HOUR_SECONDS, max_age="1d"))
    async def send() -> None:
        clock.step(50 * 365 * 24 * HOUR_SECONDS)
        raise OSError("down")

    async with app, app.worker():
        view = await until_waiting(await send.enqueue())
    assert view.attempts[-1].outcome == "retried"


async def test_a_job_that_succeeds_may_be_as_old_as_it_likes(
    app: TaskQ, clock: TravelClock
) -> None:
    @app.task(retry=retry.fixed(max_age="1m"))
    async def work() -> int:
        return 42

    async with app:
        job = await work.enqueue()
        clock.advance("1d")
        async with app.worker():
            assert await job.result(timeout=20) == 42


async def test_on_dead_of_a_task_is_told_of_its_own_jobs_alone(app: TaskQ) -> None:
    pairs: list[tuple[str, str]] = []

    async def later(letter: DeadLetter) -> None:
        await asyncio.sleep(0)
        pairs.append(("async", letter.job_id))

    @app.task(
        name="one",
        aliases=["uno"],
        retry=1,
        on_dead=lambda item: pairs.append(("sync", item.job_id)),
    )
    async def one() -> None:
        raise ValueError("one")

    @app.task(name="two", retry=1, on_dead=later)
    async def two() -> None:
        raise ValueError("two")

    @app.task(name="three", retry=1)
    async def three() -> None:
        raise ValueError("three")

    everything: list[str] = []
    app.on_dead(lambda letter: everything.append(letter.task))
    async with app:
        names = ["one", "uno", "two", "three"]
        async with app.worker(), app.worker():
            jobs = [await app.enqueue_by_name(name) for name in names]
            for job in jobs:
                await settled(job)
    ids = [job.id for job in jobs]
    assert sorted(pairs) == sorted([("sync", ids[0]), ("sync", ids[1]), ("async", ids[2])])
    # An alias is written as the name that the task has now.
    assert sorted(everything) == ["one", "one", "three", "two"]


async def test_an_on_dead_of_a_task_that_raises_stops_nothing(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=1, on_dead=lambda _: 1 / 0)
    async def fail() -> None:
        raise ValueError("no")

    with caplog.at_level(logging.ERROR, logger="taskq.worker"):
        async with app, app.worker():
            job = await fail.enqueue()
            await settled(job)
    assert f"the on_dead hook failed on job {job.id}" in caplog.text


def test_a_name_is_no_on_dead_hook(app: TaskQ) -> None:
    for wrong in ("clean_up", 5):
        with pytest.raises(UsageError, match=r"on_dead is .*: give a function or a task"):
            app.task(on_dead=wrong)(print)  # type: ignore[call-overload]


def test_policies_of_two_apps_do_not_meet(tmp_path: Path) -> None:
    app, other = TaskQ(tmp_path / "one"), TaskQ(tmp_path / "other")
    task = app.task(name="t", retry=retry.fixed(max_age="1d"))(print)
    assert task.retry.max_age_seconds == 24 * HOUR_SECONDS
    assert other.task(name="t")(print).retry.max_age_seconds is None


@pytest.mark.parametrize("task", afar_jobs.RAISERS, ids=lambda task: task.fn.__name__)
async def test_whatever_a_task_raises_is_named_and_judged_by_what_it_is(
    task: Any, tmp_path: Path
) -> None:
    """In groups of groups, as a cause, and if it breaks its reader; wherever the task runs."""
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    async with app, within(60), app.worker(concurrency=4, process_limit=1):
        failing = [await task.options(attempts=1).enqueue(name, "") for name in afar_jobs.FAILURES]
        again = [await task.enqueue(name, str(tmp_path / name)) for name in afar_jobs.AGAIN]
        views = [await settled(job) for job in failing]
        assert [await job.result(timeout=20) for job in again] == [1] * len(again)
    lines = [view.reason.partition("\n")[0] for view in views]
    assert lines == [line for line, _ in afar_jobs.FAILURES.values()]
