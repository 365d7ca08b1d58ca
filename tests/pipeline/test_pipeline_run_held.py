"""Logs that a run holds back before it starts Java, and leaves where they are."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from taskq.cli.main import main
from taskq.log.format.carried import encode_compacted
from taskq_plugins.spark.lake.store import Lake, LakeWriter
from taskq_plugins.spark.run.progress import held, unread_bytes
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.planning import Following
from taskq_plugins.spark.source.positions import offsets_from_json
from taskq_plugins.spark.source.snapshot import look
from tests.fleet.made_logs import MadeLog, claimed, succeeded
from tests.pipeline.source_tools import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.source.planning import ReadLimits
    from taskq_plugins.spark.source.positions import Offsets


class Reader:
    """The logs of a run, and how far it has read them."""

    def __init__(self, root: Path) -> None:
        self.logs = root / "logs"
        self.stream = Stream(self.logs, failOnDataLoss="hold")

    @property
    def offsets(self) -> Offsets:
        return offsets_from_json(self.stream.end)

    def read(self) -> list[int]:
        return [row["lsn"] for row in self.stream.drain()]

    def unread(self) -> int:
        options = read_options({"path": str(self.logs), "failOnDataLoss": "hold"})
        return unread_bytes(self.offsets, options, look(options))


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "logs").mkdir()
    return Reader(tmp_path)


def test_what_is_unread_is_told_without_java(reader: Reader) -> None:
    made, other = MadeLog(reader.logs / "a"), MadeLog(reader.logs / "b")
    frames = [made.enqueue(2), other.enqueue(1)]
    assert reader.unread() == sum(frame.end - frame.offset for frame in frames)
    reader.read()
    assert not reader.unread()
    more = other.enqueue(3)
    assert reader.unread() == more.end - more.offset
    reader.read()
    assert not held(reader.offsets)


def test_a_restored_log_is_read_on_once_it_has_anything_new(reader: Reader) -> None:
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
    assert not held(reader.offsets)
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
    assert "is missing" in held(reader.offsets)[0]
    assert not reader.unread()
    missing.write_bytes(kept)
    assert reader.unread()
    assert reader.read() == [2, 3, 4]
    assert not held(reader.offsets)


def test_a_log_that_vanished_is_told_once(reader: Reader) -> None:
    made = MadeLog(reader.logs / "edge")
    MadeLog(reader.logs / "other").enqueue(1)
    made.enqueue(1)
    reader.read()
    made.path.rename(reader.logs / ".edge")
    assert reader.unread() == 1
    reader.read()
    assert "device edge: its log" in held(reader.offsets)[0]
    assert not reader.unread()


def pipeline(tmp_path: Path, *words: str) -> Result:
    where = ["--journals", str(tmp_path / "logs"), "--lake", str(tmp_path / "lake")]
    return CliRunner().invoke(main, ["pipeline", "run", *where, *words])


def test_one_device_never_stops_the_run_of_the_fleet(tmp_path: Path) -> None:
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
    for shown in ("2 records in 1 batch", "nothing new"):
        result = pipeline(tmp_path)
        assert result.exit_code == 1
        assert shown in result.stdout
        assert "1 log held back, all others were read:" in result.stderr
        assert f"at least one segment before {5:020d}.log is missing" in result.stderr


def test_a_box_that_was_replaced_under_a_new_name_is_read_on(tmp_path: Path) -> None:
    old, other = MadeLog(tmp_path / "logs" / "box-a"), MadeLog(tmp_path / "logs" / "box-b")
    old.enqueue(2)
    other.enqueue(1)
    assert pipeline(tmp_path).exit_code == 0
    backup = old.file.read_bytes()
    old.path.rename(tmp_path / "logs" / "box-c")
    new = old
    new.path = tmp_path / "logs" / "box-c"
    new.file = new.path / "log" / new.file.name
    MadeLog(tmp_path / "logs" / "box-a", new.log_id).file.write_bytes(backup)
    new.enqueue(3)
    result = pipeline(tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "3 records in 1 batch" in result.stdout


def test_a_log_that_two_devices_have_and_that_went_apart_is_held_alone(tmp_path: Path) -> None:
    first, other = MadeLog(tmp_path / "logs" / "a"), MadeLog(tmp_path / "logs" / "other")
    second = MadeLog(tmp_path / "logs" / "b", first.log_id)
    first.enqueue(1)
    assert pipeline(tmp_path).exit_code == 0, "the other is empty yet"
    second.enqueue(2)
    other.enqueue(2)
    for shown in ("2 records in 1 batch", "nothing new"):
        result = pipeline(tmp_path)
        assert result.exit_code == 1
        assert shown in result.stdout
        assert "1 log held back, all others were read:" in result.stderr
        assert f"log {first.log_id} is there twice" in result.stderr
    shutil.rmtree(second.path)
    assert pipeline(tmp_path).exit_code == 0


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
    edge, other = MadeLog(tmp_path / "logs" / "edge"), MadeLog(tmp_path / "logs" / "other")
    edge.enqueue(1)
    edge.rotate()
    lost = edge.enqueue(3)
    edge.rotate()
    edge.enqueue(1)
    other.enqueue(2)
    real = Following.next

    def vanishing(self: Following, offsets: Offsets, limits: ReadLimits) -> Offsets:
        planned = real(self, offsets, limits)
        lost.path.unlink(missing_ok=True)
        return planned

    if committed:
        commit = LakeWriter.commit

        def killed(self: LakeWriter, table: str, *given: Any, **options: Any) -> bool:
            if table != "records":
                raise KeyboardInterrupt
            return commit(self, table, *given, **options)

        with monkeypatch.context() as crash:
            crash.setattr(LakeWriter, "commit", killed)
            assert pipeline(tmp_path).exit_code != 0
        lost.path.unlink()
    monkeypatch.setattr(Following, "next", vanishing)
    result = pipeline(tmp_path)
    assert result.exit_code == 1
    if committed:
        assert "--ignore-data-loss" in result.stderr
        return
    assert "3 records in 1 batch" in result.stdout
    assert "1 log held back, all others were read:" in result.stderr


def cut_off(root: Path) -> MadeLog:
    """Return a log that was read once and then lost its second segment."""
    edge = MadeLog(root / "edge")
    edge.enqueue(3)
    assert pipeline(root.parent).exit_code == 0
    edge.rotate()
    lost = edge.frame(succeeded(1, 4, 4), succeeded(2, 5, 5))
    edge.rotate()
    lost.path.unlink()
    return edge


def states(tmp_path: Path) -> dict[int, str]:
    rows = Lake.open(tmp_path / "lake").dataset("jobs").to_table().to_pylist()
    return {row["job"]: row["state"] for row in rows}


def test_a_single_held_log_goes_on_when_it_may(tmp_path: Path) -> None:
    edge = cut_off(tmp_path / "logs")
    edge.enqueue(1)
    for _ in range(2):
        assert "--ignore-data-loss" in pipeline(tmp_path).stderr
    for shown in ("2 records in 1 batch", "nothing new"):
        result = pipeline(tmp_path, "--ignore-data-loss")
        assert (result.exit_code, shown in result.stdout) == (0, True), result.output
    assert "nothing new" in pipeline(tmp_path).stdout
    assert states(tmp_path) == {1: "ready", 2: "ready", 3: "ready", 6: "ready"}


def test_a_vanished_log_alone_is_passed_over_when_it_may_be(tmp_path: Path) -> None:
    edge = MadeLog(tmp_path / "logs" / "edge")
    edge.enqueue(1)
    assert pipeline(tmp_path).exit_code == 0
    edge.path.rename(tmp_path / "away")
    assert pipeline(tmp_path).exit_code == 1
    for _ in range(2):
        assert pipeline(tmp_path, "--ignore-data-loss").exit_code == 0


@pytest.mark.parametrize(("floor", "gone"), [(6, "lost"), (4, "ready")])
def test_jobs_that_compaction_took_unread_are_lost_and_no_others_are(
    tmp_path: Path, floor: int, gone: str
) -> None:
    edge = cut_off(tmp_path / "logs")
    edge.frame(claimed(3), encode_compacted(floor, 7))
    assert pipeline(tmp_path, "--ignore-data-loss").exit_code == 0
    assert states(tmp_path) == {1: gone, 2: gone, 3: "running"}
