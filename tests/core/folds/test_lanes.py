"""``Lane``: ids come out oldest first, whether they came fresh or were given back."""

from bisect import insort
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import Weights
from taskq.core.folds.lanes import Lane
from taskq.core.folds.moments import NO_JOB, Leases, Returned
from tests.effort import grows, some

pytestmark = pytest.mark.usefixtures("small_parts")

PUSH = st.tuples(st.just("push"), st.integers(1, 4), st.just(0))
RUN = st.tuples(st.just("push run"), st.integers(0, 13), st.just(0))
BACK = st.tuples(st.just("give back"), st.integers(0, 10_000), st.just(0))
POP = st.tuples(st.just("pop"), st.integers(0, 11), st.integers(0, 200) | st.just(NO_JOB))
SWEEP = st.tuples(st.just("sweep"), st.integers(1, 5), st.just(0))
STEPS = st.lists(PUSH | PUSH | RUN | BACK | POP | SWEEP, max_size=120)


def lane() -> Lane:
    return Lane(0, b"\x07\x01defaultt", 5)


def sweep_all(held: Lane, stale: set[int]) -> None:
    """A call for every block of fresh jobs and of those given back, and as many again."""
    for _ in range(2 * (len(held._blocks) + held.entries) + 2):
        held.sweep(lambda job: job not in stale)


@grows
@settings(max_examples=some(100, 200))
@given(steps=STEPS)
def test_sorted_blocks_behave_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """Pops return the smallest ids under the bound, each as often as it was put in."""
    held, model, gone = lane(), list[int](), [0]
    last = 0
    for name, number, below in steps:
        if name == "push":
            last += number
            held.push(last)
            model.append(last)
        elif name == "push run":
            held.push_run(last + 2, number)
            model += range(last + 2, last + 2 + number)
            last += 1 + number
        elif name == "give back":
            for job in gone[number % max(len(gone), 1) :][:1]:
                held.give_back(job, 0)
                if job not in model:
                    insort(model, job)
        elif name == "sweep":
            swept = {job for job in model if job % (number + 1) == 0}
            sweep_all(held, swept)
            gone += swept
            left = list(held)
            # A returned entry is taken out at its claim, and needs no sweep.
            assert set(model) - swept <= set(left) <= set(model)
            assert left == sorted(left)
            gone = [job for job in gone if job not in left]
            model = left
        else:
            expected = [job for job in model if job < below][:number]
            assert held.pop(number, below) == expected
            del model[: len(expected)]
            gone += expected
        assert held.entries == len(model)
        assert list(held) == model
        assert held.head() == (model[0] if model else NO_JOB)
    assert held.pop(len(model) + 1, NO_JOB) == model


def test_a_job_that_leaves_takes_its_entry_along_unless_an_older_one_waits() -> None:
    held = lane()
    for job in range(1, 8):
        held.push(job)
    held.give_back(9, 5)
    held.leave(9, lambda _: True)
    assert held.back_since(9) is None
    held.leave(2, lambda job: job == 1)
    assert list(held) == [1, 2, 3, 4, 5, 6, 7]
    held.leave(4, lambda job: job > 4)
    assert list(held) == [5, 6, 7]
    assert held.entries == 3
    held.leave(20, lambda _: False)
    assert (held.entries, held.head()) == (0, NO_JOB)


def test_jobs_that_stand_first_leave_together_and_others_not() -> None:
    held = lane()
    held.push_run(1, 10)
    assert not held.leave_run([2, 3])
    assert not held.leave_run([1, 2, 4])
    assert not held.leave_run(list(range(1, 12)))
    assert list(held) == list(range(1, 11))
    assert held.leave_run([1, 2, 3, 4, 5, 6])
    assert (list(held), held.entries) == ([7, 8, 9, 10], 4)
    held.give_back(3, 0)
    assert not held.leave_run([3, 7])


def test_a_job_that_came_back_just_then_is_within_that_moment() -> None:
    held = lane()
    held.give_back(3, 100)
    for moment, head in ((99, NO_JOB), (100, 3)):
        assert held.has_within(0, moment) == (head == 3)
        assert held.head_within(0, moment) == head


class Filled:
    def __init__(self, **jobs: int) -> None:
        self.agenda = Agenda()
        self.job = 1
        for queue, count in jobs.items():
            self.add(queue, count)

    def lane(self, queue: str, priority: int = 5) -> Lane:
        return self.agenda.queues.lane(priority, bytes((len(queue), 1)) + queue.encode() + b"t")

    def add(self, queue: str, count: int, priority: int = 5) -> None:
        locations = list(range(self.job, self.job + count))
        self.agenda.apply_enqueued_run(self.job, locations, self.lane(queue, priority), 0)
        self.job += count


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1_000])
def test_queues_that_both_have_jobs_share_the_claims_by_weight(count: int) -> None:
    filled = Filled(mail=30_000, bulk=30_000)
    weights = Weights({"mail": 3, "bulk": 1})
    taken: Counter[str] = Counter()
    while taken.total() < 8_000:
        result = weights.take(filled.agenda.order, count, None, None)
        assert len(result) == count
        taken.update(item[3].queue for item in result)
    assert taken["mail"] / taken.total() == pytest.approx(0.75, abs=0.1 * count / 1_000 + 0.001)


def test_a_queue_that_is_empty_gives_its_turn_away_and_saves_nothing_up() -> None:
    filled = Filled(bulk=500)
    weights = Weights({"mail": 3, "bulk": 1})
    assert len(weights.take(filled.agenda.order, 300, None, None)) == 300
    filled.add("mail", 500)
    queues = [weights.take(filled.agenda.order, 1, None, None).lanes[0].queue for _ in range(80)]
    assert Counter(queues)["mail"] in {59, 60}
    assert len(weights.take(filled.agenda.order, 10_000, None, None)) == 620
    assert not weights.take(filled.agenda.order, 5, None, None)


def test_a_queue_that_may_not_be_claimed_now_is_passed_over() -> None:
    filled = Filled(mail=5, bulk=5)
    result = Weights({"mail": 3, "bulk": 1}).take(filled.agenda.order, 9, frozenset({"bulk"}), None)
    assert {item[3].queue for item in result} == {"bulk"}
    assert len(result) == 5


JOBS = st.integers(1, 40)
MOMENTS = st.integers(0, 30)
COUNTS = st.integers(0, 9)
RETURNED_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "discard", "pop", "pop within")),
        JOBS, MOMENTS, COUNTS,
    ),
    max_size=120,
)  # fmt: skip


@given(steps=RETURNED_STEPS)
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


def test_a_claim_that_is_extended_without_end_takes_no_more_room() -> None:
    held = Leases()
    for moment in range(10_000):
        held.apply_until(1, moment)
    assert held._order.size < 2 * 1_024
    assert held.over(10_000, 10) == [1]
