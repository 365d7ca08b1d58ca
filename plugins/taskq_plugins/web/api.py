"""The JSON API for programs: the data of the pages, and changes of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from itertools import starmap
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import taskq.views as documents
from taskq import Delivery, State, TaskLog, TaskQ, engine, errors, hooks
from taskq_plugins.looks import reading
from taskq_plugins.web import endpoints as asking
from taskq_plugins.web.endpoints import Endpoint

#: Jobs in one step of an act on many jobs.
_MANY: Final = 500
#: Jobs that may be claimed through the API at a time.
_HELD_MAX: Final = 10_000


class Acts:
    """Changes of the log, for programs and for the forms of the pages.

    Args:
        looks: reads the log.
        app: an app with the log open; None to open the log for the first act.
        hides: whether searches ignore secret values.
    """

    def __init__(self, looks: reading.Looks, app: TaskQ | None, *, hides: bool = True) -> None:
        self._looks = looks
        self.hides = hides
        self._is_own = app is None
        self.app = app or TaskQ(looks.path, upkeep=False, name="taskq web")
        self._log = TaskLog(self.app.connection)
        #: token -> (claim, when to forget it, by the monotonic clock)
        self._held: dict[str, tuple[Delivery, float]] = {}

    async def close(self) -> None:
        """Finish pending acts and close the log, which releases its claims."""
        if self._is_own:
            await self.app.close()

    async def enqueue(self, asked: asking.Enqueue) -> dict[str, Any]:
        """Enqueue a call, or bytes; when this returns, the job has the log's durability."""
        if (asked.task is None) == (asked.payload is None):
            raise errors.UsageError("give a task with its arguments, or a payload: one of the two")
        if asked.task is not None:
            call = self.app.call_by_name(asked.task, **asked.arguments)
            job = await self.app.enqueue(call.options(**asked.options()))
            await self.note_enqueued(job.id)
            return {"id": job.id, "duplicate": job.duplicate}
        assert asked.payload is not None
        if asked.arguments:
            raise errors.UsageError("arguments are a task's: name the task, or leave them out")
        job_id = await self._log.put(asked.payload.raw(), **asked.options())
        await self.note_enqueued(job_id)
        return {"id": job_id}

    async def note_enqueued(self, job_id: str) -> None:
        """Write the visitor who enqueued a job into the log."""
        port = await self.app.connection.port()
        for written in port.note("enqueue", [engine.Tag.of_id(job_id)[1]]):
            await written

    async def cancel(self, asked: asking.OneJob) -> dict[str, Any]:
        return {"id": asked.id, "cancelled": await self._log.cancel(asked.id)}

    async def edit(self, asked: asking.EditRequest) -> dict[str, Any]:
        """Change the due time, queue or priority of a waiting job."""
        changes = asked.model_dump(exclude={"id"}, exclude_none=True)
        return {"id": asked.id, "changed": await self.app.edit(asked.id, **changes)}

    async def signal(self, asked: asking.SignalRequest) -> dict[str, Any]:
        """Send a job a signal for a wait within its run, now or later."""
        new = await self.app.signal(asked.id, asked.name, asked.value, once=asked.once)
        return {"id": asked.id, "new": new}

    async def requeue(self, asked: asking.OneJob) -> dict[str, Any]:
        await self._log.dead.requeue(asked.id)
        return {"id": asked.id, "requeued": True}

    async def purge(self, asked: asking.OneJob) -> dict[str, Any]:
        await self._log.dead.purge(asked.id)
        return {"id": asked.id, "purged": True}

    async def many(self, asked: asking.Many) -> dict[str, Any]:
        """Carry out one act on all matching or named jobs, each by itself, or only count them.

        ``count`` jobs matched, ``done`` of them were changed, ``stopping`` are running and were
        asked to stop, and the rest had changed meanwhile.
        """
        states = (
            documents.WAITING_STATES | {State.RUNNING} if asked.act == "cancel" else {State.DEAD}
        )
        if asked.ids:
            jobs = await self._looks.read(partial(_in_states, ids=asked.ids, states=states))
            if asked.dry_run:
                ids = [job.job_id for job in jobs]
                return {"act": asked.act, "count": len(jobs), "done": 0, "stopping": 0, "ids": ids}
            done, stopping = await self._do(asked.act, jobs)
            return {"act": asked.act, "count": len(asked.ids), "done": done, "stopping": stopping}
        search = hooks.Search.parse(asked.q, hides=self.hides).only(frozenset(states))
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

    async def _do(self, act: str, jobs: list[documents.JobView]) -> tuple[int, int]:
        """Carry out an act; return (changed jobs, running jobs that were asked to stop)."""
        if act != "cancel":
            ids = [job.job_id for job in jobs]
            return (await getattr(self._log.dead, f"{act}_many")(ids)).count, 0
        # Jobs that have started since the listing are left alone, so the report is right.
        waiting = [job.lsn for job in jobs if job.state is not State.RUNNING]
        withdrawn = await (await self.app.connection.port()).withdraw(waiting)
        running = [job.job_id for job in jobs if job.state is State.RUNNING]
        return len(withdrawn), sum([await self._log.cancel(job) for job in running])

    async def steer(self, verb: str, what: str, asked: asking.OneName) -> dict[str, Any]:
        """Pause or resume a queue, a task or a schedule."""
        if what == "schedule":
            changed = await getattr(self.app.schedules, verb)(asked.name)
        else:
            changed = await getattr(self._log, verb)(**{what: asked.name})
        return {what: asked.name, "changed": changed}

    async def limit_task(self, asked: asking.TaskLimits) -> dict[str, Any]:
        changed = await self._log.limit(asked.name, concurrency=asked.concurrency, rate=asked.rate)
        return {"task": asked.name, "changed": changed}

    async def set_slots(self, asked: asking.SlotsRequest) -> dict[str, Any]:
        changed = await self._log.set_slots(asked.count, worker=asked.worker)
        return {"slots": asked.count, "changed": changed}

    async def add_schedule(self, asked: asking.AddSchedule) -> dict[str, Any]:
        """Add a schedule, or replace the one with this name."""
        call = self.app.call_by_name(asked.task, **asked.arguments)
        if asked.queue is not None:
            call = call.options(queue=asked.queue)
        every, cron = asked.every, asked.cron
        await self.app.schedules.add(asked.name, call, every=every, cron=cron, tz=asked.tz)
        return {"schedule": asked.name, "changed": True}

    async def remove_schedule(self, asked: asking.OneName) -> dict[str, Any]:
        return {"schedule": asked.name, "changed": await self.app.schedules.remove(asked.name)}

    # -- workers in other languages ---------------------------------------------------------------

    async def claim(self, asked: asking.Claim) -> list[dict[str, Any]]:
        """Claim jobs; each counts an attempt, and becomes ready again when its lease ends.

        If the client disconnects before the answer, the jobs are released.
        """
        now = time.monotonic()
        for token in [token for token, (_, until) in self._held.items() if until < now]:
            del self._held[token]
        if len(self._held) + asked.count > _HELD_MAX:
            raise asking.Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{len(self._held)} jobs are claimed and {_HELD_MAX} may be: settle some first",
                headers={"Retry-After": "1"},
            )
        claimed = await self._log.claim(
            asked.count, queues=asked.queues, wait=asked.wait, lease=asked.lease
        )
        try:
            claims = [await self._claim_document(delivery, asked.lease) for delivery in claimed]
            await checkpoint()  # raises if the client has disconnected
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                for delivery in claimed:
                    self._held.pop(_token(delivery), None)
                    await self._log.release(delivery)
            raise
        return claims

    async def extend(self, asked: asking.Extend) -> dict[str, Any]:
        """Extend a claim to ``seconds`` from now; fails with 409 if its job was cancelled."""
        delivery = self._find(asked.token)
        await self._log.extend(delivery, asked.seconds)
        self._held[asked.token] = delivery, _end(asked.seconds)
        return {"id": delivery.job_id, "lease_seconds": asked.seconds}

    async def ack(self, asked: asking.Ack) -> dict[str, Any]:
        result = None if asked.result is None else asked.result.raw()
        delivery = self._find(asked.token)
        await self._log.ack(delivery, result)
        return self._ended(asked)

    async def nack(self, asked: asking.Nack) -> dict[str, Any]:
        await self._log.nack(self._find(asked.token), asked.reason, asked.delay)
        return self._ended(asked)

    async def release(self, asked: asking.Release) -> dict[str, Any]:
        await self._log.release(self._find(asked.token), asked.delay)
        return self._ended(asked)

    async def _claim_document(self, delivery: Delivery, lease: float) -> dict[str, Any]:
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
            raise errors.StaleDelivery(
                f"nothing is claimed by {token!r:.80}: it was settled, or its lease is over; "
                f"claim again"
            )
        return held[0]

    def _ended(self, asked: asking.OneClaim) -> dict[str, Any]:
        delivery, _ = self._held.pop(asked.token)
        return {"id": delivery.job_id, "settled": True}


