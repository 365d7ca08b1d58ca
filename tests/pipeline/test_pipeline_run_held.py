"""What a run is told of the logs before it starts Java, and which it leaves where they stand."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq_plugins.spark.run.held import held, unread_bytes
from tests.fleet.made_logs import SKIP, MadeLog
from tests.pipeline.source_tools import Stream

if TYPE_CHECKING:
    from pathlib import Path


class Reader:
    """The stream of a run, and its checkpoint as Spark writes it."""

    def __init__(self, root: Path) -> None:
        self.logs, self.checkpoint = root / "logs", root / "checkpoint"
        self.stream = Stream(self.logs, failOnDataLoss="hold", restoredLogs="hold")
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


def test_a_restored_log_is_held_once_and_the_others_go_on(reader: Reader) -> None:
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
    made.enqueue(1)
    assert reader.unread() == 1
    assert reader.read() == []
    assert "restored from a backup, or cut; it goes on as branch 1" in held(reader.checkpoint)[0]
    assert not reader.unread(), "nothing can be done about it"
    other.enqueue(1)
    assert reader.unread()
    assert reader.read() == [2]
    assert len(held(reader.checkpoint)) == 1


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


def test_one_device_never_stops_the_run_of_the_fleet(tmp_path: Path) -> None:
    """The others' tables go on; the exit code and the report tell, also when nothing is new."""
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    edge, other = MadeLog(logs / "edge"), MadeLog(logs / "other")
    edge.enqueue(1)
    backup = edge.file.read_bytes()
    edge.enqueue(3)
    other.enqueue(2)
    words = ["pipeline", "run", "--journals", str(logs), "--lake", str(lake)]
    assert CliRunner().invoke(main, words).exit_code == 0
    edge.file.write_bytes(backup)
    edge.next_lsn = 2
    edge.new_epoch()
    edge.enqueue(1)
    other.enqueue(2)
    for told in ("2 records in 1 batch", "nothing new"):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 1
        assert told in result.stdout
        assert "1 log held back, all others were read:" in result.stderr
        assert f"device edge: {edge.frames[0].path.name}" in result.stderr
        assert f"branch 1, from {2 + SKIP:020d}.log" in result.stderr
