"""Functions in C raise on bad input, read nothing beyond its end, and leave no object."""

import asyncio
import contextvars
import gc
import sys
import threading
from collections import deque
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import taskq.log.store.port as ports
from taskq import Delivery, JobContext, JobHandle, TaskQ, retry
from taskq import _native as native
from taskq.core.parsing import Tag
from taskq.log.decide.enqueue import Run, answer
from tests.effort import grows, some
from tests.native.conftest import Choose

RUNNING: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("running")
PLAIN: Final = bytes(28)


async def works(**_: Any) -> None: ...


def hot(deliveries: list[Any], **changes: Any) -> tuple[Any, tuple[Any, ...]]:
    parts: dict[str, Any] = {
        "plan": (lambda _: ((), {}), works, True, False, None),
        "outcomes": [],
        "limits": (60.0, 256, 0xF0),
        "running": RUNNING,
        "made": JobContext,
        **changes,
    }
    settler = SimpleNamespace(
        outcomes=parts["outcomes"], scheduled=True, flush_soon=print, flush=lambda: None
    )
    task = SimpleNamespace(cancelling=lambda: 0)
    slot = SimpleNamespace(task=task, delivery=None, abandoned=False, since=0.0)
    feed = SimpleNamespace(low=0, refill=lambda: None)
    plans = {"task": parts["plan"]}
    return slot, (
        None, JobContext, None, deque(deliveries), feed, plans, settler, None, parts["running"],
        parts["made"], lambda: 1.0, SimpleNamespace(replace=lambda _: None), *parts["limits"],
    )  # fmt: skip


def delivery(record: Any, body_at: Any = 24) -> Delivery:
    lane: Any = SimpleNamespace(task="task", body_at=body_at)
    return Delivery(Tag("tag"), 1, 2, 3, 1, lane, record)


def run(extension: Any, slot: Any, parts: Any, turn: Any = 0.0) -> Any:
    return contextvars.copy_context().run(extension.run_jobs, slot, turn, None, parts)[1]


def test_jobs_are_run_until_none_is_left(extension: Any) -> None:
    slot, parts = hot([delivery(PLAIN)] * 3)
    assert run(extension, slot, parts) == 0
    assert len(parts[6].outcomes) == 3


@pytest.mark.parametrize("record", [b"", b"short", bytes(23), "text", None, bytearray(40)])
def test_a_record_that_is_none_is_left_to_python(extension: Any, record: Any) -> None:
    slot, parts = hot([delivery(record)])
    assert run(extension, slot, parts)[4:] == (None, None)


@pytest.mark.parametrize("body_at", [-1, 25, 2**31, 2**62, 2**80, "text", None])
def test_a_payload_is_never_taken_from_beyond_its_record(extension: Any, body_at: Any) -> None:
    taken = []

    def decode(payload: bytes) -> Any:
        taken.append(payload)
        return (), {}

    slot, parts = hot([delivery(PLAIN, body_at)], plan=(decode, works, True, False, None))
    if isinstance(body_at, int) and body_at < 2**63:
        run(extension, slot, parts)
        assert all(len(payload) <= len(PLAIN) for payload in taken)
    else:
        with pytest.raises((TypeError, OverflowError)):
            run(extension, slot, parts)
        assert not taken


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": ()}, {"plan": None}, {"plan": (1, 2, 3, 4, 5, 6)}, {"outcomes": ()},
        {"limits": ("text", 1, 1)}, {"limits": (1.0, None, 1)}, {"limits": (1.0, 1)},
        {"running": None}, {"made": None}, {"limits": (1.0, 1, 2**70)},
    ],
)  # fmt: skip
def test_a_slot_that_is_none_is_refused(extension: Any, changes: dict[str, Any]) -> None:
    slot, parts = hot([delivery(PLAIN)], **changes)
    with pytest.raises((TypeError, OverflowError)):
        run(extension, slot, parts)


@pytest.mark.parametrize("decoded", [None, (), ((), {}, 1), ([], {}), ((), []), {}])
def test_what_is_decoded_to_no_arguments_fails_the_job(extension: Any, decoded: Any) -> None:
    slot, parts = hot([delivery(PLAIN)], plan=(lambda _: decoded, works, True, False, None))
    *_, args, rest = run(extension, slot, parts)
    assert args is None
    with pytest.raises(TypeError):
        rest.send(None)
    with pytest.raises(RuntimeError):
        rest.send(None)


