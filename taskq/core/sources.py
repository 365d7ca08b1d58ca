"""Positions of sources of jobs outside the log, as a fold of the log.

A position is written in the frame of the jobs that lead to it. So a source that reads the position
and goes on from there gives each job once.
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

#: Limits of a log: the number of sources, and the total bytes of their names and positions.
SOURCES_MAX: Final = 10_000
SOURCES_BYTES_MAX: Final = 1024 * 1024
#: Longest position, as JSON.
POSITION_BYTES_MAX: Final = 4_096
#: Header with the name of the source, in a stream's records.
SOURCE_HEADER: Final = "taskq-source"


class Anywhere:
    """Default of ``after``: any position of the source is accepted."""

    def __repr__(self) -> str:
        return "ANYWHERE"


ANYWHERE: Final = Anywhere()


class SourceState(NamedTuple):
    #: the position, as JSON with sorted keys
    position: bytes
    #: wall time of the move to this position
    moved_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A source that a log took jobs from.

    Attributes:
        name: its name.
        position: its position.
        moved: time of the move to this position, in UTC.
    """

    name: str
    position: Any
    moved: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON document."""
        moved = self.moved.isoformat(timespec="milliseconds")
        return {"name": self.name, "position": self.position, "moved": moved}


class SourceRecord(NamedTuple):
    """Content of an INGESTED record: the new position of a source, empty if it is forgotten."""

    name: str
    state: SourceState


class Move(NamedTuple):
    """Move of a source to a position; an empty ``position`` forgets the source.

    ``after`` is its expected position before, empty for an unknown source; None: any position.
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
    """Return the checked arguments of ``ingest``.

    Raises:
        UsageError: the name is invalid, or a position is no JSON value.
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
    """Return a position's bytes in the log; empty for None."""
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
    """Return the position as given to ``ingest``; None for an unknown source."""
    return json.loads(encoded) if encoded else None


def views_of(sources: Mapping[str, SourceState]) -> list[SourceView]:
    return [
        SourceView(
            name=name, position=decode_position(state.position), moved=utc_moment(state.moved_ns)
        )
        for name, state in sorted(sources.items())
    ]
