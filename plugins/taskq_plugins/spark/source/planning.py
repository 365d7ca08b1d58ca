"""Plan what is read of logs next, as stretches and pieces from where they were left. No Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from taskq.arrow import Piece
from taskq_plugins.fleet.inventory import START, SegmentFile, edges
from taskq_plugins.fleet.places import FleetError, SegmentPlace
from taskq_plugins.spark.source.positions import (
    Bound,
    DataLoss,
    LogHeld,
    LogPosition,
    LogVanished,
    Offsets,
    OptionError,
    loss_handler,
    restored,
)
from taskq_plugins.spark.source.resume import Stretch, break_before, go_on, stretches, whole_until
from taskq_plugins.spark.source.snapshot import (
    FleetSnapshot,
    LogInventory,
    at_lsn,
    at_time,
    look,
    place_of,
)

if TYPE_CHECKING:
    from taskq_plugins.spark.source.options import ReadOptions

#: No limit.
UNLIMITED: Final = 2**62
SHARE_RECORDS_MIN: Final = 1_000
#: Minimum of a log's turn: an even share among thousands of logs would be less than a frame.
SHARE_BYTES_MIN: Final = 256 * 1024


class Backlog(NamedTuple):
    """A log with something to read: from ``here`` up to ``target``."""

    standing: LogInventory
    here: LogPosition
    target: LogPosition


class ReadLimits(NamedTuple):
    """Upper bounds of one trigger; a single larger frame is read all the same."""

    size_bytes: int = UNLIMITED
    files: int = UNLIMITED
    records: int = UNLIMITED


class _Step(NamedTuple):
    here: LogPosition
    size_bytes: int
    files: int
    records: int


class UnreadRest(NamedTuple):
    """Unread rest of a log."""

    size_bytes: int
    records: int


def left(standing: LogInventory, here: LogPosition) -> UnreadRest:
    size = records = 0
    end = standing.end.mark
    places = [place for place in standing.places if here.segment <= place.first_lsn <= end.segment]
    for number, place in enumerate(places):
        is_here = place.first_lsn == here.segment
        size += max(standing.size(place) - (here.offset if is_here else START), 0)
        following = places[number + 1] if number + 1 < len(places) else None
        if following is None:
            next_lsn = end.next_lsn if place.first_lsn == end.segment else place.first_lsn
        elif following.epoch == place.epoch:
            next_lsn = following.first_lsn
        else:
            next_lsn = edges(standing.log, place).next_lsn
        records += max(next_lsn - max(place.first_lsn, here.lsn if is_here else 0), 0)
    return UnreadRest(size, records)


def allot(backlogs: Sequence[Backlog], limits: ReadLimits) -> tuple[list[LogPosition], int]:
    """Return (place to read to in each log, index of the last log served or -1).

    Logs are served in order, each with an even share; unused shares go to the others. The caller
    begins after the last log served next time, so none starves.
    """
    here = [backlog.here for backlog in backlogs]
    size_left, files_left, records_left = limits
    last = -1
    while True:
        waiting = [n for n, backlog in enumerate(backlogs) if here[n].place < backlog.target.place]
        if not waiting:
            return here, last
        size_share = max(size_left // len(waiting), SHARE_BYTES_MIN)
        files_share = max(files_left // len(waiting), 1)
        records_share = max(records_left // len(waiting), SHARE_RECORDS_MIN)
        has_moved = False
        for n in waiting:
            share = ReadLimits(
                min(size_share, size_left),
                min(files_share, files_left),
                min(records_share, records_left),
            )
            # A frame that is larger than the share still goes if the trigger has room for it.
            room = ReadLimits(size_left, records=records_left) if last >= 0 else ReadLimits()
            step = _advance(backlogs[n]._replace(here=here[n]), share, room)
            if step.here == here[n]:
                continue
            here[n], last, has_moved = step.here, n, True
            size_left -= step.size_bytes
            files_left -= step.files
            records_left -= step.records
            if min(size_left, files_left, records_left) <= 0:
                return here, last
        if not has_moved:
            return here, last


def _advance(backlog: Backlog, share: ReadLimits, frame_max: ReadLimits) -> _Step:
    standing, here, target = backlog
    size = files = records = 0
    while here.place < target.place and files < share.files and records < share.records:
        place = standing.find(here.segment)
        limit = (
            target.offset
            if here.segment == target.segment
            else place.size_bytes
            if place is not None
            else 0
        )
        rest = limit - here.offset
        room = share.size_bytes - size
        if place is not None:
            room = min(room, _bytes_of(standing, here, share.records - records))
        cut = None if place is None or rest <= room else _cut(standing, here, place, limit, room)
        whole = cut is None or cut.offset >= limit
        moved = cut if cut is not None and not whole else _next_place(standing, here, target)
        count = 0
        if place is not None and share.records < UNLIMITED:
            last = (
                moved.lsn if moved.segment == here.segment else edges(standing.log, place).next_lsn
            )
            count = max(last - here.lsn, 0)
        if cut is not None:
            taken = min(cut.offset, limit) - here.offset
            is_alone = not size and count <= frame_max.records
            if taken > (max(room, frame_max.size_bytes) if is_alone else room):
                break
            rest = taken
        size, files, records = size + max(rest, 0), files + (rest > 0), records + count
        here = moved
        if cut is not None:
            break
    return _Step(_timed(standing, here), size, files, records)


def _timed(standing: LogInventory, here: LogPosition) -> LogPosition:
    place = standing.find(here.segment)
    if here.offset != START or here.time_ns or place is None:
        return here
    with standing.open(place) as file:
        header = file.header()
    return here if header is None else here._replace(time_ns=header.created_ns)


def _bytes_of(standing: LogInventory, here: LogPosition, records: int) -> int:
    if records >= UNLIMITED // 2:
        return UNLIMITED
    behind = at_lsn(standing, here.lsn + records)
    return max(behind.offset - here.offset, 0) if behind.segment == here.segment else UNLIMITED


def _next_place(standing: LogInventory, here: LogPosition, target: LogPosition) -> LogPosition:
    if here.segment == target.segment:
        return target
    for place in standing.places:
        if here.segment < place.first_lsn <= target.segment:
            return standing.start_of(place).of(here)
    return target


def _cut(
    standing: LogInventory,
    here: LogPosition,
    place: SegmentPlace,
    limit: int,
    room: int,
) -> LogPosition:
    with standing.open(place) as file:
        border = file.last_before(min(here.offset + room + 1, limit), start=here.offset + 8)
        if border is None:
            border = file.first_from(here.offset + 8, limit)
            if border is None:
                return _at(here, limit)
        offset, header = border
        before = file.last_before(offset, start=max(here.offset, START))
    if before is not None and before[0] + before[1].size == offset:
        frame, was = before
        return here._replace(
            offset=offset, lsn=was.next_lsn, epoch=was.epoch, frame=frame, time_ns=was.time_ns
        )
    # After damage only the following frame is known.
    return _at(here, offset)._replace(lsn=header.first_lsn, epoch=header.epoch)


def _at(here: LogPosition, offset: int) -> LogPosition:
    return here._replace(offset=offset, frame=0)


T = TypeVar("T")
_log: Final = logging.getLogger("taskq")
#: A stretch is not cut for the sake of less than this part of a partition.
_CUT_MIN: Final = 8
#: How often a plan is begun anew because compaction took a segment meanwhile.
_TRIES: Final = 5


def pack(between: Iterable[Stretch], target_bytes: int) -> list[list[Piece]]:
    """Return pieces by partition, in the order of the stretches: about ``target_bytes`` in each.

    Few partitions, since each costs Spark about 28 ms.
    A pure function of the stretches and of bytes that never change. The partitions are made about
    equal, so that none is a small rest which some core works off alone.
    """
    waiting = list(between)
    left = sum(stretch.end - stretch.start for stretch in waiting)
    count = max(round(left / target_bytes), 1)
    parts: list[list[Piece]] = []
    room = slack = 0
    for stretch in waiting:
        start, is_begun = stretch.start, False
        while start < stretch.end or not is_begun:
            size = stretch.end - start
            if len(parts) < count and (room <= 0 or (room < slack < size - room)):
                # Rounding is evened out by the later parts.
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
    place = stretch.place
    with SegmentFile(place.path, stretch.log.log_id, place.first_lsn) as file:
        border = file.first_from((offset + 7) & ~7, stretch.end)
    return border[0] if border is not None else stretch.end


def _piece(stretch: Stretch, start: int, end: int) -> Piece:
    log, place = stretch.log, stretch.place
    # From 0 on the header is checked, too.
    begin = 0 if start == START < end else start
    return Piece(
        place.path, log.device, log.log_id, log.tag, place.first_lsn, begin, end, stretch.branch,
        stretch.behind if start == stretch.start else None,
    )  # fmt: skip


# -- the options, and the logs that are there ------------------------------------------------------


def beginning(options: ReadOptions, standing: LogInventory, *, is_new: bool = False) -> LogPosition:
    if options.starting_timestamp is not None:
        return at_time(standing, options.starting_timestamp)
    if options.starting_offsets is None or is_new:
        return standing.earliest
    return bound_of(options.starting_offsets, standing) or standing.earliest


def bound_of(bound: Bound, standing: LogInventory) -> LogPosition | None:
    if isinstance(bound, str):
        return place_of(standing, bound)
    log = standing.log
    given = bound.get(log.log_id, bound.get(log.device))
    return None if given is None else place_of(standing, given)


def check_found(options: ReadOptions, sight: FleetSnapshot) -> None:
    if not sight.standings and not sight.has_problems:
        if options.devices is not None:
            names = ", ".join(sorted(options.devices)[:5])
            raise OptionError("devices", f": none of them is in {options.path}: {names}")
        raise FleetError(
            f"{options.path} holds no task log: give the option path the directory of one (it has "
            f"a file taskq.json), or one that holds such directories"
        )
    check_named(options, sight)


def check_named(options: ReadOptions, sight: FleetSnapshot) -> None:
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
    for _ in range(_TRIES - 1):
        try:
            return plan()
        except FileNotFoundError:
            continue
    try:
        return plan()
    except FileNotFoundError as error:
        raise DataLoss("", str(error.filename), 0, "without it") from error


# -- a stream --------------------------------------------------------------------------------------


class Following:
    """Plans what is read of growing logs, batch by batch.

    Args:
        options: what to read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        #: the logs as the last batch was planned, and how far that goes
        self._planned: tuple[FleetSnapshot, Offsets] | None = None
        self._on_loss = loss_handler(options.fail_on_data_loss)
        self._targets: Offsets | None = None
        self._sight: FleetSnapshot | None = None
        #: a look that no batch was planned by
        self._fresh: FleetSnapshot | None = None
        #: last log served: the next batch begins after it
        self._served = ""
        #: vanished and restored logs that were reported
        self._vanished: set[str] = set()
        self._restored: set[str] = set()

    def initial(self) -> Offsets:
        bound = self._options.starting_offsets
        if bound is None or bound == "earliest":
            return {}
        sight = look(self._options)
        check_named(self._options, sight)
        bounds = {standing.log.log_id: bound_of(bound, standing) for standing in sight.standings}
        return {log_id: at for log_id, at in bounds.items() if at and at.segment}

    def end_here(self, ends: Offsets | None = None, sight: FleetSnapshot | None = None) -> None:
        """Plan nothing after these places, and of no other log.

        None as ``ends``: the current ends. ``sight`` is the state of the logs, if known.
        """
        self._fresh = sight or look(self._options)
        if ends is None:
            ends = {standing.log.log_id: standing.latest for standing in self._fresh.standings}
        self._targets = dict(ends)

    def next(self, offsets: Offsets, limits: ReadLimits) -> Offsets:
        return patiently(lambda: self._next(offsets, limits))

    def pieces(self, begins: Offsets, ends: Offsets) -> list[list[Piece]]:
        between = patiently(lambda: self._between(begins, ends))
        return pack(between, self._options.target_partition_bytes)

    def _next(self, offsets: Offsets, limits: ReadLimits) -> Offsets:
        if self._planned is not None and self._is_at_targets(offsets):
            return offsets
        sight = self._sight = self._fresh or look(self._options)
        self._fresh = None
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
        backlogs.sort(key=lambda backlog: backlog.standing.log.log_id)
        turn = [n for n, log in enumerate(backlogs) if log.standing.log.log_id > self._served]
        begin = turn[0] if turn else 0
        backlogs = backlogs[begin:] + backlogs[:begin]
        reached, last = allot(backlogs, limits)
        if last >= 0:
            self._served = backlogs[last].standing.log.log_id
        ends = {
            log_id: at
            if at.held == held.get(log_id, "")
            else at._replace(held=held.get(log_id, ""))
            for log_id, at in offsets.items()
        }
        for backlog, here in zip(backlogs, reached, strict=True):
            if here.place != backlog.here.place or backlog.standing.log.log_id in offsets:
                ends[backlog.standing.log.log_id] = here
        self._planned = sight, ends
        return ends

    def behind(self) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):  # compaction took a segment meanwhile
            if self._planned is not None:
                return {"source": f"taskq {self._options.path}"} | _behind(*self._planned)
        return None

    def _is_at_targets(self, offsets: Offsets) -> bool:
        return self._targets is not None and all(
            not target.segment or (log_id in offsets and offsets[log_id].is_at(target))
            for log_id, target in self._targets.items()
        )

    def _backlog(self, standing: LogInventory, position: LogPosition | None) -> Backlog | None:
        log_id = standing.log.log_id
        if self._targets is not None and log_id not in self._targets:
            return None
        target = standing.latest if self._targets is None else self._targets[log_id]
        holds = self._options.fail_on_data_loss == "hold"
        if position is not None and position.is_at(target):
            if self._targets is not None:  # nothing later is planned
                del self._targets[log_id]
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
                raise LogHeld(target.held)
        return Backlog(standing, here, target)

    def _tell_restored(
        self, standing: LogInventory, was: LogPosition, now: LogPosition | None
    ) -> None:
        if now is not None and now.branch == was.branch:
            return
        if standing.log.log_id not in self._restored:
            self._restored.add(standing.log.log_id)
            _log.warning("%s", restored(was, now))

    def _vanished_of(self, offsets: Offsets, sight: FleetSnapshot) -> Iterator[tuple[str, str]]:
        """Yield (log, problem) of vanished logs that must not be skipped.

        A vanished log whose device has another was replaced: the device began anew.
        """
        gone = offsets.keys() - {standing.log.log_id for standing in sight.standings}
        devices = {standing.log.device for standing in sight.standings} if gone else set()
        chosen = self._options.devices
        for log_id in gone:
            device = offsets[log_id].device
            if log_id in sight.twice:
                yield log_id, sight.twice[log_id]
                continue
            is_chosen = chosen is None or bool({device, log_id} & chosen)
            if device in devices or not is_chosen or sight.has_problems:
                continue
            error = LogVanished(device, log_id)
            if self._options.fail_on_data_loss == "hold":
                yield log_id, str(error)
            elif log_id not in self._vanished:
                self._on_loss(error)
                self._vanished.add(log_id)

    def _between(self, begins: Offsets, ends: Offsets) -> list[Stretch]:
        moved = {log_id: end for log_id, end in ends.items() if begins.get(log_id) != end}
        starts = {log_id: _start_of(begins.get(log_id), end) for log_id, end in moved.items()}
        changed = {
            log_id: end for log_id, end in moved.items() if starts[log_id].place != end.place
        }
        if not changed:
            return []
        sight, self._sight = self._sight, None
        there = {} if sight is None else _among(sight, changed)
        if not _cover(there, changed):
            there = _among(look(self._options), changed)
        between: list[Stretch] = []
        for log_id, end in sorted(changed.items(), key=lambda item: (item[1].device, item[0])):
            standing = there.get(log_id)
            if standing is None:
                self._on_loss(LogVanished(end.device, log_id))
                continue
            start = go_on(standing, starts[log_id], self._on_loss)
            if start is None or start.branch != end.branch:
                self._on_loss(LogVanished(end.device, log_id))
                continue
            behind = break_before(standing, begins.get(log_id, starts[log_id]), start)
            between += stretches(standing, start, end.place, self._on_loss, behind)
        return between


