"""Slots, feed and crew on a log in memory."""

import asyncio
import functools
import gc
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import Mock

import pytest
from anyio.lowlevel import checkpoint

from taskq import Discard, Retry, Snooze, retry
from taskq.core.errors import StaleDelivery
from taskq.core.records import Cause, Kind
from taskq.log.requests import EnqueueSpec, Settlement
from taskq.log.store.port import LoopPort
from taskq_workers import JobFinished, Worker
from taskq_workers.runs.executors import Executors
from taskq_workers.slots import slots
from taskq_workers.slots.feed import (
    BATCH_MAX,
    BATCH_SECONDS_LONG,
    BATCH_SECONDS_SHORT,
    PAUSE_SECONDS_FIRST,
    PAUSE_SECONDS_MAX,
    ClaimPace,
    Feed,
    Pause,
    Quota,
)
from taskq_workers.slots.outcomes import AGAIN_SECONDS
from tests.effort import grows, some
from tests.workers.fakes import FakeApp, FakePort, make_delivery
from tests.workers.slots.resting import Schedule, make_deterministic, run_seeds


@dataclass
class Parcel:
    n: int


class Broken(retry.RetryPolicy):
    def decide(self, *_: object) -> retry.Decision:
        raise ZeroDivisionError("policy")


def raises(error: BaseException) -> Callable[[], Any]:
    async def fail() -> None:
        raise error

    return fail


def returns(value: Any) -> Callable[[], Any]:
    return lambda: value


class Unreadable:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")


def forgot() -> Any:
    return checkpoint()


