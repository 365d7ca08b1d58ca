"""How far a running job is: what it tells of itself, and what others see of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.log.progressfile import Told, find_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.context import JobContext
    from taskq.log.journal import Journal

#: Characters of a message.
MESSAGE_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a running job told last.

    Attributes:
        fraction: how much of it is done, 0 to 1.
        message: what it does now, "" if it said nothing.
        at: when it told that, in UTC.
    """

    fraction: float
    message: str
    at: datetime


class _Relay:
    """Where a process that has no log open sends what its jobs tell; see ``relay_to``."""

    send: Callable[[float, str], None] | None = None


def relay_to(send: Callable[[float, str], None]) -> None:
    """Have all jobs of this process tell ``send`` how far they are: it has no log open itself.

    Its worker hands that on with ``tell``, and the job's own context there.
    """
    _Relay.send = send


def tell(job: JobContext, fraction: float, message: str = "") -> None:
    """Let others see how far a running job is. From any thread; writes nothing itself.

    Raises:
        UsageError: the fraction is not from 0 to 1, or the message is no text or too long.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise UsageError(f"the fraction is {fraction!r}, it must be a number from 0 to 1")
    if not 0 <= fraction <= 1:
        raise UsageError(f"the fraction is {fraction}, it must be from 0 (nothing) to 1 (all)")
    if not isinstance(message, str):
        raise UsageError(f"the message is {type(message).__name__}, it must be a text")
    if len(message) > MESSAGE_CHARACTERS_MAX:
        raise UsageError(
            f"the message has {len(message)} characters, at most {MESSAGE_CHARACTERS_MAX}: "
            f"keep long reports elsewhere, and say where"
        )
    if _Relay.send is not None:
        _Relay.send(float(fraction), message)
        return
    store = job.app._connection.current
    if store is not None and store.usable:
        delivery = job.delivery
        told = Told(float(fraction), message, store.wall_ns())
        store.progress.tell(job, delivery.job, delivery.token, told)


def progress_of(journal: Journal, job: int) -> Progress | None:
    """What a running job told last; None if it does not run, or told nothing.

    Raises:
        JobNotFound: there is no such job in this log.
    """
    told = find_progress(journal, job)
    if told is None:
        return None
    at = datetime.fromtimestamp(told.at_ns / SECOND_NS, UTC)
    return Progress(fraction=told.fraction, message=told.message, at=at)
