"""A standalone cluster: its master and two workers know nothing of the driver but its address."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from taskq import TaskQ
from tests.pipeline.kit import table_rows
from tests.programs import free_port, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]
ROWS = 8_000
JOBS = 300
#: Source, sink and both kinds of stream; all paths are relative to the driver's directory.
DRIVER = """
import os, sys
from taskq_plugins.spark.session import spark_session

def run(rows, to, checkpoint, **options):
    query = (
        rows.writeStream.format("taskq" if options else "parquet")
        .options(path=to, checkpointLocation=checkpoint, **options)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()

with spark_session("driver", master=sys.argv[1]) as spark:
    where = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getcwd()).distinct()
    assert os.getcwd() not in where.collect()
    numbers = spark.range(0, int(sys.argv[2]), numPartitions=4).withColumnRenamed("id", "number")
    for _ in range(2):
        numbers.write.format("taskq").mode("append").options(
            path="hub/edge-1", task="shop.double", upload="once"
        ).save()
    records = spark.read.format("taskq").load("hub")
    assert records.filter("kind = 'enqueued'").count() == numbers.count()
    stream = spark.readStream.format("taskq").option("targetPartitionBytes", "64k").load("hub")
    run(stream, "records", "ck-1")
    assert spark.read.parquet("records").count() == records.count()
    enqueued = spark.readStream.schema("lsn long, kind string").parquet("records")
    chosen = enqueued.filter("kind = 'enqueued'").selectExpr("lsn as number")
    run(chosen, "hub/edge-2", "ck-2", task="shop.double")
    assert spark.read.format("taskq").load("hub/edge-2").filter(
        "kind = 'enqueued'"
    ).count() == numbers.count()
"""
APP = """
import os
from taskq import TaskQ

app = TaskQ("hub/edge-3")

@app.task
def double(number: int) -> list[str]:
    return [str(2 * number), os.getcwd()]
"""


class Cluster:
    def __init__(self, folder: Path, port: int) -> None:
        self.master = f"spark://127.0.0.1:{port}"
        self.homes = [folder / "worker-1", folder / "worker-2"]

    def executors(self) -> list[int]:
        return [len(list((home / "work").glob("app-*/*"))) for home in self.homes]


@contextmanager
def daemon(name: str, home: Path, *arguments: str) -> Iterator[Path]:
    import pyspark  # noqa: PLC0415 - only for its place

    home.mkdir()
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    # As on another machine: taskq is installed in the Python that is found first.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = home / "said"
    with (
        said.open("wb") as output,
        subprocess.Popen(
            [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments],
            cwd=home, env=environment, stdout=output, stderr=output,
        ) as process,
    ):  # fmt: skip
        try:
            yield said
        finally:
            process.terminate()


def wait_until_told(said: Path, text: str, count: int = 1) -> None:
    with subprocess.Popen(
        ["tail", "-c", "+1", "-F", said], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tail:
        try:
            assert tail.stdout is not None
            for line in tail.stdout:
                count -= text.encode() in line
                if not count:
                    return
        finally:
            tail.terminate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port = free_port()
    made = Cluster(tmp_path, port)
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon("master.Master", tmp_path / "master", "--port", str(port), "--webui-port", "0")
        )
        wait_until_told(master, "New state: ALIVE")
        for home in made.homes:
            options = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", "work")
            stack.enter_context(daemon("worker.Worker", home, *options, made.master))
        wait_until_told(master, "Registering worker", 2)
        yield made


def run(home: Path, *arguments: str) -> str:
    done = run_python(*arguments, cwd=home, timeout=600)
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


async def test_a_cluster_reads_writes_streams_runs_the_pipeline_and_works_off_a_backlog(
    cluster: Cluster, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "shop.py").write_text(APP)
    run(home, "-c", DRIVER, cluster.master, str(ROWS))
    assert all(cluster.executors())
    async with TaskQ(home / "hub" / "edge-3", upkeep=False) as app:
        jobs = [await app.enqueue_by_name("shop.double", number=number) for number in range(JOBS)]
    spark = ["--executor", "spark", "--master", cluster.master, "--py-files", "shop.py"]
    run(home, "-m", "taskq", "worker", "shop:app", "--burst", "--quiet", *spark)
    pipeline = ["-m", "taskq", "pipeline", "run", "--journals", "hub", "--lake", "lake"]
    run(home, *pipeline, "--master", cluster.master)
    run(home, *pipeline[:-1], str(tmp_path / "plain"), "--master", "local[2]")
    rows, plain = table_rows(home / "lake"), table_rows(tmp_path / "plain")
    assert rows == plain
    assert len(rows["jobs"]) == 2 * ROWS + JOBS
    assert len(rows["attempts"]) == JOBS
    async with TaskQ(home / "hub" / "edge-3", upkeep=False) as app:
        results = [await app.job(job.id).result() for job in jobs]
    assert [result[0] for result in results] == [str(2 * number) for number in range(JOBS)]
    assert str(home) not in {result[1] for result in results}
