"""Frames are found however they are walked; damaged ones and other files are refused."""

from __future__ import annotations

import errno
import os
import pickle
import random
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

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
    as_bytes,
    decode,
)
from taskq.arrow.arrays import HEAD_SIZE, PAD_SIZE, Bytes, Ints
from taskq.arrow.frames import RECORDS_MIN, place_seeds, places, walk_in_stretches
from taskq.arrow.problems import SegmentUnreadable
from taskq.core.errors import FormatError, UsageError
from taskq.core.folds.lanes import Lane
from taskq.core.folds.steps import Form
from taskq.core.kinds import name_of
from taskq.core.model import Extras, State
from taskq.core.rates import Times
from taskq.core.records import Cause, Flag, Kind, Option
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
    EPOCH,
    LOG_ID,
    START_NS,
    Row,
    Segments,
    claimed,
    decoded_rows,
    enqueued,
    rows_of_directory,
    succeeded,
)


def _three_frames(tmp_path: Path) -> tuple[Segments, Path, list[int]]:
    segments = Segments(tmp_path)
    path = segments.begin()
    offsets = [
        segments.frame(enqueued(b"one"), enqueued(b"two")),
        segments.frame(enqueued(b"three"), claimed(1), enqueued(b"five")),
        segments.frame(enqueued(b"six")),
    ]
    return segments, path, offsets


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def _values(rows: list[Row]) -> list[Any]:
    return [row["value"] for row in rows if row["kind"] == "enqueued"]


