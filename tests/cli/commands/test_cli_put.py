"""Commands that enqueue: put of bytes and calls, and a replay of the past."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.model import PAYLOAD_BYTES_MAX
from tests.cli.helpers import taskq, taskq_json
from tests.programs import run_taskq


def put(path: Path, *arguments: str, data: bytes | None = None) -> str:
    result = taskq("put", "-d", path, *arguments, data=data)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_the_first_put_starts_a_log_and_says_so(tmp_path: Path) -> None:
    first = taskq("put", "-d", tmp_path / "q", "hello")
    again = taskq("put", "-d", tmp_path / "q", "hello")
    assert first.stderr == f"taskq: started a new task log in {tmp_path / 'q'}\n"
    assert again.stderr == ""
    assert first.stdout != again.stdout


@pytest.mark.parametrize("source", ["argument", "file", "stdin", "dash"])
def test_the_payload_comes_from_where_it_is_said_to(tmp_path: Path, source: str) -> None:
    body = "grüße\n".encode()
    (tmp_path / "body").write_bytes(body)
    words = {"argument": [body.decode()], "file": [f"@{tmp_path / 'body'}"], "dash": ["-"]}
    job = put(tmp_path / "q", *words.get(source, []), data=body)
    shown = taskq_json("show", job, "-d", tmp_path / "q")
    assert shown["payload"] == {"encoding": "text", "data": "grüße\n"}
    assert (shown["queue"], shown["task"], shown["priority"]) == ("default", None, 5)


def test_bytes_that_were_put_can_be_claimed(tmp_path: Path) -> None:
    job = put(tmp_path, "-Q", "raw", data=b"\xff\x00")

    async def claimed() -> tuple[str, bytes]:
        async with TaskLog.open(tmp_path) as log:
            (delivery,) = await log.claim(queues=["raw"])
            await log.ack(delivery)
            return delivery.job_id, delivery.payload

    assert asyncio.run(claimed()) == (job, b"\xff\x00")


def test_options_reach_the_job(tmp_path: Path) -> None:
    options = "-Q mail --priority 8 --attempts 2 --delay 90 --expires 1d --header a=b=c --key 123"
    job = taskq_json("show", put(tmp_path, "x", *options.split()), "-d", tmp_path)
    assert job["headers"] == {"a": "b=c"}
    assert (job["queue"], job["priority"], job["attempts_max"]) == ("mail", 8, 2)
    assert (job["state"], job["key"]) == ("scheduled", "123")
    assert job["due_at"] < job["expires_at"]


def test_a_call_is_enqueued_by_its_tasks_name(tmp_path: Path) -> None:
    job = put(tmp_path, "--task", "mail.send", '{"to": "a@b.c", "n": 1}', "-Q", "mail")
    shown = taskq_json("show", job, "-d", tmp_path)
    assert (shown["task"], shown["queue"]) == ("mail.send", "mail")
    assert shown["payload"]["data"] == {"to": "a@b.c", "n": 1}


def test_a_call_without_arguments_needs_no_payload(tmp_path: Path) -> None:
    shown = taskq_json("show", put(tmp_path, "--task", "tick", data=b""), "-d", tmp_path)
    assert shown["payload"]["data"] == {}


def test_a_taken_key_returns_the_job_that_holds_it(tmp_path: Path) -> None:
    first = put(tmp_path, "a", "--key", "k")
    second = taskq("put", "-d", tmp_path, "b", "--key", "k")
    assert second.stdout.strip() == first
    assert "holds the key" in second.stderr
    assert taskq_json("put", "-d", tmp_path, "b", "--key", "k") == {"id": first, "duplicate": True}


def test_a_taken_key_is_refused_or_taken_over_as_asked(tmp_path: Path) -> None:
    held = ("--key", "k", "--window", "1h", "--until", "settled")
    first = put(tmp_path, "a", *held)
    refused = taskq("put", "-d", tmp_path, "b", "--key", "k", "--on-conflict", "raise")
    assert refused.exit_code == 1
    assert first in refused.stderr
    second = put(tmp_path, "c", *held, "--on-conflict", "replace", "--keep", "never")
    assert second != first
    assert taskq_json("show", first, "-d", tmp_path)["state"] == "cancelled"
    assert taskq_json("show", second, "-d", tmp_path)["key"] == "k"


def test_a_payload_over_the_limit_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(2**33)
    result = taskq("put", "-d", tmp_path / "q", f"@{big}")
    assert result.exit_code == 2
    assert f"over {PAYLOAD_BYTES_MAX} bytes" in result.stderr


def test_a_payload_is_stored_as_it_was_told_and_shown_as_it_was_given(tmp_path: Path) -> None:
    text = "the same words again and again, " * 200
    (tmp_path / "large").write_bytes(bytes(PAYLOAD_BYTES_MAX + 1))
    refused = taskq("put", "-d", tmp_path / "q", f"@{tmp_path / 'large'}")
    assert refused.exit_code == 2
    assert "over 16777216 bytes: put the data into a file and pass its path" in refused.output
    for options in (["--compress", "zlib"], ["--compress", "zstd"], ["-t", "task"]):
        body = json.dumps({"a": text}) if "-t" in options else text
        job = put(tmp_path / "q", *options, body)
        data = {"a": text} if "-t" in options else text
        assert taskq_json("show", job, "-d", tmp_path / "q")["payload"]["data"] == data
        assert text in taskq("show", job, "-d", tmp_path / "q").stdout
    unknown = taskq("put", "-d", tmp_path / "q", "--compress", "gzip", "x")
    assert unknown.exit_code == 2


SHOP = """
from taskq import TaskQ, retry
app = TaskQ("elsewhere", durability="os")

