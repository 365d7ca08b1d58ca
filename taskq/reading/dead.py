"""Changes of jobs that do not run: edits, cancels, and the dead letters of ``app.dead``."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final, Literal, TypeAlias, Unpack

from taskq.connection.blocking import blocking
from taskq.connection.connection import Connection, split_job_id
from taskq.core import durations, errors, model, parsing, views
from taskq.core.values import TypedDict, dataclass
from taskq.log.read import selection
from taskq.log.read.jobs import EVERY, JobFilter
from taskq.log.requests import LETTERS_MAX, WITHDRAWN_MAX, Edit, Letter, Rewrite

# Changes of many jobs: filters and results.

_STATES: Final = {state.name.lower(): state for state in selection.WAITING}
#: Refusals kept with their reason; further refusals are only counted.
REFUSED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Result of a change of selected jobs.

    Attributes:
        count: changed jobs.
        refused_count: jobs that could not be changed.
        refused: the reason by job id, for the first 1 000 of these.
        running: selected jobs that are running and were left alone.
    """

    count: int = 0
    refused_count: int = 0
    refused: Mapping[str, errors.TaskqError] = field(default_factory=dict)
    running: int = 0

    def __add__(self, more: Swept) -> Swept:
        refused = {**self.refused, **more.refused}
        return Swept(
            count=self.count + more.count,
            refused_count=self.refused_count + more.refused_count,
            refused=dict(islice(refused.items(), REFUSED_MAX)),
            running=self.running + more.running,
        )


