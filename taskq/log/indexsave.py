"""Writing the index of a sealed segment beside it, in steps of a millisecond or two."""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from taskq.log import bloom, codec
from taskq.log.bloom import BloomBuilder
from taskq.log.columns import packed
from taskq.log.indexformat import (
    ENTRIES_A_PAGE,
    HEADER_SIZE,
    PLACES_A_PAGE,
    STEP,
    Counts,
    IndexHeader,
    encode_header,
)
from taskq.log.ports import write_all
from taskq.log.segment import segment_lsn, segment_name

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from taskq.log.indexbuild import IndexBuilder
    from taskq.log.ports import Disk

_SUFFIX: Final = ".idx"
_TEMPORARY: Final = ".tmp"
#: Bytes that are handed to the disk at a time.
_WRITE: Final = 64 * 1024
_PAGES_A_STEP: Final = 8
#: Bytes that are synced at a time: no step waits long for the disk.
_SYNC: Final = 1024 * 1024


def index_name(first_lsn: int) -> str:
    """File name of the index of a segment."""
    return segment_name(first_lsn).removesuffix(".log") + _SUFFIX


def remove_index(disk: Disk, directory: str, first_lsn: int) -> None:
    """Remove the index of a segment, and what was left of writing it."""
    name = index_name(first_lsn)
    for other in disk.names(directory):
        if other == name or (other.startswith(f"{name}.") and other.endswith(_TEMPORARY)):
            disk.remove(f"{directory}/{other}")


def remove_strays(disk: Disk, directory: str) -> None:
    """Remove the indexes of segments that are gone, and what was left of writing them."""
    names = disk.names(directory)
    segments = {segment_lsn(name) for name in names}
    for name in names:
        stem, dot, _ = name.partition(_SUFFIX)
        if dot and segment_lsn(f"{stem}.log") not in segments:
            disk.remove(f"{directory}/{name}")


def save_steps(
    disk: Disk, directory: str, builder: IndexBuilder, log_id: bytes, segment_size: int
) -> Generator[None, None, int]:
    """Write the index of a segment that was fed to its end, in steps; returns the file's size.

    It takes its name when it is whole on disk. Several processes may do this at a time: each writes
    a file of its own, of the same bytes.

    Raises:
        OSError: the disk refused; nothing is left of the file.
    """
    name = index_name(builder.first_lsn)
    temporary = f"{directory}/{name}.{os.urandom(4).hex()}{_TEMPORARY}"
    try:
        descriptor = disk.open(temporary, create=True)
        try:
            yield from _Writer(disk, descriptor).write(builder, log_id, segment_size)
            disk.sync(descriptor)
            size = disk.size(descriptor)
        finally:
            disk.close(descriptor)
        yield
        disk.rename(temporary, f"{directory}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    # What a crash left of another try. A living process that loses its file here finds the name
    # taken by one of the same bytes.
    for other in disk.names(directory):
        if other.startswith(f"{name}.") and other.endswith(_TEMPORARY):
            disk.remove(f"{directory}/{other}")
    disk.sync_directory(directory)
    return size


class _Writer:
    """One file being written."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._at = HEADER_SIZE
        self._parts: list[bytes] = []
        self._waiting = self._unsynced = 0
        #: of the pages written so far
        self._crcs = array("I")

    def write(self, builder: IndexBuilder, log_id: bytes, segment_size: int) -> Iterator[None]:
        strangers, first_jobs = array("Q"), array("Q")
        yield from self._write_places(builder, strangers, first_jobs)
        yield from self._write_entries(builder)
        keys = strangers + builder.keys
        yield from self._write_filter(keys)
        hashes = b"".join(sorted(builder.spilled()))
        self._add(hashes)
        tail = b"".join(STEP.pack(*step) for step in builder.clocks)
        tail += self._directory(builder, first_jobs)
        self._add(tail)
        self._flush()
        counts = Counts(
            len(builder.entries), builder.places.size, bloom.pages_for(len(keys)),
            len(hashes) // 32, len(builder.clocks), len(keys),
        )  # fmt: skip
        header = IndexHeader(
            log_id, builder.first_lsn, builder.next_lsn, segment_size, builder.first_time_ns,
            builder.last_time_ns, builder.top_time_ns, builder.first_epoch, builder.last_epoch,
            *builder.job_range, builder.last_frame, counts, codec.crc32(hashes), codec.crc32(tail),
        )  # fmt: skip
        write_all(self._disk, self._descriptor, encode_header(header), 0)

    def _write_places(
        self, builder: IndexBuilder, strangers: array[int], first_jobs: array[int]
    ) -> Iterator[None]:
        jobs, offsets = array("Q"), array("I")
        for more_jobs, more_offsets in builder.places.parts():
            start = bisect_left(more_jobs, builder.first_lsn)
            end = bisect_left(more_jobs, builder.next_lsn)
            strangers.extend(dict.fromkeys(more_jobs[:start] + more_jobs[end:]))
            jobs += more_jobs
            offsets += more_offsets
            whole = len(jobs) // PLACES_A_PAGE * PLACES_A_PAGE
            for start in range(0, whole, PLACES_A_PAGE):
                self._add_places(jobs, offsets, start, first_jobs)
            del jobs[:whole], offsets[:whole]
            yield
        if jobs:
            self._add_places(jobs, offsets, 0, first_jobs)

    def _add_places(
        self, jobs: array[int], offsets: array[int], start: int, first_jobs: array[int]
    ) -> None:
        end = start + PLACES_A_PAGE
        first_jobs.append(jobs[start])
        self._add_page(packed(jobs[start:end]) + packed(offsets[start:end]))

    def _write_entries(self, builder: IndexBuilder) -> Iterator[None]:
        entries = builder.entries
        for number, start in enumerate(range(0, len(entries), ENTRIES_A_PAGE)):
            self._add_page(entries.page(start, start + ENTRIES_A_PAGE))
            if not number % _PAGES_A_STEP:
                yield

    def _write_filter(self, keys: array[int]) -> Iterator[None]:
        bits = BloomBuilder(len(keys))
        for start in range(0, len(keys), bloom.STEP_KEYS):
            bits.add(keys[start : start + bloom.STEP_KEYS])
            yield
        for number in range(bits.pages):
            self._add_page(bits.page(number))
            if not number % _PAGES_A_STEP:
                yield

    def _directory(self, builder: IndexBuilder, first_jobs: array[int]) -> bytes:
        entries = builder.entries
        firsts = [entries[number] for number in range(0, len(entries), ENTRIES_A_PAGE)]
        columns = (
            first_jobs,
            array("Q", [entry.lsn for entry in firsts]),
            array("q", [entry.time_ns for entry in firsts]),
            array("I", [entry.offset for entry in firsts]),
            self._crcs,
        )
        return b"".join(map(packed, columns))

    def _add_page(self, page: bytes) -> None:
        self._crcs.append(codec.crc32(page))
        self._add(page)

    def _add(self, data: bytes) -> None:
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= _WRITE:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        write_all(self._disk, self._descriptor, data, self._at)
        self._at += len(data)
        self._parts.clear()
        self._waiting = 0
        self._unsynced += len(data)
        if self._unsynced >= _SYNC:
            self._disk.sync(self._descriptor)
            self._unsynced = 0
