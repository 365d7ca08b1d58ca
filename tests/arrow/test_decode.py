"""Frames are found however they are walked; damaged ones and other files are refused."""

import errno
import json
import os
import pickle
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from taskq.arrow import (
    DETAILS,
    SCHEMA,
    Corrupt,
    SegmentDamaged,
    SegmentMissing,
    WrongSegment,
    decode,
)
from taskq.arrow.arrays import HEAD_SIZE, PAD_SIZE
from taskq.arrow.problems import SegmentUnreadable
from taskq.core.errors import FormatError, UsageError
from taskq.core.kinds import ENDS
from taskq.core.records import Kind, Option
from taskq.log.format import codec
from taskq.log.format.bodies import compress
from taskq.log.machine import posix
from tests.arrow.rows_of_log import (
    Row,
    Segments,
    claimed,
    decoded_rows,
    enqueued,
    rows_of_directory,
    succeeded,
)
from tests.log.format.test_golden import RECORDS


class _Three(NamedTuple):
    segments: Segments
    path: Path
    second: int
    third: int

    def flip(self, at: int | bytes) -> None:
        data = bytearray(self.path.read_bytes())
        data[data.index(at) if isinstance(at, bytes) else at] ^= 0x10
        self.path.write_bytes(data)


@pytest.fixture
def three(tmp_path: Path) -> _Three:
    segments = Segments(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    segments.add(enqueued(b"one"), enqueued(b"two"))
    second = segments.add(enqueued(b"three"), claimed(1), enqueued(b"five"))
    return _Three(segments, segments.file, second, segments.add(enqueued(b"six")))


def _values(rows: list[Row]) -> list[Any]:
    return [row["value"] for row in rows if row["kind"] == "enqueued"]


_LEFT: Final = ["one", "two", "three", "five", "six"]


@pytest.mark.parametrize(("flip", "what", "left"), [
    (b"three", "the frame of 3 records is damaged", ["one", "two", "five", "six"]),
    (None, "no whole frame starts here", _LEFT),
    (0, "this is no segment of a task log", _LEFT),
    (17, "the header is damaged", _LEFT),
])  # fmt: skip
def test_damage_is_an_error_passed_over_or_kept(
    flip: int | bytes | None, what: str, left: list[str], three: _Three
) -> None:
    """The error names file, place and option; by its own CRC a record may be whole."""
    is_header = isinstance(flip, int)
    begin, end, lsn = (0, 64, 1) if is_header else (three.second, three.third, 3)
    three.flip(three.second + 9 if flip is None else flip)
    with pytest.raises(SegmentDamaged) as caught:
        decoded_rows([three.segments.piece()], Corrupt.FAIL)
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    shown = str(three.path).encode(errors="surrogateescape").decode(errors="backslashreplace")
    assert (
        str(error)
        == str(caught.value)
        == (
            f"{shown}: {what}, bytes {begin} to {end}, from lsn {lsn} on: "
            "corruptMode=skip reads past them"
        )
    )
    assert (error.path, error.offset, error.resume, error.lsn) == (str(three.path), begin, end, lsn)
    rows = decoded_rows([three.segments.piece()])
    assert _values(rows) == left
    decoded, expected = rows_of_directory(three.segments.path)
    assert decoded == expected == rows
    every = decoded_rows([three.segments.piece()], Corrupt.BREAK)
    (gone,) = (row for row in every if row["kind"] == "break")
    assert [row for row in every if row is not gone] == rows
    assert every.index(gone) == lsn - 1
    assert (gone["offset"], gone["lsn"], gone["segment"]) == (begin, lsn, 1)
    assert json.loads(gone["value"]) == {"what": "damaged", "lsn": lsn, "cause": what}


def test_a_piece_that_starts_with_damage_finds_out_its_lsns(three: _Three) -> None:
    segments = three.segments
    three.flip(three.second + 9)
    rows = decoded_rows([segments.piece(three.second)], Corrupt.BREAK)
    assert [row["lsn"] for row in rows] == [3, 3, 5, 6]
    whole = decoded_rows([segments.piece()], Corrupt.BREAK)
    assert rows == whole[2:]


def test_a_frame_that_its_file_or_piece_cuts_in_two_is_damage(three: _Three) -> None:
    segments, path, second, third = three
    with pytest.raises(SegmentDamaged, match=f"bytes {second} to {second + 20}, from lsn 3"):
        decoded_rows([segments.piece(0, second + 20)], Corrupt.FAIL)
    piece = segments.piece()
    path.write_bytes(path.read_bytes()[: second + 70])
    with pytest.raises(SegmentDamaged, match=f"bytes {second} to {third}, from lsn 3"):
        decoded_rows([piece], Corrupt.FAIL)
    rows = decoded_rows([piece], Corrupt.BREAK)
    assert _values(rows) == ["one", "two"]
    assert {row["kind"] for row in rows[2:]} == {"break"}


@pytest.mark.parametrize("corrupt", Corrupt)
def test_other_segments_and_newer_formats_are_refused(corrupt: Corrupt, three: _Three) -> None:
    segments, path = three.segments, three.path
    other = uuid.uuid4()
    piece = segments.piece()._replace(log_id=str(other))
    with pytest.raises(WrongSegment, match=rf"this is segment 1 .* segment 1 of log {other}"):
        decoded_rows([piece], corrupt)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[56:60] = codec.crc32(data[:56]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match="segment format 2 is unknown"):
        decoded_rows([segments.piece()], corrupt)
    data[8] = 1
    data[56:60] = codec.crc32(data[:56]).to_bytes(4, "little")
    first = codec.SEGMENT_HEADER.size
    seed = codec.crc32(first.to_bytes(8, "little"), codec.segment_seed(segments.log_id, 1))
    data[first + 12] = 4
    crc = codec.crc32(data[first : first + 52], seed)
    data[first + 52 : first + 56] = crc.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"frame flags 0x4 at offset {first}"):
        decoded_rows([segments.piece()], corrupt)


