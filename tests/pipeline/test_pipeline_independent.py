"""A lake that Spark filled, against folds that share no code with the pipeline: SQL and pandas."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from taskq import Put, State, TaskLog
from taskq.engine import LogReader
from taskq_plugins.spark import read_table
from taskq_plugins.spark.lake.store import DERIVED, Lake, LakeWriter
from tests.arrow.rows_of_log import save
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.kit import do_steps, listed, live, order_app, table_rows, work, world_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The state after a job's last record; a waiting one is due or not.
_FOLD = """
    SELECT job_id, CASE arg_max(kind, lsn)
        WHEN 'claimed' THEN 'running' WHEN 'enqueued' THEN 'waits' WHEN 'retried' THEN 'waits'
        WHEN 'released' THEN 'waits' WHEN 'requeued' THEN 'waits'
        ELSE arg_max(kind, lsn) END AS state,
        count(*) FILTER (kind = 'claimed') AS attempts
    FROM records WHERE kind IN ('enqueued', 'claimed', 'succeeded', 'retried', 'dead', 'released',
        'cancelled', 'expired', 'requeued', 'purged')
    GROUP BY job_id HAVING arg_max(kind, lsn) <> 'purged' AND bool_or(kind = 'enqueued')
"""
#: Jobs that a device had ended after the backup that it was restored from.
_ENDED = """
    SELECT job_id FROM "left" ANTI JOIN records USING (log_id, lsn, kind) WHERE kind = 'succeeded'
"""
#: Attempts that failed of jobs that are there: what their process took with it as well.
_FAILED = """
    SELECT count(*) FROM records
    WHERE (kind IN ('retried', 'dead') OR (kind = 'released' AND cause = 'owner_lost'))
    AND job_id NOT IN (SELECT job_id FROM records WHERE kind = 'purged')
"""
_TWICE = """
    SELECT queue, count(DISTINCT device), count(*) FROM records
    WHERE kind = 'enqueued' AND key IS NOT NULL
    AND job_id IN (SELECT job_id FROM records WHERE kind = 'claimed')
    GROUP BY queue, key HAVING count(DISTINCT device) > 1
"""
_KEY = ["log_id", "lsn", "kind"]
_STEP = (
    "job_id", "place", "name", "number", "form", "began_ns", "ended_ns", "attempt", "size_bytes",
)  # fmt: skip
_WAITS = {"ready": "waits", "scheduled": "waits"}


class Made(NamedTuple):
    """A lake, and its logs' records as ``taskq export`` has them: now, and as they were left.

    Attributes:
        lake, records, left: these.
        anew: a lake filled from the same logs at once.
        orders: the log of jobs with steps.
    """

    lake: Path
    records: pd.DataFrame
    left: pd.DataFrame
    anew: Path
    orders: Path


async def same(path: Path) -> None:
    """Work off a job with a key that another device has, too."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put(b"once", queue="twice", key=b"same")
        for delivery in await log.claim(1, queues=["twice"]):
            await log.ack(delivery)


async def signal(path: Path) -> None:
    """Let the jobs go on that wait for their event."""
    with LogReader.open(str(path)) as reader:
        jobs = reader.jobs(None, None, None, 100)
        waiting = [job.job_id for job in jobs if job.state is not State.SUCCEEDED]
    assert waiting
    async with order_app(path) as app:
        for job_id in waiting:
            await app.signal(job_id, "paid", 7)
        await work(app)


async def begun(path: Path) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=b"x") for _ in range(6)])
        for delivery in await log.claim(2):
            await log.ack(delivery)


async def gone_on(path: Path, more: int, ends: int) -> None:
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=b"x") for _ in range(more)])
        for number, delivery in enumerate(await log.claim(3)):
            if number < ends:
                await log.ack(delivery)