@app.task(queue="mail", priority=7, retry=3, expires="1d")
def send(to: str, count: int = 1) -> None: ...
"""


def test_put_of_a_task_takes_its_own_options_and_checks_with_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_to_put.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = tmp_path / "data"
    given = ("put", "-d", data, "-A", "shop_to_put:app", "-t", "shop_to_put.send")
    done = taskq(*given, '{"to": "a@b.c"}', "--priority", "9")
    assert done.exit_code == 0
    assert "no worker" not in done.stderr
    shown = taskq_json("show", "-d", data, done.stdout.strip())
    assert (shown["queue"], shown["priority"], shown["attempts_max"]) == ("mail", 9, 3)
    assert shown["expires_at"] is not None
    done = taskq(*given, '{"to": 3}')
    assert (done.exit_code, "parameter 'to' must be str" in done.stderr) == (2, True)
    done = taskq(*given[:-1], "shop_to_put.sned", "{}")
    assert done.exit_code == 2
    assert "has no task 'shop_to_put.sned': did you mean 'shop_to_put.send'?" in done.stderr
    assert taskq("put", "-d", data, "-A", "shop_to_put:app", "x").exit_code == 2
    (tmp_path / "bare_to_put.py").write_text(SHOP.partition("@")[0])
    done = taskq("put", "-d", data, "-A", "bare_to_put", "-t", "shop.send", "{}")
    assert done.exit_code == 2
    assert "no task is registered with it; give -A the module that defines them" in done.stderr


async def test_put_warns_of_a_task_that_no_worker_knows(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os")
    app.task(name="known")(abs)
    done = await asyncio.to_thread(taskq, "put", "-d", tmp_path, "-t", "known", '{"*": [1]}')
    assert done.exit_code == 0
    assert "no worker that runs here now knows the task known: it waits until" in done.stderr
    async with app, app.worker():
        for _ in range(2):
            await app.stats()
        for name in ("known", "knwon"):
            words = ("put", "-d", tmp_path, "-t", name, '{"*": [1]}')
            run = await asyncio.to_thread(run_taskq, *words, check=True)
            assert ("no worker" in run.stderr) is (name == "knwon")
