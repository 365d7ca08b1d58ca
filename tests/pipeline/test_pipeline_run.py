"""``taskq pipeline run``: what it reads, holds, reports and makes, all without Java.

Tables that Spark's SQL makes: ``test_pipeline_independent``.
"""

import asyncio
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkRuntimeError

from taskq import Put, TaskLog
from taskq.cli.main import main
from taskq.log.format.carried import encode_compacted
from taskq_plugins.spark.errors import SourceGone, failure
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import frames
from taskq_plugins.spark.source.positions import DataLoss
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog, claimed, damage, enqueued, succeeded
from tests.pipeline.kit import killing, run

pytestmark = pytest.mark.usefixtures("no_java")


def pipeline(tmp_path: Path, *words: object) -> Result:
    where = ["--journals", str(tmp_path / "logs"), "--lake", str(tmp_path / "lake")]
    return CliRunner().invoke(main, ["pipeline", "run", *where, *map(str, words)])


def test_what_is_skipped_is_printed_and_stands_in_records(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "logs" / "dev"), MadeLog(tmp_path / "logs" / "other")
    frames = [made.enqueue(1) for _ in range(5)]
    damage(frames[2])
    other.enqueue(2)
    held = pipeline(tmp_path)
    assert (held.exit_code, "dev" in held.stderr) == (1, True)
    assert "computing failures" in held.stderr
    assert Lake.open(tmp_path / "lake").dataset("records").count_rows() == 4
    skipped = pipeline(tmp_path, "--corrupt", "skip")
    assert skipped.exit_code == 0, skipped.output
    assert "skipped: " in skipped.stderr
    rows = Lake.open(tmp_path / "lake").dataset("records").to_table().to_pylist()
    (row,) = [row for row in rows if row["kind"] == "break"]
    assert (row["device"], json.loads(row["value"])["what"], row["lsn"]) == ("dev", "damaged", 3)


def test_damage_in_a_copy_is_printed_with_the_copy_that_was_read(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "logs" / "new")
    frames = [made.enqueue(1) for _ in range(5)]
    old = shutil.copytree(made.path, tmp_path / "logs" / "old")
    copied = [frame._replace(path=old / "log" / frame.path.name) for frame in frames]
    damage(frames[1])
    damage(copied[3])
    run = pipeline(tmp_path)
    assert run.exit_code == 0, run.output
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("damaged copy: ")]
    hurt, lsn, taken = (
        (frames, 2, copied) if str(frames[0].path) in line.split(":")[1] else (copied, 4, frames)
    )
    assert line.startswith(f"damaged copy: {hurt[0].path}: ")
    assert line.endswith(f", from lsn {lsn} on; {taken[0].path} was read")
    assert Lake.open(tmp_path / "lake").dataset("records").count_rows() == 5


def test_a_vanished_segment_is_replanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeLog(tmp_path / "logs" / "dev")
    first = made.enqueue(2)
    made.rotate()
    made.enqueue(1)
    read = frames.on_executors

    def gone(session: Any, step: Any, parts: Any) -> Any:
        first.path.unlink(missing_ok=True)  # as compaction does
        try:
            return read(session, step, parts)
        except DataLoss as error:
            name = f"{DataLoss.__module__}.{DataLoss.__name__}"
            raise PySparkRuntimeError(f"Traceback\n{name}: {error}\n") from None

    monkeypatch.setattr(frames, "on_executors", gone)
    shown = pipeline(tmp_path)
    assert (shown.exit_code, "1 records in 1 batch" in shown.stdout) == (0, True), shown.output
    assert states(tmp_path) == {3: "ready"}


OURS = (
    "taskq_plugins.spark.source.positions.DataLoss: a: gone; with the option failOnDataLoss=false"
)
DAMAGED = "taskq.arrow.problems.SegmentDamaged: /1.log: no frame, corruptMode=skip reads on"


@pytest.mark.parametrize(("text", "said"), [
    (f"Traceback …\n{DAMAGED}\n\tat", r"^/1.log: no frame, --corrupt skip reads on; nothing of"),
    (f"pyspark.errors.PySparkRuntimeError: x\n{OURS}\n", r"^a: gone; with --ignore-data-loss; n"),
    ("x\nCaused by: java.io.IOException: No space left\n\tat", r"IOException: No space left\)"),
    ("\n", r"no reason was given"),
    ("strange", r"^Spark stopped the run \(strange\); .*Remove the cause, then run again$"),
])  # fmt: skip
def test_of_tracebacks_of_spark_the_reason_is_shown(text: str, said: str) -> None:
    error = failure(text)
    assert re.search(said, str(error))
    assert "\n" not in str(error)
    assert isinstance(error, SourceGone) is (OURS in text)


