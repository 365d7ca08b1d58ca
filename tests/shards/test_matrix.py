"""Every command, method of an app and of a handle: on one log, with ``logs=``, over shards.

A command or method that is new fails here until it has a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner

from taskq import JobHandle, Shards, TaskQ, current_job, group
from taskq.cli.main import BUILT_IN, main
from taskq.errors import UsageError, WrongLog
from taskq.flows.handle import FlowHandle

SECONDS: Final = 20
REFUSAL: Final = "has 2 shards, and this is asked of one log: name it, such as -d "

# -- commands --------------------------------------------------------------------------------------

#: On a root of shards: a line for each in turn, ...
EACH: Final = "each"
#: ... does what it does to all of them, or to the one whose job is named, ...
WHOLE: Final = "whole"
#: ... says in a line that one is to be named, ...
ONE: Final = "one"
#: ... or takes no log at all, or is tested elsewhere with a root of shards, as the worker is.
NONE: Final = "none"

#: command -> (what it does on a root, its arguments, whether it ends by itself on one log)
COMMANDS: Final[dict[str, tuple[str, str, bool]]] = {
    **dict.fromkeys(
        ("ls", "peek", "stats", "workers", "verify", "check", "metrics", "tail", "reader ls",
         "schedules", "schedules ls", "sources", "sources ls", "dead ls", "compact", "repair"),
        (EACH, "", True),
    ),
    "health": (EACH, "", False),  # nobody works there
    "sources forget": (WHOLE, "orders", True),
    **dict.fromkeys(("show", "timeline", "why", "cancel"), (WHOLE, "{job}", True)),
    **dict.fromkeys(("dead show", "dead requeue"), (WHOLE, "{dead}", True)),
    "edit": (WHOLE, "{job} --priority 7", True),
    "signal": (WHOLE, "{job} go", True),
    **dict.fromkeys(("pause", "resume"), (WHOLE, "mail", True)),
    "limit": (WHOLE, "t --rate 5/s", True),
    "slots": (WHOLE, "3", True),
    "dead purge": (WHOLE, "--all --yes", True),
    "put": (ONE, "body", True),
    "replay": (ONE, "--all --dry-run", True),
    "export": (ONE, "", True),
    "backup": (ONE, "{out}/backup", True),
    "report": (ONE, "-o {out}/case.zip", True),
    "sql": (WHOLE, "select&1", False),  # its packages may be missing
    "top": (ONE, "--once", True),
    "web": (ONE, "", False),
    "sync": (NONE, "", False),
    "reader seek": (ONE, "billing end", True),
    "reader forget": (ONE, "billing", True),
    "schedules add": (ONE, "nightly t --every 1h", True),
    **dict.fromkeys(
        [f"schedules {act}" for act in ("remove", "pause", "resume", "reset", "forget")],
        (ONE, "nightly", False),  # no such shard
    ),
    **dict.fromkeys(("demo", "worker", "restore"), (NONE, "", False)),
    **dict.fromkeys(("pipeline replay", "pipeline enqueue"), (NONE, "", False)),
}  # fmt: skip


def found(where: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    context = click.Context(main)
    for name in where.list_commands(context):
        command = where.get_command(context, name)
        if command is None or (not before and name not in BUILT_IN):
            continue
        if isinstance(command, click.Group):
            yield from found(command, (*before, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            takes = any(parameter.name == "data_dir" for parameter in command.params)
            yield " ".join((*before, name)), takes


def test_every_command_that_takes_a_log_has_a_row() -> None:
    assert {name for name, takes in found(main) if takes} == COMMANDS.keys()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("other"))


def made(path: Path) -> Path:
    """Make two shards, each with a job that waits and a dead letter."""
    with TaskQ(shards=Shards(path), durability="os") as app:
        app.task(name="fails", retry=1)(refuse)
        for log in app.logs():
            log.enqueue_by_name_sync("waits")
            log.enqueue_by_name_sync("fails")
        app.run_worker(burst=True)
    return path


def refuse() -> None:
    raise ValueError("no")


def run(name: str, path: Path, root: Path, tmp_path: Path) -> Any:
    with TaskQ(root / "1.001", durability="os") as app:
        if name == "reader forget":
            app.seek_sync("billing", "end")
        jobs = app.peek_sync(1)
        dead = list(app.dead.list_sync())
    given = COMMANDS[name][1].format(
        job=jobs[0].job_id if jobs else "", dead=dead[0].job_id if dead else "", out=tmp_path
    )
    words = [*name.split(), *(word.replace("&", " ") for word in given.split())]
    return CliRunner().invoke(main, [*words, "-d", str(path)])


@pytest.mark.parametrize("name", [name for name, row in COMMANDS.items() if row[0] != NONE])
def test_a_command_works_on_a_root_of_shards_or_says_what_to_do(
    name: str, root: Path, tmp_path: Path
) -> None:
    kind = COMMANDS[name][0]
    result = run(name, root, root, tmp_path)
    if kind == ONE:
        assert result.exit_code in {1, 2}
        assert REFUSAL in result.output
        assert len(result.output.splitlines()) == 1
        return
    assert result.exit_code == (name == "health"), result.output
    if kind == EACH:
        assert "1.000" in result.output
        assert "1.001" in result.output


@pytest.mark.parametrize("name", [name for name, row in COMMANDS.items() if row[2]])
def test_a_command_works_on_one_of_them(name: str, other: Path, tmp_path: Path) -> None:
    result = run(name, other / "1.001", other, tmp_path)
    assert result.exit_code == 0, result.output


# -- methods ---------------------------------------------------------------------------------------

#: Commands of an app: its log does not matter.
APP: Final = frozenset({
    "acting", "alert", "breaker", "call_by_name", "connection", "cron", "data_dir", "every",
    "lifespan", "logs",
    "middleware", "name", "on_dead", "on_step", "over", "run_worker", "schedule", "settings",
    "task", "tasks", "user_data", "worker", "worker_thread",
})  # fmt: skip
#: It goes to one of the logs, by the key or the job that does it; see test_router. Or by the
#: source's name; see test_ingest.
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
ALL: Final[dict[str, dict[str, Any]]] = {
    "open": {}, "stats": {}, "pause": {"queue": "mail"}, "resume": {"queue": "mail"},
    "limit": {"task": "t"}, "set_slots": {"count": None}, "controls": {},
    "cancel_many": {"queue": "mail"}, "dead": {}, "sources": {},
    "close": {},
}  # fmt: skip
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
    assert public(TaskQ) == APP | SENDS | BY_ID.keys() | ALL.keys() | OF_ONE.keys()
    assert public(JobHandle) == HANDLE
    assert public(FlowHandle) == FLOW


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


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


async def test_what_goes_by_an_id_finds_its_shard(tmp_path: Path) -> None:
    app = TaskQ(shards=Shards(tmp_path), durability="os")
    double = jobs_of(app)
    async with app:
        jobs = [await double.options(key=f"k{number}").enqueue(2) for number in range(8)]
        flow = await group([double.call(1), double.call(2)]).enqueue()
        await app.worker(burst=True).run()
        assert len({job.id.partition("-")[0] for job in jobs}) == 2
        for number, job in enumerate(jobs):
            waiting = await double.options(delay="1h", key=f"w{number}").enqueue(1)
            await use_ids(app, job, waiting.id)
        with pytest.raises(WrongLog, match="no shard"):
            app.job("00000000-1")
        with pytest.raises(UsageError, match="whole id"):
            app.job(17)
        again = await app.flow(flow.id)
        assert await again.result(SECONDS) == [2, 4]
        await again.wait(SECONDS)
        assert (await again.progress()).succeeded == 2
        assert await again.cancel() == 0
        for name, given in ALL.items():
            of_all = getattr(app, name)
            await done(of_all(**given) if callable(of_all) else of_all.list())


async def ask(app: TaskQ, name: str) -> None:
    asked = getattr(app, name)
    options = {"everything": True} if name == "replay" else {}
    given = asked(*OF_ONE[name], **options) if callable(asked) else asked.list()
    await done(anext(aiter(given)) if name == "stream" else given)


@pytest.mark.parametrize("name", sorted(OF_ONE))
async def test_what_is_of_one_log_says_so(tmp_path: Path, name: str) -> None:
    async with TaskQ(shards=Shards(tmp_path), durability="os") as app:
        with pytest.raises(UsageError, match=r"has 2 logs|of one log"):
            await ask(app, name)


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
