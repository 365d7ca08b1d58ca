"""What calls, handles and flows ask of a task and of its app, which know all three of them.

``taskq.app.tasks.Task`` and ``taskq.app.app.TaskQ`` are meant, and say what each of it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from taskq.calls.signature import Signature
    from taskq.core.rates import Limit
    from taskq.core.views import AttemptView
    from taskq.core.why import Reason

R_co = TypeVar("R_co", covariant=True)
#: what an app holds its log by
C_co = TypeVar("C_co", covariant=True)


class TaskPort(Protocol[R_co]):
    """A task, as its calls and handles see it."""

    name: str
    limit: Limit | None
    store_result: bool

    @property
    def app(self) -> AppPort[Any]:
        """Return where its jobs go."""

    @property
    def signature(self) -> Signature:
        """Return how it takes its arguments."""

    @property
    def takes_anything(self) -> bool:
        """Return whether its first parameter says nothing of what it takes."""

    @property
    def gives_json(self) -> bool:
        """Return whether its results are what JSON has."""

    @property
    def decode_result(self) -> Callable[[bytes], R_co]:
        """Reads what it returned."""


class AppPort(Protocol[C_co]):
    """An app, as handles and flows see it; a flow's handle is of a room above this one."""

    @property
    def data_dir(self) -> Path:
        """The directory of its log."""

    @property
    def dead(self) -> Any:
        """The dead letters of its log."""

    @property
    def _connection(self) -> C_co: ...

    @property
    def tasks(self) -> Mapping[str, TaskPort[Any]]:
        """Return its tasks by their names."""

    def why(self, job: str, /) -> Awaitable[Reason]:
        """Tell why a job is not running."""

    def attempts(self, job: str, /) -> Awaitable[tuple[AttemptView, ...]]:
        """Tell of the attempts of a job."""

    def enqueue_flow(self, flow: Any, /) -> Awaitable[Any]:
        """Put a flow into the log."""
