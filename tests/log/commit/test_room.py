"""A disk that fills up: new jobs are refused first, and what ends jobs goes on."""

import errno
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from taskq.core.errors import AppendFailed, DiskFull, JobNotFound, PayloadTooLarge, StaleDelivery
from taskq.core.model import PAYLOAD_BYTES_MAX, Durability, Extras, State
from taskq.core.records import Kind
from taskq.log import requests
from taskq.log.config import (
    LSN_SKIP,
    MIN_FREE_BYTES,
    MIN_FREE_FILES,
    RESERVE_BYTES,
    SEGMENT_BYTES_MIN,
    LogConfig,
)
from taskq.log.decide.context import BatchNeeds
from taskq.log.format import codec
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.selection import letters
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op, Settlement
from taskq.log.state.job_history import job_not_found
from taskq.log.upkeep.health import check_health
from tests.effort import grows, some
from tests.log.world import FILLER, PATH, PLAIN, SMALL, Process, World, tend
from tests.machine.crashable import CrashableDisk

pytestmark = grows


MIN_FREE: Final = 100_000
RESERVE: Final = 40_000
RESERVE_PATH: Final = f"{PATH}/reserve"
CONFIG: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=MIN_FREE, reserve_bytes=RESERVE
)


def reserve_size(world: World) -> int:
    paths = world.machine.paths()
    return len(world.machine.content(RESERVE_PATH)) if RESERVE_PATH in paths else 0


