"""Uploads that do not read back: set aside with the reason, before any of their jobs is taken."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog
from taskq.core.errors import LogError, UploadDamaged
from taskq.log.format import codec
from taskq.log.format.notes import UploadProgress, encode_adopted
from taskq.log.inbox.adopter import Adopter
from taskq.log.inbox.directory import VERSION, Inbox, _seal
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter
from taskq.log.inbox.writer import publish as publish_real
from taskq.log.requests import EnqueueSpec
from tests.log.uploading import (
    INBOX,
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
from tests.log.world import PATH, World
from tests.machine.crashable import CrashableDisk

BODIES: Final = numbered(6)


def part_of(world: World) -> str:
    (path,) = [path for path in world.machine.paths() if path.endswith(".part")]
    return path


def cut(world: World) -> None:
    path = part_of(world)
    data = world.machine.content(path)
    world.machine.unlink(path)
    world.machine.put(path, data[:-5])


def flip(world: World) -> None:
    world.machine.corrupt(part_of(world), 70, b"\xff")


def lose(world: World) -> None:
    world.machine.unlink(part_of(world))


def lengthen(world: World) -> None:
    path = part_of(world)
    data = world.machine.content(path)
    world.machine.unlink(path)
    world.machine.put(path, data * 2)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [(cut, "were published"), (flip, "SHA-256"), (lose, "is missing"), (lengthen, "has ")],
)
def test_an_upload_with_a_damaged_part_brings_no_job_and_is_set_aside(
    harm: Callable[[World], None], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    upload(world, "good", [b"good"])
    process = world.process()
    adopt(process)
    upload(world, "bad", BODIES)
    harm(world)
    upload(world, "later", [b"later"])
    answer = adopt(process)
    assert isinstance(answer, UploadDamaged)
    assert problem in str(answer)
    assert "0 of its 6 jobs were adopted" in str(answer)
    assert bodies_in(world) == {b"good": 1, b"later": 1}
    assert "bad was refused" in caplog.text
    output = json.loads(world.machine.content(f"{INBOX}/refused/bad.json"))["upload"]
    assert problem in output["problem"]
    assert not [name for name in files_left(world) if "/" not in name]
    assert adopt(process) == 0


def test_what_was_refused_is_published_again_only_when_a_person_said_so() -> None:
    world = World()
    upload(world, "bad", BODIES)
    flip(world)
    process = world.process()
    adopt(process)
    with pytest.raises(LogError, match=r"bad was refused: .*SHA-256.*Remove .*refused/bad\.json"):
        upload(world, "bad", BODIES)
    process.disk.remove(f"{INBOX}/refused/bad.json")
    assert upload(world, "bad", BODIES)
    assert adopt(process) == 6


def test_a_part_that_is_damaged_in_the_middle_of_the_adoption_ends_it_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch, 2)
    world = World()
    upload(world, "bad", BODIES)
    process = world.process()
    adopter = Adopter(process.committer)
    waiter = order(adopter)
    while not bodies_in(world):
        step(process, adopter)
    size = len(world.machine.content(part_of(world)))
    world.machine.corrupt(part_of(world), size - 3, b"\xff")
    while step(process, adopter):
        pass
    assert "4 of its 6 jobs were adopted" in str(waiter.answer)
    assert bodies_in(world) == dict.fromkeys(BODIES[:4], 1)


@pytest.mark.parametrize(
    "harm", [b"", b"{}", b"\xff\xff", b'{"crc32": 1, "upload": {}}', b"[" * 999]
)
def test_a_manifest_that_is_none_is_set_aside_and_stops_nobody(harm: bytes) -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(f"{PATH}/inbox")
    world.machine.put(f"{INBOX}/bad.json", harm)
    upload(world, "good", [b"good"])
    answer = adopt(world.process())
    assert "bad was refused" in str(answer)
    assert bodies_in(world) == {b"good": 1}
    assert "refused/bad.json" in files_left(world)
    assert world.machine.content(f"{INBOX}/refused/bad.manifest") == harm


def test_every_byte_of_a_manifest_is_checked() -> None:
    world = World()
    upload(world, "nightly", BODIES)
    data = world.machine.content(f"{INBOX}/nightly.json")
    inbox = Inbox(CrashableDisk(world.machine), world.clock, PATH)
    good = inbox.waiting().uploads
    for at in range(len(data) - 2):
        world.machine.corrupt(f"{INBOX}/nightly.json", at, bytes((data[at] ^ 1,)))
        result = inbox.waiting()
        assert result.damaged or result.uploads == good
        world.machine.corrupt(f"{INBOX}/nightly.json", at, data[at : at + 1])


@pytest.mark.parametrize("field", ["sequence", "published_ns", "steady_ns", "boot", "from_lsn"])
@pytest.mark.parametrize("value", ["Infinity", "NaN", "-1", "1e3", "18446744073709551616", '"7"'])
def test_a_number_that_a_manifest_cannot_have_stops_nobody(field: str, value: str) -> None:
    world = World()
    upload(world, "bad", BODIES)
    (result,) = Inbox(CrashableDisk(world.machine), world.clock, PATH).waiting().uploads
    data = _seal({**result._asdict(), "version": VERSION, field: json.loads(value)})
    world.machine.unlink(f"{INBOX}/bad.json")
    world.machine.put(f"{INBOX}/bad.json", data)
    upload(world, "good", [b"good"])
    assert "bad was refused" in str(adopt(world.process()))
    assert bodies_in(world) == {b"good": 1}


@pytest.mark.parametrize("plant", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc")])
async def test_what_is_no_file_but_called_like_one_stops_nobody(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    """In place of a manifest, and of a part: that upload is refused, and the next is adopted."""
    (tmp_path / "log/inbox").mkdir(parents=True)
    plant(tmp_path / "log/inbox/odd.json")
    publish_real(tmp_path / "log", "nothing", [])
    async with TaskLog.open(tmp_path / "log", upkeep=False) as log:
        answer = r"odd was refused: .*/odd\.json: it is (no regular file|a symbolic link)"
        with pytest.raises(UploadDamaged, match=answer):
            await log.adopt()
        assert await log.adopt() == 0
        writer = PartWriter(tmp_path / "log", "up")
        writer.add(encode_tail(EnqueueSpec(), None), b"x")
        part = writer.close()
        publish_real(tmp_path / "log", "later", [part])
        file = tmp_path / "log/inbox" / part.name
        file.unlink()
        plant(file)
        with pytest.raises(UploadDamaged, match=rf"{part.name}: it is (no regular|a symbolic)"):
            await log.adopt()
        assert await log.adopt() == 0


def test_a_manifest_under_another_name_is_none() -> None:
    world = World()
    upload(world, "nightly", BODIES)
    disk = CrashableDisk(world.machine)
    disk.rename(f"{INBOX}/nightly.json", f"{INBOX}/other.json")
    assert "it is that of 'nightly'" in str(adopt(world.process()))
    assert not bodies_in(world)


def test_damage_of_the_log_itself_refuses_no_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 2)
    world = World()
    process = world.process()
    upload(world, "nightly", BODIES)
    adopter = Adopter(process.committer)
    order(adopter)
    while len(bodies_in(world)) < 4:
        step(process, adopter)
    adopter.close()
    process.enqueue(b"behind")
    process.close()
    frames = [record for record in world.records() if record.adopted is not None]
    assert [frame.adopted.done for frame in frames if frame.adopted] == [2, 4]
    (segment,) = world.segments()
    content = world.machine.content(segment)
    magic = [at for at in range(len(content)) if content.startswith(codec.FRAME_MAGIC_BYTES, at)]
    assert magic
    world.machine.corrupt(segment, magic[1] + 8, b"\xff")
    assert adopt(world.process()) == 2


def test_a_payload_that_looks_like_progress_is_none() -> None:
    """It stands at the end of a frame, with a CRC that fits the record's lsn."""
    world = World()
    process = world.process()
    upload(world, "nightly", BODIES)
    (waiting,) = Inbox(process.disk, world.clock, PATH).waiting().uploads
    for lsn in range(1, 40):
        fake = encode_adopted(UploadProgress(waiting.id, 6, 6, 0, 1), lsn)
        process.append(bytes(8) + fake, 1)
    result = process.committer.facets.uploads
    process.journal.refresh()
    result.look_from(0)
    result.catch_up()
    assert result.progress(waiting.id) is None


