"""Spark itself: sessions, and the source, the sink, a backlog and README examples in one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from unittest import mock

import polars as pl
import pytest
from pyspark.sql import SparkSession

from taskq import JobHandle, State, TaskLog, TaskQ
from taskq_plugins.spark import session as sessions
from taskq_plugins.spark.errors import LakeDiskError, SparkError
from taskq_workers.process.running import WorkerOrder, find_executor
from tests.bench.harness import family
from tests.cli.helpers import taskq
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.kit import fill, job, jobs
from tests.programs import run_python, run_taskq
from tests.samples import backlog_jobs

_LISTENS = "0A"
_LOOPBACKS = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def addresses_listened_on(pids: list[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = str(descriptor.readlink())
            except OSError:
                continue
            inodes.add(name.removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    result = [row[1] for row in rows if row[3] == _LISTENS and row[9] in inodes]
    return {address.partition(":")[0] for address in result}


def test_a_session_serves_this_process_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing listens beyond loopback, nor without the secret; executors import our packages."""

    def names(_: object) -> list[str]:
        import taskq_plugins.spark.session  # noqa: PLC0415 - there, and not here
        import taskq_workers  # noqa: PLC0415

        return [sys.executable, taskq_plugins.spark.session.__name__, taskq_workers.__name__]

    shown = spark.sparkContext.parallelize(range(2), 2).map(names).collect()
    assert shown == 2 * [[sys.executable, "taskq_plugins.spark.session", "taskq_workers"]]
    listening = addresses_listened_on(family(os.getpid()))
    assert listening
    assert listening <= _LOOPBACKS
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.authenticate") == "true"
    own = sessions.settings("own", "local[2]", tmp_path, {"spark.authenticate": "false"})
    assert own["spark.authenticate"] == "false", "what is given wins"
    assert "spark.authenticate" not in sessions.settings("far", "spark://host:7077", tmp_path, {})
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.speculation") == "false"
    manager: Any = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    assert manager.getRootLogger().getAppenders().keySet().toString() == "[none]", "ours print"
    folder = Path(conf.get("spark.local.dir") or "").parent
    assert folder.name.startswith("taskq-spark-")
    warehouse = str(spark.conf.get("spark.sql.warehouse.dir"))
    assert Path(warehouse.removeprefix("file:")).parent == folder
    assert folder.stat().st_mode & 0o077 == 0, "for nobody else to read"
    check_another_open(spark)


def check_another_open(spark: SparkSession) -> None:
    """The session that is there is given, and one of the user's is not changed nor stopped."""
    before = sorted(spark.sparkContext.getConf().getAll()), dict(spark.conf.getAll)
    conf = {"spark.sql.shuffle.partitions": "7"}
    with sessions.spark_session("ours", master="local[1]", conf=conf) as result:
        assert result is spark
    assert before == (sorted(spark.sparkContext.getConf().getAll()), dict(spark.conf.getAll))
    assert spark.range(3).count() == 3


REFUSED = ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(("error", "waits"), [
    (EOFError(), False),
    (TypeError("'JavaPackage' object is not callable"), False),
    (LakeDiskError("lake", REFUSED), True),
])  # fmt: skip
def test_an_error_after_the_end_of_java_says_so(error: Exception, waits: bool) -> None:
    """A process that was just killed may be there still, though it answers no more."""
    process = mock.Mock()
    process.poll.side_effect = lambda: -9 if process.wait.call_args.args[0] or not waits else None
    context = mock.Mock(**{"_gateway.proc": process})
    opened = mock.Mock(sparkContext=context, **{"stop.side_effect": REFUSED})
    with (
        mock.patch("pyspark.SparkContext._active_spark_context", None),
        mock.patch.object(sessions, "_start", return_value=opened),
        pytest.raises(SparkError, match="Java ended before") as raised,
        sessions.spark_session("x"),
    ):
        raise error from REFUSED if waits else None
    assert raised.value.__cause__ is error
    assert context._jsc is None, "no session is left"
    context.stop.assert_called_once()


