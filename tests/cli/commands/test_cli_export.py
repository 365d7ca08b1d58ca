"""``taskq export``: JSON lines and Parquet, whole or not at all."""

from __future__ import annotations

import asyncio
import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from taskq import TaskLog
from taskq.arrow import DETAILS
from taskq.extras import install_line
from tests.cli.helpers import Sample, taskq, taskq_json


def lines(*arguments: object) -> list[dict[str, Any]]:
    result = taskq("export", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_job_is_a_line_with_its_attempts(sample: Sample) -> None:
    jobs = {job["id"]: job for job in lines("-d", sample.path)}
    assert jobs.keys() == set(sample.ids.values())
    done, dead = jobs[sample.ids["succeeded"]], jobs[sample.ids["dead"]]
    assert (done["payload"]["data"], done["result"]["data"]) == ({"n": 1}, "done")
    assert done["state"] == "succeeded"
    assert dead["payload"] == {"encoding": "base64", "data": "/wA="}
    assert dead["headers"] == {"from": "here"}
    assert [job["outcome"] for job in jobs[sample.ids["retried"]]["attempts"]] == ["retried"]


def test_what_only_python_takes_for_json_is_exported_as_text_or_bytes(tmp_path: Path) -> None:
    """A line that another program cannot read would be worse than none."""

    async def fill() -> None:
        async with TaskLog.open(tmp_path / "q") as log:
            await log.put_many([])
            for body in (b"NaN", b"[Infinity]", b"[" * 100_000, b'"\xed\xa0\x80"', b"1e5"):
                await log.put(body)

    asyncio.run(fill())
    answer = lines("-d", tmp_path / "q")
    encodings = [job["payload"]["encoding"] for job in answer]
    assert encodings == ["text", "text", "text", "base64", "json"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--state", "dead"], {"dead"}),
        (["-s", "dead", "-s", "cancelled"], {"dead", "cancelled"}),
        (["--queue", "mail"], {"task"}),
        (["--task", "mail.send"], {"task"}),
        (["--since", "1h"], {"succeeded", "dead", "retried", "cancelled", "bytes", "task"}),
        (["--before", "1h"], set()),
    ],
)
def test_jobs_are_chosen(sample: Sample, options: list[str], names: set[str]) -> None:
    answer = {job["id"] for job in lines("-d", sample.path, *options)}
    assert answer == {sample.ids[name] for name in names}


def test_records_are_exported_in_their_order(sample: Sample) -> None:
    records = lines("-d", sample.path, "--records")
    lsns = [record["lsn"] for record in records]
    assert lsns == sorted(lsns)
    assert {"enqueued", "claimed", "succeeded", "dead", "owner"} <= {r["kind"] for r in records}
    mail = lines("-d", sample.path, "--records", "--queue", "mail")
    assert [record["kind"] for record in mail] == ["enqueued"]
    assert mail[0]["payload"] == {"encoding": "json", "data": {"to": "a@b.c"}}
    assert lines("-d", sample.path, "--records", "--before", "1h") == []


def test_a_record_is_the_same_document_in_tail_and_export(sample: Sample) -> None:
    """Only tail names the job of each record; export does where it filters by name."""
    tailed = taskq("tail", "-n", "10000", "--json", "-d", sample.path).stdout.splitlines()
    unnamed = {"queue": None, "task": None}
    exported = [record | unnamed for record in lines("-d", sample.path, "--records")]
    assert [json.loads(line) | unnamed for line in tailed] == exported


def test_a_job_is_the_same_document_in_show_and_export(sample: Sample) -> None:
    own = {"pid", "worker", "host"}
    for job in lines("-d", sample.path):
        shown = taskq_json("show", job["id"], "-d", sample.path)
        for attempt in (*shown["attempts"], *job["attempts"]):
            for name in own:
                del attempt[name]
        assert job == {name: shown[name] for name in job}


def test_parquet_holds_the_same_jobs(sample: Sample, tmp_path: Path) -> None:
    target = tmp_path / "jobs.parquet"
    result = taskq("export", "-d", sample.path, "-o", target)
    assert result.exit_code == 0, result.output
    assert f"wrote {len(sample.ids)} jobs to {target}" in result.stderr
    rows = parquet.read_table(target).to_pylist()
    answer = lines("-d", sample.path)
    assert [row["id"] for row in rows] == [job["id"] for job in answer]
    assert [row["state"] for row in rows] == [job["state"] for job in answer]
    by_id = {row["id"]: row for row in rows}
    dead = by_id[sample.ids["dead"]]
    assert dead["payload"] == b"\xff\x00"
    assert dict(dead["headers"]) == {"from": "here"}
    assert [attempt["outcome"] for attempt in dead["attempts"]] == ["dead"]
    assert [row["enqueued_at"].isoformat() for row in rows] == [
        job["enqueued_at"] for job in answer
    ]


