"""``taskq sql``: questions to one log, which read its tables and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskq import TaskQ, durable, retry
from taskq.cli.main import main
from taskq.errors import JobFailed
from taskq.log.read.reader import LogReader
from tests.fleet.made_logs import MadeLog, claimed, damage, succeeded

SECONDS = 20


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    app = TaskQ(tmp_path / "data")

    @app.task(name="half", retry=retry.fixed(2, delay=0))
    async def half(number: int) -> float:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number / 2

    async with app:
        async with app.worker():
            jobs = await half.enqueue_many([(number,) for number in range(6)])
            for job in jobs[::2]:
                await job.result(SECONDS)
            for job in jobs[1::2]:
                with pytest.raises(JobFailed):
                    await job.result(SECONDS)
        await half.options(delay="1h", headers={"from": "a test"}).enqueue(7)
    return app.data_dir


def ask(data: Path, query: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["sql", query, "-d", str(data), *words])
    assert result.exit_code == code, result.output
    return result.output


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def rows(data: Path, query: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(ask(data, query, "--json"))
    return result


async def test_jobs_and_attempts_are_what_the_log_says(data: Path) -> None:
    with LogReader.open(str(data)) as reader:
        views = sorted(reader.jobs(None, None, None, 100), key=lambda view: view.lsn)
    assert rows(data, "SELECT job_id, state, payload, reason FROM jobs ORDER BY job") == [
        {
            "job_id": view.job_id, "state": view.state.name.lower(),
            "payload": view.payload.decode(), "reason": view.reason or None,
        }
        for view in views
    ]  # fmt: skip
    shown = rows(
        data,
        "SELECT task, state, outcome, count(*) n, quantile_cont(run_seconds, .95) AS seconds, "
        "max(run_ns) / 1e9 >= seconds AS ran FROM attempts GROUP BY ALL ORDER BY outcome",
    )
    assert [tuple(row[name] for name in row if name != "seconds") for row in shown] == [
        ("half", outcome, outcome, 3, True) for outcome in ("dead", "retried", "succeeded")
    ]
    (item,) = rows(data, "SELECT headers FROM jobs WHERE state = 'scheduled'")
    assert "a test" in str(item["headers"])
    (counted,) = rows(data, "SELECT count(*) n FROM records WHERE kind = 'enqueued'")
    assert counted == {"n": 7}


async def test_people_get_a_table_and_columns_are_named_as_the_pipelines(data: Path) -> None:
    lines = ask(data, "SELECT state, count(*) AS n FROM jobs GROUP BY 1 ORDER BY 1").splitlines()
    assert lines[0].split() == ["state", "n"]
    assert [line.split() for line in lines[1:]] == [
        ["dead", "3"], ["scheduled", "1"], ["succeeded", "3"],
    ]  # fmt: skip
    named = [row["column_name"] for row in rows(data, "DESCRIBE attempts")]
    assert named[-9:-3] == ["outcome", "reason", "wait_ns", "run_ns", "is_over", "date"]
    assert named[-3:] == ["state", "wait_seconds", "run_seconds"]
    assert "part" not in named
    assert "date" in [row["column_name"] for row in rows(data, "DESCRIBE records")]


async def test_steps_are_what_the_log_says(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data")

    @app.task(name="order")
    async def order() -> int:
        assert await durable.step("charge", str, 7) == "7"
        await durable.event("never", int)
        raise AssertionError("nobody signals")

    async with app:
        await order.enqueue()
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
    query = "SELECT name, number, form, attempt, size_bytes, took_ns >= 0 AS took FROM steps"
    charge = {"name": "charge", "number": 1, "form": "step", "attempt": 1, "size_bytes": 3}
    assert rows(tmp_path / "data", query) == [charge | {"took": True}]


@pytest.mark.parametrize("queries", [
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM tables",
        "SELECT getenv('HOME')",
        "COPY records TO '{secret}.csv'",
        "ATTACH '{secret}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SELECT 1; SELECT * FROM read_text('{secret}')",
        "CREATE TABLE other AS SELECT 1",
        "PRAGMA database_list; SELECT 1",
        "",
        "SELECT nothing FROM jobs",
    ]
])  # fmt: skip
async def test_a_question_reads_only_tables(data: Path, tmp_path: Path, queries: list[str]) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nhunter2\n")
    before = files(tmp_path)
    for query in queries:
        shown = ask(data, query.format(secret=secret), code=2)
        assert shown.startswith("taskq: ")
        assert "hunter2" not in shown
        assert files(tmp_path) == before
    assert "The tables are: records, jobs, attempts, steps" in shown.splitlines()[0]


async def test_a_case_file_answers_too(data: Path, tmp_path: Path) -> None:
    case = tmp_path / "case.zip"
    result = CliRunner().invoke(main, ["report", str(data), "-o", str(case)])
    assert result.exit_code == 0, result.output
    asked = "SELECT job_id, state, attempt FROM jobs ORDER BY job"
    assert rows(case, asked) == rows(data, asked)


# -- the logs of a fleet ---------------------------------------------------------------------------


def fleet(tmp_path: Path) -> tuple[Path, list[MadeLog]]:
    hub = tmp_path / "hub"
    made = [MadeLog(hub / "devices" / f"edge-{number}" / "log") for number in range(3)]
    (hub / "serve.lock").touch()
    for number, log in enumerate(made):
        first = log.enqueue(2 + number).first_lsn
        log.frame(claimed(first), succeeded(first, log.next_lsn, log.next_lsn + 1))
    return hub, made


def test_a_hub_answers_for_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, _ = fleet(tmp_path)
    query = "SELECT device, state, count(*) n FROM jobs GROUP BY ALL ORDER BY ALL"
    expected = [
        {"device": f"edge-{number}", "state": state, "n": count}
        for number in range(3)
        for state, count in (("ready", 1 + number), ("succeeded", 1))
    ]
    assert rows(hub, query) == expected
    monkeypatch.setattr("taskq_plugins.spark.log_tables._FOLDED_BYTES", 100)
    assert rows(hub, query) == expected
    both = "SELECT count(*) n FROM jobs JOIN attempts USING (log_id, job) JOIN records USING (job)"
    assert rows(hub, both) == [{"n": 27}]


def test_what_cannot_be_read_is_named_and_the_others_answer(tmp_path: Path) -> None:
    hub, made = fleet(tmp_path)
    damage(made[0].frames[0])
    (made[1].path / "taskq.json").write_text('{"format": 99}')
    query = "SELECT device, count(*) n FROM records WHERE kind != 'break' GROUP BY 1 ORDER BY 1"
    result = CliRunner().invoke(main, ["sql", query, "-d", str(hub), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {"device": "edge-0", "n": 3}, {"device": "edge-2", "n": 6},
    ]  # fmt: skip
    newer, damaged = sorted(result.stderr.splitlines())
    assert "edge-0/log/log" in newer
    assert "edge-1/log/taskq.json" in damaged


def test_a_restored_logs_records_count_once(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "logs" / "old")
    made.enqueue(3)
    made.frame(claimed(1))
    child = made.child(tmp_path / "logs" / "new")
    child.frame(succeeded(1, 4, child.next_lsn))
    child.enqueue(2)
    assert rows(tmp_path / "logs", "SELECT count(*) n FROM records") == [{"n": 7}]
    query = "SELECT device, job, state FROM jobs WHERE job = 1 AND continued_in IS NULL"
    assert rows(tmp_path / "logs", query) == [{"device": "new", "job": 1, "state": "succeeded"}]
    ended = "SELECT device, job FROM attempts WHERE outcome = 'succeeded'"
    assert rows(tmp_path / "logs", ended) == [{"device": "new", "job": 1}]
