"""Snapshots in a simulation: any process may be in the midst of writing one."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Generator
from typing import Final

from taskq.core.errors import LogError
from taskq.log.upkeep.snapshots import Snapshots
from tests.log.told import check_same
from tests.log.world import Process, World
from tests.machine.crashable import PowerLost, ProcessKilled

_DONE: Final = object()


class Snapshooting:
    """A part of a simulation."""

    chance: random.Random
    counts: Counter[str]
    world: World
    _steps_of_clock: bool

    def __init__(self) -> None:
        super().__init__()
        self._writing: dict[Process, Generator[None, None, None]] = {}

    def write_snapshot(self, process: Process) -> None:
        steps = self._writing.pop(process, None)
        if steps is None:
            with contextlib.suppress(LogError):
                process.catch_up()
            steps = Snapshots(process.committer).write_steps()
        for _ in range(self.chance.choice((1, 2, 5, 100))):
            if next(steps, _DONE) is _DONE:
                return
        self._writing[process] = steps

    def drop_snapshots(self, processes: list[Process]) -> None:
        """Leave half done what processes wrote that are gone."""
        for process in processes:
            steps = self._writing.pop(process, None)
            if steps is not None:
                with contextlib.suppress(PowerLost, ProcessKilled):
                    steps.close()

    def check_snapshots(self) -> None:
        if self.world.machine.find("/srv/data/taskq.json") is not None:
            behind, total = check_same(self.world, loosely=self._steps_of_clock)
            self.counts["folds that began with snapshots"] += behind < total
