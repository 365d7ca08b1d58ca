"""A worker on several logs in memory; see ``tests.workers.slots.resting``."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from taskq.core.parsing import Tag
from taskq.log.requests import Delivery, EnqueueSpec, Settlement
from taskq_workers.pool import LogPart, Worker
from tests.workers.fakes import FakeApp, FakePort, make_delivery
from tests.workers.slots.resting import App, Jobs, Log, RestLoop, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.errors import TaskqError
    from taskq.log.requests import ClaimRequest
    from taskq_workers.slots.rounds import Rounds
    from taskq_workers.slots.settling import Settled


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


# -- shares ----------------------------------------------------------------------------------------


#: The longest pause of a log with jobs while a slot is free, and while none is, unless it is not
#: its turn yet.
IDLE_SECONDS: Final = 0.1
STILL_SECONDS: Final = 1.0
#: How many times the share of one log another may have.
SHARE: Final = 1.3
#: How far logs may be apart besides, in turns: a job, and what lies here when the run ends.
APART: Final = 2.0
_RUN_SECONDS: Final = 12.0
_RUN_JOBS: Final = 1_500
_STEP_SECONDS: Final = 0.02


class SharedLog(FakePort):
    """A log that has any number of jobs, or none.

    Attributes:
        seconds: that each job takes. answers: in how many seconds it answers a claim.
        moments: when it begins or ceases to have jobs, in turn; seconds from the start.
        stalls: from when to when it answers nothing.
        still: since when it began none of its jobs, although it has some, and how many of all
            had begun by then. passed: since when it was its turn.
    """

    def __init__(self, tag: Tag, random: Random, seconds: float, answers: float) -> None:
        super().__init__()
        self.tag = tag
        self.seconds, self.answers = seconds, answers
        self.weight = 1
        self.moments: list[float] = []
        self.stalls: tuple[float, float] = (0.0, 0.0)
        self.template: Delivery
        self.still: tuple[float, int] | None = None
        self.passed: float | None = None
        self.begun = 0
        self._tokens = 0
        kind = random.random()
        if kind < 0.15:
            self.moments = sorted(random.uniform(0, _RUN_SECONDS) for _ in range(12))
        elif kind < 0.25:
            begin = random.uniform(0, 5)
            self.stalls = begin, begin + random.choice((0.05, 0.3, 3.0))
        self.has_jobs = not self.moments or random.random() < 0.5

    @property
    def is_steady(self) -> bool:
        return not self.moments and self.stalls[1] <= 0

    def answers_at(self, moment: float) -> float:
        begin, end = self.stalls
        return end if begin <= moment < end else moment

    def switch(self) -> None:
        self.has_jobs = not self.has_jobs
        claims, self.claims = self.claims, []
        for request, future in claims:
            self._take(request, future)

    def claim(self, request: ClaimRequest) -> asyncio.Future[list[Delivery]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Delivery]] = loop.create_future()
        loop.call_at(self.answers_at(loop.time() + self.answers / 2), self._take, request, future)
        return future

    def _take(self, request: ClaimRequest, future: asyncio.Future[list[Delivery]]) -> None:
        """Look at how many are asked for now, and answer later."""
        if future.done():
            return
        if not self.has_jobs and request.wait_until_ns is None:
            self.claims.append((request, future))
            return
        taken: list[Delivery] = []
        for _ in range(request.count if self.has_jobs else 0):
            self._tokens += 1
            taken.append(self.template._replace(tag=self.tag, token=self._tokens))
        loop = asyncio.get_running_loop()
        loop.call_at(self.answers_at(loop.time() + self.answers / 2), _resolve, future, taken)

    def settle_soon(
        self, items: list[Settlement], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None: ...
    def succeed_soon(
        self, deliveries: list[Delivery], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None: ...
    def settle(self, items: list[Settlement]) -> asyncio.Future[list[Settled]]:
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        future.set_result([None] * len(items))
        return future


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


class Run:
    """One worker over some logs; ``run`` raises AssertionError where one of them is wronged.

    Attributes:
        plan: what is special about it.
    """

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.loop = RestLoop()
        self.slots = random.choice((1, 2, 3, 8, 8, 16, 40))
        # Jobs that all slots begin in a second.
        speed = math.exp(random.uniform(math.log(8), math.log(6_000)))
        self.seconds = min(_RUN_SECONDS, max(_RUN_JOBS / speed, 0.5))
        differ, weigh = random.random() < 0.5, random.random() < 0.6
        answers = random.choice((0.0003, 0.001, 0.004, 0.012))
        self.logs: list[SharedLog] = []
        for number in range(random.choice((2, 2, 2, 3, 5, 12, 40))):
            seconds = self.slots / speed * (random.choice((0.3, 1, 1, 3)) if differ else 1)
            mine = answers * random.choice((0.5, 1, 1, 1.5))
            self.logs.append(SharedLog(Tag(f"log{number}"), random, seconds, mine))
            self.logs[-1].weight = random.choice((1, 1, 2, 3, 5)) if weigh else 1
        self.weights = sum(log.weight for log in self.logs)
        self.plan = f"{self.slots} slots, {speed:.0f} jobs/s, weights " + str(
            [log.weight for log in self.logs]
        )
        self.running = self.begun = 0
        #: when a job began last, or a slot became free
        self.moved = 0.0
        self.worker: Worker

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._main())
            finally:
                self.loop.on_wait = None

    async def _main(self) -> None:
        loop = self.loop
        start = loop.now
        for log in self.logs:
            log.stalls = (start + log.stalls[0], start + log.stalls[1])
            for moment in log.moments:
                loop.call_at(start + moment, log.switch)
        self._hire()
        await self.worker.start()
        loop.on_wait = self._on_wait
        await asyncio.sleep(self.seconds)
        self._check_shares()
        loop.on_wait = self._skip
        self.worker.request_cancel()
        await self.worker.stopped.wait()
        loop.on_wait = None

    def _hire(self) -> None:
        apps = [App(cast("Any", log)) for log in self.logs]
        by_name = {log.tag: log for log in self.logs}

        async def act(name: str) -> None:
            log = by_name[Tag(name)]
            log.begun += 1
            self.begun += 1
            log.still = log.passed = None
            self._check_buffer(log)
            self.running += 1
            self.moved = self.loop.now
            await asyncio.sleep(log.seconds)
            if self.running == self.slots:
                self.moved = self.loop.now
            self.running -= 1

        task = apps[0].task(name="act")(act)
        for log, app in zip(self.logs, apps, strict=True):
            app._connection._tag, app.hooks = log.tag, apps[0].hooks
            call = task.call(log.tag)
            log.template = make_delivery(call.spec, call.body)
        self.worker = Worker(apps[0], concurrency=self.slots, schedules=False, warns=False)
        self.worker._parts = [
            LogPart(app, log.weight, ticks=False, syncs=False)
            for log, app in zip(self.logs, apps, strict=True)
        ]

    def _on_wait(self, seconds: float | None) -> None:
        assert seconds is not None, "nothing is about to happen any more"
        for log in self.logs:
            self._check(log)
        self.loop.now += min(max(seconds, 1e-6), _STEP_SECONDS)

    def _skip(self, seconds: float | None) -> None:
        self.loop.now += seconds or 0.0

    # -- what must hold ---------------------------------------------------------------------------

    def _buffered(self, log: SharedLog) -> int:
        rounds = cast("Rounds", cast("Any", self.worker._runner).feed)
        return len(rounds.shares[log.tag].feed.buffer)

    def _check_buffer(self, log: SharedLog) -> None:
        assert self._buffered(log) <= 2 * self.slots, f"{self._buffered(log)} lie here of {log.tag}"

    def _check(self, log: SharedLog) -> None:
        """No log stands still while slots are free, nor long while others take them."""
        now = self.loop.now
        if log.stalls[0] <= now < log.stalls[1] + log.answers or not (
            log.has_jobs or self._buffered(log)
        ):
            log.still = log.passed = None
            return
        if log.still is None:
            log.still = now, self.begun
        since, begun = log.still
        idle = now - max(since, self.moved)
        in_time = self.running == self.slots or idle <= IDLE_SECONDS
        assert in_time, f"{log.tag} stands {idle:.3f} s beside a free slot"
        # In turns of all logs; jobs of others may have taken all slots just after its last.
        turns = (self.begun - begun - self.slots) / self.weights
        if now - since <= STILL_SECONDS or turns <= SHARE / log.weight + APART:
            log.passed = None
        elif log.passed is None:
            log.passed = now
        else:
            waits = now - log.passed <= IDLE_SECONDS
            assert waits, f"{log.tag} stands {now - since:.1f} s, and others do not"

    def _check_shares(self) -> None:
        turns = {log.tag: log.begun / log.weight for log in self.logs if log.is_steady}
        if turns:
            least, most = min(turns.values()), max(turns.values())
            assert most <= SHARE * least + APART, f"unfair: {turns}"
