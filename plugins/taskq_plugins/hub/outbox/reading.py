"""What the copies of a device's logs tell of the jobs that it was handed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import Border, Ended, Identity, LogRecord, Replica
from taskq.errors import LogError
from taskq_plugins.fleet.breaks import BREAKS
from taskq_plugins.hub.kept import IDENTITY, LOG_ID, content
from taskq_plugins.hub.messages import NOWHERE

if TYPE_CHECKING:
    from uuid import UUID

    from taskq.engine import Disk

#: Header of a job on a device: the number that it was handed over with.
NUMBER: Final = "hub-number"
_KEY: Final = re.compile(r"hub:([0-9a-f]{8})-([1-9][0-9]{0,18}):([0-9a-f]{12})\Z")
#: Stands in each record that brings such a job.
_MARK: Final = NUMBER.encode()


class Identified(NamedTuple):
    """An outbox's job, as the key tells that it has on a device."""

    tag: str
    job: int
    nonce: str

    @property
    def key(self) -> str:
        """Return the key."""
        return f"hub:{self.tag}-{self.job}:{self.nonce}"

    @classmethod
    def of(cls, key: bytes | None) -> Identified | None:
        """Return what a key tells; None for any other."""
        match = _KEY.match((key or b"").decode("ascii", "replace"))
        return None if match is None else cls(match[1], int(match[2]), match[3])


class There(NamedTuple):
    """A job on a device: which one of the outbox it is, and what it was handed over with."""

    identified: Identified
    number: int

    @classmethod
    def of(cls, record: LogRecord) -> There | None:
        """Return what a record that brings a job tells; None of any other job."""
        extras = record.extras
        if extras is None:
            return None
        identified, number = Identified.of(extras.key), extras.headers.get(NUMBER, "")
        return cls(identified, int(number)) if identified and number.isdecimal() else None


class Reading:
    """One copy, read as far as it came; it begins anew where what it had read stands no more.

    Attributes:
        at: behind the last frame that was read.
        live: what has not ended there, by the jobs of that log.
        ends: what ended there, with the job of that log, and was not taken up yet.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, at: Border = NOWHERE) -> None:
        self._disk = disk
        self.path = path
        self._log_id = log_id
        self.at = at
        self.live: dict[int, There] = {}
        self.ends: dict[There, Ended] = {}

    def read(self) -> None:
        """Read what has come.

        Raises:
            OSError, LogError: the copy cannot be read.
        """
        files = Replica(self._disk, self.path, self._log_id)
        try:
            if not files.stands(self.at):
                self.at = NOWHERE
                self.live.clear()
            for at, frame in files.frames_behind(self.at):
                if self.live or _MARK in frame.data:
                    for record in LogRecord.tracing(frame, _MARK, self.live):
                        self._take(record)
                self.at = at
        finally:
            files.forget()

    def _take(self, record: LogRecord) -> None:
        """Take up a record that brings such a job, or ends one."""
        carried, state = record.carried, record.end
        there = self.live.pop(record.job, None) or There.of(record)
        if there is None:
            return
        if state is None:
            self.live[record.job] = There.of(record) or there
            return
        body, flags = record.body, record.body_flags
        if carried is not None:
            body, flags = carried.body, carried.flags
        end = Ended(record.job, state, record.attempt, body, record.cause, flags)
        if carried is None:
            self.ends[there] = end
        else:  # its own end may be known
            self.ends.setdefault(there, end)


class Readings:
    """How the copies of one device were read.

    Attributes:
        logs: how each log was read, by its id.
        is_whole: whether they began at the beginning of all that there is.
    """

    def __init__(self, disk: Disk, path: str, begin: dict[str, Border]) -> None:
        self._disk = disk
        self._path = path
        #: where a reading may begin, by the id of its log
        self._begin = begin
        self.logs: dict[str, Reading] = {}
        self.is_whole = False

    def read(self) -> None:
        """Read what has come to any of them.

        Raises:
            OSError, LogError: one cannot be read.
        """
        for name in self.names():
            reading = self.logs.get(name)
            if reading is None:
                reading = self._opened(f"{self._path}/{name}", self._begin.get(name, NOWHERE))
                if reading is None:
                    continue
                self.logs[name] = reading
            reading.read()

    def read_whole(self) -> None:
        """Read all that the hub ever had of them, what was set aside included.

        Raises:
            OSError, LogError: one cannot be read.
        """
        self._begin, self.logs, self.is_whole = {}, {}, True
        self.read()
        for name, reading in self.logs.items():
            for number in self._disk.names(f"{self._path}/{name}/old"):
                left = self._opened(f"{self._path}/{name}/old/{number}", NOWHERE)
                if left is not None:
                    left.read()
                    reading.ends = left.ends | reading.ends

    def names(self) -> list[str]:
        """Return the ids of the device's logs, the one that came first before the others."""
        dated = [
            (when, name)
            for name in self._disk.names(self._path)
            if LOG_ID.match(name)
            and (when := self._disk.modified_ns(f"{self._path}/{name}/{IDENTITY}")) is not None
        ]
        return [name for _, name in sorted(dated)]

    def has_gap(self, name: str) -> bool:
        """Return whether records of a log are missing: the end of a job may be among them."""
        return any(
            b'"kind": "gap"' in line
            for line in content(self._disk, f"{self._path}/{name}/{BREAKS}").splitlines()
        )

    def there(self, log: Reading) -> set[Identified]:
        """Return what lives in a log, and what ended in any of them and was not taken up yet."""
        ended = (there for reading in self.logs.values() for there in reading.ends)
        return {there.identified for there in (*log.live.values(), *ended)}

    def _opened(self, path: str, at: Border) -> Reading | None:
        try:
            identity = Identity.read(self._disk, path)
        except LogError:
            return None
        return None if identity is None else Reading(self._disk, path, identity.log_id, at)
