"""A worker lets others know what it claims, for as long as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.views import Serving
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from tests.workers.fakes import FakeApp


async def test_a_worker_tells_its_queues_tasks_and_slots_until_it_drains(fake: FakeApp) -> None:
    @fake.task(name="first")
    async def first() -> None: ...

    async with Worker(fake, concurrency=3, queues=["mail"]) as worker:
        names, queues = frozenset({"first"}), frozenset({"mail"})
        assert fake.fake.served == [Serving(queues=queues, tasks=names, slots=3)]

        @fake.task(name="second")
        async def second() -> None: ...

        assert worker._task_names() == {"first", "second"}
        answer = fake.fake.served[-1]
        assert answer is not None
        assert answer.tasks == frozenset({"first", "second"})
    assert fake.fake.served[-1] is None
