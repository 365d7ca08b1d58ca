"""A worker on logs in memory and a clock of its own, whose event loop signals rest.

The loop asks its selector to wait only when nothing is left to do until a timer rings or a thread
calls: that is the moment to look at the worker, and to take the next action. So a schedule of a
seed is the same each time, and skips the time of its jobs and pauses.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import math
import selectors
import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

import pytest
from anyio.abc import TaskStatus

from taskq import retry
from taskq.conditions import condition
from taskq.core.errors import AppendFailed, TaskqError
from taskq.core.parsing import Tag
from taskq.core.records import Kind
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq_workers import pool
from taskq_workers.gates import gate
from taskq_workers.pool import CancelListener, LogPart, Phase, Worker
from taskq_workers.slots import slots
from taskq_workers.slots.rounds import Rounds
from taskq_workers.slots.settling import Settled
from taskq_workers.slots.slots import Slots
from tests.workers.fakes import FakeApp, FakePort, make_delivery

#: A schedule whose jobs are not done by then, on its own clock, never ends.
_LIMIT_SECONDS: Final = 3_600.0
#: How long a thread of the worker may keep the real clock waiting.
_THREAD_SECONDS: Final = 20.0
#: An event loop's "for ever": timers that never ring are no reason to wait.
_FOREVER_SECONDS: Final = 86_400.0
_LIMITED: Final = 2
_KINDS: Final = ("now", "now", "turn", "turn", "some", "hold", "hold", "fail", "leak", "cancel")

_leaked: contextvars.ContextVar[object] = contextvars.ContextVar("leaked")


class _Selector(selectors.DefaultSelector):
    """Asks ``loop.on_wait`` whenever the loop would wait, and never waits itself."""

    loop: RestLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        if loop.on_wait is None:
            return super().select(timeout)
        if timeout == 0 or loop.runs_threads():
            # Threads take real time, and end by a call of the loop.
            events = super().select(0 if timeout == 0 else _THREAD_SECONDS)
            assert events or timeout == 0, "a thread does not return"
            return events
        loop.on_wait(None if timeout == _FOREVER_SECONDS else timeout)
        return super().select(0)


class RestLoop(asyncio.SelectorEventLoop):
    """Its time goes on only on demand.

    Attributes:
        on_wait: called with the seconds until the next timer, None for no timer.
        runs_threads: whether a thread is about to call.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.on_wait: Callable[[float | None], None] | None = None
        self.runs_threads: Callable[[], bool] = lambda: False
        self.now = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class Log(FakePort):
    """A worker's view of a log: limits, pauses, late and lost answers, refused outcomes.

    Attributes:
        running: claimed jobs by token.
        ended: how many jobs are at their end.
        attempts: how many attempts ended, given back ones apart.
        paused: queues that give no jobs.
        trouble: the fraction of claims and outcomes that are refused, or whose answers are lost.
    """

    def __init__(self, random: Random, tag: Tag) -> None:
        super().__init__()
        self.tag = tag
        self.running: dict[int, Delivery] = {}
        self.ended = self.attempts = 0
        self.paused: set[str] = set()
        self.trouble = 0.0
        self._random = random
        # Like tokens of logs, they never belong to another log.
        self._tokens = int(tag[3:]) * 1_000_000

    def put(self, spec: EnqueueSpec, body: bytes, *, attempt: int = 1) -> Delivery:
        delivery = super().put(spec, body, attempt=attempt)
        self.ready[-1] = delivery._replace(tag=self.tag)
        return self.ready[-1]

    # A gate's requests to the storage thread.

    @property
    def facets(self) -> Log:
        return self

    def need_agenda(self) -> Log:
        return self

    @property
    def order(self) -> Log:
        return self

    def has_ready(self, queues: frozenset[str] | None, tasks: frozenset[str] | None) -> bool:
        return any(self._fits(delivery, queues, tasks) for delivery in self.ready)

    def is_claimable(self, delivery: Delivery) -> bool:
        """Return whether neither its queue nor its task's limit keeps it back."""
        if delivery.queue in self.paused:
            return False
        if delivery.task != "limited":
            return True
        return sum(running.task == "limited" for running in self.running.values()) < _LIMITED

    # A worker's calls.

    def look(self, look: Callable[[Log], object], *, needs_agenda: bool = True) -> Any:
        del needs_agenda
        future = asyncio.get_running_loop().create_future()
        self._later(lambda: _resolve(future, look(self)))
        return future

    def claim(self, request: ClaimRequest) -> asyncio.Future[list[Delivery]]:
        if self._random.random() < self.trouble:
            raise refusal()
        future: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self._later(lambda: self._take_in(request, future))
        return future

    def settle_soon(
        self, items: list[Settlement], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None:
        self._later(lambda: self._settle(items, on_error))

    def settle(self, items: list[Settlement]) -> asyncio.Future[list[Settled]]:
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        for item in items:
            self.end(item)
        self._later(lambda: _resolve(future, [None] * len(items)))
        return future

    # Inside.

    def end(self, item: Settlement) -> None:
        delivery = self.running.pop(item.delivery.token)
        self.attempts += item.kind in {Kind.SUCCEEDED, Kind.RETRIED, Kind.DEAD}
        if item.kind in {Kind.RETRIED, Kind.RELEASED}:
            attempt = delivery.attempt + (item.kind is Kind.RETRIED)
            again = delivery._replace(attempt=attempt)
            asyncio.get_running_loop().call_later(item.delay_ns / 1e9, self._put_back, [again])
        else:
            self.ended += 1
        self._serve_soon()

    def _settle(
        self, items: list[Settlement], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None:
        for item in items:
            if self._random.random() < self.trouble:
                self._later(lambda item=item: on_error(item, refusal()))  # type: ignore[misc]
            else:
                self.end(item)

    def _take_in(self, request: ClaimRequest, future: asyncio.Future[list[Delivery]]) -> None:
        self.claims.append((request, future))
        self._serve()

    def _take(self, request: ClaimRequest) -> list[Delivery]:
        taken: list[Delivery] = []
        for delivery in list(self.ready):
            if len(taken) >= request.count:
                break
            if self._fits(delivery, request.queues, request.tasks):
                self.ready.remove(delivery)
                self._tokens += 1
                taken.append(delivery._replace(token=self._tokens))
                self.running[self._tokens] = taken[-1]
        return taken

    def _fits(
        self, delivery: Delivery, queues: frozenset[str] | None, tasks: frozenset[str] | None
    ) -> bool:
        known = (queues is None or delivery.queue in queues) and (
            tasks is None or delivery.task in tasks
        )
        return known and self.is_claimable(delivery)

    def _answer(self, future: asyncio.Future[list[Delivery]], taken: list[Delivery]) -> None:
        self._later(lambda: self._answer_now(future, taken))

    def _answer_now(self, future: asyncio.Future[list[Delivery]], taken: list[Delivery]) -> None:
        is_lost = self._random.random() < self.trouble
        if taken and (is_lost or future.done()):
            for delivery in taken:
                del self.running[delivery.token]
            self._put_back(taken)
            taken = []
        _resolve(future, taken)

    def _put_back(self, deliveries: list[Delivery]) -> None:
        self.ready.extendleft(reversed(deliveries))
        self._serve_soon()

    def _later(self, call: Callable[[], object]) -> None:
        """Call after some turns of the loop, as the storage thread answers when it has time."""
        turns = self._random.randrange(4)

        def turn() -> None:
            nonlocal turns
            turns -= 1
            if turns < 0:
                call()
            else:
                asyncio.get_running_loop().call_soon(turn)

        turn()


class App(FakeApp):
    def __init__(self, log: FakePort, tag: Tag) -> None:
        super().__init__(log)
        self._connection._tag = tag


def apps_of(random: Random, count: int) -> tuple[list[App], list[Log]]:
    logs = [Log(random, Tag(f"log{number}")) for number in range(count)]
    apps = [App(log, log.tag) for log in logs]
    for app in apps[1:]:
        app.hooks = apps[0].hooks
    return apps, logs


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _tell() -> None: ...


def refusal() -> AppendFailed:
    return AppendFailed("log", OSError(errno.ENOSPC, "no room"))


class Jobs:
    """The jobs of a schedule, each with the behaviour of its argument.

    Attributes:
        lets_go: whether jobs that hold their slots may end.
        is_on: whether the condition holds, and the network is there.
    """

    def __init__(self, app: FakeApp, random: Random) -> None:
        self.lets_go = False
        self.is_on = True
        self.parked = 0
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._held: list[asyncio.Future[None]] = []
        self._threads: list[threading.Event] = []
        options: dict[str, Any] = {"retry": retry.fixed(3, 0)}
        is_met = condition(self._is_met, name="on", every=0.4)

        async def act(kind: str) -> None:
            await self._act(kind)

        def work(kind: str) -> None:
            self._work(kind)

        app.breaker("mail", failures=2, is_failure=lambda error: isinstance(error, OSError))
        self.tasks = [
            app.task(name="plain", **options)(act),
            app.task(name="other", queue="other", **options)(act),
            app.task(name="limited", **options)(act),
            app.task(name="gated", requires=[is_met], **options)(act),
            app.task(name="mailed", queue="mail", **options)(act),
            app.task(name="threaded", **options)(work),
        ]

    def let_go(self, count: int) -> None:
        for _ in range(min(count, len(self._threads))):
            self.parked -= 1
            self._threads.pop(self._random.randrange(len(self._threads))).set()
        for _ in range(min(count, len(self._held))):
            future = self._held.pop(self._random.randrange(len(self._held)))
            if not future.done():
                future.set_result(None)

    def finish(self) -> None:
        """From now on every job ends, and nothing keeps any back."""
        self.lets_go = self.is_on = True
        self.let_go(len(self._held) + len(self._threads))

    async def _is_met(self) -> bool:
        return self.is_on

    async def _act(self, kind: str) -> None:
        assert _leaked.get(None) is None, "what another job has set is seen here"
        if not self.is_on and kind != "now":
            raise ConnectionRefusedError("no network")
        if kind == "turn":
            await asyncio.sleep(0)
        elif kind == "some":
            await asyncio.sleep(self._random.choice((0.001, 0.05, 0.7, 3.0)))
        elif kind == "hold" and not self.lets_go:
            self._held.append(asyncio.get_running_loop().create_future())
            await self._held[-1]
        elif kind == "fail":
            raise SystemExit("no")
        elif kind == "leak":
            _leaked.set(object())
        elif kind == "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    def _work(self, kind: str) -> None:
        if kind == "fail":
            raise ValueError("no")
        if kind == "hold" and not self.lets_go:
            event = threading.Event()
            self._threads.append(event)
            self.parked += 1
            self._loop.call_soon_threadsafe(_tell)  # the loop waits for threads
            assert event.wait(_THREAD_SECONDS)


class Schedule:
    """One worker, and what befalls it; ``main`` raises AssertionError where it idles in vain.

    A schedule of an odd seed has two to four logs, with weights.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        ends = random.random()
        self.concurrency = random.randint(1, 16)
        self.burst = ends < 0.15
        self.max_jobs = random.randint(1, 40) if ends > 0.85 else None
        self.trouble = random.choice((0.0, 0.0, 0.1))
        self.tasks = random.choice((1, 2, 6, 6))
        self.left = random.randint(3, 14)
        self.plan = str(vars(self))
        self.loop = RestLoop()
        self.put = self.checks = 0
        self.count = self.random.randint(2, 4) if seed % 2 else 1
        self.apps: list[App]
        self.logs: list[Log]
        self.jobs: Jobs
        self.worker: Worker

    async def main(self) -> None:
        self._begin()
        async with self.worker:
            for log in self.logs:
                log.trouble = self.trouble
            self.loop.runs_threads = self._runs_threads
            self.loop.on_wait = self._on_rest
            await self.worker.stopped.wait()
            self.jobs.finish()
            self.loop.on_wait = None
        # Requests that are under way reach the logs after the worker's end.
        for _ in range(20):
            await asyncio.sleep(0)
        claimed = [delivery for log in self.logs for delivery in log.running.values()]
        # Refusals come here in any order, and so perhaps after the worker's last look.
        assert self.trouble or not claimed, f"the worker keeps {len(claimed)} jobs at its end"
        attempts = sum(log.attempts for log in self.logs)
        assert attempts <= (self.max_jobs or attempts), "more attempts than the worker may begin"

    def _begin(self) -> None:
        self.apps, self.logs = apps_of(self.random, self.count)
        self.jobs = Jobs(self.apps[0], self.random)
        self._arrive()
        self.worker = Worker(
            self.apps[0], concurrency=self.concurrency, burst=self.burst, max_jobs=self.max_jobs,
            schedules=False, warns=False,
        )  # fmt: skip
        if self.count > 1:
            self.worker._parts = [
                LogPart(app, self.random.randint(1, 3), ticks=False, syncs=False)
                for app in self.apps
            ]

    @property
    def crew(self) -> Slots:
        crew = self.worker._runner
        assert isinstance(crew, Slots)
        return crew

    def _runs_threads(self) -> bool:
        places = self.worker._places
        assert places is not None
        threads = places.threads
        return min(threads.busy, len(threads._threads)) > self.jobs.parked

    def _on_rest(self, seconds: float | None) -> None:
        if self.worker._phase is not Phase.RUNNING:
            self.jobs.finish()
            self.loop.now += max(seconds or 0.0, 0.001)
            return
        self._check()
        open_jobs = self.put - sum(log.ended for log in self.logs)
        if self.left > 0:
            self.left -= 1
            self._act(seconds)
        elif self.left == 0:
            self.left = -1
            self.jobs.finish()
            for log in self.logs:
                log.trouble = 0.0
                log.paused.clear()
                log._serve_soon()
        elif not open_jobs:
            self.worker.request_stop()
        else:
            assert seconds is not None, f"{open_jobs} jobs never end"
            self.loop.now += max(seconds, 0.001)
            assert self.loop.now < _LIMIT_SECONDS, f"{open_jobs} jobs do not end"

    def _check(self) -> None:
        """A job that may run and a slot that may run it never stand side by side."""
        crew = self.crew
        free = self.concurrency - crew.running()
        if not free:
            return
        for part, log in zip(self.worker._parts, self.logs, strict=True):
            feed = crew.feed if part.host is None else part.host.feed
            if feed._paused or feed.allowed(1) <= 0:
                continue
            assert not crew.feed.buffer, f"{free} slots are free, and jobs lie in the buffer"
            assert part.gates is not None
            queues, tasks = part.gates.claimable(None, frozenset(self.apps[0].tasks))
            assert not log.has_ready(queues, tasks), f"{free} slots are free, {log.tag} has jobs"
            self.checks += 1

    def _arrive(self) -> None:
        count = self.random.randint(1, 2 * self.concurrency)
        kind = self.random.choice(_KINDS)
        for _ in range(count):
            if self.random.random() < 0.5:
                kind = self.random.choice(_KINDS)
            task = self.random.choice(self.jobs.tasks[-self.tasks :])
            self.random.choice(self.apps).put(task, kind)
        self.put += count

    def _act(self, seconds: float | None) -> None:
        acts = {
            self._arrive: 6, self._arrive_one_by_one: 4, self._let_go: 6,
            lambda: self._wait(seconds): 4, self._switch: 2, self._pause: 1, self._cancel_slot: 1,
            self._cancel_job: 2, self._surrender: 1, self._stop: 1,
        }  # fmt: skip
        (act,) = self.random.choices(list(acts), list(acts.values()))
        act()

    def _arrive_one_by_one(self) -> None:
        left = self.random.randint(1, 8)

        def one() -> None:
            nonlocal left
            left -= 1
            task = self.random.choice(self.jobs.tasks[: self.tasks])
            self.random.choice(self.apps).put(task, self.random.choice(_KINDS))
            self.put += 1
            if left > 0 and self.worker._phase is Phase.RUNNING:
                self.logs[0]._later(one)

        one()

    def _let_go(self) -> None:
        self.jobs.let_go(self.random.randint(1, self.concurrency))

    def _wait(self, seconds: float | None) -> None:
        self.loop.now += self.random.choice((0.01, 0.3, 1.0, seconds or 0.0))

    def _switch(self) -> None:
        self.jobs.is_on = not self.jobs.is_on

    def _pause(self) -> None:
        log = self.random.choice(self.logs)
        log.paused ^= {self.random.choice(("default", "other"))}
        log._serve_soon()

    def _cancel_slot(self) -> None:
        slots = sorted(self.crew.slots, key=lambda idle: idle.task.get_name())
        if slots:
            self.random.choice(slots).task.cancel()

    def _cancel_job(self) -> None:
        running = {token: each.job for log in self.logs for token, each in log.running.items()}
        if running:
            token = self.random.choice(sorted(running))
            CancelListener(self.crew)._stop((running[token], token))

    def _stop(self) -> None:
        """Stop while jobs come, whose claims are answered meanwhile."""
        self._arrive_one_by_one()
        self.random.choice(self.logs)._later(self.worker.request_stop)

    def _surrender(self) -> None:
        for settlement in self.crew.surrender():
            self.logs[int(settlement.delivery.tag[3:])].end(settlement)


#: The longest pause of a log with jobs while a slot is free, and while none is, unless it is ahead
#: of the others.
IDLE_SECONDS: Final = 0.1
STILL_SECONDS: Final = 1.0
#: How many times the share of one log another may have.
SHARE: Final = 1.3
#: How far logs may be apart besides, in turns: a job, and what lies here when the run ends.
APART: Final = 2.0
_RUN_SECONDS: Final = 12.0
_RUN_JOBS: Final = 1_500
_STEP_SECONDS: Final = 0.02


class SharedLog(Log):
    """A log with any number of jobs, or without.

    Attributes:
        seconds: time of each job. answers: seconds until it answers a claim.
        moments: its jobs begin and end at these, in turn; seconds from the start.
        stalls: begin and end of a time without any answer.
        still: the moment since which it began none of its jobs, although it has some.
        owed: jobs due to it by its weight since it has some, less begun ones; below 0 it
            is ahead.
        passed: since when it was owed too many.
    """

    def __init__(self, tag: Tag, random: Random, seconds: float, answers: float) -> None:
        super().__init__(random, tag)
        self.seconds, self.answers = seconds, answers
        self.weight = 1
        self.moments: list[float] = []
        self.stalls: tuple[float, float] = (0.0, 0.0)
        self.template: Delivery
        self.still: float | None = None
        self.owed = 0.0
        self.passed: float | None = None
        self.begun = 0
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

    def is_stalled(self, moment: float) -> bool:
        # Logs with one answer time have jobs from that time on, also after rounding.
        return self.stalls[0] <= moment < self.stalls[1] + self.answers - 1e-9

    def switch(self) -> None:
        self.has_jobs = not self.has_jobs
        self._serve()

    def end(self, item: Settlement) -> None:
        del self.running[item.delivery.token]

    def _take(self, request: ClaimRequest) -> list[Delivery]:
        taken = []
        for _ in range(request.count if self.has_jobs else 0):
            self._tokens += 1
            taken.append(self.template._replace(tag=self.tag, token=self._tokens))
            self.running[self._tokens] = taken[-1]
        return taken

    def _put_back(self, deliveries: list[Delivery]) -> None:
        """Have them again: it has any number of them."""

    def _later(self, call: Callable[[], object]) -> None:
        """Call in half the time that it takes to answer, or once it answers again."""
        loop, (begin, end) = asyncio.get_running_loop(), self.stalls
        moment = loop.time() + self.answers / 2
        loop.call_at(end if begin <= moment < end else moment, call)


class Run:
    """One worker over some logs; ``main`` raises AssertionError where one of them is wronged."""

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
        self.running = self.checks = 0
        #: when a job began last, or a slot became free
        self.moved = 0.0
        self.worker: Worker

    async def main(self) -> None:
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
        apps = [App(log, log.tag) for log in self.logs]
        by_name = {log.tag: log for log in self.logs}

        async def act(name: str) -> None:
            log = by_name[Tag(name)]
            log.begun += 1
            log.still = log.passed = None
            self._share(log)
            self._check_buffer(log)
            self.running += 1
            self.moved = self.loop.now
            await asyncio.sleep(log.seconds)
            if self.running == self.slots:
                self.moved = self.loop.now
            self.running -= 1

        task = apps[0].task(name="act")(act)
        for log, app in zip(self.logs, apps, strict=True):
            app.hooks = apps[0].hooks
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

    def _has_jobs(self, log: SharedLog) -> bool:
        if log.is_stalled(self.loop.now):
            return False
        return log.has_jobs or self._buffered(log) > 0

    def _share(self, begun: SharedLog) -> None:
        """Share the debt of a begun job among all logs with jobs, by weight.

        A log gets ahead while the claim of another is under way: by its jobs here, waiting or
        running. Then it may stand, until the other has caught up.
        """
        rivals = [log for log in self.logs if log is begun or self._has_jobs(log)]
        part = 1 / sum(log.weight for log in rivals)
        for log in self.logs:
            log.owed += part * log.weight
            if log not in rivals:
                log.owed = min(log.owed, 0.0)
        # No other log had jobs while it began these.
        begun.owed = begun.owed - 1 if len(rivals) > 1 else 0.0
        assert -begun.owed <= 3 * self.slots + APART, f"{begun.tag} is {-begun.owed:.1f} jobs ahead"

    def _check(self, log: SharedLog) -> None:
        """No log stands still while slots are free, nor long while others take its turns."""
        now = self.loop.now
        if not self._has_jobs(log):
            log.still = log.passed = None
            log.owed = min(log.owed, 0.0)
            return
        if log.still is None:
            log.still = now
        idle = now - max(log.still, self.moved)
        in_time = self.running == self.slots or idle <= IDLE_SECONDS
        assert in_time, f"{log.tag} stands {idle:.3f} s beside a free slot"
        self.checks += 1
        # Jobs of others may have taken all slots just before it was known to have some.
        owed = log.owed / log.weight - self.slots / self.weights
        if now - log.still <= STILL_SECONDS or owed <= SHARE / log.weight + APART:
            log.passed = None
        elif log.passed is None:
            log.passed = now
        else:
            waits = now - log.passed <= IDLE_SECONDS
            assert waits, f"{log.tag} stands {now - log.still:.1f} s, and is owed {owed:.1f} turns"

    def _check_shares(self) -> None:
        turns = {log.tag: log.begun / log.weight for log in self.logs if log.is_steady}
        if turns:
            least, most = min(turns.values()), max(turns.values())
            assert most <= SHARE * least + APART, f"unfair: {turns}"


# How schedules are run, the same each time.


class _Unwatched:
    """In place of the watch over the loop, which asks on the real clock."""

    def __init__(self, *_: object) -> None: ...

    async def run(self, _: object, *, task_status: TaskStatus[None]) -> None:
        task_status.started()


async def _routed(_: object) -> bool:
    return False


def make_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing in a worker depend on how fast the machine is, nor on its network."""
    monkeypatch.setattr(pool, "LoopWatch", _Unwatched)
    monkeypatch.setattr(gate.Breaker, "_is_away", _routed)


def run_seeds(kind: type[Schedule | Run], seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    for seed in seeds:
        # Slots that let the loop turn after each job, and such that never do.
        monkeypatch.setattr(slots, "TURN_SECONDS", 0.0 if seed % 3 == 0 else math.inf)
        schedule = kind(seed)
        loop = schedule.loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:  # noqa: B023
                try:
                    runner.run(schedule.main())
                finally:
                    loop.on_wait = None
        except BaseException as error:
            error.add_note(f"seed {seed}: {schedule.plan}")
            raise
        checks += schedule.checks
    assert checks > 4 * len(seeds)  # most schedules have 2 to 30
