"""A log is steered while it runs: tasks, slots and schedules, from any process and by any door."""

import asyncio
import os
from pathlib import Path
from typing import Final

import anyio
import pytest

from taskq import TaskQ
from taskq.core import controls
from taskq.core.controls import CONTROLS_MAX, Change
from taskq.core.errors import PayloadTooLarge, UsageError
from taskq.core.model import NAME_BYTES_MAX
from taskq.core.rates import Limit
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op
from taskq.testing.sandbox import FakeClock, use_clock
from taskq_workers.pool import Worker
from taskq_workers.services.scheduler import Scheduler
from tests.cli.helpers import taskq
from tests.log.upkeep.test_compaction import SMALL, grown, world_of
from tests.log.world import tend
from tests.programs import run_taskq

PAUSED: Final = Change("task:post", {"paused": True})
LIMITED: Final = Change("task:post", {"concurrency": 2, "rate": "3/min"})
MAIL: Final = EnqueueSpec("mail", "mail.send", attempts=0)


class Post:
    """Jobs of a task, each of which runs until it is let go."""

    def __init__(self, path: Path, aliases: tuple[str, ...] = ()) -> None:
        self.running = self.most = 0
        self.go = asyncio.Event()
        self.changed = asyncio.Condition()
        self.app = TaskQ(path, upkeep=False)

        @self.app.task(name="mail.send", queue="mail", aliases=aliases)
        async def send(n: int) -> int:
            await self.count(1)
            try:
                await self.go.wait()
            finally:
                await self.count(-1)
            return n

        self.send = send

    async def count(self, more: int) -> None:
        async with self.changed:
            self.running += more
            self.most = max(self.most, self.running)
            self.changed.notify_all()

    async def until(self, running: int) -> None:
        with anyio.fail_after(20):
            async with self.changed:
                await self.changed.wait_for(lambda: self.running == running)


async def test_a_worker_heeds_each_control_of_another_process_at_once(tmp_path: Path) -> None:
    post = Post(tmp_path)

    async def act(*words: str) -> None:
        await asyncio.to_thread(run_taskq, *words, "-d", tmp_path, check=True)

    async with post.app, post.app.worker(concurrency=6):
        await act("pause", "--task", "mail.send")
        jobs = await post.send.enqueue_many([(n,) for n in range(20)])
        reason = await post.app.why(jobs[0])
        assert "task 'mail.send' is paused" in reason.text
        assert "taskq resume --task mail.send" in reason.text
        standing = await post.app._read(lambda reader: reader.standing())
        assert "Task mail.send is paused: 20 jobs wait" in {text for _, text in standing.remarks}
        await act("slots", "3")
        await act("resume", "--task", "mail.send")
        await post.until(3)
        await act("limit", "mail.send", "-c", "2", "-r", "50/s")
        await act("slots", "--reset")
        post.go.set()
        assert [await job.result(timeout=20) for job in jobs] == list(range(20))
        assert post.most == 3


async def test_slots_grow_and_shrink_and_no_job_is_cut_off(tmp_path: Path) -> None:
    post = Post(tmp_path)
    async with post.app, Worker(post.app, concurrency=2) as worker:
        jobs = await post.send.enqueue_many([(n,) for n in range(30)])
        await post.until(2)
        await post.app.set_slots(9)
        await post.until(9)
        await post.app.set_slots(1)
        with anyio.fail_after(20):
            while worker.concurrency != 1:
                await anyio.lowlevel.checkpoint()
        post.most = 0
        first, post.go = post.go, asyncio.Event()
        first.set()
        await post.until(1)
        assert post.most <= 9
        await post.app.set_slots(4, worker=os.getpid())
        await post.until(4)
        with pytest.raises(UsageError, match="no worker of this log has the process id 1"):
            await post.app.set_slots(4, worker=1)
        post.go.set()
        assert [await job.result(timeout=20) for job in jobs] == list(range(30))
        assert {len(await job.attempts()) for job in jobs} == {1}


async def test_all_names_of_a_task_are_steered(tmp_path: Path) -> None:
    post = Post(tmp_path, aliases=("mail.old",))
    async with post.app as app:
        await app.pause(task=post.send)
        assert set(await app.controls()) == {"task:mail.send", "task:mail.old"}
        job = await app.enqueue_by_name("mail.old", 1)
        assert (await app.why(job)).code.value == "paused"


@pytest.mark.parametrize("change", [PAUSED, LIMITED])
def test_a_control_outlives_compaction_and_a_kill(change: Change) -> None:
    world, process = world_of(SMALL)
    assert process.ask(Op.CONTROL, change) is True
    assert process.ask(Op.CONTROL, change) is False
    grown(process, 8)
    for _ in range(5):
        process.enqueue(b"x", spec=EnqueueSpec("mail", "post"))
    tend(process)
    process.kill()
    for agenda in (world.process().catch_up().need_agenda(), world.fold().need_agenda()):
        assert controls.values_of(agenda.controls) == {change.name: change.changes}
    other = world.process()
    few = ClaimRequest(5, tasks=frozenset({"post"}), wait_until_ns=0)
    assert len(other.ask(Op.CLAIM, few)) == (0 if change is PAUSED else 2)


