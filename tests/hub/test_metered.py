"""Sync on a metered line, or on battery."""

import asyncio
import contextlib
import os
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest
from anyio import to_thread
from click.testing import CliRunner

from examples.hub.line import BadLine
from taskq import TaskLog
from taskq.cli.main import main
from taskq.connection.settings import HubSettings
from taskq_plugins.hub import Hub, line
from taskq_plugins.hub.line import Allowance, HubWaits, Line, last_note
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Verdict, follow, sync
from tests.hub.place import Place
from tests.processes.harness import eventually

_DAY: Final = 86_400.0
_KIB: Final = 1_024
_BUDGET: Final = 128 * _KIB
_SAID: Final = (
    "#!/bin/sh\nprintf 'GENERAL.DEVICE:wwan0\\nGENERAL.STATE:100\\nGENERAL.METERED:{}\\n'\n"
)


def _counter(url: str) -> BadLine:
    return BadLine(int(url.rpartition(":")[2]), drops=0.0)


def _at(counter: BadLine) -> str:
    return f"http://127.0.0.1:{counter.port}"


class Network:
    def __init__(self, folder: Path) -> None:
        self._program = folder / "nmcli"

    def is_metered(self, metered: bool) -> None:
        self._program.write_text(_SAID.format("yes" if metered else "no"))
        self._program.chmod(0o755)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(line, "LOOK_SECONDS", 0.0)
    made = Network(folder)
    made.is_metered(True)
    return made


class Device:
    def __init__(
        self, place: Place, url: str, seconds: float = 1_000 * _DAY, **settings: Any
    ) -> None:
        self.path, self.seconds = str(place.path / "edge-7"), seconds
        hub = HubSettings(**settings)
        self.line = Line(url, Registry(place.hub).enroll("edge-7"), None, hub)
        self.line.allowance = Allowance(hub, url, lambda: self.seconds)

    async def sync(self) -> list[Verdict]:
        return (await sync(self.path, self.line)).verdicts


def _told(device: Device) -> str:
    return str(last_note(device.path)["error"])


async def _thirty_days(place: Place) -> None:
    """Let the device have written for a month, with nobody to send it to."""
    for _ in range(30):
        async with TaskLog.open(place.path / "edge-7", segment_bytes=64 * _KIB) as log:
            for _ in range(4):
                await log.put(os.urandom(3_000))


def _is_prefix(place: Place) -> bool:
    ours, theirs = place.segments(), place.copies()
    names = sorted(theirs)
    return names == sorted(ours)[: len(names)] and all(
        ours[name][: len(theirs[name])].rstrip(b"\0") == theirs[name].rstrip(b"\0")
        and (name == names[-1] or ours[name].rstrip(b"\0") == theirs[name].rstrip(b"\0"))
        for name in names
    )


async def test_a_month_of_backlog_keeps_the_daily_volume(
    place: Place, url: str, network: Network
) -> None:
    await _thirty_days(place)
    days = 0
    async with _counter(url) as counter:
        device = Device(place, _at(counter), metered_bytes_per_day=_BUDGET)
        while place.copies().keys() != place.segments().keys() or days < 1:
            before = counter.carried
            for _ in range(2):  # nor more by asking again, from the next process
                with contextlib.suppress(HubWaits):
                    await device.sync()
                await device.line.close()
                device = Device(place, _at(counter), device.seconds, metered_bytes_per_day=_BUDGET)
            assert _BUDGET // 2 < counter.carried - before <= _BUDGET
            assert _is_prefix(place)
            assert "(wwan0): 0.125 MiB a day used up; goes on at 1972-" in _told(device)
            device.seconds += _DAY
            days += 1
        await device.line.close()
    assert 3 <= days <= 8


async def test_a_device_that_waits_for_a_line_resumes_when_the_line_changes(
    place: Place, url: str, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    await _thirty_days(place)
    device = Device(place, url, metered_bytes_per_day=_BUDGET)
    following = asyncio.create_task(follow(device.path, device.line, once=True))
    await to_thread.run_sync(eventually, lambda: "used up" in caplog.text)
    assert not following.done()
    result = await to_thread.run_sync(
        CliRunner().invoke, main, ["sync", "-d", device.path, "--status"]
    )
    assert "(wwan0): 0.125 MiB a day used up; goes on at 1972-" in result.output
    network.is_metered(False)
    await following
    assert place.copies().keys() == place.segments().keys()
    await device.line.close()


@pytest.mark.parametrize(("metered", "is_sent"), [("never", False), ("all", True)])
async def test_nothing_or_all_goes_over_a_metered_line_where_the_settings_say_so(
    place: Place, url: str, network: Network, metered: str, is_sent: bool
) -> None:
    await _thirty_days(place)
    async with _counter(url) as counter:
        device = Device(place, _at(counter), metered=metered, metered_bytes_per_day=1_024)
        with contextlib.nullcontext() if is_sent else pytest.raises(HubWaits, match="'never'"):
            await device.sync()
        assert bool(counter.carried) is is_sent
        await device.line.close()


async def test_a_device_on_its_battery_sends_nothing_where_that_is_required(
    place: Place, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery = tmp_path / "supplies" / "BAT0"
    battery.mkdir(parents=True)
    (battery / "type").write_text("Battery\n")
    (battery / "status").write_text("Discharging\n")
    monkeypatch.setattr("taskq.conditions.base._SUPPLIES", battery.parent)
    await place.write()
    async with _counter(url) as counter:
        device = Device(place, _at(counter), requires=("online", "on_power"))
        reachable = counter.carried
        with pytest.raises(HubWaits, match="nothing is sent while on_power"):
            await device.sync()
        assert counter.carried == reachable
        assert "runs from its battery" in last_note(device.path)["error"]
        (battery / "status").write_text("Charging\n")
        assert await device.sync() == [Verdict.NEW]
        await device.line.close()


async def test_a_job_that_is_larger_than_what_is_left_stays_at_the_hub_until_another_line(
    place: Place, url: str, network: Network
) -> None:
    await place.write()
    hub = Hub(place.hub)
    async with _counter(url) as counter:
        settings: dict[str, Any] = {"metered_bytes_per_day": _BUDGET, "accept": ("*",)}
        device = Device(place, _at(counter), **settings)
        await device.sync()
        await hub.device("edge-7").enqueue(hub.call_by_name("update", "7" * 90_000))
        assert (await sync(device.path, device.line)).taken.jobs == 0
        assert counter.carried < 20 * _KIB
        network.is_metered(False)
        assert (await sync(device.path, device.line)).taken.jobs == 1
        await device.line.close()
    await hub.close()


async def test_a_rate_is_kept(place: Place, url: str) -> None:
    await place.write(8, 50_000)
    device = Device(place, url, rate=400_000)
    began = monotonic()
    await device.sync()
    size = sum(map(len, place.copies().values()))
    # The last piece is on its way when the answer comes.
    assert size / (monotonic() - began) < 400_000 * 3
    assert monotonic() - began > size / 400_000 / 2
    await device.line.close()
