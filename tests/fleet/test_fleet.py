"""Which logs there are, their segments, and how far each may be read."""

import json
import os
import shutil
import uuid
from pathlib import Path

import pytest

from taskq.arrow.problems import SegmentUnreadable
from taskq.core.errors import FormatError
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.read.reader import open_journal
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq_plugins.fleet import inventory, places
from taskq_plugins.fleet.places import FleetError, LogPlace, LogTwice, SegmentFile
from tests.fleet.made_logs import SKIP, MadeLog, enqueued


def durable_mark(log: LogPlace) -> tuple[int, int, int]:
    end = inventory.durable_end(log, inventory.segments(log))
    return end.segment, end.offset, end.lsn


def only(path: Path) -> LogPlace:
    (log,) = places.find_logs(path)
    return log


def next_job(made: MadeLog) -> bytes:
    return enqueued(made.next_lsn)


def mark_after(log: MadeLog, number: int = -1) -> tuple[int, int, int]:
    place = log.frames[number]
    return place.segment, place.end, place.next_lsn


def test_logs_are_found_beside_other_things_and_below_devices(tmp_path: Path) -> None:
    """Flat and as on a hub, in one directory; hidden ones, files and links are passed over."""
    outside = MadeLog(tmp_path / ".outside" / "secret")
    (tmp_path / "link").symlink_to(outside.path)
    made = MadeLog(tmp_path / "b")
    old, new = uuid.uuid4(), uuid.uuid4()
    MadeLog(tmp_path / "a" / str(new), new, created_ns=2)
    MadeLog(tmp_path / "a" / str(old), old, created_ns=1)
    MadeLog(tmp_path / ".trash" / "x")
    MadeLog(tmp_path / "_old")
    MadeLog(tmp_path / "devices" / "1")  # a device of that name, since the file of a hub is absent
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no log")
    result = places.find_logs(tmp_path)
    assert [(log.device, log.log_id) for log in result[:2]] == [("a", str(old)), ("a", str(new))]
    assert [log.device for log in result] == ["a", "a", "b", "devices"]
    chosen = frozenset({"b", str(new)})
    assert [log.device for log in places.find_logs(tmp_path, chosen)] == ["a", "b"]
    log = only(tmp_path / "b")
    assert (log.device, log.path, log.log_id) == ("b", str(made.path), str(made.log_id))
    assert (log.tag, log.identity.created_ns) == (made.log_id.hex[:8], 1)


def test_too_many_logs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LOGS_MAX", 2)
    for name in "ab":
        MadeLog(tmp_path / name)
    assert len(places.find_logs(tmp_path)) == 2
    MadeLog(tmp_path / "c")
    with pytest.raises(FleetError, match="holds more than 2 logs"):
        places.find_logs(tmp_path)


