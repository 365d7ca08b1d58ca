"""The state of a log, and of one job, for people: commands, page, API, ``top`` and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from taskq.core import views
from taskq.core.errors import JobNotFound
from taskq.core.fingerprints import failure_of
from taskq.core.model import LIVE_STATES, PAYLOAD_BYTES_MAX, WAITING_STATES
from taskq.core.values import NamedTuple
from taskq.core.why import Why

if TYPE_CHECKING:
    from taskq.core.why import Reason
    from taskq.log.format.flows import Takes
    from taskq.log.read.diagnosis import Standing
    from taskq.log.read.reader import LogReader
    from taskq.log.read.timeline import JobEvent, StepView
    from taskq.reading.stream import ReaderView
    from taskq.schedules import ScheduleView

_RUNNING: Final = set(LIVE_STATES - WAITING_STATES)
#: Most running jobs shown with progress; most limits of tasks and concurrency keys.
_RUNNING_MAX: Final = 20
_LIMITS_MAX: Final = 100


class FailureGroup(NamedTuple):
    """Dead letters of one kind; ``jobs`` are their ids, the latest death first."""

    fingerprint: str
    task: str
    error: str
    message: str
    last_ns: int
    jobs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document."""
        return {
            "fingerprint": self.fingerprint,
            "task": self.task or None,
            "error": self.error or None,
            "message": self.message,
            "last_at": views.moment(self.last_ns),
            "count": len(self.jobs),
            "jobs": list(self.jobs),
        }


class LogStatus:
    """A log for display. Each part is read once, at first use.

    Args:
        reader: of the log, now or at a moment; it must not advance meanwhile.
    """

    #: newest dead letters that are grouped: each costs two milliseconds
    dead_max = 250

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader

    def take(self, *names: str) -> dict[str, Any]:
        """Return these parts by name, read now."""
        return {name: getattr(self, name) for name in names}

    @cached_property
    def stats(self) -> views.LogStats:
        """Counts of jobs by queue and state."""
        return self.reader.stats()

    @cached_property
    def totals(self) -> views.QueueStats:
        """Counts of all queues together."""
        return sum(self.stats.queues, views.QueueStats(queue=""))

    @cached_property
    def owners(self) -> Iterable[views.OwnerView]:
        """Processes that have the log open, and dead processes that hold jobs."""
        return self.reader.owners()

    @property
    def serving(self) -> list[tuple[views.OwnerView, views.Serving]]:
        """Claims of live processes, each with its process."""
        return [(owner, each) for owner in self.owners if owner.alive for each in owner.serves]

    @property
    def workers(self) -> int:
        """Number of live processes that claim jobs."""
        return len({owner.owner for owner, _ in self.serving})

    @property
    def slots(self) -> int:
        """Jobs that the workers run at a time."""
        return sum(each.slots for _, each in self.serving)

    @property
    def orphans(self) -> int:
        """Jobs of dead processes that no worker has taken back."""
        return sum(owner.running for owner in self.owners if not owner.alive)

    @cached_property
    def standing(self) -> Standing:
        """Health as text."""
        return self.reader.standing(self.stats)

    @cached_property
    def running(self) -> list[tuple[views.JobView, views.ProgressView | None]]:
        """Running jobs, the newest first, with their progress."""
        jobs = self.reader.jobs(_RUNNING, None, None, _RUNNING_MAX)
        return [(job, self.reader.progress(job.lsn)) for job in jobs]

    @cached_property
    def lost(self) -> set[int]:
        """Numbers of running jobs whose process is gone."""
        jobs = (job.lsn for job, _ in self.running if self.orphans)
        reasons = {job: self.reader.why(job) for job in jobs}
        return {job for job, why in reasons.items() if why and why.code is Why.WORKER_LOST}

    @cached_property
    def limits(self) -> list[views.LimitView]:
        """Limits of tasks that workers declare, the most used first."""
        declared = [each.limits or {} for _, each in self.serving]
        limits = {task: limit for known in declared for task, limit in known.items()}
        used = sorted(self.reader.limits(limits), key=lambda it: -it.running - it.waiting)
        return used[:_LIMITS_MAX]

    @property
    def controls(self) -> dict[str, dict[str, Any]]:
        """Changes at run time by name: of tasks, slots of workers, alerts."""
        return self.reader.controls()

    @property
    def holds(self) -> list[tuple[views.OwnerView, views.Hold]]:
        """Jobs that workers hold back, each with the worker."""
        return [(owner, hold) for owner, each in self.serving for hold in each.holds]

    def last_ends(self, count: int) -> list[views.JobView]:
        """Return the jobs that ended last and were not requeued, the latest end first."""
        jobs = (self.reader.job(lsn, body_bytes_max=0) for lsn in self.reader.last_ended())
        return list(islice((job for job in jobs if job and job.settled_ns), count))

    @cached_property
    def failures(self) -> list[FailureGroup]:
        """Groups of the newest dead letters by fingerprint, the largest first."""
        return self.group_failures(self.dead_max)

    def group_failures(self, count: int) -> list[FailureGroup]:
        """Return groups of the newest ``count`` dead letters by their fingerprint."""
        groups: dict[str, list[views.JobView]] = {}
        for job in self.reader.dead(None, count):
            groups.setdefault(failure_of(job.task, "dead", job.reason)[2], []).append(job)
        failures = []
        for fingerprint, jobs in groups.items():
            first = jobs[0]
            error, message, _ = failure_of(first.task, "dead", first.reason)
            ids = tuple(job.job_id for job in jobs)
            failures.append(
                FailureGroup(fingerprint, first.task, error, message, first.settled_ns, ids)
            )
        return sorted(failures, key=lambda failure: len(failure.jobs), reverse=True)

    @property
    def readers(self) -> list[ReaderView]:
        """Named readers, with their lag; none for a moment of the past."""
        from taskq.reading.stream import look_at_readers  # noqa: PLC0415 - it loads asyncio

        return [] if self.reader.journal.is_past else look_at_readers(self.reader.path)

    @property
    def segments(self) -> list[views.SegmentView]:
        """Files of the log, the oldest first."""
        return self.reader.segments()

    @property
    def schedules(self) -> list[ScheduleView]:
        """Schedules by name, with the next ticks of each."""
        return self.next_ticks()

    def next_ticks(self, count: int | None = None) -> list[ScheduleView]:
        """Return the schedules by name, each with its next ``count`` ticks, 3 if None."""
        from taskq.schedules import NEXT_COUNT, views_of  # noqa: PLC0415 - few ask

        count = NEXT_COUNT if count is None else count
        return views_of(self.reader.schedules(), self.reader.now_ns, count)

    def as_dict(self) -> dict[str, Any]:
        """Return the log's status as the JSON document of ``taskq stats --json``."""
        return {
            "log_id": str(self.reader.log_id),
            "parents": [
                {"log_id": str(log_id), "next_lsn": next_lsn}
                for log_id, next_lsn in self.reader.parents
            ],
            "created_at": self.reader.created_at.isoformat(),
            **self.stats.as_dict(),
        }

    def hurdles_as_dict(self) -> dict[str, Any]:
        """Return the obstacles to running jobs as a JSON document."""
        return {
            "limits": [limit.as_dict() for limit in self.limits],
            "holds": [{"pid": owner.pid, **hold.as_dict()} for owner, hold in self.holds],
        }


