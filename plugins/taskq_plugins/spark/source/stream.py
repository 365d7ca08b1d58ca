"""Reading logs as they grow: offsets, and what lies between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from taskq_plugins.spark.source.allotting import UNLIMITED, Backlog, Limits, allot, left
from taskq_plugins.spark.source.batch import (
    Pieces,
    beginning,
    bound_of,
    check_named,
    pack,
    patiently,
)
from taskq_plugins.spark.source.going_on import Stretch, break_before, go_on, stretches, whole_until
from taskq_plugins.spark.source.positions import (
    Offsets,
    Position,
    offsets_from_json,
    offsets_to_json,
)
from taskq_plugins.spark.source.problems import (
    DataLoss,
    Held,
    LogVanished,
    OptionError,
    loss_handler,
    restored,
    tell,
)
from taskq_plugins.spark.source.rows import Reading, read_pieces
from taskq_plugins.spark.source.standing import Sight, Standing, look

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from taskq_plugins.spark.source.options import ReadOptions


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every record once, batch by batch.

    An offset is how far each log was read, by log id: a log that is not in it begins with the batch
    in which it is first seen. A device that was reinstalled has another log, and that is a stream
    of its own.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: Reading) -> None:
        if options.ending_offsets is not None:
            raise OptionError("endingOffsets", " is for batches: a stream has no end")
        self._options = options
        self._reading = reading
        self._on_loss = loss_handler(options.fail_on_data_loss)
        self._targets: Offsets | None = None
        self._sight: Sight | None = None
        self._behind: dict[str, Any] | None = None
        #: the log that was served last: the next trigger begins behind it
        self._served = ""
        #: logs that went, and those that were restored, of which was told
        self._vanished: set[str] = set()
        self._restored: set[str] = set()

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions, Reading]]:
        # What the driver knows of the logs is nothing that every task should carry.
        return StreamReader, (self._options, self._reading)

    # -- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Nothing read of any log, but for those of which startingOffsets says something else.

        Raises:
            Unreadable: a log cannot be read.
        """
        bound = self._options.starting_offsets
        if bound is None or bound == "earliest":
            return {}
        sight = look(self._options)
        check_named(self._options, sight)
        found = {one.log.log_id: bound_of(bound, one) for one in sight.standings}
        return offsets_to_json({one: at for one, at in found.items() if at and at.segment})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What the options limit; where they limit several, the others are kept to as well."""
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_files_per_trigger is not None:
            return ReadMaxFiles(self._options.max_files_per_trigger)
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """From now on nothing is read that is appended later, and no log that appears later."""
        standings = look(self._options).standings
        self._targets = {one.log.log_id: one.latest for one in standings}

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return how far the next batch goes.

        Raises:
            DataLoss: failOnDataLoss is true, and what was to be read is gone.
            Unreadable: corruptMode is fail, and a log cannot be read.
        """
        offsets = offsets_from_json(start)
        return offsets_to_json(patiently(lambda: self._next(offsets, self._limits(limit))))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """What stands in the progress as ``latestOffset``: how much there is behind the batch.

        PySpark asks a source that is written in Python neither for metrics nor for a description
        (Java's name of an object stands there), so this is where both go.
        """
        return self._behind

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        size = self._options.max_bytes_per_trigger or UNLIMITED
        files = self._options.max_files_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            size = min(size, limit.max_bytes)
        if isinstance(limit, ReadMaxFiles):
            files = min(files, limit.max_files)
        records = self._options.max_records_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxRows):
            records = min(records, limit.max_rows)
        return Limits(size, files, records)

    def _next(self, offsets: Offsets, limits: Limits) -> Offsets:
        sight = self._sight = look(self._options)
        held = dict(self._vanished_of(offsets, sight))
        backlogs: list[Backlog] = []
        for standing in sight.standings:
            log_id = standing.log.log_id
            try:
                backlog = self._backlog(standing, offsets.get(log_id))
            except DataLoss as error:
                if self._options.fail_on_data_loss != "hold":
                    raise
                held[log_id] = str(error)
                continue
            if backlog is not None:
                backlogs.append(backlog)
        backlogs.sort(key=lambda one: one.standing.log.log_id)
        turn = [n for n, one in enumerate(backlogs) if one.standing.log.log_id > self._served]
        begin = turn[0] if turn else 0
        backlogs = backlogs[begin:] + backlogs[:begin]
        reached, last = allot(backlogs, limits)
        if last >= 0:
            self._served = backlogs[last].standing.log.log_id
        ends = {one: at._replace(held=held.get(one, "")) for one, at in offsets.items()}
        for backlog, here in zip(backlogs, reached, strict=True):
            if here.place != backlog.here.place or backlog.standing.log.log_id in offsets:
                ends[backlog.standing.log.log_id] = here
        self._behind = {"source": f"taskq {self._options.path}"} | _behind(sight, ends)
        return ends

    def _backlog(self, standing: Standing, position: Position | None) -> Backlog | None:
        """Return what there is to read of a log, None if nothing.

        Raises:
            DataLoss: failOnDataLoss is not false, and what was to be read is gone.
        """
        log_id = standing.log.log_id
        if self._targets is not None and log_id not in self._targets:
            return None
        target = standing.latest if self._targets is None else self._targets[log_id]
        holds = self._options.fail_on_data_loss == "hold"
        if position is not None and position.is_at(target):
            return None
        if not target.segment:
            if position is not None and not standing.left_out:
                self._on_loss(LogVanished(standing.log.device, log_id))
            return None
        if position is None:
            position = beginning(self._options, standing, is_new=True)
        here = go_on(standing, position, self._on_loss)
        self._tell_restored(standing, position, here)
        if here is None or not here.segment or here.place >= target.place:
            return None
        here, target = here._replace(held=""), target.of(here)
        if holds:
            target = whole_until(standing, here, target)
            if target.place == here.place:
                raise Held(target.held)
        return Backlog(standing, here, target)

    def _tell_restored(self, standing: Standing, was: Position, now: Position | None) -> None:
        if now is not None and now.branch == was.branch:
            return
        if standing.log.log_id not in self._restored:
            self._restored.add(standing.log.log_id)
            tell(restored(was, now))

    def _vanished_of(self, offsets: Offsets, sight: Sight) -> Iterator[tuple[str, str]]:
        """(log, what is to be said) of those that are gone and are not to be passed over.

        A log that is gone while its device has another was replaced: the device began anew.
        """
        there = {one.log.log_id for one in sight.standings}
        devices = {one.log.device for one in sight.standings}
        chosen = self._options.devices
        for log_id in offsets.keys() - there:
            device = offsets[log_id].device
            is_chosen = chosen is None or bool({device, log_id} & chosen)
            if device in devices or not is_chosen or sight.has_problems:
                continue
            error = LogVanished(device, log_id)
            if self._options.fail_on_data_loss == "hold":
                yield log_id, str(error)
            elif log_id not in self._vanished:
                self._on_loss(error)
                self._vanished.add(log_id)

    # -- rows -------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between two offsets: the same bytes whenever it is asked, about 32 MB each.

        Raises:
            DataLoss: failOnDataLoss is not false, and it is not there any more.
        """
        begins, ends = offsets_from_json(start), offsets_from_json(end)
        found = patiently(lambda: self._between(begins, ends))
        return [Pieces(part) for part in pack(found, self._options.target_partition_bytes)]

    def _between(self, begins: Offsets, ends: Offsets) -> list[Stretch]:
        starts = {log_id: _start_of(begins.get(log_id), end) for log_id, end in ends.items()}
        changed = {log_id: end for log_id, end in ends.items() if starts[log_id].place != end.place}
        if not changed:
            return []
        sight, self._sight = self._sight, None
        if sight is None or not _covers(sight, changed):
            sight = look(self._options)
        there = {one.log.log_id: one for one in sight.standings}
        found: list[Stretch] = []
        for log_id, end in sorted(changed.items(), key=lambda one: (one[1].device, one[0])):
            standing = there.get(log_id)
            if standing is None:
                self._on_loss(LogVanished(end.device, log_id))
                continue
            start = go_on(standing, starts[log_id], self._on_loss)
            if start is None or start.branch != end.branch:
                self._on_loss(LogVanished(end.device, log_id))
                continue
            behind = break_before(standing, begins.get(log_id, starts[log_id]), start)
            found += stretches(standing, start, end.place, self._on_loss, behind)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition, in batches of about 8 000."""
        pieces = partition.pieces if isinstance(partition, Pieces) else []
        return read_pieces(pieces, self._reading)


