"""Reading growing logs: every record once, through changes of logs and readers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from taskq.core.errors import UsageError
from taskq.engine import Border
from taskq.log.machine.disk import LocalDisk
from taskq_plugins.fleet import inventory, places
from taskq_plugins.fleet.inventory import durable_end
from taskq_plugins.fleet.places import LogPlace, Position, SegmentFile, SegmentPlace
from taskq_plugins.hub.copies import Gaps
from taskq_plugins.hub.models import Declare
from taskq_plugins.spark.source import logs as fleet_logs
from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.logs import LogInventory
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import DataLoss, LogHeld, LogVanished
from tests.fleet.made_logs import BEGAN_NS, SECOND, MadeLog, Place, damage
from tests.pipeline.kit import ALL, Follower, Row, Stream, begun, lsns, read_batch, segment


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_batch_ends_where_its_offset_says_while_the_log_grows_under_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_available_now: bool
) -> None:
    made = MadeLog(tmp_path / "edge")

    def grown(log: LogPlace, places: list[SegmentPlace]) -> Position:
        made.enqueue(1)  # after the listing of the segments, before their end is looked for
        return durable_end(log, places)

    monkeypatch.setattr(inventory, "durable_end", grown)
    stream = Stream(tmp_path)
    seen: list[int] = []
    for _ in range(5):
        if is_available_now:
            stream.reader.prepareForTriggerAvailableNow()
        stream.advance()
        made.enqueue(1)  # between the plan and its reading
        seen += lsns(stream.rows())
    assert len(seen) >= 9
    assert seen == list(range(1, len(seen) + 1))


def test_a_limit_of_bytes_is_kept_to_and_shared_evenly(tmp_path: Path) -> None:
    made = [MadeLog(tmp_path / name) for name in "abc"]
    for log, count in zip(made, (100, 100, 20), strict=True):
        for _ in range(count):
            log.enqueue(1, size=20_000)
        log.rotate()
        log.enqueue(1)
    limit = 1024 * 1024
    assert len(Stream(tmp_path, maxBytesPerTrigger=limit).step(ALL)) == 101 + 101 + 21
    stream = Stream(tmp_path, maxBytesPerTrigger=limit)
    batches = []
    while rows := stream.step():
        batches.append(rows)
        assert sum(len(row["value"]) for row in rows) <= limit
    assert 4 <= len(batches) <= 6
    assert min(len(lsns(batches[0], name)) for name in "abc") >= 12
    assert sum(map(len, batches)) == 101 + 101 + 21


def test_the_progress_of_a_stream_includes_its_lag(tmp_path: Path) -> None:
    a, b = MadeLog(tmp_path / "a"), MadeLog(tmp_path / "b")
    for _ in range(4):
        a.enqueue(3)
    a.new_epoch()
    a.enqueue(3)
    size = b.enqueue(2).end - a.frames[0].offset
    stream = Stream(tmp_path, maxBytesPerTrigger="300")
    assert stream.reader.reportLatestOffset() is None
    total = {"recordsBehind": 0, "bytesBehind": 0}
    shown = None
    while rows := stream.step():
        shown = stream.reader.reportLatestOffset()
        assert shown is not None
        left = {name: shown[name] for name in total}
        assert total["recordsBehind"] in {0, left["recordsBehind"] + len(rows)}
        total = left
    assert shown == {
        "source": f"taskq {tmp_path}", "recordsBehind": 0, "bytesBehind": 0, "logs": 2,
        "logsBehind": 0, "logsHeld": 0,
    }  # fmt: skip
    b.enqueue(2)
    b.enqueue(2)
    stream.advance(ReadMaxBytes(1))
    shown = stream.reader.reportLatestOffset()
    assert shown is not None
    assert (shown["recordsBehind"], shown["bytesBehind"], shown["logsBehind"]) == (2, size, 1)


@pytest.mark.parametrize("gone", [[5], [1, 5], [5, 9], [9]])
def test_a_segment_that_goes_before_it_was_read_is_data_loss(
    tmp_path: Path, gone: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    made, stream = begun(tmp_path)
    for lsn in gone:
        segment(made, lsn).unlink()
    with pytest.raises(DataLoss, match=r"device edge: .*segment.*failOnDataLoss=false"):
        stream.step()
    start = stream.start
    stream = Stream(tmp_path, failOnDataLoss="false")
    stream.end = start
    rows = stream.step()
    left = [lsn for lsn in range(7, 14) if not any(item <= lsn < item + 4 for item in gone)]
    assert lsns(rows) == left
    gaps = [(gap["lsn"], gap["next_lsn"]) for gap in shown(rows)]
    goes_on = next(lsn for lsn in (5, 9, 13) if lsn not in gone)
    assert gaps[0] == ((7, goes_on) if 5 in gone else (9, 13))
    assert "device edge" in caplog.text
    made.enqueue(1)
    assert lsns(stream.step()) == [14]


def test_late_compaction_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, really = MadeLog(tmp_path / "edge"), fleet_logs.look
    made.enqueue(1)
    made.rotate()
    made.enqueue(2)

    def look(*given: Any) -> fleet_logs.FleetSnapshot:
        sight = really(*given)
        made.frames[0].path.unlink(missing_ok=True)
        return sight

    monkeypatch.setattr(fleet_logs, "look", look)
    assert lsns(Stream(tmp_path).step()) == [2, 3]


def test_frames_that_a_recovery_moved_are_found_again(tmp_path: Path) -> None:
    """After a failed fsync the last frames are written again, as they are, in another segment."""
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1) for _ in range(4)]
    stream = Stream(tmp_path)
    assert len(stream.step()) == 4
    made.file.write_bytes(made.file.read_bytes()[: frames[1].end])
    made.next_lsn, made.time_ns = 3, BEGAN_NS + 2 * SECOND
    made.rotate()
    made.enqueue(1)
    made.enqueue(1)
    assert not stream.step()
    made.enqueue(1)
    assert lsns(stream.step()) == [5]


@pytest.mark.parametrize("is_all", [False, True])
def test_a_log_that_vanishes_is_data_loss_unless_that_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_all: bool
) -> None:
    gone, stays = MadeLog(tmp_path / "gone"), MadeLog(tmp_path / "stays")
    gone.enqueue(1)
    stays.enqueue(1)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 2
    away = gone.path if is_all else gone.file
    away.rename(tmp_path / ".gone")
    with pytest.raises(LogVanished, match=r"device gone: its log .* failOnDataLoss=false"):
        stream.step()
    again = Stream(tmp_path, failOnDataLoss="false")
    again.end = stream.start
    stays.enqueue(1)
    assert lsns(again.step()) == [2]
    assert "device gone" in caplog.text
    # It comes back unchanged.
    (tmp_path / ".gone").rename(away)
    gone.enqueue(1)
    assert lsns(again.step(), "gone") == [2]


@pytest.mark.parametrize("what", ["identity", "frame", "segment"])
def test_an_unreadable_log_stops_no_planned_batch(tmp_path: Path, what: str) -> None:
    """The others of the batch are read, and what is missing is a gap, or the log goes."""
    bad, good = MadeLog(tmp_path / "bad"), MadeLog(tmp_path / "good")
    bad.enqueue(1)
    frame = bad.enqueue(1)
    good.enqueue(1)
    stream = Stream(tmp_path, failOnDataLoss="hold")
    assert stream.advance()
    if what == "identity":
        (bad.path / "taskq.json").write_text("{")
    elif what == "frame":
        damage(frame)
    else:
        frame.path.unlink()
        frame.path.mkdir()
    rows = stream.rows()
    assert lsns(rows, "good") == [1]
    assert lsns(rows, "bad") == ([1] if what == "frame" else [])
    assert len(shown(rows)) == (what != "identity")
    good.enqueue(1)
    assert lsns(stream.step(), "good") == [2]


def test_offsets_of_another_source_are_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.end = {"a": {"partition": 3}}
    with pytest.raises(UsageError, match="checkpoint of its own"):
        stream.step()


def test_a_frame_that_was_damaged_after_it_was_read_is_no_matter(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1) for _ in range(3)]
    stream = Stream(tmp_path, corruptMode="skip")
    assert len(stream.step()) == 3
    damage(frames[2], at=20)
    made.enqueue(1)
    assert lsns(stream.step()) == [4]


def declare(made: MadeLog, left: Place, segment: int) -> None:
    """Have the hub's own code set aside what the device left; the copy's writer goes on there."""
    shown = Declare(1, made.log_id, _position(left), Border(segment), left.next_lsn, "told")
    Gaps(LocalDisk(), str(made.path)).declare(shown)
    made.next_lsn = segment


def _position(place: Place) -> Border:
    stem = place.path.read_bytes()[place.offset :][:56]
    return Border(place.segment, place.end, place.offset, stem)


def shown(rows: list[Row]) -> list[dict[str, object]]:
    return [json.loads(row["value"]) for row in rows if row["kind"] == "break"]


def test_records_before_a_declared_gap_are_read_where_the_hub_keeps_them(tmp_path: Path) -> None:
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
    gap = {"what": "gap", "lsn": 3, "next_lsn": 50, "end_lsn": 3, "cause": "told"}
    assert shown(rows) == [gap]
    assert lsns(rows) == [50]
    declare(made, made.frames[-1], 90)  # after the read position it is no loss
    assert not stream.step()
    made.time_ns += 60 * SECOND
    made.rotate()
    made.enqueue(2)
    assert lsns(stream.step()) == [90, 91]
    later = Stream(tmp_path).step()
    assert lsns(later) == [1, 2, 50, 90, 91]
    assert shown(later)[:1] == shown(read_batch(tmp_path))[:1] == [gap]


@pytest.mark.parametrize("left_bytes", [None, 0, 30, 70])
def test_a_lost_end_of_a_planned_batch_is_a_gap(tmp_path: Path, left_bytes: int | None) -> None:
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
    (log,) = places.find_logs(tmp_path)
    assert inventory.breaks(log) == []
    for text in ("{", '{"step": "done", "n": 1}\n', '{"step": "begun", "n": 1, "at": 3}\n', "[]"):
        (made.path / "breaks.jsonl").write_text(text)
        assert inventory.breaks(log) == []


def keys_of(made: MadeLog, *lsns: int) -> list[tuple[str, int]]:
    return [(str(made.log_id), lsn) for lsn in lsns]


def test_a_compacted_segment_is_not_looked_for_in_a_shorter_clone(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "dev")
    made.enqueue(2)
    made.child(tmp_path / "clone")
    first = made.enqueue(2)
    follower = Follower(tmp_path).drain()
    made.rotate()
    made.enqueue(2)
    first.path.unlink()
    assert follower.drain().read() == keys_of(made, *range(1, 7))
    assert not follower.problems


def test_a_record_is_found_after_damage(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "dev")
    frames = [made.enqueue(2) for _ in range(4)]
    damage(frames[1], at=9)  # its header
    (log,) = fleet_logs.look(tmp_path).logs.values()
    offsets = [fleet_logs.at_lsn(log, lsn).offset for lsn in range(1, 10)]
    first, _, third, last = (frame.offset for frame in frames)
    assert offsets == [first, first, *[third] * 4, last, last, log.end.offset]


def at_once(path: Path) -> None:
    path.unlink()
    path.mkdir()


def at_its_begin(path: Path) -> None:
    path.write_bytes(bytes(200) + path.read_bytes()[200:])


def at_its_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))


def in_the_middle(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:700] + bytes(90) + data[790:])


@pytest.mark.parametrize("hurt", [at_once, at_its_begin, at_its_end, in_the_middle])
@pytest.mark.parametrize("is_child", [True, False])
@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "true"}, {"corruptMode": "skip"}])
def test_a_log_is_read_from_any_copy_that_is_whole(
    tmp_path: Path, hurt: Callable[[Path], None], is_child: bool, options: dict[str, str]
) -> None:
    """Each of its segments is whole in one directory: of a clone, or of a box with a new name."""
    made = MadeLog(tmp_path / "b")
    for _ in range(3):
        for _ in range(5):
            made.enqueue(2, size=100)
        made.rotate()
    made.enqueue(1)
    copy = tmp_path / "a"
    if is_child:
        made.child(copy)
    else:
        shutil.copytree(made.path, copy)
    damaged = [segment(made, 1), copy / "log" / segment(made, 11).name]
    for path in damaged:
        hurt(path)
    for max_bytes in (300, planning.UNLIMITED):
        follower = Follower(tmp_path, **options).drain(max_bytes)
        assert sorted(follower.read()) == keys_of(made, *range(1, 32))
        assert not follower.problems
        assert all(text.endswith(" was read") for text in follower.passed)
        named = {path for path in damaged if str(path) in " ".join(follower.passed)}
        # A copy that another one goes before is not looked at.
        assert named == set(damaged) if hurt in {at_once, at_its_begin} else named


def test_a_break_before_a_segment_of_two_copies_stands_once(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "b")
    frames = []
    for _ in range(3):
        frames.append([made.enqueue(1), made.enqueue(1)])
        made.rotate()
    copy = tmp_path / "a" / "log"
    shutil.copytree(made.path, copy.parent)
    for path in (frames[1][0].path, copy / frames[1][0].path.name):
        path.unlink()
    damage(frames[2][0])
    damage(frames[2][1]._replace(path=copy / frames[2][1].path.name))
    follower = Follower(tmp_path, failOnDataLoss="false").drain()
    assert follower.read() == keys_of(made, 1, 2, 5, 6)
    assert [row["kind"] for row in follower.seen].count("break") == 1


def test_a_parent_of_which_nothing_reads_holds_back_no_child(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "dev")
    first = made.enqueue(1)
    child = made.child(tmp_path / "clone")
    child.enqueue(2)
    for path in tmp_path.glob("*/log/*"):
        if path.name == first.path.name:
            damage(first._replace(path=path))
    follower = Follower(tmp_path).drain()
    assert follower.read() == keys_of(child, 2, 3)
    assert follower.problems.keys() == {str(made.log_id)}


def test_a_parent_without_records_holds_back_no_child(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "dev")
    made.new_epoch()
    child = made.child(tmp_path / "clone")
    child.enqueue(2)
    assert Follower(tmp_path).drain().read() == keys_of(child, child.begins, child.begins + 1)


def test_other_frames_under_the_same_id_hold_that_log_alone(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    made.enqueue(2)
    twin = MadeLog(tmp_path / ".twin", made.log_id)
    twin.time_ns += 5
    twin.enqueue(2)
    other.enqueue(1)
    follower = Follower(tmp_path).drain()
    made.replace(twin)
    other.enqueue(1)
    follower.drain()
    assert follower.read()[-1] == keys_of(other, 2)[0]
    assert list(follower.problems) == [str(made.log_id)]
    assert "does not hold the frame that was read last" in follower.problems[str(made.log_id)]
    strict = read_options({"path": str(tmp_path)})
    with pytest.raises(LogHeld):
        planning.plan(strict, follower.at)


def seen(hub: Path) -> tuple[list[LogInventory], int]:
    """Return the logs of a directory, and how many files of them were opened to see them."""
    opened = mock.Mock(wraps=SegmentFile)
    with (
        mock.patch.object(inventory, "SegmentFile", opened),
        mock.patch.object(fleet_logs, "SegmentFile", opened),
    ):
        sight = fleet_logs.look(hub)
        return sorted(sight.logs.values(), key=lambda log: log.log.device), opened.call_count


def replaced(log: MadeLog) -> None:
    shutil.rmtree(log.path)
    MadeLog(log.path).enqueue()


def named_otherwise(log: MadeLog) -> None:
    other = MadeLog(log.path.parent / "other" / "edge")
    (other.path / "taskq.json").replace(log.path / "taskq.json")


def grown(log: MadeLog) -> None:
    log.rotate()
    log.enqueue()


CHANGES: dict[str, Callable[[MadeLog], object]] = {
    "grown": grown, "lacking": lambda log: log.frames[0].path.unlink(),
    "declared": lambda log: (log.path / "breaks.jsonl").write_text('{"n": 2}\n'),
    "marked": lambda log: (log.path / "failed").write_text('{"durable_lsn": 1}'),
    "replaced": replaced, "named otherwise": named_otherwise,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_silent_log_is_not_opened_again_until_anything_changes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log, silent = MadeLog(tmp_path / "edge"), MadeLog(tmp_path / "silent")
    silent.enqueue()
    log.enqueue()
    log.rotate()
    log.enqueue()
    (log.path / "breaks.jsonl").touch()
    for _ in range(2):
        assert seen(tmp_path)[1] > 0, "what changed just now may have changed once more"
    monkeypatch.setattr(places, "SETTLED_NS", -(10**18))
    before, _ = seen(tmp_path)
    assert seen(tmp_path) == (before, 0)
    newest_ns = max(path.stat().st_ctime_ns for path in [log.path, *log.path.rglob("*")])
    clock = tmp_path / "clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= newest_ns:  # a few milliseconds, to the next tick
        clock.touch()
    CHANGES[change](log)
    after, _ = seen(tmp_path)
    assert after[0] is not before[0]
    assert after[1] is before[1]
