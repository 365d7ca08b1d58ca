"""Plan the next pieces to read from logs, starting at their positions. No Spark, and no state.

A position moves only over bytes in the plan. If a log cannot be read further, it keeps its position
with the reason (``held``), and reading of the other logs continues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import (
    BREAK,
    DETAILS,
    Break,
    Corrupt,
    Piece,
    SegmentDamaged,
    SegmentMissing,
    decode,
)
from taskq.arrow.problems import ADVICE, shown
from taskq.engine import Kind, kinds, segment_name
from taskq.errors import LogError
from taskq_plugins.fleet.inventory import edges, follows
from taskq_plugins.fleet.places import (
    START,
    FleetError,
    LogPlace,
    Position,
    SegmentFile,
    SegmentPlace,
)
from taskq_plugins.spark.source import logs
from taskq_plugins.spark.source.logs import FleetSnapshot, LogInventory
from taskq_plugins.spark.source.positions import (
    DataLoss,
    LogHeld,
    LogVanished,
    OptionError,
    Unreadable,
    loss_of,
)

if TYPE_CHECKING:
    from taskq_plugins.spark.source.options import ReadOptions

Positions: TypeAlias = Mapping[str, Position]

#: No limit.
UNLIMITED: Final = 2**62
#: Least bytes of a log's turn, since an even share among thousands of logs could be below a frame.
SHARE_BYTES_MIN: Final = 256 * 1024
#: Cause of a gap made by the log's own compaction.
COMPACTION: Final = "compaction took it"
_COMPACTED: Final = kinds.name_of(Kind.COMPACTED)
_NOTHING: Final = pa.schema([])
#: A stretch is cut only if at least this part of a partition (1/8) is still free.
_CUT_MIN: Final = 8
#: Tries of a plan; it is repeated when compaction removes a segment meanwhile.
_TRIES: Final = 5
_log: Final = logging.getLogger("taskq")


class Stretch(NamedTuple):
    """Whole frames of one segment, and the break before them."""

    log: LogPlace
    place: SegmentPlace
    start: int
    end: int
    break_before: Break | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def piece(self, start: int, end: int) -> Piece:
        log, place = self.log, self.place
        # A piece from 0 on includes the header, which is checked.
        begin = 0 if start == START < end else start
        break_before = self.break_before if start == self.start else None
        return Piece(
            place.path,
            log.device,
            log.log_id,
            log.tag,
            place.first_lsn,
            begin,
            end,
            break_before=break_before,
        )


class Plan(NamedTuple):
    """Pieces to read, and the positions after them.

    Attributes:
        pieces: by partition.
        ends: positions in all logs.
        problems: reasons why logs are not read further, by log id or device.
        skipped: skipped records, in words.
        passed: damage avoided by reading another copy, in words.
        left: unread rest after this plan.
        parents: for each log (id, first lsn that it does not share), oldest first.
    """

    pieces: list[list[Piece]]
    ends: dict[str, Position]
    problems: dict[str, str]
    skipped: list[str]
    passed: list[str]
    left: UnreadRest
    parents: Mapping[str, list[tuple[str, int]]] = MappingProxyType({})


class UnreadRest(NamedTuple):
    """Size of the unread rest of logs."""

    size_bytes: int = 0
    records: int = 0
    logs: int = 0


def plan(
    options: ReadOptions,
    positions: Positions,
    max_bytes: int = UNLIMITED,
    sight: FleetSnapshot | None = None,
    targets: Mapping[str, Position] | None = None,
) -> Plan:
    """Plan the next batch.

    Args:
        options: options of the reader, also for missing and damaged records.
        positions: position in each log; other logs are read from their beginning.
        max_bytes: upper bound of the batch, unless a single frame is larger.
        sight: an existing snapshot of the logs, or None.
        targets: ends to plan to, for these logs only; None for the current ends of all.

    Raises:
        DataLoss, Unreadable: a log cannot be read, and ``options`` do not allow to continue.
    """
    sight = sight or logs.look(options.path, options.devices)
    for _ in range(_TRIES):
        try:
            return _plan(options, positions, max_bytes, sight, targets)
        except FileNotFoundError as error:  # compaction removed a segment since the snapshot
            gone, known = str(error.filename), sight.logs
            sight = logs.look(options.path, options.devices)
            same = {log_id: log for log_id, log in sight.logs.items() if log_id in known}
            sight = sight._replace(logs=same)
    raise loss_of("", gone, 0, "without it")


def _plan(
    options: ReadOptions,
    positions: Positions,
    max_bytes: int,
    sight: FleetSnapshot,
    targets: Mapping[str, Position] | None,
) -> Plan:
    batch = _Batch(options, sight, positions, max_bytes, targets or {})
    batch.note_problems()
    waiting = [
        Backlog(standing, positions.get(log_id) or standing.earliest, end)
        for log_id, standing in sight.logs.items()
        if (end := standing.end if targets is None else targets.get(log_id))
        and not batch.is_at(log_id, end)
    ]
    # The log with the oldest position comes first, so each gets its turn.
    waiting.sort(key=lambda log: (log.here.time_ns, log.standing.log.log_id))
    while waiting and batch.take(waiting):
        waiting = [rest for rest in map(batch.rest_of, waiting) if rest is not None]
    chosen = sorted(batch.chosen, key=lambda stretch: (stretch.log.device, stretch.place.first_lsn))
    pieces = pack(chosen, options.target_partition_bytes)
    parents = {log_id: log.parents for log_id, log in sight.logs.items()}
    rest = left(sight, batch.ends)
    return Plan(pieces, batch.ends, batch.problems, batch.skipped, batch.passed, rest, parents)


def between(options: ReadOptions, begins: Positions, ends: Positions) -> list[list[Piece]]:
    """Return the pieces of a batch that was planned before; records lost since are skipped.

    Raises:
        DataLoss: records were lost, and ``options`` do not allow to continue.
    """
    if options.fail_on_data_loss == "hold":  # its end is fixed: unreadable records become a gap
        options = options.model_copy(update={"fail_on_data_loss": "false", "holds": True})
    moved = {log_id: end for log_id, end in ends.items()
             if log_id not in begins or begins[log_id].place != end.place}  # fmt: skip
    if not moved:
        return []
    sight = logs.look(options.path, options.devices)
    # Without the parents that do not move, which a child would wait for.
    there = {log_id: log for log_id, log in sight.logs.items() if log_id in moved}
    known = {log_id: at._replace(held="") for log_id, at in begins.items() if log_id in moved}
    planned = plan(options, known, UNLIMITED, sight._replace(logs=there), moved)
    pieces = planned.pieces
    for log_id, end in moved.items():
        at = planned.ends.get(log_id)
        if at is not None and at.place >= end.place:
            continue
        lsn = end.lsn if at is None else at.lsn
        loss = _loss(end._replace(lsn=lsn), end.segment, "without it")
        if options.fail_on_data_loss == "true":
            raise loss
        _log.warning("left out: %s", loss)
        if log_id in there:
            path = f"{there[log_id].log.path}/log/{segment_name(end.segment)}"
            place = SegmentPlace(end.segment, path, 0, 0, 0)
            gap = Stretch(there[log_id].log, place, end.offset, end.offset, Break("gap", lsn))
            pieces.append([gap.piece(end.offset, end.offset)])
    return pieces


class Backlog(NamedTuple):
    """A log with unread records: from ``here`` up to ``target``."""

    standing: LogInventory
    here: Position
    target: Position


class _Batch:
    """A batch during planning.

    Attributes:
        chosen: stretches to read.
        ends: positions after these.
        problems, skipped, passed: as in ``Plan``.
        passes: whether missing records are skipped.
        targets: ends to plan to, if not the logs' ends.
    """

    def __init__(
        self,
        options: ReadOptions,
        sight: FleetSnapshot,
        positions: Positions,
        max_bytes: int,
        targets: Positions,
    ) -> None:
        self.chosen: list[Stretch] = []
        self.ends: dict[str, Position] = dict(positions)
        self.problems: dict[str, str] = {}
        self.skipped: list[str] = []
        self.passed: list[str] = []
        self.passes = options.fail_on_data_loss == "false"
        self.targets = targets
        self._options = options
        self._sight = sight
        self._before = positions
        self._room = max_bytes
        self._fails = options.fail_on_data_loss == "true"
        self._holds = options.holds or options.fail_on_data_loss == "hold"
        self._skips = options.corrupt_mode != "fail"
        self._waiting: dict[str, Backlog] = {}
        #: logs without a single readable byte
        self._held = set[str]()

    def note_problems(self) -> None:
        """Note logs that cannot be read at all, unless their device now has another log."""
        sight, chosen = self._sight, self._options.devices
        for problem in sight.problems:
            self.problems[problem.log_id or problem.device] = problem.text
            if not (self._skips or self._holds):
                raise Unreadable(problem.error)
        devices = {standing.log.device for standing in sight.logs.values()}
        for log_id in self._before.keys() - sight.logs.keys():
            at = self._before[log_id]
            held = sight.problem_of(at.device, log_id)
            is_chosen = chosen is None or bool({at.device, log_id} & chosen)
            if is_chosen and not held and at.device not in devices:
                vanished = LogVanished(at.device, log_id)
                if self._fails:
                    raise vanished
                held = str(vanished)
                if not self.passes:
                    self.problems[log_id] = held
                elif at.held != held:
                    self._skip(held)
            elif held:
                self.problems[log_id] = held
            self.ends[log_id] = at._replace(held=held)

    def is_at(self, log_id: str, end: Position) -> bool:
        """Return whether a log was read to its end; if so, it is no longer held."""
        here = self._before.get(log_id)
        if here is None or (here.place, here.time_ns) != (end.place, end.time_ns):
            return False
        self.ends[log_id] = here._replace(held="")
        return True

    def take(self, waiting: Sequence[Backlog]) -> bool:
        """Divide the free bytes among logs, parents first; return False if nothing was taken."""
        room, self._waiting = self._room, {log.standing.log.log_id: log for log in waiting}
        for log_id in list(self._waiting):
            self._take(log_id)
        return 0 < self._room < room

    def rest_of(self, backlog: Backlog) -> Backlog | None:
        """Return the rest of a log that can be read further, or None."""
        at = self.ends.get(backlog.standing.log.log_id)
        if at is None or at.held or at.place >= backlog.target.place:
            return None
        return backlog._replace(here=at)

    def _take(self, log_id: str) -> None:
        backlog = self._waiting.get(log_id)
        if backlog is None:
            return
        for parent, next_lsn in backlog.standing.parents:
            self._take(parent)
            at = self.ends.get(parent)
            if parent in self._sight.logs and not self._is_read(parent, at, next_lsn):
                return
        share = max(self._room // len(self._waiting), min(SHARE_BYTES_MIN, self._room))
        del self._waiting[log_id]
        here, taken = self._advance(backlog, share)
        if here.held:
            self.problems[log_id] = here.held
            self._held.add(log_id)
        if taken or log_id in self._before:
            self.ends[log_id] = here
        if taken:
            self.passed += self._sight.passed.get(log_id, ())
        self.chosen += taken
        self._room -= sum(stretch.size_bytes for stretch in taken)

    def _is_read(self, parent: str, at: Position | None, next_lsn: int) -> bool:
        """Return whether a parent was read up to its child's beginning, or as far as possible."""
        standing = self._sight.logs[parent]
        end = self.targets.get(parent) or standing.end
        if not end.segment or parent in self._held:
            return True
        here = at or standing.earliest
        is_at_end = bool(here.held) or here.lsn >= min(next_lsn, end.lsn)
        # A log without records has no position, and may have segments, of later epochs, too.
        return is_at_end or not left_of(standing, here).size_bytes

    def _advance(self, backlog: Backlog, room: int) -> tuple[Position, list[Stretch]]:
        """Return the new position in a log, and the stretches before it."""
        standing, here, target = backlog
        taken: list[Stretch] = []
        begun = here._replace(held="")
        try:
            for whole in stretches(standing, here, target.place, self.on_loss):
                is_first = not self.chosen and not taken
                stretch = _within(whole, room, may_be_more=is_first)
                if stretch is None:
                    break
                parts, problem = self._checked(standing, stretch)
                for part in parts:
                    taken.append(part)
                    room -= part.size_bytes
                    begun = logs.at_border(standing, part.place, part.end)
                if problem:
                    raise LogHeld(problem)
                if stretch.end < whole.end:
                    break
        except DataLoss as error:
            if self._fails:
                raise
            begun = begun._replace(held=str(error))
        return begun, taken

    def _checked(self, standing: LogInventory, stretch: Stretch) -> tuple[list[Stretch], str]:
        """Return the readable parts of a stretch, from whole copies, and the problem after them."""
        copies, stops = standing.copies_of(stretch.place), self._holds and not self._skips
        parts, problem = [stretch], ""
        if stops or len(copies) > 1:
            parts, rest, problem = _whole_parts(stretch, copies, self.passed)
            if problem and not stops:
                parts, problem = [*parts, rest], ""
        if self._skips:
            self.skipped += chain.from_iterable(map(_damage_in, parts))
        return parts, problem

    def on_loss(self, error: LogError) -> None:
        """Raise the error, unless the options skip missing or unreadable records."""
        if not (self._skips if isinstance(error, LogHeld) else self.passes):
            raise error
        self._skip(str(error))

    def _skip(self, text: str) -> None:
        self.skipped.append(text)
        _log.warning("left out: %s", text)


