"""The directory's identity: ``taskq.json``, written once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from taskq.core import errors, parsing, records
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.frames import segment_lsn
from taskq.log.machine import access, ports

FILE: Final = "taskq.json"
FORMAT: Final = 1
#: Enough for over a thousand parents.
_SIZE_MAX: Final = 256 * 1024
_PARENTS_NAMED_MAX: Final = 5
#: Features older than any release: every taskq reads them, and needs no mark for them.
_OLD: Final = frozenset({"records-2", "records-3", "records-4"})
#: Logs with frames without records: older versions would take such frames for a torn tail, and cut
#: off the frames after them.
SYNC_POINTS: Final = "sync-points-1"
_KNOWN: Final = _OLD | {
    SYNC_POINTS,
    *(row.feature for row in records.TABLE.values() if row.feature),
}
#: Marks a copy that only its hub writes to, byte for byte.
REPLICA: Final = "replica-1"
#: Marks a backup, which only the next backup writes to.
BACKUP: Final = "backup-1"


class Parent(NamedTuple):
    """A former log, whose records a copy of its directory begins with.

    Attributes:
        log_id: of the former log.
        next_lsn: first lsn after its records.
    """

    log_id: uuid.UUID
    next_lsn: int


class LockMark(NamedTuple):
    """Identity of a log's lock file, which differs in a copy of the directory.

    File numbers are reused, so a removed directory and its backup in the same place may have the
    same number. The creation time, which no tool restores, distinguishes the files.

    Attributes:
        inode: number of the file in its file system.
        born_ns: creation time; 0 if the system does not report it.
    """

    inode: int
    born_ns: int


class Cut(NamedTuple):
    """Unfinished part of a fork; see ``recovery.finish_fork``.

    Attributes:
        segment: segment to cut, 0 for none.
        offset: bytes of it that stay.
        segments: segments to replace, from the first one on.
    """

    segment: int
    offset: int
    segments: tuple[int, ...]


class Identity(NamedTuple):
    """Content of the file.

    A copied directory becomes another log. It keeps the segments of its parents unchanged: a
    record's number decides which log it belongs to.
    """

    log_id: uuid.UUID
    created_ns: int
    #: features without which a version cannot open the log
    incompat: frozenset[str] = frozenset()
    #: features without which a version cannot write to the log
    read_only: frozenset[str] = frozenset()
    #: the oldest first
    parents: tuple[Parent, ...] = ()
    #: None: no process has written here, as in backups
    lock: LockMark | None = None
    cut: Cut | None = None

    @staticmethod
    def read(disk: ports.Disk, path: str) -> Identity | None:
        """Return the identity of the log in a directory, like ``read_identity``."""
        return read_identity(disk, path)

    @classmethod
    def of_replica(
        cls,
        log_id: uuid.UUID,
        created_ns: int,
        incompat: frozenset[str],
        parents: Iterable[tuple[uuid.UUID, int]] = (),
    ) -> Identity:
        """Return the identity of a log's copy, which only its hub writes to."""
        lineage = tuple(Parent(*parent) for parent in parents)
        return cls(log_id, created_ns, incompat, frozenset({REPLICA}), lineage)

    def write(self, disk: ports.Disk, path: str) -> None:
        """Rewrite the file, like ``write_identity``."""
        write_identity(disk, path, self)

    @property
    def tag(self) -> parsing.Tag:
        """Return the prefix of this log's job ids."""
        return parsing.Tag(
            self.log_id.hex[:8],
            tuple((parent.log_id.hex[:8], parent.next_lsn) for parent in self.parents),
        )

    @property
    def lineage(self) -> str:
        """Return the log's id in words, with the logs of its other records."""
        older = [f"log {parent.log_id} below {parent.next_lsn}" for parent in self.parents]
        has = f", with the records of {parsing.listed(older, _PARENTS_NAMED_MAX)}" if older else ""
        return f"log {self.log_id}{has}"

    @property
    def begins(self) -> int:
        """Return the first lsn that this log itself may have written."""
        return self.parents[-1].next_lsn if self.parents else 1

    def owner(self, lsn: int) -> Identity:
        """Return the log that wrote a record: this one or a parent.

        For a segment, pass its first lsn.
        """
        for number, parent in enumerate(self.parents):
            if lsn < parent.next_lsn:
                return Identity(
                    parent.log_id, self.created_ns, self.incompat, parents=self.parents[:number]
                )
        return self

    def is_copied(self, lock: LockMark, *, was_restored: bool) -> bool:
        """Return whether the directory is a copy, by its lock file and the noted lock file.

        A copy taken for the log itself would reuse its ids. The log taken for a copy only gets
        another id. So in doubt it is a copy. Without creation times in this or the former file
        system, a file with the same number is the same file only if no tool set its times. Files of
        an image's layer, on a RAM disk or moved to another disk are copies, too.

        A copy over the log's own files leaves no such trace. Then its next lsns are far off, and
        its hub finds other frames: see ``fork``.
        """
        if self.lock is None or self.lock.inode != lock.inode:
            return True
        if self.lock.born_ns and lock.born_ns:
            return self.lock.born_ns != lock.born_ns
        return was_restored

    def child(self, at: int, now_ns: int) -> Identity:
        """Return the identity of a log that continues this one from an lsn.

        A log without records before that lsn is no parent.
        """
        parents = [*self.parents, Parent(self.log_id, at)]
        kept: list[Parent] = []
        begins = 1
        for parent in parents:
            end = min(parent.next_lsn, at)
            if end > begins:
                kept.append(Parent(parent.log_id, end))
                begins = end
        return self._replace(
            log_id=uuid.uuid4(), created_ns=now_ns, parents=tuple(kept), lock=None, cut=None
        )

    @property
    def is_replica(self) -> bool:
        """Return whether this is a hub's copy, which only the hub writes to."""
        return REPLICA in self.read_only

    def as_backup(self) -> Identity:
        """Return the identity of a backup of this log."""
        return self._replace(read_only=self.read_only | {BACKUP}, lock=None)

    def encode(self) -> bytes:
        """Return the content of the file."""
        features: dict[str, list[str]] = {
            "compat": [],
            "read_only_compat": sorted(self.read_only),
            "incompat": sorted(self.incompat),
        }
        values = {
            "format": FORMAT,
            "log_id": str(self.log_id),
            "created_ns": self.created_ns,
            "parents": [
                {"log_id": str(parent.log_id), "next_lsn": parent.next_lsn}
                for parent in self.parents
            ],
            "lock": None if self.lock is None else self.lock._asdict(),
            "features": features,
        }
        if self.cut is not None:
            values["cut"] = self.cut._asdict()
        return json.dumps(values, indent=2).encode() + b"\n"


