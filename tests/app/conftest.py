"""The front ends that have one contract; see ``test_contract.py``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest

from taskq import Put, Record, Shards, State, TaskLog, TaskQ, _native
from taskq.connection import tracing
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import Delivery
from taskq.testing import TravelClock, use_clock
from taskq.views import JobView

#: An app in Python, awaited and by its blocking twins; a log likewise; an app over shards; the app
#: that a job of one of several logs has; an app whose plain jobs run in C.
KINDS: Final = ("app", "app blocking", "log", "log blocking", "shards", "several logs", "C")


def without(*kinds: str, because: str) -> pytest.MarkDecorator:
    """Leave out the front ends without such a call."""
    assert because
    kept = [kind for kind in KINDS if kind.partition(" blocking")[0] not in kinds]
    return pytest.mark.parametrize("front", kept, indirect=True)


def work(body: str) -> str:
    if body == "bad":
        raise ValueError("order 17 is bad")
    return body


class Front:
    def __init__(self, kind: str, path: Path, **more: Any) -> None:
        self.kind, self.path = kind, path
        self.blocks, self.is_log = kind.endswith("blocking"), kind.startswith("log")
        options = {
            "durability": "os", "segment_bytes": SEGMENT_BYTES_MIN, "upkeep": False, **more
        }  # fmt: skip
        self.holder: Any
        if self.is_log:
            self.holder = TaskLog.open(path, **options)
        elif kind == "shards":
            self.holder = TaskQ(shards=Shards(path), **options)
        else:
            self.holder = TaskQ(path, **options)
        self.clock = TravelClock()
        use_clock(self.holder, self.clock)
        if not self.is_log:
            self.work = self.holder.task(name="work", retry=2)(work)
        if kind == "several logs":
            self.own = self.holder
            self.own.data_dir = path.with_name("own")
            self.holder = self.own.over(path)
        self._below: list[TaskLog] = []
        self._homes: dict[str, TaskLog] = {}

    async def again(self, **options: Any) -> Front:
        """Close it; return another opener of the same directory, such as with other options."""
        await self.ask("close")
        return Front(self.kind, self.path, **options)

    async def __aenter__(self) -> Self:
        await self.holder.__aenter__()
        for log in self.holder.logs():
            self.clock.note(log.connection)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.ask("close")

    async def ask(self, name: str, *args: Any, of: Any = None, **options: Any) -> Any:
        of = self.holder if of is None else of
        if self.blocks:
            return await asyncio.to_thread(getattr(of, f"{name}_sync"), *args, **options)
        return await getattr(of, name)(*args, **options)

    async def dead(self, name: str, *args: Any, **options: Any) -> Any:
        return await self.ask(name, *args, of=self.holder.dead, **options)

    def payload(self, body: str) -> bytes:
        return body.encode() if self.is_log else b'{"body":"%s"}' % body.encode()

    def job(self, body: str = "x", **options: Any) -> Any:
        """Return a job for ``put_many`` or ``ingest``."""
        if self.is_log:
            return Put(payload=body.encode(), **options)
        return self.work.options(**options).call(body)

    async def put(self, body: str = "x", **options: Any) -> str:
        if self.is_log:
            return str(await self.ask("put", body.encode(), **options))
        if self.kind == "several logs":
            return str((await self.ask("enqueue", self.job(body, **options))).id)
        of = self.work.options(**options) if options else self.work
        return str((await self.ask("enqueue", body, of=of)).id)

    async def put_many(self, *jobs: Any) -> list[str]:
        if self.is_log:
            return list(await self.ask("put_many", jobs))
        return [job.id for job in await self.ask("enqueue_many", jobs)]

    async def ingest(self, source: str, jobs: Any, position: Any, **options: Any) -> list[str]:
        done = await self.ask("ingest", source, jobs, position, **options)
        return [getattr(job, "id", job) for job in done]

    async def cancel(self, job: str) -> bool:
        if self.is_log:
            return bool(await self.ask("cancel", job))
        return bool(await self.ask("cancel", of=self.holder.job(job)))

    async def view(self, job: str) -> JobView:
        if self.is_log:
            view: JobView = await self.ask("get", job)
        else:
            view = await self.ask("view", of=self.holder.job(job))
        return view

    async def state(self, *jobs: str) -> Any:
        states = [State((await self.view(job)).state) for job in jobs]
        return states if len(jobs) > 1 else states[0]

    async def count(self, name: str) -> int:
        return sum(getattr(queue, name) for queue in (await self.ask("stats")).queues)

    async def claim(self, count: int = 100, **options: Any) -> list[Delivery]:
        """Take jobs as a worker does, from each of its logs."""
        self._below = self._below or [TaskLog(log.connection) for log in self.holder.logs()]
        taken: list[Delivery] = []
        for log in self._below:
            claimed = await self.ask("claim", count, of=log, **options)
            self._homes |= {delivery.job_id: log for delivery in claimed}
            taken += claimed
        return taken

    async def settle(self, delivery: Delivery, name: str, *args: Any, **options: Any) -> Any:
        return await self.ask(name, delivery, *args, of=self._homes[delivery.job_id], **options)

    async def end_all(self, name: str = "ack", *args: Any, **options: Any) -> int:
        taken = await self.claim()
        for delivery in taken:
            await self.settle(delivery, name, *args, **options)
        return len(taken)

    async def fail_all(self) -> int:
        return await self.end_all("nack", "E: no", delay=0)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Enter and leave a block: a twin of its own where there is no event loop."""
        tx = self.holder.transaction()
        if not self.blocks:
            async with tx:
                yield tx
            return
        await asyncio.to_thread(tx.__enter__)
        try:
            yield tx
        except BaseException as error:
            await asyncio.to_thread(tx.__exit__, type(error), error, None)
            raise
        await asyncio.to_thread(tx.__exit__, None, None, None)

    async def records(self, **choice: Any) -> list[Record]:
        return [record async for record in self.holder.stream(follow=False, **choice)]

    async def compact_all(self) -> None:
        """Let go what was written so far, as far as nothing keeps it."""
        for _ in range(4):
            await self.cancel(await self.put(os.urandom(20_000).hex(), queue="filler"))
        for log in self.holder.logs():
            await self.ask("compact", of=log, keep=0)

    async def run(self) -> None:
        if self.kind == "several logs":
            worker = self.own.worker(logs=[self.path], burst=True)
        else:
            worker = self.holder.worker(burst=True)
        await worker.run()


@pytest.fixture(params=KINDS)
async def front(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Front]:
    if request.param == "C" and not _native.is_on:
        pytest.skip("the extension is not compiled")
    monkeypatch.setattr(_native, "is_on", request.param == "C")
    # Other tests of this process may have had an app of several logs.
    monkeypatch.setattr(tracing, "_is_routed", False)
    monkeypatch.setattr(tracing, "is_on", False)
    front = Front(request.param, tmp_path / "log")
    async with front:
        yield front
    assert not (tmp_path / "own").exists(), "the job's own log gets all"
