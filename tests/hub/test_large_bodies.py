"""Large bodies beside a log: they go before the records that name them, whatever any clock says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from taskq import TaskLog
from taskq_plugins.hub.kept import faults
from taskq_plugins.hub.wire import HubError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.place import Place

_DAY: Final = 86_400
_MIB: Final = 2**20


async def _put(place: Place, body: bytes) -> None:
    async with TaskLog.open(place.path / "edge-7", spill=True) as log:
        await log.put(body)


def _bodies(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("spill/*")}


@pytest.mark.parametrize("days", [-400, -1, 1, 400])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_body_goes_with_the_record_that_names_it_whatever_its_files_time(
    place: Place, days: int, *, is_first: bool
) -> None:
    """A device ran with a clock that was off while the job was enqueued; then it was mended."""
    if not is_first:
        await place.write()
        await place.sync()
    await _put(place, os.urandom(2 * _MIB))
    for file in (place.path / "edge-7" / "spill").iterdir():
        when = file.stat().st_mtime + days * _DAY
        os.utime(file, (when, when))
    await place.sync()
    assert _bodies(place.hub) == _bodies(place.path / "edge-7") != {}
    assert not list(faults(place.hub, deep=True))


async def test_no_body_is_asked_for_but_those_of_records_that_go(place: Place) -> None:
    await _put(place, os.urandom(2 * _MIB))
    await place.sync()
    await place.write()
    line = place.line()
    asked: list[str] = []
    carrier = line._carrier

    async def noted(method: str, path: str, headers: dict[str, str], body: bytes) -> object:
        asked.append(path)
        return await carrier(method, path, headers, body)

    noted.used_bytes = 0  # type: ignore[attr-defined]
    noted.close = carrier.close  # type: ignore[attr-defined]
    line._carrier = noted  # type: ignore[assignment]
    await place.sync_over(line)
    assert asked
    assert not [path for path in asked if "spill" in path]


async def test_a_body_that_was_held_back_is_owed_though_the_line_dropped_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _put(place, os.urandom(2 * _MIB))

    async def cut(*_given: object) -> None:
        raise HubError("the line dropped behind the last record")

    with monkeypatch.context() as patched:
        patched.setattr("taskq_plugins.hub.sync._Session._take", cut)
        with pytest.raises(HubError):
            await place.sync(spill=False, accept=("update",))
    assert _bodies(place.hub) == {}
    await place.sync()
    assert _bodies(place.hub) == _bodies(place.path / "edge-7") != {}
