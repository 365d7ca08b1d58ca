"""Copies what reads of a damaged log into a new directory; the damaged one is left as it is.

A repair is a restore that leaves out what does not read: of each segment its whole frames at their
new places, and the records that are whole by their own CRC in frames of their own numbers, in the
place of the frame that lost its check. What a fold made of the damaged log it makes of the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskq.core.errors import LogError
from taskq.core.values import dataclass
from taskq.core.views import Damage
from taskq.log.format import codec
from taskq.log.format.codec import NO_LINK, Link
from taskq.log.format.frames import Cursor, Frame, Gap, segment_name
from taskq.log.format.salvage import salvage
from taskq.log.journal.journal import Journal
from taskq.log.machine.owners import owner_view
from taskq.log.machine.peers import known_owners
from taskq.log.machine.ports import Disk, write_all
from taskq.log.read.reader import LogReader, concerned_jobs, describe_damage, everything
from taskq.log.upkeep.backup import NEW, Copier, End, restore

#: Processes that have the log open and are named.
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Damage of a log, and what a repair leaves out.

    Attributes:
        damage: as ``verify`` finds it; parts of size 0 are gaps between segments.
        lost_jobs: ids of jobs that are gone, as far as other records name them.
        lost_records: records that cannot be saved, whatever they said.
    """

    damage: tuple[Damage, ...]
    lost_jobs: tuple[str, ...] = ()
    lost_records: int = 0


def survey_damage(journal: Journal) -> RepairReport:
    damage: list[Damage] = []
    saved: set[int] = set()
    for base, item in everything(journal):
        if isinstance(item, Gap):
            damage.append(describe_damage(journal, base, item))
            saved.update(lsn for _, lsn, _ in _salvaged(journal, base, item))
    damage += journal.lost
    lost = sum(part.lost for part in damage)
    jobs = [
        job
        for job in concerned_jobs(journal, damage)
        if job not in saved and any(part.first_lsn <= job < part.next_lsn for part in damage)
    ]
    return RepairReport(
        damage=tuple(damage),
        lost_jobs=tuple(f"{journal.tag}-{job}" for job in jobs),
        lost_records=lost,
    )


def repair_directory(path: str, target: str | None = None) -> RepairReport:
    """Copy what reads of a damaged log into a new directory; without one only look at the damage.

    Nothing is written if there is no damage. The new log goes on in an epoch of its own, so that
    its job ids are never those of jobs that are lost.

    Raises:
        LogError: a process has the log open, or something is in the target.
    """
    directory = os.path.realpath(path)
    if target is not None:
        _refuse_if_open(directory)
    with LogReader.open(directory) as reader:
        report = survey_damage(reader.journal)
    if target is not None and report.damage:
        above = max(part.next_lsn for part in report.damage) - 1
        restore(directory, target, above, copier=_Mender)
    return report


def _refuse_if_open(path: str) -> None:
    owners = Path(path) / "owners"
    alive = [owner_view(owners, owner) for owner in known_owners(owners)]
    names = [f"{view.pid} ({view.name} on {view.host})" for view in alive if view.alive]
    if names:
        raise LogError(
            f"{path} is open in process {', '.join(names[:_NAMED_MAX])}: stop "
            f"{'it' if len(names) == 1 else f'all {len(names)}'}, then repair"
        )


class _Mender(Copier):
    """A copy of what reads of a log."""

    def _once(self) -> End:
        for folder in ("readers", "inbox", "inbox/done"):
            self._folder(folder, self._names(folder))
        with LogReader.open(self._source) as reader:
            journal = reader.journal
            segments = write_repaired(journal, self._disk, f"{self._target}/log", NEW)
            for segment in segments:
                self._note(f"log/{segment_name(segment)}")
            return End(tuple(segments), 0, journal.next_lsn)


def write_repaired(journal: Journal, disk: Disk, directory: str, ending: str = "") -> list[int]:
    """Write what reads of each segment to a file of its name in a directory; returns which.

    Each names the end of the one before it as that stands there.
    """
    written: list[int] = []
    link = NO_LINK
    for segment in list(journal.files.lsns):
        path = f"{directory}/{segment_name(segment)}{ending}"
        end = _write_segment(journal, disk, segment, link, path)
        if end == NO_LINK:  # nothing of it reads
            disk.remove(path)
        else:
            written.append(segment)
            link = end
    disk.sync_directory(directory)
    return written


