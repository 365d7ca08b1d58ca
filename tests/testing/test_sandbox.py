"""The testing kit, as a test of an application uses it."""

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from taskq import State, TaskQ, chain, chord, current_job, retry
from taskq.app.tasks import Task
from taskq.errors import JobFailed, UsageError
from taskq.testing import Sandbox, assert_enqueued, assert_not_enqueued, drain, enqueued
from taskq.testing import sandbox as sandboxes
from taskq.testing.sandbox import TravelClock, use_clock


class _Shop:
    def __init__(self, directory: Path) -> None:
        self.app = TaskQ(directory)
        self.sent: list[tuple[str, str]] = []
        sent = self.sent

        @self.app.task(name="shop.send", queue="mail", retry=retry.fixed(attempts=3, delay="1m"))
        async def send(to: str, subject: str = "hello") -> int:
            if to == "nobody":
                raise ConnectionError("no such host")
            sent.append((to, subject))
            return len(sent)

        @self.app.task(name="shop.welcome")
        async def welcome(to: str, at: datetime) -> None:
            current_job().enqueue(send.call(to, subject=f"welcome since {at.year}"))

        self.send: Task[..., int] = send
        self.welcome = welcome


@pytest.fixture
def shop(tmp_path: Path) -> _Shop:
    return _Shop(tmp_path / "production")


@pytest.fixture
def box(shop: _Shop) -> Iterator[Sandbox]:
    with Sandbox(shop.app) as sandbox:
        yield sandbox


async def test_what_is_enqueued_is_found_by_its_arguments(shop: _Shop, box: Sandbox) -> None:
    job = await shop.send.enqueue("a@b.c", subject="hi")
    await shop.send.enqueue("d@e.f", "other")
    await shop.send.enqueue("g@h.i")
    assert assert_enqueued(shop.send, "a@b.c").id == job.id
    assert assert_enqueued(shop.send, subject="hi").view.queue == "mail"
    other = box.assert_enqueued("shop.send", "d@e.f")
    assert other.kwargs == {"to": "d@e.f", "subject": "other"}
    assert box.assert_enqueued(shop.send, subject="hello").kwargs["to"] == "g@h.i"
    assert_not_enqueued(shop.send, "x@y.z")
    assert [job.view.state for job in enqueued(shop.send)] == [State.READY] * 3


async def test_a_failed_assert_enqueued_lists_the_enqueued_jobs(shop: _Shop, box: Sandbox) -> None:
    for check in (box.assert_enqueued, box.assert_not_enqueued):
        with pytest.raises(UsageError, match=r"'colour'.* could not be enqueued"):
            check(shop.send, colour="red")
    with pytest.raises(AssertionError, match=r"no job of shop\.send was enqueued"):
        box.assert_enqueued(shop.send)
    await shop.send.enqueue("a@b.c", subject="hi")
    with pytest.raises(AssertionError, match=r"(?s)'x@y.z'\) was not enqueued.*'a@b.c'.*READY"):
        box.assert_enqueued(shop.send, "x@y.z")
    with pytest.raises(AssertionError, match="was enqueued"):
        box.assert_not_enqueued(shop.send)


async def test_a_drain_runs_what_is_ready_and_what_that_enqueues(shop: _Shop, box: Sandbox) -> None:
    """Arguments make their way through JSON: a datetime comes back as one."""
    await shop.welcome.enqueue("a@b.c", datetime(2021, 5, 4, tzinfo=UTC))
    slow = await shop.send.options(queue="slow").enqueue("a@b.c", "y")
    report = await drain(shop.app, ["default", "mail"])
    assert (report.count, report.succeeded) == (2, 2)
    assert shop.sent == [("a@b.c", "welcome since 2021")]
    assert [job.id for job in box.enqueued(state=State.READY)] == [slow.id]
    assert [job.id for job in box.enqueued(state="ready")] == [slow.id]
    with pytest.raises(UsageError, match=r"state is 'done': the states are .*dead"):
        box.enqueued(state="done")
    with pytest.raises(UsageError, match="queues is 'slow': give a list of names"):
        await box.drain("slow")
    assert (await box.drain()).count == 1
    assert (await drain(shop.app)).count == 0


