"""Workers whose jobs run elsewhere: ``taskq worker APP --executor NAME``.

Other packages bring them through the entry-point group ``taskq.executors``: each entry names a
function that takes an app and an ``Order`` and gives a context manager of the worker.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from taskq.values import dataclass
from taskq_workers.services.plugins import find_plugin

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq_workers.events import Hook
    from taskq_workers.pool import Worker

_GROUP: Final = "taskq.executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order of the command line for a worker; names are those of ``Worker``'s options."""

    #: as it was typed; whoever runs the jobs imports it anew
    target: str
    #: modules with tasks of the app, besides those that it includes itself
    include: tuple[str, ...] = ()
    #: where the executors are, in the words of their system; "" for its default
    master: str = ""
    #: Python files and archives that the executors need
    files: tuple[str, ...] = ()
    concurrency: int
    queues: list[str] | dict[str, int] | None
    logs: dict[str, int] | None = None
    burst: bool
    max_jobs: int | None = None
    thread_limit: int | None = None
    process_limit: int | None = None
    max_jobs_per_child: int | None = None
    max_rss_per_child: str | None = None
    warns: bool = True
    drain_timeout: float
    on_event: Hook | None
    #: where Prometheus asks; None for nowhere
    metrics_port: int | None = None
    #: whether it shows the app's page
    web: bool = False
    sync: bool = False


class Executor(Protocol):
    """Signature of an entry point of the group."""

    def __call__(self, app: TaskQ, order: Order) -> AbstractContextManager[Worker]: ...


def find_executor(name: str) -> Executor:
    """Return the executor that a package brings under this name.

    Raises:
        UsageError: there is none; the message lists those there are.
        TaskqError: it does not load.
    """
    executor: Executor = find_plugin(_GROUP, name, name)
    return executor
