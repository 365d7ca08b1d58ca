"""A lake that Spark filled from real logs, against a plain fold, the logs, and other readers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from taskq import Put, State, TaskLog
from taskq.engine import LogReader
from taskq_plugins.spark import read_table
from taskq_plugins.spark.lake.store import DERIVED, Lake
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.kit import (
    check_tables,
    do_steps,
    killing,
    listed,
    live,
    order_app,
    table_rows,
    work,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Made(NamedTuple):
    """A lake, one that was filled from the same logs at once, and these."""

    lake: Path
    anew: Path
    hub: Path


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


@pytest.fixture
def made(tmp_path: Path, spark: SparkSession) -> Made:
    """Devices that came late, set their clocks, lost bytes or were restored; a run was killed."""
    del spark  # the runs take it
    root = tmp_path
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
    shutil.rmtree(hub / "restored")
    shutil.copytree(root / "backup", hub / "restored")
    asyncio.run(gone_on(hub / "restored", 3, 2))
    asyncio.run(signal(orders))
    asyncio.run(live(hub / "edge-1", 2, 10))
    asyncio.run(live(hub / "edge-2", 3, 20))
    for name in ("edge-1", "edge-2"):
        asyncio.run(same(hub / name))
    hurt = MadeLog(hub / "hurt")
    frames = [hurt.enqueue(3) for _ in range(3)]
    damage(frames[1])
    with killing("_open", before=True):
        assert run() != 0
    assert run() == 0
    assert run(to=anew) == 0
    return Made(lake, anew, hub)


def test_a_lake_that_spark_filled_equals_a_plain_fold_for_every_reader(
    made: Made, spark: SparkSession
) -> None:
    check_tables(made.lake, made.hub, "jobs", "attempts", "steps", *DERIVED)
    jobs = Lake.open(made.lake).dataset("jobs").to_table(columns=["state"])["state"]
    states = {"ready", "scheduled", "succeeded", "dead", "cancelled", "running", "lost"}
    assert states <= set(jobs.to_pylist())
    (row,) = DeltaTable(str(made.lake / "breaks")).to_pandas().to_dict("records")
    shown = (row["device"], row["kind"], row["lsn"], row["is_declared"])
    assert shown == ("hurt", "damaged", 4, False)
    check_anew(made)
    check_readers(made, spark)


def check_anew(made: Made) -> None:
    """Tables that grew equal those made at once, but for what a restored device had before."""
    lake, anew = table_rows(made.lake), table_rows(made.anew)
    assert lake.keys() == anew.keys() == {"records", "jobs", "attempts", "steps", *DERIVED}
    for name, rows in lake.items():
        assert rows
        assert [row for row in rows if '"restored"' not in row] == [
            row for row in anew[name] if '"restored"' not in row
        ], name


def check_readers(made: Made, spark: SparkSession) -> None:
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
