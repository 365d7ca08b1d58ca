"""The directory's identity: ``taskq.json``, written once."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import Any, Final

from taskq.core.errors import FormatError, LogError, refusal
from taskq.core.parsing import parse_json
from taskq.core.records import TABLE
from taskq.core.values import NamedTuple
from taskq.log.format.frames import segment_lsn
from taskq.log.machine.access import denied
from taskq.log.machine.ports import Disk, write_file

FILE: Final = "taskq.json"
FORMAT: Final = 1
_SIZE_MAX: Final = 64 * 1024
#: These features were written before there was any release: every taskq reads what they stand for,
#: and none asks for them any more.
_OLD: Final = frozenset({"records-2", "records-3", "records-4"})
#: There are frames without a record: older versions take them for a torn tail, and cut off
#: the frames after them.
SYNC_POINTS: Final = "sync-points-1"
_KNOWN: Final = _OLD | {SYNC_POINTS, *(row.feature for row in TABLE.values() if row.feature)}
#: Marks a copy that only its hub writes to, byte for byte.
REPLICA: Final = "replica-1"
#: Marks a backup, which only the next backup writes to.
BACKUP: Final = "backup-1"


class Identity(NamedTuple):
    """Content of the file."""

    log_id: uuid.UUID
    created_ns: int
    #: features that a version must know to open the log
    incompat: frozenset[str] = frozenset()
    #: features that a version must know to write to the log
    read_only: frozenset[str] = frozenset()

    @staticmethod
    def read(disk: Disk, path: str) -> Identity | None:
        """Return the identity of the log in a directory, as ``read_identity``."""
        return read_identity(disk, path)

    @classmethod
    def of_replica(cls, log_id: uuid.UUID, created_ns: int, incompat: frozenset[str]) -> Identity:
        """Return the identity of a log's copy, which only the hub that copies it writes to."""
        return cls(log_id, created_ns, incompat, frozenset({REPLICA}))

    def write(self, disk: Disk, path: str) -> None:
        """Write the file anew, as ``write_identity``."""
        write_identity(disk, path, self)

    @property
    def tag(self) -> str:
        """Return what every job id of this log starts with."""
        return self.log_id.hex[:8]

    @property
    def is_replica(self) -> bool:
        """Return whether this is a hub's copy, which nobody else writes to."""
        return REPLICA in self.read_only

    def as_backup(self) -> Identity:
        """Return the identity of a backup of this log."""
        return self._replace(read_only=self.read_only | {BACKUP})

    def encode(self) -> bytes:
        """Return what the file holds."""
        features: dict[str, list[str]] = {
            "compat": [],
            "read_only_compat": sorted(self.read_only),
            "incompat": sorted(self.incompat),
        }
        values = {
            "format": FORMAT,
            "log_id": str(self.log_id),
            "created_ns": self.created_ns,
            "features": features,
        }
        return json.dumps(values, indent=2).encode() + b"\n"


def read_identity(disk: Disk, path: str) -> Identity | None:
    """None when the directory holds no task log.

    Raises:
        FormatError: a newer taskq wrote it, or it is not readable as JSON.
    """
    try:
        descriptor = disk.open(f"{path}/{FILE}", write=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise LogError(denied(f"{path}/{FILE}", error)) from error
    except OSError as error:
        raise refusal(f"{path}/{FILE}", error) from error
    try:
        data = disk.read(descriptor, _SIZE_MAX, 0)
    finally:
        disk.close(descriptor)
    try:
        values: dict[str, Any] = parse_json(data)
        version, features = int(values["format"]), values.get("features", {})
        incompat = frozenset(map(str, features.get("incompat", [])))
        read_only = frozenset(map(str, features.get("read_only_compat", [])))
        log_id = uuid.UUID(values["log_id"])
        identity = Identity(log_id, int(values["created_ns"]), incompat, read_only)
        unknown = sorted(incompat - _KNOWN)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}/{FILE}: not readable ({error}); restore it from a backup of the directory"
        ) from error
    if version != FORMAT or unknown:
        what = f"features {unknown}" if unknown else f"format {version}"
        raise FormatError(f"{path}/{FILE}: {what} is unknown: use a newer taskq")
    return identity


def check_writable(disk: Disk, path: str) -> None:
    """Refuse to write to a log that may only be read; asked before anything else is touched.

    Raises:
        LogError: it is a hub's copy, or a backup.
        FormatError: as ``read_identity``, or a feature allows this taskq no more than to read.
    """
    identity = read_identity(disk, path)
    if identity is None or not identity.read_only:
        return
    if identity.is_replica:
        device = device_of_copy(path)
        raise LogError(
            f"{path} is a hub's copy of the log of {device}, and nobody else writes to it: "
            f"read commands work here; enqueue, cancel, compact and run workers on {device}"
        )
    if BACKUP in identity.read_only:
        raise LogError(
            f"{path} is a backup, and nobody writes to it: read commands work here; the command "
            f"restore makes a log of it, in another directory"
        )
    raise FormatError(
        f"{path}/{FILE}: with features {sorted(identity.read_only)} this taskq may only read the "
        f"log: use a newer taskq"
    )


def device_of_copy(path: str) -> str:
    """Return whose log a hub's copy is: its directory is called so."""
    parts = path.split("/")
    at = len(parts) - 1 - parts[::-1].index("devices") if "devices" in parts else len(parts)
    return parts[at + 1] if at + 1 < len(parts) else "the device"


def read_or_create_identity(disk: Disk, path: str, now_ns: int) -> Identity:
    """Return the identity of the directory's log; a new one in an empty directory.

    Raises:
        FormatError: as ``read_identity``, or segments lack their identity.
    """
    identity = read_identity(disk, path)
    if identity is None:
        if any(segment_lsn(name) is not None for name in disk.names(f"{path}/log")):
            raise FormatError(f"{path}: taskq.json is missing beside existing segments: restore it")
        identity = create_identity(disk, path, now_ns)
    return identity


def create_identity(disk: Disk, path: str, now_ns: int) -> Identity:
    """Write the file of a new log; the caller holds the writer lock, and keeps the directory."""
    identity = Identity(uuid.uuid4(), now_ns)
    write_identity(disk, path, identity)
    return identity


def add_feature(disk: Disk, path: str, identity: Identity, feature: str) -> Identity:
    """Keep versions without the feature from opening the log; on disk before its first use.

    The caller holds the writer lock.
    """
    # Another process may have added one since this one read the file.
    identity = read_identity(disk, path) or identity
    if feature not in identity.incompat:
        identity = identity._replace(incompat=identity.incompat | {feature})
        write_identity(disk, path, identity)
        disk.sync_directory(path)
    return identity


def write_identity(disk: Disk, path: str, identity: Identity) -> None:
    """Replace the file in one step; the caller syncs the directory."""
    temporary = f"{path}/{FILE}.tmp"
    write_file(disk, temporary, identity.encode())
    disk.rename(temporary, f"{path}/{FILE}")


def keep_directory(disk: Disk, path: str) -> None:
    """Make the directory itself as durable as its first record, with its parents' entries.

    Its maker may have been killed before a sync, so a log without a segment is never trusted.
    """
    disk.sync_directory(path)
    while len(path) > 1:
        path = path.rpartition("/")[0] or "/"
        with contextlib.suppress(OSError):  # a parent that may not be read is none of ours
            disk.sync_directory(path)
