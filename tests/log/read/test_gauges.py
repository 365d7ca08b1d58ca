"""The age of the oldest job, rates of endings, the last hour, and the engine's figures."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import State, TaskQ, retry
from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.core.views import EngineStats, OwnerView, QueueStats, Serving, Waiting
from taskq.engine import Moment
from taskq.log.commit.committer import engine_stats
from taskq.log.format import record
from taskq.log.format.frames import Frame
from taskq.log.read import gauges
from taskq.log.read.diagnosis import past_standing, standing
from taskq.log.read.gauges import Gauges
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.testing import FakeClock
from taskq.views import STATES
from tests.log.world import PATH, Process, World

_MAIL: Final = EnqueueSpec("mail", "mail.send")


def _queues(process: Process) -> dict[str, QueueStats]:
    process.journal.refresh()
    facets = process.committer.facets
    facets.catch_up()
    agenda = facets.need_agenda()
    now_ns = process.world.clock.wall_ns()
    agenda.promote(now_ns)
    return {queue.queue: queue for queue in process.committer.gauges.queues(agenda, now_ns)}


def _rate(process: Process, queue: str = "mail") -> float | None:
    return _queues(process)[queue].throughput_per_second


def _engine(process: Process) -> EngineStats:
    return engine_stats(process.committer)


def test_the_age_of_a_job_whose_frame_is_damaged_is_not_made_up_and_others_are_known() -> None:
    world = World()
    first = world.process()
    first.enqueue(spec=_MAIL)
    world.clock.advance(9)
    first.enqueue(spec=EnqueueSpec("other"))
    second = world.process()
    agenda = second.catch_up().agenda
    assert agenda is not None
    queues = Gauges(second.journal).queues(agenda, world.clock.wall_ns())
    assert [queue.oldest_ready_seconds for queue in queues] == [9, 0]
    world.machine.corrupt(world.segments()[0], 70, bytes(60))
    queues = Gauges(second.journal).queues(agenda, world.clock.wall_ns())
    assert [queue.oldest_ready_seconds for queue in queues] == [None, 0]


def _end(process: Process, count: int) -> None:
    for _ in range(count):
        process.enqueue(spec=_MAIL)
    for number, delivery in enumerate(process.claim(count)):
        process.settle(delivery, Kind.DEAD if number % 2 else Kind.SUCCEEDED)


def test_throughput_is_what_ended_over_the_last_minute() -> None:
    world = World()
    first = world.process()
    first.claim()
    for _ in range(90):
        _end(first, 2)
        world.clock.advance(1)
    assert _rate(first) == pytest.approx(2, abs=0.1)
    world.clock.advance(30)
    assert _rate(first) == pytest.approx(1, abs=0.1)
    world.clock.advance(40)
    assert _rate(first) == 0


def test_the_engine_counts_batches_records_bytes_and_payload() -> None:
    world = World()
    first = world.process()
    size = len(world.machine.content(world.segments()[0]))
    for _ in range(4):
        first.enqueue(b"x" * 100)
    first.enqueue(b"y" * 50, Extras(headers={"a": "b"}))
    engine = _engine(first)
    assert (engine.batches, engine.records) == (5, 5)
    assert engine.batch_records.mean == engine.batch_records.max == 1
    assert engine.batch_histogram == ((1, 5),)
    assert engine.payload_bytes == 450
    assert engine.appended_bytes == len(world.machine.content(world.segments()[0])) - size
    first.journal.meters.upkeep_bytes += 900
    assert _engine(first).upkeep_bytes == engine.upkeep_bytes + 900


def test_fsyncs_are_timed_and_slow_ones_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    first = world.process()
    seconds = iter([0.002, 0.002, 0.002, 2.0])

    def on_step(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            world.clock.advance(next(seconds))

    before = _engine(first).sync_seconds.count
    world.machine.on_step = on_step
    for _ in range(4):
        first.enqueue()
    engine = _engine(first)
    assert engine.sync_seconds.count == before + 4
    assert engine.sync_seconds.p50 == pytest.approx(0.002, rel=0.125)
    assert engine.sync_seconds.max == 2
    assert engine.slow_syncs == 1
    assert [record.getMessage() for record in caplog.records] == [f"{PATH}: an fsync took 2.0 s"]
    assert engine.lock_hold_seconds_max < 1, "the disk's time is not the lock's"


MINUTE_NS = 60 * 10**9


def total(reader: LogReader) -> Counter[str]:
    counts: Counter[str] = Counter()
    for minute in reader.last_hour().minutes():
        counts.update(minute.counts)
    return counts


def fill(path: Path, good: int, bad: int) -> None:
    with TaskQ(path, durability="os", upkeep=False) as app:

        @app.task(name="work", retry=retry.fixed(2, 0))
        async def work(fails: bool) -> None:
            if fails:
                raise ValueError

        work.enqueue_many_sync([(number < bad,) for number in range(good + bad)])
        app.run_worker(burst=True)


def test_outcomes_are_counted_once_up_to_a_moment_and_only_what_is_new_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 5, 2)
    with LogReader.open(str(tmp_path)) as reader:
        assert total(reader) == {"enqueued": 7, "succeeded": 5, "retried": 2, "dead": 2}
        fill(tmp_path, 1, 0)
        looked: list[int] = []
        places = record.places

        def watched(frame: Frame) -> Iterator[tuple[int, int, int]]:
            looked.append(frame.header.first_lsn)
            return places(frame)

        monkeypatch.setattr(gauges, "places", watched)
        before = reader.extent.lsn
        reader.refresh()
        assert total(reader) == {"enqueued": 8, "succeeded": 6, "retried": 2, "dead": 2}
        assert min(looked) >= before
        assert total(reader) == {"enqueued": 8, "succeeded": 6, "retried": 2, "dead": 2}
    with LogReader.open(str(tmp_path), at=Moment(lsn=before - 1)) as reader:
        assert total(reader) == {"enqueued": 7, "succeeded": 5, "retried": 2, "dead": 2}


def test_an_hour_is_sixty_minutes_that_move_on(tmp_path: Path) -> None:
    fill(tmp_path, 1, 0)
    with LogReader.open(str(tmp_path)) as reader:
        clock = FakeClock(reader.journal.time_ns / 10**9)
    with LogReader.open(str(tmp_path), clock) as reader:
        minutes = reader.last_hour().minutes()
        assert len(minutes) == gauges.MINUTES
        assert minutes[-1].begin_ns <= clock.wall_ns() < minutes[-1].begin_ns + MINUTE_NS
        assert [b.begin_ns - a.begin_ns for a, b in pairwise(minutes)] == (
            [MINUTE_NS] * (gauges.MINUTES - 1)
        )
        assert minutes[-1].counts == {"enqueued": 1, "succeeded": 1}
        clock.advance((gauges.MINUTES - 1) * 60)
        reader.refresh()
        assert [*reader.last_hour().paces()] == [("default", "work")]
        clock.advance(60)
        reader.refresh()
        assert not reader.last_hour().paces()


@pytest.mark.parametrize("names_max", [100_000, 0])
def test_each_queue_and_task_has_a_pace_of_its_own(
    tmp_path: Path, names_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of jobs whose birth was not kept in mind: it is looked up."""
    monkeypatch.setattr(gauges, "_NAMES_MAX", names_max)
    fill(tmp_path, 5, 2)
    with TaskQ(tmp_path, durability="os", upkeep=False) as app:

        @app.task(name="rest", queue="night")
        async def rest() -> None: ...

        rest.enqueue_sync()
    with LogReader.open(str(tmp_path)) as reader:
        hour = reader.last_hour()
        assert sum(minute.waiting for minute in hour.minutes()) == 1
        assert sum(minute.running for minute in hour.minutes()) == 0
        paces = hour.paces()
        assert set(paces) == {("default", "work"), ("night", "rest")}
        work = paces["default", "work"]
        assert work.counts == {"enqueued": 7, "succeeded": 5, "retried": 2, "dead": 2}
        assert sum(work.minutes) == len(work.took_ns) == 9
        assert 0 < min(work.took_ns) <= max(work.took_ns) < MINUTE_NS
        failed = reader.job(work.failed[1])
        assert failed is not None
        assert failed.state is State.DEAD
        assert paces["night", "rest"] == ({"enqueued": 1}, (0,) * gauges.MINUTES, (), (0, 0))
        assert reader.lanes()["default", "work"] == {
            **dict.fromkeys(STATES, 0), "succeeded": 5, "dead": 2
        }  # fmt: skip


