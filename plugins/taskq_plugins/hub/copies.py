"""The hub's side of a session: requests in, answers out; the copies are opened at first touch."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from taskq import engine
from taskq.values import SECOND_NS
from taskq_plugins.hub import copyfiles, models
from taskq_plugins.hub.registry import Registry

if TYPE_CHECKING:
    from taskq_plugins.hub.registry import Hint

_START: Final = engine.Replica.START
#: The file of a frame that comes in pieces, and how a frame's header says its body's size.
_PIECES: Final = "pieces"
_FRAME_HEAD: Final = 56
#: How far a copy grows before it notes what of it is durable: no more is looked at, and written
#: once more, when it is opened after a crash.
MARK_BYTES: Final = 4 * 1024 * 1024


class Copy:
    """One copy for its only writer. After an ``OSError`` it has to be opened anew.

    Attributes:
        at: after its last durable frame. NOWHERE: empty; with offset 0: after a gap, which waits
            for that segment.
        is_sealed: the segment ends there.
        gaps: declared gaps.
    """

    def __init__(
        self, disk: engine.Disk, path: str, log_id: UUID, mark: Hint, mark_bytes: int = MARK_BYTES
    ) -> None:
        self._disk, self._path = disk, path
        self._mark, self._mark_bytes = mark, mark_bytes
        self._marked = models.NOWHERE
        self._incompat: frozenset[str] = frozenset()
        self.gaps = copyfiles.Gaps(disk, path, mark.remove)
        self._seals = copyfiles.Notes(disk, f"{path}/{copyfiles.SEALS}")
        self._files = engine.Replica(
            disk, path, copyfiles.lineage(disk, path, log_id), writable=True
        )
        self.at, self.is_sealed = models.NOWHERE, False
        #: position before a frame that comes in pieces, and how many of its bytes came
        self._pieces = models.NOWHERE, 0
        #: segments that are to come again, and what was noted when they were sealed
        self._lacks: dict[int, dict[str, Any]] = {}
        self._find_end()

    def close(self) -> None:
        self._files.forget()

    def rest(self) -> None:
        """Note the durable end, which saves the next opening a look, and close the files."""
        if self.at.frame and not self.is_sealed and self._marked != self.at:
            self._note_durable(self.at)
        self.close()

    def _find_end(self) -> None:
        disk, files, log = self._disk, self._files, f"{self._path}/{copyfiles.LOG}"
        files.forget()
        disk.remove(f"{self._path}/{_PIECES}")  # they may be torn
        for name in disk.names(log):
            if name.endswith(".tmp"):
                disk.remove(f"{log}/{name}")
        files.refresh()
        seals = {line["segment"]: line for line in self._seals.lines}
        self.at, self.is_sealed = self.gaps.all[-1].at if self.gaps.all else models.NOWHERE, False
        if files.lsns:
            last = files.lsns[-1]
            # A hub that was copied while it ran may have a seal of more than its file.
            if last in seals and self._size(last) >= seals[last]["end"][1]:
                self.at, self.is_sealed = engine.Border.from_list(seals[last]["end"]), True
            else:
                self.at = self._secured(last)
        self._lacks = {segment: seals[segment] for segment in self._lacking(seals)}
        if self._marked != self.at or not self.at.frame:
            # Who was killed between a rename and its sync told nobody; now it counts.
            for directory in (log, self._path):
                disk.sync_directory(directory)

    def _size(self, segment: int) -> int:
        status = self._disk.status(self._files.file_path(segment))
        return 0 if status is None else status[2]

    def _lacking(self, seals: dict[int, dict[str, Any]]) -> Iterator[int]:
        lsns = self._files.lsns or [0]
        asked = {*self._disk.names(f"{self._path}/{copyfiles.AGAIN}")}
        for segment, line in seals.items():
            if lsns[0] <= segment <= lsns[-1]:
                is_short = segment < lsns[-1] and self._size(segment) < line["end"][1]
                if is_short or engine.segment_name(segment) in asked:
                    yield segment

    @property
    def lacks(self) -> tuple[tuple[int, int], ...]:
        some = islice(self._lacks.items(), models.AGAIN_MAX)
        return tuple((segment, line["end"][1]) for segment, line in some)

    def _secured(self, segment: int) -> engine.Border:
        files, noted = self._files, self._mark.read()
        mark = engine.Border.from_list(noted) if noted else models.NOWHERE
        if mark.segment != segment or not files.stands(mark):
            mark = models.NOWHERE
            if noted:  # the same frames may come again, and not be on disk yet
                self._mark.remove()
        self._marked = mark
        if mark.frame and files.size(segment) == mark.offset:  # nothing came since it was on disk
            return mark
        return files.secured(segment, mark)

    def learn(self, incompat: frozenset[str]) -> None:
        """Note features of the log before a frame needs them.

        Unknown features concern readers: frames are checked without them.
        """
        if self._incompat >= incompat:
            return
        values = json.loads(copyfiles.content(self._disk, f"{self._path}/{copyfiles.IDENTITY}"))
        features, known = values["features"], frozenset(values["features"]["incompat"])
        if len(known | incompat) > models.FEATURES_MAX:
            raise OSError(errno.EDQUOT, f"a log has at most {models.FEATURES_MAX} features")
        if not known >= incompat:
            features["incompat"] = sorted(known | incompat)
            data = json.dumps(values, indent=2).encode() + b"\n"
            engine.replace_file(self._disk, f"{self._path}/{copyfiles.IDENTITY}", data)
        self._incompat = known | incompat

    @property
    def begins(self) -> int:
        sealed = [line["segment"] for line in self._seals.lines[:1]]
        return min([*sealed, *self._files.lsns[:1]], default=0)

    def safe(self, before_ns: int) -> int:
        return min(copyfiles.first_young(self._disk, self._files, before_ns), self.at.next_lsn)

    def let_go(self, old: list[copyfiles.Old]) -> None:
        """Remove files that ``due`` gave: segments one at a time, the oldest first."""
        for name, _ in old:
            folder, _, file = name.rpartition("/")
            lsn = engine.segment_lsn(file) if folder == copyfiles.LOG else None
            if lsn is not None:  # the remaining part is a log at any moment
                self._files.let_go(lsn)
            else:
                self._disk.remove(f"{self._path}/{name}")
                self._disk.sync_directory(f"{self._path}/{folder}")

    def has(self, at: engine.Border) -> bool:
        return self._files.stands(at)

    # -- growing ----------------------------------------------------------------------------------

    def append(self, asked: models.Append) -> models.Stored:
        """Append the whole frames among the bytes; of a larger frame keep the piece."""
        behind, at, data = asked.behind, self.at, asked.data
        if not behind.offset and behind.segment in self._lacks:
            return models.Stored(self.at, self._joined_segment(asked))
        if behind.offset:
            fits = behind == at and not self.is_sealed
        else:
            is_awaited = at.segment in (0, behind.segment) and not at.offset
            fits = is_awaited or (at.offset > 0 and behind.segment > at.segment)
        if not fits:
            raise models.Refusal(models.Trouble.MISMATCH, at)
        end, is_well = (behind, True) if asked.held else self._whole(behind, data)
        if data and is_well and end == behind:
            data = self._joined(asked)
            if not data:
                return models.Stored(at, self._pieces[1])
            end, is_well = self._whole(behind, data)
        if end != behind:
            # No copy of the data: a disk takes any buffer.
            self._files.add(cast("bytes", memoryview(data)[: end.offset - behind.offset]), behind)
            self._stored(end)
        if not is_well:
            raise models.Refusal(models.Trouble.DAMAGED, end)
        return models.Stored(self.at)

    def _whole(self, behind: engine.Border, data: bytes) -> tuple[engine.Border, bool]:
        if behind.offset:
            header = behind.header
            return self._files.whole(data, 0, behind, 0 if header is None else header.epoch)
        if len(data) < _START:
            return behind, True
        epoch = self._begin(behind.segment, data[:_START])
        return self._files.whole(data, _START, behind, epoch)

    def _joined(self, asked: models.Append) -> bytes:
        """Keep a piece of a frame; return all of them once the frame is whole.

        They survive a line, not the hub: nothing of them is synced.
        """
        disk, start = self._disk, 0 if asked.behind.offset else _START
        size = self._pieces[1] if self._pieces[0] == asked.behind else 0
        if asked.held <= size:
            with copyfiles.opened(disk, f"{self._path}/{_PIECES}", create=True) as file:
                after = asked.held + len(asked.data)
                if after > size or disk.read(file, len(asked.data), asked.held) != asked.data:
                    engine.write_all(disk, file, asked.data, asked.held)
                    size = after
                head = disk.read(file, _FRAME_HEAD, start)
                body = int.from_bytes(head[4:8], "little")
                if size >= (start + _FRAME_HEAD + body + 7) & ~7:
                    self._pieces = models.NOWHERE, 0
                    return disk.read(file, size, 0)
        self._pieces = asked.behind, size
        return b""

    def _begin(self, segment: int, data: bytes) -> int:
        """Begin a segment that continues the copy; return its epoch.

        Its header names the end before it, which seals that end if the device lost it. A header
        without that end comes from an interrupted recovery, and has its time. A header may also
        declare that the end was lost.
        """
        at, header = self.at, self._files.header_in(segment, data)
        if header is None:
            raise models.Refusal(models.Trouble.DAMAGED, at)
        if at.frame and at.is_named_by(header):
            if not self.is_sealed:
                self._note_seal(at, self._files.digest(at))
        elif at.frame and not (self.is_sealed and at.may_precede(header)):
            raise models.Refusal(
                models.Trouble.GAP if self.is_sealed else models.Trouble.MISMATCH, at
            )
        return header.epoch

    def _stored(self, at: engine.Border) -> None:
        self.at, self.is_sealed = at, False
        marked = self._marked
        if at.offset - (marked.offset if marked.segment == at.segment else 0) >= self._mark_bytes:
            self._note_durable(at)

    def _note_durable(self, at: engine.Border) -> None:
        self._mark.write(at.as_list())
        self._marked = at

    def seal(self, asked: models.Seal) -> models.Stored:
        """Let the segment end there if it equals the device's.

        A different segment goes to ``torn/`` and is sent again. Later bytes of the copy stay: a
        recovery of the device moved them, and they come again.
        """
        end, digest = asked.end, asked.digest
        for line in self._seals.lines:
            if (line["end"], line["sha256"]) == (end.as_list(), digest):
                self.is_sealed |= end == self.at
                return models.Stored(end)
        if self.is_sealed or end.segment != self.at.segment or not (end.offset and self.has(end)):
            raise models.Refusal(models.Trouble.MISMATCH, self.at)
        if self._files.digest(end) != digest:
            self._throw_out(end.segment)
            raise models.Refusal(models.Trouble.MISMATCH, self.at)
        self._note_seal(end, digest)
        return models.Stored(end)

    def _note_seal(self, end: engine.Border, digest: str) -> None:
        self._seals.add(segment=end.segment, end=end.as_list(), sha256=digest)
        self.at, self.is_sealed = end, True

    def declare(self, asked: models.Declare) -> models.Stored:
        """Set aside what is here: the log goes on after a gap."""
        if self.gaps.knows(asked):
            return models.Stored(self.at)
        at = asked.at
        if asked.left != self.at or at.offset or at.segment <= self.at.segment:
            raise models.Refusal(models.Trouble.MISMATCH, self.at)
        self._files.forget()
        self.gaps.declare(asked)
        self._seals = copyfiles.Notes(self._disk, f"{self._path}/{copyfiles.SEALS}")
        self._find_end()
        return models.Stored(self.at)

    def _throw_out(self, segment: int) -> None:
        torn = f"{self._path}/torn"
        self._disk.make_directory(torn)
        self._files.forget()
        self._mark.remove()  # the file of that name is another from now on
        name = engine.segment_name(segment)
        number = len(self._disk.names(torn))
        self._disk.rename(f"{self._path}/log/{name}", f"{torn}/{name}.{number}")
        self._find_end()

    def _joined_segment(self, asked: models.Append) -> int:
        """Add a piece of a sealed segment that comes again; return its bytes here, 0 for the whole.

        It has a file of its own until it is whole and its hash fits, which also finds torn pieces.
        So nothing is synced before.
        """
        disk, line = self._disk, self._lacks[asked.behind.segment]
        target = self._files.file_path(asked.behind.segment)
        folder, size = f"{self._path}/{copyfiles.AGAIN}", line["end"][1]
        part = f"{folder}/{target.rpartition('/')[2]}"
        disk.make_directory(folder)
        with copyfiles.opened(disk, part, create=True) as file:
            if (has := disk.size(file)) == asked.held:
                engine.write_all(disk, file, asked.data, has)
                has += len(asked.data)
            if has < size:
                return has
            if engine.Replica.sha256(disk, file, has) != line["sha256"]:
                disk.remove(part)
                return 0
            disk.sync(file)
        disk.rename(part, target)
        for directory in (target.rpartition("/")[0], folder, self._path):
            disk.sync_directory(directory)
        self._find_end()
        return 0


#: Copies held open; others are opened at their next request.
_COPIES_MAX: Final = 1_000
#: Logs of one device: each shard, restore and reinstallation is one.
_LOGS_MAX: Final = 256


class Copies:
    """The copies of all devices, and the only process that writes to them.

    Thread-safe across devices; one thread at a time for each device.

    Args:
        make_disk: makes this machine's disk, for each copy anew.
        path: of the hub's directory.
        registry: keeps the durable end of each copy, or None.
        mark_bytes: as of ``Copy``.
        wall_ns: wall clock.
        disk_of: makes the disk for a device's data; None: ``make_disk``.

    Raises (any method):
        OSError: the disk refused; nothing was answered for.
        LogError: a copy cannot be read.
    """

    def __init__(
        self,
        make_disk: Callable[[], engine.Disk],
        path: str,
        registry: Registry | None = None,
        mark_bytes: int = MARK_BYTES,
        wall_ns: Callable[[], int] = time.time_ns,
        disk_of: Callable[[str], engine.Disk] | None = None,
    ) -> None:
        self._wall_ns = wall_ns
        self._registry = registry or Registry()
        self._disk_of = disk_of or (lambda _device: make_disk())
        self._make_disk = make_disk
        self._mark_bytes = mark_bytes
        self._path = path
        self._copies: dict[tuple[str, UUID], Copy] = {}
        self._floors: dict[tuple[str, UUID], copyfiles.CompactionFloor] = {}
        self._guard = threading.Lock()
        #: the newest session of each log: none of before this process is believed
        self._sessions: dict[tuple[str, UUID], int] = {}
        self._first_session = random.SystemRandom().getrandbits(48)

    def close(self) -> None:
        for copy in self._copies.values():
            copy.rest()
        self._copies.clear()

    def answer(self, device: str, asked: models.Request) -> models.Answer:
        """Carry out a request of a device."""
        begins = asked if isinstance(asked, models.Sync) else None
        if not begins and not self.is_latest(device, asked):
            return models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)
        try:
            with self._held(device, asked.log_id, begins) as copy:
                if copy is None:
                    return models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)
                return self._answered(device, copy, asked)
        except models.Refusal as refusal:
            return refusal.answer

    def is_latest(self, device: str, asked: Any) -> bool:
        is_latest: bool = self._sessions.get((device, asked.log_id)) == asked.session
        return is_latest

    @contextlib.contextmanager
    def _held(
        self, device: str, log_id: UUID, begins: models.Sync | None = None
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
            copy = None  # the next request reads the files again
            raise
        finally:
            if copy is not None:
                self._put_back(key, copy)

    def _put_back(self, key: tuple[str, UUID], copy: Copy) -> None:
        copy.close()
        with self._guard:
            self._copies[key] = copy
            is_full = len(self._copies) > _COPIES_MAX
            quiet = self._copies.pop(next(iter(self._copies))) if is_full else None
        if quiet is not None:
            quiet.rest()

    def _answered(self, device: str, copy: Copy, asked: models.Request) -> models.Answer:
        if isinstance(asked, models.Sync):
            return self._begin(device, copy, asked)
        if isinstance(asked, models.Leave):
            self._registry.leave(device, asked.log_id)
        # A log that was left goes on nowhere but on another machine with this token.
        elif isinstance(asked, models.Append | models.Declare) and self._registry.holds(
            device, asked.log_id
        ):
            return models.Refused(models.Trouble.HELD, models.NOWHERE)
        return _ACTS[type(asked)](copy, asked)

    def _begin(self, device: str, copy: Copy, asked: models.Sync) -> models.CopyEnd:
        key = device, asked.log_id
        # Logs without a copy are not remembered.
        session = self._sessions[key] = self._sessions.get(key, self._first_session) + 1
        copy.learn(asked.incompat)
        has_end = not asked.end.segment or copy.has(asked.end)
        safe = copy.safe(self._wall_ns() - asked.grace_seconds * SECOND_NS)
        return models.CopyEnd(
            session, copy.at, copy.is_sealed, has_end, copy.begins, safe, copy.lacks
        )

    def all(self) -> list[copyfiles.CopyFiles]:
        return copyfiles.kept(self._path, self._make_disk())

    def keep(
        self, copy: copyfiles.CopyFiles, before_ns: int, *, dry_run: bool = False
    ) -> list[copyfiles.Old]:
        key = copy.device, copy.log_id
        gone, self._floors[key] = copyfiles.due(
            copy, before_ns, self._floors.get(key, copyfiles.CompactionFloor())
        )
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
        place = copyfiles.CopyFiles(self._disk_of(device), self._path, device, log_id)
        if not place.is_there:
            return None
        mark = self._registry.durable(device, log_id)
        return Copy(place.disk, place.path, log_id, mark, self._mark_bytes)

    def _make(self, device: str, asked: models.Sync) -> Copy:
        disk = self._disk_of(device)
        path = copyfiles.CopyFiles(disk, self._path, device, asked.log_id).path
        if len(disk.names(path.rpartition("/")[0])) >= _LOGS_MAX:
            raise OSError(
                errno.EDQUOT,
                f"this device has sent {_LOGS_MAX} logs, as many as it may: give it another name "
                f"with 'taskq hub enroll HUB OTHER'",
            )
        disk.make_directory(f"{path}/log")
        above = path
        while len(above) >= len(self._path):
            disk.sync_directory(above)
            above = above.rpartition("/")[0]
        named = asked.log_id, asked.created_ns, asked.incompat, asked.parents
        values = json.loads(engine.Identity.of_replica(*named).encode())
        others = copyfiles.in_order(copyfiles.kept(self._path, disk, device))
        values[copyfiles.CAME] = 1 + max((other.came for other in others), default=0)
        # The identity follows its directories to the disk.
        engine.replace_file(disk, f"{path}/{copyfiles.IDENTITY}", json.dumps(values).encode())
        copy = self._opened(device, asked.log_id)
        assert copy is not None
        return copy


#: Method of a copy, by the kind of request.
_ACTS: Final[dict[type, Callable[[Copy, Any], models.Answer]]] = {
    models.Append: lambda copy, asked: copy.append(asked),
    models.Leave: lambda copy, _asked: models.Stored(copy.at),
    models.Ask: lambda copy, asked: models.PlacesKnown(tuple(map(copy.has, asked.places))),
    models.Seal: lambda copy, asked: copy.seal(asked),
    models.Declare: lambda copy, asked: copy.declare(asked),
}
