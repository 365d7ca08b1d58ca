"""A device's side of a session: what it asks, given what it was answered. No line, no clock.

``push`` is a generator: it gives out requests to the hub and orders to the device's own log, and is
sent the answers. A line that drops is the driver's: it closes the generator and begins another
later, and nothing is remembered between the two. Where an answer does not fit, it asks anew where
the hub stands, so that whatever happened is found by content.
"""

from __future__ import annotations

import hashlib
from threading import Thread
from typing import TYPE_CHECKING, Final

from taskq.engine import Border, segment_name
from taskq.errors import LogDamaged, LogError
from taskq_plugins.hub.device.compare import Verdict, compare
from taskq_plugins.hub.messages import (
    ASKED_MAX,
    NOWHERE,
    SPILL_MAX,
    Append,
    Ask,
    Declare,
    Kind,
    Known,
    Missing,
    Refused,
    Seal,
    Skip,
    SpillAsk,
    SpillPart,
    Stored,
    Sync,
    Synced,
    Trouble,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from taskq.engine import DurableLog
    from taskq_plugins.hub.messages import Answer, Request

#: So often a session asks anew where the hub stands; a healthy one needs a break, and what follows.
_ROUNDS_MAX: Final = 12


class Unsettled(LogError):
    """A session did not come to an end, though every request of it was answered."""


def push(
    log: DurableLog, part_bytes: Callable[[], int]
) -> Generator[Request | Skip, Answer | None, list[Verdict]]:
    """Bring the hub's copy to where the log ends; returns the verdicts that were drawn.

    Args:
        log: as it stands now: what is written meanwhile goes with the next session.
        part_bytes: of the next request, unless one frame is larger.

    Raises:
        Unsettled: the hub goes on answering that it stands elsewhere.
        LogDamaged: the log does not read back.
    """
    verdicts: list[Verdict] = []
    for _ in range(_ROUNDS_MAX):
        identity = log.identity
        told = yield Sync(identity.log_id, identity.created_ns, identity.incompat, log.end)
        if not isinstance(told, Synced):
            continue
        verdict = compare(told, log)
        verdicts.append(verdict)
        if _may_give_again(log, told, verdict):
            yield Skip(told.high_lsn)
        if verdict is Verdict.AHEAD:
            return verdicts
        if verdict is Verdict.GAP:
            at = Border(log.segments[0])
            cause = "a limit of the device's log took it before it was sent"
            if told.at.next_lsn < log.pin:
                cause = "the hub lost what it had"
            yield _declared(log, told, told.at, Kind.GAP, at, cause)
        elif verdict is Verdict.OLDER:
            at = Border(log.segments[0])
            yield _declared(log, told, told.at, Kind.FORK, at, "the log begins before it again")
        elif verdict is Verdict.FORKED:
            at = yield from _parting(log, told)
            yield _declared(log, told, told.at, Kind.FORK, at, "the log was set back")
        elif (yield from _send_bodies(log, told, verdict, part_bytes)) and (
            yield from _send(log, told, verdict, part_bytes)
        ):
            return verdicts
    raise Unsettled(
        f"after {_ROUNDS_MAX} rounds the hub still stands elsewhere: see what it says of the device"
    )


def _may_give_again(log: DurableLog, told: Synced, verdict: Verdict) -> bool:
    """Return whether the log could give numbers to records that the hub has given to others.

    On whatever branch the hub has them: a log may be set back twice, to what both have.
    """
    if verdict is Verdict.GAP and told.high_lsn > log.segments[0]:
        return True
    parted = (Verdict.AHEAD, Verdict.FORKED, Verdict.OLDER)
    return verdict in parted or told.high_lsn > log.next_lsn


def _declared(
    log: DurableLog, told: Synced, left: Border, kind: Kind, at: Border, cause: str
) -> Declare:
    log_id, end_lsn = log.identity.log_id, log.end.next_lsn
    return Declare(told.session, log_id, kind, left, at, end_lsn, cause)


# -- sending ---------------------------------------------------------------------------------------


def _send(
    log: DurableLog, told: Synced, verdict: Verdict, part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    """Send what the hub lacks; False if it turned out to stand elsewhere."""
    behind = told.at
    if verdict is Verdict.MOVED:
        # What is left of the segment is a prefix of the hub's.
        behind = log.end_of(behind.segment)
    elif verdict is Verdict.NEW or behind.segment not in log.segments:
        behind = Border(log.segments[0]) if log.segments else NOWHERE
    is_done = told.is_sealed and behind == told.at
    while behind.segment:
        if not is_done and not (yield from _send_segment(log, told, behind, part_bytes)):
            return False
        behind, is_done = Border(log.next_segment(behind.segment)), False
    return True


def _send_bodies(
    log: DurableLog, told: Synced, verdict: Verdict, part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    """Send the files that the hub lacks, before the records that name them; as ``_send``."""
    header = told.at.header if verdict is Verdict.BEHIND else None
    since_ns = 0 if header is None or log.owes_bodies else header.time_ns
    names = log.bodies(since_ns) if log.sends_bodies else []
    for at in range(0, len(names), SPILL_MAX):
        ids = told.session, log.identity.log_id
        answer = yield SpillAsk(*ids, tuple(names[at : at + SPILL_MAX]))
        if not isinstance(answer, Missing):
            return False
        for name, had in answer.files:
            offset, is_on = had, True
            while is_on:
                part = log.body_part(name, offset, part_bytes())
                if part is None:
                    break
                answer = yield SpillPart(*ids, name, offset, *part)
                if not isinstance(answer, Missing):
                    return False
                # One that is not what it is called is asked for from its start, and left.
                is_on = bool(answer.files) and answer.files[0][1] > offset
                offset = answer.files[0][1] if is_on else 0
    return True


def _send_segment(
    log: DurableLog, told: Synced, behind: Border, part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    session, log_id, end = told.session, log.identity.log_id, log.end_of(behind.segment)
    hashing = None if behind.offset else _Hashing()
    while behind.offset < end.offset:
        data, following = log.part(behind, part_bytes())
        if hashing is not None:
            hashing.add(data)
        answer = yield Append(session, log_id, behind, data)
        if answer == Stored(following):
            behind = following
            continue
        if isinstance(answer, Refused) and answer.trouble is Trouble.GAP:
            at = Border(behind.segment)
            yield _declared(log, told, answer.at, Kind.GAP, at, "a segment before it is missing")
        if isinstance(answer, Refused) and answer.trouble is Trouble.DAMAGED:
            raise LogDamaged(
                f"{segment_name(behind.segment)}, behind offset {answer.at.offset}: a frame is not "
                f"as it was written, so the hub does not take it. See taskq verify, and taskq "
                f"repair; then the rest goes"
            )
        return False
    if not log.is_sealed(behind.segment):
        return True
    digest = log.digest(end) if hashing is None else hashing.digest()
    answer = yield Seal(session, log_id, end, digest)
    return answer == Stored(end)


class _Hashing:
    """SHA-256 of what goes over the line, made while the hub is waited for."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._adding: Thread | None = None

    def add(self, data: bytes) -> None:
        """Go on with these bytes."""
        self._done()
        self._adding = Thread(target=self._hash.update, args=(data,), daemon=True)
        self._adding.start()

    def digest(self) -> bytes:
        """Of all that was added."""
        self._done()
        return self._hash.digest()

    def _done(self) -> None:
        if self._adding is not None:
            self._adding.join()


# -- where a fork parts ----------------------------------------------------------------------------


def _parting(log: DurableLog, told: Synced) -> Generator[Request, Answer | None, Border]:
    """The last place of the log that the hub has, too; at worst the start of its oldest segment.

    The hub is asked, and nothing is declared for it: with the newest ends of segments first, then
    with frames of the first segment that differs.
    """
    parting, differs = Border(log.segments[0]), log.segments[0]
    ends = [log.end_of(segment) for segment in reversed(log.segments)]
    for at in range(0, len(ends), ASKED_MAX):
        shared = yield from _shared(log, told, ends[at : at + ASKED_MAX])
        if shared:
            parting = shared[0]
            differs = log.next_segment(parting.segment)
            break
    borders = log.borders(differs) if differs else []
    while borders:
        # All up to one place are shared, and none behind it.
        asked = borders[:: max(len(borders) // ASKED_MAX, 1)][:ASKED_MAX]
        shared = yield from _shared(log, told, asked)
        if shared:
            parting = shared[-1]
        low = borders.index(parting) + 1 if shared else 0
        behind = [one for one in asked if one not in shared]
        borders = borders[low : borders.index(behind[0]) if behind else None]
    return parting


def _shared(
    log: DurableLog, told: Synced, places: list[Border]
) -> Generator[Request, Answer | None, list[Border]]:
    answer = yield Ask(told.session, log.identity.log_id, tuple(places))
    has = answer.has if isinstance(answer, Known) else (False,) * len(places)
    return [place for place, one in zip(places, has, strict=True) if one]
