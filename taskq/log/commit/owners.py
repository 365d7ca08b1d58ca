"""The other processes that hold jobs, as one claimer sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from taskq.log.machine.ports import Peers
    from taskq.log.state.facets import Facets

#: How often a claimer looks whether they still live: a killed worker's jobs run again in a second.
CHECK_NS: Final = 250_000_000


class OtherOwners:
    """Processes whose claims must be watched for their death."""

    def __init__(self, facets: Facets, peers: Peers) -> None:
        self._facets = facets
        self._peers = peers
        self._looked_ns = 0
        #: whether some of the dead still hold jobs: a batch takes back a limited number
        self.left = False

    def all(self) -> set[int]:
        """Return the owners of claims, as far as this process has folded the log."""
        agenda = self._facets.agenda
        if agenda is None:
            return set()
        return {claim[2] for claim in agenda.running.values()} - {self._peers.owner}

    def dead(self) -> set[int]:
        return {owner for owner in self.all() if not self._peers.alive(owner)}

    def dead_if_due(self, steady_ns: int) -> set[int]:
        """``dead``, looked for four times a second; else nobody."""
        if steady_ns - self._looked_ns < CHECK_NS:
            return set()
        self._looked_ns, self.left = steady_ns, False
        return self.dead()

    def forget(self, dead: set[int]) -> None:
        """Remove the files of owners that hold nothing any more; look for the others again."""
        left = dead & self.all()
        self.left = bool(left)
        for owner in dead - left:
            self._peers.forget(owner)
        if left:
            self.look_again()

    def look_again(self) -> None:
        self._looked_ns = 0
