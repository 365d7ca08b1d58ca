"""Positions in logs, the form of a stream's offsets, and errors that stop reading."""

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
        option: name of the option.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option}{message}")
        self.option = option


class Unreadable(LogError):
    """A log or a segment cannot be read, because of its permissions or its content."""

    def __init__(self, cause: LogError) -> None:
        super().__init__(f"{cause}; with the option corruptMode=skip it is left out")


class DataLoss(LogError):
    """Unread records are missing from the log, or were never copied."""


def loss_of(device: str, where: str, lsn: int, resumed: str) -> DataLoss:
    """Return the error for a device's missing records from an lsn on, with the place after them."""
    return DataLoss(
        f"device {device}: {where} is missing, which held records from lsn {lsn} on: compaction "
        f"took it before it was read, or it was not copied; {_GO_ON} {resumed}"
    )


class LogVanished(DataLoss):
    """A partly read log is missing, and its device has no other log."""

    def __init__(self, device: str, log_id: str) -> None:
        super().__init__(
            f"device {device}: its log {log_id} is gone from the directory, read or not; {_GO_ON} "
            f"with the others"
        )


class LogHeld(DataLoss):
    """A log cannot be read until its problem is solved; the message is the problem's own."""
