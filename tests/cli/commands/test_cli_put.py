"""Commands that enqueue: put of bytes and calls, and a replay of the past."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from taskq import TaskQ
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


def test_a_payload_over_the_limit_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(2**33)
    result = taskq("put", "-d", tmp_path / "q", f"@{big}")
    assert result.exit_code == 2
    way_out = "bytes: put the data into a file and pass its path"
    assert f"over {PAYLOAD_BYTES_MAX} {way_out}" in result.stderr


@pytest.mark.parametrize("words", [["--compress", "zlib"], ["--compress", "zstd"], ["-t", "task"]])
def test_a_long_payload_is_shown_as_it_was_given(tmp_path: Path, words: list[str]) -> None:
    text = "the same words again and again, " * 200
    job = put(tmp_path, *words, json.dumps({"a": text}))
    assert taskq_json("show", job, "-d", tmp_path)["payload"]["data"] == {"a": text}
    assert text in taskq("show", job, "-d", tmp_path).stdout


SHOP = """
from taskq import TaskQ, retry
app = TaskQ("elsewhere", durability="os")

@app.task(queue="mail", priority=7, retry=3, expires="1d")
def send(to: str, count: int = 1) -> None: ...
"""


def test_put_of_a_task_takes_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_to_put.py").write_text(SHOP)
    (tmp_path / "bare_to_put.py").write_text(SHOP.partition("@")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("-A", "shop_to_put:app", "-t", "shop_to_put.send", '{"to": "a@b.c"}')
    shown = taskq_json("show", put(tmp_path / "data", *words, "--priority", "9"), "-d", "data")
    assert (shown["queue"], shown["priority"], shown["attempts_max"]) == ("mail", 9, 3)
    assert shown["expires_at"] is not None
    done = taskq("put", "-d", "data", "-A", "bare_to_put", "-t", "shop.send", "{}")
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
