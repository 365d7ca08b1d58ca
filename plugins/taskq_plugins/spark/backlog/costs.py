"""How large chunks are: as many jobs as make about a second, measured by the tasks' own speed.

Spark takes 30 to 50 ms for each partition, whatever is in it: a chunk of fast jobs has to be long
enough for that not to count, and short enough that a stop or a change of speed is noticed soon.
Slow jobs go one by one, and none waits at an executor that is busy with another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from taskq import Delivery

#: What a chunk is to take.
CHUNK_SECONDS: Final = 1.0
#: A chunk is not made shorter to keep all executors busy: starting it would take most of the time.
CHUNK_SECONDS_MIN: Final = 0.1
#: Slower jobs are claimed only for executors that are free.
SLOW_SECONDS: Final = 1.5
#: Most jobs of one chunk, and most bytes of their records.
CHUNK_JOBS_MAX: Final = 1_000
CHUNK_BYTES_MAX: Final = 8 << 20
#: Weight of the latest chunk in the averages.
_WEIGHT: Final = 0.4


class Costs:
    """Seconds of an executor that a job of each task takes; unknown ones count as a whole chunk.

    Attributes:
        usual: the same of any job, as they come.
        size_usual_bytes: of a job's record.
    """

    def __init__(self) -> None:
        self.usual = CHUNK_SECONDS
        self.size_usual_bytes = 0.0
        self._of_task: dict[str, float] = {}
        self._is_new = True

    def seconds(self, task: str) -> float:
        return self._of_task.get(task, CHUNK_SECONDS)

    @property
    def is_slow(self) -> bool:
        return self.usual > SLOW_SECONDS

    def chunk_jobs(self) -> int:
        count = CHUNK_SECONDS / max(self.usual, CHUNK_SECONDS / CHUNK_JOBS_MAX)
        if self.size_usual_bytes:
            count = min(count, CHUNK_BYTES_MAX / self.size_usual_bytes)
        return max(int(count), 1)

    def learn(self, jobs: Iterable[tuple[str, float, int]]) -> None:
        by_task: dict[str, list[float]] = {}
        size_bytes = 0
        for task, seconds, job_bytes in jobs:
            by_task.setdefault(task, []).append(seconds)
            size_bytes += job_bytes
        count = sum(map(len, by_task.values()))
        if not count:
            return
        for task, times in by_task.items():
            mean = sum(times) / len(times)
            self._of_task[task] = _mixed(self._of_task.get(task), mean)
        usual, size = (None, None) if self._is_new else (self.usual, self.size_usual_bytes)
        self.usual = _mixed(usual, sum(map(sum, by_task.values())) / count)
        self.size_usual_bytes = _mixed(size, size_bytes / count)
        self._is_new = False


def cut(
    waiting: deque[Delivery],
    partitions: int,
    costs: Costs,
    alone: Callable[[Delivery], bool],
    free: int = 0,
) -> list[list[Delivery]]:
    """Take jobs from the left of ``waiting`` for so many partitions, about equally long ones.

    Args:
        waiting: in claim order; what does not fit stays.
        partitions: how many chunks to make at most.
        costs: of the tasks.
        alone: whether a job is to have a chunk of its own.
        free: how many partitions could run them, if more than these.
    """
    total = sum(costs.seconds(job.task) for job in waiting)
    # Sums of floats differ by how they are added, and by the Python that adds them.
    goal = 1.000001 * min(CHUNK_SECONDS, max(CHUNK_SECONDS_MIN, total / max(partitions, free, 1)))
    chunks: list[list[Delivery]] = []
    while waiting and len(chunks) < partitions:
        chunk = [waiting.popleft()]
        seconds, size_bytes = costs.seconds(chunk[0].task), len(chunk[0].record)
        while waiting and not alone(chunk[0]):
            job = waiting[0]
            seconds += costs.seconds(job.task)
            size_bytes += len(job.record)
            full = seconds > goal or size_bytes > CHUNK_BYTES_MAX or len(chunk) >= CHUNK_JOBS_MAX
            if full or alone(job):
                break
            chunk.append(waiting.popleft())
        chunks.append(chunk)
    return chunks


def _mixed(known: float | None, latest: float) -> float:
    return latest if known is None else known + _WEIGHT * (latest - known)
