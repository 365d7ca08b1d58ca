"""A log in memory, as far as a worker sees one: claims are answered and outcomes kept as told."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from taskq import TaskQ, progress
from taskq.core.errors import TaskqError
from taskq.core.folds.lanes import Lane
from taskq.core.model import Extras
from taskq.core.parsing import Tag
from taskq.core.records import Kind
from taskq.core.views import Waiting
from taskq.log.format import codec
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.store import Store
from taskq_workers.slots.settling import Settled


def make_delivery(spec: EnqueueSpec, body: bytes, *, job: int = 1, attempt: int = 1) -> Delivery:
    lane = Lane(0, spec.lane_key, spec.priority)
    record = codec.encode_checked(spec.tail, body, job)
    return Delivery(Tag("fake"), job, job + 1_000_000, 1, attempt, lane, record)


class FakePort:
    """Answers claims from ``ready``, a turn of the loop later, as the storage thread does."""

    def __init__(self) -> None:
        self.ready: deque[Delivery] = deque()
        self.claims: list[tuple[ClaimRequest, asyncio.Future[list[Delivery]]]] = []
        self.claimed_counts: list[int] = []
        self.settled: list[Settlement] = []
        self.refuse: Callable[[Settlement], TaskqError | None] = lambda _: None
        self.late = 0
        self._called = asyncio.Event()
        self._jobs = 0

    def put(self, spec: EnqueueSpec, body: bytes, *, attempt: int = 1) -> Delivery:
        self._jobs += 1
        delivery = make_delivery(spec, body, job=self._jobs, attempt=attempt)
        self.ready.append(delivery)
        self._serve_soon()
        return delivery

    def when_closed(self, _: object) -> Callable[[], None]:
        return _nothing

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; looked at whenever a worker called."""
        while not condition():
            self._called.clear()
            await self._called.wait()

    def poke(self) -> None:
        self._called.set()

    async def settlements(self, count: int) -> list[Settlement]:
        await self.until(lambda: len(self.settled) >= count)
        return self.settled

    def waiting(self) -> list[ClaimRequest]:
        return [request for request, future in self.claims if not future.done()]

    # A worker's calls.

    def claim(self, request: ClaimRequest) -> asyncio.Future[list[Delivery]]:
        future: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self.claims.append((request, future))
        self._serve_soon()
        return future

    def settle_soon(
        self, items: list[Settlement], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None:
        for item in items:
            error = self.refuse(item)
            if error is None:
                self.settled.append(item)
            else:
                asyncio.get_running_loop().call_soon(on_error, item, error)
        self._called.set()

    def succeed_soon(
        self, deliveries: list[Delivery], on_error: Callable[[Settlement, TaskqError], None]
    ) -> None:
        self.settle_soon(
            [Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries], on_error
        )

    def settle(self, items: list[Settlement]) -> asyncio.Future[list[Settled]]:
        future: asyncio.Future[list[Settled]] = asyncio.get_running_loop().create_future()
        answers: list[Settled] = [self.refuse(item) for item in items]
        self.settled += [item for item, error in zip(items, answers, strict=True) if error is None]
        asyncio.get_running_loop().call_soon(future.set_result, answers)
        self._called.set()
        return future

    async def look(self, look: Callable[..., object]) -> None:
        del look
        await asyncio.Event().wait()

    async def slots_wished(self, owner: int) -> None:
        del owner

    async def waiting_jobs(self) -> tuple[dict[tuple[str, str], Waiting], set[str]]:
        return {}, set()

    def surrender(self) -> list[Delivery]:
        """No answer ever waits here for the loop."""
        return []

    def _serve_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        left = []
        for request, future in self.claims:
            if future.done():
                continue
            taken = self._take(request)
            if taken or request.wait_until_ns is not None:
                self._answer(future, taken)
            else:
                left.append((request, future))
        self.claims = left
        self._called.set()

    def _take(self, request: ClaimRequest) -> list[Delivery]:
        count = min(request.count, len(self.ready))
        self.claimed_counts += [count] * bool(count)
        return [self.ready.popleft() for _ in range(count)]

    def _answer(self, future: asyncio.Future[list[Delivery]], taken: list[Delivery]) -> None:
        future.set_result(taken)


def _nothing(*_: object) -> None: ...


class _Store(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def fake_store(port: FakePort) -> Store:
    """Return the store of a port, which no other process has open."""
    store = _Store(
        owner=1, pulse=(0, False), thread_port=None, port=lambda: port, serve=_nothing,
        on_cancel=lambda _: _nothing, on_steering=lambda _: _nothing, live_workers=tuple,
        steady_ns=time.monotonic_ns, wall_ns=lambda: 0,
    )  # fmt: skip
    return cast("Store", store)


class FakeApp(TaskQ):
    """A TaskQ whose log is a ``FakePort``."""

    def __init__(self, port: FakePort | None = None) -> None:
        super().__init__("never-made")
        self.fake = port or FakePort()
        self.loop: asyncio.AbstractEventLoop

    async def open(self) -> FakeApp:
        return self

    def store(self) -> Store:
        return fake_store(self.fake)

    def put(self, task: Any, *args: Any, attempt: int = 1, **kwargs: Any) -> Delivery:
        call = task.call(*args, **kwargs)
        spec: EnqueueSpec = call.spec
        body: bytes = call.body
        extras: Extras | None = call.extras
        assert extras is None
        return self.fake.put(spec, body, attempt=attempt)


class Held:
    """A task whose runs last until ``end`` is set, with a report of progress if there is one.

    Attributes:
        runs: whether one has begun.
    """

    def __init__(self, app: TaskQ, report: str = "", **options: Any) -> None:
        self.runs, self.end = asyncio.Event(), asyncio.Event()

        async def hold(given: str = "") -> str:
            if report:
                await progress(0.5, report)
            self.runs.set()
            await self.end.wait()
            return "done"

        self.task: Any = app.task(**{"name": "hold", **options})(hold)