def exported(root: Path, *names: str) -> pd.DataFrame:
    parts = []
    for name in names:
        target = root / f"{name}.parquet"
        done = taskq("export", "-d", root / "hub" / name, "--records", "-o", target)
        assert target.exists(), done.output
        parts.append(pd.read_parquet(target))
    return pd.concat(parts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Made:
    """Devices that came late, set their clocks, lost bytes or were restored; a run was killed."""
    del spark  # the runs take it
    root = tmp_path_factory.mktemp("independent")
    hub, lake, anew, orders = (root / name for name in ("hub", "lake", "anew", "hub/orders"))

    def run(*words: str, to: Path = lake) -> int:
        given = ("--journals", hub, "--lake", to, "--corrupt", "skip", *words)
        return int(taskq("pipeline", "run", *given).exit_code)

    asyncio.run(do_steps(orders, 3))
    asyncio.run(live(hub / "edge-1", 1, 20))
    asyncio.run(begun(hub / "restored"))
    shutil.copytree(hub / "restored", root / "backup")
    asyncio.run(gone_on(hub / "restored", 2, 1))
    assert run() == 0
    left = exported(root, "restored")
    shutil.rmtree(hub / "restored")
    shutil.copytree(root / "backup", hub / "restored")
    asyncio.run(gone_on(hub / "restored", 3, 2))
    asyncio.run(signal(orders))
    asyncio.run(live(hub / "edge-1", 2, 10))
    asyncio.run(live(hub / "edge-2", 3, 20))
    for name in ("edge-1", "edge-2"):
        asyncio.run(same(hub / name))
    save(world_of("clocks_that_are_set").machine, hub / "stepped")
    hurt = MadeLog(hub / "hurt")
    frames = [hurt.enqueue(3) for _ in range(3)]
    damage(frames[1])
    real = LakeWriter.commit

    def killed(self: LakeWriter, table: str, *args: Any, **options: Any) -> bool:
        if table == "_open":
            raise KeyboardInterrupt
        return real(self, table, *args, **options)

    with pytest.MonkeyPatch.context() as crash:
        crash.setattr(LakeWriter, "commit", killed)
        assert run() != 0
    assert run() == 0
    assert run(to=anew) == 0
    names = ("edge-1", "edge-2", "restored", "stepped", "hurt", "orders")
    return Made(lake, exported(root, *names), left, anew, orders)


def test_tables_that_grew_equal_those_made_anew(made: Made) -> None:
    """But for what a restored device had before: nobody has that any more."""
    lake, anew = table_rows(made.lake), table_rows(made.anew)
    assert lake.keys() == anew.keys() == {"records", "jobs", "attempts", "steps", *DERIVED}
    for name, rows in lake.items():
        assert rows
        assert [row for row in rows if '"restored"' not in row] == [
            row for row in anew[name] if '"restored"' not in row
        ], name


def test_steps_are_those_of_the_log(made: Made) -> None:
    rows = []
    with LogReader.open(str(made.orders)) as reader:
        for job in reader.jobs(None, None, None, 100):
            for place, step in enumerate(reader.steps(job.lsn)):
                name, _, number = step.title.rpartition("#")
                rows.append(
                    (job.job_id, place, name, int(number), step.form, step.began_ns or None,
                     step.ended_ns, step.attempt, len(step.value or b""))
                )  # fmt: skip
    shown = Lake.open(made.lake).dataset("steps").to_table().to_pylist()
    assert sorted(tuple(row[name] for name in _STEP) for row in shown) == sorted(rows)
    assert {row[4] for row in rows} == {"step", "call", "event"}
    for row in shown:
        took_ns = row["ended_ns"] - row["began_ns"] if row["began_ns"] else None
        assert (row["took_ns"], row["date"]) == (took_ns, row["ended_at"].date())


def test_jobs_and_attempts_are_those_of_a_fold_in_sql(made: Made) -> None:
    """A job that its device ended before it was restored has a row of that, too."""
    lake, records, left, *_ = made
    duck = duckdb.connect()
    duck.register("records", records)
    duck.register("left", left)
    ended = {job for (job,) in duck.execute(_ENDED).fetchall()}
    assert ended
    wanted = duck.execute(_FOLD).fetchall()
    duck.register("records", left)
    wanted += [row for row in duck.execute(_FOLD).fetchall() if row[0] in ended]
    newest = pl.read_delta(str(lake / "jobs")).filter(
        pl.col("continued_in").is_null() & (pl.col("state") != "lost")
    )
    jobs = newest.filter(pl.col("job_id").is_in(set(records["job_id"].dropna()))).to_dicts()
    counts = {(job["job_id"], job["log_id"]): len(job["attempts"]) for job in jobs}
    shown = sorted(
        (
            job["job_id"],
            _WAITS.get(job["state"], job["state"]),
            counts[job["job_id"], job["log_id"]],
        )
        for job in jobs
    )
    assert shown == sorted(wanted)
    states = {state for _, state, _ in wanted}
    assert {"waits", "succeeded", "dead", "cancelled", "running"} <= states


def test_what_a_restored_device_had_done_before_is_told_of_its_parent(made: Made) -> None:
    lake, _, left, *_ = made
    duck = duckdb.connect()
    duck.register("records", left)
    (parent,) = set(left["log_id"])
    jobs = pl.read_delta(str(lake / "jobs"))
    rows = {row["job_id"]: row for row in jobs.filter(pl.col("log_id") == parent).to_dicts()}
    child = {row["job_id"]: row for row in jobs.to_dicts()
             if row["device"] == "restored" and row["log_id"] != parent}  # fmt: skip
    for job, state, _ in duck.execute(_FOLD).fetchall():
        if state == "succeeded":
            assert rows[job]["state"] == state
        elif job in child:
            assert rows[job]["continued_in"] == child[job]["log_id"]
        else:
            assert rows[job]["state"] == "lost"
    states = Counter((row["state"], row["continued_in"] is None) for row in rows.values())
    assert states.keys() >= {("succeeded", True), ("lost", True)}
    lag = pl.read_delta(str(lake / "device_lag")).filter(pl.col("device") == "restored").to_dicts()
    waiting = {row["log_id"]: row["waiting"] for row in lag}
    assert waiting.pop(parent) == 0
    assert list(waiting.values()) == [sum(row["state"] == "ready" for row in child.values())]


def test_what_is_skipped_is_a_row_of_breaks(made: Made) -> None:
    (row,) = DeltaTable(str(made.lake / "breaks")).to_pandas().to_dict("records")
    shown = (row["device"], row["kind"], row["lsn"], row["is_declared"])
    assert shown == ("hurt", "damaged", 4, False)


def test_records_and_rollups_are_those_of_a_fold_in_pandas(made: Made) -> None:
    lake, records, left, *_ = made
    own = DeltaTable(str(lake / "records")).to_pandas(columns=_KEY)
    own = own[own["kind"] != "break"]
    every = pd.concat([records, left]).drop_duplicates(_KEY)
    assert sorted(map(tuple, own[_KEY].values)) == sorted(map(tuple, every[_KEY].values))
    purged = set(every[every["kind"] == "purged"]["job_id"])
    of_jobs = every[~every["job_id"].isin(purged)]
    kinds = Counter(of_jobs["kind"])
    rollup = pl.read_delta(str(lake / "rollup_hour"))
    assert rollup["enqueued"].sum() == kinds["enqueued"]
    assert rollup["attempts_retried"].sum() == kinds["retried"]
    assert rollup["succeeded"].sum() == kinds["succeeded"]
    last = records[~records["job_id"].isin(purged)].sort_values("lsn").groupby("job_id")["kind"]
    lag = DeltaTable(str(lake / "device_lag")).to_pandas()
    assert lag["dead"].sum() == (last.last() == "dead").sum()
    assert set(lag["device"]) == {"edge-1", "edge-2", "restored", "stepped", "hurt", "orders"}


def test_failures_and_duplicates_are_those_of_a_fold_in_sql(made: Made) -> None:
    lake, records, *_ = made
    duck = duckdb.connect()
    duck.register("records", records)
    failed = duck.execute(_FAILED).fetchall()
    failures = pl.read_delta(str(lake / "failures"))
    assert failures["failed_attempts"].sum() == failed[0][0]
    twice = duck.execute(_TWICE).fetchall()
    duplicates = pl.read_delta(str(lake / "duplicates"))
    assert [
        (to_dict["queue"], to_dict["devices"], to_dict["jobs"]) for to_dict in duplicates.to_dicts()
    ] == twice
    assert twice == [("twice", 2, 2)]


def test_every_reader_finds_the_same_rows(made: Made, spark: SparkSession) -> None:
    """Each by its own reader: of deltalake, Polars, pandas, DuckDB (by Parquet) and Spark."""
    lake = Lake.open(made.lake)
    for name in lake.tables():
        where, paths = str(made.lake / name), lake.paths(name)
        table = DeltaTable(where).to_pyarrow_table()
        assert table.num_rows, name
        pandas = DeltaTable(where).to_pandas(types_mapper=pd.ArrowDtype)
        readers = {
            "polars": pl.read_delta(where).to_arrow(),
            "pandas": pa.Table.from_pandas(pandas, preserve_index=False),
            "duckdb": duckdb.read_parquet(paths, hive_partitioning=True).to_arrow_table(),
            "spark": read_table(spark, made.lake, name).toArrow(),
        }
        wanted = listed(table.to_pylist())
        for reader, rows in readers.items():
            cast = rows.select(table.column_names).cast(table.schema)
            assert listed(cast.to_pylist()) == wanted, (name, reader)
