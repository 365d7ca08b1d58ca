from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from taskq import Put, TaskLog
from taskq_plugins.spark import read_table
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.store import DERIVED, Lake, LakeWriter
from taskq_plugins.spark.run import batch, derived
from taskq_plugins.spark.run.derived import refresh_tables
from taskq_plugins.spark.run.increment import RunOptions, run
from taskq_plugins.spark.run.progress import log_progress
from taskq_plugins.spark.source.snapshot import look
from tests.pipeline.lakes import fold_rows
from tests.pipeline.rowmaking import cut, do_steps, last_lsns, live, rows_of
from tests.pipeline.twolakes import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
Row = dict[str, Any]
HOURS = 30
HOUR_NS = 3_600 * 1_000_000_000


class Logs(NamedTuple):
    """Two logs, and their rows in three parts: before, during and after a compaction of one."""

    root: Path
    parts: tuple[pa.Table, pa.Table, pa.Table]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    root = tmp_path_factory.mktemp("journals")
    asyncio.run(live(root / "edge-1", 1, 20))
    asyncio.run(live(root / "edge-2", 2, 8))
    before = rows_of(root)
    asyncio.run(live(root / "edge-1", 3, 0, keep="0s"))
    carried = rows_of(root, last_lsns(before))
    asyncio.run(live(root / "edge-1", 4, 10))
    behind = rows_of(root, last_lsns(before) | last_lsns(carried))
    assert "succeeded" in carried["state"].to_pylist(), "a finished job is carried"
    return Logs(root, (before, carried, later(behind, HOURS)))


def later(rows: pa.Table, hours: int) -> pa.Table:
    shifted = pc.add(rows["ts_ns"], hours * HOUR_NS)
    return rows.set_column(rows.schema.get_field_index("ts_ns"), "ts_ns", shifted)


def in_common(rows: pa.Table) -> pa.Table:
    """Return the rows as if there were three tasks, and both logs had jobs of the same keys."""
    jobs = rows["job"].to_pylist()
    tasks = [None if job is None or job % 3 == 0 else f"app.{job % 3}" for job in jobs]
    keys = [
        key and b"%d" % (job % 5) for job, key in zip(jobs, rows["key"].to_pylist(), strict=True)
    ]
    for name, column in (("task", tasks), ("key", keys)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pa.array(column, rows.schema.types[at]))
    return rows


def refresh(lake: Lake, names: Sequence[str], journals: Path | None = None) -> list[str]:
    options = None if journals is None else RunOptions(journals=journals, max_bytes=2**20)
    sight = None if options is None else look(options.of_source())
    with lake.writer() as writer:
        return refresh_tables(writer, names, sight)


def table(lake: Lake, name: str, *keys: str) -> dict[tuple[object, ...], Row]:
    rows: list[Row] = lake.dataset(name).to_table().to_pylist()
    by_key = {tuple(row[key] for key in keys): row for row in rows}
    assert len(by_key) == len(rows), f"{name} has a row twice"
    return by_key


def base_tables(lake: Lake) -> tuple[dict[tuple[object, ...], Row], ...]:
    return (
        table(lake, "records", "log_id", "branch", "epoch", "lsn", "kind"),
        table(lake, "jobs", "log_id", "branch", "job"),
        table(lake, "attempts", "log_id", "branch", "job", "number", "started_ns"),
    )


