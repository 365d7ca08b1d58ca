"""A worker on several logs in memory; see ``tests.workers.slots.resting``."""

from __future__ import annotations

from random import Random
from typing import cast

from taskq.core.parsing import Tag
from taskq.log.requests import Delivery, EnqueueSpec, Settlement
from taskq_workers.pool import LogPart, Worker
from tests.workers.fakes import FakeApp
from tests.workers.slots.resting import App, Jobs, Log, Schedule


class TaggedLog(Log):
    """One of several."""

    def __init__(self, random: Random, tag: Tag) -> None:
        super().__init__(random)
        self.tag = tag
        # Like tokens of logs, they never belong to another log.
        self._tokens = int(tag[3:]) * 1_000_000

    def put(self, spec: EnqueueSpec, body: bytes, *, attempt: int = 1) -> Delivery:
        delivery = super().put(spec, body, attempt=attempt)
        self.ready[-1] = delivery._replace(tag=self.tag)
        return self.ready[-1]


class AllLogs:
    """Several logs, as far as a schedule sees one."""

    def __init__(self, logs: list[TaggedLog], random: Random) -> None:
        self.logs = {log.tag: log for log in logs}
        self._random = random

    @property
    def trouble(self) -> float:
        return next(iter(self.logs.values())).trouble

    @trouble.setter
    def trouble(self, value: float) -> None:
        for log in self.logs.values():
            log.trouble = value

    @property
    def ended(self) -> int:
        return sum(log.ended for log in self.logs.values())

    @property
    def running(self) -> dict[int, Delivery]:
        return {
            token: delivery for log in self.logs.values() for token, delivery in log.running.items()
        }

    def clear(self) -> None:
        for log in self.logs.values():
            log.paused.clear()
            log._serve_soon()

    def _serve_soon(self) -> None:
        for log in self.logs.values():
            log._serve_soon()

    def _later(self, call: object) -> None:
        self.any_one()._later(call)  # type: ignore[arg-type]

    def end(self, item: Settlement) -> None:
        self.logs[item.delivery.tag].end(item)

    def any_one(self) -> TaggedLog:
        return self._random.choice(list(self.logs.values()))


class ManySchedule(Schedule):
    """A schedule of a worker over two to four logs, with weights."""

    def begin(self) -> Worker:
        count, plan = self.random.randint(2, 4), self.plan
        apps: list[App] = []
        for number in range(count):
            app = App(TaggedLog(self.random, Tag(f"log{number}")))
            app._connection._tag = Tag(f"log{number}")
            apps.append(app)
        self.app = apps[0]
        self.jobs = Jobs(self.app, self.random)
        for app in apps[1:]:
            app.hooks = self.app.hooks
        self.apps = apps
        self.all = AllLogs([cast("TaggedLog", app.fake) for app in apps], self.random)
        self.log = cast("Log", self.all)
        self._arrive()
        worker = Worker(
            self.app, concurrency=plan.concurrency, burst=plan.burst, max_jobs=plan.max_jobs,
            schedules=False, warns=False,
        )  # fmt: skip
        worker._parts = [
            LogPart(app, self.random.randint(1, 3), ticks=False, syncs=False) for app in apps
        ]
        return worker

    def put_one(self, task: object, kind: str) -> None:
        self.random.choice(self.apps).put(task, kind)

    def unpause(self) -> None:
        self.all.clear()

    def _pause(self) -> None:
        log = self.all.any_one()
        log.paused ^= {self.random.choice(("default", "other"))}
        log._serve_soon()

    def _check(self) -> None:
        """A job of any log that may run and a free slot never stand side by side."""
        free = self.plan.concurrency - self.crew.running()
        if not free:
            return
        assert not self.crew.feed.buffer, f"{free} slots are free, and jobs lie in the buffer"
        for part in self.worker._parts:
            assert part.gates is not None
            assert part.host is not None
            feed = part.host.feed
            if feed._paused or feed.allowed(1) <= 0:
                continue
            queues, tasks = part.gates.claimable(None, frozenset(self.app.tasks))
            log = cast("TaggedLog", cast("FakeApp", part.app).fake)
            assert not log.has_ready(queues, tasks), f"{free} slots are free, {log.tag} has jobs"
