"""What calls, handles and flows ask of a task and of its app, which know all three of them.

``taskq.app.tasks.Task`` and ``taskq.app.app.TaskQ`` are meant, and say what each of it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
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
    def app(self) -> AppPort[Any]: ...
    @property
    def signature(self) -> Signature: ...
    @property
    def takes_anything(self) -> bool: ...
    @property
    def gives_json(self) -> bool: ...
    @property
    def decode_result(self) -> Callable[[bytes], R_co]: ...


class AppPort(Protocol[C_co]):
    """An app, as handles and flows see it; a flow's handle is of a room above this one."""

    @property
    def data_dir(self) -> Path: ...
    @property
    def dead(self) -> Any: ...
    @property
    def _connection(self) -> C_co: ...

    @property
    def tasks(self) -> Mapping[str, TaskPort[Any]]: ...
    def why(self, job: str, /) -> Awaitable[Reason]: ...
    def attempts(self, job: str, /) -> Awaitable[tuple[AttemptView, ...]]: ...
    def enqueue_flow(self, flow: Any, /) -> Awaitable[Any]: ...
