"""Changes the log, once that is allowed: opened as any program has it, at the first act."""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from taskq import State, TaskLog, TaskQ
from taskq import views as documents
from taskq.errors import StaleDelivery, UsageError
from taskq.views import WAITING_STATES
from taskq_plugins.looks.reading import Looks
from taskq_plugins.web.problems import Problem
from taskq_plugins.web.search import Search, find_jobs

if TYPE_CHECKING:
    from taskq import Delivery
    from taskq.engine import LogReader
    from taskq.views import JobView
    from taskq_plugins.web.asked import (
        Ack,
        Claim,
        Edit,
        Enqueue,
        Extend,
        Many,
        Nack,
        OneClaim,
        OneJob,
        OneName,
        Release,
        Signal,
    )

#: Jobs that one step of an act on many is for.
_MANY: Final = 500
#: Jobs that are claimed through the API at a time.
_HELD_MAX: Final = 10_000


class Acts:
    """What may be done to the log, for programs and for the forms of the pages.

    Args:
        looks: reads the log.
        app: has it open; None: this opens it.
        hides: nothing is found by what names call secret.
    """

    def __init__(self, looks: Looks, app: TaskQ | None, *, hides: bool = True) -> None:
        self._looks = looks
        self.hides = hides
        self._is_own = app is None
        self.app = app or TaskQ(looks.path, upkeep=False, name="taskq web")
        self._log = TaskLog(self.app.connection)
        #: token -> (claim, when its lease ends as told last, by the steady clock)
        self._held: dict[str, tuple[Delivery, float]] = {}

    async def close(self) -> None:
        """Finish what was asked for and close the log; its claims go back to others."""
        if self._is_own:
            await self.app.close()

    async def enqueue(self, asked: Enqueue) -> dict[str, Any]:
        """Enqueue a call, or bytes; it is as durable as the log says when this returns."""
        if (asked.task is None) == (asked.payload is None):
            raise UsageError("give a task with its arguments, or a payload: one of the two")
        if asked.task is not None:
            call = self.app.call_by_name(asked.task, **asked.arguments)
            job = await self.app.enqueue(call.options(**asked.options()))
            return {"id": job.id, "duplicate": job.duplicate}
        assert asked.payload is not None
        if asked.arguments:
            raise UsageError("arguments are a task's: name the task, or leave them out")
        return {"id": await self._log.put(asked.payload.raw(), **asked.options())}

    async def cancel(self, asked: OneJob) -> dict[str, Any]:
        return {"id": asked.id, "cancelled": await self._log.cancel(asked.id)}

    async def edit(self, asked: Edit) -> dict[str, Any]:
        """Let a job that waits be due at another time, or wait elsewhere."""
        changes = asked.model_dump(exclude={"id"}, exclude_none=True)
        return {"id": asked.id, "changed": await self.app.edit(asked.id, **changes)}

    async def signal(self, asked: Signal) -> dict[str, Any]:
        """Tell a job something that it waits for within its run, now or later."""
        new = await self.app.signal(asked.id, asked.name, asked.value, once=asked.once)
        return {"id": asked.id, "new": new}

    async def requeue(self, asked: OneJob) -> dict[str, Any]:
        await self._log.dead.requeue(asked.id)
        return {"id": asked.id, "requeued": True}

    async def purge(self, asked: OneJob) -> dict[str, Any]:
        await self._log.dead.purge(asked.id)
        return {"id": asked.id, "purged": True}

    async def many(self, asked: Many) -> dict[str, Any]:
        """Do one of the three to all jobs that fit, or are named, or count them: each for itself.

        ``count`` fitted, to ``done`` of them it was done, ``stopping`` of them run and were asked
        to stop, and the rest had changed meanwhile.
        """
        states = WAITING_STATES | {State.RUNNING} if asked.act == "cancel" else {State.DEAD}
        if asked.ids:
            jobs = await self._looks.read(partial(_in_states, ids=asked.ids, states=states))
            if asked.dry_run:
                ids = [job.job_id for job in jobs]
                return {"act": asked.act, "count": len(jobs), "done": 0, "stopping": 0, "ids": ids}
            done, stopping = await self._do(asked.act, jobs)
            return {"act": asked.act, "count": len(asked.ids), "done": done, "stopping": stopping}
        search = Search.parse(asked.q, hides=self.hides).only(frozenset(states))
        count = done = stopping = 0
        before = asked.before
        while search is not None:
            jobs, before = await self._looks.read(partial(_fitting, search=search, before=before))
            count += len(jobs)
            if jobs and not asked.dry_run:
                did = await self._do(asked.act, jobs)
                done, stopping = done + did[0], stopping + did[1]
            if not before:
                break
        return {"act": asked.act, "count": count, "done": done, "stopping": stopping}

    async def _do(self, act: str, jobs: list[JobView]) -> tuple[int, int]:
        """Return to how many it was done, and how many run and were asked to stop."""
        if act != "cancel":
            ids = [job.job_id for job in jobs]
            return (await getattr(self._log.dead, f"{act}_many")(ids)).count, 0
        # One that began to run since it was listed is left, or what is told would not be true.
        waiting = [job.lsn for job in jobs if job.state is not State.RUNNING]
        withdrawn = await (await self.app.connection.port()).withdraw(waiting)
        running = [job.job_id for job in jobs if job.state is State.RUNNING]
        return len(withdrawn), sum([await self._log.cancel(job) for job in running])

    async def pause_schedule(self, asked: OneName) -> dict[str, Any]:
        return {"schedule": asked.name, "changed": await self.app.schedules.pause(asked.name)}

    async def resume_schedule(self, asked: OneName) -> dict[str, Any]:
        return {"schedule": asked.name, "changed": await self.app.schedules.resume(asked.name)}

    async def pause(self, asked: OneName) -> dict[str, Any]:
        return {"queue": asked.name, "changed": await self._log.pause(asked.name)}

    async def resume(self, asked: OneName) -> dict[str, Any]:
        return {"queue": asked.name, "changed": await self._log.resume(asked.name)}

    # -- workers in other languages ---------------------------------------------------------------

    async def claim(self, asked: Claim) -> list[dict[str, Any]]:
        """Take jobs; each counts an attempt, and goes to others when its lease is over.

        Whoever hangs up before the answer has taken none.
        """
        now = time.monotonic()
        for token in [token for token, (_, until) in self._held.items() if until < now]:
            del self._held[token]
        if len(self._held) + asked.count > _HELD_MAX:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{len(self._held)} jobs are claimed and {_HELD_MAX} may be: settle some first",
                headers={"Retry-After": "1"},
            )
        claimed = await self._log.claim(
            asked.count, queues=asked.queues, wait=asked.wait, lease=asked.lease
        )
        try:
            claims = [await self._told(delivery, asked.lease) for delivery in claimed]
            await anyio.lowlevel.checkpoint()  # who hung up meanwhile is noticed here
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                for delivery in claimed:
                    self._held.pop(_token(delivery), None)
                    await self._log.release(delivery)
            raise
        return claims

    async def extend(self, asked: Extend) -> dict[str, Any]:
        """Let a claim last so long from now; fails with 409 when its job is to be cancelled."""
        delivery = self._find(asked.token)
        await self._log.extend(delivery, asked.seconds)
        self._held[asked.token] = delivery, _end(asked.seconds)
        return {"id": delivery.job_id, "lease_seconds": asked.seconds}

    async def ack(self, asked: Ack) -> dict[str, Any]:
        result = None if asked.result is None else asked.result.raw()
        delivery = self._find(asked.token)
        await self._log.ack(delivery, result)
        return self._ended(asked)

    async def nack(self, asked: Nack) -> dict[str, Any]:
        await self._log.nack(self._find(asked.token), asked.reason, asked.delay)
        return self._ended(asked)

    async def release(self, asked: Release) -> dict[str, Any]:
        await self._log.release(self._find(asked.token), asked.delay)
        return self._ended(asked)

    async def _told(self, delivery: Delivery, lease: float) -> dict[str, Any]:
        token = _token(delivery)
        self._held[token] = delivery, _end(lease)
        return {
            "token": token,
            "id": delivery.job_id,
            "task": delivery.task or None,
            "queue": delivery.queue,
            "priority": delivery.priority,
            "attempt": delivery.attempt,
            "attempts_max": delivery.attempts_max or None,
            "headers": delivery.headers,
            "payload": documents.body_document(await self._log.payload(delivery)),
            "lease_seconds": lease,
        }

    def _find(self, token: str) -> Delivery:
        held = self._held.get(token)
        if held is None:
            raise StaleDelivery(
                f"nothing is claimed by {token!r:.80}: it was settled, or its lease is over; "
                f"claim again"
            )
        return held[0]

    def _ended(self, asked: OneClaim) -> dict[str, Any]:
        delivery, _ = self._held.pop(asked.token)
        return {"id": delivery.job_id, "settled": True}


def _fitting(reader: LogReader, search: Search, before: int) -> tuple[list[JobView], int]:
    """Return the next jobs that fit, and where those that follow begin, 0 at the end."""
    page = find_jobs(reader, search, _MANY, before)
    return page.jobs, page.following


def _in_states(
    reader: LogReader, ids: list[str], states: frozenset[State] | set[State]
) -> list[JobView]:
    jobs = (reader.job(reader.parse_id(job), body_bytes_max=0) for job in ids)
    return [job for job in jobs if job is not None and job.state in states]


def _token(delivery: Delivery) -> str:
    return f"{delivery.job_id}.{delivery.epoch:x}.{delivery.token:x}"


def _end(lease: float) -> float:
    """Return when nobody needs to know of a claim any more: a lease later than its end."""
    return time.monotonic() + 2 * lease
