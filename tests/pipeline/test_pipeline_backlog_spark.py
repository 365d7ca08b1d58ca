"""A real log, worked off by real executors; and a driver that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from taskq import State, TaskQ
from taskq_workers.process.running import WorkerOrder, find_executor
from tests.cli.helpers import taskq
from tests.programs import run_taskq
from tests.samples import backlog_jobs as jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from taskq import JobHandle

TARGET = "tests.samples.backlog_jobs:app"


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    jobs.app.data_dir = tmp_path / "data"
    return jobs.app


async def work_off(app: TaskQ, **changes: Any) -> None:
    """Run a worker on the session that is there, until nothing is left to run."""
    given: dict[str, Any] = {
        "target": TARGET,
        "concurrency": 8,
        "queues": None,
        "burst": True,
        "drain_timeout": 10.0,
        "on_event": None,
    }
    with find_executor("spark")(app, WorkerOrder(**(given | changes))) as worker:
        await worker.run()


async def states(handles: list[JobHandle[Any]]) -> set[State]:
    return {await handle.status() for handle in handles}


@pytest.mark.timeout(180)
async def test_jobs_of_every_kind_run_on_executors(spark: SparkSession, app: TaskQ) -> None:
    async with app:
        doubled = await jobs.double.enqueue_many([(number,) for number in range(60)])
        napped = await jobs.nap.enqueue_many([(number,) for number in range(20)])
        failed = await jobs.fail.enqueue()
        parent = await jobs.parent.options(headers={"name": "Ada"}).enqueue(5)
        shout = await jobs.shout.enqueue("ah" * 4_000)
        later = await jobs.later.enqueue()
        slow = await jobs.slow.enqueue()
        other = await jobs.double.options(queue="other").enqueue(1)
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
        good = await jobs.double.enqueue_many([(number,) for number in range(20)])
        bad = await jobs.die.enqueue()
        more = await jobs.double.enqueue_many([(number,) for number in range(20)])
        await work_off(app)
        assert await states([*good, *more]) == {State.SUCCEEDED}
        assert await states([bad]) == {State.DEAD}


KILLED = """
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
    (tmp_path / "killed_backlog.py").write_text(KILLED)
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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--executor", "sprak"), 2, "taskq: there is no executor 'sprak'; known are: spark"),
        (("--master", "local[2]"), 2, "--executor spark"),
        (("--help",), 0, "at least once"),
    ],
)
def test_where_jobs_run_is_said_and_wrong_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    text = "from taskq import TaskQ\napp = TaskQ('data')\n@app.task\ndef work() -> None: ...\n"
    (tmp_path / "executed_shop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = taskq("worker", "executed_shop:app", *words)
    assert (done.exit_code, said in " ".join(done.output.split())) == (code, True), done.output
