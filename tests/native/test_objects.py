"""What C makes without calling ``__init__`` is what ``__init__`` makes."""

from __future__ import annotations

from typing import Any

from taskq import JobContext, JobHandle
from tests.native.test_misuse import PLAIN, RUNNING, delivery, hot, run


def fields(thing: Any) -> dict[str, Any]:
    """Return all that an object holds in its slots."""
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return {
        name: vars(type(thing))[name].__get__(thing)
        for name in names
        if name != "__weakref__" and hasattr(type(thing), name) and _is_set(thing, name)
    }


def _is_set(thing: Any, name: str) -> bool:
    try:
        vars(type(thing))[name].__get__(thing)
    except AttributeError:
        return False
    return True


def test_the_context_of_a_job(extension: Any) -> None:
    made: list[JobContext] = []

    async def notes() -> None:
        made.append(RUNNING.get())

    item = delivery(PLAIN)
    slot, parts = hot([item], plan=(lambda _: ((), {}), notes, True, False, None))
    assert run(extension, slot, parts) == 0
    expected = fields(JobContext(item, parts[0]))
    assert len(expected) >= 5
    assert fields(made[0]) == expected
    assert type(made[0]) is JobContext


def test_the_handle_of_a_job(extension: Any) -> None:
    app, task = object(), object()
    made = extension.new_handle(JobHandle, app, task, "tag", 7)
    expected = fields(JobHandle(app, task, "tag", 7))  # type: ignore[arg-type]
    assert len(expected) == 5
    assert fields(made) == expected
    assert type(made) is JobHandle
