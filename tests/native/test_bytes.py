"""With fixed ids and clocks the logs of C and Python are equal, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from itertools import count
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.log.machine import peers
from taskq.testing.sandbox import FakeClock, use_clock
from tests.effort import grows, some
from tests.log.format.test_golden import GOLDEN, opened
from tests.log.golden.write import LOGS, world_of
from tests.log.simulation import Simulation
from tests.native.twins import held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.native.conftest import Choose


async def written(path: Path) -> dict[str, bytes]:
    """Write jobs of several kinds, alone and as a crowd; returns the segments."""
    app = TaskQ(path, durability="os")
    use_clock(app, FakeClock())

    @app.task(name="send")
    async def send(to: str, count: int = 1) -> None:
        """Not run here."""

    @app.task(name="keyed", key=lambda number: f"{number}", priority=8)
    async def keyed(number: int) -> None:
        """Not run here, either."""

    async with app:
        await send.enqueue("alone")
        for crowd in range(4):
            with held(app):
                calls = [send.enqueue(f"{crowd} {n}", count=n) for n in range(30)]
                calls += [keyed.enqueue(n // 2) for n in range(4)]
                calls += [send.enqueue("ü", count=crowd), send.enqueue(to="by name")]
                tasks = [asyncio.create_task(call) for call in calls]
                await asyncio.sleep(0)
                tasks[3].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return {file.name: file.read_bytes() for file in sorted((path / "log").glob("*.log"))}


@contextlib.contextmanager
def fixed_ids() -> Iterator[None]:
    """Let what is random or of a process be the same in every log, until the block is left."""
    numbers = count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
        patch.setattr(os, "urandom", lambda size: bytes([next(numbers) % 250 + 1]) * size)
        patch.setattr(peers, "_now_ns", lambda: 1)
        yield


@pytest.mark.usefixtures("own_settings")
def test_logs_are_equal(choose: Choose, tmp_path: Path) -> None:
    logs = []
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            logs.append(asyncio.run(written(tmp_path / str(in_c))))
    assert logs[0]
    assert min(map(len, logs[0].values())) > 120 * 60
    assert logs[1] == logs[0]


@grows
@pytest.mark.parametrize("seed", range(some(6, 300)))
def test_logs_of_simulations_are_equal(seed: int, choose: Choose) -> None:
    """Through crashes and losses of power, with faults of the disk and steps of the clock."""
    logs = []
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            simulation = Simulation(
                seed, steps_of_clock=seed % 2 == 1, faults=seed % 3 == 1, snapshots=seed % 5 == 1
            )
            simulation.run(80)
            world = simulation.world
            logs.append({path: world.machine.content(path) for path in world.segments()})
    assert sum(map(len, logs[0].values())) > 1_000
    assert logs[1] == logs[0]


@pytest.mark.parametrize("name", LOGS)
def test_golden_logs_are_written_alike(name: str, choose: Choose) -> None:
    logs = []
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            machine = world_of(name).machine
            logs.append({path: machine.content(path) for path in machine.paths()})
    assert any(path.endswith(".log") and content for path, content in logs[0].items())
    assert logs[1] == logs[0]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_logs_go_on_alike(name: str, choose: Choose, tmp_path: Path) -> None:
    logs = []
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            path = tmp_path / str(in_c)
            asyncio.run(opened(name, path))
            files = sorted((path / "log").glob("*.log"))
            logs.append({file.name: file.read_bytes() for file in files})
    assert logs[0]
    assert logs[1] == logs[0]
