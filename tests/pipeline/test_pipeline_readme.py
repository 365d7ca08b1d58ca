"""Spark examples of plugins/README.md run unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

from taskq import TaskLog
from tests.fleet.made_logs import MadeLog
from tests.pipeline.kit import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT: Final = (Path(__file__).parents[2] / "plugins/README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.filterwarnings("ignore")


def run_block(title: str, directory: Path, **names: Any) -> dict[str, Any]:
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    _, _, rest = rest.partition("```python\n")
    code, _, _ = rest.partition("```")
    for path in re.findall(r'"(hub/devices|ck|out|lake/jobs|lake|\./\w+)"', code):
        code = code.replace(f'"{path}"', f'"{directory / path}"')
    exec(compile(code, "plugins/README.md", "exec"), names)  # noqa: S102 - it is our own text
    return names


def test_the_lines_on_tables_give_every_reader_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    states = {"dead": 2, "succeeded": 3}
    rows = [{"job_id": state, "state": state} for state, n in states.items() for _ in range(n)]
    fill(tmp_path / "lake", [{"job_id": "replaced"}])
    fill(tmp_path / "lake", rows)
    read = run_block("The tables", tmp_path, spark=spark)
    assert len(read["dead"]) == 2
    assert dict(read["states"]) == states
    assert len(read["frame"]) == read["by_spark"].count() == 5


def test_polars_reads_a_lake_with_a_space_in_its_path_as_the_page_says(tmp_path: Path) -> None:
    lake = fill(tmp_path / "the lake", [{"job_id": "1"}])
    (words,) = re.findall(r'polars.scan_delta\("the lake/jobs", (.+?)\)`', TEXT)
    assert words == "use_pyarrow=True"
    path = f"{lake.path}/jobs"
    assert len(pl.scan_delta(path, use_pyarrow=True).collect()) == 1
    with pytest.raises(FileNotFoundError):
        pl.scan_delta(path).collect()
    (tmp_path / "the%20lake").symlink_to(lake.path)
    assert len(pl.scan_delta(path).collect()) == 1


@pytest.mark.slow
def test_the_lines_on_data_frames_run(spark: SparkSession, tmp_path: Path) -> None:
    MadeLog(tmp_path / "hub/devices/edge-1").enqueue(3)
    run_block("Logs as data frames", tmp_path, spark=spark)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


@pytest.mark.slow
async def test_the_lines_on_jobs_by_the_million_run(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([("a@b.c",)], "to string")
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 2)
        .load()
        .selectExpr("CAST(value AS STRING) AS to")
    )
    run_block("Jobs by the million", tmp_path, df=df, stream=stream)
    for query in spark.streams.active:
        query.stop()
    async with TaskLog.open(tmp_path / "data") as log:
        first, *_ = await log.peek()
        assert first.task == "mail.send"
