"""The hub's side of a session: requests in, answers out; the copies are opened at first touch."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskq.engine import Identity
from taskq.values import SECOND_NS
from taskq_plugins.hub import messages
from taskq_plugins.hub.copy import MARK_BYTES, Copy
from taskq_plugins.hub.kept import Floor, Kept, Old, due, kept
from taskq_plugins.hub.messages import (
    NOWHERE,
    Answer,
    Append,
    Declare,
    Question,
    Refusal,
    Refused,
    Request,
    Sync,
    Synced,
    Trouble,
)
from taskq_plugins.hub.registry import Registry

if TYPE_CHECKING:
    from taskq.engine import Disk

#: So many copies are remembered as they are; others are looked at anew when they are asked for.
_COPIES_MAX: Final = 1_000
#: Logs of one device: each reinstallation is one.
_LOGS_MAX: Final = 32


class Copies:
    """The copies of all devices, and the only process that writes to them.

    For any thread, but for one at a time of each device.

    Args:
        make_disk: makes this machine's disk, for each copy anew.
        path: of the hub's directory.
        registry: notes how far copies are durable; None: that is forgotten.
        mark_bytes: as of ``Copy``.
        wall_ns: says what time it is.
        disk_of: makes the disk for what a device has written; None: as make_disk.
        may_fork: says whether a device may declare one more fork now.

    Raises (any method):
        OSError: the disk refused; nothing was answered for.
        LogError: a copy cannot be read.
    """

    def __init__(
        self,
        make_disk: Callable[[], Disk],
        path: str,
        registry: Registry | None = None,
        mark_bytes: int = MARK_BYTES,
        wall_ns: Callable[[], int] = time.time_ns,
        disk_of: Callable[[str], Disk] | None = None,
        may_fork: Callable[[str], bool] = lambda _device: True,
    ) -> None:
        self._wall_ns, self._may_fork = wall_ns, may_fork
        self._registry = registry or Registry()
        self._disk_of = disk_of or (lambda _device: make_disk())
        self._make_disk = make_disk
        self._mark_bytes = mark_bytes
        self._path = path
        self._copies: dict[tuple[str, UUID], Copy] = {}
        self._floors: dict[tuple[str, UUID], Floor] = {}
        self._guard = threading.Lock()
        #: the newest session of each log: none of before this process is believed
        self._sessions: dict[tuple[str, UUID], int] = {}
        self._first_session = random.SystemRandom().getrandbits(48)

    def close(self) -> None:
        for copy in self._copies.values():
            copy.rest()
        self._copies.clear()

    def answer(self, device: str, asked: Request, *, more: bool = False) -> Answer:
        """Do what a device asks for.

        Args:
            device: who asks, as its token says.
            asked: the request.
            more: it is a piece of one, nobody is told of it, and the next one comes soon.
        """
        begins = asked if isinstance(asked, Sync) else None
        if not begins and not self._is_latest(device, asked):
            return Refused(Trouble.SUPERSEDED, NOWHERE)
        try:
            with self._held(device, asked.log_id, begins, more=more) as copy:
                if copy is None:
                    return Refused(Trouble.SUPERSEDED, NOWHERE)
                return self._answered(device, copy, asked, more=more)
        except Refusal as refusal:
            return refusal.answer

    def is_at(self, device: str, asked: Question) -> bool:
        if not self._is_latest(device, asked):
            return False
        with self._held(device, asked.log_id) as copy:
            return copy is not None and (not asked.up.segment or copy.has(asked.up))

    def _is_latest(self, device: str, asked: Any) -> bool:
        is_latest: bool = self._sessions.get((device, asked.log_id)) == asked.session
        return is_latest

    @contextlib.contextmanager
    def _held(
        self, device: str, log_id: UUID, begins: Sync | None = None, *, more: bool = False
    ) -> Iterator[Copy | None]:
        """Have a copy for the block, and nobody else meanwhile; a session that begins makes one.

        Thousands of devices are quiet at any time: none of them keeps a file open, and most of them
        no memory.
        """
        key = device, log_id
        copy = self._copies.pop(key, None) or self._opened(device, log_id)
        if copy is None and begins is not None:
            copy = self._make(device, begins)
        try:
            yield copy
        except OSError:
            if copy is not None:
                copy.close()
            copy = None  # what the files hold now is found out at the next touch
            raise
        finally:
            if copy is not None:
                self._put_back(key, copy, more=more)

    def _put_back(self, key: tuple[str, UUID], copy: Copy, *, more: bool) -> None:
        if not more:
            copy.close()
        with self._guard:
            self._copies[key] = copy
            is_full = len(self._copies) > _COPIES_MAX
            quiet = self._copies.pop(next(iter(self._copies))) if is_full else None
        if quiet is not None:
            quiet.rest()

    def _answered(self, device: str, copy: Copy, asked: Request, *, more: bool) -> Answer:
        if isinstance(asked, Declare) and copy.is_new_fork(asked) and not self._may_fork(device):
            return Refused(Trouble.HELD, NOWHERE)
        if isinstance(asked, Append):
            try:
                return copy.append(asked, more=more)
            finally:
                if not more:
                    copy.settle()
        copy.settle()
        if isinstance(asked, Sync):
            return self._begin(device, copy, asked)
        return _ACTS[type(asked)](copy, asked)

    def _begin(self, device: str, copy: Copy, asked: Sync) -> Synced:
        key = device, asked.log_id
        # Of a log that may have no copy nothing is remembered.
        session = self._sessions[key] = self._sessions.get(key, self._first_session) + 1
        copy.learn(asked.incompat)
        has_end = not asked.end.segment or copy.has(asked.end)
        safe = copy.safe(self._wall_ns() - asked.grace_seconds * SECOND_NS)
        return Synced(
            session, copy.at, copy.is_sealed, has_end, copy.high_lsn, copy.begins, safe, copy.lacks
        )

    def all(self) -> list[Kept]:
        return kept(self._path, self._make_disk())

    def breaks(self, device: str, log_id: UUID) -> tuple[int, int]:
        copy = self._copies.get((device, log_id))
        known = [] if copy is None else copy.breaks.all
        return len(known), sum(left.is_fork for left in known)

    def keep(self, copy: Kept, before_ns: int, *, dry_run: bool = False) -> list[Old]:
        key = copy.device, copy.log_id
        gone, self._floors[key] = due(copy, before_ns, self._floors.get(key, Floor()))
        if gone and not dry_run:
            with self._held(*key) as held:
                if held is not None:
                    held.let_go(gone)
            self.forget(*key)
        return gone

    def forget(self, device: str, log_id: UUID) -> None:
        copy = self._copies.pop((device, log_id), None)
        if copy is not None:
            copy.close()

    def _opened(self, device: str, log_id: UUID) -> Copy | None:
        place = Kept(self._disk_of(device), self._path, device, log_id)
        if not place.is_there:
            return None
        mark = self._registry.durable(device, log_id)
        return Copy(place.disk, place.path, log_id, mark, self._mark_bytes)

    def _make(self, device: str, asked: Sync) -> Copy:
        disk = self._disk_of(device)
        path = Kept(disk, self._path, device, asked.log_id).path
        if len(disk.names(path.rpartition("/")[0])) >= _LOGS_MAX:
            raise OSError(errno.EDQUOT, "a device has only so many logs")
        disk.make_directory(f"{path}/log")
        above = path
        while len(above) >= len(self._path):
            disk.sync_directory(above)
            above = above.rpartition("/")[0]
        # Where the identity stands the directories are on disk; who opens the copy keeps itself.
        Identity.of_replica(asked.log_id, asked.created_ns, asked.incompat).write(disk, path)
        copy = self._opened(device, asked.log_id)
        assert copy is not None
        return copy


#: What is done to a copy, by the kind of request.
_ACTS: Final[dict[type, Callable[[Copy, Any], Answer]]] = {
    messages.Ask: lambda copy, asked: messages.Known(tuple(map(copy.has, asked.places))),
    messages.Seal: lambda copy, asked: copy.seal(asked),
    Declare: lambda copy, asked: copy.declare(asked),
    messages.Again: lambda copy, asked: copy.take(asked),
}
