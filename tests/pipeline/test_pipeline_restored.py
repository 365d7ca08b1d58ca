"""Restored devices, and devices with losses: one among many."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from tests.effort import grows, some
from tests.fleet.made_logs import BEGAN_NS, SECOND, SKIP, MadeLog, damage
from tests.pipeline.source_tools import ALL, Row, Stream, begun, lsns, read_batch, segment

if TYPE_CHECKING:
    from pathlib import Path


# -- restored devices -----------------------------------------------------------------------------


def branches(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["branch"], row["lsn"]) for row in rows if row["kind"] != "break"]


def restored(tmp_path: Path, *, keep: int = 3) -> tuple[MadeLog, Stream]:
    """Return a log of four frames that were all read; a backup holds the first."""
    made = MadeLog(tmp_path / "edge")
    backup = b""
    for number in range(4):
        if number == keep:
            backup = made.file.read_bytes()
        made.enqueue(1)
    stream = Stream(tmp_path)
    assert branches(stream.step()) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    made.file.write_bytes(backup)
    made.next_lsn = keep + 1
    return made, stream


def test_a_restored_log_is_read_on_as_another_branch_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, stream = restored(tmp_path)
    made.new_epoch()
    made.enqueue(2)
    assert branches(stream.step()) == [(1, 4 + SKIP), (1, 5 + SKIP)]
    assert "device edge: 00000000000000000001.log, offset" in caplog.text
    assert "restored from a backup, or cut; it goes on as branch 1" in caplog.text
    made.enqueue(1)
    stream.restart()
    assert branches(stream.step()) == [(1, 6 + SKIP)]
    assert not stream.step()


def test_other_records_of_the_numbers_that_were_read_are_another_branch(tmp_path: Path) -> None:
    made, stream = restored(tmp_path, keep=1)
    for _ in range(5):
        made.enqueue(1)
    rows = stream.step()
    assert branches(rows) == [(1, lsn) for lsn in range(2, 7)]
    assert branches(stream.rows()) == branches(rows), "a batch that is run again is the same"


def test_a_log_of_the_same_size_and_numbers_with_other_records_is_another_branch(
    tmp_path: Path,
) -> None:
    made, stream = restored(tmp_path, keep=1)
    for _ in range(3):
        made.enqueue(1)
    assert branches(stream.step()) == [(1, 2), (1, 3), (1, 4)]


def test_a_restored_log_that_has_nothing_new_is_named_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, stream = restored(tmp_path, keep=2)
    assert not stream.step()
    assert not stream.step()
    assert caplog.text.count("restored from a backup, or cut; nothing in it is new yet") == 1
    made.enqueue(1)
    assert branches(stream.step()) == [(1, 3)]


def test_a_log_may_be_restored_again_and_again(tmp_path: Path) -> None:
    made, stream = restored(tmp_path, keep=1)
    backup = made.file.read_bytes()
    for turn in range(1, 4):
        made.file.write_bytes(backup)
        made.next_lsn = 2
        made.enqueue(1)
        assert branches(stream.step()) == [(turn, 2)]


def test_a_restored_log_may_have_fewer_segments_and_go_on_above_what_was_read(
    tmp_path: Path,
) -> None:
    """Its new segment follows upon what the backup held, so nothing is missing before it."""
    made = MadeLog(tmp_path / "edge")
    made.enqueue(1)
    made.rotate()
    made.enqueue(3)
    made.rotate()
    made.enqueue(3)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 7
    segment(made, 2).unlink()
    segment(made, 5).unlink()
    made.next_lsn, made.time_ns = 2, BEGAN_NS + SECOND
    assert not stream.step()
    made.new_epoch()
    made.time_ns += 60 * SECOND
    made.enqueue(2)
    assert branches(stream.step()) == [(1, 2 + SKIP), (1, 3 + SKIP)]


@grows
@pytest.mark.parametrize("seed", range(some(25, of=400)))
def test_whatever_is_restored_each_record_of_the_log_comes_and_none_twice_in_a_branch(
    tmp_path: Path, seed: int
) -> None:
    """It grows, is backed up and set back, in its epoch or another, between any two batches."""
    draw = random.Random(seed)
    made, stream = MadeLog(tmp_path / "edge"), Stream(tmp_path)
    backups: list[Backup] = []
    seen: dict[tuple[int, str, int], int] = {}
    is_read = True
    for turn in range(40):
        match draw.randrange(7):
            case 0 if backups:
                at = draw.randrange(len(backups))
                backups[at].bring(made)
                # Bytes lost before they were read must not come back after newer ones.
                backups = backups if is_read else backups[: at + 1]
                if draw.randrange(2):
                    made.epoch = 100 + turn
                    made.new_epoch()
            case 1:
                made.rotate() if made.frames and made.segment < made.next_lsn else None
            case 2:
                backups.append(Backup(made))
            case 3 | 4:
                # The header of a segment has the time of the frame before it, a frame the clock's.
                made.time_ns = max(made.time_ns, BEGAN_NS + turn * SECOND)
                made.enqueue(draw.randrange(1, 4))
                is_read = False
            case _:
                limit = draw.choice([ALL, ReadMaxBytes(100), ReadMaxRows(2)])
                take_in(seen, stream.step(limit))
                is_read = is_read or limit is ALL
                stream.restart() if draw.randrange(2) else None
    made.time_ns += 60 * SECOND
    made.enqueue(1)
    while stream.advance():
        take_in(seen, stream.rows())
    there = {(row["epoch"], row["lsn"]): row["timestamp"] for row in read_batch(tmp_path)}
    shown = {(epoch, lsn, time) for (_, epoch, lsn), time in seen.items()}
    assert not {(*item, time) for item, time in there.items()} - shown


class Backup:
    """The files of a log as they were, and where its writer stood; its clock goes on."""

    def __init__(self, made: MadeLog) -> None:
        self._files = {path: path.read_bytes() for path in made.path.rglob("*.log")}
        self._stood = dict(vars(made)) | {"frames": list(made.frames)}

    def bring(self, made: MadeLog) -> None:
        for path in made.path.rglob("*.log"):
            path.unlink()
        for path, data in self._files.items():
            path.write_bytes(data)
        vars(made).update(self._stood | {"frames": list(self._stood["frames"])})


def take_in(seen: dict[tuple[int, str, int], int], rows: list[Row]) -> None:
    for row in rows:
        if row["kind"] == "break":
            continue
        key = (row["branch"], row["epoch"], row["lsn"])
        assert key not in seen
        seen[key] = row["timestamp"]


def test_a_batch_of_a_branch_is_limited_as_any_other(tmp_path: Path) -> None:
    made, stream = restored(tmp_path, keep=1)
    for _ in range(4):
        made.enqueue(1)
    seen = []
    for _ in range(4):
        seen += branches(stream.step(ReadMaxBytes(1)))
    assert seen == [(1, 2), (1, 3), (1, 4), (1, 5)]
    assert not stream.step()


def test_a_frame_that_was_damaged_after_it_was_read_is_no_other_branch(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1) for _ in range(3)]
    stream = Stream(tmp_path, corruptMode="skip")
    assert len(stream.step()) == 3
    damage(frames[2], at=20)
    made.enqueue(1)
    assert branches(stream.step()) == [(0, 4)]


def test_another_segment_of_the_same_name_is_another_branch(tmp_path: Path) -> None:
    """The stream had come to its start, and read nothing of it yet."""
    made = MadeLog(tmp_path / "edge")
    made.enqueue(1)
    made.rotate()
    stream = Stream(tmp_path)
    assert len(stream.step()) == 1
    made.epoch = 99
    made.rotate()
    made.enqueue(1)
    assert branches(stream.step()) == [(1, 2)]


# -- one device among many ------------------------------------------------------------------------


def test_a_log_that_lost_data_is_held_while_the_others_go_on(tmp_path: Path) -> None:
    made, _ = begun(tmp_path)
    other = MadeLog(tmp_path / "other")
    other.enqueue(1)
    segment(made, 9).unlink()
    stream = Stream(tmp_path, failOnDataLoss="hold")
    rows = stream.step()
    assert lsns(rows, "edge") == list(range(1, 9))
    assert lsns(rows, "other") == [1]
    assert "segment before 00000000000000000013.log is missing" in held(stream)
    other.enqueue(1)
    assert lsns(stream.step()) == [2]
    assert not stream.step()
    assert "is missing" in held(stream)
    stream.restart()
    assert not stream.advance()


def test_a_held_log_goes_on_when_what_was_missing_is_there_again(tmp_path: Path) -> None:
    made, _ = begun(tmp_path)
    kept = segment(made, 9).read_bytes()
    segment(made, 9).unlink()
    stream = Stream(tmp_path, failOnDataLoss="hold")
    assert lsns(stream.step()) == list(range(1, 9))
    segment(made, 9).write_bytes(kept)
    assert lsns(stream.drain()) == list(range(9, 14))
    assert not held(stream)


def test_a_log_that_vanished_is_held_while_the_others_go_on(tmp_path: Path) -> None:
    gone, stays = MadeLog(tmp_path / "gone"), MadeLog(tmp_path / "stays")
    gone.enqueue(1)
    stays.enqueue(1)
    stream = Stream(tmp_path, failOnDataLoss="hold")
    assert len(stream.step()) == 2
    gone.path.rename(tmp_path / ".gone")
    stays.enqueue(1)
    assert lsns(stream.step()) == [2]
    assert "device gone: its log" in held(stream)
    (tmp_path / ".gone").rename(gone.path)
    gone.enqueue(1)
    assert lsns(stream.drain(), "gone") == [2]
    assert not held(stream)


def test_segments_that_went_before_they_were_read_hold_their_log_alone(tmp_path: Path) -> None:
    made, stream = begun(tmp_path)
    for lsn in (5, 9):
        segment(made, lsn).unlink()
    other = MadeLog(tmp_path / "other")
    other.enqueue(1)
    start = stream.end
    stream = Stream(tmp_path, failOnDataLoss="hold")
    stream.end = start
    assert [row["device"] for row in stream.step()] == ["other"]
    assert "is missing, which held records from lsn 7 on" in held(stream)


def held(stream: Stream) -> str:
    return "; ".join(item["held"] for item in stream.end.values() if "held" in item)