def test_a_name_that_is_no_text_is_shown_by_its_bytes_and_still_read(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "made")
    made.enqueue()
    os.rename(os.fsencode(made.path), os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH104 - bytes
    log = only(tmp_path)
    assert log.device == r"caf\xe9"
    assert durable_mark(log) == mark_after(made)


def test_a_copy_that_is_the_beginning_of_the_log_gives_way(tmp_path: Path) -> None:
    """A hub has two directories of a box with a new name, or with a wrong token."""
    made = MadeLog(tmp_path / "new")
    for old in ("empty", "same", "shorter", "sealed"):
        shutil.copytree(made.path, tmp_path / old)
        made.enqueue(3)
        if old == "shorter":
            made.rotate()
    assert [log.device for log in places.find_logs(tmp_path)] == ["new"]


def test_a_copied_log_that_went_on_is_an_error_that_names_both_directories(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue()
    MadeLog(tmp_path / "b", made.log_id).enqueue(2)
    with pytest.raises(LogTwice, match=r"/a and in .*/b") as caught:
        places.find_logs(tmp_path)
    assert caught.value.log_id == str(made.log_id)
    assert [log.device for log in places.find_logs(tmp_path, frozenset({"b"}))] == ["b"]


def test_pipes_in_the_place_of_files_hold_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "taskq.json")
    made = MadeLog(tmp_path / "b")
    made.file.unlink()
    os.mkfifo(made.file)
    log = only(tmp_path)
    assert log.device == "b"
    with pytest.raises(SegmentUnreadable, match="it is no regular file"):
        inventory.segments(log)


def test_segments_are_listed_with_size_and_epoch_and_leftovers_are_not(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue()
    made.new_epoch()
    made.enqueue()
    (made.path / "log" / f"{99 * SKIP:020d}.log").write_bytes(b"taskq")
    (made.path / "log" / f"{1:020d}.idx").write_bytes(b"")
    log = only(made.path)
    result = inventory.segments(log)
    assert [(item.first_lsn, item.epoch) for item in result] == [(1, 11), (2 + SKIP, 12)]
    assert [item.size_bytes for item in result] == [place.end for place in made.frames]
    made.rotate()
    whole = made.file.read_bytes()
    for data, count in ((whole[:20], 2), (whole, 3)):
        made.file.write_bytes(data)
        assert len(inventory.segments(log)) == count


def test_a_segment_of_a_newer_format_is_named(tmp_path: Path) -> None:
    newer = MadeLog(tmp_path / "newer")
    data = bytearray(newer.file.read_bytes())
    data[8] = 9
    data[56:60] = codec.crc32(data[:56]).to_bytes(4, "little")
    newer.file.write_bytes(data)
    with pytest.raises(FormatError, match=r"00001.log: segment format 9"):
        inventory.segments(only(newer.path))


def test_a_torn_tail_is_not_read_whatever_is_left_of_the_frame(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue(2)
    made.enqueue(2)
    last = made.enqueue(2)
    whole = made.file.read_bytes()
    for size in range(last.offset + 1, last.end):
        made.file.write_bytes(whole[:size])
        assert durable_mark(only(made.path)) == mark_after(made, 1)
    # After a power loss the file may be as long as it was, and hold zeros.
    made.file.write_bytes(whole[: last.offset + 60].ljust(last.end, b"\0"))
    assert durable_mark(only(made.path)) == mark_after(made, 1)


def test_unsynced_frames_count_once_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue()
    made.enqueue()
    for _ in range(3):
        made.frame(next_job(made), synced=False)
    refused = [True]

    def fsync(_: int) -> None:
        if refused[0]:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    assert durable_mark(only(made.path)) == mark_after(made, 0)
    refused[0] = False
    assert durable_mark(only(made.path)) == mark_after(made)


def test_after_a_failed_fsync_only_what_is_declared_counts(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(5):
        made.enqueue()
    log = only(made.path)
    (made.path / "failed").write_text(json.dumps({"segment": 1, "durable_lsn": 3}))
    # The last frame declares four synced.
    assert durable_mark(log) == mark_after(made, 3)
    (made.path / "failed").unlink()
    assert durable_mark(log) == mark_after(made)


def test_after_a_failed_fsync_frames_that_were_written_again_are_read_once(tmp_path: Path) -> None:
    """The new segment is named, the old one not cut yet: both hold the last frames."""
    made = MadeLog(tmp_path / "a")
    frames = [made.enqueue() for _ in range(3)]
    for _ in range(2):
        made.frame(next_job(made), synced=False)
    (made.path / "failed").write_text(json.dumps({"segment": 1, "durable_lsn": 4}))
    made.next_lsn = 4
    made.rotate()
    for _ in range(2):
        made.frame(next_job(made), synced=False)
    assert durable_mark(only(made.path)) == (1, frames[2].end, 4)


def test_the_end_of_a_segment_is_found_without_reading_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(200):
        made.enqueue(5, size=500)
    log, reads = only(made.path), list[int]()
    really_read = SegmentFile.read

    def read(self: SegmentFile, count: int, offset: int) -> bytes:
        reads.append(count)
        return really_read(self, count, offset)

    monkeypatch.setattr(SegmentFile, "read", read)
    assert durable_mark(log) == mark_after(made)
    assert len(reads) < 8


def test_the_mark_of_a_real_log_is_where_its_readers_see_the_end(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), LogConfig(segment_bytes=SEGMENT_BYTES_MIN))
    port = store.thread_port
    for size in (10, SEGMENT_BYTES_MIN, 10, SEGMENT_BYTES_MIN, 30):
        port.enqueue(EnqueueSpec("q", "t", 5), bytes(size)).result(10)
        journal = open_journal(str(tmp_path))
        end = (journal.segment, journal.offset, journal.next_lsn)
        journal.close()
        assert durable_mark(only(tmp_path)) == end
    store.close()
    assert len(inventory.segments(only(tmp_path))) > 2


def rows_of(log: LogPlace) -> list[inventory.SegmentRow]:
    places = inventory.segments(log)
    return list(inventory.segment_rows(log, places, inventory.durable_end(log, places)))


def test_the_inventory_separates_missing_segments_from_intended_gaps(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue(3)
    made.rotate()
    made.enqueue(3)
    made.new_epoch()
    made.enqueue(3)
    made.rotate()
    made.enqueue(3)
    log = only(made.path)
    rows = rows_of(log)
    assert [row.segment for row in rows] == [1, 4, 7 + SKIP, 10 + SKIP]
    assert [row.next_lsn for row in rows] == [4, 7, 10 + SKIP, 13 + SKIP]
    assert not any(row.gap_from for row in rows)
    for number, expected in ((1, [None, 4, None]), (2, [None, None, 7])):
        path = made.frames[number].path
        kept = path.read_bytes()
        path.unlink()
        assert [row.gap_from for row in rows_of(log)] == expected
        path.write_bytes(kept)
    made.frames[0].path.unlink()
    assert not any(row.gap_from for row in rows_of(log))
