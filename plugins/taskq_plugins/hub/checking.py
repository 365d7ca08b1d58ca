"""What is wrong with the copies of a hub, told by reading alone; and asking for it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import LogReader, PatientDisk, Replica, segment_name
from taskq.errors import LogError
from taskq_plugins.hub.aside import PART, SEALS, SPILL, noted
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.copy import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from taskq.engine import Disk
    from taskq_plugins.hub.registry import Registry


#: Has its own inode in it, so that a copy of it shows.
_PLACE: Final = ".place"


class Fault(NamedTuple):
    """Something that is wrong with a copy.

    Attributes:
        path: of the copy.
        what: in words.
        name: SHA-256 of the segment or body that is to come again; "" if its end is cut off where
            it does not read, so that it comes as what is new does.
    """

    path: Path
    what: str
    name: str = ""


def faults(hub: Path, *, deep: bool) -> Iterator[Fault]:
    """Yield what is wrong with copies; ``deep`` reads all bytes of them."""
    for device, log_id in Copies(PatientDisk, str(hub)).logs():
        yield from faults_of(hub / "devices" / device / str(log_id), log_id, deep=deep)


def faults_of(path: Path, log_id: UUID, *, deep: bool) -> Iterator[Fault]:
    """Yield what is wrong with one copy; one that cannot be read stops nobody."""
    disk = PatientDisk()
    try:
        yield from _of_segments(disk, path, log_id, deep=deep)
        if deep:
            yield from _of_records(disk, path, log_id)
    except (LogError, OSError, ValueError, LookupError, TypeError) as error:
        yield Fault(path, f"it cannot be read: {error}")


def _of_segments(disk: Disk, path: Path, log_id: UUID, *, deep: bool) -> Iterator[Fault]:
    """Yield what is not as it was sealed; what is older than all was kept long enough."""
    lines = {line["segment"]: line for line in noted(disk, str(path), SEALS)}
    lsns = Replica(disk, str(path), log_id).lsns if lines else []
    for segment, line in lines.items():
        if not lsns or segment < lsns[0]:
            continue
        name, size, digest = segment_name(segment), line["end"][1], line["sha256"]
        status = disk.status(f"{path}/log/{name}")
        if status is None:  # behind the end it comes as what is new does
            yield Fault(
                path, f"{name} was sealed, and is not there", digest if segment < lsns[-1] else ""
            )
        elif status[2] < size:
            yield Fault(path, f"{name} is shorter than when it was sealed", digest)
        elif deep and file_digest(disk, f"{path}/log/{name}", size) != digest:
            yield Fault(path, f"{name} is not what was sealed", digest)


def _of_records(disk: Disk, path: Path, log_id: UUID) -> Iterator[Fault]:
    """Yield what ``taskq verify`` finds."""
    with LogReader.open(str(path)) as reader:
        report = reader.verify()
    for damage in report.damage:
        yield Fault(path, f"{damage.segment} does not read behind offset {damage.offset}")
    if not report.files:
        return
    files = Replica(disk, str(path), log_id)
    try:
        for name in sorted({name for lsn in files.lsns for name in files.bodies_of(lsn)}):
            size = (disk.status(f"{path}/{SPILL}/{name}") or (0, 0, -1))[2]
            if size < 0 or file_digest(disk, f"{path}/{SPILL}/{name}", size) != name:
                yield Fault(path, f"{SPILL}/{name} is missing, or is something else", name)
    finally:
        files.forget()


def ask_again(registry: Registry, fault: Fault) -> None:
    """Let the device send that again, when it syncs next; nobody may serve the hub meanwhile."""
    if not fault.name:  # who opens the copy looks at all of its end
        registry.durable(fault.path.parent.name, fault.path.name).remove()
        return
    disk, folder = PatientDisk(), f"{fault.path}/{SPILL}"
    # A part of nothing is one that is to come.
    disk.make_directory(folder)
    disk.close(disk.open(f"{folder}/{fault.name}{PART}", create=True))
    disk.sync_directory(folder)


def everything(path: Path) -> Iterator[Fault]:
    """Yield what a copy has, by segments that were sealed and bodies, as if it were wrong."""
    disk = PatientDisk()
    for line in noted(disk, str(path), SEALS):
        if disk.status(f"{path}/log/{segment_name(line['segment'])}") is not None:
            yield Fault(path, segment_name(line["segment"]), line["sha256"])
    for name in disk.names(f"{path}/{SPILL}"):
        if NAME.match(name):
            yield Fault(path, name, name)


def is_elsewhere(hub: Path) -> bool:
    """Return whether the directory was copied since it was served: files may be of two times."""
    place = hub / _PLACE
    try:
        return place.read_text(encoding="ascii") != f"{place.stat().st_ino}"
    except FileNotFoundError:
        return False


def note_place(hub: Path) -> None:
    """Note that what this directory holds fits together."""
    if not hub.is_dir():
        return  # nothing came yet
    place = hub / _PLACE
    place.touch()
    place.write_text(f"{place.stat().st_ino}", encoding="ascii")


def file_digest(disk: Disk, path: str, size: int) -> str:
    """Return the SHA-256 of a file's beginning, in hex."""
    descriptor = disk.open(path, write=False)
    try:
        return Replica.sha256(disk, descriptor, size)
    finally:
        disk.close(descriptor)
