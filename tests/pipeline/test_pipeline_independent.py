"""The tables against folds that share no code with the pipeline: DuckDB's SQL, and pandas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from deltalake import DeltaTable

from taskq_plugins.spark.lake import Lake, LakeWriter
from tests.cli.helpers import taskq
from tests.pipeline.rowmaking import live

if TYPE_CHECKING:
    from pathlib import Path

#: What the last record of a job makes of it; one that waits is due or not.
_FOLD = """
    SELECT job_id, CASE arg_max(kind, lsn)
        WHEN 'claimed' THEN 'running' WHEN 'enqueued' THEN 'waits' WHEN 'retried' THEN 'waits'
        WHEN 'released' THEN 'waits' WHEN 'requeued' THEN 'waits'
        ELSE arg_max(kind, lsn) END AS state,
        count(*) FILTER (kind = 'claimed') AS attempts
    FROM records WHERE kind IN ('enqueued', 'claimed', 'succeeded', 'retried', 'dead', 'released',
        'cancelled', 'expired', 'requeued', 'purged')
    GROUP BY job_id HAVING arg_max(kind, lsn) <> 'purged'
"""
_WAITS = {"ready": "waits", "scheduled": "waits"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A lake of logs, one of which came late, behind a run that was killed; and their records."""
    root = tmp_path_factory.mktemp("independent")
    hub, lake = root / "hub", root / "lake"

    def run() -> int:
        words = ("pipeline", "run", "--journals", hub, "--lake", lake)
        return int(taskq(*words).exit_code)

    asyncio.run(live(hub / "edge-1", 1, 20))
    assert run() == 0
    asyncio.run(live(hub / "edge-1", 2, 10))
    asyncio.run(live(hub / "edge-2", 3, 20))
    real = LakeWriter.commit

    def killed(self: LakeWriter, table: str, *args: Any, **options: Any) -> bool:
        if table == "_open":
            raise KeyboardInterrupt
        return real(self, table, *args, **options)

    with pytest.MonkeyPatch.context() as crash:
        crash.setattr(LakeWriter, "commit", killed)
        assert run() != 0
    assert run() == 0
    parts = []
    for name in ("edge-1", "edge-2"):
        target = root / f"{name}.parquet"
        done = taskq("export", "-d", hub / name, "--records", "-o", target)
        assert done.exit_code == 0, done.output
        parts.append(pd.read_parquet(target))
    return lake, pd.concat(parts)


def test_jobs_and_attempts_are_those_of_a_fold_in_sql(made: tuple[Path, pd.DataFrame]) -> None:
    lake, records = made
    assert len(records)
    duck = duckdb.connect()
    duck.register("records", records)
    wanted = sorted(duck.execute(_FOLD).fetchall())
    jobs = pl.read_delta(str(lake / "jobs")).to_dicts()
    attempts = DeltaTable(str(lake / "attempts")).to_pyarrow_table(columns=["job_id"])
    counts = attempts["job_id"].value_counts().to_pylist()
    by_job = {one["values"]: one["counts"] for one in counts}
    told = sorted(
        (one["job_id"], _WAITS.get(one["state"], one["state"]), by_job.get(one["job_id"], 0))
        for one in jobs
    )
    assert told == wanted
    states = {state for _, state, _ in wanted}
    assert {"waits", "succeeded", "dead", "cancelled", "running"} <= states


def test_records_and_rollups_are_those_of_a_fold_in_pandas(
    made: tuple[Path, pd.DataFrame],
) -> None:
    lake, records = made
    own = DeltaTable(str(lake / "records")).to_pandas(columns=["log_id", "epoch", "lsn", "kind"])
    keys = ["log_id", "epoch", "lsn", "kind"]
    assert sorted(map(tuple, own[keys].values)) == sorted(map(tuple, records[keys].values))
    purged = set(records[records["kind"] == "purged"]["job_id"])
    of_jobs = records[~records["job_id"].isin(purged)]
    rollup = pl.read_delta(str(lake / "rollup_hour"))
    assert rollup["enqueued"].sum() == (of_jobs["kind"] == "enqueued").sum()
    assert rollup["attempts_retried"].sum() == (of_jobs["kind"] == "retried").sum()
    assert rollup["succeeded"].sum() == (of_jobs["kind"] == "succeeded").sum()
    last = of_jobs.sort_values("lsn").groupby("job_id")["kind"].last()
    lag = DeltaTable(str(lake / "device_lag")).to_pandas()
    assert lag["dead"].sum() == (last == "dead").sum()


def test_the_files_of_the_version_hold_what_every_reader_counts(
    made: tuple[Path, pd.DataFrame],
) -> None:
    lake, _ = made
    opened = Lake.open(lake)
    for name in opened.tables():
        paths = opened.paths(name)
        counts = {
            pl.scan_delta(str(lake / name)).select(pl.len()).collect().item(),
            DeltaTable(str(lake / name)).to_pyarrow_dataset().count_rows(),
            len(DeltaTable(str(lake / name)).to_pandas()),
            duckdb.read_parquet(paths).count("*").fetchall()[0][0] if paths else 0,
        }
        assert len(counts) == 1, (name, counts)
