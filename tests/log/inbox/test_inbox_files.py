"""Writing parts: what goes in comes out, chunk by chunk, and what cannot is refused at once."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.errors import AppendFailed, DiskFull, LogClosed, PayloadTooLarge, UsageError
from taskq.core.model import PAYLOAD_BYTES_MAX, Extras
from taskq.core.records import Option
from taskq.log.format import codec
from taskq.log.inbox import directory
from taskq.log.inbox import parts as inboxparts
from taskq.log.inbox.directory import Inbox, Part, Upload, decode_upload, encode_upload
from taskq.log.inbox.parts import (
    PartFile,
    UploadReader,
    decode_tail,
    encode_tail,
)
from taskq.log.inbox.writer import PartWriter, discard, publish
from taskq.log.requests import EnqueueSpec, Slice
from tests.effort import some
from tests.log.uploading import INBOX, adopt, bodies_in
from tests.log.uploading import publish as publish_in
from tests.log.world import PATH, World
from tests.machine.crashable import CrashableDisk

SPECS = [EnqueueSpec("mail", "send", 3, 1), EnqueueSpec("sync"), EnqueueSpec("é", "t", 9, 0)]
EXTRAS = [
    None, Extras(key=b"k"), Extras(key=b"k", window_ns=7), Extras(headers={"a": "é"}),
    Extras(due_ns=5), Extras(due_ns=5, due_is_wall=True), Extras(expires_ns=9, keep_ns=3),
    Extras(key=b"k", window_ns=7, until_settled=True),
]  # fmt: skip
MOMENTS = [
    Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE, Option.WINDOW, Option.KEEP
]  # fmt: skip


@pytest.fixture
def world() -> World:
    world = World()
    CrashableDisk(world.machine).make_directory(PATH)
    return world


def published(world: World, *parts: Part) -> Upload:
    publish_in(world, "it", parts)
    (upload,) = Inbox(CrashableDisk(world.machine), world.clock, PATH).waiting().uploads
    return upload


def bodies_of(piece: Slice) -> list[bytes]:
    bodies: list[bytes] = []
    for run in piece.runs:
        bodies += [body for _, body, _ in run] if isinstance(run, list) else run.bodies
    return bodies


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("extras", EXTRAS)
def test_a_tail_says_all_that_an_enqueue_can(spec: EnqueueSpec, extras: Extras | None) -> None:
    job = decode_tail(encode_tail(spec, extras))
    assert job.spec.tail == spec.tail
    assert job.extras == extras


@pytest.mark.parametrize(
    "tail",
    [
        b"", b"x" * 40, SPECS[0].tail[:-1], SPECS[0].tail + b"x",
        codec.enqueue_tail(77, 1, 1, 1, 0, b"q", b""),
        codec.enqueue_tail(5, 1, 1, 0, 1, b"t", b""),
        codec.enqueue_tail(5, 1 | 2**20, 1, 1, 0, b"q", b""),
        codec.enqueue_tail(5, 1, 1, 1, 0, b"\xff", b""),
        codec.enqueue_tail(5, 1, 1, 1, 0, b"q", bytes((Option.REPLACES, 8, 0)) + bytes(8)),
        codec.enqueue_tail(5, 1, 1, 1, 0, b"q", bytes((Option.DUE, 1, 0, 7))),
        codec.enqueue_tail(5, 1, 1, 1, 0, b"q", bytes((Option.KEY, 0, 0))),
        *(
            codec.enqueue_tail(5, 1, 1, 1, 0, b"q", bytes((option, 8, 0)) + moment)
            for option in MOMENTS
            for moment in (b"\xff" * 8, b"\xff" * 7 + b"\x7f")
        ),
        codec.enqueue_tail(
            5, 1, 1, 1, 0, b"q",
            struct.pack("<BHHH", Option.HEADERS, 30_004, 0, 30_000) + b"\xff" * 30_000,
        ),
    ],
)  # fmt: skip
def test_a_tail_that_is_none_is_refused_before_anything_is_written(
    world: World, tail: bytes
) -> None:
    writer = PartWriter(Path(PATH), "up", disk=CrashableDisk(world.machine))
    with pytest.raises(UsageError):
        writer.add(tail, b"x")
    assert writer.close().jobs == 0


@settings(max_examples=some(30, 60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=12), st.data())
def test_what_was_written_is_read_from_any_place_on(
    sizes: list[tuple[int, bool]], data: st.DataObject
) -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    bodies = [b"%d:" % n + b"." * size for n, (size, _) in enumerate(sizes)]
    writer = PartWriter(Path(PATH), "up", disk=disk)
    for body, (_, many) in zip(bodies, sizes, strict=True):
        if many:
            writer.add_many(SPECS[0].tail, [body])
        else:
            writer.add(SPECS[1].tail, body)
    part = writer.close()
    assert part.jobs == len(bodies)
    content = world.machine.content(f"{INBOX}/{part.name}")
    assert hashlib.sha256(content).hexdigest() == part.sha256
    assert len(content) == part.size_bytes
    for _ in PartFile(disk, f"{INBOX}/{part.name}").check_steps(part):
        pass
    reader = UploadReader(disk, INBOX, published(world, part))
    for _ in range(4 if bodies else 0):
        start = data.draw(st.integers(0, len(bodies) - 1))
        result = bodies_of(reader.slice(start, 0))
        assert result
        assert result == bodies[start : start + len(result)]


@settings(max_examples=some(40, 80), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EXTRAS[:3]), st.integers(1, 9))), st.integers(1, 200))
def test_a_slice_leaves_out_no_job_whatever_kinds_come_in_turn(
    kinds: list[tuple[Extras | None, int]], weight_max: int
) -> None:
    world = World()
    disk = CrashableDisk(world.machine)
    disk.make_directory(PATH)
    writer = PartWriter(Path(PATH), "up", disk=disk)
    for number, (extras, count) in enumerate(kinds):
        for more in range(count):
            writer.add(encode_tail(SPECS[number % 2], extras), b"%d.%d" % (number, more))
    bodies = [b"%d.%d" % (n, more) for n, (_, count) in enumerate(kinds) for more in range(count)]
    reader = UploadReader(disk, INBOX, published(world, writer.close()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inboxparts, "_WEIGHT_MAX", weight_max)
        start = 0
        while start < len(bodies):
            result = bodies_of(reader.slice(start, 0))
            assert result
            assert result == bodies[start : start + len(result)]
            start += len(result)


def test_a_payload_over_the_limit_is_refused_and_the_part_goes_on(world: World) -> None:
    writer = PartWriter(Path(PATH), "up", disk=CrashableDisk(world.machine))
    large = b"x" * (PAYLOAD_BYTES_MAX + 1)
    with pytest.raises(PayloadTooLarge):
        writer.add(SPECS[0].tail, large)
    with pytest.raises(PayloadTooLarge):
        writer.add_many(SPECS[0].tail, [b"x", large])
    writer.add(SPECS[0].tail, large[1:])
    publish_in(world, "large", [writer.close()])
    assert adopt(world.process()) == 1
    assert len(next(iter(bodies_in(world)))) == PAYLOAD_BYTES_MAX


def test_what_is_aborted_leaves_nothing_and_takes_no_more(world: World) -> None:
    with PartWriter(Path(PATH), "up", disk=CrashableDisk(world.machine)) as writer:
        writer.add(SPECS[0].tail, b"x")
    assert not [path for path in world.machine.paths() if ".part" in path]
    with pytest.raises(LogClosed):
        writer.add(SPECS[0].tail, b"x")
    with pytest.raises(LogClosed):
        writer.close()
    writer.abort()


@pytest.mark.parametrize("free", [100, 1_000_000])
def test_a_disk_without_room_ends_a_part_and_leaves_none_of_it(world: World, free: int) -> None:
    """It stops before the room is used up that jobs need to be settled."""
    world.machine.total = 10_000_000
    world.machine.free = free
    writer = PartWriter(Path(PATH), "up", disk=CrashableDisk(world.machine))
    with pytest.raises((DiskFull, AppendFailed)):
        writer.add_many(SPECS[0].tail, [b"x" * 1_000] * 20_000)
    world.machine.free = None
    assert not [path for path in world.machine.paths() if ".part" in path]


def test_discard_leaves_what_was_published_and_what_is_anothers(tmp_path: Path) -> None:
    def part(upload: str) -> Part:
        writer = PartWriter(tmp_path, upload)
        writer.add(SPECS[0].tail, b"x")
        return writer.close()

    kept, other = part("up"), part("up.2")
    publish(tmp_path, "it", [kept])
    part("up")
    PartWriter(tmp_path, "up")._flush()
    assert discard(tmp_path, "up") == 2
    names = sorted(path.name for path in (tmp_path / "inbox").glob("*.part*"))
    assert names == sorted([kept.name, other.name])
    assert discard(tmp_path / "nothing", "up") == 0


def test_a_manifest_may_be_as_large_as_is_read_and_no_larger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PartWriter(Path(PATH), "up", disk=CrashableDisk(world.machine)) as writer:
        writer.add(SPECS[0].tail, b"x")
        upload = published(world, writer.close())
    size = len(encode_upload(upload))
    monkeypatch.setattr(directory, "MANIFEST_BYTES_MAX", size)
    assert decode_upload(encode_upload(upload), upload.name, "it") == upload
    monkeypatch.setattr(directory, "MANIFEST_BYTES_MAX", size - 1)
    with pytest.raises(UsageError, match="1 parts are too many, write larger ones"):
        encode_upload(upload)
