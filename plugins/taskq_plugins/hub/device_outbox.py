"""A device's side of the outbox: jobs go into its inbox, cancelled jobs end.

After a session that brought the hub's copy up to date, the device asks for its jobs. It reports
refused jobs first, and publishes the others under a name that counts once. Adoption is the log's
own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from taskq.engine import EnqueueSpec, Extras, PartWriter
from taskq.errors import TaskqError
from taskq_plugins.hub.models import Answer, Given, HubError, HubJob, Question, Refused

if TYPE_CHECKING:
    from taskq.engine import Border, Clock, Disk
    from taskq_plugins.hub.line import Line

#: Name of a part's upload, by tag and end: published once, even after lost answers.
_UPLOAD: Final = re.compile(r"hub\.([0-9a-f]{8})@(0|[1-9][0-9]{0,17})\Z")
#: Limit of uploads that wait for adoption; then no jobs are taken.
UPLOADS_MAX: Final = 10
#: Parts of one session, and what is asked again since something was refused.
_ROUNDS_MAX: Final = 64


class InboxState(NamedTuple):
    """State of a device's inbox, read before its log.

    Attributes:
        after: by the tag of an outbox, the last number taken.
        waiting: uploads of a hub that are not fully adopted.
    """

    after: dict[str, int]
    waiting: int


class TakeResult(NamedTuple):
    """Result of taking jobs."""

    jobs: int = 0
    refused: int = 0
    cancelled: int = 0


def look(disk: Disk, path: str) -> InboxState:
    after: dict[str, int] = {}
    waiting = 0
    for name, may_wait in PartWriter.published(disk, path).items():
        if upload := _UPLOAD.match(name):
            tag = upload[1]
            after[tag] = max(after.get(tag, 0), int(upload[2]))
            waiting += may_wait
    return InboxState(after, waiting)


class DeviceOutbox:
    """Takes a device's jobs.

    Args:
        disk, clock: of the device.
        path: of its log.
        accept: patterns of task names, such as ``photos.*``; empty: nothing is taken.
        known: names of the tasks that run here; None if unknown.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: str,
        accept: Sequence[str],
        known: Collection[str] | None = None,
    ) -> None:
        self._disk, self._clock, self._path = disk, clock, path
        self._accept, self._known = accept, known

    async def take(
        self,
        session: int,
        log_id: UUID,
        up: Border,
        held: InboxState,
        ask: Callable[[Question], Awaitable[object]],
        cancel: Callable[[int, str], Awaitable[bool]],
    ) -> TakeResult:
        """Take what is there.

        Args:
            session: of the sync before it, which ended at ``up``.
            log_id: of the log.
            up: where the copy ends.
            held: what the inbox said before the log was looked at.
            ask: asks the hub; any answer but ``Given`` says that nothing is there.
            cancel: cancels a job of the device's own log, if it is that one of the hub; whether so.
        """
        after, waiting, taken = dict(held.after), held.waiting, TakeResult()
        refused: tuple[tuple[str, str], ...] = ()
        for number in range(_ROUNDS_MAX):
            if waiting >= UPLOADS_MAX:
                break
            given = await ask(Question(session, log_id, up, after, waiting > 0, refused))
            if not isinstance(given, Given):
                break
            taken = taken._replace(refused=taken.refused + len(refused))
            for job, own in given.cancels if not number else ():
                is_over = await cancel(own, job)
                taken = taken._replace(cancelled=taken.cancelled + is_over)
            tails = [(job, *self._judged(job)) for job in given.jobs]
            refused = tuple((job.id, why) for job, _, why in tails if why)
            if refused:
                continue  # reported before any of these count as taken
            if not given.jobs:
                break
            self._publish(given, [(job, tail) for job, tail, _ in tails])
            after[given.tag], waiting = given.end, waiting + 1
            taken = taken._replace(jobs=taken.jobs + len(given.jobs))
        return taken

    def _judged(self, job: HubJob) -> tuple[bytes, str]:
        if not any(fnmatch.fnmatchcase(job.task, pattern) for pattern in self._accept):
            said = ", ".join(self._accept) or "nothing"
            return b"", f"{job.task!r} is not among what is accepted there ({said})"
        if self._known is not None and job.task not in self._known:
            return b"", f"no task {job.task!r} is known there"
        try:
            spec = EnqueueSpec(job.queue, job.task, job.priority, job.attempts, job.flags)
            extras = Extras(
                due_ns=job.due_ns, due_is_wall=job.due_is_wall, expires_ns=job.expires_ns,
                key=job.key.encode(), headers=job.headers,
            )  # fmt: skip
            return PartWriter.tail(spec, extras), ""
        except (TaskqError, TypeError, ValueError, OverflowError) as error:
            return b"", f"it cannot be read there: {error}"

    def _publish(self, given: Given, jobs: list[tuple[HubJob, bytes]]) -> None:
        upload, disk, clock = f"hub.{given.tag}", self._disk, self._clock
        with PartWriter(Path(self._path), upload, disk=disk, clock=clock) as writer:
            for handed, tail in jobs:
                writer.add(tail, handed.payload)
            writer.publish(f"{upload}@{given.end}")


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
