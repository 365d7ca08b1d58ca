"""A lake that Spark filled from real logs, against a plain fold, the logs, and other readers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from taskq_plugins.spark import read_table
from taskq_plugins.spark.lake.store import DERIVED, RECORD, Lake
from taskq_plugins.spark.run import derived
from taskq_plugins.spark.tables import queries
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline import kit, plain
from tests.pipeline.test_pipeline_histories import Fleet


def test_a_lake_equals_a_plain_fold_for_every_reader(tmp_path: Path, spark: SparkSession) -> None:
    """Devices were set back and cloned between runs; one lost bytes, and a run was killed."""
    hub, lake = tmp_path / "hub", tmp_path / "lake"
    words = ("pipeline", "run", "--journals", hub, "--lake", lake, "--corrupt", "skip")
    fleet = Fleet(tmp_path, random.Random(13))
    asyncio.run(kit.do_steps(hub / "orders", 2))
    for turn in range(3):
        for _ in range(60):
            fleet.act()
        if turn == 1:
            hurt = MadeLog(hub / "hurt")
            frames = [hurt.enqueue(3) for _ in range(3)]
            damage(frames[1])
            with kit.killing("_open", before=True):
                assert taskq(*words).exit_code != 0
        done = taskq(*words)
        assert done.exit_code == 0, done.output
    kit.check_tables(lake, hub, "jobs", "attempts", "steps", *DERIVED)
    jobs = Lake.open(lake).dataset("jobs").to_table(columns=["state"])["state"]
    states = {"ready", "scheduled", "succeeded", "dead", "cancelled", "running", "lost"}
    assert states <= set(jobs.to_pylist())
    (row,) = DeltaTable(str(lake / "breaks")).to_pandas().to_dict("records")
    shown = (row["device"], row["kind"], row["lsn"], row["is_declared"])
    assert shown == ("hurt", "damaged", 4, False)
    check_readers(lake, spark)


def check_readers(path: Path, spark: SparkSession) -> None:
    """Each by its own reader: of deltalake, Polars, pandas, DuckDB (by Parquet) and Spark."""
    lake = Lake.open(path)
    for name in lake.tables():
        where, paths = str(path / name), lake.paths(name)
        table = DeltaTable(where).to_pyarrow_table()
        assert table.num_rows, name
        pandas = DeltaTable(where).to_pandas(types_mapper=pd.ArrowDtype)
        readers = {
            "polars": pl.read_delta(where).to_arrow(),
            "pandas": pa.Table.from_pandas(pandas, preserve_index=False),
            "duckdb": duckdb.read_parquet(paths, hive_partitioning=True).to_arrow_table(),
            "spark": read_table(spark, path, name).toArrow(),
        }
        wanted = kit.listed(table.to_pylist())
        for reader, rows in readers.items():
            cast = rows.select(table.column_names).cast(table.schema)
            assert kit.listed(cast.to_pylist()) == wanted, (name, reader)


Rows = list[dict[str, Any]]
LOST = "WorkerLost: the worker process died while it ran"
REASONS = ("OSError: host {} is offline\n  File app.py", "ValueError: broken", LOST, None, "")


class Lives:
    """Rows of jobs, attempts and segments at random, with each column that a query reads."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.jobs = [self._job(number) for number in range(150)]
        self.attempts = [self._attempt(number) for number in range(300)]
        self.segments = [self._segment(number) for number in range(60)]
        self.read = [
            {"device": f"d{n}", "log_id": f"log-d{n}", "ts_ns": kit.NOON + self._span()}
            for n in range(6)
        ]

    def _span(self) -> int:
        return self.chance.choice(
            [0, kit.SECOND - 1, self.chance.randrange(-3 * kit.HOUR, 3 * kit.HOUR)]
        )

    def _place(self) -> dict[str, Any]:
        device = f"d{self.chance.randrange(1, 4)}"
        log_id = self.chance.choice([f"log-{device}", f"log-{device}", f"old-{device}"])
        task = self.chance.choice(["app.send", "app.other", None])
        queue = self.chance.choice(["default", "slow"])
        return {"device": device, "log_id": log_id, "task": task, "queue": queue}

    def _reason(self) -> str | None:
        reason = self.chance.choice(REASONS)
        return reason and reason.format(self.chance.randrange(99))

    def _job(self, number: int) -> dict[str, Any]:
        chance, place = self.chance, self._place()
        states = ["succeeded", "cancelled", "expired", "running", "ready", "scheduled"]
        state = chance.choice([*states, *["dead"] * 4])
        is_settled = state in {"succeeded", "cancelled", "expired", "dead"}
        tries = [
            kit.tried(
                chance.choice(["retried", "lost", "dead"]), chance.randrange(3), self._reason()
            )
            for _ in range(chance.randrange(4))
        ]
        return kit.job(
            number, **place, state=state, attempts=tries,
            enqueued_ns=kit.NOON + self._span(), reason=self._reason(),
            enqueued_in=chance.choice([place["log_id"], "log-parent"]),
            settled_in=chance.choice([place["log_id"], "log-parent"]) if is_settled else None,
            settled_ns=kit.NOON + self._span() if is_settled else None,
            first_started_ns=chance.choice([None, kit.NOON + self._span()]),
            key=chance.choice([None, b"a", b"b", bytes([chance.randrange(256)])]),
            payload=chance.choice([None, b"", b"{}", b"[1]", b"[2]", b'{"x":1}']),
            continued_in=chance.choice([None, None, None, "log-child"]),
        )  # fmt: skip

    def _attempt(self, number: int) -> dict[str, Any]:
        chance = self.chance
        outcome = chance.choice(["succeeded", "retried", "dead", "released", "lost", None])
        spans = [None, -1, 0, chance.randrange(10**12), chance.randrange(10**16)]
        return kit.attempt(
            number, **self._place(), outcome=outcome, reason=self._reason(),
            owner=chance.randrange(4), ended_ns=kit.NOON + self._span() if outcome else None,
            wait_ns=chance.choice(spans), run_ns=chance.choice(spans) if outcome else None,
        )  # fmt: skip

    def _segment(self, number: int) -> dict[str, Any]:
        chance, place = self.chance, self._place()
        return place | {
            "segment": 100 * number, "gap_from": chance.choice([None, None, 100 * number]),
            "size_bytes": chance.randrange(10**6), "modified_ns": kit.NOON + self._span(),
            "last_record_ns": chance.choice([None, kit.NOON + chance.choice([0, 1, 9]) * kit.HOUR]),
        }  # fmt: skip


