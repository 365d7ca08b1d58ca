from __future__ import annotations

from taskq_workers.slots.feed import (
    BATCH_MAX,
    BATCH_SECONDS_LONG,
    BATCH_SECONDS_SHORT,
    PAUSE_SECONDS_FIRST,
    PAUSE_SECONDS_MAX,
    ClaimPace,
    Pause,
)


def grown(concurrency: int, batches: int) -> ClaimPace:
    pace = ClaimPace(concurrency)
    for _ in range(batches):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_SHORT / 2)
    return pace


def test_a_new_pace_claims_for_its_slots_and_not_ahead() -> None:
    pace = ClaimPace(8)
    assert (pace.size, pace.ahead) == (8, False)


def test_each_full_batch_that_is_done_soon_doubles_the_next_up_to_the_limit() -> None:
    assert [grown(8, n).size for n in (1, 2, 3)] == [16, 32, 64]
    assert grown(8, 20).size == BATCH_MAX
    assert grown(8, 1).ahead


def test_many_slots_may_still_be_fed_ahead() -> None:
    assert grown(1_000, 5).size == 2_000


def test_a_batch_that_was_not_full_says_nothing_of_what_a_larger_one_would_take() -> None:
    pace = ClaimPace(8)
    pace.claimed(waiting=3, full=False, now=0.0)
    pace.finished(3, now=0.001)
    assert pace.size == 8


def test_a_slow_batch_halves_the_next_down_to_the_slots() -> None:
    pace = grown(8, 3)
    sizes = []
    for _ in range(4):
        pace.claimed(waiting=pace.size, full=True, now=0.0)
        pace.finished(pace.size, now=BATCH_SECONDS_LONG * 2)
        sizes.append(pace.size)
    assert sizes == [32, 16, 8, 8]
    assert not pace.ahead


def test_one_slow_job_does_not_make_the_fast_ones_beside_it_look_slow() -> None:
    """A batch of 8 is done once any 8 jobs ended, while one of its own still runs."""
    pace = ClaimPace(8)
    pace.claimed(waiting=8, full=True, now=0.0)
    pace.finished(7, now=0.001)
    pace.claimed(waiting=7, full=True, now=0.002)
    pace.finished(7, now=0.003)
    assert pace.size == 16


def test_a_cut_returns_to_the_slots_at_once_and_forgets_the_batch_under_way() -> None:
    pace = grown(8, 5)
    pace.claimed(waiting=256, full=True, now=0.0)
    pace.cut()
    pace.finished(256, now=0.001)
    assert (pace.size, pace.ahead) == (8, False)


def test_each_pause_is_twice_the_last_up_to_a_limit_and_a_good_while_forgets_them() -> None:
    now = [1_000.0]
    pause = Pause(lambda: now[0])
    expected = PAUSE_SECONDS_FIRST
    for _ in range(12):
        assert pause.next() == min(expected, PAUSE_SECONDS_MAX)
        expected *= 2
        now[0] += PAUSE_SECONDS_MAX
    now[0] += PAUSE_SECONDS_MAX
    assert pause.next() == PAUSE_SECONDS_MAX, "as long as the longest and its try may take"
    now[0] += 2 * PAUSE_SECONDS_MAX + 0.01
    assert [pause.next(), pause.next()] == [PAUSE_SECONDS_FIRST, 2 * PAUSE_SECONDS_FIRST]
