"""Registry of a hub's devices, without their logs: ``HUB/registry.db``, SQLite with a WAL.

A token names its device, and the hub keeps only the token's hash. A device has at most two tokens;
a third replaces the oldest. A device is bound to the first machine that reports its id, so a copied
token is noticed. Table ``devices`` is durable when a call returns. Table ``hints`` is not synced:
its content (time of the last contact, last number taken, durable ends of copies) can be rebuilt.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.engine import PatientDisk, Replica
from taskq.errors import LogDamaged, UsageError
from taskq.values import SECOND_NS

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from taskq.engine import Identity

_NAME: Final = r"([a-z0-9][a-z0-9-]{0,62})"
_DEVICE: Final = re.compile(_NAME + r"\Z")
_TOKEN: Final = re.compile(rf"tq1\.{_NAME}\.[A-Za-z0-9_-]{{43}}\Z")
_CODE: Final = re.compile(rf"{_NAME}\.[A-Z2-7]{{16}}\Z")
_SECRET_BYTES: Final = 32
_CODE_BYTES: Final = 10
#: Valid tokens of a device: the current one, and the next.
_TOKENS_MAX: Final = 2
_DAY_NS: Final = 86_400 * SECOND_NS
#: Directory with the jobs for devices.
OUTBOX: Final = "outbox"
_FILE: Final = "registry.db"
#: Twice the size of SQLite's shared-memory file.
_ROOM_BYTES_MIN: Final = 64 * 1024
_WAIT_SECONDS: Final = 30.0
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS devices (name TEXT PRIMARY KEY, facts TEXT) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS hints (
        device TEXT, name TEXT, value TEXT, PRIMARY KEY (device, name)) WITHOUT ROWID;
"""
_PUT: Final = "INSERT OR REPLACE INTO devices VALUES (?, ?)"
_HINT: Final = "INSERT OR REPLACE INTO hints VALUES (?, ?, ?)"
#: Names of hints: state of a device at its last contact; prefix of the durable end of a copy; time
#: of the hub's last upkeep.
_HEARD, _DURABLE, _UPKEEP = "heard", "durable/", "upkeep"


class Hint(NamedTuple):
    """A note without fsync: a crash may bring an earlier value back."""

    registry: Registry
    device: str
    name: str

    def read(self) -> Any:
        return self.registry.hinted(self.device, self.name)

    def write(self, value: Any) -> None:
        with contextlib.suppress(OSError):
            self.registry.run(_HINT, self.device, self.name, json.dumps(value), syncs=False)

    def remove(self) -> None:
        self.registry.run("DELETE FROM hints WHERE device = ? AND name = ?", self.device, self.name)


def _remove(path: Path) -> None:
    """Remove a folder, or a file in its place, if it is there."""
    try:
        shutil.rmtree(path)
    except NotADirectoryError:
        path.unlink()
    except FileNotFoundError:
        return


