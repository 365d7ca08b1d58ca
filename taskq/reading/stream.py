"""Read the log as it grows: ``async for record in log.stream(reader="billing")``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from taskq.connection.blocking import blocking, off_loop, refuse_in_loop, run
from taskq.core import durations, errors
from taskq.core.values import NamedTuple, dataclass
from taskq.log.config import LogConfig
from taskq.log.format import codec, frames
from taskq.log.format.record import Record
from taskq.log.machine.disk import LocalDisk
from taskq.log.read import positions, reader, readers
from taskq.log.read.follow import FrameReader, Lasting, Onlooker
from taskq.log.segments import bodystore, segments
from taskq.log.segments.identity import Identity
from taskq.reading.record import Choice, RecordReader, kind_at, open_files

if TYPE_CHECKING:
    from taskq.connection.connection import Connection
    from taskq.log.store.store import Store

_log: Final = logging.getLogger("taskq")
#: Records, or seconds, after which a reader's position is saved; later records come again after a
#: kill or a power loss.
COMMIT_RECORDS_MAX: Final = 10_000
COMMIT_SECONDS_MAX: Final = 0.05
#: Retries of opening the first segment while compaction removes segments.
_TRIES: Final = 10

#: Policy for damaged bytes.
OnDamage: TypeAlias = Literal["raise", "skip"]


class Start(NamedTuple):
    """The start of a stream; at most one field is set, none means the start of the log."""

    reader: str | None = None
    lsn: int | None = None
    time_ns: int | None = None


class _Open(NamedTuple):
    records: RecordReader
    named: readers.NamedReader | None


class Stream:
    """The records of a log in order: an async iterator, and an async context manager.

    A record counts as handled when the next one is requested. After an exception or a crash in
    its handler a named reader gets it again; call ``commit()`` before leaving the loop if the last
    record is done. A second loop continues from the same position.

    A stream yields durable records only; with durability "os", every written record. Made by
    ``TaskLog.stream`` and ``TaskQ.stream``; for one event loop.
    """

    def __init__(
        self,
        connection: Connection,
        start: Start,
        choice: Choice,
        *,
        follow: bool,
        on_damage: OnDamage,
    ) -> None:
        self._connection = connection
        self._start = start
        self._choice = choice
        self._follow = follow
        self._on_damage = on_damage
        self._opening: Lasting[_Open] = Lasting()
        self._saving: Lasting[None] = Lasting()
        self._closing: Lasting[None] = Lasting()
        self._open: _Open | None = None
        self._extent: segments.Extent | None = None
        #: the position up to which all records were handled
        self._done: readers.ReaderPosition | None = None
        self._handled = 0
        self._saved_at = 0.0
        self._growth: asyncio.Future[segments.Extent] | None = None
        self._is_read = self._is_closed = self._is_finished = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._is_closed:
            raise StopAsyncIteration
        if self._is_read:
            raise errors.UsageError("two tasks read from one stream: give each a stream of its own")
        self._is_read = True
        try:
            record = await self._next()
        finally:
            self._is_read = False
        if record is None:
            await self.aclose()
            raise StopAsyncIteration
        return record

    async def _next(self) -> Record | None:
        if self._open is None:
            self._open = await self._opening.run(self._begin)
        if self._is_closed:
            return None
        records, named = self._open
        if named is not None:
            self._handled += 1
            self._done = records.position
            if self._save_is_due():
                await self._save()
        extent = self._extent
        assert extent is not None
        while not self._is_closed:
            record = await records.next(extent)
            if record is not None:
                return record
            # The records skipped since then did not match.
            self._done = records.position
            await self._save()
            if not self._follow:
                break
            extent = await self._grown(extent.lsn)
            if extent is None:
                break
        return None

    async def _grown(self, beyond: int) -> segments.Extent | None:
        """Wait until there are new records; return None if the stream is closed meanwhile."""
        port = await self._connection.port()
        if self._is_closed:  # checked after the last await: ``aclose`` only ends a wait in progress
            return None
        growth = self._growth = port.extent(beyond)
        try:
            # Unlike ``await growth`` this separates cancelling the reader from cancelling the wait.
            await asyncio.wait({growth})
        finally:
            growth.cancel()
        if growth.cancelled():
            return None
        self._extent = growth.result()
        return self._extent

    async def commit(self) -> None:
        """Count the current record as handled, and save a named reader's position.

        Raises:
            LogError: the position could not be written.
        """
        if self._open is not None and not self._is_closed:
            self._done = self._open.records.position
            await self._save()

    commit_sync: Final = blocking(commit)

    async def aclose(self) -> None:
        """Save a named reader's position, and release its name. Legal twice.

        A cancelled call closes the stream nevertheless.

        Raises:
            LogError: the position could not be written.
        """
        self._is_closed = True
        if self._growth is not None:
            self._growth.cancel()
        if self._closing.is_running or not self._is_finished:
            await self._closing.run(self._close)

    async def _close(self) -> None:
        if self._opening.is_running:
            with contextlib.suppress(Exception):
                self._open = await self._opening.run(self._begin)
        opened = self._open
        if opened is not None:
            with contextlib.suppress(errors.LogError):  # saved again below
                if self._saving.is_running:
                    await self._saving.run(self._save_done)
            await opened.records.frames.settle()
        self._is_finished = True
        if opened is not None:
            await off_loop(self._finish, opened)

    aclose_sync: Final = blocking(aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def __iter__(self) -> Iterator[Record]:
        refuse_in_loop("for record in stream", "async for record in stream")
        while (record := run(self._next_or_none())) is not None:
            yield record

    async def _next_or_none(self) -> Record | None:
        return await anext(self, None)

    def __enter__(self) -> Self:
        refuse_in_loop("with stream", "async with stream")
        return self

    def __exit__(self, *_exc: object) -> None:
        run(self.aclose())

    def __del__(self) -> None:
        # A loop that ended by an error must not keep the reader's name.
        opened = self._open or self._opening.left
        if not self._is_closed and opened is not None:
            self._is_closed = True
            with contextlib.suppress(Exception):
                self._finish(opened)

    # -- the reader's position --------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        return (
            self._handled >= COMMIT_RECORDS_MAX
            or time.monotonic() - self._saved_at >= COMMIT_SECONDS_MAX
        )

    async def _save(self) -> None:
        if self._open is None or self._open.named is None or self._done is None:
            return
        if self._is_closed:  # ``aclose`` saves then
            return
        if self._saving.is_running:
            await self._saving.run(self._save_done)
        if self._done != self._open.named.position:
            await self._saving.run(self._save_done)

    async def _save_done(self) -> None:
        assert self._open is not None
        assert self._done is not None
        assert self._open.named is not None
        self._handled = 0
        named = self._open.named
        try:
            await off_loop(named.save, self._done)
        except OSError as error:
            raise self._refused(error) from error
        self._saved_at = time.monotonic()

    def _finish(self, opened: _Open) -> None:
        records, named = opened
        try:
            if named is not None and self._done is not None:
                named.save(self._done)
        except OSError as error:
            raise self._refused(error) from error
        finally:
            records.close()
            if named is not None:
                named.release()

    def _refused(self, error: OSError) -> errors.LogError:
        path = self._connection.path
        return errors.LogError(
            f"{path}: the position of reader {self._start.reader!r} could not be saved "
            f"({error.strerror or error}): what it has read since comes again"
        )

    # -- beginning --------------------------------------------------------------------------------

    async def _begin(self) -> _Open:
        store = await self._connection.opened()
        port = await self._connection.port()
        self._extent = await port.extent()
        try:
            return await off_loop(self._begin_files, store, self._extent)
        except OSError as error:
            raise errors.refusal(store.path, error) from error

    def _begin_files(self, store: Store, extent: segments.Extent) -> _Open:
        path, start = store.path, self._start
        named: readers.NamedReader | None = None
        files = open_files(path, store.identity)
        try:
            if start.reader is not None:
                named = readers.NamedReader.take(LocalDisk(), path, store.identity, start.reader)
            for left in reversed(range(_TRIES)):
                try:
                    cursor, position = self._find(files, path, named, extent)
                    # Open it now, so that it can be read even if compaction removes it.
                    files.descriptor(cursor.segment)
                    break
                except segments.SegmentGone:
                    if not left:
                        raise
                    files.forget()
                    files.refresh()
            if named is not None and named.position is None:
                # From now on compaction keeps the reader's unread records.
                named.save(position)
        except BaseException:
            files.forget()
            if named is not None:
                named.release()
            raise
        meet = gap_handler(files, self._on_damage)
        frames = FrameReader(files, cursor, start.reader or "", meet)
        frames.time_ns = position.time_ns
        bodies = self._connection.packer.bodies
        from_ns = start.time_ns or 0
        self._saved_at = time.monotonic()
        return _Open(
            RecordReader(frames, self._choice, store.tag, bodies, position, from_ns), named
        )

    def _find(
        self,
        files: segments.SegmentFiles,
        path: str,
        named: readers.NamedReader | None,
        extent: segments.Extent,
    ) -> tuple[frames.Cursor, readers.ReaderPosition]:
        start = self._start
        if named is not None:
            position = named.load()
            if position is not None:
                return positions.find_position(files, path, named.name, position, extent), position
        if not files.lsns:
            raise errors.LogGone(path, "its segments were removed or moved")
        oldest = files.lsns[0]
        if start.time_ns is not None:
            cursor = positions.find_time(files, start.time_ns, extent)
            return cursor, readers.ReaderPosition(cursor.segment, cursor.next_lsn)
        if not start.lsn:
            cursor = frames.Cursor(oldest, codec.SEGMENT_HEADER.size, oldest)
            return cursor, readers.ReaderPosition(oldest, oldest)
        check_lsn(path, start.lsn, oldest, extent)
        cursor = positions.find_lsn(files, start.lsn, extent)
        return cursor, readers.ReaderPosition(cursor.segment, start.lsn)


def gap_handler(
    files: segments.SegmentFiles, on_damage: OnDamage
) -> Callable[[int, frames.Gap], None]:
    """Return the handler of damaged bytes.

    It is no method, because a reference cycle with the stream would keep the reader's name until
    garbage collection when an error ends the loop.
    """

    def meet(segment: int, gap: frames.Gap) -> None:
        text = (
            f"{files.file_path(segment)}: the {gap.size} bytes from offset "
            f"{gap.offset} on do not read back (lsn {gap.first_lsn} up to {gap.next_lsn})"
        )
        if on_damage == "raise":
            raise errors.LogDamaged(
                f"{text}; for the jobs concerned: {errors.command(files.path, 'verify')}; "
                f'stream(..., on_damage="skip") reads on after them'
            )
        _log.warning("%s: passed over", text)

    return meet


def check_lsn(path: str, lsn: int, oldest: int, extent: segments.Extent) -> None:
    """Refuse to begin at a record that does not exist."""
    if lsn > extent.lsn:
        raise errors.UsageError(f"{path}: lsn {lsn} is still to come: the next one is {extent.lsn}")
    if lsn < oldest:
        raise errors.ReaderFellBehind(path, "", lsn, oldest)


#: No writer wakes a process that only reads, so it polls the log's end: one read of 84 bytes of
#: write.lock, 20 µs. The pause is short after a new record and grows to a tenth of a second, which
#: costs 0.02 % of a core.
_PAUSE_SECONDS_MIN: Final = 0.005
_PAUSE_SECONDS_MAX: Final = 0.1
_PAUSE_GROWTH: Final = 1.5


async def look_at_records(
    path: str,
    count: int,
    choice: Choice,
    *,
    follow: bool,
    body_bytes_max: int | None = None,
    until: segments.Extent | None = None,
    on_pause: Callable[[], None] = lambda: None,
    on_damage: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Record, None]:
    """Yield the latest ``count`` matching records; then new records, durable or not.

    Args:
        path: directory of the log.
        count: number of existing records.
        choice: filter.
        follow: wait for new records, without end.
        body_bytes_max: larger packed bodies are left out; 0: all, without a note.
        until: end of the view; None for the log's end.
        on_pause: called while there is no new record; may raise to end.
        on_damage: called before the first record if a part was skipped as damaged.

    Raises:
        LogError: the directory is no log, or a file cannot be read.
    """
    onlooker = await off_loop(lambda: Onlooker(reader.open_journal(path)))
    records: RecordReader | None = None
    try:
        files = await off_loop(open_files, path, onlooker.journal.identity)
        if not await _begun(files, follow=follow, on_pause=on_pause):
            return
        extent = until or onlooker.look()
        cursor, lsn = await off_loop(_find, files, extent, count, choice, on_damage)
        records = RecordReader(
            FrameReader(files, cursor, "", gap_handler(files, "skip")),
            choice,
            onlooker.journal.tag,
            bodystore.BodyStore(path, LogConfig()),
            readers.ReaderPosition(cursor.segment, lsn),
            body_bytes_max=body_bytes_max,
        )
        pause = _PAUSE_SECONDS_MIN
        while True:
            record = await records.next(extent)
            if record is not None:
                yield record
                pause = _PAUSE_SECONDS_MIN
                continue
            if not follow:
                return
            before = extent
            while (extent := onlooker.look()) == before:
                on_pause()
                await asyncio.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _PAUSE_SECONDS_MAX)
    finally:
        if records is not None:
            records.close()
        onlooker.close()


async def _begun(
    files: segments.SegmentFiles, *, follow: bool, on_pause: Callable[[], None]
) -> bool:
    while not files.lsns:
        if not follow:
            return False
        on_pause()
        await asyncio.sleep(_PAUSE_SECONDS_MAX)
        await off_loop(files.refresh)
    return True


def _find(
    files: segments.SegmentFiles,
    extent: segments.Extent,
    count: int,
    choice: Choice,
    on_damage: Callable[[], None],
) -> tuple[frames.Cursor, int]:
    def wanted(lsn: int, data: bytes) -> bool:
        if choice.skips(kind_at(data, 0)):
            return False
        record = Record(data, lsn, 0, 0)
        choice.note(record)
        if choice.is_by_name and choice.lacks(record):
            born = positions.read_record(files, record.job, extent)
            if born is not None:
                choice.note(Record(born, record.job, 0, 0))
        return choice.fits(record) is not None

    begin = positions.find_latest(files, extent, count, wanted)
    if files.is_damaged:
        on_damage()
    return begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderView:
    """A named reader of the log.

    Attributes:
        name: its name.
        lsn: lsn of its next record.
        lag_records, lag_bytes: unread part of the log; the whole log if ``problem`` is set.
        alive: whether a process is using the name now.
        problem: why it cannot continue from its position; "" if it can.
    """

    name: str
    lsn: int
    lag_records: int
    lag_bytes: int
    alive: bool
    problem: str = ""


def look_at_readers(path: str) -> list[ReaderView]:
    """Return the named readers of a log, with their lag; the log is not opened for writing."""
    onlooker = Onlooker(reader.open_journal(path))
    try:
        return reader_views(path, onlooker.journal.identity, onlooker.look())
    finally:
        onlooker.close()


def reader_views(path: str, identity: Identity, extent: segments.Extent) -> list[ReaderView]:
    disk, files = LocalDisk(), open_files(path, identity)
    views: list[ReaderView] = []
    try:
        for name in readers.reader_names(disk, path) if files.lsns else ():
            problem, position = "", None
            try:
                position = readers.read_position(disk, path, identity, name)
            except errors.LogDamaged as error:
                problem = str(error)
            start = frames.Cursor(files.lsns[0], codec.SEGMENT_HEADER.size, files.lsns[0])
            if position is None:
                position, cursor = readers.ReaderPosition(start.segment, start.segment), start
            else:
                try:
                    cursor = positions.find_position(files, path, name, position, extent)
                except (errors.ReaderFellBehind, errors.ReaderMismatch) as error:
                    problem, cursor = str(error), start
            lsn = cursor.next_lsn if problem else position.lsn
            records, size = positions.count_after(files, cursor, lsn, extent)
            views.append(
                ReaderView(
                    name=name,
                    lsn=position.lsn,
                    lag_records=records,
                    lag_bytes=size,
                    alive=readers.is_read(disk, path, name),
                    problem=problem,
                )
            )
    finally:
        files.forget()
    return views


def sought(
    reader: str, where: str | None, lsn: int | None, time: datetime | None
) -> Callable[[Store, segments.Extent], int]:
    """Return a function that finds a reader's new position."""
    readers.check_reader_name(reader)
    time_ns = None if time is None else durations.moment_ns(time, "time")
    if sum(place is not None for place in (where, lsn, time_ns)) != 1:
        raise errors.UsageError('seek() takes one place: "start", "end", lsn= or time=')
    if where not in (None, "start", "end"):
        raise errors.UsageError(f'seek() takes "start" or "end", not {where!r:.60}')
    place = lsn if lsn is not None else where
    return lambda store, extent: seek_reader(store, reader, place, time_ns, extent)


