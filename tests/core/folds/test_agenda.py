"""Bounds and costs of ``Agenda``; ``test_agenda_machine`` holds the rest."""

from collections import Counter
from typing import Any

import pytest

from taskq.core.folds import agenda as agendas
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.jobtable import META_EXPIRES, META_FLOW, RUN_MIN
from taskq.core.folds.lanes import Lane
from taskq.core.folds.moments import LATEST, Ages
from taskq.core.model import ATTEMPTS_MAX, PRIORITY_MAX, State
from taskq.core.rates import Limit
from taskq.core.records import Kind
from tests.core.folds.test_freeze import picture

SECOND = 1_000_000_000
NOW = 1_000 * SECOND


def lane_of(agenda: Agenda, priority: int = 5, queue: str = "default", task: str = "t") -> Lane:
    key = bytes((len(queue), len(task))) + queue.encode() + task.encode()
    return agenda.queues.lane(priority, key)


def enqueue(agenda: Agenda, lane: Lane, *jobs: int, meta: int = 0) -> None:
    for job in jobs:
        agenda.apply_enqueued(job, job * 8, lane, meta)


def claim(agenda: Agenda, count: int = 1_000) -> list[int]:
    taken = [entry[0] for entry in agenda.order.take(count, None, None)]
    agenda.running.update(dict.fromkeys(taken, (1, 1, 1)))
    return taken


def test_due_jobs_turn_ready_a_bounded_number_at_a_time() -> None:
    """A million jobs of one moment must not hold the writer lock; each batch takes some."""
    agenda = Agenda()
    lane = lane_of(agenda)
    for job in range(1, agendas.PROMOTE_MAX + 11):
        agenda.apply_scheduled(job, 0, lane, 0, NOW, is_wall=False)
    agenda.promote(NOW)
    assert (lane.ready, lane.scheduled) == (agendas.PROMOTE_MAX, 10)
    assert agenda.next_due_ns() == NOW
    agenda.promote(NOW)
    assert (lane.ready, lane.scheduled) == (agendas.PROMOTE_MAX + 10, 0)
    assert agenda.next_due_ns() is None


def test_moments_beyond_all_bounds_are_kept_at_the_bound() -> None:
    """A foreign log may hold any 64-bit moment, and clocks that stepped by centuries."""
    agenda = Agenda()
    lane = lane_of(agenda)
    agenda.apply_clock(-(2**63))
    agenda.apply_scheduled(1, 0, lane, 0, 2**63 - 1, is_wall=False)
    agenda.apply_clock(2**63 - 1)
    agenda.apply_clock(2**63 - 1)
    agenda.apply_scheduled(2, 0, lane, 0, 5, is_wall=False)
    agenda.apply_scheduled(3, 0, lane, 0, -5, is_wall=True)
    agenda.promote(2**64)
    assert agenda.table.state(3) is State.READY


def test_attempts_are_counted_up_to_their_limit_and_no_further() -> None:
    agenda = Agenda()
    enqueue(agenda, lane_of(agenda), 1, meta=META_FLOW)
    assert claim(agenda) == [1]
    assert agenda.attempt(1) == 1
    for attempt in (ATTEMPTS_MAX - 1, ATTEMPTS_MAX, ATTEMPTS_MAX + 5, 2**32 - 1):
        agenda.apply_back(1, attempt, 0, NOW)
        assert agenda.attempt(1) == min(attempt, ATTEMPTS_MAX)
        ((_, _, counted, _, meta),) = agenda.order.take(1, None, None)
        assert counted == min(attempt + 1, ATTEMPTS_MAX)
        assert meta & META_FLOW
    assert agenda.attempt(2) == 0


