"""Devices with losses: one among many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.source_tools import Stream, begun, lsns, segment

if TYPE_CHECKING:
    from pathlib import Path


def test_a_frame_that_was_damaged_after_it_was_read_is_no_matter(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1) for _ in range(3)]
    stream = Stream(tmp_path, corruptMode="skip")
    assert len(stream.step()) == 3
    damage(frames[2], at=20)
    made.enqueue(1)
    assert lsns(stream.step()) == [4]


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
