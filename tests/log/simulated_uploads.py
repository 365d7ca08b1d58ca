"""Uploads in a simulation: written, published, retried and adopted while everything fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskq.core.errors import AppendFailed, LogError, LogFailed, OutcomeUnknown
from taskq.core.records import Kind
from taskq.log.inbox.adopter import Adopter
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, publish_with
from tests.log.uploading import adopt, order, step
from tests.log.world import PATH

if TYPE_CHECKING:
    import random
    from collections import Counter

    from taskq.core.model import Extras
    from taskq.log.requests import EnqueueSpec
    from tests.log.uploading import Waiter
    from tests.log.world import Process, World

    Item = tuple[EnqueueSpec, bytes, Extras | None]


class Uploads:
    """A part of a simulation.

    Attributes:
        offered: uploads by their names.
        published: the confirmed ones among them.
    """

    chance: random.Random
    counts: Counter[str]
    processes: list[Process]
    world: World
    _faults: bool
    _is_failed: bool

    def __init__(self) -> None:
        self.offered: dict[str, list[Item]] = {}
        self.published: set[str] = set()
        self._adopters: dict[Process, tuple[Adopter, Waiter]] = {}

    def _item(self) -> Item:
        raise NotImplementedError

    def upload(self) -> None:
        process = self.chance.choice(self.processes)
        unsure = sorted(self.offered.keys() - self.published)
        if unsure and self.chance.random() < 0.5:
            name = self.chance.choice(unsure)
        else:
            name = f"stream@{len(self.offered)}"
            self.offered[name] = [self._item() for _ in range(self.chance.choice((1, 3, 6)))]
        try:
            writer = PartWriter(Path(PATH), "up", disk=process.disk)
            for spec, body, extras in self.offered[name]:
                writer.add(encode_tail(spec, extras), body)
            publish_with(process.disk, self.world.clock, PATH, name, [writer.close()])
        except AppendFailed:
            assert self._faults
            self.counts["not published"] += 1
        else:
            self.published.add(name)
            self.counts["published"] += 1

    def adopt(self) -> None:
        process = self.chance.choice(self.processes)
        if process not in self._adopters:
            adopter = Adopter(process.committer)
            self._adopters[process] = adopter, order(adopter)
        adopter, waiter = self._adopters[process]
        for _ in range(self.chance.choice((1, 5, 40))):
            if not step(process, adopter):
                break
        if waiter.answer is not None:
            del self._adopters[process]
            adopter.close()
            self._told(waiter.answer)

    def _told(self, answer: Any) -> None:
        if isinstance(answer, int):
            self.counts["adopted"] += answer
            return
        assert self._faults, repr(answer)
        assert isinstance(answer, (AppendFailed, OutcomeUnknown, LogError)), repr(answer)
        self._is_failed = self._is_failed or isinstance(answer, LogFailed)
        self.counts["not adopted"] += 1

    def forget_adopters(self) -> None:
        self._adopters = {
            process: item for process, item in self._adopters.items() if not process.disk.is_dead
        }

    def adopt_rest(self) -> None:
        for adopter, _ in self._adopters.values():
            adopter.close()
        self._adopters.clear()
        process = self.world.process()
        answer = adopt(process)
        assert isinstance(answer, int), repr(answer)
        bodies = [record.body for record in self.world.records() if record.type == Kind.ENQUEUED]
        for name in self.published:
            for _, body, extras in self.offered[name]:
                count = bodies.count(body)
                if extras is None or extras.key is None:
                    assert count == 1, f"{name}: a job came {count} times"
                assert count <= 1, f"{name}: a job came twice"
        process.close()