async def cancel(*, waits: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if waits:
        await checkpoint()


async def hang() -> None:
    await asyncio.Event().wait()


SECOND = 10**9
#: A function, its options and attempt; kind, cause and delay of the outcome, and its body's begin.
ENDS: dict[str, tuple[Callable[..., Any], dict[str, Any], int, tuple[Any, ...]]] = {
    "fails": (raises(ValueError("no")), {}, 2, (Kind.RETRIED, Cause.CALLER, 7, "ValueError: no\n")),
    "spent": (raises(ValueError("no")), {}, 3, (Kind.DEAD, Cause.EXHAUSTED, 0, "ValueError: no")),
    "retry": (raises(Retry(delay=2)), {}, 1, (Kind.RETRIED, Cause.CALLER, 2, "Retry")),
    "too late": (raises(Retry(delay=2)), {}, 3, (Kind.DEAD, Cause.EXHAUSTED, 0, "Retry")),
    "snooze": (raises(Snooze(3)), {}, 1, (Kind.RELEASED, Cause.SNOOZE, 3, "")),
    "discard": (raises(Discard("x")), {}, 1, (Kind.DEAD, Cause.REJECTED, 0, "Discard: x")),
    "policy": (
        *(raises(ValueError()), {"retry": Broken()}, 1),
        (Kind.RETRIED, Cause.CALLER, AGAIN_SECONDS, "ZeroDivisionError: policy"),
    ),
    "policy, spent": (
        *(raises(ValueError()), {"retry": Broken(attempts=3)}, 3),
        (Kind.DEAD, Cause.EXHAUSTED, 0, "ZeroDivisionError: policy"),
    ),
    "timeout": (
        *(hang, {"timeout": 0.001}, 1),
        (Kind.RETRIED, Cause.CALLER, 7, "TimeoutError: not done within its timeout of 0.001 s"),
    ),
    "its own": (
        *(raises(TimeoutError("mine")), {"timeout": 60}, 1),
        (Kind.RETRIED, Cause.CALLER, 7, "TimeoutError: mine"),
    ),
    "cancels itself": (
        *(functools.partial(cancel, waits=True), {}, 1),
        (Kind.RETRIED, Cause.CALLER, 7, "CancelledError"),
    ),
    "cancels itself and ends": (
        *(functools.partial(cancel, waits=False), {}, 1),
        (Kind.SUCCEEDED, Cause.CALLER, 0, ""),
    ),
    "no JSON": (returns(object()), {}, 1, (Kind.DEAD, Cause.REJECTED, 0, "")),
    "unreadable": (returns(Unreadable(SystemExit())), {}, 1, (Kind.DEAD, Cause.REJECTED, 0, "")),
    "no memory": (
        *(returns(Unreadable(MemoryError("x"))), {}, 1),
        (Kind.RETRIED, Cause.CALLER, 7, "MemoryError: x"),
    ),
    "too large": (returns("x" * 17_000_000), {}, 1, (Kind.DEAD, Cause.REJECTED, 0, "")),
    "no await": (*(forgot, {"store_result": False}, 1), (Kind.DEAD, Cause.REJECTED, 0, "")),
}
#: Further words of a body.
WORDS = {
    "no JSON": "object",
    "unreadable": "cannot be kept: ",
    "too large": "17000002 bytes",
    "no await": "async def",
}


@pytest.mark.parametrize("name", ENDS)
async def test_an_attempt_has_the_outcome_of_its_end(fake: FakeApp, name: str) -> None:
    function, options, attempt, (*outcome, begins) = ENDS[name]
    task = fake.task(name="act", **{"retry": retry.fixed(3, delay=7)} | options)(function)
    fake.put(task, attempt=attempt)
    async with Worker(fake):
        (settled,) = await fake.fake.settlements(1)
    assert [settled.kind, settled.cause, settled.delay_ns / SECOND] == outcome
    text = (settled.body or b"").decode()
    assert text.startswith(begins)
    assert WORDS.get(name, "") in text


@pytest.mark.parametrize(("owner", "step"), [(Executors, "plan"), (slots.Slots, "judged")])
async def test_a_job_whose_worker_lacks_memory_is_tried_again(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    monkeypatch.setattr(owner, step, Mock(side_effect=MemoryError))
    fake.put(fake.task(raises(ValueError())))
    async with Worker(fake):
        (settled,) = await fake.fake.settlements(1)
    assert (settled.kind, settled.delay_ns) == (Kind.RETRIED, AGAIN_SECONDS * SECOND)


async def test_a_future_that_raises_generator_exit_ends_its_own_job_alone(
    fake: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    async def ends() -> None:
        await asyncio.create_task(raises(GeneratorExit())())

    tasks = [fake.task(retry=1)(function) for function in (ends, checkpoint)]
    for task in tasks * 3:
        fake.put(task)
    async with Worker(fake, concurrency=1):
        settled = await fake.fake.settlements(6)
    assert [item.kind for item in settled] == [Kind.DEAD, Kind.SUCCEEDED] * 3
    assert "a slot failed" not in caplog.text


@pytest.mark.parametrize("turn_seconds", [slots.TURN_SECONDS, -1])
async def test_jobs_that_never_suspend_run_in_one_task_which_lets_the_loop_turn(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch, turn_seconds: float
) -> None:
    monkeypatch.setattr(slots, "TURN_SECONDS", turn_seconds)
    tasks: set[asyncio.Task[Any] | None] = set()
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ready.set_result(None)
    turns, seen = 0, []

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    @fake.task
    async def note() -> None:
        tasks.add(asyncio.current_task())
        seen.append(turns)
        async with asyncio.timeout(1):
            await ready

    for _ in range(8):
        fake.put(note)
    turn()
    async with Worker(fake, concurrency=8):
        await fake.fake.settlements(8)
    assert len(tasks) == 1
    assert None not in tasks
    assert turn_seconds > 0 or seen[-1] > seen[0]


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


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_call_that_does_not_fit_is_never_retried_but_a_type_error_within_is(
    fake: FakeApp, in_thread: bool
) -> None:
    def add(a: int, b: int = 0) -> int:
        return a + None if b else 0  # type: ignore[operator]

    async def add_on_loop(a: int, b: int = 0) -> int:
        return add(a, b)

    function: Any = add if in_thread else add_on_loop
    task = fake.task(name="add", retry=retry.fixed(9, 0))(function)
    async with Worker(fake):
        fake.put(task, 1, 1)
        await fake.fake.settlements(1)
        fake.fake.put(task.spec, b'{"a": "many"}')
        await fake.fake.settlements(2)
    # As after a deployment whose decorator hides another signature.
    task.decode = lambda _: ((), {"a": 1, "c": 2})
    fake.put(task, 1)
    async with Worker(fake):
        within, invalid, refused = await fake.fake.settlements(3)
    assert within.kind is Kind.RETRIED
    for settled, words in ((invalid, b"InvalidCall"), (refused, b"unexpected keyword argument")):
        assert (settled.kind, settled.cause) == (Kind.DEAD, Cause.REJECTED)
        assert words in (settled.body or b"")


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


async def test_an_end_that_the_log_refused_is_logged_with_the_reason(
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


@pytest.mark.parametrize("claim", ["waits", "answered", "cancelled", "failed"])
async def test_a_blocked_loop_gives_up_its_jobs_and_their_place_in_the_quota(claim: str) -> None:
    first, second = (make_delivery(EnqueueSpec(), b"", job=job) for job in (1, 2))
    host, port = Mock(**{"free.return_value": 2}), FakePort()
    fed = Feed(
        asyncio.get_running_loop(), cast("LoopPort", port), host,
        concurrency=2, queues=None, tasks=frozenset, quota=Quota(3),
    )  # fmt: skip
    fed.refill()
    ((_, future),) = port.claims
    fed.add([first])
    match claim:
        case "answered":
            future.set_result([second])
        case "cancelled":
            future.cancel()
        case "failed":
            future.set_exception(StaleDelivery("taken back"))
    assert fed.surrender() == [first, *[second][: claim == "answered"]]
    assert not fed.buffer
    assert fed.allowed(9) == 3


def grown(concurrency: int, batches: int) -> ClaimPace:
    pace = ClaimPace(concurrency)
    for _ in range(batches):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_SHORT / 2)
    return pace


def test_full_batches_that_are_done_soon_double_and_slow_ones_halve() -> None:
    assert [grown(8, n).size for n in (0, 1, 2, 3, 20)] == [8, 16, 32, 64, BATCH_MAX]
    assert [grown(8, n).ahead for n in (0, 1)] == [False, True]
    assert grown(1_000, 5).size == 2_000
    pace = grown(8, 3)
    sizes = []
    for _ in range(4):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_LONG * 2)
        sizes.append(pace.size)
    assert sizes == [32, 16, 8, 8]
    pace.claimed(waiting=3, full=False, now=0.0)  # larger batches were not tried
    pace.finished(3, now=0.001)
    assert (pace.size, pace.ahead) == (8, False)


def test_one_slow_job_among_fast_jobs_does_not_keep_batches_small() -> None:
    pace = ClaimPace(8)
    pace.claimed(waiting=8, full=True, now=0.0)
    pace.finished(7, now=0.001)
    pace.claimed(waiting=7, full=False, now=0.002)
    pace.finished(1, now=0.003)  # of the second claim: a job of the first one still runs
    assert pace.size == 16


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


@grows
@pytest.mark.parametrize("start", range(0, some(150, 12_000), 25))
def test_at_rest_a_ready_job_and_a_free_slot_never_coexist(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_deterministic(monkeypatch)
    run_seeds(Schedule, range(start, start + 25), monkeypatch)