class JobStatus:
    """A job with its history. Each part is read once, at first use.

    Args:
        reader: of the log, now or at a moment.
        text: the job's id, or the beginning of its number.

    Raises:
        JobNotFound: no job matches, or several do.
        UsageError: the text is no id.
    """

    def __init__(self, reader: LogReader, text: str) -> None:
        self.reader = reader
        self.lsn: int = reader.find_job(text)
        view = reader.job(self.lsn, body_bytes_max=PAYLOAD_BYTES_MAX)
        if view is None:  # compaction has just removed it
            raise JobNotFound(f"there is no job {text} in this log any more")
        #: the view without the processes of its attempts
        self.view = view

    def take(self, *names: str) -> dict[str, Any]:
        """Return these parts by name, read now."""
        return {name: getattr(self, name) for name in names}

    @cached_property
    def job(self) -> views.JobView:
        """The view, with the processes of its attempts."""
        return replace(self.view, attempts=self.reader.attempts(self.view))

    @cached_property
    def ties(self) -> Takes | None:
        """Its inputs in its flow, and the jobs that wait for its end."""
        return self.reader.ties(self.lsn)

    @property
    def flow(self) -> dict[str, list[str]]:
        """Ids of its inputs, and of the jobs that wait for its end."""
        ties, tag = self.ties, self.reader.tag
        inputs, unlocks = ((), ()) if ties is None else (ties.inputs, ties.unlocks)
        return {
            "inputs": [tag.id(job) for job in inputs],
            "waited_for_by": [tag.id(job) for job in unlocks],
        }

    @cached_property
    def progress(self) -> views.ProgressView | None:
        """Progress of the running job."""
        return self.reader.progress(self.lsn)

    @cached_property
    def why(self) -> Reason | None:
        """Reason why it does not run."""
        return self.reader.why(self.lsn)

    @cached_property
    def steps(self) -> tuple[StepView, ...]:
        """Finished steps."""
        return self.reader.steps(self.lsn)

    @cached_property
    def timeline(self) -> tuple[JobEvent, ...]:
        """Events, the oldest first."""
        return self.reader.timeline(self.lsn)

    def as_dict(self, steps: int = 0) -> dict[str, Any]:
        """Return the document of ``taskq show --json`` with the latest ``steps``, 0 for all."""
        return {
            **self.job.as_dict(),
            **self.flow,
            "progress": self.progress and self.progress.as_dict(),
            "steps": [step.as_dict() for step in self.steps[-steps:]],
        }
