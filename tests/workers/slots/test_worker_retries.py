"""Retries of jobs, and bodies of their arguments and results."""

import asyncio
import logging
import struct
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import DeadLetter, Discard, QueuePolicy, Retry, Snooze, TaskQ, current_job, retry
from taskq.core.errors import ResultGone
from taskq.core.model import PAYLOAD_BYTES_MAX, SECOND_NS, State
from taskq.core.records import Flag
from taskq.errors import JobFailed
from taskq.extras import install_line
from taskq.log.format.bodies import compress
from taskq.log.store.port import LoopPort
from taskq.testing.sandbox import TravelClock, use_clock
from taskq.views import JobView
from taskq_workers.slots import outcomes
from tests.effort import within
from tests.workers import afar_jobs

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
    while True:
        view: JobView = await job.view()
        if view.attempts and view.attempts[-1].ended_ns and view.state is not State.RUNNING:
            return view


def due_seconds(view: JobView) -> float:
    return (view.due_ns - view.attempts[-1].ended_ns) / SECOND_NS


def deciding(wish: Any) -> retry.RetryPolicy:
    return retry.fixed(delay=60, decide=lambda *_: wish)


DOWN = OSError("down")


@pytest.mark.parametrize(
    ("policy", "error", "outcome", "seconds", "attempt"),
    [
        (deciding(Retry(delay="2h")), DOWN, "retried", 7_200, 1),
        (deciding(Snooze("3h")), DOWN, "released", 10_800, 0),
        (deciding(None), DOWN, "retried", 60, 1),
        (retry.fixed(delay_max="1m"), Retry(delay="9d"), "retried", 60, 1),
        (retry.fixed(delay_max="1m"), Snooze("9d"), "released", 60, 0),
    ],
)
async def test_decide_or_a_wish_sets_the_next_run_up_to_delay_max(
    app: TaskQ,
    policy: retry.RetryPolicy,
    error: Exception,
    outcome: str,
    seconds: int,
    attempt: int,
) -> None:
    @app.task(retry=policy)
    async def fetch() -> None:
        raise error

    async with app, app.worker():
        view = await until_waiting(await fetch.enqueue())
    assert (view.attempts[-1].outcome, view.attempt) == (outcome, attempt)
    assert view.attempts[-1].reason.startswith("OSError: down") is (error is DOWN)
    assert due_seconds(view) == pytest.approx(seconds, abs=0.5)


async def test_decide_may_discard_and_the_reason_has_the_error_and_its_words(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(decide=lambda *_: Discard("the account is closed")))
    async def charge() -> None:
        raise ValueError("card declined")

    async with app, app.worker():
        view = await settled(await charge.enqueue())
    first = view.reason.partition("\n")[0]
    assert first == "ValueError: card declined [discarded: the account is closed]"
    assert "charge" in view.reason  # where it was raised
    assert len(view.attempts) == 1


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


AGES: list[tuple[Any, str, str, str]] = [
    (OSError("down"), "1h", "150m", "OSError: down [too old: enqueued 2h ago, and max_age is 3h]"),
    (Snooze("10h"), "10h", "1d", "too old: enqueued 20h ago, and max_age is 1d"),
]


@pytest.mark.parametrize(("error", "delay", "age", "reason"), AGES, ids=["fails", "snoozes"])
async def test_a_job_over_its_longest_age_is_dead_as_too_old_whatever_attempts_are_left(
    app: TaskQ, clock: TravelClock, error: Exception, delay: str, age: str, reason: str
) -> None:
    @app.task(retry=retry.fixed(attempts=0, delay=delay, max_age=age))
    async def send() -> None:
        raise error

    async with app, app.worker():
        job = await send.enqueue()
        for _ in range(2):
            await until_waiting(job)
            clock.advance(delay)
        view = await settled(job)
    assert len(view.attempts) == 3
    assert view.reason.partition("\n")[0] == reason


async def test_a_job_that_fails_in_a_child_process_grows_too_old_as_well(tmp_path: Path) -> None:
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    async with app, app.worker(concurrency=1):
        view = await settled(await afar_jobs.fails_slowly.enqueue())
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


