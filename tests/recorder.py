"""A store that only notes what it is asked for: for tests that need no disk."""

from __future__ import annotations

import asyncio
from concurrent import futures
from typing import Any, cast

from taskq import TaskQ
from taskq.core.model import Extras, State
from taskq.core.parsing import Tag
from taskq.core.views import JobView
from taskq.log.requests import Duplicate, EnqueueSpec, Outcome, Plain
from taskq.log.store.store import Store


class Recorder:
    """Both the store and its ports."""

    tag = Tag("0123abcd")
    usable = True
    full = False

    def __init__(self, loop_futures: bool = True) -> None:
        self.items: list[tuple[EnqueueSpec, bytes, Extras | None]] = []
        self.outcomes: dict[int, Outcome] = {}
        self.views: dict[int, JobView] = {}
        self._keys: dict[bytes, int] = {}
        self._loop_futures = loop_futures

    def port(self) -> Recorder:
        return self

    @property
    def thread_port(self) -> Recorder:
        other = Recorder(loop_futures=False)
        other.items, other.outcomes, other.views = self.items, self.outcomes, self.views
        other._keys = self._keys
        return other

    def close(self) -> None:
        self.usable = False

    def enqueue(self, spec: EnqueueSpec, body: bytes, extras: Extras | None = None) -> Any:
        return self._answered(self._add(spec, body, extras))

    def enqueued(self, spec: EnqueueSpec, body: bytes, extras: Extras | None) -> int | Duplicate:
        return self._add(spec, body, extras)

    def enqueue_many(self, items: list[tuple[EnqueueSpec, bytes, Extras | None]] | Plain) -> Any:
        if isinstance(items, Plain):
            items = [(items.spec, body, None) for body in items.bodies]
        return self._answered([self._add(*item) for item in items])

    def outcome(self, lsn: int) -> Any:
        if lsn in self.outcomes:
            return self._answered(self.outcomes[lsn])
        return self._future()

    def view(self, lsn: int) -> Any:
        return self._answered(self.views.get(lsn))

    def settle(self, lsn: int, state: State, body: bytes | None = None, task: str = "") -> None:
        self.outcomes[lsn] = Outcome(state, body)
        self.views[lsn] = view_of(lsn, state, task)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.items]

    def _add(self, spec: EnqueueSpec, body: bytes, extras: Extras | None) -> int | Duplicate:
        key = None if extras is None else extras.key
        if key is not None and key in self._keys:
            return Duplicate(self._keys[key])
        self.items.append((spec, body, extras))
        lsn = len(self.items)
        if key is not None:
            self._keys[key] = lsn
        return lsn

    def _future(self) -> Any:
        if self._loop_futures:
            return asyncio.get_running_loop().create_future()
        return futures.Future()

    def _answered(self, answer: object) -> Any:
        future = self._future()
        future.set_result(answer)
        return future


def view_of(lsn: int, state: State, task: str = "") -> JobView:
    return JobView(
        lsn=lsn,
        job_id=f"{Recorder.tag}-{lsn}",
        queue="default",
        task=task,
        priority=5,
        state=state,
        attempt=0,
        attempts_max=5,
        enqueued_ns=0,
    )


def record(app: TaskQ) -> Recorder:
    recorder = Recorder()
    app._connection.current = cast("Store", recorder)
    app._connection._tag = recorder.tag
    return recorder
