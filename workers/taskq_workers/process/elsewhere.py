"""Workers whose jobs run elsewhere: ``taskq worker APP --executor NAME``.

Other packages bring them through the entry-point group ``taskq.executors``: each entry names a
function that takes an app and an ``Order`` and gives a context manager of the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from taskq.values import dataclass
from taskq_workers.services.plugins import find_plugin

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from taskq import TaskQ
    from taskq_workers.events import Hook
    from taskq_workers.pool import Worker

_GROUP: Final = "taskq.executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asks of a worker.

    Attributes:
        target: ``module:app`` as it was typed; whoever runs the jobs imports it anew.
        include: modules with tasks of the app, besides those that it includes itself.
        master: where the executors are, in the words of their system; "" for its default.
        files: Python files and archives that the executors need.
        concurrency: how many async jobs run at a time in one place.
        queues: names of the queues to claim from, or their weights; None for all.
        logs: the directories, with their weights, where there are several.
        burst: stop once no job is ready and none runs.
        max_jobs: stop after so many attempts; None for no limit.
        thread_limit: how many sync jobs run at a time; None for as many as ``concurrency``.
        process_limit: how many jobs run in child processes; None for as many as ``concurrency``.
        max_jobs_per_child: a child process is replaced after so many jobs; None for never.
        max_rss_per_child: so is one that takes more memory, in bytes or as "500MB".
        warns: whether it tells of jobs that wait in vain; of several, one does.
        drain_timeout: seconds that running jobs get to finish at a stop.
        on_event: called with each job that ended.
        metrics_port: where Prometheus asks; None for nowhere.
        web: whether it shows the app's page.
        sync: send the log to the hub of the settings; of several workers, one does.
    """

    target: str
    include: tuple[str, ...] = ()
    master: str = ""
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
    metrics_port: int | None = None
    web: bool = False
    sync: bool = False


class Executor(Protocol):
    """What an entry point of the group is."""

    def __call__(self, app: TaskQ, order: Order) -> AbstractContextManager[Worker]:
        """Start what the worker needs; it ends with the context."""
        ...


def find_executor(name: str) -> Executor:
    """Return the executor that a package brings under this name.

    Raises:
        UsageError: there is none; the message lists those there are.
        TaskqError: it does not load.
    """
    executor: Executor = find_plugin(_GROUP, name, name)
    return executor
