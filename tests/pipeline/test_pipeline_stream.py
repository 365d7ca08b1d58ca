"""Reading growing logs: every record once, through changes of logs and readers."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from taskq.core.errors import LogDamaged, UsageError
from taskq_plugins.fleet import inventory
from taskq_plugins.fleet.inventory import durable_end
from taskq_plugins.spark.source.positions import (
    DataLoss,
    LogVanished,
    OptionError,
    Unreadable,
)
from tests.fleet.made_logs import BEGAN_NS, SECOND, SKIP, MadeLog, damage, enqueued
from tests.pipeline.source_tools import ALL, Stream, begun, lsns, segment

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.fleet.inventory import DurableEnd
    from taskq_plugins.fleet.places import LogPlace, SegmentPlace


# -- growing --------------------------------------------------------------------------------------


def test_each_trigger_reads_what_came_since_and_nothing_twice(tmp_path: Path) -> None:
    a, b = MadeLog(tmp_path / "a"), MadeLog(tmp_path / "b")
    a.enqueue(3)
    stream = Stream(tmp_path)
    assert lsns(stream.step(), "a") == [1, 2, 3]
    assert not stream.step()
    a.enqueue(2)
    a.rotate()
    a.enqueue(2)
    b.enqueue(1)
    rows = stream.step()
    assert (lsns(rows, "a"), lsns(rows, "b")) == ([4, 5, 6, 7], [1])
    b.new_epoch()
    b.enqueue(1)
    stream.restart()
    assert lsns(stream.step()) == [2 + SKIP]


def test_a_new_device_is_read_from_its_beginning(tmp_path: Path) -> None:
    MadeLog(tmp_path / "a").enqueue(3)
    for starting in ("earliest", "latest"):
        stream = Stream(tmp_path, startingOffsets=starting)
        assert len(stream.step()) == (3 if starting == "earliest" else 0)
        made = MadeLog(tmp_path / "b")
        made.enqueue(2)
        assert lsns(stream.step()) == [1, 2]
        shutil.rmtree(made.path)


def test_a_stream_that_begins_at_the_end_reads_only_what_comes(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    made.enqueue(3)
    stream = Stream(tmp_path, startingOffsets="latest")
    assert not stream.step()
    made.enqueue(1)
    assert lsns(stream.step()) == [4]


def test_a_stream_begins_where_it_is_told(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(6):
        made.enqueue(2)
    by_time = str((BEGAN_NS + 4 * SECOND) // 1_000_000)
    assert lsns(Stream(tmp_path, startingTimestamp=by_time).step()) == list(range(7, 13))
    by_lsn = json.dumps({str(made.log_id): {"lsn": 5}})
    stream = Stream(tmp_path, startingOffsets=by_lsn)
    assert stream.advance()
    # Another process reads the very same batch, though the log appears in it for the first time.
    stream.restart()
    assert lsns(stream.rows()) == list(range(5, 13))
    assert not stream.step()


def test_a_first_batch_that_is_run_again_is_the_one_that_was_planned(tmp_path: Path) -> None:
    """Spark asks anew where to begin, after a kill in the first batch."""
    made = MadeLog(tmp_path / "a")
    made.enqueue(3)
    stream = Stream(tmp_path, startingOffsets="latest")
    made.enqueue(2)
    assert stream.advance()
    for later in range(2):
        again = Stream(tmp_path, startingOffsets="latest")
        again.start, again.end = again.end, stream.end
        assert lsns(again.rows()) == [4, 5]
        made.enqueue(1)
        assert lsns(again.step()) == list(range(6, 7 + later))


def test_a_log_that_is_to_begin_at_its_end_does_while_others_begin_elsewhere(
    tmp_path: Path,
) -> None:
    made = {name: MadeLog(tmp_path / name) for name in "abc"}
    for log in made.values():
        log.enqueue(1)
        log.enqueue(1)
    stream = Stream(tmp_path, startingOffsets='{"a": "latest", "b": {"lsn": 2}}')
    rows = stream.step()
    assert [lsns(rows, name) for name in "abc"] == [[], [2], [1, 2]]
    for log in made.values():
        log.enqueue(1)
    stream.restart()
    rows = stream.step()
    assert [lsns(rows, name) for name in "abc"] == [[3], [3], [3]]
    with pytest.raises(OptionError, match="there is no log or device 'z'"):
        Stream(tmp_path, startingOffsets='{"z": "latest"}')


def test_a_batch_is_the_same_bytes_whenever_it_is_asked_for(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "a")
    for _ in range(3):
        made.enqueue(3)
        made.rotate()
    stream = Stream(tmp_path)
    assert stream.advance()
    rows = stream.rows()
    made.enqueue(9)
    made.rotate()
    MadeLog(tmp_path / "b").enqueue(4)
    stream.restart()
    assert stream.rows() == rows
    assert lsns(rows) == list(range(1, 10))


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


def test_compaction_takes_what_was_read_and_nothing_is_lost(tmp_path: Path) -> None:
    made, stream = begun(tmp_path)
    segment(made, 1).unlink()
    assert lsns(stream.step()) == list(range(7, 14))
    for lsn in (5, 9):
        segment(made, lsn).unlink()
    stream.restart()
    made.enqueue(1)
    assert lsns(stream.step()) == [14]


def test_a_segment_that_was_read_to_its_end_may_go_though_an_epoch_follows(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "edge")
    made.enqueue(2)
    stream = Stream(tmp_path)
    assert len(stream.step()) == 2
    made.new_epoch()
    made.enqueue(1)
    segment(made, 1).unlink()
    assert lsns(stream.step()) == [3 + SKIP]


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


def test_a_stream_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="endingOffsets is for batches"):
        Stream(tmp_path, endingOffsets="latest")
