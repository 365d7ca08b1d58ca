"""Listeners of a program for its jobs: deaths, and requests to stop a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from taskq.core.parsing import Tag
from taskq.core.records import Cause
from taskq.core.values import dataclass
from taskq.log.machine.threads import Reporter

if TYPE_CHECKING:
    from taskq.core.folds.lanes import Lane
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.enqueue import Enqueues
    from taskq.log.requests import Answer, Ask, Item

    #: Returns the jobs about a death, without keys. It is called under the writer lock.
    Writer: TypeAlias = Callable[["DeadLetter"], Iterable[Item]]

T = TypeVar("T")

_log: Final = Reporter("taskq")

_CAUSES: Final = {
    Cause.EXHAUSTED: "exhausted",
    Cause.REJECTED: "rejected",
    Cause.OWNER_LOST: "worker lost",
    Cause.LEASE_OVER: "lease over",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that has just become a dead letter.

    Attributes:
        job_id: its id.
        queue: name of its queue.
        task: name of its task, "" for a job put as bytes.
        priority: 0 to 9.
        attempt: number of its attempts.
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
    """Listeners of one kind. Other threads add and remove them, so each change makes a new list."""

    def __init__(self) -> None:
        self.now: list[T] = []

    def add(self, listener: T) -> Callable[[], None]:
        self.now = [*self.now, listener]

        def leave() -> None:
            self.now = [other for other in self.now if other is not listener]

        return leave


class Deaths:
    """Deliver deaths to listeners once the present batch is in the log.

    Listeners get all deaths that this process records: of its own deliveries, and of jobs that it
    took back from dead processes. They get each death once its record is as durable as any answer.
    A death may come twice: a power loss can revive a job, which may die again.

    A job about a death is in the frame of that death: both are on disk, or neither is.
    """

    def __init__(self, tag: Tag) -> None:
        self._tag = tag
        #: (port, hook, function that calls the hook)
        self._listeners: _Listeners[tuple[Any, object, Callable[[DeadLetter, Any], object]]] = (
            _Listeners()
        )
        self._writers: dict[object, Writer] = {}
        #: deaths in the present batch
        self.noted: list[DeadLetter] = []
        #: number of noted deaths whose jobs are in the batch
        self._written = 0

    def __bool__(self) -> bool:
        """Return whether jobs died since the last ``enqueue``."""
        return len(self.noted) > self._written

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners.now or self._writers)

    def write(self, owner: object, writer: Writer) -> None:
        """Let ``writer`` return jobs for each death from now on; they join the death's frame.

        It replaces its owner's earlier writer.
        """
        self._writers = {**self._writers, owner: writer}

    def listen(
        self, port: Any, hook: object, call: Callable[[DeadLetter, Any], object]
    ) -> Callable[[], None]:
        """Call ``call(letter, hook)`` on the port's side for each death; return a function to stop.

        A hook that listens several times is called once per death.
        """
        return self._listeners.add((port, hook, call))

    def note(
        self, lane: Lane, job: int, attempt: int, cause: int, reason: bytes | None, now_ns: int
    ) -> None:
        if self._listeners.now or self._writers:
            letter = DeadLetter(
                job_id=self._tag.id(job),
                queue=lane.queue,
                task=lane.task,
                priority=lane.priority,
                attempt=attempt,
                reason=(reason or b"").decode("utf-8", "replace"),
                cause=_CAUSES.get(Cause(cause), ""),
                settled_ns=now_ns,
            )
            self.noted.append(letter)

    def forget(self) -> None:
        self.noted.clear()
        self._written = 0

    def enqueue(self, batch: Batch, enqueues: Enqueues) -> None:
        """Add the jobs about the deaths noted since the last call."""
        letters, self._written = self.noted[self._written :], len(self.noted)
        for letter in letters:
            enqueues.many(batch, self._jobs_of(letter))

    def _jobs_of(self, letter: DeadLetter) -> list[Item]:
        """Return one job per task, even if several apps of this process have the task."""
        jobs: dict[str, Item] = {}
        for writer in self._writers.values():
            try:
                jobs.update((item[0].task, item) for item in writer(letter))
            except Exception:  # noqa: BLE001 - its report must not refuse a death
                _log.exception("the death of job %s could not be reported", letter.job_id)
        return list(jobs.values())

    def take_answers(self) -> list[Answer]:
        noted, self.noted, self._written = self.noted, [], 0
        # One call is enough for several listeners with the same hook.
        listeners = {id(hook): (port, hook, call) for port, hook, call in self._listeners.now[::-1]}
        return [
            (port, None, (call, letter, hook))
            for letter in noted
            for port, hook, call in listeners.values()
        ]


class Asks:
    """Deliver cancel requests of any process for jobs of this one to its listeners."""

    def __init__(self, context: Context) -> None:
        self._facets = context.facets
        self._owner = context.owner
        #: (port, function to call there)
        self._listeners: _Listeners[tuple[Any, Callable[[Ask, None], object]]] = _Listeners()
        self._delivered: set[Ask] = set()
        #: (port, function to call there) for changes of controls or schedules, and the last seen
        #: change
        self._bells: _Listeners[tuple[Any, Callable[[None, None], object]]] = _Listeners()
        self._rung: tuple[object, int] = None, 0

    def __bool__(self) -> bool:
        return bool(self._listeners.now or self._bells.now)

    def listen_for_steering(
        self, port: Any, call: Callable[[None, None], object]
    ) -> Callable[[], None]:
        """Call ``call(None, None)`` on the port's side after changes of controls or schedules.

        The change may be of any process. Return a function to stop.
        """
        return self._bells.add((port, call))

    def listen(self, port: Any, call: Callable[[Ask, None], object]) -> Callable[[], None]:
        """Call ``call(ask, None)`` on the port's side for each cancel request for a job here.

        Called once per claim, for a request of any process. Return a function to stop.
        """
        return self._listeners.add((port, call))

    def look(self) -> None:
        """Fold new records, if there is a listener."""
        if self:
            self._facets.need_agenda()

    def take_answers(self) -> list[Answer]:
        """Return the calls for the requests folded since the last call."""
        agenda = self._facets.agenda
        rings: list[Answer] = []
        known, steered = self._rung
        if (
            agenda is not None
            and self._bells.now
            and (known is not agenda.schedules or steered != agenda.steered)
        ):
            self._rung = agenda.schedules, agenda.steered
            rings = [(port, None, (call, None, None)) for port, call in self._bells.now]
        if agenda is None or not agenda.leases.asked:
            if self._delivered:
                self._delivered.clear()
            return rings
        listeners = self._listeners.now
        if not listeners:
            return rings
        claims = ((job, agenda.running.get(job, (0, 0, 0))) for job in agenda.leases.asked)
        asks = {(job, token) for job, (token, _, owner) in claims if owner == self._owner}
        new, self._delivered = sorted(asks - self._delivered), asks
        return rings + [(port, None, (call, ask, None)) for ask in new for port, call in listeners]
