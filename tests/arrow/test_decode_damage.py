"""Frames are found however they are walked; damaged ones and other files are refused."""

from __future__ import annotations

import errno
import os
import pickle
import random
import uuid
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.arrow import (
    DETAILS,
    Corrupt,
    SegmentDamaged,
    SegmentMissing,
    WrongSegment,
    decode,
)
from taskq.arrow.arrays import PAD_SIZE, Bytes, Ints
from taskq.arrow.frames import RECORDS_MIN, place_seeds, places, walk_in_stretches
from taskq.arrow.problems import SegmentUnreadable
from taskq.core.errors import FormatError
from taskq.log.format import codec
from taskq.log.machine import posix
from tests.arrow.rows_of_log import (
    EPOCH,
    Row,
    Segments,
    claimed,
    decoded_rows,
    enqueued,
    rows_of_directory,
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