def seek_reader(
    store: Store, reader: str, place: int | str | None, time_ns: int | None, extent: segments.Extent
) -> int:
    """Save another position for a reader; return its lsn."""
    named = readers.NamedReader.take(LocalDisk(), store.path, store.identity, reader)
    files = open_files(store.path, store.identity)
    try:
        with contextlib.suppress(errors.LogDamaged):  # the old position is not needed
            named.load()
        position = _position_of(files, store.path, place, time_ns, extent)
        named.save(position)
    finally:
        files.forget()
        named.release()
    return position.lsn


def _position_of(
    files: segments.SegmentFiles,
    path: str,
    place: int | str | None,
    time_ns: int | None,
    extent: segments.Extent,
) -> readers.ReaderPosition:
    oldest = files.lsns[0]
    if place == "start":
        return readers.ReaderPosition(oldest, oldest)
    if place == "end":
        return readers.ReaderPosition(extent.segment, extent.lsn)
    if isinstance(place, int):
        check_lsn(path, place, oldest, extent)
        return readers.ReaderPosition(positions.find_lsn(files, place, extent).segment, place)
    cursor = positions.find_time(files, time_ns or 0, extent)
    return readers.ReaderPosition(cursor.segment, cursor.next_lsn)


def forget_reader(store: Store, reader: str) -> None:
    """Remove a reader."""
    disk = LocalDisk()
    known = readers.reader_names(disk, store.path)
    if reader not in known:
        names = ", ".join(known) or "none"
        raise errors.UsageError(f"{store.path} has no reader {reader!r}; it has {names}")
    readers.NamedReader.take(disk, store.path, store.identity, reader).forget()
