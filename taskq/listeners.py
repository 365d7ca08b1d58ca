"""Who wants to hear that something has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Listeners:
    """Functions that are called, on whatever thread, each time that something happened."""

    def __init__(self) -> None:
        self._all: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` from now on. Returns what ends that, legal twice."""
        self._all = [*self._all, listener]

        def leave() -> None:
            self._all = [one for one in self._all if one is not listener]

        return leave

    def tell(self) -> None:
        """Call them all."""
        for listener in self._all:
            listener()
