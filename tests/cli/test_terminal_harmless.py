"""No command lets a stranger's text drive a terminal or fake lines."""

import asyncio
import contextlib
import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click
import pytest
from click.testing import CliRunner

from taskq import TaskLog, TaskQ
from taskq.cli.main import main
from taskq.core.parsing import check_name
from taskq.errors import JobFailed
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub.registry import Registry
from tests.cli.helpers import taskq as invoke
from tests.pipeline.kit import run_here

#: A title, a colour that no command of ours uses, C1, bidi, a line that is written over.
TEXT: Final = "a\x1b]0;t\x07b\x1b[41;5mc\x9b31md\u202ee\rOVER"
#: a second line in place of one
NAME: Final = f"{TEXT}\nFORGED"
#: Escapes of rich and click themselves: colours, and a redrawn line.
OURS: Final = re.compile(
    r"\x1b\[(?!41;5m)[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\x1b\[H|\x1b\[J"
)
APP: Final = "strange"
SOURCE: Final = f"""
import logging
from taskq import TaskQ, progress

app = TaskQ({{path!r}}, durability="os", name={NAME!r})
TEXT, NAME = {TEXT!r}, {NAME!r}


@app.task(name=NAME, queue=NAME, keep_log=4096, retry=1)
async def fail(text: str) -> None:
    logging.getLogger("shop").warning("seen: %s", NAME)
    await progress(0.5, NAME)
    raise ValueError(TEXT)


@app.cron("0 0 1 1 *", name=NAME)
async def yearly() -> None: ...
"""


#: The same for another process.
UNCHECKED: Final = (
    "import sys, taskq.app.tasks, taskq.app.schedules, taskq.log.requests; "
    "[setattr(module, 'check_name', lambda _, name: name.encode()) "
    "for module in list(sys.modules.values()) if hasattr(module, 'check_name')]"
)


