"""Answers on their way out, and requests that wait: what a committer owes to whom."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import AppendFailed, LogError, LogFailed
from taskq.log.facets import Facets
from taskq.log.growth import Followers
from taskq.log.requests import Op
from taskq.log.room import is_full
from taskq.log.survey import claims, refusals
from taskq.log.watchers import Watchers

if TYPE_CHECKING:
    from taskq.core.errors import TaskqError
    from taskq.log.journal import Journal
    from taskq.log.requests import Answer, ClaimRequest, Request

_SETTLE_SOON: Final = int(Op.SETTLE_SOON)


class Desk:
    """Who waits for what.

    Attributes:
        now: answers that may go out at once.
        later: answers that must wait until the log is durable up to ``later_lsn``.
        waiting: claims that found nothing yet: (request, port, future).
        watchers: who waits for the outcome of a job.
        followers: who waits for the log to grow.
        held: requests for the next batch: settlements that the disk refused, which nobody
            waits for, and what needs a fold that is still being built.
        in_flight: the requests of the batch that waits for the lock.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.facets = Facets(journal)
        self.now: list[Answer] = []
        self.later: list[Answer] = []
        self.later_lsn = 0
        self.waiting: list[tuple[ClaimRequest, Any, Any]] = []
        self.watchers = Watchers(journal, self.facets)
        self.followers = Followers(journal)
        self.held: list[Request] = []
        self.in_flight: list[Request] = []
        self._guard = threading.Lock()

    def take_in_flight(self) -> list[Request]:
        """The requests of this batch; whoever takes them answers them. One thread at a time."""
        with self._guard:
            requests, self.in_flight = self.in_flight, []
            return requests

    def take_held(self) -> list[Request]:
        """What was put off; whoever takes it answers it, or puts it off again."""
        with self._guard:
            requests, self.held = self.held, []
            return requests

    def held_back(self, requests: list[Request]) -> None:
        """Put requests off to the next batch."""
        with self._guard:
            self.held += requests

    def _answer_later(self, port: Any, future: Any, value: object) -> None:
        """An answer that rests on everything this process has seen of the log."""
        self.later.append((port, future, value))
        self.later_lsn = max(self.later_lsn, self.journal.next_lsn)

    def _add_later(self, answers: list[Answer], lsn: int) -> None:
        """Answers that rest on the log up to ``lsn``."""
        if answers:
            self.later += answers
            self.later_lsn = max(self.later_lsn, lsn)

    def refuse_later(self, error: TaskqError) -> None:
        """Turn the answers that wait for the disk into this error."""
        self.later = [(port, future, error) for port, future, _ in self.later if future is not None]

    def _refuse(self, requests: list[Request], error: TaskqError) -> None:
        if isinstance(error, LogFailed):
            # Nothing will come until a person has looked: no worker may sit there and seem well.
            requests, self.waiting = [*requests, *claims(self.waiting)], []
            self.now += [(port, future, error) for port, future in self.watchers.take_all()]
            self.now += [(port, future, error) for port, future in self.followers.take_all()]
        requests = self._not_watched(requests)
        if not isinstance(error, LogError):
            patient = [one for one in requests if one[0] == Op.CLAIM]
            self.waiting += [(operand, port, future) for _, port, future, operand in patient]
            requests = [one for one in requests if one[0] != Op.CLAIM]
        self.now += refusals(requests, error)

    def _not_watched(self, requests: list[Request]) -> list[Request]:
        """The same without those that wait for an outcome already."""
        return [
            one for one in requests if one[0] != Op.OUTCOME or not self.watchers.has(one[3], one[2])
        ]

    def _give_up(self, requests: list[Request], error: OSError) -> None:
        """The disk refused: callers are told, and what can wait is tried again.

        For room claims and watchers wait as long as they may; nothing else gets better by itself.
        """
        failed = AppendFailed(self.journal.path, error)
        known = {id(one[2]) for one in self.waiting}
        requests = [one for one in self._not_watched(requests) if id(one[2]) not in known]
        waiting = [*claims(self.waiting), *requests]
        steady_ns, has_hope = self.journal.clock.steady_ns(), is_full(error)
        self.waiting = []
        for request in waiting:
            op, port, future, operand = request
            if op == _SETTLE_SOON or (op == Op.OUTCOME and has_hope):
                self.held.append(request)
            elif op == Op.CLAIM and has_hope and not operand.is_over(steady_ns):
                self.waiting.append((operand, port, future))
            elif future is None or not future.done():
                self.now.append((port, future, failed))