def _records(sample: Sample, tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    """Return the rows that ``taskq export --records`` writes as Parquet."""
    target = tmp_path / "records"
    wanted = ("--records", "--format", "parquet", "-o", target)
    result = taskq("export", "-d", sample.path, *wanted, *options)
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = parquet.read_table(target).to_pylist()
    assert f"wrote {len(rows)} record" in result.stderr
    return rows


def test_parquet_holds_the_same_records_with_the_columns_of_the_spark_source(
    sample: Sample, tmp_path: Path
) -> None:
    rows = _records(sample, tmp_path)
    answer = lines("-d", sample.path, "--records")
    assert [(row["lsn"], row["kind"], row["job_id"]) for row in rows] == [
        (record["lsn"], record["kind"], record["id"] or None) for record in answer
    ]
    assert [row["timestamp"].isoformat() for row in rows] == [record["time"] for record in answer]
    assert list(rows[0]) == DETAILS.names
    assert {row["device"] for row in rows} == {sample.path.name}
    dead = next(row for row in rows if row["job_id"] == sample.ids["dead"])
    assert (dead["kind"], dead["value_bytes"]) == ("enqueued", b"\xff\x00")
    assert dict(dead["headers"]) == {"from": "here"}


@pytest.mark.parametrize(
    "options",
    [
        ["--queue", "mail"],
        ["--task", "mail.send"],
        ["--queue", "none"],
        ["--since", "1h"],
        ["--before", "1h"],
        ["--since", "1h", "--queue", "mail"],
        ["--before", "1h", "--queue", "mail"],
    ],
)
def test_records_are_chosen_alike_in_every_format(
    sample: Sample, options: list[str], tmp_path: Path
) -> None:
    """A job's later records, too, which do not name its queue."""
    answer = lines("-d", sample.path, "--records", *options)
    rows = _records(sample, tmp_path, *options)
    assert [row["lsn"] for row in rows] == [record["lsn"] for record in answer]


def test_records_without_what_decodes_them_say_what_to_install(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "taskq.arrow.decoder", None)
    result = taskq("export", "-d", sample.path, "--records", "-o", tmp_path / "records.parquet")
    assert result.exit_code == 1
    assert f"{install_line('parquet')}, or export --format jsonl" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_gets_its_name_when_it_is_whole(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "jobs.jsonl"
    target.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr("taskq.cli.commands.export.json.dumps", _fail)
        assert taskq("export", "-d", sample.path, "-o", target).exit_code == 1
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    assert taskq("export", "-d", sample.path, "-o", target).exit_code == 0
    assert len(target.read_text().splitlines()) == len(sample.ids)
    assert list(tmp_path.iterdir()) == [target]


def _fail(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device", "jobs.jsonl")


def forget_pyarrow(patch: pytest.MonkeyPatch) -> None:
    """Let the command be imported anew, where pyarrow is not installed."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **more)

    for module in ("parquet", "export"):
        patch.delitem(sys.modules, f"taskq.cli.commands.{module}", raising=False)
    patch.setattr(builtins, "__import__", without)


@pytest.mark.parametrize("lines", ["--jobs", "--records"])
def test_lines_need_no_extra(sample: Sample, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    forget_pyarrow(monkeypatch)
    result = taskq("export", "-d", sample.path, lines)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("{")


def test_without_the_extra_parquet_names_it(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pyarrow(monkeypatch)
    result = taskq("export", "-d", sample.path, "-o", tmp_path / "jobs.parquet")
    assert result.exit_code == 1
    assert f"{install_line('parquet')}, or export --format jsonl" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "parquet"], "name a file with -o"),
        (["--records", "--state", "dead"], "--state is for jobs"),
        (["--since", "5"], "give a span back from now"),
        (["--since", "never"], "--since 'never': give a span back from now"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    sample: Sample, options: list[str], message: str
) -> None:
    result = taskq("export", "-d", sample.path, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_nothing_that_waits_under_a_temporary_name_is_written_to(
    sample: Sample, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out.jsonl.tmp").symlink_to(tmp_path / "victim")
    written = taskq("export", "-d", sample.path, "-o", tmp_path / "out.jsonl")
    assert written.exit_code == 0, written.output
    assert (tmp_path / "out.jsonl").read_text()
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.jsonl", "out.jsonl.tmp"]
