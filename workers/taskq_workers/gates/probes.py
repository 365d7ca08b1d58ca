"""Probes of conditions, one for each distinct condition of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anyio import CancelScope, sleep_forever

from taskq.limits import Deadline
from taskq_workers.runs import lifespans, reasons

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq.conditions.base import Condition
    from taskq.engine import Store

_log: Final = logging.getLogger("taskq.worker")

#: A condition counts as holding for this long after a good probe, while its jobs run.
HELD_SECONDS: Final = 2.0
#: Longest wait for a probe that does not end after its timeout.
DEAF_SECONDS: Final = 0.2
#: The part of its interval during which a probe's answer is shared.
_SHARED: Final = 0.9


class Probe:
    """State of one condition.

    Attributes:
        condition: the condition.
        problem: why it does not hold, "" if it does; None before the first probe.
        probed_at: loop time of the start of the last probe that ended.
        since_ns: wall time of its last change between holding and not holding.
    """

    __slots__ = (
        "_is_warned", "_running", "_wall_ns", "condition", "probed_at", "problem", "since_ns",
    )  # fmt: skip

    def __init__(self, condition: Condition, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self.condition = condition
        self.problem: str | None = None
        self.probed_at = float("-inf")
        self.since_ns = 0
        self._running: asyncio.Task[None] | None = None
        self._is_warned = False

    async def fresh_problem(self, age_seconds: float) -> str:
        """Return why it does not hold, "" if it does; the answer may have that age.

        Concurrent callers share one probe.
        """
        loop = asyncio.get_running_loop()
        if self.problem is None or loop.time() - self.probed_at > age_seconds:
            if self._running is None:
                self._running = lifespans.begin(self._probe(loop.time()), "taskq-probe")
            # A caller that is cancelled must not end the probe of the others.
            running, limit = self._running, self.condition.timeout_seconds
            if not await lifespans.until_done({running}, limit + DEAF_SECONDS):
                self._learn(f"its probe took over {limit:g} s and goes on", loop.time())
            elif running.cancelled():
                self._learn("its probe was cancelled", loop.time())
            else:
                running.result()
        return self.problem or ""

    async def leave(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await lifespans.until_done({self._running}, DEAF_SECONDS)

    async def _probe(self, now: float) -> None:
        condition = self.condition
        # A cancel scope would wait for ever for a probe that ignores its cancellation.
        limit = Deadline(condition.timeout_seconds)
        try:
            async with limit:
                problem = await condition.problem()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - it is somebody else's code
            problem = f"its probe took over {condition.timeout_seconds:g} s"
            if not limit.expired():
                problem = reasons.summary(error)
            if not limit.expired() and not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "the condition %s counts as not holding, since its probe raised %s",
                    condition.name,
                    problem,
                )
        finally:
            self._running = None
        self._learn(problem, now)

    def _learn(self, problem: str, now: float) -> None:
        if self.problem is None or bool(self.problem) != bool(problem):
            self.since_ns = self._wall_ns()
        self.problem = problem
        self.probed_at = now


class Probes(dict["Condition", Probe]):
    """The probes of a worker by condition, created at first use."""

    def __init__(self, data_dir: Path, wall_ns: Callable[[], int]) -> None:
        super().__init__()
        self._wall_ns = wall_ns
        self._data_dir = data_dir

    def __missing__(self, condition: Condition) -> Probe:
        bound = condition.bound(self._data_dir)
        probe = Probe(bound, self._wall_ns) if bound == condition else self[bound]
        self[condition] = probe
        return probe

    def known_unmet(self, conditions: Iterable[Condition], age_seconds: float) -> Probe | None:
        """Return a condition with a failed probe of at most this age; None without one."""
        oldest = asyncio.get_running_loop().time() - age_seconds
        probes = (self[condition] for condition in conditions)
        young = (probe for probe in probes if probe.probed_at >= oldest)
        return next((probe for probe in young if probe.problem), None)

    async def unmet(
        self, conditions: Iterable[Condition], age_seconds: float | None = None
    ) -> Probe | None:
        """Return the first of the conditions that does not hold; None if all hold.

        ``age_seconds`` is the oldest usable answer; None means 0.9 of a condition's own interval.
        """
        probes = [self[condition] for condition in conditions]
        problems = await asyncio.gather(
            *(
                probe.fresh_problem(
                    _SHARED * probe.condition.interval_seconds
                    if age_seconds is None
                    else age_seconds
                )
                for probe in probes
            )
        )
        both = zip(probes, problems, strict=True)
        return next((probe for probe, problem in both if problem), None)

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        del store
        task_status.started()
        try:
            await sleep_forever()
        finally:
            with CancelScope(shield=True):
                await asyncio.gather(*(probe.leave() for probe in set(self.values())))
