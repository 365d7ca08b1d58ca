"""A disk on which no file can be made: new jobs are refused, and what ends jobs goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from taskq.core.errors import AppendFailed, DiskFull
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.log.config import MIN_FREE_FILES, SEGMENT_BYTES_MIN, LogConfig
from taskq.log.machine.disk import LocalDisk
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import open_store
from taskq.log.upkeep.health import check_health
from tests.log.world import SMALL, Process, World
from tests.machine.crashable import CrashableDisk

_PLENTY: Final = 10_000
_SECONDS: Final = 20
_CONFIG: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=1, reserve_bytes=0)


def _state(world: World, job: int) -> State:
    view = world.view(job)
    assert view is not None
    return view.state


def _enqueue_until_refused(process: Process) -> None:
    for _ in range(99):
        process.enqueue(b"x" * 5_000)


def _use_up(place: Path) -> None:
    for number in range(999):
        (place / f"{number}").touch()


def test_without_an_inode_everything_that_was_enqueued_can_still_be_settled() -> None:
    world = World(config=_CONFIG)
    first, second = world.process(), world.process()
    jobs = [first.enqueue(b"x" * 500) for _ in range(100)]
    world.machine.files = (0, _PLENTY)
    world.clock.advance(1)
    for process in (first, second) * 50:
        (delivery,) = process.claim()
        process.settle(delivery, body=b"y" * 2_000)
    assert {_state(world, job) for job in jobs} == {State.SUCCEEDED}
    assert len(world.segments()) == 1
    assert len(world.machine.content(world.segments()[0])) > SEGMENT_BYTES_MIN
    world.lose_power()
    world.machine.files = None
    world.process()
    assert {_state(world, job) for job in jobs} == {State.SUCCEEDED}


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
        _enqueue_until_refused(process)
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
    def disk() -> bool:
        (seen,) = [item for item in check_health(tmp_path) if item.name == "disk"]
        return seen.ok

    for files, is_well in (((3, _PLENTY), False), ((_PLENTY, _PLENTY), True), (None, True)):
        monkeypatch.setattr(LocalDisk, "files", lambda _self, _path, files=files: files)
        assert disk() is is_well


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 200 inodes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=200", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_real_file_system_without_inodes_lets_jobs_be_settled(few_files: Path) -> None:
    store = open_store(str(few_files / "data"), LogConfig(segment_bytes=SEGMENT_BYTES_MIN))
    port = store.thread_port
    jobs = [port.enqueue(EnqueueSpec(task="a.b"), bytes(900)) for _ in range(60)]
    assert all(job.result(_SECONDS) for job in jobs)
    with pytest.raises(OSError, match="No space"):
        _use_up(few_files)
    for _ in jobs:
        (delivery,) = port.claim(ClaimRequest(1)).result(_SECONDS)
        ended = [Settlement(Kind.SUCCEEDED, delivery, bytes(900))]
        assert port.settle(ended).result(_SECONDS) == [None]
    assert [item.ok for item in check_health(few_files / "data") if item.name == "disk"] == [False]
    store.close()
