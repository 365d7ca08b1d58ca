"""Jobs that a hub has for its devices: handed over once, ended once, never forgotten."""

import ast
import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock, Mock, create_autospec
from uuid import UUID

import pytest
from anyio import to_thread
from click.testing import CliRunner

from examples.hub.line import HubProcess
from taskq import JobHandle, State, TaskLog, TaskQ
from taskq.cli.main import main
from taskq.core.model import SECOND_NS, Extras
from taskq.core.sources import checked_move
from taskq.core.views import JobView
from taskq.core.why import Why
from taskq.errors import JobCancelled, JobExpired, JobFailed, JobNotFound, LogDamaged, UsageError
from taskq.log.machine.disk import SystemClock
from taskq.log.read.reader import LogReader
from taskq.log.requests import Ingest, Op
from taskq.log.upkeep.upkeep import Upkeep
from taskq.testing.sandbox import use_clock
from taskq_plugins.hub import Hub, outbox
from taskq_plugins.hub.models import JOB, Given
from taskq_plugins.hub.outbox import CopyReader, DeviceJob, DeviceOutbox
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import SyncResult, sync
from tests.effort import grows, some
from tests.hub.place import Place
from tests.hub.simulation import Simulation, files_of, set_back
from tests.log.world import PLAIN, World, fill_segment, keeping, tend
from tests.machine.crashable import CrashableDisk


class Ahead:
    def wall_ns(self) -> int:
        return time.time_ns() + 7_200 * SECOND_NS

    def steady_ns(self) -> int:
        return SystemClock.steady_ns() + 7_200 * SECOND_NS


