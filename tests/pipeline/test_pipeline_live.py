"""Reading a log while processes write it at full speed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from examples.fleet.__main__ import main
from taskq import Put, TaskLog
from taskq.log.read.jobs import entries
from taskq.log.read.reader import open_journal
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.kit import Row, Stream
from tests.programs import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

WRITER = Path(__file__).parent / "scripts" / "busy_writer.py"
PRODUCED = 5
SEGMENTS = 8


async def put_three(directory: Path) -> None:
    async with TaskLog.open(directory) as log:
        await log.put_many([Put(payload=b"%d" % number) for number in range(3)])


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Two processes write the log; they end in good order."""
    writers = [
        subprocess.Popen(
            [sys.executable, WRITER, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
        yield
    finally:
        codes = []
        for writer in writers:
            writer.communicate(timeout=50)
            codes.append(writer.returncode)
    assert codes == [0, 0]


def records_of_log(directory: Path) -> list[tuple[str, int]]:
    journal = open_journal(str(directory))
    result = [(f"{entry.epoch:016x}", entry.lsn) for entry in entries(journal)]
    journal.close()
    return result


def one_trigger(stream: Stream) -> list[Row]:
    """Available now, as another run of the query does it."""
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    return stream.drain()


def test_successive_triggers_read_every_record_once_while_two_processes_write(
    tmp_path: Path,
) -> None:
    log = tmp_path / "edge"
    rows: list[Row] = []
    with writing(log):
        stream = Stream(tmp_path, maxBytesPerTrigger="1m")
        batches: list[int] = []
        # As long as there is more to see: triggers that read something, and segments that fill.
        while len(batches) < PRODUCED or len({row["segment"] for row in rows}) < SEGMENTS:
            result = one_trigger(stream)
            batches += [len(result)] if result else []
            rows += result
    rows += one_trigger(stream)
    assert not one_trigger(stream)
    assert [(row["epoch"], row["lsn"]) for row in rows] == records_of_log(log)
    kinds = {row["kind"] for row in rows}
    assert {"enqueued", "claimed", "succeeded"} <= kinds
    assert not kinds & {"damaged", "unknown"}
    assert all(row["value"] is not None for row in rows if row["kind"] == "enqueued")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_query_of_spark_reads_every_record_once_while_two_processes_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "edge"
    seen: list[tuple[str, int]] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend((row.epoch, row.lsn) for row in batch.select("epoch", "lsn").collect())

    def trigger() -> None:
        frame = spark.readStream.format("taskq").option("maxBytesPerTrigger", "8m")
        query = (
            frame.load(str(tmp_path / "logs"))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    asyncio.run(put_three(log))
    # Before the cores are busy: Spark starts its Python processes.
    trigger()
    assert len(seen) == 3
    with writing(log):
        trigger()
    assert len(seen) > 3
    trigger()
    assert len(seen) == len(set(seen))
    assert sorted(seen) == sorted(records_of_log(log))


@pytest.mark.timeout(240)
def test_spark_reads_filters_and_explains_what_is_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = [MadeLog(tmp_path / name) for name in ("a", "b")]
    for log in made:
        for _ in range(5):
            log.enqueue(4)
    frame = spark.read.format("taskq").load(str(tmp_path))
    both = frame.selectExpr("count(*)", "count_if(device = 'b' and lsn > 10)")
    assert tuple(both.collect()[0]) == (40, 10)
    item = spark.read.format("taskq").schema("lsn long, device string").load(str(tmp_path))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        first, second = item.filter("lsn = 3"), item.filter("device = 'b' and lsn = 4")
        rows = first.union(second).collect()
        assert sorted(map(tuple, rows)) == [(3, "a"), (3, "b"), (4, "b")]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match=r"option maxbytes is unknown: did you mean maxBytesPer"):
        spark.read.format("taskq").option("maxBytes", "1").load(str(tmp_path))
    damage(made[1].frames[2])
    with pytest.raises(Exception, match=r"b/log/0*1\.log.*corruptMode=skip"):
        frame.count()


ROOT = Path(__file__).parent.parent.parent
WORDS = ["--devices", "12", "--hours", "6", "--work"]
TABLES = 6
COLUMNS = 80


def check(work: Path, shown: str) -> None:
    assert len(re.findall(r"rows, equal to the Python fold", shown)) == TABLES
    assert (work / "lake").is_dir()
    assert max(map(len, shown.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_the_tables_of_a_fleet_equal_the_python_fold_of_its_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.range(1).count() == 1
    result = CliRunner().invoke(main, [*WORDS, str(tmp_path / "work")])
    assert result.exit_code == 0, result.output
    check(tmp_path / "work", result.stdout)


@pytest.mark.slow
# With the tests that share a session: two of Java at a time would be slow on two cores.
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(
    shutil.which("java") is None and "TASKQ_TESTS_NEED_JAVA" not in os.environ,
    reason="there is no Java on this machine, and Spark needs Java 17",
)
def test_a_fleet_is_a_program_of_its_own(tmp_path: Path) -> None:
    work = tmp_path / "work"
    run = run_python("-m", "examples.fleet", *WORDS, work, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    check(work, run.stdout)
