"""Plugins of other packages are taken up by an app whose settings name them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from taskq import DeadLetter, JobContext, TaskQ
from taskq.errors import UsageError

TOLD: list[str] = []


def teller(app: TaskQ) -> None:
    TOLD.append("taken up")

    @app.middleware
    async def around(job: JobContext) -> AsyncIterator[None]:
        TOLD.append(f"begins {job.task}")
        yield
        TOLD.append(f"ends {job.task}")

    @app.on_dead
    def died(letter: DeadLetter) -> None:
        TOLD.append(f"died {letter.task}")


def broken(app: TaskQ) -> None:
    raise RuntimeError(f"no place for {app!r}")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    points = [
        EntryPoint(name, f"{__name__}:{name}", "taskq.plugins") for name in ("teller", "broken")
    ]

    def entry_points(*, group: str) -> Iterable[EntryPoint]:
        return points if group == "taskq.plugins" else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


async def test_a_plugin_is_taken_up_once_and_hangs_its_hooks_on_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_PLUGINS", "teller")
    async with TaskQ(tmp_path / "data", durability="os") as app:

        @app.task(name="send", retry=1)
        async def send(name: str) -> None:
            if name == "nobody":
                raise ValueError(name)

        assert TOLD == [], "who only enqueues has no use for it"
        jobs = [await send.enqueue("ada"), await send.enqueue("nobody")]
        for _ in range(2):
            async with app.worker(concurrency=1, burst=True) as worker:
                await worker.stopped.wait()
        assert [(await job.status()).name for job in jobs] == ["SUCCEEDED", "DEAD"]
    assert TOLD == ["taken up", "begins send", "ends send", "begins send", "died send"]


async def test_what_a_plugin_raises_is_logged_with_its_name_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKQ_PLUGINS", "broken, teller")
    async with TaskQ(tmp_path / "data", durability="os") as app, app.worker(burst=True) as worker:
        await worker.stopped.wait()
    assert TOLD == ["taken up"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "the plugin broken failed; the worker goes on without it"
    assert record.exc_info is not None


async def test_a_plugin_that_is_not_there_is_told_before_any_job_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_PLUGINS", "sentri")
    async with TaskQ(tmp_path / "data", durability="os") as app:
        with pytest.raises(UsageError, match="no plugin 'sentri'; known are: broken, teller"):
            await app.worker().start()


async def test_where_no_package_brings_a_plugin_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    monkeypatch.setenv("TASKQ_PLUGINS", "sentry")
    async with TaskQ(tmp_path / "data", durability="os") as app:
        with pytest.raises(UsageError, match="known are: none: install the package that brings"):
            await app.worker().start()
