"""Reading growing logs: every record once, through changes of logs and readers."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from taskq.core.errors import LogDamaged, UsageError
from taskq.engine import Border
from taskq.log.machine.disk import LocalDisk
from taskq_plugins.fleet import inventory, places
from taskq_plugins.fleet.inventory import SegmentFile, durable_end
from taskq_plugins.hub.copies import Gaps
from taskq_plugins.hub.models import Declare
from taskq_plugins.spark.source import logs as fleet_logs
from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import (
    DataLoss,
    LogHeld,
    LogVanished,
    Unreadable,
)
from tests.effort import grows, some
from tests.fleet.made_logs import BEGAN_NS, SECOND, MadeLog, Place, damage, enqueued
from tests.pipeline.kit import ALL, Follower, Row, Stream, begun, lsns, read_batch, segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskq_plugins.fleet.inventory import DurableEnd
    from taskq_plugins.fleet.places import LogPlace, SegmentPlace
    from taskq_plugins.spark.source.logs import LogInventory

# -- growing --------------------------------------------------------------------------------------


class Growth:
    """Logs that grow, appear and are compacted, and a stream that is restarted now and then."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.made = [MadeLog(root / "dev-0")]
        self.stream = Stream(root, maxBytesPerTrigger=chance.choice(["1", "900", "1m"]))
        self.rows: list[Row] = []

    def write(self, log: MadeLog) -> None:
        log.enqueue(self.chance.randint(1, 3), size=self.chance.choice([10, 2_000]))

    def appear(self, _: MadeLog) -> None:
        self.made.append(MadeLog(self.root / f"dev-{len(self.made)}"))

    def compact(self, log: MadeLog) -> None:
        seen = set(lsns(self.rows, log.path.name))
        for path in {frame.path for frame in log.frames} - {log.file}:
            if seen >= {lsn for frame in log.frames if frame.path == path for lsn in of(frame)}:
                path.unlink(missing_ok=True)

    def read(self, _: MadeLog) -> None:
        if self.stream.advance():
            batch = self.stream.rows()
            if self.chance.randrange(2):
                self.stream.restart()
            self.chance.choice(self.made).enqueue(1)
            assert self.stream.rows() == batch, "a batch is the same whenever it is asked for"
            self.rows += batch


def of(frame: Place) -> range:
    return range(frame.first_lsn, frame.next_lsn)


@grows
@pytest.mark.parametrize("seed", range(some(8, of=200)))
def test_a_stream_reads_each_record_once_and_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    growth = Growth(tmp_path, chance)
    acts = [growth.write, growth.write, MadeLog.rotate, MadeLog.new_epoch]
    for _ in range(40):
        act = chance.choice([*acts, growth.appear, growth.compact, growth.read])
        act(chance.choice(growth.made))
    growth.rows += growth.stream.drain()
    for log in growth.made:
        assert lsns(growth.rows, log.path.name) == [
            lsn for frame in log.frames for lsn in of(frame)
        ]


def test_a_new_device_is_read_from_its_beginning(tmp_path: Path) -> None:
    MadeLog(tmp_path / "a").enqueue(3)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 3
    MadeLog(tmp_path / "b").enqueue(2)
    assert stream.advance()
    # Another process reads the very same batch, though the log appears in it for the first time.
    stream.restart()
    assert lsns(stream.rows()) == [1, 2]


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_batch_ends_where_its_offset_says_while_the_log_grows_under_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_available_now: bool
) -> None:
    made = MadeLog(tmp_path / "edge")

    def grown(log: LogPlace, places: list[SegmentPlace]) -> DurableEnd:
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


def test_a_reinstalled_device_is_a_new_stream(tmp_path: Path) -> None:
    old = MadeLog(tmp_path / "a")
    old.enqueue(3)
    stream = Stream(tmp_path)
    assert lsns(stream.step()) == [1, 2, 3]
    shutil.rmtree(old.path)
    new = MadeLog(tmp_path / "a")
    new.enqueue(2)
    rows = stream.step()
    assert lsns(rows) == [1, 2]
    assert {row["log_id"] for row in rows} == {str(new.log_id)}
    assert not stream.step()


