"""Reading a whole log, every CRC of it. Indexes and snapshots are not believed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from taskq.core.kinds import OF_CLAIMS
from taskq.core.views import Damage, VerifyReport
from taskq.log.format import codec
from taskq.log.format.codec import KIND_AT
from taskq.log.format.frames import Cursor, Frame, Gap, segment_name
from taskq.log.format.record import check_known, places
from taskq.log.format.salvage import salvage
from taskq.log.state.facets import DAMAGE_MAX
from taskq.log.state.story import records

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal


def verify(journal: Journal) -> VerifyReport:
    """Return what a full read of the log finds, up to its known end, and what it lacks there.

    Raises:
        FormatError: a record that a newer taskq wrote.
    """
    frames = count = epoch = next_lsn = 0
    damage: list[Damage] = []
    missing: list[tuple[int, int]] = []
    for base, item in everything(journal):
        if not isinstance(item, Gap):
            frames += 1
            count += item.header.records
            if item.header.epoch == epoch and item.header.first_lsn > next_lsn:
                missing.append((next_lsn, item.header.first_lsn))
            epoch, next_lsn = item.header.epoch, item.header.next_lsn
            for lsn, at, _ in places(item):
                check_known(item.data[at + KIND_AT], lsn)
            continue
        epoch = 0  # the lsns that are missing there are those of the damage
        if len(damage) < DAMAGE_MAX:
            damage.append(describe_damage(journal, base, item))
    known = {loss.first_lsn for loss in journal.lost}
    damage += journal.lost
    return VerifyReport(
        segments=len(journal.files.lsns),
        frames=frames,
        records=count,
        damage=tuple(damage),
        torn_bytes=journal.torn_bytes,
        jobs=tuple(f"{journal.tag}-{job}" for job in concerned_jobs(journal, damage)),
        accepted=tuple(gap for gap in missing if gap[0] not in known),
    )


def everything(journal: Journal) -> Iterator[tuple[int, Frame | Gap]]:
    """Yield what ``Journal.frames`` gives of the log, and last segments that do not open as such.

    Where a segment's beginning is damaged, the log ends before it for whoever only reads.
    """
    yield from journal.frames(journal.start())
    files = journal.files
    for segment in files.lsns:
        strange = segment > journal.segment and files.size(segment) > codec.SEGMENT_HEADER.size
        if strange and files.header(segment) is None:
            start = Cursor(segment, codec.SEGMENT_HEADER.size, segment)
            yield from files.frames(start, Cursor(segment, files.size(segment), segment))


def describe_damage(journal: Journal, base: int, gap: Gap) -> Damage:
    salvaged = 0
    frame = journal.files.damaged_frame(base, gap)
    if frame is not None:
        salvaged = sum(1 for _ in salvage(frame[1], gap.first_lsn))
    return Damage(
        segment=segment_name(journal.files.segment_at(base)),
        offset=gap.offset,
        size=gap.resume - gap.offset,
        first_lsn=gap.first_lsn,
        next_lsn=gap.next_lsn,
        salvaged=salvaged,
    )


def concerned_jobs(journal: Journal, damage: list[Damage]) -> list[int]:
    """Jobs whose enqueue or claim is among what was damaged, as far as later records tell."""
    jobs: set[int] = set()
    if damage:
        spans = [(part.first_lsn, part.next_lsn) for part in damage]
        for record in records(journal, journal.start()):
            token = record.token if record.kind in OF_CLAIMS else 0
            for first, following in spans:
                if first <= record.job < following or first <= token < following:
                    jobs.add(record.job)
    return sorted(jobs)
