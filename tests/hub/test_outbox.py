"""Jobs that a hub has for its devices: handed over once, ended once, never forgotten."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import AsyncMock, Mock, create_autospec
from uuid import UUID

import httpx
import pytest
from anyio import to_thread
from click.testing import CliRunner

from examples.hub.line import HubProcess
from taskq import State, TaskLog, TaskQ, durable
from taskq.cli.main import main
from taskq.connection.settings import HubSettings
from taskq.core.model import PAYLOAD_BYTES_MAX, SECOND_NS, Extras
from taskq.core.sources import checked_move
from taskq.core.why import Why
from taskq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LogDamaged,
    UsageError,
)
from taskq.log.machine.disk import SystemClock
from taskq.log.read.reader import LogReader
from taskq.log.requests import Ingest, Op
from taskq.log.upkeep.upkeep import Upkeep
from taskq.testing.sandbox import use_clock
from taskq_plugins.hub import Hub
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.models import JOB, SPOKEN, Given
from taskq_plugins.hub.outbox import CopyReader, DeviceOutbox, DeviceReader, There
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import Server
from taskq_plugins.hub.sync import SyncResult, sync
from tests.effort import grows, some
from tests.hub.outbox_simulation import OutboxSimulation
from tests.hub.place import Direct
from tests.log.world import PLAIN, World, fill_segment, keeping, tend
from tests.machine.crashable import CrashableDisk
from tests.programs import run_forked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskq import JobHandle
    from taskq.core.views import JobView

_URL: Final = "http://localhost"


class Ahead(SystemClock):
    """Two hours later."""

    def wall_ns(self) -> int:
        return time.time_ns() + 7_200 * SECOND_NS

    def steady_ns(self) -> int:
        return super().steady_ns() + 7_200 * SECOND_NS


class Place:
    """A hub and its devices on one machine, with no line between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hub = Hub(path / "hub")
        self.server = Server(path / "hub")
        self.servers = [self.server]
        self.tokens: dict[str, str] = {}
        self.apps: dict[str, TaskQ] = {}
        self.ran: list[tuple[str, str]] = []
        self.accept: tuple[str, ...] = ("update", "photos.*")

    def enrol(self, device: str) -> TaskQ:
        self.tokens[device] = Registry(self.path / "hub").enroll(device)
        app = self.apps[device] = TaskQ(self.path / device)

        @app.task(name="update", retry=2)
        async def update(version: str) -> str:
            self.ran.append((device, version))
            if version == "bad":
                raise ValueError("no such version")
            return f"{device} has {version}"

        return app

    async def put(self, version: str = "7.2", **options: Any) -> JobHandle[Any]:
        call = self.hub.call_by_name("update", version).options(**options)
        return await self.hub.device("edge-7").enqueue(call)

    async def sync(self, device: str = "edge-7", **settings: Any) -> SyncResult:
        (self.path / device).mkdir(exist_ok=True)
        async with TaskLog.open(self.path / device):
            """There is a log."""
        hub = HubSettings(accept=self.accept, **settings)
        line = Line(_URL, self.tokens[device], Direct(self.server), hub)
        try:
            return await sync(str(self.path / device), line)
        finally:
            await line.close()

    async def round(self) -> None:
        await self.sync()
        await self.work()
        await self.sync()

    async def work(self, device: str = "edge-7") -> None:
        app = self.apps[device]
        async with app:
            await app.worker(burst=True).run()

    async def forget(self) -> None:
        limits: dict[str, Any] = {
            "keep": 0.001, "keep_segments": 1, "reader_lag_bytes": 65_536, "segment_bytes": 65_536,
        }  # fmt: skip
        async with TaskLog.open(self.path / "edge-7", **limits) as log:
            for _ in range(60):
                own = await log.put(bytes(4_000))
                await log.cancel(own)
            await log.compact()

    def restart(self) -> None:
        self.server = Server(self.path / "hub")
        self.servers.append(self.server)

    async def back_up(self, what: Path) -> Path:
        backup = what.with_suffix(".backup")
        await self.hub.close()
        await to_thread.run_sync(shutil.copytree, what, backup)
        return backup

    async def set_back(self, backup: Path, what: Path) -> None:
        await self.hub.close()
        await self.server.close()
        there = await to_thread.run_sync(shutil.copytree, backup, self.path / "again")
        await to_thread.run_sync(shutil.rmtree, what)
        there.rename(what)
        self.restart()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    made.enrol("edge-7")
    yield made
    await made.hub.close()
    for server in made.servers:
        await server.close()
    for app in made.apps.values():
        await app.close()