def _within(stretch: Stretch, room: int, *, may_be_more: bool) -> Stretch | None:
    """Return the first whole frames of a stretch that fit; None if no frame fits."""
    if stretch.size_bytes <= room:
        return stretch
    if room <= 0 and not may_be_more:
        return None
    with SegmentFile(stretch.place.path, stretch.log.log_id, stretch.place.first_lsn) as file:
        after = stretch.start + 8
        border = file.last_before(min(stretch.start + room + 1, stretch.end), start=after)
        if border is None and may_be_more:
            border = file.first_from(after, stretch.end)
            return stretch if border is None else stretch._replace(end=border[0])
    return None if border is None else stretch._replace(end=border[0])


def _whole_parts(
    stretch: Stretch, copies: Sequence[SegmentPlace], passed: list[str]
) -> tuple[list[Stretch], Stretch, str]:
    """Return the decodable parts, each from some copy, the rest, and the problem of the rest.

    ``passed`` gets the problems of copies that another copy replaced.
    """
    parts, problem = list[Stretch](), ""
    while stretch.start < stretch.end:
        problems, part = list[str](), None
        for place in sorted(
            copies, key=lambda copy: copy.epoch
        ):  # copies without an epoch are unreadable
            end = min(stretch.end, place.size_bytes)
            if part is None and stretch.start < end:
                part, problem = _readable(stretch._replace(place=place, end=end))
                problems.append(problem)
        if part is None:
            return parts, stretch, problems[0]
        instead = f"; {shown(part.place.path)} was read"
        passed += (text.removesuffix(ADVICE) + instead for text in problems[:-1])
        parts.append(part)
        stretch = stretch._replace(start=part.end, break_before=None)
    return parts, stretch, ""


