from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq_plugins.fleet.inventory import START
from taskq_plugins.spark.lake.errors import LakeDamaged
from taskq_plugins.spark.lake.store import BASE, Lake
from tests.cli.helpers import taskq, taskq_json
from tests.pipeline.lakes import add_records, fold_here, put
from tests.pipeline.rowmaking import live, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

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


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    result = Lake.open(tmp_path / "lake", create=True)
    put(result, "jobs", pa.Table.from_pylist(JOBS, SCHEMA))
    return result


def ask(lake: Lake, query: str, *words: object) -> Result:
    return taskq("sql", "--lake", lake.path, query, *words)


def test_a_lake_is_asked_as_a_log_is(lake: Lake) -> None:
    query = "SELECT job_id, state, settled_at, row_number() OVER () AS n FROM jobs"
    head, *rows = ask(lake, f"{query} WHERE state = 'dead'").output.splitlines()
    assert head.split() == ["job_id", "state", "settled_at", "n"]
    assert rows[0].split() == ["x-0", "dead", "2026-05-01", "12:00:00", "1"]
    assert [row.split()[0] for row in rows] == ["x-0", "x-3", "x-6"]
    assert ask(lake, "DESCRIBE rows").exit_code == ask(lake, "FROM '/etc/passwd'").exit_code == 2
    named = ask(lake, "FROM job")
    assert (named.exit_code, "The tables are: jobs" in named.output) == (2, True)
    bars = ask(lake, "SELECT hour(settled_at), bar(count(*), 0, 4, 8) FROM jobs GROUP BY ALL")
    assert bars.output.count("████████") == 2, "a picture is SQL, too"


def test_as_json_there_are_times_maps_and_bytes(lake: Lake) -> None:
    query = "SELECT settled_at, headers, payload FROM jobs LIMIT 2"
    assert json.loads(ask(lake, query, "--json").output) == [
        {"settled_at": "2026-05-01T12:00:00+00:00", "headers": {"a": "b"}, "payload": "{}"},
        {
            "settled_at": "2026-05-01T12:00:00+00:00",
            "headers": {"a": "b"},
            "payload": {"base64": "/wA="},
        },
    ]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("stat = 1", "The columns of jobs are: job_id, device"),
        ("1 = 1) UNION SELECT (1", "--where"),
        ("true); SET threads = 1; SELECT (1", "--where"),
        ("true) OR (true", "--where"),
        ("job_id IN (SELECT * FROM '/etc/passwd')", "--where"),
    ],
)
def test_a_condition_that_is_more_than_one_is_refused(lake: Lake, where: str, message: str) -> None:
    result = call("erase", "--where", where, "--lake", str(lake.path))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_lake_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = call("status", "--lake", str(tmp_path / "nowhere"))
    assert (result.exit_code, "is not a lake" in result.output) == (1, True)
    result = taskq("sql", "--lake", tmp_path, "FROM jobs")
    assert (result.exit_code, "is not a lake" in result.output) == (1, True)


def test_status_tells_tables_and_what_is_left(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    asyncio.run(live(journals / "edge-1", 1, 10))
    asyncio.run(live(journals / "edge-2", 2, 10))
    rows = rows_of(journals)
    lake = Lake.open(tmp_path / "lake", create=True)
    first = rows.filter(pa.compute.equal(rows["device"], "edge-1"))
    add_records(lake, first)
    fold_here(lake)
    with lake.writer() as writer:
        writer.note()
    words = ("status", "--lake", lake.path, "--journals", str(journals))
    shown = json.loads(call(*words, "--json").output)
    assert shown["batch"] == 0
    tables = {table["table"]: table["rows"] for table in shown["tables"]}
    assert set(tables) == {"records", "jobs", "attempts", "steps"}
    assert tables["records"] == len(first)
    item, other = shown["logs"]
    assert (item["device"], item["lsn"]) == ("edge-1", first["lsn"][-1].as_py())
    assert (other["device"], other["lsn"]) == ("edge-2", None)
    sizes = [path.stat().st_size - START for path in (journals / "edge-2").rglob("*.log")]
    assert other["left_bytes"] == sum(sizes)
    text = call(*words).output
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


@pytest.mark.parametrize("numbers", [(2, 2, 2, 2, 3), (4, 2, 2, 2, 2), (3, 2, 3, 2, 2)])
def test_tables_that_were_set_back_one_by_one_are_refused(
    tmp_path: Path, numbers: list[int]
) -> None:
    lake = Lake.open(tmp_path / "other", create=True)
    rows = pa.table({"job": [1], "part": ["job"]})
    for table, number in zip(BASE, numbers, strict=True):
        put(lake, table, rows, number)
    with pytest.raises(LakeDamaged, match=f"other batches each .records {numbers[0]}, attempts"):
        lake.reached()


def test_a_payload_is_asked_for_as_text(tmp_path: Path) -> None:
    """It is JSON for the most part; bytes that are no text are none."""
    lake = Lake.open(tmp_path / "lake", create=True)
    bodies = [b'{"to": "anna", "n": 3}', b"\xff\xfe", None]
    rows = pa.table({"job": [1, 2, 3], "payload": pa.array(bodies, pa.binary())})
    put(lake, "jobs", rows)
    words = ("sql", "--lake", lake.path, "SELECT job, payload_text FROM jobs")
    shown = taskq_json(*words[:3], f"{words[3]} WHERE payload_text ->> '$.to' = 'anna'")
    assert shown == [{"job": 1, "payload_text": '{"to": "anna", "n": 3}'}]
    assert [row["payload_text"] is None for row in taskq_json(*words)] == [False, True, True]
    assert "payload_text" not in Lake.open(lake.path).schema("jobs").names
