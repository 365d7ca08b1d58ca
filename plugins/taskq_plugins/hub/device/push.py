"""A device's side of a session: what it asks, given what it was answered. No line, no clock.

``push`` is a generator: it gives out requests to the hub and orders to the device's own log, and is
sent the answers. A line that drops is the driver's: it closes the generator and begins another
later, and nothing is remembered between the two. Where an answer does not fit, it asks anew where
the hub stands, so that whatever happened is found by content.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
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
    from concurrent.futures import Future

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
        synced = yield Sync(identity.log_id, identity.created_ns, identity.incompat, log.end)
        if not isinstance(synced, Synced):
            continue
        verdict = compare(synced, log)
        verdicts.append(verdict)
        if _may_give_again(log, synced, verdict):
            yield Skip(synced.high_lsn)
        if verdict is Verdict.AHEAD:
            return verdicts
        if verdict is Verdict.GAP:
            at = Border(log.segments[0])
            cause = "a limit of the device's log took it before it was sent"
            if synced.at.next_lsn < log.pin:
                cause = "the hub lost what it had"
            yield _declared(log, synced, synced.at, Kind.GAP, at, cause)
        elif verdict is Verdict.OLDER:
            at = Border(log.segments[0])
            yield _declared(log, synced, synced.at, Kind.FORK, at, "the log begins before it again")
        elif verdict is Verdict.FORKED:
            at = yield from _parting(log, synced)
            yield _declared(log, synced, synced.at, Kind.FORK, at, "the log was set back")
        elif (yield from _send(log, synced, verdict, part_bytes)):
            return verdicts
    raise Unsettled(
        f"after {_ROUNDS_MAX} rounds the hub still stands elsewhere: see what it says of the device"
    )


def _may_give_again(log: DurableLog, synced: Synced, verdict: Verdict) -> bool:
    """Return whether the log could give numbers to records that the hub has given to others.

    On whatever branch the hub has them: a log may be set back twice, to what both have.
    """
    if verdict is Verdict.GAP and synced.high_lsn > log.segments[0]:
        return True
    parted = (Verdict.AHEAD, Verdict.FORKED, Verdict.OLDER)
    return verdict in parted or synced.high_lsn > log.next_lsn


def _declared(
    log: DurableLog, synced: Synced, left: Border, kind: Kind, at: Border, cause: str
) -> Declare:
    log_id, end_lsn = log.identity.log_id, log.end.next_lsn
    return Declare(synced.session, log_id, kind, left, at, end_lsn, cause)


# -- sending ---------------------------------------------------------------------------------------


def _send(
    log: DurableLog, synced: Synced, verdict: Verdict, part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    """Send what the hub lacks; False if it turned out to stand elsewhere."""
    behind, again = synced.at, log.offered(synced.lacks) if synced.lacks else []
    if log.sends_bodies and (log.owes_bodies or behind.next_lsn < log.synced_lsn):
        again += log.bodies()  # some were held back, or the hub was set back
    if again and not (yield from _send_bodies(log, synced, again, part_bytes)):
        return False
    if verdict is Verdict.MOVED:
        # What is left of the segment is a prefix of the hub's.
        behind = log.end_of(behind.segment)
    elif verdict is Verdict.NEW or behind.segment not in log.segments:
        behind = Border(log.segments[0]) if log.segments else NOWHERE
    is_done = synced.is_sealed and behind == synced.at
    while behind.segment:
        if not is_done and not (yield from _send_segment(log, synced, behind, part_bytes)):
            return False
        behind, is_done = Border(log.next_segment(behind.segment)), False
    return True


def _send_bodies(
    log: DurableLog, synced: Synced, names: list[str], part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    """Send those of these files that the hub lacks; as ``_send``."""
    for at in range(0, len(names), SPILL_MAX):
        ids = synced.session, log.identity.log_id
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
    log: DurableLog, synced: Synced, behind: Border, part_bytes: Callable[[], int]
) -> Generator[Request, Answer | None, bool]:
    """Send a segment from there on; what comes next is read while the hub is waited for."""
    session, log_id, end = synced.session, log.identity.log_id, log.end_of(behind.segment)
    hashed = None if behind.offset else hashlib.sha256()
    with ThreadPoolExecutor(1) as ahead:
        part: Future[tuple[bytes, Border]] | None = None
        while behind.offset < end.offset:
            data, following = part.result() if part else log.part(behind, part_bytes())
            if part and len(data) > part_bytes():  # what may go has become less
                data, following = log.part(behind, part_bytes())
            # Before the records that name them, so that none is ever there without its body.
            names = log.bodies_named(behind, following) if log.sends_bodies else []
            if names and not (yield from _send_bodies(log, synced, names, part_bytes)):
                return False
            if hashed is not None:
                ahead.submit(hashed.update, data)
            if following.offset < end.offset:
                part = ahead.submit(log.part, following, part_bytes())
            answer = yield Append(session, log_id, behind, data)
            if answer != Stored(following):
                yield from _refused(log, synced, behind, answer)
                return False
            behind = following
    if not log.is_sealed(behind.segment):
        return True
    digest = log.digest(end) if hashed is None else hashed.digest()
    answer = yield Seal(session, log_id, end, digest)
    return answer == Stored(end)


def _refused(
    log: DurableLog, synced: Synced, behind: Border, answer: Answer | None
) -> Generator[Request, Answer | None, None]:
    """Do what a part that was not taken asks for."""
    if isinstance(answer, Refused) and answer.trouble is Trouble.GAP:
        at = Border(behind.segment)
        yield _declared(log, synced, answer.at, Kind.GAP, at, "a segment before it is missing")
    if isinstance(answer, Refused) and answer.trouble is Trouble.DAMAGED:
        raise LogDamaged(
            f"{segment_name(behind.segment)}, behind offset {answer.at.offset}: a frame is not "
            f"as it was written, so the hub does not take it. See taskq verify, and taskq "
            f"repair; then the rest goes"
        )


# -- where a fork parts ----------------------------------------------------------------------------


def _parting(log: DurableLog, synced: Synced) -> Generator[Request, Answer | None, Border]:
    """Return the last place that the hub has, too; at worst the start of the log.

    The hub is asked, and nothing is declared for it: with the newest ends of segments first, then
    with frames of the first segment that differs.
    """
    parting, differs = Border(log.segments[0]), log.segments[0]
    ends = [log.end_of(segment) for segment in reversed(log.segments)]
    for at in range(0, len(ends), ASKED_MAX):
        shared = yield from _shared(log, synced, ends[at : at + ASKED_MAX])
        if shared:
            parting = shared[0]
            differs = log.next_segment(parting.segment)
            break
    borders = log.borders(differs) if differs else []
    while borders:
        # All up to one place are shared, and none behind it.
        asked = borders[:: max(len(borders) // ASKED_MAX, 1)][:ASKED_MAX]
        shared = yield from _shared(log, synced, asked)
        if shared:
            parting = shared[-1]
        low = borders.index(parting) + 1 if shared else 0
        behind = [place for place in asked if place not in shared]
        borders = borders[low : borders.index(behind[0]) if behind else None]
    return parting


def _shared(
    log: DurableLog, synced: Synced, places: list[Border]
) -> Generator[Request, Answer | None, list[Border]]:
    answer = yield Ask(synced.session, log.identity.log_id, tuple(places))
    has = answer.has if isinstance(answer, Known) else (False,) * len(places)
    return [place for place, is_there in zip(places, has, strict=True) if is_there]