def _readable(stretch: Stretch) -> tuple[Stretch | None, str]:
    """Return the decodable beginning of a stretch, and the problem after it."""
    try:
        for _ in decode(stretch.piece(stretch.start, stretch.end), _NOTHING):
            pass
    except SegmentDamaged as error:
        end, problem = max(error.offset, stretch.start), str(error)
    except SegmentMissing as error:
        raise FileNotFoundError(2, "compaction took it", error.path) from error
    except LogError as error:
        end, problem = _decoded_to(stretch), str(error)
    else:
        return stretch, ""
    return (stretch._replace(end=end) if end > stretch.start else None), problem


def _damage_in(stretch: Stretch) -> Iterator[str]:
    columns = pa.schema([DETAILS.field(name) for name in ("kind", "value")])
    piece = stretch.piece(stretch.start, stretch.end)
    try:
        for rows in decode(piece, columns, corrupt=Corrupt.BREAK):
            for row in rows.filter(pc.field("kind") == BREAK).to_pylist():
                gone = Break(**json.loads(row["value"]))
                yield f"{shown(piece.path)}: {gone.cause}, from lsn {gone.lsn} on"
    except LogError as error:
        yield str(error)


def _decoded_to(stretch: Stretch) -> int:
    end = stretch.start
    with (
        suppress(LogError),
        SegmentFile(stretch.place.path, stretch.log.log_id, stretch.place.first_lsn) as file,
    ):
        for offset, header in file.hop(stretch.start, stretch.end):
            for _ in decode(stretch.piece(offset, offset + header.size), _NOTHING):
                pass
            end = offset + header.size
    return end


