"""Read whole frames in order as the log grows: in pieces, outside the event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from taskq.core.errors import LogError, LogGone, ReaderFellBehind
from taskq.log.format import codec, frames
from taskq.log.journal import journal, lock
from taskq.log.machine.threads import on_thread
from taskq.log.read.positions import created_ns, follows
from taskq.log.segments.segments import Extent, SegmentFiles

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Lasting(Generic[T]):
    """Work that survives the cancellation of its caller: the next call gets its outcome."""

    def __init__(self) -> None:
        self._task: asyncio.Task[T] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether work of a cancelled call runs or has an outcome."""
        return self._task is not None

    @property
    def left(self) -> T | None:
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the outcome of a cancelled call's work if there is any, else of ``work``."""
        import asyncio  # noqa: PLC0415 - the caller runs in a loop of it

        if self._task is None:
            self._task = asyncio.create_task(work())
            self._task.add_done_callback(_look_at)
        task = self._task
        try:
            outcome = await asyncio.shield(task)
        except BaseException:
            if task.done() and (task.cancelled() or task.exception() is not None):
                self._task = None
            raise
        self._task = None
        return outcome

    def afterwards(self, action: Callable[[], object]) -> None:
        if self._task is None:
            action()
        else:
            self._task.add_done_callback(lambda _: action())


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


_Item: TypeAlias = frames.Frame | frames.Gap


class FrameReader:
    """Reader of a log's frames from a cursor on, for one event loop.

    A cancelled call of ``next`` loses nothing: the read goes on, and the next call gets its frame.

    A thread reads and checks about 1 MiB of frames at a time.

    Args:
        files: segment files for this reader alone.
        cursor: moves to the end of the last frame returned.
        reader: its name in errors, "" for none.
        on_gap: called with damage in a segment; returns to skip it, or raises.
    """

    def __init__(
        self,
        files: SegmentFiles,
        cursor: frames.Cursor,
        reader: str,
        on_gap: Callable[[int, frames.Gap], None],
    ) -> None:
        self.files = files
        self.cursor = cursor
        #: time of the last frame before the cursor, 0 if unknown
        self.time_ns: int = 0
        self._reader = reader
        self._on_gap = on_gap
        self._items: Iterator[_Item] = iter(())
        #: the rest of the segment, up to the end known at its start
        self._scan: Iterator[_Item] | None = None
        self._loading: Lasting[list[_Item] | None] = Lasting()
        self._is_closed = False

    async def next(self, extent: Extent) -> frames.Frame | None:
        """Return the next frame; None at the extent.

        Raises:
            ReaderFellBehind: compaction removed it.
            LogDamaged: raised by ``on_gap``.
            LogError: a file cannot be read.
        """
        cursor = self.cursor
        while True:
            item = next(self._items, None)
            if item is None:
                if not await self._load_more(extent):
                    return None
            elif isinstance(item, frames.Gap):
                self._read_again()
                self._on_gap(cursor.segment, item)
                cursor.offset, cursor.next_lsn = item.end, item.next_lsn
            elif item.header.is_sync_point:
                cursor.offset = item.end
            elif item.header.first_lsn >= extent.lsn:
                self._read_again()
                return None
            else:
                cursor.offset, cursor.next_lsn = item.end, item.header.next_lsn
                self.time_ns = item.header.time_ns
                return item

    async def settle(self) -> None:
        with contextlib.suppress(Exception):
            if self._loading.is_running:
                await self._loading.run(lambda: on_thread(self._load, Extent(0, 0, 0)))

    def close(self) -> None:
        """Close the files and end the reading. May be called twice.

        Any thread may call it after ``settle``, before that only the loop's.
        """
        self._is_closed = True
        self._read_again()
        self._loading.afterwards(self.files.forget)

    def _read_again(self) -> None:
        self._items, self._scan = iter(()), None

    async def _load_more(self, extent: Extent) -> bool:
        was_left = self._loading.is_running
        items = await self._loading.run(lambda: on_thread(self._load, extent))
        if items is None and was_left:  # of a cancelled call, with an older end
            items = await self._loading.run(lambda: on_thread(self._load, extent))
        self._items = iter(items or ())
        return items is not None

    def _load(self, extent: Extent) -> list[_Item] | None:
        cursor, files = self.cursor, self.files
        if self._is_closed:
            return None
        while cursor.offset >= (limit := self._limit(extent)):
            if cursor.segment >= extent.segment or not self._enter_next(extent):
                return None
        if self._scan is None:
            scanner = files.scanner(cursor.segment, limit, cursor.next_lsn, sealed=True)
            self._scan = scanner.frames(cursor.offset)
        items: list[_Item] = []
        for item in self._scan:
            items.append(item)
            if isinstance(item, frames.Gap) or item.end - cursor.offset >= frames.READ_SIZE:
                return items
        self._scan = None
        if not items:  # frames seen in another segment are skipped
            cursor.offset = limit
        return items

    def _limit(self, extent: Extent) -> int:
        files, segment = self.files, self.cursor.segment
        size = files.size(segment)
        if segment == extent.segment and size < extent.offset:
            files.forget()  # a recovery replaced this file
        return extent.offset if segment == extent.segment else size

    def _enter_next(self, extent: Extent) -> bool:
        """Move the cursor to the start of the following segment."""
        files, cursor = self.files, self.cursor
        while True:
            files.refresh()
            following = min(
                (lsn for lsn in files.lsns if cursor.segment < lsn <= extent.segment), default=None
            )
            if following is None:
                return False
            if cursor.segment not in files.lsns and following > cursor.next_lsn:
                # The segment was removed after it was read, perhaps with unread ones after it.
                self._refuse_leap(following)
            files.forget()
            self._scan = None
            try:
                files.descriptor(following)
            except LogError:
                files.refresh()
                if following in files.lsns:
                    raise
                continue  # it was removed just now
            self.time_ns = created_ns(files, following) or self.time_ns
            cursor.segment, cursor.offset = following, codec.SEGMENT_HEADER.size
            cursor.next_lsn = max(cursor.next_lsn, following)
            return True

    def _refuse_leap(self, following: int) -> None:
        files, lsn = self.files, self.cursor.next_lsn
        if not follows(files, following, self.time_ns):
            raise ReaderFellBehind(files.path, self._reader, lsn, following)