def _start_of(begin: Position | None, end: Position) -> Position:
    """Return where a batch begins in a log, given both of its offsets.

    A first batch that is run again is given the offset with which a stream would begin now: with
    "latest" that is another than when the batch was planned, which the end still knows.
    """
    if begin is None:
        return end.origin()
    if begin.branch != end.branch:
        return end.origin()
    is_new = begin.place == begin.origin().place
    return end.origin() if is_new and begin.place != end.origin().place else begin


def _behind(sight: Sight, ends: Offsets) -> dict[str, Any]:
    """Return how much there is to read behind these places, and which logs are not as they were."""
    behind = [
        left(one, ends.get(one.log.log_id, one.earliest))
        for one in sight.standings
        if one.end.mark.segment
    ]
    return {
        "recordsBehind": sum(one.records for one in behind),
        "bytesBehind": sum(one.size_bytes for one in behind),
        "logs": len(sight.standings),
        "logsBehind": sum(one.size_bytes > 0 for one in behind),
        "logsHeld": sum(bool(one.held) for one in ends.values()),
        "logsRestored": sum(one.branch > 0 for one in ends.values()),
    }


def _covers(sight: Sight, ends: Offsets) -> bool:
    there = {one.log.log_id: one.latest.place for one in sight.standings}
    return all(log_id in there and end.place <= there[log_id] for log_id, end in ends.items())
