"""What TaskLog and TaskQ have in common: reading their log as a log.

What that takes is imported when it is asked for: most programs never do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from taskq.blocking import blocking
from taskq.core.counts import whole
from taskq.core.durations import moment_ns
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from taskq.connection import Connection
    from taskq.core.durations import Duration
    from taskq.log.locate import Extent
    from taskq.namedreaders import ReaderView
    from taskq.replay import Replayed, ReplayReport, States
    from taskq.stream import OnDamage, Stream


class LogReading:
    """Streams over the log, and the readers that have a name."""

    _connection: Connection

    def stream(
        self,
        *,
        reader: str | None = None,
        from_lsn: int | None = None,
        from_time: datetime | None = None,
        follow: bool = True,
        kinds: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        name_all: bool = False,
        on_damage: OnDamage = "raise",
    ) -> Stream:
        """The log's records in order, from the oldest that is kept; then as they are written.

        ``async for record in log.stream(reader="billing")`` goes on where "billing" stopped: its
        position is kept in the directory, saved every 1 000 records or 50 ms and put on disk every
        second. What was handled since then comes once more after a kill, or a loss of power.

        A record wakes the stream within milliseconds, whichever process wrote it; with durability
        "interval" it comes once it is on disk.

        Args:
            reader: name to go on under; one process at a time. A new one begins at the start.
            from_lsn: begin at this record, or the next after it.
            from_time: begin at the first record of this time (with a time zone) or later, as the
                log tells the time.
            follow: wait for more at the end, instead of ending there.
            kinds: only these, for example ["succeeded", "died"]; None for all.
            queues: only records of jobs in these queues.
            tasks: only records of jobs of these tasks.
            name_all: look up queue and task of every job; without it, records of jobs that were
                enqueued long before may not name them.
            on_damage: "raise", or "skip" to log a warning and pass over what does not read back.

        Raises:
            UsageError: an argument is wrong. What follows is raised where the stream is read.
            ReaderBusy: somebody else reads under that name.
            ReaderFellBehind: compaction removed what would come next.
            ReaderMismatch: the log was cut or replaced since the reader stopped.
            LogDamaged: bytes do not read back.
        """
        from taskq.log.readers import check_reader_name  # noqa: PLC0415
        from taskq.record import Choice  # noqa: PLC0415
        from taskq.stream import Start, Stream  # noqa: PLC0415

        if reader is not None:
            check_reader_name(reader)
        if from_lsn is not None:
            from_lsn = _checked_lsn(from_lsn, "from_lsn")
        time_ns = None if from_time is None else moment_ns(from_time, "from_time")
        start = Start(reader, from_lsn, time_ns)
        if sum(one is not None for one in start) > 1:
            raise UsageError("give one of reader, from_lsn and from_time; seek() moves a reader")
        if on_damage not in ("raise", "skip"):
            raise UsageError(f'on_damage is {on_damage!r}, it must be "raise" or "skip"')
        choice = Choice(kinds, queues, tasks, name_all=name_all)
        return Stream(self._connection, start, choice, follow=follow, on_damage=on_damage)

    async def readers(self) -> list[ReaderView]:
        """The named readers, in the order of their names, and how far behind each is."""
        from taskq.namedreaders import reader_views  # noqa: PLC0415

        port = await self._connection.port()
        extent: Extent = await port.extent(-1)
        return await asyncio.to_thread(reader_views, self._connection.store(), extent)

    readers_sync = blocking(readers)

    async def seek(
        self,
        reader: str,
        where: Literal["start", "end"] | None = None,
        *,
        lsn: int | None = None,
        time: datetime | None = None,
    ) -> int:
        """Let a named reader, or a new one, go on elsewhere; returns the lsn that it goes on at.

        Args:
            reader: its name.
            where: "start" is the oldest record that is kept, "end" only what is still to come.
            lsn: at this record, or the next after it.
            time: at the first record of this time (with a time zone) or later.

        Raises:
            UsageError: not one place is given, or it is still to come.
            ReaderBusy: somebody reads under the name now.
            ReaderFellBehind: compaction removed the records there.
        """
        from taskq.log.readers import check_reader_name  # noqa: PLC0415
        from taskq.namedreaders import seek_reader  # noqa: PLC0415

        check_reader_name(reader)
        time_ns = None if time is None else moment_ns(time, "time")
        if sum(one is not None for one in (where, lsn, time_ns)) != 1:
            raise UsageError('seek() takes one place: "start", "end", lsn= or time=')
        if where not in (None, "start", "end"):
            raise UsageError(f'seek() takes "start" or "end", not {where!r:.60}')
        if lsn is not None:
            lsn = _checked_lsn(lsn, "lsn")
        port = await self._connection.port()
        extent: Extent = await port.extent()
        store = self._connection.store()
        place = lsn if lsn is not None else where
        return await asyncio.to_thread(seek_reader, store, reader, place, time_ns, extent)

    seek_sync = blocking(seek)

    async def forget_reader(self, reader: str) -> None:
        """Remove a named reader: compaction keeps nothing for it any more.

        Raises:
            UsageError: there is none of that name.
            ReaderBusy: somebody reads under the name now.
        """
        from taskq import namedreaders  # noqa: PLC0415
        from taskq.log.readers import check_reader_name  # noqa: PLC0415

        check_reader_name(reader)
        store = await self._connection.opened()
        await asyncio.to_thread(namedreaders.forget_reader, store, reader)

    forget_reader_sync = blocking(forget_reader)

    async def replay(
        self,
        *,
        since: Duration | datetime | None = None,
        until: Duration | datetime | None = None,
        task: str | None = None,
        queue: str | None = None,
        state: States | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        everything: bool = False,
    ) -> ReplayReport:
        """Enqueue jobs that are over once more, in the order in which they were enqueued.

        The new ones have payload, queue, task, priority, attempts and headers of the old, and the
        header ``replay_of`` with the old one's id. They are due at once, expire never and hold no
        key. The old ones stay as they are, so replaying twice enqueues twice. Some hundred jobs
        make a transaction: one that fails leaves those before it enqueued.

        Args:
            since: only jobs enqueued then or later: a datetime, or a span back from now ("2h").
            until: only jobs enqueued before then.
            task: only jobs of this task; "" for bytes that no task owns.
            queue: only jobs of this queue.
            state: what became of them: "succeeded", "dead", "cancelled", "expired", or a list.
            limit: at most so many, the oldest first.
            dry_run: tell which, and enqueue nothing.
            everything: allow that none of the choices above is made.

        Raises:
            UsageError: a choice is wrong, or there is none.
            LogError: the log could not be read or written.
        """
        from taskq.replay import (  # noqa: PLC0415
            REPLAYED_MAX,
            ReplayReport,
            is_everything,
            past_of,
            replay,
        )

        past = past_of(since=since, until=until, task=task, queue=queue, state=state, limit=limit)
        if is_everything(past) and not (everything or dry_run):
            raise UsageError(
                "replay() without a choice would enqueue every job there ever was: "
                "choose some with since=, task=, queue= or state=, or say everything=True"
            )
        jobs: list[Replayed] = []
        count = problems = 0
        async for job in replay(self._connection, past, dry_run=dry_run):
            count += not job.problem
            problems += bool(job.problem)
            if len(jobs) < REPLAYED_MAX:
                jobs.append(job)
        return ReplayReport(count=count, problems=problems, jobs=tuple(jobs), dry_run=dry_run)

    replay_sync = blocking(replay)


def _checked_lsn(given: int, what: str) -> int:
    try:
        lsn = whole(given, what)
    except UsageError:
        lsn = -1
    if lsn < 0:
        raise UsageError(f"{what} is {given!r:.60}: an lsn is a whole number, 0 or more")
    return lsn
