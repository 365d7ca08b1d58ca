"""A claim gets "nothing" only after a full look, however much fell due.

A batch does a bounded part of the due jobs at once; a claim waits for the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import pytest

from taskq.core.folds import claims
from taskq.core.folds.agenda import PROMOTE_MAX
from taskq.core.model import SECOND_NS, Extras
from taskq.log.decide import claim as claiming
from taskq.log.decide import settle
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op
from tests.log.world import Process, World

_HOUR_NS: Final = 3_600 * SECOND_NS
_FIRST: Final = EnqueueSpec("first", "run")
_OTHER: Final = EnqueueSpec("other", "run")


def _put(process: Process, count: int, spec: EnqueueSpec = _FIRST, **extras: Any) -> list[int]:
    items = [(spec, b"", Extras(**extras))] * count
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return jobs


def _due(world: World, taker: Process) -> None:
    _put(taker, PROMOTE_MAX // 2, due_ns=_HOUR_NS)
    _put(taker, PROMOTE_MAX // 2, due_ns=_HOUR_NS)
    _put(taker, 1, _OTHER, due_ns=_HOUR_NS + 1)
    world.clock.advance(3_601)


def _leases_over(world: World, taker: Process) -> None:
    holder = world.process()
    _put(holder, 3)
    _put(holder, 1, _OTHER)
    holder.ask(Op.CLAIM, ClaimRequest(9, wait_until_ns=0, lease_ns=_HOUR_NS))
    taker.catch_up()
    world.clock.advance(3_601)


def _owner_gone(world: World, taker: Process) -> None:
    holder = world.process()
    _put(holder, 3)
    _put(holder, 1, _OTHER)
    holder.claim(9)
    taker.catch_up()
    holder.kill()
    world.clock.advance(1)


def _expired(world: World, taker: Process) -> None:
    _put(taker, 5, _OTHER, expires_ns=_HOUR_NS)
    _put(taker, 1, _OTHER)
    world.clock.advance(3_601)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "EXPIRED_MAX", 1)
    monkeypatch.setattr(claims, "PASSED_MAX", 1)
    monkeypatch.setattr(claiming, "TAKEN_BACK_MAX", 1)


def _ask(process: Process, *queues: str, most: int = 1) -> Future[Any]:
    request = ClaimRequest(most, queues=frozenset(queues), wait_until_ns=0)
    return process.send(Op.CLAIM, request)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fall", [_due, _leases_over, _owner_gone, _expired])
def test_a_claim_that_does_not_wait_gets_what_the_last_part_brings(
    fall: Callable[[World, Process], None],
) -> None:
    world = World()
    taker = world.process()
    fall(world, taker)
    claim = _ask(taker, "other")
    batches = 1
    while not claim.done():
        taker.commit([])
        taker.sync()
        batches += 1
    assert [delivery.queue for delivery in claim.result(0)] == ["other"]
    assert batches > 1, "the parts are not small"


@pytest.mark.usefixtures("small_parts")
def test_a_claim_that_meets_expired_jobs_holds_up_no_other_for_longer_than_a_batch() -> None:
    world = World()
    process = world.process()
    _put(process, 9, expires_ns=_HOUR_NS)
    (job,) = _put(process, 1, _OTHER)
    world.clock.advance(3_601)
    first, other = _ask(process, "first"), _ask(process, "other")
    process.commit([])
    assert not first.done()
    assert [item.job for item in other.result(0)] == [job]
    while not first.done():
        process.commit([])
    assert first.result(0) == []
