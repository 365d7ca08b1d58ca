"""The JSON API: what the pages show, for programs, and what may be done, for those that may."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.responses import Response
from starlette.routing import Route

from taskq.cli import render
from taskq.engine import LogReader
from taskq.views import LIVE_STATES, body_document, job_head
from taskq_plugins.looks.reading import (
    Looks,
    failures_of,
    hurdles_of,
    job_of,
    log_document,
    only_job,
    schedules_of,
)
from taskq_plugins.web import asked as asking
from taskq_plugins.web.endpoints import Endpoint, describe, json_response
from taskq_plugins.web.problems import Problem
from taskq_plugins.web.search import Search, find_jobs

if TYPE_CHECKING:
    from starlette.requests import Request

    from taskq.views import JobView
    from taskq_plugins.web.acts import Acts

#: Requests that wait for results at a time.
_WAITS_MAX: Final = 64
_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5


class Api:
    """Answers programs.

    Args:
        looks: reads the log.
        acts: changes it.
    """

    def __init__(self, looks: Looks, acts: Acts) -> None:
        self._looks = looks
        self._hides = acts.hides
        self._waits = 0
        #: what may be done, by name
        self.acts = {order.name: order for order in _orders(acts)}
        self.endpoints = (*self._questions(), *self.acts.values())

    def routes(self) -> list[Route]:
        document = json_response(describe(self.endpoints)).body

        async def tell(_request: Request) -> Response:
            return Response(document, media_type="application/json")

        at: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            at.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        return [Route("/api/openapi.json", tell), *starmap(_route, at.items())]

    def _questions(self) -> tuple[Endpoint, ...]:
        ask, looks = asking, self._looks

        def look(work: Callable[[LogReader], Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
            return lambda asked: looks.read(work, asked.at)

        def look_at(
            work: Callable[[LogReader], list[Any]],
        ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
            return look(lambda reader: [view.as_dict() for view in work(reader)])

        return (
            Endpoint("GET", "/api/stats", "stats", "The log as a whole, and its queues.",
                     ask.Past, look(log_document)),
            Endpoint("GET", "/api/queues", "queues", "Jobs of each queue by state.",
                     ask.Past, look(lambda reader: log_document(reader)["queues"])),
            Endpoint("GET", "/api/workers", "workers", "Processes that have the log open.",
                     ask.Past, look_at(LogReader.owners)),
            Endpoint("GET", "/api/schedules", "schedules", "What ticks by the clock.",
                     ask.Past, look_at(schedules_of)),
            Endpoint("GET", "/api/limits", "limits", "Limits, conditions and breakers.",
                     ask.Past, look(lambda reader: hurdles_of(reader).as_dict())),
            Endpoint("GET", "/api/segments", "segments", "Files of the log.",
                     ask.Past, look_at(LogReader.segments)),
            Endpoint("GET", "/api/failures", "failures", "Newest dead letters by what they share.",
                     ask.Past, look_at(failures_of)),
            Endpoint("GET", "/api/jobs", "jobs", "Jobs that fit, the newest first.",
                     ask.Jobs, self._jobs),
            Endpoint("GET", "/api/jobs/{id}", "job", "All of one job, and why it does not run.",
                     ask.PastJob, self._job),
            Endpoint("GET", "/api/jobs/{id}/result", "result", "What a job returned.",
                     ask.Result, self._result),
        )  # fmt: skip

    async def _jobs(self, asked: asking.Jobs) -> dict[str, Any]:
        search = Search.parse(asked.q, hides=self._hides)
        page = await self._looks.read(
            lambda reader: find_jobs(reader, search, asked.limit, asked.before), asked.at
        )
        return {
            "jobs": [job_head(job) for job in page.jobs],
            "next": page.following or None,
            "looked_at": page.looked_at,
        }

    async def _job(self, asked: asking.PastJob) -> dict[str, Any]:
        seen = await self._looks.read(lambda reader: job_of(reader, asked.id), asked.at)
        return {
            **seen.job.as_dict(),
            **render.flow_json(seen.ties, seen.tag),
            "progress": seen.progress and seen.progress.as_dict(),
            "why": None if seen.why is None else seen.why.as_dict(),
            "timeline": [event.as_dict() for event in seen.timeline],
            "steps": [bar.step.as_dict() for bar in seen.steps],
        }

    async def _result(self, asked: asking.Result) -> dict[str, Any]:
        if self._waits >= _WAITS_MAX:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{_WAITS_MAX} requests wait for results: ask again in a second",
                headers={"Retry-After": "1"},
            )
        until = time.monotonic() + asked.wait
        pause = _PAUSE_SECONDS_MIN
        self._waits += 1
        try:
            while True:
                job = await self._looks.read(lambda reader: only_job(reader, asked.id))
                left = until - time.monotonic()
                if job.state not in LIVE_STATES or left <= 0:
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
                 ask.Edit, acts.edit),
        Endpoint("POST", f"{jobs}/signals/{{name}}", "signal", "Tell a job that waits something.",
                 ask.Signal, acts.signal),
        Endpoint("POST", f"{jobs}/requeue", "requeue", "Make a dead letter ready again.",
                 ask.OneJob, acts.requeue),
        Endpoint("POST", f"{jobs}/purge", "purge", "Forget a dead letter.",
                 ask.OneJob, acts.purge),
        Endpoint("POST", "/api/many", "many", "Do one thing to all jobs that fit, or count them.",
                 ask.Many, acts.many),
        Endpoint("POST", "/api/schedules/{name}/pause", "pause_schedule", "Let it tick no more.",
                 ask.OneName, acts.pause_schedule),
        Endpoint("POST", "/api/schedules/{name}/resume", "resume_schedule", "Let it tick again.",
                 ask.OneName, acts.resume_schedule),
        Endpoint("POST", "/api/queues/{name}/pause", "pause", "Let no worker claim from a queue.",
                 ask.OneName, acts.pause),
        Endpoint("POST", "/api/queues/{name}/resume", "resume", "Let workers claim from it again.",
                 ask.OneName, acts.resume),
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

    # A queue's name may hold a slash.
    return Route(path.replace("{name}", "{name:path}"), respond, methods=list(by_method))


def _result_document(job: JobView) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "state": str(job.state),
        "ended": job.state not in LIVE_STATES,
        "result": body_document(job.result),
        "reason": job.reason or None,
        "problem": job.problem or None,
    }