def checks_nothing(_what: str, name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Place:
    root: Path
    log: Path
    hub: Path
    lake: Path
    damaged: Path
    ids: dict[str, str]


async def _put(path: Path) -> dict[str, str]:
    ids = {}
    async with TaskLog.open(path, durability="os") as log:
        for name in ("dead", "died", "succeeded", "ready", "again"):
            ids[name] = await log.put(
                TEXT.encode(), queue=NAME, headers={NAME: NAME}, key=f"{name}{NAME}", attempts=1
            )
        await log.ingest(NAME, [], TEXT)
        deliveries = {delivery.job_id: delivery for delivery in await log.claim(5)}
        await log.nack(deliveries[ids["dead"]], TEXT)
        await log.nack(deliveries[ids["died"]], TEXT)
        await log.ack(deliveries[ids["succeeded"]], TEXT.encode())
        await log.release(deliveries[ids["ready"]])
        await log.nack(deliveries[ids["again"]], TEXT)
    return ids


async def _fail(strange: Any) -> str:
    async with strange.app, strange.app.worker():
        job = await strange.fail.enqueue(NAME)
        with contextlib.suppress(JobFailed):
            await job
    return str(job.id)


async def _read(path: Path) -> None:
    app = TaskQ(path, durability="os", upkeep=False)
    async with app, app.stream(reader=NAME, follow=False) as records:
        async for _ in records:
            pass


def _enrol(hub: Path) -> None:
    registry, folder = Registry(hub), hub / "devices" / "edge-7"
    registry.enroll("edge-7")
    with registry._changed("edge-7") as facts:
        facts.update(state=NAME, groups=[NAME])
    left = {"step": "begun", "at": [1, 0], "end_lsn": 2, "n": 1, "kind": NAME, "cause": NAME}
    copy = folder / str(UUID(int=7))
    copy.mkdir(parents=True)
    (copy / BREAKS).write_text(json.dumps(left) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("strange")
    log, hub = root / "logs" / f"log{TEXT}", root / f"hub{TEXT}"
    log.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASKQ_DURABILITY", "os")
        patch.chdir(root)
        for module in [item for name, item in sys.modules.items() if name.startswith("taskq")]:
            if hasattr(module, "check_name"):
                patch.setattr(module, "check_name", checks_nothing)
        patch.syspath_prepend(root)
        (root / f"{APP}.py").write_text(SOURCE.format(path=str(log)))
        ids = asyncio.run(_put(log))
        strange: Any = __import__(APP)
        ids["failed"] = asyncio.run(_fail(strange))
        asyncio.run(_read(log))
        (log / "readers" / "hub.json").write_text(json.dumps({"error": NAME}))
        _enrol(hub)
        invoke("hub", "put", hub, "edge-7", "t", "--key", NAME)
        run_here(root / "logs", root / "lake")
        damaged = root / f"damaged{TEXT}"
        shutil.copytree(log, damaged)
        segment = min((damaged / "log").glob("*.log"))
        segment.write_bytes(segment.read_bytes()[:300] + b"?" + segment.read_bytes()[301:])
        opening = f"{UNCHECKED}; import {APP}; {APP}.app.stats_sync(); input(chr(10))"
        with subprocess.Popen(
            [sys.executable, "-c", opening], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
        ) as opener:
            assert opener.stdout is not None
            opener.stdout.readline()
            yield Place(root, log, hub, root / "lake", damaged, ids)
            opener.communicate(b"\n")
    del sys.modules[APP]
    # Modules that were first imported meanwhile have it, too.
    for module in [item for name, item in sys.modules.items() if name.startswith("taskq")]:
        if vars(module).get("check_name") is checks_nothing:
            vars(module)["check_name"] = check_name


def on_terminal(*words: object) -> str:
    master, slave = pty.openpty()
    shown: list[str] = []
    reader = threading.Thread(target=lambda: shown.append(_all_of(master)))
    reader.start()
    before = sys.stdin, sys.stdout, sys.stderr
    with os.fdopen(slave, "w", encoding="utf-8") as output, open(os.ttyname(slave)) as keys:  # noqa: PTH123
        sys.stdin, sys.stdout, sys.stderr = keys, output, output
        try:
            main.main([str(word) for word in words], prog_name="taskq")
        except SystemExit:
            pass
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
    reader.join()
    return shown[0]


def by_itself(place: Place, *words: object) -> str:
    program = (
        f"{UNCHECKED}; import {APP}, taskq.cli.main; {APP}.fail.enqueue_sync({APP}.NAME); "
        "taskq.cli.main.main()"
    )
    master, slave = pty.openpty()
    command = [sys.executable, "-c", program, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(place.root), "TASKQ_DURABILITY": "os"}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, cwd=place.root, env=environment
    ):
        os.close(slave)
        return _all_of(master)


def _all_of(master: int) -> str:
    pieces = []
    with contextlib.suppress(OSError):  # in Linux's words
        while piece := os.read(master, 65_536):
            pieces.append(piece)
    os.close(master)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def check_harmless(shown: str) -> None:
    """Nothing but text and our own colours, and no line that a stranger began."""
    assert "FORGED" not in {line[:6] for line in shown.splitlines()}, shown
    assert "\rOVER" not in shown, repr(shown)
    text = OURS.sub("", shown).replace("\n", "").replace("\r", "")
    assert text.isprintable(), repr(shown)


Row = tuple["Callable[[Place], tuple[object, ...]]", bool]


def d(*words: str) -> Row:
    return lambda place: (*words, "-d", place.log), True


def of(state: str, *words: str) -> Row:
    return lambda place: (*words, place.ids[state], "-d", place.log), True


def hub(*words: str) -> Row:
    return lambda place: ("hub", words[0], place.hub, *words[1:]), True


def lake(*words: str) -> Row:
    return lambda place: ("pipeline", *words, "--lake", place.lake), True


def quiet(row: Row) -> Row:
    return row[0], False


#: Each command with its arguments, in an order in which none takes away what another shows.
ROWS: Final[dict[str, Row]] = {
    **{
        name: d(*name.split())
        for name in (
            "ls", "peek", "stats", "workers", "metrics", "schedules ls", "reader ls", "dead ls",
            "export", "sources ls",
        )
    },
    "show": of("dead", "show"),
    "why": of("failed", "why"),
    "timeline": of("failed", "timeline"),
    "health": quiet(d("health")),
    "alerts": quiet((lambda _: ("alerts", f"{APP}:app", "--once"), True)),
    "check": (lambda _: ("check", f"{APP}:app"), True),
    "top": (lambda place: ("top", place.log, "--once"), True),
    "web": (lambda place: ("web", place.log, "--bind", NAME), True),
    "sql": d("sql", "SELECT * FROM jobs"),
    "tail": d("tail", "-n", "99"),
    "dead show": of("dead", "dead", "show"),
    "verify": (lambda place: ("verify", place.damaged), True),
    "repair": (lambda place: ("repair", place.damaged), True),
    "compact": quiet(d("compact", "--dry-run")),
    "backup": (lambda place: ("backup", place.log, place.root / f"backup{TEXT}"), True),
    "restore": (lambda place: ("restore", place.root / f"none{TEXT}", place.root / "x"), True),
    "report": (lambda place: ("report", place.log, "-o", place.root / f"{TEXT}.zip"), True),
    "demo": (lambda place: ("demo", "--directory", place.root / f"none{TEXT}"), True),
    "sync": d("sync", "--status"),
    "hub devices": hub("devices"),
    "hub check": quiet(hub("check")),
    "hub enroll": hub("enroll", NAME),
    "hub retire": hub("retire", NAME),
    "hub erase": hub("erase", NAME, "--yes"),
    "hub backup": (lambda place: ("hub", "backup", place.hub, f"{place.hub}.backup"), True),
    "hub take": hub("take", NAME, f"none{TEXT}"),
    "hub serve": hub("serve", "--bind", NAME),
    "hub put": hub("put", NAME, "t"),
    "hub jobs": quiet(hub("jobs")),
    "pipeline run": quiet(lake("run", "--journals", "logs")),
    "pipeline status": lake("status"),
    "pipeline erase": quiet(lake("erase", "--job", NAME)),
    "pipeline replay": lake("replay", "--where", NAME, "--to", "x"),
    "pipeline enqueue": (lambda place: ("pipeline", "enqueue", NAME, "--to", place.log), True),
    "put": (
        lambda place: ("put", "-d", place.log, "-t", NAME, "--header", f"{NAME}=1", "{}"),
        True,
    ),
    "edit": of("dead", "edit", "--run-now"),
    "signal": (lambda place: ("signal", place.ids["ready"], NAME, "-d", place.log), False),
    "cancel": quiet(of("dead", "cancel")),
    "replay": d("replay", "--since", "1d", "--dry-run"),
    "reader seek": d("reader", "seek", NAME, "end"),
    "limit": d("limit", NAME, "-c", "2"),
    "slots": quiet(d("slots", "3")),
    "schedules add": d("schedules", "add", NAME, NAME, "--every", "1h"),
    "dead requeue": quiet(of("died", "dead", "requeue")),
    "dead purge": of("ready", "dead", "purge"),
    "worker": (lambda _: ("worker", f"{APP}:app", "--burst"), True),
    **{
        name: d(*name.split(), NAME)
        for name in (
            "pause", "resume", "reader forget", "sources forget", "schedules remove",
            "schedules pause", "schedules resume", "schedules reset", "schedules forget",
        )
    },
}  # fmt: skip


def commands(group: click.Group, *names: str) -> set[str]:
    seen = set()
    for name in group.commands or getattr(group, "table", {}):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            seen |= commands(command, *names, name)
        else:
            seen.add(" ".join((*names, name)))
    return seen


def test_every_command_has_its_row() -> None:
    assert commands(main) == ROWS.keys()


@pytest.mark.xdist_group("strangers")
@pytest.mark.parametrize(
    "name",
    # It starts Java.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "pipeline run")) for name in ROWS],
)
def test_a_command_shows_what_strangers_wrote_as_text(name: str, place: Place) -> None:
    words, is_shown = ROWS[name]
    shown = by_itself(place, *words(place)) if name == "worker" else on_terminal(*words(place))
    assert "Traceback" not in shown
    check_harmless(shown)
    assert (r"\x1b" in shown or r"\u001b" in shown) is is_shown, repr(shown)


def test_no_line_of_a_body_passes_for_a_fact_or_a_heading(tmp_path: Path) -> None:
    """Payload, reason and what was logged are indented below their headings."""
    forged = "x\nstate     succeeded\n\nresult\nstolen"
    app = TaskQ(tmp_path, durability="os")

    @app.task(retry=1, keep_log="1KB")
    async def fail() -> None:
        logging.getLogger("shop").warning(forged)
        raise ValueError(forged)

    async def bury() -> str:
        async with app:
            job = await fail.enqueue()
            await app.worker(burst=True).run()
        return job.id

    put = asyncio.run(bury())
    for command in (("show", put), ("dead", "show", put)):
        shown = invoke(*command, "-d", tmp_path).output.splitlines()
        assert not {"result", "stolen", "state     succeeded"} & set(shown)
        assert "  stolen" in shown


def test_bash_completes_names_unexpanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function splits the answer with ``read``, which takes one of two backslashes off."""
    name = "a$(touch x);`id`&b"
    with TaskQ(tmp_path, durability="os") as app:
        app.enqueue_sync(app.call_by_name("task").options(queue=name))
    monkeypatch.setenv("COMP_WORDS", f"taskq ls -d {tmp_path} -Q a")
    answers = {}
    for shell, word in (("bash", "5"), ("fish", "a")):
        monkeypatch.setenv("COMP_CWORD", word)
        monkeypatch.setenv("_TASKQ_COMPLETE", f"{shell}_complete")
        result = CliRunner().invoke(main, [], prog_name="taskq", complete_var="_TASKQ_COMPLETE")
        answers[shell] = result.output.splitlines()[0]
    assert name in answers["fish"]
    line = 'IFS="," read kind value <<< "$1"; eval "printf %s $value"'
    done = subprocess.run(
        ["bash", "-c", line, "bash", answers["bash"]],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == name
    assert not (tmp_path / "x").exists()