def _fitting(
    reader: engine.LogReader, search: hooks.Search, before: int
) -> tuple[list[documents.JobView], int]:
    """Return the next matching jobs, and the start of the following page, 0 at the end."""
    page = search.find(reader, _MANY, before)
    return page.jobs, page.following


def _in_states(
    reader: engine.LogReader, ids: list[str], states: frozenset[State] | set[State]
) -> list[documents.JobView]:
    jobs = (reader.job(reader.parse_id(job), body_bytes_max=0) for job in ids)
    return [job for job in jobs if job is not None and job.state in states]


def _token(delivery: Delivery) -> str:
    return f"{delivery.job_id}.{delivery.epoch:x}.{delivery.token:x}"


def _end(lease: float) -> float:
    """Return when a claim may be forgotten: one more lease after its end."""
    return time.monotonic() + 2 * lease


#: Latest steps of a job that are listed.
_STEPS_MAX: Final = 200
#: Requests that may wait for results at a time.
_WAITS_MAX: Final = 64
_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5


class Api:
    """Answers programs.

    Args:
        looks: reads the log.
        acts: changes the log.
    """

    def __init__(self, looks: reading.Looks, acts: Acts) -> None:
        self._looks = looks
        self._hides = acts.hides
        self._waits = 0
        #: endpoints of acts, by name
        self.acts = {order.name: order for order in _orders(acts)}
        self.endpoints = (*self._questions(), *self.acts.values())

    def routes(self) -> list[Route]:
        document = asking.json_response(asking.describe(self.endpoints)).body

        async def openapi(_request: Request) -> Response:
            return Response(document, media_type="application/json")

        at: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            at.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        return [Route("/api/openapi.json", openapi), *starmap(_route, at.items())]

    def _questions(self) -> tuple[Endpoint, ...]:
        ask, looks = asking, self._looks

        def look(
            work: Callable[[hooks.LogStatus], Any],
        ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
            return lambda asked: looks.read(lambda reader: work(hooks.LogStatus(reader)), asked.at)

        def listed(part: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
            return look(lambda status: [view.as_dict() for view in getattr(status, part)])

        return (
            Endpoint("GET", "/api/stats", "stats", "The log as a whole, and its queues.",
                     ask.Past, look(hooks.LogStatus.as_dict)),
            Endpoint("GET", "/api/queues", "queues", "Jobs of each queue by state.",
                     ask.Past, look(lambda status: status.stats.as_dict()["queues"])),
            Endpoint("GET", "/api/workers", "workers", "Processes that have the log open.",
                     ask.Past, listed("owners")),
            Endpoint("GET", "/api/schedules", "schedules", "Schedules and their next ticks.",
                     ask.Past, listed("schedules")),
            Endpoint("GET", "/api/limits", "limits", "Limits, conditions and breakers.",
                     ask.Past, look(hooks.LogStatus.hurdles_as_dict)),
            Endpoint("GET", "/api/segments", "segments", "Files of the log.",
                     ask.Past, listed("segments")),
            Endpoint("GET", "/api/failures", "failures", "Newest dead letters, in groups.",
                     ask.Past, listed("failures")),
            Endpoint("GET", "/api/jobs", "jobs", "Jobs that fit, the newest first.",
                     ask.Jobs, self._jobs),
            Endpoint("GET", "/api/jobs/{id}", "job", "All of one job, and why it does not run.",
                     ask.JobAtMoment, self._job),
            Endpoint("GET", "/api/jobs/{id}/result", "result", "The result of a job.",
                     ask.Result, self._result),
        )  # fmt: skip

    async def _jobs(self, asked: asking.Jobs) -> dict[str, Any]:
        search = hooks.Search.parse(asked.q, hides=self._hides)
        page = await self._looks.read(
            lambda reader: search.find(reader, asked.limit, asked.before), asked.at
        )
        return {
            "jobs": [documents.job_head(job) for job in page.jobs],
            "next": page.following or None,
            "looked_at": page.looked_at,
        }

    async def _job(self, asked: asking.JobAtMoment) -> dict[str, Any]:
        def work(reader: engine.LogReader) -> dict[str, Any]:
            status = hooks.JobStatus(reader, asked.id)
            return {
                **status.as_dict(_STEPS_MAX),
                "why": None if status.why is None else status.why.as_dict(),
                "timeline": [event.as_dict() for event in status.timeline],
            }

        document: dict[str, Any] = await self._looks.read(work, asked.at)
        return document

    async def _result(self, asked: asking.Result) -> dict[str, Any]:
        if self._waits >= _WAITS_MAX:
            raise asking.Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{_WAITS_MAX} requests wait for results: ask again in a second",
                headers={"Retry-After": "1"},
            )
        until = time.monotonic() + asked.wait
        pause = _PAUSE_SECONDS_MIN
        self._waits += 1
        try:
            while True:
                job = await self._looks.read(lambda reader: hooks.JobStatus(reader, asked.id).view)
                left = until - time.monotonic()
                if job.state not in documents.LIVE_STATES or left <= 0:
                    return _result_document(job)
                await anyio.sleep(min(pause, left))
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        finally:
            self._waits -= 1


def _orders(acts: Acts) -> tuple[Endpoint, ...]:
    ask, jobs, claims = asking, "/api/jobs/{id}", "/api/claims/{token}"
    return (
        Endpoint("POST", "/api/jobs", "enqueue", "Enqueue a call of a task by its name, or bytes.",
                 ask.Enqueue, acts.enqueue),
        Endpoint("POST", f"{jobs}/cancel", "cancel", "Cancel a job, also while it runs.",
                 ask.OneJob, acts.cancel),
        Endpoint("POST", f"{jobs}/edit", "edit", "Let a job that waits be due or wait elsewhere.",
                 ask.EditRequest, acts.edit),
        Endpoint("POST", f"{jobs}/signals/{{name}}", "signal", "Send a waiting job a signal.",
                 ask.SignalRequest, acts.signal),
        Endpoint("POST", f"{jobs}/requeue", "requeue", "Make a dead letter ready again.",
                 ask.OneJob, acts.requeue),
        Endpoint("POST", f"{jobs}/purge", "purge", "Forget a dead letter.",
                 ask.OneJob, acts.purge, ask.Role.ADMIN),
        Endpoint("POST", "/api/many", "many", "Do one thing to all jobs that fit, or count them.",
                 ask.Many, acts.many),
        Endpoint("POST", "/api/schedules/{name}/pause", "pause_schedule", "Let it tick no more.",
                 ask.OneName, partial(acts.steer, "pause", "schedule")),
        Endpoint("POST", "/api/schedules/{name}/resume", "resume_schedule", "Let it tick again.",
                 ask.OneName, partial(acts.steer, "resume", "schedule")),
        Endpoint("POST", "/api/queues/{name}/pause", "pause", "Let no worker claim from a queue.",
                 ask.OneName, partial(acts.steer, "pause", "queue")),
        Endpoint("POST", "/api/queues/{name}/resume", "resume", "Let workers claim from it again.",
                 ask.OneName, partial(acts.steer, "resume", "queue")),
        Endpoint("POST", "/api/tasks/{name}/pause", "pause_task", "Let no worker claim of a task.",
                 ask.OneName, partial(acts.steer, "pause", "task")),
        Endpoint("POST", "/api/tasks/{name}/resume", "resume_task", "Let workers claim of it.",
                 ask.OneName, partial(acts.steer, "resume", "task")),
        Endpoint("POST", "/api/tasks/{name}/limit", "limit_task", "Limit a task at run time.",
                 ask.TaskLimits, acts.limit_task),
        Endpoint("POST", "/api/slots", "set_slots", "Set how many jobs workers run at a time.",
                 ask.SlotsRequest, acts.set_slots),
        Endpoint("POST", "/api/schedules/{name}/remove", "remove_schedule", "Take it away again.",
                 ask.OneName, acts.remove_schedule),
        # Last, since a name may contain a slash.
        Endpoint("POST", "/api/schedules/{name}", "add_schedule", "Enqueue a call by the clock.",
                 ask.AddSchedule, acts.add_schedule),
        Endpoint("POST", "/api/claims", "claim", "Take jobs to run, with a lease.",
                 ask.Claim, acts.claim),
        Endpoint("POST", f"{claims}/extend", "extend", "Let a claim last longer.",
                 ask.Extend, acts.extend),
        Endpoint("POST", f"{claims}/ack", "ack", "End a claim well.", ask.Ack, acts.ack),
        Endpoint("POST", f"{claims}/nack", "nack", "End a claim badly.", ask.Nack, acts.nack),
        Endpoint("POST", f"{claims}/release", "release", "Give a claim back.",
                 ask.Release, acts.release),
    )  # fmt: skip


def _route(path: str, by_method: dict[str, Endpoint]) -> Route:
    async def respond(request: Request) -> Response:
        return await by_method[request.method.replace("HEAD", "GET")].respond(request)

    # A queue's name may contain a slash.
    return Route(path.replace("{name}", "{name:path}"), respond, methods=list(by_method))


def _result_document(job: documents.JobView) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "state": str(job.state),
        "ended": job.state not in documents.LIVE_STATES,
        "result": documents.body_document(job.result),
        "reason": job.reason or None,
        "problem": job.problem or None,
    }
