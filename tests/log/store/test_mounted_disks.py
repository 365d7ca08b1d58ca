"""The whole store on file systems that are really full: one writes in place, one never does.

A copy-on-write file system has no room for a single byte any more when it is full, not even for
one in the middle of a file.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from taskq.core.errors import AppendFailed
from taskq.core.model import SECOND_NS
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import Store
from tests.processes.harness import eventually

pytestmark = pytest.mark.slow
_SPEC: Final = EnqueueSpec(task="mail.send")
_JOBS: Final = 120
_SECONDS: Final = 20
_REFILLED_AT: Final = 48
#: Long enough to sleep and wake up a few times.
_REFUSED_SECONDS: Final = 2.5
#: The least that a btrfs takes.
_IMAGE_BYTES: Final = 128 * 1024 * 1024


@pytest.fixture(params=["ext4", "btrfs"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a file system in a file."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    image.touch()
    with image.open("r+b") as file:
        file.truncate(_IMAGE_BYTES)
    for command in ([f"mkfs.{request.param}", "-q"], ["mount", "-o", "loop"]):
        what = [*command, str(image), *([str(place)] if command[0] == "mount" else [])]
        try:
            done = subprocess.run(what, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"{command[0]} is needed: {error}")
        if done.returncode:
            pytest.skip(f"{' '.join(what)}: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _use_up(place: Path) -> None:
    """Another program takes every byte that it can get, in large pieces and in small ones."""
    for size in (1024 * 1024, 4_096, 64):
        for number in range(100_000 // size + 1):
            name = place / f"ballast-{size}-{number}"
            with contextlib.suppress(OSError), name.open("ab", buffering=0) as ballast:
                while ballast.write(bytes(size)) == size:
                    pass


@pytest.fixture
def two(disk: Path) -> Iterator[tuple[Store, Store]]:
    """Two that have one log on it open."""
    data = disk / "data"
    data.mkdir(0o700)
    both = Store(str(data), LogConfig()), Store(str(data), LogConfig())
    for store in both:
        store.wait_open()
    yield both
    for store in both:
        store.close()


def test_a_worker_ends_its_jobs_on_the_full_disk_and_goes_on_when_there_is_room(
    disk: Path, two: tuple[Store, Store]
) -> None:
    """It sleeps between them, beside another process that is to be woken."""
    store, other = two
    port = store.thread_port
    jobs = port.enqueue_many([(_SPEC, bytes(200), None)] * _JOBS).result(_SECONDS)
    _use_up(disk)
    for number, job in enumerate(jobs):
        assert isinstance(job, int)
        outcome = other.thread_port.outcome(job)
        if not number % 10:
            eventually(lambda: store.mailbox.asleep and other.mailbox.asleep)
        if number == _REFILLED_AT:
            _use_up(disk)  # the log gave this up for room, too
        limit = store.steady_ns() + _SECONDS * SECOND_NS
        claim = port.claim(ClaimRequest(1, wait_until_ns=limit))
        if number == _REFILLED_AT:
            with contextlib.suppress(TimeoutError):
                claim.result(_REFUSED_SECONDS)  # where it never writes in place, it is not served
            with pytest.raises(AppendFailed, match="Free some space"):
                port.enqueue(_SPEC, bytes(20_000)).result(_SECONDS)
            for name in disk.glob("ballast-*"):
                name.unlink()
        [delivery] = claim.result(_SECONDS)
        ends = [Settlement(Kind.SUCCEEDED, delivery, b"done")]
        assert port.settle(ends).result(_SECONDS) == [None]
        assert outcome.result(_SECONDS).body == b"done"

    def enqueued() -> bool:
        with contextlib.suppress(AppendFailed):
            port.enqueue(_SPEC, b"again").result(_SECONDS)
            return True
        return False

    eventually(enqueued)
    with LogReader.open(store.path) as reader:
        assert not reader.verify().damage
        assert reader.stats().queues[0].succeeded >= _JOBS
