"""Moments in nanoseconds as timestamps and as hours, in whole numbers throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * SECOND_NS
TIME: Final = pa.timestamp("us", tz="UTC")


def whole_hours(name: str) -> str:
    """Whole hours since 1970 of a column of nanoseconds, in SQL; no time zone has a say in it."""
    return f"(({name} - (({name} % {HOUR_NS}) + {HOUR_NS}) % {HOUR_NS}) // {HOUR_NS})"


def at_moments(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """With these columns of nanoseconds as timestamps, cut to the microsecond."""
    for name in names:
        table = _set(table, name, pc.divide(table[name], 1_000).cast(TIME))
    return table


def at_hours(table: pa.Table, name: str) -> pa.Table:
    """With this column of whole hours as timestamps."""
    return _set(table, name, pc.multiply(table[name], HOUR_NS // 1_000).cast(TIME))


def _set(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)
