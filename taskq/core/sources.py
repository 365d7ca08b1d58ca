"""Positions of sources: how far the log has taken jobs from outside, a fold of the log.

A position is written in the frame of the jobs that lead to it, so a source that is asked for the
position, and goes on there, gives each job once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from taskq.core.durations import utc_moment
from taskq.core.errors import PayloadTooLarge, UsageError
from taskq.core.parsing import check_name, parse_json
from taskq.core.values import NamedTuple, dataclass

#: Sources that a log knows at a time, and the bytes of all their names and positions.
SOURCES_MAX: Final = 10_000
SOURCES_BYTES_MAX: Final = 1024 * 1024
#: The longest position, as JSON.
POSITION_BYTES_MAX: Final = 4_096
#: In a stream's records: the name of the source.
SOURCE_HEADER: Final = "taskq-source"


class Anywhere:
    """The default of ``after``: the source may stand anywhere."""

    def __repr__(self) -> str:
        return "ANYWHERE"


ANYWHERE: Final = Anywhere()


class SourceState(NamedTuple):
    """The position of a source."""

    #: JSON with sorted keys
    position: bytes
    #: wall time at which it came there
    moved_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A source that a log took jobs from.

    Attributes:
        name: its name.
        position: where it stands.
        moved: when it came there, in UTC.
    """

    name: str
    position: Any
    moved: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the same as a document of JSON."""
        moved = self.moved.isoformat(timespec="milliseconds")
        return {"name": self.name, "position": self.position, "moved": moved}


class SourceRecord(NamedTuple):
    """Content of an INGESTED record: where a source stands from here on, empty if forgotten."""

    name: str
    state: SourceState


class Move(NamedTuple):
    """A source that is to be taken to a position; ``position`` is empty to forget it.

    ``after`` is where it must stand before, empty for an unknown source; None: anywhere.
    """

    name: str
    position: bytes
    after: bytes | None


def apply_moved(sources: dict[str, SourceState], moved: SourceRecord) -> None:
    if moved.state.position:
        sources[moved.name] = moved.state
    else:
        sources.pop(moved.name, None)


def checked_move(source: str, position: object, after: object) -> Move:
    """Return what ``ingest`` was asked for.

    Raises:
        UsageError: the name is none, or a position is no JSON value.
        PayloadTooLarge: a position is over POSITION_BYTES_MAX.
    """
    check_name("source name", source)
    if position is None:
        raise UsageError(
            f"the position of source {source!r} is None, which stands for an unknown source: give "
            f"any other JSON value, or forget it with forget_source({source!r})"
        )
    before = None if isinstance(after, Anywhere) else encode_position(source, after)
    return Move(source, encode_position(source, position), before)


def encode_position(source: str, position: object) -> bytes:
    """Return a position as the log has it; empty for None."""
    if position is None:
        return b""
    try:
        text = json.dumps(
            position, allow_nan=False, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        encoded = text.encode()
        parse_json(encoded)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the position of source {source!r} is {position!r:.60}, it must be a JSON value: "
            f"a number, text, list or dict of such ({error})"
        ) from None
    if len(encoded) > POSITION_BYTES_MAX:
        raise PayloadTooLarge(
            f"the position of source {source!r}", len(encoded), POSITION_BYTES_MAX,
            "keep what is long elsewhere, or give each part of the source a name of its own",
        )  # fmt: skip
    return encoded


def decode_position(encoded: bytes) -> Any:
    """Return a position as ``ingest`` got it; None for an unknown source."""
    return json.loads(encoded) if encoded else None


def views_of(sources: Mapping[str, SourceState]) -> list[SourceView]:
    return [
        SourceView(
            name=name, position=decode_position(state.position), moved=utc_moment(state.moved_ns)
        )
        for name, state in sorted(sources.items())
    ]
