"""A hub is copied beside its server: what is copied is a hub, to be served or copied back."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from taskq.engine import PatientDisk, back_up, restore
from taskq.errors import LogError
from taskq_plugins.fleet.breaks import BREAKS
from taskq_plugins.hub.aside import IDENTITY, LOG, content
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.registry import OUTBOX, Registry

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

#: So often a log is begun anew, since a break or the hub's own keeping came between.
_TRIES: Final = 8


def hub_backed_up(hub: Path, target: Path) -> int:
    """Make a hub of what another holds now; returns how many logs that are.

    Raises:
        LogError: there is no hub, or something is in the target.
    """
    if not (hub / "devices").is_dir():
        raise LogError(f"{hub} is no hub")
    if target.exists() and any(target.iterdir()):
        raise LogError(f"{target} is not empty: back up to a new directory")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if (hub / OUTBOX / IDENTITY).exists():
        # Before the copies: what ended meanwhile is read from them again.
        back_up(str(hub / OUTBOX), f"{part}/{OUTBOX}.now")
        restore(f"{part}/{OUTBOX}.now", str(part / OUTBOX))
        shutil.rmtree(f"{part}/{OUTBOX}.now")
    logs = Copies(PatientDisk, str(hub)).logs()
    (part / "devices").mkdir()
    Registry(hub).back_up(part)
    for device, log_id in logs:
        _copy_log(hub, part, device, log_id)
    if target.exists():
        target.rmdir()
    part.rename(target)
    PatientDisk().sync_directory(str(target.absolute().parent))
    return len(logs)


def _copy_log(hub: Path, part: Path, device: str, log_id: UUID) -> None:
    source, target = (place / "devices" / device / str(log_id) for place in (hub, part))
    for _ in range(_TRIES):
        shutil.rmtree(target, ignore_errors=True)
        noted = content(PatientDisk(), f"{source}/{BREAKS}")
        try:
            # What says something of segments before them, what they name behind them.
            _copy_files(source, target)
            for below in sorted((source / "old").glob("*/*")):
                copy = target / below.relative_to(source)
                _copy_files(below.parent, copy.parent)
                if below.is_dir():
                    _copy_files(below, copy)
            for name in (LOG, "spill"):
                _copy_files(source / name, target / name)
        except FileNotFoundError:
            continue  # what is kept long enough goes at any time
        if content(PatientDisk(), f"{source}/{BREAKS}") == noted:
            return
    raise LogError(f"{source} was set aside or shortened again and again: try again later")


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a directory, in the order of their names, with their times."""
    disk = PatientDisk()
    names = (
        sorted(path.name for path in source.iterdir() if path.is_file()) if source.is_dir() else []
    )
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name.endswith((".tmp", ".gone")):
            continue
        shutil.copy2(source / name, target / name)
        descriptor = os.open(target / name, os.O_RDONLY)
        disk.sync(descriptor)
        os.close(descriptor)
    disk.sync_directory(str(target))