@pytest.mark.long("Spark compiles and runs each of the queries")
def test_each_query_returns_the_rows_of_a_plain_loop(spark: SparkSession) -> None:
    for seed in range(3):
        check_lives(spark, Lives(seed))
    check_steps(spark)


def check_lives(spark: SparkSession, lives: Lives) -> None:
    given = {"jobs": lives.jobs, "attempts": lives.attempts}
    frames = kit.tables(spark, **given, segments=lives.segments, read=lives.read)
    jobs, attempts = frames["jobs"], frames["attempts"]
    known = {name: frames[name] for name in ("jobs", "segments", "read")}
    events = spark.sql(queries.EVENTS, jobs=jobs, attempts=attempts)
    failures = derived._failures(spark, {"jobs": jobs, "attempts": attempts})
    made = {
        "rollup_hour": spark.sql(queries.ROLLUP_HOUR, events=events).toArrow(),
        "failures": failures.toArrow(),
        "duplicates": spark.sql(queries.DUPLICATES, jobs=jobs).toArrow(),
        "device_lag": spark.sql(queries.DEVICE_LAG, args={"now": kit.NOON}, **known).toArrow(),
    }
    wanted = plain.derived(jobs.toArrow().to_pylist(), attempts.toArrow().to_pylist(),
                           frames["segments"].toArrow().to_pylist(), lives.read)  # fmt: skip
    for name, table in made.items():
        assert kit.listed(table.to_pylist()) == kit.listed(wanted[name]), name
    (lag, *_) = made["device_lag"].sort_by("log_id").to_pylist()
    at_ns = lag["last_record_at"].timestamp() * 1e9
    assert lag["record_lag_seconds"] == pytest.approx((kit.NOON - at_ns) / 1e9, abs=1e-5)


def record(lsn: int, place: int, /, **details: Any) -> dict[str, Any]:
    row = {"log_id": "a", "job": 1, "kind": "stepped", "step": f"s#{place + 1}"}
    return row | {"lsn": lsn, "place": place, "ts_ns": kit.NOON + lsn, "value": b"1"} | details


def check_steps(spark: SparkSession) -> None:
    """The first record counts, also without a value or if it began after its end."""
    given: Rows = [
        record(9, 0), record(2, 0), record(3, 1, value=None), record(4, 1, log_id="b", value=b""),
        record(5, 2, value=b'{"left out": {"sha256": "ab", "size": 70000}}'),
        record(6, 3, began_ns=kit.NOON + kit.SECOND), record(7, 0, kind="signalled", place=None),
    ]  # fmt: skip
    records = spark.createDataFrame(pa.Table.from_pylist(given, RECORD))
    rows = spark.sql(queries.STEPS, records=records)
    assert kit.listed(rows.toArrow().to_pylist()) == kit.listed(
        plain.steps_of(records.toArrow().to_pylist())
    )
    keys = pa.schema([("log_id", pa.string()), ("job", pa.int64()), ("place", pa.int64())])
    known = spark.createDataFrame(
        pa.Table.from_pylist([{"log_id": "a", "job": 1, "place": 0}], keys)
    )
    new = spark.sql(queries.NEW_STEPS, steps=rows, known=known).toArrow().to_pylist()
    assert sorted((row["log_id"], row["place"]) for row in new) == [
        ("a", 1), ("a", 2), ("a", 3), ("b", 1),
    ]  # fmt: skip
