"""Reading a log without opening it: no lock, no write, beside any number of live processes."""

from __future__ import annotations

import json
import time
from array import array
from bisect import bisect_left
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError, UsageError, WrongLog
from taskq.core.model import JobView, LogStats, OwnerView, State, VerifyReport
from taskq.core.records import Kind
from taskq.core.transitions import BY_TIME, after
from taskq.log.config import LogConfig
from taskq.log.disk import LocalDisk, SystemClock
from taskq.log.facets import Facets
from taskq.log.history import Story, records, tell
from taskq.log.identity import read_identity
from taskq.log.journal import Journal
from taskq.log.peers import describe_owner, known_owners, owner_alive
from taskq.log.segment import Gap

if TYPE_CHECKING:
    import uuid
#: Ready and scheduled jobs are told apart by their stories: so many are looked at for one wanted.
_SLACK: Final = 64


class LogReader:
    """A read-only view of a log's directory, as of its opening."""

    def __init__(self, path: str, journal: Journal) -> None:
        self.path = path
        self._journal = journal
        self.log_id: uuid.UUID = journal.identity.log_id
        self.tag = journal.tag
        self.created_at = datetime.fromtimestamp(journal.identity.created_ns / 1e9, UTC)

    @classmethod
    def open(cls, path: str) -> LogReader:
        """Look at the log in a directory.

        Raises:
            LogError: there is none, or a newer taskq wrote it.
        """
        disk = LocalDisk()
        directory = str(Path(path).absolute())
        if not Path(directory).is_dir() or read_identity(disk, directory) is None:
            raise LogError(f"{path} is not a task log: give its directory with -d")
        try:
            journal = Journal(disk, SystemClock(), directory, LogConfig(), None)
            journal.open_for_reading()
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror})") from error
        return cls(path, journal)

    def parse_id(self, text: str) -> int:
        """The lsn in a job id.

        Raises:
            WrongLog: it is an id of another log.
            UsageError: it is no id.
        """
        return parse_id(text, self.tag)

    def job(self, lsn: int) -> JobView | None:
        """Everything the log says of one job."""
        return tell(self._journal, lsn, time.time_ns())

    def jobs(
        self, states: set[State] | None, queue: str | None, task: str | None, limit: int
    ) -> list[JobView]:
        """The newest jobs that fit, newest first. Takes 9 bytes a job, and two walks."""
        chosen = self._newest(states, queue, task, limit)
        if not chosen:
            return []
        stories: dict[int, Story] = {}
        for record in records(self._journal, self._journal.cursor_at(min(chosen))):
            if record.kind == Kind.CLOCK:
                for story in stories.values():
                    story.clock_stepped(record.step_ns)
            elif record.kind == Kind.ENQUEUED:
                if record.lsn in chosen:
                    stories[record.lsn] = Story(self.tag, record)
            elif record.job in stories:
                stories[record.job].add(record)
        now_ns = time.time_ns()
        views = [stories[lsn].view(now_ns) for lsn in sorted(stories, reverse=True)]
        return [view for view in views if states is None or view.state in states][:limit]

    def _newest(
        self, states: set[State] | None, queue: str | None, task: str | None, limit: int
    ) -> set[int]:
        """Jobs among which the newest ``limit`` that fit are."""
        jobs, ends = array("Q"), bytearray()
        wanted_queue = None if queue is None else queue.encode()
        wanted_task = None if task is None else task.encode()
        for record in records(self._journal, self._journal.start()):
            if record.kind == Kind.ENQUEUED:
                fits = wanted_queue in (None, record.queue) and wanted_task in (None, record.task)
                if fits:
                    jobs.append(record.lsn)
                    ends.append(after(State.ABSENT, Kind.ENQUEUED))
            elif record.job:
                place = bisect_left(jobs, record.job)
                if place < len(jobs) and jobs[place] == record.job:
                    # Whether it is due yet is a question for its story.
                    ends[place] = after(State(ends[place]), Kind(record.kind))
        wide = None if states is None else set(states)
        if wide and wide & BY_TIME.keys():
            wide |= set(BY_TIME.values())
        found: list[int] = []
        for place in range(len(jobs) - 1, -1, -1):
            if wide is None or State(ends[place]) in wide:
                found.append(jobs[place])
                if len(found) >= limit * (1 if wide == states else _SLACK):
                    break
        return set(found)

    def stats(self) -> LogStats:
        """Counts per queue."""
        facets = Facets(self._journal)
        agenda = facets.need_agenda()
        agenda.promote(time.time_ns(), 2**62)
        return LogStats(
            queues=agenda.stats(),
            segments=len(self._journal.files.lsns),
            size=self._journal.files.total_size(),
            next_lsn=self._journal.next_lsn,
        )

    def owners(self) -> list[OwnerView]:
        """The processes that have the log open, and dead ones that still hold jobs."""
        agenda = Facets(self._journal).need_agenda()
        running: dict[int, int] = {}
        for _, _, owner in agenda.running.values():
            running[owner] = running.get(owner, 0) + 1
        directory = Path(self._journal.path) / "owners"
        views = [
            _owner_view(directory, owner, running.pop(owner, 0))
            for owner in known_owners(directory)
        ]
        views += [_owner_view(directory, owner, count) for owner, count in running.items()]
        return sorted(views, key=lambda view: view.started_ns)

    def verify(self) -> VerifyReport:
        """Read everything and check every CRC."""
        facets = Facets(self._journal)
        facets.need_agenda()
        frames = found = 0
        jobs: set[int] = set()
        spans = [(damage.first_lsn, damage.next_lsn) for damage in facets.damage]
        for _, item in self._journal.frames(self._journal.start()):
            if not isinstance(item, Gap):
                frames += 1
                found += item.header.records
        if spans:
            for record in records(self._journal, self._journal.start()):
                for first, following in spans:
                    if first <= record.job < following or first <= record.token < following:
                        jobs.add(record.job or record.token)
        return VerifyReport(
            segments=len(self._journal.files.lsns),
            frames=frames,
            records=found,
            damage=tuple(facets.damage),
            torn_bytes=self._journal.torn_bytes,
            jobs=tuple(f"{self.tag}-{job}" for job in sorted(jobs)),
        )


def parse_id(text: str, tag: str) -> int:
    """The lsn in a job id of the log with this tag.

    Raises:
        WrongLog: it is an id of another log.
        UsageError: it is no id.
    """
    prefix, _, number = text.strip().rpartition("-")
    if not prefix or not number.isdecimal() or len(number) > 19:  # noqa: PLR2004 - digits of 2^63
        raise UsageError(f"{text!r} is no job id: one looks like {tag}-123")
    if prefix != tag:
        raise WrongLog(f"job {text} belongs to another log: the ids of this one start with {tag}-")
    return int(number)


def _owner_view(directory: Path, owner: int, running: int) -> OwnerView:
    try:
        told = json.loads(describe_owner(directory, owner))
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    return OwnerView(
        owner=owner,
        pid=int(told.get("pid", 0)),
        host=str(told.get("host", "")),
        name=str(told.get("name", "")),
        started_ns=int(told.get("started_ns", 0)),
        alive=owner_alive(directory, owner),
        running=running,
    )
