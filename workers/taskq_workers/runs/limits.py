"""How much of the machine one worker's executors may take."""

from __future__ import annotations

from math import inf
from typing import Final

from taskq.errors import UsageError
from taskq.values import Duration, dataclass, seconds, whole
from taskq_workers.runs.guards import refuse_while_importing

#: No Python process that has imported taskq is smaller.
RSS_BYTES_MIN: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one worker, checked.

    Attributes:
        threads: how many sync jobs run at a time.
        processes: how many jobs run in child processes at a time.
        jobs_per_child: after so many a child is replaced; None for never.
        rss_bytes: a child that takes more memory after a job is replaced; None for never.
        target: ``module:app`` that children import; "" for the modules of the tasks.
    """

    threads: int
    processes: int
    jobs_per_child: int | None = None
    rss_bytes: int | None = None
    target: str = ""


def checked_limits(
    concurrency: int,
    *,
    thread_limit: int | None = None,
    process_limit: int | None = None,
    max_jobs_per_child: int | None = None,
    max_rss_per_child: int | str | None = None,
    target: str = "",
) -> Limits:
    """Return the limits as a worker's options say; ``concurrency`` stands for what is None.

    Raises:
        UsageError: one is out of its range, or no worker may start here.
    """
    refuse_while_importing()
    threads = concurrency if thread_limit is None else thread_limit
    processes = concurrency if process_limit is None else process_limit
    counts = {
        "concurrency": concurrency,
        "thread_limit": threads,
        "process_limit": processes,
        "max_jobs_per_child": max_jobs_per_child,
    }
    for name, count in counts.items():
        if count is not None and whole(count, name) < 1:
            raise UsageError(f"{name} is {count}, it must be at least 1")
    return Limits(
        threads=threads,
        processes=processes,
        jobs_per_child=max_jobs_per_child,
        rss_bytes=rss_bytes(max_rss_per_child, "max_rss_per_child"),
        target=target,
    )


def drain_seconds(value: Duration) -> float:
    """Return what jobs get to finish at a stop; infinity for as long as they take.

    Raises:
        UsageError: it is no duration.
    """
    return inf if value == inf else seconds(value, "drain_timeout")


def rss_bytes(value: int | str | None, name: str) -> int | None:
    """Return the memory that a child process may take, None for any.

    Raises:
        UsageError: it is no size, or less than a child takes before its first job.
    """
    if value is None:
        return None
    from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415 - few give one

    try:
        size = int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError:
        size = 0
    if size < 1:
        raise UsageError(
            f'{name} is {value!r:.60}: give a number of bytes, or text such as "500MB"'
        )
    if size < RSS_BYTES_MIN:
        raise UsageError(
            f"{name} is {value!r:.60}, which is {size:,} bytes: a child process takes more before "
            f'its first job, so each would be replaced after one; give text such as "500MB"'
        )
    return size
