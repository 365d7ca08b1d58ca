"""What plugins/README.md shows of Spark runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq import TaskLog
from tests.fleet.made_logs import MadeLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT: Final = (Path(__file__).parents[2] / "plugins/README.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def run_block(title: str, directory: Path, **names: Any) -> None:
    """Run the Python under a heading, with its directories in this one: Java has one of its own."""
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    _, _, rest = rest.partition("```python\n")
    code, _, _ = rest.partition("```")
    for path in re.findall(r'"(hub/devices|ck|out|\./\w+)"', code):
        code = code.replace(f'"{path}"', f'"{directory / path}"')
    exec(compile(code, "plugins/README.md", "exec"), names)  # noqa: S102 - it is our own text


def test_the_lines_on_data_frames_run(spark: SparkSession, tmp_path: Path) -> None:
    MadeLog(tmp_path / "hub/devices/edge-1").enqueue(3)
    run_block("Logs as data frames", tmp_path, spark=spark)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


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
