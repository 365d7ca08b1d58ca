"""Looking at a log's records without having it open: nothing is locked, and nothing written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from taskq.connection.blocking import off_loop
from taskq.log.config import LogConfig
from taskq.log.format.frames import Cursor
from taskq.log.format.record import decode_record
from taskq.log.read.follow import FrameReader, Onlooker
from taskq.log.read.positions import find_latest, read_record
from taskq.log.read.reader import open_journal
from taskq.log.read.readers import Position
from taskq.log.segments.bodystore import BodyStore
from taskq.log.segments.segments import Extent, SegmentFiles
from taskq.reading.record import Choice, Record, RecordReader, kind_at, open_files
from taskq.reading.stream import gap_handler

#: Who only looks is woken by nobody, since whoever writes would have to know of it. So the end of
#: the log is looked at again and again: one read of 84 bytes (write.lock says where the log ends),
#: 20 µs. Soon after something came, since more is likely to; then less and less often, down to ten
#: times a second, which costs 0.02 % of a core.
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
    until: Extent | None = None,
    on_pause: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Record, None]:
    """Yield the latest ``count`` records that are wanted; then what is written, on disk or not.

    Damage is passed over with a warning.

    Args:
        path: directory of the log.
        count: how many of those that are there already.
        choice: which.
        follow: wait for more, for ever.
        body_bytes_max: larger packed bodies are left out; 0: all of them, without a word.
        until: as if the log ended there; None: where it ends.
        on_pause: called whenever there is nothing more to show yet; may raise to end.

    Raises:
        LogError: there is no log, or a file cannot be read.
    """
    onlooker = await off_loop(lambda: Onlooker(open_journal(path)))
    records: RecordReader | None = None
    try:
        files = await off_loop(open_files, path, onlooker.journal.identity.log_id)
        if not await _begun(files, follow=follow, on_pause=on_pause):
            return
        extent = until or onlooker.look()
        cursor, lsn = await off_loop(_find, files, extent, count, choice)
        records = RecordReader(
            FrameReader(files, cursor, "", gap_handler(files, "skip")),
            choice,
            onlooker.journal.tag,
            BodyStore(path, LogConfig()),
            Position(cursor.segment, lsn),
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


async def _begun(files: SegmentFiles, *, follow: bool, on_pause: Callable[[], None]) -> bool:
    while not files.lsns:
        if not follow:
            return False
        on_pause()
        await asyncio.sleep(_PAUSE_SECONDS_MAX)
        await off_loop(files.refresh)
    return True


def _find(files: SegmentFiles, extent: Extent, count: int, choice: Choice) -> tuple[Cursor, int]:
    def wanted(lsn: int, data: bytes) -> bool:
        if choice.skips(kind_at(data, 0)):
            return False
        record = decode_record(data, lsn, 0, 0)
        choice.note(record)
        if choice.lacks(record):
            born = read_record(files, record.job, extent)
            if born is not None:
                choice.note(decode_record(born, record.job, 0, 0))
        return choice.fits(record) is not None

    return find_latest(files, extent, count, wanted)
