"""``key``, ``window``, ``until``, ``on_conflict`` and limits, wherever jobs are enqueued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq import Put, State, TaskLog, TaskQ, current_job
from taskq.core.model import KEY_BYTES_MAX
from taskq.core.rates import Limit, Rate
from taskq.errors import DuplicateKey, JobCancelled, JobFailed, UsageError


async def test_a_task_says_what_becomes_of_a_key_that_is_held(app: TaskQ) -> None:
    @app.task(key=lambda number: f"k{number}", on_conflict="replace")
    async def sync(number: int) -> None: ...

    first = await sync.enqueue(1)
    second = await sync.enqueue(1)
    assert (second.duplicate, await first.status()) == (False, State.CANCELLED)
    with pytest.raises(JobCancelled):
        await first.result(timeout=5)
    third = await sync.options(on_conflict="first").enqueue(1)
    assert (third.duplicate, third.id) == (True, second.id)
    with pytest.raises(DuplicateKey) as caught:
        await sync.options(on_conflict="raise").enqueue(1)
    assert caught.value.job_id == second.id
    call = sync.call(1)
    assert (await app.enqueue(call.options(on_conflict="first"))).duplicate
    with pytest.raises(DuplicateKey):
        await app.enqueue_many([call.options(key="other"), call.options(on_conflict="raise")])
    assert await second.status() is State.READY


async def test_bytes_have_the_same_options(log: TaskLog) -> None:
    first = await log.put(b"1", key="k", window="1h", until="settled")
    (held,) = await log.claim()
    assert await log.put(b"2", key="k", on_conflict="replace") == first
    await log.ack(held)
    assert await log.put(b"2", key="k") == first
    with pytest.raises(DuplicateKey):
        await log.put_many([Put(payload=b"0"), Put(payload=b"3", key="k", on_conflict="raise")])
    second = await log.put(b"4", key="k", on_conflict="replace")
    assert second != first
    assert await log.put(b"5", key="k") == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "settled"}, "until is given without a key"),
        ({"on_conflict": "raise"}, "on_conflict is given without a key"),
        ({"key": "k", "until": "done"}, "until is 'done', it must be \"settled\" or left out"),
        ({"key": "k", "on_conflict": "last"}, "on_conflict is 'last', it must be \"first\""),
    ],
)
async def test_a_wrong_option_is_refused_by_name(
    log: TaskLog, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        await log.put(b"x", **options)
    with pytest.raises(UsageError, match=message):
        await log.put_many([Put(payload=b"x", **options)])
    assert (await log.stats()).queues == ()


async def test_a_job_without_its_tasks_key_has_nothing_of_it(app: TaskQ) -> None:
    @app.task(key=lambda: "k", window="1h", until="settled", on_conflict="raise")
    async def sync() -> None: ...

    await sync.enqueue()
    free = sync.options(key=None)
    assert not (await free.enqueue()).duplicate
    assert not (await free.enqueue()).duplicate


async def test_a_task_whose_child_is_refused_fails_and_says_why(app: TaskQ) -> None:
    """The refusal comes with the success that the child should have joined: it fails instead."""

    @app.task
    async def child() -> None: ...

    @app.task(retry=1)
    async def parent() -> None:
        current_job().enqueue(child.call().options(key="k", on_conflict="raise"))

    taken = await child.options(key="k", delay="1h").enqueue()
    job = await parent.enqueue()
    async with app.worker(concurrency=1):
        with pytest.raises(JobFailed, match=f"is held by job {taken.id}"):
            await job.result(timeout=20)


async def test_the_number_of_keys_is_an_option(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os", keys_max=2) as log:
        await log.put(b"1", key="1")
        await log.put(b"2", key="2")
        with pytest.raises(UsageError, match="keys_max is 2"):
            await log.put(b"3", key="3")


def key_of(call: Any) -> bytes:
    return b"" if call.extras is None else call.extras.concurrency_key


def test_a_key_is_made_of_the_arguments_defaults_filled_in(app: TaskQ) -> None:
    @app.task(name="send", concurrency=1, concurrency_key=lambda account, to="x": f"{account}/{to}")
    def send(account: str, to: str = "y") -> None: ...

    assert send.limit == Limit(concurrency=1, scope="send")
    assert key_of(send.call("a")) == b"a/y"
    assert key_of(send.options(concurrency_key="fixed").call("a")) == b"fixed"
    assert key_of(send.options(concurrency_key=None).call("a")) == b""
    assert key_of(send.call("a").options(priority=9)) == b"a/y"
    assert key_of(send.call("a").options(concurrency_key="other")) == b"other"
    assert key_of(send.options(key="k").call("a")) == b"a/y"


def test_whole_numbers_will_do_for_a_key_and_none_stands_for_no_key(app: TaskQ) -> None:
    @app.task(rate="5/s", concurrency_key=lambda account: account)
    def send(account: int | None) -> None: ...

    assert send.limit is not None
    assert send.limit.rate == Rate(5, 10**9)
    assert key_of(send.call(7)) == b"7"
    assert key_of(send.call(None)) == b""


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"rate": "often"}, "rate is 'often'"),
        ({"concurrency_key": lambda a: a}, "without concurrency or rate"),
        ({"concurrency": 1, "concurrency_key": "text"}, "concurrency_key is 'text'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_written(
    app: TaskQ, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):

        @app.task(**choices)
        def send(a: str) -> None: ...


def test_a_key_that_does_not_fit_is_refused_at_the_call(app: TaskQ) -> None:
    @app.task(concurrency=1, concurrency_key=lambda a: a)
    def send(a: Any) -> None: ...

    for wrong in ("", "x" * (KEY_BYTES_MAX + 1), 1.5):
        with pytest.raises(UsageError, match="concurrency_key"):
            send.call(wrong)
    with pytest.raises(UsageError, match="Call takes its concurrency_key"):
        send.call("a").options(concurrency_key=lambda a: a)
