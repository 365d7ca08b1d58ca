"""Telling a program of what happens to its jobs: deaths, and asks to stop a job.

Told of deaths are all that this process records: those of its own deliveries, and those of jobs
that it took back from processes that died. They are told once the record is as durable as any
answer, and may be told twice: a loss of power can bring a job back to life, and it may die again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from taskq.core.records import Cause
from taskq.core.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.folds.lanes import Lane
    from taskq.log.decide.context import Context
    from taskq.log.requests import Answer, Ask

T = TypeVar("T")

_CAUSES: Final = {
    Cause.EXHAUSTED: "exhausted",
    Cause.REJECTED: "rejected",
    Cause.OWNER_LOST: "worker lost",
    Cause.LEASE_OVER: "lease over",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that has just died.

    Attributes:
        job_id: its id.
        queue: name of its queue.
        task: name of its task, "" for one that was put as bytes.
        priority: 0 to 9.
        attempt: how many attempts it had.
        reason: first line ``Type: message``, then the last lines of the traceback.
        cause: "exhausted", "rejected", "worker lost", "lease over", or "" for another.
        settled_ns: wall time, in nanoseconds.
    """

    job_id: str
    queue: str
    task: str
    priority: int
    attempt: int
    reason: str
    cause: str
    settled_ns: int


class _Listeners(Generic[T]):
    """Those who listen now; changed by other threads, so the list itself never changes."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: list[T] = []

    def add(self, listener: T) -> Callable[[], None]:
        """Take one up; returns what ends that."""
        self.now = [*self.now, listener]

        def leave() -> None:
            self.now = [one for one in self.now if one is not listener]

        return leave


class Deaths:
    """Who is to be told of deaths, and of which, once the present batch is in the log.

    Args:
        tag: what every job id of the log starts with.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        #: (port, hook, what calls it)
        self._listeners: _Listeners[tuple[Any, object, Callable[[DeadLetter, Any], object]]] = (
            _Listeners()
        )
        self._noted: list[DeadLetter] = []

    def listen(
        self, port: Any, hook: object, call: Callable[[DeadLetter, Any], object]
    ) -> Callable[[], None]:
        """Have ``call(letter, hook)`` called on the port's side; returns what ends that.

        A hook that listens several times is called once for each death.
        """
        return self._listeners.add((port, hook, call))

    def note(
        self, lane: Lane, job: int, attempt: int, cause: int, reason: bytes | None, now_ns: int
    ) -> None:
        """Note a job that dies in the batch that is being made."""
        if self._listeners.now:
            letter = DeadLetter(
                job_id=f"{self._tag}-{job}",
                queue=lane.queue,
                task=lane.task,
                priority=lane.priority,
                attempt=attempt,
                reason=(reason or b"").decode("utf-8", "replace"),
                cause=_CAUSES.get(Cause(cause), ""),
                settled_ns=now_ns,
            )
            self._noted.append(letter)

    def forget(self) -> None:
        """Forget what was noted: the batch was not written."""
        self._noted.clear()

    def told(self) -> list[Answer]:
        """What goes out for the batch, once it is durable."""
        if not self._noted:
            return []
        noted, self._noted = self._noted, []
        # Of several listeners with the same hook the first is enough.
        listeners = {id(hook): (port, hook, call) for port, hook, call in self._listeners.now[::-1]}
        return [
            (port, None, (call, letter, hook))
            for letter in noted
            for port, hook, call in listeners.values()
        ]


class Asks:
    """Who here is told that somebody, in whichever process, wants a job of this process over."""

    def __init__(self, context: Context) -> None:
        self._facets = context.facets
        self._owner = context.owner
        #: (port, what is called there)
        self._listeners: _Listeners[tuple[Any, Callable[[Ask, None], object]]] = _Listeners()
        self._told: set[Ask] = set()

    def __bool__(self) -> bool:
        return bool(self._listeners.now)

    def listen(self, port: Any, call: Callable[[Ask, None], object]) -> Callable[[], None]:
        """Have ``call(ask, None)`` called on the port's side for each job of this process.

        Called once for each claim that somebody wants cancelled, by whichever process. Returns what
        ends that.
        """
        return self._listeners.add((port, call))

    def look(self) -> None:
        """Fold what was written since; only where somebody listens."""
        if self._listeners.now:
            self._facets.need_agenda()

    def told(self) -> list[Answer]:
        """What goes out for the asks that were folded since the last call."""
        agenda = self._facets.agenda
        if agenda is None or not agenda.leases.asked:
            if self._told:
                self._told.clear()
            return []
        listeners = self._listeners.now
        if not listeners:
            return []
        claims = ((job, agenda.running.get(job, (0, 0, 0))) for job in agenda.leases.asked)
        asks = {(job, token) for job, (token, _, owner) in claims if owner == self._owner}
        new, self._told = sorted(asks - self._told), asks
        return [(port, None, (call, ask, None)) for ask in new for port, call in listeners]
