"""Yesterday's device and yesterday's hub: what both had is found, the rest is sent or declared."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from taskq import TaskLog
from taskq_plugins.hub.copyfiles import faults, kept
from taskq_plugins.hub.push import Verdict
from tests.hub.place import DEVICE

if TYPE_CHECKING:
    from tests.hub.place import Place


def _kinds(place: Place) -> list[str]:
    (copy,) = kept(place.hub)
    return [note["kind"] for note in copy.breaks if note["step"] == "begun"]


def _is_equal(place: Place) -> bool:
    files = (place.hub / "devices" / DEVICE).glob("*-*/log/*.log")
    copies, segments = {file.name: file.read_bytes() for file in files}, place.segments()
    return max(copies) <= max(segments) and all(
        data.startswith(copies[name])
        and (name == max(segments) or not data[len(copies[name]) :].strip(b"\0"))
        for name, data in segments.items()
    )


@pytest.mark.parametrize("works", [False, True], ids=["before_contact", "after_contact"])
async def test_a_device_of_yesterday_ends_its_next_sync_well(place: Place, works: bool) -> None:
    device, backup = place.log, place.path / "backup"
    await place.write(5)
    await place.sync()
    shutil.copytree(device, backup)
    await place.write(5)
    await place.sync()
    shutil.rmtree(device)
    backup.rename(device)
    if works:
        await place.write(3, 50)
        assert (await place.sync())[0] is Verdict.FORKED
        assert _kinds(place) == ["fork"]
    else:
        assert (await place.sync())[0] in (Verdict.AHEAD, Verdict.FORKED)
    async with TaskLog.open(device) as log:
        number = await log.put(b"new")
    assert Verdict.AHEAD not in await place.sync()  # the copy has no more than the log
    assert _is_equal(place)
    old = b"".join(file.read_bytes() for file in place.hub.rglob("*.log"))
    assert int(number.rpartition("-")[2], 36) > 2**20  # above every position that the hub has seen
    assert old.count(b"new") == 1
    assert not list(faults(place.hub, deep=True))


async def test_a_hub_of_yesterday_and_an_empty_one_are_refilled_without_a_break(
    place: Place,
) -> None:
    backup = place.path / "backup"
    async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
        for _ in range(50):
            await log.put(bytes(4_000))
        await place.sync()
        shutil.copytree(place.hub, backup)
        for _ in range(50):
            await log.put(bytes(4_000))
        await place.sync()
        shutil.rmtree(place.hub)
        backup.rename(place.hub)
        place.restart()
        assert await place.sync() == [Verdict.BEHIND]
        assert _is_equal(place)
        for copy in (place.hub / "devices" / DEVICE).glob("*-*"):
            shutil.rmtree(copy)
        place.restart()
        assert await place.sync() == [Verdict.NEW]
        assert _is_equal(place)
    assert _kinds(place) == []
    assert not list(faults(place.hub, deep=True))
