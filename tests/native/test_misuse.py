"""Functions in C raise on bad input: nothing is read beyond its end."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from types import SimpleNamespace
from typing import Any, Final

import pytest

from taskq import Delivery, JobContext
from taskq.core.parsing import Tag

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


def test_the_first_token_leads_back_to_where_no_job_ran(extension: Any) -> None:
    slot, parts = hot([delivery(PLAIN)] * 3)

    def rest() -> Any:
        token, _ = extension.run_jobs(slot, 0.0, None, parts)
        parts[3].append(delivery(PLAIN))
        same, _ = extension.run_jobs(slot, 0.0, token, parts)
        assert same is token
        RUNNING.reset(token)
        return RUNNING.get(None)

    assert contextvars.copy_context().run(rest) is None


def test_the_success_of_an_abandoned_job_counts_for_nothing(extension: Any) -> None:
    async def forks() -> None:
        slot.abandoned = True

    slot, parts = hot([delivery(PLAIN)], plan=(lambda _: ((), {}), forks, True, False, None))
    assert type(run(extension, slot, parts)) is tuple
    assert parts[6].outcomes == []


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


@pytest.mark.parametrize("item", [None, (), (1, 2), "text", 7])
def test_a_buffer_of_something_else_is_refused(extension: Any, item: Any) -> None:
    slot, parts = hot([item])
    with pytest.raises(TypeError):
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
    assert ends == [
        "ValueError",
        "GeneratorExit",
        "GeneratorExit",
        "GeneratorExit",
        "GeneratorExit",
    ]


@pytest.mark.parametrize(("turn", "expected"), [(0.25, 1), (0.5, 0)])
def test_the_loop_turns_once_its_time_is_over(extension: Any, turn: float, expected: int) -> None:
    slot, parts = hot([delivery(PLAIN)] * 3, limits=(0.5, 256, 0xF0))
    assert run(extension, slot, parts, turn) == expected
    assert len(parts[6].outcomes) == (1 if expected else 3)


def test_outcomes_are_handed_on_as_soon_as_there_are_enough(extension: Any) -> None:
    counts: list[int] = []
    slot, parts = hot([delivery(PLAIN)] * 3, limits=(60.0, 2, 0xF0))
    parts[6].flush = lambda: counts.append(len(parts[6].outcomes))
    assert run(extension, slot, parts) == 0
    assert counts == [2, 3]


def test_more_is_asked_for_as_soon_as_too_few_are_left(extension: Any) -> None:
    counts: list[int] = []
    slot, parts = hot([delivery(PLAIN)] * 4)
    parts[4].low = 2
    parts[4].refill = lambda: counts.append(len(parts[3]))
    assert run(extension, slot, parts) == 0
    assert counts == [1, 0]


async def test_who_gave_up_gets_no_answer(extension: Any) -> None:
    loop = asyncio.get_running_loop()
    gone, waits = loop.create_future(), loop.create_future()
    gone.cancel()
    extension.answer_all(iter([(gone, 1), (waits, 2), (gone, ValueError())]))
    assert waits.result() == 2
    assert gone.cancelled()


@pytest.mark.parametrize("args", [(), (1,), (None, None, None, 4, (), {}), (1, 2, 3, "4", (), {}),
    (None, None, None, 4, [], {}), (None, None, None, 4, (), None)])  # fmt: skip
def test_a_call_of_something_else_is_refused(extension: Any, args: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        extension.submit(*args)


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
    ):  # fmt: skip
        with pytest.raises((TypeError, AttributeError)):
            call()
