"""A caller, a job, its worker and its log cannot distinguish C from Python."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import re
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

from taskq import Discard, Retry, Snooze, TaskQ, current_job, retry
from taskq.engine import LogReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.native.conftest import Choose

# -- twins -----------------------------------------------------------------------------------------


See: TypeAlias = Callable[[Any], None]
#: Does something with an app on a new log, and notes what it sees.
Scenario: TypeAlias = Callable[[TaskQ, See], Awaitable[None]]
#: Properties run both ways: the fixture that chooses one holds no state of a case, and a busy
#: machine may be slow.
examples = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
#: Context variables that jobs and callers may leave.
mark: ContextVar[str] = ContextVar("mark", default="none")


@contextlib.contextmanager
def held(app: TaskQ) -> Iterator[None]:
    """Keep the storage thread from taking anything, so that all of it comes as a line."""
    stands, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        stands.set()
        goes_on.wait()

    app.store().mailbox.between_batches(hold)
    stands.wait()
    try:
        yield
    finally:
        goes_on.set()


def said(error: BaseException | None) -> list[Any]:
    errors: list[Any] = []
    while error is not None:
        errors.append((type(error).__name__, str(error), error.__suppress_context__))
        error = error.__cause__ or error.__context__
    return errors


async def outcome(awaitable: Awaitable[Any]) -> list[Any]:
    try:
        return ["value", await awaitable]
    except BaseException as error:  # noqa: BLE001 - all of them are compared
        return said(error)


def jobs_of(path: Path) -> list[Any]:
    if not path.exists():
        return []
    with LogReader.open(str(path)) as reader:
        return sorted(
            [job.payload, job.state.name, job.queue, job.task, job.priority, job.attempt,
             job.key or b"", sorted(job.headers), job.reason or "", repr(job.result)]
            for job in reader.jobs(None, None, None, 1_000)
        )  # fmt: skip


async def noted(scenario: Scenario, path: Path) -> list[str]:
    notes: list[Any] = []
    app = TaskQ(path, durability="os")
    try:
        await scenario(app, notes.append)
    finally:
        await app.close()
        await asyncio.get_running_loop().shutdown_default_executor()
    # Ids depend on the log and on the first batch. Code in C has no line in a traceback.
    frame = (
        r' *File \S+arguments\.py", line \d+, in encode\\n +return slow\(args, kwargs\)\\n'
        r"(?:[ ^~]+\\n)?"
    )
    varies = re.compile(rf"\b[0-9a-f]{{8}}-\d+|{re.escape(str(path))}|{frame}")
    return [varies.sub("", repr(note)) for note in (*notes, jobs_of(path))]


def compare(scenario: Scenario, choose: Callable[[bool], None], directory: Path) -> None:
    """Run it both ways; fails where they differ, or nothing was noted."""
    notes = {}
    for language in ("Python", "C"):
        choose(language == "C")
        notes[language] = asyncio.run(noted(scenario, directory / language))
    assert notes["C"] == notes["Python"]
    assert len(notes["C"]) > 1


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def task_of(app: TaskQ, **options: Any) -> Any:
    async def send(to: str, count: int = 1) -> int:
        return count

    make: Any = app.task(name="send", **options)
    return make(send)


@scenario
async def nothing_is_done_until_it_is_awaited(app: TaskQ, see: See) -> None:
    send = task_of(app)
    see([inspect.iscoroutinefunction(send.enqueue), str(inspect.signature(send.enqueue))])
    late = send.enqueue("never", "wrong")
    see([inspect.isawaitable(late), inspect.iscoroutine(late), asyncio.iscoroutine(late)])
    see(inspect.getcoroutinestate(late))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del late
        gc.collect()
    see([str(warning.message) for warning in caught])
    late = send.enqueue("closed")
    late.close()
    see(await outcome(late))


@scenario
async def who_gives_up_in_time_withdraws_the_job(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    with held(app):
        calls = [asyncio.create_task(send.enqueue(f"{n}")) for n in range(6)]
        await asyncio.sleep(0)
        see(calls[1].cancel("enough"))
        see(await outcome(asyncio.wait_for(asyncio.shield(calls[2]), 0)))
        see(await outcome(asyncio.wait_for(calls[3], 0)))
        see(await outcome(_within(send.enqueue("late"))))
    see([type(answer).__name__ for answer in await asyncio.gather(*calls, return_exceptions=True)])
    see([call.cancelled() for call in calls])


async def _within(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(0):
        return await awaitable


@scenario
async def each_caller_keeps_its_context(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")

    async def caller(n: int) -> tuple[str, bool]:
        mark.set(f"caller {n}")
        before = asyncio.current_task()
        await send.enqueue(f"{n}")
        return mark.get(), asyncio.current_task() is before

    see(await asyncio.gather(*map(caller, range(5))))
    see(mark.get())


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize("name", SCENARIOS)
def test_c_does_as_python_does(name: str, choose: Choose, tmp_path: Path) -> None:
    compare(SCENARIOS[name], choose, tmp_path)


# -- twin slots ------------------------------------------------------------------------------------


#: Observations of jobs.
seen: Final[list[list[Any]]] = []


def here() -> list[Any]:
    job, task = current_job(), asyncio.current_task()
    assert task is not None
    return [job.task, job.attempt, job.children, job.packs, mark.get()]


async def plain() -> None:
    seen.append(here())


async def value(number: int) -> int:
    return number + 1


async def loose(number: int) -> Any:
    return number or None


async def wrong() -> int:
    return None  # type: ignore[return-value]


async def calls_wrongly() -> None:
    current_job().app.tasks["value"].call("text")


async def fails(text: str) -> None:
    seen.append(here())
    raise ValueError(text)


async def fails_late(text: str) -> None:
    await asyncio.sleep(0)
    raise KeyError(text)


async def suspends(times: int) -> list[Any]:
    for _ in range(times):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.get_running_loop().run_in_executor(None, int)
    return here()[:2]


async def marks(text: str) -> None:
    mark.set(text)


async def marks_late(text: str) -> None:
    await asyncio.sleep(0)
    mark.set(text)


async def times_out() -> None:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()


async def catches() -> str:
    try:
        await times_out()
    except TimeoutError:
        await asyncio.sleep(0)
        return "caught"
    return "not"


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancelled_late() -> None:
    await cancels_itself()
    await asyncio.Event().wait()


async def retries() -> str:
    if current_job().attempt == 1:
        raise Retry(delay=0)
    return "second"


async def snoozes() -> None:
    raise Snooze("1h")


async def discards() -> None:
    raise Discard("of no use")


async def children() -> None:
    job = current_job()
    job.enqueue(job.app.tasks["value"].call(7))


async def generator() -> int:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        yield 2

    return sum([n async for n in numbers()])


async def stops() -> None:
    raise StopAsyncIteration


def in_thread(number: int) -> int:
    return number * 2


JOBS: Final = (
    plain, value, loose, wrong, calls_wrongly, fails, fails_late, suspends, marks, marks_late,
    times_out, catches, cancels_itself, cancelled_late, retries, snoozes, discards, children,
    generator, stops, in_thread,
)  # fmt: skip


async def run_all(app: TaskQ, see: See, *, on_event: Any = None, **options: Any) -> None:
    async with app.worker(burst=True, on_event=on_event, **options) as worker:
        await worker.stopped.wait()
    see(mark.get())


CALLS: Final[list[tuple[str, tuple[Any, ...]]]] = [
    ("plain", ()), ("value", (1,)), ("plain", ()), ("fails", ("at once",)), ("plain", ()),
    ("fails_late", ("later",)), ("suspends", (3,)), ("marks", ("changed",)), ("plain", ()),
    ("marks_late", ("changed later",)), ("plain", ()), ("times_out", ()), ("catches", ()),
    ("cancels_itself", ()), ("plain", ()), ("cancelled_late", ()), ("plain", ()), ("retries", ()),
    ("snoozes", ()), ("discards", ()), ("children", ()), ("generator", ()), ("stops", ()),
    ("in_thread", (4,)), ("plain", ()), ("loose", (5,)), ("loose", (0,)), ("wrong", ()),
    ("calls_wrongly", ()),
]  # fmt: skip


async def every_end(app: TaskQ, see: See, **options: Any) -> None:
    seen.clear()
    policy = retry.fixed(attempts=2, delay=0)
    tasks = {job.__name__: app.task(name=job.__name__, retry=policy)(job) for job in JOBS}
    jobs = [await tasks[name].enqueue(*args) for name, args in CALLS]
    await run_all(app, see, **options)
    for (name, _), job in zip(CALLS, jobs, strict=True):
        if name != "snoozes":
            see([name, await outcome(job.result(timeout=5))])
        # A slot that its job spoilt gives back what it was to run next: no attempt is burnt.
        ends = [end for end in await job.attempts() if end.outcome != "released"]
        see([(end.outcome, end.reason) for end in ends])
    see(sorted(map(repr, seen)))


@scenario
async def who_is_told_of_ends_hears_of_all(app: TaskQ, see: See) -> None:
    events: list[str] = []

    def tell(event: Any) -> None:
        events.append(f"{event.task} {event.outcome} {event.attempt} {event.reason}")

    await every_end(app, see, concurrency=2, on_event=tell)
    see(sorted(events))