async def test_a_failed_attempt_fails_the_drain_unless_it_may(shop: _Shop, box: Sandbox) -> None:
    job = await shop.send.enqueue("nobody", "x")
    with pytest.raises(AssertionError, match=r"(?s)1 of 1 attempts failed.*no such host"):
        await box.drain()
    assert await job.status() is State.SCHEDULED
    box.advance("59s")
    assert (await box.drain()).count == 0
    box.advance("1s")
    report = await box.drain(raises=False)
    assert report.outcomes == {"retried": 1}
    report = await box.drain(with_scheduled=True, raises=False)
    assert report.outcomes == {"dead": 1}, "it goes ahead to the end of all retries"
    with pytest.raises(JobFailed, match="no such host"):
        await job.result()


async def test_a_worker_that_waits_sees_that_time_has_passed(shop: _Shop, box: Sandbox) -> None:
    job = await shop.send.options(delay="1d").enqueue("a@b.c", "later")
    async with shop.app.worker():
        box.clock.advance("1d")
        assert await job.result(timeout=30) == 1


async def test_a_sandbox_leaves_no_files(shop: _Shop) -> None:
    before = shop.app.data_dir
    async with Sandbox(shop.app) as box:
        await shop.send.enqueue("a@b.c", "x")
        inside = shop.app.data_dir
        assert inside.is_dir()
        assert box.enqueued(shop.send)
        with pytest.raises(UsageError, match=r"close the app first, .*before its first use"):
            use_clock(shop.app, TravelClock())
        with pytest.raises(UsageError, match="is open: close the app first"):
            Sandbox(shop.app).__enter__()
    assert not inside.exists()
    assert shop.app.data_dir == before
    assert not before.exists()
    async with Sandbox(shop.app) as box:
        assert box.enqueued(shop.send) == []


_MODULE = """
from taskq import TaskQ
app = TaskQ("production")

@app.task(name="greet")
async def greet(name: str) -> str:
    return "hello " + name
"""
_TESTS = """
from jobs import greet

async def test_greets(taskq_app, taskq_sandbox):
    job = await greet.enqueue("you")
    taskq_sandbox.assert_enqueued(greet, "you")
    await taskq_sandbox.drain()
    assert await job.result() == "hello you"

async def test_begins_with_an_empty_log(taskq_sandbox):
    taskq_sandbox.assert_not_enqueued(greet)
"""


