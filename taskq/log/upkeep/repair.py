"""Writing damaged segments anew, from all that still reads: a person's decision, never automatic.

A damaged segment gets a successor of the same name: its whole frames at their new places, and the
records that are whole by their own CRC in frames of their own numbers, in the place of the frame
that lost its check. What a fold made of the damaged segment it makes of the new one. The original
is kept under ``torn/``.

Every step can be cut short: the new file is whole and synced, the original copied and synced, and
indexes and snapshots that know the old places are gone, before one rename replaces the segment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError
from taskq.core.values import dataclass
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.format.codec import NO_LINK
from taskq.log.format.frames import Cursor, Frame, Gap, segment_name
from taskq.log.format.salvage import salvage
from taskq.log.journal.chain import is_broken, link_to_end, seams
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.journal.recovery import DAMAGED_SUFFIX, moved
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.owners import owner_view
from taskq.log.machine.peers import known_owners
from taskq.log.machine.ports import write_all
from taskq.log.read.reader import LogReader
from taskq.log.read.verify import concerned_jobs, describe_damage, everything

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.views import Damage

_COPY_BYTES: Final = 1024 * 1024
_INDEX_SUFFIX: Final = ".idx"
_SNAPSHOT_SUFFIX: Final = ".snap"
#: So many of the processes that have the log open are named.
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Damage, and what became of it.

    Attributes:
        damage: as ``verify`` told before.
        kept: the original segments, as paths below the log's directory.
        lost_jobs: ids of jobs that are gone, as far as other records name them.
        lost_records: records that were not to be saved, whatever they said.
        accepted: gaps between segments that count for nothing any more.
    """

    damage: tuple[Damage, ...]
    kept: tuple[str, ...] = ()
    lost_jobs: tuple[str, ...] = ()
    lost_records: int = 0
    accepted: tuple[Damage, ...] = ()


def survey_damage(journal: Journal) -> RepairReport:
    """Return what a repair would do; reads only."""
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


def repair_directory(path: str, *, dry_run: bool = False) -> tuple[RepairReport, list[str]]:
    """Repair the log of a directory; returns what opening it had to put right, too, in words.

    A dry run reads only, and tells what would be done.

    Raises:
        LogError: a process has it open; its message names it.
    """
    directory = os.path.realpath(path)
    if dry_run:
        with LogReader.open(directory) as reader:
            return survey_damage(reader.journal), []
    _refuse_if_open(directory)
    disk = LocalDisk()
    config = LogConfig()
    writer = WriterLock(disk, directory, os.getpid())
    journal = Journal(disk, SystemClock(), directory, config, writer)
    try:
        journal.open()
        # Whoever opens a log tells its owners' file while it holds the lock: now nobody can come.
        _refuse_if_open(directory)
        return repair(journal), journal.recovered
    finally:
        journal.close()


def _refuse_if_open(path: str) -> None:
    owners = Path(path) / "owners"
    alive = [owner_view(owners, owner) for owner in known_owners(owners)]
    names = [f"{view.pid} ({view.name} on {view.host})" for view in alive if view.alive]
    if names:
        raise LogError(
            f"{path} is open in process {', '.join(names[:_NAMED_MAX])}: stop "
            f"{'it' if len(names) == 1 else f'all {len(names)}'}, then repair"
        )


def repair(journal: Journal) -> RepairReport:
    """Write every damaged segment anew, and accept that segments are lost.

    The writer lock is held, and nobody else has the log open.

    Raises:
        LogError: the disk refused; the damaged segments are still what they were.
    """
    report = survey_damage(journal)
    if not report.damage:
        return report
    damaged = sorted({int(part.segment.partition(".")[0]) for part in report.damage if part.size})
    if journal.segment in damaged:
        # What is written to is never replaced: the end of the log moves to a file of its own.
        journal._begin_segment(max(journal.next_lsn, journal.segment + 1), new_epoch=False)
    # Whoever folded the old places must fold anew, should one have opened the log in spite of all.
    journal.generation = int.from_bytes(os.urandom(4), "little")
    journal._write_hint()
    try:
        kept = _rewrite_all(journal, damaged)
    except OSError as error:
        raise LogError(
            f"{journal.path}: the repair was cut short ({error.strerror or error}): what it did "
            f"not come to is as it was. Free some space or check the disk, then repair again"
        ) from error
    finally:
        journal._forget_files()
    accepted, journal.lost = journal.lost, ()
    return RepairReport(
        damage=report.damage,
        kept=kept,
        lost_jobs=report.lost_jobs,
        lost_records=report.lost_records,
        accepted=accepted,
    )


