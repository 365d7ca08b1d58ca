"""The processes that share a simulated directory, without any process."""

from __future__ import annotations


class Neighbourhood:
    """All processes with one directory open; hands out owner numbers."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        self._joined = 0

    def join(self) -> SimulatedPeers:
        self._joined += 1
        self.living.add(self._joined)
        return SimulatedPeers(self, self._joined)


class SimulatedPeers:
    """One process's view of the others. Implements ``Peers``.

    Attributes:
        woken: interest bits that this process woke the others for, oldest first.
        forgotten: owners whose files this process removed.
    """

    def __init__(self, neighbourhood: Neighbourhood, owner: int) -> None:
        self._neighbourhood = neighbourhood
        self._owner = owner
        self.woken: list[int] = []
        self.forgotten: list[int] = []

    @property
    def owner(self) -> int:
        return self._owner

    def alive(self, owner: int) -> bool:
        return owner in self._neighbourhood.living

    def is_known(self) -> bool:
        return self.alive(self._owner)

    def forget(self, owner: int) -> None:
        assert owner not in self._neighbourhood.living, f"owner {owner} lives"
        self.forgotten.append(owner)

    def wake(self, interest: int) -> None:
        """Nobody sleeps here; the call is remembered."""
        self.woken.append(interest)

    def sleep(self, interest: int, timeout_seconds: float | None) -> bool:
        del interest, timeout_seconds
        return False

    def announce(self, interest: int) -> None: ...
    def poke(self) -> None: ...
    def close(self) -> None:
        self._neighbourhood.living.discard(self._owner)
