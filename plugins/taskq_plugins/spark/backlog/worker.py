"""``taskq worker APP --executor spark``: claims and settles here, runs on Spark's executors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.backlog.crew import Cluster, Executors, SparkCrew
from taskq_plugins.spark.session import MASTER_DEFAULT, spark_session
from taskq_workers.logpart import LogPart
from taskq_workers.pool import Worker

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq_workers.process.elsewhere import Order
    from taskq_workers.slots.hands import Runner

#: A lost executor is our business: Spark's own second try of its jobs would count no attempt, so
#: it runs none, but lets the other partitions of that batch end. And a cancelled Python process is
#: to end well within the time that a worker gives cancelled jobs. Java itself has little to do:
#: without its second compiler a chunk cost it 44 ms of a core, with it 158.
_CONF: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.task.killTimeout": "200ms",
    "spark.scheduler.mode": "FAIR",
    "spark.task.maxFailures": "2",
}


class SparkWorker(Worker):
    """Runs an app's jobs on executors until it is stopped; otherwise as any ``Worker``.

    Jobs run at least once: when this process dies its jobs are claimed again at once, while an
    executor may go on for a moment. Tasks reach the log through ``current_job().enqueue`` alone
    when executors are on other machines, and ``timeout`` holds for async tasks.

    Args:
        app: whose tasks are run; executors import it by ``order.target``.
        executors: what runs them.
        order: what else was asked for.
        where: what to call the executors.
    """

    #: executors are processes of their own, which open nothing for their jobs
    lends = False

    def __init__(self, app: TaskQ, executors: Executors, order: Order, where: str) -> None:
        super().__init__(
            app,
            concurrency=executors.cores,
            queues=order.queues,
            burst=order.burst,
            drain_timeout=order.drain_timeout,
            warns=order.warns,
            on_event=order.on_event,
        )
        self.executor = where
        self._executors = executors
        self._order = order

    def _make_runner(self, parts: Sequence[LogPart]) -> Runner:
        store = parts[0].app.store()
        return SparkCrew(
            self.app,
            store.port(),
            self._executors,
            self._order,
            queues=self.queues,
            tasks=self._task_names,
            stop=self._on_end,
            burst_clock=store.steady_ns if self.burst else None,
        )


@contextlib.contextmanager
def spark_executor(app: TaskQ, order: Order) -> Iterator[SparkWorker]:
    """Yield a worker on Spark; start a session unless this process has one, and stop it again.

    Raises:
        UsageError: Spark knows no such master.
        JavaMissing: there is no Java, or only one that is too old.
        SparkError: Spark did not start.
    """
    master = order.master or MASTER_DEFAULT
    with spark_session(f"taskq worker {order.target}", master=master, conf=_CONF) as session:
        context = session.sparkContext
        for path in order.files:
            context.addPyFile(path)
        cluster = Cluster(context)
        where = f"spark, master {context.master}; jobs run at least once"
        try:
            yield SparkWorker(app, cluster, order, where)
        finally:
            cluster.close()
