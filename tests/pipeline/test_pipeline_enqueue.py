"""``taskq pipeline enqueue``: one job for each row of a file, in a process without Java."""

import json
import shlex
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from taskq.cli.main import main
from taskq.core.records import Flag
from taskq_plugins.spark import bulk_command, bulk_files
from tests.pipeline import kit
from tests.pipeline.kit import fill, jobs
from tests.programs import run_python

ROWS: list[dict[str, Any]] = [
    {"to": "a@b.c", "n": 1},
    {"to": 'd,"e"\nf', "n": None},
    {"to": "", "n": 3},
]
BODIES = [
    b'{"to":"a@b.c","n":1}', b'{"to":"d,\\"e\\"\\nf","n":null}', b'{"to":"","n":3}'
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_settings")


def enqueue(*arguments: object, task: str = "t", to: str = "data") -> Result:
    words = [str(argument) for argument in arguments]
    shown = ["--task", task] if task else []
    return CliRunner().invoke(main, ["pipeline", "enqueue", *words, *shown, "--to", to])


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        cells = ['a@b.c,1\n"d,""e""\nf",\n"",3\n']
        path.write_text("".join(["to,n\n", *cells]))
    return path


def bodies(data_dir: Path) -> list[bytes]:
    return [job.body or b"" for job in jobs(data_dir)]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.jsonl"])
def test_each_row_is_a_job_and_a_second_run_does_nothing(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name)
    done = enqueue(file)
    assert (done.exit_code, done.output) == (0, f"enqueued 3 jobs in {tmp_path}/data\n")
    assert bodies(tmp_path / "data") == BODIES
    again = enqueue(file)
    assert again.exit_code == 0
    assert "these 3 jobs were enqueued before (upload file-" in again.output
    assert len(bodies(tmp_path / "data")) == 3
    assert json.loads(enqueue(file, "--json").output)["enqueued_before"] is True
    assert enqueue(file, "--again").output.startswith("enqueued 3 jobs")
    assert len(bodies(tmp_path / "data")) == 6


def test_other_options_or_another_directory_are_another_upload(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.csv")
    for words in ([], ["--priority", 1], ["--key", "n"], ["--text", "n"], ["--header", "a=b"]):
        assert enqueue(file, *words).output.startswith("enqueued 3 jobs"), words
    assert enqueue(file, to="other").output.startswith("enqueued 3 jobs")
    assert enqueue(file, "--name", "mine").output.startswith("enqueued 3 jobs")
    write(tmp_path / "rows.csv").write_text("x\n1\n")
    assert "upload mine" in enqueue(file, "--name", "mine").output


def test_pipeline_enqueue_has_the_options_of_enqueue(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.parquet", [{"to": "a", "n": 7}])
    words = ["-Q", "mail", "--priority", 9, "--attempts", 0, "--key", "n", "--window", "1h",
             "--until", "settled", "--header", "a=b=c", "--keep", "30d"]  # fmt: skip
    assert enqueue(file, *words).exit_code == 0
    (job,) = jobs(tmp_path / "data")
    extras = job.extras
    assert extras is not None
    assert (job.queue, job.priority, job.attempts_max) == ("mail", 9, 0)
    assert (extras.key, extras.window_ns, extras.until_settled) == (b"7", 3600 * 10**9, True)
    assert (extras.headers, extras.keep_ns) == ({"a": "b=c"}, 30 * 86_400 * 10**9)
    assert job.body == b'{"to":"a","n":7}'


def test_text_of_a_csv_stays_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("zip,day\n00123,2024-02-29\n,2024-03-01\n")
    enqueue(file, "--text", "zip")
    assert bodies(tmp_path / "data") == [
        b'{"zip":"00123","day":"2024-02-29"}', b'{"zip":null,"day":"2024-03-01"}'
    ]  # fmt: skip


def test_lines_of_json_are_calls_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"to": "a", "at": "2024-01-01T00:00:00"}\n\n'
        '{"n": 1.0, "task": "other", "priority": 9, "headers": {"a": "b"}, "delay": 5}\n'
        '{"value": {"x": [1, null]}, "key": "k", "expires": "2099-01-01T00:00:00Z"}\n'
    )
    assert enqueue(file).exit_code == 0
    first, second, third = jobs(tmp_path / "data")
    assert first.body == b'{"to":"a","at":"2024-01-01T00:00:00"}'
    assert (second.task, second.priority, second.body) == ("other", 9, b'{"n":1.0}')
    assert second.extras is not None
    assert second.extras.headers == {"a": "b"}
    assert second.extras.due_ns > 0
    assert (third.body, third.extras and third.extras.key) == (b'{"x":[1,null]}', b"k")
    assert third.extras is not None
    assert third.extras.expires_is_wall


def test_a_dry_run_checks_every_row_and_writes_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.csv")
    assert enqueue(file, "--dry-run").output == (
        f"would enqueue 3 jobs in {tmp_path}/data, enqueued nothing\n"
    )
    assert not (tmp_path / "data").exists()
    assert json.loads(enqueue(file, "--dry-run", "--json").output)["jobs"] == 3
    wrong = write(tmp_path / "wrong.jsonl", [{"number": "x"}])
    jobs = "tests.samples.backlog_jobs"
    refused = enqueue(wrong, "--dry-run", "--app", f"{jobs}:app", task=f"{jobs}.nap")
    assert "parameter 'number' must be int" in refused.output


def test_a_changing_type_in_a_csv_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_files, "_BLOCK_BYTES", 1_000)
    file = tmp_path / "rows.csv"
    file.write_text("n\n" + "123456789\n" * 500 + "x\n")
    failed = enqueue(file)
    assert failed.exit_code == 1
    assert "does not read after row" in failed.output
    assert "name it with --text" in failed.output
    assert not list(tmp_path.glob("data/uploads/**/*.*"))


