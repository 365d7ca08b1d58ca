"""Controls: settings that people change while a log is in use, as a fold of the log.

A control is a small JSON object with a name: pause and limits of a task, slots of workers, state of
an alert. The whole object is written with each change, so the latest record counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskq.core import rates
from taskq.core.errors import UsageError
from taskq.core.model import NAME_BYTES_MAX
from taskq.core.parsing import parse_json, whole
from taskq.core.sources import SourceState
from taskq.core.values import NamedTuple

#: Limits of a log: the number of controls, and the total bytes of their names and values.
CONTROLS_MAX: Final = 10_000
CONTROLS_BYTES_MAX: Final = 1024 * 1024
#: Longest control in JSON.
VALUE_BYTES_MAX: Final = 4_096
#: Header with the name of the control, in a stream's records.
CONTROL_HEADER: Final = "taskq-control"
#: Prefix of a control's name, before the name of a task.
TASK: Final = "task:"
#: Prefix of a control's name, before the name of an alert.
ALERT: Final = "alert:"
#: Longest name of a control: either prefix and a name of full length.
CONTROL_NAME_BYTES_MAX: Final = NAME_BYTES_MAX + 16
#: Control with the slots of workers, by the owner's number in hexadecimal; "" for other workers.
SLOTS: Final = "slots"
SLOTS_MAX: Final = 10_000
#: Value of a wish that removes the limit in the task's own code.
NO_LIMIT: Final = "none"


class Change(NamedTuple):
    """Changes of a control by field; None removes a field, and the last field removes the control.

    ``expected`` is the control that must be there before; None: any.
    """

    name: str
    changes: Mapping[str, object]
    expected: Mapping[str, object] | None = None


class TaskWish(NamedTuple):
    """Operators' wishes for a task; None leaves a limit to the task's own code."""

    paused: bool = False
    concurrency: int | None = None
    #: a rate without a count is no limit
    rate: rates.Rate | str | None = None

    @property
    def has_limits(self) -> bool:
        return self.concurrency is not None or self.rate is not None

    def over(self, declared: rates.Limit) -> rates.Limit:
        """Return a task's limit, with operators' wishes before the limits in its code."""
        return rates.Limit(
            concurrency=declared.concurrency if self.concurrency is None else self.concurrency,
            rate=declared.rate if self.rate is None else _rate(self.rate),
            scope=declared.scope,
        )


def _rate(rate: rates.Rate | str) -> rates.Rate | None:
    return rate if isinstance(rate, rates.Rate) else None


def value_of(controls: Mapping[str, SourceState], name: str) -> dict[str, Any]:
    """Return a control's fields; {} if the control is missing or cannot be parsed."""
    state = controls.get(name)
    try:
        value = parse_json(state.position) if state is not None else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def values_of(controls: Mapping[str, SourceState]) -> dict[str, dict[str, Any]]:
    """Return the fields of all controls, by name."""
    return {name: value_of(controls, name) for name in sorted(controls)}


def encode(value: Mapping[str, Any]) -> bytes:
    """Return a control's bytes in the log; b"" for an empty one."""
    import json  # noqa: PLC0415 - few logs have a control

    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() if value else b""


def task_wish(value: Mapping[str, Any]) -> TaskWish:
    """Return the wishes in a task's control; unknown and invalid fields are ignored."""
    concurrency, rate = value.get("concurrency"), value.get("rate")
    read: rates.Rate | str | None = None
    try:
        read = NO_LIMIT if rate == NO_LIMIT else None if rate is None else rates.rate_of(rate)
        number = None if concurrency is None else checked_concurrency(concurrency)
    except UsageError:
        number = None
    return TaskWish(value.get("paused") is True, number, read)


def checked_concurrency(given: object) -> int:
    number = whole(given, "concurrency")
    if not 0 <= number <= rates.CONCURRENCY_MAX:
        raise UsageError(
            f"concurrency is {number}, it must be 1 to {rates.CONCURRENCY_MAX}, or 0 for no limit"
        )
    return number


def checked_slots(given: object) -> int:
    number = whole(given, "slots")
    if not 1 <= number <= SLOTS_MAX:
        raise UsageError(
            f"slots is {number}, it must be 1 to {SLOTS_MAX}: pause queues or tasks to run none"
        )
    return number


def checked_limits(concurrency: object, rate: object) -> dict[str, Any]:
    """Return the fields of a task's limits; both None restores the limits in its code.

    Raises:
        UsageError: a limit is invalid.
    """
    if rate is not None and rate != NO_LIMIT:
        rate = str(rates.rate_of(rate))
    number = None if concurrency is None else checked_concurrency(concurrency)
    return {"concurrency": number, "rate": rate}


def slots_wished(value: Mapping[str, Any], owner: int) -> int | None:
    """Return the slots that operators set for a worker; None if they set none."""
    given = value.get(f"{owner:x}", value.get(""))
    try:
        return None if given is None else checked_slots(given)
    except UsageError:
        return None
