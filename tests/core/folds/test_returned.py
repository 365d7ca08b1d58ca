"""``Returned``: jobs by id, and by how long they wait, beside a plain dict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds import moments
from taskq.core.folds.moments import Returned

JOBS = st.integers(1, 40)
MOMENTS = st.integers(0, 30)
COUNTS = st.integers(0, 9)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "discard", "pop", "pop within")),
        JOBS, MOMENTS, COUNTS,
    ),
    max_size=120,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK", 4)
        yield


@given(steps=STEPS)
def test_any_history_equals_a_dict(steps: list[tuple[str, int, int, int]]) -> None:
    held, model = Returned(), dict[int, int]()
    for name, job, moment, count in steps:
        if name == "put":
            assert held.put(job, moment) == (job not in model)
            model[job] = moment
        elif name == "discard":
            assert held.discard(job) == (model.pop(job, None) is not None)
        elif name == "pop":
            wanted = [item for item in sorted(model) if item <= job][:count]
            assert held.pop_ids(job, count) == wanted
            for item in wanted:
                del model[item]
        else:
            wanted = [item for item in sorted(model) if item <= job and model[item] <= moment][
                :count
            ]
            assert held.pop_within(moment, job, count) == wanted
            for item in wanted:
                del model[item]
        assert list(held.ids()) == sorted(model)
        assert held.size == len(model)
        assert held.low() == min(model.values(), default=None)
        assert list(held.within(moment)) == [job for job in sorted(model) if model[job] <= moment]
        assert held.since(job) == model.get(job)
        assert held.first_key() == (min(model) if model else None)
    again = Returned.of(held)
    assert (list(again.ids()), again.low()) == (sorted(model), min(model.values(), default=None))


def test_blocks_without_a_job_that_waits_so_long_are_passed_over() -> None:
    held = Returned()
    for job in range(400):
        held.put(job, 5 if 200 <= job < 204 else 50)
    assert held.low() == 5
    for values in held._values:
        if 5 not in values:
            values[:] = type(values)("Q")
    assert list(held.within(10)) == [200, 201, 202, 203]


@given(
    held=st.dictionaries(JOBS, MOMENTS, max_size=12),
    jobs=st.frozensets(JOBS, min_size=2, max_size=12),
    moment=MOMENTS,
)
def test_a_run_comes_to_what_its_jobs_come_to_one_by_one(
    held: dict[int, int], jobs: frozenset[int], moment: int
) -> None:
    at_once, one_by_one = Returned(), Returned()
    for job, since in held.items():
        at_once.put(job, since)
        one_by_one.put(job, since)
    run = sorted(jobs)
    moments = [moment + job % 3 for job in run]
    assert at_once.put_run(run, moments) == sum(map(one_by_one.put, run, moments))
    assert list(at_once.ids()) == list(one_by_one.ids())
    assert [at_once.since(job) for job in run] == moments
    assert (at_once.size, at_once.low()) == (one_by_one.size, one_by_one.low())


def test_a_block_that_parts_leaves_the_moments_of_those_behind_it_in_place() -> None:
    held = Returned()
    for job in range(100, 112):
        held.put(job, 5 if job >= 108 else 50)
    for job in range(1, 10):
        held.put(job, 60)
    assert [len(keys) for keys in held._keys] == [4, 4, 5, 4, 4]
    assert held.low() == 5
    assert list(held.within(10)) == [108, 109, 110, 111]