class Fleet(Place):
    """A hub, and devices that work off its jobs; ``ran`` has (device, version) of each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.client = Hub(self.hub)
        self.tokens: dict[str, str] = {}
        self.apps: dict[str, TaskQ] = {}
        self.ran: list[tuple[str, str]] = []
        self.accept: tuple[str, ...] = ("update", "photos.*")

    def enrol(self, device: str) -> TaskQ:
        self.tokens[device] = Registry(self.hub).enroll(device)
        app = self.apps[device] = TaskQ(self.path / device)

        @app.task(name="update", retry=2)
        async def update(version: str) -> str:
            self.ran.append((device, version))
            if version == "bad":
                raise ValueError("no such version")
            return f"{device} has {version}"

        return app

    async def put(self, version: str = "7.2", **options: Any) -> JobHandle[Any]:
        call = self.client.call_by_name("update", version).options(**options)
        return await self.client.device("edge-7").enqueue(call)

    async def take(self, device: str = "edge-7") -> SyncResult:
        async with TaskLog.open(self.path / device):
            """There is a log."""
        line = self.line(self.tokens[device], accept=self.accept)
        try:
            return await sync(str(self.path / device), line)
        finally:
            await line.close()

    async def round(self, device: str = "edge-7") -> None:
        await self.take(device)
        await self.work(device)
        await self.take(device)

    async def work(self, device: str = "edge-7") -> None:
        app = self.apps[device]
        async with app:
            await app.worker(burst=True).run()

    async def forget(self) -> None:
        limits: dict[str, Any] = {
            "keep": 0.001, "keep_segments": 1, "reader_lag_bytes": 65_536, "segment_bytes": 65_536,
        }  # fmt: skip
        async with TaskLog.open(self.log, **limits) as log:
            for _ in range(60):
                own = await log.put(bytes(4_000))
                await log.cancel(own)
            await log.compact()

    async def close(self) -> None:
        await self.client.close()
        await super().close()
        for app in self.apps.values():
            await app.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    made.enrol("edge-7")
    yield made
    await made.close()


update = TaskQ("unused").call_by_name


async def _runs(place: Fleet) -> None:
    await place.work()


async def _is_late_there(place: Fleet) -> None:
    """The hub leaves to the device what the device took."""
    await place.client.close()
    use_clock(place.client.outbox("edge-7"), Ahead())
    await place.client.outbox("edge-7").settle()
    (job,) = place.client.outbox("edge-7").jobs()
    assert job.state is State.READY
    use_clock(place.apps["edge-7"], Ahead())
    await place.work()


async def _is_lost(place: Fleet) -> None:
    """It ended, and its limits took it from the device before the hub had any of it."""
    await place.work()
    await place.forget()


@pytest.mark.parametrize(("version", "act", "error", "message"), [
    ("7.2", _runs, None, None),
    ("bad", _runs, JobFailed, "no such version"),
    ("7.2", _is_late_there, JobExpired, None),
    ("7.2", _is_lost, JobFailed, "edge-7 took it, and its log does not show how it ended"),
])  # fmt: skip
async def test_what_became_of_a_job_on_its_device_is_its_end(
    place: Fleet, version: str, act: Callable[[Fleet], Awaitable[None]],
    error: type[Exception] | None, message: str | None,
) -> None:  # fmt: skip
    job = await place.put(version, attempts=1, expires="1h")
    assert (await place.take()).taken.jobs == 1
    assert await job.status() is State.READY
    await act(place)
    assert (await place.take()).taken.jobs == 0
    job = place.client.job(job.id)
    if error is None:
        assert await job.result(timeout=1) == "edge-7 has 7.2"
        return
    with pytest.raises(error, match=message):
        await job.result(timeout=1)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_job_that_is_cancelled_never_runs_on_its_device(
    place: Fleet, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    job = await place.put()
    if taken:
        await place.take()
    ringing = create_autospec(outbox.ring)
    monkeypatch.setattr(outbox, "ring", ringing)
    assert await job.cancel()
    ringing.assert_called_once()  # a device that waits hears of it at once
    with pytest.raises(JobCancelled):
        await job.result(timeout=1)
    place.restart()
    assert (await place.take()).taken == (0, 0, int(taken))
    await place.work()
    assert not place.ran
    assert (await place.take()).taken.cancelled == 0


async def test_a_syncing_worker_runs_jobs_of_its_hub_while_its_app_has_the_log_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = HubProcess(tmp_path / "hub")
    token = Registry(tmp_path / "hub").enroll("edge-7")
    settings = {"URL": f"http://127.0.0.1:{server.port}", "TOKEN": token, "ACCEPT": '["*"]'}
    for name, value in (settings | {"EVERY": "0.1", "POLL": "1"}).items():
        monkeypatch.setenv(f"TASKQ_HUB_{name}", value)
    app = TaskQ(tmp_path / "edge-7")
    app.task(name="update")(lambda version: f"it has {version}")
    await server.start()
    try:
        async with Hub(tmp_path / "hub") as hub:
            job = await hub.device("edge-7").enqueue(update("update", "7.2"))
            other = await hub.device("edge-7").enqueue(update("other"))
            async with app, app.worker(sync=True):
                assert await job.result(timeout=30) == "it has 7.2"
                with pytest.raises(JobFailed, match="no task 'other' is known there"):
                    await other.result(timeout=30)
    finally:
        server.stop()


async def test_options_of_the_call_hold_on_the_device(place: Fleet) -> None:
    device = place.client.device("edge-7")
    call = update("update", "7.2").options(
        queue="firmware", priority=9, attempts=4, delay="1h", expires="1d", key="fw",
        headers={"by": "ada"},
    )  # fmt: skip
    job = await device.enqueue(call)
    assert (await device.enqueue(call)).id == job.id
    await place.take()
    (view,) = _jobs(place.log)
    assert (view.queue, view.task, view.priority, view.attempts_max) == ("firmware", "update", 9, 4)
    assert view.headers["by"] == "ada"
    assert view.headers["hub-job"] == job.id
    assert view.state is State.SCHEDULED
    assert 3_500e9 < view.due_ns - view.enqueued_ns <= 3_600e9
    assert 86_000e9 < view.expires_ns - view.enqueued_ns <= 86_400e9
    assert view.payload == (await job.view()).payload
    await job.cancel()
    assert (await device.enqueue(call)).id != job.id


async def test_a_device_that_accepts_nothing_asks_for_no_jobs(place: Fleet) -> None:
    """A sync by hand, without the settings of the worker beside it, refuses nothing for it."""
    job = await place.put()
    accept, place.accept = place.accept, ()
    assert not any((await place.take()).taken)
    assert await job.status() is State.READY
    place.accept = accept
    await place.round()
    assert await job.result(timeout=5) == "edge-7 has 7.2"


@pytest.mark.parametrize("accept", [("photos.*",), ("updat", "photos.*")])
async def test_refused_jobs_are_dead_on_the_hub(place: Fleet, accept: tuple[str, ...]) -> None:
    place.accept = accept
    other = await place.client.device("edge-7").enqueue(update("photos.send", "1"))
    job = await place.put()
    assert (await place.take()).taken == (1, 1, 0)
    await place.take()
    with pytest.raises(
        JobFailed, match=r"edge-7 refuses it.*'update' is not among what is accepted"
    ):
        await job.result(timeout=1)
    assert await other.status() is State.READY
    assert (await place.take()).taken == (0, 0, 0)
    await place.client.outbox("edge-7").settle()
    assert await job.status() is State.DEAD
    assert sorted(it.queue for it in _jobs(place.log)) == ["default", "hub-refused"]


async def test_a_cancel_that_was_cut_short_comes_again(
    place: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await place.put()
    await place.take()
    await job.cancel()
    with monkeypatch.context() as cut:
        cut.setattr("taskq_plugins.hub.outbox._cancel", Mock(side_effect=RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            await place.take()
    assert (await place.take()).taken.cancelled == 1


@pytest.mark.parametrize("error", [JobNotFound("gone"), LogDamaged("bytes 0 to 9")])
async def test_a_job_that_cannot_be_cancelled_stops_no_other(
    place: Fleet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = await place.put()
    await place.take()
    await job.cancel()
    await place.put("7.3")
    with monkeypatch.context() as broken:
        broken.setattr(TaskLog, "find", AsyncMock(side_effect=error))
        assert (await place.take()).taken == (1, 0, 0)
    await place.work()
    assert ("edge-7", "7.3") in place.ran


@pytest.mark.parametrize("name", ["hub-job", "hub-refused", "hub-from"])
async def test_a_call_with_a_header_of_the_hub_is_refused(place: Fleet, name: str) -> None:
    with pytest.raises(UsageError, match=f"the header '{name}' is the hub's"):
        await place.put(headers={name: "succeeded"})


async def test_a_header_that_says_what_became_of_a_job_is_never_a_calls(place: Fleet) -> None:
    call = place.client.call_by_name("update", "7.2").options(headers={"hub-refused": "why"})
    job = await place.client.outbox("edge-7").enqueue(call)
    await place.round()
    assert place.ran == [("edge-7", "7.2")]
    assert await place.client.job(job.id).result(timeout=1) == "edge-7 has 7.2"


async def test_the_server_writes_to_an_outbox_only_if_a_job_of_it_is_over(place: Fleet) -> None:
    await place.put(expires=0.001)
    await place.put()
    path = place.client.outbox("edge-7").path
    await place.client.close()
    await place.server._outbox._settle_all()
    assert [job.state for job in _jobs(path)] == [State.READY, State.EXPIRED]
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    await place.server._outbox._settle_all()
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    await place.round()
    await place.server._outbox._settle_all()
    assert [job.state for job in _jobs(path)] == [State.EXPIRED] * 2, "its device has the end"


@pytest.mark.parametrize("both", [False, True])
async def test_an_ended_job_is_not_sent_to_a_set_back_device(place: Fleet, *, both: bool) -> None:
    """If the hub is set back after it, too, nobody knows the end."""
    await place.take()
    before = await to_thread.run_sync(shutil.copytree, place.log, place.path / "before")
    job = await place.put()
    for _ in range(2):
        await place.take()
    await place.client.close()
    taken = await to_thread.run_sync(shutil.copytree, place.hub, place.path / "taken")
    await place.round()
    await place.client.outbox("edge-7").settle()
    await to_thread.run_sync(shutil.rmtree, place.log)
    before.rename(place.log)
    assert (await place.take()).taken.jobs == 0
    if both:
        for each in (place.client, place.server):
            await each.close()
        await to_thread.run_sync(shutil.rmtree, place.hub)
        taken.rename(place.hub)
        place.restart()
    await place.round()
    job = place.client.job(job.id)
    if both:
        with pytest.raises(JobFailed, match="took it, and its log does not show"):
            await job.result(timeout=1)
    else:
        assert await job.result(timeout=1) == "edge-7 has 7.2"
    assert place.ran == [("edge-7", "7.2")]


async def test_a_device_that_comes_back_after_a_copy_of_it_gets_jobs_again(place: Fleet) -> None:
    await place.put("1")
    await place.round()
    aside = await to_thread.run_sync(shutil.copytree, place.log, place.path / "aside")
    original = place.log.rename(place.path / "original")
    aside.rename(place.log)
    await place.put("2")
    await place.round()
    await to_thread.run_sync(shutil.rmtree, place.log)
    original.rename(place.log)
    job = await place.put("3")
    await place.round()
    assert await job.result(timeout=1) == "edge-7 has 3"


async def test_an_answer_of_an_earlier_day_moves_no_position(place: Fleet) -> None:
    """A proxy kept it: what lies between is not passed over."""
    old, opened = Given("12345678", 5, 9, (), (("12345678-4", "default"),)), Mock()

    async def ask(_asked: object) -> Given:
        return old

    taking = DeviceOutbox(["*"]).take(1, UUID(int=1), {}, ask, opened)
    assert await taking == (0, 0, 0)
    opened.assert_not_called()


async def test_jobs_of_an_outbox_set_back_come_after_a_question(place: Fleet) -> None:
    folder = place.hub / "outbox/edge-7"
    await place.put("1")
    await place.client.close()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    await place.put("2")
    await place.round()
    await place.client.close()
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(before.get(file, b""))  # the inode stays
    await place.take()
    await place.put("3")
    await place.round()
    assert [version for _, version in place.ran] == ["1", "2", "3"]


async def test_a_cancel_that_was_taken_stops_no_job_of_a_restored_outbox(place: Fleet) -> None:
    folder = place.hub / "outbox/edge-7"
    for version, is_taken in (("1", False), ("2", True), ("3", True)):
        job = await place.put(version)
        if is_taken:
            await place.take()
        if version != "3":
            await job.cancel()
            if is_taken:
                await place.take()
            await place.client.close()
            await to_thread.run_sync(shutil.copytree, folder.rename(place.path / version), folder)
    await place.round()
    assert await job.result(timeout=1) == "edge-7 has 3"


async def test_a_group_gets_one_job_a_member(place: Fleet) -> None:
    for number in range(3):
        place.enrol(f"edge-{number}")
        if number != 1:
            Registry(place.hub).join("eu", f"edge-{number}")
    assert Registry(place.hub).groups() == {"eu": ["edge-0", "edge-2"]}
    jobs = await place.client.group("eu").enqueue(update("update", "7.2"))
    views = [await job.view() for job in jobs]
    assert [view.queue for view in views] == ["default", "default"]
    assert all(view.headers["hub-group"] == "eu" for view in views)
    Registry(place.hub).enroll("edge-0")
    assert place.client.group("eu").devices == ["edge-0", "edge-2"]
    for device in ("edge-0", "edge-1", "edge-2"):
        await place.round(device)
    assert sorted(place.ran) == [("edge-0", "7.2"), ("edge-2", "7.2")]
    assert [await job.result(timeout=1) for job in jobs] == ["edge-0 has 7.2", "edge-2 has 7.2"]
    with pytest.raises(UsageError, match="no device is in group"):
        await place.client.group("us").enqueue(update("update", "7.2"))


async def test_more_than_a_part_holds_comes_in_several_at_once(
    place: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = place.client.device("edge-7")
    large = update("update", "x" * 700_000)
    for call in (large, large, large, *[update("update", "1")] * 300):
        await device.enqueue(call)
    assert (await place.take()).taken.jobs == 303
    assert len(_jobs(place.log)) == 303
    async with TaskLog.open(place.log) as log:
        moves = [it async for it in log.stream(follow=False, kinds=["ingested"])]
    assert len(moves) >= 4
    await place.take()
    opened = Mock(wraps=LogReader.open)
    monkeypatch.setattr(LogReader, "open", opened)
    assert len(place.client.outbox("edge-7").open_jobs()) == 303
    assert opened.call_count == 2, "each log once, not once a job"


async def _fill_a_segment(place: Fleet) -> None:
    async with TaskLog.open(place.log, segment_bytes=65_536) as log:
        for _ in range(30):
            await log.put(bytes(4_000), queue="other")


async def test_ends_are_found_in_any_order_and_at_any_times_of_files(place: Fleet) -> None:
    jobs = []
    for version in ("1", "2"):
        jobs.append(await place.put(version))
        await place.round()
        await _fill_a_segment(place)
        await place.take()
    first, *_ = sorted((place.copy / "log").iterdir())
    os.utime(first, (1e9, 1e9))
    async with Hub(place.hub) as hub:
        for job in reversed(jobs):
            result = await hub.job(job.id).result(timeout=1)
            assert result == f"edge-7 has {1 + jobs.index(job)}"


async def test_headers_of_a_hub_make_no_hubs_job_of_a_devices_own(place: Fleet) -> None:
    job = await place.put(attempts=1)
    await place.take()
    (view,) = _jobs(place.log)
    async with TaskLog.open(place.log) as log:
        await log.cancel(await log.put(b"", queue="other", headers=view.headers))
    await place.take()
    assert await job.status() is State.READY
    await place.round()
    assert await job.result(timeout=1) == "edge-7 has 7.2"


async def test_why_names_where_a_job_of_the_outbox_is(place: Fleet) -> None:
    job = await place.put()
    assert "edge-7 has not taken it yet; edge-7 was never heard of" in str(await job.why())
    await place.take()
    await place.take()
    assert "handed over to edge-7 at 2" in str(await job.why())
    started, end = asyncio.Event(), asyncio.Event()
    app = place.apps["edge-7"]

    @app.middleware
    async def wait(_job: object) -> AsyncIterator[None]:
        started.set()
        await end.wait()
        yield

    async with app.worker():
        await started.wait()
        await place.take()
        reason = await job.why()
        end.set()
    assert reason.code is Why.RUNNING
    assert "running on edge-7 since 2" in str(reason)
    await app.close()
    await place.take()
    reason = await job.why()
    assert (reason.code, reason.text) == (Why.SUCCEEDED, "it succeeded on edge-7")


def _jobs(path: Path) -> list[JobView]:
    with LogReader.open(str(path)) as reader:
        return reader.jobs(None, None, None, 1_000)


async def test_commands_put_devices_into_groups_and_jobs_into_their_outbox(place: Fleet) -> None:
    hub, run = str(place.hub), CliRunner().invoke

    def told(*words: str) -> str:
        done = run(main, words if words[0] == "show" else ["hub", *words])
        assert done.exit_code == 0, done.output
        return done.output

    told("enroll", hub, "edge-7", "--replace", "--group", "eu")
    place.tokens["edge-7"] = Registry(place.hub).enroll("edge-7")
    job = await asyncio.to_thread(
        told, "put", hub, "edge-7", "update", '{"version": "7.2"}', "--expires", "1h"
    )
    both = await asyncio.to_thread(told, "put", hub, "group:eu", "update", '{"version": "7.3"}')
    assert f"{job.strip()}: update for edge-7: edge-7 has not taken it" in told("jobs", hub)
    await place.take()
    assert await place.client.job(both.strip()).cancel()
    await place.work()
    await place.take()
    assert "edge-7 has 7.2" in told("show", job.strip(), "-d", hub)
    assert json.loads(told("show", both.strip(), "-d", hub, "--json"))["state"] == "cancelled"
    assert json.loads(told("jobs", hub, "--json")) == []
    done = await asyncio.to_thread(run, main, ["hub", "put", hub, "edge-9", "update"])
    assert done.exit_code == 2
    assert "has no token" in done.output


#: Files and folders of one device at the hub, what stands there in their place, and the commands
#: that read them.
DAMAGED: Final = [
    ("devices/edge-6", b"text", "jobs devices check backup"),
    ("devices/edge-6/*/taskq.json", b"{", "jobs devices check"),
    ("devices/edge-6/*/taskq.json", b"[]", "jobs devices check"),
    ("devices/edge-6/*/taskq.json", b"[" * 100_000, "jobs devices check"),
    ("devices/edge-6/*/log", b"text", "jobs devices check backup"),
    ("outbox/edge-6/taskq.json", b"{", "jobs backup"),
]


@pytest.mark.parametrize(("where", "data", "readers"), DAMAGED, ids=range(len(DAMAGED)))
async def test_damage_of_one_device_hides_no_other(
    place: Fleet, where: str, data: bytes, readers: str
) -> None:
    place.enrol("edge-6")
    await place.take("edge-6")
    await place.client.device("edge-6").enqueue(place.client.call_by_name("update", "7.1"))
    job = await place.put()
    (damaged,) = place.hub.glob(where)
    shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
    damaged.write_bytes(data)
    (place.hub / "devices" / ".DS_Store").touch()
    backup = place.path / "backup"
    for command, more, shown in (
        ("jobs", [], f"{job.id}: update for edge-7: "),
        ("devices", ["edge-6", "edge-7"], "edge-7: heard of"),
        ("check", ["--deep"], ""),
        ("backup", [str(backup)], f"{backup}: "),
    ):
        words = ["hub", command, str(place.hub), *more]
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert done.exit_code == (command in readers), done.output
        assert shown in done.stdout
        assert "edge-6" in done.output or command not in readers
    assert (backup / "outbox/edge-7/taskq.json").exists()
    assert {copy.device for copy in place.server._copies.all()} <= {"edge-6"}  # as it tidies up
    async with Hub(place.hub) as hub:
        assert await hub.job(job.id).status() is State.READY


async def test_a_device_that_is_retired_leaves_no_open_jobs(place: Fleet) -> None:
    job = await place.put()
    words = ["hub", "retire", str(place.hub), "edge-7"]
    done = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert (done.exit_code, done.output) == (0, "1 job for edge-7 cancelled\n")
    assert await job.status() is State.CANCELLED
    with pytest.raises(UsageError, match="has no token"):
        place.client.device("edge-7")


async def test_what_the_readme_shows_of_jobs_for_devices_runs(
    place: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Registry(place.hub).join("eu", "edge-7")
    text = (Path(__file__).parents[2] / "plugins/README.md").read_text(encoding="utf-8")
    section = text.partition("### Jobs for devices")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(place.path)
    compiled = compile(code, "plugins/README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(compiled, {})  # noqa: S307 - it is our own text
    assert "edge-7 has not taken it yet; edge-7 was never heard of" in capsys.readouterr().out
    place.accept = ("update",)
    assert (await place.take()).taken.jobs == 2


def test_a_job_is_known_by_what_compaction_wrote_again_of_it_and_by_a_copy_set_back() -> None:
    world = World(config=keeping(min_free_bytes=0, reserve_bytes=0, keep_seconds=1.0))
    process, key = world.process(), b"hub:12345678-5"
    extras = Extras(key=key, headers={JOB: "12345678-5"}, due_ns=10**6 * SECOND_NS)
    move = checked_move("hub-jobs 12345678", 5, None)
    (job,) = process.ask(Op.INGEST, Ingest(move, [(PLAIN, b"{}", extras)]))
    process.rest()
    early = files_of(world.machine)
    fill_segment(process)
    fill_segment(process)
    world.clock.advance(1_000)
    (first, *_), upkeep = world.segments(), Upkeep(process.committer)
    for _ in range(3):
        tend(process, upkeep)
        world.clock.advance(1_000)
    assert first not in world.segments()
    disk, log_id = CrashableDisk(world.machine), process.journal.identity.log_id
    reading = CopyReader(disk, world.path, log_id)
    reading.read()
    assert reading.jobs == {"12345678-5": DeviceJob(world.path, job, False, "")}
    assert reading.taken["12345678"] == 5
    fill_segment(process)
    world.clock.advance(1)
    late = CopyReader(disk, world.path, log_id, int(world.segments()[-1][-24:-4]))
    process.ask(Op.CANCEL, job)
    reading.read()
    assert reading.jobs == {"12345678-5": DeviceJob(world.path, job, True, "")}
    late.read()
    assert not late.taken  # that stands in an earlier segment
    process.kill()
    set_back(world.machine, early, in_place=False)
    reading.read()
    assert reading.jobs == {"12345678-5": DeviceJob(world.path, job, False, "")}


async def test_a_lost_devices_jobs_go_to_another_and_run_there_alone(place: Fleet) -> None:
    place.enrol("edge-8")
    taken = await place.put("7.1")
    await place.take()
    await place.take()
    left = await place.put()
    own = await place.client.device("edge-8").enqueue(update("update", "8"))
    words = ["hub", "retire", str(place.hub), "edge-7", "--jobs-to"]
    result = await asyncio.to_thread(CliRunner().invoke, main, [*words, "edge-9"])
    assert (result.exit_code, "has no token" in result.stderr) == (2, True)
    result = await asyncio.to_thread(CliRunner().invoke, main, [*words, "edge-8"])
    assert result.output == "2 jobs for edge-7 given to edge-8\n"
    assert (await place.take("edge-8")).taken.jobs == 3
    await place.take("edge-8")
    waiting = await place.client.outbox("edge-8").waiting()
    assert len(waiting) == 3
    await place.work("edge-8")
    await place.take("edge-8")
    assert not await place.client.outbox("edge-8").waiting(), "their ends are known"
    for job in (taken, left):
        assert await job.status() is State.CANCELLED
    assert await own.result(timeout=1) == "edge-8 has 8"
    place.tokens["edge-7"] = Registry(place.hub).enroll("edge-7")
    synced = await place.take()  # it is found again, and has not run its job yet
    assert (synced.taken.jobs, synced.taken.cancelled) == (0, 1)
    await place.work()
    assert sorted(place.ran) == [("edge-8", "7.1"), ("edge-8", "7.2"), ("edge-8", "8")]


_STEPS: Final = 80
_SEEDS: Final = 1_000
_GROUPS: Final = 10


@grows
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_copy_equals_its_device_and_each_job_ends_once_through_crashes(group: int) -> None:
    handed = 0
    for seed in range(group, some(_GROUPS, _SEEDS), _GROUPS):
        simulation = Simulation(seed)
        try:
            simulation.run(_STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        handed += simulation.handed
    assert handed
