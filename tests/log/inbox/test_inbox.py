"""Uploads become jobs of the log as if somebody had enqueued them, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from taskq.core.errors import LogError
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.notes import UploadProgress
from taskq.log.inbox.adopter import Adopter
from taskq.log.inbox.directory import Inbox, Part
from taskq.log.inbox.parts import PartFile
from taskq.log.requests import EnqueueSpec
from tests.log.tending import fill_segment, keeping, tend
from tests.log.uploading import (
    adopt,
    bodies_in,
    files_left,
    numbered,
    order,
    publish,
    small_chunks,
    step,
    upload,
    write_part,
)
from tests.log.world import PATH, SMALL, World
from tests.machine.crashable import CrashableDisk


def progress(world: World) -> list[UploadProgress]:
    return [record.adopted for record in world.records() if record.adopted is not None]


def test_a_name_that_was_published_is_refused_before_and_after_its_adoption() -> None:
    world = World()
    assert upload(world, "nightly", numbered(3))
    assert not upload(world, "nightly", numbered(3))
    process = world.process()
    assert adopt(process) == 3
    assert not upload(world, "nightly", numbered(3))
    assert adopt(process) == 0
    assert bodies_in(world) == dict.fromkeys(numbered(3), 1)


def test_several_parts_of_several_writers_are_one_upload() -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    bodies = numbered(9)
    parts = [write_part(disk, bodies[start : start + 3]) for start in (0, 3, 6)]
    empty = write_part(disk, [])
    assert publish(world, "nightly", [parts[0], empty, *parts[1:]])
    process = world.process()
    assert adopt(process) == 9
    assert [delivery.payload for delivery in process.claim(9)] == bodies


def test_priorities_queues_and_attempts_are_those_of_the_tail() -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    specs = [EnqueueSpec("mail", "send", 2, 3), EnqueueSpec("sync", "pull", 8, 1)]
    publish(world, "mixed", [write_part(disk, [b"x"], spec=spec) for spec in specs])
    process = world.process()
    assert adopt(process) == 2
    first, second = process.claim(2)
    assert (first.queue, first.task, first.priority, first.attempts_max) == ("sync", "pull", 8, 1)
    assert (second.queue, second.task, second.priority) == ("mail", "send", 2)


def test_who_adopts_without_claiming_folds_no_job_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch, 2)
    world = World()
    process = world.process()
    for _ in range(50):
        process.enqueue()
    upload(world, "nightly", numbered(5))
    other = world.process()
    assert adopt(other) == 5
    assert other.committer.facets.agenda is None
    assert other.committer.facets.dedup is None
    assert len(process.claim(100)) == 55


def test_two_that_adopt_in_turn_bring_no_job_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were both at it at a time, what the log says would keep them apart, without their lock."""
    small_chunks(monkeypatch, 3)
    world = World()
    processes = [world.process(), world.process()]
    upload(world, "nightly", numbered(20))
    adopters = [Adopter(process.committer) for process in processes]
    for adopter in adopters:  # as if the lock of adopters did not hold
        order(adopter)
        adopter._lock = adopter._journal.disk.open(f"{PATH}/inbox/lock.{id(adopter)}", create=True)
    going = [True]
    while any(going):
        going = [step(*pair) for pair in zip(processes, adopters, strict=True)]
    assert bodies_in(world) == dict.fromkeys(numbered(20), 1)
    assert max(item.done for item in progress(world)) == 20


def test_what_others_adopted_is_remembered_no_longer_than_it_waits() -> None:
    world = World()
    processes = [world.process(), world.process()]
    for number in range(10):
        upload(world, f"stream@{number}", numbered(2))
        adopt(processes[number % 2])
    for process in processes:
        assert len(process.committer.facets.uploads._found) < 3


def test_one_process_adopts_at_a_time_and_another_waits_for_it() -> None:
    world = World()
    first, second = world.process(), world.process()
    upload(world, "nightly", numbered(3))
    adopter, other = Adopter(first.committer), Adopter(second.committer)
    order(adopter)
    step(first, adopter)
    waiter = order(other)
    step(second, other)
    assert waiter.answer is None
    while step(first, adopter):
        pass
    world.clock.advance(1)
    while step(second, other):
        world.clock.advance(1)
    assert waiter.answer == 0


def test_a_publisher_who_is_stopped_with_the_lock_stops_nobody_else() -> None:
    world = World()
    process = world.process()
    upload(world, "nightly", numbered(3))
    publisher = CrashableDisk(world.machine)
    lock = publisher.open(f"{PATH}/inbox/lock")
    publisher.lock(lock)
    adopter = Adopter(process.committer)
    waiter = order(adopter)
    for _ in range(5):
        assert not step(process, adopter), "it would spin"
        assert process.enqueue(b"meanwhile")
        world.clock.advance(1)
    assert waiter.answer is None
    publisher.close(lock)
    while step(process, adopter):
        pass
    assert waiter.answer == 3