def read_identity(disk: ports.Disk, path: str) -> Identity | None:
    """Return the identity of the log in a directory; None without a log."""
    identity = _read(disk, path)
    if identity is not None and identity.cut is not None:
        raise errors.LogError(
            f"{path}: a fork of this log was cut short. The next process that writes to it does "
            f"the rest, such as: {errors.command(path, 'compact')}"
        )
    return identity


def _read(disk: ports.Disk, path: str) -> Identity | None:
    try:
        data = ports.read_file(disk, f"{path}/{FILE}", _SIZE_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise errors.LogError(access.denied(f"{path}/{FILE}", error)) from error
    except OSError as error:
        raise errors.refusal(f"{path}/{FILE}", error) from error
    try:
        values: dict[str, Any] = parsing.parse_json(data)
        version, features = int(values["format"]), values.get("features", {})
        incompat = frozenset(map(str, features.get("incompat", [])))
        read_only = frozenset(map(str, features.get("read_only_compat", [])))
        identity = Identity(
            uuid.UUID(values["log_id"]), int(values["created_ns"]), incompat, read_only,
            _parents(values.get("parents", [])), _lock(values.get("lock")), _cut(values.get("cut")),
        )  # fmt: skip
        unknown = sorted(incompat - _KNOWN)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise errors.FormatError(
            f"{path}/{FILE}: not readable ({why}); restore it from a backup of the directory"
        ) from error
    if version != FORMAT or unknown:
        what = f"features {unknown}" if unknown else f"format {version}"
        raise errors.FormatError(f"{path}/{FILE}: {what} is unknown: use a newer taskq")
    return identity


def _parents(values: list[dict[str, Any]]) -> tuple[Parent, ...]:
    parents = tuple(Parent(uuid.UUID(entry["log_id"]), int(entry["next_lsn"])) for entry in values)
    ends = [1, *(parent.next_lsn for parent in parents)]
    if any(end >= following for end, following in pairwise(ends)):
        raise ValueError("its parents do not follow one another")
    return parents


def _lock(values: dict[str, Any] | None) -> LockMark | None:
    return None if values is None else LockMark(int(values["inode"]), int(values["born_ns"]))


def _cut(values: dict[str, Any] | None) -> Cut | None:
    if values is None:
        return None
    segments = tuple(map(int, values["segments"]))
    return Cut(int(values["segment"]), int(values["offset"]), segments)


def check_writable(disk: ports.Disk, path: str) -> None:
    identity = _read(disk, path)
    if identity is None or not identity.read_only:
        return
    if identity.is_replica:
        device = device_of_copy(path)
        raise errors.LogError(
            f"{path} is a hub's copy of the log of {device}, and nobody else writes to it: "
            f"read commands work here; enqueue, cancel, compact and run workers on {device}"
        )
    if BACKUP in identity.read_only:
        raise errors.LogError(
            f"{path} is a backup, and nobody writes to it: read commands work here; the command "
            f"restore makes a log of it, in another directory"
        )
    raise errors.FormatError(
        f"{path}/{FILE}: with features {sorted(identity.read_only)} this taskq may only read the "
        f"log: use a newer taskq"
    )


def device_of_copy(path: str) -> str:
    """Return the device of a hub's copy, from the name of its directory."""
    parts = path.replace(os.sep, "/").split("/")
    at = len(parts) - 1 - parts[::-1].index("devices") if "devices" in parts else len(parts)
    return parts[at + 1] if at + 1 < len(parts) else "the device"


def refuse_orphans(disk: ports.Disk, path: str) -> None:
    """Refuse a directory with segments, but without the file that names their log."""
    names = [name for name in disk.names(f"{path}/log") if segment_lsn(name) is not None]
    if names:
        # As a hub names its copies: devices/DEVICE/LOG.
        is_copy = re.search(r"\bdevices[/\\][^/\\]+[/\\][\da-f-]{36}$", path) is not None
        anew = _made_anew(disk, [f"{path}/log/{name}" for name in names], is_copy=is_copy)
        goal = "be this hub's copy again" if is_copy else "go on as another log"
        remedy = f", or write into it, to {goal}: {anew}" if anew else ""
        raise errors.FormatError(
            f"{path}: {FILE} is missing beside existing segments: bring it back from a backup of "
            f"the directory{remedy}"
        )


def _made_anew(disk: ports.Disk, files: list[str], *, is_copy: bool) -> str:
    """Return content for a lost file, by the headers of segments in order; "" if none reads."""
    size = codec.SEGMENT_HEADER.size
    read = [codec.decode_segment_header(ports.read_file(disk, file, size), file) for file in files]
    heads = [head for head in read if head is not None]
    if not heads:
        return ""
    parents = tuple(
        Parent(uuid.UUID(bytes=head.log_id), following.first_lsn)
        for head, following in pairwise(heads) if head.log_id != following.log_id
    )  # fmt: skip
    log_id = uuid.UUID(bytes=heads[-1].log_id)
    read_only = frozenset({REPLICA} if is_copy else ())
    identity = Identity(log_id, heads[0].created_ns, read_only=read_only, parents=parents)
    return json.dumps(json.loads(identity.encode()))


def read_or_create_identity(disk: ports.Disk, path: str, lock: LockMark, now_ns: int) -> Identity:
    """Return the identity of the directory's log; a new one in an empty directory.

    An interrupted fork is left to be finished.
    """
    identity = _read(disk, path)
    if identity is None:
        refuse_orphans(disk, path)
        # The caller holds the writer lock and syncs the directory.
        identity = Identity(uuid.uuid4(), now_ns, lock=lock)
        write_identity(disk, path, identity)
    return identity


def add_feature(disk: ports.Disk, path: str, identity: Identity, feature: str) -> Identity:
    """Keep versions without the feature from opening the log; on disk before its first use.

    The caller holds the writer lock.
    """
    # Another process may have added a feature since this process read the file.
    identity = read_identity(disk, path) or identity
    if feature not in identity.incompat:
        identity = identity._replace(incompat=identity.incompat | {feature})
        write_identity(disk, path, identity)
        disk.sync_directory(path)
    return identity


def write_identity(disk: ports.Disk, path: str, identity: Identity) -> None:
    """Replace the file in one step; the caller syncs the directory."""
    temporary = f"{path}/{FILE}.tmp"
    ports.write_file(disk, temporary, identity.encode())
    disk.rename(temporary, f"{path}/{FILE}")


def keep_directory(disk: ports.Disk, path: str) -> None:
    """Make the directory itself as durable as its first record, with its parents' entries.

    Its creator may have been killed before a sync, so a log without a segment is never trusted.
    """
    disk.sync_directory(path)
    while len(path) > 1:
        path = path.rpartition("/")[0] or "/"
        with contextlib.suppress(OSError):  # an unreadable parent is not this user's
            disk.sync_directory(path)