def _rewrite_all(journal: Journal, damaged: list[int]) -> tuple[str, ...]:
    """Replace segments, and let each that follows a gap name what is there; returns originals.

    Whoever is to name another end names none meanwhile: a repair that is cut short accuses nobody.
    """
    files = journal.files
    with files.looked_at() as looked:
        changed = [
            (before, lsn)
            for before, lsn in seams(looked)
            if before in damaged or (lsn > files.floor and is_broken(looked, before, lsn))
        ]
    for _, lsn in changed:
        files.relink(lsn, NO_LINK)
    kept = tuple(_rewrite(journal, segment) for segment in damaged)
    journal._forget_files()
    for before, lsn in changed:
        files.relink(lsn, link_to_end(files, before))
    files.remove_empty(journal.segment)  # their links have been handed on
    _remove_snapshots(journal)
    return kept


def _rewrite(journal: Journal, segment: int) -> str:
    """Replace one segment; returns where its original is kept."""
    disk, path = journal.disk, journal.path
    target = journal.files.file_path(segment)
    temporary = f"{target}.tmp"
    _write_anew(journal, segment, temporary)
    kept = _keep_original(journal, segment)
    # Their places are those of the old file; without them the log is read as it is.
    disk.remove(f"{target.removesuffix('.log')}{_INDEX_SUFFIX}")
    disk.sync_directory(f"{path}/log")
    _remove_snapshots(journal)
    disk.rename(temporary, target)
    disk.sync_directory(f"{path}/log")
    return kept


def _remove_snapshots(journal: Journal) -> None:
    """Remove the snapshots, which know the places in what was there before."""
    disk, snapshots = journal.disk, f"{journal.path}/snapshot"
    names = [name for name in disk.names(snapshots) if name.endswith(_SNAPSHOT_SUFFIX)]
    for name in names:
        disk.remove(f"{snapshots}/{name}")
    if names:
        disk.sync_directory(snapshots)


def _write_anew(journal: Journal, segment: int, path: str) -> None:
    """Write the segment's successor, and sync it."""
    disk, files = journal.disk, journal.files
    header = _segment_header(journal, segment)
    seed = files.seed(segment)
    descriptor = disk.open(path, create=True)
    try:
        disk.truncate(descriptor, 0)
        write_all(disk, descriptor, codec.encode_segment_header(header), 0)
        offset = codec.SEGMENT_HEADER.size
        time_ns = header.created_ns
        for base, item in _items(journal, segment):
            if isinstance(item, Frame):
                data = moved(item, seed, offset)
                time_ns = item.header.time_ns
                write_all(disk, descriptor, data, offset)
                offset += len(data)
                continue
            for frame, first_lsn, records in _runs(journal, base, item):
                # Where the frame's header is lost, its time lies between those around it.
                is_known = frame.body_crc != 0
                data = codec.encode_frame(
                    b"".join(records), len(records), first_lsn, header.epoch,
                    frame.time_ns if is_known else time_ns, frame.synced_through, seed, offset,
                )  # fmt: skip
                write_all(disk, descriptor, data, offset)
                offset += len(data)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


def _segment_header(journal: Journal, segment: int) -> codec.SegmentHeader:
    """Return the segment's own header, or what it must have been."""
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
    end = Cursor(segment, journal.files.size(segment), segment)
    return journal.files.frames(Cursor(segment, codec.SEGMENT_HEADER.size, segment), end)


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


def _keep_original(journal: Journal, segment: int) -> str:
    """Copy a damaged segment to ``torn/``, where it stays; returns its place.

    Its name tells its content, so that a repair that is repeated keeps one copy, and a segment that
    is damaged once more another one.
    """
    disk = journal.disk
    directory = f"{journal.path}/torn"
    disk.make_directory(directory)
    crc = 0
    for _, piece in _pieces(journal, segment):
        crc = codec.crc32(piece, crc)
    name = f"{segment_name(segment)}.{crc:08x}{DAMAGED_SUFFIX}"
    copy = disk.open(f"{directory}/{name}", create=True)
    try:
        disk.truncate(copy, 0)
        for at, piece in _pieces(journal, segment):
            write_all(disk, copy, piece, at)
        disk.sync(copy)
    finally:
        disk.close(copy)
    disk.sync_directory(directory)
    disk.sync_directory(journal.path)
    return f"torn/{name}"


def _pieces(journal: Journal, segment: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of all of a segment; zeros where the disk gives nothing back."""
    files = journal.files
    descriptor, size = files.descriptor(segment), files.size(segment)
    for at in range(0, size, _COPY_BYTES):
        yield at, files._read(descriptor, min(_COPY_BYTES, size - at), at)
