"""H7: a job for a device is handed over once, ends once and is not forgotten, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from examples.hub.line import BadLine, HubProcess
from taskq import State, TaskLog, TaskQ
from taskq.connection.settings import HubSettings
from taskq.core.errors import JobError, LogError
from taskq.log.read.reader import LogReader
from taskq_plugins.hub import Hub
from taskq_plugins.hub.device.line import Line
from taskq_plugins.hub.devices import enrol, set_member
from taskq_plugins.hub.sync import sync
from tests.effort import grows, some
from tests.hub.outbox_simulation import OutboxSimulation

if TYPE_CHECKING:
    from pathlib import Path

    from taskq import JobHandle

_STEPS: Final = 80
_SEEDS: Final = 1_000
_GROUPS: Final = 10


@grows
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_job_for_a_device_is_handed_over_once_and_ends_once_and_is_never_forgotten(
    group: int,
) -> None:
    handed = 0
    for seed in range(group, some(2 * _GROUPS, _SEEDS), _GROUPS):
        simulation = OutboxSimulation(seed)
        try:
            simulation.run(_STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        handed += simulation.handed
    assert handed


class Fleet:
    """Devices that go on and off, behind a bad line to a hub that is killed."""

    def __init__(self, path: Path, devices: int) -> None:
        self.path = path
        self.server = HubProcess(path / "hub")
        self.hub = Hub(path / "hub")
        self.tokens: dict[str, str] = {}
        self.chance = random.Random(7)
        self.is_over = False
        for number in range(devices):
            name = f"edge-{number}"
            self.tokens[name] = enrol(path / "hub", name)
            set_member(path / "hub", "all", name, is_in=True)

    async def live(self, device: str, port: int) -> None:
        """Come and go until all is over."""
        while not self.is_over:
            await self._for_a_while(self._sync(device, port))
            await self._for_a_while(self._work(device))
            await asyncio.sleep(self.chance.uniform(0, 0.1))

    async def _for_a_while(self, doing: Any) -> None:
        """Do something, which may be cut short."""
        limit = self.chance.uniform(0.05, 0.5) if self.chance.random() < 0.2 else 60.0
        with contextlib.suppress(TimeoutError, LogError):
            await asyncio.wait_for(doing, limit)

    async def _sync(self, device: str, port: int) -> None:
        async with TaskLog.open(self.path / device):
            """There is a log."""
        settings = HubSettings(accept=("update",))
        line = Line(f"http://127.0.0.1:{port}", self.tokens[device], None, settings)
        try:
            await sync(str(self.path / device), line)
        finally:
            await line.close()

    async def _work(self, device: str) -> None:
        app = TaskQ(self.path / device)

        @app.task(name="update", retry=5)
        async def update(version: str) -> str:
            return f"{device} has {version}"

        async with app:
            await app.adopt()
            await app.worker(burst=True).run()

    def ran(self, device: str) -> Counter[tuple[str, State]]:
        """Of each job that it was handed, how often that stands in its log, and how it ended."""
        with LogReader.open(str(self.path / device)) as reader:
            views = reader.jobs(None, None, None, 10_000)
        return Counter((one.headers["hub-job"], one.state) for one in views)

    async def until(self, jobs: list[JobHandle[Any]]) -> None:
        """Wait until all of these have ended."""
        for job in jobs:
            with contextlib.suppress(JobError):
                await job.result()


async def _jobs_go_to_all(path: Path, devices: int, rounds: int, kills: int) -> None:
    fleet = Fleet(path, devices)
    update = fleet.hub.call_by_name
    group = fleet.hub.group("all")
    called_off = await group.enqueue(update("update", version="off"))
    assert all([await job.cancel() for job in called_off])
    late = await group.enqueue(update("update", version="late").options(expires=0.001))
    jobs = [
        job
        for number in range(rounds)
        for job in await group.enqueue(update("update", version=f"7.{number}"))
    ]
    await fleet.server.start()
    try:
        async with BadLine(fleet.server.port, 0.05) as bad:
            living = [asyncio.create_task(fleet.live(one, bad.port)) for one in fleet.tokens]
            ended = asyncio.create_task(fleet.until([*jobs, *late]))
            while fleet.server.kills < kills:
                await asyncio.sleep(fleet.chance.uniform(0.5, 2.0))
                await fleet.server.kill()
            await ended
            fleet.is_over = True
            await asyncio.gather(*living)
    finally:
        fleet.server.stop()
    results = Counter([await job.result() for job in jobs])
    assert results == Counter(
        f"{device} has 7.{number}" for device in fleet.tokens for number in range(rounds)
    )
    assert {await job.status() for job in called_off} == {State.CANCELLED}
    assert {await job.status() for job in late} == {State.EXPIRED}
    there = Counter[tuple[str, State]]()
    for device in fleet.tokens:
        there += fleet.ran(device)
    assert there == Counter((job.id, State.SUCCEEDED) for job in jobs)
    await fleet.hub.close()


@pytest.mark.timeout(120)
async def test_jobs_for_a_group_run_once_on_each_though_hub_and_line_fail(tmp_path: Path) -> None:
    await _jobs_go_to_all(tmp_path, devices=3, rounds=4, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_a_thousand_jobs_for_a_hundred_devices_run_once_on_each(tmp_path: Path) -> None:
    await _jobs_go_to_all(tmp_path, devices=100, rounds=10, kills=20)