def test_processes_that_are_gone_are_listed_with_when_they_were_last_seen(tmp_path: Path) -> None:
    fill(tmp_path, 3, 0)
    with LogReader.open(str(tmp_path)) as reader:
        ((owner, seen_ns),) = reader.gone()
        assert (owner.pid, owner.alive) == (os.getpid(), False)
        assert "Python 3" in owner.version
        assert owner.started_ns < seen_ns <= reader.journal.time_ns
        assert sum(reader.last_hour().work()[owner.owner]) == 3


MAIL = {("mail", "send"): Waiting(110)}


def owner(
    pid: int, running: int = 0, *, alive: bool = True, tasks: tuple[str, ...] = ("send",)
) -> OwnerView:
    serves = (Serving(tasks=frozenset(tasks), slots=8),) if alive and tasks else ()
    return OwnerView(
        owner=pid, pid=pid, host="h", name="n", started_ns=0,
        alive=alive, running=running, serves=serves,
    )  # fmt: skip


DEAD = owner(7, running=3, alive=False)
WORKER = owner(1, running=2)
WAITING = QueueStats(queue="mail", ready=110, oldest_ready_seconds=20.0)


@pytest.mark.parametrize(
    ("queues", "owners", "waiting", "level", "text"),
    [
        ((), (), {}, "well", "No worker runs, and no job waits"),
        ((WAITING,), (DEAD,), MAIL, "bad",
         "No worker runs: 110 jobs wait, 3 were running when theirs died"),
        ((), (owner(7, 1, alive=False),), {}, "bad",
         "No worker runs: 1 was running when theirs died"),
        ((QueueStats(queue="a", ready=1),), (owner(2, tasks=()),), {("a", "t"): Waiting(1)}, "bad",
         "No worker runs: 1 job waits"),
        ((QueueStats(queue="a", scheduled=2),), (), {}, "slow",
         "No worker runs: 2 jobs are due later"),
        ((QueueStats(queue="a", ready=2, scheduled=1, paused=True),), (), {}, "slow",
         "No worker runs: 2 jobs wait in a paused queue, 1 job is due later"),
        ((QueueStats(queue="a", scheduled=2),), (owner(1),), {}, "well",
         "1 worker runs no job just now, 2 are due later"),
        ((QueueStats(queue="a", ready=2),), (), {}, "slow",
         "2 jobs wait for a program that claims them"),
        ((QueueStats(queue="a", ready=2),), (owner(2, 1, tasks=()),), {}, "well",
         "1 worker runs 1 job, 2 wait"),
        ((), (WORKER,), {}, "well", "1 worker runs 2 jobs, none waits"),
        ((), (owner(1), owner(2)), {}, "well", "2 workers run no job just now, none waits"),
        ((WAITING,), (WORKER, DEAD), MAIL, "slow",
         "3 jobs were running when their process died: a worker takes them back"),
        ((QueueStats(queue="mail", ready=1, oldest_ready_seconds=420.0),), (WORKER,), {}, "slow",
         "1 worker runs 2 jobs, 1 waits, the oldest for 7m"),
        ((QueueStats(queue="mail", ready=5, oldest_ready_seconds=420.0, paused=True),), (WORKER,),
         {}, "slow", "Queue mail is paused: 5 jobs wait"),
    ],
)  # fmt: skip
def test_the_worst_finding_comes_first(
    queues: tuple[QueueStats, ...], owners: tuple[OwnerView, ...],
    waiting: dict[tuple[str, str], Waiting], level: str, text: str,
) -> None:  # fmt: skip
    stands = standing(queues, owners, waiting, {})
    assert (stands.level, stands.text) == (level, text)