async def test_what_is_left_of_a_job_is_a_coroutine_like_any_other(extension: Any) -> None:
    ends: list[str] = []

    async def suspends() -> tuple[int, int]:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        except BaseException as error:
            ends.append(type(error).__name__)
            if isinstance(error, ValueError):
                await asyncio.sleep(0)
                return 3, 4
            raise
        return 1, 2

    def begun() -> Any:
        slot, parts = hot([delivery(PLAIN)], plan=(lambda _: ((), {}), suspends, 1, 0, 0))
        return run(extension, slot, parts)[5]

    assert await begun() == (1, 2)
    rest = begun()
    assert rest.send(None) is None
    assert rest.throw(ValueError("thrown")) is None
    with pytest.raises(StopIteration) as stop:
        rest.send(None)
    assert stop.value.value == (3, 4)
    rest = begun()
    rest.close()
    rest.close()
    with pytest.raises(RuntimeError):
        await rest
    with pytest.raises(RuntimeError):
        rest.throw(ValueError("late"))
    with pytest.raises(TypeError):
        begun().throw()
    with pytest.raises(TypeError):
        begun().close(1)
    with pytest.raises(TypeError):
        extension.Rest()
    begun()  # dropped: its coroutine is closed
    assert ends == ["ValueError", *["GeneratorExit"] * 4]


async def test_a_cancelled_future_gets_no_answer(extension: Any) -> None:
    loop = asyncio.get_running_loop()
    gone, waits = loop.create_future(), loop.create_future()
    gone.cancel()
    extension.answer_all(iter([(gone, 1), (waits, 2), (gone, ValueError())]))
    assert waits.result() == 2
    assert gone.cancelled()


def test_other_misuse_is_refused(extension: Any) -> None:
    encode = extension.Encoder(("a",), dict, repr, len, len, 10)
    decode = extension.Decoder(dict, len)
    for call in (
        extension.run_jobs, lambda: extension.run_jobs(1, 2, 3, 4), extension.new_handle,
        lambda: extension.run_jobs(None, 1.0, None, ()),
        lambda: extension.new_handle(1, 2, 3, 4, 5),
        lambda: extension.answer_all([]), lambda: extension.answer_all(iter([1])),
        lambda: extension.answer_all(iter([(1, 2, 3)])),
        lambda: encode(1, 2), lambda: encode((), {}, 3), encode, lambda: encode((1,), x={}),
        decode, lambda: decode(1, 2), lambda: decode(b"", a=1), lambda: decode(7),
        extension.Encoder, extension.Decoder, lambda: extension.Encoder([], 1, 2, 3, 4, 5),
        lambda: extension.Encoder((), 1, 2, 3, 4, "5"),
        extension.submit, lambda: extension.submit(1, 2, 3, "4", (), {}),
        lambda: extension.submit(None, None, None, 4, [], {}),
        lambda: extension.submit(None, None, None, 4, (), None),
        *(lambda item=item: run(extension, *hot([item])) for item in (None, (), (1, 2), 7)),
        lambda: extension.claimed(Delivery, "tag", 7, 9, 5, [[]], [1], [None], [b""], {}),
    ):  # fmt: skip
        with pytest.raises((TypeError, AttributeError)):
            call()


JOBS: Final = some(5_000, 200_000)
CALLERS: Final = 50


async def none(number: int) -> None:
    return None


async def value(number: int) -> tuple[int, str]:
    return number, "x"


async def suspends(number: int) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, None)
    await future


async def fails(number: int) -> None:
    raise ValueError(number)


async def fails_late(number: int) -> None:
    await asyncio.sleep(0)
    raise ValueError(number)


async def cycled(app: TaskQ, tasks: list[Any], jobs: int) -> None:
    kinds = cycle(tasks)

    async def caller() -> None:
        for number in range(jobs // CALLERS):
            task = next(kinds)
            job = await task.enqueue(number)
            assert job.lsn
            if number % 7 == 0:
                with pytest.raises(ValueError, match="number"):
                    await task.enqueue("wrong")

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    async with app.worker(burst=True, concurrency=10) as worker:
        await worker.stopped.wait()


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


async def grown(path: Path) -> int:
    async with TaskQ(path, durability="os") as app:
        tasks = [
            app.task(retry=retry.never())(function)
            for function in (none, none, value, suspends, fails, fails_late)
        ]
        await cycled(app, tasks, JOBS // 4)
        before = blocks()
        await cycled(app, tasks, JOBS)
        return blocks() - before


@grows
@pytest.mark.usefixtures("own_settings")
def test_no_more_objects_are_left_than_python_leaves(choose: Choose, tmp_path: Path) -> None:
    """The log remembers some thousand ends.

    Some hundred of them are chance, so jobs are many, and the test looks again: a leak grows.
    """

    def left(language: str, attempt: int) -> int:
        choose(language == "C")
        return asyncio.run(grown(tmp_path / f"{language}{attempt}"))

    assert any(left("C", attempt) - left("Python", attempt) < JOBS / 10 for attempt in range(3))


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


def test_handle_classes_stay_apart_and_are_read_again_after_a_change(extension: Any) -> None:
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