class Registry:
    """The devices of a hub, for any thread, and for several processes at a time.

    A missing directory is created, so commands check a typed path first.

    Args:
        hub: directory of the hub; None: in memory only.

    Raises (any method):
        OSError: a disk operation failed.
        LogDamaged: the file is damaged.
        UsageError: the name is not valid, or the device does not exist.
    """

    def __init__(self, hub: Path | None = None) -> None:
        self._hub = hub
        self._turn = threading.RLock()

    # -- tokens, codes, machines ------------------------------------------------------------------

    def enroll(self, device: str, machine: str = "") -> str:
        """Return a new token of a device; of its earlier tokens only the latest stays valid."""
        token = f"tq1.{checked(device)}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        with self._changed(device) as facts:
            hashes = [*facts.get("tokens", []), _hash(token)][-_TOKENS_MAX:]
            facts.update(tokens=hashes, machine=machine, code=None, state="active")
            facts["enrolled_ns"] = time.time_ns()
        return token

    def invite(self, device: str) -> str:
        """Return a code that can be exchanged for a token once, within a day."""
        secret = base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode()
        code = f"{checked(device)}.{secret}"
        with self._changed(device) as facts:
            facts["code"] = [_hash(code), time.time_ns() + _DAY_NS]
        return code

    def redeem(self, code: str, machine: str) -> str | None:
        match = _CODE.match(code)
        kept = self._facts(match[1]).get("code") if match else None
        if match is None or not kept or not hmac.compare_digest(_hash(code), str(kept[0])):
            return None
        return self.enroll(match[1], machine) if time.time_ns() < kept[1] else None

    def device_of(self, token: str) -> str | None:
        match = _TOKEN.match(token)
        if match is None:
            return None
        given, is_known = _hash(token), False
        for known in self._facts(match[1]).get("tokens", []):
            is_known |= hmac.compare_digest(given, str(known))
        return match[1] if is_known else None

    def is_bound(self, device: str, machine: str) -> bool:
        bound = self._facts(device).get("machine", "")
        if machine and not bound:
            with self._changed(device) as facts:
                facts["machine"] = machine
        return not (machine and bound) or hmac.compare_digest(machine, str(bound))

    def replace(self, device: str) -> None:
        """End a device's tokens, and allow another machine with its name."""
        with self._changed(self.known(device)) as facts:
            facts.update(tokens=[], code=None, machine="", left=[], state="active")

    def retire(self, device: str) -> None:
        with self._changed(self.known(device)) as facts:
            facts.update(tokens=[], code=None, state="retired")

    def erase(self, device: str) -> None:
        assert self._hub is not None
        self.retire(device)  # a later request with a valid token would bring files back
        folder, going, disk = self._hub / "devices" / device, self._hub / ".gone", PatientDisk()
        _remove(going)  # left by an interrupted try
        with contextlib.suppress(FileNotFoundError):  # no log was sent, or a second try
            folder.rename(going)
            disk.sync_directory(str(folder.parent))
            _remove(going)
        for table, column in (("hints", "device"), ("devices", "name")):
            self.run(f"DELETE FROM {table} WHERE {column} = ?", device)  # noqa: S608 - constant names

    def leave(self, device: str, log_id: UUID) -> None:
        """Note that the device left this log: it continues as another one."""
        with self._changed(device) as facts:
            facts["left"] = sorted({*facts.get("left", ()), str(log_id)})

    def holds(self, device: str, log_id: UUID) -> bool:
        """Return whether the device left this log; if so, hold the device."""
        if str(log_id) not in self._facts(device).get("left", ()):
            return False
        with self._changed(device) as facts:
            facts.update(state="held", held=str(log_id))
        return True

    # -- names and states -------------------------------------------------------------------------

    def known(self, device: str) -> str:
        if not self.is_known(checked(device)):
            raise UsageError(
                f"{self._hub} has no device {device!r}: see taskq hub devices {self._hub}"
            )
        return device

    def is_known(self, device: str) -> bool:
        return bool(self._facts(device))

    def has_token(self, device: str) -> bool:
        return bool(self._facts(device).get("tokens"))

    def is_enrolled(self, device: str) -> bool:
        return self.has_token(device) or bool(self._facts(device).get("code"))

    def standing(self, device: str) -> dict[str, Any]:
        state = self._facts(device).get("state", "active")
        return (self.hinted(device, _HEARD) or {}) | {"state": state}

    def all_standing(self) -> dict[str, dict[str, Any]]:
        rows = self.run(
            "SELECT d.name, d.facts, h.value FROM devices d LEFT JOIN hints h "
            "ON h.device = d.name AND h.name = ?", _HEARD,
        )  # fmt: skip
        rows.sort(key=lambda row: _natural(row[0]))
        standing: dict[str, dict[str, Any]] = {}
        for name, facts, heard in rows:
            noted = json.loads(heard or "{}")
            known = json.loads(facts)
            added = {name: known[name] for name in ("enrolled_ns", "held") if name in known}
            ends = noted.pop("ends", {}).values()
            added |= {
                "at_lsn": max((at for at, *_ in ends), default=0),
                "behind": sum(_records(at, end) for at, end, _ in ends),
                "gaps": sum(gaps for *_, gaps in ends),
            }  # fmt: skip
            standing[name] = added | noted | {"state": known.get("state", "active")}
        return standing

    def note(self, device: str, **values: Any) -> None:
        """Note values of a device's state."""
        hint = Hint(self, device, _HEARD)
        with self._turn:
            hint.write((hint.read() or {}) | values)

    def note_end(
        self, device: str, log: Identity, end: tuple[int, int, int], **values: Any
    ) -> None:
        """Note a log, the end of its copy, and its number of gaps; its parents count as left."""
        with self._turn:
            ends = (self.hinted(device, _HEARD) or {}).get("ends", {})
            for parent in {str(parent.log_id) for parent in log.parents} & ends.keys():
                ends[parent][1] = ends[parent][0]
            ends[str(log.log_id)] = end
            self.note(device, heard_ns=time.time_ns(), ends=ends, **values)

    def groups(self) -> dict[str, list[str]]:
        members: dict[str, list[str]] = {}
        for device, facts in self.run("SELECT name, facts FROM devices ORDER BY name"):
            for group in json.loads(facts).get("groups", ()):
                members.setdefault(str(group), []).append(device)
        return members

    def join(self, group: str, device: str) -> None:
        """Add a device to a group; a group without devices does not exist."""
        checked(group, "group")
        with self._changed(self.known(device)) as facts:
            facts["groups"] = sorted({*map(str, facts.get("groups", ())), group})

    def now_ns(self) -> int:
        """Return the time, but at most a day after the latest upkeep.

        A clock that is years ahead for an hour makes no file years older.
        """
        latest_ns = Hint(self, "", _UPKEEP).read() or time.time_ns()
        return min(time.time_ns(), latest_ns + _DAY_NS)

    def upkeep_ns(self) -> int:
        """Note an upkeep; return its time, 0 for the first one: it removes nothing."""
        hint, now_ns = Hint(self, "", _UPKEEP), self.now_ns()
        latest_ns = hint.read() or 0
        hint.write(max(now_ns, latest_ns))
        return now_ns if latest_ns else 0

    # -- hints ------------------------------------------------------------------------------------

    def durable(self, device: str, log_id: object) -> Hint:
        return Hint(self, device, f"{_DURABLE}{log_id}")

    def hinted(self, device: str, name: str) -> Any:
        rows = self.run("SELECT value FROM hints WHERE device = ? AND name = ?", device, name)
        return json.loads(rows[0][0]) if rows else None

    # -- the file ---------------------------------------------------------------------------------

    def back_up(self, hub: Path) -> None:
        other = Registry(hub)
        with other._readable():
            self._files[0].backup(other._files[0])
        other.run("DELETE FROM hints WHERE name LIKE ?", f"{_DURABLE}%")

    def close(self) -> None:
        with self._readable():
            for file in self.__dict__.pop("_files", ()):
                file.close()

    def open(self) -> None:
        self.run("SELECT 1")

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        path = str(self._hub and self._hub / _FILE)
        try:
            with self._turn:
                yield
        except sqlite3.OperationalError as error:
            # Even a read creates a second file; SQLite does not report why that failed.
            is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL or self._has_no_room()
            code = errno.ENOSPC if is_full else errno.EIO
            raise OSError(code, str(error), path) from error
        except sqlite3.Error as error:
            raise LogDamaged(
                f"{path} is damaged ({error}), perhaps copied while it was written: put the file "
                f"of a 'taskq hub backup' in its place, or remove it and enroll each device"
            ) from error

    def _has_no_room(self) -> bool:
        with contextlib.suppress(OSError):
            return self._hub is not None and shutil.disk_usage(self._hub).free < _ROOM_BYTES_MIN
        return False

    def run(self, statement: str, *values: Any, syncs: bool = True) -> list[tuple[Any, ...]]:
        with self._readable():
            return self._files[not syncs].execute(statement, values).fetchall()

    def _facts(self, device: str) -> dict[str, Any]:
        rows = self.run("SELECT facts FROM devices WHERE name = ?", device)
        facts: dict[str, Any] = json.loads(rows[0][0]) if rows else {}
        return facts

    @contextlib.contextmanager
    def _changed(self, device: str) -> Iterator[dict[str, Any]]:
        with self._turn:
            self.run("BEGIN IMMEDIATE")
            try:
                facts = self._facts(device)
                yield facts
                self.run(_PUT, device, json.dumps(facts))
                self.run("COMMIT")
            except BaseException:
                self.run("ROLLBACK")
                raise

    @cached_property
    def _files(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        if self._hub is None:
            only = self._opened(":memory:")
            return only, only
        (self._hub / "devices").mkdir(parents=True, exist_ok=True)
        path, disk = str(self._hub / _FILE), PatientDisk()
        if is_new := disk.status(path) is None:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        synced, hints = self._opened(path), self._opened(path)
        hints.execute("PRAGMA synchronous = NORMAL")
        ((state,),) = synced.execute("PRAGMA quick_check(1)")
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        if is_new:
            for directory in (self._hub, self._hub.parent):
                disk.sync_directory(str(directory))
        return synced, hints

    def _opened(self, path: str) -> sqlite3.Connection:
        file = sqlite3.connect(
            path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, file.close)
        file.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {_TABLES}")
        return file


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _records(at_lsn: int, end_lsn: int) -> int:
    count = end_lsn - at_lsn
    skips = (count + Replica.LSN_SKIP // 2) // Replica.LSN_SKIP
    # A clone's numbers may begin below the copy's: then report at least one.
    return max(count - skips * Replica.LSN_SKIP, min(max(count, 0), 1))


def checked(name: str, what: str = "device") -> str:
    if not _DEVICE.match(name):
        raise UsageError(
            f"{name!r:.80} is no name of a {what}: it has up to 63 small letters, digits and '-'"
        )
    return name


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
