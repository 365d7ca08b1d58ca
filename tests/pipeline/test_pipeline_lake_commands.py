from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq_plugins.spark.lake import Batch, Lake
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.progress import log_progress
from taskq_plugins.spark.run import checkpoint
from tests.fleet.made_logs import MadeLog
from tests.pipeline.lakes import put
from tests.pipeline.rowmaking import live, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

LONG = pa.int64()
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
JOBS = [
    {
        "job_id": f"x-{number}",
        "device": "edge-1",
        "queue": "mail",
        "state": "dead" if number % 3 == 0 else "succeeded",
        "settled_at": NOON + timedelta(hours=number // 4),
        "headers": [("a", "b")],
        "payload": b"\xff\x00" if number else b"{}",
    }
    for number in range(8)
]
SCHEMA = pa.schema(
    {
        "job_id": pa.string(),
        "device": pa.string(),
        "queue": pa.string(),
        "state": pa.string(),
        "settled_at": pa.timestamp("us", tz="UTC"),
        "headers": pa.map_(pa.string(), pa.string()),
        "payload": pa.binary(),
    }
)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


def commit(lake: Lake, batch: Batch, name: str = "jobs") -> None:
    put(lake, name, pa.Table.from_pylist(JOBS, SCHEMA), batch)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake.open(tmp_path / "lake", create=True)
    put(found, "jobs", pa.Table.from_pylist(JOBS, SCHEMA))
    return found


def test_show_prints_rows_that_a_condition_chooses(lake: Lake) -> None:
    result = call("show", "jobs", "--lake", str(lake.path), "--where", "state = 'dead'")
    assert result.exit_code == 0, result.output
    head, *rows = result.output.splitlines()
    assert head.split() == ["job_id", "device", "queue", "state", "settled_at"]
    assert rows[0].split() == ["x-0", "edge-1", "mail", "dead", "2026-05-01", "12:00:00"]
    assert [row.split()[0] for row in rows] == ["x-0", "x-3", "x-6"]


def test_show_as_json_gives_times_maps_and_bytes(lake: Lake) -> None:
    result = call(
        *("show", "jobs", "--lake", str(lake.path), "--json", "--limit", "2"),
        *("--columns", "settled_at,headers, payload"),
    )
    assert json.loads(result.output) == [
        {"settled_at": "2026-05-01T12:00:00+00:00", "headers": {"a": "b"}, "payload": "{}"},
        {
            "settled_at": "2026-05-01T12:00:00+00:00",
            "headers": {"a": "b"},
            "payload": {"base64": "/wA="},
        },
    ]


def test_show_draws_a_bar_for_each_hour(lake: Lake) -> None:
    result = call("show", "jobs", "--lake", str(lake.path), "--chart")
    assert result.exit_code == 0, result.output
    title, first, second = result.output.splitlines()
    assert "jobs settled per hour" in title
    assert first.startswith("2026-05-01 12:00  █")
    assert first.endswith(" 2 + 2 bad")
    assert second.endswith(" 3 + 1 bad")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs", "--where", "stat = 1"], "The columns of jobs are: job_id, device"),
        (["jobs", "--where", "1 = 1) UNION SELECT (1"], "--where"),
        (["jobs", "--where", "true); SET threads = 1; SELECT (1"], "--where"),
        (["jobs", "--where", "true) OR (true"], "--where"),
        (["jobs", "--where", "job_id IN (SELECT * FROM '/etc/passwd')"], "--where"),
        (["jobs", "--columns", "nme"], "jobs has no column 'nme'; it has: job_id"),
    ],
)
def test_show_refuses_what_it_cannot_read(lake: Lake, arguments: list[str], message: str) -> None:
    result = call("show", *arguments, "--lake", str(lake.path))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_table_or_a_lake_that_is_not_there_is_named(lake: Lake, tmp_path: Path) -> None:
    result = call("show", "job", "--lake", str(lake.path))
    assert (result.exit_code, "no table 'job'; there are: jobs" in result.output) == (1, True)
    result = call("status", "--lake", str(tmp_path / "nowhere"))
    assert (result.exit_code, "is not a lake" in result.output) == (1, True)


