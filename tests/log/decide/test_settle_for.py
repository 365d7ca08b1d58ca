"""A job that another machine ran is claimed and ended here in one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from taskq.core.errors import UsageError
from taskq.core.model import Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.requests import Ended, EnqueueSpec, Op
from tests.log.tending import meaning
from tests.log.world import World

if TYPE_CHECKING:
    from taskq.core.views import JobView

_QUEUE: Final = "to:edge-7"
_SPEC: Final = EnqueueSpec(_QUEUE, "photos.send")
_KEY: Final = Extras(key=b"photo-1")
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


def test_a_job_that_succeeded_elsewhere_has_its_result_and_attempt_here() -> None:
    outbox = Outbox()
    job = outbox.put()
    frames = outbox.process.journal.meters.batches
    assert outbox.end(Ended(job, State.SUCCEEDED, 3, b"42")) == [True]
    assert outbox.process.journal.meters.batches == frames + 1
    view = outbox.view(job)
    assert (view.state, view.result, view.attempt) == (State.SUCCEEDED, b"42", 3)


def test_a_second_end_changes_nothing() -> None:
    outbox = Outbox()
    job = outbox.put()
    outbox.end(Ended(job, State.SUCCEEDED, 1, b"42"))
    before = outbox.world.kinds()
    dead = Ended(job, State.DEAD, 2, b"no")
    assert outbox.end(dead, Ended(9_999, State.DEAD, 1)) == [False, False]
    assert outbox.world.kinds() == before


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


def test_the_key_of_a_job_that_ended_elsewhere_is_free() -> None:
    outbox = Outbox()
    first = outbox.put(_KEY)
    outbox.end(Ended(first, State.CANCELLED, 1, cause=Cause.ASKED))
    assert outbox.view(first).state is State.CANCELLED
    assert outbox.put(_KEY) != first


def test_who_did_not_write_it_folds_the_same() -> None:
    outbox = Outbox()
    jobs = [outbox.put(), outbox.put(Extras(due_ns=_HOUR_NS)), outbox.put(_KEY), outbox.put()]
    states = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
    outbox.end(*(Ended(job, state, 1, b"x") for job, state in zip(jobs, states, strict=False)))
    now_ns = outbox.world.clock.wall_ns()
    own = meaning(outbox.process.catch_up(), now_ns)
    assert own == meaning(outbox.world.fold(), now_ns)
    assert list(own["jobs"]) == jobs[3:]


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
