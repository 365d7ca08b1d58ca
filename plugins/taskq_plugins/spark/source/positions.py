"""Places in logs, as a stream's offsets keep them, and why reading stops at one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from taskq.errors import LogError, UsageError
from taskq_plugins.fleet.places import Position

_POSITIONS: Final = TypeAdapter(dict[str, Position])


def positions_to_json(positions: Mapping[str, Position]) -> dict[str, dict[str, int | str]]:
    return {log_id: positions[log_id]._asdict() for log_id in sorted(positions)}


def positions_from_json(values: dict[str, Any]) -> dict[str, Position]:
    try:
        return _POSITIONS.validate_python(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(
            f"the checkpoint holds an offset that this source did not write ({problem['msg']}): "
            f"give the query a checkpoint of its own"
        ) from error


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
    """A log or a segment cannot be read, by its permissions or its content."""

    def __init__(self, cause: LogError) -> None:
        super().__init__(f"{cause}; with the option corruptMode=skip it is left out")


class DataLoss(LogError):
    """Records that were to be read are not in the log any more, or never came with it."""


def loss_of(device: str, where: str, lsn: int, goes_on: str) -> DataLoss:
    """Return the error for a device's records from an lsn on, and where reading may go on."""
    return DataLoss(
        f"device {device}: {where} is missing, which held records from lsn {lsn} on: compaction "
        f"took it before it was read, or it was not copied; {_GO_ON} {goes_on}"
    )


class LogVanished(DataLoss):
    """A log that was being read is not there any more, and its device has no other."""

    def __init__(self, device: str, log_id: str) -> None:
        super().__init__(
            f"device {device}: its log {log_id} is gone from the directory, read or not; {_GO_ON} "
            f"with the others"
        )


class LogHeld(DataLoss):
    """A log of which nothing can be read before something is gone; with its own words."""