def test_a_file_that_changes_while_it_is_read_is_not_enqueued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = count()
    monkeypatch.setattr(bulk_command, "_version", lambda _: next(versions))
    failed = enqueue(write(tmp_path / "rows.csv"))
    assert (failed.exit_code, "was changed while it was read" in failed.output) == (1, True)
    assert not list(tmp_path.glob("data/uploads/**/*.*"))


def test_rows_without_a_task_need_payloads(tmp_path: Path) -> None:
    failed = enqueue(write(tmp_path / "rows.csv"), task="")
    assert "add option 'task' or a column 'task'" in failed.output
    (tmp_path / "v.csv").write_text("value\nplain\n")
    assert enqueue("v.csv", task="").exit_code == 0
    assert bodies(tmp_path / "data") == [b"plain"]


def test_jobs_whose_key_is_held_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"n": 1}, {"n": 2}, {"n": 1}])
    done = enqueue(file, "--key", "n")
    assert done.output == (
        f"enqueued 2 jobs in {tmp_path}/data\n1 job left out: another job holds the key\n"
    )
    assert json.loads(enqueue(file, "--key", "n", "--again", "--json").output)["duplicates"] == 3


def job(number: int, state: str = "dead", **changes: Any) -> dict[str, Any]:
    row = {
        "log_id": "log", "job_id": f"aa-{number}", "queue": "mail", "task": "mail.send",
        "attempts_max": 3, "enqueued_ns": 1000 - number, "payload": b'{"n":%d}' % number,
        "stores_result": True,
    }  # fmt: skip
    return kit.job(number, state=state, **{**row, **changes})


def replay(*arguments: object, where: str = "state = 'dead'", to: str = "data") -> Result:
    words = [str(argument) for argument in arguments]
    shown = ["pipeline", "replay", "--lake", "lake", "--where", where, "--to", to, *words]
    return CliRunner().invoke(main, shown)


def test_nothing_is_enqueued_until_it_is_said_twice(tmp_path: Path) -> None:
    fill(tmp_path / "lake", [job(1), job(2), job(3, "succeeded")])
    plan = replay(where="task = 'mail.send' AND job < 3")
    assert plan.exit_code == 0
    assert "aa-2" in plan.output
    assert "would enqueue 2 jobs once more (2 dead), enqueued nothing" in plan.output
    assert not (tmp_path / "data").exists()
    command = plan.output.splitlines()[-1]
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.output.startswith("enqueued 2 jobs once more (run ")
    assert len(jobs(tmp_path / "data")) == 2


