"""Slots, feed and crew on a log in memory."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from taskq import Discard, Retry, Snooze, current_job, retry
from taskq.core.errors import StaleDelivery
from taskq.core.records import Cause, Kind
from taskq.log.requests import Settlement
from taskq_workers import JobFinished, Worker
from taskq_workers.slots import slots
from taskq_workers.slots.feed import (
    BATCH_MAX,
    BATCH_SECONDS_LONG,
    BATCH_SECONDS_SHORT,
    PAUSE_SECONDS_FIRST,
    PAUSE_SECONDS_MAX,
    ClaimPace,
    Pause,
)
from tests.workers.fakes import FakeApp

leaked: contextvars.ContextVar[str] = contextvars.ContextVar("leaked", default="clean")


def body(settled: Settlement) -> bytes:
    assert settled.body is not None
    return settled.body


@dataclass
class Parcel:
    n: int


async def settle_one(fake: FakeApp, task: Any, *args: Any, attempt: int = 1) -> Any:
    fake.put(task, *args, attempt=attempt)
    async with Worker(fake):
        return (await fake.fake.settlements(1))[0]


async def test_no_more_run_than_there_are_slots(fake: FakeApp) -> None:
    running = most = 0

    @fake.task
    async def step() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await checkpoint()
        running -= 1

    for _ in range(50):
        fake.put(step)
    async with Worker(fake, concurrency=3):
        await fake.fake.settlements(50)
    assert most == 3


@pytest.mark.parametrize("turn_seconds", [slots.TURN_SECONDS, 0])
async def test_jobs_that_never_suspend_run_in_one_task_and_no_other(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch, turn_seconds: float
) -> None:
    monkeypatch.setattr(slots, "TURN_SECONDS", turn_seconds)
    tasks: set[asyncio.Task[Any] | None] = set()
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ready.set_result(None)

    @fake.task
    async def note() -> None:
        tasks.add(asyncio.current_task())
        async with asyncio.timeout(1):
            await ready

    for _ in range(8):
        fake.put(note)
    async with Worker(fake, concurrency=8):
        await fake.fake.settlements(8)
    assert len(tasks) == 1
    assert None not in tasks


async def test_jobs_that_suspend_all_run_after_a_few_turns_of_the_loop(fake: FakeApp) -> None:
    begun, gate = 0, asyncio.Event()

    @fake.task
    async def wait() -> None:
        nonlocal begun
        begun += 1
        await gate.wait()

    for _ in range(100):
        fake.put(wait)
    async with Worker(fake, concurrency=100):
        while not begun:
            await checkpoint()
        for _ in range(10):
            await checkpoint()
        assert begun == 100
        gate.set()
        await fake.fake.settlements(100)


async def test_jobs_that_never_suspend_let_the_loop_turn_when_they_took_long(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "TURN_SECONDS", 0)
    turns = 0
    seen = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    @fake.task
    async def busy() -> None:
        seen.append(turns)

    for _ in range(8):
        fake.put(busy)
    turn()
    async with Worker(fake, concurrency=8):
        await fake.fake.settlements(8)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


async def test_an_idle_worker_keeps_nothing_of_the_jobs_it_ran(fake: FakeApp) -> None:
    arguments: list[weakref.ref[Parcel]] = []

    @fake.task
    async def carry(parcel: Parcel) -> Parcel:
        arguments.append(weakref.ref(parcel))
        return parcel

    for n in range(3):
        fake.put(carry, Parcel(n))
    async with Worker(fake, concurrency=2):
        await fake.fake.settlements(3)
        await fake.fake.until(lambda: len(fake.fake.waiting()) == 1)
        fake.fake.settled.clear()
        await checkpoint()
        gc.collect()
        assert [argument() for argument in arguments] == [None] * 3


async def test_fast_jobs_are_claimed_in_growing_batches(fake: FakeApp) -> None:
    @fake.task
    async def noop() -> None:
        pass

    for _ in range(3_000):
        fake.put(noop)
    async with Worker(fake, concurrency=4):
        await fake.fake.settlements(3_000)
    counts = fake.fake.claimed_counts
    assert counts[0] == 4
    assert max(counts) == BATCH_MAX
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(counts))


async def test_slow_jobs_are_claimed_for_free_slots_alone(fake: FakeApp) -> None:
    release = asyncio.Event()

    @fake.task
    async def hold() -> None:
        fake.fake.poke()
        await release.wait()

    for _ in range(10):
        fake.put(hold)
    async with Worker(fake, concurrency=4) as worker:
        await fake.fake.until(lambda: worker.running == 4)
        assert len(fake.fake.ready) == 6
        release.set()
        await fake.fake.settlements(10)


async def test_what_no_slot_takes_in_time_is_given_back_unburnt(fake: FakeApp) -> None:
    """A fast start makes the worker claim ahead; then the jobs turn slow."""
    release = asyncio.Event()

    @fake.task
    async def step(hold: bool) -> None:
        if hold:
            fake.fake.poke()
            await release.wait()

    for _ in range(500):
        fake.put(step, False)
    async with Worker(fake, concurrency=2) as worker:
        await fake.fake.settlements(500)
        for _ in range(100):
            fake.put(step, True)
        given_back = [
            settlement
            for settlement in await fake.fake.settlements(501)
            if settlement.cause is Cause.DRAIN
        ]
        assert {delivery.kind for delivery in given_back} == {Kind.RELEASED}
        assert worker.running == 2
        release.set()


async def test_an_idle_worker_keeps_one_claim_for_the_tasks_and_queues_it_knows(
    fake: FakeApp,
) -> None:
    @fake.task(name="one", aliases=["old"])
    async def one() -> None:
        pass

    async with Worker(fake, concurrency=5, queues=["mail"]):
        await fake.fake.until(lambda: len(fake.fake.waiting()) == 1)
        (request,) = fake.fake.waiting()
        assert request.tasks == frozenset({"one", "old"})
        assert request.queues == frozenset({"mail"})
        assert request.count == 5
        assert request.wait_until_ns is None
    assert not fake.fake.waiting()


async def test_context_variables_of_one_job_do_not_reach_the_next(fake: FakeApp) -> None:
    seen = []

    @fake.task
    async def leak(n: int) -> None:
        seen.append(leaked.get())
        leaked.set(f"from {n}")

    for n in range(20):
        fake.put(leak, n)
    async with Worker(fake, concurrency=2):
        await fake.fake.settlements(20)
    assert seen == ["clean"] * 20


async def test_current_job_is_each_job_s_own_also_in_tasks_that_it_starts(fake: FakeApp) -> None:
    seen = {}

    @fake.task
    async def ask(n: int) -> None:
        await checkpoint()
        child = asyncio.create_task(helper())
        seen[n] = (current_job().id, await child)

    async def helper() -> str:
        await checkpoint()
        return current_job().id

    ids = {n: fake.put(ask, n).job_id for n in range(10)}
    async with Worker(fake, concurrency=3):
        await fake.fake.settlements(10)
    assert seen == {n: (job_id, job_id) for n, job_id in ids.items()}


@pytest.mark.parametrize("wait", [True, False])
async def test_a_job_that_cancels_itself_failed_and_harms_no_other(
    fake: FakeApp, wait: bool
) -> None:
    @fake.task(retry=retry.fixed(3, 1))
    async def cancel(wait: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if wait:
            await checkpoint()

    @fake.task
    async def fine() -> None:
        await checkpoint()

    fake.put(cancel, wait)
    fake.put(fine)
    async with Worker(fake, concurrency=1):
        first, second = await fake.fake.settlements(2)
    assert first.kind is (Kind.RETRIED if wait else Kind.SUCCEEDED)
    assert not wait or body(first).startswith(b"CancelledError")
    assert second.kind is Kind.SUCCEEDED


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
@pytest.mark.parametrize("in_thread", [True, False])
async def test_whatever_a_task_raises_is_its_own_failure(
    fake: FakeApp, error: type[BaseException], in_thread: bool
) -> None:
    if in_thread:

        @fake.task(name="bad", retry=retry.fixed(2, 1))
        def bad() -> None:
            raise error("out")

    else:

        @fake.task(name="bad", retry=retry.fixed(2, 1))
        async def bad() -> None:
            raise error("out")

    @fake.task
    async def fine() -> None:
        pass

    fake.put(bad)
    async with Worker(fake, concurrency=1):
        (settled,) = await fake.fake.settlements(1)
        fake.put(fine)
        assert (await fake.fake.settlements(2))[1].kind is Kind.SUCCEEDED
    assert settled.kind in {Kind.RETRIED, Kind.DEAD}
    assert b"out" in body(settled)


async def test_the_policy_decides_on_delay_and_end(fake: FakeApp) -> None:
    @fake.task(retry=retry.fixed(3, delay=7))
    async def fail() -> None:
        raise ValueError("no")

    async with Worker(fake):
        fake.put(fail, attempt=2)
        fake.put(fail, attempt=3)
        again, dead = await fake.fake.settlements(2)
    assert (again.kind, again.delay_ns) == (Kind.RETRIED, 7_000_000_000)
    assert (dead.kind, dead.cause) == (Kind.DEAD, Cause.EXHAUSTED)
    first, *rest = body(dead).decode().splitlines()
    assert first == "ValueError: no"
    assert "test_worker_slots.py" in rest[0]


async def test_retry_snooze_and_discard_are_granted(fake: FakeApp) -> None:
    @fake.task(retry=retry.fixed(3, delay=7))
    async def ask(what: str) -> None:
        wishes = {"retry": Retry(delay=2), "snooze": Snooze(3), "discard": Discard("not wanted")}
        raise wishes[what]

    retried = await settle_one(fake, ask, "retry")
    assert (retried.kind, retried.delay_ns) == (Kind.RETRIED, 2_000_000_000)
    fake.fake.settled.clear()
    snoozed = await settle_one(fake, ask, "snooze")
    assert (snoozed.kind, snoozed.cause, snoozed.delay_ns) == (
        Kind.RELEASED,
        Cause.SNOOZE,
        3_000_000_000,
    )
    fake.fake.settled.clear()
    discarded = await settle_one(fake, ask, "discard")
    assert (discarded.kind, discarded.cause) == (Kind.DEAD, Cause.REJECTED)
    assert discarded.body == b"Discard: not wanted"
    fake.fake.settled.clear()
    spent = await settle_one(fake, ask, "retry", attempt=3)
    assert (spent.kind, spent.cause) == (Kind.DEAD, Cause.EXHAUSTED)


async def test_arguments_that_no_longer_validate_are_never_retried(fake: FakeApp) -> None:
    @fake.task(retry=retry.fixed(9, 0))
    async def typed(n: int) -> None:
        pass

    fake.fake.put(typed.spec, b'{"n": "many"}')
    async with Worker(fake):
        (settled,) = await fake.fake.settlements(1)
    assert (settled.kind, settled.cause) == (Kind.DEAD, Cause.REJECTED)
    assert b"n" in body(settled)
    assert body(settled).startswith(b"InvalidCall")


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_type_error_of_the_call_is_never_retried_but_one_within_is(
    fake: FakeApp, in_thread: bool
) -> None:
    if in_thread:

        @fake.task(name="add", retry=retry.fixed(9, 0))
        def add(a: int, b: int = 0) -> int:
            return a + None if b else 0  # type: ignore[operator]

    else:

        @fake.task(name="add", retry=retry.fixed(9, 0))
        async def add(a: int, b: int = 0) -> int:
            return a + None if b else 0  # type: ignore[operator]

    within = await settle_one(fake, add, 1, 1)
    assert within.kind is Kind.RETRIED
    fake.fake.settled.clear()
    # As after a deployment whose decorator hides another signature.
    add.decode = lambda _: ((), {"a": 1, "c": 2})
    refused = await settle_one(fake, add, 1)
    assert (refused.kind, refused.cause) == (Kind.DEAD, Cause.REJECTED)
    assert b"unexpected keyword argument" in body(refused)


async def test_a_result_that_cannot_be_kept_ends_the_job_with_a_reason(fake: FakeApp) -> None:
    @fake.task
    async def opaque() -> Any:
        return object()

    @fake.task
    async def large() -> str:
        return "x" * 17_000_000

    @fake.task
    def forgot() -> Any:
        return checkpoint()

    for task, words in ((opaque, b"object"), (large, b"17000002 bytes"), (forgot, b"async def")):
        fake.fake.settled.clear()
        settled = await settle_one(fake, task)
        assert (settled.kind, settled.cause) == (Kind.DEAD, Cause.REJECTED)
        assert words in body(settled)


async def test_a_timeout_is_a_failure_that_names_the_limit(fake: FakeApp) -> None:
    @fake.task(timeout=0.001)
    async def hang() -> None:
        await asyncio.Event().wait()

    @fake.task(timeout=60)
    async def own() -> None:
        raise TimeoutError("of mine")

    settled = await settle_one(fake, hang)
    assert settled.kind is Kind.RETRIED
    assert body(settled).startswith(b"TimeoutError: not done within its timeout of 0.001 s")
    fake.fake.settled.clear()
    assert (await settle_one(fake, own)).body.startswith(b"TimeoutError: of mine")


async def test_hooks_hear_of_each_job_and_a_raising_one_stops_nothing(fake: FakeApp) -> None:
    events: list[JobFinished] = []

    def hook(event: JobFinished) -> None:
        events.append(event)
        raise ZeroDivisionError

    @fake.task(retry=retry.fixed(3, 1))
    async def odd(n: int) -> None:
        if n == 1:
            raise ValueError("one")

    deliveries = [fake.put(odd, n) for n in range(2)]
    async with Worker(fake, on_event=hook):
        await fake.fake.settlements(2)
    assert [event.job_id for event in events] == [delivery.job_id for delivery in deliveries]
    assert [event.outcome for event in events] == ["succeeded", "retried"]
    assert (events[1].attempt, events[1].attempts_max, events[1].delay_seconds) == (1, 3, 1.0)
    assert events[1].reason.startswith("ValueError: one")
    assert events[0].seconds >= 0


async def test_a_policy_that_raises_ends_its_job_and_not_the_worker(fake: FakeApp) -> None:
    @fake.task
    async def fail() -> None:
        raise ValueError("no")

    class Broken(retry.RetryPolicy):
        def decide(self, *_: object) -> retry.Decision:
            raise ZeroDivisionError("policy")

    fail.retry = Broken()
    fake.put(fail)
    fake.put(fail)
    async with Worker(fake, concurrency=1):
        first, second = await fake.fake.settlements(2)
    for record in (first, second):
        assert (record.kind, record.cause) == (Kind.DEAD, Cause.REJECTED)
        assert body(record).startswith(b"ZeroDivisionError: policy")


async def test_what_runs_is_told_with_how_long_it_runs(fake: FakeApp) -> None:
    go = asyncio.Event()

    @fake.task
    async def wait() -> None:
        await go.wait()

    delivery = fake.put(wait)
    async with Worker(fake) as worker:
        await fake.fake.until(lambda: worker.running == 1)
        ((held, seconds),) = worker.held
        assert held == delivery
        assert seconds is not None
        assert seconds >= 0
        go.set()
        await fake.fake.settlements(1)
        assert worker.held == []


async def test_an_end_that_the_log_did_not_keep_is_told_with_the_reason(
    fake: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    @fake.task
    async def work(number: int) -> None: ...

    late, kept = fake.put(work, 1), fake.put(work, 2)

    def refuse(item: Settlement) -> StaleDelivery | None:
        return StaleDelivery("taken back meanwhile") if item.delivery == late else None

    fake.fake.refuse = refuse
    async with Worker(fake) as worker:
        await fake.fake.settlements(1)
    (seen,) = [
        record.getMessage() for record in caplog.records if "was not kept" in record.getMessage()
    ]
    assert seen == (
        f"job {late.job_id}: its outcome (succeeded) was not kept: taken back meanwhile"
    )
    assert [settlement.delivery for settlement in fake.fake.settled] == [kept]
    assert sum(worker.ended.values()) == 1


def grown(concurrency: int, batches: int) -> ClaimPace:
    pace = ClaimPace(concurrency)
    for _ in range(batches):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_SHORT / 2)
    return pace


def test_a_new_pace_claims_for_its_slots_and_not_ahead() -> None:
    pace = ClaimPace(8)
    assert (pace.size, pace.ahead) == (8, False)


def test_each_full_batch_that_is_done_soon_doubles_the_next_up_to_the_limit() -> None:
    assert [grown(8, n).size for n in (1, 2, 3)] == [16, 32, 64]
    assert grown(8, 20).size == BATCH_MAX
    assert grown(8, 1).ahead


def test_many_slots_may_still_be_fed_ahead() -> None:
    assert grown(1_000, 5).size == 2_000


def test_a_batch_that_was_not_full_says_nothing_of_what_a_larger_one_would_take() -> None:
    pace = ClaimPace(8)
    pace.claimed(waiting=3, full=False, now=0.0)
    pace.finished(3, now=0.001)
    assert pace.size == 8


def test_a_slow_batch_halves_the_next_down_to_the_slots() -> None:
    pace = grown(8, 3)
    sizes = []
    for _ in range(4):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_LONG * 2)
        sizes.append(pace.size)
    assert sizes == [32, 16, 8, 8]
    assert not pace.ahead


def test_one_slow_job_does_not_make_the_fast_ones_beside_it_look_slow() -> None:
    """A batch of 8 is done once any 8 jobs ended, while one of its own still runs."""
    pace = ClaimPace(8)
    pace.claimed(waiting=8, full=True, now=0.0)
    pace.finished(7, now=0.001)
    pace.claimed(waiting=7, full=True, now=0.002)
    pace.finished(7, now=0.003)
    assert pace.size == 16


def test_a_cut_returns_to_the_slots_at_once_and_forgets_the_batch_under_way() -> None:
    pace = grown(8, 5)
    pace.claimed(waiting=256, full=True, now=0.0)
    pace.cut()
    pace.finished(256, now=0.001)
    assert (pace.size, pace.ahead) == (8, False)


def test_each_pause_is_twice_the_last_up_to_a_limit_and_a_good_while_forgets_them() -> None:
    now = [1_000.0]
    pause = Pause(lambda: now[0])
    expected = PAUSE_SECONDS_FIRST
    for _ in range(12):
        assert pause.next() == min(expected, PAUSE_SECONDS_MAX)
        expected *= 2
        now[0] += PAUSE_SECONDS_MAX
    now[0] += PAUSE_SECONDS_MAX
    assert pause.next() == PAUSE_SECONDS_MAX, "as long as the longest and its try may take"
    now[0] += 2 * PAUSE_SECONDS_MAX + 0.01
    assert [pause.next(), pause.next()] == [PAUSE_SECONDS_FIRST, 2 * PAUSE_SECONDS_FIRST]
