"""Carry copies by hand: to a stick and from it, back to a device, and to a backup."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import aiofiles

from taskq import engine
from taskq.errors import LogError
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub import copyfiles, models
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.outbox import devices, folder
from taskq_plugins.hub.push import Push
from taskq_plugins.hub.registry import OUTBOX, Registry

if TYPE_CHECKING:
    from taskq.views import BackupReport
    from taskq_plugins.hub.line import HubReply, Line

_PART_BYTES: Final = 4 * 1024 * 1024
_WELL: Final = (200, 206)
#: Retries of a log's backup after a break or a removal interrupts it.
_TRIES: Final = 8


def taken_in(hub: Path, device: str, source: Path) -> tuple[UUID, int]:
    """Bring a device's log, or a backup of it, into its copy; return its id and next lsn."""
    registry, ends = Registry(hub), [models.NOWHERE]
    copies, name = Copies(engine.PatientDisk, str(hub), registry), registry.known(device)
    log = engine.DurableLog(engine.PatientDisk(), str(source))

    async def ask(asked: models.Request) -> models.Answer:
        if isinstance(asked, models.Ask | models.Declare):
            raise LogError(
                f"{source} and the hub's copy do not fit together: nothing of it was taken, let "
                f"the device itself sync"
            )
        if isinstance(asked, models.Leave):  # the hub has more already
            return models.Stored(ends[-1])
        answer = copies.answer(name, asked)
        ends.extend([answer.at] if isinstance(answer, models.CopyEnd | models.Stored) else [])
        return answer

    try:
        asyncio.run(Push(log, ask, lambda: _PART_BYTES, lambda: _PART_BYTES).run())
        lsn = ends[-1].next_lsn
        copy = copyfiles.CopyFiles(engine.PatientDisk(), hub, name, log.identity.log_id)
        registry.note_end(name, log.identity, (lsn, lsn, len(copyfiles.gaps(copy))))
        return log.identity.log_id, lsn
    finally:
        log.close()
        copies.close()


# -- back to a device ------------------------------------------------------------------------------


async def fetched(line: Line, target: Path) -> BackupReport:
    logs = json.loads((await _get(line, "")).content)["logs"]
    if not logs:
        raise models.HubError(f"{line.url} has nothing of this device")
    log = max(logs, key=lambda log: log["arrived_ns"])
    log_id = str(UUID(log["log_id"]))
    part = target.with_name(f"{target.name}.part") / log_id
    (part / copyfiles.LOG).mkdir(parents=True, exist_ok=True)
    async with aiofiles.open(part / copyfiles.IDENTITY, "wb") as file:
        await file.write(str(log["identity"]).encode())
    wanted = [
        (
            f"segments/{int(lsn):020d}",
            part / copyfiles.LOG / engine.segment_name(int(lsn)),
            size,
            digest,
        )
        for lsn, size, digest in log["segments"]
    ]
    before, whole = 0, sum(size for _, _, size, _ in wanted)
    for where, place, size, digest in wanted:
        async for has in _file(line, f"/{log_id}/{where}", place, size):
            if line.tell is not None:
                line.tell(before + has, whole)
        if (
            digest is not None
            and copyfiles.file_digest(engine.PatientDisk(), str(place), size) != digest
        ):
            os.replace(place, f"{place}.bad")  # noqa: PTH105 - a moment
            raise models.HubError(f"{place.name} is not what the hub says it is: try again")
        before += size
    report = engine.restore(str(part), str(target))
    shutil.rmtree(part.parent)
    return report


async def _file(line: Line, where: str, place: Path, size: int) -> AsyncIterator[int]:
    async with aiofiles.open(place, "ab") as file:
        while (start := await file.tell()) < size:
            end = min(start + _PART_BYTES, size) - 1
            answer = await _get(line, where, {"Range": f"bytes={start}-{end}"})
            if not answer.content:
                break
            yield start + await file.write(answer.content[: size - start])


async def _get(line: Line, where: str, headers: dict[str, str] | None = None) -> HubReply:
    answer = await line.request("GET", f"/logs{where}", headers or {})
    if answer.status not in _WELL:
        raise models.HubError(f"the hub answers {answer.status} to what it has of this device")
    return answer


# -- a backup beside the server --------------------------------------------------------------------


def hub_backed_up(hub: Path, target: Path) -> int:
    if target.exists() and any(target.iterdir()):
        raise LogError(f"{target} is not empty: back up to a new directory")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for device in devices(hub):  # before the copies: what ended meanwhile is read from them
        source, now = folder(hub, device), f"{part}/{OUTBOX}/{device}.now"
        engine.back_up(str(source), now)
        engine.restore(now, str(folder(part, device)))
        shutil.rmtree(now)
    copies = copyfiles.kept(hub)
    Registry(hub).back_up(part)
    for copy in copies:
        _back_up_copy(copy, part / Path(copy.path).relative_to(hub))
    if target.exists():
        target.rmdir()
    part.rename(target)
    engine.PatientDisk().sync_directory(str(target.absolute().parent))
    return len(copies)


def _back_up_copy(copy: copyfiles.CopyFiles, target: Path) -> None:
    source, breaks = Path(copy.path), f"{copy.path}/{BREAKS}"
    for _ in range(_TRIES):
        shutil.rmtree(target, ignore_errors=True)
        before = copyfiles.content(copy.disk, breaks)
        try:
            # Files about earlier segments.
            _copy_files(source, target)
            for below in sorted((source / "old").glob("*/*")):
                aside = target / below.relative_to(source)
                _copy_files(below.parent, aside.parent)
                if below.is_dir():
                    _copy_files(below, aside)
            _copy_files(source / copyfiles.LOG, target / copyfiles.LOG)
        except FileNotFoundError:
            continue  # expired segments go at any time
        if copyfiles.content(copy.disk, breaks) == before:
            return
    raise LogError(f"{source} was set aside or shortened again and again: try again later")


def _copy_files(source: Path, target: Path) -> None:
    disk = engine.PatientDisk()
    target.mkdir(parents=True, exist_ok=True)
    for name in disk.names(str(source)):
        if (source / name).is_file() and not name.endswith((".tmp", ".gone")):
            shutil.copy2(source / name, target / name)
            with copyfiles.opened(disk, str(target / name)) as file:
                disk.sync(file)
    disk.sync_directory(str(target))
