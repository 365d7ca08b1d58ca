"""Reading logs once: the partitions of a batch, and their rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from taskq_plugins.fleet.problems import FleetError
from taskq_plugins.fleet.segmentfile import START, SegmentFile
from taskq_plugins.spark.decode import Piece
from taskq_plugins.spark.source.going_on import Stretch, break_before, go_on, stretches, whole_until
from taskq_plugins.spark.source.problems import DataLoss, OptionError, loss_handler
from taskq_plugins.spark.source.rows import Reading, read_pieces
from taskq_plugins.spark.source.standing import Sight, Standing, at_time, look, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from taskq.errors import LogError
    from taskq_plugins.spark.source.options import ReadOptions
    from taskq_plugins.spark.source.positions import Bound, Position


#: A stretch is not cut for the sake of less than this part of a partition.
_CUT_MIN: Final = 8


def pack(found: Iterable[Stretch], target_bytes: int) -> list[list[Piece]]:
    """Pieces by partition, in the order of the stretches: about ``target_bytes`` in each.

    Few partitions, since each costs Spark about 28 ms.
    A pure function of the stretches and of bytes that never change. The partitions are made about
    equal, so that none is a small rest which some core works off alone.
    """
    waiting = list(found)
    left = sum(one.end - one.start for one in waiting)
    count = max(round(left / target_bytes), 1)
    parts: list[list[Piece]] = []
    room = slack = 0
    for stretch in waiting:
        start, is_begun = stretch.start, False
        while start < stretch.end or not is_begun:
            size = stretch.end - start
            if len(parts) < count and (room <= 0 or (room < slack < size - room)):
                # What others took too much or too little is evened out by those to come.
                room = -(-left // (count - len(parts)))
                slack = room // _CUT_MIN
                parts.append([])
            end = stretch.end
            if len(parts) < count and size > room + slack:
                end = _border(stretch, start + room)
            parts[-1].append(_piece(stretch, start, end))
            room -= end - start
            left -= end - start
            start, is_begun = end, True
    return parts


def _border(stretch: Stretch, offset: int) -> int:
    """Return the first border of frames from ``offset`` on."""
    place = stretch.place
    with SegmentFile(place.path, stretch.log.log_id, place.first_lsn) as file:
        found = file.first_from((offset + 7) & ~7, stretch.end)
    return found[0] if found is not None else stretch.end


def _piece(stretch: Stretch, start: int, end: int) -> Piece:
    log, place = stretch.log, stretch.place
    # From 0 on the header is checked, too.
    begin = 0 if start == START < end else start
    return Piece(
        place.path, log.device, log.log_id, log.tag, place.first_lsn, begin, end, stretch.branch,
        stretch.behind if start == stretch.start else None,
    )  # fmt: skip


T = TypeVar("T")
_log: Final = logging.getLogger("taskq")
#: How often a plan is begun anew because compaction took a segment meanwhile.
_TRIES: Final = 5


class Pieces(InputPartition):
    """What one Spark task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Pieces({self.pieces!r})"


class BatchReader(DataSourceReader):
    """Reads what stands in the logs now.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: Reading) -> None:
        self._options = options
        self._reading = reading

    def partitions(self) -> list[InputPartition]:
        """Pieces of all segments, about 32 MB in each partition.

        Raises:
            FleetError: there is no log to read.
            DataLoss: one is not whole.
        """
        found = patiently(self._plan)
        parts = pack(found, self._options.target_partition_bytes)
        return [Pieces(part) for part in parts] or [Pieces([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition, in batches of about 8 000."""
        # Spark gives a partition of its own making when there is none.
        pieces = partition.pieces if isinstance(partition, Pieces) else []
        return read_pieces(pieces, self._reading)

    def _plan(self) -> list[Stretch]:
        options = self._options
        sight = look(options)
        check_found(options, sight)
        on_loss = loss_handler(options.fail_on_data_loss)
        found: list[Stretch] = []
        for standing in sight.standings:
            try:
                found += self._of_log(standing, on_loss)
            except DataLoss as error:
                if options.fail_on_data_loss != "hold":
                    raise
                _log.warning("failOnDataLoss=hold: %s", error)
                start, end = self._bounds(standing)
                end = whole_until(standing, start, end)
                found += stretches(standing, start, end.place, on_loss)
        return found

    def _of_log(self, standing: Standing, on_loss: Callable[[LogError], None]) -> list[Stretch]:
        start, end = self._bounds(standing)
        if start.is_at(end):
            return []
        here = go_on(standing, start, on_loss)
        if here is None or here.place >= end.place:
            return []
        behind = break_before(standing, start, here)
        return list(stretches(standing, here, end.place, on_loss, behind))

    def _bounds(self, standing: Standing) -> tuple[Position, Position]:
        start, latest = beginning(self._options, standing), standing.latest
        ending = self._options.ending_offsets
        if ending is not None:
            end = bound_of(ending, standing)
            latest = latest if end is None else min(end, latest, key=lambda one: one.place)
        return start, latest


def beginning(options: ReadOptions, standing: Standing, *, is_new: bool = False) -> Position:
    """Return where reading a log begins; ``is_new``: it was not there when a stream began."""
    if options.starting_timestamp is not None:
        return at_time(standing, options.starting_timestamp)
    if options.starting_offsets is None or is_new:
        return standing.earliest
    return bound_of(options.starting_offsets, standing) or standing.earliest


def bound_of(bound: Bound, standing: Standing) -> Position | None:
    """Return what a bound says of a log; None: nothing."""
    if isinstance(bound, str):
        return place_of(standing, bound)
    log = standing.log
    given = bound.get(log.log_id, bound.get(log.device))
    return None if given is None else place_of(standing, given)


def check_found(options: ReadOptions, sight: Sight) -> None:
    """Let nobody take the wrong directory for one without records.

    Raises:
        FleetError: there is no log.
        OptionError: there is none of the devices, or of those that offsets are given of.
    """
    if not sight.standings and not sight.has_problems:
        if options.devices is not None:
            names = ", ".join(sorted(options.devices)[:5])
            raise OptionError("devices", f": none of them is in {options.path}: {names}")
        raise FleetError(
            f"{options.path} holds no task log: give the option path the directory of one (it has "
            f"a file taskq.json), or one that holds such directories"
        )
    check_named(options, sight)


def check_named(options: ReadOptions, sight: Sight) -> None:
    """Let nobody misspell whose offsets he gives.

    Raises:
        OptionError: offsets are given of a log that is not there.
    """
    logs = [standing.log for standing in sight.standings]
    known = {name for log in logs for name in (log.log_id, log.device)}
    for option, bound in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
    ):
        strange = () if bound is None or isinstance(bound, str) else sorted(set(bound) - known)
        if strange and not sight.has_problems:
            raise OptionError(option, f": there is no log or device {strange[0]!r}")


def patiently(plan: Callable[[], T]) -> T:
    """Return the outcome of a plan, begun anew when compaction takes a file under its hands.

    Raises:
        DataLoss: that happened every time.
    """
    for _ in range(_TRIES - 1):
        try:
            return plan()
        except FileNotFoundError:
            continue
    try:
        return plan()
    except FileNotFoundError as error:
        raise DataLoss("", str(error.filename), 0, "without it") from error
