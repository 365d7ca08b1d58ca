"""``JobTable``: every unsettled job is found by its id, and settled ones cost nothing for long."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.folds import jobtable
from taskq.core.folds.jobtable import JobTable
from tests.effort import grows, some

CHUNK = 32
ADD = st.tuples(st.just("add"), st.integers(1, 3))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 10_000))
RUN = st.tuples(st.just("remove run"), st.integers(0, 10_000))
FIND = st.tuples(st.just("find"), st.integers(0, 10_000))
GROW = st.tuples(st.just("grow"), st.integers(1, 2 * CHUNK))
EXTEND = st.tuples(st.just("extend"), st.integers(0, 3 * CHUNK))
INSERT = st.tuples(st.just("insert"), st.integers(1, 10_000))
INSERT_RUN = st.tuples(st.just("insert run"), st.integers(1, 10_000))
STEPS = st.lists(ADD | REMOVE | RUN | FIND | GROW | EXTEND | INSERT | INSERT_RUN, max_size=80)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> Iterator[None]:
    """Chunks of 32 jobs, so that a short history tidies, merges and drops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobtable, "CHUNK", CHUNK)
        yield


class Checked:
    """A table beside a dict of its expected contents."""

    def __init__(self) -> None:
        self.table = JobTable()
        self.jobs: dict[int, tuple[int, int, int]] = {}
        self.last = 0

    def add(self, gap: int) -> None:
        self.last += gap
        row = (self.last * 7, self.last % 5, 2 + (self.last % 9) * 256)
        self.table.add(self.last, *row)
        self.jobs[self.last] = row

    def extend(self, count: int) -> None:
        first = self.last + 3
        self.last = first + count - 1 if count else self.last
        locations = [job * 5 for job in range(first, first + count)]
        self.table.extend(first, locations, 4, 2)
        self.jobs.update((job, (job * 5, 4, 2)) for job in range(first, first + count))

    def insert(self, number: int) -> None:
        """An id anywhere below the last, or a few above it."""
        job = 1 + number % (self.last + 3)
        if job not in self.jobs:
            self.table.insert(job, job * 3, 1, 9)
            self.jobs[job] = (job * 3, 1, 9)
            self.last = max(self.last, job)

    def insert_run(self, number: int) -> None:
        first = 1 + number % (self.last + 3)
        jobs = [job for job in range(first, first + number % (3 * CHUNK)) if job not in self.jobs]
        if jobs:
            self.table.insert_run(jobs, [job * 3 for job in jobs], 1, 9)
            self.jobs.update((job, (job * 3, 1, 9)) for job in jobs)
            self.last = max(self.last, jobs[-1])

    def found(self, job: int) -> tuple[int, int, int] | None:
        chunk = self.table.find(job)
        if chunk is None:
            return None
        index = self.table.index
        assert chunk.ids[index] == job
        return chunk.locations[index], chunk.lanes[index], chunk.metas[index]

    def remove(self, job: int) -> None:
        chunk = self.table.find(job)
        assert chunk is not None
        self.table.remove(chunk, self.table.index)
        del self.jobs[job]

    def step(self, name: str, number: int) -> None:
        if name == "add":
            self.add(number)
        elif name == "grow":
            for _ in range(number):
                self.add(1 + number % 3)
        elif name == "extend":
            self.extend(number)
        elif name == "insert":
            self.insert(number)
        elif name == "insert run":
            self.insert_run(number)
        elif name == "find":
            assert self.found(number % (self.last + 2)) == self.jobs.get(number % (self.last + 2))
        elif self.jobs:
            known = list(self.jobs)
            at = number % len(known)
            for job in known[at : at + (1 if name == "remove" else CHUNK)]:
                self.remove(job)

    def check(self) -> None:
        assert self.table.live == len(self.jobs)
        rows = [
            (chunk.ids[at], (chunk.locations[at], chunk.lanes[at], chunk.metas[at]))
            for chunk, at in self.table
        ]
        assert rows == sorted(self.jobs.items())
        for job in range(self.last + 2):
            assert self.found(job) == self.jobs.get(job), job

    def capacity(self) -> int:
        return sum(len(chunk.ids) for chunk in self.table._chunks)


@grows
@settings(max_examples=some(100, 200))
@given(steps=STEPS)
def test_any_history_equals_a_dict(steps: list[tuple[str, int]]) -> None:
    """Rows by id, lookups of known and unknown ids, and the count, through tidying and merging.

    Chunks stay sorted, their counts true, and settled jobs hold no room for long.
    """
    checked = Checked()
    for step in steps:
        checked.step(*step)
    checked.check()
    check_counts(checked.table)
    assert checked.capacity() <= 4 * CHUNK + 8 * len(checked.jobs)


def check_counts(table: JobTable) -> None:
    assert table._firsts == [chunk.ids[0] for chunk in table._chunks]
    assert table._firsts == sorted(set(table._firsts))
    for chunk in table._chunks:
        assert chunk.live == sum(1 for meta in chunk.metas[: chunk.used] if meta)


@pytest.mark.parametrize("every", [1, CHUNK, 7 * CHUNK])
def test_a_queue_that_is_always_nearly_empty_does_not_grow(every: int) -> None:
    """Each job is settled before the next comes, but for a few, which come to share chunks."""
    checked = Checked()
    for number in range(100 * CHUNK):
        checked.add(1)
        if every == 1 or number % every:
            checked.remove(checked.last)
    assert checked.capacity() <= 2 * CHUNK + 8 * len(checked.jobs)
    checked.check()
    check_counts(checked.table)


def test_a_part_of_the_table_in_which_all_is_settled_goes_when_it_is_split_off() -> None:
    """Dead letters die in any order: ids far below the last fill its chunk."""
    checked = Checked()
    for _ in range(CHUNK - 1):
        checked.add(1)
    checked.add(10 * CHUNK)
    for job in range(1, CHUNK):
        checked.remove(job)
    for job in (CHUNK, CHUNK + 1):  # the first ids that were never there
        checked.insert(job - 1)
        checked.remove(job)
    for job in range(4 * CHUNK, 6 * CHUNK):
        checked.insert(job - 1)
        check_counts(checked.table)
    for _ in range(8 * CHUNK):
        checked.add(1)
    checked.check()


@given(ids=st.frozensets(st.integers(2, 80), max_size=20))
def test_a_stretch_is_free_where_no_job_of_it_was_put_in(ids: frozenset[int]) -> None:
    table = JobTable()
    for job in sorted(ids):
        table.add(job, job * 8, 0, 1)
    for first in range(1, 82, 3):
        for last in range(first, min(first + 9, 82)):
            assert table.is_free(first, last) == ids.isdisjoint(range(first, last + 1))
