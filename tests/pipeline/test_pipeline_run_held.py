"""What a run is told of the logs before it starts Java, and which it leaves where they stand."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from taskq.cli.main import main
from taskq_plugins.spark.run.checkpoint import held, unread_bytes
from taskq_plugins.spark.source.stream import StreamReader
from tests.fleet.made_logs import MadeLog
from tests.pipeline.source_tools import Stream

if TYPE_CHECKING:
    from pathlib import Path


class Reader:
    """The stream of a run, and its checkpoint as Spark writes it."""

    def __init__(self, root: Path) -> None:
        self.logs, self.checkpoint = root / "logs", root / "checkpoint"
        self.stream = Stream(self.logs, failOnDataLoss="hold")
        self._number = 0
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def read(self) -> list[int]:
        rows = self.stream.drain()
        lines = ("v1", "{}", json.dumps(self.stream.end))
        (self.checkpoint / "offsets" / str(self._number)).write_text("\n".join(lines))
        (self.checkpoint / "commits" / str(self._number)).write_text("v1\n{}")
        self._number += 1
        return [row["lsn"] for row in rows]

    def unread(self) -> int:
        return unread_bytes(self.checkpoint, self.logs, "fail")


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "logs").mkdir()
    return Reader(tmp_path)


def test_what_is_unread_is_told_without_java(reader: Reader) -> None:
    made, other = MadeLog(reader.logs / "a"), MadeLog(reader.logs / "b")
    frames = [made.enqueue(2), other.enqueue(1)]
    assert reader.unread() == sum(one.end - one.offset for one in frames)
    reader.read()
    assert not reader.unread()
    more = other.enqueue(3)
    assert reader.unread() == more.end - more.offset
    reader.read()
    assert not held(reader.checkpoint)


def test_a_restored_log_is_read_on_once_it_has_anything_new(reader: Reader) -> None:
    """Its numbers may be lower than those that were read: it is content that tells."""
    made, other = MadeLog(reader.logs / "edge"), MadeLog(reader.logs / "other")
    made.enqueue(1)
    backup = made.file.read_bytes()
    for _ in range(5):
        made.enqueue(1)
    other.enqueue(1)
    reader.read()
    made.file.write_bytes(backup)
    assert not reader.unread(), "it holds nothing that is new"
    made.next_lsn = 2
    new = made.enqueue(1)
    assert reader.unread() == new.end - new.offset
    assert reader.read() == [2, 2], "that it was restored, and the record"
    assert not held(reader.checkpoint)
    assert not reader.unread()


def test_a_log_with_a_gap_is_held_until_the_segment_comes(reader: Reader) -> None:
    made = MadeLog(reader.logs / "edge")
    for _ in range(3):
        made.enqueue(1)
        made.rotate()
    made.enqueue(1)
    missing = made.frames[1].path
    kept = missing.read_bytes()
    missing.unlink()
    assert reader.read() == [1]
    assert "is missing" in held(reader.checkpoint)[0]
    assert not reader.unread()
    missing.write_bytes(kept)
    assert reader.unread()
    assert reader.read() == [2, 3, 4]
    assert not held(reader.checkpoint)


def test_a_log_that_vanished_is_told_once(reader: Reader) -> None:
    made = MadeLog(reader.logs / "edge")
    MadeLog(reader.logs / "other").enqueue(1)
    made.enqueue(1)
    reader.read()
    made.path.rename(reader.logs / ".edge")
    assert reader.unread() == 1
    reader.read()
    assert "device edge: its log" in held(reader.checkpoint)[0]
    assert not reader.unread()


def pipeline(tmp_path: Path) -> Result:
    where = ["--journals", str(tmp_path / "logs"), "--lake", str(tmp_path / "lake")]
    return CliRunner().invoke(main, ["pipeline", "run", *where])


def test_one_device_never_stops_the_run_of_the_fleet(tmp_path: Path) -> None:
    """The others' tables go on; the exit code and the report tell, also when nothing is new."""
    edge, other = MadeLog(tmp_path / "logs" / "edge"), MadeLog(tmp_path / "logs" / "other")
    edge.enqueue(1)
    other.enqueue(2)
    assert pipeline(tmp_path).exit_code == 0
    edge.rotate()
    lost = edge.enqueue(3)
    edge.rotate()
    edge.enqueue(1)
    lost.path.unlink()
    other.enqueue(2)
    for told in ("2 records in 1 batch", "nothing new"):
        result = pipeline(tmp_path)
        assert result.exit_code == 1
        assert told in result.stdout
        assert "1 log held back, all others were read:" in result.stderr
        assert f"at least one segment before {5:020d}.log is missing" in result.stderr


def test_a_restored_device_is_folded_and_the_report_tells(tmp_path: Path) -> None:
    edge, other = MadeLog(tmp_path / "logs" / "edge"), MadeLog(tmp_path / "logs" / "other")
    edge.enqueue(1)
    backup = edge.file.read_bytes()
    edge.enqueue(3)
    other.enqueue(2)
    assert pipeline(tmp_path).exit_code == 0
    edge.file.write_bytes(backup)
    edge.next_lsn = 2
    edge.new_epoch()
    edge.enqueue(1)
    other.enqueue(2)
    result = pipeline(tmp_path)
    assert result.exit_code == 0, result.output
    assert (
        "1 log was restored from a backup and is read on as another branch: edge" in result.stderr
    )
    assert "restored" not in pipeline(tmp_path).output


@pytest.mark.parametrize("committed", [False, True])
def test_a_segment_that_vanishes_between_plan_and_read_holds_its_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """What was planned is planned anew, unless a table has a part of it already."""
    edge, other = MadeLog(tmp_path / "logs" / "edge"), MadeLog(tmp_path / "logs" / "other")
    edge.enqueue(1)
    edge.rotate()
    lost = edge.enqueue(3)
    edge.rotate()
    edge.enqueue(1)
    other.enqueue(2)
    real = StreamReader.latestOffset

    def vanishing(self: StreamReader, *asked: Any) -> dict[str, Any]:
        planned = real(self, *asked)
        lost.path.unlink(missing_ok=True)
        return planned

    monkeypatch.setattr(StreamReader, "latestOffset", vanishing)
    if committed:
        monkeypatch.setattr("taskq_plugins.spark.run.checkpoint.forget_plan", lambda _: False)
    result = pipeline(tmp_path)
    assert result.exit_code == 1
    if committed:
        assert "--ignore-data-loss" in result.stderr
        return
    assert "3 records in 1 batch" in result.stdout
    assert "1 log held back, all others were read:" in result.stderr