def _write_segment(journal: Journal, disk: Disk, segment: int, link: Link, path: str) -> Link:
    header = _segment_header(journal, segment)._replace(link=link)
    seed = journal.files.seed(segment)
    end = NO_LINK
    descriptor = disk.open(path, create=True)
    try:
        disk.truncate(descriptor, 0)
        write_all(disk, descriptor, codec.encode_segment_header(header), 0)
        offset = codec.SEGMENT_HEADER.size
        for frame, body in _readable(journal, segment, header):
            data = codec.encode_frame(
                body, frame.records, frame.first_lsn, frame.epoch, frame.time_ns,
                frame.synced_through, seed, offset,
            )  # fmt: skip
            write_all(disk, descriptor, data, offset)
            head = codec.decode_frame_header(data, 0, seed, offset)
            assert head is not None
            end = Link(offset, head.crc)
            offset += len(data)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return end


def _readable(
    journal: Journal, segment: int, header: codec.SegmentHeader
) -> Iterator[tuple[codec.FrameHeader, bytes]]:
    """Yield headers and bodies of the frames to write, none of which fills a gap of numbers."""
    time_ns = header.created_ns
    for base, item in _items(journal, segment):
        if isinstance(item, Frame):
            head = item.header
            time_ns = head.time_ns
            yield head, bytes(item.data[item.at : item.at + head.body_size])
            continue
        for frame, first_lsn, records in _runs(journal, base, item):
            # Where the frame's header is lost, its time lies between those around it.
            is_known = frame.body_crc != 0
            yield (
                frame._replace(
                    records=len(records),
                    first_lsn=first_lsn,
                    epoch=header.epoch,
                    time_ns=frame.time_ns if is_known else time_ns,
                ),
                b"".join(records),
            )


def _segment_header(journal: Journal, segment: int) -> codec.SegmentHeader:
    header = journal.files.header(segment)
    if header is not None:
        return header
    for _, item in _items(journal, segment):
        if isinstance(item, Frame):
            return codec.SegmentHeader(
                segment, item.header.epoch, journal.identity.log_id.bytes, item.header.time_ns
            )
    return codec.SegmentHeader(
        segment, journal.epoch, journal.identity.log_id.bytes, journal.time_ns
    )


def _items(journal: Journal, segment: int) -> Iterator[tuple[int, Frame | Gap]]:
    files, end = journal.files, journal.end()
    # What stands after the log's end was never answered for.
    size = end.offset if segment == end.segment else files.size(segment)
    start = Cursor(segment, codec.SEGMENT_HEADER.size, segment)
    return files.frames(start, Cursor(segment, size, segment))


def _salvaged(
    journal: Journal, base: int, gap: Gap
) -> Iterator[tuple[codec.FrameHeader, int, bytes]]:
    """Yield (damaged frame's header, lsn, record) of each record that is whole by its own CRC."""
    readable = journal.files.damaged_frame(base, gap)
    if readable is None:
        return
    header, body, _ = readable
    end = gap.next_lsn
    if end == gap.first_lsn:
        # Nothing behind it in its segment tells where it ended.
        segment = journal.files.segment_at(base)
        end = next((lsn for lsn in journal.files.lsns if lsn > segment), codec.LSN_MAX)
    for lsn, _, record in salvage(body, gap.first_lsn):
        if lsn < end:
            yield header, lsn, record


def _runs(
    journal: Journal, base: int, gap: Gap
) -> Iterator[tuple[codec.FrameHeader, int, list[bytes]]]:
    """Yield the same, those together whose numbers follow one another: a frame can hold them."""
    records: list[bytes] = []
    first = 0
    last: codec.FrameHeader | None = None
    for header, lsn, record in _salvaged(journal, base, gap):
        if last is not None and lsn != first + len(records):
            yield last, first, records
            last = None
        if last is None:
            last, first, records = header, lsn, []
        records.append(record)
    if last is not None:
        yield last, first, records
