"""A session's requests, from the answers so far. No clock, no network.

A dropped line raises out of ``ask``; a later session begins without memory. If an answer does not
fit, the session asks again for the hub's end, so everything is found by content.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from taskq import engine
from taskq.errors import LogDamaged, LogError
from taskq_plugins.hub import models

#: Limit of repeated questions in a session; a healthy one needs one for a break, and the rest.
_ROUNDS_MAX: Final = 12


class Unsettled(LogError):
    """A session did not come to an end, though every request of it was answered."""


class Verdict(enum.Enum):
    """State of a log relative to the hub's copy, in the order of the checks."""

    #: the hub has nothing of the log: its oldest segment comes first
    NEW = "new"
    #: the hub's last frame is here, too, or right before the oldest here: continue
    BEHIND = "behind"
    #: it is here, but so are older segments, which the copy lacks since a gap: the log was set
    #: back, or a loss of power undid a compaction. It goes on as another log from its end
    OLDER = "older"
    #: the log was set back, and nothing was written since: it goes on as another from its end
    AHEAD = "ahead"
    #: the next frame is not here any more: declare, continue with the oldest segment
    GAP = "gap"
    #: the log was set back and went on: it goes on as another after the last common frame
    DIFFERS = "differs"


def compare(synced: models.CopyEnd, log: engine.DurableLog) -> Verdict:
    """Return the verdict on the end of the copy."""
    at = synced.at
    if not at.segment:
        return Verdict.NEW
    if log.stands(at) or log.follows(at) or log.is_moved(at):
        return Verdict.OLDER if log.begins_before(synced.begins) else Verdict.BEHIND
    if synced.has_end:
        return Verdict.AHEAD
    return Verdict.GAP if log.begins_behind(at) else Verdict.DIFFERS


def opening(log: engine.DurableLog) -> models.Sync:
    """Return what begins a session of a log."""
    own = log.identity
    return models.Sync(own.log_id, own.created_ns, own.incompat, log.end, own.parents)