def test_only_files_of_touched_jobs_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 2)
    monkeypatch.setattr(batches, "ROWS_MAX", 2)
    made = MadeLog(tmp_path / "logs" / "dev")
    made.enqueue(6)
    assert pipeline(tmp_path).exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    before = {table: {file.path for file in lake.files(table)} for table in ("jobs", "_open")}
    made.frame(claimed(3))
    assert pipeline(tmp_path).exit_code == 0
    for table, paths in before.items():
        gone = paths - {file.path for file in lake.files(table)}
        assert (len(paths) >= 3, len(gone) - (table == "_open")) == (True, 1)  # and one of the logs
    assert Counter(states(tmp_path).values()) == {"ready": 5, "running": 1}


def test_a_large_batch_is_folded_in_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task holds more than some records, however large ``--max-bytes`` is."""
    monkeypatch.setattr(batches, "SHARE_ROWS", 3)
    made = MadeLog(tmp_path / "logs" / "dev")
    made.enqueue(10)
    assert pipeline(tmp_path).exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    assert batches._Batch(lake, lake.batch()).shares == 4


def test_a_batch_has_at_most_the_bytes_that_it_may_have(tmp_path: Path) -> None:
    made = [MadeLog(tmp_path / "logs" / f"dev-{number}") for number in range(3)]
    frames = [log.enqueue(1, size=300) for log in made for _ in range(4)]
    size = max(frame.end - frame.offset for frame in frames)
    summary = run(None, tmp_path / "logs", tmp_path / "lake", max_bytes=3 * size + 10)
    assert summary.batches >= 4
    batches = Counter(row["batch"] for row in rows(tmp_path, "records"))
    assert (sorted(batches), max(batches.values()) <= 3) == ([*range(summary.batches)], True)


def test_readers_see_nothing_of_an_interrupted_batch(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "logs" / "edge-1")
    made.enqueue(3)
    assert pipeline(tmp_path).exit_code == 0
    before = Lake.open(tmp_path / "lake").pinned().dataset("jobs").to_table()
    made.frame(claimed(1), enqueued(5))
    with killing("jobs"):
        assert pipeline(tmp_path).exit_code != 0
    lake = Lake.open(tmp_path / "lake")
    assert lake.pinned().dataset("jobs").to_table().equals(before)
    assert lake.dataset("jobs").count_rows() > before.num_rows
    erase = CliRunner().invoke(
        main, ["pipeline", "erase", "--lake", lake.path, "--where", "true", "--yes"]
    )
    assert "half committed" in erase.stderr


@pytest.mark.parametrize("table", ["jobs", "records"])
def test_a_lost_table_is_noticed_before_anything_is_read(tmp_path: Path, table: str) -> None:
    made = MadeLog(tmp_path / "logs" / "edge")
    made.enqueue(2)
    assert pipeline(tmp_path).exit_code == 0
    shutil.rmtree(tmp_path / "lake" / table)
    made.enqueue(1)
    result = pipeline(tmp_path)
    assert result.exit_code == 1
    assert f"{table} is gone" in result.stderr
    assert "makes all tables anew from the logs" in result.stderr


def test_a_lake_and_its_logs_may_be_below_paths_with_spaces(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    made = MadeLog(root / "logs" / "edge 1")
    for _ in range(2):
        made.enqueue(2)
        result = pipeline(root)
        assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(main, ["sql", "--lake", str(root / "lake"), "--json", "FROM jobs"])
    assert len(json.loads(shown.stdout)) == Lake.open(root / "lake").dataset("jobs").count_rows()


def torn(edge: MadeLog) -> None:
    (edge.path / "taskq.json").write_text("{")


def newer(edge: MadeLog) -> None:
    identity = json.loads((edge.path / "taskq.json").read_text())
    (edge.path / "taskq.json").write_text(json.dumps(identity | {"format": 99}))


def cut(edge: MadeLog) -> None:
    edge.rotate()
    lost = edge.enqueue(3)
    edge.rotate()
    edge.enqueue(1)
    lost.path.unlink()


def doubled(edge: MadeLog) -> None:
    MadeLog(edge.path.with_name("twin"), edge.log_id).enqueue(2)


def gone(edge: MadeLog) -> None:
    edge.path.rename(edge.path.parents[1] / "away")


def a_file(edge: MadeLog) -> None:
    gone(edge)
    edge.path.write_text("")


def damaged(edge: MadeLog) -> None:
    damage(edge.enqueue(1))
    edge.enqueue(1)


def unopened(edge: MadeLog) -> None:
    """Open no segment any more; rights do not keep root from it."""
    edge.enqueue(1)
    edge.file.unlink()
    edge.file.symlink_to(edge.file)


def unlisted(edge: MadeLog) -> None:
    (edge.path / "log").rename(edge.path / "away")
    (edge.path / "log").symlink_to("log")


def half_doubled(edge: MadeLog) -> None:
    doubled(edge)
    twin = edge.path.with_name("twin") / "log"
    twin.rename(edge.path / "away")
    twin.symlink_to("log")


LOSS, CORRUPT = "--ignore-data-loss", "--corrupt=skip"
#: State of one log of two, the run's message, and the options that go on with it.
ODD: list[tuple[Callable[[MadeLog], None], str, set[str]]] = [
    (torn, "edge/taskq.json", set()),
    (newer, "edge/taskq.json", set()),
    (doubled, "is there twice", set()),
    (cut, f"at least one segment before {5:020d}.log is missing", {LOSS}),
    (gone, "device edge: its log", {LOSS}),
    (a_file, "device edge: its log", {LOSS}),
    (damaged, "edge/log/", {CORRUPT}),
    (unopened, "edge/log/", set()),
    (unlisted, "edge/log", set()),
    (half_doubled, "twin/log cannot be read", set()),
]


@pytest.mark.parametrize("options", [[], [LOSS], [CORRUPT]])
@pytest.mark.parametrize(("change", "said", "passed_by"), ODD)
def test_one_device_never_stops_the_run_of_the_fleet(
    tmp_path: Path, change: Callable[[MadeLog], None], said: str, passed_by: set[str],
    options: list[str],
) -> None:  # fmt: skip
    edge, other = MadeLog(tmp_path / "logs" / "edge"), MadeLog(tmp_path / "logs" / "other")
    edge.enqueue(1)
    other.enqueue(2)
    assert pipeline(tmp_path).exit_code == 0
    change(edge)
    other.enqueue(2)
    result = pipeline(tmp_path, *options)
    rows = Lake.open(tmp_path / "lake").dataset("records").to_table().to_pylist()
    assert sum(row["device"] == "other" for row in rows) == 4
    assert result.stderr.count(said) == 1, result.stderr
    is_held = passed_by.isdisjoint(options)
    assert result.exit_code == is_held, result.output
    assert ("1 log held back, all others were read:" in result.stderr) is is_held


def cut_off(root: Path) -> MadeLog:
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


@pytest.mark.parametrize(("floor", "gone"), [(6, "lost"), (4, "ready")])
def test_only_jobs_compacted_unread_are_lost(tmp_path: Path, floor: int, gone: str) -> None:
    edge = cut_off(tmp_path / "logs")
    edge.frame(claimed(3), encode_compacted(floor, 7))
    assert pipeline(tmp_path, "--ignore-data-loss").exit_code == 0
    assert states(tmp_path) == {1: gone, 2: gone, 3: "running"}
    over = {row["job"] for row in rows(tmp_path) if row["is_over"]}
    assert over == ({1, 2} if gone == "lost" else set())


LARGE = 2 * 2**20
NAMED = 6


async def lived(path: Path, sizes: list[int], names: int = 0) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=bytes([n]) * size) for n, size in enumerate(sizes)])
        for _ in range(names):
            await log.put_many([Put(payload=b"x" * LARGE)])
        for delivery in await log.claim(len(sizes)) if sizes else ():
            await log.ack(delivery, b"r" * len(delivery.payload))


def run_bodies(tmp_path: Path, *words: object) -> Any:
    where = ("--journals", tmp_path / "hub", "--lake", tmp_path / "lake")
    return taskq("pipeline", "run", *where, *words)


def rows(tmp_path: Path, table: str = "jobs") -> list[dict[str, Any]]:
    data = Lake.open(tmp_path / "lake").dataset(table)
    result: list[dict[str, Any]] = data.to_table().to_pylist()
    return result


def test_of_a_body_above_64_kib_hash_and_size_are_stored(tmp_path: Path) -> None:
    asyncio.run(lived(tmp_path / "hub" / "edge", [65_536, 65_537], NAMED))
    shown = run_bodies(tmp_path)
    assert shown.exit_code == 0, shown.output
    small, large, *named = sorted(rows(tmp_path), key=lambda row: row["job"])
    assert small["payload"] == bytes(65_536)
    assert small["result"] == b"r" * 65_536
    body = bytes([1]) * 65_537
    left_out = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
    assert json.loads(large["payload"]) == {"left out": left_out}
    assert json.loads(large["result"])["left out"]["size"] == 65_537
    assert {json.loads(row["payload"])["left out"]["size"] for row in named} == {LARGE}
    words = ("replay", "--lake", tmp_path / "lake", "--where", f"job = {large['job']}")
    refused = taskq("pipeline", *words, "--to", tmp_path / "to", "--yes")
    assert "too large for the lake" in refused.output


def test_all_are_stored_when_they_are_to_be(tmp_path: Path) -> None:
    asyncio.run(lived(tmp_path / "hub" / "edge", [], NAMED))
    assert run_bodies(tmp_path, "--payloads", "full").exit_code == 0
    for table, column in (("records", "value"), ("jobs", "payload")):
        bodies = [row[column] for row in rows(tmp_path, table) if row[column]]
        assert bodies == [b"x" * LARGE] * NAMED


def test_the_bytes_of_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BYTES_MAX", 3 * LARGE)
    table = pa.table({"value": [b"x" * LARGE] * NAMED})
    made = files.write_rows(files.Folder(str(tmp_path)), table, ())
    assert sum(file.rows for file in made) == NAMED
    assert max(file.rows for file in made) <= 3