def test_pytest_finds_the_fixtures_by_itself(pytester: pytest.Pytester) -> None:
    """As a user has them: an ini option names the app, and nothing is imported by hand."""
    pytester.makepyfile(jobs=_MODULE, test_of_fixtures=_TESTS)
    pytester.makeini("[pytest]\ntaskq_app = jobs:app\nanyio_mode = auto\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    assert not Path(pytester.path, "production").exists()


@pytest.mark.parametrize(
    ("option", "fixture", "shown"),
    [
        (
            "taskq_app = nothing.here:app", "taskq_app",
            ["taskq_app = nothing.here:app: there is no module 'nothing'*"],
        ),
        (
            "", "taskq_sandbox",
            ["taskq does not know which app*", '*taskq_app = "shop.jobs:app"'],
        ),
        ("taskq_strict = perhaps", "tmp_path", ["*taskq_strict = perhaps: it is warn or error"]),
    ],
)  # fmt: skip
def test_wrong_options_of_pytest_say_what_to_write(
    pytester: pytest.Pytester, option: str, fixture: str, shown: list[str]
) -> None:
    pytester.makepyfile(f"def test_it({fixture}):\n    pass\n")
    pytester.makeini(f"[pytest]\n{option}\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    output = result.stderr if "strict" in option else result.stdout
    output.fnmatch_lines(shown)
    output.no_fnmatch_line("*During handling*")
    if "strict" not in option:
        result.assert_outcomes(errors=1)


_REAL = """
import asyncio
from taskq import TaskLog, TaskQ
from taskq.testing import Sandbox
from jobs import app, greet

def test_blocking():
    greet.enqueue_sync("you")
    app.close_sync()

def test_on_a_loop():
    async def main():
        async with app:
            await greet.enqueue("you")
    asyncio.run(main())

def test_of_bytes():
    async def main():
        async with TaskLog.open("production") as log:
            await log.put(b"")
    asyncio.run(main())

def test_what_goes_with_the_test(tmp_path, monkeypatch):
    with TaskQ(tmp_path / "log"):
        pass
    monkeypatch.chdir(tmp_path)
    with TaskQ("here"):
        pass
    with Sandbox(app) as box:
        greet.enqueue_sync("you")
"""


_OPENING: Final = (
    'greet.enqueue_sync("you")',
    "async with app:",
    'async with TaskLog.open("production") as log:',
)


@pytest.mark.parametrize("strict", [False, True])
def test_a_real_log_in_a_test_is_warned_of_or_refused(
    pytester: pytest.Pytester, strict: bool
) -> None:
    """However it is opened; what lies in a sandbox or in ``tmp_path`` is made for the test."""
    pytester.makepyfile(jobs=_MODULE, test_of_real_logs=_REAL)
    if strict:
        pytester.makeini("[pytest]\ntaskq_strict = error\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "default")
    # The tests open it themselves, and no line of ours does.
    lines = [line.strip() for line in _REAL.strip().splitlines()]
    numbers = [lines.index(opening) + 1 for opening in _OPENING]
    warned = [f"*test_of_real_logs.py:{number}: RealLogWarning*" for number in numbers]
    if strict:
        result.assert_outcomes(passed=1, failed=3)
        result.stdout.fnmatch_lines(["*UsageError: a test opens the real log *Sandbox(app)*"])
        assert not Path(pytester.path, "production").exists()
    else:
        result.assert_outcomes(passed=4, warnings=3)
        opens = f"*RealLogWarning: a test opens the real log {pytester.path}/production,*"
        result.stdout.fnmatch_lines([opens])
        result.stdout.fnmatch_lines(warned)


async def test_where_memory_takes_no_files_a_sandbox_is_among_temporary_ones(
    shop: _Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hardened containers have a read-only ``/dev/shm``."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(sandboxes, "_MEMORY", tmp_path / "file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with Sandbox(shop.app) as box:
        assert box.app.data_dir.parent == tmp_path


async def test_a_step_is_found_by_the_arguments_that_it_was_given(app: TaskQ) -> None:
    @app.task
    async def start() -> int:
        return 1

    @app.task
    async def add(number: int, more: int = 0) -> int:
        return number + more

    async with Sandbox(app) as box:
        await chain(start.call(), add.step(more=2)).enqueue()
        assert box.assert_enqueued(add, more=2).kwargs == {"more": 2}
        box.assert_not_enqueued(add, more=3)
        assert (await box.drain()).succeeded == 2


async def test_a_drain_does_not_go_ahead_to_what_waits_for_a_dead_letter(app: TaskQ) -> None:
    """A held job is due at no time: the clock is not moved to one, again and again."""

    @app.task(retry=retry.fixed(attempts=2, delay="1h"))
    async def fail(number: int) -> int:
        raise ValueError(number)

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with Sandbox(app) as box:
        await chord([fail.call(1)], total.step(), on_failure="wait").enqueue()
        before_ns = box.clock.wall_ns()
        report = await box.drain(with_scheduled=True, raises=False)
        assert report.outcomes == {"retried": 1, "dead": 1}
        assert box.clock.wall_ns() - before_ns < 2 * 3_600 * 10**9
        assert [job.kwargs for job in box.enqueued(total, state=State.SCHEDULED)] == [{}]


def test_a_sandbox_is_drained_without_a_loop(app: TaskQ) -> None:
    @app.every("1h")
    def hourly() -> None: ...

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Sandbox(app) as box:
        box.tick_sync()
        job = double.enqueue_sync(4)
        assert box.drain_sync().succeeded == 1
        assert job.result_sync() == 8
        box.advance("1h")
        box.tick_sync()
        assert len(box.enqueued()) == 2
