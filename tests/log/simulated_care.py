"""Requests of a simulation's processes for single jobs, dead letters and whole queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskq.core.errors import KeyHeld, NotDead, TaskqError
from taskq.core.model import State
from taskq.core.records import Cause
from taskq.log.read.selection import WaitingFilter, letters, waiting_page
from taskq.log.requests import Op, Withdrawal
from tests.log.editing import some_edit

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable

    from taskq.log.requests import Cancel, Outcome
    from tests.log.memory import Memory
    from tests.log.world import Process

    #: operation, operand, what to do with the answer
    Made: TypeAlias = tuple[Op, Any, Callable[[Any], None]]

QUEUES: Final = ("mail", "sync")


class Care:
    """A part of a simulation."""

    chance: random.Random
    memory: Memory
    counts: Counter[str]

    def _enqueue(self, process: Process) -> Made:
        raise NotImplementedError

    def _some_job(self) -> int | None:
        jobs = sorted(self.memory.durable)
        return self.chance.choice(jobs[-12:]) if jobs else None

    def _cancel(self, process: Process) -> Made:
        job = self._some_job()
        if job is None:
            return self._enqueue(process)

        self.memory.doubted.add(job)

        def accept(answer: Cancel) -> None:
            self.memory.cancel(job, answer)
            self.counts[f"cancel: {answer.name}"] += 1

        return Op.CANCEL, job, accept

    def _watch(self, process: Process) -> Made:
        job = self._some_job()
        if job is None:
            return self._enqueue(process)

        def accept(outcome: Outcome) -> None:
            self.memory.know(job, outcome.state, outcome.body)
            self.counts["outcomes"] += 1

        return Op.OUTCOME, job, accept

    def _dead(self, process: Process) -> list[int]:
        agenda = process.catch_up().need_agenda()
        dead = [chunk.ids[index] for chunk, index in agenda.dead]
        if not dead:
            return []
        count = min(len(dead), self.chance.choice((1, 1, 3, 9)))
        return sorted(self.chance.sample(dead, count))

    def _requeue(self, process: Process) -> Made:
        jobs = self._dead(process)
        result = letters(process.committer.sight, jobs).items
        if not result:
            return self._enqueue(process)
        for job in jobs:
            self.memory.may_live_again(job)

        def accept(answers: list[TaskqError | None]) -> None:
            for letter, answer in zip(result, answers, strict=True):
                if answer is None:
                    self.memory.requeued[letter.job] += 1
                    self.counts["requeued"] += 1
                else:
                    assert isinstance(answer, NotDead | KeyHeld), repr(answer)
                    self.counts["requeue refused"] += 1

        return Op.REQUEUE, result, accept

    def _edit(self, process: Process) -> Made:
        """Return a job that waits where somebody looked, and may be claimed or changed by now."""
        wish = some_edit(process, self.chance, [name.encode() for name in QUEUES])
        if wish is None:
            return self._enqueue(process)

        def accept(answer: bool | None) -> None:
            self.counts[f"edit: {answer}"] += 1

        return Op.EDIT, wish, accept

    def _purge(self, process: Process) -> Made:
        jobs = self._dead(process)
        if not jobs:
            return self._enqueue(process)
        for job in jobs:
            self.memory.may_live_again(job)

        def accept(answers: list[TaskqError | None]) -> None:
            for job, answer in zip(jobs, answers, strict=True):
                if answer is None:
                    self.memory.purged.add(job)
                    self.counts["purged"] += 1
                else:
                    assert isinstance(answer, NotDead), repr(answer)

        return Op.PURGE, jobs, accept

    def _pause(self, process: Process) -> Made:
        paused = sorted(process.catch_up().need_agenda().queues.paused)
        if paused and self.chance.random() < 0.8:
            return Op.RESUME, self.chance.choice(paused), lambda _: None
        self.counts["pauses"] += 1
        return Op.PAUSE, self.chance.choice(QUEUES), lambda _: None

    def _withdraw(self, process: Process) -> Made:
        process.catch_up()
        wanted = WaitingFilter(queue=self.chance.choice(QUEUES))
        result = waiting_page(process.committer.sight, wanted, 0, 2**62, 50).items
        jobs = result[: self.chance.choice((1, 2, 4))]
        if not jobs:
            return self._enqueue(process)

        def accept(done: list[int]) -> None:
            assert set(done) <= set(jobs)
            for job in done:
                self.memory.end(job, State.CANCELLED, None)
            self.counts["withdrawn"] += len(done)

        cause = self.chance.choice((Cause.CALLER, Cause.PURGE))
        return Op.WITHDRAW, Withdrawal(jobs, cause), accept
