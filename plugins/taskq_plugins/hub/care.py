"""What is done with copies by hand: to a stick and from it, back to a device, and checked."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiofiles

from taskq.engine import (
    DurableLog,
    LocalDisk,
    PatientDisk,
    restore,
    segment_name,
)
from taskq.errors import LogError
from taskq.hooks import HubSettings
from taskq_plugins.hub.aside import IDENTITY, high_lsn
from taskq_plugins.hub.checking import file_digest
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.device.allowance import Allowance
from taskq_plugins.hub.device.push import push
from taskq_plugins.hub.messages import Declare, Skip
from taskq_plugins.hub.registry import Registry, checked
from taskq_plugins.hub.wire import HubError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from uuid import UUID

    from taskq.views import BackupReport
    from taskq_plugins.hub.device.line import Line, Told
    from taskq_plugins.hub.messages import Answer, Request

_PART_BYTES: Final = 4 * 1024 * 1024
_WELL: Final = (200, 206)


class Stick:
    """A directory in place of a line: a small hub, which ``taken_in`` carries to the real one.

    Raises:
        UsageError: that is no name of a device.
    """

    def __init__(self, path: Path, device: str) -> None:
        checked(device)
        path.mkdir(parents=True, exist_ok=True)
        self.device, self.hub, self.pins = device, HubSettings(), False
        self.allowance, self.tell = Allowance(HubSettings(metered="all"), ""), None
        self.sent_bytes = 0
        self._copies = Copies(PatientDisk, str(path.absolute()))

    @staticmethod
    def part_bytes() -> int:
        """Return the bytes of the next request."""
        return _PART_BYTES

    async def ask(self, asked: Request) -> Answer:
        """Do what is asked for."""
        self.sent_bytes += len(getattr(asked, "data", b""))
        return self._copies.answer(self.device, asked)

    async def close(self) -> None:
        """Give the files back."""
        self._copies.close()


def taken_in(hub: Path, stick: Path) -> Iterator[tuple[str, UUID, int]]:
    """Bring a hub to where the copies on a stick end: device, log id and lsn of each.

    Raises:
        LogError: what is there does not go on from what the hub has; the device has to sync.
    """
    registry = Registry(hub)
    real = Copies(PatientDisk, str(hub), registry)
    try:
        for device, log_id in Copies(PatientDisk, str(stick.absolute())).logs():
            registry.known(device)
            path = f"{stick.absolute()}/devices/{device}/{log_id}"
            log = DurableLog(LocalDisk(), path)
            try:
                answer, steps = None, push(log, Stick.part_bytes)
                while (asked := _next(steps, answer)) is not None:
                    if isinstance(asked, Declare):
                        raise LogError(
                            f"{path} and the hub's copy are not one log any more ({asked.cause}): "
                            f"nothing of it was taken, let the device itself sync"
                        )
                    answer = None if isinstance(asked, Skip) else real.answer(device, asked)
                lsn = log.end.next_lsn
                registry.note(device, heard_ns=time.time_ns(), end_lsn=lsn, at_lsn=lsn)
                yield device, log_id, lsn
            finally:
                log.close()
    finally:
        real.close()


def _next(steps: Any, answer: Answer | None) -> Request | Skip | None:
    try:
        asked: Request | Skip = steps.send(answer)
    except StopIteration:
        return None
    return asked


def newest_copy(hub: Path, device: str) -> Path:
    """Return the copy of a device's log that arrived last.

    Raises:
        LogError: there is none.
    """
    Registry(hub).known(device)
    copies = [file.parent for file in (hub / "devices" / device).glob(f"*-*/{IDENTITY}")]
    if not copies:
        raise LogError(f"{hub} has nothing of {device}: it has not synced yet")
    return max(copies, key=lambda copy: (copy / "log").stat().st_mtime_ns)


def given_back(hub: Path, device: str, target: Path) -> BackupReport:
    """Make a log of a device's newest copy, which goes on above all that the hub has seen of it."""
    copy = newest_copy(hub, device)
    return restore(str(copy), str(target), high_lsn(str(copy)))


async def fetched(line: Line, target: Path) -> BackupReport:
    """Make a log of what the hub has of this device; cut short, it goes on where it was.

    Raises:
        HubError: the hub cannot be reached, or has nothing.
        LogError: something is in the target.
    """
    logs = json.loads((await _get(line, "")).content)["logs"]
    if not logs:
        raise HubError(f"{line.url} has nothing of this device")
    log_id = str(max(logs, key=lambda log: log["arrived_ns"])["log_id"])
    held = json.loads((await _get(line, f"/{log_id}/segments")).content)
    part = target.with_name(f"{target.name}.part") / log_id
    for folder in ("log", "spill"):
        (part / folder).mkdir(parents=True, exist_ok=True)
    async with aiofiles.open(part / IDENTITY, "wb") as opened:
        await opened.write((await _get(line, f"/{log_id}/identity")).content)
    wanted = [
        (f"segments/{int(lsn):020d}", part / "log" / segment_name(int(lsn)), size, digest)
        for lsn, size, digest in held["segments"]
    ]
    wanted += [
        (f"spill/{name}", part / "spill" / Path(name).name, size, name)
        for name, size in held["spill"]
    ]
    before, whole = 0, sum(size for _, _, size, _ in wanted)
    for where, file, size, digest in wanted:
        async for has in _file(line, f"/{log_id}/{where}", file, size):
            if line.tell is not None:
                line.tell(before + has, whole)
        _check(file, size, digest)
        before += size
    report = restore(str(part), str(target), int(held["high_lsn"]))
    shutil.rmtree(part.parent)
    return report


async def _file(line: Line, where: str, file: Path, size: int) -> AsyncIterator[int]:
    """Bring a file to its size; gives how much of it is there."""
    async with aiofiles.open(file, "ab") as opened:
        while (start := await opened.tell()) < size:
            end = min(start + _PART_BYTES, size) - 1
            answer = await _get(line, where, {"Range": f"bytes={start}-{end}"})
            if not answer.content:
                break
            yield start + await opened.write(answer.content[: size - start])


def _check(file: Path, size: int, digest: str | None) -> None:
    if digest is not None and file_digest(PatientDisk(), str(file), size) != digest:
        os.replace(file, f"{file}.bad")  # noqa: PTH105 - a moment
        raise HubError(f"{file.name} is not what the hub says it is: try again")


async def _get(line: Line, where: str, headers: dict[str, str] | None = None) -> Told:
    answer = await line.request("GET", f"/v1/logs{where}", headers or {})
    if answer.status not in _WELL:
        raise HubError(f"the hub answers {answer.status} to what it has of this device")
    return answer
