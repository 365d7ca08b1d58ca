"""Weights: queues share the claims in proportion, and none idles or starves."""

from __future__ import annotations

from collections import Counter

import pytest

from taskq.core.errors import UsageError
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import WEIGHT_MAX, Weights
from taskq.core.folds.lanes import Lane


class Filled:
    """An agenda with jobs in queues."""

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


@pytest.mark.parametrize("wrong", [{}, {"a": 0}, {"a": WEIGHT_MAX + 1}, {"a": True}, {"a": 1.5}])
def test_a_weight_that_is_none_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"weight|queues"):
        Weights(wrong)
