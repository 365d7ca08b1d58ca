"""What a running job tells of how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import UsageError
from taskq.log.machine.progress import Told
from taskq.serialization import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.context import JobContext

#: Characters of a message.
MESSAGE_CHARACTERS_MAX: Final = 500


class _Relay:
    """Where a process that has no log open sends what its jobs tell; see ``relay_to``."""

    send: Callable[[float, str], None] | None = None


def relay_to(send: Callable[[float, str], None]) -> None:
    """Have all jobs of this process tell ``send`` how far they are: it has no log open itself.

    Its worker hands that on with ``tell``, and the job's own context there.
    """
    _Relay.send = send


def tell(job: JobContext, fraction: float, message: object = "") -> None:
    """Let others see how far a running job is. From any thread; writes nothing itself.

    No job fails for what it tells while it does its work: a fraction outside 0 to 1 is the nearer
    of them, one that is not a number yet (NaN, of 0 things done of 0) is 0, and of a long message
    the beginning is told.

    Raises:
        UsageError: the fraction is no number at all.
    """
    fraction, message = _clipped(fraction), _shortened(str(message))
    if _Relay.send is not None:
        _Relay.send(fraction, message)
        return
    store = job.app._connection.current
    if store is not None and store.usable:
        delivery = job.delivery
        told = Told(fraction, message, store.wall_ns())
        store.progress.tell(job, delivery.job, delivery.token, told)


def _clipped(fraction: Any) -> float:
    if isinstance(fraction, str | bytes) or not hasattr(type(fraction), "__float__"):
        raise UsageError(f"the fraction is {shown(fraction)}, it must be a number from 0 to 1")
    if fraction != fraction:  # noqa: PLR0124 - only NaN differs from itself, whatever its type
        return 0.0
    # Compared before it is a float, which not every number fits.
    return 0.0 if fraction < 0 else 1.0 if fraction > 1 else float(fraction)


def _shortened(message: str) -> str:
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - 1] + "…"