def test_a_wish_comes_before_the_limit_of_the_code_and_gives_it_back() -> None:
    world, process = world_of(SMALL)
    for _ in range(20):
        process.enqueue(b"x", spec=MAIL)
    declared = {"mail.send": Limit(concurrency=3, scope="mail.send")}
    known = frozenset({"mail.send"})
    counts = []
    for wish in (None, 5, 0, 4, None):
        other = world.process()
        other.ask(Op.CONTROL, Change("task:mail.send", {"concurrency": wish}))
        request = ClaimRequest(9, tasks=known, wait_until_ns=0, limits=declared)
        counts.append(sum(len(it.ask(Op.CLAIM, request)) for it in (other, process)))
    assert counts == [3, 2, 15, 0, 0]


def test_controls_are_bounded_and_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _, process = world_of(SMALL)
    assert process.ask(Op.CONTROL, Change("alert:a", {"n": 1}, {}))
    assert not process.ask(Op.CONTROL, Change("alert:a", {"n": 2}, {}))
    assert process.ask(Op.CONTROL, Change("alert:a", {"n": 2}, {"n": 1}))
    with pytest.raises(PayloadTooLarge):
        process.ask(Op.CONTROL, Change("alert:a", {"n": "x" * 5_000}))
    monkeypatch.setattr(controls, "CONTROLS_MAX", 1)
    with pytest.raises(UsageError, match="the most is 1 of"):
        process.ask(Op.CONTROL, PAUSED)
    assert process.ask(Op.CONTROL, Change("alert:a", {"n": None}))
    assert CONTROLS_MAX == 10_000


@pytest.mark.parametrize("before", [controls.TASK, controls.ALERT])
@pytest.mark.parametrize("letter", ["n", "\ud800", "𝄞"])
def test_a_control_name_of_any_length_up_to_the_limit_comes_back(before: str, letter: str) -> None:
    world, process = world_of(SMALL)
    size = len(letter.encode("utf-8", "surrogatepass"))
    counts = {*range(1, NAME_BYTES_MAX // size + 1, 16 // size), NAME_BYTES_MAX // size}
    names = [before + letter * count for count in sorted(counts)]
    names.append("x" * controls.CONTROL_NAME_BYTES_MAX)
    for name in names:
        assert process.ask(Op.CONTROL, Change(name, {"n": 1}))
    for longer in (1, 1_000, 70_000):
        with pytest.raises(UsageError, match="name of the control"):
            process.ask(Op.CONTROL, Change("x" * longer + names[-1], {"n": 1}))
    agenda = world.process().catch_up().need_agenda()
    assert controls.values_of(agenda.controls) == {name: {"n": 1} for name in names}


# -- schedules ------------------------------------------------------------------------------------


async def test_a_schedule_is_added_changed_paused_removed_and_ticked_by_all(tmp_path: Path) -> None:
    clock = FakeClock(1_000_000_000)
    post, other = Post(tmp_path), TaskQ(tmp_path, upkeep=False)
    use_clock(post.app, clock)
    async with post.app as app:
        call = post.send.options(priority=8, headers={"a": "é"}, key="k").call(7)
        await app.schedules.add("eu", call, every="1h", catch_up="all")
        scheduler = Scheduler(TaskQ(tmp_path, upkeep=False))

        async def ticks(hours: float) -> list[tuple[str, int, bytes]]:
            clock.advance(hours * 3_600)
            await scheduler.look(app.store())
            jobs = await app.store().port().peek(99)
            for job in jobs:
                await app.job(job.job_id).cancel()
            return [(job.queue, job.priority, job.payload) for job in jobs]

        assert await ticks(0.1) == []
        assert await ticks(1) == [("mail", 8, b'{"n":7}')]
        await app.schedules.add("eu", post.send.call(8), every="2h", catch_up="all")
        assert await ticks(4) == [("mail", 5, b'{"n":8}')] * 2
        assert [await app.schedules.pause("eu") for _ in range(2)] == [True, False]
        assert await ticks(9) == []
        (view,) = await app.schedules.list()
        assert (view.task, view.rule, view.catch_up) == ("mail.send", "every 2:00:00", "all")
        assert (view.paused, len(view.next_ticks)) == (True, 3)
        assert await app.schedules.resume("eu")
        assert await ticks(2) == [("mail", 5, b'{"n":8}')]
        assert await app.schedules.remove("eu")
        assert await ticks(9) == []
        assert await app.schedules.list() == []
    await other.close()


async def test_a_schedule_of_the_code_is_not_replaced_by_an_added_one(tmp_path: Path) -> None:
    post = Post(tmp_path)
    async with post.app as app:
        await app.schedules.add("nightly", post.send.call(1), cron="0 4 * * *")
        app.schedule("nightly", post.send.call(2), cron="0 5 * * *")
        await Scheduler(app).look(app.store())
        (view,) = await app.schedules.list()
        assert view.rule == "0 5 * * *"
        with pytest.raises(UsageError, match="is in the code of a worker"):
            await app.schedules.add("nightly", post.send.call(1), cron="0 4 * * *")


async def test_an_added_schedule_wakes_a_worker_that_sleeps(tmp_path: Path) -> None:
    post = Post(tmp_path)
    post.go.set()
    async with post.app as app, app.worker():
        line = ("schedules", "add", "s", "mail.send", '{"n": 5}', "--every", "1s", "-Q", "mail")
        done = await asyncio.to_thread(taskq, *line, "-d", tmp_path)
        assert (done.exit_code, done.stdout) == (0, "s: added\n")
        with anyio.fail_after(20):
            async with post.changed:
                await post.changed.wait_for(lambda: post.most > 0)
        done = await asyncio.to_thread(taskq, "schedules", "remove", "s", "-d", tmp_path)
        assert done.stdout == "s: removed\n"