# -- continue from a position ----------------------------------------------------------------------


def stretches(
    standing: LogInventory,
    position: Position,
    end: tuple[int, int],
    on_loss: Callable[[LogError], None],
) -> Iterator[Stretch]:
    """Yield the bytes from a position to ``end`` by segment, each with the break before it.

    ``on_loss`` gets an error for missing records; it raises the error or accepts the loss.
    """
    here, break_before = _resumed(standing, position, on_loss)
    last, end_offset = end
    chain = [place for place in standing.places if here.segment <= place.first_lsn <= last]
    for before, place in pairwise([None, *chain]):
        assert place is not None
        if before is not None:
            break_before = _gap_between(standing, before, place, on_loss) or break_before
        low = max(here.offset if place.first_lsn == here.segment else START, START)
        high = place.size_bytes if place.first_lsn < last else end_offset
        if place.size_bytes < high:
            high = _whole_end(standing, place)
        if low < high:
            yield Stretch(standing.log, place, low, high, break_before)
            break_before = None
    for lsn in sorted(standing.left_out):
        if lsn > (chain[-1].first_lsn if chain else here.segment):
            on_loss(LogHeld(str(standing.left_out[lsn])))


def _whole_end(standing: LogInventory, place: SegmentPlace) -> int:
    """Return the offset after the last whole frame of a truncated segment."""
    with standing.open(place) as file:
        last = file.last_before(file.size_bytes)
        if last is not None and last[0] + last[1].size > file.size_bytes:
            last = file.last_before(last[0])
    return START if last is None else last[0] + last[1].size


