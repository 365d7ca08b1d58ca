"""Run a scenario in Python and in C, and compare its notes and its log."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import HealthCheck, settings

from taskq import TaskQ
from taskq.engine import LogReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
