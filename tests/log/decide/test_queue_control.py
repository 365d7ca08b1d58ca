"""Queues that are paused and resumed, and waiting jobs that are cancelled by the many."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.views import QueueStats
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.read.selection import WaitingFilter, count_running, waiting_page
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Withdrawal
from tests.log.world import Process, World

MAIL = EnqueueSpec(queue="mail", task="send")
SYNC = EnqueueSpec(queue="sync", task="copy")
ALL = 2**62


def found(process: Process, **wanted: Any) -> list[int]:
    process.catch_up()
    return waiting_page(process.committer.sight, WaitingFilter(**wanted), 0, ALL, 10_000).items


def test_a_resume_wakes_claims_that_wait_here_and_sleepers_elsewhere() -> None:
    process = World().process()
    process.ask(Op.PAUSE, "mail")
    job = process.enqueue(spec=MAIL)
    waiting = process.send(Op.CLAIM, ClaimRequest(1))
    assert not waiting.done()
    future: Any = process.send(Op.RESUME, "mail")
    process.sync()
    assert future.result(0) is True
    assert [job.job for job in waiting.result(0)] == [job]
    process.ask(Op.PAUSE, "mail")
    committer = process.committer
    committer.commit([(Op.RESUME, None, None, "mail")])
    assert committer.take_interest() & INTEREST_READY


def test_withdrawing_many_cancels_those_that_wait_and_leaves_the_others() -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(spec=MAIL) for _ in range(4)]
    late = process.enqueue(spec=MAIL, extras=Extras(due_ns=60 * SECOND_NS))
    (running,) = process.claim()
    done = process.ask(Op.WITHDRAW, Withdrawal([*jobs[:3], late, 4_711], Cause.PURGE))
    assert done == [jobs[1], jobs[2], late]
    assert running.job == jobs[0]
    stats = QueueStats(queue="mail", ready=1, running=1, cancelled=3)
    assert process.catch_up().need_agenda().queues.stats() == (stats,)
    causes = {record.cause for record in world.records() if record.type == Kind.CANCELLED}
    assert causes == {str(Cause.PURGE)}
    process.settle(running)


def test_waiting_jobs_are_found_by_queue_task_state_and_age() -> None:
    world = World()
    process = world.process()
    old = process.enqueue(spec=MAIL)
    world.clock.advance(100)
    moment = world.clock.wall_ns()
    mail = process.enqueue(spec=MAIL)
    late = process.enqueue(spec=SYNC, extras=Extras(due_ns=60 * SECOND_NS))
    for wanted, expected in (
        ({}, [old, mail, late]),
        ({"queue": "mail"}, [old, mail]),
        ({"task": "copy"}, [late]),
        ({"queue": "mail", "task": "copy"}, []),
        ({"states": frozenset({State.READY})}, [old, mail]),
        ({"states": frozenset({State.SCHEDULED})}, [late]),
        ({"before_ns": moment}, [old]),
        ({"before_ns": moment + 1}, [old, mail, late]),
    ):
        assert found(process, **wanted) == expected, wanted
    world.clock.advance(60)
    assert found(process, states=frozenset({State.READY})) == [old, mail, late]
    (running,) = process.claim()
    assert found(process, queue="mail") == [mail]
    assert count_running(process.committer.sight, "mail", None) == 1
    assert count_running(process.committer.sight, "sync", None) == 0
    process.settle(running)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_together_find_every_waiting_job_once(limit: int) -> None:
    process = World().process()
    jobs = [process.enqueue(spec=MAIL) for _ in range(9)]
    process.catch_up()
    seen: list[int] = []
    start = 0
    while True:
        page = waiting_page(process.committer.sight, WaitingFilter(), start, jobs[8], limit)
        seen += page.items
        start = page.following
        if not start:
            break
    assert seen == jobs[:8]


def test_a_withdrawal_frees_keys_and_wakes_who_waits_for_the_outcome() -> None:
    process = World().process()
    job = process.enqueue(spec=MAIL, extras=Extras(key=b"k"))
    waiting = process.send(Op.OUTCOME, job)
    process.ask(Op.WITHDRAW, Withdrawal([job]))
    assert waiting.result(0).state is State.CANCELLED
    assert isinstance(process.offer(spec=MAIL, extras=Extras(key=b"k")), int)
