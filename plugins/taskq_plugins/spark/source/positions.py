"""Places in logs as a stream's offsets keep them, and as people write them in options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from taskq.errors import LogError, UsageError
from taskq.values import parse_json
from taskq_plugins.fleet.inventory import START

if TYPE_CHECKING:
    from taskq_plugins.fleet.inventory import DurableEnd

_LSN_MAX: Final = 2**63
_LOGS_MAX: Final = 100_000
#: Exclusive upper bounds of a position's numbers, and the required ones.
_BOUNDS: Final = {
    "segment": _LSN_MAX, "offset": 2**32, "lsn": _LSN_MAX, "time_ns": 2**63, "frame": 2**32,
    "from_segment": _LSN_MAX, "from_offset": 2**32,
}  # fmt: skip
_NEEDED: Final = frozenset({"segment", "offset"})


class Position(NamedTuple):
    """How far a log was read: everything before ``offset`` of a segment, where frames meet.

    ``frame`` is where the frame before that stands (0: none, or not known) and ``time_ns`` its
    time, so that a reader sees whether it is still there. ``from_segment`` and ``from_offset`` are
    where reading began in this log: a first batch is planned once more from there. ``held`` says
    why reading does not go on, "" if it does.
    """

    device: str
    segment: int
    offset: int
    lsn: int
    time_ns: int = 0
    frame: int = 0
    from_segment: int = 0
    from_offset: int = 0
    held: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    def begun(self) -> Position:
        return self._replace(from_segment=self.segment, from_offset=self.offset)

    def origin(self) -> Position:
        first = self.from_segment
        return Position(self.device, first, self.from_offset, first).begun()

    def of(self, stream: Position) -> Position:
        return self._replace(from_segment=stream.from_segment, from_offset=stream.from_offset)

    def moved_to(self, end: DurableEnd) -> Position:
        mark = end.mark
        return self._replace(
            segment=mark.segment,
            offset=mark.offset,
            lsn=mark.next_lsn,
            frame=end.frame,
            time_ns=end.time_ns,
            held="",
        )


class Lsn(NamedTuple):
    """A place given as an lsn: the frame with it, or the first later one."""

    lsn: int


Edge: TypeAlias = Literal["earliest", "latest"]
Given: TypeAlias = Position | Lsn | Edge
#: A place for all logs, or by log id or device.
Bound: TypeAlias = Edge | Mapping[str, Given]


def parse_bound(text: str) -> Bound:
    word = text.strip().lower()
    if word in get_args(Edge):
        return cast("Edge", word)
    values = parse_json(text)
    if not isinstance(values, dict) or len(values) > _LOGS_MAX:
        raise ValueError("no object")
    return {name: _given(value) for name, value in values.items()}


def _given(value: object) -> Given:
    if value in get_args(Edge):
        return cast("Edge", value)
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no place")
    if set(value) == {"lsn"}:
        return Lsn(_number(value, "lsn", _LSN_MAX))
    return _position_of(value)


def _position_of(value: dict[str, Any]) -> Position:
    unknown = set(value) - set(Position._fields)
    if unknown:
        raise ValueError(f"unknown {sorted(unknown)}")
    numbers = {name: _number(value, name, limit) for name, limit in _BOUNDS.items()}
    device, held = (str(value.get(name, "")) for name in ("device", "held"))
    position = Position(device, held=held, **numbers)
    return position._replace(offset=max(position.offset, START))


def _number(value: dict[str, Any], name: str, limit: int) -> int:
    number = value.get(name, None if name in _NEEDED else 0)
    if type(number) is not int or not 0 <= number < limit:
        raise ValueError(f"{name} is {number!r}")
    return number


def positions_to_json(positions: Mapping[str, Position]) -> dict[str, dict[str, int | str]]:
    plain = Position._field_defaults
    return {
        log_id: {
            name: value
            for name, value in positions[log_id]._asdict().items()
            if name not in plain or value != plain[name]
        }
        for log_id in sorted(positions)
    }


def positions_from_json(values: dict[str, Any]) -> dict[str, Position]:
    try:
        return {str(log_id): _position_of(value) for log_id, value in values.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the checkpoint holds an offset that this source did not write ({error}): "
            f"give the query a checkpoint of its own"
        ) from error


_GO_ON: Final = "with the option failOnDataLoss=false reading goes on"


class OptionError(UsageError):
    """An option is unknown, missing, or has a value that is not allowed.

    Attributes:
        option: its name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option}{message}")
        self.option = option


class Unreadable(LogError):
    """A log or a segment cannot be read, by its permissions or its content.

    Attributes:
        cause: the original error.
    """

    def __init__(self, cause: LogError) -> None:
        super().__init__(
            f"{cause}; with the option corruptMode=skip (or quarantine) it is left out"
        )
        self.cause = cause


class DataLoss(LogError):
    """Records that were to be read are not in the log any more, or never came with it.

    Attributes:
        device: whose log it is.
        lsn: of the first record that is missing, if there was one.
    """

    def __init__(self, device: str, where: str, lsn: int, goes_on: str) -> None:
        super().__init__(
            f"device {device}: {where} is missing, which held records from lsn {lsn} on: "
            f"compaction took it before it was read, or it was not copied; {_GO_ON} {goes_on}"
        )
        self.device = device
        self.lsn = lsn


class LogVanished(DataLoss):
    """A log that was being read is not there any more, and its device has no other."""

    def __init__(self, device: str, log_id: str) -> None:
        LogError.__init__(
            self,
            f"device {device}: its log {log_id} is gone from the directory, read or not; {_GO_ON} "
            f"with the others",
        )
        self.device = device
        self.lsn = 0


class LogHeld(DataLoss):
    """A log of which nothing can be read before something is gone; with its own words."""

    def __init__(self, text: str) -> None:
        LogError.__init__(self, text)
        self.device, self.lsn = "", 0
