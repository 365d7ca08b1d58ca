"""A disk that takes no more: nothing of the batch becomes visible, and the log goes on."""

from __future__ import annotations

import errno
from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import AppendFailed
from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.log.requests import ClaimRequest, Op, Request, Settlement
from tests.log.world import PLAIN, World

_ROOM: int = 10_000_000


def _request(op: Op, operand: Any) -> tuple[Request, Future[Any]]:
    future: Future[Any] = Future()
    return (op, None, future, operand), future


def _fill(world: World) -> None:
    world.machine.free = 0


@pytest.mark.parametrize("room", [0, 1, 57, 100, 200])
def test_every_waiter_of_a_batch_that_does_not_fit_is_told_and_nothing_of_it_is_visible(
    room: int,
) -> None:
    world = World()
    first, second = world.process(), world.process()
    kept = first.enqueue(b"kept")
    job = first.claim()[0]
    before = [world.machine.content(path) for path in world.segments()]
    world.machine.free = room
    requests = [
        _request(Op.ENQUEUE, (PLAIN, b"x" * 300, None)),
        _request(Op.ENQUEUE, (PLAIN, b"y", Extras(key=b"k"))),
        _request(Op.ENQUEUE_MANY, [(PLAIN, b"1", None), (PLAIN, b"2", None)]),
        _request(Op.SETTLE, [Settlement(Kind.SUCCEEDED, job)]),
        _request(Op.CANCEL, kept),
    ]
    first.commit([request for request, _ in requests])
    for _, future in requests:
        error = future.exception(0)
        assert isinstance(error, AppendFailed)
        assert error.errno == errno.ENOSPC
        assert "No space left on device" in str(error)
    assert [world.machine.content(path) for path in world.segments()] == before
    assert second.claim() == []
    world.machine.free = _ROOM
    first.settle(job)
    assert first.enqueue(b"after") == world.records()[-1].lsn
    assert [delivery.payload for delivery in second.claim(9)] == [b"after"]
    assert not first.catch_up().damage


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_in_the_middle_is_cut_back(code: int) -> None:
    world = World()
    first, second = world.process(), world.process()
    kept = first.enqueue(b"kept")
    size = len(world.machine.content(world.segments()[0]))
    writes = 0

    def on_step(operation: str, path: str) -> None:
        nonlocal writes
        if operation == "write" and path.endswith(".log"):
            writes += 1
            if writes == 3:
                raise OSError(code, "no")

    world.machine.shorten = lambda size: max(size // 4, 1)
    world.machine.on_step = on_step
    with pytest.raises(AppendFailed) as caught:
        first.enqueue(b"x" * 500)
    assert caught.value.errno == code
    assert len(world.machine.content(world.segments()[0])) == size
    assert [delivery.job for delivery in second.claim(9)] == [kept]


def test_claims_and_watchers_wait_until_there_is_room() -> None:
    """They ask for nothing that a full disk could refuse for good."""
    world = World()
    first = world.process()
    job = first.enqueue()
    _fill(world)
    claim = first.send(Op.CLAIM, ClaimRequest(1))
    outcome = first.send(Op.OUTCOME, job)
    assert not claim.done()
    assert not outcome.done()
    world.machine.free = _ROOM
    first.commit([])
    first.settle(claim.result(0)[0], body=b"42")
    assert outcome.result(0).body == b"42"
