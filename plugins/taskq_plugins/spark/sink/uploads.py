"""Entries into the files of an inbox, and the one step that makes jobs of them; no Spark."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.connection.uploads import Part, PartWriter, adopt, discard, outcome, publish
from taskq.errors import LogError, TaskqError

if TYPE_CHECKING:
    from taskq_plugins.spark.sink.encoding import Entries

#: Jobs of a part; then the next part begins.
PART_JOBS_MAX: Final = 4_000_000
_ID_BYTES: Final = 8


class Published(NamedTuple):
    """Result of an upload.

    Attributes:
        jobs: in its parts.
        is_new: False if the name was used before; then nothing was done.
        duplicates: jobs left out because of a held key.
        problem: why the jobs could not be adopted right away; "" if they were, or were not to be.
    """

    jobs: int
    is_new: bool
    duplicates: int = 0
    problem: str = ""


def new_upload(prefix: str) -> str:
    return f"{prefix}-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(_ID_BYTES)}"


def write_parts(
    data_dir: Path,
    upload: str,
    entries: Iterable[Entries],
    on_rows: Callable[[int], None] | None = None,
) -> list[Part]:
    """Write entries into parts, all on disk when this returns.

    Args:
        data_dir: of the task log.
        upload: what the parts belong to.
        entries: of the jobs, some at a time.
        on_rows: told how many were written since it was last told.
    """
    parts: list[Part] = []
    writer: PartWriter | None = None
    count = 0
    try:
        for some in entries:
            if writer is None:
                writer, count = PartWriter(data_dir, upload, trusted=True), 0
            some.write_to(writer)
            count += len(some.payloads)
            if on_rows is not None:
                on_rows(len(some.payloads))
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
    entries: Iterable[Entries],
    *,
    adopts: bool,
    on_rows: Callable[[int], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Published:
    """Write entries into parts and publish them as ``finish`` does, from one process.

    Args:
        data_dir: of the task log.
        name: by which a second one of the same is known.
        entries: of the jobs, some at a time.
        adopts: whether they are adopted.
        on_rows: told how many were written since it was last told.
        check: called before they are published; if it raises, nothing is left of them.
    """
    own = new_upload("own")
    try:
        parts = write_parts(data_dir, own, entries, on_rows)
        check()
    except BaseException:
        discard(data_dir, own)
        raise
    return finish(data_dir, name, own, parts, adopts=adopts)


def finish(
    data_dir: Path, name: str, upload: str, parts: Sequence[Part], *, adopts: bool
) -> Published:
    """Publish the parts under a name, which makes their jobs exist, and adopt them.

    A second call with the name only adopts the rest. Errors after the publication do not fail the
    write: the next process at the log adopts the jobs.
    """
    jobs = sum(part.jobs for part in parts)
    try:
        is_new = bool(parts) and publish(data_dir, name, parts)
    finally:
        # Unpublished parts: of second attempts, or all if the name was used or refused.
        discard(data_dir, upload)
    if not (adopts and parts):
        return Published(jobs, is_new)
    problem = ""
    ended = None
    try:
        adopt(data_dir)
    except TaskqError as error:
        problem = str(error)
        refused = outcome(data_dir, name)
        if refused is not None and refused.problem:
            raise
    with suppress(LogError):
        ended = outcome(data_dir, name)
    return Published(jobs, is_new, ended.duplicates if ended else 0, problem)
