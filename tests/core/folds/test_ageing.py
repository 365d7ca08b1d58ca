"""Waiting jobs rise: a level for each window, so that none of them waits for ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.lanes import Lane
from taskq.core.folds.moments import LATEST, NO_JOB, Ages
from taskq.core.records import Kind

ALL = 2**62
WINDOW = 100
START = 10**6


class Clocked:
    """An agenda with a clock; one frame for each thing that happens."""

    def __init__(self, window: int = WINDOW) -> None:
        self.agenda = Agenda()
        self.agenda.ages.window_ns = window
        self.now = START
        self.lsn = 0

    def lane(self, priority: int, task: str = "t") -> Lane:
        return self.agenda.queues.lane(priority, bytes((1, len(task))) + b"q" + task.encode())

    def enqueue(self, priority: int, count: int = 1, task: str = "t") -> int:
        first = self.lsn + 1
        self.lsn += count
        self.agenda.begin_frame(first, self.now)
        locations = [job * 8 for job in range(first, first + count)]
        self.agenda.apply_enqueued_run(first, locations, self.lane(priority, task), 0)
        return first

    def schedule(self, priority: int, due: int) -> int:
        self.lsn += 1
        self.agenda.begin_frame(self.lsn, self.now)
        lane = self.lane(priority)
        self.agenda.apply_scheduled(self.lsn, self.lsn * 8, lane, 0, due, is_wall=False)
        return self.lsn

    def wait(self, span: int) -> None:
        self.now += span
        self.agenda.promote(self.now, ALL)

    def take(self, count: int = 1) -> list[int]:
        expected = self.agenda.order.next_ready(count, None)
        jobs = [claim[0] for claim in self.agenda.order.take(count, None, None)]
        assert jobs == expected
        self.agenda.running.update(dict.fromkeys(jobs, (1, 1, 1)))
        return jobs

    def give_back(self, job: int, delay: int = 0) -> None:
        due = self.now + delay if delay else 0
        self.agenda.apply_back(job, 1, due, self.now)


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


@pytest.mark.parametrize("level", range(1, 10))
def test_a_job_rises_one_level_for_each_window(clocked: Clocked, level: int) -> None:
    low = clocked.enqueue(0)
    clocked.wait(level * WINDOW - 1)
    rival = clocked.enqueue(level)
    assert clocked.agenda.order.level(low) == level - 1
    assert clocked.agenda.order.next_ready(2, None) == [rival, low]
    clocked.wait(1)
    assert clocked.agenda.order.level(low) == level
    assert clocked.take(2) == [low, rival]


@pytest.mark.parametrize("priority", range(9))
def test_a_low_job_waits_at_most_ten_windows_under_constant_high_load(priority: int) -> None:
    """One job of the highest priority comes for each that is done, and never is there none."""
    clocked = Clocked()
    for _ in range(5):
        clocked.enqueue(9)
    low, came = clocked.enqueue(priority), clocked.now
    while low not in clocked.take():
        clocked.wait(7)
        clocked.enqueue(9)
        assert clocked.now - came <= 10 * WINDOW
    assert clocked.now - came >= (9 - priority) * WINDOW


def test_no_retried_job_starves_behind_others_that_come_back_before_it() -> None:
    """Older jobs of its lane come back again and again, each of them young: that keeps it not."""
    clocked = Clocked()
    others = [clocked.enqueue(0) for _ in range(5)]
    low = clocked.enqueue(0)
    assert clocked.take(6) == [*others, low]
    clocked.give_back(low)
    came = clocked.now
    taken: list[int] = []
    while low not in taken:
        clocked.wait(17)
        for job in others:
            if clocked.agenda.attempt(job) and job in clocked.agenda.running:
                clocked.give_back(job)
        clocked.enqueue(9)
        taken = clocked.take()
        clocked.agenda.apply_claimed(others[0], 1, 1, 1, 1)
        clocked.give_back(others[0])
        assert clocked.now - came <= 10 * WINDOW


def test_a_window_of_zero_turns_ageing_off() -> None:
    clocked = Clocked(0)
    low, late = clocked.enqueue(0), clocked.schedule(0, START + 1)
    clocked.wait(10**9)
    high = clocked.enqueue(1)
    assert [clocked.agenda.order.level(job) for job in (low, late)] == [0, 0]
    assert clocked.agenda.order.ahead(late, clocked.agenda.lanes, 100) == (1, 1)
    assert clocked.take(3) == [high, low, late]
    assert len(clocked.agenda.ages) == 0


def test_a_job_is_told_who_is_ahead_of_it(clocked: Clocked) -> None:
    risen = clocked.enqueue(3)
    clocked.wait(3 * WINDOW)
    older, asked = clocked.enqueue(5), clocked.enqueue(5)
    clocked.enqueue(9, count=4)
    clocked.enqueue(5)
    assert clocked.agenda.order.level(risen) == 6
    assert clocked.agenda.order.ahead(asked, clocked.agenda.lanes, 100) == (5, 1)
    assert clocked.agenda.order.ahead(older, clocked.agenda.lanes, 100) == (5, 0)
    assert clocked.agenda.order.ahead(risen, clocked.agenda.lanes, 100) == (4, 0)
    assert clocked.agenda.order.level(clocked.lsn + 1) == 0


def test_of_lanes_of_a_higher_priority_each_job_is_ahead_once_however_old(clocked: Clocked) -> None:
    clocked.enqueue(9, count=2)
    clocked.wait(20 * WINDOW)
    asked = clocked.enqueue(5)
    assert clocked.agenda.order.ahead(asked, clocked.agenda.lanes, 100) == (2, 0)


# -- what it costs ---------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often ages, heads and lanes are looked at on behalf of ageing."""
    counts: Counter[str] = Counter()

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def look(*args: Any) -> Any:
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(kind, name, look)

    for name in ("since", "before", "bounds"):
        counted(Ages, name)
    for name in ("waits_since", "has_within", "head_within", "pop_within"):
        counted(Lane, name)
    return counts


