"""Objects that C makes without ``__init__`` equal those made with it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import taskq.log.store.port as ports
from taskq import JobContext, JobHandle, TaskQ
from taskq import _native as native
from taskq.log.decide.enqueue import Run, answer
from tests.native.test_misuse import PLAIN, RUNNING, delivery, hot, run


def fields(thing: Any) -> dict[str, Any]:
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


def test_classes_are_told_apart_and_looked_at_again_once_they_changed(extension: Any) -> None:
    names = ("_app", "_task", "_tag", "lsn", "duplicate")
    kinds: list[Any] = [
        type("Slots", (), {"__slots__": names}),
        type("Others", (), {"__slots__": ("first", *reversed(names))}),
        type("Below", (JobHandle,), {"__slots__": ("more",)}),
        type("Open", (), {}),
    ]
    for number, kind in enumerate([*kinds, *reversed(kinds), kinds[0]]):
        made = extension.new_handle(kind, "app", "task", "tag", number)
        values = made._app, made._task, made._tag, made.lsn, made.duplicate
        assert values == ("app", "task", "tag", number, False)
    noted: list[int] = []
    kinds[0].lsn = property(None, lambda _, lsn: noted.append(lsn))
    made = extension.new_handle(kinds[0], "app", "task", "tag", 9)
    assert noted == [9]
    assert made._tag == "tag"


def test_an_extension_that_does_not_fit_this_python_is_not_used(extension: Any) -> None:
    def blind(kind: Any, *values: Any) -> Any:
        """Do as C would if a changed class kept its version."""
        made, names = object.__new__(kind), ("_app", "_task", "_tag", "lsn", "duplicate")
        for name, value in zip(names, (*values, False), strict=True):
            places.setdefault(name, vars(kind)[name]).__set__(made, value)
        return made

    places: dict[str, Any] = {}
    assert native._fits(extension)
    assert not native._fits(SimpleNamespace(new_handle=blind))
    assert not native._fits(SimpleNamespace(new_handle=lambda *_: JobHandle(None, None, "", 0)))  # type: ignore[arg-type]


def test_asyncio_is_inside_as_c_expects_it() -> None:
    async def look() -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        assert ports.keeps_callbacks(loop.create_future())
        assert loop._thread_id == threading.get_ident()  # type: ignore[attr-defined]
        return loop

    assert asyncio.run(look())._thread_id is None  # type: ignore[attr-defined]


def test_waiters_are_woken_by_their_loop_where_futures_are_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(ports, "keeps_callbacks", lambda _: False)
    monkeypatch.setattr(Run, "steps_waiters", True)

    async def enqueue_three() -> set[int]:
        async with TaskQ(tmp_path / "data", durability="os") as app:
            calls = (app.enqueue_by_name("job", n) for n in range(3))
            return {job.lsn for job in await asyncio.gather(*calls)}

    assert len(asyncio.run(enqueue_three())) == 3
    assert not Run.steps_waiters
    got: list[int] = []
    answer(SimpleNamespace(_callbacks=["unknown"], set_result=got.append), 7)
    assert got == [7]
