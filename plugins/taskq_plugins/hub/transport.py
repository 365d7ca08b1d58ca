"""Copy logs without a network: from a USB stick into the hub, and from the hub to a backup."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID

from taskq import engine
from taskq.errors import LogError
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub import copies, models
from taskq_plugins.hub.outbox import devices, folder
from taskq_plugins.hub.registry import OUTBOX, Registry
from taskq_plugins.hub.sync import Push

Each: TypeAlias = Callable[[str], AbstractContextManager[Any]]
_PART_BYTES: Final = 4 * 1024 * 1024
#: Tries of a log's backup: a break or a removal in the copy interrupts it.
_TRIES: Final = 8


def taken_in(hub: Path, device: str, source: Path) -> tuple[UUID, int]:
    """Push a device's log, or a backup of it, into its copy; return its id and next lsn."""
    registry, ends = Registry(hub), [models.NOWHERE]
    held, name = copies.Copies(engine.PatientDisk, str(hub), registry), registry.known(device)
    log = engine.DurableLog(engine.PatientDisk(), str(source))

    async def ask(asked: models.Request) -> models.Answer:
        if isinstance(asked, models.Ask | models.Declare):
            raise LogError(
                f"{source} and the hub's copy do not fit together: nothing of it was taken, let "
                f"the device itself sync"
            )
        if isinstance(asked, models.Leave):  # the hub already has later records
            return models.Stored(ends[-1])
        answer = held.answer(name, asked)
        ends.extend([answer.at] if isinstance(answer, models.CopyEnd | models.Stored) else [])
        return answer

    try:
        asyncio.run(Push(log, ask, lambda: _PART_BYTES, lambda: _PART_BYTES).run())
        lsn = ends[-1].next_lsn
        copy = copies.CopyFiles(engine.PatientDisk(), hub, name, log.identity.log_id)
        registry.note_end(name, log.identity, (lsn, lsn, len(copies.gaps(copy))))
        return log.identity.log_id, lsn
    finally:
        log.close()
        held.close()


# -- a live backup ---------------------------------------------------------------------------------


def hub_backed_up(hub: Path, target: Path, each: Each = contextlib.nullcontext) -> int:
    """Copy a hub, each device in a context of ``each``; return the number of copied logs."""
    if target.exists() and any(target.iterdir()):
        raise LogError(f"{target} is not empty: back up to a new directory")
    if target.resolve().is_relative_to(hub.resolve()):
        raise LogError(f"{target} lies within {hub}: name another place")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    count, now = 0, part / f"{OUTBOX}.now"
    for device in devices(hub):  # before the copies, which then have the ends of these jobs
        with each(device):
            engine.back_up(str(folder(hub, device)), str(now))
            engine.restore(str(now), str(folder(part, device)))
        shutil.rmtree(now, ignore_errors=True)
    kept: list[copies.CopyFiles] = []
    for device in copies.devices(hub):
        with each(device):
            kept += copies.kept(hub, device)
    Registry(hub).back_up(part)
    for copy in kept:
        with each(copy.device):
            _back_up_copy(copy, part / Path(copy.path).relative_to(hub))
            count += 1
    if target.exists():
        target.rmdir()
    part.rename(target)
    engine.PatientDisk().sync_directory(str(target.absolute().parent))
    return count


def _back_up_copy(copy: copies.CopyFiles, target: Path) -> None:
    source, breaks = Path(copy.path), f"{copy.path}/{BREAKS}"
    for _ in range(_TRIES):
        shutil.rmtree(target, ignore_errors=True)
        before = copies.content(copy.disk, breaks)
        try:
            # Files of earlier segments.
            _copy_files(source, target)
            for below in sorted((source / "old").glob("*/*")):
                aside = target / below.relative_to(source)
                _copy_files(below.parent, aside.parent)
                if below.is_dir():
                    _copy_files(below, aside)
            _copy_files(source / copies.LOG, target / copies.LOG)
        except FileNotFoundError:
            continue  # expired segments may be removed meanwhile
        if copies.content(copy.disk, breaks) == before:
            return
    raise LogError(f"{source} was set aside or shortened again and again: try again later")


def _copy_files(source: Path, target: Path) -> None:
    disk = engine.PatientDisk()
    target.mkdir(parents=True, exist_ok=True)
    for name in disk.names(str(source)):
        if (source / name).is_file() and not name.endswith((".tmp", ".gone")):
            shutil.copy2(source / name, target / name)
            with copies.opened(disk, str(target / name)) as file:
                disk.sync(file)
    disk.sync_directory(str(target))
