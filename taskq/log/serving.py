"""What the workers of a process claim, told to the others: ``owners/<owner>.serves``.

Only for people who ask why a job does not run, so nothing rests on it: the file is written when
workers start or stop or keep jobs back, is not synced, and counts only while its owner lives.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from taskq.core.model import Hold, Serving
from taskq.core.parsing import parse_json
from taskq.log.door import read_file, replace_file
from taskq.log.limittelling import limits_read, limits_told
from taskq.log.peers import SERVES, SERVES_NEW

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log: Final = logging.getLogger("taskq")
_BYTES_MAX: Final = 1024 * 1024


def publish(directory: Path, owner: int, servings: Iterable[Serving]) -> None:
    """Tell what an owner's workers claim; nothing if there are none.

    Raises nothing: where the disk refuses it, only the answers of ``why`` are poorer.
    """
    target = directory / f"{owner:016x}{SERVES}"
    document = [
        {
            "queues": _listed(one.queues),
            "tasks": _listed(one.tasks),
            "slots": one.slots,
            "holds": [_told(hold) for hold in one.holds],
            "limits": limits_told(one.limits),
        }
        for one in servings
    ]
    try:
        if not document:
            target.unlink(missing_ok=True)
            return
        replace_file(target, target.with_suffix(SERVES_NEW), json.dumps(document).encode())
    except OSError as error:
        _log.warning("%s: what the workers here claim could not be told: %s", directory, error)


def read_servings(directory: Path, owner: int) -> tuple[Serving, ...]:
    """What an owner's workers claim, as far as it told; empty for one that only enqueues."""
    try:
        document = parse_json(read_file(directory / f"{owner:016x}{SERVES}", _BYTES_MAX))
    except (OSError, ValueError):
        return ()
    if not isinstance(document, list):
        return ()
    return tuple(_serving(one) for one in document if isinstance(one, dict))


def _serving(told: dict[str, Any]) -> Serving:
    slots = told.get("slots")
    return Serving(
        queues=_names(told.get("queues")),
        tasks=_names(told.get("tasks")),
        slots=slots if isinstance(slots, int) else 0,
        holds=_holds(told.get("holds")),
        limits=limits_read(told.get("limits")),
    )


def _told(hold: Hold) -> dict[str, Any]:
    return {
        "queues": _listed(hold.queues),
        "tasks": _listed(hold.tasks),
        "is_breaker": hold.is_breaker,
        "text": hold.text,
        "since_ns": hold.since_ns,
    }


def _holds(told: object) -> tuple[Hold, ...]:
    if not isinstance(told, list):
        return ()
    return tuple(_hold(one) for one in told if isinstance(one, dict))


def _hold(told: dict[str, Any]) -> Hold:
    since_ns = told.get("since_ns")
    return Hold(
        queues=_names(told.get("queues")),
        tasks=_names(told.get("tasks")),
        is_breaker=told.get("is_breaker") is True,
        text=str(told.get("text", "")),
        since_ns=since_ns if isinstance(since_ns, int) else 0,
    )


def _listed(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _names(value: object) -> frozenset[str] | None:
    return frozenset(map(str, value)) if isinstance(value, list) else None
