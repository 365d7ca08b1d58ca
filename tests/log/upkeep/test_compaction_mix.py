"""Several processes compact at the same time, between any two steps of others.

The lock that keeps them apart is only there to save work: decisions are made under the writer lock.
So in most of these histories it does not hold. All must agree with a process that only reads, and
so never loses its place.
"""

from __future__ import annotations

import pytest

from taskq.log.commit import chores as errand
from tests.effort import grows, some
from tests.log.mix import ACTS, CONFIGS, Mix


def history(seed: int) -> int:
    mix = Mix(seed, CONFIGS[seed % 3], locked=seed % 5 == 0)
    for number in range(ACTS):
        mix.act()
        if not number % 75:
            mix.check(f"act {number}")
    for _ in mix.tended:
        mix.tend(400)
    mix.check("at the end")
    files = mix.observer.journal.files
    files.refresh()
    return len(files.numbered()) - len(files.lsns)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that does one in a millisecond."""
    monkeypatch.setattr(errand, "STEPS_MAX", 1)


@grows
def test_processes_that_compact_at_once_lose_nothing_and_bring_nothing_back() -> None:
    seeds = range(8 - some(2, 8), 8)
    assert sum(history(seed) for seed in seeds) > len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_histories_of_processes_that_compact_at_once(seed: int) -> None:
    history(seed)