def test_a_part_that_is_missing_or_short_is_not_published() -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    part = write_part(disk, BODIES)
    with pytest.raises(UploadDamaged, match="has"):
        publish(world, "nightly", [part._replace(size_bytes=7)])
    lose(world)
    with pytest.raises(UploadDamaged, match="is missing"):
        publish(world, "nightly", [part])
    assert adopt(world.process()) == 0


def test_an_inbox_that_may_not_be_looked_at_stops_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user made it, or there is a file of that name."""
    world = World()
    process = world.process()
    upload(world, "nightly", BODIES)
    adopter = Adopter(process.committer)
    world.clock.advance(60)

    def refuse(path: str) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(process.disk, "modified_ns", refuse)
        for _ in range(3):
            assert adopter.step() == []
            world.clock.advance(60)
    assert caplog.text.count("inbox/lock") == 1
    assert adopter.seconds_until_look() == 0
    while step(process, adopter):
        pass
    assert bodies_in(world) == dict.fromkeys(BODIES, 1)


def test_a_last_number_that_cannot_be_stops_no_publication() -> None:
    world = World()
    upload(world, "first", [b"first"])
    world.machine.corrupt(f"{INBOX}/lock", 0, b"\xff" * 8)
    assert upload(world, "second", [b"second"])
    assert adopt(world.process()) == 2
