import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from taskq.cli.main import main
from taskq_plugins.fleet.places import START
from taskq_plugins.spark.errors import LakeBusy, LakeConflict, LakeDamaged, LakeDiskError, LakeError
from taskq_plugins.spark.lake import store
from taskq_plugins.spark.lake.files import DataFile
from taskq_plugins.spark.lake.store import BASE, SMALL_FILES_MAX, Lake, LakeWriter
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog
from tests.pipeline.kit import NOON, SECOND, fill, job, put, run_here

DAYS = (date(2026, 5, 1), date(2026, 5, 2))
SCHEMA = pa.schema([
    ("job", pa.int64()),
    ("headers", pa.map_(pa.string(), pa.string())),
    ("date", pa.date32()),
    ("is_over", pa.bool_()),
])  # fmt: skip


def write(
    writer: LakeWriter, rows: list[int], day: date | None = DAYS[0], *, is_over: bool = True
) -> list[DataFile]:
    plain = {"headers": [("a", "b")], "date": day, "is_over": is_over}
    return writer.write(
        "jobs", pa.Table.from_pylist([plain | {"job": row} for row in rows], SCHEMA)
    )


def append(writer: LakeWriter, rows: list[int], number: int | None = None, **where: Any) -> None:
    writer.commit("jobs", write(writer, rows, **where), (), SCHEMA, number)


def jobs(lake: Lake) -> list[int]:
    rows: list[int] = lake.dataset("jobs").to_table().sort_by("job")["job"].to_pylist()
    return rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def test_a_batch_is_committed_once_however_often_it_is_run(lake: Lake) -> None:
    with lake.writer() as writer:
        for row, number in ((1, 0), (1, 0), (2, 1)):
            append(writer, [row], number)
    with Lake.open(lake.path).writer() as writer:
        append(writer, [2], 1)
        writer.vacuum("jobs")
        DeltaTable(f"{lake.path}/jobs").create_checkpoint()
        append(writer, [2], 1)
        version = lake.delta("jobs").version()
        writer.commit("jobs", ())
    assert jobs(lake) == [1, 2]
    assert (lake.batch("jobs"), lake.delta("jobs").version()) == (1, version)


def test_changes_lists_files_added_and_removed_since_a_version(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1], 0)
        append(writer, [2], 1, is_over=False)
        version = lake.delta("jobs").version()
        gone = [file for file in lake.files("jobs") if not file.is_over]
        writer.commit("jobs", write(writer, [2, 3]), gone, SCHEMA, 2)
    changes = lake.changes("jobs", version)
    assert changes is not None
    assert [[file.ranges["job"] for file in files] for files in changes] == [[(2, 3)], [(2, 2)]]
    (Path(lake.path) / "jobs" / gone[0].path).unlink()
    assert lake.changes("jobs", version) is None
    assert lake.changes("jobs", 99) is None