def _start_of(begin: LogPosition | None, end: LogPosition) -> LogPosition:
    """Return where a batch begins in a log, given both of its offsets.

    A first batch that is run again is given the offset with which a stream would begin now: with
    "latest" that is another than when the batch was planned, which the end still knows.
    """
    if begin is None or begin.branch != end.branch:
        return end.origin()
    is_new = begin.place == begin.origin().place
    return end.origin() if is_new and begin.place != end.origin().place else begin


def _behind(sight: FleetSnapshot, ends: Offsets) -> dict[str, Any]:
    behind = [
        left(standing, ends.get(standing.log.log_id, standing.earliest))
        for standing in sight.standings
        if standing.end.mark.segment
    ]
    return {
        "recordsBehind": sum(log.records for log in behind),
        "bytesBehind": sum(log.size_bytes for log in behind),
        "logs": len(sight.standings),
        "logsBehind": sum(log.size_bytes > 0 for log in behind),
        "logsHeld": sum(bool(end.held) for end in ends.values()),
        "logsRestored": sum(end.branch > 0 for end in ends.values()),
    }


def _among(sight: FleetSnapshot, logs: Offsets) -> dict[str, LogInventory]:
    return {
        standing.log.log_id: standing for standing in sight.standings if standing.log.log_id in logs
    }


def _cover(there: Mapping[str, LogInventory], ends: Offsets) -> bool:
    return all(
        log_id in there and end.place <= there[log_id].latest.place for log_id, end in ends.items()
    )
