"""Uploads as the tests make, publish and adopt them on a simulated machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.log.inbox import writer as inbox
from taskq.log.inbox.adopter import Adopter
from taskq.log.inbox.directory import Part
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, publish_with
from taskq.log.machine.ports import Disk
from taskq.log.requests import AdoptOrder, EnqueueSpec
from tests.log.world import PATH, PLAIN, Process, World
from tests.machine.crashable import CrashableDisk

INBOX: Final = f"{PATH}/inbox"
_STEPS_MAX: Final = 100_000


class Waiter:
    """A caller of the adoption, and its answers."""

    def __init__(self) -> None:
        self.answer: Any = None

    def set_result(self, value: object) -> None:
        self.answer = value

    def set_exception(self, error: BaseException) -> None:
        self.answer = error


def small_chunks(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    """Let a chunk, and so a slice, hold so few jobs."""
    monkeypatch.setattr(inbox, "CHUNK_JOBS_MAX", jobs)


def write_part(
    disk: Disk,
    bodies: Iterable[bytes],
    extras: Extras | None = None,
    *,
    upload: str = "up",
    spec: EnqueueSpec = PLAIN,
    alone: bool = False,
) -> Part:
    """A part that holds these jobs, each in a chunk of its own if they are to be ``alone``."""
    writer = PartWriter(Path(PATH), upload, disk=disk)
    tail = encode_tail(spec, extras)
    for body in bodies:
        writer.add(tail, body)
        if alone:
            writer._flush()
    return writer.close()


def publish(world: World, name: str, parts: Iterable[Part], disk: Disk | None = None) -> bool:
    return publish_with(disk or CrashableDisk(world.machine), world.clock, PATH, name, list(parts))


def upload(world: World, name: str, bodies: Iterable[bytes], extras: Extras | None = None) -> bool:
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    return publish(world, name, [write_part(disk, bodies, extras)], disk)


def order(adopter: Adopter) -> Waiter:
    waiter = Waiter()
    adopter.order(AdoptOrder(None, waiter))
    return waiter


def step(process: Process, adopter: Adopter) -> bool:
    requests = adopter.step()
    if requests:
        process.commit(requests)
    answers = process.committer.answers.take_now()
    for _, future, value in answers:
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
    return bool(requests) or adopter.busy


def adopt(process: Process, adopter: Adopter | None = None) -> Any:
    adopter = adopter or Adopter(process.committer)
    waiter = order(adopter)
    for _ in range(_STEPS_MAX):
        if not step(process, adopter):
            process.sync()
            adopter.close()
            return waiter.answer
    raise AssertionError("the adoption does not come to an end")


def bodies_in(world: World) -> Counter[bytes]:
    """Return the payloads of all jobs that the log ever had, and how often."""
    return Counter(record.body or b"" for record in world.records() if record.type == Kind.ENQUEUED)


def numbered(count: int) -> list[bytes]:
    return [b"job %d" % number for number in range(count)]


def files_left(world: World) -> list[str]:
    names = (path.removeprefix(f"{INBOX}/") for path in world.machine.paths() if INBOX in path)
    return sorted(name for name in names if name not in {"lock", "adopt.lock", INBOX})
