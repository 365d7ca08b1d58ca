"""What is wrong with a log or a segment that was found, named so that somebody can act on it.

::

    LogError
    └── FleetError            a place where logs are looked for cannot be used as asked
        └── LogTwice          two directories hold the same log
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from taskq.arrow.problems import shown
from taskq.errors import LogError

_log: Final = logging.getLogger("taskq")


class FleetError(LogError):
    """A directory of logs, or one of them, cannot be used as asked; the message says which."""


class LogTwice(FleetError):
    """Two directories hold a log of the same id, and neither is the beginning of the other.

    Attributes:
        log_id: of both.
        paths: where they are.
    """

    def __init__(self, log_id: str, first: str, second: str) -> None:
        super().__init__(
            f"log {log_id} is there twice, in {shown(first)} and in {shown(second)}, and each has "
            f"records that the other lacks: move the wrong one out of there"
        )
        self.log_id = log_id
        self.paths = (first, second)


def tell(error: LogError, on_problem: Callable[[LogError], None] | None) -> None:
    if on_problem is None:
        raise error
    on_problem(error)


def log_problem(error: LogError) -> None:
    _log.warning("left out: %s", error)
