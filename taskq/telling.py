"""What TaskLog and TaskQ tell of their jobs and of the log's past.

A read of the past may take seconds, so it is done on a thread of its own, from the files. What was
read there may not be on disk yet: the answer waits for a look of the storage thread, which is told
only what is durable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from taskq.blocking import blocking
from taskq.connection import split_job_id
from taskq.core.errors import JobNotFound
from taskq.sweeping import checked_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from taskq.connection import Connection, JobId
    from taskq.core.model import AttemptView, JobView, LogStats
    from taskq.core.why import Facts, Reason
    from taskq.log.logrecord import LogRecord
    from taskq.log.port import LoopPort
    from taskq.log.reader import LogReader
    from taskq.log.timeline import JobEvent

T = TypeVar("T")


class LogTelling:
    """Questions that people ask."""

    _connection: Connection

    async def stats(self, at: datetime | int | None = None) -> LogStats:
        """Counts of the log and of each of its queues.

        Args:
            at: as it was then: a datetime with a time zone, or an lsn (as after its frame). None:
                now.

        Raises:
            UsageError: the moment is none, or still to come.
            MomentGone: compaction removed what would tell it.
        """
        if at is not None:
            return await self._stats_at(at)
        port = await self._connection.port()
        stats: LogStats = await port.stats()
        return stats

    stats_sync = blocking(stats)

    async def peek(self, count: int = 10, *, queue: str | None = None) -> list[JobView]:
        """The next ready jobs in the order of their claims, without claiming them.

        What is over 1 MiB is left out of them, and what does not read back; ``problem`` says so.
        """
        count = checked_limit(count, "count")
        port = await self._connection.port()
        views: list[JobView] = await port.peek(count, queue)
        return await self._connection.packer.listed(views)

    peek_sync = blocking(peek)

    async def why(self, job: JobId) -> Reason:
        """The one reason why a job is not running, as a code and a sentence.

        ``job`` is a handle, an id, or the number at its end; the beginning of a number will do
        where only one of the newest thousand jobs begins so.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id is of another log.
        """
        from taskq.log.why import decide, facts_of, live_workers  # noqa: PLC0415 - few ask

        port, lsn = await self._found(job)
        path = self._connection.path
        workers = await asyncio.to_thread(live_workers, path)
        facts: Facts | None = await port.look(
            lambda one: facts_of(one.journal, one.facets.need_agenda(), lsn, workers)
        )
        if facts is None:
            raise JobNotFound(f"there is no job {_shown(job)} in {path}")
        return await asyncio.to_thread(decide, facts, path)

    why_sync = blocking(why)

    async def timeline(self, job: JobId) -> tuple[JobEvent, ...]:
        """Everything that happened to a job, oldest first, and which process did it.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id is of another log.
        """
        from taskq.log.history import job_records  # noqa: PLC0415 - as above
        from taskq.log.timeline import events_of, name_workers  # noqa: PLC0415 - as above

        port, lsn = await self._found(job)
        records: list[LogRecord] = await port.look(
            lambda one: list(job_records(one.journal, lsn)), needs_agenda=False
        )
        if not records:
            raise JobNotFound(f"there is no job {_shown(job)} in {self._connection.path}")
        return await self._read(lambda reader: name_workers(reader.journal, events_of(records)))

    timeline_sync = blocking(timeline)

    async def attempts(self, job: JobId) -> tuple[AttemptView, ...]:
        """The attempts of a job, oldest first: when, by which process, and what went wrong.

        Of more than a hundred the latest; of a job that compaction wrote again the latest twenty
        before that.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id is of another log.
        """
        from taskq.log.timeline import name_attempts  # noqa: PLC0415 - as above

        port, lsn = await self._found(job)
        view: JobView | None = await port.view(lsn)
        if view is None:
            raise JobNotFound(f"there is no job {_shown(job)} in {self._connection.path}")
        attempts = view.attempts
        return await self._read(lambda reader: name_attempts(reader.journal, attempts))

    attempts_sync = blocking(attempts)

    async def _found(self, job: JobId) -> tuple[LoopPort, int]:
        tag, lsn = split_job_id(job)
        port = await self._connection.port()
        self._connection.check_tag(tag, lsn)
        if not tag:
            lsn = await self._read(lambda reader: reader.find_job(str(job)))
        return port, lsn

    async def _stats_at(self, at: datetime | int) -> LogStats:
        from taskq.log.timetravel import Moment  # noqa: PLC0415 - as above

        moment = Moment.of(at)
        return await self._read(lambda reader: reader.stats(moment))

    async def _read(self, read: Callable[[LogReader], T]) -> T:
        from taskq.log.reader import LogReader  # noqa: PLC0415 - as above

        path = self._connection.path

        def work() -> T:
            with LogReader.open(path) as reader:
                return read(reader)

        port = await self._connection.port()
        told = await asyncio.to_thread(work)
        await port.look(lambda _: None, needs_agenda=False)
        return told


def _shown(job: JobId) -> str:
    return str(getattr(job, "id", job))
