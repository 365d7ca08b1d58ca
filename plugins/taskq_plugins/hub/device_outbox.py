"""A device's side of the outbox: jobs of the hub are ingested into its own log.

Once the hub's copy is up to date, the device asks for the records of its outbox after the last one
that it took. Jobs, refusals and the new position go into its log together.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from taskq.engine import EnqueueSpec, Extras, Item, LogReader, checked_move
from taskq.errors import TaskqError
from taskq_plugins.hub.models import JOB, Answer, Given, HubError, HubJob, Question, Refused
from taskq_plugins.hub.outbox import REFUSED, SOURCE

if TYPE_CHECKING:
    from taskq import TaskLog
    from taskq_plugins.hub.line import Line

#: Parts of one session.
_ROUNDS_MAX: Final = 64
#: Queue of entries for refused jobs, which expire at once.
_REFUSED_QUEUE: Final = "hub-refused"
_WORDS_MAX: Final = 500


class TakeResult(NamedTuple):
    """Result of taking jobs."""

    jobs: int = 0
    refused: int = 0
    cancelled: int = 0


def positions(path: str) -> dict[str, int]:
    """Return the last record that was taken of each outbox, by the tag of its log.

    Raises:
        LogError: the log cannot be read.
    """
    with LogReader.open(path) as reader:
        names = ((source.name.partition(SOURCE), source.position) for source in reader.sources())
        return {name[2]: int(position) for name, position in names if name[1]}


class DeviceOutbox:
    """Takes a device's jobs.

    Args:
        accept: patterns of task names, such as ``photos.*``; empty: nothing is taken.
        known: names of the tasks that run here; None if unknown.
    """

    def __init__(self, accept: Sequence[str], known: Collection[str] | None = None) -> None:
        self._accept, self._known = accept, known

    async def take(
        self,
        session: int,
        log_id: UUID,
        after: dict[str, int],
        ask: Callable[[Question], Awaitable[object]],
        opened: Callable[[], contextlib.AbstractAsyncContextManager[TaskLog]],
    ) -> TakeResult:
        """Take what is there.

        Args:
            session: of the sync before it.
            log_id: of the log.
            after: what ``positions`` returned; it moves on.
            ask: asks the hub; any answer but ``Given`` says that nothing is there.
            opened: opens the device's own log.

        Raises:
            SourceMoved: another process takes jobs for the same log.
        """
        taken = TakeResult()
        for _ in range(_ROUNDS_MAX):
            given = await ask(Question(session, log_id, after))
            if not isinstance(given, Given) or given.is_empty:
                break
            judged = [self._judged(job) for job in given.jobs]
            source, before = f"{SOURCE}{given.tag}", after.get(given.tag)
            async with opened() as log:
                move = checked_move(source, given.end, before)
                await log.connection.send_many([item for item, _ in judged], move)
                after[given.tag] = given.end
                cancelled = [await _cancel(log, *wanted) for wanted in given.cancels]
            refused = sum(is_refused for _, is_refused in judged)
            taken = TakeResult(
                taken.jobs + len(judged) - refused, taken.refused + refused,
                taken.cancelled + sum(cancelled),
            )  # fmt: skip
        return taken

    def _judged(self, job: HubJob) -> tuple[Item, bool]:
        """Return a job as it goes into the log, and whether it is refused."""
        why = ""
        if not any(fnmatch.fnmatchcase(job.task, pattern) for pattern in self._accept):
            said = ", ".join(self._accept) or "nothing"
            why = f"{job.task!r} is not among what is accepted there ({said})"
        elif self._known is not None and job.task not in self._known:
            why = f"no task {job.task!r} is known there"
        try:
            if not why:
                spec = EnqueueSpec(job.queue, job.task, job.priority, job.attempts, job.flags)
                extras = Extras(
                    due_ns=job.due_ns, due_is_wall=job.due_is_wall, expires_ns=job.expires_ns,
                    key=_key(job.id), headers=job.headers,
                )  # fmt: skip
                return (spec, job.payload, extras), False
        except (TaskqError, TypeError, ValueError, OverflowError) as error:
            why = f"it cannot be read there: {error}"
        headers = {JOB: job.id, REFUSED: why[:_WORDS_MAX]}
        # Nobody runs it: it expires at once.
        return (EnqueueSpec(_REFUSED_QUEUE), b"", Extras(expires_ns=1, headers=headers)), True


def _key(job: str) -> bytes:
    return f"hub:{job}".encode()


async def _cancel(log: TaskLog, job: str, queue: str) -> bool:
    view = await log.find(_key(job), queue)
    return view is not None and await log.cancel(view.job_id)


#: An answer that comes sooner, and says nothing, is of a hub that lets nobody wait just now.
_SOON_SECONDS: Final = 5.0
#: Longest pause after requests without an answer.
_PAUSE_SECONDS_MAX: Final = 600.0
_CHANCE: Final = random.SystemRandom()


def backoff(seconds: float, failures: int) -> float:
    longest = min(seconds * 2.0 ** min(failures, 20), _PAUSE_SECONDS_MAX)
    return _CHANCE.uniform(1.0, max(longest, 1.0))


class LongPoll:
    """Long poll of one device, on a connection of its own beside its sessions.

    An answer only starts a session, which asks again and takes the jobs.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._question: Question | None = None
        self._asks, self._answered = asyncio.Event(), asyncio.Event()
        self._before: Answer | None = None

    def ask(self, question: Question | None) -> None:
        self._question = question
        self._asks.set()

    def begin(self) -> None:
        self._answered.clear()

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    async def wait(self, seconds: float) -> None:
        await _wait(self._answered, seconds)

    async def run(self) -> None:
        while True:
            await self._asks.wait()
            self._asks.clear()
            if await self._hold():
                self._answered.set()

    async def _hold(self) -> bool:
        """Ask until something is there, or the hub wants another session; False: no question."""
        failures, every = 0, self._line.hub.every
        while (asked := self._question) is not None:
            began = monotonic()
            try:
                answer = await self._line.hold(asked)
            except HubError as error:
                failures += 1
                pause = max(error.seconds, backoff(every, failures))
            else:
                failures, is_soon = 0, monotonic() - began < _SOON_SECONDS
                if isinstance(answer, Refused):
                    if asked is self._question:
                        return True
                    continue
                if answer is not None and answer != self._before:
                    self._before = answer
                    return True
                # The same jobs again: they were taken, and the log has not reported it yet.
                pause = every if answer is not None or is_soon else 0.0
            if await self._pause(pause):
                failures = 0
        return False

    async def _pause(self, seconds: float) -> bool:
        await _wait(self._asks, seconds)
        has_come = self._asks.is_set()
        self._asks.clear()
        return has_come


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
