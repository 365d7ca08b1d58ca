"""A lake in object storage: ``--lake s3://bucket/prefix``, with a copy on this machine.

All work is done on the copy in the user's cache. A listing brings the copy up to date before a
read. A commit uploads data files first, then the entry of the table's log by a conditional put,
which fails if the version exists. A crash in between leaves the same state as a killed run leaves
in a directory.

One process writes at a time. It holds an object (``_lock``), made by a conditional put and renewed
while it works. Another process takes the lock over a minute after the last renewal. A writer that
lost the lock unknowingly cannot overwrite a commit: the entry of that version exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import platformdirs

from taskq_plugins.spark.lake.deltalog import DELTA_LOG
from taskq_plugins.spark.lake.errors import LakeBusy, LakeConflict, LakeError
from taskq_plugins.spark.lake.files import LAST_BATCH

_LOCK: Final = "_lock"
#: Time from the last renewal of the lock to its end; it is renewed three times as often.
LEASE_SECONDS: Final = 60.0
#: E-tag, size and modification time of each file of the copy, as listed in the store.
_KNOWN: Final = "_copy.json"
_IN_LOG: Final = f"/{DELTA_LOG}/"
#: How often a lake is listed that somebody writes to meanwhile.
_TRIES: Final = 5
#: A store that does not answer is an error after seconds, not after minutes.
_RETRY: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}


def is_address(lake: str | Path) -> bool:
    return "://" in str(lake)


class Bucket:
    """One lake in object storage, and its copy here.

    Attributes:
        address: of the lake.
        copy: the directory of the copy.
    """

    def __init__(self, address: str) -> None:
        import obstore  # noqa: PLC0415 - an extra, which ``taskq pipeline`` names where it lacks
        from obstore.store import from_url  # noqa: PLC0415

        self.address = address.rstrip("/")
        digest = hashlib.sha256(self.address.encode()).hexdigest()[:16]
        self.copy = platformdirs.user_cache_path("taskq") / "lakes" / digest
        self._errors = obstore.exceptions
        self._obs = obstore
        with self._told():
            self._store = from_url(self.address, retry_config=_RETRY)
        self._known: dict[str, list[Any]] = {}
        self._lost = threading.Event()

    # -- from the store, and to it ----------------------------------------------------------------

    def pull(self) -> None:
        """Make the copy what the store has; nobody must write to the copy meanwhile."""
        self.copy.mkdir(parents=True, exist_ok=True)
        try:
            self._known = json.loads((self.copy / _KNOWN).read_text())
        except (FileNotFoundError, ValueError):
            self._known = {}
        with self._told():
            for turn in range(_TRIES):
                there = self._listed()
                fetched = (
                    self._fetch(path, e_tag)
                    for path, e_tag in there.items()
                    if self._facts(path, e_tag) != self._known.get(path)
                )
                # Another writer may have removed or replaced a file meanwhile.
                if all(fetched) and (turn or there == self._listed()):
                    break
        for path in self._here():
            if path not in there:  # it was never committed, or is gone from there
                (self.copy / path).unlink()
        self._known = {path: self._known[path] for path in there if path in self._known}
        self._note()

    def _listed(self) -> dict[str, str | None]:
        entries = self._obs.list(self._store).collect()
        tables = {path.partition("/")[0] for entry in entries if _IN_LOG in (path := entry["path"])}
        return {
            entry["path"]: entry["e_tag"]
            for entry in sorted(entries, key=_rank)
            if entry["path"].partition("/")[0] in tables | {LAST_BATCH}
        }

    def push(self, tables: Iterable[str]) -> None:
        if self._lost.is_set():
            raise LakeBusy(self.address, 0)
        chosen = frozenset(tables)
        here = [path for path in self._here() if path.partition("/")[0] in chosen]
        gone = [
            path for path in self._known if path.partition("/")[0] in chosen and path not in here
        ]
        with self._told():
            for path in sorted(here, key=lambda path: _rank({"path": path})):
                known = self._known.get(path)
                if known is None or self._facts(path, known[0]) != known:
                    self._send(path, is_new=known is None)
            if gone:
                self._obs.delete(self._store, gone)
        for path in gone:
            del self._known[path]
        self._note()

    def _send(self, path: str, *, is_new: bool) -> None:
        is_commit = _IN_LOG in path and path.endswith(".json")
        try:
            mode: Any = "create" if is_commit and is_new else "overwrite"
            done = self._obs.put(self._store, path, self.copy / path, mode=mode)
        except self._errors.AlreadyExistsError as error:
            (self.copy / path).unlink()
            raise LakeConflict(f"{self.address}/{path}", "there is one now") from error
        self._known[path] = self._facts(path, str(done["e_tag"]))

    def _fetch(self, path: str, e_tag: str | None) -> bool:
        where = self.copy / path
        where.parent.mkdir(parents=True, exist_ok=True)
        beside = where.with_name(f"{where.name}.part")
        try:
            got = self._obs.get(self._store, path, options={"if_match": e_tag} if e_tag else {})
            with beside.open("wb") as file:
                for chunk in got:
                    file.write(chunk)
        except (FileNotFoundError, self._errors.PreconditionError):
            return False
        beside.replace(where)
        self._known[path] = self._facts(path, e_tag)
        return True

    def _facts(self, path: str, e_tag: str | None) -> list[Any]:
        try:
            facts = (self.copy / path).stat()
        except FileNotFoundError:
            return [e_tag, -1, 0]
        return [e_tag, facts.st_size, facts.st_mtime_ns]

    def _here(self) -> list[str]:
        return [
            path.relative_to(self.copy).as_posix()
            for entry in self.copy.iterdir()
            if entry.name == LAST_BATCH or (entry / DELTA_LOG).is_dir()
            for path in ([entry] if entry.is_file() else entry.rglob("*"))
            if path.is_file()
        ]

    def _note(self) -> None:
        beside = self.copy / f"{_KNOWN}.part"
        beside.write_text(json.dumps(self._known))
        beside.replace(self.copy / _KNOWN)

    # -- one writer -------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        with self._told():
            e_tag = self._take()
        self._lost.clear()
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(e_tag, ended), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            if not self._lost.is_set():
                with self._told():
                    self._obs.delete(self._store, [_LOCK])

    def _take(self) -> str:
        try:
            return self._put_lock("create")
        except self._errors.AlreadyExistsError:
            pass
        try:
            got = self._obs.get(self._store, _LOCK)
            e_tag, holder = got.meta["e_tag"], json.loads(bytes(got.bytes()))
            if holder["until"] < time.time():
                return self._put_lock({"e_tag": e_tag})
        except (FileNotFoundError, self._errors.PreconditionError):
            raise LakeBusy(self.address, 0) from None  # it went from hand to hand just now
        raise LakeBusy(self.address, holder["pid"], holder["host"])

    def _put_lock(self, mode: Any) -> str:
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "until": time.time() + LEASE_SECONDS,
            "once": uuid.uuid4().hex,  # no two have the same e-tag
        }
        return str(
            self._obs.put(self._store, _LOCK, json.dumps(holder).encode(), mode=mode)["e_tag"]
        )

    def _renew(self, e_tag: str, ended: threading.Event) -> None:
        until = time.monotonic() + LEASE_SECONDS
        while not ended.wait(LEASE_SECONDS / 3):
            try:
                e_tag = self._put_lock({"e_tag": e_tag})
                until = time.monotonic() + LEASE_SECONDS
            except (self._errors.PreconditionError, FileNotFoundError):
                return self._lost.set()
            except self._errors.BaseError:
                if time.monotonic() > until:
                    return self._lost.set()
        return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (self._errors.BaseError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise LakeError(
                f"{self.address}: {reason}. Region, keys and endpoint are read from AWS_… (of "
                f"other stores GOOGLE_…, AZURE_…)"
            ) from error


def _rank(entry: Any) -> tuple[bool, bool, str]:
    """Rank of a file in an upload: files that name other files go last."""
    path = entry["path"]
    is_log = _IN_LOG in path
    return "/" not in path, is_log, f"{path.endswith('_last_checkpoint')}{path}"
