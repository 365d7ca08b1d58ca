"""A hub, its device and jobs between them, as a version from before wrote them, go on.

The archive was written by the tree from before ``Border`` and ``Replica``: a log that was set back
after it had been sent (so that a branch is set aside), two jobs that the device took and ran and
has not told of, and one that waits.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq import State
from taskq.connection.settings import HubSettings
from taskq.engine import LogReader
from taskq_plugins.fleet import LogPlace, breaks, find_logs, inventory
from taskq_plugins.hub import Hub
from taskq_plugins.hub.checking import faults
from taskq_plugins.hub.device.compare import Verdict
from taskq_plugins.hub.device.line import Line
from taskq_plugins.hub.gate.server import Server
from taskq_plugins.hub.sync import Synced, sync
from tests.hub.place import Direct

if TYPE_CHECKING:
    from collections.abc import Iterable

_BEFORE: Final = Path(__file__).with_name("before-borders.zip")


async def test_what_an_older_version_wrote_goes_on(tmp_path: Path) -> None:
    with zipfile.ZipFile(_BEFORE) as source:
        source.extractall(tmp_path)
    hub, server = Hub(tmp_path / "hub"), Server(tmp_path / "hub")

    async def synced() -> Synced:
        settings = HubSettings(accept=("update",), machine="a")
        line = Line("http://localhost", (tmp_path / "token").read_text(), Direct(server), settings)
        try:
            return await sync(str(tmp_path / "edge-7"), line)
        finally:
            await line.close()

    (copy,) = find_logs(tmp_path / "hub/devices")
    done = await synced()
    assert done.verdicts == [Verdict.BEHIND]
    assert done.sent_bytes < 1_000, "what the hub had is not sent anew"
    assert done.taken.jobs == 1
    ended, also, waits = (hub.job(job) for job in (tmp_path / "jobs").read_text().split())
    assert [await ended.result(timeout=5), await also.result(timeout=5)] == ["7.0", "7.1"]
    assert await waits.status() is State.READY
    await hub.close()
    await server.close()
    _check(copy, faults(tmp_path / "hub", deep=True))


def _check(copy: LogPlace, wrong: Iterable[object]) -> None:
    """Let the copy be whole, with the branch that was left."""
    (left,) = breaks(copy)
    assert left.is_fork
    assert Path(left.old, "taskq.json").exists()
    assert not [row for row in inventory([copy]) if row.is_gap_before]
    assert not list(wrong)
    with LogReader.open(copy.path) as reader:
        assert reader.journal.next_lsn > left.high_lsn
