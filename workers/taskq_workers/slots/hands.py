"""What a worker, its feed and its gates ask of those who run jobs, and these of the gates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    from taskq import Delivery, Task
    from taskq.engine import Ask, Settlement
    from taskq_workers.slots.feed import Feed
    from taskq_workers.slots.settling import Settler


class FeedHost(Protocol):
    """Host of a log's feed and gates, which runs its jobs."""

    @property
    def feed(self) -> Feed: ...
    @property
    def settler(self) -> Settler: ...
    def free(self) -> int:
        """Return how many deliveries could be taken now."""

    def wake(self) -> None: ...
    def quiet(self) -> bool: ...
    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release deliveries that nobody took; burns no attempt."""

    def ran_dry(self) -> None:
        """End a burst: no job is ready and none runs."""

    def came_empty(self) -> None:
        """Give others what was free for a claim that brought nothing, or was withdrawn."""

    def fail(self, error: BaseException) -> None: ...


class Runner(FeedHost, Protocol):
    """Runner of a worker's jobs: ``Slots`` here, or executors elsewhere.

    Attributes:
        gone: set once nothing runs any more, after ``leave``.
    """

    gone: asyncio.Event

    def running(self) -> int: ...
    def held(self) -> list[tuple[Delivery, float | None]]:
        """Return the jobs that run now, and since when in monotonic seconds, None if unknown."""

    def leave(self) -> None:
        """Claim no more, and give back what does not run yet; what runs goes on to its end."""

    def interrupt(self) -> None:
        """Cancel the jobs that still run; they are released and burn no attempt."""

    def abandon(self) -> None:
        """Release the jobs that did not even end when cancelled; they go on, unheard."""


class ClaimFilter(Protocol):
    """Keep jobs from being claimed for now: by conditions, and queues that back off."""

    def claimable(
        self, queues: frozenset[str] | None, tasks: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str]]: ...
    def passed(self, deliveries: list[Delivery]) -> list[Delivery]: ...


class Gatekeeper(Protocol):
    """Gates of a worker, as its slots ask them."""

    async def judge(
        self, task: Task[..., Any], error: BaseException, settlement: Settlement
    ) -> Settlement:
        """Decide on a job that failed: given back if the network failed, not the job."""

    def ran_dry(self, stop: Callable[[BaseException | None], None]) -> None:
        """Stop, as nothing is ready of what may be claimed, unless a gate is about to open."""

    def withdraw(self, ask: Ask) -> Delivery | None:
        """Return a cancelled job that a gate has claimed and not let through yet."""
