"""Every command, method of an app and of a handle: on one log, with ``logs=``, over shards.

A command is played by ``tests/cli/sessions.md``; a new one, or a new method, fails here until it
has a row.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from taskq import JobHandle, Shards, TaskQ, current_job
from taskq.cli.main import BUILT_IN, main
from taskq.errors import UsageError
from taskq.flows.handle import FlowHandle
from tests.cli.test_first_guesses import SESSIONS
from tests.terminal import steps

SECONDS: Final = 20

#: They take no root of shards, or need packages that may be missing.
ELSEWHERE: Final = frozenset({
    "demo", "worker", "restore", "sync", "sql", "pipeline replay", "pipeline enqueue",
})  # fmt: skip


def found(where: click.Group, before: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(main)
    for name in where.list_commands(context):
        command = where.get_command(context, name)
        if command is None or (not before and name not in BUILT_IN):
            continue
        if isinstance(command, click.Group):
            yield from found(command, (*before, name))
        takes = any(parameter.name == "data_dir" for parameter in command.params)
        if takes and (not isinstance(command, click.Group) or command.invoke_without_command):
            yield " ".join((*before, name))


def test_every_command_is_played_on_a_root_of_shards() -> None:
    (section,) = [text for text in SESSIONS if "`shards`" in text.partition("\n")[0]]
    typed = [step.typed.removeprefix("taskq ").split() for step in steps(section)]
    missing = {
        name for name in found(main)
        if not any(words[: len(name.split())] == name.split() for words in typed)
    }  # fmt: skip
    assert missing == ELSEWHERE


# -- methods ---------------------------------------------------------------------------------------

#: Commands of an app: its log does not matter.
APP: Final = frozenset({
    "acting", "alert", "breaker", "call_by_name", "connection", "cron", "data_dir", "every",
    "lifespan", "logs",
    "middleware", "name", "on_dead", "on_step", "over", "run_worker", "schedule", "settings",
    "task", "tasks", "user_data", "worker", "worker_thread",
})  # fmt: skip
#: It goes to one of the logs, by the key, the job that does it, or the source; see test_router.
SENDS: Final = frozenset({
    "enqueue", "enqueue_by_name", "enqueue_flow", "enqueue_many", "flow", "ingest", "position",
    "forget_source",
})  # fmt: skip
#: It goes by the id's log.
BY_ID: Final[dict[str, dict[str, Any]]] = {
    "job": {}, "why": {}, "timeline": {}, "attempts": {}, "edit": {"priority": 3},
    "signal": {"name": "go"},
}  # fmt: skip
#: It is of all logs.
ALL: Final = frozenset({
    "open", "stats", "pause", "resume", "limit", "set_slots", "controls", "cancel_many", "dead",
    "sources", "close",
})  # fmt: skip
#: Commands of one log: with shards they raise.
OF_ONE: Final[dict[str, tuple[Any, ...]]] = {
    "peek": (), "compact": (), "readers": (), "seek": ("billing", "end"), "store": (),
    "forget_reader": ("billing",), "replay": (), "stream": (), "schedules": (), "transaction": (),
}  # fmt: skip
HANDLE: Final = frozenset({
    "attempts", "cancel", "duplicate", "id", "lsn", "progress", "requeue", "result", "status",
    "view", "watch", "why",
})  # fmt: skip
FLOW: Final = frozenset({"cancel", "id", "jobs", "progress", "result", "wait"})


def public(kind: type) -> set[str]:
    names = {name for name in dir(kind) if not name.startswith("_")}
    return {name.removesuffix("_sync") for name in names}


def test_every_method_has_a_row() -> None:
    assert public(TaskQ) == APP | SENDS | BY_ID.keys() | ALL | OF_ONE.keys()
    assert public(JobHandle) == HANDLE
    assert public(FlowHandle) == FLOW


def jobs_of(app: TaskQ) -> Any:
    @app.task(name="double")
    async def double(value: int) -> int:
        return 2 * value

    return double


async def use_ids(app: TaskQ, job: JobHandle[int], waiting: str) -> None:
    for name, options in BY_ID.items():
        given = getattr(app, name)(waiting, **options)
        assert (given if name == "job" else await given) is not None
    handle = app.job(job.id)
    for name in sorted(HANDLE - {"cancel", "requeue", "duplicate", "id", "lsn", "watch"}):
        await getattr(handle, name)()
    assert [seen async for seen in handle.watch()] == []  # it is over
    assert await handle.result(SECONDS) == 4
    assert await app.job(waiting).cancel()


async def ask(app: TaskQ, name: str) -> None:
    asked = getattr(app, name)
    options = {"everything": True} if name == "replay" else {}
    given = asked(*OF_ONE[name], **options) if callable(asked) else asked.list()
    await (anext(aiter(given)) if name == "stream" else given)


@pytest.mark.parametrize("name", sorted(OF_ONE))
async def test_what_is_of_one_log_says_so(tmp_path: Path, name: str) -> None:
    async with TaskQ(shards=Shards(tmp_path), durability="os") as app:
        with pytest.raises(UsageError, match=r"has 2 logs|of one log"):
            await ask(app, name)
        with pytest.raises(UsageError, match="whole id"):
            app.job(17)


async def test_in_a_job_of_one_of_several_logs_ids_are_of_that_log(tmp_path: Path) -> None:
    app, there = TaskQ(tmp_path / "own", durability="os"), tmp_path / "there"
    double = jobs_of(app)

    @app.task(name="asks")
    async def asks(job_id: str) -> None:
        assert current_job().app is not app
        waiting = await double.options(delay="1h").enqueue(1)
        await use_ids(app, app.job(job_id), waiting.id)
        assert [queue.cancelled for queue in (await app.stats()).queues] == [1]

    other = TaskQ(there, durability="os")
    async with app, other, app.worker(logs=[there]):
        job = await other.enqueue_by_name("double", 2)
        await job.result(SECONDS)
        await (await other.enqueue_by_name("asks", job.id)).result(SECONDS)
