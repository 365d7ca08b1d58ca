"""``Agenda``, promise by promise; ``test_agenda_machine`` mixes them all."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds.agenda import (
    PROMOTE_MAX,
    Agenda,
    apply_carried,
    apply_requeued,
    apply_signal,
    apply_step,
    apply_tallied,
    apply_waiting,
    forget_dead,
)
from taskq.core.folds.freeze import freeze_agenda, thaw_agenda
from taskq.core.folds.jobtable import META_EXPIRES, META_FLOW, RUN_MIN
from taskq.core.folds.lanes import Lane
from taskq.core.folds.moments import LATEST, NO_JOB, Ages
from taskq.core.folds.steps import Form, Signal, Wait, pack_waits
from taskq.core.kinds import TRANSITIONS, after
from taskq.core.model import ATTEMPTS_MAX, TIME_NS_MAX, State
from taskq.core.rates import Limit
from taskq.core.records import Kind
from taskq.core.views import QueueStats
from taskq.log.state.fold import Watch
from tests.core.folds.test_freeze import Columns, picture

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


def entries(agenda: Agenda) -> int:
    times = agenda.times
    expiries = times._expiries_shifted.size + times._expiries_wall.size
    return times._shifted.size + times._wall.size + expiries


# -- order ----------------------------------------------------------------------------------------


# -- time -----------------------------------------------------------------------------------------


def test_due_jobs_turn_ready_a_bounded_number_at_a_time() -> None:
    """A million jobs of one moment must not hold the writer lock; each batch takes some."""
    agenda = Agenda()
    lane = lane_of(agenda)
    for job in range(1, PROMOTE_MAX + 11):
        agenda.apply_scheduled(job, 0, lane, 0, NOW, is_wall=False)
    agenda.promote(NOW)
    assert (lane.ready, lane.scheduled) == (PROMOTE_MAX, 10)
    assert agenda.next_due_ns() == NOW
    agenda.promote(NOW)
    assert (lane.ready, lane.scheduled) == (PROMOTE_MAX + 10, 0)
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


# -- attempts and states --------------------------------------------------------------------------


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


def test_the_agenda_follows_the_table_of_transitions() -> None:
    """Every legal pair, applied to a job in that state, leads where the table says."""
    for (before, kind), allowed in TRANSITIONS.items():
        if before is State.ABSENT:
            continue
        for waits in (False, True):
            agenda = Agenda()
            bring_to(agenda, before)
            if kind is Kind.CLAIMED:
                assert claim(agenda) == [1]
            elif kind in {Kind.RETRIED, Kind.RELEASED}:
                agenda.apply_back(1, 1, NOW + 9 if waits else 0, NOW)
            elif kind is Kind.REQUEUED:
                apply_requeued(agenda, 1, 0, lane_of(agenda), 0)
            elif kind is Kind.EDITED:
                state = after(before, kind, waits=waits)
                due = NOW + 9, False
                assert agenda.apply_edited(1, 0, lane_of(agenda), state, due, NOW, None)
            elif kind is Kind.PURGED:
                assert forget_dead(agenda, 1)
            else:
                agenda.apply_ended(kind, 1)
            expected = allowed[-1] if waits else allowed[0]
            counts = agenda.queues.stats()[0]
            if expected is State.ABSENT:
                assert counts == QueueStats(queue=counts.queue)
                continue
            assert getattr(counts, expected.name.lower()) == 1, (before, kind)


def bring_to(agenda: Agenda, state: State) -> None:
    lane = lane_of(agenda)
    if state is State.SCHEDULED:
        agenda.apply_scheduled(1, 0, lane, 0, NOW + 1, is_wall=False)
        return
    enqueue(agenda, lane, 1)
    if state in {State.RUNNING, State.DEAD}:
        claim(agenda)
    if state is State.DEAD:
        agenda.apply_ended(Kind.DEAD, 1)


@pytest.mark.parametrize("count", [RUN_MIN - 1, RUN_MIN, RUN_MIN + 1, 3 * RUN_MIN])
@pytest.mark.parametrize("has_others_first", [False, True])
@pytest.mark.parametrize("of", ["plain jobs", "jobs that expire", "jobs with steps", "a limit"])
def test_successes_side_by_side_are_those_of_one_after_another(
    of: str, has_others_first: bool, count: int
) -> None:
    together, in_turn = Agenda(), Agenda()
    for agenda in (together, in_turn):
        stepping = []
        if of == "a limit":
            agenda.groups.tell({"other": Limit(concurrency=100)}, NOW)
        for job in range(1, 2 * count + 1):
            is_other = (job <= count) is has_others_first
            expires = is_other and of == "jobs that expire"
            lane = lane_of(agenda, task="other" if is_other else "t")
            enqueue(agenda, lane, job, meta=META_EXPIRES if expires else 0)
            if expires:
                agenda.apply_expiry(job, NOW + job * SECOND, is_wall=False)
            if is_other and of == "jobs with steps":
                stepping.append(job)
        jobs = claim(agenda)
        assert jobs == list(range(1, 2 * count + 1))
        for job in stepping:
            apply_step(agenda, job, 1, (7 << 32) + job * 64, 0, b"")
    together.apply_succeeded(jobs)
    for job in jobs:
        assert in_turn.apply_ended(Kind.SUCCEEDED, job)
    assert picture(together) == picture(in_turn)


# -- nothing grows without bound ------------------------------------------------------------------


@pytest.mark.parametrize("is_wall", [False, True])
def test_jobs_that_finish_before_they_expire_leave_nothing(is_wall: bool) -> None:
    """Tasks with expires="1d" that run at once: 20 000 of them leave a bounded timetable."""
    agenda = Agenda()
    lane = lane_of(agenda)
    for job in range(1, 20_001):
        enqueue(agenda, lane, job, meta=META_EXPIRES)
        agenda.apply_expiry(job, NOW + 86_400 * SECOND + job, is_wall)
        assert claim(agenda, 1) == [job]
        agenda.apply_ended(Kind.SUCCEEDED, job)
    assert entries(agenda) < 12_000
    assert agenda.table.live == 0


@pytest.mark.parametrize("is_wall", [False, True])
def test_scheduled_jobs_that_are_cancelled_leave_nothing(is_wall: bool) -> None:
    """Reminders set a year ahead and taken back: 20 000 of them leave a bounded timetable."""
    agenda = Agenda()
    lane = lane_of(agenda)
    for job in range(1, 20_001):
        agenda.apply_scheduled(job, 0, lane, 0, NOW + job * SECOND, is_wall=is_wall)
        if job > 100:
            agenda.apply_ended(Kind.CANCELLED, job - 100)
    assert lane.scheduled == 100
    assert entries(agenda) < 12_000


@pytest.mark.parametrize("step", [1, -1])
def test_ready_jobs_that_are_cancelled_leave_nothing(step: int) -> None:
    agenda = Agenda()
    lane = lane_of(agenda)
    jobs = range(1, 20_001)
    enqueue(agenda, lane, *jobs)
    for job in jobs[::step][:-1]:
        agenda.apply_ended(Kind.CANCELLED, job)
    assert lane.entries < 5_000
    assert claim(agenda) == [jobs[::step][-1]]
    assert lane.entries == 0


def test_what_other_processes_claim_leaves_nothing() -> None:
    """This process only reads along while others claim from everywhere: 30 000 jobs, 3 left."""
    agenda = Agenda()
    lane = lane_of(agenda)
    jobs = range(1, 30_001)
    enqueue(agenda, lane, *jobs)
    for job in sorted(jobs, key=lambda job: job * 7_919 % 30_011):
        if job % 10_000:
            agenda.apply_claimed(job, 1, 1, 7, 1)
            agenda.apply_ended(Kind.SUCCEEDED, job)
    assert lane.entries < 5_000
    assert claim(agenda) == [10_000, 20_000, 30_000]
    assert agenda.running.keys() == {10_000, 20_000, 30_000}


def test_a_place_counts_as_freed_only_where_all_were_taken() -> None:
    agenda = Agenda()
    agenda.groups.tell({"t": Limit(concurrency=2)}, 0)
    enqueue(agenda, lane_of(agenda), 1, 2, 3, 4)
    assert claim(agenda, 1) == [1]
    agenda.apply_ended(Kind.SUCCEEDED, 1)
    assert not agenda.groups.freed
    assert claim(agenda) == [2, 3]
    agenda.apply_ended(Kind.SUCCEEDED, 2)
    assert agenda.groups.is_freed()
    assert not agenda.groups.is_freed()


# -- dead letters fold -----------------------------------------------------------------------------


KEY = b"\x04\x01mailt"
NEVER = (0, False)


def dead_letter(agenda: Agenda, job: int, meta: int = 0) -> None:
    agenda.apply_enqueued(job, job * 8, agenda.queues.lane(5, KEY), meta)
    assert agenda.order.take(1, None, None).jobs == [job]
    agenda.running[job] = (1, 1, 1)
    agenda.apply_ended(Kind.DEAD, job, NOW)


@pytest.mark.parametrize("tallied_at", range(4))
def test_dead_letters_are_counted_once_however_they_came_and_wherever_a_tally_stands(
    tallied_at: int,
) -> None:
    agenda = Agenda()
    lane = agenda.queues.lane(5, KEY)
    for number in range(4):
        if number == tallied_at:
            apply_tallied(lane, succeeded=7, cancelled=2, expired=1)
        if number in {0, 1}:
            apply_carried(
                agenda, 1 + number, 8, lane, 0, State.DEAD, NEVER, NEVER, (0, 0, 0), 0, NOW
            )
        elif number == 2:
            dead_letter(agenda, 3)
        else:
            forget_dead(agenda, 1)
    assert agenda.queues.stats() == (
        QueueStats(queue="mail", succeeded=7, dead=2, cancelled=2, expired=1),
    )


def test_a_snapshot_that_counted_too_many_dead_letters_is_put_right_when_it_is_read() -> None:
    agenda = Agenda()
    for job in (1, 2):
        dead_letter(agenda, job)
    forget_dead(agenda, 1)
    agenda.queues.lane(5, KEY).dead = 9
    thawed = thaw_agenda(Columns(freeze_agenda(agenda)))
    assert thawed.queues.stats() == (QueueStats(queue="mail", dead=1),)


def test_whoever_waits_for_a_dead_letter_that_is_requeued_waits_on() -> None:
    watch = Watch()
    watch.jobs = {1, 2, 3}
    watch.see(1, 100, Kind.DEAD)
    watch.see(2, 200, Kind.SUCCEEDED)
    watch.see_again(1)
    watch.see_again(2)
    watch.see_again(9)
    assert (watch.jobs, watch.take()) == ({1, 3}, [(2, 200)])
    watch.see(1, 300, Kind.DEAD)
    watch.see_again(1, 400)
    assert (watch.jobs, watch.take(), watch.dead) == ({3}, [(1, 400)], set())


# -- steps fold ------------------------------------------------------------------------------------


JOBS: Final = 2 * 4_096
LATE: Final = 10**18
#: Beyond the cost of a scheduled job.
BYTES_MAX: Final = 200


def filled(*, waits: bool) -> tuple[Agenda, int]:
    packed = pack_waits([Wait(Form.EVENT, "paid", 1)])
    gc.collect()
    tracemalloc.start()
    agenda = Agenda()
    lane = agenda.queues.lane(5, b"\7\0default")
    for job in range(1, JOBS + 1):
        if waits:
            agenda.apply_enqueued(job, job * 64, lane, 0)
            agenda.apply_claimed(job, job, 1, 1, 1)
            # As it comes from the log: bytes of its own.
            apply_waiting(agenda, job, 0, TIME_NS_MAX, LATE, bytes(bytearray(packed)), None)
        else:
            agenda.apply_scheduled(job, job * 64, lane, 0, LATE + job, is_wall=False)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return agenda, size


def test_a_job_that_waits_for_an_event_takes_little_more_than_a_scheduled_one() -> None:
    _, scheduled = filled(waits=False)
    agenda, waiting = filled(waits=True)
    assert (waiting - scheduled) / JOBS <= BYTES_MAX
    assert agenda.table.state(7) is State.SCHEDULED
    assert agenda.next_due_ns() is None
    apply_signal(agenda, 7, Signal(JOBS + 1, b"paid", b"", 0))
    assert agenda.steps.awaits(7, "paid")
    agenda.apply_back(7, 0, 0, LATE)
    assert agenda.order.next_ready(9, None) == [7]


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