def test_an_unreadable_file_is_named(three: _Three, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, path = three.segments.piece(), three.path
    path.with_name("link").symlink_to(path)
    os.mkfifo(path.with_name("pipe"))  # or opening would hang on it
    for name, what in (("link", "symbolic link"), ("pipe", "regular file"), (".", "regular")):
        with pytest.raises(SegmentUnreadable, match=rf"caf\\xe9/log.* read \(it is \w+ {what}"):
            list(decode(piece._replace(path=str(path.parent / name)), DETAILS))

    def refuse(*_: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(posix, "pread", refuse)
        patch.setattr(posix, "preadv", refuse)
        with pytest.raises(SegmentUnreadable, match=r"cannot be read \(Permission denied\)"):
            decoded_rows([piece])
    path.unlink()
    with pytest.raises(SegmentMissing, match=r"caf\\xe9/log.* is missing.*failOnDataLoss=false"):
        list(decode(piece, DETAILS))


def test_unreadable_blocks_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(tmp_path / "log")
    path = segments.file
    offsets = [segments.add(enqueued(b"x" * 3_000)) for _ in range(5)]
    assert path.stat().st_size > 3 * 4_096
    read = os.pread

    def broken(descriptor: int, count: int, offset: int) -> bytes:
        if offset < 8_192 and offset + count > 4_096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, count, offset)

    def broken_into(descriptor: int, view: memoryview, offset: int) -> int:
        data = broken(descriptor, len(view), offset)
        view[: len(data)] = data
        return len(data)

    monkeypatch.setattr(posix, "pread", broken)
    monkeypatch.setattr(posix, "preadv", broken_into)
    with pytest.raises(SegmentDamaged, match=f"bytes {offsets[1]} to {offsets[2]}"):
        decoded_rows([segments.piece()], Corrupt.FAIL)
    assert [row["lsn"] for row in decoded_rows([segments.piece()])] == [1, 4, 5]


def test_frames_larger_than_what_is_read_at_once_are_whole(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    bodies = [bytes([number]) * 1_500_000 for number in range(3)]
    segments.add(*(enqueued(body) for body in bodies))
    segments.add(enqueued(b"small"))
    rows = decoded_rows([segments.piece()])
    assert [row["value"] for row in rows] == [*map(bytes.decode, bodies), "small"]


def _rows(segments: Segments, **rest: Any) -> list[Row]:
    return decoded_rows([segments.piece()], **rest)


def test_every_kind_of_record_has_the_columns_that_a_plain_reader_gives(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    segments.add(*RECORDS.values())
    decoded, expected = rows_of_directory(segments.path)
    assert decoded == expected
    assert len(decoded) == len(RECORDS)


def test_gathering_never_leaves_the_data() -> None:
    assert HEAD_SIZE <= PAD_SIZE


def test_only_the_columns_that_are_asked_for_come_in_that_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    segments.add(*RECORDS.values())
    for names in (["lsn", "kind"], ["value", "due_ns", "device"], list(reversed(DETAILS.names))):
        schema = pa.schema([DETAILS.field(name) for name in names])
        [batch] = decode(segments.piece(), schema)
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        every = [{name: row[name] for name in names} for row in _rows(segments)]
        assert batch.to_pylist(maps_as_pydicts="strict") == every
    assert [batch.num_rows for batch in decode(segments.piece(), pa.schema([]))] == [len(RECORDS)]
    with pytest.raises(UsageError, match="there is no column 'colour': device, "):
        list(decode(segments.piece(), pa.schema([("colour", pa.string())])))


def test_batches_of_frames_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(tmp_path / "log")
    for _ in range(30):
        segments.add(enqueued(b"1"), enqueued(b"22"), claimed(1))
    monkeypatch.setattr("taskq.arrow.decoder.ROWS_MAX", 40)
    batches = list(decode(segments.piece(), SCHEMA))
    assert [batch.num_rows for batch in batches] == [30, 30, 30]
    lsns = [lsn for batch in batches for lsn in batch["lsn"].to_pylist()]
    assert lsns == list(range(1, 91))


def test_payloads_can_be_left_out(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    segments.add(enqueued(b"secret"), succeeded(1, 2, b"42"))
    rows = _rows(segments, payload=False)
    assert [row["value"] for row in rows] == [None, "42"]


def test_large_bodies_have_own_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.arrow.decoder.UNPACKED_BYTES_MAX", 10_000)
    segments = Segments(tmp_path / "log")
    packed, flag = compress(b"x" * 6_000, "zlib")
    segments.add(*(enqueued(packed, flags=flag) for _ in range(3)), enqueued(b"small"))
    batches = list(decode(segments.piece(), SCHEMA))
    assert [batch.num_rows for batch in batches] == [1, 1, 2]
    assert [batch.num_rows for batch in decode(segments.piece(), SCHEMA.empty_table().schema)]


def test_records_of_unknown_types_are_passed_on_or_refused(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    skippable = codec.PREFIX.pack(12, 200, 1, 0, 0)
    segments.add(skippable, enqueued(b"x"))
    rows = _rows(segments)
    assert [row["kind"] for row in rows] == ["unknown", "enqueued"]
    assert {name for name, value in rows[0].items() if value is not None} == {
        "device", "log_id", "segment", "offset", "lsn", "kind", "timestamp", "ts_ns", "epoch",
        "flags",
    }  # fmt: skip
    segments.add(codec.PREFIX.pack(12, 99, 1, 0, 0))
    with pytest.raises(FormatError, match=r"001\.log: record type 99 at lsn 3 is unknown"):
        _rows(segments)


@pytest.mark.parametrize("kind", sorted(ENDS | {Kind.CLAIMED, Kind.PURGED, Kind.EXTENDED}))
def test_a_hash_of_another_size_is_refused_in_the_kinds_whose_hash_the_fold_reads(
    tmp_path: Path, kind: Kind
) -> None:
    segments, hashed = Segments(tmp_path / "log"), codec.option(Option.KEY_HASH, b"short")
    segments.add(enqueued(b"x"), codec.encode_job(kind, 0, 1, 1, 1, None, 2, hashed, 0))
    with pytest.raises(FormatError, match="has 5 bytes") if kind in ENDS else nullcontext():
        assert [row["key_hash"] for row in _rows(segments)] == [None, None]


def test_a_length_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for number, length in enumerate((0, 11, 31, 33, 2**32 - 1)):
        segments = Segments(tmp_path / str(number))
        segments.add(enqueued(b"first"))
        segments.add(enqueued(b"x"), codec.JOB.pack(length, Kind.CLAIMED, 0, 0, 0, 1, 1, 1))
        with pytest.raises(FormatError, match=f"lsn 3 has an impossible length of {length} bytes"):
            _rows(segments)
    segments.append(b"", 2**32 - 1)
    with pytest.raises(FormatError, match="impossible length"):
        _rows(segments)
