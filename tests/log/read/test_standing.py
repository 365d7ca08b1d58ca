"""A log's health in a sentence, the worst first."""

from __future__ import annotations

import pytest

from taskq.core.views import OwnerView, QueueStats, Serving, Waiting
from taskq.log.read.diagnosis import past_standing, standing

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
def test_the_worst_is_told_first(
    queues: tuple[QueueStats, ...],
    owners: tuple[OwnerView, ...],
    waiting: dict[tuple[str, str], Waiting],
    level: str,
    text: str,
) -> None:
    stands = standing(queues, owners, waiting, {})
    assert (stands.level, stands.text) == (level, text)


def test_jobs_that_wait_in_vain_are_told_before_what_goes_well() -> None:
    stands = standing((WAITING,), (WORKER,), {("mail", "ghost"): Waiting(1)}, {})
    assert [remark.level for remark in stands.remarks] == ["bad", "well"]
    assert stands.text.startswith("1 job waits that no worker knows: ghost (1)")
    assert stands.strays.by_task == {"ghost": 1}


@pytest.mark.parametrize("waits", [Waiting(paused=1), Waiting(later=1)])
def test_jobs_that_are_paused_or_due_later_wait_in_vain_as_well(waits: Waiting) -> None:
    stands = standing((WAITING,), (WORKER,), {("mail", "ghost"): waits}, {})
    assert stands.text.startswith("1 job waits that no worker knows: ghost (1)")
    elsewhere = OwnerView(
        owner=1, pid=1, host="h", name="n", started_ns=0, alive=True,
        serves=(Serving(queues=frozenset({"other"})),),
    )  # fmt: skip
    stands = standing((WAITING,), (elsewhere,), {("mail", "send"): waits}, {})
    assert (stands.level, stands.strays.by_queue) == ("slow", {"mail": 1})
    assert standing((WAITING,), (elsewhere,), MAIL, {}).level == "bad"


def test_a_stopped_worker_works_on_nothing_and_is_told_how_to_go_on() -> None:
    stands = standing((WAITING,), (WORKER,), MAIL, {}, stopped=frozenset({1}))
    assert stands.workers == 0
    assert stands.text == (
        "Process 1 is stopped by a signal with 2 jobs: let it go on with kill -CONT 1"
    )
    assert stands.remarks[1].text == "No worker runs: 110 jobs wait"


def test_what_is_wrong_with_the_log_itself_comes_first() -> None:
    stands = standing((WAITING,), (DEAD,), MAIL, {}, problems=("An fsync failed",))
    assert stands.text == "An fsync failed"


def test_of_a_moment_only_counts_are_known() -> None:
    assert past_standing((WAITING,)).text == "0 jobs were running, 110 waited"
    assert past_standing(()).level == "well"


def test_jobs_that_wait_within_their_run_are_told_by_what_they_wait_for() -> None:
    waits = {"signal 'paid'": 3, "2 jobs that it called": 1}
    text = "No worker runs: 3 jobs wait for signal 'paid', 1 job waits for 2 jobs that it called"
    assert standing((QueueStats(queue="a", scheduled=4),), (), {}, waits).text == text
    stands = standing((QueueStats(queue="a", scheduled=6),), (), {}, waits)
    assert stands.text == f"{text}, 2 jobs are due later"