def moment_before(value: durations.Duration | datetime, what: str) -> int:
    """Return wall time in nanoseconds from a datetime with a zone or a span back from now.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(value, datetime):
        return durations.moment_ns(value, what)
    return max(time.time_ns() - durations.nanoseconds(value, what), 0)


def checked_limit(limit: int, what: str = "limit") -> int:
    """Return a checked limit.

    Raises:
        UsageError: it is below 1, or no whole number.
    """
    limit = parsing.whole(limit, what)
    if limit < 1:
        raise errors.UsageError(f"{what} is {limit}, it must be 1 or more")
    return min(limit, EVERY)


async def sweep(
    connection: Connection,
    look: Callable[..., selection.Page[int]],
    act: Callable[[list[int]], Awaitable[Swept]],
    limit: int | None,
    size: int,
) -> Swept:
    """Change the jobs that match now, slice by slice.

    Args:
        connection: to the log.
        look: returns a page of matching jobs.
        act: changes one slice.
        limit: most jobs, changed or refused; None for all.
        size: jobs of a slice.
    """
    port = await connection.port()
    end = await port.look(lambda sight: sight.journal.next_lsn)
    swept, start, left = Swept(), 1, limit
    while start and left != 0:
        count = size if left is None else min(left, size)
        port = await connection.port()
        page: selection.Page[int] = await port.look(
            partial(look, start=start, end=end, limit=count)
        )
        if page.items:
            swept += await act(page.items)
        left = None if limit is None else limit - swept.count - swept.refused_count
        start = page.following
    return swept


async def withdraw(
    connection: Connection, wanted: JobFilter, limit: int | None, *, dry_run: bool
) -> Swept:
    """Cancel the matching waiting jobs, slice by slice; running jobs are only counted."""

    async def act(jobs: list[int]) -> Swept:
        if not dry_run:
            port = await connection.port()
            jobs = await port.withdraw(jobs)
        return Swept(count=len(jobs))

    page = partial(selection.waiting_page, wanted=wanted)
    swept = await sweep(connection, page, act, limit, WITHDRAWN_MAX)
    port = await connection.port()
    running = partial(selection.count_running, queue=wanted.queue, task=wanted.task)
    return swept + Swept(running=await port.look(running))


def waiting_states(
    state: Literal["scheduled", "ready"] | model.State | None,
) -> frozenset[model.State]:
    """Return the selected states; raise UsageError if one is no state of a waiting job."""
    if state is None:
        return selection.WAITING
    chosen = _STATES.get(state) if isinstance(state, str) else state
    if chosen not in selection.WAITING:
        raise errors.UsageError(f'state is {state!r:.60}, it must be "scheduled" or "ready"')
    return frozenset({chosen})


# The class has a method ``list``.
Views: TypeAlias = list[views.JobView]
Jobs: TypeAlias = list[int]
Letters: TypeAlias = list[Letter]
#: Changes the dead letters of one slice.
Act: TypeAlias = Callable[["DeadLetters", Jobs], Awaitable[Swept]]

_LIST_DEFAULT: Final = 100


class DeadFilters(TypedDict, total=False):
    """Filter of dead letters; options that are missing or None match all."""

    #: name of their queue
    queue: str | None
    #: name of their task
    task: str | None
    #: text contained in the reason, or a compiled pattern found in it
    error: str | re.Pattern[str] | None
    #: died at this time (with a time zone) or later; a duration counts back from now
    since: durations.Duration | datetime | None
    #: died before this time, in the same forms
    before: durations.Duration | datetime | None


class DeadLetters:
    """Jobs that used up their attempts or were rejected, kept until they are requeued or purged.

    Changes of many jobs go in slices of some hundreds; a slice is atomic. Jobs that cannot be
    changed (another process was faster, the key is held) are in ``Swept.refused``. A wrong argument
    or an id of another log raises ``UsageError`` before any change.

    Args:
        connection: to the log.
        rest: further connections of an app with several logs.
    """

    def __init__(self, connection: Connection, *rest: Connection) -> None:
        self._connection = connection
        self._rest = [DeadLetters(connection) for connection in rest]

    async def list(self, *, limit: int = _LIST_DEFAULT, **filters: Unpack[DeadFilters]) -> Views:
        """List at most ``limit`` matching dead letters, the latest death first.

        Payloads and results over 1 MiB, or damaged, are left out; ``problem`` has the reason.

        Args:
            limit: most dead letters.
            filters: see ``DeadFilters``.

        Raises:
            UsageError: an argument is wrong.
        """
        limit = checked_limit(limit)
        wanted = dead_filter(filters)
        views: Views = []
        place: selection.PageEnd | None = None
        while len(views) < limit:
            port = await self._connection.port()
            look = partial(
                selection.newest_dead, wanted=wanted, limit=limit - len(views), below=place
            )
            page: tuple[Views, selection.PageEnd | None] = await port.look(look)
            views += page[0]
            place = page[1]
            if place is None:
                break
        views = await self._connection.packer.listed(views)
        for other in self._rest:
            views += await other.list(limit=limit, **filters)
        return sorted(views, key=_death, reverse=True)[:limit] if self._rest else views

    list_sync: Final = blocking(list)  # noqa: A003 - the method of that name is what is meant

    async def count(self, **filters: Unpack[DeadFilters]) -> int:
        """Return the number of matching dead letters.

        Raises:
            UsageError: an argument is wrong.
        """
        wanted = dead_filter(filters)
        if wanted.error is not None:
            return (await self._sweep(wanted, None, DeadLetters._count)).count
        port = await self._connection.port()
        count = await port.look(partial(selection.count_dead, wanted=wanted))
        return count + sum([await log.count(**filters) for log in self._rest])

    count_sync: Final = blocking(count)

    async def requeue(self, job_id: str) -> None:
        """Make one dead letter ready again, with its id, payload and options.

        Its attempts are counted from 0 again; earlier attempts stay visible in its timeline. It is
        due at once. It keeps its expiry unless that has passed; then it never expires.

        Raises:
            NotDead: the job is no dead letter (any more).
            KeyHeld: another job holds its dedup key now.
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        _raise_first(await self.requeue_many([job_id]))

    requeue_sync: Final = blocking(requeue)

    async def requeue_many(self, job_ids: Iterable[str]) -> Swept:
        """Make these dead letters ready again, as ``requeue`` does; others are refused.

        Raises:
            UsageError: an id is not valid, or belongs to another log; nothing was changed.
        """
        return await self._many(job_ids, DeadLetters._requeue)

    requeue_many_sync: Final = blocking(requeue_many)

    async def requeue_all(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[DeadFilters]
    ) -> Swept:
        """Make all matching dead letters ready again, or the ``limit`` oldest jobs among them.

        Jobs that die during the call are left as they are.

        Args:
            limit: most dead letters.
            dry_run: change nothing, and count.
            filters: see ``DeadFilters``.

        Raises:
            UsageError: an argument is wrong.
        """
        act = DeadLetters._count if dry_run else DeadLetters._requeue
        return await self._sweep(dead_filter(filters), limit, act)

    requeue_all_sync: Final = blocking(requeue_all)

    async def purge(self, job_id: str) -> None:
        """Remove one dead letter: its job is unknown afterwards.

        Raises:
            NotDead: the job is no dead letter (any more).
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        _raise_first(await self.purge_many([job_id]))

    purge_sync: Final = blocking(purge)

    async def purge_many(self, job_ids: Iterable[str]) -> Swept:
        """Remove these dead letters; other jobs are refused.

        Raises:
            UsageError: as ``requeue_many``.
        """
        return await self._many(job_ids, DeadLetters._purge_checked)

    purge_many_sync: Final = blocking(purge_many)

    async def purge_all(
        self, *, limit: int | None = None, dry_run: bool = False, **filters: Unpack[DeadFilters]
    ) -> Swept:
        """Remove all matching dead letters; arguments and errors as in ``requeue_all``."""
        act = DeadLetters._count if dry_run else DeadLetters._purge
        return await self._sweep(dead_filter(filters), limit, act)

    purge_all_sync: Final = blocking(purge_all)

    def __repr__(self) -> str:
        return f"<DeadLetters {self._connection.path}>"

    async def _many(self, job_ids: Iterable[str], act: Act) -> Swept:
        if isinstance(job_ids, str):
            raise errors.UsageError(f"job_ids is the text {job_ids!r:.60}: give a list of ids")
        named = {split_job_id(job_id) for job_id in job_ids}
        homes = {self: set[int]()}
        for tag, job in named:
            home = await self._home(tag, job)
            await home._connection.opened()
            home._connection.check_tag(tag, job)
            homes.setdefault(home, set()).add(job)
        swept = Swept()
        for home, of_home in homes.items():
            jobs = sorted(of_home)
            for start in range(0, len(jobs), LETTERS_MAX):
                swept += await act(home, jobs[start : start + LETTERS_MAX])
        return swept

    async def _home(self, tag: str, job: int) -> DeadLetters:
        for log in (self, *self._rest) if self._rest else ():
            await log._connection.opened()
            if log._connection.tag.takes(tag, job):
                return log
        return self

    async def _sweep(self, wanted: selection.DeadFilter, limit: int | None, act: Act) -> Swept:
        if limit is not None:
            limit = checked_limit(limit)
        page, swept = partial(selection.dead_page, wanted=wanted), Swept()
        for log in (self, *self._rest):
            left = None if limit is None else limit - swept.count - swept.refused_count
            swept += await sweep(log._connection, page, partial(act, log), left, LETTERS_MAX)
        return swept

    async def _requeue(self, jobs: Jobs) -> Swept:
        swept = Swept()
        while jobs:
            port = await self._connection.port()
            page: selection.Page[Letter] = await port.look(partial(selection.letters, jobs=jobs))
            swept += self._sum_up(page.refused)
            if page.items:
                port = await self._connection.port()
                named = [letter.job for letter in page.items]
                swept += self._sum_up(zip(named, await port.requeue(page.items), strict=True))
            jobs = [job for job in jobs if page.following and job >= page.following]
        return swept

    async def _purge(self, jobs: Jobs) -> Swept:
        port = await self._connection.port()
        return self._sum_up(zip(jobs, await port.purge(jobs), strict=True))

    async def _purge_checked(self, jobs: Jobs) -> Swept:
        port = await self._connection.port()
        page: selection.Page[int] = await port.look(partial(selection.check_dead, jobs=jobs))
        swept = self._sum_up(page.refused)
        return swept + await self._purge(page.items) if page.items else swept

    async def _count(self, jobs: Jobs) -> Swept:
        return Swept(count=len(jobs))

    def _sum_up(self, answers: Iterable[tuple[int, errors.TaskqError | None]]) -> Swept:
        """Sum up the answers to one slice, by job: None for a changed job."""
        given, tag = list(answers), self._connection.tag
        refused = {tag.id(job): error for job, error in given if error is not None}
        done = len(given) - len(refused)
        return Swept(count=done, refused_count=len(refused), refused=refused)


def _death(view: views.JobView) -> int:
    return view.settled_ns


def _raise_first(swept: Swept) -> None:
    for error in swept.refused.values():
        raise error


def dead_filter(filters: DeadFilters) -> selection.DeadFilter:
    """Return the filters in the log's types.

    Raises:
        UsageError: a filter is unknown or wrong.
    """
    unknown = filters.keys() - DeadFilters.__annotations__.keys()
    if unknown:
        name, known = min(unknown), DeadFilters.__annotations__
        raise errors.UsageError(
            f"there is no filter {name!r}: {parsing.rather(name, known, 'filters')}"
        )
    error = filters.get("error")
    pattern = error.pattern if isinstance(error, re.Pattern) else error
    if not isinstance(pattern, str | None):
        raise errors.UsageError(f"error is {error!r:.60}: give text, or a compiled pattern of text")
    since, before = filters.get("since"), filters.get("before")
    wanted = selection.DeadFilter(queue=filters.get("queue"), task=filters.get("task"), error=error)
    return replace(
        wanted,
        since_ns=wanted.since_ns if since is None else moment_before(since, "since"),
        before_ns=wanted.before_ns if before is None else moment_before(before, "before"),
    )


#: Most retries of an edit while other processes change the job.
_LOOKS_MAX: Final = 100


def edit_of(
    *,
    run_now: bool,
    delay: durations.Duration | None,
    eta: datetime | None,
    priority: int | None,
    queue: str | None,
) -> Callable[[Rewrite], Edit]:
    """Return the edit for these arguments.

    Raises:
        UsageError: an argument is wrong, several set the due time, or all are empty.
    """
    dues: list[tuple[int, bool]] = [(0, False)] if run_now else []
    if delay is not None:
        dues.append((durations.nanoseconds(delay, "delay"), False))
    if eta is not None:
        dues.append((durations.moment_ns(eta, "eta"), True))
    if len(dues) > 1:
        raise errors.UsageError("give one of run_now, delay and eta: a job has one due time")
    if priority is not None:
        priority = parsing.whole(priority, "priority")
        if not 0 <= priority <= model.PRIORITY_MAX:
            raise errors.UsageError(
                f"priority is {priority}, it must be 0 (last) to {model.PRIORITY_MAX} (first)"
            )
    name = None if queue is None else parsing.check_name("queue name", queue)
    if priority is None and name is None and not dues:
        raise errors.UsageError(
            "edit() takes run_now, delay, eta, priority or queue: give at least one"
        )
    return partial(Edit, priority=priority, queue=name, due=dues[0] if dues else None)


async def edit_job(connection: Connection, lsn: int, wish: Callable[[Rewrite], Edit]) -> bool:
    """Edit a waiting job; return False if nothing changed. Raises like ``LogHolder.edit``."""
    for _ in range(_LOOKS_MAX):
        port = await connection.port()
        item: Rewrite = await port.look(partial(selection.waiting_job, job=lsn))
        port = await connection.port()
        changed = await port.edit(wish(item))
        if changed is not None:
            return changed
    raise errors.LogError(
        f"job {connection.tag.id(lsn)} in {connection.path} changed whenever it was to be edited: "
        f"try again"
    )
