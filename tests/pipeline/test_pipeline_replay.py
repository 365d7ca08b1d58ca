"""``taskq pipeline replay``: past jobs of a lake once more, in a process without Java."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq.core.records import Flag
from taskq_plugins.spark.lake.store import Lake
from tests.pipeline.lakes import put
from tests.pipeline.sinking import jobs
from tests.programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

_MAP = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("device", pa.string()), ("log_id", pa.string()), ("job_id", pa.string()),
        ("job", pa.int64()), ("queue", pa.string()), ("task", pa.string()),
        ("priority", pa.int32()), ("state", pa.string()), ("attempts_max", pa.int32()),
        ("enqueued_at", pa.timestamp("us", "UTC")), ("enqueued_ns", pa.int64()),
        ("settled_ns", pa.int64()), ("headers", _MAP), ("payload", pa.binary()),
        ("reason", pa.string()), ("stores_result", pa.bool_()),
    ]
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_settings")


def job(number: int, state: str = "dead", **changes: Any) -> dict[str, Any]:
    row = {
        "device": "edge-1", "log_id": "log", "job_id": f"aa-{number}", "job": number,
        "queue": "mail", "task": "mail.send", "priority": 5, "state": state, "attempts_max": 3,
        "enqueued_at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "enqueued_ns": 1000 - number,
        "settled_ns": number, "payload": b'{"n":%d}' % number, "stores_result": True,
    }  # fmt: skip
    return {**row, **changes}


def lake(path: Path, over: list[dict[str, Any]], live: list[dict[str, Any]] | None = None) -> Lake:
    """Return a lake with such a table of jobs; those in ``live`` are not over."""
    made = Lake.open(path, create=True)
    put(made, "jobs", pa.Table.from_pylist([*over, *(live or [])], SCHEMA))
    return made


def replay(*arguments: object, where: str = "state = 'dead'", to: str = "data") -> Result:
    words = [str(argument) for argument in arguments]
    shown = ["pipeline", "replay", "--lake", "lake", "--where", where, "--to", to, *words]
    return CliRunner().invoke(main, shown)


def test_nothing_is_enqueued_until_it_is_said_twice(tmp_path: Path) -> None:
    lake(tmp_path / "lake", [job(1), job(2), job(3, "succeeded")])
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
    lake(tmp_path / "lake", rows)
    assert replay("--yes").exit_code == 0
    second, first = jobs(tmp_path / "data")
    assert (first.queue, first.task, first.priority) == ("mail", "mail.send", 9)
    assert (first.attempts_max, first.body) == (0, b'{"n":1}')
    assert first.flags & Flag.DROP_RESULT
    assert first.extras is not None
    assert first.extras.headers == {"a": "ä", "replay_of": "aa-1"}
    assert (second.queue, second.task, second.body) == ("raw", "", b"")
    assert second.extras is not None
    assert second.extras.headers == {"replay_of": "aa-2"}
    assert not second.flags & Flag.DROP_RESULT


def test_the_oldest_comes_first(tmp_path: Path) -> None:
    lake(tmp_path / "lake", [job(number) for number in range(1, 6)])
    replay("--yes")
    assert [item.body for item in jobs(tmp_path / "data")] == [
        b'{"n":%d}' % n for n in (5, 4, 3, 2, 1)
    ]


def test_a_run_is_done_once_under_its_name(tmp_path: Path) -> None:
    made = lake(tmp_path / "lake", [job(1)])
    assert replay("--yes").output.startswith("enqueued 1 job once more")
    lake(tmp_path / "lake", [job(1), job(2)])
    again = replay("--yes", where="state  =\n'dead'")
    assert again.exit_code == 0
    assert "was done before, so nothing was enqueued; name another with --run" in again.output
    assert json.loads(replay("--yes", "--json").output)["done_before"] is True
    assert len(jobs(tmp_path / "data")) == 1
    assert replay("--yes", "--run", "second").output == "enqueued 2 jobs once more (run second)\n"
    assert replay("--yes", where="job = 1").output.startswith("enqueued 1 job once more")
    assert len(jobs(tmp_path / "data")) == 4
    assert sum(file.rows for file in made.files("jobs")) == 2


@pytest.mark.parametrize("name", ["a/b", "x" * 200])
def test_a_name_that_no_run_can_have_is_refused_before_jobs_are_read(
    name: str, tmp_path: Path
) -> None:
    lake(tmp_path / "lake", [job(1)])
    failed = replay("--yes", "--run", name)
    assert (failed.exit_code, "run name" in failed.output) == (2, True)
    assert not (tmp_path / "data").exists()


def test_jobs_that_are_not_over_are_left_alone(tmp_path: Path) -> None:
    live = [job(2, "ready"), job(3, "running"), job(4, "scheduled"), job(5)]
    lake(tmp_path / "lake", [job(1, "expired")], live)
    assert "3 jobs that fit are not over yet, and are left alone" in replay(where="true").output
    assert "3 jobs that fit" in replay("--yes", where="true").output
    assert sorted(item.body or b"" for item in jobs(tmp_path / "data")) == [b'{"n":1}', b'{"n":5}']
    nothing = replay("--yes", where="state = 'ready'")
    assert nothing.output.startswith("no job that is over fits: enqueued nothing")
    assert replay(where="job = 99").output == "no job that is over fits: nothing to replay\n"


def test_what_cannot_be_replayed_is_told_and_the_rest_is_done(tmp_path: Path) -> None:
    rows = [
        job(1),
        job(2, payload=None),
        job(4, headers=[("a", "x" * 32_760)]),
    ]
    lake(tmp_path / "lake", rows)
    done = replay("--yes")
    assert done.exit_code == 1
    assert "enqueued 1 job once more" in done.output
    assert "aa-2: its payload is not in the lake" in done.output
    assert "aa-4: the headers has" in done.output
    shown = json.loads(replay("--yes", "--json", "--run", "2").output)
    assert (shown["count"], shown["problems"], shown["errors"][0]["id"]) == (1, 2, "aa-4")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("stat = 'dead'", "The columns of jobs are: device, log_id, job_id"),
        ("state =", "--where 'state =': Parser Error"),
        ("true); DROP TABLE jobs; SELECT (1", "Parser Error"),
        ("true; DROP TABLE jobs", "Parser Error"),
        ("true) OR (true", "Parser Error"),
        ("job_id IN (SELECT content FROM read_text('/etc/hostname'))", "--where"),
        ("reason", "--where 'reason'"),
    ],
)
def test_a_condition_that_does_not_read_is_refused(where: str, words: str, tmp_path: Path) -> None:
    lake(tmp_path / "lake", [job(1, reason="x")])
    for yes in ([], ["--yes"]):
        failed = replay(*yes, where=where)
        assert (failed.exit_code, words in failed.output) == (2, True), failed.output
        assert not list(tmp_path.glob("data/uploads/**/*.*"))


def test_no_lake_is_told(tmp_path: Path) -> None:
    failed = replay("--yes")
    assert failed.exit_code == 1
    assert "lake: is not a lake" in failed.output


def test_replays_and_enqueues_load_no_spark(tmp_path: Path) -> None:
    lake(tmp_path / "lake", [job(1)])
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
