"""``taskq pipeline erase`` and ``run --keep``: what goes from a lake, and what stays."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import ParquetFile
from pyspark.sql import SparkSession

from taskq import Put, TaskLog
from taskq.core.records import Kind
from taskq.engine import FailureKind
from taskq.errors import TaskqError
from taskq.log.format import codec
from taskq_plugins.spark.lake.erase import chosen_jobs, count_rows, erase_jobs
from taskq_plugins.spark.lake.store import STALE, Lake, LakeWriter
from taskq_plugins.spark.run.derived import Outside, refresh_tables
from tests.arrow.rows_of_log import save
from tests.cli.helpers import taskq, taskq_json
from tests.effort import grows, some
from tests.fleet.made_logs import MadeLog, claimed, succeeded
from tests.log.mix import History
from tests.pipeline import kit
from tests.pipeline.kit import Follower, do_steps, run_here

CARD = "card-4929-1111-2222"


async def worked(path: Path) -> list[str]:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        ids = await log.put_many([
            Put(
                payload=f"{CARD} {number}".encode(), key=f"{CARD}-{number}".encode(),
                headers={"who": CARD}, attempts=1, priority=9 - number,
            )
            for number in range(4)
        ])  # fmt: skip
        ids += await log.put_many([Put(payload=b"plain", key=b"plain")])
        for number, delivery in enumerate(await log.claim(3)):
            if number:
                await log.nack(delivery, f"ValueError: {CARD} declined")
            else:
                await log.ack(delivery, CARD.encode())
        await log.dead.purge(ids[2])
        return ids


def files_with(lake: Lake, text: str) -> list[str]:
    """Search every byte of the lake, and every value: pages are compressed."""
    result = [path for path in Path(lake.path).rglob("*") if path.is_file()]
    tables = [path for path in result if path.suffix == ".parquet"]
    plain = [str(path) for path in result if text.encode() in path.read_bytes()]
    return plain + [
        str(table) for table in tables if text in str(ParquetFile(table).read().to_pylist())
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    asyncio.run(worked(tmp_path / "hub" / "edge-1"))
    run_here(tmp_path / "hub", tmp_path / "lake", max_bytes=1_500)
    return Lake.open(tmp_path / "lake")


def erase(lake: Lake, *words: object) -> Any:
    return taskq("pipeline", "erase", "--lake", lake.path, *words)


async def goes_on(path: Path, **options: Any) -> None:
    """Requeue a dead letter, seal the segment and compact: both write payloads again."""
    async with TaskLog.open(path, durability="os", upkeep=False, segment_bytes=65_536) as log:
        for item in await log.dead.list():
            await log.dead.requeue(item.job_id)
        for _ in range(3):
            await log.put_many([Put(payload=bytes(40_000))])
        await log.compact(**options)


async def purged(path: Path, job_ids: list[str]) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False, segment_bytes=65_536) as log:
        for job_id in job_ids:
            with contextlib.suppress(TaskqError):
                await log.cancel(job_id)
        for _ in range(3):
            await log.put_many([Put(payload=bytes(40_000))])
        await log.compact(keep=0)
        await log.compact(keep=0)


@grows
@pytest.mark.usefixtures("no_java")
def test_erased_values_are_in_no_byte_of_lake_or_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requeues and compaction write it again; and 40 increments later."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # it is not about that
    hub, edge = tmp_path / "hub", tmp_path / "hub" / "edge-1"
    ids = asyncio.run(worked(edge))[:4]
    words = ("run", "--journals", hub, "--lake", tmp_path / "lake")
    assert taskq("pipeline", *words).exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    assert files_with(lake, CARD)
    shown = erase(lake, *(word for item in ids for word in ("--job", item)), "--yes")
    what = "erased payloads, results, reasons, keys and headers of 4 jobs, older versions included"
    assert what in shown.stdout
    assert "what remains:" in shown.stdout
    rows = {row["job_id"]: row for row in lake.dataset("jobs").to_table().to_pylist()}
    assert {row["state"] for row in rows.values()} == {"succeeded", "dead", "ready"}
    assert rows[ids[1]]["reason"] is None, "it may quote the payload"
    assert [row["payload"] for row in rows.values() if row["payload"]] == [b"plain"]
    assert "  edge-1: 3 jobs\n" in shown.stdout
    assert files_with(lake, CARD) == []
    asyncio.run(goes_on(edge))
    assert any(CARD.encode() in path.read_bytes() for path in edge.rglob("*.log"))
    assert taskq("pipeline", *words).exit_code == 0
    assert files_with(Lake.open(lake.path), CARD) == []
    asyncio.run(purged(edge, ids))
    assert not [path for path in edge.rglob("*.log") if CARD.encode() in path.read_bytes()]
    other = MadeLog(hub / "edge-2")
    for _ in range(some(3, of=40)):
        other.enqueue(1)
        kit.run(None, hub, tmp_path / "lake")
    lake = Lake.open(lake.path)
    assert files_with(lake, CARD) == []
    assert sorted(lake.dataset("erased").to_table()["job_id"].to_pylist()) == sorted(ids)


def test_an_erasure_that_is_cut_short_anywhere_is_whole_when_run_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(worked(tmp_path / "hub" / "edge-2"))
    run_here(tmp_path / "hub", lake.path)
    kit.put(lake, "duplicates", pa.table({"queue": ["q"], "key": [f"{CARD}-1".encode()]}), 1)
    kind = {"pattern": [FailureKind.pattern_of(f"ValueError: {CARD} declined")]}
    kit.put(lake, "failures", pa.table(kind | {"example_reason": [CARD]}), 1)
    ids = chosen_jobs(lake, [], "true", purged=True)
    real = LakeWriter.commit
    for turn in range(20):
        calls = iter(range(turn, -1, -1))

        def killed(*args: Any, calls: Iterator[int] = calls, **options: Any) -> None:
            if not next(calls):
                raise KeyboardInterrupt
            real(*args, **options)

        with monkeypatch.context() as crash, contextlib.suppress(KeyboardInterrupt):
            crash.setattr(LakeWriter, "commit", killed)
            with lake.writer() as writer:
                erase_jobs(writer, ids)
            break
    assert turn > len(("duplicates", "failures", "records", "_open", "attempts", "jobs"))
    assert files_with(lake, CARD) == []
    stale = {lake.batch(table, app) for table in ("duplicates", "failures") for app in STALE}
    assert stale == {-1}, "the next run makes them anew, from all rows"


def test_tables_do_not_depend_on_when_jobs_were_erased(tmp_path: Path) -> None:
    erased_at_each_moment(tmp_path, lambda _: None)


@pytest.mark.slow
def test_nor_do_derived_tables(tmp_path: Path, spark: SparkSession) -> None:
    def refresh(writer: LakeWriter) -> None:
        refresh_tables(spark, writer, Outside())

    erased_at_each_moment(tmp_path, refresh)


@pytest.mark.slow
def test_failures_of_old_days_go_when_nothing_is_new(tmp_path: Path, spark: SparkSession) -> None:
    edge, hub, lake = MadeLog(tmp_path / "hub" / "edge"), tmp_path / "hub", tmp_path / "lake"
    edge.enqueue(2)  # of the year 2023
    failed = codec.encode_back(Kind.RETRIED, 0, 1, 1, 3, 0, b"ValueError: no", 4)
    edge.frame(claimed(1), failed, claimed(1, attempt=2), succeeded(1, 5, 6, attempt=2))
    kit.run(spark, hub, lake)
    rows = kit.table_rows(lake, "failures", "rollup_hour")
    assert all(rows.values())
    kit.run(spark, hub, lake, keep_days={"jobs": 30, "attempts": 30})
    assert kit.table_rows(lake, *rows) == rows | {"failures": []}
    edge.enqueue(1)
    kit.run(spark, hub, lake)  # without the days: the rows of an earlier run are gone all the same
    assert kit.table_rows(lake, *rows) == rows | {"failures": []}


def erased_at_each_moment(tmp_path: Path, refresh: Callable[[LakeWriter], None]) -> None:
    early, late = tmp_path / "early", tmp_path / "hub"
    asyncio.run(do_steps(late / "orders", 4))
    for device in ("edge-2", "edge-3", "edge-4", "edge-5"):  # equal keys, payloads and reasons
        asyncio.run(worked(late / device))
    edge = History(7, small=True)
    edge.run(20)
    save(edge.world.machine, late / "edge-1")
    shutil.copytree(late, early)
    edge.run(20)
    edge.compact()
    shutil.rmtree(late / "edge-1")
    save(edge.world.machine, late / "edge-1")
    history = Follower(late).drain().records["history"]
    assert history.null_count < len(history)
    ids = sorted(set(Follower(early).drain().records["job_id"].drop_null().to_pylist()))[::2]
    for moment in range(3):
        lake = Lake.open(tmp_path / str(moment), create=True)
        for number, hub in enumerate((early, late, late)):
            if number == moment:
                with lake.writer() as writer:
                    erase_jobs(writer, ids)
            assert not run_here(hub, lake.path).problems
            with lake.writer() as writer:
                refresh(writer)
        names = [name for name in lake.tables() if name != "erased"]
        made = kit.table_rows(tmp_path / str(moment), *names)
        assert made == kit.table_rows(tmp_path / "0", *names)
        assert lake.dataset("erased").count_rows() == len(ids)
        assert all(sum(item) == 0 for item in (erased[1:] for erased in count_rows(lake, ids)))


def test_an_erase_without_consent_reports_and_changes_nothing(lake: Lake) -> None:
    before = lake.holdings()
    shown = taskq_json("pipeline", "erase", "--lake", lake.path, "--where", "state = 'dead'")
    assert (shown["dry_run"], shown["jobs"]) == (True, 1)
    assert shown["tables"]["jobs"] == {"rows": 1, "files": 1}
    assert lake.holdings() == before
    assert erase(lake).exit_code == 2
    assert erase(lake, "--where", "stat = 1").exit_code == 2


@pytest.mark.usefixtures("no_java")
def test_old_days_go_when_nothing_is_new(tmp_path: Path) -> None:
    """And so do files that no version names: the clock decides, not what is in the logs."""
    edge = MadeLog(tmp_path / "hub" / "edge")  # of the year 2023
    edge.enqueue(2)
    edge.frame(claimed(1), succeeded(1, 3, 4))
    words = ("run", "--journals", tmp_path / "hub", "--lake", tmp_path / "lake")
    assert taskq("pipeline", *words).exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    left = Path(lake.path) / "records" / "left.parquet"
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    assert lake.dataset("records").count_rows() == 4
    shown = taskq("pipeline", *words, "--keep", "30d")
    assert "nothing new" in shown.stdout
    assert not left.exists()
    counts = [lake.dataset(table).count_rows() for table in ("records", "jobs", "attempts")]
    assert counts == [0, 1, 0], "what waits may still change"
    edge.enqueue(1)
    assert taskq("pipeline", *words, "--keep", "jobs=30d").exit_code == 0
    assert lake.dataset("jobs").count_rows() == 2


def test_what_the_log_has_purged_is_erased_and_no_more(lake: Lake, tmp_path: Path) -> None:
    async def purge() -> None:
        async with TaskLog.open(tmp_path / "hub" / "edge-1", durability="os") as log:
            for item in await log.dead.list():
                await log.dead.purge(item.job_id)

    asyncio.run(purge())
    run_here(tmp_path / "hub", lake.path)
    records = lake.dataset("records").to_table().to_pylist()
    purged = {row["job_id"] for row in records if row["kind"] == "purged"}
    assert f"headers of {len(purged)} job" in erase(lake, "--purged").stdout
    shown = erase(lake, "--purged", "--yes", "--json")
    assert shown.exit_code == 0, shown.output
    tables = json.loads(shown.stdout)["tables"]
    assert tables["records"]["rows"] >= len(purged) > 0
    assert tables["jobs"]["rows"] == 0
    records = lake.dataset("records").to_table().to_pylist()
    for row in records:
        assert (row["value"] is None) or row["job_id"] not in purged
    kept = {row["job_id"] for row in records if row["kind"] == "enqueued" and row["value"]}
    assert kept == {row["job_id"] for row in lake.dataset("jobs").to_table().to_pylist()}
    again = json.loads(erase(lake, "--purged", "--yes", "--json").stdout)
    assert {item["rows"] for item in again["tables"].values()} == {0}, "it is all erased"
