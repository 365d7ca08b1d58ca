"""Shares of the claims for queues: none of them starves another, whatever it is filled with.

Deficit round robin: each queue in turn may have as many jobs claimed as its weight says, and a
turn that a claim cuts short goes on with the next claim. A queue without jobs gives its turn away
and saves nothing up. Within a queue priority and age rule; between queues with weights only
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.counts import whole
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskq.core.taking import Taken, Taking

WEIGHT_MAX: Final = 1_000
#: Rounds that a claim of many jobs makes at most; in each, a queue gets many times its weight.
_ROUNDS: Final = 4


class Weights:
    """The turns of one worker's queues. Used by one thread.

    Args:
        shares: name of each queue and its weight, 1 to WEIGHT_MAX.

    Raises:
        UsageError: there is none, or a weight is out of its range.
    """

    def __init__(self, shares: Mapping[str, int]) -> None:
        if not shares:
            raise UsageError("queues is empty: name at least one, or leave it out for all")
        self._turns: list[tuple[frozenset[str], int]] = []
        for queue, share in shares.items():
            weight = whole(share, f"the weight of queue {queue!r}")
            if not 1 <= weight <= WEIGHT_MAX:
                raise UsageError(
                    f"the weight of queue {queue!r} is {weight}, it must be 1 to {WEIGHT_MAX}"
                )
            self._turns.append((frozenset({queue}), weight))
        self._total = sum(weight for _, weight in self._turns)
        self._turn = -1
        self._left = 0

    def take(
        self,
        taking: Taking,
        count: int,
        queues: frozenset[str] | None,
        tasks: frozenset[str] | None,
    ) -> list[Taken]:
        """Do as ``Taking.take``, with what it finds shared out by weight."""
        taken: list[Taken] = []
        factor = max(count // (self._total * _ROUNDS), 1)
        if self._left:  # of a turn of a claim of more jobs, perhaps
            self._left = min(self._left, self._turns[self._turn][1] * factor)
        empty = 0
        while len(taken) < count and empty < len(self._turns):
            if not self._left:
                self._turn = (self._turn + 1) % len(self._turns)
                self._left = self._turns[self._turn][1] * factor
            wanted = min(self._left, count - len(taken))
            queue = self._turns[self._turn][0]
            is_open = queues is None or queue <= queues
            found = taking.take(wanted, queue, tasks) if is_open else []
            taken += found
            self._left = self._left - wanted if len(found) == wanted else 0
            empty = 0 if found else empty + 1
        return taken
