"""``Dedup``: a key is held for its window, or until its job is settled, and not a moment longer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskq.core.errors import UsageError
from taskq.core.folds import dedup
from taskq.core.folds.dedup import Dedup, key_hash
from tests.effort import grows, some

#: Few values, so that hashes collide; neighbours at both ends; and any.
HASHES = st.integers(1, 30) | st.integers(2**64 - 5, 2**64 - 1) | st.integers(1, 2**64 - 1)
WINDOWS = st.just(0) | st.integers(1, 60)
PICK = st.integers(0, 10_000)


@pytest.fixture(autouse=True, scope="module")
def _small_pages() -> Iterator[None]:
    """Pages of 4 keys, so that a short history splits, sweeps and joins them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "_PAGE", 4)
        patch.setattr(dedup, "_SWEEP_EVERY", 2)
        yield


@dataclass(slots=True)
class Holder:
    """A key of the model; ``until`` is shifted time, None for no window."""

    hashed: int
    job: int
    until: int | None
    #: whether it is held for its job, too
    lives: bool


class DedupMachine(RuleBasedStateMachine):
    """The table beside a list of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.dedup = Dedup()
        self.held: list[Holder] = []
        self.now = 1_000_000
        self.shift = 0
        self.job = 0

    def model(self, hashed: int) -> list[tuple[int, int]]:
        moment = self.now - self.shift
        return [
            (holder.job, holder.job * 3)
            for holder in self.held
            if holder.hashed == hashed
            and (holder.lives or (holder.until is not None and holder.until > moment))
        ]

    @rule(hashed=HASHES, window=WINDOWS, both=st.booleans())
    def take(self, hashed: int, window: int, both: bool) -> None:
        self.job += 1
        self.dedup.apply_taken(hashed, self.job, self.job * 3, window, self.now, until_settled=both)
        until = self.now - self.shift + window if window else None
        self.held.append(Holder(hashed, self.job, until, both or not window))

    @rule(first=HASHES, count=st.integers(1, 30), window=WINDOWS, both=st.booleans())
    def take_many(self, first: int, count: int, window: int, both: bool) -> None:
        for number in range(count):
            self.take(max((first + number * 7) % 2**64, 1), window, both)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, count=st.integers(1, 20))
    def settle(self, pick: int, count: int) -> None:
        """Frees keys held until then; a window goes on."""
        moment = self.now - self.shift
        for holder in self.held[pick % len(self.held) :][:count]:
            if holder.lives:
                goes_on = holder.until is not None and holder.until > moment
                frees = self.dedup.would_free(holder.hashed, holder.job, self.now)
                assert frees != goes_on
            self.dedup.apply_free(holder.hashed, holder.job, self.now)
            holder.lives = False
            if holder.until is None:
                self.held.remove(holder)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def take_over(self, pick: int) -> None:
        holder = self.held.pop(pick % len(self.held))
        self.dedup.apply_dropped(holder.hashed, holder.job)
        self.dedup.apply_dropped(holder.hashed, holder.job)

    @rule(hashed=HASHES, job=st.integers(10**6, 10**7))
    def settle_a_job_that_holds_nothing(self, hashed: int, job: int) -> None:
        self.dedup.apply_free(hashed, job, self.now)

    @rule(span=st.integers(0, 40))
    def time_goes(self, span: int) -> None:
        self.now += span

    @rule(step=st.integers(-500, 500))
    def clock_steps(self, step: int) -> None:
        self.now += step
        self.shift += step
        self.dedup.apply_clock(step)

    @rule(hashed=HASHES)
    def look(self, hashed: int) -> None:
        assert list(self.dedup.holders(hashed, self.now)) == self.model(hashed)

    @invariant()
    def every_key_has_its_holders(self) -> None:
        for hashed in {holder.hashed for holder in self.held}:
            assert list(self.dedup.holders(hashed, self.now)) == self.model(hashed)

    @invariant()
    def the_size_is_a_recount(self) -> None:
        assert self.dedup.size == sum(len(page.hashes) for page in self.dedup._pages)

    @invariant()
    def pages_are_sorted_and_bounded(self) -> None:
        table = self.dedup
        assert table._firsts[0] == 0
        assert table._firsts == sorted(set(table._firsts))
        for first, after, page in zip(
            table._firsts, [*table._firsts[1:], 2**64], table._pages, strict=True
        ):
            assert {len(column) for column in page.columns()} == {len(page.hashes)}
            assert list(page.hashes) == sorted(page.hashes)
            assert all(first <= hashed < after for hashed in page.hashes)
            assert len(page.hashes) <= 8 or len(set(page.hashes)) == 1


TestDedup = DedupMachine.TestCase
TestDedup.settings = settings(max_examples=some(12, 60), stateful_step_count=40)
TestDedup = grows(TestDedup)


def holders(table: Dedup, hashed: int, now: int) -> list[int]:
    return [job for job, _ in table.holders(hashed, now)]


def test_jobs_whose_hashes_collide_are_all_candidates() -> None:
    table = Dedup()
    for job in range(1, 101):
        table.apply_taken(7, job, job * 8, 0, 0)
    table.apply_free(7, 50, 0)
    assert holders(table, 7, 0) == [job for job in range(1, 101) if job != 50]


def test_windows_without_end_are_kept_at_the_bound() -> None:
    table = Dedup()
    table.apply_taken(7, 1, 8, 2**63 - 1, 2**62)
    table.apply_taken(8, 2, 8, -(2**63), 5)
    assert holders(table, 7, 2**62) == [1]
    assert holders(table, 8, 5) == []


def test_a_full_table_refuses_until_windows_are_over() -> None:
    """The error names the limit; and a table that was full once is not full for ever."""
    table = Dedup()
    for job in range(1, 9):
        table.check_room(0, 1, 8)
        table.apply_taken(job, job, 0, 60, 0)
    with pytest.raises(UsageError, match="8 dedup keys are held, and keys_max is 8"):
        table.check_room(59, 1, 8)
    table.check_room(60, 8, 8)
    with pytest.raises(UsageError, match="0 dedup keys are held, and keys_max is 8"):
        table.check_room(60, 9, 8)


def test_a_full_table_looks_through_few_pages_before_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer lock is held meanwhile; what it did not come to is found by the next ones."""
    monkeypatch.setattr(dedup, "_SWEPT_WHEN_FULL", 2)
    monkeypatch.setattr(dedup, "_SWEEP_EVERY", 10**9)
    table = Dedup()
    for job in range(1, 101):
        table.apply_taken(job, job, 0, 60 if job > 90 else 600, 0)
    refused = 0
    while table.size == 100:
        with contextlib.suppress(UsageError):
            table.check_room(60, 1, 100)
        refused += 1
    assert 2 < refused < 30


def test_the_hash_of_a_key_is_fixed_for_ever() -> None:
    """It stands in records on disk. Never 0, and a queue's name is no part of the key's."""
    assert key_hash(b"default", b"a@b.c:hi") == 0x4861EBC25D6964FA
    assert key_hash(b"ab", b"c") != key_hash(b"a", b"bc")


def test_a_record_that_moves_tells_whether_its_job_holds_the_key() -> None:
    held = Dedup()
    for job in (1, 2):
        held.apply_taken(7, job, job, 0, 0)
    assert [held.apply_moved(7, job, 10 * job) for job in (1, 2, 3)] == [True, True, False]
    assert not held.apply_moved(8, 1, 99)
    assert list(held.holders(7, 0)) == [(1, 10), (2, 20)]