def test_an_empty_directory_is_waited_in(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    assert not stream.step()
    MadeLog(tmp_path / "a")
    assert not stream.step()
    (tmp_path / "a").rename(tmp_path / "b")
    MadeLog(tmp_path / "a").enqueue(1)
    assert lsns(stream.step()) == [1]


# -- limits ---------------------------------------------------------------------------------------


def test_a_limit_of_bytes_is_kept_to_and_shared_evenly(tmp_path: Path) -> None:
    made = [MadeLog(tmp_path / name) for name in "abc"]
    for log, count in zip(made, (200, 200, 20), strict=True):
        for _ in range(count):
            log.enqueue(1, size=20_000)
        log.rotate()
        log.enqueue(1)
    limit = 1024 * 1024
    stream = Stream(tmp_path, maxBytesPerTrigger=limit)
    batches = []
    while rows := stream.step():
        batches.append(rows)
        assert sum(len(row["value"]) for row in rows) <= limit
    assert 8 <= len(batches) <= 12
    first = [len(lsns(batches[0], name)) for name in "abc"]
    assert min(first) >= 12
    assert sorted(lsns([row for rows in batches for row in rows], "a")) == list(range(1, 202))
    assert sum(map(len, batches)) == 201 + 201 + 21


def test_thousands_of_logs_with_a_small_limit_all_get_their_turn(tmp_path: Path) -> None:
    for n in range(40):
        MadeLog(tmp_path / f"{n:03d}").enqueue(1, size=100_000)
    stream = Stream(tmp_path, maxBytesPerTrigger="256k")
    seen: list[str] = []
    while rows := stream.step():
        assert 1 <= len(rows) <= 3
        seen += [row["device"] for row in rows]
    assert sorted(seen) == [f"{n:03d}" for n in range(40)]


def test_a_frame_that_is_larger_than_the_limit_is_read_alone(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for size in (10, 5_000_000, 10):
        made.enqueue(1, size=size)
    stream = Stream(tmp_path, maxBytesPerTrigger="1k")
    assert [lsns(stream.step()) for _ in range(4)] == [[1], [2], [3], []]


def test_large_frames_get_their_turn_among_many_small_ones(tmp_path: Path) -> None:
    large = MadeLog(tmp_path / "large")
    for _ in range(3):
        large.enqueue(1, size=600_000)
    for n in range(3):
        small = MadeLog(tmp_path / f"small{n}")
        for _ in range(60):
            small.enqueue(1, size=20_000)
    stream = Stream(tmp_path, maxBytesPerTrigger="1400k")
    seen = [len(lsns(stream.step(), "large")) for _ in range(3)]
    assert sum(seen) >= 2


def test_the_progress_tells_how_far_the_batch_is_behind(tmp_path: Path) -> None:
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


def test_the_engine_decides_whether_the_limits_count(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(10):
        made.enqueue(1, size=1000)
    stream = Stream(tmp_path, maxBytesPerTrigger="2k")
    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(2048)
    assert len(stream.step()) == 1
    assert len(stream.step(ALL)) == 9
    assert Stream(tmp_path).reader.getDefaultReadLimit() == ALL


def test_available_now_ends_where_the_logs_ended_when_it_began(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(10):
        made.enqueue(1, size=1000)
    stream = Stream(tmp_path, maxBytesPerTrigger="2k")
    stream.reader.prepareForTriggerAvailableNow()
    seen = []
    while rows := stream.step():
        seen += rows
        made.enqueue(1)
        MadeLog(tmp_path / f"new{len(seen)}").enqueue(1)
    assert lsns(seen) == list(range(1, 11))
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.drain()) == 2 * len(range(1, 11))


# -- what goes wrong ------------------------------------------------------------------------------


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
    assert "device edge" in caplog.text
    made.enqueue(1)
    assert lsns(stream.step()) == [14]


# -- other ends -----------------------------------------------------------------------------------


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


def test_while_a_failed_fsync_is_not_mended_the_stream_waits(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    made.enqueue(1)
    made.frame(enqueued(2), synced=False)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 2
    (made.path / "failed").write_text('{"segment": 1, "durable_lsn": 2}')
    assert not stream.step()
    (made.path / "failed").unlink()
    made.enqueue(1)
    assert lsns(stream.step()) == [3]


def test_a_log_that_vanishes_is_data_loss_unless_that_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = MadeLog(tmp_path / "gone"), MadeLog(tmp_path / "stays")
    gone.enqueue(1)
    stays.enqueue(1)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 2
    gone.path.rename(tmp_path / ".gone")
    with pytest.raises(LogVanished, match=r"device gone: its log .* failOnDataLoss=false"):
        stream.step()
    again = Stream(tmp_path, failOnDataLoss="false")
    again.end = stream.start
    stays.enqueue(1)
    assert lsns(again.step()) == [2]
    assert "device gone" in caplog.text
    # It comes back unchanged.
    (tmp_path / ".gone").rename(gone.path)
    gone.enqueue(1)
    assert lsns(again.step(), "gone") == [2]


def test_a_log_whose_segments_are_all_gone_is_data_loss(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    made.enqueue(1)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 1
    made.file.unlink()
    with pytest.raises(LogVanished, match="device edge"):
        stream.step()


def test_damage_is_read_past_when_asked_and_the_stream_goes_on_behind_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    frames = [made.enqueue(1, size=500) for _ in range(6)]
    damage(frames[2], at=20)
    damage(frames[5])
    stream = Stream(tmp_path)
    with pytest.raises(LogDamaged, match="corruptMode"):
        stream.step()
    stream = Stream(tmp_path, corruptMode="skip", maxBytesPerTrigger="1200")
    seen = []
    while rows := stream.step():
        seen += lsns(rows)
    made.enqueue(1)
    seen += lsns(stream.drain())
    assert [lsn for lsn in seen if lsn not in {3, 6}] == [1, 2, 4, 5, 7]
    assert len(seen) == len(set(seen))


def test_a_log_that_cannot_be_read_is_left_out_until_it_can(tmp_path: Path) -> None:
    bad, good = MadeLog(tmp_path / "bad"), MadeLog(tmp_path / "good")
    bad.enqueue(1)
    good.enqueue(1)
    stream = Stream(tmp_path, corruptMode="skip")
    assert len(stream.step()) == 2
    identity = (bad.path / "taskq.json").read_text()
    (bad.path / "taskq.json").write_text("{")
    good.enqueue(1)
    assert lsns(stream.step(), "good") == [2]
    with pytest.raises(Unreadable, match=r"bad/taskq.json.*corruptMode=skip"):
        Stream(tmp_path).step()
    (bad.path / "taskq.json").write_text(identity)
    bad.enqueue(1)
    assert lsns(stream.step(), "bad") == [2]


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
    (log,) = places.find_logs(tmp_path)
    assert inventory.breaks(log) == []
    for text in ("{", '{"step": "done", "n": 1}\n', '{"step": "begun", "n": 1, "at": 3}\n', "[]"):
        (made.path / "breaks.jsonl").write_text(text)
        assert inventory.breaks(log) == []


def keys_of(made: MadeLog, *lsns: int) -> list[tuple[str, int]]:
    return [(str(made.log_id), lsn) for lsn in lsns]


@pytest.mark.parametrize("max_bytes", [1, 300, 2000, planning.UNLIMITED])
def test_a_restored_log_is_read_from_where_it_left_its_parent(
    tmp_path: Path, max_bytes: int
) -> None:
    """Also when its device gets nothing of the batch in which it is seen first."""
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    for _ in range(4):
        made.enqueue(1)
    backup = made.child(tmp_path / ".backup")
    made.enqueue(2)
    other.enqueue(3)
    follower = Follower(tmp_path).drain()
    backup.enqueue(3)
    made.replace(backup)
    for _ in range(10):
        other.enqueue(1, size=900)
    follower.drain(max_bytes)
    mine = [key for key in follower.read() if key[0] != str(other.log_id)]
    assert mine == keys_of(made, *range(1, 7)) + keys_of(backup, 5, 6, 7)
    assert len(follower.read()) == len(set(follower.read())) == 9 + 13
    assert not follower.problems


def test_a_parent_is_read_from_the_child_that_has_most_of_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / ".lost")
    made.enqueue(2)
    first = made.child(tmp_path / "a")
    made.rotate()
    made.enqueue(3)
    second = made.child(tmp_path / "b")
    first.enqueue(1)
    second.enqueue(1)
    rows = Follower(tmp_path).drain(100)
    expected = keys_of(made, 1, 2, 3, 4, 5) + keys_of(first, 3) + keys_of(second, 6)
    assert sorted(rows.read()) == sorted(expected)
    assert not rows.problems
    made.path.rename(tmp_path / "c")
    assert sorted(Follower(tmp_path).drain().read()) == sorted(expected)


def test_a_parent_is_read_before_its_child(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / ".lost")
    for _ in range(10):
        made.enqueue(1, size=500)
    child = made.child(tmp_path / "dev")
    child.enqueue(5)
    follower = Follower(tmp_path)
    follower.step(1200)
    assert {key[0] for key in follower.read()} == {str(made.log_id)}
    assert follower.drain(1200).read() == keys_of(made, *range(1, 11)) + keys_of(
        child, *range(11, 16)
    )


def test_a_segment_that_compaction_took_is_not_looked_for_in_a_clone_that_has_less_of_it(
    tmp_path: Path,
) -> None:
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


def test_a_damaged_log_is_read_to_the_damage_and_held_there(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    frames = [made.enqueue(1) for _ in range(5)]
    damage(frames[2])
    other.enqueue(2)
    for max_bytes in (1, 200, planning.UNLIMITED):
        held = Follower(tmp_path).drain(max_bytes)
        assert sorted(held.read()) == sorted(keys_of(made, 1, 2) + keys_of(other, 1, 2))
        assert list(held.problems) == [str(made.log_id)]
        assert held.at[str(made.log_id)].held == held.problems[str(made.log_id)]
    skips = Follower(tmp_path, corruptMode="skip")
    assert len(skips.step().skipped) == 1
    kinds = [row["kind"] for row in skips.rows if row["device"] == "dev"]
    assert kinds == ["enqueued", "enqueued", "break", "enqueued", "enqueued"]


def seen(hub: Path) -> tuple[list[LogInventory], int]:
    """Return the logs of a directory, and how many files of them were opened to see them."""
    opened = mock.Mock(wraps=SegmentFile)
    with (
        mock.patch.object(inventory, "SegmentFile", opened),
        mock.patch.object(fleet_logs, "SegmentFile", opened),
    ):
        sight = fleet_logs.look(hub)
        return sorted(sight.logs.values(), key=lambda log: log.log.device), opened.call_count


def test_a_log_that_is_silent_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [MadeLog(tmp_path / f"edge-{number}") for number in range(2)]
    for log in logs:
        log.enqueue()
    assert seen(tmp_path)[1] > 0
    assert seen(tmp_path)[1] > 0, "what changed just now may have changed once more"
    monkeypatch.setattr(places, "SETTLED_NS", -(10**18))
    before, _ = seen(tmp_path)
    again, opened = seen(tmp_path)
    assert opened == 0
    assert [*map(id, before)] == [*map(id, again)]
    logs[1].enqueue()
    after, opened = seen(tmp_path)
    assert after[0] is before[0]
    assert after[1].end.mark.next_lsn == 3
    assert opened > 0


def grown(log: MadeLog) -> None:
    log.rotate()
    log.enqueue()


def lacking(log: MadeLog) -> None:
    log.frames[0].path.unlink()


def declared(log: MadeLog) -> None:
    with (log.path / "breaks.jsonl").open("a") as file:
        file.write(json.dumps({"n": 2}) + "\n")


def marked(log: MadeLog) -> None:
    (log.path / "failed").write_text(json.dumps({"durable_lsn": 1}))


def replaced(log: MadeLog) -> None:
    shutil.rmtree(log.path)
    MadeLog(log.path).enqueue()


def named_otherwise(log: MadeLog) -> None:
    other = MadeLog(log.path.parent / "other" / "edge")
    (other.path / "taskq.json").replace(log.path / "taskq.json")


@pytest.mark.parametrize("change", [grown, lacking, declared, marked, replaced, named_otherwise])
def test_whatever_changes_in_a_log_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[MadeLog], None]
) -> None:
    monkeypatch.setattr(places, "SETTLED_NS", -(10**18))
    log = MadeLog(tmp_path / "edge")
    log.enqueue()
    log.rotate()
    log.enqueue()
    (log.path / "breaks.jsonl").touch()
    (before,), _ = seen(tmp_path)
    newest_ns = max(path.stat().st_ctime_ns for path in [log.path, *log.path.rglob("*")])
    clock = tmp_path / "clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= newest_ns:  # a few milliseconds, to the next tick
        clock.touch()
    change(log)
    (after,), _ = seen(tmp_path)
    assert after is not before
