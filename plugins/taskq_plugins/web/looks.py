"""Reads the log in a directory for the pages and the API: no lock, no write, without the app."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread

from taskq.cli.commands.jobs import STATES
from taskq.core import views as documents
from taskq.core.errors import JobNotFound, LogError
from taskq.core.fingerprints import failure_of
from taskq.core.model import State
from taskq.core.values import dataclass
from taskq.core.why import serves
from taskq.log.read.reader import LogReader
from taskq.log.read.selection import DeadFilter
from taskq.log.segments.bodystore import LISTED_BYTES_MAX
from taskq.schedules.view import NEXT_COUNT, views_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.views import JobView
    from taskq.core.why import Reason
    from taskq.log.format.flows import Takes
    from taskq.log.machine.progress import Told
    from taskq.log.read.timeline import JobEvent
    from taskq.schedules.view import ScheduleView

T = TypeVar("T")

#: Dead letters that are told apart by what they share, the newest: each takes two milliseconds to
#: look up, and nobody else is answered meanwhile.
DEAD_MAX: Final = 250
#: Jobs that run now of which is told how far they are.
_RUNNING_MAX: Final = 20
_MATTERING: Final = frozenset({"ready", "running", "dead"})


class Looks:
    """Reads on a thread, one question at a time, what the directory holds by then.

    The reader is kept: to fold a million jobs anew for each page takes seconds, to fold what is new
    of them a millisecond.

    Args:
        path: directory of the log.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._turn = anyio.CapacityLimiter(1)
        self._reader: LogReader | None = None

    async def read(self, work: Callable[[LogReader], T]) -> T:
        """What ``work`` makes of the log.

        Raises:
            LogError: the log could not be read.
        """
        return await anyio.to_thread.run_sync(self.read_now, work, limiter=self._turn)

    def read_now(self, work: Callable[[LogReader], T]) -> T:
        """The same on this thread, while nobody else asks."""
        reader = self._reader
        try:
            if reader is None:
                reader = self._reader = LogReader.open(self.path)
            else:
                reader.refresh()
            return work(reader)
        except (LogError, OSError):
            self.close()  # it may have been moved or replaced: the next question begins anew
            raise

    def close(self) -> None:
        """Close the files. Legal twice."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is told of one job; ``tag`` is what every id of its log begins with."""

    tag: str
    job: JobView
    ties: Takes | None
    progress: Told | None
    why: Reason | None
    timeline: tuple[JobEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Dead letters of one kind; ``jobs`` are their ids, the latest death first."""

    fingerprint: str
    task: str
    error: str
    message: str
    last_ns: int
    jobs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as a document of JSON."""
        return {
            "fingerprint": self.fingerprint,
            "task": self.task or None,
            "error": self.error or None,
            "message": self.message,
            "last_at": documents.moment(self.last_ns),
            "count": len(self.jobs),
            "jobs": list(self.jobs),
        }


def only_job(reader: LogReader, text: str) -> JobView:
    """A job as the log tells it.

    Raises:
        JobNotFound: there is none of that id.
    """
    job = reader.job(reader.find_job(text), body_bytes_max=LISTED_BYTES_MAX)
    if job is None:
        raise JobNotFound(f"there is no job {text} in {reader.journal.path}")
    return job


def job_of(reader: LogReader, text: str) -> Seen:
    """All there is to tell of a job.

    Raises:
        JobNotFound: there is none of that id.
    """
    job = only_job(reader, text)
    return Seen(
        tag=reader.tag,
        job=replace(job, attempts=reader.attempts(job)),
        ties=reader.ties(job.lsn),
        progress=reader.progress(job.lsn),
        why=reader.why(job.lsn),
        timeline=reader.timeline(job.lsn),
    )


def now_of(reader: LogReader) -> dict[str, Any]:
    """What goes on: counts of queues, jobs that run, processes, and tasks that none of them knows.

    The states that no job is in are left out of ``shown``, but for those that matter.
    """
    stats, owners = reader.stats(), reader.owners()
    totals = {name: sum(getattr(queue, name) for queue in stats.queues) for name in STATES}
    serving = [one for owner in owners if owner.alive for one in owner.serves]
    stranded: Counter[str] = Counter()
    for (queue, task), count in reader.ready_jobs().items():
        if serving and not any(serves(one, queue, task) for one in serving):
            stranded[task] += count
    running = reader.jobs({State.RUNNING}, None, None, _RUNNING_MAX)
    return {
        "stats": stats,
        "totals": totals,
        "shown": tuple(name for name in STATES if totals[name] or name in _MATTERING),
        "stranded": stranded,
        "running": [(job, reader.progress(job.lsn)) for job in running],
        "owners": owners,
        "workers": sum(owner.alive and bool(owner.serves) for owner in owners),
    }


def failures_of(reader: LogReader) -> list[Failure]:
    """The newest DEAD_MAX dead letters by what they share, the most frequent first."""
    kinds: dict[str, list[JobView]] = {}
    for job in reader.dead(DeadFilter(), DEAD_MAX):
        kinds.setdefault(failure_of(job.task, "dead", job.reason)[2], []).append(job)
    found = []
    for fingerprint, jobs in kinds.items():
        error, message, _ = failure_of(jobs[0].task, "dead", jobs[0].reason)
        found.append(
            Failure(
                fingerprint=fingerprint,
                task=jobs[0].task,
                error=error,
                message=message,
                last_ns=jobs[0].settled_ns,
                jobs=tuple(job.job_id for job in jobs),
            )
        )
    return sorted(found, key=lambda one: len(one.jobs), reverse=True)


def schedules_of(reader: LogReader) -> list[ScheduleView]:
    """The schedules that the log knows."""
    return views_of(reader.schedules(), time.time_ns(), NEXT_COUNT)


def log_document(reader: LogReader) -> dict[str, Any]:
    """The log as a whole: what ``taskq stats --json`` prints."""
    return {
        "log_id": str(reader.log_id),
        "created_at": reader.created_at.isoformat(),
        **reader.stats().as_dict(),
    }