def _resumed(
    standing: LogInventory, at: Position, on_loss: Callable[[LogError], None]
) -> tuple[Position, Break | None]:
    """Return the position to continue from, and the break before it.

    It differs from ``at`` if compaction removed the segment after it was read, if a recovery moved
    frames, or if a loss is accepted.
    """
    if not at.segment:
        return standing.earliest, None
    if not standing.end.segment and not standing.bound:
        text = str(next(iter(standing.left_out.values()), ""))
        vanished = LogVanished(standing.log.device, standing.log.log_id)
        on_loss(LogHeld(text) if text else vanished)
        return at, None
    if at.lsn >= (standing.bound or at.lsn + 1):
        return at, None  # a parent that was read to its end from its own, now missing directory
    place = standing.find(at.segment)
    if place is not None:
        with standing.open(place) as file:
            if _has_frame(file, at):
                return at, None
        moved = _moved(standing, at)
        if moved is not None:
            return moved, None
        # A clone may have less of a segment that compaction removed from the original.
        if place.size_bytes >= at.offset:
            raise LogHeld(
                f"device {at.device}: {segment_name(at.segment)}, offset {at.offset}, of log "
                f"{standing.log.log_id} does not hold the frame that was read last "
                f"(lsn {at.lsn - 1}): the file was damaged, cut, or replaced by another; put the "
                f"right one back"
            )
    return _elsewhere(standing, at, on_loss)


