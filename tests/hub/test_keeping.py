"""Retention until the other side has a record: the device's pin and grace, the hub's deletions."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Final
from unittest.mock import Mock
from uuid import UUID

import pytest

from taskq import TaskLog
from taskq.engine import LocalDisk, PatientDisk
from taskq.log.read.reader import LogReader, verify
from taskq.log.read.readers import HUB_READER, NamedReader, reader_positions
from taskq_plugins.hub.copies import Copies, Copy, CopyFiles, kept
from taskq_plugins.hub.models import NOWHERE, HubError, Sync
from taskq_plugins.hub.server import used_bytes
from taskq_plugins.hub.sync import Verdict
from tests.hub.place import DEVICE, Place, is_copy, run

_DAY: Final = 86_400.0
_SMALL: Final = 64 * 1024


async def _work(place: Place, jobs: int = 60, **limits: object) -> None:
    async with TaskLog.open(place.log, segment_bytes=_SMALL, **limits) as log:  # type: ignore[arg-type]
        for _ in range(jobs):
            await log.put(bytes(4_000))
            (delivery,) = await log.claim(1, queues=["default"])
            await log.ack(delivery)
        await log.compact()


def _first(place: Place) -> str:
    return min(place.segments())


def _pin(place: Place) -> int:
    return reader_positions(LocalDisk(), str(place.log))[HUB_READER][1]


def _arrived(place: Place, seconds: float) -> None:
    then = time.time() - seconds
    for path in place.hub.rglob("*.log"):
        os.utime(path, (then, then))


async def test_a_device_keeps_records_until_the_grace_is_over_at_the_hub(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _work(place)
    with pytest.raises(HubError, match="401"):
        await place.sync("tq1.edge-7." + "A" * 43)
    first = _first(place)
    await _work(place, keep_segments=1)
    assert _first(place) == first, "the hub was never reached, and lacks it"
    assert await place.sync() == [Verdict.NEW]
    await _work(place, keep_segments=1)
    await place.server._tidy()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: 2 * 10**18)
        await place.sync()
    await _work(place, 1, keep_segments=1)
    assert _first(place) == first, "the hub's clock was ten years ahead"
    _arrived(place, 3 * _DAY)
    await place.sync()
    await _work(place, 1, keep_segments=1)
    assert _first(place) > first


async def test_a_hub_that_lost_all_is_filled_again_and_pins_what_it_lacks(place: Place) -> None:
    await _work(place)
    await place.sync()
    _arrived(place, 3 * _DAY)
    await place.sync()
    assert _pin(place) > 1
    shutil.rmtree(place.copy)
    place.restart()
    assert await place.sync() == [Verdict.NEW]
    assert place.copies().keys() == place.segments().keys()
    await place.sync()
    assert _pin(place) == int(_first(place).removesuffix(".log"))


async def test_a_hub_lets_go_only_what_the_log_has_written_again_and_goes_on(place: Place) -> None:
    await _work(place, keep_segments=100)
    await place.sync()
    before = place.copies()
    hub, copy = Copies(PatientDisk, str(place.hub)), _kept(place)
    _arrived(place, 40 * _DAY)
    soon = time.time_ns() - round(30 * _DAY) * 10**9
    assert not hub.keep(copy, soon)  # nothing was compacted on the device
    await place.sync()
    await _work(place, keep_segments=1)
    await place.sync()
    assert not hub.keep(copy, 0)  # nothing is old
    _arrived(place, 40 * _DAY)
    names = hub.keep(copy, soon)
    gone = before.keys() - place.copies().keys()
    assert names == [f"log/{name}" for name in sorted(gone)] != []
    assert max(gone) < _first(place)
    with LogReader.open(copy.path) as reader:
        assert verify(reader.journal).damage == ()
    place.restart()
    await _work(place, 3)
    assert await place.sync() == [Verdict.BEHIND]


async def test_a_clock_that_is_years_ahead_for_an_upkeep_ends_no_retention(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _work(place, keep_segments=100)
    for _ in range(2):
        await place.sync()
        _arrived(place, 20 * _DAY)
    await place.sync()
    await _work(place, keep_segments=1)
    await place.sync()
    _arrived(place, 20 * _DAY)
    before, real = place.copies(), time.time_ns
    await place.server._tidy()
    for days in (3_650, -3_650, 3_650, 0):
        monkeypatch.setattr(time, "time_ns", lambda days=days: real() + days * round(_DAY) * 10**9)
        await place.server._tidy()
        assert place.copies() == before, days
    assert "LATE" not in run("hub", "devices", place.hub).output
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_650 * round(_DAY) * 10**9)
    assert "LATE" in run("hub", "devices", place.hub).output, "nobody knows how long it is silent"
    monkeypatch.setattr(time, "time_ns", lambda: real() + 12 * round(_DAY) * 10**9)
    for _ in range(12):
        await place.server._tidy()
    assert place.copies() != before, "they are old, and the device has them no more"


async def test_what_was_before_a_gap_goes_as_a_whole_once_all_of_it_is_old(place: Place) -> None:
    await _work(place)
    await place.sync()
    await _work(place, 200, keep_segments=1, reader_lag_bytes=3 * _SMALL)
    await _work(place, 30, keep_segments=1, reader_lag_bytes=3 * _SMALL)
    assert await place.sync() == [Verdict.GAP, Verdict.BEHIND]
    (only,) = [line for line in _kept(place).breaks if line["step"] == "begun"]
    assert only["cause"] == "a limit of the device's log took it before it was sent"
    assert _used(place) <= place.server._account(DEVICE).used
    hub, copy = Copies(PatientDisk, str(place.hub)), _kept(place)
    folder, soon = Path(copy.path), time.time_ns() - round(30 * _DAY) * 10**9
    with LogReader.open(str(folder / "old" / "1")) as reader:
        assert verify(reader.journal).damage == ()
    assert not [name for name in hub.keep(copy, soon) if name.startswith("old/")]
    for path in [*(folder / "old" / "1" / "log").iterdir()][:1]:
        os.utime(path, (time.time() - 40 * _DAY,) * 2)
    gone = hub.keep(copy, soon)
    assert not [name for name in gone if name.startswith("old/")], "a part of it is young"
    for path in (folder / "old").rglob("?" * 24):
        os.utime(path, (time.time() - 40 * _DAY,) * 2)
    assert hub.keep(copy, soon)
    assert not [path for path in (folder / "old").rglob("*") if path.is_file()]
    assert len(_copy(place).gaps.all) == 1
    await place.write()
    assert await place.sync() == [Verdict.BEHIND]


async def test_losses_before_a_log_went_on_as_another_are_shown(place: Place) -> None:
    limits = {"keep_segments": 1, "reader_lag_bytes": 3 * _SMALL}
    await _work(place)
    await place.sync()
    had = _kept(place).next_lsn
    shutil.copytree(place.log, place.path / "other")
    place.remove()
    (place.path / "other").rename(place.log)
    await _work(place, 200, **limits)
    await _work(place, 30, **limits)
    assert await place.sync() == [Verdict.NEW]
    line = f"lsn {had} to {int(_first(place)[:20]) - 1} never came: a limit of the device's log"
    assert line in run("hub", "devices", place.hub, DEVICE).output
    assert "1 gap: see 'taskq hub devices HUB edge-7'" in run("hub", "devices", place.hub).output
    for copy in kept(place.hub, DEVICE):
        _let_first_go(Path(copy.path))
    assert line in run("hub", "devices", place.hub, DEVICE).output, "what went here is no gap"


def _let_first_go(copy: Path) -> None:
    min((copy / "log").iterdir()).unlink()  # as ``keep`` does


def _kept(place: Place) -> CopyFiles:
    (copy,) = kept(place.hub, DEVICE)
    return copy


def _copy(place: Place) -> Copy:
    copy = Copies(PatientDisk, str(place.hub))._opened(DEVICE, _kept(place).log_id)
    assert copy is not None
    return copy


_BLOCK: Final = 4_096
_LOG: Final = UUID(int=7)


def _used(place: Place) -> int:
    return used_bytes(place.hub / "devices" / DEVICE)


async def test_features_that_a_log_says_it_has_come_to_an_end(place: Place) -> None:
    answers = [
        (await place.sent(Sync(_LOG, 5, frozenset({f"new-{number}"}), NOWHERE))).status_code
        for number in range(60)
    ]
    assert set(answers) == {200, 507}
    (identity,) = place.hub.rglob("taskq.json")
    assert identity.stat().st_size < _BLOCK
    assert len(json.loads(identity.read_text())["features"]["incompat"]) == 32


async def test_a_device_with_a_full_disk_sends_its_records(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.write()
    await place.sync()
    await place.write()
    pin = _pin(place)
    with monkeypatch.context() as full:
        full.setattr(NamedReader, "keep_from", Mock(side_effect=OSError(errno.ENOSPC, "no room")))
        assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())
    assert _pin(place) == pin


async def test_a_full_disk_in_the_middle_of_an_upload_leaves_whole_frames(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.write(5)
    await place.sync()
    await place.write(30, 50_000)
    write = PatientDisk.write

    def half(disk: PatientDisk, descriptor: int, data: bytes, offset: int) -> int:
        write(disk, descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as full:
        full.setattr(PatientDisk, "write", half)
        for _ in range(3):
            with pytest.raises(HubError, match="507"):
                await place.sync()
    with LogReader.open(str(place.copy)) as reader:
        report = verify(reader.journal)
    assert not report.damage
    assert not report.torn_bytes
    assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())
