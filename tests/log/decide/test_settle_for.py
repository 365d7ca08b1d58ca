"""A job that another machine ran is claimed and ended here in one frame."""

from __future__ import annotations

from typing import Final

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.views import JobView
from taskq.log.requests import Ended, EnqueueSpec, Op
from tests.log.tending import meaning
from tests.log.world import World

_QUEUE: Final = "to:edge-7"
_SPEC: Final = EnqueueSpec(_QUEUE, "photos.send")
_HOUR_NS: Final = 3_600 * 10**9


class Outbox:
    """A log whose jobs another machine runs: nobody claims from its queue."""

    def __init__(self) -> None:
        self.world = World()
        self.process = self.world.process()
        self.process.ask(Op.PAUSE, _QUEUE)

    def put(self, extras: Extras | None = None) -> int:
        return self.process.enqueue(b"[1]", extras, _SPEC)

    def end(self, *items: Ended) -> list[bool]:
        answer: list[bool] = self.process.ask(Op.SETTLE_FOR, list(items))
        return answer

    def view(self, job: int) -> JobView:
        view = self.world.view(job)
        assert view is not None
        return view


def test_a_job_that_is_not_due_here_is_released_before_it_is_claimed() -> None:
    outbox = Outbox()
    job = outbox.put(Extras(due_ns=_HOUR_NS))
    assert outbox.end(Ended(job, State.SUCCEEDED, 1)) == [True]
    assert outbox.world.kinds()[-3:] == [Kind.RELEASED, Kind.CLAIMED, Kind.SUCCEEDED]
    assert outbox.view(job).state is State.SUCCEEDED


def test_one_that_died_elsewhere_is_a_dead_letter_here_with_its_reason() -> None:
    outbox = Outbox()
    job = outbox.put()
    outbox.end(Ended(job, State.DEAD, 5, b"NoRoute: gone", Cause.EXHAUSTED))
    view = outbox.view(job)
    assert (view.state, view.reason) == (State.DEAD, "NoRoute: gone")


def test_one_that_expired_elsewhere_expired_and_nobody_claimed_it() -> None:
    outbox = Outbox()
    jobs = [outbox.put(), outbox.put(Extras(due_ns=_HOUR_NS, key=b"photo-1"))]
    assert outbox.end(*(Ended(job, State.EXPIRED, 0) for job in jobs)) == [True, True]
    assert [outbox.view(job).state for job in jobs] == [State.EXPIRED] * 2
    assert Kind.CLAIMED not in outbox.world.kinds()
    now_ns = outbox.world.clock.wall_ns()
    own = meaning(outbox.process.catch_up(), now_ns)
    assert own == meaning(outbox.world.fold(), now_ns)
    assert not own["jobs"]


def test_a_job_that_runs_here_is_left_to_who_runs_it() -> None:
    outbox = Outbox()
    outbox.process.ask(Op.RESUME, _QUEUE)
    job = outbox.put()
    (delivery,) = outbox.process.claim()
    assert outbox.end(Ended(job, State.SUCCEEDED, 1)) == [False]
    outbox.process.settle(delivery)


def test_what_is_no_end_is_refused_and_nothing_of_the_request_happens() -> None:
    outbox = Outbox()
    job, other = outbox.put(), outbox.put()
    with pytest.raises(UsageError, match="cannot end elsewhere"):
        outbox.end(Ended(job, State.SUCCEEDED, 1), Ended(other, State.READY, 1))
    assert outbox.view(job).state is State.READY


def test_one_whose_record_does_not_read_back_is_left_and_the_others_end() -> None:
    outbox = Outbox()
    first, second = outbox.put(), outbox.put()
    outbox.process.committer.operations.context.recent.clear()
    (path,) = outbox.world.segments()
    at = outbox.world.machine.content(path).find(b"photos.send")
    outbox.world.machine.corrupt(path, at, b"P")
    ended = (Ended(job, State.SUCCEEDED, 1) for job in (first, second))
    assert outbox.end(*ended) == [False, True]