@pytest.mark.timeout(240)
def test_spark_reads_filters_and_explains_errors(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_stream_goes_on_from_its_checkpoint_without_repeats(
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


TARGET = "tests.samples.backlog_jobs:app"


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    backlog_jobs.app.data_dir = tmp_path / "data"
    return backlog_jobs.app


async def work_off(app: TaskQ, **changes: Any) -> None:
    given: dict[str, Any] = {
        "target": TARGET, "concurrency": 8, "queues": None, "burst": True, "drain_timeout": 10.0,
        "on_event": None,
    }  # fmt: skip
    with find_executor("spark")(app, WorkerOrder(**(given | changes))) as worker:
        await worker.run()


async def states(handles: list[JobHandle[Any]]) -> set[State]:
    return {await handle.status() for handle in handles}


@pytest.mark.timeout(180)
async def test_jobs_of_every_kind_run_on_executors(spark: SparkSession, app: TaskQ) -> None:
    async with app:
        doubled = await backlog_jobs.double.enqueue_many([(number,) for number in range(60)])
        napped = await backlog_jobs.nap.enqueue_many([(number,) for number in range(20)])
        failed = await backlog_jobs.fail.enqueue()
        parent = await backlog_jobs.parent.options(headers={"name": "Ada"}).enqueue(5)
        shout = await backlog_jobs.shout.enqueue("ah" * 4_000)
        later = await backlog_jobs.later.enqueue()
        slow = await backlog_jobs.slow.enqueue()
        other = await backlog_jobs.double.options(queue="other").enqueue(1)
        await work_off(app, queues=["default"])
        assert [await item.result() for item in doubled[:3]] == [0, 2, 4]
        assert await states([*doubled, *napped]) == {State.SUCCEEDED}
        assert await parent.result() == "Ada"
        assert await shout.result() == "AH" * 4_000
        assert await states([failed, slow]) == {State.DEAD}
        assert await states([later]) == {State.SCHEDULED}
        assert await states([other]) == {State.READY}
        queues = {queue.queue: queue for queue in (await app.stats()).queues}
        assert queues["default"].succeeded == 60 + 20 + 1 + 5 + 1
    assert spark.range(1).count() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
async def test_a_job_that_kills_its_python_dies_alone(app: TaskQ) -> None:
    async with app:
        good = await backlog_jobs.double.enqueue_many([(number,) for number in range(20)])
        bad = await backlog_jobs.die.enqueue()
        more = await backlog_jobs.double.enqueue_many([(number,) for number in range(20)])
        await work_off(app)
        assert await states([*good, *more]) == {State.SUCCEEDED}
        assert await states([bad]) == {State.DEAD}


KILLED_BACKLOG = """
import os
from pathlib import Path
from taskq import TaskQ, current_job
app = TaskQ("data")

@app.task
def work(number: int) -> int:
    with open("ran", "a") as file:
        print(number, file=file, flush=True)
    if number < 2 and current_job().attempt == 1:
        open("gate").read()
    return number
"""


@pytest.mark.slow
def test_when_the_driver_is_killed_anybody_takes_its_jobs_at_once(tmp_path: Path) -> None:
    (tmp_path / "killed_backlog.py").write_text(KILLED_BACKLOG)
    os.mkfifo(tmp_path / "gate")
    app = TaskQ(tmp_path / "data")
    for number in range(200):
        app.enqueue_by_name_sync("killed_backlog.work", number=number)
    app.close_sync()
    command = [sys.executable, "-m", "taskq", "worker", "killed_backlog:app"]
    spark = ["--executor", "spark", "--master", "local[2]"]
    with subprocess.Popen(
        [*command, *spark], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        # Both executors hang in their first job until the driver is gone.
        writers = [os.open(tmp_path / "gate", os.O_WRONLY)]
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    done = subprocess.run(
        [*command, "--burst"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    for writer in writers:
        os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "recovered" in done.stdout
    successes = run_taskq("export", "-d", "data", "--records", cwd=tmp_path, check=True).stdout
    records = [json.loads(line) for line in successes.splitlines()]
    succeeded = [record["id"] for record in records if record["kind"] == "succeeded"]
    assert len(succeeded) == len(set(succeeded)) == 200


@pytest.mark.parametrize(("words", "code", "said"), [
    (("--executor", "sprak"), 2, "taskq: there is no executor 'sprak'; known are: spark"),
    (("--master", "local[2]"), 2, "--executor spark"),
    (("--help",), 0, "at least once"),
])  # fmt: skip
def test_the_executors_are_printed_and_wrong_arguments_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    text = "from taskq import TaskQ\napp = TaskQ('data')\n@app.task\ndef work() -> None: ...\n"
    (tmp_path / "executed_shop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = taskq("worker", "executed_shop:app", *words)
    assert (done.exit_code, said in " ".join(done.output.split())) == (code, True), done.output


TEXT: Final = (Path(__file__).parents[2] / "plugins/README.md").read_text(encoding="utf-8")


def run_block(title: str, directory: Path, **names: Any) -> dict[str, Any]:
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    _, _, rest = rest.partition("```python\n")
    code, _, _ = rest.partition("```")
    for path in re.findall(r'"(hub/devices|ck|out|lake/jobs|lake|\./\w+)"', code):
        code = code.replace(f'"{path}"', f'"{directory / path}"')
    exec(compile(code, "plugins/README.md", "exec"), names)  # noqa: S102 - it is our own text
    return names


@pytest.mark.slow
def test_the_lines_on_tables_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    states = {"dead": 2, "succeeded": 3}
    fill(tmp_path / "lake", [job(1)])
    rows = [job(n, state="dead" if n < 2 else "succeeded") for n in range(5)]
    fill(tmp_path / "lake", rows)
    read = run_block("The tables", tmp_path, spark=spark)
    assert len(read["dead"]) == 2
    assert dict(read["states"]) == states
    assert len(read["frame"]) == read["by_spark"].count() == 5


def test_polars_reads_a_lake_with_a_space_in_its_path_as_the_page_says(tmp_path: Path) -> None:
    lake = fill(tmp_path / "the lake", [job(1)])
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
