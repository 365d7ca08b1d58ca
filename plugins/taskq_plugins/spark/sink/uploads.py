"""Entries into the files of an inbox, and the one step that makes jobs of them; no Spark."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq import TaskLog
from taskq.engine import PartWriter, read_file
from taskq.errors import LogError, TaskqError
from taskq.log.inbox.manifest import DONE, MANIFEST_BYTES_MAX, REFUSED, Part, decode_ended
from taskq.log.inbox.writer import discard, publish
from taskq.log.state.uploads import INBOX, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from taskq.log.inbox.manifest import Ended
    from taskq_plugins.spark.sink.encoding import Entries

#: A part is closed when it has so many jobs, and the next begun.
PART_JOBS_MAX: Final = 4_000_000
_ID_BYTES: Final = 8


class Published(NamedTuple):
    """What became of an upload.

    Attributes:
        jobs: in its parts.
        is_new: False if one of that name was published before; then nothing was done.
        duplicates: jobs that were left out, since their keys are held.
        problem: why the jobs could not be adopted right away; "" if they were, or were not to be.
    """

    jobs: int
    is_new: bool
    duplicates: int = 0
    problem: str = ""


def new_upload(prefix: str) -> str:
    """Return a name that nobody has used."""
    return f"{prefix}-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(_ID_BYTES)}"


def write_parts(
    data_dir: Path,
    upload: str,
    found: Iterable[Entries],
    on_rows: Callable[[int], None] | None = None,
) -> list[Part]:
    """Write entries into parts, all on disk when this returns.

    Args:
        data_dir: of the task log.
        upload: what the parts belong to.
        found: the entries, some at a time.
        on_rows: told how many were written since it was last told.

    Raises:
        BadRow: a row cannot become a job; what was written of its part is removed.
        AppendFailed: the disk refuses; likewise.
    """
    parts: list[Part] = []
    writer: PartWriter | None = None
    count = 0
    try:
        for entries in found:
            if writer is None:
                writer, count = PartWriter(data_dir, upload, trusted=True), 0
            entries.write_to(writer)
            count += len(entries.payloads)
            if on_rows is not None:
                on_rows(len(entries.payloads))
            if count >= PART_JOBS_MAX:
                parts.append(writer.close())
                writer = None
        if writer is not None:
            parts.append(writer.close())
            writer = None
    finally:
        if writer is not None:
            writer.abort()
    return parts


def upload(
    data_dir: Path,
    name: str,
    found: Iterable[Entries],
    *,
    adopt: bool,
    on_rows: Callable[[int], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Published:
    """Write entries into parts and publish them as ``finish`` does, from one process.

    Args:
        data_dir: of the task log.
        name: by which a second one of the same is known.
        found: the entries, some at a time.
        adopt: whether they are adopted.
        on_rows: told how many were written since it was last told.
        check: called before they are published; if it raises, nothing is left of them.

    Raises:
        TaskqError: nothing was published.
    """
    own = new_upload("own")
    try:
        parts = write_parts(data_dir, own, found, on_rows)
        check()
    except BaseException:
        discard(data_dir, own)
        raise
    return finish(data_dir, name, own, parts, adopt=adopt)


def finish(
    data_dir: Path, name: str, upload: str, parts: Sequence[Part], *, adopt: bool
) -> Published:
    """Publish the parts under a name, which is when their jobs exist, and adopt them.

    Calling it again with the same name does nothing, but adopts what still waits. What fails after
    the publication is no failure of the write: whoever works on the log next adopts the jobs.

    Raises:
        LogError: nothing was published, or the parts no longer read back.
    """
    jobs = sum(part.jobs for part in parts)
    try:
        is_new = bool(parts) and publish(data_dir, name, parts)
    finally:
        # What is not published: the parts of second attempts, or all of them if the name was used
        # or refused.
        discard(data_dir, upload)
    if not (adopt and parts):
        return Published(jobs, is_new)
    problem = ""
    try:
        adopt_all(data_dir)
    except TaskqError as error:
        if (data_dir / INBOX / REFUSED / f"{name}{MANIFEST}").exists():
            raise
        problem = str(error)
    ended = _ended(data_dir, name)
    return Published(jobs, is_new, ended.duplicates if ended else 0, problem)


def adopt_all(data_dir: Path) -> int:
    """Enqueue the jobs of all uploads that were published; returns how many they were.

    Raises:
        LogError: an upload does not read back, or the log could not be written.
    """
    # In a notebook an event loop runs in this thread, where what blocks refuses to; a data frame's
    # writer blocks there anyway.
    log = TaskLog.open(data_dir, upkeep=False)
    try:
        jobs: int = log._connection.store().thread_port.adopt().result()
        return jobs
    finally:
        log._connection.close()


def _ended(data_dir: Path, name: str) -> Ended | None:
    path = data_dir / INBOX / DONE / f"{name}{MANIFEST}"
    try:
        return decode_ended(read_file(path, MANIFEST_BYTES_MAX), str(path))
    except (OSError, LogError):  # it waits still, or somebody forgot it already
        return None
