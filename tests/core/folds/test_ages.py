"""``Ages``: jobs are dated by few entries, the same for every reader of the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds.moments import LATEST, NO_JOB, Ages

WINDOW = 640
STEP = 10
#: how many lsns, and how much time, until the next frame
FRAMES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 300)), min_size=1, max_size=200)


def noted(frames: list[tuple[int, int]], window: int = WINDOW) -> tuple[Ages, list[int], list[int]]:
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
        assert windows == min((now - ages.since(job)) // WINDOW, 9)
    assert bounds.back[1:] == [now - number * WINDOW for number in range(1, 10)]


def test_the_list_stays_short_however_long_the_log() -> None:
    ages = Ages(WINDOW)
    for lsn in range(1, 100_000):
        ages.note(lsn, lsn)
    assert len(ages) < 11 * 64
    assert 0 < ages.before(99_999 - WINDOW) - (99_999 - WINDOW) <= STEP


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
