"""A task log with a job in every state that is easy to reach, made through the public API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from tests.cli.helpers import Sample


async def _fill(path: Path) -> dict[str, str]:
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


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Made once: no read command changes it, as one of the tests makes sure."""
    path = tmp_path_factory.mktemp("sample") / "queue"
    return Sample(path, asyncio.run(_fill(path)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a directory for a log that a test fills by itself."""
    return tmp_path / "log"
