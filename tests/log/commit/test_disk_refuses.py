"""A disk that takes no more: nothing of the batch becomes visible, and the log goes on."""

from __future__ import annotations

import errno
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.errors import AppendFailed, TaskqError
from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import ClaimRequest, Op, Settlement
from tests.log.world import PATH, PLAIN, World
from tests.machine.crashable import CrashableDisk

if TYPE_CHECKING:
    from taskq.log.requests import Request

_ROOM: int = 10_000_000


def _request(op: Op, operand: Any) -> tuple[Request, Future[Any]]:
    future: Future[Any] = Future()
    return (op, None, future, operand), future


def _fill(world: World) -> None:
    """Take the room away, as another program does."""
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


def test_short_writes_are_written_to_the_end() -> None:
    world = World()
    first = world.process()
    world.machine.shorten = lambda size: max(size // 3, 1)
    jobs = [first.enqueue(b"x" * 500) for _ in range(5)]
    world.lose_power()
    assert [delivery.job for delivery in world.process().claim(9)] == jobs


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


def test_a_tail_that_could_not_even_be_cut_back_is_cut_by_the_next_writer() -> None:
    world = World()
    first, second = world.process(), world.process()
    kept = first.enqueue(b"kept")

    def on_step(operation: str, path: str) -> None:
        if operation == "truncate" and path.endswith(".log"):
            raise OSError(errno.EIO, "no")

    world.machine.free = 100
    world.machine.on_step = on_step
    with pytest.raises(AppendFailed):
        first.enqueue(b"x" * 500)
    world.machine.on_step = None
    world.machine.free = _ROOM
    after = second.enqueue(b"after")
    assert after > kept
    assert [delivery.job for delivery in first.claim(9)] == [kept, after]
    assert not first.catch_up().damage


def test_settlements_that_nobody_waits_for_are_tried_again_until_there_is_room() -> None:
    world = World()
    first = world.process()
    jobs = [first.enqueue(), first.enqueue()]
    deliveries = first.claim(2)
    _fill(world)
    for delivery in deliveries:
        first.settle_soon(delivery)
    assert len(first.committer.undecided.held) == 2
    first.commit([])
    assert len(first.committer.undecided.held) == 2
    world.machine.free = _ROOM
    first.commit([])
    first.sync()
    assert not first.committer.undecided.held
    world.lose_power()
    world.process()
    for job in jobs:
        view = world.view(job)
        assert view is not None
        assert view.settled_ns


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


def test_a_step_of_the_clock_is_recorded_even_if_the_first_try_found_no_room() -> None:
    world = World()
    first = world.process()
    job = first.enqueue(extras=Extras(due_ns=3_600 * 10**9))
    world.clock.step(7_200)
    _fill(world)
    with pytest.raises(AppendFailed):
        first.enqueue()
    world.machine.free = _ROOM
    assert first.claim() == []
    assert [record.step_ns for record in world.records() if record.kind == Kind.CLOCK] == [
        7_200 * 10**9
    ]
    world.clock.advance(3_601)
    assert [delivery.job for delivery in first.claim()] == [job]


def _until_rotation(world: World) -> None:
    first = world.process()
    while first.journal.offset < SEGMENT_BYTES_MIN:
        first.enqueue(b"x" * 5_000)
    first.close()


@pytest.mark.parametrize("room", [0, 30, 64, 100])
def test_a_segment_that_cannot_be_begun_costs_nothing(room: int) -> None:
    """No id is left out, nothing is lost, and what waits goes on waiting."""
    world = World()
    _until_rotation(world)
    first, second = world.process(), world.process()
    count = len(world.records())
    delivery = first.claim()[0] if first.journal.offset < SEGMENT_BYTES_MIN else None
    assert delivery is None
    world.machine.free = room
    with pytest.raises(AppendFailed):
        first.enqueue(b"x" * 200)
    with pytest.raises(AppendFailed):
        second.enqueue(b"x" * 200)
    world.machine.free = _ROOM
    assert second.enqueue(b"after") == count + 1
    assert first.enqueue(b"after") == count + 2
    assert len(world.segments()) == 2
    assert not first.catch_up().damage


def test_after_a_crash_on_a_full_disk_settlements_wait_for_room_too() -> None:
    """The writer that finds a torn tail needs a new segment first: no room for it is no loss."""
    world = World()
    first, second = world.process(), world.process()
    job = first.enqueue()
    delivery = first.claim()[0]
    second.kill()
    path = world.segments()[0]
    world.machine.put(path, world.machine.content(path) + b"torn by a killed process")
    _fill(world)
    first.settle_soon(delivery)
    with pytest.raises(AppendFailed):
        first.enqueue()
    world.machine.free = _ROOM
    first.commit([])
    first.sync()
    view = world.view(job)
    assert view is not None
    assert view.settled_ns


def test_a_lock_file_that_cannot_be_written_does_not_keep_the_lock() -> None:
    world = World()
    first, second = world.process(), world.process()
    first.enqueue()

    def on_step(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("write.lock"):
            raise OSError(errno.ENOSPC, "No space left on device")

    world.machine.on_step = on_step
    with pytest.raises(TaskqError):
        second.enqueue()
    world.machine.on_step = None
    assert first.enqueue() == 2


def test_a_frame_whose_hint_could_not_be_written_is_in_the_log_all_the_same() -> None:
    world = World()
    first, second = world.process(), world.process()
    first.enqueue()

    def on_step(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("write.lock"):
            raise OSError(errno.EIO, "no")

    world.machine.on_step = on_step
    second_job = first.enqueue()
    world.machine.on_step = None
    third_job = second.enqueue()
    assert [delivery.job for delivery in first.claim(9)] == [1, second_job, third_job]


def test_recent_payloads_of_a_refused_batch_are_not_taken_for_those_of_later_jobs() -> None:
    """The refused jobs' ids are given out again, to other jobs."""
    world = World()
    first = world.process()
    first.claim()
    _fill(world)
    with pytest.raises(AppendFailed):
        first.enqueue(b"refused")
    world.machine.free = _ROOM
    second = world.process()
    job = second.enqueue(b"other")
    delivery = first.claim()[0]
    assert (delivery.job, delivery.payload) == (job, b"other")


def test_free_room_is_asked_of_the_disk_the_log_is_on() -> None:
    world = World()
    world.machine.free = 77
    disk = CrashableDisk(world.machine)
    assert disk.free_bytes(PATH) == 77
