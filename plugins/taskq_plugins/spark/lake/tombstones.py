"""Jobs that were erased, for good: a table of their ids, which every row passes on its way in.

A log may tell again of what a job brought along: compaction writes it again, and so does a requeue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from taskq.arrow import without_reasons
from taskq_plugins.spark.lake.store import TOMBSTONES, Change, Lake, LakeWriter
from taskq_plugins.spark.parts import OVER, PART_COLUMN, REPLAY_OF

JOB_ID: Final = "job_id"
#: The columns, as far as a table has them, that hold what a job brought along or left, or may quote
#: of it. Of headers the id of the job that it runs again stays; attempts lose their reasons.
_ERASED: Final = frozenset({
    "payload", "value", "value_bytes", "result", "result_bytes", "key", "key_hash", "headers",
    "concurrency_key", "reason", "history", "attempts", "size_bytes",
})  # fmt: skip
_SCHEMA: Final = pa.schema([(JOB_ID, pa.string()), ("erased_at", pa.timestamp("us", tz="UTC"))])


def bury(writer: LakeWriter, job_ids: Iterable[str]) -> None:
    known = set(erased_jobs(writer.lake.paths(TOMBSTONES)).to_pylist())
    fresh = sorted(set(job_ids) - known)
    if not fresh:
        return
    now = [datetime.now(UTC)] * len(fresh)
    rows = pa.table([pa.array(fresh, pa.string()), pa.array(now, _SCHEMA.types[1])], schema=_SCHEMA)
    directory = writer.new_directory(TOMBSTONES)
    target = directory / f"{PART_COLUMN}={OVER}"
    target.mkdir(parents=True)
    parquet.write_table(rows, target / "0.parquet")
    staged = writer.stage(TOMBSTONES, directory)
    writer.commit(TOMBSTONES, Change(staged.files, schema=_SCHEMA, operation="WRITE"))


def tombstones(lake: Lake) -> tuple[str, ...]:
    return tuple(lake.paths(TOMBSTONES))


def erased_jobs(paths: Sequence[str]) -> pa.Array:
    if not paths:
        return pa.array([], pa.string())
    rows = dataset.dataset(list(paths), format="parquet").to_table(columns=[JOB_ID])
    return rows[JOB_ID].combine_chunks()


def cleared(rows: pa.Table, paths: Sequence[str]) -> pa.Table:
    if not paths:
        return rows
    is_erased = pc.is_in(rows[JOB_ID], erased_jobs(paths))
    return without(rows, is_erased) if pc.any(is_erased).as_py() else rows


def without(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows, those of the mask without what their jobs brought along.

    It is the same whether a record loses it before it is folded, or the rows made of it.
    """
    for index, field in enumerate(rows.schema):
        if field.name in _ERASED:
            column = rows[field.name].combine_chunks()
            kept = _KEPT.get(field.name, _nothing)(column)
            rows = rows.set_column(index, field, pc.if_else(mask, kept, column))
    return rows


def _nothing(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), column.type)


def _links(headers: pa.MapArray) -> pa.MapArray:
    ids = pc.map_lookup(headers, pa.scalar(REPLAY_OF), "first")
    is_link = pc.is_valid(ids).to_numpy(zero_copy_only=False)
    offsets = np.append(0, np.cumsum(is_link)).astype(np.int32)
    offsets = pa.array(offsets, mask=np.append(~is_link, [False]))
    links = pc.drop_null(ids)
    return pa.MapArray.from_arrays(offsets, pa.repeat(REPLAY_OF, len(links)), links)


def _tries(attempts: pa.ListArray) -> pa.ListArray:
    tries = attempts.flatten()
    columns = [
        _nothing(column) if field.name == "reason" else column
        for field, column in zip(tries.type, tries.flatten(), strict=True)
    ]
    sizes = pc.fill_null(pc.list_value_length(attempts), 0).to_numpy()
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays(columns, fields=list(tries.type))
    )


def _histories(history: pa.Array) -> pa.Array:
    plain = (value and without_reasons(value) for value in history.to_pylist())
    return pa.array(plain, history.type)


#: What stays of some columns.
_KEPT: Final = {"headers": _links, "attempts": _tries, "history": _histories}
