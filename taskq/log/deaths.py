"""Telling a program of the jobs that it has just sent to the dead letters.

Told are all deaths that this process records: those of its own deliveries, and those of jobs that
it took back from processes that died. They are told once the record is as durable as any answer,
and may be told twice: a loss of power can bring a job back to life, and it may die again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from taskq.core.records import Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.lanes import Lane
    from taskq.log.requests import Answer

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
        died_ns: wall time, in nanoseconds.
    """

    job_id: str
    queue: str
    task: str
    priority: int
    attempt: int
    reason: str
    cause: str
    died_ns: int


class Deaths:
    """Who is to be told, and of what, once the present batch is in the log.

    Args:
        tag: what every job id of the log starts with.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        #: (port, hook, what calls it); changed by other threads
        self._listeners: list[tuple[Any, object, Callable[[DeadLetter, Any], object]]] = []
        self._noted: list[DeadLetter] = []

    def listen(
        self, port: Any, hook: object, call: Callable[[DeadLetter, Any], object]
    ) -> Callable[[], None]:
        """Have ``call(letter, hook)`` called on the port's side; returns what ends that.

        A hook that listens several times is called once for each death.
        """
        listener = (port, hook, call)
        self._listeners = [*self._listeners, listener]

        def leave() -> None:
            self._listeners = [one for one in self._listeners if one is not listener]

        return leave

    def note(
        self, lane: Lane, job: int, attempt: int, cause: int, reason: bytes | None, now_ns: int
    ) -> None:
        """A job dies in the batch that is being made."""
        if self._listeners:
            letter = DeadLetter(
                job_id=f"{self._tag}-{job}",
                queue=lane.queue,
                task=lane.task,
                priority=lane.priority,
                attempt=attempt,
                reason=(reason or b"").decode("utf-8", "replace"),
                cause=_CAUSES.get(Cause(cause), ""),
                died_ns=now_ns,
            )
            self._noted.append(letter)

    def forget(self) -> None:
        """The batch was not written."""
        self._noted.clear()

    def told(self) -> list[Answer]:
        """What goes out for the batch, once it is durable."""
        if not self._noted:
            return []
        noted, self._noted = self._noted, []
        # Of several listeners with the same hook the first is enough.
        listeners = {id(hook): (port, hook, call) for port, hook, call in self._listeners[::-1]}
        return [
            (port, None, (call, letter, hook))
            for letter in noted
            for port, hook, call in listeners.values()
        ]