def _looks(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    free_bytes = process.disk.free_bytes

    def count(path: str) -> int:
        asked.append(process.world.clock.steady_ns())
        return free_bytes(path)

    monkeypatch.setattr(process.disk, "free_bytes", count)
    return asked


def test_dead_letters_are_not_requeued_while_there_is_no_room_for_new_jobs() -> None:
    """They are written again; forgetting them is another matter."""
    world = World(config=CONFIG)
    first = world.process()
    jobs = [first.enqueue(b"x" * 500), first.enqueue(b"x" * 500)]
    for delivery in first.claim(2):
        first.settle(delivery, Kind.DEAD)
    dead = letters(first.committer.sight, jobs).items
    world.machine.free = MIN_FREE - 1
    world.clock.advance(10)
    with pytest.raises(DiskFull):
        first.ask(Op.REQUEUE, dead)
    assert first.ask(Op.PURGE, jobs[:1]) == [None]
    world.machine.free = None
    assert first.ask(Op.REQUEUE, dead[1:]) == [None]
    assert [claimed.job for claimed in first.claim(9)] == jobs[1:]


@pytest.mark.parametrize(
    ("total", "limit", "reserve"),
    [(4 * 2**20, 4 * 2**20 // 50, 4 * 2**20 // 50), (2**40, MIN_FREE_BYTES, RESERVE_BYTES)],
)
def test_limit_and_reserve_default_to_a_fiftieth_of_a_small_disk(
    total: int, limit: int, reserve: int
) -> None:
    world = World(config=LogConfig())
    world.machine.total = total
    first = world.process()
    first.enqueue()
    assert first.committer.room.limit_bytes == limit
    assert reserve_size(world) == reserve


def test_a_disk_that_cannot_be_asked_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config=CONFIG)
    first = world.process()

    def fail(_: str) -> int:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(first.disk, "free_bytes", fail)
    first.enqueue()
    assert first.committer.room.free_bytes is None


def test_the_disk_is_seldom_asked_until_the_limit_is_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(config=CONFIG)
    first = world.process()
    asked = _looks(first, monkeypatch)
    for _ in range(100):
        first.enqueue()
    assert len(asked) == 1
    for _ in range(100):
        world.clock.advance(0.1)
        first.enqueue()
    assert len(asked) <= 11
    world.machine.free = MIN_FREE + RESERVE + 1_000_000
    world.clock.advance(2)
    first.enqueue()
    asked.clear()
    for _ in range(20):
        first.enqueue(b"x" * 100)
    assert asked == []
    for _ in range(20):
        world.clock.advance(0.025)
        first.enqueue(b"x" * 100)
    assert len(asked) == 10, "every 50 ms"
    first.enqueue(b"x" * 200_000)
    first.enqueue(b"x" * 60_000)
    assert len(asked) == 11, "or after a quarter of the rest"


def test_a_full_disk_drops_the_oldest_ended_jobs_and_explains_it() -> None:
    """None goes where even half of the log would not do: others fill the disk then."""
    world = World(config=replace(CONFIG, reserve_bytes=0, keep_seconds=None))
    process = world.process()
    jobs = [process.enqueue(FILLER) for _ in range(40)]
    for delivery in process.claim(40):
        process.settle(delivery)
    for free, all_stay in ((0, True), (MIN_FREE - 3_000, False)):
        world.machine.free = free
        with pytest.raises(DiskFull):
            process.enqueue(b"new")
        tend(process)
        there = [job for job in jobs if world.view(job) is not None]
        assert (there == jobs) is all_stay
    assert len(jobs) // 2 < len(there) < len(jobs)
    assert there == jobs[-len(there) :]
    process.enqueue(b"new")
    gone = r"the disk was full at .* went to make room"
    with pytest.raises(JobNotFound, match=gone):
        process.ask(Op.OUTCOME, jobs[0])
    assert re.search(gone, str(job_not_found(process.journal, jobs[0])))
    assert not re.search(gone, str(job_not_found(process.journal, jobs[-1])))
    assert process.ask(Op.OUTCOME, jobs[-1]).state is State.SUCCEEDED


_PLENTY: Final = 10_000
_CONFIG: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=1, reserve_bytes=0)


def test_without_an_inode_everything_that_was_enqueued_can_still_be_settled() -> None:
    world = World(config=_CONFIG)
    first, second = world.process(), world.process()
    jobs = [first.enqueue(b"x" * 500) for _ in range(100)]
    world.machine.files = (0, _PLENTY)
    world.clock.advance(1)
    for process in (first, second) * 50:
        (delivery,) = process.claim()
        process.settle(delivery, body=b"y" * 2_000)
    assert {world.job(job).state for job in jobs} == {State.SUCCEEDED}
    assert len(world.segments()) == 1
    assert len(world.machine.content(world.segments()[0])) > SEGMENT_BYTES_MIN
    world.lose_power()
    world.machine.files = None
    world.process()
    assert {world.job(job).state for job in jobs} == {State.SUCCEEDED}


def test_the_next_segment_is_tried_for_once_a_second_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(config=_CONFIG)
    process = world.process()
    for _ in range(60):
        process.enqueue(b"x" * 500)
    world.machine.files = (0, _PLENTY)
    tried: list[str] = []
    make = CrashableDisk.open

    def watched(disk: CrashableDisk, path: str, *, create: bool = False, write: bool = True) -> int:
        tried.extend([path] * create)
        return make(disk, path, create=create, write=write)

    monkeypatch.setattr(CrashableDisk, "open", watched)
    for _ in range(3):
        world.clock.advance(1)
        for _ in range(20):
            (delivery,) = process.claim()
            process.settle(delivery, body=b"y" * 2_000)
    assert len(tried) == 3
    assert caplog.text.count("no next one") == 1


def test_a_segment_does_not_grow_beyond_what_readers_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taskq.log.journal.journal.STRETCHED_BYTES_MAX", 2 * SEGMENT_BYTES_MIN)
    world = World(config=replace(SMALL, min_free_bytes=0))
    process = world.process()
    world.machine.files = (0, _PLENTY)
    with pytest.raises(AppendFailed, match="No space left"):
        list(map(process.enqueue, [bytes(5_000)] * 99))
    size = len(world.machine.content(world.segments()[0]))
    assert 2 * SEGMENT_BYTES_MIN <= size < 3 * SEGMENT_BYTES_MIN


@pytest.mark.parametrize("left", [0, MIN_FREE_FILES - 1, MIN_FREE_FILES])
def test_enqueues_are_refused_while_few_files_may_still_be_made(left: int) -> None:
    world = World(config=_CONFIG)
    process = world.process()
    world.machine.files = (left, _PLENTY)
    world.clock.advance(1)
    if left == MIN_FREE_FILES:
        process.enqueue()
        return
    with pytest.raises(DiskFull, match=f"{left} files may still be made") as caught:
        process.enqueue()
    assert caught.value.errno == errno.ENOSPC
    world.machine.files = None
    world.clock.advance(1)
    process.enqueue()


def test_health_looks_at_the_files_that_may_still_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for files, is_well in (((3, _PLENTY), False), ((_PLENTY, _PLENTY), True), (None, True)):
        monkeypatch.setattr(LocalDisk, "files", lambda _self, _path, files=files: files)
        (seen,) = [item for item in check_health(tmp_path) if item.name == "disk"]
        assert seen.ok is is_well
        assert seen.detail.startswith("3 files may still be made") is not is_well


def test_claims_and_watchers_wait_until_there_is_room(world: World) -> None:
    """They ask for nothing that a full disk could refuse for good; a known outcome needs none."""
    first = world.process()
    ended, job = first.enqueue(), first.enqueue()
    first.settle(first.claim()[0], body=b"41")
    world.machine.free = 0
    claim = first.send(Op.CLAIM, ClaimRequest(1))
    known, outcome, unknown = (first.send(Op.OUTCOME, each) for each in (ended, job, job + 99))
    assert known.result(0).body == b"41"
    with pytest.raises(JobNotFound):
        unknown.result(0)
    assert not claim.done()
    assert not outcome.done()
    world.machine.free = 10_000_000
    first.commit([])
    first.settle(claim.result(0)[0], body=b"42")
    assert outcome.result(0).body == b"42"


_NO_MIN_FREE: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=RESERVE
)


