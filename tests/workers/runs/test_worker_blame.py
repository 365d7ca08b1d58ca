"""A job is blamed for its own end only, and the reason names its error."""

import asyncio
import contextlib
import contextvars
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest

from taskq import JobHandle, TaskQ, retry
from taskq.core.model import State
from taskq_workers.pool import Worker
from taskq_workers.runs.reasons import describe
from tests.programs import run_python
from tests.workers.runs import forking_jobs

ATTEMPTS = 2
DELAY = 0
SECONDS = 30


async def _stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


async def _cancels_all_tasks() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.Event().wait()


async def _exits_in_a_task() -> None:
    async def child() -> NoReturn:
        sys.exit(3)

    await asyncio.gather(asyncio.create_task(child()))


async def _exits_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.Event().wait()


async def _is_interrupted_in_a_task() -> None:
    async def child() -> NoReturn:
        raise KeyboardInterrupt

    await asyncio.gather(asyncio.create_task(child()))


def _exits_from_a_thread(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(sys.exit)


async def _exits_by_a_thread() -> None:
    await asyncio.to_thread(_exits_from_a_thread, asyncio.get_running_loop())
    await asyncio.Event().wait()


WAYS = [
    _stops_the_loop, _cancels_all_tasks, _exits_in_a_task, _exits_in_a_callback,
    _is_interrupted_in_a_task, _exits_by_a_thread,
]  # fmt: skip


def _live_once(path: Path, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """One worker, as long as the job lets it live, or until the job is dead."""
    app = TaskQ(path, durability="os")

    @app.task(name="work", retry=retry.fixed(ATTEMPTS, DELAY))
    async def work() -> None:
        await act()

    async def main() -> None:
        worker = Worker(app, concurrency=2, drain_timeout=0, burst=True)
        async with asyncio.timeout(SECONDS):
            await worker.run()

    try:
        with contextlib.suppress(SystemExit, KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(main())
    finally:
        app.close_sync()


def _enqueued(path: Path) -> tuple[TaskQ, JobHandle[Any]]:
    app = TaskQ(path, durability="os")

    @app.task(name="work", retry=retry.fixed(ATTEMPTS, DELAY))
    async def work() -> None: ...

    return app, work.enqueue_sync()


@pytest.mark.parametrize("act", WAYS)
def test_a_job_that_ends_its_worker_reaches_the_dead_letters(
    tmp_path: Path, act: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    path, lives = tmp_path / "data", 0
    app, job = _enqueued(path)
    until = time.monotonic() + SECONDS
    while (view := app.job(job.id).view_sync()).state is not State.DEAD:
        assert time.monotonic() < until, view
        _live_once(path, act)
        lives += 1
    app.close_sync()
    assert (view.state, view.attempt) == (State.DEAD, ATTEMPTS)
    # A stopped loop fails the job alone, and its worker goes on to the next attempt.
    is_stop = act is _stops_the_loop
    assert (lives == 1, "may not stop the event loop" in view.reason) == (is_stop, is_stop)


def _loop_is_stopped() -> None:
    loop = asyncio.get_running_loop()
    loop.stop()


def _program_exits() -> None:
    raise SystemExit


def _ctrl_c() -> None:
    # Tests that are begun in the background ignore the signal, and Spark has a handler of its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _all_is_cancelled() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


@pytest.mark.parametrize("act", WAYS[1:-1])
def test_what_a_worker_is_given_while_its_loop_ends_is_left_to_others(
    tmp_path: Path, act: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    path = tmp_path / "data"
    app, job = _enqueued(path)
    other = TaskQ(path, durability="os")
    late: list[JobHandle[Any]] = []
    ran: list[str] = []

    @other.task(name="late")
    async def second() -> None:
        ran.append("late")
        sys.exit()

    def enqueue() -> None:
        # The loop stands still until the worker's claim is answered.
        late.append(second.enqueue_sync())
        until = time.monotonic() + SECONDS
        while app.job(late[0].id).view_sync().state is not State.RUNNING:
            assert time.monotonic() < until

    @other.task(name="work", retry=retry.fixed(ATTEMPTS, 3600))
    async def work() -> None:
        # The claim for the other slot is made after this one's first step.
        for _ in range(3):
            await asyncio.sleep(0)
        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join()
        await act()

    async def main() -> None:
        async with asyncio.timeout(SECONDS), other.worker(concurrency=2):
            await asyncio.Event().wait()

    with contextlib.suppress(SystemExit, KeyboardInterrupt, TimeoutError, asyncio.CancelledError):
        asyncio.run(main())
    other.close_sync()
    views = [app.job(item.id).view_sync() for item in (job, *late)]
    app.close_sync()
    assert ran == []
    assert [(view.state, view.attempt) for view in views] == [
        (State.SCHEDULED, 1),
        (State.READY, 0),
    ]


@pytest.mark.parametrize(
    "end", [_loop_is_stopped, _program_exits, _ctrl_c, _all_is_cancelled, None]
)
def test_a_program_that_ends_its_worker_burns_nobody_s_attempt(
    tmp_path: Path, end: Callable[[], None] | None
) -> None:
    """Without a last turn of the loop if there is no ``end``: it is closed as it stands."""
    path = tmp_path / "data"
    app, job = _enqueued(path)
    other = TaskQ(path, durability="os")
    runs, loop = asyncio.Event(), asyncio.new_event_loop()

    @other.task(name="work")
    async def work() -> None:
        runs.set()
        if end is None:
            loop.call_soon(loop.stop, context=contextvars.Context())
        await asyncio.Event().wait()

    async def main() -> None:
        await Worker(other).start()
        await runs.wait()
        if end is not None:
            asyncio.get_running_loop().call_soon(end)
        await asyncio.Event().wait()

    if end is None:
        task = loop.create_task(main())
        loop.run_forever()
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop ends beneath it
    else:
        loop.close()
        with pytest.raises((SystemExit, KeyboardInterrupt, RuntimeError, asyncio.CancelledError)):
            asyncio.run(main())
    other.close_sync()
    until = time.monotonic() + SECONDS
    while (view := app.job(job.id).view_sync()).state is State.RUNNING:
        assert time.monotonic() < until, view
    app.close_sync()
    assert (view.state, view.attempt) == (State.READY, 0)


async def test_workers_that_take_turns_on_a_loop_leave_nothing_on_it(app: TaskQ) -> None:
    loop = asyncio.get_running_loop()
    before = dict(vars(loop))
    async with app, contextlib.AsyncExitStack() as last:
        await last.enter_async_context(app.worker())
        guard: Any = loop.stop
        for _ in range(3):
            async with app.worker():
                await last.aclose()
                assert loop.stop == guard
                assert len(guard.runs) == 1
                await last.enter_async_context(app.worker())
    assert vars(loop).keys() == before.keys()
    assert not guard.runs


@pytest.mark.posix("forks")
def test_a_forked_child_that_comes_back_ends_and_says_so(tmp_path: Path) -> None:
    names = [name for task in forking_jobs.FORKS for name in (task.name, "plain")]
    with TaskQ(tmp_path, durability="os") as app:
        jobs = [app.enqueue_by_name_sync(name) for name in names]
        done = run_python("-W", "ignore", "-m", forking_jobs.__name__, tmp_path)
        assert done.returncode == 0, done.stderr
        assert [job.result_sync(1) for job in jobs] == [1, 0] * len(forking_jobs.FORKS)
    for job, name in zip(jobs[::2], names[::2], strict=True):
        assert f"taskq: job {job.id} ({name}) forked, and its child came back" in done.stderr
    assert done.stdout == "plain ran\n" * len(forking_jobs.FORKS)


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    else:
        raise KeyError("bottom")


def test_places_of_failures_that_were_written_alike_are_kept_apart(tmp_path: Path) -> None:
    for name in ("first.py", "second.py"):
        path = tmp_path / name
        path.write_text("def fail(early):\n    if early: raise KeyError\n    raise ValueError\n")
        fail = runpy.run_path(str(path))["fail"]
        for early, line in ((0, 3), (1, 2), (0, 3)):
            assert f'"{path}", line {line}, in fail' in describe(caught(fail, early))


def wrapped() -> None:
    try:
        deep(0)
    except KeyError as error:
        raise ValueError("outer") from error


def fail(error: Exception) -> None:
    raise error


def caught(function: Callable[..., object], *args: object) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function(*args)
    return info.value


NOTED = ValueError("n")
NOTED.add_note("in row 7")
GROUP = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
ODD = f"{__name__}.Odd: (its message cannot be printed)"
#: A function that raises, the first line, and parts of the lines after it.
REASONS: list[tuple[Callable[..., object], Any, str, tuple[str, ...]]] = [
    (deep, 0, "KeyError: 'bottom'", ('raise KeyError("bottom")',)),
    (deep, 100, "KeyError: 'bottom'", ('raise KeyError("bottom")',)),
    (fail, Odd(), ODD, ()),
    (fail, ValueError("first\nsecond"), "ValueError: first", ("second",)),
    (fail, NOTED, "ValueError: n", ("raise error", "in row 7")),
    (fail, GROUP, "KeyError: 'b'; ValueError: a", ("ValueError: a", "KeyError: 'b'")),
    (lambda _: wrapped(), 0, "ValueError: outer", ("KeyError: 'bottom'", "direct cause")),
]


@pytest.mark.parametrize(("function", "given", "first", "parts"), REASONS)
def test_a_reason_is_the_error_then_its_innermost_frames_and_no_more_than_a_screenful(
    function: Callable[..., object], given: Any, first: str, parts: tuple[str, ...]
) -> None:
    lines = describe(caught(function, given)).splitlines()
    assert lines[0] == first
    assert len(lines) < 40
    assert all(part in "\n".join(lines[1:]) for part in parts)