@pytest.fixture(scope="module")
def small(logs: Logs, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two batches, cut anywhere."""
    lake = Lake.open(tmp_path_factory.mktemp("small") / "lake", create=True)
    before, carried, behind = logs.parts
    first, second = cut(before, 2)
    fold_rows(lake, first, 0)
    fold_rows(lake, pa.concat_tables([second, carried, behind]), 1)
    return lake


@pytest.fixture(scope="module")
def whole(logs: Logs, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake.open(tmp_path_factory.mktemp("whole") / "lake", create=True)
    fold_rows(lake, pa.concat_tables(logs.parts), 0)
    return lake


def test_small_batches_make_the_tables_that_one_large_one_makes(small: Lake, whole: Lake) -> None:
    for item, other in zip(base_tables(small), base_tables(whole), strict=True):
        assert item == other
    states = {row["state"] for row in base_tables(small)[1].values()}
    assert {"succeeded", "dead", "cancelled", "ready", "scheduled"} <= states


def test_a_batch_in_many_shares_is_one_in_one(
    logs: Logs, whole: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "SHARE_ROWS", 50)
    lake = Lake.open(tmp_path / "lake", create=True)
    for number, part in enumerate(logs.parts):
        fold_rows(lake, part, number)
    assert base_tables(lake) == base_tables(whole)


def test_spark_makes_the_tables_that_are_made_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, and of a restored device; executors read many parts, and fold many shares."""
    from taskq_plugins.spark.run.spark_executor import SparkExecutor  # noqa: PLC0415 - imports pyspark

    given: list[int] = []

    class Counting(SparkExecutor):
        def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
            given.append(len(parts))
            super().each(step, parts)

    source = RunOptions.of_source
    small = {"target_partition_bytes": 3_000}
    monkeypatch.setattr(RunOptions, "of_source", lambda own: source(own).model_copy(update=small))
    monkeypatch.setattr(batch, "SHARE_ROWS", 20)
    root, listener = tmp_path / "hub", mock.Mock()
    lakes = [Lake.open(tmp_path / name, create=True) for name in ("spark", "here")]
    for turn in range(3):
        options = RunOptions(journals=root, max_bytes=2**20, tables=DERIVED if turn == 2 else ())
        if turn == 2:
            shutil.rmtree(root / "edge")
            shutil.copytree(tmp_path / "backup", root / "edge")
        asyncio.run(live(root / "edge", turn, 6))
        if turn == 0:
            asyncio.run(do_steps(root / "orders", 2))
            shutil.copytree(root / "edge", tmp_path / "backup")
        with lakes[0].writer() as writer:
            hands = None if turn == 1 else Counting(spark)
            assert run(writer, options, listener, hands).batches == 1
        with lakes[1].writer() as writer:
            assert run(writer, options, listener).batches == 1
    assert min(given) > 1
    by_spark, here = map(base_tables, lakes)
    assert by_spark == here
    steps = [table(lake, "steps", "log_id", "branch", "job", "place") for lake in lakes]
    assert len(steps[0]) == 9
    assert steps[0] == steps[1]
    assert {branch for _, branch, _ in here[1]} == {0, 1}
    for name in ("rollup_hour", "failures", "duplicates", "breaks"):
        rows, others = (lake.dataset(name).to_table().to_pylist() for lake in lakes)
        assert sorted(rows, key=repr) == sorted(others, key=repr), name
    jobs = read_table(spark, lakes[0].path, "jobs")
    assert jobs.count() == len(here[1])
    assert "date" in jobs.columns
    assert read_table(spark, lakes[0].path, "jobs", version=1).count() < jobs.count()


def test_rollups_of_touched_days_equal_those_of_everything(
    logs: Logs, whole: Lake, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    for number, part in enumerate(logs.parts):
        fold_rows(lake, part, number)
        assert refresh(lake, ["rollup_hour"]) == ["rollup_hour"]
    kept = {file.path for file in lake.data_files("rollup_hour")}
    assert refresh(whole, ["rollup_hour"]) == ["rollup_hour"]
    keys = ("device", "queue", "task", "hour")
    by_hour = table(lake, "rollup_hour", *keys)
    assert by_hour == table(whole, "rollup_hour", *keys)
    assert len({row["date"] for row in by_hour.values()}) > 1
    jobs = table(lake, "jobs", "log_id", "job")
    assert sum(row["enqueued"] for row in by_hour.values()) == len(jobs)
    assert refresh(lake, ["rollup_hour"]) == []
    assert {file.path for file in lake.data_files("rollup_hour")} == kept


def test_tables_that_grew_batch_by_batch_equal_those_made_anew(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 20)
    names = ["rollup_hour", "failures", "duplicates", "device_lag"]
    lake = Lake.open(tmp_path / "lake", create=True)
    before, carried, behind = map(in_common, logs.parts)
    kept = Counter[str]()
    for number, part in enumerate((before, carried, *cut(behind, 2))):
        fold_rows(lake, part, number)
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(lake.path, copy)
        for name in names:
            shutil.rmtree(copy / name, ignore_errors=True)
        anew = Lake.open(copy)
        assert refresh(lake, names) == refresh(anew, names) == names
        for name in names[:3]:
            grown, made = (table(item, name, *KEYS[name]) for item in (lake, anew))
            assert grown == made, (number, name)
            kept[name] += len(made)
        grown, made = (table(item, "device_lag", "log_id") for item in (lake, anew))
        for column in ("waiting", "scheduled", "running", "dead", "oldest_waiting_at"):
            assert [row[column] for row in grown.values()] == [
                made[key][column] for key in grown
            ], (number, column)
    assert min(kept.values()) > 10, "there is something of each"


def test_what_is_kept_of_records_is_of_jobs_that_are_not_over(logs: Logs, small: Lake) -> None:
    kept = small.dataset("_open").to_table(columns=["log_id", "job", "kind"]).to_pylist()
    jobs = small.dataset("jobs").to_table(columns=["log_id", "job", "is_over"]).to_pylist()
    others = {"clock", "position", "told"}
    of_jobs = {(row["log_id"], row["job"]) for row in kept if row["kind"] not in others}
    assert of_jobs == {(row["log_id"], row["job"]) for row in jobs if not row["is_over"]}
    progress = log_progress(small, logs.root)
    assert [(log.device, log.left_bytes) for log in progress] == [("edge-1", 0), ("edge-2", 0)]


def test_a_run_goes_on_where_one_was_killed_before_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, lake = tmp_path / "journals", tmp_path / "lake"
    asyncio.run(filled(root / "edge-1", 3))
    options = RunOptions(journals=root, max_bytes=2**20, tables=())

    def killed(*_args: object, **_options: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as crash, Lake.open(lake, create=True).writer() as writer:
        crash.setattr(LakeWriter, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            run(writer, options, mock.Mock())
    assert (lake / "records").is_dir()
    with Lake.open(lake, create=True).writer() as writer:
        assert run(writer, options, mock.Mock()).records
    assert len(base_tables(Lake.open(lake))[1]) == 3


def test_logs_without_a_record_are_no_error(tmp_path: Path) -> None:
    root = tmp_path / "journals"
    root.mkdir()
    options = RunOptions(journals=root, max_bytes=2**20)
    with Lake.open(tmp_path / "lake", create=True).writer() as writer:
        assert run(writer, options, mock.Mock())[:3] == (0, 0, ())
        asyncio.run(filled(root / "edge-1", 3))
        assert run(writer, options, mock.Mock()).refreshed == DERIVED


def test_a_batch_writes_only_the_files_again_that_hold_jobs_which_it_touches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 50)
    root = tmp_path / "journals"
    lake = Lake.open(tmp_path / "lake", create=True)
    asyncio.run(filled(root / "edge-1", 500))
    fold_rows(lake, first := rows_of(root), 0)
    known = {table: {file.path for file in lake.data_files(table)} for table in ("jobs", "_open")}
    asyncio.run(worked(root / "edge-1", 20))
    fold_rows(lake, rows_of(root, last_lsns(first)), 1)
    for name, paths in known.items():
        gone = paths - {file.path for file in lake.data_files(name)}
        assert len(gone) == (1 if name == "jobs" else 2), "and the one that tells of the logs"
    states = Counter(lake.dataset("jobs").to_table(columns=["state"])["state"].to_pylist())
    assert states == {"ready": 480, "succeeded": 10, "dead": 10}
    dead = [file for file in lake.data_files("jobs") if file.part == "dead"]
    assert sum(file.rows for file in dead) == 10


async def filled(path: Path, jobs: int) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=b"x", attempts=1) for _ in range(jobs)])