@pytest.mark.parametrize("finished", [False, True])
def test_compaction_keeps_what_tells_how_far_an_upload_has_come(
    finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 2)
    world = World(config=keeping(keep_bytes=3 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    upload(world, "nightly", numbered(6))
    adopter = Adopter(process.committer)
    order(adopter)
    wanted = 6 if finished else 4
    while not progress(world) or progress(world)[-1].done < wanted:
        step(process, adopter)
    process.kill()
    process = world.process()
    oldest = world.segments()[0]
    for _ in range(8):
        for delivery in process.claim(10):
            process.settle(delivery)
        fill_segment(process)
    tend(process)
    assert oldest not in world.segments()
    assert adopt(process) == 6 - wanted
    process.catch_up()
    seen = [delivery.payload for delivery in process.claim(10)]
    assert seen == numbered(6)[wanted:]
    assert files_left(world) == ["done/nightly.json"]


def test_an_upload_waits_while_the_disk_has_no_room_and_goes_on_when_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch, 2)
    world = World(config=LogConfig(segment_bytes=SEGMENT_BYTES_MIN, reserve_bytes=0))
    process = world.process()
    upload(world, "nightly", numbered(6))
    adopter = Adopter(process.committer)
    waiter = order(adopter)
    while not progress(world):
        step(process, adopter)
    world.machine.free = 10
    world.clock.advance(2)
    while waiter.answer is None:
        step(process, adopter)
    assert type(waiter.answer).__name__ == "DiskFull"
    adopter.close()
    world.machine.free = None
    world.clock.advance(60)
    assert adopt(process) == 4
    assert bodies_in(world) == dict.fromkeys(numbered(6), 1)


def test_what_was_checked_is_not_read_as_a_whole_each_time_that_the_disk_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(config=LogConfig(segment_bytes=SEGMENT_BYTES_MIN, reserve_bytes=0))
    process = world.process()
    upload(world, "nightly", numbered(6))
    checked: list[str] = []
    check = PartFile.check_steps

    def count(file: PartFile, part: Part) -> Iterator[None]:
        checked.append(part.name)
        return check(file, part)

    monkeypatch.setattr(PartFile, "check_steps", count)
    world.machine.free = 10
    adopter = Adopter(process.committer)
    for _ in range(3):
        waiter = order(adopter)
        while waiter.answer is None:
            step(process, adopter)
        assert isinstance(waiter.answer, LogError)
        world.clock.advance(60)
    world.machine.free = None
    while step(process, adopter):
        pass
    assert bodies_in(world) == dict.fromkeys(numbered(6), 1)
    assert len(checked) == 1


def test_an_upload_ends_on_a_full_disk_since_that_frees_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch, 2)
    reserve = 64 * 1024
    world = World(config=replace(SMALL, reserve_bytes=reserve))
    process = world.process()
    upload(world, "nightly", numbered(6))
    process.enqueue(b"before")
    world.machine.free = 4 * reserve
    adopter = Adopter(process.committer)
    waiter = order(adopter)
    while not progress(world) or progress(world)[-1].done < 6:
        step(process, adopter)
    world.machine.free = 0
    while step(process, adopter):
        pass
    assert waiter.answer == 6
    assert files_left(world) == ["done/nightly.json"]


def test_of_a_stream_the_last_hundred_batches_are_remembered_and_earlier_ones_refused() -> None:
    world = World()
    process = world.process()
    for number in range(103):
        assert publish(world, f"stream@{number}", [])
        adopt(process)
    assert len(files_left(world)) == 100
    for number in (0, 2):
        with pytest.raises(LogError, match=rf"stream@{number}: whether it .* batches from 3 on"):
            publish(world, f"stream@{number}", [])
    assert not publish(world, "stream@3", [])
    assert not publish(world, "stream@50", [])
    assert publish(world, "stream@103", [])
    assert publish(world, "other@1", [])


def test_files_that_were_never_published_go_after_a_week() -> None:
    world = World()
    process = world.process()
    write_part(process.disk, numbered(3), upload="dead")
    upload(world, "nightly", numbered(1))
    adopt(process)
    assert len(files_left(world)) == 2
    world.clock.advance(8 * 86_400)
    upload(world, "weekly", numbered(1))
    adopt(process)
    assert files_left(world) == ["done/nightly.json", "done/weekly.json"]


def test_they_go_though_nothing_is_published_any_more() -> None:
    world = World()
    process = world.process()
    upload(world, "nightly", numbered(1))
    adopt(process)
    write_part(process.disk, numbered(3), upload="dead")
    adopter = Adopter(process.committer)
    for _ in range(8):
        world.clock.advance(86_400)
        while step(process, adopter):
            pass
    assert files_left(world) == ["done/nightly.json"]


def test_what_was_published_is_known_by_looking_at_one_file() -> None:
    world = World()
    inbox = Inbox(CrashableDisk(world.machine), world.clock, PATH)
    assert inbox.signal() is None
    upload(world, "a", [])
    before = inbox.signal()
    world.clock.advance(1)
    upload(world, "b", [])
    assert inbox.signal() != before