def _elsewhere(
    standing: LogInventory, at: Position, on_loss: Callable[[LogError], None]
) -> tuple[Position, Break | None]:
    """Return the position to continue from after a missing segment, and the break."""
    following = next((place for place in standing.places if place.first_lsn >= at.lsn), None)
    if following is None:
        moved = logs.at_lsn(standing, at.lsn)
        if at.segment not in standing.left_out and moved.place < standing.end.place:
            return moved, None
        if standing.end.lsn < at.lsn and not standing.left_out:
            raise LogHeld(
                f"device {at.device}: log {standing.log.log_id} ends at lsn "
                f"{standing.end.lsn}, before what was read (lsn {at.lsn}): it was restored "
                f"from a backup and nobody has opened it since, or files are missing"
            )
        return at, None
    here = standing.start_of(following)
    if _is_next(standing, following, at):
        return here, None
    declared = standing.gap_before(following.first_lsn)
    if declared is not None and declared.left[:2] == at.place:
        return here, _gap(standing, at.lsn, following)
    why = standing.left_out.get(at.segment)
    on_loss(LogHeld(str(why)) if why else _loss(at, at.segment, f"at lsn {following.first_lsn}"))
    return here, _gap(standing, at.lsn, following)


def _moved(standing: LogInventory, at: Position) -> Position | None:
    """Return the end of the last read frame, if a recovery moved this frame."""
    stood = logs.at_lsn(standing, at.lsn - 1)
    place = standing.find(stood.segment)
    if place is None or not at.frame:
        return None
    with standing.open(place) as file:
        header = file.frame_at(stood.offset)
    if header is None or (header.next_lsn, header.time_ns) != (at.lsn, at.time_ns):
        return None
    return logs.at_border(standing, place, stood.offset + header.size)


def _has_frame(file: SegmentFile, at: Position) -> bool:
    if at.offset > file.size_bytes:
        return False
    if at.frame:
        header = file.frame_at(at.frame)
        if header is None:  # the frame was damaged after it was read
            return True
        is_last = (header.next_lsn, header.time_ns) == (at.lsn, at.time_ns)
        return is_last and at.frame + header.size == at.offset
    if at.offset in {START, file.size_bytes}:
        return True
    header = file.frame_at(at.offset)
    # After damage there may be no readable frame.
    return header is None or header.first_lsn >= at.lsn


def _is_next(standing: LogInventory, following: SegmentPlace, at: Position) -> bool:
    if following.first_lsn <= at.lsn:
        return True
    with standing.open(following) as file:
        header = file.header()
    return at.time_ns == (header.created_ns if header is not None else 0) != 0


def _gap_between(
    standing: LogInventory,
    before: SegmentPlace,
    place: SegmentPlace,
    on_loss: Callable[[LogError], None],
) -> Break | None:
    border = edges(standing.log, before)
    for lsn, why in standing.left_out.items():
        if before.first_lsn < lsn < place.first_lsn:
            on_loss(LogHeld(str(why)))
            return _gap(standing, border.next_lsn, place)
    if standing.gap_before(place.first_lsn) is not None:
        return _gap(standing, border.next_lsn, place)
    if follows(standing.log, before, place):
        return None
    where = f"at least one segment before {segment_name(place.first_lsn)}"
    on_loss(loss_of(standing.log.device, where, border.next_lsn, f"at lsn {place.first_lsn}"))
    return _gap(standing, border.next_lsn, place)


