"""Snapshots: a facet as it stood at an lsn, so that opening a log need not fold it from its start.

Never needed: one that is damaged, cut short, of another log, of a newer taskq, or that does not fit
the segments as they stand is passed over, and the next older one tried, then the log folded from
its start. ``snapshotfile`` specifies the files, ``snapshots`` says when they are written.

**Why it may be believed.** The position is behind a frame whose header stands in the segment as it
did, so it is this log and not a copy that went another way; and every segment before it is there
with the same size, but for the oldest, which compaction takes. A failed fsync makes the next opener
move frames to another segment: those from the last position on that the failing process knew to be
on disk, which may be older than what the snapshot's writer knew. Whatever segment lost frames by
that is shorter now, or has a new one behind it, so the snapshot is refused if a record that it
points to was moved. It is published only once all before its position is on disk: a power loss
takes nothing of that, and whoever moved frames while it was made is noticed (``Snapshots``).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from taskq.core.agenda import Agenda
from taskq.core.dedup import Dedup
from taskq.core.errors import LogError
from taskq.core.freeze import Frozen, Source, freeze_agenda, freeze_dedup, thaw_agenda, thaw_dedup
from taskq.log import codec
from taskq.log.cursor import Cursor
from taskq.log.snapshotfile import (
    DIRECTORY,
    Contents,
    Header,
    Kind,
    Outdated,
    Unusable,
    contents_size,
    read_header,
    snapshot_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.log.files import SegmentFiles
    from taskq.log.place import Place

F = TypeVar("F", Agenda, Dedup)

_log: Final = logging.getLogger("taskq")


@dataclass(frozen=True, slots=True)
class Form(Generic[F]):
    """One facet's kind of snapshot, and how it is made."""

    kind: Kind
    make: Callable[[], F]
    freeze: Callable[[F], Frozen]
    thaw: Callable[[Source], F]


AGENDA: Final = Form(Kind("agenda", 1, 5), Agenda, freeze_agenda, thaw_agenda)
DEDUP: Final = Form(Kind("dedup", 2, 1), Dedup, freeze_dedup, thaw_dedup)


def check_fit(place: Place, header: Header) -> None:
    """Make sure that the log up to there is what the snapshot was made of.

    Raises:
        Unusable: it is not.
    """
    files, end = place.files, place.end()
    if place.lost:
        raise Unusable("the log lacks segments: what they held is not to be claimed")
    if (header.segment, header.offset) > (end.segment, end.offset):
        raise Outdated("it is ahead of the log")
    files.refresh()
    there = [lsn for lsn in files.lsns if lsn <= header.segment]
    if not there or there[-1] != header.segment:
        raise Outdated("its segment is gone")
    sizes = {lsn: size for lsn, size in header.segments if size and lsn >= there[0]}
    if sorted(sizes) != there:
        raise Unusable("the segments before it are not those that it was made of")
    try:
        changed = [lsn for lsn in there[:-1] if files.sealed_size(lsn) != sizes[lsn]]
        is_short = files.size(header.segment) < header.offset
        frame = read_frame_header(place, header.segment, header.frame_offset)
    except LogError as error:
        raise Outdated(str(error)) from error
    if changed or is_short or frame != header.frame_header:
        raise Unusable("the log before it is not what it was made of")


def read_frame_header(place: Place, segment: int, offset: int) -> bytes:
    """The bytes of a frame's header, checked by no CRC."""
    return place.disk.read(place.files.descriptor(segment), codec.FRAME_HEADER_SIZE, offset)


class Captured(NamedTuple):
    """A facet at a position, copied, with all that its file will hold."""

    header: Header
    frozen: Frozen


def capture(place: Place, form: Form[F], facet: F, cursor: Cursor, now_ns: int) -> Captured | None:
    """Copy a facet that was folded up to the cursor; None if it stands behind no whole frame.

    Raises:
        OverflowError: a number is too large.
    """
    if cursor.frame < 0:
        return None
    files = place.files
    files.refresh()
    segments = tuple((lsn, _size_before(files, lsn, cursor)) for lsn in files.numbered())
    frame = read_frame_header(place, cursor.segment, cursor.frame)
    decoded = codec.decode_frame_header(frame, 0, files.seed(cursor.segment), cursor.frame)
    if decoded is None or (cursor.frame + decoded.size, decoded.next_lsn) != (
        cursor.offset,
        cursor.next_lsn,
    ):
        return None
    frozen = form.freeze(facet)
    header = Header(
        form.kind.code, form.kind.version, files.log_id.bytes, cursor.segment, cursor.offset,
        cursor.next_lsn, cursor.frame, frame, now_ns, contents_size(frozen), segments,
    )  # fmt: skip
    return Captured(header, frozen)


def _size_before(files: SegmentFiles, lsn: int, cursor: Cursor) -> int:
    if lsn > cursor.segment or lsn not in files.lsns:
        return 0
    if lsn == cursor.segment:
        return cursor.offset
    try:
        return files.sealed_size(lsn)
    except LogError:
        return 0  # compaction took it just now


def load_newest(place: Place, form: Form[F]) -> tuple[F, Cursor] | None:
    """A facet and how far it was folded, from the newest snapshot that fits; None without one."""
    names: list[str] = []
    try:
        names = snapshot_names(place.disk, place.path, form.kind.name)
    except OSError as error:
        _log.warning("%s: %s/ is passed over: %s", place.path, DIRECTORY, error)
    for name in names:
        try:
            return _load(place, form, f"{place.path}/{DIRECTORY}/{name}")
        except FileNotFoundError:
            continue  # a newer one took its place
        except Outdated as error:
            _log.info("%s: %s/%s is passed over: %s", place.path, DIRECTORY, name, error)
        except (Unusable, OSError) as error:
            _log.warning("%s: %s/%s is passed over: %s", place.path, DIRECTORY, name, error)
        except Exception:  # noqa: BLE001 - whatever it is, the log itself can be folded
            _log.exception("%s: %s/%s is passed over", place.path, DIRECTORY, name)
    return None


def newest_stand(place: Place, form: Form[F]) -> Cursor | None:
    """How far the newest snapshot of a facet has come, by its header alone; None without one."""
    for name in snapshot_names(place.disk, place.path, form.kind.name):
        with contextlib.suppress(OSError, Unusable):
            descriptor = place.disk.open(f"{place.path}/{DIRECTORY}/{name}", write=False)
            try:
                header = read_header(place.disk, descriptor, form.kind, place.files.log_id.bytes)
            finally:
                place.disk.close(descriptor)
            return Cursor(header.segment, header.offset, header.next_lsn)
    return None


def _load(place: Place, form: Form[F], path: str) -> tuple[F, Cursor]:
    disk, files = place.disk, place.files
    descriptor = disk.open(path, write=False)
    try:
        header = read_header(disk, descriptor, form.kind, files.log_id.bytes)
        check_fit(place, header)
        numbers = files.number([lsn for lsn, _ in header.segments])
        contents = Contents(disk, descriptor, header, numbers)
        try:
            facet = form.thaw(contents)
            contents.end()
        except ValueError as error:
            raise Unusable(f"its contents make no sense ({error})") from error
    finally:
        disk.close(descriptor)
    cursor = Cursor(header.segment, header.offset, header.next_lsn)
    cursor.frame = header.frame_offset
    return facet, cursor