async def worked(path: Path, jobs: int) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        for number, delivery in enumerate(await log.claim(jobs)):
            if number % 2:
                await log.nack(delivery, "ValueError: odd")
            else:
                await log.ack(delivery)


async def unused(path: Path, jobs: int) -> None:
    """Write records that concern no job, and jobs that nobody claims."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.pause("mail")
        for _ in range(jobs):
            await log.put(b"x")


def test_a_batch_without_jobs_and_one_without_attempts_leave_tables_that_read(
    tmp_path: Path,
) -> None:
    root = tmp_path / "journals"
    lake = Lake.open(tmp_path / "the lake", create=True)
    asyncio.run(unused(root / "edge-1", 0))
    fold_rows(lake, rows := rows_of(root), 0)
    assert refresh(lake, DERIVED, root) == list(DERIVED)
    assert [lake.dataset(name).count_rows() for name in ("jobs", "attempts")] == [0, 0]
    asyncio.run(unused(root / "edge-1", 2))
    fold_rows(lake, rows_of(root, last_lsns(rows)), 1)
    assert refresh(lake, ["failures", "duplicates"], root) == ["failures", "duplicates"]
    assert lake.dataset("jobs").to_table(columns=["state"])["state"].to_pylist() == ["ready"] * 2
    assert lake.dataset("attempts").count_rows() == 0
    assert {"number", "outcome"} <= set(lake.schema("attempts").names)


def test_failures_and_duplicates_are_computed_again_only_where_something_tells_of_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def counted(name: str) -> Callable[..., pa.Table]:
        real = getattr(derived, name)

        def compute(*given: object) -> pa.Table:
            computed.append(name)
            return real(*given)

        return compute

    names = ["failures", "duplicates"]
    for name in names:
        monkeypatch.setattr(derived, name, counted(name))
    root = tmp_path / "hub"
    lake = Lake.open(tmp_path / "lake", create=True)
    read: dict[str, int] = {}
    asyncio.run(filled(root / "edge-1", 5))
    for number, (live_on, wanted) in enumerate(
        [
            (unused, names),
            (unused, []),
            (worked, ["failures"]),
            (unused, []),
            (unused, ["failures"]),
        ]
    ):
        if number == 4:  # days go: what was made of them is not known any more
            with lake.writer() as writer:
                assert writer.drop_days("attempts", "9999-01-01")
        asyncio.run(live_on(root / "edge-1", 2))
        rows = rows_of(root, read)
        read = last_lsns(rows)
        fold_rows(lake, rows, number)
        computed.clear()
        assert refresh(lake, names, root) == names, "they stand at the batch"
        assert computed == wanted, number
    (row,) = lake.dataset("failures").to_table().to_pylist()
    assert row["failed_attempts"] == 1