def _gap(standing: LogInventory, lsn: int, place: SegmentPlace) -> Break:
    declared = standing.gap_before(place.first_lsn)
    if declared is not None:
        return Break("gap", lsn, place.first_lsn, declared.end_lsn, declared.cause)
    end_lsn = _compacted(standing, place.first_lsn)
    return Break("gap", lsn, place.first_lsn, end_lsn, COMPACTION if end_lsn else None)


def _compacted(standing: LogInventory, first_lsn: int) -> int | None:
    log = standing.log
    columns = pa.schema([DETAILS.field(name) for name in ("kind", "lsn", "token")])
    says = (pc.field("kind") == _COMPACTED) & (pc.field("token") >= first_lsn)
    for place in standing.from_segment(first_lsn):
        end = standing.size(place)
        if end <= START:
            continue
        piece = Stretch(log, place, START, end).piece(START, end)
        with suppress(LogError):
            for rows in decode(piece, columns, corrupt=Corrupt.SKIP):
                if lsns := rows.filter(says)["lsn"]:
                    return int(lsns[0].as_py()) + 1
    return None


def _loss(at: Position, segment: int, resumed: str) -> DataLoss:
    return loss_of(at.device, f"segment {segment_name(segment)}", at.lsn, resumed)


# -- presence and rest -----------------------------------------------------------------------------


def check_found(options: ReadOptions, sight: FleetSnapshot) -> None:
    """Raise an error for a directory without logs, or for missing devices."""
    if not sight.logs and not sight.problems:
        if options.devices is not None:
            names = ", ".join(sorted(options.devices)[:5])
            raise OptionError("devices", f": none of them is in {options.path}: {names}")
        raise FleetError(
            f"{options.path} holds no task log: give the option path the directory of one (it has "
            f"a file taskq.json), or a directory of such directories"
        )


def left(sight: FleetSnapshot, ends: Positions) -> UnreadRest:
    """Return the unread rest of the logs."""
    size = records = count = 0
    for log_id, standing in sight.logs.items():
        of_log = left_of(standing, ends.get(log_id) or standing.earliest)
        size, records = size + of_log.size_bytes, records + of_log.records
        count += of_log.size_bytes > 0
    return UnreadRest(size, records, count)


def left_of(standing: LogInventory, here: Position) -> UnreadRest:
    """Return the unread rest of one log."""
    if here.place >= standing.end.place:
        return UnreadRest()
    size = records = 0
    places = standing.from_segment(here.segment)
    for number, place in enumerate(places):
        is_here = place.first_lsn == here.segment
        size += max(standing.size(place) - (here.offset if is_here else START), 0)
        if place.first_lsn == standing.end.segment:
            next_lsn = standing.end.lsn
        elif number + 1 < len(places) and places[number + 1].epoch == place.epoch:
            next_lsn = places[number + 1].first_lsn
        else:
            next_lsn = edges(standing.log, place).next_lsn
        records += max(next_lsn - max(place.first_lsn, here.lsn if is_here else 0), 0)
    return UnreadRest(size, records, 1)


# -- partitions ------------------------------------------------------------------------------------


def pack(between: Iterable[Stretch], target_bytes: int) -> list[list[Piece]]:
    """Return pieces by partition, in the order of the stretches: about ``target_bytes`` in each.

    There are few partitions, since each costs Spark about 28 ms. The result depends only on the
    stretches and on bytes that never change.
    """
    parts: list[list[Piece]] = []
    room = 0
    for stretch in between:
        start, is_begun = stretch.start, False
        while start < stretch.end or not is_begun:
            if not parts or room <= 0:
                parts.append([])
                room = target_bytes
            end = stretch.end
            if end - start > room + target_bytes // _CUT_MIN:
                end = _border(stretch, start + room)
            parts[-1].append(stretch.piece(start, end))
            room -= end - start
            start, is_begun = end, True
    return parts


def _border(stretch: Stretch, offset: int) -> int:
    place = stretch.place
    with SegmentFile(place.path, stretch.log.log_id, place.first_lsn) as file:
        border = file.first_from((offset + 7) & ~7, stretch.end)
    return border[0] if border is not None else stretch.end
