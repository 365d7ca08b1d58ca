"""The files of snapshots: their bytes, and what becomes of any that were changed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest

from taskq.core.folds.dedup import key_hash
from taskq.core.model import Extras
from taskq.log.format import codec
from taskq.log.format.frames import Cursor
from taskq.log.state import snapshot as snapshotfile
from taskq.log.state.snapshot import (
    AGENDA,
    DEDUP,
    HEADER,
    Newer,
    Unusable,
    load_newest,
    read_header,
    snapshot_names,
)
from tests.effort import every, grows
from tests.log.told import check_same, folded, names, told, write
from tests.log.world import PATH, World

_BLOCK: Final = 128


class Small:
    """A log with two snapshots of each facet, in blocks of 128 bytes."""

    def __init__(self) -> None:
        self.world = World()
        process = self.world.process()
        for number in range(2):
            process.offer(b"keyed %d" % number, Extras(key=b"key %d" % number))
            process.enqueue(b"plain")
            process.settle(process.claim(1)[0])
            process.catch_up()
            write(process)
        process.enqueue(b"after it")
        process.close()
        self.paths = [f"{PATH}/snapshot/{name}" for name in names(self.world)]
        self.contents = {path: self.world.machine.content(path) for path in self.paths}
        self.truth = told(folded(self.world, trusts_snapshots=False), self.now_ns)

    @property
    def now_ns(self) -> int:
        return self.world.clock.wall_ns()

    def newest(self, facet: str) -> str:
        return max(path for path in self.paths if f".{facet}." in path)

    def put(self, path: str, data: bytes) -> None:
        self.world.machine.put(path, data)

    def restore(self) -> None:
        for path, data in self.contents.items():
            self.put(path, data)

    def told(self) -> dict[str, Any]:
        return told(folded(self.world, trusts_snapshots=True), self.now_ns)

    def cursor(self, facet: str) -> int | None:
        place = self.world.reader()
        if facet == "agenda":
            loaded: tuple[object, Cursor] | None = load_newest(place, AGENDA)
        else:
            loaded = load_newest(place, DEDUP)
        return None if loaded is None else loaded[1].next_lsn


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", _BLOCK)
    small = Small()
    assert len(small.paths) == 4
    yield small
    small.restore()
    check_same(small.world)


def _lsns(small: Small, facet: str) -> list[int]:
    reader = small.world.reader()
    return [int(name[:20]) for name in snapshot_names(reader.disk, PATH, facet)]


@grows
@pytest.mark.parametrize("facet", ["agenda", "dedup"])
def test_any_byte_that_changed_makes_it_ignored(
    small: Small, facet: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest, older = _lsns(small, facet)
    path = small.newest(facet)
    data = small.contents[path]
    assert small.cursor(facet) == newest
    for at in range(0, len(data), every(17)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        small.put(path, bytes(changed))
        caplog.clear()
        assert small.cursor(facet) == older, f"byte {at}"
        assert "is passed over" in caplog.text
        if not at % 16:
            assert small.told() == small.truth


@grows
@pytest.mark.parametrize("facet", ["agenda", "dedup"])
def test_one_that_was_cut_or_grew_is_ignored(small: Small, facet: str) -> None:
    _, older = _lsns(small, facet)
    path = small.newest(facet)
    data = small.contents[path]
    for size in range(0, len(data), every(17)):
        small.put(path, data[:size])
        assert small.cursor(facet) == older, f"{size} bytes"
    small.put(path, data + b"\0")
    assert small.cursor(facet) == older
    small.put(path, data[:200] + bytes(len(data) - 200))
    assert small.told() == small.truth


def test_without_a_whole_one_the_log_is_folded_from_its_start(small: Small) -> None:
    for path in small.paths:
        small.put(path, b"nothing of the kind")
    assert small.cursor("agenda") is None
    assert small.told() == small.truth


def test_one_of_another_log_is_ignored(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    other = Small()
    for path in small.paths:
        small.put(path, other.contents[path])
    assert small.told() == small.truth
    assert "it is of another log" in caplog.text


def test_blocks_of_another_snapshot_do_not_fit(small: Small) -> None:
    """Or of another place in the same one: their CRC begins with log, lsn and number."""
    path = small.newest("agenda")
    data = bytearray(small.contents[path])
    at = len(data) - (len(data) - _contents_at(bytes(data))) // (_BLOCK + 4) * (_BLOCK + 4)
    first, second = at, at + _BLOCK + 4
    assert second + _BLOCK + 4 <= len(data)
    data[first:second], data[second : second + _BLOCK + 4] = (
        data[second : second + _BLOCK + 4],
        data[first:second],
    )
    small.put(path, bytes(data))
    assert small.cursor("agenda") == _lsns(small, "agenda")[1]


def _contents_at(data: bytes) -> int:
    count: int = HEADER.unpack_from(data)[12]
    return HEADER.size + 16 * count + 4


def _with_fields(data: bytes, **changes: int) -> bytes:
    """Return the file with another version, or the like, and a header CRC that fits."""
    end = _contents_at(data)
    head = bytearray(data[: end - 4])
    places = {"version": ("<H", 8), "facet": ("<H", 10), "frozen": ("<I", 12), "count": ("<I", 136)}
    for name, value in changes.items():
        form, at = places[name]
        struct.pack_into(form, head, at, value)
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + data[end:]


@pytest.mark.parametrize("what", ["version", "frozen"])
def test_one_of_a_newer_taskq_is_ignored_and_kept(
    small: Small, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = small.newest("agenda")
    small.put(path, _with_fields(small.contents[path], **{what: 99}))
    assert small.told() == small.truth
    assert "a newer taskq wrote it" in caplog.text
    process = small.world.process()
    process.enqueue(b"more")
    process.catch_up()
    assert path.rpartition("/")[2] in write(process)
    assert small.world.fold().caught_up == 0
    process.close()
    for name in names(small.world):
        small.world.machine.unlink(f"{PATH}/snapshot/{name}")


def test_one_of_another_facet_is_ignored(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    small.put(small.newest("agenda"), small.contents[small.newest("dedup")])
    assert small.told() == small.truth
    assert "it holds version 1 of facet 2" in caplog.text


def test_counts_are_bounded_before_anything_is_made_of_them(small: Small) -> None:
    path = small.newest("agenda")
    disk = small.world.reader().disk
    for count in (2**32 - 1, 1_000, 7):
        changed = bytearray(small.contents[path])
        struct.pack_into("<I", changed, 136, count)
        small.put(path, bytes(changed))
        opened = disk.open(path, write=False)
        with pytest.raises(Unusable, match=r"cut short|does not read back"):
            read_header(disk, opened, AGENDA.kind, small.world.reader().identity)


def test_a_disk_that_does_not_give_one_back_is_no_reason_to_fail(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    for path in small.paths:
        small.world.machine.unreadable.add((path, 0))
    assert small.told() == small.truth
    assert "Input/output error" in caplog.text
    small.world.machine.unreadable.clear()


def test_what_frozen_columns_and_their_file_look_like(small: Small) -> None:
    """The bytes, said again in the plainest way; a change of either needs another version."""
    path = small.newest("dedup")
    data = small.contents[path]
    log_id = small.world.reader().identity.log_id.bytes
    (magic, version, facet, frozen, log, segment, offset, lsn, frame, head, _, size, count,
     zero) = HEADER.unpack_from(data)  # fmt: skip
    assert (magic, version, facet, frozen, log, zero) == (b"taskqsnp", 1, 2, 1, log_id, 0)
    assert (segment, count) == (1, 1)
    assert struct.unpack_from("<QQ", data, 144) == (1, offset)
    segment_data = small.world.machine.content(small.world.segments()[0])
    assert head == segment_data[frame : frame + 56]
    result = codec.decode_frame_header(head, 0, codec.segment_seed(UUID(bytes=log_id), 1), frame)
    assert result is not None
    assert (frame + result.size, result.next_lsn) == (offset, lsn)
    at = 144 + 16
    assert int.from_bytes(data[at : at + 4], "little") == zlib.crc32(data[:at])
    at += 4
    columns = b""
    for number in range(-(-size // _BLOCK)):
        block = data[at : at + min(_BLOCK, size - len(columns))]
        at += len(block) + 4
        seed = zlib.crc32(struct.pack("<16sQQ", log_id, lsn, number))
        assert int.from_bytes(data[at - 4 : at], "little") == zlib.crc32(block, seed)
        columns += block
    assert at == len(data)
    numbers = list(_columns(columns))
    hashed = key_hash(b"default", b"key 1")
    (job,) = numbers[5][1]
    location = numbers[7][1][0]
    assert codec.enqueue_body(_record(segment_data, location)) == b"keyed 1"
    assert numbers == [
        ("q", (0, 1, 0, 2)),  # shift of the clock, keys held, page to be swept next, keys taken
        ("Q", (0,)),  # the lowest hash of each page
        ("I", (1,)), ("Q", (hashed,)),
        ("I", (1,)), ("Q", (job,)),
        ("I", (1,)), ("Q", (location,)),
        ("I", (1,)), ("q", (2**63 - 1,)),  # until it is settled
    ]  # fmt: skip


def _record(data: bytes, at: int) -> bytes:
    return data[at : at + codec.LENGTH.unpack_from(data, at)[0]]


def _columns(data: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    at = 0
    while at < len(data):
        code, count = struct.unpack_from("<8sQ", data, at)
        name = code.rstrip(b"\0").decode()
        at += 16
        yield name, struct.unpack_from(f"<{count}{name}", data, at)
        at += struct.calcsize(f"<{count}{name}")


def test_kinds_are_numbered_for_ever() -> None:
    assert [record.kind[:2] for record in (AGENDA, DEDUP)] == [("agenda", 1), ("dedup", 2)]
    assert issubclass(Newer, Unusable)
