"""A death is told as durably as a success is: its message is in the frame of the death."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from taskq import DeadLetter, TaskQ
from taskq.errors import UsageError
from taskq.shards.layout import Shards
from taskq_plugins.webhooks import Webhooks
from tests.webhooks.test_webhooks import SECRET, URL, Receiver, burst, tasks_of

if TYPE_CHECKING:
    from pathlib import Path

#: A worker that is killed by the first hook that hears of a death, before any other is called.
KILLED = """
import os, signal, sys
from taskq import TaskQ
from taskq_plugins.webhooks import Webhooks
app = TaskQ(sys.argv[1], durability="os")
app.on_dead(lambda letter: os.kill(os.getpid(), signal.SIGKILL))
Webhooks(app, sys.argv[2], sys.argv[3])

@app.task(name="broken", retry=1)
async def broken():
    raise ValueError("no use")

@app.task(name="kills", retry=1)
async def kills():
    os.kill(os.getpid(), signal.SIGKILL)

app.run_worker(burst=True)
"""


def run_killed(path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(path), URL, SECRET]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("task", "workers"),
    [
        pytest.param("broken", 1, id="a worker's own death letter"),
        pytest.param("kills", 2, id="that of a job taken back from a killed worker"),
    ],
)
async def test_a_kill_between_a_death_and_its_hooks_loses_no_message(
    tmp_path: Path, task: str, workers: int
) -> None:
    receiver, app = Receiver(), TaskQ(tmp_path, durability="os")
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    tasks_of(app)
    async with app:
        job = await app.enqueue(app.call_by_name(task).options(attempts=1))
    for _ in range(workers):
        await asyncio.to_thread(run_killed, tmp_path)
    async with app:
        assert (await job.view()).state.name == "DEAD"
        await app.worker(burst=True).run()
    assert receiver.told() == [("job.dead", task)]


@pytest.mark.parametrize("kind", ["logs", "shards"])
async def test_deaths_in_each_of_several_logs_are_told(tmp_path: Path, kind: str) -> None:
    logs = [tmp_path / "a", tmp_path / "b"]
    receiver = Receiver()
    if kind == "shards":
        app = TaskQ(shards=Shards(tmp_path / "root", bits=1), durability="os")
        options: dict[str, Any] = {}
    else:
        app, options = TaskQ(tmp_path / "own", durability="os"), {"logs": logs}
    Webhooks(app, URL, SECRET, events=["dead"], transport=receiver.transport)
    tasks_of(app)
    async with app:
        others = [TaskQ(path, durability="os") for path in logs]
        for log in app.logs() if kind == "shards" else others:
            async with log:
                await log.enqueue_by_name("broken")
        for _ in range(2):
            await app.worker(burst=True, **options).run()
    assert receiver.told() == [("job.dead", "broken")] * 2


async def test_what_a_hook_enqueues_goes_into_the_log_of_the_death(tmp_path: Path) -> None:
    app, there = TaskQ(tmp_path / "own", durability="os"), tmp_path / "there"
    heard = asyncio.Event()

    @app.task(name="page")
    async def page(job: str) -> None:
        heard.set()

    @app.on_dead
    async def hook(letter: DeadLetter) -> None:
        assert (await app.job(letter.job_id).status()).name == "DEAD"
        await page.enqueue(letter.job_id)

    tasks_of(app)
    other = TaskQ(there, durability="os")
    async with app, other:
        await other.enqueue_by_name("broken")
        async with app.worker(logs=[there]):
            await asyncio.wait_for(heard.wait(), 20)


# -- a task that hears of deaths -------------------------------------------------------------------


async def test_a_task_hears_of_each_death_but_those_of_its_own_jobs(tmp_path: Path) -> None:
    app, heard = TaskQ(tmp_path, durability="os"), list[object]()

    @app.on_dead
    @app.task(name="tell", retry=1)
    async def tell(letter: DeadLetter) -> None:
        heard.append((letter.task, letter.attempt, letter.cause, letter.reason.partition("\n")[0]))
        raise ValueError("the pager is away")

    @app.task(name="of_one")
    async def of_one(letter: DeadLetter) -> None:
        heard.append(("of_one", letter.task))

    tasks_of(app)

    @app.task(name="other", retry=1, on_dead=of_one)
    async def other() -> None:
        raise KeyError("x")

    await burst(app, other.call(), app.call_by_name("broken"))
    assert sorted(map(str, heard)) == sorted(map(str, [
        ("other", 1, "exhausted", "KeyError: 'x'"),
        ("broken", 2, "exhausted", "ValueError: no use"),
        ("of_one", "other"),
    ]))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({}, int, "tell is to hear of deaths: let it take one letter: DeadLetter"),
        ({"key": lambda letter: letter.job_id}, DeadLetter, "leave key and concurrency_key out"),
        (
            {"concurrency_key": lambda _: "x", "rate": "1/s"},
            DeadLetter,
            "leave key and concurrency_key out",
        ),
    ],
)
async def test_a_task_that_cannot_hear_of_deaths_is_refused_at_the_start(
    tmp_path: Path, options: dict[str, Any], parameter: type, message: str
) -> None:
    app = TaskQ(tmp_path, durability="os")

    async def tell(letter: Any) -> None: ...

    tell.__annotations__["letter"] = parameter
    app.on_dead(app.task(name="tell", **options)(tell))
    async with app:
        with pytest.raises(UsageError, match=message):
            await app.worker().start()
    with pytest.raises(UsageError, match="a task of another app"):
        TaskQ(tmp_path / "other").on_dead(next(iter(app.tasks.values())))
