"""Logs that example sessions are played on, by the name that their heading has.

A session writes the tag of every log as one of ``TAGS``, so that its lines do not differ from run
to run, and the folder beside its log as ``FOLDER``.
"""

import asyncio
import json
import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from taskq import Put, Shards, TaskLog, TaskQ, chain, durable
from taskq.cli.main import main
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq_workers.services.scheduler import Scheduler

#: Lines of the log, or of two shards.
TAGS: Final = ("5a3b1e0f", "6c4d2a1b")
#: All sessions are of one width.
COLUMNS: Final = "120"


async def fill_sample(path: Path) -> dict[str, str]:
    ids = {}
    async with TaskLog.open(path, name="sample") as log:
        ids["succeeded"] = await log.put(b'{"n":1}', priority=9)
        ids["dead"] = await log.put(b"\xff\x00", priority=8, attempts=1, headers={"from": "here"})
        ids["retried"] = await log.put(b"[1]", priority=7, attempts=3, key="k")
        first, second, third = await log.claim(3)
        await log.ack(first, b'"done"')
        await log.nack(second, "ValueError: [red]bad\x1b[31m\nline 2 of the traceback")
        await log.nack(third, "TimeoutError: slow", delay="1h")
        ids["cancelled"] = await log.put(b"c")
        await log.cancel(ids["cancelled"])
        ids["bytes"] = await log.put(b"plain text", queue="other")
    async with TaskQ(path) as app:
        call = app.call_by_name("mail.send", to="a@b.c").options(queue="mail", delay="2h")
        ids["task"] = (await app.enqueue(call)).id
    return ids


async def fill_letters(path: Path) -> None:
    async with TaskLog.open(path, name="letters", durability="os") as log:
        for queue, key, reason in (
            ("mail", None, "TimeoutError: slow\ntraceback"),
            ("sync", None, "ValueError: bad\x1b[31m"),
            ("mail", "k", "ValueError: held"),
        ):
            await log.put(b'{"n": 1}', queue=queue, attempts=1, key=key)
            (delivery,) = await log.claim(queues=[queue])
            await log.nack(delivery, reason)
        await log.put(b"x", queue="mail", key="k")


async def fill_queues(path: Path) -> None:
    async with TaskLog.open(path, durability="os") as log:
        await log.put(b"x", queue="mail", priority=9)
        await log.put(b"x", queue="mail")
        await log.put(b"x", queue="mail", delay="1h")
        await log.put(b"x", queue="sync")
        await log.nack((await log.claim())[0], "no", delay=0)
        await log.put(b"x", queue="sync", priority=9)
        await log.ack((await log.claim(queues=["sync"]))[0])


async def fill_schedules(path: Path) -> None:
    async with TaskQ(path, durability="os") as app:
        call = app.call_by_name("report", 1).options(queue="reports")
        app.schedule("nightly", call, cron="30 2 * * *", tz="Europe/Berlin", catch_up="all")
        app.schedule("often", call, every="10m", jitter="1m")
        await Scheduler(app).look(app.store())


async def fill_reader(path: Path) -> None:
    async with TaskLog.open(path) as log:
        for number in range(5):
            await log.put(b"%d" % number)
        async with log.stream(reader="billing", follow=False) as stream:
            await anext(stream)
            await anext(stream)
            await stream.commit()


async def fill_leased(path: Path) -> None:
    async with TaskLog.open(path, name="leased") as log:
        await log.put(b"x", expires="2h")
        (delivery,) = await log.claim(lease=60)
        await log.extend(delivery, 3_600)
        await log.nack(delivery, "ValueError: no", delay=0)


async def fill_nothing(path: Path) -> None:
    async with TaskLog.open(path, durability="os"):
        pass


async def fill_chains(path: Path) -> None:
    app = TaskQ(path, durability="os")

    @app.task(name="increment")
    def increment(number: int) -> int:
        return number + 1

    @app.task(name="fail", retry=1)
    def fail() -> int:
        raise ValueError("no")

    async with app:
        await chain(fail.call(), increment.step()).enqueue()
        await app.worker(burst=True).run()
        await chain(increment.call(1), increment.step()).enqueue()
        await app.ingest("orders.csv", [], {"row": 1})


async def fill_steps(path: Path) -> None:
    app = TaskQ(path, durability="os", name="shop")

    @app.task(name="order")
    async def order(waits: bool) -> None:
        for name in ("charge", "pack", "ship"):
            await durable.step(name, str, name)
        if waits:
            await durable.event("address", str, timeout="7d")

    async with app:
        for waits in (True, False):
            await order.enqueue(waits)
            await app.worker(burst=True).run()


async def fill_grown(path: Path) -> None:
    # Upkeep would be faster than the tests.
    async with TaskLog.open(path, segment_bytes=SEGMENT_BYTES_MIN, upkeep=False) as log:
        await log.put(b"later", delay="1d")
        for _ in range(12):
            await log.put_many([Put(payload=bytes(4_000))] * 8)
            for delivery in await log.claim(8):
                await log.ack(delivery, b"done")


async def fill_lost(path: Path) -> None:
    await fill_grown(path)
    sorted((path / "log").glob("*.log"))[1].unlink()


async def fill_damaged(path: Path) -> dict[str, str]:
    ids = await fill_sample(path)
    segment = min((path / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b'{"n":1}')] ^= 1
    segment.write_bytes(data)
    return ids


async def fill_shards(path: Path) -> None:
    app = TaskQ(shards=Shards(path), durability="os")

    @app.task(name="fails", retry=1)
    def fails() -> None:
        raise ValueError("no")

    async with app:
        for log in app.logs():
            await log.enqueue_by_name("waits")
            await log.enqueue_by_name("fails")
        await app.worker(burst=True).run()


LOGS: Final[dict[str, Callable[[Path], Awaitable[object]]]] = {
    "sample": fill_sample, "letters": fill_letters, "queues": fill_queues,
    "schedules": fill_schedules, "reader": fill_reader, "leased": fill_leased,
    "nothing": fill_nothing, "chains": fill_chains, "grown": fill_grown, "damaged": fill_damaged,
    "lost": fill_lost, "shards": fill_shards, "steps": fill_steps,
}  # fmt: skip


class Session:
    """Commands on a fresh log, whose directory they get by ``TASKQ_DATA_DIR``."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder, self._path = folder, folder / "data"
        asyncio.run(LOGS[name](self._path))  # type: ignore[arg-type]
        own = re.findall(r'"log_id": "(.{8})', self._run(["stats", "--json"]))
        self._tags = list(zip(own, TAGS, strict=False))

    def run(self, typed: str) -> str:
        for own, tag in self._tags:
            typed = typed.replace(tag, own)
        words = shlex.split(typed)
        shown = self._run([word.replace("FOLDER", str(self._folder)) for word in words])
        for own, tag in self._tags:
            shown = shown.replace(own, tag)
        for path, name in ((self._path, "data"), (self._folder, "FOLDER")):
            in_json = json.dumps(str(path))[1:-1]
            shown = shown.replace(in_json, name).replace(str(path), name)
        return shown

    def _run(self, words: list[str]) -> str:
        env = {"TASKQ_DATA_DIR": str(self._path), "COLUMNS": COLUMNS}
        done = CliRunner().invoke(main, words, input=b"", prog_name="taskq", env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        output = "\n".join(line.rstrip() for line in done.output.splitlines())
        return f"{output}\n[{done.exit_code}]".lstrip() if done.exit_code else output
