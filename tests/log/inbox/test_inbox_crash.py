"""Uploads through crashes at any step: retried as its writer would, every job comes once."""

from __future__ import annotations

import errno
import os
from typing import Final

import pytest

from taskq.core.errors import AppendFailed
from taskq.log.inbox.directory import Inbox
from tests.effort import grows, some
from tests.log.uploading import (
    INBOX,
    adopt,
    bodies_in,
    files_left,
    numbered,
    publish,
    small_chunks,
    upload,
    write_part,
)
from tests.log.world import PATH, Process, World, cuts
from tests.machine.crashable import CrashableDisk, PowerLost

pytestmark = grows

BODIES: Final = numbered(7)


def recover(world: World) -> Process:
    world.machine.stop_at(None)
    upload(world, "nightly@1", BODIES)
    process = world.process()
    adopt(process)
    return process


def check(world: World) -> None:
    """Every job is there once, in order, and nothing is left to do."""
    process = recover(world)
    assert bodies_in(world) == dict.fromkeys(BODIES, 1)
    assert [delivery.payload for delivery in process.claim(10)] == BODIES
    assert not upload(world, "nightly@1", BODIES)
    inbox = Inbox(process.disk, world.clock, PATH)
    inbox.discard("up")
    assert files_left(world) in (["done/nightly@1.json"], ["done/nightly@1.json.tmp"])


@pytest.mark.parametrize("power", [True, False])
def test_no_crash_while_parts_are_written_and_published_loses_a_job_or_brings_one_twice(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step: of files, of renames, and between a rename and its directory's sync."""
    small_chunks(monkeypatch, 3)
    for cut in cuts(power=power):
        for seed in range(some(1, 3)):
            world = World(seed)
            disk = CrashableDisk(world.machine)
            disk.make_directory(PATH)
            published = False
            with cut.during(world):
                published = publish(world, "nightly@1", [write_part(disk, BODIES)], disk)
            if published:
                world.lose_power()
                assert not upload(world, "nightly@1", BODIES), "a publication is gone"
            check(world)
    assert cut.step > 20


@pytest.mark.parametrize("power", [True, False])
def test_no_crash_while_an_upload_is_adopted_loses_a_job_or_brings_one_twice(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 3)
    for cut in cuts(power=power):
        for seed in range(some(1, 4)):
            world = World(seed)
            upload(world, "nightly@1", BODIES)
            process = world.process()
            process.enqueue(b"before")
            process.settle(process.claim()[0])
            with cut.during(world, process):
                adopt(process)
            check_after(world)
    assert cut.step > 10


def check_after(world: World) -> None:
    process = recover(world)
    bodies = bodies_in(world)
    assert bodies.pop(b"before") == 1
    assert bodies == dict.fromkeys(BODIES, 1)
    assert [delivery.payload for delivery in process.claim(10)] == BODIES
    world.lose_power()
    assert adopt(world.process()) == 0
    assert not upload(world, "nightly@1", BODIES)


def test_a_failed_sync_at_the_end_keeps_the_upload_until_the_log_was_opened_again() -> None:
    world = World()
    upload(world, "nightly@1", BODIES)
    process = world.process()
    world.machine.fail_next_syncs()
    answer = adopt(process)
    assert isinstance(answer, Exception)
    process.kill()
    assert adopt(world.process()) in (0, len(BODIES))
    assert bodies_in(world) == dict.fromkeys(BODIES, 1)


@pytest.mark.parametrize(
    ("power", "seed"), [(False, 0), *((True, seed) for seed in range(some(2, 6)))]
)
def test_jobs_of_a_publication_that_does_not_last_are_taken_by_nobody(
    power: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 2)
    world = World(seed)
    process = world.process()
    disk = CrashableDisk(world.machine)
    part = write_part(disk, BODIES)
    sync_directory = disk.sync_directory

    def adopt_meanwhile(path: str) -> None:
        if path == INBOX and f"{INBOX}/nightly@1.json" in world.machine.paths():
            adopt(process)  # waits in vain for a publication
            process.sync()
            if power:
                world.lose_power()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_directory(path)

    monkeypatch.setattr(disk, "sync_directory", adopt_meanwhile)
    with pytest.raises((AppendFailed, PowerLost)):
        publish(world, "nightly@1", [part], disk)
    check(world)


def test_who_is_told_that_nothing_was_published_is_told_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    part = write_part(disk, BODIES)
    write_through = disk.write

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if world.machine.describe(descriptor).path == f"{INBOX}/lock":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_through(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", write)
        with pytest.raises(AppendFailed):
            publish(world, "first", [part], disk)
    assert publish(world, "second", [part], disk)
    assert adopt(world.process()) == len(BODIES)
    assert bodies_in(world) == dict.fromkeys(BODIES, 1)
