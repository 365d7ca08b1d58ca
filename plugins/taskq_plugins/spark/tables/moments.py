"""Moments in nanoseconds as Spark's timestamps and as hours, in whole numbers throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from pyspark.sql import Column

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * SECOND_NS


def timestamp(name: str) -> Column:
    """A column of nanoseconds since 1970 as a timestamp, cut to the microsecond."""
    return F.expr(f"timestamp_micros({name} div 1000)")


def hour_number(name: str) -> Column:
    """Whole hours since 1970 of a column of nanoseconds; no time zone has a say in it."""
    return F.expr(f"({name} - pmod({name}, {HOUR_NS})) div {HOUR_NS}")