class Push:
    """Bring the hub's copy to where a log ends.

    Args:
        log: as it stands now: what is written meanwhile goes with the next session.
        ask: asks the hub.
        part_bytes: of the next request, unless one frame is larger.
        piece_bytes: limit of any request; a larger frame goes in pieces.

    Attributes:
        parting: where the log is to go on as another; nowhere: it is the hub's.
    """

    #: the hub's last report about its copy
    _synced: models.CopyEnd

    def __init__(
        self,
        log: engine.DurableLog,
        ask: Callable[[models.Request], Awaitable[models.Answer | None]],
        part_bytes: Callable[[], int],
        piece_bytes: Callable[[], int],
    ) -> None:
        self._log, self._log_id = log, log.identity.log_id
        self._ask, self._part_bytes, self._piece_bytes = ask, part_bytes, piece_bytes
        self.parting = models.NOWHERE

    async def run(self) -> list[Verdict]:
        """Run a session; return its verdicts."""
        log, verdicts = self._log, list[Verdict]()
        for _ in range(_ROUNDS_MAX):
            synced = await self._ask(opening(log))
            if not isinstance(synced, models.CopyEnd):
                continue
            self._synced, verdict = synced, compare(synced, log)
            verdicts.append(verdict)
            if verdict is Verdict.GAP:
                cause = "a limit of the device's log took it before it was sent"
                if synced.at.next_lsn < log.pin:
                    cause = "the hub lost what it had"
                await self._declare(engine.Border(log.segments[0]), cause)
            elif verdict is not Verdict.NEW and verdict is not Verdict.BEHIND:
                if not log.segments:  # with its first record it differs
                    return verdicts
                differs = verdict is Verdict.DIFFERS
                self.parting = await self._parting() if differs else log.end
                ids = synced.session, self._log_id
                if await self._ask(models.Leave(*ids, self.parting)) == models.Stored(synced.at):
                    return verdicts
                self.parting = models.NOWHERE
            elif await self._send(verdict):
                return verdicts
        raise Unsettled(
            f"after {_ROUNDS_MAX} rounds the hub still stands elsewhere: see there what 'taskq hub "
            f"devices HUB NAME' says of the device"
        )

    async def _declare(
        self, at: engine.Border, cause: str, left: engine.Border | None = None
    ) -> None:
        synced, end_lsn = self._synced, self._log.end.next_lsn
        ids = synced.session, self._log_id
        await self._ask(models.Declare(*ids, left or synced.at, at, end_lsn, cause))

    # -- sending: each returns False where the hub turned out to stand elsewhere -------------------

    async def _send(self, verdict: Verdict) -> bool:
        log, synced, at = self._log, self._synced, self._synced.at
        for segment in log.offered(synced.lacks):
            read = partial(log.segment_part, segment)
            if not isinstance(await self._sent(engine.Border(segment), read), models.Stored):
                return False
        behind = at
        if verdict is Verdict.NEW or at.segment not in log.segments:
            behind = engine.Border(log.segments[0]) if log.segments else models.NOWHERE
        elif not log.stands(at):  # it was moved: the rest of the segment is a prefix of the hub's
            behind = log.end_of(at.segment)
        is_done = synced.is_sealed and behind == at
        while behind.segment:
            if not is_done and not await self._send_segment(behind):
                return False
            behind, is_done = engine.Border(log.next_segment(behind.segment)), False
        return True

    async def _send_segment(self, behind: engine.Border) -> bool:
        log, ids = self._log, (self._synced.session, self._log_id)
        end, hashed = log.end_of(behind.segment), None if behind.offset else hashlib.sha256()
        with ThreadPoolExecutor(1) as ahead:
            part: Future[tuple[bytes, engine.Border]] | None = None
            while behind.offset < end.offset:
                data, following = part.result() if part else log.part(behind, self._part_bytes())
                if part and len(data) > self._part_bytes():  # the volume has shrunk
                    data, following = log.part(behind, self._part_bytes())
                if hashed is not None:
                    ahead.submit(hashed.update, data)
                if following.offset < end.offset:
                    part = ahead.submit(log.part, following, self._part_bytes())
                answer = await self._sent(behind, partial(_piece, data))
                if answer != models.Stored(following):
                    await self._not_stored(behind, answer)
                    return False
                behind = following
        if not log.is_sealed(behind.segment):
            return True
        digest = log.digest(end).hex() if hashed is None else hashed.hexdigest()
        return await self._ask(models.Seal(*ids, end, digest)) == models.Stored(end)

    async def _sent(
        self, behind: engine.Border, read: Callable[[int, int], bytes]
    ) -> models.Answer | None:
        """Send what ``read`` returns of (offset, bytes); the hub keeps the pieces of it."""
        ids, held = (self._synced.session, self._log_id), 0
        while True:
            piece = read(held, self._piece_bytes())
            answer = await self._ask(models.Append(*ids, behind, piece, held))
            if not isinstance(answer, models.Stored) or answer.held <= held:
                return answer
            held = answer.held

    async def _not_stored(self, behind: engine.Border, answer: models.Answer | None) -> None:
        if isinstance(answer, models.Refused) and answer.trouble is models.Trouble.GAP:
            cause = "a segment before it is missing"
            await self._declare(engine.Border(behind.segment), cause, answer.at)
        if isinstance(answer, models.Refused) and answer.trouble is models.Trouble.DAMAGED:
            name = engine.segment_name(behind.segment)
            raise LogDamaged(
                f"{name}, behind offset {answer.at.offset}: a frame is not as it was written, so "
                f"the hub does not take it. See taskq verify, and taskq repair; then the rest goes"
            )

    # -- where two logs part -----------------------------------------------------------------------

    async def _parting(self) -> engine.Border:
        """Return the last place that the hub has, too; at worst the start of the log.

        The hub is asked: with the newest ends of segments first, then with frames of the first
        segment that differs.
        """
        log, most = self._log, models.ASKED_MAX
        parting, differs = engine.Border(log.segments[0]), log.segments[0]
        ends = [log.end_of(segment) for segment in reversed(log.segments)]
        for at in range(0, len(ends), most):
            if shared := await self._shared(ends[at : at + most]):
                parting = shared[0]
                differs = log.next_segment(parting.segment)
                break
        borders = log.borders(differs) if differs else []
        while borders:
            # All frames up to one place are common, and none after it.
            asked = borders[:: max(len(borders) // most, 1)][:most]
            shared = await self._shared(asked)
            parting = shared[-1] if shared else parting
            low = borders.index(parting) + 1 if shared else 0
            behind = [place for place in asked if place not in shared]
            borders = borders[low : borders.index(behind[0]) if behind else None]
        return parting

    async def _shared(self, places: list[engine.Border]) -> list[engine.Border]:
        answer = await self._ask(models.Ask(self._synced.session, self._log_id, tuple(places)))
        has = answer.has if isinstance(answer, models.PlacesKnown) else (False,) * len(places)
        return [place for place, is_there in zip(places, has, strict=True) if is_there]


def _piece(data: bytes, offset: int, bytes_max: int) -> bytes:
    return data[offset : offset + bytes_max]
