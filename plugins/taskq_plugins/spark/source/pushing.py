"""Filters that Spark hands down: what they rule out is not read, or at least not handed up.

Devices and segments are left out when the batch is planned, frames by their headers on the
executors, and of the rest each row is looked at once more before it leaves. What is taken over is
applied in full, so that Spark need not look again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from taskq.arrow import DETAILS, Piece
from taskq.arrow.problems import SegmentUnreadable
from taskq_plugins.fleet.segmentfile import START, SegmentFile
from taskq_plugins.spark.source.batch import BatchReader, read_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql.datasource import InputPartition

    from taskq.engine import FrameHeader
    from taskq_plugins.spark.source.going_on import Stretch

_COLUMNS: Final = frozenset(
    {"device", "log_id", "segment", "lsn", "ts_ns", "timestamp", "kind", "queue"}
)
_COMPARE: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Term(NamedTuple):
    """One condition: a column, how it is compared (``in``: with each), and with what."""

    column: str
    compare: str
    values: tuple[Any, ...]

    def keeps(self, rows: pa.RecordBatch) -> pa.Array:
        """Return which rows fit; null is as good as false."""
        column = rows.column(self.column)
        if self.compare == "valid":
            return pc.is_valid(column)
        values = pa.array(self.values, DETAILS.field(self.column).type)
        if self.compare == "in":
            return pc.is_in(column, value_set=values, skip_nulls=True)
        return getattr(pc, self.compare)(column, values[0])

    def may_hold(self, low: Any, high: Any) -> bool:
        """Return whether any value from ``low`` to ``high`` fits; both count."""
        bound: Any = next(iter(self.values), None)
        match self.compare:
            case "valid":
                return True
            case "greater":
                return bool(high > bound)
            case "greater_equal":
                return bool(high >= bound)
            case "less":
                return bool(low < bound)
            case "less_equal":
                return bool(low <= bound)
            case _:
                return any(low <= value <= high for value in self.values)


def term_of(given: Filter) -> Term | None:
    """Return the condition that a filter of Spark's states, None if it is not taken over."""
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _COLUMNS:
        return None
    column = attribute[0]
    if isinstance(given, IsNotNull):
        return Term(column, "valid", ())
    if isinstance(given, In):
        values = tuple(_aware(value) for value in given.value if value is not None)
        return Term(column, "in", values)
    compare = _COMPARE.get(type(given))
    value = getattr(given, "value", None)
    if compare is None or value is None:
        return None
    return Term(column, compare, (_aware(value),))


def _aware(value: Any) -> Any:
    """Return a moment of Spark's, which may lack its zone."""
    return value.astimezone() if isinstance(value, datetime) and value.tzinfo is None else value


class PushingReader(BatchReader):
    """A batch reader that takes filters over; Spark must be set up to hand them down."""

    _terms: tuple[Term, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Take over what can be applied in full; the others are Spark's to apply."""
        taken: list[Term] = []
        for given in filters:
            term = term_of(given)
            if term is None or term.column not in self._reading.schema.names:
                yield given
            else:
                taken.append(term)
        self._terms = tuple(taken)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition that fit."""
        return read_partition(partition, self._reading, (self._sieve(), self._rows))

    def _plan(self) -> list[Stretch]:
        planned = super()._plan()
        bounds = {id(stretch): _lsns(planned, number) for number, stretch in enumerate(planned)}
        return [stretch for stretch in planned if self._may_hold(stretch, bounds[id(stretch)])]

    def _may_hold(self, stretch: Stretch, lsns: tuple[int, int]) -> bool:
        known: dict[str, tuple[Any, Any]] = {
            "device": (stretch.log.device, stretch.log.device),
            "log_id": (stretch.log.log_id, stretch.log.log_id),
            "segment": (stretch.place.first_lsn, stretch.place.first_lsn),
            "lsn": lsns,
        }
        return all(
            term.may_hold(*known[term.column]) for term in self._terms if term.column in known
        )

    def _sieve(self) -> Callable[[Piece], Iterator[Piece]]:
        terms = [term for term in self._terms if term.column in {"lsn", "ts_ns", "timestamp"}]

        def cut(piece: Piece) -> Iterator[Piece]:
            return _cut(piece, terms) if terms else iter((piece,))

        return cut

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for term in self._terms:
            if batch.num_rows:
                batch = batch.filter(term.keeps(batch))
        return batch


def _lsns(planned: list[Stretch], number: int) -> tuple[int, int]:
    """Return bounds of a stretch's lsns, as its segment's name and the next segment's tell them."""
    this = planned[number]
    following = planned[number + 1] if number + 1 < len(planned) else None
    high = 2**63 - 1
    if following is not None and following.log.log_id == this.log.log_id:
        high = following.place.first_lsn - 1
    # A recovery may have written frames again: the last lsns of this one are then not below.
    return this.place.first_lsn, high


def _cut(piece: Piece, terms: list[Term]) -> Iterator[Piece]:
    """Yield those runs of a piece's frames that may hold rows that fit; damage is left in."""
    try:
        file = SegmentFile(piece.path, piece.log_id, piece.segment)
    except (FileNotFoundError, SegmentUnreadable):
        yield piece  # whoever decodes it says what is wrong
        return
    with file:
        start, reached = piece.start, max(piece.start, START)
        is_wanted = True
        for offset, header in file.hop(reached, piece.end):
            fits = _fits(header, terms)
            if fits != is_wanted:
                if is_wanted and offset > start:
                    yield piece._replace(start=start, end=offset)
                start, is_wanted = offset, fits
            reached = offset + header.size
        if is_wanted or reached < piece.end:
            yield piece._replace(start=start if is_wanted else reached)


def _fits(header: FrameHeader, terms: list[Term]) -> bool:
    time = _EPOCH + timedelta(microseconds=header.time_ns // 1000)
    spans: dict[str, tuple[Any, Any]] = {
        "lsn": (header.first_lsn, header.next_lsn - 1),
        "ts_ns": (header.time_ns, header.time_ns),
        "timestamp": (time, time),
    }
    return all(term.may_hold(*spans[term.column]) for term in terms)
