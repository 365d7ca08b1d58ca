"""The Delta log of a table: its commits as the protocol has them, checkpoints, and its properties.

A commit is whole and on disk before it is seen. What delta-rs writes is on disk right behind it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from taskq_plugins.spark import parts
from taskq_plugins.spark.lake.durable import publish, sync_directory, sync_file
from taskq_plugins.spark.lake.errors import LakeConflict, LakeDiskError, LakeError
from taskq_plugins.spark.lake.store import files
from taskq_plugins.spark.lake.words import COMMENTS, DESCRIPTIONS, NEVER_NULL, OF_TABLE

DELTA_LOG: Final = "_delta_log"
#: Of a commit that writes the same rows again.
OPTIMIZE: Final = "OPTIMIZE"
#: What a commit tells of the logs that moved, where it does not tell of all.
MOVED: Final = "moved"
#: In a table's log: where its last checkpoint is.
_LAST: Final = "_last_checkpoint"
#: Commits from one checkpoint of a table's log to the next: a bound for what a reader reads.
_CHECKPOINT_EVERY: Final = 20
#: So long can a version be read after the next one has come; a small table tells what is new.
_KEEP_HOURS: Final = {"failures": 7 * 24}
_KEEP_HOURS_ELSE: Final = 1
_KEPT: Final = "delta.deletedFileRetentionDuration"
#: The version of Delta's protocol that is written here.
_PROTOCOL: Final = 2
_T = TypeVar("_T")


def create(where: Path, schema: pa.Schema, *, dates: bool) -> None:
    where.mkdir(parents=True, exist_ok=True)
    if dates and parts.DATE not in schema.names:
        schema = schema.append(pa.field(parts.DATE, pa.date32()))
    described = pa.schema(_described(where.name, field) for field in schema)

    def make() -> None:
        DeltaTable.create(
            str(where),
            described,
            mode="ignore",
            partition_by=[parts.DATE] if dates else [],
            description=DESCRIPTIONS.get(where.name),
            configuration=_configuration(where.name)
            | {"delta.dataSkippingStatsColumns": ",".join(files.indexed(schema))},
        )

    _durably(where, make)
    for directory in (where, where.parent):
        sync_directory(directory)


def append(where: Path, delta: DeltaTable, actions: Iterable[dict[str, Any]], beside: Path) -> None:
    """Make the next version of a table durable, and then seen.

    Args:
        where: the table's directory.
        delta: the table.
        actions: what the version says.
        beside: where its file is written first.

    Raises:
        LakeConflict: somebody else made that version.
        LakeDiskError: the disk refused; the version before stands.
    """
    if delta.protocol().min_writer_version > _PROTOCOL:
        raise LakeError(
            f"{where}: somebody switched on features of Delta that are not written here: "
            f"fill a new lake with taskq pipeline run"
        )
    commit = where / DELTA_LOG / f"{delta.version() + 1:020}.json"
    lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
    try:
        publish(commit, "".join(lines).encode(), beside)
    except FileExistsError as error:
        raise LakeConflict(where, f"there is a {commit.name} now") from error
    except OSError as error:
        raise LakeDiskError(where, error) from error


def keep_short(where: Path, delta: DeltaTable) -> None:
    if _KEPT not in delta.metadata().configuration:  # an earlier version made it
        wanted = _configuration(where.name)
        _durably(where, lambda: delta.alter.set_table_properties(wanted))
    last = 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        last = int(json.loads((where / DELTA_LOG / _LAST).read_text())["version"])
    has_grown = delta.version() - last >= _CHECKPOINT_EVERY
    if has_grown:
        _durably(where, delta.create_checkpoint)
    # What tells of some logs is read back to what tells of all.
    newest = next((commit for commit in commits(delta) if "batch" in commit), {})
    if "offsets" in newest or (has_grown and MOVED not in newest):
        delta.cleanup_metadata()


def vacuum(where: Path, delta: DeltaTable, keep_hours: int | None) -> int:
    """Remove files that no version of these hours names; None: of the hours that the table says."""

    def clean(*, dry_run: bool) -> list[str]:
        return delta.vacuum(
            keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )

    if not clean(dry_run=True):
        return 0
    return len(_durably(where, lambda: clean(dry_run=False)))


def _durably(table: Path, act: Callable[[], _T]) -> _T:
    log = table / DELTA_LOG
    before = _names(log)
    try:
        done = act()
        after = _names(log)
        # Only the pointer to the last checkpoint is ever written anew.
        for name in after - before | after & {_LAST}:
            sync_file(log / name)
        sync_directory(log)
    except OSError as error:
        raise LakeDiskError(table, error) from error
    except DeltaError as error:
        raise LakeError(f"{table}: could not be written ({error})") from error
    return done


def _configuration(table: str) -> dict[str, str]:
    kept = f"interval {_KEEP_HOURS.get(table, _KEEP_HOURS_ELSE)} hours"
    return {
        "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
        "delta.logRetentionDuration": kept,
        _KEPT: kept,
    }


def _described(table: str, field: pa.Field) -> pa.Field:
    comment = OF_TABLE.get(table, {}).get(field.name) or COMMENTS.get(field.name)
    if field.name in NEVER_NULL.get(table, ()):
        field = field.with_nullable(nullable=False)
    return field if comment is None else field.with_metadata({"comment": comment})


def commits(delta: DeltaTable) -> Iterator[dict[str, Any]]:
    given = 0
    for limit in (1, 50, None):
        some = delta.history(limit)
        yield from some[given:]
        if limit is None or len(some) < limit:
            return
        given = len(some)


def _names(directory: Path) -> set[str]:
    with suppress(FileNotFoundError):
        return {entry.name for entry in os.scandir(directory)}
    return set()
