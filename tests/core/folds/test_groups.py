"""Groups of jobs with a common limit: a full one costs no look."""

from __future__ import annotations

import pytest

from taskq.core.folds.agenda import Agenda
from taskq.core.model import SECOND_NS
from taskq.core.rates import Limit, Rate, Times

_KEYS = (b"\x01\x01qt", b"\x01\x01pt")


def _limited(concurrency: int, jobs: int = 6) -> Agenda:
    agenda = Agenda()
    agenda.groups.tell({"t": Limit(concurrency=concurrency)}, 0)
    for job in range(1, jobs + 1):
        agenda.apply_enqueued(job, job * 8, agenda.queues.lane(5, _KEYS[job % 2]), 0)
    return agenda


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_limit_that_is_told_late_holds_for_what_runs_already(most: int) -> None:
    agenda = _limited(0)
    for job in range(1, most + 1):
        agenda.apply_claimed(job, 10 + job, 1, 7, 1)
    assert agenda.queues.any_ready()
    agenda.groups.tell({"t": Limit(concurrency=most)}, 0)
    assert not agenda.queues.any_ready()
    agenda.groups.tell({"t": Limit(concurrency=most + 1)}, 0)
    assert len(agenda.order.take(5, None, None)) == 1
    agenda.groups.tell({"t": Limit()}, 0)
    assert len(agenda.order.take(9, None, None)) == 5 - most


def test_claims_under_another_name_count_for_the_group_that_has_none_of_its_jobs_left() -> None:
    rate = Rate(2, SECOND_NS)
    agenda = _limited(0, jobs=2)
    for job in (1, 2):
        agenda.apply_claimed(job, 10 + job, 1, 7, 1)
        agenda.apply_rated(job, rate.count, rate.window_ns)
    agenda.apply_succeeded([1, 2])
    alone = Agenda()
    alone.groups.restore(("t", b""), agenda.groups.times(("t", b""), 0) or Times(), 0)
    alone.groups.tell({"t": Limit(rate=rate, scope="s")}, 0)
    assert [key for key, _ in alone.groups.rows(0)] == [("s", b"")]
    assert len(alone.groups) == 1
    alone.apply_enqueued(3, 24, alone.queues.lane(5, _KEYS[0]), 0)
    assert not alone.order.take(1, None, None)
    alone.promote(SECOND_NS + 1)
    assert [item[0] for item in alone.order.take(1, None, None)] == [3]
