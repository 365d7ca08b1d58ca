"""A table that is gone, or an older copy than it was, is noticed, and made anew."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from taskq_plugins.spark.lake.errors import TableLost
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.run import command
from tests.cli.helpers import taskq
from tests.effort import every, grows
from tests.pipeline.rowmaking import live
from tests.pipeline.twolakes import rows_of_equal_tables

if TYPE_CHECKING:
    from pathlib import Path

TABLES = ("records", "attempts", "_open", "jobs")
ALL = (*TABLES, "rollup_hour", "failures", "duplicates", "device_lag", "breaks", "steps")


def run(tmp_path: Path, *words: object, lake: str = "lake") -> Any:
    where = ("--journals", tmp_path / "hub", "--lake", tmp_path / lake)
    return taskq("pipeline", "run", *where, *words)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of three runs and its logs, with a copy as of the second beside it."""
    root = tmp_path_factory.mktemp("rebuild")
    for seed in (1, 2, 3):
        asyncio.run(live(root / "hub" / f"edge-{seed % 2}", seed, 4))
        assert run(root).exit_code == 0
        if seed == 2:
            shutil.copytree(root / "lake", root / "older")
    assert run(root, lake="anew").exit_code == 0
    return root


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lake"


def lose(lake: Path, table: str, *, older: bool) -> None:
    shutil.rmtree(lake / table)
    if older:
        shutil.copytree(lake.with_name("older") / table, lake / table)


@pytest.mark.parametrize("older", [False, True], ids=["gone", "older"])
def test_a_lost_table_is_named_before_anything_is_read(
    lake: Path, tmp_path: Path, *, older: bool
) -> None:
    for table in ALL:
        kept = shutil.copytree(lake / table, tmp_path / "kept" / table)
        lose(lake, table, older=older)
        before = sorted(lake.rglob("*"))
        refused = run(tmp_path)
        assert refused.exit_code == 1
        assert f"{table} is {'an older copy' if older else 'gone'}" in refused.stderr
        assert f"--rebuild {table}" in refused.stderr
        assert before == sorted(lake.rglob("*"))
        shutil.rmtree(lake / table, ignore_errors=True)
        kept.rename(lake / table)


@grows
@pytest.mark.parametrize(
    ("table", "older"), [(table, older) for table in ALL for older in (False, True)][:: every(3)]
)
def test_a_lost_table_is_made_anew(lake: Path, tmp_path: Path, table: str, *, older: bool) -> None:
    lose(lake, table, older=older)
    shown = run(tmp_path, "--rebuild", table)
    assert shown.exit_code == 0, shown.output
    assert "tell no more" not in shown.output
    assert run(tmp_path).exit_code == 0
    rows_of_equal_tables(lake, tmp_path / "anew")


def test_what_is_rebuilt_goes_on_as_if_it_had_never_been_lost(lake: Path, tmp_path: Path) -> None:
    for table in ("_open", "jobs", "attempts"):
        lose(lake, table, older=False)
    words = [word for table in ("jobs", "_open", "attempts") for word in ("--rebuild", table)]
    assert run(tmp_path, *words).exit_code == 0
    asyncio.run(live(tmp_path / "hub" / "edge-1", 4, 6))
    for name in ("lake", "anew"):
        assert run(tmp_path, lake=name).exit_code == 0
    rows_of_equal_tables(lake, tmp_path / "anew")


def test_what_the_logs_tell_no_more_is_kept_of_the_older_copy_or_said(
    lake: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "hub" / "edge-0")
    jobs = Lake.open(lake).dataset("jobs").to_table().to_pylist()
    gone = {row["job_id"] for row in jobs if row["device"] == "edge-0"}
    lose(lake, "jobs", older=True)
    shown = run(tmp_path, "--rebuild", "jobs", "--ignore-data-loss")
    kept = {row["job_id"] for row in Lake.open(lake).dataset("jobs").to_table().to_pylist()}
    over = {row["job_id"] for row in jobs if row["device"] == "edge-0" and row["is_over"]}
    assert over <= kept
    assert gone - kept
    assert shown.exit_code == 0, shown.output
    assert "jobs: the logs tell no more of" in shown.stderr


def test_readers_notice_too_and_another_table_is_not_taken_for_it(
    lake: Path, tmp_path: Path
) -> None:
    data = Lake.open(lake).dataset("failures").to_table()
    shutil.rmtree(lake / "failures")
    DeltaTable.create(str(lake / "failures"), data.schema)
    with pytest.raises(TableLost, match="failures is another table than it was"):
        Lake.open(lake).dataset("failures")
    assert Lake.open(lake).dataset("jobs").count_rows()
    for words in (("pipeline", "status"), ("sql", "FROM failures")):
        shown = taskq(*words, "--lake", lake)
        assert (shown.exit_code, "--rebuild failures" in shown.stderr) == (1, True)


def test_any_engine_reads_which_versions_go_with_the_last_batch(lake: Path) -> None:
    listed = duckdb.read_json(str(lake / "last_batch.json")).pl()
    assert listed.equals(pl.read_ndjson(lake / "last_batch.json"))
    versions = dict(listed.select("table", "version").iter_rows())
    assert set(ALL) == set(versions)
    assert set(listed["batch"]) == {2}
    for table in TABLES:
        rows = DeltaTable(str(lake / table), version=versions[table]).to_pyarrow_table()
        assert rows.num_rows == DeltaTable(str(lake / table)).to_pyarrow_table().num_rows > 0


def test_a_table_whose_log_does_not_read_is_named_and_made_anew(lake: Path, tmp_path: Path) -> None:
    log = lake / "attempts" / "_delta_log"
    for commit in log.iterdir():
        commit.write_bytes(b"{")
    refused = run(tmp_path)
    assert (refused.exit_code, "attempts does not read" in refused.stderr) == (1, True)
    assert run(tmp_path, "--rebuild", "attempts").exit_code == 0
    rows_of_equal_tables(lake, tmp_path / "anew")


def test_a_run_that_fails_behind_a_rebuild_need_not_rebuild_again(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(lake, "jobs", older=False)
    with monkeypatch.context() as crash:
        crash.setattr(command, "reached", mock.Mock(side_effect=KeyboardInterrupt))
        assert run(tmp_path, "--rebuild", "jobs").exit_code != 0
    assert run(tmp_path).exit_code == 0
    rows_of_equal_tables(lake, tmp_path / "anew")


def test_a_copy_from_before_an_erasure_is_an_older_copy(lake: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(lake / "jobs", tmp_path / "jobs")
    assert taskq("pipeline", "erase", "--lake", lake, "--where", "true", "--yes").exit_code == 0
    shutil.rmtree(lake / "jobs")
    copy.rename(lake / "jobs")
    assert "jobs is an older copy" in run(tmp_path).stderr
