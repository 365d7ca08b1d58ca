"""``df.write.format("taskq")`` and ``df.writeStream.format("taskq")`` in a real session."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from taskq import TaskLog, TaskQ
from tests.pipeline.kit import jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def save(frame: DataFrame, data_dir: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("taskq").mode(mode).options(path=str(data_dir), **options).save()


@pytest.mark.slow
def test_a_worker_runs_the_jobs_while_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    app = TaskQ(tmp_path)
    ran: list[int] = []
    begun, done = threading.Event(), threading.Event()

    @app.task(name="count")
    async def count(n: int) -> None:
        ran.append(n)
        if len(ran) == 600:
            done.set()

    async def work() -> None:
        async with app, app.worker(concurrency=50):
            begun.set()
            await asyncio.to_thread(done.wait, 50)

    frame = spark.range(0, 640, 1, 4).selectExpr(
        "id AS n",
        # 40 rows come with a key that an earlier one of their partition holds for an hour
        "CASE WHEN id % 160 < 10 THEN concat('a', id) WHEN id % 160 < 20 "
        "THEN concat('a', id - 10) END AS key",
        "CASE WHEN id % 2 = 0 THEN 9 END AS priority",
    )
    worker = threading.Thread(target=asyncio.run, args=(work(),))
    worker.start()
    assert begun.wait(10)
    try:
        save(frame, tmp_path, task="count", window="1h")
        assert done.wait(30)
    finally:
        done.set()
        worker.join()
    assert sorted(ran) == sorted(n for n in range(640) if not 10 <= n % 160 < 20)


@pytest.mark.slow
async def test_priorities_and_order_hold(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [("low", 1, "a"), ("high", 9, "b"), ("low", 1, "c"), ("high", 9, "d")],
        "task string, priority int, text string",
    ).coalesce(1)
    save(frame, tmp_path, upload="once")
    save(frame, tmp_path, upload="once")
    async with TaskLog.open(tmp_path) as log:
        deliveries = await log.claim(10)
    assert [json.loads(delivery.payload)["text"] for delivery in deliveries] == ["b", "d", "a", "c"]


def test_every_type_of_spark_that_json_has_a_form_for_is_an_argument(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT 'ä\"' AS text, 1Y AS tiny, CAST(1.5 AS DECIMAL(9, 2)) AS price, true AS yes, "
        "DATE'2024-02-29' AS day, TIMESTAMP'2024-02-29 12:00:00Z' AS at, X'FF' AS raw, "
        "TIMESTAMP_NTZ'2024-02-29 12:00:00' AS there, INTERVAL '5' MINUTE AS span, 0.5D AS half, "
        "named_struct('a', array(1, null), 'm', map('k', 2)) AS nested, null AS nothing, "
        "map('source', 'spark') AS headers, INTERVAL '2' HOUR AS expires"
    )
    save(frame, tmp_path, task="t")
    (job,) = jobs(tmp_path)
    assert (
        job.body
        == (
            '{"text":"ä\\"","tiny":1,"price":"1.50","yes":true,"day":"2024-02-29",'
            '"at":"2024-02-29T12:00:00Z","raw":"_w==","there":"2024-02-29T12:00:00","span":"PT5M",'
            '"half":0.5,"nested":{"a":[1,null],"m":{"k":2}},"nothing":null}'
        ).encode()
    )
    assert job.extras is not None
    assert (job.extras.headers, job.extras.expires_ns > 0) == ({"source": "spark"}, True)


@pytest.mark.slow
def test_what_is_wrong_is_told_and_nothing_is_enqueued(spark: SparkSession, tmp_path: Path) -> None:
    # One task: another that still runs when the write is given up leaves its file for the sweep.
    good = spark.range(0, 1_000, 1, 1)
    bad: list[tuple[DataFrame, dict[str, Any], str]] = [
        (good.selectExpr("id AS n", "CAST(if(id = 777, 10, 1) AS int) AS priority"), {},
         "the row with n=777, priority=10: priority is 10"),
        (good.selectExpr("CAST(id AS string) AS priority"), {}, "column 'priority' is string"),
        (good, {"quue": "x"}, "no option 'quue': did you mean 'queue'?"),
        (good, {"mode": "overwrite"}, 'use mode("append")'),
    ]  # fmt: skip
    for frame, options, words in bad:
        with pytest.raises(Exception, match="taskq") as caught:
            save(frame, tmp_path, task="t", **options)
        assert words in str(caught.value)
        assert not (tmp_path / "taskq.json").exists()
        assert not list(tmp_path.glob("uploads/*/*"))


def test_a_stream_goes_on_from_its_checkpoint_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A batch that was published, but which Spark does not know of, is not enqueued again."""
    (tmp_path / "rows").mkdir()
    checkpoint = tmp_path / "checkpoint"

    def arrive(number: int) -> None:
        rows = "".join(f'{{"n":{number * 10 + at}}}\n' for at in range(10))
        (tmp_path / "rows" / f"{number}.json").write_text(rows)

    def run() -> None:
        source = spark.readStream.schema("n long").option("maxFilesPerTrigger", "1")
        query = (
            source.json(str(tmp_path / "rows")).writeStream.format("taskq")
            .options(path=str(tmp_path / "data"), task="t", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(50)

    arrive(0)
    arrive(1)
    run()
    newest = checkpoint / "commits" / "1"
    for path in (newest, newest.with_name(".1.crc")):
        path.unlink()
    arrive(2)
    run()
    run()
    result = sorted(json.loads(job.body or b"")["n"] for job in jobs(tmp_path / "data"))
    assert result == list(range(30))
