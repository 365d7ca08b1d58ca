"""Dead letters and paused queues where compaction takes the log away from under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskq.core.errors import JobNotFound
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.read.selection import WaitingFilter, letters, waiting_page
from taskq.log.requests import Duplicate, Op, Withdrawal
from tests.effort import grows, some
from tests.log.tending import fill_segment, meaning, tend
from tests.log.upkeep.test_compaction import KEYS, OTHER, SMALL, Random
from tests.log.world import World

if TYPE_CHECKING:
    from tests.log.world import Process


def dead_letter(process: Process, extras: Extras | None = None) -> int:
    """Of lower priority than what fills segments."""
    job = process.enqueue(b"payload", extras, OTHER)
    process.settle(process.claim()[0], Kind.RETRIED, body=b"first")
    process.settle(process.claim()[0], Kind.DEAD, body=b"second", cause=Cause.EXHAUSTED)
    return job


def compacted(process: Process) -> None:
    """Nothing of what was written so far is in its old place."""
    for _ in range(6):
        fill_segment(process)
    tend(process)
    assert len(process.world.segments()) <= 4


def requeue(process: Process, jobs: list[int]) -> list[Any]:
    process.catch_up()
    answers: list[Any] = process.ask(Op.REQUEUE, letters(process.committer.sight, jobs).items)
    return answers


def test_a_carried_letter_is_requeued_with_all_that_it_had() -> None:
    """Its payload, headers and key; and what is told of its attempts goes on."""
    world = World(config=SMALL)
    process = world.process()
    job = dead_letter(process, Extras(headers={"a": "b"}, key=b"k"))
    born_ns = world.clock.wall_ns()
    world.clock.advance(60)
    compacted(process)
    assert requeue(process, [job]) == [None]
    other = world.process()
    assert other.offer(b"y", Extras(key=b"k"), OTHER) == Duplicate(job)
    (delivery,) = other.claim()
    assert (delivery.job, delivery.attempt, delivery.payload) == (job, 1, b"payload")
    assert delivery.headers == {"a": "b"}
    other.settle(delivery, body=b"done")
    view = world.view(job)
    assert view is not None
    assert (view.state, view.result, view.enqueued_ns) == (State.SUCCEEDED, b"done", born_ns)
    assert [attempt.outcome for attempt in view.attempts] == ["retried", "dead", "succeeded"]
    assert [attempt.reason for attempt in view.attempts] == ["first", "second", ""]


def test_a_requeued_job_outlives_the_segments_of_its_first_life() -> None:
    world = World(config=SMALL)
    process = world.process()
    job = dead_letter(process)
    requeue(process, [job])
    for _ in range(2):
        compacted(process)
        view = world.view(job)
        assert view is not None
        assert (view.state, view.attempt, view.payload) == (State.READY, 0, b"payload")
        assert process.catch_up().need_agenda().attempt(job) == 0
    (delivery,) = world.process().claim()
    assert (delivery.job, delivery.attempt) == (job, 1)


def test_a_letter_that_died_twice_is_requeued_twice() -> None:
    world = World(config=SMALL)
    process = world.process()
    job = dead_letter(process)
    for _ in range(3):
        compacted(process)
        assert requeue(process, [job]) == [None]
        compacted(process)
        (delivery,) = process.claim()
        assert (delivery.job, delivery.payload, delivery.attempt) == (job, b"payload", 1)
        process.settle(delivery, Kind.DEAD, body=b"again")
    compacted(process)
    view = world.view(job)
    assert view is not None
    assert (view.state, view.reason) == (State.DEAD, "again")


@pytest.mark.parametrize("before", [True, False])
def test_a_purged_letter_does_not_come_back(*, before: bool) -> None:
    """Whether it was carried before it was purged, or purged before its segment went."""
    world = World(config=SMALL)
    process = world.process()
    job = dead_letter(process)
    if before:
        compacted(process)
    assert process.ask(Op.PURGE, [job]) == [None]
    compacted(process)
    assert world.view(job) is None
    for item in (process, world.process()):
        assert item.catch_up().need_agenda().dead.live == 0
        with pytest.raises(JobNotFound):
            item.ask(Op.OUTCOME, job)


def test_a_window_of_a_requeued_job_outlives_its_first_record() -> None:
    world = World(config=SMALL)
    process = world.process()
    extras = Extras(key=b"k", window_ns=3_600 * SECOND_NS)
    job = dead_letter(process, extras)
    requeue(process, [job])
    process.settle(process.claim()[0])
    compacted(process)
    assert world.process().offer(b"y", extras, OTHER) == Duplicate(job)
    world.clock.advance(3_601)
    assert isinstance(world.process().offer(b"y", extras, OTHER), int)


def test_a_resume_is_not_undone_by_the_pause_before_it() -> None:
    world = World(config=SMALL)
    process = world.process()
    process.ask(Op.PAUSE, "mail")
    process.ask(Op.PAUSE, "sync")
    fill_segment(process)
    process.ask(Op.RESUME, "mail")
    for _ in range(2):
        compacted(process)
        assert world.fold().need_agenda().queues.paused == {"sync"}


# -- any history ----------------------------------------------------------------------------------

ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "delay", "run", "fail", "die", "die", "hold", "fill", "tend", "pass",
             "step", "requeue", "requeue", "purge", "pause", "resume", "withdraw"]
        ),
        st.integers(0, 10**6),
        KEYS,
        st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


class History(Random):
    """A random history with requeues, purges and pauses."""

    def act(self, name: str, number: int, key: bytes | None, other: bool) -> None:
        process = self.processes[number % 2]
        if name in ("requeue", "purge"):
            agenda = process.catch_up().need_agenda()
            dead = [chunk.ids[index] for chunk, index in agenda.dead]
            jobs = sorted({dead[number % len(dead)], dead[number // 7 % len(dead)]}) if dead else []
            if name == "requeue":
                requeue(process, jobs)
            else:
                process.ask(Op.PURGE, jobs)
        elif name in ("pause", "resume"):
            queue = "other" if other else "default"
            process.ask(Op.PAUSE if name == "pause" else Op.RESUME, queue)
        elif name == "withdraw":
            process.catch_up()
            result = waiting_page(
                process.committer.sight, WaitingFilter(), 0, 2**62, number % 5 + 1
            )
            process.ask(Op.WITHDRAW, Withdrawal(result.items))
        else:
            super().act(name, number, key, other)

    def fill(self, process: Process) -> None:
        paused = process.catch_up().need_agenda().queues.paused
        for queue in sorted(paused):
            process.ask(Op.RESUME, queue)
        super().fill(process)
        for queue in sorted(paused):
            process.ask(Op.PAUSE, queue)


@given(acts=ACTS)
@grows
@settings(max_examples=some(20, 60), deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(180)
def test_requeues_purges_and_pauses_mean_the_same_after_compaction(
    acts: list[tuple[str, int, Any, bool]],
) -> None:
    run = History()
    for act in acts:
        run.act(*act)
    for process in run.processes:
        run.fill(process)
    run.act("tend", 0, None, False)
    now_ns = run.world.clock.wall_ns()
    live = [meaning(process.catch_up(), now_ns) for process in run.processes]
    assert live[0] == live[1]
    assert meaning(run.world.fold(), now_ns) == live[0]
