"""Enqueue past jobs again: ``await log.replay(since="2h", state="dead")``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final, TypeAlias

from taskq.calls.call import spec_of
from taskq.connection.blocking import off_loop
from taskq.connection.connection import Connection, JobId, split_job_id
from taskq.core import durations, errors, kinds, model, parsing, records
from taskq.core.parsing import Tag
from taskq.core.values import dataclass
from taskq.log.decide.steps import Fork
from taskq.log.format import bodies, codec, flows, options
from taskq.log.format.record import Record
from taskq.log.read.jobs import EVERY, JobFilter, PastJob, past_jobs
from taskq.log.read.reader import open_journal
from taskq.log.requests import Duplicate, Item
from taskq.log.state.job_history import job_not_found, read_job
from taskq.reading.dead import checked_limit, moment_before

#: A state, its name, or several.
States: TypeAlias = model.State | str | Iterable[model.State | str]

#: Header with the id of the original job.
REPLAY_HEADER: Final = "replay_of"
#: Most jobs and bytes of one transaction.
_TRANSACTION_JOBS: Final = 256
_TRANSACTION_BYTES: Final = 1024 * 1024
#: Jobs that ``replay`` lists one by one; the rest are counted.
REPLAYED_MAX: Final = 10_000
#: Steps of a job that an error names.
_NAMED_MAX: Final = 12
_KEPT_FLAGS: Final = int(records.Flag.DROP_RESULT | records.Flag.DURABLE_CLAIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A job that was enqueued again, or would be in a dry run.

    Attributes:
        job_id: the original job.
        new_id: the new job; "" with ``dry_run``, or with a problem.
        queue, task: queue and task of both jobs.
        state: final state of the original job.
        problem: why it was not enqueued again; "" if it was.
    """

    job_id: str
    new_id: str
    queue: str
    task: str
    state: model.State
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Result of a replay, or of a dry run of it.

    Attributes:
        count: jobs enqueued again.
        problems: jobs that could not be enqueued.
        jobs: the first 10 000 of both kinds.
        dry_run: whether nothing was enqueued.
    """

    count: int
    problems: int
    jobs: tuple[Replayed, ...]
    dry_run: bool = False


def past_of(
    *,
    since: durations.Duration | datetime | None = None,
    before: durations.Duration | datetime | None = None,
    task: str | None = None,
    queue: str | None = None,
    state: States | None = None,
    limit: int | None = None,
) -> JobFilter:
    """Return the filter in the log's types."""
    if queue is not None:
        parsing.check_name("queue name", queue)
    if task:
        parsing.check_name("task name", task)
    return JobFilter(
        states=_states(state),
        queue=queue,
        task=task,
        since_ns=None if since is None else moment_before(since, "since"),
        until_ns=None if before is None else moment_before(before, "before"),
        limit=EVERY if limit is None else checked_limit(limit),
    )


async def replay(
    connection: Connection, past: JobFilter, *, dry_run: bool
) -> AsyncIterator[Replayed]:
    """Enqueue the matching jobs again, some in each transaction, and yield each.

    Jobs enqueued after the call do not match. A dry run does not open the log for writing.
    """
    if not dry_run:
        # The selected jobs must be durable before the new jobs are.
        await (await connection.port()).extent()
    chosen = await off_loop(_Chosen, connection, past)
    try:
        while items := await off_loop(chosen.take, dry_run=dry_run):
            new = iter(await connection.send_many([item for _, item in items if item is not None]))
            for replayed, item in items:
                new_id = "" if item is None else _id_of(chosen.tag, next(new))
                yield replace(replayed, new_id=new_id)
    finally:
        chosen.close()