@pytest.mark.parametrize("config", [CONFIG, _NO_MIN_FREE])
def test_while_the_reserve_is_gone_no_process_enqueues_what_was_freed_for_others(
    config: LogConfig,
) -> None:
    world = World(config=config)
    world.machine.free = 2_000_000
    first, second = world.process(), world.process()
    jobs = [first.enqueue(), second.enqueue()]
    world.machine.free = 0
    world.clock.advance(1)
    first.settle(first.claim()[0])
    assert reserve_size(world) == 0
    assert world.machine.free
    assert world.machine.free > RESERVE // 2
    third = world.process()
    for process in (first, second, third):
        with pytest.raises(DiskFull):
            process.enqueue(b"x" * 100)
        assert process.committer.room.pressed
    second.settle(second.claim()[0])
    world.machine.free = config.min_free_bytes or 0
    with pytest.raises(DiskFull):
        third.enqueue()
    world.machine.free += RESERVE + 5_000
    assert third.enqueue() > max(jobs)
    assert reserve_size(world) == RESERVE
    assert first.enqueue() > max(jobs)
    assert not first.committer.room.pressed


def test_a_quota_that_the_free_bytes_do_not_show_is_a_full_disk_too() -> None:
    world = World(config=CONFIG)
    first = world.process()
    for _ in range(3):
        first.enqueue()
    deliveries = first.claim(3)
    left = 0

    def on_step(operation: str, path: str) -> None:
        nonlocal left
        if operation == "remove" and path == RESERVE_PATH:
            left = 3
        elif operation == "write" and path.endswith(".log") and left:
            left -= 1
        elif operation == "allocate" or (operation == "write" and path.endswith(".log")):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    world.machine.on_step = on_step
    with pytest.raises(DiskFull, match="quota") as caught:
        first.enqueue()
    assert caught.value.errno == errno.EDQUOT
    first.settle(deliveries[0])
    with pytest.raises(DiskFull):
        first.enqueue()
    first.settle(deliveries[1])
    world.machine.on_step = None
    assert first.enqueue() == 4 + 3 + 1 + 2
    first.enqueue()
    assert reserve_size(world) == RESERVE


@pytest.mark.parametrize("was_power_lost", [True, False])
def test_a_log_opens_on_a_full_disk_so_that_its_jobs_can_be_settled(
    *, was_power_lost: bool
) -> None:
    """After a power loss it begins a segment, which needs room: the reserve's."""
    world = World(config=CONFIG)
    first = world.process()
    job = first.enqueue()
    first.enqueue()
    if was_power_lost:
        world.machine.lose_power()
        world.everyone_is_gone()
        CrashableDisk(world.machine).make_directory(PATH)
        world.machine.put(RESERVE_PATH, bytes(RESERVE))
    else:
        first.kill()
    world.machine.free = 0
    second = world.process()
    with pytest.raises(DiskFull):
        second.enqueue()
    delivery = second.claim()[0]
    assert delivery.job == job
    second.settle(delivery)
    assert world.job(job).state is State.SUCCEEDED
    assert reserve_size(world) == 0


def test_opening_on_a_full_disk_asks_to_free_space() -> None:
    world = World(config=CONFIG)
    world.machine.free = 0
    with pytest.raises(AppendFailed, match="Free some space"):
        world.process()
    world.machine.free = None
    world.process().enqueue()


@pytest.mark.parametrize(("path", "size"), [(f"{PATH}/reserve.tmp", 16_384), (RESERVE_PATH, 100)])
def test_a_reserve_that_a_killed_process_left_half_made_is_made_whole(path: str, size: int) -> None:
    world = World(config=CONFIG)
    CrashableDisk(world.machine).make_directory(PATH)
    world.machine.put(path, bytes(size))
    world.process().enqueue()
    assert f"{PATH}/reserve.tmp" not in world.machine.paths()
    assert reserve_size(world) == RESERVE


_BIG: Final = bytes(PAYLOAD_BYTES_MAX)


def _claimed(process: Process, count: int) -> list[Delivery]:
    items = [(PLAIN, b"", None)] * count
    process.ask(Op.ENQUEUE_MANY, items)
    return process.claim(count)


def _frames(world: World) -> int:
    journal = world.reader()
    return sum(1 for _ in journal.frames(journal.start()))


