"""A device's side of the outbox: what it takes goes into its inbox, and what is cancelled ends.

Behind a session that brought the hub's copy to where the log ends, a device asks what is there for
it. What it does not take is reported first, then the others are published under a name that counts
once. Adopting them is the log's own work.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import EnqueueSpec, Extras, PartWriter, SystemClock
from taskq.errors import JobNotFound, TaskqError
from taskq_plugins.hub.messages import JOB, WAIT_SECONDS_MAX, Given, Question

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence
    from uuid import UUID

    from taskq import TaskLog
    from taskq.engine import Border, Clock, Disk, DurableLog, LogConfig
    from taskq_plugins.hub.device.line import Line
    from taskq_plugins.hub.messages import Handed

_log: Final = logging.getLogger("taskq")
#: What a device publishes a part as, by tag and end: once, whatever becomes of the line.
_UPLOAD: Final = re.compile(r"hub\.([0-9a-f]{8})@(0|[1-9][0-9]{0,17})\Z")
#: So many uploads that nobody adopts: no more are taken.
UPLOADS_MAX: Final = 10
#: Parts of one session, and what is asked again since something was refused.
_ROUNDS_MAX: Final = 64


class Held(NamedTuple):
    """What a device's inbox says; looked at before its log is.

    Attributes:
        after: by the tag of an outbox, the last number that was taken from there.
        waiting: uploads of a hub that are not adopted as a whole.
    """

    after: dict[str, int]
    waiting: int


class Taken(NamedTuple):
    """What came of it."""

    jobs: int = 0
    refused: int = 0
    cancelled: int = 0


class Cancelled(NamedTuple):
    """An order to the device's own log: to cancel a job if it is that one of a hub."""

    job: int
    id: str


def look(disk: Disk, path: str) -> Held:
    """Return what the inbox of a log says."""
    after: dict[str, int] = {}
    waiting = 0
    for name, may_wait in PartWriter.published(disk, path).items():
        if upload := _UPLOAD.match(name):
            tag = upload[1]
            after[tag] = max(after.get(tag, 0), int(upload[2]))
            waiting += may_wait
    return Held(after, waiting)


class Taking:
    """What one device takes.

    Args:
        disk, clock: of the device.
        path: of its log.
        accept: patterns of names of tasks, such as ``photos.*``; none: nothing is taken.
        known: names of the tasks that run here; None if that is not known.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: str,
        accept: Sequence[str],
        known: Collection[str] | None = None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._accept = accept
        self._known = known

    def take(
        self, session: int, log_id: UUID, up: Border, held: Held
    ) -> Generator[Question | Cancelled, Given | bool | None, Taken]:
        """Ask for what is there and take it: gives out questions, and orders to the log.

        Args:
            session: of the sync before it, which ended at ``up``.
            log_id: of the log.
            up: where the copy ends.
            held: what the inbox said before the log was looked at.

        Raises:
            LogError: the inbox cannot be written.
        """
        after, waiting, taken = dict(held.after), held.waiting, Taken()
        refused: tuple[tuple[str, str], ...] = ()
        for number in range(_ROUNDS_MAX):
            if waiting >= UPLOADS_MAX:
                break
            given = yield Question(session, log_id, up, after, waiting > 0, refused)
            if given is None or isinstance(given, bool):
                break
            taken = taken._replace(refused=taken.refused + len(refused))
            for job, own in given.cancels if not number else ():
                taken = taken._replace(
                    cancelled=taken.cancelled + bool((yield Cancelled(own, job)))
                )
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

    def _judged(self, job: Handed) -> tuple[bytes, str]:
        """Return (how it goes into the inbox, why it does not)."""
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

    def _publish(self, given: Given, jobs: list[tuple[Handed, bytes]]) -> None:
        upload, disk, clock = f"hub.{given.tag}", self._disk, self._clock
        with PartWriter(Path(self._path), upload, disk=disk, clock=clock) as writer:
            for handed, tail in jobs:
                writer.add(tail, handed.payload)
            writer.publish(f"{upload}@{given.end}")


# -- over a line ---------------------------------------------------------------------------------


async def take(
    disk: Disk,
    path: str,
    log: DurableLog,
    line: Line,
    session: int,
    held: Held,
) -> tuple[Taken, Question | None]:
    """Take what a hub has for the log in a directory, whose copy ends where the log does.

    Returns with it what is to be asked while the log rests; None: another session comes before.

    Args:
        disk: of this machine.
        path: of the directory.
        log: as it was sent.
        line: to the hub.
        session: that the hub knows of it.
        held: what the inbox said before.

    Raises:
        HubError: the hub cannot be reached, or refuses.
        LogError: the inbox or the log cannot be written.
    """
    taking = Taking(disk, SystemClock(), path, line.hub.accept, line.known)
    steps = taking.take(session, log.identity.log_id, log.end, held)
    answer: Given | bool | None = None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            taken: Taken = end.value
            if taken.jobs:
                await _adopt(path, line.config)
            is_more = taken.jobs or taken.refused or held.waiting >= UPLOADS_MAX
            if is_more or line.allowance.metered:
                return taken, None
            ids = session, log.identity.log_id, log.end, held.after
            return taken, Question(*ids, held.waiting > 0, (), WAIT_SECONDS_MAX)
        if isinstance(asked, Question):
            # None: nothing, or the hub wants another session before.
            reply = await line.ask(asked)
            answer = reply if isinstance(reply, Given) else None
        else:
            answer = await _cancel(path, line.config, log.identity.tag, asked)


async def _adopt(path: str, config: LogConfig) -> None:
    """Let what was taken be jobs at once: a worker that ends by itself would not see them."""
    try:
        async with _opened(path, config) as log:
            await log.adopt()
    except TaskqError as error:
        _log.warning("%s: what the hub had waits in the inbox for a worker: %s", path, error)


async def _cancel(path: str, config: LogConfig, tag: str, asked: Cancelled) -> bool:
    """Cancel a job, if it is that one."""
    async with _opened(path, config) as log:
        with contextlib.suppress(JobNotFound):
            job = f"{tag}-{asked.job}"
            if (await log.get(job)).headers.get(JOB) == asked.id:
                return await log.cancel(job)
    return False


def _opened(path: str, config: LogConfig) -> TaskLog:
    from taskq import TaskLog  # noqa: PLC0415 - most devices are never sent a job
    from taskq.hooks import Connection  # noqa: PLC0415 - likewise

    return TaskLog(Connection(path, config))
