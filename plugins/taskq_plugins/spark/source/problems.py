"""What may keep the source from reading on, each with the option that decides about it.

::

    TaskqError
    ├── UsageError
    │   └── OptionError       an option that is unknown, or has a wrong value
    └── LogError
        ├── Unreadable        a log or a segment cannot be used as it is: corruptMode
        └── DataLoss          what was to be read is not there any more: failOnDataLoss

A log that was restored from a backup is none of these: it is read on as another branch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from taskq.engine import segment_name
from taskq.errors import LogError, UsageError

if TYPE_CHECKING:
    from taskq_plugins.spark.source.positions import Position

_log: Final = logging.getLogger("taskq")
_GO_ON: Final = "with the option failOnDataLoss=false reading goes on"


class OptionError(UsageError):
    """An option is unknown, missing, or has a value that is not allowed.

    Attributes:
        option: its name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option}{message}")
        self.option = option


class Unreadable(LogError):
    """A log or a segment cannot be read, be it for its rights or for what is in it.

    Attributes:
        cause: the error as it was met.
    """

    def __init__(self, cause: LogError) -> None:
        super().__init__(
            f"{cause}; with the option corruptMode=skip (or quarantine) it is left out"
        )
        self.cause = cause


class DataLoss(LogError):
    """Records that were to be read are not in the log any more, or never came with it.

    Attributes:
        device: whose log it is.
        lsn: of the first record that is missing, if there was one.
    """

    def __init__(self, device: str, where: str, lsn: int, goes_on: str) -> None:
        super().__init__(
            f"device {device}: {where} is missing, which held records from lsn {lsn} on: "
            f"compaction took it before it was read, or it was not copied; {_GO_ON} {goes_on}"
        )
        self.device = device
        self.lsn = lsn


class LogVanished(DataLoss):
    """A log that was being read is not there any more, and its device has no other."""

    def __init__(self, device: str, log_id: str) -> None:
        LogError.__init__(
            self,
            f"device {device}: its log {log_id} is gone from the directory, read or not; {_GO_ON} "
            f"with the others",
        )
        self.device = device
        self.lsn = 0


class Held(DataLoss):
    """A log of which nothing can be read before something is gone; with its own words."""

    def __init__(self, text: str) -> None:
        LogError.__init__(self, text)
        self.device, self.lsn = "", 0


def loss_handler(mode: str) -> Callable[[LogError], None]:
    """Return what is done about lost data: raised, or with "false" told in the process's log."""
    return _log_loss if mode == "false" else _raise_loss


def restored(was: Position, now: Position | None) -> str:
    goes_on = "nothing in it is new yet"
    if now is not None:
        place = f"{segment_name(now.segment)}, offset {now.offset}"
        goes_on = f"it goes on as branch {now.branch}, from {place} on"
    return (
        f"device {was.device}: {segment_name(was.segment)}, offset {was.offset}, does not hold the "
        f"frame behind which reading was to go on (lsn {was.lsn}, epoch {was.epoch:016x}): the log "
        f"was restored from a backup, or cut; {goes_on}"
    )


def _raise_loss(error: LogError) -> None:
    raise error


def _log_loss(error: LogError) -> None:
    _log.warning("failOnDataLoss=false: %s", error)