@pytest.mark.parametrize(
    "item",
    [
        (PLAIN, b"x" * 900, None),
        (EnqueueSpec(queue="q" * 250, task="t" * 250), b"", None),
        (PLAIN, b"", Extras(key=b"k" * 900)),
        (PLAIN, b"", Extras(concurrency_key=b"c" * 900)),
        (PLAIN, b"x" * 900, Extras(key=b"k" * 900, headers={"a" * 400: "b" * 400}, keep_ns=7)),
    ],
)
def test_a_request_counts_for_about_the_room_that_it_takes(
    item: requests.Item, process: Process
) -> None:
    """However it brings the job: alone, among many, as a child or in a transaction."""
    process.enqueue()
    process.claim()
    parent, other = _claimed(process, 2)
    for op, operand in [
        (Op.ENQUEUE, item),
        (Op.ENQUEUE_MANY, [item]),
        (Op.SETTLE, [Settlement(Kind.SUCCEEDED, parent, b"r" * 500, children=(item,))]),
        (
            Op.TRANSACT,
            requests.Bundle((Settlement(Kind.SUCCEEDED, other, b"r" * 500),), (), (item,)),
        ),
    ]:
        before = process.journal.offset
        process.ask(op, operand)
        process.send(Op.CANCEL, process.journal.next_lsn - 1)  # its key is free for the next
        taken = process.journal.offset - before - 2 * codec.FRAME_HEADER.size - codec.JOB.size
        counted = BatchNeeds.of([(op, None, Future(), operand)]).size
        assert taken - 64 <= counted <= taken + 256


def test_a_batch_that_is_too_large_for_a_frame_is_parted(world: World, process: Process) -> None:
    """However the requests came together, each is answered as if it had come alone."""
    futures = [Future[Any]() for _ in range(3)]
    process.commit([(Op.ENQUEUE, None, future, (PLAIN, _BIG, None)) for future in futures])
    process.sync()
    assert [future.result(0) for future in futures] == [1, 2, 3]
    assert _frames(world) > 1
    assert len(world.process().claim(9)) == 3


def test_a_single_request_that_no_frame_holds_is_refused_alone(process: Process) -> None:
    deliveries = _claimed(process, 3)
    items = [Settlement(Kind.SUCCEEDED, delivery, _BIG) for delivery in deliveries]
    large: Future[Any] = Future()
    small: Future[Any] = Future()
    claim: Future[Any] = Future()
    process.commit([
        (Op.SETTLE, None, large, items),
        (Op.ENQUEUE, None, small, (PLAIN, b"", None)),
        (Op.CLAIM, None, claim, ClaimRequest(1)),
    ])  # fmt: skip
    process.sync()
    assert isinstance(large.exception(0), PayloadTooLarge)
    assert claim.result(0)[0].job == small.result(0)
    assert not process.catch_up().damage
    process.settle(deliveries[0], body=_BIG)


def test_a_claim_of_any_count_fits_a_frame(process: Process) -> None:
    jobs = []
    for _ in range(4):
        jobs += process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"", None)] * 2_500)
    claimed = process.claim(10**9)
    assert 0 < len(claimed) * codec.JOB.size < codec.FRAME_BODY_MAX // 8
    more = [delivery for _ in range(2) for delivery in process.claim(10**9)]
    assert [item.job for item in claimed + more] == jobs
    assert len(jobs) == 10_000


def _two() -> tuple[World, Process, Process]:
    world = World()
    return world, world.process(), world.process()


def _waits_for(process: Process, future: Future[Any]) -> Any:
    assert not future.done()
    assert process.committer.must_sync()
    process.sync()
    return future.result(0)


def test_a_refusal_that_rests_on_an_unsynced_record_waits_for_it() -> None:
    _, first, second = _two()
    job = first.enqueue()
    delivery = first.claim()[0]
    first.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])
    again = second.send(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])
    assert isinstance(_waits_for(second, again)[0], StaleDelivery)
    _, first, second = _two()
    job = first.enqueue()
    first.send(Op.CLAIM, ClaimRequest(1))
    assert _waits_for(second, second.send(Op.CANCEL, job)) == requests.Cancel.ASKED


def test_no_mode_lets_more_ids_hang_in_the_air_than_a_loss_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LSN_SKIP == 2**20
    for module in ("journal.journal", "commit.committer"):
        monkeypatch.setattr(f"taskq.log.{module}.LSN_SKIP", 100)
    for seed in range(some(6, 30)):
        world = World(seed)
        config = LogConfig(durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN)
        first, second = world.process(config), world.process(config)
        seen = set()
        for number in range(130):
            process = (first, second)[number % 2]
            seen.add(process.enqueue())
        assert first.journal.durable_lsn + second.journal.durable_lsn > 100
        world.lose_power()
        assert world.process().enqueue() not in seen
