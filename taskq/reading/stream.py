"""Reading the log as it grows: ``async for record in log.stream(reader="billing")``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from taskq.connection.blocking import blocking, off_loop, refuse_in_loop, run
from taskq.core.errors import (
    LogDamaged,
    LogError,
    LogGone,
    ReaderFellBehind,
    UsageError,
    command,
    refusal,
)
from taskq.core.values import NamedTuple
from taskq.log.format.codec import SEGMENT_HEADER
from taskq.log.format.frames import Cursor, Gap
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.follow import FrameReader, Lasting
from taskq.log.read.positions import find_lsn, find_position, find_time
from taskq.log.read.readers import NamedReader, Position
from taskq.log.segments.segments import Extent, SegmentFiles
from taskq.reading.record import Choice, Record, RecordReader, open_files

if TYPE_CHECKING:
    from taskq.connection.connection import Connection
    from taskq.log.store.store import Store

_log: Final = logging.getLogger("taskq")
#: A named reader's position is saved after so many records, or so long; what was handed out since
#: then comes again after a kill or a loss of power.
COMMIT_RECORDS_MAX: Final = 10_000
COMMIT_SECONDS_MAX: Final = 0.05

#: What to do about bytes that do not read back.
OnDamage: TypeAlias = Literal["raise", "skip"]


class Start(NamedTuple):
    """Place at which a stream begins; at most one is given, none is the start of the log."""

    reader: str | None = None
    lsn: int | None = None
    time_ns: int | None = None


class _Open(NamedTuple):
    records: RecordReader
    named: NamedReader | None


class Stream:
    """The records of a log in order: an async iterator, and an async context manager.

    A record counts as handled when the next one is asked for. So one whose handler raises, or whose
    process dies, comes again to a named reader; leave the loop only after ``commit()`` if the last
    one is done. Breaking out of the loop and iterating once more goes on where it was.

    Only what is durable is handed out; with durability "os", where nothing is known to be, whatever
    was written. Made by ``TaskLog.stream`` and ``TaskQ.stream``; for one event loop.
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
        self._extent: Extent | None = None
        #: everything before it was handled
        self._done: Position | None = None
        self._handled = 0
        self._saved_at = 0.0
        self._growth: asyncio.Future[Extent] | None = None
        self._is_read = self._is_closed = self._is_finished = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._is_closed:
            raise StopAsyncIteration
        if self._is_read:
            raise UsageError("two tasks read from one stream: give each a stream of its own")
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
            # Whatever was passed over since was not wanted.
            self._done = records.position
            await self._save()
            if not self._follow:
                break
            extent = await self._grown(extent.lsn)
            if extent is None:
                break
        return None

    async def _grown(self, beyond: int) -> Extent | None:
        """Wait until there is more to read; None if the stream is closed meanwhile."""
        port = await self._connection.port()
        if self._is_closed:  # after the last await, for ``aclose`` ends only a wait that has begun
            return None
        growth = self._growth = port.extent(beyond)
        try:
            # Unlike ``await growth`` it tells the reader's own cancellation from that of the wait.
            await asyncio.wait({growth})
        finally:
            growth.cancel()
        if growth.cancelled():
            return None
        self._extent = growth.result()
        return self._extent

    async def commit(self) -> None:
        """Count the record in hand as handled, and save how far a named reader has come.

        Raises:
            LogError: the disk refused.
        """
        if self._open is not None and not self._is_closed:
            self._done = self._open.records.position
            await self._save()

    commit_sync = blocking(commit)

    async def aclose(self) -> None:
        """Save how far a named reader has come, and let go of its name. Legal twice.

        A call that is cancelled closes the stream all the same.

        Raises:
            LogError: the disk refused.
        """
        self._is_closed = True
        if self._growth is not None:
            self._growth.cancel()
        if not self._is_finished:
            await self._closing.run(self._close)

    async def _close(self) -> None:
        if self._opening.is_running:
            with contextlib.suppress(Exception):
                self._open = await self._opening.run(self._begin)
        opened = self._open
        if opened is not None:
            with contextlib.suppress(LogError):  # saved once more below
                if self._saving.is_running:
                    await self._saving.run(self._save_done)
            await opened.records.frames.settle()
        if not self._is_finished:
            self._is_finished = True
            if opened is not None:
                await off_loop(self._finish, opened)

    aclose_sync = blocking(aclose)

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
        # Whoever left the loop by an error keeps no reader's name.
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
        if self._is_closed:  # then ``aclose`` saves
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

    def _refused(self, error: OSError) -> LogError:
        path = self._connection.path
        return LogError(
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
            raise refusal(store.path, error) from error

    def _begin_files(self, store: Store, extent: Extent) -> _Open:
        path, start = store.path, self._start
        named: NamedReader | None = None
        files = open_files(path, store.log_id)
        try:
            if start.reader is not None:
                named = NamedReader.take(LocalDisk(), path, store.log_id, start.reader)
            cursor, position = self._find(files, path, named, extent)
            if named is not None and named.position is None:
                # From now on compaction keeps what the reader has not read.
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
        self, files: SegmentFiles, path: str, named: NamedReader | None, extent: Extent
    ) -> tuple[Cursor, Position]:
        start = self._start
        if named is not None:
            position = named.load()
            if position is not None:
                return find_position(files, path, named.name, position, extent), position
        if not files.lsns:
            raise LogGone(path, "its segments were removed or moved")
        oldest = files.lsns[0]
        if start.time_ns is not None:
            cursor = find_time(files, start.time_ns, extent)
            return cursor, Position(cursor.segment, cursor.next_lsn)
        if start.lsn is None:
            cursor = Cursor(oldest, SEGMENT_HEADER.size, oldest)
            return cursor, Position(oldest, oldest)
        check_lsn(path, start.lsn, oldest, extent)
        cursor = find_lsn(files, start.lsn, extent)
        return cursor, Position(cursor.segment, start.lsn)


def gap_handler(files: SegmentFiles, on_damage: OnDamage) -> Callable[[int, Gap], None]:
    """Return what to do about damage.

    A function of its own: a method would tie the stream into a ring, and a loop that is left by an
    error would keep its reader's name until the garbage is collected.
    """

    def meet(segment: int, gap: Gap) -> None:
        text = (
            f"{files.file_path(segment)}: the {gap.resume - gap.offset} bytes from offset "
            f"{gap.offset} on do not read back (lsn {gap.first_lsn} up to {gap.next_lsn})"
        )
        if on_damage == "raise":
            raise LogDamaged(
                f"{text}; for the jobs concerned: {command(files.path, 'verify')}; "
                f'stream(..., on_damage="skip") reads on behind them'
            )
        _log.warning("%s: passed over", text)

    return meet


def check_lsn(path: str, lsn: int, oldest: int, extent: Extent) -> None:
    """Refuse to begin at a record that is not there.

    Raises:
        ReaderFellBehind: compaction removed it.
        UsageError: it is still to come, by more than one.
    """
    if lsn > extent.lsn:
        raise UsageError(f"{path}: lsn {lsn} is still to come: the next one is {extent.lsn}")
    if lsn < oldest:
        raise ReaderFellBehind(path, "", lsn, oldest)
