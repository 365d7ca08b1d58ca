"""A hub whose disk is full, on a small file system of its own."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from taskq.log.read.reader import LogReader, verify
from taskq_plugins.hub import server
from taskq_plugins.hub.models import HubError
from taskq_plugins.hub.sync import Verdict
from tests.hub.place import is_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hub.place import Place

_MIB: Final = 2**20


def _mounted(place: Place, options: str) -> subprocess.CompletedProcess[str]:
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place.hub)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def resize(place: Place) -> Iterator[Callable[[int], object]]:
    """Let the hub have a disk of 66 MiB; gives what lets that have another size."""
    place.hub.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    mounting = _mounted(place, f"size={66 * _MIB}")
    if mounting.returncode:
        pytest.skip(f"nothing may be mounted here: {mounting.stderr.strip()}")
    yield lambda size: _mounted(place, f"remount,size={size}")
    subprocess.run(["umount", "--lazy", place.hub], check=True)


def _torn_bytes(place: Place) -> int:
    with LogReader.open(str(place.copy)) as reader:
        report = verify(reader.journal)
    assert not report.damage
    return report.torn_bytes


async def _all_is_there(place: Place) -> None:
    assert await place.sync() == [Verdict.BEHIND]
    assert is_copy(place.copies(), place.segments())


async def test_below_the_room_that_is_kept_a_hub_takes_nothing_and_serves_on(
    place: Place, resize: Callable[[int], object]
) -> None:
    await place.write()
    await place.sync()
    await place.write(8, _MIB // 2)
    for _ in range(4):
        with pytest.raises(HubError, match="507"):
            await place.sync()
    assert not _torn_bytes(place)
    assert sum(map(len, place.copies().values())) > _MIB // 2
    before = place.tree()
    with pytest.raises(HubError, match="507"):
        await place.sync()
    assert place.tree() == before
    listing = await place.ask("GET", "/logs")
    assert listing.json()["logs"]
    await place.write()  # the device works on
    resize(200 * _MIB)
    await _all_is_there(place)


async def test_a_disk_that_fills_up_within_a_part_leaves_whole_frames_and_goes_on(
    place: Place, resize: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FREE_BYTES_MIN", 0)
    await place.write(5)
    await place.sync()
    resize(_MIB)
    await place.write(30, 50_000)
    for _ in range(3):
        with pytest.raises(HubError, match="507"):
            await place.sync()
    resize(200 * _MIB)
    await _all_is_there(place)
    assert not _torn_bytes(place)