update = TaskQ("unused").call_by_name


async def test_a_job_runs_on_its_device_and_its_result_comes_back(place: Place) -> None:
    job = await place.put()
    assert (await place.sync()).taken.jobs == 1
    await place.work()
    assert await job.status() is State.READY
    await place.sync()
    assert await job.result(timeout=1) == "edge-7 has 7.2"
    assert place.ran == [("edge-7", "7.2")]
    assert (await place.sync()).taken.jobs == 0


async def test_a_worker_that_syncs_takes_and_runs_jobs_however_its_app_has_the_log_open(
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


async def test_options_of_the_call_hold_on_the_device(place: Place) -> None:
    device = place.hub.device("edge-7")
    call = update("update", "7.2").options(
        queue="firmware", priority=9, attempts=4, delay="1h", expires="1d", key="fw",
        headers={"by": "ada"},
    )  # fmt: skip
    job = await device.enqueue(call)
    assert (await device.enqueue(call)).id == job.id
    await place.sync()
    (view,) = _jobs(place.path / "edge-7")
    assert (view.queue, view.task, view.priority, view.attempts_max) == ("firmware", "update", 9, 4)
    assert view.headers["by"] == "ada"
    assert view.headers["hub-job"] == job.id
    assert view.state is State.SCHEDULED
    assert 3_500e9 < view.due_ns - view.enqueued_ns <= 3_600e9
    assert 86_000e9 < view.expires_ns - view.enqueued_ns <= 86_400e9
    assert view.payload == (await job.view()).payload
    await job.cancel()
    assert (await device.enqueue(call)).id != job.id


async def test_a_job_that_fails_on_the_device_is_a_dead_letter_with_its_words(place: Place) -> None:
    job = await place.put("bad", attempts=1)
    await place.round()
    with pytest.raises(JobFailed, match="no such version"):
        await job.result(timeout=1)


async def test_a_device_that_accepts_nothing_asks_for_no_jobs(place: Place) -> None:
    """A sync by hand, without the settings of the worker beside it, refuses nothing for it."""
    job = await place.put()
    accept, place.accept = place.accept, ()
    assert not any((await place.sync()).taken)
    assert await job.status() is State.READY
    place.accept = accept
    await place.round()
    assert await job.result(timeout=5) == "edge-7 has 7.2"


@pytest.mark.parametrize("accept", [("photos.*",), ("updat",)])
async def test_what_a_device_does_not_accept_is_a_dead_letter_on_the_hub(
    place: Place, accept: tuple[str, ...]
) -> None:
    place.accept = accept
    job = await place.put()
    assert (await place.sync()).taken == (0, 1, 0)
    await place.sync()
    with pytest.raises(
        JobFailed, match=r"edge-7 refuses it.*'update' is not among what is accepted"
    ):
        await job.result(timeout=1)
    assert not place.ran
    assert (await place.sync()).taken == (0, 0, 0)
    await place.hub.outbox("edge-7").settle()
    assert await job.status() is State.DEAD
    assert [it.queue for it in _jobs(place.path / "edge-7")] == ["hub-refused"]


async def test_of_a_part_the_rest_is_taken_when_one_is_refused(place: Place) -> None:
    device = place.hub.device("edge-7")
    jobs = [await device.enqueue(update(name, "1")) for name in ("update", "rm", "photos.send")]
    assert (await place.sync()).taken == (2, 1, 0)
    await place.sync()
    assert [await job.status() for job in jobs] == [State.READY, State.DEAD, State.READY]


async def test_a_job_that_is_cancelled_before_it_is_taken_never_goes_down(place: Place) -> None:
    job = await place.put()
    assert await job.cancel()
    assert (await place.sync()).taken == (0, 0, 0)


async def test_one_that_is_cancelled_later_is_cancelled_on_the_device(place: Place) -> None:
    job = await place.put()
    await place.sync()
    assert await job.cancel()
    with pytest.raises(JobCancelled):
        await job.result(timeout=1)
    place.restart()
    assert (await place.sync()).taken.cancelled == 1
    await place.work()
    assert not place.ran
    assert (await place.sync()).taken.cancelled == 0


async def test_a_cancel_that_was_cut_short_comes_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await place.put()
    await place.sync()
    await job.cancel()
    with monkeypatch.context() as cut:
        cut.setattr("taskq_plugins.hub.outbox._cancel", Mock(side_effect=RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            await place.sync()
    assert (await place.sync()).taken.cancelled == 1


@pytest.mark.parametrize("error", [JobNotFound("gone"), LogDamaged("bytes 0 to 9")])
async def test_a_job_that_cannot_be_cancelled_stops_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = await place.put()
    await place.sync()
    await job.cancel()
    await place.put("7.3")
    with monkeypatch.context() as broken:
        broken.setattr(TaskLog, "find", AsyncMock(side_effect=error))
        assert (await place.sync()).taken == (1, 0, 0)
    await place.work()
    assert ("edge-7", "7.3") in place.ran


@pytest.mark.parametrize("name", ["hub-job", "hub-refused", "hub-ended"])
async def test_a_call_with_a_header_of_the_hub_is_refused(place: Place, name: str) -> None:
    with pytest.raises(UsageError, match=f"the header '{name}' is the hub's"):
        await place.put(headers={name: "succeeded"})


@pytest.mark.parametrize("name", ["hub-refused", "hub-ended"])
async def test_a_header_that_says_what_became_of_a_job_is_never_a_calls(
    place: Place, name: str
) -> None:
    call = place.hub.call_by_name("update", "7.2").options(headers={name: "succeeded"})
    job = await place.hub.outbox("edge-7").enqueue(call)
    await place.round()
    assert place.ran == [("edge-7", "7.2")]
    assert await place.hub.job(job.id).result(timeout=1) == "edge-7 has 7.2"
    (view,) = _jobs(place.path / "edge-7")
    assert There("", 1, True, "", "king of all").view(view).state is view.state


async def test_one_that_succeeded_before_it_heard_of_the_cancel_stays_cancelled(
    place: Place,
) -> None:
    job = await place.put()
    await place.sync()
    await place.work()
    await job.cancel()
    assert (await place.sync()).taken.cancelled == 0
    assert await job.status() is State.CANCELLED


async def test_a_job_that_no_device_took_in_time_expires(place: Place) -> None:
    late = await place.put(expires=0.001)
    assert (await place.sync()).taken.jobs == 0
    with pytest.raises(JobExpired):
        await late.result(timeout=1)
    await place.hub.outbox("edge-7").settle()
    assert await late.status() is State.EXPIRED


async def test_a_late_job_whose_answer_was_lost_is_over_once_its_device_has_asked_again(
    place: Place,
) -> None:
    job = await place.put(expires=0.001)
    Registry(place.path / "hub").note("edge-7", given={job.id.partition("-")[0]: 1})
    assert await job.status() is State.READY
    await place.sync()
    await place.sync()
    assert await job.status() is State.EXPIRED


async def test_the_server_writes_to_an_outbox_only_if_a_job_of_it_is_over(place: Place) -> None:
    await place.put(expires=0.001)
    await place.put()
    path = place.hub.outbox("edge-7").path
    await place.hub.close()
    await place.server._outbox._settle_all()
    assert [job.state for job in _jobs(path)] == [State.READY, State.EXPIRED]
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    await place.server._outbox._settle_all()
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


async def test_one_that_a_device_took_is_its_own_to_judge(place: Place) -> None:
    ran, late = await place.put(expires="1h"), await place.put(expires="1h")
    await place.sync()
    await place.hub.close()
    ran, late = place.hub.job(ran.id), place.hub.job(late.id)
    use_clock(place.hub.outbox("edge-7"), Ahead())
    await place.hub.outbox("edge-7").settle()
    assert await ran.status() is State.READY
    app = place.apps["edge-7"]
    async with app:
        await app.worker(burst=True, max_jobs=1).run()
    await place.sync()
    assert await ran.result(timeout=1) == "edge-7 has 7.2"
    use_clock(app, Ahead())
    await place.work()
    await place.sync()
    with pytest.raises(JobExpired):
        await late.result(timeout=1)
    assert len(place.ran) == 1


async def test_a_result_as_large_as_may_be_comes_up(place: Place) -> None:
    app = place.apps["edge-7"] = TaskQ(place.path / "edge-7")
    large = "x" * (PAYLOAD_BYTES_MAX - 2)
    app.task(name="photos.all")(lambda: large)
    job = await place.hub.device("edge-7").enqueue(update("photos.all"))
    await place.sync()
    await place.work()
    await place.sync()
    assert await job.result(timeout=1) == large


async def test_a_job_that_its_device_lost_is_a_dead_letter_that_says_so(place: Place) -> None:
    """It ended, and its limits took it from the device before the hub had any of it."""
    job = await place.put()
    await place.sync()
    await place.work()
    await place.forget()
    await place.sync()
    assert not [view for view in _jobs(place.path / "edge-7") if JOB in view.headers]
    assert await job.status() is State.DEAD
    with pytest.raises(JobFailed, match="edge-7 took it, and its log does not tell what became"):
        await job.result(timeout=1)
    await place.hub.outbox("edge-7").settle()
    assert (await place.put(key="again")).duplicate is False
    assert [view.state for view in _jobs(place.path / "hub/outbox/edge-7")][-1] is State.EXPIRED


async def test_a_log_that_was_left_says_nothing_of_a_job_that_the_last_one_has_passed(
    place: Place,
) -> None:
    """The hub had the job, not its end; then the device forgot it, and was set back."""
    job = await place.put()
    await place.sync()
    await place.sync()
    await place.work()
    await place.forget()
    await place.set_back(place.path / "edge-7", place.path / "edge-7")
    await place.sync()
    assert await place.hub.job(job.id).status() is State.DEAD
    assert not await place.hub.outbox("edge-7").waiting()


async def test_the_end_of_a_job_outlasts_set_backs_of_both_sides(place: Place) -> None:
    """The device loses it first, and the hub after it: each has it from the other."""
    hub, device = place.path / "hub", place.path / "edge-7"
    await place.sync()
    before = await place.back_up(device)
    ran, failed = await place.put(), await place.put("bad", attempts=1)
    await place.sync()
    await place.sync()
    taken = await place.back_up(hub)
    await place.round()
    await place.hub.outbox("edge-7").settle()
    await place.set_back(before, device)
    await place.sync()
    await place.set_back(taken, hub)
    await place.round()
    assert await place.hub.job(ran.id).result(timeout=1) == "edge-7 has 7.2"
    with pytest.raises(JobFailed, match="no such version"):
        await place.hub.job(failed.id).result(timeout=1)
    assert [version for _, version in place.ran] == ["7.2", "bad"]


async def test_the_ends_of_jobs_for_one_answer_are_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = place.path / "edge-7"
    await place.sync()
    before = await place.back_up(device)
    jobs = [await place.put(version) for version in ("1", "2", "3")]
    await place.round()
    await place.hub.outbox("edge-7").settle()
    await place.set_back(before, device)
    reading = create_autospec(DeviceReader.read, side_effect=DeviceReader.read)
    monkeypatch.setattr(DeviceReader, "read", reading)
    assert (await place.sync()).taken.jobs == len(jobs)
    reading.assert_called_once()


async def test_a_device_that_comes_back_after_a_copy_of_it_gets_jobs_again(place: Place) -> None:
    device, aside = place.path / "edge-7", place.path / "aside"
    await place.put("1")
    await place.round()
    await to_thread.run_sync(shutil.copytree, device, aside)
    original = device.rename(place.path / "original")
    aside.rename(device)
    await place.put("2")
    await place.round()
    await to_thread.run_sync(shutil.rmtree, device)
    original.rename(device)
    job = await place.put("3")
    await place.round()
    assert await job.result(timeout=1) == "edge-7 has 3"


async def test_an_answer_of_an_earlier_day_moves_no_position(place: Place) -> None:
    """A proxy kept it: what lies between is not passed over."""
    old, opened = Given("12345678", 5, 9, (), (("12345678-4", "default"),)), Mock()

    async def ask(_asked: object) -> Given:
        return old

    taking = DeviceOutbox(["*"]).take(1, UUID(int=1), {}, ask, opened)
    assert await taking == (0, 0, 0)
    opened.assert_not_called()


async def test_jobs_of_an_outbox_that_was_restored_twice_come_once(place: Place) -> None:
    outbox, backup = place.path / "hub/outbox/edge-7", place.path / "backup"
    await place.put("1")
    await place.hub.close()
    await to_thread.run_sync(shutil.copytree, outbox, backup)
    for version in ("2", "3"):
        await to_thread.run_sync(shutil.rmtree, outbox)
        await to_thread.run_sync(shutil.copytree, backup, outbox)
        await place.put(version)
        await place.hub.close()
        await place.round()
    assert [version for _, version in place.ran] == ["1", "2", "3"]


async def test_jobs_of_an_outbox_that_was_set_back_in_place_come_once_its_device_has_asked(
    place: Place,
) -> None:
    outbox = place.path / "hub/outbox/edge-7"
    await place.put("1")
    await place.hub.close()
    before = {file: file.read_bytes() for file in outbox.rglob("*") if file.is_file()}
    await place.put("2")
    await place.round()
    await place.hub.close()
    for file in outbox.rglob("*"):
        if file.is_file():
            file.write_bytes(before.get(file, b""))  # the inode stays
    await place.sync()
    await place.put("3")
    await place.round()
    assert [version for _, version in place.ran] == ["1", "2", "3"]


async def test_a_group_gets_one_job_a_member(place: Place) -> None:
    for number in range(3):
        place.enrol(f"edge-{number}")
        if number != 1:
            Registry(place.hub.path).join("eu", f"edge-{number}")
    assert Registry(place.hub.path).groups() == {"eu": ["edge-0", "edge-2"]}
    jobs = await place.hub.group("eu").enqueue(update("update", "7.2"))
    views = [await job.view() for job in jobs]
    assert [view.queue for view in views] == ["default", "default"]
    assert all(view.headers["hub-group"] == "eu" for view in views)
    Registry(place.hub.path).enroll("edge-0")
    assert place.hub.group("eu").devices == ["edge-0", "edge-2"]
    for device in ("edge-0", "edge-1", "edge-2"):
        await place.sync(device=device)
        await place.work(device)
        await place.sync(device=device)
    assert sorted(place.ran) == [("edge-0", "7.2"), ("edge-2", "7.2")]
    assert [await job.result(timeout=1) for job in jobs] == ["edge-0 has 7.2", "edge-2 has 7.2"]
    with pytest.raises(UsageError, match="no device is in group"):
        await place.hub.group("us").enqueue(update("update", "7.2"))


async def test_more_than_a_part_holds_comes_in_several_at_once(place: Place) -> None:
    device = place.hub.device("edge-7")
    large = update("update", "x" * 700_000)
    for call in (large, large, large, *[update("update", "1")] * 300):
        await device.enqueue(call)
    assert (await place.sync()).taken.jobs == 303
    assert len(_jobs(place.path / "edge-7")) == 303
    async with TaskLog.open(place.path / "edge-7") as log:
        moves = [it async for it in log.stream(follow=False, kinds=["ingested"])]
    assert len(moves) >= 4


async def test_only_the_latest_session_gets_jobs(
    place: Place,
) -> None:
    await place.put()
    await place.sync()
    transport = httpx.ASGITransport(place.server.app)
    token = {"Authorization": f"Bearer {place.tokens['edge-7']}", SPOKEN: "1"}
    values = {
        "session": 1, "log_id": "12345678-1234-5678-1234-567812345678", "after": {},
        "wait_seconds": 0, "bytes_max": 1,
    }  # fmt: skip
    async with httpx.AsyncClient(transport=transport, base_url=_URL, headers=token) as client:
        assert (await client.post("/down", json=values)).status_code == 409
        for wrong in (b"", b"[]", b"{}", json.dumps(values | {"after": {"../x": 1}}).encode()):
            assert (await client.post("/down", content=wrong)).status_code == 400
        assert (await client.post("/down", headers={"Authorization": ""})).status_code == 401


async def test_why_tells_where_a_job_is(place: Place) -> None:
    job = await place.put()
    assert "edge-7 has not taken it yet; edge-7 was never heard of" in str(await job.why())
    await place.sync()
    await place.sync()
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
        await place.sync()
        reason = await job.why()
        end.set()
    assert reason.code is Why.RUNNING
    assert "running on edge-7 since 2" in str(reason)
    await app.close()
    await place.sync()
    reason = await job.why()
    assert (reason.code, reason.text) == (Why.SUCCEEDED, "it succeeded on edge-7")


async def test_a_job_that_waits_on_its_device_goes_on_behind_its_steps_and_its_end_comes_back(
    place: Place,
) -> None:
    app = place.apps["edge-7"]

    @app.task(name="photos.send")
    async def send(version: str) -> str:
        await durable.step("note", place.ran.append, ("edge-7", version))
        return f"{version} to {await durable.event('address', str)}"

    await place.sync()
    job = await place.hub.device("edge-7").enqueue(place.hub.call_by_name("photos.send", "7.2"))
    await place.round()
    assert await job.status() is State.SCHEDULED
    (there,) = _jobs(app.data_dir)
    async with app:
        assert await app.signal(there.job_id, "address", "Kyoto")
    await place.round()
    assert await job.result(timeout=1) == "7.2 to Kyoto"
    assert place.ran == [("edge-7", "7.2")]


async def test_a_question_waits_for_what_comes_and_no_longer_than_it_says(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.put("1")
    await place.sync()
    question = (await place.sync()).question
    assert question is not None
    line = Line(_URL, place.tokens["edge-7"], Direct(place.server))
    assert await line.hold(replace(question, wait_seconds=0.1)) is None
    serving, looked = asyncio.create_task(place.server._outbox.run()), asyncio.Event()
    loop, given_of = asyncio.get_running_loop(), place.server._outbox.given

    def give(*asked: Any) -> Given | None:
        loop.call_soon_threadsafe(looked.set)
        return given_of(*asked)

    monkeypatch.setattr(place.server._outbox, "given", give)
    asked = asyncio.create_task(line.hold(question))
    await looked.wait()
    assert not asked.done()
    await place.put("2")
    given = await asked
    assert isinstance(given, Given)
    assert [job.task for job in given.jobs] == ["update"]
    serving.cancel()
    await line.close()


def _jobs(path: Path) -> list[JobView]:
    with LogReader.open(str(path)) as reader:
        return reader.jobs(None, None, None, 1_000)


async def test_commands_put_devices_into_groups_and_jobs_into_their_outbox(place: Place) -> None:
    hub, run = str(place.hub.path), CliRunner().invoke

    def told(*words: str) -> str:
        done = run(main, ["hub", *words])
        assert done.exit_code == 0, done.output
        return done.output

    told("enroll", hub, "edge-7", "--replace", "--group", "eu")
    place.tokens["edge-7"] = Registry(place.hub.path).enroll("edge-7")
    job = await asyncio.to_thread(
        told, "put", hub, "edge-7", "update", '{"version": "7.2"}', "--expires", "1h"
    )
    both = await asyncio.to_thread(told, "put", hub, "group:eu", "update", '{"version": "7.3"}')
    assert f"{job.strip()}: update for edge-7: edge-7 has not taken it" in told("jobs", hub)
    await place.sync()
    assert await place.hub.job(both.strip()).cancel()
    await place.work()
    await place.sync()
    assert "edge-7 has 7.2" in told("find", hub, job.strip())
    own, there = json.loads(told("find", hub, both.strip(), "--json"))
    assert (own["state"], there["state"]) == ("cancelled", "succeeded")
    assert json.loads(told("jobs", hub, "--json")) == []
    done = await asyncio.to_thread(run, main, ["hub", "put", hub, "edge-9", "update"])
    assert done.exit_code == 2
    assert "has no token" in done.output


async def test_a_device_that_is_retired_leaves_no_open_jobs(place: Place) -> None:
    job = await place.put()
    words = ["hub", "retire", str(place.hub.path), "edge-7"]
    done = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert (done.exit_code, done.output) == (0, "1 job for edge-7 cancelled\n")
    assert await job.status() is State.CANCELLED
    with pytest.raises(UsageError, match="has no token"):
        place.hub.device("edge-7")


async def test_what_the_readme_shows_of_jobs_for_devices_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Registry(place.hub.path).join("eu", "edge-7")
    text = (Path(__file__).parents[2] / "plugins/README.md").read_text(encoding="utf-8")
    section = text.partition("### Jobs for devices")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(place.path)
    compiled = compile(code, "plugins/README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(compiled, {})  # noqa: S307 - it is our own text
    assert "edge-7 has not taken it yet; edge-7 was never heard of" in capsys.readouterr().out
    place.accept = ("update",)
    assert (await place.sync()).taken.jobs == 2


def test_a_job_is_known_by_what_compaction_wrote_again_of_it() -> None:
    world = World(config=keeping(min_free_bytes=0, reserve_bytes=0, keep_seconds=1.0))
    process, key = world.process(), b"hub:12345678-5"
    extras = Extras(key=key, headers={JOB: "12345678-5"}, due_ns=10**6 * SECOND_NS)
    move = checked_move("hub-jobs 12345678", 5, None)
    (job,) = process.ask(Op.INGEST, Ingest(move, [(PLAIN, b"{}", extras)]))
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
    assert reading.jobs == {"12345678-5": There(world.path, job, False, "")}
    assert reading.taken["12345678"] == 5
    process.ask(Op.CANCEL, job)
    reading.read()
    assert reading.jobs == {"12345678-5": There(world.path, job, True, "")}


async def test_a_lost_devices_jobs_go_to_another_under_their_ids_and_run_there_alone(
    place: Place,
) -> None:
    place.enrol("edge-8")
    taken = await place.put("7.1")
    await place.sync()
    await place.sync()
    left = await place.put()
    own = await place.hub.device("edge-8").enqueue(update("update", "8"))
    words = ["hub", "retire", str(place.path / "hub"), "edge-7", "--jobs-to"]
    result = await asyncio.to_thread(CliRunner().invoke, main, [*words, "edge-9"])
    assert (result.exit_code, "has no token" in result.stderr) == (2, True)
    result = await asyncio.to_thread(CliRunner().invoke, main, [*words, "edge-8"])
    assert result.output == "2 jobs for edge-7 given to edge-8\n"
    assert (await place.sync(device="edge-8")).taken.jobs == 3
    await place.sync(device="edge-8")
    assert len(await place.hub.outbox("edge-8").waiting()) == 3
    await place.work("edge-8")
    await place.sync(device="edge-8")
    assert await taken.result(timeout=1) == "edge-8 has 7.1"
    assert await left.result(timeout=1) == "edge-8 has 7.2"
    assert await own.result(timeout=1) == "edge-8 has 8"
    place.tokens["edge-7"] = Registry(place.path / "hub").enroll("edge-7")
    synced = await place.sync()  # it is found again, and has not run its job yet
    assert (synced.taken.jobs, synced.taken.cancelled) == (0, 1)
    await place.work()
    assert sorted(place.ran) == [("edge-8", "7.1"), ("edge-8", "7.2"), ("edge-8", "8")]


_STEPS: Final = 80
_SEEDS: Final = 1_000
_GROUPS: Final = 10


@grows
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_job_for_a_device_is_handed_over_once_and_ends_once_and_is_never_forgotten(
    group: int,
) -> None:
    handed = 0
    for seed in range(group, some(_GROUPS, _SEEDS), _GROUPS):
        simulation = OutboxSimulation(seed)
        try:
            simulation.run(_STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        handed += simulation.handed
    assert handed


@pytest.mark.parametrize(
    ("devices", "rounds", "kills"),
    [
        pytest.param(2, 3, 3, marks=pytest.mark.timeout(120)),
        pytest.param(100, 10, 30, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_jobs_for_a_group_run_once_on_each_though_hub_devices_and_line_fail(
    tmp_path: Path, devices: int, rounds: int, kills: int
) -> None:
    options = f"--devices {devices} --rounds {rounds} --kills {kills} --dir {tmp_path}"
    done = run_forked("-m", "tests.processes.hub_jobs", *options.split(), seconds=3_600)
    assert done.returncode == 0, done.stderr
    assert f"{devices * rounds} jobs for {devices} devices ran once on each" in done.stdout
