"""What a worker asks of those who run its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from taskq.log.requests import Delivery
    from taskq_workers.slots.feed import Feed
    from taskq_workers.slots.settling import Settler


class Hands(Protocol):
    """What runs a worker's jobs: a ``Crew`` of slots here, or executors elsewhere.

    Attributes:
        gone: set once nothing runs any more, after ``leave``.
    """

    gone: asyncio.Event
    feed: Feed
    settler: Settler

    def running(self) -> int:
        """How many jobs run now."""
        ...

    def held(self) -> list[tuple[Delivery, float | None]]:
        """The jobs that run now, and since when in monotonic seconds, None if unknown."""
        ...

    def leave(self) -> None:
        """Claim no more, and give back what does not run yet; what runs goes on to its end."""
        ...

    def interrupt(self) -> None:
        """Cancel the jobs that still run; they are released and burn no attempt."""
        ...

    def abandon(self) -> None:
        """Release the jobs that did not even end when cancelled; they go on, unheard."""
        ...
