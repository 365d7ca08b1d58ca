"""The readers of a log that have a name: who they are, and moving them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from taskq.core.durations import moment_ns
from taskq.core.errors import LogDamaged, ReaderFellBehind, ReaderMismatch, UsageError
from taskq.core.values import dataclass
from taskq.log.format.codec import SEGMENT_HEADER
from taskq.log.format.frames import Cursor
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.follow import Onlooker
from taskq.log.read.positions import count_behind, find_lsn, find_position, find_time
from taskq.log.read.reader import open_journal
from taskq.log.read.readers import (
    NamedReader,
    Position,
    check_reader_name,
    is_read,
    read_position,
    reader_names,
)
from taskq.log.segments.segments import Extent, SegmentFiles
from taskq.reading.record import open_files
from taskq.reading.stream import check_lsn

if TYPE_CHECKING:
    from taskq.log.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderView:
    """A named reader of the log, as its files tell.

    Attributes:
        name: under which it reads.
        lsn: of the record that comes next.
        lag_records, lag_bytes: what the log holds from there on; all of it if ``problem`` is set.
        alive: whether somebody reads under the name now.
        problem: why it cannot go on where it stopped; "" if it can.
    """

    name: str
    lsn: int
    lag_records: int
    lag_bytes: int
    alive: bool
    problem: str = ""


def look_at_readers(path: str) -> list[ReaderView]:
    """Return the named readers of a log that is not opened for it, and how far behind each is.

    Raises:
        LogError: there is no log, or a file cannot be read.
    """
    onlooker = Onlooker(open_journal(path))
    try:
        return reader_views(path, onlooker.journal.identity.log_id, onlooker.look())
    finally:
        onlooker.close()


def reader_views(path: str, log_id: UUID, extent: Extent) -> list[ReaderView]:
    disk, files = LocalDisk(), open_files(path, log_id)
    views: list[ReaderView] = []
    try:
        for name in reader_names(disk, path) if files.lsns else ():
            problem, position = "", None
            try:
                position = read_position(disk, path, log_id, name)
            except LogDamaged as error:
                problem = str(error)
            start = Cursor(files.lsns[0], SEGMENT_HEADER.size, files.lsns[0])
            if position is None:
                position, cursor = Position(start.segment, start.segment), start
            else:
                try:
                    cursor = find_position(files, path, name, position, extent)
                except (ReaderFellBehind, ReaderMismatch) as error:
                    problem, cursor = str(error), start
            lsn = cursor.next_lsn if problem else position.lsn
            records, size = count_behind(files, cursor, lsn, extent)
            views.append(
                ReaderView(
                    name=name,
                    lsn=position.lsn,
                    lag_records=records,
                    lag_bytes=size,
                    alive=is_read(disk, path, name),
                    problem=problem,
                )
            )
    finally:
        files.forget()
    return views


def sought(
    reader: str, where: str | None, lsn: int | None, time: datetime | None
) -> Callable[[Store, Extent], int]:
    """Return what moves a reader to the one place that is given.

    Raises:
        UsageError: it is none, or there are several.
    """
    check_reader_name(reader)
    time_ns = None if time is None else moment_ns(time, "time")
    if sum(place is not None for place in (where, lsn, time_ns)) != 1:
        raise UsageError('seek() takes one place: "start", "end", lsn= or time=')
    if where not in (None, "start", "end"):
        raise UsageError(f'seek() takes "start" or "end", not {where!r:.60}')
    place = lsn if lsn is not None else where
    return lambda store, extent: seek_reader(store, reader, place, time_ns, extent)


def seek_reader(
    store: Store, reader: str, place: int | str | None, time_ns: int | None, extent: Extent
) -> int:
    """Save another position for a reader; returns the lsn that it goes on at."""
    named = NamedReader.take(LocalDisk(), store.path, store.log_id, reader)
    files = open_files(store.path, store.log_id)
    try:
        with contextlib.suppress(LogDamaged):  # it goes elsewhere now
            named.load()
        position = _position_of(files, store.path, place, time_ns, extent)
        named.save(position)
    finally:
        files.forget()
        named.release()
    return position.lsn


def _position_of(
    files: SegmentFiles, path: str, place: int | str | None, time_ns: int | None, extent: Extent
) -> Position:
    oldest = files.lsns[0]
    if place == "start":
        return Position(oldest, oldest)
    if place == "end":
        return Position(extent.segment, extent.lsn)
    if isinstance(place, int):
        check_lsn(path, place, oldest, extent)
        return Position(find_lsn(files, place, extent).segment, place)
    cursor = find_time(files, time_ns or 0, extent)
    return Position(cursor.segment, cursor.next_lsn)


def forget_reader(store: Store, reader: str) -> None:
    """Remove a reader.

    Raises:
        UsageError: there is none of that name.
        ReaderBusy: somebody reads under the name now.
    """
    disk = LocalDisk()
    known = reader_names(disk, store.path)
    if reader not in known:
        names = ", ".join(known) or "none"
        raise UsageError(f"{store.path} has no reader {reader!r}; it has {names}")
    NamedReader.take(disk, store.path, store.log_id, reader).forget()