@pytest.mark.parametrize("waits", [Waiting(1), Waiting(paused=1), Waiting(later=1)])
def test_jobs_without_a_worker_paused_or_due_later_come_before_what_goes_well(
    waits: Waiting,
) -> None:
    stands = standing((WAITING,), (WORKER,), {("mail", "ghost"): waits}, {})
    assert [remark.level for remark in stands.remarks] == ["bad", "well"]
    assert stands.text.startswith("1 job waits that no worker knows: ghost (1)")
    assert stands.strays.by_task == {"ghost": 1}
    elsewhere = OwnerView(
        owner=1, pid=1, host="h", name="n", started_ns=0, alive=True,
        serves=(Serving(queues=frozenset({"other"})),),
    )  # fmt: skip
    stands = standing((WAITING,), (elsewhere,), {("mail", "send"): waits}, {})
    level = "bad" if waits == Waiting(1) else "slow"
    assert (stands.level, stands.strays.by_queue) == (level, {"mail": 1})


@pytest.mark.parametrize(
    ("rest", "texts"),
    [
        ({"problems": ("An fsync failed",)}, ["An fsync failed"]),
        ({"stopped": frozenset({1})},
         ["Process 1 is stopped by a signal with 2 jobs: let it go on with kill -CONT 1",
          "No worker runs: 110 jobs wait"]),
    ],
)  # fmt: skip
def test_what_stops_the_work_comes_first(rest: dict[str, Any], texts: list[str]) -> None:
    stands = standing((WAITING,), (WORKER,), MAIL, {}, **rest)
    assert [remark.text for remark in stands.remarks][: len(texts)] == texts
    assert stands.workers == ("stopped" not in rest)


def test_of_a_moment_only_counts_are_known() -> None:
    assert past_standing((WAITING,)).text == "0 jobs were running, 110 waited"
    assert past_standing(()).level == "well"


def test_jobs_that_wait_inside_a_run_are_counted_by_what_they_wait_for() -> None:
    waits = {"signal 'paid'": 3, "2 jobs that it called": 1}
    text = "No worker runs: 3 jobs wait for signal 'paid', 1 job waits for 2 jobs that it called"
    assert standing((QueueStats(queue="a", scheduled=4),), (), {}, waits).text == text
    stands = standing((QueueStats(queue="a", scheduled=6),), (), {}, waits)
    assert stands.text == f"{text}, 2 jobs are due later"
