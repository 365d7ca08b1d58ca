"""The log at a past moment: the fold of its frames up to there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from taskq.core import durations, errors, kinds, model, parsing
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format import codec, frames
from taskq.log.journal.recovery import compactions
from taskq.log.machine.ports import Clock

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

_FORMS: Final = 'give a span back from now ("2h"), a time ("2024-05-01T12:00") or an lsn (4711)'
#: Most digits of an lsn.
_LSN_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A past moment of a log; one of both fields is set.

    A reader's journal is cut at the log's end of that time, so folds and lists on it see the past.
    A frame is atomic: an lsn inside a frame means the state after that frame.

    A time is by today's clock. Later steps of the clock count as corrections, so "two hours ago" is
    right even if a machine without a battery had the wrong time then.

    Attributes:
        lsn: right after the frame with this record, or the last frame before it.
        time_ns: nanoseconds of wall time by the present clock.
    """

    lsn: int | None = None
    time_ns: int | None = None

    @classmethod
    def of(cls, at: datetime | int) -> Moment:
        """Return the moment of a datetime with a time zone, or of an lsn.

        Raises:
            UsageError: ``at`` is neither.
        """
        if isinstance(at, datetime):
            return cls(time_ns=durations.moment_ns(at, "at"))
        try:
            lsn = parsing.whole(at, "at")
        except errors.UsageError:
            lsn = -1
        if lsn < 0:
            raise errors.UsageError(
                f"at is {at!r:.60}: give a datetime with a time zone, or an lsn"
            )
        return cls(lsn=lsn)

    @classmethod
    def parse(cls, text: str, now_ns: int, what: str = "the moment") -> Moment:
        """Return the moment in a text; a time without a zone is local.

        Raises:
            UsageError: the text is no duration, no time and no lsn.
        """
        text = text.strip()
        if text.isascii() and text.isdigit() and len(text) <= _LSN_DIGITS:
            return cls(lsn=int(text))
        try:
            return cls(time_ns=durations.moment_ns(datetime.fromisoformat(text).astimezone(), what))
        except (ValueError, OverflowError) as error:
            if isinstance(error, errors.UsageError):
                raise
        try:
            return cls(time_ns=max(now_ns - durations.nanoseconds(text, what), 0))
        except errors.UsageError:
            raise errors.UsageError(f"{what} is {text!r:.60}: {_FORMS}") from None


class Still:
    """A clock with a fixed wall time and a running steady time."""

    def __init__(self, clock: Clock, now_ns: int) -> None:
        self._now_ns = now_ns
        self.steady_ns: Final = clock.steady_ns

    def wall_ns(self) -> int:
        return self._now_ns


class _Steps(NamedTuple):
    #: sum of all steps of the clock
    steps_ns: int
    #: lsn and time of the oldest possible moment; 0 if the log is complete
    floor_lsn: int
    floor_ns: int


def cut_at(journal: Journal, moment: Moment) -> int:
    """Cut a reader's journal at the log's end of the moment; return the wall time then."""
    _refuse_future(journal, moment)
    steps = _steps_of(journal)
    cursor = journal.start()
    end = _copy(cursor)
    steps_ns = time_ns = 0
    for _, item in journal.frames(cursor):
        if isinstance(item, frames.Gap):
            if moment.lsn is not None and item.first_lsn > moment.lsn:
                break
        else:
            sum_ns = steps_ns + _step_of(item)
            if _is_beyond(moment, item.header, steps.steps_ns - sum_ns):
                break
            steps_ns, time_ns = sum_ns, item.header.time_ns
        end = _copy(cursor)
    if end.next_lsn <= steps.floor_lsn:
        raise errors.MomentGone(journal.path, steps.floor_lsn, _iso_time(steps.floor_ns))
    journal.segment, journal.offset, journal.next_lsn = end.segment, end.offset, end.next_lsn
    journal.time_ns = time_ns
    journal.is_past = True
    if moment.time_ns is None:
        return time_ns
    return max(moment.time_ns - steps.steps_ns + steps_ns, time_ns)


def _refuse_future(journal: Journal, moment: Moment) -> None:
    if moment.lsn is not None and moment.lsn >= journal.next_lsn:
        raise errors.UsageError(
            f"the log has no lsn {moment.lsn} yet: its newest is {journal.next_lsn - 1}"
        )
    if moment.time_ns is not None and moment.time_ns > journal.clock.wall_ns():
        raise errors.UsageError(
            f"{_iso_time(moment.time_ns)} is still to come: give a moment of the past"
        )


def _is_beyond(moment: Moment, header: codec.FrameHeader, later_steps_ns: int) -> bool:
    """Return whether a frame came after the moment, given the clock's steps since the frame."""
    if moment.time_ns is not None:
        return header.time_ns + later_steps_ns > moment.time_ns
    return moment.lsn is not None and header.first_lsn > moment.lsn


def _steps_of(journal: Journal) -> _Steps:
    """Return facts about the whole log that are needed to find a moment in it."""
    kept = journal.files.lsns[0] if journal.files.lsns else 0
    steps_ns = floor_lsn = floor_ns = 0
    for frame in frames.whole(journal.frames(journal.start())):
        steps_ns += _step_of(frame)
        for lsn, below in compactions(frame):
            # While the segments that it names still exist, no record is missing.
            if below <= kept:
                floor_lsn, floor_ns = lsn, frame.header.time_ns
    return _Steps(steps_ns, floor_lsn, floor_ns)


def _step_of(frame: frames.Frame) -> int:
    """Return the step of the clock at the start of a frame, 0 for none."""
    if frame.data[frame.at + codec.KIND_AT] not in kinds.STEPS:
        return 0
    step_ns: int = codec.STEP.unpack_from(frame.data, frame.at)[6]
    return step_ns


def _copy(cursor: frames.Cursor) -> frames.Cursor:
    return frames.Cursor(cursor.segment, cursor.offset, cursor.next_lsn)


def _iso_time(time_ns: int) -> str:
    return durations.utc_moment(time_ns // model.SECOND_NS * model.SECOND_NS).isoformat()