def test_new_jobs_are_the_old_ones_but_for_key_and_times(tmp_path: Path) -> None:
    rows = [
        job(1, headers=[("a", "ä")], priority=9, attempts_max=None, stores_result=False),
        job(2, task=None, payload=None, queue="raw"),
    ]
    fill(tmp_path / "lake", rows)
    assert replay("--yes").exit_code == 0
    second, first = jobs(tmp_path / "data")  # the oldest comes first
    assert (first.queue, first.task, first.priority) == ("mail", "mail.send", 9)
    assert (first.attempts_max, first.body) == (0, b'{"n":1}')
    assert first.flags & Flag.DROP_RESULT
    assert first.extras is not None
    assert first.extras.headers == {"a": "ä", "replay_of": "aa-1"}
    assert (second.queue, second.task, second.body) == ("raw", "", b"")
    assert second.extras is not None
    assert second.extras.headers == {"replay_of": "aa-2"}
    assert not second.flags & Flag.DROP_RESULT


def test_a_run_is_done_once_under_its_name(tmp_path: Path) -> None:
    made = fill(tmp_path / "lake", [job(1)])
    assert replay("--yes").output.startswith("enqueued 1 job once more")
    fill(tmp_path / "lake", [job(1), job(2)])
    again = replay("--yes", where="state  =\n'dead'")
    assert again.exit_code == 0
    assert "was done before, so nothing was enqueued; name another with --run" in again.output
    assert json.loads(replay("--yes", "--json").output)["done_before"] is True
    for name in ("a/b", "x" * 200):
        failed = replay("--yes", "--run", name)
        assert (failed.exit_code, "run name" in failed.output) == (2, True)
    assert len(jobs(tmp_path / "data")) == 1
    assert replay("--yes", "--run", "second").output == "enqueued 2 jobs once more (run second)\n"
    assert replay("--yes", where="job = 1").output.startswith("enqueued 1 job once more")
    assert len(jobs(tmp_path / "data")) == 4
    assert sum(file.rows for file in made.files("jobs")) == 2


def test_jobs_that_are_not_over_are_left_alone(tmp_path: Path) -> None:
    live = [job(2, "ready"), job(3, "running"), job(4, "scheduled"), job(5)]
    fill(tmp_path / "lake", [job(1, "expired"), *live])
    assert "3 jobs that fit are not over yet, and are left alone" in replay(where="true").output
    assert "3 jobs that fit" in replay("--yes", where="true").output
    assert sorted(item.body or b"" for item in jobs(tmp_path / "data")) == [b'{"n":1}', b'{"n":5}']
    nothing = replay("--yes", where="state = 'ready'")
    assert nothing.output.startswith("no job that is over fits: enqueued nothing")
    assert replay(where="job = 99").output == "no job that is over fits: nothing to replay\n"


def test_jobs_that_cannot_be_replayed_are_reported_and_the_rest_is_enqueued(tmp_path: Path) -> None:
    rows = [job(1), job(2, payload=None), job(4, headers=[("a", "x" * 32_760)])]
    fill(tmp_path / "lake", rows)
    done = replay("--yes")
    assert done.exit_code == 1
    assert "enqueued 1 job once more" in done.output
    assert "aa-2: its payload is not in the lake" in done.output
    assert "aa-4: the headers has" in done.output
    shown = json.loads(replay("--yes", "--json", "--run", "2").output)
    assert (shown["count"], shown["problems"], shown["errors"][0]["id"]) == (1, 2, "aa-4")


def test_replays_and_enqueues_load_no_spark(tmp_path: Path) -> None:
    fill(tmp_path / "lake", [job(1)])
    (tmp_path / "rows.csv").write_text("n\n1\n2\n")
    commands = [
        ["replay", "--lake", "lake", "--where", "state = 'dead'", "--to", "data", "--yes"],
        ["enqueue", "rows.csv", "--task", "t", "--to", "data"],
    ]
    program = (
        "import sys\n"
        "from taskq.cli.main import main\n"
        f"for words in {commands!r}:\n"
        "    try: main(['pipeline', *words])\n"
        "    except SystemExit as end: assert not end.code, words\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = run_python("-c", program, check=True, cwd=tmp_path)
    assert "enqueued 1 job once more (run " in done.stdout
    assert "enqueued 2 jobs in " in done.stdout