def test_status_tells_tables_and_what_is_left(lake: Lake, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    asyncio.run(live(journals / "edge-1", 1, 10))
    asyncio.run(live(journals / "edge-2", 2, 10))
    rows = rows_of(journals)
    position = rows.filter(pa.compute.equal(rows["device"], "edge-1")).to_pylist()[-1]
    open_rows = pa.Table.from_pylist([position | {"kind": "position"}], rows.schema)
    put(lake, "_open", open_rows, Batch("s", 7), "log")
    commit(lake, Batch("s", 7))
    result = call("status", "--lake", str(lake.path), "--journals", str(journals), "--json")
    told = json.loads(result.output)
    assert told["batch"] == 7
    (table,) = told["tables"]
    assert (table["table"], table["rows"], table["files"]) == ("jobs", 8, 1)
    one, other = told["logs"]
    assert (one["device"], one["left_bytes"], one["lsn"]) == ("edge-1", 0, position["lsn"])
    assert (other["device"], other["lsn"]) == ("edge-2", None)
    segments = sum(path.stat().st_size for path in (journals / "edge-2").rglob("*.log"))
    assert other["left_bytes"] == segments
    text = call("status", "--lake", str(lake.path), "--journals", str(journals)).output
    assert "edge-2" in text
    assert "never" in text


def test_run_refuses_what_cannot_be_meant_before_it_starts_java(tmp_path: Path) -> None:
    common = ["--journals", str(tmp_path), "--lake", str(tmp_path / "lake")]
    result = call("run", "rollup_our", *common)
    assert (result.exit_code, "no derived table 'rollup_our'" in result.output) == (2, True)
    result = call("run", *common, "--max-bytes", "lots")
    assert (result.exit_code, "is no size" in result.output) == (2, True)
    result = call("run", "--journals", str(tmp_path / "x"), "--lake", str(tmp_path / "lake"))
    assert (result.exit_code, "is no directory" in result.output) == (2, True)
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer():
        result = call("run", *common)
    assert (result.exit_code, "writes to this lake" in result.output) == (1, True)


# -- the checkpoint -------------------------------------------------------------------------------

STREAM = "7d4f3f0e-6f1c-4a8c-9a55-0d3a7c3d2b10"


def noted(number: int, what: str = "offsets") -> str:
    """Return what Spark writes of a batch, more or less."""
    return f'v1\n{{"{what}":{number}}}'


def note(lake: Lake, planned: int, ran: int, offsets: str = "offsets") -> None:
    path = lake.checkpoint
    for name, last in (("offsets", planned), ("commits", ran)):
        (path / name).mkdir(parents=True, exist_ok=True)
        for number in range(last + 1):
            (path / name / str(number)).write_text(noted(number, offsets))
    (path / "metadata").write_text(json.dumps({"id": STREAM}))


@pytest.mark.parametrize(("planned", "ran"), [(2, 2), (2, 1), (3, 2)])
def test_a_checkpoint_as_a_kill_leaves_it_is_gone_on_with(
    lake: Lake, planned: int, ran: int
) -> None:
    commit(lake, Batch(STREAM, 2, noted(2)))
    note(lake, planned, ran)
    checkpoint.check(lake)


@pytest.mark.parametrize(
    ("planned", "ran", "offsets", "problem"),
    [
        (3, 3, "offsets", "has run batch 3, the tables hold those up to 2"),
        (1, 1, "offsets", "has run batch 1, the tables hold those up to 2 already"),
        (0, 0, "offsets", "has run batch 0"),
        (2, 1, "others", "plans other records for batch 2"),
    ],
)
def test_a_checkpoint_or_lake_from_a_backup_is_refused_and_can_be_made_anew(
    lake: Lake, planned: int, ran: int, offsets: str, problem: str
) -> None:
    commit(lake, Batch(STREAM, 2, noted(2)))
    note(lake, planned, ran, offsets)
    with pytest.raises(CheckpointMismatch, match=rf"{problem}.*--restore-checkpoint"):
        checkpoint.check(lake)
    checkpoint.restore(lake)
    checkpoint.check(lake)
    assert checkpoint.read_checkpoint(lake.checkpoint) == (STREAM, 2, 2)
    assert checkpoint.batch_of(lake, 2) == Batch(STREAM, 2, noted(2))


@pytest.mark.parametrize(
    ("name", "number"), [("offsets", 3), ("commits", 2)], ids=["planned", "ran"]
)
@pytest.mark.parametrize("left", ["", "\0\0\0\0", 'v1\n{"batch'])
def test_a_checkpoint_that_lost_bytes_with_the_power_is_refused_and_can_be_made_anew(
    lake: Lake, name: str, number: int, left: str
) -> None:
    """Spark does not wait for the disk with what it notes; the tables' commits do."""
    commit(lake, Batch(STREAM, 2, noted(2)))
    note(lake, 3, 2)
    checkpoint.check(lake)
    (lake.checkpoint / name / str(number)).write_text(left)
    with pytest.raises(
        CheckpointMismatch, match=rf"{name}/{number} is not whole.*--restore-checkpoint"
    ):
        checkpoint.check(lake)
    checkpoint.restore(lake)
    checkpoint.check(lake)


def test_a_log_of_which_only_damage_was_read_has_no_position(lake: Lake, tmp_path: Path) -> None:
    """Such as one that a newer taskq wrote: its row tells neither a record nor a time."""
    made = MadeLog(tmp_path / "journals" / "edge-1")
    made.enqueue(3)
    names = ("device", "log_id", "kind")
    columns = [*((name, pa.string()) for name in names)]
    columns += [(name, LONG) for name in ("branch", "lsn", "ts_ns")]
    row = dict.fromkeys(names) | {"log_id": str(made.log_id), "kind": "position"}
    unknown = row | {"branch": 0, "lsn": None, "ts_ns": None}
    put(lake, "_open", pa.Table.from_pylist([unknown], pa.schema(columns)), part="log")
    (progress,) = log_progress(lake, tmp_path / "journals")
    assert (progress.device, progress.position) == ("edge-1", None)
    assert progress.left_bytes > 0
    assert not log_progress(lake, None)


def test_a_checkpoint_that_was_removed_is_told(lake: Lake) -> None:
    checkpoint.check(lake)
    commit(lake, Batch(STREAM, 2, noted(2)))
    with pytest.raises(CheckpointMismatch, match=r"is missing, while the tables hold .* batch 2"):
        checkpoint.check(lake)
    note(lake, 2, 2)
    (lake.checkpoint / "metadata").write_text('{"id": "another"}')
    with pytest.raises(CheckpointMismatch, match="metadata does not read"):
        checkpoint.check(lake)
    (lake.checkpoint / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000001"}')
    with pytest.raises(CheckpointMismatch, match="not the one that the tables were filled from"):
        checkpoint.check(lake)


def test_a_checkpoint_of_tables_that_are_gone_is_told(lake: Lake) -> None:
    note(lake, 0, -1)
    checkpoint.check(lake)
    note(lake, 4, 4)
    with pytest.raises(CheckpointMismatch, match="has run batch 4, the tables hold none"):
        checkpoint.check(lake)
    checkpoint.restore(lake)
    assert checkpoint.read_checkpoint(lake.checkpoint) is None
