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
from taskq_plugins.spark.lake.store import Lake, LakeBatch
from taskq_plugins.spark.run.progress import log_progress, offsets_of, reached
from tests.cli.helpers import taskq, taskq_json
from tests.fleet.made_logs import MadeLog
from tests.pipeline.lakes import fill, put
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


def commit(lake: Lake, batch: LakeBatch, name: str = "jobs") -> None:
    put(lake, name, pa.Table.from_pylist(JOBS, SCHEMA), batch)


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


def test_status_tells_tables_and_what_is_left(lake: Lake, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    asyncio.run(live(journals / "edge-1", 1, 10))
    asyncio.run(live(journals / "edge-2", 2, 10))
    rows = rows_of(journals)
    position = rows.filter(pa.compute.equal(rows["device"], "edge-1")).to_pylist()[-1]
    open_rows = pa.Table.from_pylist([position | {"kind": "position"}], rows.schema)
    put(lake, "_open", open_rows, LakeBatch("s", 7), "log")
    commit(lake, LakeBatch("s", 7))
    result = call("status", "--lake", str(lake.path), "--journals", str(journals), "--json")
    shown = json.loads(result.output)
    assert shown["batch"] == 7
    (table,) = shown["tables"]
    assert (table["table"], table["rows"], table["files"]) == ("jobs", 8, 1)
    item, other = shown["logs"]
    assert (item["device"], item["left_bytes"], item["lsn"]) == ("edge-1", 0, position["lsn"])
    assert (other["device"], other["lsn"]) == ("edge-2", None)
    sizes = [path.stat().st_size - START for path in (journals / "edge-2").rglob("*.log")]
    assert other["left_bytes"] == sum(sizes)
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


# -- how far the tables are ------------------------------------------------------------------------


def stand(lake: Lake, *numbers: int) -> None:
    """Fill the tables up to these batches, in the order in which a batch commits them."""
    for table, number in zip(("records", "attempts", "_open", "jobs"), numbers, strict=False):
        offsets = f'v1\n{{"conf":{{}}}}\n{{"log": {place(number)}}}'
        commit(lake, LakeBatch("s", number, offsets), table)


def place(number: int) -> str:
    return json.dumps({"device": "edge", "segment": 1, "offset": 64, "lsn": number})


@pytest.mark.parametrize("numbers", [(2, 2, 2, 2), (3, 2, 2, 2), (3, 3, 3, 2)])
def test_a_batch_that_some_tables_have_is_gone_on_with(lake: Lake, numbers: list[int]) -> None:
    stand(lake, *numbers)
    there = reached(lake)
    assert (there.stream, there.number, there.offsets["log"].lsn) == ("s", 2, 2)
    begun = there.begun
    assert (begun and offsets_of(begun)["log"].lsn) == (3 if numbers[0] == 3 else None)
    assert there.ends(there.next(there.offsets)) == there.offsets
    assert there.next({}).number == 3


@pytest.mark.parametrize("numbers", [(2, 2, 2, 3), (4, 2, 2, 2), (3, 2, 3, 2)])
def test_tables_that_were_set_back_one_by_one_are_refused(lake: Lake, numbers: list[int]) -> None:
    stand(lake, *numbers)
    with pytest.raises(LakeDamaged, match=f"other batches each .records {numbers[0]}, attempts"):
        reached(lake)


def test_tables_of_two_streams_or_without_any_are_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "new", create=True)
    assert reached(lake)[1:] == (-1, {}, None, 0)
    stand(lake, 0)
    assert reached(lake).begun == lake.batch("records")
    stand(lake, 0, 0, 0, 0)
    commit(lake, LakeBatch("another", 1), "records")
    with pytest.raises(LakeDamaged, match="records 1, attempts 0"):
        reached(lake)
    fill(tmp_path / "strange", jobs=[{}])
    with pytest.raises(LakeDamaged, match="jobs -1"):
        reached(Lake.open(tmp_path / "strange"))


def test_a_log_of_which_only_damage_was_read_has_no_position(lake: Lake, tmp_path: Path) -> None:
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
