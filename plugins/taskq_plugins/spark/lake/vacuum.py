"""Removing what no reader can want: files of killed runs, and those that were replaced long ago."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq_plugins.spark.lake import identity
from taskq_plugins.spark.lake.history import full_before, manifest_path, versions
from taskq_plugins.spark.lake.store import CHECKPOINT

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.lake.store import LakeWriter

#: Readers that opened a version may go on reading it for so long after the next one has come.
KEEP_SECONDS: Final = 3_600.0
_NANOSECONDS: Final = 1_000_000_000


class Vacuumed(NamedTuple):
    """What was removed."""

    files: int
    size_bytes: int
    manifests: int


def vacuum(writer: LakeWriter, *, keep_seconds: float = KEEP_SECONDS) -> Vacuumed:
    """Remove files that no version of the last ``keep_seconds`` names.

    A version counts from when the next one took its place, and a file that none names from when it
    was last written.

    Raises:
        LakeDamaged: a manifest does not read.
    """
    lake = writer.lake
    limit_ns = time.time_ns() - int(keep_seconds * _NANOSECONDS)
    directory = lake.path / identity.MANIFESTS
    named: set[str] = set()
    oldest = 0
    for manifest in lake.versions_since(limit_ns):
        oldest = oldest or manifest.version
        named.update(file.path for table in manifest.tables.values() for file in table.files)
    if not oldest:
        return Vacuumed(0, 0, 0)
    count, size_bytes = _remove_files(lake.path, named, limit_ns)
    gone = [version for version in versions(directory) if version < full_before(oldest)]
    for left in directory.glob(".*.tmp"):  # of a process that was killed while it published
        if left.stat().st_mtime_ns < limit_ns:
            left.unlink(missing_ok=True)
    for version in gone:
        manifest_path(directory, version).unlink(missing_ok=True)
    return Vacuumed(count, size_bytes, len(gone))


def _remove_files(lake: Path, named: set[str], limit_ns: int) -> tuple[int, int]:
    count = size_bytes = 0
    for table in lake.iterdir():
        if (
            table.is_symlink()
            or not table.is_dir()
            or table.name in {identity.MANIFESTS, CHECKPOINT}
        ):
            continue
        for path in sorted(table.rglob("*"), reverse=True):  # what is within before what holds it
            if path.is_dir():
                _remove_empty(path, limit_ns)
                continue
            status = path.stat()
            if path.relative_to(lake).as_posix() in named or status.st_mtime_ns >= limit_ns:
                continue
            path.unlink()
            count += 1
            size_bytes += status.st_size
    return count, size_bytes


def _remove_empty(path: Path, limit_ns: int) -> None:
    # One that was just made is about to be written to; its files keep it from going.
    if path.stat().st_mtime_ns < limit_ns:
        with suppress(OSError):
            path.rmdir()