def test_while_nobody_is_old_a_claim_pays_one_comparison(looks: Counter[str]) -> None:
    """A thousand lanes, ten thousand claims: the lanes are looked over about once a window."""
    clocked = Clocked(window=64_000)
    for number in range(1_000):
        clocked.enqueue(number % 10, count=10, task=f"task{number}")
    claimed = 0
    while batch := clocked.agenda.order.take(7, None, None):
        claimed += len(batch)
        clocked.wait(30)
        for job, *_ in batch:
            clocked.agenda.apply_ended(Kind.SUCCEEDED, job)
    assert claimed == 10_000
    assert looks["waits_since"] <= 2 * 1_000
    assert looks["bounds"] == looks["pop_within"] == 0


# -- ages ------------------------------------------------------------------------------------------


WINDOW_NS = 640
STEP = 10
#: how many lsns, and how much time, until the next frame
FRAMES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 300)), min_size=1, max_size=200)


def noted(
    frames: list[tuple[int, int]], window: int = WINDOW_NS
) -> tuple[Ages, list[int], list[int]]:
    ages, lsns, moments = Ages(window), [1], [1_000]
    for count, span in frames:
        lsns.append(lsns[-1] + count)
        moments.append(moments[-1] + span)
    for lsn, moment in zip(lsns, moments, strict=True):
        ages.note(lsn, moment)
    return ages, lsns, moments


@given(frames=FRAMES)
def test_windows_are_counted_from_none_to_nine(frames: list[tuple[int, int]]) -> None:
    ages, lsns, moments = noted(frames)
    now = moments[-1]
    bounds = ages.bounds(now)
    assert (bounds.fresh[0], bounds.back[0]) == (NO_JOB, LATEST)
    assert bounds.fresh == sorted(bounds.fresh, reverse=True)
    for job in range(1, lsns[-1] + 5):
        windows = sum(job < bound for bound in bounds.fresh[1:])
        assert windows == min((now - ages.since(job)) // WINDOW_NS, 9)
    assert bounds.back[1:] == [now - number * WINDOW_NS for number in range(1, 10)]


def test_the_list_stays_short_however_long_the_log() -> None:
    ages = Ages(WINDOW_NS)
    for lsn in range(1, 100_000):
        ages.note(lsn, lsn)
    assert len(ages) < 11 * 64
    assert 0 < ages.before(99_999 - WINDOW_NS) - (99_999 - WINDOW_NS) <= STEP


def test_without_a_window_nothing_is_kept_and_nobody_is_old() -> None:
    ages, _, _ = noted([(1, 10_000)] * 50, window=0)
    assert len(ages) == 0
    assert ages.since(7) == LATEST
    assert ages.before(10**18) == 0


def test_a_clock_that_seems_to_fall_dates_nothing() -> None:
    ages, _, _ = noted([(5, 1_000)])
    ages.note(20, 500)
    ages.note(30, -5)
    assert len(ages) == 2
    assert ages.since(40) == 2_000
