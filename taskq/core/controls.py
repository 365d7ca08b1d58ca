"""Controls: what people change of a log while it runs, a fold of the log.

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

#: Controls that a log has at a time, and the bytes of all their names and values.
CONTROLS_MAX: Final = 10_000
CONTROLS_BYTES_MAX: Final = 1024 * 1024
#: The longest control, as JSON.
VALUE_BYTES_MAX: Final = 4_096
#: In a stream's records: the name of the control.
CONTROL_HEADER: Final = "taskq-control"
#: Before the name of a task.
TASK: Final = "task:"
#: Before the name of an alert.
ALERT: Final = "alert:"
#: Room for a name of full length after each of these.
CONTROL_NAME_BYTES_MAX: Final = NAME_BYTES_MAX + 16
#: Slots by worker: number of its owner in hexadecimal, "" for all other workers.
SLOTS: Final = "slots"
SLOTS_MAX: Final = 10_000
#: Stands for no limit, against the task's own code.
NO_LIMIT: Final = "none"


class Change(NamedTuple):
    """Changes of a control by field; None takes a field away, and the last one the control.

    ``expected`` is what the control must be before; None: anything.
    """

    name: str
    changes: Mapping[str, object]
    expected: Mapping[str, object] | None = None


class TaskWish(NamedTuple):
    """Wishes of operators for a task; None leaves a limit to the task's own code."""

    paused: bool = False
    concurrency: int | None = None
    #: a rate without count is no limit
    rate: rates.Rate | str | None = None

    @property
    def has_limits(self) -> bool:
        return self.concurrency is not None or self.rate is not None

    def over(self, declared: rates.Limit) -> rates.Limit:
        """Return a limit with the wishes in place of the code's."""
        return rates.Limit(
            concurrency=declared.concurrency if self.concurrency is None else self.concurrency,
            rate=declared.rate if self.rate is None else _rate(self.rate),
            scope=declared.scope,
        )


def _rate(rate: rates.Rate | str) -> rates.Rate | None:
    return rate if isinstance(rate, rates.Rate) else None


def value_of(controls: Mapping[str, SourceState], name: str) -> dict[str, Any]:
    """Return a control's fields; none if there is no such control, or it does not read back."""
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
    """Return a control as the log has it; b"" for none."""
    import json  # noqa: PLC0415 - few logs have a control

    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() if value else b""


def task_wish(value: Mapping[str, Any]) -> TaskWish:
    """Return a task's control; a field that is none of ours counts for nothing."""
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
    """Return the fields of a task's limits; both None: its code's own hold again.

    Raises:
        UsageError: one is wrong.
    """
    if rate is not None and rate != NO_LIMIT:
        rate = str(rates.rate_of(rate))
    number = None if concurrency is None else checked_concurrency(concurrency)
    return {"concurrency": number, "rate": rate}


def slots_wished(value: Mapping[str, Any], owner: int) -> int | None:
    """Return how many slots a worker's process is to have; None: as it was started."""
    given = value.get(f"{owner:x}", value.get(""))
    try:
        return None if given is None else checked_slots(given)
    except UsageError:
        return None