class _Chosen:
    """The jobs to enqueue, in portions; made and used on threads, one thread at a time."""

    def __init__(self, connection: Connection, past: JobFilter) -> None:
        self._connection = connection
        self._journal = open_journal(connection.path)
        self.tag = self._journal.tag
        self._jobs: Iterator[PastJob] = past_jobs(self._journal, past)

    def take(self, *, dry_run: bool) -> list[tuple[Replayed, Item | None]]:
        portion: list[tuple[Replayed, Item | None]] = []
        size = 0
        for job in islice(self._jobs, _TRANSACTION_JOBS):
            replayed, item = self._again(job, dry_run=dry_run)
            portion.append((replayed, item))
            size += len(item[1]) if item is not None else 0
            if size >= _TRANSACTION_BYTES:
                break
        return portion

    def fork(
        self, lsn: int, from_step: str | None, *, dry_run: bool
    ) -> tuple[Replayed, Item | None, tuple[flows.Stepped, ...]]:
        story = read_job(self._journal, lsn)
        job_id = self.tag.id(lsn)
        if story is None or story.state is model.State.ABSENT:
            raise job_not_found(self._journal, lsn)
        if story.state not in model.SETTLED_STATES:
            raise errors.UsageError(
                f"job {job_id} is {story.state.name.lower()}: only an ended job can be "
                f"replayed; cancel it first"
            )
        steps = _before(job_id, from_step, story.records)
        born = next(it for it in story.records if it.type in kinds.BIRTHS or it.carried is not None)
        replayed, item = self._again(PastJob(story.state, born), dry_run=dry_run)
        return replayed, item, steps

    def close(self) -> None:
        self._journal.close()

    def _again(self, job: PastJob, *, dry_run: bool) -> tuple[Replayed, Item | None]:
        record = job.record
        replayed = Replayed(
            job_id=self.tag.id(record.job),
            new_id="",
            queue=record.queue,
            task=record.task,
            state=job.state,
        )
        if dry_run:
            return replayed, None
        try:
            return replayed, self._item(job, replayed)
        except errors.TaskqError as error:
            return replace(replayed, problem=str(error)), None

    def _item(self, job: PastJob, replayed: Replayed) -> Item:
        record, packer = job.record, self._connection.packer
        what = f"the payload of job {replayed.job_id}"
        body = packer.bodies.unpack(record.body or b"", record.body_flags, what)
        flags = record.flags if record.carried is None else _flags_of(record.carried.born)
        old = record.extras or model.Extras()
        # Without due time, expiry and key, which belonged to the old job.
        headers = {**old.headers, REPLAY_HEADER: replayed.job_id}
        extras = model.Extras(
            headers=headers, keep_ns=old.keep_ns, concurrency_key=old.concurrency_key
        )
        options.encode_extras(extras, 0)  # headers without room for one more fail this job alone
        spec = spec_of(
            replayed.queue,
            replayed.task,
            record.priority or 0,
            record.attempts_max,
            records.Flag(flags & _KEPT_FLAGS),
        )
        packing = self._packing(replayed.queue, record.body_flags)
        (item,) = packer.items_sync([((spec, body, extras), packing, what)])
        return item

    def _packing(self, queue: str, flags: int) -> bodies.Compression | None:
        """Return the compression by queue or log; by default the stored job's."""
        compress: bodies.Compression | None = None
        if flags & records.Flag.ZLIB:
            compress = "zlib"
        elif flags & records.Flag.ZSTD:
            compress = "zstd"
        return self._connection.config.packing(queue, compress)


def _before(
    job_id: str, from_step: str | None, records: Iterable[Record]
) -> tuple[flows.Stepped, ...]:
    if from_step is None:
        return ()
    done: dict[int, flows.Stepped] = {}
    for record in records:
        if record.step is not None and record.type == kinds.STEP:
            done.setdefault(record.step.place, record.step)
    steps = [done[place] for place in sorted(done)]
    titles = [step.title for step in steps]
    if from_step not in titles:
        raise errors.UsageError(
            f"job {job_id} has no finished step {from_step!r:.60}: it has "
            f"{parsing.listed(titles, _NAMED_MAX) if titles else 'none'}"
        )
    return tuple(steps[: titles.index(from_step)])


def _flags_of(born: bytes) -> int:
    flags: int = codec.PREFIX.unpack_from(born)[4]
    return flags


def _id_of(tag: Tag, answer: int | Duplicate) -> str:
    return tag.id(answer if isinstance(answer, int) else answer.lsn)


def _states(state: States | None) -> frozenset[model.State]:
    if state is None:
        return model.SETTLED_STATES
    given = [state] if isinstance(state, model.State | str) else list(state)
    known = {state.name.lower(): state for state in model.SETTLED_STATES}
    states: set[model.State] = set()
    for named in given:
        name = named.name.lower() if isinstance(named, model.State) else named
        if name not in known:
            raise errors.UsageError(
                f"state is {name!r:.60}: only jobs that are over can be replayed, "
                f"which are {', '.join(sorted(known))}"
            )
        states.add(known[name])
    return frozenset(states)


async def replay_job(
    connection: Connection, job: JobId, from_step: str | None, *, dry_run: bool
) -> Replayed:
    """Enqueue one job again; it keeps the steps that were done before ``from_step``."""
    tag, lsn = split_job_id(job)
    port = await connection.port()
    connection.check_tag(tag, lsn)
    await port.extent()
    chosen = await off_loop(_Chosen, connection, JobFilter(model.SETTLED_STATES))
    try:
        replayed, item, steps = await off_loop(chosen.fork, lsn, from_step, dry_run=dry_run)
    finally:
        chosen.close()
    if item is None:
        return replayed
    size = len(item[1]) + sum(len(step.body) for step in steps)
    if size > model.TRANSACTION_BYTES_MAX:
        raise errors.PayloadTooLarge(
            f"job {job} with its {len(steps)} steps", size, model.TRANSACTION_BYTES_MAX,
            "name an earlier step",
        )  # fmt: skip
    new = await port.fork(Fork(item, steps))
    return replace(replayed, new_id=chosen.tag.id(new))


async def replay_all(
    connection: Connection,
    past: JobFilter,
    *,
    is_allowed: bool,
    dry_run: bool,
    on_job: Callable[[Replayed], object] | None = None,
) -> ReplayReport:
    """Do as ``replay``, and count; a filter that matches every past job must be allowed."""
    if past._replace(limit=EVERY) == JobFilter(model.SETTLED_STATES) and not is_allowed:
        raise errors.UsageError(
            "replay() without a choice would enqueue every job there ever was: "
            "choose some with since=, task=, queue= or state=, or say everything=True"
        )
    jobs: list[Replayed] = []
    count = problems = 0
    async for job in replay(connection, past, dry_run=dry_run):
        count += not job.problem
        problems += bool(job.problem)
        if len(jobs) < REPLAYED_MAX:
            jobs.append(job)
        if on_job is not None:
            on_job(job)
    return ReplayReport(count=count, problems=problems, jobs=tuple(jobs), dry_run=dry_run)