class Onlooker:
    """Watches the log grow without opening it for writing; no writer wakes it.

    It sees written records before they are durable.

    Args:
        journal: open for reading; closed together with this object.
    """

    def __init__(self, journal: journal.Journal) -> None:
        self.journal = journal
        self._hint_path = f"{journal.path}/{lock.LOCK_FILE}"
        try:
            self._hint_file = journal.disk.open(self._hint_path, write=False)
            self._home = (journal.boot, *journal.disk.identity(self._hint_file))
        except OSError:  # no process has written since this directory was copied
            self._hint_file = -1

    def look(self) -> Extent:
        journal = self.journal
        if not self._is_in_place():
            raise LogGone(journal.path, "the directory was removed, moved or replaced")
        if not self._believe_hint():
            self._walk()
        return Extent(journal.segment, journal.offset, journal.next_lsn)

    def close(self) -> None:
        self.journal.close()
        if self._hint_file >= 0:
            self.journal.disk.close(self._hint_file)
            self._hint_file = -1

    def _is_in_place(self) -> bool:
        disk = self.journal.disk
        with contextlib.suppress(OSError):  # an unreadable status proves nothing
            if self._hint_file < 0:
                return disk.status(f"{self.journal.path}/log") is not None
            status = disk.status(self._hint_path)
            return status is not None and status[:2] == self._home[1:]
        return True

    def _believe_hint(self) -> bool:
        journal = self.journal
        hint = lock.read_hint(journal.disk, self._hint_file) if self._hint_file >= 0 else None
        if hint is None or hint.failed or hint.home != self._home:
            return False
        if hint.segment not in journal.files:
            journal.files.refresh()
        if hint.segment not in journal.files.lsns:
            return False
        if journal.files.size(hint.segment) < hint.offset:
            return False
        journal.segment, journal.offset = hint.segment, hint.offset
        journal.next_lsn = hint.next_lsn
        return True

    def _walk(self) -> None:
        """Scan the files for whole frames; a frame being written does not count."""
        journal = self.journal
        files = journal.files
        files.refresh()
        newest = files.lsns[-1] if files.lsns else 0
        if newest > journal.segment and files.header(newest) is not None:
            journal.segment, journal.offset = newest, codec.SEGMENT_HEADER.size
            journal.next_lsn = max(journal.next_lsn, newest)
        try:
            size = files.size(journal.segment)
        except LogError:
            return
        if size > journal.offset:
            start = journal.offset, journal.next_lsn
            walk = files.walk(journal.segment, size, *start, in_order=journal.in_order)
            journal.offset, journal.next_lsn = walk.offset, walk.next_lsn
