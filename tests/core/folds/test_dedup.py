"""``Dedup``: a key is held for its window, or until its job is settled, and not a moment longer."""

import contextlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskq.core.errors import UsageError
from taskq.core.folds import dedup
from taskq.core.folds.dedup import Dedup, key_hash
from taskq.core.folds.moments import SortedBlocks
from tests.effort import grows, some

pytestmark = pytest.mark.usefixtures("small_parts")

#: Few values, so that hashes collide; neighbours at both ends; and any.
HASHES = st.integers(1, 30) | st.integers(2**64 - 5, 2**64 - 1) | st.integers(1, 2**64 - 1)
WINDOWS = st.just(0) | st.integers(1, 60)
PICK = st.integers(0, 10_000)


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


def test_apply_moved_returns_whether_the_job_holds_the_key() -> None:
    held = Dedup()
    for job in (1, 2):
        held.apply_taken(7, job, job, 0, 0)
    assert [held.apply_moved(7, job, 10 * job) for job in (1, 2, 3)] == [True, True, False]
    assert not held.apply_moved(8, 1, 99)
    assert list(held.holders(7, 0)) == [(1, 10), (2, 20)]


LARGEST = 2**64 - 1
KEYS = st.integers(0, 12) | st.integers(0, LARGEST)
ADD = st.tuples(st.just("add"), KEYS, st.integers(0, LARGEST))
REMOVE = st.tuples(st.just("remove"), st.just(0), st.integers(0, 12))
REMOVE_PAIR = st.tuples(st.just("remove pair"), st.integers(0, 12), st.integers(0, 12))
SWEEP = st.tuples(st.just("sweep"), st.integers(1, 3), st.integers(1, 5))
POP = st.tuples(st.just("pop"), KEYS, st.integers(0, 9))
STEPS = st.lists(ADD | ADD | ADD | POP | REMOVE | REMOVE_PAIR | SWEEP, max_size=120)


def pairs_of(held: SortedBlocks) -> list[tuple[int, int]]:
    return [
        pair
        for keys, values in zip(held._keys, held._values, strict=True)
        for pair in zip(keys, values, strict=True)
    ]


class Checked:
    """Blocks beside the sorted list of pairs that they must hold."""

    def __init__(self) -> None:
        self.held = SortedBlocks()
        self.pairs: list[tuple[int, int]] = []

    def step(self, name: str, key: int, number: int) -> None:
        held, pairs = self.held, self.pairs
        if name == "add":
            held.add(key, number)
            pairs.insert(bisect_right([item for item, _ in pairs], key), (key, number))
        elif name == "pop":
            due = [value for item, value in pairs if item <= key][:number]
            assert held.pop_until(key, number) == due
            del pairs[: len(due)]
        elif name == "remove":
            at = [value for _, value in pairs].index(number) if number in self.values() else None
            assert held.remove(number) == (at is not None)
            if at is not None:
                del pairs[at]
        elif name == "remove pair":
            pair = pairs[number % len(pairs)] if pairs and key else (key, number)
            assert held.remove_pair(*pair) == (pair in pairs)
            if pair in pairs:
                pairs.remove(pair)
        else:
            self.sweep_all(lambda value: value % (number + 1) != 0)

    def sweep_all(self, keep: Callable[[int], bool]) -> None:
        """One call for each block, and one more: no pair that must go is left."""
        calls = len(self.held._keys) + 1
        dropped = sum(self.held.sweep(keep) for _ in range(calls))
        left = pairs_of(self.held)
        assert dropped == len(self.pairs) - len(left)
        wanted = [pair for pair in self.pairs if keep(pair[1])]
        assert [pair for pair, _ in groupby(left)] == [pair for pair, _ in groupby(wanted)]
        self.pairs = left

    def values(self) -> list[int]:
        return [value for _, value in self.pairs]


@given(steps=STEPS)
def test_sorted_blocks_behave_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """No block is empty or over twice its size, so the work of one step is bounded."""
    checked = Checked()
    for step in steps:
        checked.step(*step)
        assert checked.held.size == len(checked.pairs)
        assert checked.held.first_key() == (checked.pairs[0][0] if checked.pairs else None)
        assert all(0 < len(keys) <= 8 for keys in checked.held._keys)
        assert checked.held._firsts == [keys[0] for keys in checked.held._keys]
    assert pairs_of(checked.held) == checked.pairs
    assert list(checked.held) == checked.values()


def test_a_sweep_looks_at_one_block_and_joins_what_is_left_of_several() -> None:
    """100 blocks with one pair left in each become 25: a pair never keeps a block for itself."""
    held = SortedBlocks()
    for number in range(400):
        held.add(number, number)
    asked: list[int] = []

    def keep(value: int) -> bool:
        asked.append(value)
        return value % 4 == 0

    held.sweep(keep)
    assert len(asked) <= 8
    for _ in range(110):
        held.sweep(keep)
    assert list(held) == list(range(0, 400, 4))
    assert len(held._keys) <= 50


def test_a_key_below_zero_or_above_64_bits_is_looked_up_without_an_error() -> None:
    """A clock that stepped far makes moments below zero: nothing is due then."""
    held = SortedBlocks()
    held.add(5, 1)
    assert held.pop_until(-(2**70), 10) == []
    assert held.pop_until(2**70, 10) == [1]


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_sorted_blocks_find_their_pairs_in_any_order(pairs: list[tuple[int, int]]) -> None:
    held = SortedBlocks()
    for key, value in pairs:
        held.add(key, value)
    for key in range(4):
        for value in range(10):
            assert held.has(key, value) == ((key, value) in pairs)
            assert held.has(key, 9 - value) == ((key, 9 - value) in pairs)
    held.pop_until(1, 30)
    left = pairs_of(held)
    for key, value in pairs:
        assert held.has(key, value) == ((key, value) in left)


def test_many_pairs_of_one_key_are_asked_for_without_looking_through_them() -> None:
    held = SortedBlocks()
    for value in range(4_000):
        held.add(7, value)
    looked: list[int] = []
    look = SortedBlocks._is_in

    def noted(blocks_: SortedBlocks, number: int, key: int, value: int) -> bool:
        looked.append(number)
        return look(blocks_, number, key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SortedBlocks, "_is_in", noted)
        assert all(held.has(7, value) for value in range(1_000, 3_000))
    assert len(looked) < 2 * 2_000 + len(held._keys)
