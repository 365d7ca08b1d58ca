"""All gates of a worker: they decide which jobs it holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import create_task_group, move_on_after

from taskq import engine, errors, views
from taskq.conditions.breakers import is_network_failure
from taskq_workers.gates.probes import Probes
from taskq_workers.slots import feed, rounds, settling, slots

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import Delivery, Task, TaskQ
    from taskq.conditions.base import Condition
    from taskq_workers.gates.gate import Breaker, ConditionGate, Gate

#: Interval of a burst's checks while it waits for a gate.
LOOK_SECONDS: Final = 0.5


class AllBut(frozenset[str]):
    """Every name except these, for a claim from all queues; supports only ``in``."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return not super().__contains__(name)


class Gates:
    """A worker's gates: a ``Service``, the feed's ``ClaimFilter``, and the host of each gate.

    It costs nothing in a worker without conditions and breakers.
    """

    def __init__(
        self,
        app: TaskQ,
        runner: feed.FeedHost,
        *,
        queues: frozenset[str] | None,
        changed: Callable[[], None],
    ) -> None:
        self._app = app
        self.feed = runner.feed
        self.moved = asyncio.Event()
        self.port: engine.LoopPort
        self.probes = Probes(app.data_dir, self.wall_ns)
        self._runner = runner
        self._settler = runner.settler
        self._queues = queues
        self._changed = changed
        self._store: engine.Store | None = None
        self._is_draining = False
        self._is_ending = False
        #: coroutines to start as tasks of this service, by name, and the event for them
        self._begun: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._asked = asyncio.Event()
        self._by_conditions: dict[frozenset[Condition], ConditionGate] = {}
        self._by_task: dict[str, ConditionGate] = {}
        self._breakers: dict[str, Breaker] = {}
        self._shut_tasks: frozenset[str] = frozenset()
        self._shut_queues: frozenset[str] = frozenset()

    # -- as a service -----------------------------------------------------------------------------

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Make the gates of the app's tasks and breakers, and run them until cancelled."""
        self._store = store
        self.port = store.port()
        async with create_task_group() as group:
            self._begin_breakers()
            self.learn()
            task_status.started()
            try:
                while True:
                    begun, self._begun = self._begun, []
                    for name, live in begun:
                        group.start_soon(live, name=name)
                    await self._asked.wait()
                    self._asked.clear()
            finally:
                self._is_draining = True

    def _begin_breakers(self) -> None:
        if self._app.hooks.breakers:
            # Imported here, like the gates of conditions: most workers have no gates.
            from taskq_workers.gates.gate import Breaker  # noqa: PLC0415

            for queue, rule in self._app.hooks.breakers.items():
                if self._queues is None or queue in self._queues:
                    self._breakers[queue] = Breaker(self, rule)
                    self._begin(self._breakers[queue], queue)

    def learn(self) -> None:
        """Make gates for tasks that were registered or replaced since the last call."""
        if self._store is None or self._is_draining:
            return
        wanted: dict[frozenset[Condition], dict[str, tuple[Condition, ...]]] = {}
        for name, task in self._app.tasks.items():
            if task.requires:
                wanted.setdefault(frozenset(task.requires), {})[name] = task.requires
        for key, gate in list(self._by_conditions.items()):
            if gate.tasks != wanted.get(key, {}).keys():
                # It may be waiting for jobs of its old tasks: a new gate claims for all.
                gate.drain()
                del self._by_conditions[key]
        for key, needs in wanted.items():
            if key not in self._by_conditions:
                from taskq_workers.gates.gate import ConditionGate  # noqa: PLC0415

                name = next(iter(needs))
                gate = self._by_conditions[key] = ConditionGate(self, needs[name])
                gate.tasks.update(needs)
                self._begin(gate, name)
        self._by_task = {name: gate for gate in self._by_conditions.values() for name in gate.tasks}
        self._sum_up()

    # -- as a filter of claims ---------------------------------------------------------------------

    def claimable(
        self, queues: frozenset[str] | None, tasks: frozenset[str]
    ) -> tuple[frozenset[str] | None, frozenset[str]]:
        if self._shut_tasks:
            tasks -= self._shut_tasks
        if self._shut_queues:
            queues = AllBut(self._shut_queues) if queues is None else queues - self._shut_queues
        return queues, tasks

    def passed(self, deliveries: list[Delivery]) -> list[Delivery]:
        if not (self._shut_tasks or self._shut_queues):
            return deliveries
        kept: list[Delivery] = []
        for delivery in deliveries:
            gate = self._gate_against(delivery)
            if gate is None:
                kept.append(delivery)
            else:
                self.give_back([delivery], gate.cause)
        return kept

    # -- for the gates ----------------------------------------------------------------------------

    def open_queues(self) -> frozenset[str] | None:
        return self.claimable(self._queues, frozenset())[0]

    def open_tasks(self) -> frozenset[str]:
        return frozenset(self._app.tasks) - self._shut_tasks

    def changed(self) -> None:
        """Claim again if other jobs may be claimed now, and publish the holds."""
        before = self._shut_tasks, self._shut_queues
        self._sum_up()
        if before != (self._shut_tasks, self._shut_queues) and not self._is_draining:
            self.feed.reconsider()
        self._changed()

    def holds(self) -> tuple[views.Hold, ...]:
        """Return the held jobs and the reasons, for people."""
        return tuple(gate.hold for gate in self._all() if gate.hold is not None)

    def wall_ns(self) -> int:
        assert self._store is not None
        return self._store.wall_ns()

    def give_back(self, deliveries: list[Delivery], cause: engine.Cause) -> None:
        self._settler.outcomes.extend(release_for(delivery, cause) for delivery in deliveries)
        self._settler.flush_soon()

    def has_begun(self, tasks: set[str]) -> bool:
        """Return whether jobs of these tasks run, wait for a slot, or have ended in this turn."""
        running = (slot.delivery for slot in self._slots if slot.delivery is not None)
        # An outcome that is not sent yet is no waiting job in the log.
        ended = (settling.as_settlement(end).delivery for end in self._settler.outcomes)
        begun = (*self.feed.buffer, *running, *ended)
        return any(delivery.task in tasks for delivery in begun)

    def stop_running(self, tasks: set[str]) -> None:
        """Stop and release running jobs of these tasks, if they have ``while_running``."""
        for slot in list(self._slots):
            delivery = slot.delivery
            if delivery is None or delivery.task not in tasks:
                continue
            if self._app.tasks[delivery.task].while_running:
                slot.stop(lambda running: release_for(running, engine.Cause.CONDITION))

    def network_conditions(self, queue: str) -> list[Condition]:
        from taskq.conditions.network import Online  # noqa: PLC0415

        tasks = self._app.tasks.values()
        return [
            condition
            for task in tasks
            if task.queue == queue
            for condition in task.requires
            if isinstance(condition, Online)
        ]

    # -- for slots and the worker -----------------------------------------------------------------

    def withdraw(self, ask: engine.Ask) -> Delivery | None:
        """Return a cancelled job that a gate has claimed and not passed on yet."""
        held = (gate.withdraw(ask) for gate in self._all())
        return next((delivery for delivery in held if delivery is not None), None)

    async def judge(
        self, task: Task[..., Any], error: BaseException, settlement: engine.Settlement
    ) -> engine.Settlement:
        """Decide on a failed job: it is given back if the network failed, not the job.

        The network failed if the job's queue backs off, or if a host that its task needs is down.
        """
        delivery = settlement.delivery
        if settlement.kind is engine.kinds.RELEASE:
            return settlement
        breaker = self._breakers.get(delivery.queue)
        latest = map(settling.as_settlement, reversed(self._settler.outcomes))
        fails = breaker is not None and breaker.failed(error, latest)
        if (
            settlement.kind is not engine.kinds.RETRY
            and settlement.cause is not engine.Cause.EXHAUSTED
        ):
            return settlement  # it gets no other attempt anyway
        if fails:
            return release_for(delivery, engine.Cause.BREAKER)
        gate = self._by_task.get(task.name)
        if gate is not None and is_network_failure(error):
            try:
                if await gate.has_lost_network():
                    return release_for(delivery, engine.Cause.CONDITION)
            except asyncio.CancelledError:
                # The worker ends, or the job was stopped; it had failed before.
                return settlement
        return settlement

    def ran_dry(self, stop: Callable[[BaseException | None], None]) -> None:
        if self._is_ending:
            self.feed.linger()
        elif not self._is_draining:
            self._is_ending = True
            self._start_soon("taskq-burst-end", partial(self._end, stop))

    async def _end(self, stop: Callable[[BaseException | None], None]) -> None:
        try:
            is_done = self.feed.allowed(1) <= 0 or await self._is_done()
        except errors.TaskqError as error:
            stop(error)
            return
        finally:
            self._is_ending = False
        if is_done and not self.feed.is_asking:
            stop(None)
        else:
            self.feed.look_anew()

    async def _is_done(self) -> bool:
        waited = False
        while True:
            self.moved.clear()
            pending = [gate for gate in self._all() if await gate.is_pending()]
            if not pending:
                return not waited
            waited = True
            self.feed.linger()
            # Another worker may have taken the gate's job; the gate then does not change.
            with move_on_after(LOOK_SECONDS):
                await self.moved.wait()

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _slots(self) -> Iterable[slots.Slot]:
        """Return the slots of this process; none if the jobs run elsewhere."""
        return self._runner.slots if isinstance(self._runner, slots.Slots | rounds.LogShare) else ()

    def _begin(self, gate: Gate, name: str) -> None:
        self.feed.filter = self
        self._settler.observers.add(self._on_ended)
        if isinstance(self._runner, slots.Slots | rounds.LogShare):
            self._runner.gates = self
        self._start_soon(f"taskq-gate-{name}", gate.run)

    def _start_soon(self, name: str, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # Called in callbacks of the loop, where a task group cannot start tasks.
        self._begun.append((name, live))
        self._asked.set()

    def _on_ended(self, settlements: list[engine.Settlement]) -> None:
        for gate in self._all():
            gate.flushed(settlements)

    def _all(self) -> list[Gate]:
        return [*self._by_conditions.values(), *self._breakers.values()]

    def _gate_against(self, delivery: Delivery) -> Gate | None:
        gates = self._by_task.get(delivery.task), self._breakers.get(delivery.queue)
        for gate in gates:
            if gate is not None and not (gate.is_open or gate.tries(delivery)):
                return gate
        return None

    def _sum_up(self) -> None:
        shut = [gate for gate in self._by_conditions.values() if not gate.is_open]
        self._shut_tasks = frozenset(name for gate in shut for name in gate.tasks)
        self._shut_queues = frozenset(
            queue for queue, breaker in self._breakers.items() if not breaker.is_open
        )


def release_for(delivery: Delivery, cause: engine.Cause) -> engine.Settlement:
    return engine.Settlement(engine.kinds.RELEASE, delivery, None, 0, cause)