def test_a_second_writer_of_a_lake_is_refused_with_the_name_of_the_first(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
        with pytest.raises(LakeBusy, match=f"process {os.getpid()} .*writes to this lake") as shown:
            lake.writer().__enter__()
        assert f"process {os.getpid()} " in str(shown.value)
    program = (
        "import sys; from taskq_plugins.spark.lake.store import Lake\n"
        "with Lake.open(sys.argv[1]).writer(): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, lake.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(LakeBusy, match=f"process {other.pid} "):
            lake.writer().__enter__()
        other.kill()
    with lake.writer():
        pass


def test_a_second_writer_changes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with lake.writer() as writer:
        append(writer, [1], 0)
        opened = lake.delta("jobs")
        other = Lake(lake.path)
        assert other.delta("jobs").version() == opened.version()
        new = write(writer, [3])
        second = type(writer)(other)
        real = other.delta("jobs")
        append(writer, [2], 1)
        monkeypatch.setattr(other, "delta", lambda _: real)
        with pytest.raises(LakeConflict, match="Nothing was committed"):
            second.commit("jobs", new, (), SCHEMA, 1)
    assert jobs(Lake.open(lake.path)) == [1, 2]


def test_a_full_disk_leaves_the_last_batch(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with lake.writer() as writer:
        append(writer, [1], 0)

        def refuse(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "fsync", refuse)
            with pytest.raises(LakeDiskError, match=r"No space left.*the batch before stands"):
                append(writer, [2], 1)
        assert jobs(Lake.open(lake.path)) == [1]
        append(writer, [2], 1)
    assert jobs(lake) == [1, 2]


def test_files_of_a_table_are_synced_before_the_next_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power takes no version of a table whose followers last, and no file of it."""
    synced: set[tuple[int, int]] = set()

    def note(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.add((status.st_ino, status.st_mtime_ns))

    monkeypatch.setattr(os, "fsync", note)

    def check() -> None:
        root = Path(lake.path) / "jobs"
        named = [root / file.path for file in lake.files("jobs")]
        paths = {root.parent, *named, *(root / "_delta_log").iterdir()}
        paths |= {folder for path in named for folder in path.relative_to(lake.path).parents}
        for path in {Path(lake.path) / path for path in paths}:
            status = path.stat()
            assert (status.st_ino, status.st_mtime_ns) in synced, path

    with lake.writer() as writer:
        for number in range(SMALL_FILES_MAX):  # some checkpoints among them
            append(writer, [number], number, day=DAYS[number % 2], is_over=number % 3 > 0)
            check()
        append(writer, [99], SMALL_FILES_MAX)
        writer.drop_days("jobs", str(DAYS[1]))
        check()
        before = jobs(lake)
        monkeypatch.setattr(store, "SMALL_FILES_MAX", 2)
        monkeypatch.setattr(store, "OPEN_BYTES", 2)
        still_open = [file.path for file in lake.files("jobs") if not file.is_over]
        writer.upkeep(vacuum=False)
        check()
        assert [file.path for file in lake.files("jobs") if not file.is_over] == still_open
    assert len(lake.files("jobs")) < SMALL_FILES_MAX // 2
    assert jobs(lake) == before


def test_a_table_of_another_version_is_named_with_what_it_lacks(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
        wider = SCHEMA.append(pa.field("new", pa.int64()))
        with pytest.raises(LakeError, match="without new: fill a new lake"):
            writer.commit("jobs", write(writer, [2]), (), wider)


def test_damage_in_a_lake_is_reported_with_its_file(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
    (name,) = lake.paths("jobs")
    file = Path(name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(LakeDamaged, match=rf"{file.name}: has {len(whole) - 1} bytes, the table"):
        lake.dataset("jobs")
    file.unlink()
    with pytest.raises(LakeDamaged, match=rf"{file.name}: is missing, although"):
        lake.paths("jobs")
    (Path(lake.path) / "jobs/_delta_log/00000000000000000001.json").write_bytes(b"{")
    with pytest.raises(LakeDamaged, match="does not read"):
        Lake.open(lake.path).dataset("jobs")


@pytest.mark.parametrize("path", ["/etc/passwd", "../far/x", "date=1/../../far/x"])
def test_a_table_names_no_file_outside_of_it(lake: Lake, path: str) -> None:
    with lake.writer() as writer:
        forged = write(writer, [1])[0]._replace(path=path)
        writer.commit("jobs", [forged], (), SCHEMA)
    with pytest.raises(LakeDamaged, match="is no path of a file in the table"):
        lake.dataset("jobs")


def test_rows_without_a_moment_have_no_day(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1], day=None)
        append(writer, [2])
    rows: list[dict[str, Any]] = lake.dataset("jobs").to_table(columns=["job", "date"]).to_pylist()
    assert sorted((row["job"], row["date"] is None) for row in rows) == [(1, True), (2, False)]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


@pytest.fixture
def lake_asked(tmp_path: Path) -> Lake:
    rows = [
        job(number, job_id=f"x-{number}", state="succeeded" if number % 3 else "dead",
            settled_at=datetime.fromtimestamp(NOON // SECOND + number // 4 * 3_600, UTC),
            headers=[("a", "b")], payload=b"\xff\x00" if number else b"{}")
        for number in range(8)
    ]  # fmt: skip
    return fill(tmp_path / "lake", rows)


def ask(lake_asked: Lake, query: str, *words: object) -> Result:
    return taskq("sql", "--lake", lake_asked.path, query, *words)


def test_a_lake_is_asked_as_a_log_is(lake_asked: Lake) -> None:
    query = "SELECT job_id, state, settled_at, row_number() OVER () AS n FROM jobs"
    head, *rows = ask(lake_asked, f"{query} WHERE state = 'dead'").output.splitlines()
    assert head.split() == ["job_id", "state", "settled_at", "n"]
    assert rows[0].split() == ["x-0", "dead", "2024-05-01", "12:00:00", "1"]
    assert [row.split()[0] for row in rows] == ["x-0", "x-3", "x-6"]
    assert (
        ask(lake_asked, "DESCRIBE rows").exit_code
        == ask(lake_asked, "FROM '/etc/passwd'").exit_code
        == 2
    )
    named = ask(lake_asked, "FROM job")
    assert (named.exit_code, "The tables are: jobs" in named.output) == (2, True)
    query = "SELECT settled_at, headers, payload, payload_text FROM jobs LIMIT 2"
    shown = ask(lake_asked, query, "--json")
    noon = {"settled_at": "2024-05-01T12:00:00+00:00", "headers": {"a": "b"}}
    assert json.loads(shown.output) == [
        noon | {"payload": "{}", "payload_text": "{}"},
        noon | {"payload": {"base64": "/wA="}, "payload_text": None},
    ]
    bars = ask(lake_asked, "SELECT hour(settled_at), bar(count(*), 0, 4, 8) FROM jobs GROUP BY ALL")
    assert bars.output.count("████████") == 2, "a picture is SQL, too"


def test_status_shows_tables_and_unread_records(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    MadeLog(journals / "edge-1").enqueue(5)
    run_here(journals, tmp_path / "lake")
    MadeLog(journals / "edge-2").enqueue(7)
    lake_asked = Lake.open(tmp_path / "lake")
    lsns = lake_asked.dataset("records").to_table(columns=["lsn"])["lsn"].to_pylist()
    words = ("status", "--lake", lake_asked.path, "--journals", str(journals))
    shown = json.loads(call(*words, "--json").output)
    assert shown["batch"] == 0
    tables = {table["table"]: table["rows"] for table in shown["tables"]}
    assert set(tables) == {"records", "jobs", "attempts", "steps"}
    assert tables["records"] == len(lsns)
    item, other = shown["logs"]
    assert (item["device"], item["lsn"], item["left_bytes"]) == ("edge-1", max(lsns), 0)
    assert (other["device"], other["lsn"]) == ("edge-2", None)
    sizes = [path.stat().st_size - START for path in (journals / "edge-2").rglob("*.log")]
    assert other["left_bytes"] == sum(sizes)
    text = call(*words).output
    assert "edge-2" in text
    assert "never" in text


def test_run_refuses_what_cannot_be_meant_before_it_starts_java(tmp_path: Path) -> None:
    common = ["--journals", str(tmp_path), "--lake", str(tmp_path / "lake")]
    result = call("run", *common, "--max-bytes", "lots")
    assert (result.exit_code, "is no size" in result.output) == (2, True)
    result = call("run", "--journals", str(tmp_path / "x"), "--lake", str(tmp_path / "lake"))
    assert (result.exit_code, "is no directory" in result.output) == (2, True)
    lake_asked = Lake.open(tmp_path / "lake", create=True)
    with lake_asked.writer():
        result = call("run", *common)
    assert (result.exit_code, "writes to this lake" in result.output) == (1, True)


@pytest.mark.parametrize("numbers", [(2, 2, 2, 2, 3), (4, 2, 2, 2, 2), (3, 2, 3, 2, 2)])
def test_tables_set_back_one_by_one_are_refused(tmp_path: Path, numbers: list[int]) -> None:
    lake_asked = Lake.open(tmp_path / "other", create=True)
    rows = pa.table({"job": [1], "part": ["job"]})
    for table, number in zip(BASE, numbers, strict=True):
        put(lake_asked, table, rows, number)
    with pytest.raises(LakeDamaged, match=f"other batches each .records {numbers[0]}, attempts"):
        lake_asked.reached()
