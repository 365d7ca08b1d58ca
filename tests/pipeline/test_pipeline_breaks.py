"""A stream over the breaks that a hub's copy of a log has declared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from taskq.engine import Border
from taskq.log.machine.disk import LocalDisk
from taskq_plugins import fleet
from taskq_plugins.hub.copies import Gaps
from taskq_plugins.hub.models import Declare
from tests.fleet.made_logs import SECOND, MadeLog, Place
from tests.pipeline.source_tools import Row, Stream, lsns, read_batch

if TYPE_CHECKING:
    from pathlib import Path


def declare(made: MadeLog, left: Place, segment: int) -> None:
    """Have the hub's own code set aside what the device left; the copy's writer goes on there."""
    shown = Declare(1, made.log_id, _position(left), Border(segment), left.next_lsn, "told")
    Gaps(LocalDisk(), str(made.path)).declare(shown)
    made.next_lsn = segment


def _position(place: Place) -> Border:
    stem = place.path.read_bytes()[place.offset :][:56]
    return Border(place.segment, place.end, place.offset, stem)


def test_a_declared_gap_behind_what_was_read_is_no_loss(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1) for _ in range(2)]
    stream = Stream(tmp_path)
    assert len(stream.step()) == 2
    declare(made, frames[1], 50)
    assert not stream.step()
    made.time_ns += 60 * SECOND
    made.rotate()
    made.enqueue(2)
    assert lsns(stream.step()) == [50, 51]


def shown(rows: list[Row]) -> list[dict[str, object]]:
    return [json.loads(row["value"]) for row in rows if row["kind"] == "break"]


def test_what_was_not_read_before_a_declared_gap_is_read_from_where_the_hub_keeps_it(
    tmp_path: Path,
) -> None:
    made = MadeLog(tmp_path / "edge")
    made.enqueue(1)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 1
    unread = made.enqueue(1)
    declare(made, unread, 50)
    assert lsns(stream.step()) == [2]
    made.time_ns += 60 * SECOND
    made.rotate()
    made.enqueue(1)
    rows = stream.step()
    gap = {"what": "gap", "lsn": 3, "goes_on": 50, "end_lsn": 3, "cause": "told"}
    assert shown(rows) == [gap]
    assert lsns(rows) == [50]
    later = Stream(tmp_path).step()
    assert lsns(later) == [1, 2, 50]
    assert shown(later) == shown(read_batch(tmp_path)) == [gap]


def test_a_gap_that_nobody_declared_is_told_where_reading_goes_over_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = []
    for _ in range(3):
        frames.append(made.enqueue(2))
        made.rotate()
    made.enqueue(1)
    frames[1].path.unlink()
    stream = Stream(tmp_path, failOnDataLoss="false")
    assert shown(stream.step()) == [{"what": "gap", "lsn": 3, "goes_on": 5}]
    frames.append(made.enqueue(1))
    made.rotate()
    lost = made.enqueue(2)
    made.rotate()
    made.enqueue(1)
    for item in (frames[3], lost):
        item.path.unlink()
    assert shown(stream.step()) == [{"what": "gap", "lsn": 8, "goes_on": 11}]


@pytest.mark.parametrize("left_bytes", [None, 0, 30, 70])
def test_what_went_from_the_end_of_a_planned_batch_is_told_as_a_gap(
    tmp_path: Path, left_bytes: int | None
) -> None:
    """Be it the end of its last segment (``left_bytes``: of a frame, too), or all of that."""
    made = MadeLog(tmp_path / "edge")
    made.enqueue(2)
    made.rotate()
    first = made.enqueue(1)
    made.enqueue(1)
    stream = Stream(tmp_path, failOnDataLoss="false")
    assert stream.advance()
    if left_bytes is None:
        made.file.unlink()
    else:
        made.file.write_bytes(made.file.read_bytes()[: first.end + left_bytes])
    stream.restart()
    rows = stream.rows()
    assert lsns(rows) == ([1, 2] if left_bytes is None else [1, 2, 3])
    missing = 3 if left_bytes is None else 4
    assert shown(rows) == [{"what": "gap", "lsn": missing}]
    assert stream.rows() == rows


def test_breaks_that_do_not_read_are_none(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    (log,) = fleet.find_logs(tmp_path)
    assert fleet.breaks(log) == []
    for text in ("{", '{"step": "done", "n": 1}\n', '{"step": "begun", "n": 1, "at": 3}\n', "[]"):
        (made.path / "breaks.jsonl").write_text(text)
        assert fleet.breaks(log) == []