@pytest.mark.parametrize("count", [RUN_MIN, RUN_MIN + 1, 3 * RUN_MIN])
@pytest.mark.parametrize("has_others_first", [False, True])
@pytest.mark.parametrize("of", ["plain jobs", "jobs that expire", "jobs with steps", "a limit"])
def test_settling_together_equals_settling_one_by_one(
    of: str, has_others_first: bool, count: int
) -> None:
    together, in_turn = Agenda(), Agenda()
    for agenda in (together, in_turn):
        if of == "a limit":
            agenda.groups.declare({"other": Limit(concurrency=100)}, NOW)
        others = range(1, count + 1) if has_others_first else range(count + 1, 2 * count + 1)
        for job in range(1, 2 * count + 1):
            expires = job in others and of == "jobs that expire"
            lane = lane_of(agenda, task="other" if job in others else "t")
            enqueue(agenda, lane, job, meta=META_EXPIRES if expires else 0)
            if expires:
                agenda.apply_expiry(job, NOW + job * SECOND, is_wall=False)
        jobs = claim(agenda)
        assert jobs == list(range(1, 2 * count + 1))
        for job in others if of == "jobs with steps" else ():
            agendas.apply_step(agenda, job, 1, (7 << 32) + job * 64, 0, b"")
    together.apply_succeeded(jobs)
    for job in jobs:
        assert in_turn.apply_ended(Kind.SUCCEEDED, job)
    assert picture(together) == picture(in_turn)


@pytest.mark.parametrize("priority", range(9))
def test_a_low_job_waits_at_most_ten_windows_under_constant_high_load(priority: int) -> None:
    """One job of the highest priority comes for each that is done, and never is there none."""
    agenda, now, window = Agenda(), 10**6, 100
    agenda.ages.window_ns = window
    high = lane_of(agenda, 9)
    agenda.begin_frame(1, now)
    enqueue(agenda, high, *range(1, 6))
    enqueue(agenda, lane_of(agenda, priority), 6)
    for job in range(7, 10**6):
        if claim(agenda, 1) == [6]:
            break
        now += 7
        agenda.begin_frame(job, now)
        enqueue(agenda, high, job)
    assert (9 - priority) * window <= now - 10**6 <= 10 * window


def test_a_claim_takes_the_oldest_aged_jobs_of_more_lanes_than_it_compares() -> None:
    agenda, jobs = Agenda(), range(1, 201)
    agenda.ages.window_ns = 100
    agenda.groups.declare({"t": Limit(concurrency=1_000)}, NOW)
    agenda.begin_frame(1, NOW)
    for job in jobs:
        enqueue(agenda, agenda.queues.lane(5, b"\x07\x01defaultt" + bytes((job,))), job)
    agenda.begin_frame(len(jobs) + 1, NOW + 1_000)
    assert claim(agenda, 100) + claim(agenda, 100) == [*jobs]


def test_while_nobody_is_old_a_claim_pays_one_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand lanes, ten thousand claims: the lanes are looked over about once a window."""
    looks: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def look(*args: Any) -> Any:
            looks[name] += 1
            return original(*args)

        monkeypatch.setattr(kind, name, look)

    for kind, name in ((Ages, "bounds"), (Lane, "waits_since"), (Lane, "pop_within")):
        count(kind, name)
    agenda, now = Agenda(), 10**6
    agenda.ages.window_ns = 64_000
    agenda.begin_frame(1, now)
    for number in range(1_000):
        lane = lane_of(agenda, number % 10, task=f"task{number}")
        agenda.apply_enqueued_run(1 + 10 * number, range(10), lane, 0)
    while jobs := claim(agenda, 7):
        now += 30
        agenda.promote(now)
        agenda.apply_succeeded(jobs)
    assert sum(lane.succeeded for lane in agenda.lanes) == 10_000
    assert looks["waits_since"] <= 2 * 1_000
    assert looks["bounds"] == looks["pop_within"] == 0


WINDOW_NS = 640
STEP = 10


def test_the_list_of_ages_stays_short_however_long_the_log() -> None:
    ages, off = Ages(WINDOW_NS), Ages(0)
    for lsn in range(1, 100_000):
        ages.note(lsn, lsn)
        off.note(lsn, lsn)
        assert ages.since(1) <= max(lsn - PRIORITY_MAX * WINDOW_NS, 1), "it has the highest level"
    assert len(ages) < 11 * 64
    assert 0 < ages.before(99_999 - WINDOW_NS) - (99_999 - WINDOW_NS) <= STEP
    assert (len(off), off.since(7), off.before(10**18)) == (0, LATEST, 0)


def test_a_clock_that_seems_to_fall_dates_nothing() -> None:
    ages = Ages(WINDOW_NS)
    for lsn, moment in ((1, 1_000), (6, 2_000), (20, 500), (30, -5)):
        ages.note(lsn, moment)
    assert len(ages) == 2
    assert ages.since(40) == 2_000
