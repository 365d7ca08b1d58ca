"""Answers to the processes of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from taskq.core.model import State
from taskq.log.requests import Cancel
from tests.log.reference import Job, Reference


@dataclass(slots=True)
class Memory:
    """All promises of a run."""

    #: lsn -> its promised meaning: a job with this body, or a claim of that job
    meanings: dict[int, tuple[str, object]] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    settled: dict[int, tuple[State, bytes | None]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    #: bodies that belong together -> whether the group was acknowledged
    groups: dict[tuple[bytes, ...], bool] = field(default_factory=dict)
    #: children -> the claim that they were enqueued with
    children: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    free_claims: set[int] = field(default_factory=set)
    run_once: set[int] = field(default_factory=set)
    #: running jobs that somebody asked to cancel, and those whose asker was answered
    doubted: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    #: jobs that somebody asked to requeue or purge: of their end nothing is promised any more
    reborn: set[int] = field(default_factory=set)
    #: confirmed requeues of each job
    requeued: Counter[int] = field(default_factory=Counter)
    purged: set[int] = field(default_factory=set)
    #: titles of the steps of each job that are done
    steps: dict[int, list[str]] = field(default_factory=dict)
    #: source -> the farthest position that an answer named
    positions: Counter[str] = field(default_factory=Counter)

    def end(self, lsn: int, state: State, body: bytes | None) -> None:
        if lsn in self.reborn:
            return
        assert lsn not in self.ended, "settled twice"
        self.ended.add(lsn)
        self.know(lsn, state, body)

    def know(self, lsn: int, state: State, body: bytes | None) -> None:
        if lsn in self.reborn:
            return
        assert self.settled.setdefault(lsn, (state, body)) == (state, body), "two outcomes"

    def cancel(self, lsn: int, answer: Cancel) -> None:
        if answer is Cancel.WITHDRAWN:
            self.end(lsn, State.CANCELLED, None)
        elif answer is Cancel.ASKED and lsn not in self.reborn:
            self.asked.add(lsn)

    def may_live_again(self, lsn: int) -> None:
        """Somebody asks to requeue or purge a job."""
        self.reborn.add(lsn)
        self.asked.discard(lsn)
        self.settled.pop(lsn, None)
        self.ended.discard(lsn)
        self.run_once.discard(lsn)

    def forgive(self, reference: Reference) -> None:
        """A power loss took what was never promised to survive one."""
        self.durable &= reference.jobs.keys()
        self.steps.clear()
        self.groups = dict.fromkeys(self.groups, False)
        self.settled = {
            lsn: ended
            for lsn, ended in self.settled.items()
            if lsn in self.durable
            and (reference.jobs[lsn].state, reference.jobs[lsn].result) == ended
        }
        self.ended &= self.settled.keys()
        self.asked = {lsn for lsn in self.asked if stays_cancelled(reference.jobs.get(lsn))}
        self.requeued &= reference.requeues
        self.purged &= reference.purged
        self.positions.clear()

    def mean(self, lsn: int, what: str, value: object) -> None:
        assert self.meanings.setdefault(lsn, (what, value)) == (what, value), f"lsn {lsn}"


def stays_cancelled(job: Job | None) -> bool:
    """Return whether a running job that was cancelled can never run again."""
    return job is not None and (job.asked or job.state in (State.CANCELLED, State.SUCCEEDED))
