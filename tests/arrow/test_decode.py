"""Frames are found however they are walked; damaged ones and other files are refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import uuid
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.arrow import (
    DETAILS,
    SCHEMA,
    Corrupt,
    SegmentDamaged,
    SegmentMissing,
    WrongSegment,
    decode,
)
from taskq.arrow.arrays import HEAD_SIZE, PAD_SIZE, Bytes, Ints
from taskq.arrow.frames import place_seeds, places
from taskq.arrow.problems import SegmentUnreadable
from taskq.core.errors import FormatError, UsageError
from taskq.core.folds.lanes import Lane
from taskq.core.folds.steps import Form
from taskq.core.model import Extras, State
from taskq.core.rates import Times
from taskq.core.records import Cause, Kind
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState
from taskq.log.format import codec
from taskq.log.format.bodies import compress
from taskq.log.format.carried import (
    Carried,
    encode_carried,
    encode_compacted,
    encode_lease,
    encode_queue,
    encode_tally,
)
from taskq.log.format.flows import Stepped, awaits_option, encode_signal, encode_step
from taskq.log.format.notes import encode_moved, encode_rated, encode_ticked
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces
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


class _Three(NamedTuple):
    """A segment with three frames, the second from ``second`` to ``third``."""

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


@pytest.mark.parametrize(
    ("flip", "what", "left"),
    [
        (b"three", "the frame of 3 records is damaged", ["one", "two", "five", "six"]),
        (None, "no whole frame starts here", _LEFT),
        (0, "this is no segment of a task log", _LEFT),
        (17, "the header is damaged", _LEFT),
    ],
)
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
def test_other_segments_and_newer_formats_are_refused_whatever_is_done_about_damage(
    corrupt: Corrupt, three: _Three
) -> None:
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


def test_a_file_that_is_missing_or_unreadable_is_named(
    three: _Three, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_blocks_that_the_disk_does_not_give_back_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# -- decode walks ----------------------------------------------------------------------------------


#: A payload that looks like records, before bytes that are none.
_DECOY: Final = claimed(1) + claimed(2) + claimed(3) + claimed(4) + b"\xff" * 9


def _record(chance: random.Random, decoys: float) -> bytes:
    if chance.random() < 0.3:
        return claimed(chance.randrange(2**40))
    payload = b"x" * chance.randrange(90)
    if chance.random() < decoys:
        payload += _DECOY
    return enqueued(payload)(1)


def _frames(chance: random.Random, counts: list[int], decoys: float) -> list[list[bytes]]:
    frames = []
    for count in counts:
        item = _record(chance, decoys)
        alike = chance.random() < 0.2
        frames.append([item if alike else _record(chance, decoys) for _ in range(count)])
    return frames


def _laid_out(frames: list[list[bytes]]) -> tuple[Bytes, Ints, Ints, Ints, list[int], list[int]]:
    """Return (data, starts, sizes, counts, places of all records, their lengths)."""
    parts, starts, at, lengths = [], [], [], []
    size = 0
    for records in frames:
        parts.append(b"\xee" * codec.FRAME_HEADER_SIZE)
        size += codec.FRAME_HEADER_SIZE
        starts.append(size)
        for record in records:
            at.append(size)
            lengths.append(len(record))
            parts.append(record)
            size += len(record)
    data = np.frombuffer(b"".join(parts) + bytes(PAD_SIZE), np.uint8)
    sizes = [sum(map(len, records)) for records in frames]
    counts = [len(records) for records in frames]
    return data, np.array(starts), np.array(sizes), np.array(counts), at, lengths


@given(
    counts=st.lists(
        st.integers(1, 6) | st.integers(1, 100) | st.integers(200, 1_200), min_size=1, max_size=90
    ),
    decoys=st.sampled_from([0.0, 0.02, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_records_of_any_frames_are_found(counts: list[int], decoys: float, seed: int) -> None:
    """Few or many, alike or of all sizes, and with payloads that look like records."""
    if sum(counts) > 3_000:
        counts = counts[:3]
    data, starts, sizes, count, at, lengths = _laid_out(
        _frames(random.Random(seed), counts, decoys)
    )
    result, found_lengths = places(data, starts, sizes, count, np.ones(len(counts), np.int64))
    assert result.tolist() == at
    assert found_lengths.tolist() == lengths


@pytest.mark.parametrize("wrong", [0, 3, 11, 10_000_000, 2**32 - 1])
@pytest.mark.parametrize("count", [3, 40, 180])
def test_a_wrong_length_is_named_wherever_it_stands(count: int, wrong: int) -> None:
    chance = random.Random(count)
    frames = _frames(chance, [count, count], 0.0)
    data, starts, sizes, counts, at, _ = _laid_out(frames)
    for number in (0, count // 2, count - 1, 2 * count - 1):
        broken = data.copy()
        broken[at[number] : at[number] + 4] = np.frombuffer(codec.pack_length(wrong), np.uint8)
        with pytest.raises(FormatError, match=f"lsn {100 + number} has an impossible length"):
            places(broken, starts, sizes, counts, np.array([100, 100 + count]))
    with pytest.raises(FormatError, match=r"lsn \d+ has an impossible length of \d+ bytes"):
        places(data, starts, sizes, np.full(2, 2**32 - 1), np.array([7, 7]))


@given(offsets=st.lists(st.integers(0, 2**40), max_size=20), seed=st.integers(0, 2**32 - 1))
def test_seeds_of_many_frames_equal_their_single_seeds(offsets: list[int], seed: int) -> None:
    expected = [codec.crc32(offset.to_bytes(8, "little"), seed) for offset in offsets]
    assert place_seeds(seed, np.array(offsets, np.int64)).tolist() == expected


_LANE: Final = Lane(0, b"\x04\x09mailmail.send", 7)
_RICH: Final = Extras(
    due_ns=5, expires_ns=9, expires_is_wall=True, key=b"k", window_ns=7, headers={"a": "é"}
)
_BORN: Final = enqueued(b'{"to":1}', encode_extras(Extras(expires_ns=5), 1_000))(1)
_HELD: Final = Carried(
    1, State.RUNNING, _BORN, 7, attempt=2, token=30, due_ns=5, due_is_wall=True,
    claim=(8, 2**64 - 1), lease_ns=77, key_until_ns=78, ended_ns=79, history=b"hi", body=b"no",
)  # fmt: skip
#: A record of each kind, with every optional part.
_KINDS: Final[list[Any]] = [
    enqueued(b'{"to":1}'),
    enqueued(b"", encode_extras(_RICH, 1_000) + encode_replaces(22) + b"\x07\x02\x00ab"),
    enqueued(b"", encode_extras(Extras(due_ns=5, due_is_wall=True), 1_000), flags=6),
    codec.encode_job(Kind.CLAIMED, 0, 2, 1, 2**64 - 1, None, 31, encode_lease(77)),
    codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30),
    succeeded(1, 30, b""),
    codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30, b"42", 31, encode_key_hash(2**63)),
    codec.encode_job(Kind.DEAD, Cause.EXHAUSTED, 2, 1, 30, b"no", 31),
    codec.encode_job(Kind.CANCELLED, Cause.REPLACED, 0, 1, 0),
    codec.encode_job(Kind.EXPIRED, 99, 1, 1, 0),
    codec.encode_back(Kind.RETRIED, Cause.EXHAUSTED, 2, 1, 30, 5_000, b"no", 31),
    codec.encode_back(Kind.RELEASED, Cause.OWNER_LOST, 2, 1, 30, 0, b"", 31),
    encode_carried(Kind.CARRIED, Carried(1, State.SUCCEEDED, _BORN, 7, ended_ns=3), 31),
    encode_carried(Kind.REQUEUED, _HELD, 31),
    encode_carried(Kind.EDITED, Carried(1, State.SCHEDULED, _BORN, 7, due_ns=9, left_key=5), 31),
    codec.encode_job(Kind.PURGED, 0, 2, 1, 0),
    codec.encode_job(Kind.EXTENDED, 0, 2, 1, 30, None, 31, encode_lease(77)),
    codec.encode_job(Kind.CANCEL_ASKED, 0, 2, 1, 30),
    codec.encode_job(Kind.WAIT_BEGUN, 0, 2, 1, 30, None, 31, awaits_option(b"w")),
    encode_step(Stepped("pâge", 3, Form.SLEEP, 0, began_ns=6, body=b"1"), 2, 1, 30, 31),
    encode_step(Stepped("ship", 1, 99, 7, body=b"1"), 2, 1, 30, 31),
    encode_signal(Stepped("paid", body=b"{}"), 1, 31),
    encode_queue(Kind.PAUSED, "mail", 31),
    encode_queue(Kind.RESUMED, "réseau", 31),
    encode_tally(_LANE, 31),
    encode_compacted(77, 31),
    encode_moved(SourceRecord("s", SourceState(b"1", 7)), 31),
    encode_ticked(TickRecord("nightly", ScheduleState(7, 9, True, b"every 60")), 31),
    encode_rated(("mail.send", b"a"), Times(), 0, 31),
    encode_moved(SourceRecord("a", SourceState(b"[1]", 7)), 31),
    encode_moved(SourceRecord("a", SourceState(b"{}", 7)), 31, Kind.STEERED),
    codec.encode_clock(-5, 31),
    codec.encode(Kind.ACTED, 0, 1, 0, lsn=31, body=b"ana: purge"),
    codec.encode_owner(2**63, b'{"pid":1}', 31),
]


def _rows(segments: Segments, **rest: Any) -> list[Row]:
    return decoded_rows([segments.piece()], **rest)


def test_every_kind_of_record_has_the_columns_that_a_plain_reader_gives(tmp_path: Path) -> None:
    assert {Kind(r[4] if isinstance(r, bytes) else r(1)[4]) for r in _KINDS} == set(Kind)
    segments = Segments(tmp_path / "log")
    segments.add(*_KINDS)
    decoded, expected = rows_of_directory(segments.path)
    assert decoded == expected
    assert len(decoded) == len(_KINDS)


def test_gathering_never_leaves_the_data() -> None:
    assert HEAD_SIZE <= PAD_SIZE


def test_only_the_columns_that_are_asked_for_come_in_that_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    segments.add(*_KINDS)
    for names in (["lsn", "kind"], ["value", "due_ns", "device"], list(reversed(DETAILS.names))):
        schema = pa.schema([DETAILS.field(name) for name in names])
        [batch] = decode(segments.piece(), schema)
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        every = [{name: row[name] for name in names} for row in _rows(segments)]
        assert batch.to_pylist(maps_as_pydicts="strict") == every
    assert [batch.num_rows for batch in decode(segments.piece(), pa.schema([]))] == [len(_KINDS)]
    with pytest.raises(UsageError, match="there is no column 'colour': device, "):
        list(decode(segments.piece(), pa.schema([("colour", pa.string())])))


def test_batches_span_frames_and_have_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path / "log")
    for _ in range(30):
        segments.add(enqueued(b"1"), enqueued(b"22"), claimed(1))
    monkeypatch.setattr("taskq.arrow.decoder.ROWS_MAX", 40)
    batches = list(decode(segments.piece(), SCHEMA))
    assert [batch.num_rows for batch in batches] == [30, 30, 30]
    lsns = [lsn for batch in batches for lsn in batch["lsn"].to_pylist()]
    assert lsns == list(range(1, 91))


def test_pieces_of_a_segment_give_together_what_the_whole_gives(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    borders = [segments.add(enqueued(b"%d" % n), claimed(1)) for n in range(5)]
    end = segments.piece().end
    parts = [
        segments.piece(start, stop)
        for start, stop in zip([0, *borders[1:]], [*borders[1:], end], strict=True)
    ]
    assert decoded_rows(parts) == _rows(segments)


def test_payloads_can_be_left_out(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "log")
    segments.add(enqueued(b"secret"), succeeded(1, 2, b"42"))
    rows = _rows(segments, payload=False)
    assert [row["value"] for row in rows] == [None, "42"]


def test_large_unpacked_bodies_come_in_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_length_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for number, length in enumerate((0, 11, 31, 33, 2**32 - 1)):
        segments = Segments(tmp_path / str(number))
        segments.add(enqueued(b"x"), codec.JOB.pack(length, Kind.CLAIMED, 0, 0, 0, 1, 1, 1))
        with pytest.raises(FormatError, match=f"lsn 2 has an impossible length of {length} bytes"):
            _rows(segments)
    segments.append(b"", 2**32 - 1)
    with pytest.raises(FormatError, match="impossible length"):
        _rows(segments)