def test_damage_is_an_error_that_names_file_place_and_option(tmp_path: Path) -> None:
    segments, path, (_, second, third) = _three_frames(tmp_path)
    _flip(path, path.read_bytes().index(b"three"))
    with pytest.raises(SegmentDamaged) as caught:
        decoded_rows([segments.piece()], Corrupt.FAIL)
    error = caught.value
    assert str(error) == (
        f"{path}: the frame of 3 records is damaged, bytes {second} to {third}, from lsn 3 on: "
        "corruptMode=skip reads past them"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    assert (error.path, error.offset, error.resume, error.lsn) == (str(path), second, third, 3)


def test_skipping_gives_the_records_that_are_whole_by_their_own_crc(tmp_path: Path) -> None:
    segments, path, _ = _three_frames(tmp_path)
    _flip(path, path.read_bytes().index(b"three"))
    rows = decoded_rows([segments.piece()], Corrupt.SKIP)
    assert _values(rows) == ["one", "two", "five", "six"]
    decoded, expected = rows_of_directory(tmp_path)
    assert decoded == expected == rows


def test_quarantine_keeps_the_bytes_of_each_gap_as_a_row(tmp_path: Path) -> None:
    segments, path, (_, second, third) = _three_frames(tmp_path)
    _flip(path, path.read_bytes().index(b"three"))
    rows = decoded_rows([segments.piece()], Corrupt.QUARANTINE)
    assert [row["kind"] for row in rows] == ["enqueued"] * 2 + ["damaged"] + ["enqueued"] * 2
    damaged = rows[2]
    assert damaged["value_bytes"] == path.read_bytes()[second:third]
    assert (damaged["offset"], damaged["lsn"], damaged["segment"]) == (second, 3, 1)
    assert damaged["epoch"] == f"{EPOCH:016x}"
    assert damaged["ts_ns"] == rows[3]["ts_ns"]
    assert damaged["problem"] == "the frame of 3 records is damaged"
    assert [row for row in rows if row is not damaged] == decoded_rows([segments.piece()])


def test_a_frame_whose_header_is_damaged_ends_at_the_next_whole_one(tmp_path: Path) -> None:
    segments, path, (_, second, third) = _three_frames(tmp_path)
    _flip(path, second + 9)
    rows = decoded_rows([segments.piece()], Corrupt.QUARANTINE)
    assert _values(rows) == ["one", "two", "three", "five", "six"]
    assert rows[2]["problem"] == "no whole frame starts here"
    assert len(rows[2]["value_bytes"]) == third - second
    decoded, expected = rows_of_directory(tmp_path)
    assert decoded == expected == [row for row in rows if row["kind"] != "damaged"]


def test_a_piece_that_starts_with_damage_finds_out_its_lsns(tmp_path: Path) -> None:
    segments, path, (_, second, _) = _three_frames(tmp_path)
    _flip(path, second + 9)
    rows = decoded_rows([segments.piece(second)], Corrupt.QUARANTINE)
    assert [row["lsn"] for row in rows] == [3, 3, 5, 6]
    whole = decoded_rows([segments.piece()], Corrupt.QUARANTINE)
    assert rows == whole[2:]


def test_long_gaps_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.arrow.decoder.QUARANTINED_BYTES_MAX", 100)
    segments, path, (_, second, third) = _three_frames(tmp_path)
    _flip(path, second + 9)
    damaged = decoded_rows([segments.piece()], Corrupt.QUARANTINE)[2]
    assert len(damaged["value_bytes"]) == 100
    assert damaged["problem"].endswith(f"; the first 100 of {third - second} bytes")


def test_a_file_that_ends_before_the_piece_does_is_damage(tmp_path: Path) -> None:
    segments, path, (_, second, third) = _three_frames(tmp_path)
    piece = segments.piece()
    path.write_bytes(path.read_bytes()[: second + 70])
    with pytest.raises(SegmentDamaged, match=f"bytes {second} to {third}, from lsn 3"):
        decoded_rows([piece], Corrupt.FAIL)
    rows = decoded_rows([piece], Corrupt.QUARANTINE)
    assert _values(rows) == ["one", "two"]
    assert [len(row["value_bytes"]) for row in rows[2:]] == [70, 0]


def test_a_frame_that_a_piece_cuts_in_two_is_damage(tmp_path: Path) -> None:
    segments, _, (_, second, _) = _three_frames(tmp_path)
    with pytest.raises(SegmentDamaged, match=f"bytes {second} to {second + 20}, from lsn 3"):
        decoded_rows([segments.piece(0, second + 20)], Corrupt.FAIL)


@pytest.mark.parametrize(
    ("place", "what"),
    [(0, "this is no segment of a task log"), (17, "the header is damaged")],
)
def test_a_damaged_header_is_passed_over_where_damage_is(
    place: int, what: str, tmp_path: Path
) -> None:
    segments, path, _ = _three_frames(tmp_path)
    _flip(path, place)
    with pytest.raises(SegmentDamaged, match=f"{what}, bytes 0 to 64, from lsn 1 on"):
        decoded_rows([segments.piece()], Corrupt.FAIL)
    assert len(decoded_rows([segments.piece()])) == 6
    assert decoded_rows([segments.piece()], Corrupt.QUARANTINE)[0]["value_bytes"][8:10] == b"\1\0"
    decoded, expected = rows_of_directory(tmp_path)
    assert decoded == expected


@pytest.mark.parametrize("corrupt", Corrupt)
def test_a_segment_of_another_log_is_refused_whatever_is_done_about_damage(
    corrupt: Corrupt, tmp_path: Path
) -> None:
    segments, path, _ = _three_frames(tmp_path)
    other = uuid.uuid4()
    piece = segments.piece()._replace(log_id=str(other))
    with pytest.raises(
        WrongSegment, match=f"{path}: this is segment 1 .* segment 1 of log {other}"
    ):
        decoded_rows([piece], corrupt)


@pytest.mark.parametrize("corrupt", Corrupt)
def test_what_a_newer_taskq_wrote_is_refused_whatever_is_done_about_damage(
    corrupt: Corrupt, tmp_path: Path
) -> None:
    segments, path, (first, *_) = _three_frames(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[56:60] = codec.crc32(data[:56]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"{path}: segment format 2 is unknown"):
        decoded_rows([segments.piece()], corrupt)
    data[8] = 1
    data[56:60] = codec.crc32(data[:56]).to_bytes(4, "little")
    seed = codec.segment_seed(segments.log_id, 1)
    seed = codec.crc32(first.to_bytes(8, "little"), seed)
    data[first + 12] = 4
    data[first + 52 : first + 56] = codec.crc32(data[first : first + 52], seed).to_bytes(
        4, "little"
    )
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"{path}: frame flags 0x4 at offset {first}"):
        decoded_rows([segments.piece()], corrupt)


def test_a_file_that_is_missing_or_unreadable_is_named(tmp_path: Path) -> None:
    segments, path, _ = _three_frames(tmp_path)
    piece = segments.piece()
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")  # or opening would hang on it
    for name, what in (
        ("link", "a symbolic link"),
        ("pipe", "no regular file"),
        ("", "no regular"),
    ):
        with pytest.raises(SegmentUnreadable, match=rf"cannot be read \(it is {what}"):
            list(decode(piece._replace(path=str(tmp_path / name)), DETAILS))
    path.unlink()
    with pytest.raises(SegmentMissing, match=r"the segment is missing.*failOnDataLoss=false"):
        list(decode(piece, DETAILS))


def test_blocks_that_the_disk_does_not_give_back_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path)
    path = segments.begin()
    offsets = [segments.frame(enqueued(b"x" * 3_000)) for _ in range(5)]
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


