"""What the copies of a device's logs tell of the jobs that it was handed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from taskq.engine import Border, Ended, LogRecord, Replica
from taskq_plugins.hub.kept import IDENTITY, Kept, kept
from taskq_plugins.hub.messages import NOWHERE

if TYPE_CHECKING:
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
        return f"hub:{self.tag}-{self.job}:{self.nonce}"

    @classmethod
    def of(cls, key: bytes | None) -> Identified | None:
        match = _KEY.match((key or b"").decode("ascii", "replace"))
        return None if match is None else cls(match[1], int(match[2]), match[3])


class There(NamedTuple):
    """A job on a device: which one of the outbox it is, and what it was handed over with."""

    identified: Identified
    number: int

    @classmethod
    def of(cls, record: LogRecord) -> There | None:
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
        self._disk, self.path, self._log_id, self.at = disk, path, log_id, at
        self.live: dict[int, There] = {}
        self.ends: dict[There, Ended] = {}

    def read(self) -> None:
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

    Args:
        disk: of this machine.
        hub: its directory.
        device: whose they are.
        begin: where a reading may begin, by the id of its log.

    Attributes:
        logs: how each log was read, by its id, the one that came first before the others.
        is_whole: whether they began at the beginning of all that there is.

    Raises (any method):
        OSError, LogError: one cannot be read.
    """

    def __init__(self, disk: Disk, hub: str, device: str, begin: dict[str, Border]) -> None:
        self._disk, self._hub, self._device, self._begin = disk, hub, device, begin
        self.logs: dict[str, Reading] = {}
        self.is_whole = False

    def read(self) -> None:
        before, self.logs = self.logs, {}
        for copy in self._copies():
            name = str(copy.log_id)
            at = self._begin.get(name, NOWHERE)
            reading = before.get(name) or Reading(copy.disk, copy.path, copy.log_id, at)
            self.logs[name] = reading
            reading.read()

    def read_whole(self) -> None:
        self._begin, self.logs, self.is_whole = {}, {}, True
        self.read()
        for copy in self._copies():
            reading = self.logs[str(copy.log_id)]
            for number in copy.disk.names(f"{copy.path}/old"):
                left = Reading(copy.disk, f"{copy.path}/old/{number}", copy.log_id)
                left.read()
                reading.ends = left.ends | reading.ends

    def _copies(self) -> list[Kept]:
        copies = kept(self._hub, self._disk, self._device)
        times = [(self._disk.modified_ns(f"{copy.path}/{IDENTITY}"), copy) for copy in copies]
        dated = [(when, str(copy.log_id), copy) for when, copy in times if when is not None]
        return [copy for _, _, copy in sorted(dated)]

    @property
    def latest(self) -> str:
        return next(reversed(self.logs), "")

    def has_gap(self, name: str) -> bool:
        copy = Kept(self._disk, self._hub, self._device, UUID(name))
        return any(line.get("kind") == "gap" for line in copy.breaks)

    def there(self, log: Reading) -> set[Identified]:
        ended = (there for reading in self.logs.values() for there in reading.ends)
        return {there.identified for there in (*log.live.values(), *ended)}