async def test_on_dead_of_a_task_gets_only_its_own_jobs(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    pairs: list[tuple[str, str]] = []
    everything: list[str] = []

    async def later(letter: DeadLetter) -> None:
        await asyncio.sleep(0)
        pairs.append(("async", letter.job_id))

    async def fail() -> None:
        raise ValueError("no")

    hooks: dict[str, Any] = {
        "one": lambda item: pairs.append(("sync", item.job_id)),
        "two": later,
        "three": None,
        "four": lambda _: 1 / 0,  # logged, and stops nothing
    }
    for name, hook in hooks.items():
        app.task(name=name, aliases=[f"old {name}"], retry=1, on_dead=hook)(fail)
    app.on_dead(lambda letter: everything.append(letter.task))
    async with app:
        with caplog.at_level(logging.ERROR, logger="taskq.worker"):
            async with app.worker(), app.worker():
                jobs = [await app.enqueue_by_name(name) for name in ["old one", *hooks]]
                for job in jobs:
                    await settled(job)
    old, first, second, *_ = [job.id for job in jobs]
    assert sorted(pairs) == sorted([("sync", old), ("sync", first), ("async", second)])
    # An alias is written as the name that the task has now.
    assert sorted(everything) == ["four", "one", "one", "three", "two"]
    assert caplog.text.count("the on_dead hook failed") == 1


@pytest.mark.parametrize("place", afar_jobs.RAISERS)
async def test_whatever_a_task_raises_is_named_and_judged_by_what_it_is(
    place: str, tmp_path: Path
) -> None:
    """In groups of groups, as a cause, and if it breaks its reader; wherever the task runs."""
    app, task = afar_jobs.app, afar_jobs.RAISERS[place]
    app.data_dir = tmp_path / "data"
    async with app, within(60), app.worker(concurrency=4, process_limit=1):
        failing = [await task.options(attempts=1).enqueue(name, "") for name in afar_jobs.FAILURES]
        again = [await task.enqueue(name, str(tmp_path / name)) for name in afar_jobs.AGAIN]
        views = [await settled(job) for job in failing]
        assert [await job.result(timeout=20) for job in again] == [1] * len(again)
    lines = [view.reason.partition("\n")[0] for view in views]
    assert lines == [line for line, _ in afar_jobs.FAILURES.values()]


SECONDS: Final = 30
TEXT: Final = "the same words again and again, " * 200


async def seen(port: LoopPort, lsn: int) -> JobView:
    view = await port.view(lsn)
    assert view is not None
    return view


async def put_stored(app: TaskQ, task: Any, stored: bytes, flags: int) -> Any:
    """Return a job whose payload the log holds in exactly this form."""
    port = app.store().port()
    return app.job(f"{app.store().tag}-{await port.enqueue(task.spec.packed(flags), stored)}")


async def test_a_bomb_ends_as_a_dead_letter_at_once(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(5, delay=0))
    async def never(text: str) -> None: ...

    huge, _ = compress(bytes(110_000_000), "zlib")
    liar = struct.pack("<Q", 1_000) + huge[8:]
    async with app, app.worker():
        honest = await put_stored(app, never, huge, Flag.ZLIB)
        with pytest.raises(JobFailed, match=f"the payload of job {honest.id}, decompressed, has"):
            await honest.result(SECONDS)
        other = await put_stored(app, never, liar, Flag.ZLIB)
        with pytest.raises(
            JobFailed, match=r"LogDamaged: the payload of job .* does not decompress"
        ):
            await other.result(SECONDS)
        for job in (honest, other):
            port = app.store().port()
            assert (await seen(port, job.lsn)).attempt == 1


async def test_without_zstd_a_worker_leaves_its_jobs_to_others(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(compress="zstd", retry=1)
    async def length(text: str) -> int:
        return len(text)

    monkeypatch.setattr(outcomes, "ELSEWHERE_SECONDS", 0.0)
    async with app:
        job = await length.enqueue(TEXT)
        with monkeypatch.context() as without, caplog.at_level(logging.WARNING, "taskq.worker"):
            without.setitem(sys.modules, "zstandard", None)
            async with app.worker():
                port = app.store().port()
                view = await seen(port, job.lsn)
                while len(view.attempts) < 3:
                    view = await seen(port, job.lsn)
        assert view.attempt <= 1
        assert install_line("zstd") in view.attempts[0].reason
        warnings = [
            message for message in caplog.messages if "jobs wait for another worker" in message
        ]
        assert len(warnings) == 1
        async with app.worker():
            assert await job.result(SECONDS) == len(TEXT)


async def test_results_are_stored_as_their_task_queue_or_log_says(tmp_path: Path) -> None:
    queues = {"raw": QueuePolicy(compress="none")}
    app = TaskQ(tmp_path / "data", durability="os", compress="zlib", queues=queues)

    @app.task
    async def repeat(text: str) -> str:
        return text

    @app.task(compress="zstd")
    def repeat_in_thread(text: str) -> str:
        return text

    @app.task(store_result=False)
    async def forget(text: str) -> str:
        return text

    async with app, app.worker():
        port = app.store().port()

        async def flags(job: Any) -> int:
            assert await job.result(SECONDS) == TEXT
            return (await seen(port, job.lsn)).result_flags

        assert await flags(await repeat.enqueue(TEXT)) == Flag.ZLIB
        assert await flags(await repeat.options(queue="raw").enqueue(TEXT)) == 0
        assert await flags(await repeat_in_thread.enqueue(TEXT)) == Flag.ZSTD
        small = await repeat.enqueue("x")
        assert await small.result(SECONDS) == "x"
        assert (await seen(port, small.lsn)).result_flags == 0
        quiet = await forget.enqueue(TEXT)
        with pytest.raises(ResultGone):
            await quiet.result(SECONDS)


async def test_successes_of_the_largest_size_come_at_once_with_large_jobs_and_all_are_kept(
    app: TaskQ,
) -> None:
    together, children = asyncio.Barrier(4), list[Any]()

    @app.task
    async def length(text: str) -> int:
        return len(text)

    @app.task
    async def same(text: str) -> str:
        await together.wait()
        return text

    @app.task
    async def parent() -> str:
        await together.wait()
        children.append(current_job().enqueue(length.call(large)))
        children.append(current_job().enqueue(length.options(compress="zlib").call(TEXT)))
        with pytest.raises(ValueError, match="put the data into a file and pass its path"):
            length.call("x" * PAYLOAD_BYTES_MAX)
        return large

    large = "y" * (PAYLOAD_BYTES_MAX - 1_000)
    async with app, app.worker(concurrency=4):
        texts = ("x" * (PAYLOAD_BYTES_MAX - len('{"text":""}')), "a", large)
        jobs = [await parent.enqueue(), *[await same.enqueue(text) for text in texts]]
        assert [await job.result(SECONDS) for job in jobs] == [large, *texts]
        results = [await child.handle.result(SECONDS) for child in children]
        assert results == [len(large), len(TEXT)]
        port = app.store().port()
        flags = [(await seen(port, child.handle.lsn)).payload_flags for child in children]
        assert flags == [0, Flag.ZLIB]
