"""Yesterday's device and yesterday's hub: what both had is found, the rest is another log's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from taskq import TaskLog
from taskq.engine import Identity, LocalDisk, LogReader
from taskq_plugins.hub.copies import faults, kept, newest
from taskq_plugins.hub.models import HubStops
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Verdict
from tests.hub.place import DEVICE, is_copy, run
from tests.processes.hub_matrix import roll_back

if TYPE_CHECKING:
    from tests.hub.place import Place


def _identity(path: Path) -> Identity:
    identity = Identity.read(LocalDisk(), str(path))
    assert identity is not None
    return identity


def _files(log: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in log.rglob("*") if file.is_file()}


async def _ids(path: Path | str) -> dict[str, bytes]:
    with LogReader.open(str(path)) as reader:
        return {view.job_id: view.payload for view in reader.jobs(None, None, None, 1_000)}


@pytest.mark.parametrize("works", [False, True], ids=["before_contact", "after_contact"])
async def test_a_restored_directory_is_another_log_of_its_device(place: Place, works: bool) -> None:
    await place.write(5)
    await place.sync()
    before = shutil.copytree(place.log, place.path / "backup")
    await place.write(5, 20)
    await place.sync()
    old = _identity(place.log)
    place.remove()
    before.rename(place.log)
    if works:
        await place.write(3, 50)
    verdicts = [Verdict.NEW] if works else [Verdict.AHEAD, Verdict.NEW]
    assert await place.sync() == verdicts
    await place.write(2, 60)
    assert await place.sync() == [Verdict.BEHIND]
    own = _identity(place.log)
    assert own.parents[0].log_id == old.log_id != own.log_id
    assert {copy.log_id for copy in kept(place.hub)} == {old.log_id, own.log_id}
    assert is_copy(place.copies(), place.segments())
    theirs, ours = await _ids(place.log), await _ids(place.copy)
    assert theirs == ours
    lost = await _ids(place.hub / "devices" / DEVICE / str(old.log_id))
    assert len(lost) == 10
    assert {job for job in lost if lost[job] != theirs.get(job, lost[job])} == set()
    assert not list(faults(place.hub, deep=True))


@pytest.mark.parametrize("works", [False, True], ids=["before_contact", "after_contact"])
async def test_a_file_system_that_was_rolled_back_parts_where_the_hub_has_other_frames(
    place: Place, works: bool
) -> None:
    await place.write(5)
    await place.sync()
    before, old = _files(place.log), _identity(place.log)
    await place.write(5, 20)
    await place.sync()
    roll_back(place.log, before)
    if works:
        await place.write(3, 50)
        assert _identity(place.log).log_id == old.log_id, "nothing of it shows"
    verdict = Verdict.DIFFERS if works else Verdict.AHEAD
    assert await place.sync() == [verdict, Verdict.NEW]
    own = _identity(place.log)
    assert [tuple(parent) for parent in own.parents] == [(old.log_id, 6)]
    await place.write(1, 70)
    assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())
    ours, lost = await _ids(place.copy), await _ids(f"{place.hub}/devices/{DEVICE}/{old.log_id}")
    both = ours.keys() & lost.keys()
    assert (len(both), len(lost)) == (5, 10)
    assert {lost[job] for job in both} == {ours[job] for job in both}
    assert "goes on from log" in run("hub", "devices", place.hub, DEVICE).output
    assert not list(faults(place.hub, deep=True))


async def test_of_a_cloned_card_only_that_device_is_stopped_and_a_person_lets_both_go_on(
    place: Place,
) -> None:
    """Machines that are alike in all, files included, have one name: their frames tell."""
    other = Registry(place.hub).enroll("edge-8")
    await place.write(5)
    await place.sync()
    card = _files(place.log)
    await place.write(2, 20)
    await place.sync()
    first = _files(place.log)
    roll_back(place.log, card)
    await place.write(2, 40)  # the second machine
    assert await place.sync() == [Verdict.DIFFERS, Verdict.NEW]
    second = _files(place.log)
    roll_back(place.log, first)
    await place.write(2, 60)
    with pytest.raises(HubStops, match=r"taskq hub devices HUB NAME"):
        await place.sync()
    shown = run("hub", "devices", place.hub, DEVICE).output
    assert "two machines have this token" in shown
    assert "enroll" in shown
    first = _files(place.log)
    roll_back(place.log, second)
    with pytest.raises(HubStops):
        await place.sync()
    assert await place.sync(other) == [Verdict.NEW], "it has a name of its own from now on"
    roll_back(place.log, first)
    Registry(place.hub).replace(DEVICE)
    token = Registry(place.hub).enroll(DEVICE)
    assert await place.sync(token) == [Verdict.BEHIND]
    assert not list(faults(place.hub, deep=True))


async def test_a_box_is_replaced_under_its_old_and_under_a_new_name(place: Place) -> None:
    await place.write(5)
    await place.sync(machine="a")
    copy, jobs = place.copy, await _ids(place.log)
    for name in (DEVICE, "edge-9"):
        shutil.rmtree(place.log)
        assert run("restore", copy, place.log).exit_code == 0
        if name == DEVICE:
            Registry(place.hub).replace(DEVICE)
        token = Registry(place.hub).enroll(name)
        await place.write(1, 9)
        assert await place.sync(token, machine=f"new {name}") == [Verdict.NEW]
        there = await _ids(newest(place.hub, name).path)
        assert jobs.items() <= there.items()
        assert len(there) == 6
    logs = {copy.log_id for copy in kept(place.hub)}
    assert len(logs) == 3
    assert UUID(copy.name) in logs


async def test_a_hub_of_yesterday_and_an_empty_one_are_refilled_without_a_gap(
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
        assert is_copy(place.copies(), place.segments())
        for copy in (place.hub / "devices" / DEVICE).glob("*-*"):
            shutil.rmtree(copy)
        place.restart()
        assert await place.sync() == [Verdict.NEW]
        assert is_copy(place.copies(), place.segments())
    (only,) = kept(place.hub)
    assert only.breaks == []
    assert not list(faults(place.hub, deep=True))
