"""The methods that TaskLog and TaskQ share: reading, editing and upkeep of a log.

A read of the past may take seconds, so a separate thread reads the files. The files may hold
records that are not fsynced yet, so the answer waits for one look of the storage thread, which
sees durable records only. Modules of rare methods are imported inside the methods.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from taskq.connection.blocking import blocking, off_loop, refuse_in_loop
from taskq.connection.connection import Connection, JobId, split_job_id
from taskq.core import durations, errors, model, parsing
from taskq.core.sources import Move, SourceState, SourceView, decode_position, views_of

if TYPE_CHECKING:
    from taskq.app.steering import AppSchedules
    from taskq.app.tasks import Task
    from taskq.core import views
    from taskq.core.why import JobFacts, Reason
    from taskq.log.read import reader, timetravel
    from taskq.log.read.timeline import JobEvent
    from taskq.log.state import facets, job_history
    from taskq.log.store.port import LoopPort
    from taskq.reading.dead import DeadLetters, Swept
    from taskq.reading.replay import Replayed, ReplayReport, States
    from taskq.reading.stream import OnDamage, ReaderView, Stream

    #: A task, or the name of one.
    TaskName: TypeAlias = str | Task[..., Any]

T = TypeVar("T")


class LogHolder:
    """Access to a log: its dead letters, schedules, queues, history and upkeep."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        # Tasks, calls and handles hold this object, so pickling them ends here, too.
        raise errors.UsageError(
            "an open log is not copied or pickled, nor are its tasks, calls and handles: import "
            "the app there, and pass a job's id or a call's arguments"
        )

    @property
    def connection(self) -> Connection:
        """Return the log's connection, with port, packer and tag; for workers and plugins."""
        return self._connection

    async def close(self) -> None:
        """Finish pending requests and close the directory. Legal twice, and before any use."""
        for connection in self._connections():
            await connection.aclose()

    def close_sync(self) -> None:
        """Do as ``close``, blocking this thread."""
        refuse_in_loop("close_sync()", "await close()")
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[Connection]:
        return [self._connection]

    def logs(self) -> Sequence[LogHolder]:
        """Return the holder of each log: only itself if there is one log."""
        return [self]

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __exit__(self, *_exc: object) -> None:
        self.close_sync()

    @property
    def dead(self) -> DeadLetters:
        """The log's dead letters: list, requeue, purge; over all shards."""
        from taskq.reading.dead import DeadLetters  # noqa: PLC0415 - few ask

        return DeadLetters(*(log._connection for log in self.logs()))

    @property
    def schedules(self) -> AppSchedules:
        """The schedules known to the log: list, add, remove, pause, resume, reset, forget."""
        from taskq.app.steering import AppSchedules  # noqa: PLC0415 - few ask

        return AppSchedules(self._connection)

    async def pause(self, queue: str | None = None, *, task: TaskName | None = None) -> bool:
        """Stop all claims, in every process, from a queue or of a task until ``resume``.

        Jobs can still be enqueued, and running jobs go on. A pause survives restarts, and a queue
        or task may be paused before its first job: ``await app.pause(task="mail.send")``.

        Returns:
            False if it was paused already.

        Raises:
            UsageError: none or both are given, or the name is not valid.
            LogError: the log could not be opened or written.
        """
        return await self._set_paused(queue, task, paused=True)

    pause_sync: Final = blocking(pause)

    async def resume(self, queue: str | None = None, *, task: TaskName | None = None) -> bool:
        """Allow claims from a queue or of a task again; return False if it was not paused.

        Raises:
            UsageError: none or both are given, or the name is not valid.
            LogError: the log could not be opened or written.
        """
        return await self._set_paused(queue, task, paused=False)

    resume_sync: Final = blocking(resume)

    async def limit(
        self, task: TaskName, *, concurrency: int | None = None, rate: str | None = None
    ) -> bool:
        """Limit a task at run time, in all processes at once, overriding the limits in its code.

        ``await app.limit("mail.send", rate="10/s")`` holds until the next call, across restarts;
        ``await app.limit("mail.send")`` restores the limits in the code.

        Args:
            task: a task or its name.
            concurrency: how many of its jobs run at a time; 0 for no limit; None: as in the code.
            rate: how many start in a time: "10/s", "100/min"; "none" for no limit; None: as in the
                code.

        Returns:
            False if these limits were set already.

        Raises:
            UsageError: a limit or the name is wrong.
            LogError: the log could not be opened or written.
        """
        from taskq.app import steering  # noqa: PLC0415 - few steer

        return await steering.limit_task(self, task, concurrency, rate)

    limit_sync: Final = blocking(limit)

    async def set_slots(self, count: int | None, *, worker: int | None = None) -> bool:
        """Make each worker run ``count`` jobs at a time from now on; None: as at their start.

        Fewer slots end no job: a slot is removed once its job is over. A number for all workers
        holds for later workers, too, until it changes; a number for one worker while it runs.

        Args:
            count: 1 to 10 000.
            worker: process id of one worker; None for all.

        Returns:
            False if that number was set already.

        Raises:
            UsageError: the count is wrong, or no such worker runs.
            LogError: the log could not be opened or written.
        """
        from taskq.app import steering  # noqa: PLC0415 - few steer

        return await steering.set_slots(self, count, worker)

    set_slots_sync: Final = blocking(set_slots)

    async def controls(self) -> dict[str, dict[str, Any]]:
        """Return changes made at run time, by name, such as ``{"task:mail.send": {...}}``.

        They are pauses and limits of tasks, slots of workers, and active alerts; no paused queues.
        """
        from taskq.app import steering  # noqa: PLC0415 - as above

        return await steering.controls_of(self)

    controls_sync: Final = blocking(controls)

    async def cancel_many(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        before: durations.Duration | datetime | None = None,
        state: Literal["scheduled", "ready"] | model.State | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """Cancel the matching waiting jobs; running jobs are left and counted.

        It works in slices of some hundred jobs, each all or none. Jobs enqueued meanwhile are kept.

        Args:
            queue: name of their queue.
            task: name of their task.
            before: only jobs enqueued before this datetime (with a time zone), or this long ago.
            state: "scheduled" or "ready"; None for both.
            limit: most jobs to cancel, the oldest first; None for all.
            dry_run: change nothing, and count.

        Raises:
            UsageError: an argument is wrong, or no filter is given, which would cancel every job.
            LogError: the log could not be opened or written.
        """
        from taskq.log.read.jobs import JobFilter  # noqa: PLC0415 - few ask
        from taskq.reading.dead import (  # noqa: PLC0415 - as above
            Swept,
            checked_limit,
            moment_before,
            waiting_states,
            withdraw,
        )

        if queue is None and task is None and before is None and state is None:
            raise errors.UsageError(
                "cancel_many() takes a queue, task, before or state: give at least one"
            )
        if queue is not None:
            parsing.check_name("queue name", queue)
        if limit is not None:
            limit = checked_limit(limit)
        wanted = JobFilter(
            queue=queue,
            task=task,
            until_ns=None if before is None else moment_before(before, "before"),
            states=waiting_states(state),
        )
        swept = Swept()
        for log in self.logs():
            left = None if limit is None else limit - swept.count
            swept += await withdraw(log._connection, wanted, left, dry_run=dry_run)
        return swept

    cancel_many_sync: Final = blocking(cancel_many)

    @contextlib.contextmanager
    def acting(self, by: str) -> Iterator[None]:
        """Record ``by`` in the log as the author of all changes in this block.

        Cancelling, editing, signalling, requeuing, purging, pausing and resuming write a record
        each. ``app.timeline(job)`` shows it as "acted" until the job is removed.

        Example:
            >>> with app.acting("ana"):
            ...     await app.edit(job, priority=9)

        Raises:
            UsageError: the name is empty, too long, or has a colon or control characters.
        """
        from taskq.log.store.port import actor  # noqa: PLC0415 - few ask

        parsing.check_name("the name of the actor", by)
        if ":" in by:
            raise errors.UsageError(f"the name of the actor is {by!r}, and may have no colon")
        token = actor.set(by)
        try:
            yield
        finally:
            actor.reset(token)

    async def edit(
        self,
        job: JobId,
        *,
        run_now: bool = False,
        delay: durations.Duration | None = None,
        eta: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
    ) -> bool:
        """Change due time, priority and queue of a waiting job; all or nothing.

        ``await app.edit(job, delay="2h", priority=9)``

        Its payload, key, expiry and attempts do not change. In its new queue it is ordered by its
        age, as if it had been enqueued there.

        Args:
            job: a handle, an id, or the number at its end.
            run_now: make it ready at once, despite its delay, eta or backoff.
            delay: make it due after this duration.
            eta: make it due at this datetime, with a time zone.
            priority: 0 to 9.
            queue: name of the queue that it moves to, with its key.

        Returns:
            False if nothing changed.

        Raises:
            UsageError: an argument is wrong or none is given; or the job waits for other jobs of
                its flow, so its time cannot be changed.
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
            NotWaiting: the job is settled, or a worker has claimed it.
            KeyHeld: another job of that queue holds its key.
        """
        from taskq.reading.dead import edit_job, edit_of  # noqa: PLC0415 - few ask

        wish = edit_of(run_now=run_now, delay=delay, eta=eta, priority=priority, queue=queue)
        there, _, lsn = await self._found(job)
        return await edit_job(there._connection, lsn, wish)

    edit_sync: Final = blocking(edit)

    async def signal(self, job: JobId, name: str, value: Any = None, *, once: str = "") -> bool:
        """Send a value to a job; ``durable.event(name)`` in the job returns it, now or later.

        The value is at most 64 KiB of JSON. Returns False if the job already got a signal with the
        same text ``once``.

        Raises:
            JobSettled: the job has ended for good.
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
            PayloadTooLarge: the value is over 64 KiB.
            UsageError: the value has no form in JSON, a name is not valid, or the job has 1 000
                unread signals.
        """
        from taskq.app.context import send_signal  # noqa: PLC0415 - few ask

        there, _, _ = await self._found(job)
        return await send_signal(there._connection, job, name, value, once)

    signal_sync: Final = blocking(signal)

    # -- questions ---------------------------------------------------------------------------------

    async def stats(self, at: datetime | int | None = None) -> views.LogStats:
        """Count the jobs of the log and of each queue; with shards, the sums over all shards.

        Args:
            at: the moment to count at: a datetime with a time zone, an lsn (the end of its frame),
                or None for now.

        Raises:
            UsageError: the moment is no datetime or lsn, or lies in the future.
            MomentGone: compaction removed the records from that moment.
        """
        logs = self.logs()
        if len(logs) > 1 and isinstance(at, int):
            raise errors.UsageError("at is an lsn, which is of one log: give a datetime")
        if logs[0] is not self:
            first, *more = [await log.stats(at) for log in logs]
            return sum(more, first)
        if at is not None:
            return await self._stats_at(at)
        port = await self._connection.port()
        return await port.stats()

    stats_sync: Final = blocking(stats)

    async def peek(self, count: int = 10, *, queue: str | None = None) -> list[views.JobView]:
        """Return the next ready jobs in the order of their claims, without claiming them.

        Payloads over 1 MiB and damaged payloads are left out; ``problem`` of the view says why.

        Raises:
            UsageError: the count is below 1.
        """
        from taskq.reading.dead import checked_limit  # noqa: PLC0415 - few ask

        count = checked_limit(count, "count")
        port = await self._connection.port()
        views = await port.peek(count, queue)
        return await self._connection.packer.listed(views)

    peek_sync: Final = blocking(peek)

    async def why(self, job: JobId) -> Reason:
        """Return the one reason why a job is not running, as a code and a sentence.

        ``job`` is a handle, an id, or the number at its end. The beginning of the number is enough
        if only one of the newest thousand jobs begins with it. ``Why.DROPPED`` is a finished job
        that was removed early because the disk was full.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        from taskq.core.why import Reason, Why  # noqa: PLC0415 - few ask
        from taskq.log.read.diagnosis import decide, facts_of, live_workers  # noqa: PLC0415 - few ask
        from taskq.log.state.job_history import why_dropped  # noqa: PLC0415 - few ask

        there, port, lsn = await self._found(job)
        path = there._connection.path
        workers = await off_loop(live_workers, path)
        facts: JobFacts | None = await port.look(
            lambda sight: facts_of(sight.journal, sight.facets.need_agenda(), lsn, workers)
        )
        if facts is None:
            dropped: str = await port.look(lambda sight: why_dropped(sight.journal, lsn))
            if dropped:
                return Reason(code=Why.DROPPED, text=f"it ended, and is not kept: {dropped}")
            raise await port.not_found(lsn)
        return await off_loop(decide, facts, path)

    why_sync: Final = blocking(why)

    async def timeline(self, job: JobId) -> tuple[JobEvent, ...]:
        """Return all events of a job, oldest first, and the process of each event.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        from taskq.log.read.timeline import events_of, name_workers  # noqa: PLC0415 - as above
        from taskq.log.state.job_history import read_job  # noqa: PLC0415 - as above

        there, port, lsn = await self._found(job)
        story: job_history.Story | None = await port.look(
            lambda sight: read_job(sight.journal, lsn), needs_agenda=False
        )
        if story is None:
            raise await port.not_found(lsn)
        return await there._read(
            lambda reader: name_workers(reader.journal, events_of(story.records))
        )

    timeline_sync: Final = blocking(timeline)

    async def attempts(self, job: JobId) -> tuple[views.AttemptView, ...]:
        """Return the attempts of a job, oldest first, with time, process and error.

        At most the latest hundred are returned; if compaction rewrote the job, at most the latest
        twenty from before that.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        from taskq.log.read.timeline import name_attempts  # noqa: PLC0415 - as above

        there, port, lsn = await self._found(job)
        view: views.JobView | None = await port.view(lsn)
        if view is None:
            raise await port.not_found(lsn)
        attempts = view.attempts
        return await there._read(lambda reader: name_attempts(reader.journal, attempts))

    attempts_sync: Final = blocking(attempts)

    # -- the records of the log --------------------------------------------------------------------

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
        """Read the log's records in order, from the oldest kept record on; then follow new ones.

        ``async for record in log.stream(reader="billing")`` continues where "billing" stopped. Its
        position is stored in the directory, saved every 10 000 records or 50 ms and fsynced
        every second. Records handled since the last save come again after a kill or a power loss.

        A new record of any process wakes the stream within milliseconds; with durability
        "interval" it is read once it is on disk.

        Args:
            reader: name of the stored position, for one process at a time.
            from_lsn: begin at this record, or the next after it.
            from_time: begin at the first record of this time (with a time zone) or later, by the
                log's clock.
            follow: wait for new records at the end, instead of stopping there.
            kinds: only these kinds, for example ["succeeded", "dead"]; None for all.
            queues: only records of jobs in these queues.
            tasks: only records of jobs of these tasks.
            name_all: look up queue and task of every job; otherwise records of jobs enqueued long
                before may lack them.
            on_damage: "raise", or "skip" to log a warning and skip damaged bytes.

        Raises:
            UsageError: an argument is wrong. The errors below are raised while reading the stream.
            ReaderBusy: another process or stream uses that name.
            ReaderFellBehind: compaction removed the next records.
            ReaderMismatch: the log was cut or replaced since the reader stopped.
            LogDamaged: bytes of the log are damaged.
        """
        from taskq.log.read.readers import check_reader_name  # noqa: PLC0415
        from taskq.reading.record import Choice  # noqa: PLC0415
        from taskq.reading.stream import Start, Stream  # noqa: PLC0415

        if reader is not None:
            check_reader_name(reader)
        if from_lsn is not None:
            from_lsn = _checked_lsn(from_lsn, "from_lsn")
        time_ns = None if from_time is None else durations.moment_ns(from_time, "from_time")
        start = Start(reader, from_lsn, time_ns)
        if sum(place is not None for place in start) > 1:
            raise errors.UsageError(
                "give one of reader, from_lsn and from_time; seek() moves a reader"
            )
        if on_damage not in ("raise", "skip"):
            raise errors.UsageError(f'on_damage is {on_damage!r}, it must be "raise" or "skip"')
        choice = Choice(kinds, queues, tasks, name_all=name_all)
        return Stream(self._connection, start, choice, follow=follow, on_damage=on_damage)

    async def readers(self) -> list[ReaderView]:
        """Return the named readers with their lag, sorted by name."""
        from taskq.reading.stream import reader_views  # noqa: PLC0415

        port = await self._connection.port()
        extent = await port.extent(-1)
        store = self._connection.store()
        return await off_loop(reader_views, store.path, store.identity, extent)

    readers_sync: Final = blocking(readers)

    async def seek(
        self,
        reader: str,
        where: Literal["start", "end"] | None = None,
        *,
        lsn: int | None = None,
        time: datetime | None = None,
    ) -> int:
        """Move a named reader, existing or new, to another position; return the lsn there.

        Args:
            reader: its name.
            where: "start" is the oldest record that is kept, "end" skips all existing records.
            lsn: continue at this record, or the next after it.
            time: continue at the first record of this time (with a time zone) or later.

        Raises:
            UsageError: no place or more than one is given, or it lies in the future.
            ReaderBusy: another process or stream uses the name.
            ReaderFellBehind: compaction removed the records there.
        """
        from taskq.reading.stream import sought  # noqa: PLC0415 - few ask

        seek = sought(reader, where, None if lsn is None else _checked_lsn(lsn, "lsn"), time)
        port = await self._connection.port()
        extent = await port.extent()
        return await off_loop(seek, self._connection.store(), extent)

    seek_sync: Final = blocking(seek)

    async def forget_reader(self, reader: str) -> None:
        """Remove a named reader: compaction no longer keeps records for it.

        Raises:
            UsageError: no reader has that name.
            ReaderBusy: another process or stream uses the name.
        """
        from taskq.log.read.readers import check_reader_name  # noqa: PLC0415
        from taskq.reading.stream import forget_reader  # noqa: PLC0415

        check_reader_name(reader)
        store = await self._connection.opened()
        await off_loop(forget_reader, store, reader)

    forget_reader_sync: Final = blocking(forget_reader)

    async def replay(
        self,
        *,
        since: durations.Duration | datetime | None = None,
        before: durations.Duration | datetime | None = None,
        task: str | None = None,
        queue: str | None = None,
        state: States | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        everything: bool = False,
        on_job: Callable[[Replayed], object] | None = None,
    ) -> ReplayReport:
        """Enqueue finished jobs once more, in the order of their first enqueue.

        A copy has payload, queue, task, priority, attempts and headers of the original, and the
        original's id in the header ``replay_of``. It is due at once, never expires, holds no key.
        The originals do not change, so replaying twice enqueues twice. A transaction holds some
        hundred jobs: if one fails, the earlier ones are kept.

        Args:
            since: only jobs enqueued at this datetime or later; or a span back from now ("2h").
            before: only jobs enqueued before this moment.
            task: only jobs of this task; "" for jobs of a ``TaskLog``, which have no task.
            queue: only jobs of this queue.
            state: their final state: "succeeded", "dead", "cancelled", "expired", or a list.
            limit: most jobs to replay, the oldest first; None for all.
            dry_run: report the jobs, and enqueue nothing.
            everything: allow a call without any filter.
            on_job: called with each job once it is enqueued, or refused.

        Raises:
            UsageError: a filter is wrong, or none is given.
            LogError: the log could not be read or written.
        """
        from taskq.reading.replay import past_of, replay_all  # noqa: PLC0415

        past = past_of(since=since, before=before, task=task, queue=queue, state=state, limit=limit)
        is_allowed = everything or dry_run
        return await replay_all(
            self._connection, past, is_allowed=is_allowed, dry_run=dry_run, on_job=on_job
        )

    replay_sync: Final = blocking(replay)

    # -- upkeep, also done by workers --------------------------------------------------------------

    async def compact(
        self, *, keep: durations.Duration | None = None, dry_run: bool = False
    ) -> views.CompactReport:
        """Remove the oldest segments as far as the log's policy allows, while processes run.

        Records still needed are written again first: unsettled jobs, dead letters, held keys and
        finished jobs within their retention. The current segment always stays.

        Args:
            keep: how long finished jobs are kept; the log's own ``keep`` if None.
            dry_run: change nothing, and report the plan.

        Raises:
            UsageError: ``keep`` is no duration.
            LogError: the log could not be written, or another process compacts it for too long.
        """
        limit = None if keep is None else durations.seconds(keep, "keep")
        port = await self._connection.port()
        return await port.compact(limit, dry_run=dry_run)

    compact_sync: Final = blocking(compact)

    async def position(self, source: str) -> Any:
        """Return a source's position, as given to ``ingest``; None for an unknown source.

        Raises:
            UsageError: the name is no source's.
            LogError: the log could not be opened.
        """
        parsing.check_name("source name", source)
        port = await self._of_source(source)._connection.port()
        return decode_position(await port.look(lambda sight: _position_of(sight, source)))

    position_sync: Final = blocking(position)

    async def sources(self) -> list[SourceView]:
        """Return the sources that the log knows, by name, with their positions."""
        ports = [await log._connection.port() for log in self.logs()]
        known: dict[str, SourceState] = {}
        for port in ports:
            known |= await port.look(lambda sight: dict(sight.facets.need_agenda().sources))
        return views_of(known)

    sources_sync: Final = blocking(sources)

    async def forget_source(self, source: str) -> bool:
        """Forget a source and its position; return False if it is unknown.

        Raises:
            UsageError: the name is no source's.
            LogError: the log could not be opened or written.
        """
        parsing.check_name("source name", source)
        while True:
            log = self._of_source(source)._connection
            port = await log.port()
            before = await port.look(lambda sight: _position_of(sight, source))
            if not before:
                return False
            try:
                await log.send_many([], Move(source, b"", before))
            except errors.SourceMoved:
                continue
            return True

    forget_source_sync: Final = blocking(forget_source)

    async def _set_paused(self, queue: str | None, task: TaskName | None, *, paused: bool) -> bool:
        if task is not None and queue is None:
            from taskq.app import steering  # noqa: PLC0415 - few steer

            return await steering.steer_task(self, task, {"paused": paused or None})
        if task is not None or queue is None:
            raise errors.UsageError("give a queue, or task=: one of the two")
        parsing.check_name("queue name", queue)
        ports = [await log._connection.port() for log in self.logs()]
        return any([await port.pause(queue, paused=paused) for port in ports])

    def _of_source(self, source: str) -> LogHolder:
        del source
        return self

    def _of(self, job: JobId) -> LogHolder:
        del job
        return self

    async def _found(self, job: JobId) -> tuple[LogHolder, LoopPort, int]:
        tag, lsn = split_job_id(job)
        there = self._of(job)
        port = await there._connection.port()
        there._connection.check_tag(tag, lsn)
        if not tag:
            lsn = await there._read(lambda reader: reader.find_job(str(job)))
        return there, port, lsn

    async def _stats_at(self, at: datetime | int) -> views.LogStats:
        from taskq.log.read.timetravel import Moment  # noqa: PLC0415 - as above

        return await self._read(lambda reader: reader.stats(), Moment.of(at))

    async def _read(
        self, read: Callable[[reader.LogReader], T], at: timetravel.Moment | None = None
    ) -> T:
        from taskq.log.read.reader import LogReader  # noqa: PLC0415 - as above

        path = self._connection.path

        def work() -> T:
            with LogReader.open(path, at=at) as reader:
                return read(reader)

        port = await self._connection.port()
        outcome = await off_loop(work)
        await port.look(lambda _: None, needs_agenda=False)
        return outcome


def _position_of(sight: facets.LogView, source: str) -> bytes:
    state = sight.facets.need_agenda().sources.get(source)
    return b"" if state is None else state.position


def _checked_lsn(given: int, what: str) -> int:
    try:
        lsn = parsing.whole(given, what)
    except errors.UsageError:
        lsn = -1
    if lsn < 0:
        raise errors.UsageError(f"{what} is {given!r:.60}: an lsn is a whole number, 0 or more")
    return lsn