def test_a_disk_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, path, _ = _three_frames(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(posix, "pread", refuse)
    monkeypatch.setattr(posix, "preadv", refuse)
    with pytest.raises(
        SegmentUnreadable, match=rf"{path}: the segment cannot be read \(Permission denied\)"
    ):
        decoded_rows([segments.piece()])


def test_frames_larger_than_what_is_read_at_once_are_whole(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    bodies = [bytes([number]) * 1_500_000 for number in range(3)]
    segments.frame(*(enqueued(body) for body in bodies))
    segments.frame(enqueued(b"small"))
    rows = decoded_rows([segments.piece()])
    assert [row["value"] for row in rows] == [*map(bytes.decode, bodies), "small"]


def test_errors_name_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    segments = Segments(directory)
    path = segments.begin()
    piece = segments.piece(path=path)
    path.write_bytes(b"\0" * 300)
    with pytest.raises(SegmentDamaged, match=r"caf\\xe9/log/"):
        list(decode(piece._replace(end=300), DETAILS))
    path.unlink()
    with pytest.raises(SegmentMissing, match=r"caf\\xe9/log/"):
        list(decode(piece._replace(end=300), DETAILS))


@pytest.mark.parametrize("frames", [1, 40, 300])
def test_sync_points_among_frames_that_are_walked_together_are_no_rows(
    tmp_path: Path, frames: int
) -> None:
    segments = Segments(tmp_path)
    segments.begin()
    for number in range(frames):
        segments.frame(enqueued(b"%d" % number), enqueued(b"again"))
        segments.frame()
    values = _values(decoded_rows([segments.piece()]))
    assert values == [text for n in range(frames) for text in (str(n), "again")]


def test_sync_points_are_no_rows_wherever_they_stand(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    path = segments.begin()
    segments.frame(enqueued(b"one"))
    begin = segments.frame()
    segments.frame()
    segments.frame(enqueued(b"two"))
    segments.frame(enqueued(b"three"))
    end = segments.frame()
    for piece in (segments.piece(), segments.piece(begin)):
        assert _values(decoded_rows([piece]))[-2:] == ["two", "three"]
    assert decoded_rows([segments.piece(end)]) == []
    _flip(path, path.read_bytes().index(b"three"))
    decoded, expected = rows_of_directory(tmp_path)
    assert decoded == expected
    assert _values(decoded) == ["one", "two"]


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


def test_guesses_are_right_or_known_to_be_wrong() -> None:
    chance = random.Random(1)
    frames = _frames(chance, [1_000] * 6, 0.0)[:3] + _frames(chance, [1_000] * 3, 0.7)
    frames = [[*records, claimed(1), enqueued(b"odd")(1)] for records in frames]
    data, starts, sizes, counts, at, _ = _laid_out(frames)
    walked = walk_in_stretches(data, starts, sizes, counts)
    for number, result in enumerate(walked):
        begin = number * 1_002
        assert result is None or result.tolist() == at[begin : begin + 1_002]
    assert all(result is not None for result in walked[:3])
    assert any(result is None for result in walked[3:])


@pytest.mark.parametrize("wrong", [0, 3, 11, 10_000_000, 2**32 - 1])
@pytest.mark.parametrize("count", [3, 40, RECORDS_MIN + 50])
def test_a_wrong_length_is_named_wherever_it_stands(count: int, wrong: int) -> None:
    chance = random.Random(count)
    frames = _frames(chance, [count, count], 0.0)
    data, starts, sizes, counts, at, _ = _laid_out(frames)
    for number in (0, count // 2, count - 1, 2 * count - 1):
        broken = data.copy()
        broken[at[number] : at[number] + 4] = np.frombuffer(codec.pack_length(wrong), np.uint8)
        with pytest.raises(FormatError, match=f"lsn {100 + number} has an impossible length"):
            places(broken, starts, sizes, counts, np.array([100, 100 + count]))


def test_more_records_than_there_is_room_for_are_refused() -> None:
    data, starts, sizes, _, _, _ = _laid_out([[claimed(1), claimed(2)]])
    with pytest.raises(FormatError, match="lsn 9 has an impossible length of 0 bytes"):
        places(data, starts, sizes, np.array([2**32 - 1]), np.array([7]))


@given(offsets=st.lists(st.integers(0, 2**40), max_size=20), seed=st.integers(0, 2**32 - 1))
def test_seeds_of_many_frames_are_those_of_each(offsets: list[int], seed: int) -> None:
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
_NAMES: Final = {"queue": "mail", "task": "mail.send", "priority": 7}
_BIRTH: Final = _NAMES | {"attempts_max": 3, "attempt": 0, "moments": 0}
_JOB: Final = {"job": 1, "job_id": "00112233-1", "attempt": 2, "token": 30}
_GOLDEN: Final[list[tuple[Any, dict[str, Any]]]] = [
    (enqueued(b'{"to":1}'), _BIRTH | {"value": '{"to":1}'}),
    (
        enqueued(b"", encode_extras(_RICH, 1_000) + encode_replaces(22) + b"\x07\x02\x00ab"),
        _BIRTH | {"value": "", "due_ns": 1_005, "expires_ns": 9, "moments": 2, "key": "k",
         "headers": {"a": "é"}, "replaces": 22, "concurrency_key": "ab"},
    ),
    (
        enqueued(b"", encode_extras(Extras(due_ns=5, due_is_wall=True), 1_000), flags=6),
        _BIRTH | {"value": "", "due_ns": 5, "moments": 1, "flags": 7},
    ),
    (
        codec.encode_job(Kind.CLAIMED, 0, 2, 1, 2**64 - 1, None, 31, encode_lease(77)),
        _JOB | {"owner": "f" * 16, "token": None, "lease_ns": 77, "flags": 0},
    ),
    (codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30), _JOB | {"flags": 0}),
    (succeeded(1, 30, b""), _JOB | {"attempt": 1, "value": ""}),
    (
        codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30, b"42", 31, encode_key_hash(2**63)),
        _JOB | {"value": "42", "key_hash": -(2**63)},
    ),
    (
        codec.encode_job(Kind.DEAD, Cause.EXHAUSTED, 2, 1, 30, b"no", 31),
        _JOB | {"value": "no", "cause": "exhausted"},
    ),
    (
        codec.encode_job(Kind.CANCELLED, Cause.REPLACED, 0, 1, 0),
        _JOB | {"attempt": 0, "token": None, "cause": "replaced", "flags": 0},
    ),
    (
        codec.encode_job(Kind.EXPIRED, 99, 1, 1, 0),
        _JOB | {"attempt": 1, "token": None, "cause": "caller", "flags": 0},
    ),
    (
        codec.encode_back(Kind.RETRIED, Cause.EXHAUSTED, 2, 1, 30, 5_000, b"no", 31),
        _JOB | {"value": "no", "cause": "exhausted", "due_ns": 5_000, "moments": 0},
    ),
    (
        codec.encode_back(Kind.RELEASED, Cause.OWNER_LOST, 2, 1, 30, 0, b"", 31),
        _JOB | {"value": "", "cause": "owner_lost", "moments": 0},
    ),
    (
        encode_carried(Kind.CARRIED, Carried(1, State.SUCCEEDED, _BORN, 7, ended_ns=3), 31),
        _BIRTH | {"job": 1, "job_id": "00112233-1", "value": '{"to":1}', "enqueued_ns": 7,
         "ended_ns": 3, "state": "succeeded", "expires_ns": 1_005},
    ),
    (
        encode_carried(Kind.REQUEUED, _HELD, 31),
        _BIRTH | _JOB | {"owner": "f" * 16, "value": '{"to":1}', "state": "running", "due_ns": 5,
         "expires_ns": 1_005, "moments": 1, "enqueued_ns": 7, "ended_ns": 79, "history": b"hi",
         "lease_ns": 77, "result": "no"},
    ),
    (
        encode_carried(
            Kind.EDITED, Carried(1, State.SCHEDULED, _BORN, 7, due_ns=9, left_key=5), 31
        ),
        _BIRTH | {"job": 1, "job_id": "00112233-1", "value": '{"to":1}', "enqueued_ns": 7,
         "state": "scheduled", "due_ns": 9, "expires_ns": 1_005},
    ),
    (
        codec.encode_job(Kind.PURGED, 0, 2, 1, 0),
        _JOB | {"token": None, "flags": 0},
    ),
    (codec.encode_job(Kind.EXTENDED, 0, 2, 1, 30, None, 31, encode_lease(77)),
     _JOB | {"lease_ns": 77, "flags": 0}),
    (codec.encode_job(Kind.CANCEL_ASKED, 0, 2, 1, 30), _JOB | {"flags": 0}),
    (codec.encode_job(Kind.WAIT_BEGUN, 0, 2, 1, 30, None, 31, awaits_option(b"w")),
     _JOB | {"flags": 0}),
    (encode_step(Stepped("pâge", 3, Form.SLEEP, 0, began_ns=6, body=b"1"), 2, 1, 30, 31),
     _JOB | {"value": "1", "step": "pâge#3", "place": 0, "state": "sleep", "began_ns": 6}),
    (encode_step(Stepped("ship", 1, 99, 7, body=b"1"), 2, 1, 30, 31),
     _JOB | {"value": "1", "step": "ship#1", "place": 7}),
    (encode_signal(Stepped("paid", body=b"{}"), 1, 31),
     _JOB | {"value": "{}", "attempt": 0, "token": None, "step": "paid"}),
    (encode_queue(Kind.PAUSED, "mail", 31), {"queue": "mail"}),
    (encode_queue(Kind.RESUMED, "réseau", 31), {"queue": "réseau"}),
    (encode_tally(_LANE, 31), _NAMES),
    (encode_compacted(77, 31), {"token": 77}),
    (encode_moved(SourceRecord("s", SourceState(b"1", 7)), 31), {}),
    (encode_ticked(TickRecord("nightly", ScheduleState(7, 9, True, b"every 60")), 31), {}),
    (encode_rated(("mail.send", b"a"), Times(), 0, 31), {}),
    (encode_moved(SourceRecord("a", SourceState(b"[1]", 7)), 31), {}),
    (encode_moved(SourceRecord("a", SourceState(b"{}", 7)), 31, Kind.STEERED), {}),
    (codec.encode_clock(-5, 31), {"step_ns": -5}),
    (codec.encode(Kind.ACTED, 0, 1, 0, lsn=31, body=b"ana: purge"),
     _JOB | {"attempt": 0, "token": None, "value": "ana: purge"}),
    (codec.encode_owner(2**63, b'{"pid":1}', 31), {"owner": "8" + "0" * 15, "value": '{"pid":1}'}),
]  # fmt: skip


def _rows(segments: Segments, **rest: Any) -> list[Row]:
    return decoded_rows([segments.piece()], **rest)


def test_every_kind_of_record_has_these_columns(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    offset = segments.frame(*(record for record, _ in _GOLDEN)) + codec.FRAME_HEADER_SIZE
    rows = _rows(segments)
    time_ns = START_NS + 1_000_001
    for number, (record, shown) in enumerate(_GOLDEN):
        data = record if isinstance(record, bytes) else record(number + 1)
        kind = Kind(data[4])
        expected = dict.fromkeys(DETAILS.names) | {
            "device": "edge-7", "log_id": str(LOG_ID), "segment": 1, "offset": offset,
            "lsn": number + 1, "kind": name_of(kind), "ts_ns": time_ns, "flags": 1,
            "timestamp": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=124_456),
            "epoch": f"{EPOCH:016x}",
        }  # fmt: skip
        if kind is Kind.ENQUEUED:
            expected |= {"job": number + 1, "job_id": f"00112233-{number + 1}"}
        assert rows[number] == expected | shown, kind
        offset += len(data)


def test_every_kind_of_record_is_pinned() -> None:
    pinned = {Kind(r[4] if isinstance(r, bytes) else r(1)[4]) for r, _ in _GOLDEN}
    assert pinned == set(Kind)


def test_gathering_never_leaves_the_data() -> None:
    assert HEAD_SIZE <= PAD_SIZE


def test_only_the_columns_that_are_asked_for_come_in_that_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.frame(*(record for record, _ in _GOLDEN))
    for names in (["lsn", "kind"], ["value", "due_ns", "device"], list(reversed(DETAILS.names))):
        schema = pa.schema([DETAILS.field(name) for name in names])
        [batch] = decode(segments.piece(), schema)
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        every = [{name: row[name] for name in names} for row in _rows(segments)]
        assert batch.to_pylist(maps_as_pydicts="strict") == every
    assert [batch.num_rows for batch in decode(segments.piece(), pa.schema([]))] == [len(_GOLDEN)]
    with pytest.raises(UsageError, match="there is no column 'colour': device, "):
        list(decode(segments.piece(), pa.schema([("colour", pa.string())])))


def test_batches_span_frames_and_have_no_more_than_the_rows_asked_for(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    for _ in range(30):
        segments.frame(enqueued(b"1"), enqueued(b"22"), claimed(1))
    batches = list(decode(segments.piece(), SCHEMA, rows_max=40))
    assert [batch.num_rows for batch in batches] == [30, 30, 30]
    lsns = [lsn for batch in batches for lsn in batch["lsn"].to_pylist()]
    assert lsns == list(range(1, 91))


def test_pieces_of_a_segment_give_together_what_the_whole_gives(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    borders = [segments.frame(enqueued(b"%d" % n), claimed(1)) for n in range(5)]
    end = segments.piece().end
    parts = [
        segments.piece(start, stop)
        for start, stop in zip([0, *borders[1:]], [*borders[1:], end], strict=True)
    ]
    assert decoded_rows(parts) == _rows(segments)


def test_payloads_and_headers_can_be_left_out(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.frame(
        enqueued(b"secret", encode_extras(Extras(headers={"a": "b"}), 0)), succeeded(1, 2, b"42")
    )
    rows = _rows(segments, payload=False, headers=False)
    assert [(row["value"], row["headers"]) for row in rows] == [(None, None), ("42", None)]


def test_headers_come_as_every_reader_takes_them(tmp_path: Path) -> None:
    """Also where they are cut short, no text, or a name comes twice: then the last value counts."""

    def option(*texts: bytes) -> bytes:
        value = b"".join(len(text).to_bytes(2, "little") + text for text in texts)
        return bytes([Option.HEADERS]) + len(value).to_bytes(2, "little") + value

    cases: list[tuple[bytes, dict[str, str] | None]] = [
        (option(b"a", b"b", b"c", b"d"), {"a": "b", "c": "d"}),
        (b"", None),
        (option(), None),
        (option(b"a"), None),
        (option(b"", b""), {"": ""}),
        (option(b"a", b"b", b"c"), {"a": "b"}),
        (option(b"a", b"long")[:-2], {"a": "lo"}),
        (option(b"\xff", "é".encode()), {"\ufffd": "é"}),
        (option(b"x", b"y") + option(b"z", b"w"), {"z": "w"}),
    ]
    segments = Segments(tmp_path)
    segments.frame(*(enqueued(b"", options) for options, _ in cases))
    assert [row["headers"] for row in _rows(segments)] == [headers for _, headers in cases]
    twice = option(b"a", b"1", b"b", b"2", b"a", b"3")
    segments.frame(enqueued(b"", twice), enqueued(b""), enqueued(b"", cases[0][0]))
    shown = [row["headers"] for row in _rows(segments)]
    assert shown[len(cases) :] == [{"a": "3", "b": "2"}, None, cases[0][1]]


def test_bodies_come_as_they_were_given(tmp_path: Path) -> None:
    """Compressed; what does not read back is null, with the reason."""
    segments = Segments(tmp_path)
    big = b"[1,2,3]" * 1_000
    zlib, zstd = compress(big, "zlib"), compress(big, "zstd")
    born = enqueued(zlib[0], flags=zlib[1])(1)
    segments.frame(
        enqueued(zlib[0], flags=zlib[1]),
        enqueued(b"plain"),
        enqueued(zstd[0], flags=zstd[1]),
        enqueued(b"\xff" * 20, flags=int(Flag.ZLIB)),
        encode_carried(
            Kind.CARRIED, Carried(1, State.SUCCEEDED, born, 7, body=zstd[0], flags=zstd[1]), 5
        ),
    )
    rows = _rows(segments)
    text = big.decode()
    assert [row["value"] for row in rows] == [text, "plain", text, None, text]
    assert rows[4]["result"] == text
    assert [row["problem"] for row in rows[:3]] == [None] * 3
    assert "the limit is 104857600" in rows[3]["problem"]


def test_bytes_that_are_no_text_stand_beside_the_column_of_text(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    packed, flag = compress(b"\xff" * 6_000, "zlib")
    key = encode_extras(Extras(key=b"\xe9t\xe9"), 0)
    segments.frame(
        enqueued("é".encode()),
        enqueued(b"\xff\x00", key),
        enqueued(packed, flags=flag),
        succeeded(1, 2, b"\xc3"),
        encode_carried(
            Kind.CARRIED, Carried(1, State.SUCCEEDED, enqueued(b"a")(1), 7, body=b"\xff"), 6
        ),
    )
    rows = _rows(segments)
    assert [row["value"] for row in rows] == ["é", None, None, None, "a"]
    whole = b"\xff" * 6_000
    assert [row["value_bytes"] for row in rows] == [None, b"\xff\x00", whole, b"\xc3", None]
    assert (rows[4]["result"], rows[4]["result_bytes"]) == (None, b"\xff")
    assert rows[1]["key"] == r"\xe9t\xe9"
    plain = _rows(segments, schema=as_bytes(DETAILS))
    assert [row["value"] for row in plain] == ["é".encode(), b"\xff\x00", whole, b"\xc3", b"a"]
    assert (plain[1]["key"], plain[4]["result"]) == (b"\xe9t\xe9", b"\xff")


def test_numbers_without_sign_are_sixteen_digits(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    owners = [1, 2**64 - 1, 0xABCD, 2**63]
    segments.frame(enqueued(b"x"), *(claimed(1, owner) for owner in owners))
    assert [row["owner"] for row in _rows(segments)] == [None, *(f"{item:016x}" for item in owners)]


def test_large_unpacked_bodies_come_in_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.arrow.decoder.UNPACKED_BYTES_MAX", 10_000)
    segments = Segments(tmp_path)
    packed, flag = compress(b"x" * 6_000, "zlib")
    segments.frame(*(enqueued(packed, flags=flag) for _ in range(3)), enqueued(b"small"))
    batches = list(decode(segments.piece(), SCHEMA))
    assert [batch.num_rows for batch in batches] == [1, 1, 2]
    assert [batch.num_rows for batch in decode(segments.piece(), SCHEMA.empty_table().schema)]


def test_records_of_unknown_types_are_passed_on_or_refused(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    skippable = codec.PREFIX.pack(12, 200, 1, 0, 0)
    segments.frame(skippable, enqueued(b"x"))
    rows = _rows(segments)
    assert [row["kind"] for row in rows] == ["unknown", "enqueued"]
    assert {name for name, value in rows[0].items() if value is not None} == {
        "device", "log_id", "segment", "offset", "lsn", "kind", "timestamp", "ts_ns", "epoch",
        "flags",
    }  # fmt: skip
    segments.frame(codec.PREFIX.pack(12, 99, 1, 0, 0))
    with pytest.raises(FormatError, match=r"001\.log: record type 99 at lsn 3 is unknown"):
        _rows(segments)


def test_a_length_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for number, length in enumerate((0, 11, 31, 33, 2**32 - 1)):
        segments = Segments(tmp_path / str(number))
        segments.frame(enqueued(b"x"), codec.JOB.pack(length, Kind.CLAIMED, 0, 0, 0, 1, 1, 1))
        with pytest.raises(FormatError, match=f"lsn 2 has an impossible length of {length} bytes"):
            _rows(segments)
    segments.append(b"", 2**32 - 1)
    with pytest.raises(FormatError, match="impossible length"):
        _rows(segments)
