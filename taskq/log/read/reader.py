"""Read a log without opening it: no lock, no write, next to any number of live processes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from taskq.core import controls, errors, kinds, model, parsing, rates
from taskq.core.folds.claims import GONE
from taskq.core.schedules import ScheduleState
from taskq.core.sources import SourceView, views_of
from taskq.core.views import (
    AttemptView,
    Damage,
    JobView,
    LimitView,
    LogStats,
    OwnerView,
    ProgressView,
    SegmentView,
    VerifyReport,
    Waiting,
)
from taskq.core.why import JobFacts, Reason, Why, limits_in_use, waiting_jobs, why, why_there
from taskq.log.config import LogConfig
from taskq.log.format import codec, flows
from taskq.log.format.frames import Cursor, Frame, Gap, segment_lsn, segment_name
from taskq.log.format.record import Record, check_known, places
from taskq.log.format.salvage import salvage
from taskq.log.journal import lock, recovery
from taskq.log.journal.journal import Journal
from taskq.log.machine import access, owners, ports
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.system import system
from taskq.log.read import diagnosis, follow, gauges, history, jobs, selection, timetravel
from taskq.log.read.timeline import (
    JobEvent,
    StepView,
    events_of,
    name_attempts,
    name_workers,
    steps_of,
)
from taskq.log.segments import bodystore, identity
from taskq.log.segments.segments import Extent, SegmentGone, hop
from taskq.log.state import job_history, snapshot
from taskq.log.state.facets import DAMAGE_MAX, Facets, LogView


def verify(journal: Journal) -> VerifyReport:
    """Read the whole log up to its known end; return its damage and gaps."""
    frames = count = epoch = next_lsn = 0
    damage: list[Damage] = []
    missing: list[tuple[int, int]] = []
    for base, item in everything(journal):
        if not isinstance(item, Gap):
            frames += 1
            count += item.header.records
            if item.header.epoch == epoch and item.header.first_lsn > next_lsn:
                missing.append((next_lsn, item.header.first_lsn))
            epoch, next_lsn = item.header.epoch, item.header.next_lsn
            for lsn, at, _ in places(item):
                check_known(item.data[at + codec.KIND_AT], lsn)
            continue
        epoch = 0  # the missing lsns are the damage
        if len(damage) < DAMAGE_MAX:
            damage.append(describe_damage(journal, base, item))
    known = {loss.first_lsn for loss in journal.lost}
    damage += journal.lost
    return VerifyReport(
        segments=len(journal.files.lsns),
        frames=frames,
        records=count,
        damage=tuple(damage),
        torn_bytes=journal.torn_bytes,
        jobs=tuple(journal.tag.id(job) for job in concerned_jobs(journal, damage)),
        accepted=tuple(gap for gap in missing if gap[0] not in known),
    )


def everything(journal: Journal) -> Iterator[tuple[int, Frame | Gap]]:
    """Yield the frames and gaps of the log, then the segments with a damaged header.

    A reader's log ends before such a segment.
    """
    yield from journal.frames(journal.start())
    files = journal.files
    for segment in files.lsns:
        strange = segment > journal.segment and files.size(segment) > codec.SEGMENT_HEADER.size
        if strange and files.header(segment) is None:
            start = Cursor(segment, codec.SEGMENT_HEADER.size, segment)
            yield from files.frames(start, Cursor(segment, files.size(segment), segment))


def describe_damage(journal: Journal, base: int, gap: Gap) -> Damage:
    salvaged = 0
    frame = journal.files.damaged_frame(base, gap)
    if frame is not None:
        salvaged = sum(1 for _ in salvage(frame[1], gap.first_lsn))
    return journal.files.damage(base, gap, salvaged)


def concerned_jobs(journal: Journal, damage: list[Damage]) -> list[int]:
    """Return jobs with a damaged enqueue or claim, known from later records."""
    jobs: set[int] = set()
    if damage:
        spans = [(part.first_lsn, part.next_lsn) for part in damage]
        for record in job_history.records(journal, journal.start()):
            token = record.token if record.type in kinds.OF_CLAIMS else 0
            for first, following in spans:
                if first <= record.job < following or first <= token < following:
                    jobs.add(record.job)
    return sorted(jobs)


#: Latest records that are searched for ended jobs.
_LOOK_BACK: Final = 5_000
#: Newest jobs that are searched for a beginning of an id.
_NEWEST: Final = 1_000
#: Most jobs in the error about an ambiguous id.
_NAMED: Final = 5
#: Message for a log with a failed write.
FAILED: Final = "An fsync failed, nobody may write: look at the disk, then start all processes anew"
#: Reasons that depend on the workers of the time.
_OF_WORKERS: Final = frozenset({Why.NO_WORKER, Why.WORKER_LOST})

T = TypeVar("T")
#: Most restarts of an answer after compaction removed a segment.
_TRIES: Final = 5
#: Bytes that ``explain`` may read per second of the wait (30 ms of work per MiB, twice that on a
#: busy machine), with a lower and an upper limit.
_READ_BYTES_A_SECOND: Final = 2 * 1024 * 1024
_READ_BYTES_MIN: Final = 64 * 1024
_READ_BYTES_MAX: Final = 8 * 1024 * 1024


class LogReader:
    """Read-only view of a log's directory, as of its opening or the last ``refresh``.

    For a past moment it shows the log at that time, without processes and progress, which the log
    does not keep. Close it, or use ``with``. One thread at a time may use it.
    """

    def __init__(self, path: str, journal: Journal, at: timetravel.Moment | None = None) -> None:
        self.path = path
        self._at = at
        self._onlooker: follow.Onlooker | None = None
        self._clock = journal.clock
        self.log_id: uuid.UUID = journal.identity.log_id
        self.tag: parsing.Tag = journal.tag
        self.lineage: str = journal.identity.lineage
        self.parents: tuple[identity.Parent, ...] = journal.identity.parents
        self.created_at: datetime = datetime.fromtimestamp(journal.identity.created_ns / 1e9, UTC)
        self._bodies = bodystore.BodyStore(journal.path, journal.config)
        self._hour: gauges.LastHour | None = None
        self._history: history.History | None = None
        #: of the last requested job
        self._stories: dict[int, job_history.Story | None] = {}
        self._use(journal)

    @classmethod
    def open(
        cls, path: str, clock: ports.Clock | None = None, at: timetravel.Moment | None = None
    ) -> LogReader:
        """Open the log in a directory for reading; ``clock`` replaces the machine's.

        Raises:
            LogError: there is no log, or a newer taskq wrote it.
            UsageError: the moment is in the future.
            MomentGone: compaction removed the records of that time.
        """
        reader = cls(path, open_journal(path, clock), at)
        try:
            if at is not None:
                reader._read(lambda *_: None)
        except BaseException:
            reader.close()
            raise
        return reader

    @property
    def now_ns(self) -> int:
        """Wall time of the view, in nanoseconds."""
        return self._journal.clock.wall_ns()

    @property
    def journal(self) -> Journal:
        """The journal of this reader, for reading only."""
        return self._journal

    @property
    def device(self) -> str:
        """Return the device of a hub's copy."""
        return identity.device_of_copy(str(Path(self.path).absolute()))

    @property
    def copy_of(self) -> str:
        """Return device and age of a hub's copy, "copy of edge-8, as of …"; "" for an original.

        A copy has no later records of the device, and no processes.
        """
        if not self._journal.identity.is_replica:
            return ""
        arrived = max(
            (segment.stat().st_mtime for segment in Path(self.path, "log").glob("*.log")),
            default=0.0,
        )
        as_of = datetime.fromtimestamp(arrived).astimezone().isoformat(" ", "seconds")
        age = f"as of {as_of}" if arrived else "of which nothing came yet"
        return f"copy of {self.device}, {age}"

    @property
    def resend_command(self) -> str:
        """Return the command by which a device fills a hub's copy again; "" for any other log."""
        if not self._journal.identity.is_replica:
            return ""
        hub = str(Path(self.path).absolute().parents[2])
        return errors.as_typed("taskq", "hub", "check", hub, "--repair")

    @property
    def bodies(self) -> bodystore.BodyStore:
        """Return the store that unpacks payloads and results of this log."""
        return self._bodies

    def close(self) -> None:
        """Close the files. May be called twice."""
        self._journal.close()
        if self._onlooker is not None:
            self._onlooker.close()

    def refresh(self) -> None:
        """Include records written since the opening; only new records are read and folded.

        Raises:
            LogError: the log was removed, or cannot be read.
        """
        if self._at is not None:
            return
        before = self._journal.end()
        if self._onlooker is None:
            self._onlooker = follow.Onlooker(self._journal)
        self._onlooker.look()
        self._stories.clear()
        after = self._journal.end()
        # A recovery may have cut frames that were read and folded here.
        if (after.segment, after.offset) < (before.segment, before.offset):
            self._reopen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def parse_id(self, text: str) -> int:
        """Return the lsn in a job id.

        Raises:
            WrongLog: the id belongs to another log.
            UsageError: the text is no id.
        """
        return parse_id(text, self.tag, self._journal.path)

    def find_job(self, text: str) -> int:
        """Return the lsn of the job with this id, or of the only job whose id begins with it.

        Beginnings are only compared with the newest thousand jobs.

        Raises:
            JobNotFound: no job fits, or several do; the message names them.
            UsageError: the text is no id.
        """
        lsn = self.parse_id(text)
        story = self._story(lsn) if lsn else None
        if story is not None and story.state is not model.State.ABSENT:
            return lsn
        newest = self.jobs(None, None, None, _NEWEST)
        begin = [view.lsn for view in newest if str(view.lsn).startswith(str(lsn))]
        if story is not None:  # the whole id of a purged job
            begin = []
        if len(begin) == 1:
            return begin[0]
        if begin:
            named = parsing.listed((self.tag.id(job) for job in begin), _NAMED)
            raise errors.JobNotFound(
                f"there is no job {text} in this log, and {len(begin)} begin so: {named}. "
                f"Give one of them in full"
            )
        if self._at is not None:
            known = f"its newest was {newest[0].job_id}" if newest else "it had none"
            raise errors.JobNotFound(
                f"there was no job {text} in this log at that moment ({known})"
            )
        if why := self.why_dropped(lsn):
            raise errors.JobNotFound(f"there is no job {text} in this log: {why}")
        known = f"the newest is {newest[0].job_id}" if newest else "it has no jobs yet"
        ls = errors.command(self.journal.path, "ls")
        raise errors.JobNotFound(
            f"there is no job {text} in this log ({known}); they are listed by: {ls}"
        )

    def why_dropped(self, lsn: int) -> str:
        """Return why a job may have been removed early; "" if no job was."""
        return job_history.why_dropped(self._journal, lsn)

    def job(self, lsn: int, *, body_bytes_max: int | None = None) -> JobView | None:
        """Return the view of one job; None if the job is unknown.

        A payload or result is left out if it cannot be read, or if it is compressed and over
        ``body_bytes_max``; ``problem`` then has the reason.
        """
        story = self._story(lsn)
        if story is None or story.state is model.State.ABSENT:
            return None
        return self._bodies.show_view(story.view(self.now_ns), body_bytes_max)

    def ties(self, lsn: int) -> flows.Takes | None:
        """Return a job's relations to other jobs of its flow; None if the job is unknown."""
        story = self._story(lsn)
        return None if story is None else story.ties

    def steps(self, lsn: int) -> tuple[StepView, ...]:
        """Return the finished steps of a job, in the order of their ends."""
        story = self._story(lsn)
        return () if story is None else steps_of(story.records)

    def progress(self, lsn: int) -> ProgressView | None:
        """Return the latest progress report of a running job.

        Raises:
            JobNotFound: the log has no such job.
        """
        if self._journal.is_past:
            return None
        return diagnosis.progress_of(self._journal, self._story(lsn), lsn)

    def jobs(
        self,
        states: set[model.State] | None,
        queue: str | None,
        task: str | None,
        limit: int,
        *,
        before: int = codec.LSN_MAX,
    ) -> list[JobView]:
        """Return the newest jobs that fit, newest first; ``before`` is an lsn.

        Payloads and results over 1 MiB are left out; see ``problem``.
        """
        chosen = None if states is None else frozenset(states)
        wanted = jobs.JobFilter(chosen, queue, task, limit, before)
        views = self._read(
            lambda journal, facets, now_ns: jobs.newest_jobs(journal, wanted, now_ns, facets)
        )
        return self._bodies.list_views(views)

    def dead(self, wanted: selection.DeadFilter | None, limit: int) -> list[JobView]:
        """Return the dead letters that fit, None for any, the latest death first.

        Payloads are left out as in ``jobs``.
        """

        def read(journal: Journal, facets: Facets, _: int) -> list[JobView]:
            sight = LogView(journal, facets)
            views: list[JobView] = []
            place: selection.PageEnd | None = None
            while len(views) < limit:
                newest, place = selection.newest_dead(
                    sight, wanted or selection.DeadFilter(), limit - len(views), place
                )
                views += newest
                if place is None:
                    break
            return views

        return self._bodies.list_views(self._read(read))

    def peek(self, count: int, queue: str | None = None) -> list[JobView]:
        """Return the next ready jobs, in the order of claims; payloads are left out as in ``jobs``.

        Jobs of paused queues are left out.
        """

        def read(journal: Journal, facets: Facets, now_ns: int) -> list[JobView]:
            facets.need_agenda().see(now_ns)
            return LogView(journal, facets).peek(count, queue)

        return self._bodies.list_views(self._read(read))

    def stats(self) -> LogStats:
        """Return the counts of the log, per queue."""
        return self._read(self._stats)

    def lanes(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the counts of jobs of each (queue, task), by state."""

        def read(_: Journal, facets: Facets, now_ns: int) -> dict[tuple[str, str], Counter[str]]:
            agenda = facets.need_agenda()
            agenda.see(now_ns)
            counts: dict[tuple[str, str], Counter[str]] = {}
            for lane in agenda.lanes:
                if lane is not GONE:
                    counted = counts.setdefault((lane.queue, lane.task), Counter())
                    counted.update({state: getattr(lane, state) for state in model.STATES})
            return counts

        return self._read(read)

    def waiting_jobs(self) -> dict[tuple[str, str], Waiting]:
        """Return the counts of waiting jobs of each (queue, task), without jobs put as bytes."""

        def read(_: Journal, facets: Facets, now_ns: int) -> dict[tuple[str, str], Waiting]:
            agenda = facets.need_agenda()
            agenda.see(now_ns)
            return waiting_jobs(agenda)

        return self._read(read)

    def limits(self, limits: Mapping[str, rates.Limit]) -> list[LimitView]:
        """Return the use of limits that workers declare, by task name."""
        return self._read(
            lambda _, facets, now_ns: limits_in_use(facets.need_agenda(), limits, now_ns)
        )

    def segments(self) -> list[SegmentView]:
        """Return the files of the log, the oldest first."""

        def view(journal: Journal, lsn: int) -> SegmentView:
            files, end = journal.files, journal.end()
            size = end.offset if lsn == end.segment else files.size(lsn)
            first = next(hop(files, lsn, codec.SEGMENT_HEADER.size, size), None)
            begun_ns = 0 if first is None else first[1].time_ns
            return SegmentView(name=segment_name(lsn), size=size, begun_ns=begun_ns)

        return self._read(
            lambda journal, _, __: [
                view(journal, lsn) for lsn in journal.files.lsns if lsn <= journal.end().segment
            ]
        )

    @property
    def extent(self) -> Extent:
        """End of the log as far as this reader sees it."""
        end = self._journal.end()
        return Extent(end.segment, end.offset, end.next_lsn)

    def schedules(self) -> dict[str, ScheduleState]:
        """Return the states of all schedules, by name."""
        return self._read(lambda _, facets, __: facets.need_agenda().schedules)

    def controls(self) -> dict[str, dict[str, Any]]:
        """Return settings changed at run time by name: tasks, slots of workers, alerts."""
        return self._read(lambda _, facets, __: controls.values_of(facets.need_agenda().controls))

    def sources(self) -> list[SourceView]:
        """Return the sources of ingested jobs, by name."""
        return self._read(lambda _, facets, __: views_of(facets.need_agenda().sources))

    def records(self) -> Iterator[Record]:
        """Yield every record; from damaged frames the records with a valid CRC of their own."""
        return jobs.entries(self._journal)

    def last_ended(self) -> list[int]:
        """Return the jobs that ended in the latest 5 000 records, the latest end first."""

        def read(journal: Journal, _: Facets, __: int) -> list[int]:
            cursor = journal.indexes.cursor_at(max(journal.next_lsn - _LOOK_BACK, 1))
            return list(dict.fromkeys(reversed(list(jobs.jobs_ended(journal, cursor)))))

        return self._read(read)

    def each_job(
        self,
        states: Iterable[model.State] = (),
        queue: str | None = None,
        task: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        now_ns: int | None = None,
    ) -> Iterator[JobView]:
        """Yield every job that fits, in one walk: finished jobs by their ends, then other jobs.

        Moments are of the enqueue, in the log's time; no state means any. An unreadable payload or
        result is left out, and ``problem`` has the reason.
        """
        chosen = jobs.JobFilter(
            frozenset(states) or None, queue, task, since_ns=since_ns, until_ns=until_ns
        )
        now_ns = self.now_ns if now_ns is None else now_ns
        return map(self._bodies.show_view, jobs.each_job(self._journal, chosen, now_ns))

    def timeline(self, lsn: int) -> tuple[JobEvent, ...]:
        """Return the events of a job, oldest first; empty if the job is unknown."""
        story = self._story(lsn)
        if story is None:
            return ()
        return self._read(lambda journal, _, __: name_workers(journal, events_of(story.records)))

    def attempts(self, job: JobView) -> tuple[AttemptView, ...]:
        """Return the attempts of a job, with the names of their processes."""
        return self._read(lambda journal, _, __: name_attempts(journal, job.attempts))

    def why(self, lsn: int) -> Reason | None:
        """Return the one reason why a job is not running, None if the job is unknown.

        None as well for a job that waited for a worker at a past moment.
        """
        story = self._story(lsn)

        def read(journal: Journal, facets: Facets, now_ns: int) -> JobFacts | None:
            agenda = facets.need_agenda()
            agenda.see(now_ns)
            workers = diagnosis.live_workers(journal.path)
            return diagnosis.facts_of(journal, agenda, lsn, workers, story)

        facts = self._read(read)
        if facts is None:
            return None
        if copy_of := self.copy_of:
            return why_there(facts, self.device, copy_of)
        if not self._journal.is_past:
            return diagnosis.decide(facts, self._journal.path)
        reason = why(replace(facts, workers=()))
        return None if reason.code in _OF_WORKERS else reason

    def unfolded_bytes(self) -> int:
        """Return bytes to read for a question about the present: all after the newest snapshot."""
        journal = self._journal
        since, end = (
            snapshot.newest_cursor(journal, snapshot.AGENDA) or journal.start(),
            journal.end(),
        )
        sizes = {lsn: journal.files.size(lsn) for lsn in journal.files.lsns if lsn < end.segment}
        sizes[end.segment] = end.offset
        return sum(size for lsn, size in sizes.items() if lsn >= since.segment) - since.offset

    def owners(self) -> list[OwnerView]:
        """Return the processes that have the log open, and dead processes that still hold jobs.

        Empty at a past moment and for a hub's copy.
        """
        if self._journal.is_past or self._journal.identity.is_replica:
            return []
        return self._read(lambda journal, facets, _: LogView(journal, facets).owners())

    def ask_to_stop(self, owner: OwnerView) -> bool:
        """Ask a worker's process to end after its jobs; False if it cannot be asked from here."""
        return owners.ask_to_stop(Path(self.path) / "owners", owner)

    def last_hour(self) -> gauges.LastHour:
        """Return counts of new jobs and of ends of attempts in the last hour."""

        def read(journal: Journal, _: Facets, now_ns: int) -> gauges.LastHour:
            if self._hour is None or self._hour.journal is not journal:
                self._hour = gauges.LastHour(journal)
            self._hour.look(now_ns, self.extent)
            return self._hour

        return self._read(read)

    def history(self, seconds: float) -> tuple[history.History, bool]:
        """Return the counts of a day, a week and a month, and whether they reach the log's end.

        Args:
            seconds: longest time to read; the next call continues.
        """

        def read(journal: Journal, _: Facets, _now_ns: int) -> tuple[history.History, bool]:
            if self._history is None or self._history.journal is not journal:
                self._history = history.History(journal)
            until_ns = self._clock.steady_ns() + int(seconds * model.SECOND_NS)
            for _step in self._history.read_on():
                if self._clock.steady_ns() > until_ns:
                    return self._history, False
            return self._history, True

        return self._read(read)

    def gone(self) -> list[tuple[OwnerView, int]]:
        """Return today's ended processes, each with the time of its last record."""
        hour, alive = self.last_hour(), {owner.owner for owner in self.owners() if owner.alive}
        return self._read(lambda _, __, now_ns: hour.gone(now_ns, self.extent, alive))

    def standing(self, stats: LogStats | None = None) -> diagnosis.Standing:
        """Return the log's condition in words; at a past moment without its processes.

        Args:
            stats: a fresh result of ``stats``, or None.
        """
        stats = stats or self.stats()
        if self._journal.is_past:
            return diagnosis.past_standing(stats.queues)
        if copy_of := self.copy_of:
            return diagnosis.copied_standing(stats.queues, copy_of)
        owners = self.owners()
        workers = {owner.pid for owner in owners if owner.alive and owner.serves}
        stopped = frozenset(pid for pid in workers if lock.process_state(pid).startswith("stopped"))
        problems = [loss.explain(self.path) for loss in self._journal.lost]
        if recovery.is_marked_failed(self._journal.disk, self.path):
            problems.append(FAILED)
        waiting, waits = self.waiting_jobs(), Counter[str]()
        if not (workers or any(each.ready for each in waiting.values())):
            waits = self._read(lambda _, facets, __: facets.need_agenda().steps.count_waits())
        return diagnosis.standing(
            stats.queues, owners, waiting, waits, problems=problems, stopped=stopped,
            controls=self.controls(),
        )  # fmt: skip

    def verify(self) -> VerifyReport:
        """Read the whole log and check every CRC."""
        return verify(self._journal)

    def _stats(self, journal: Journal, facets: Facets, now_ns: int) -> LogStats:
        agenda = facets.need_agenda()
        agenda.see(now_ns)
        files, end = journal.files, journal.end()
        sealed = [lsn for lsn in files.lsns if lsn < end.segment]
        return LogStats(
            queues=self._gauges.queues(agenda, now_ns),
            segments=len(sealed) + bool(files.lsns),
            size=sum(map(files.size, sealed)) + end.offset,
            next_lsn=journal.next_lsn,
        )

    def _story(self, lsn: int) -> job_history.Story | None:
        if lsn not in self._stories:
            self._stories = {
                lsn: self._read(lambda journal, _, __: job_history.read_job(journal, lsn))
            }
        return self._stories[lsn]

    def _read(self, read: Callable[[Journal, Facets, int], T]) -> T:
        """Return the result of ``read`` on the log, at the wall time.

        Folds are kept, so the next question folds only new records.

        Compaction may remove the oldest segment meanwhile. Its live jobs were rewritten after the
        end known here, so the log is opened again.
        """
        for _ in range(_TRIES):
            try:
                journal = self._journal
                if self._at is not None and not journal.is_past:
                    journal.clock = timetravel.Still(
                        journal.clock, timetravel.cut_at(journal, self._at)
                    )
                result = read(journal, self._facets, journal.clock.wall_ns())
                if _oldest(journal) == self._oldest:
                    return result
            except SegmentGone:
                pass
            except OSError as error:
                raise errors.refusal(self.path, error) from error
            self._reopen()
        raise errors.LogError(
            f"{self.path}: compaction takes segments faster than they are read: try again"
        )

    def _reopen(self) -> None:
        self.close()
        self._use(open_journal(self.path, self._clock))

    def _use(self, journal: Journal) -> None:
        self._journal = journal
        self._onlooker = None
        self._facets = Facets(journal)
        self._gauges = gauges.Gauges(journal)
        self._stories.clear()
        self._oldest = _first(journal)


def explain(path: str, lsn: int, seconds: float, clock: ports.Clock | None) -> str:
    """Explain after a wait why a job is not running; "" if that would take too long.

    Args:
        path: directory of the log.
        lsn: the job.
        seconds: length of the wait; the answer may take a tenth of it.
        clock: see ``LogReader.open``.
    """
    bytes_max = min(max(seconds * _READ_BYTES_A_SECOND, _READ_BYTES_MIN), _READ_BYTES_MAX)
    try:
        with LogReader.open(path, clock) as reader:
            reason = reader.why(lsn) if reader.unfolded_bytes() <= bytes_max else None
    except (errors.LogError, OSError):
        return ""
    return "" if reason is None else reason.text


def _first(journal: Journal) -> int:
    """Return the journal's first segment at its opening, 0 if there was none."""
    return journal.files.lsns[0] if journal.files.lsns else 0


def _oldest(journal: Journal) -> int:
    names = journal.disk.names(f"{journal.path}/log")
    return min(filter(None, map(segment_lsn, names)), default=0)


def open_journal(path: str, clock: ports.Clock | None = None) -> Journal:
    """Return a journal for reading the log in a directory, with this clock or the machine's."""
    disk = LocalDisk()
    directory = system.named(Path(path).absolute())
    try:
        access.refuse_links(directory)
        journal = Journal(disk, clock or SystemClock(), directory, LogConfig(), None)
        journal.open_for_reading()
    except OSError as error:
        raise errors.refusal(path, error) from error
    return journal


def parse_id(text: str, tag: parsing.Tag, path: str) -> int:
    prefix, lsn = parsing.split_id(text, f"{tag}-123")
    if not tag.takes(prefix, lsn):
        raise tag.refusal(prefix, lsn, path)
    return lsn
