"""Headers: bounded when they are given, and with the job wherever it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.errors import PayloadTooLarge, UsageError
from taskq.log.read.reader import LogReader

HEADERS: Final = {
    "trace": "4bf92f35",
    "grüße": "世界 🌍",
    "empty": "",
    "": "no name",
    "lines": "a\nb\0c",
}
#: Two lengths of two bytes, and a name of one.
LONGEST: Final = HEADERS_BYTES_MAX - 5


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[TaskLog]:
    async with TaskLog.open(tmp_path / "log", durability="os") as log:
        yield log


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "log", durability="os")


@pytest.mark.parametrize("size", [70_000, 65_536, 65_535, HEADERS_BYTES_MAX, LONGEST + 1])
async def test_a_value_over_the_limit_is_refused_and_never_cut(
    log: TaskLog, app: TaskQ, size: int
) -> None:
    """At every door, and nothing is written; lengths that do not fit 16 bits are not wrapped."""

    @app.task
    async def work() -> None: ...

    headers = {"a": "x" * size}
    call = app.call_by_name("other")
    doors: list[Callable[[], Any]] = [
        lambda: work.options(headers=headers),
        lambda: work.call().options(headers=headers),
        lambda: call.options(headers=headers),
        lambda: app.task(headers=headers)(work.fn),
    ]
    for door in doors:
        with pytest.raises(PayloadTooLarge, match=f"the headers has {size + 5} bytes"):
            door()
    for put in (
        log.put(b"", headers=headers),
        log.put_many([Put(payload=b""), Put(payload=b"", headers=headers)]),
    ):
        with pytest.raises(PayloadTooLarge, match=f"the limit is {HEADERS_BYTES_MAX}"):
            await put
    assert await log.peek() == []


async def test_many_small_headers_have_the_same_limit_together(log: TaskLog) -> None:
    with pytest.raises(PayloadTooLarge):
        await log.put(b"", headers={f"{number:04}": "x" * 30 for number in range(1_000)})
    fits = {f"{number:04}": "x" * 30 for number in range(800)}
    job_id = await log.put(b"", headers=fits)
    assert (await log.get(job_id)).headers == fits


async def test_the_longest_value_that_fits_comes_back_whole(log: TaskLog) -> None:
    headers = {"a": "é" * (LONGEST // 2)}
    job_id = await log.put(b"x", headers=headers, key="k" * 1_024, window="1h", delay="1s")
    assert (await log.get(job_id)).headers == headers


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}, {"a": "\ud800"}, {"\ud800": "a"}]
)
async def test_what_is_no_text_is_refused(log: TaskLog, headers: Any) -> None:
    with pytest.raises(UsageError, match="header"):
        await log.put(b"x", headers=headers)
    assert await log.peek() == []


async def test_headers_go_with_the_job_through_retries_dead_letters_and_requeue(
    log: TaskLog,
) -> None:
    job_id = await log.put(b"x", headers=HEADERS, attempts=3)
    (delivery,) = await log.claim(1)
    assert delivery.headers == HEADERS
    await log.release(delivery)
    for _ in range(3):
        (delivery,) = await log.claim(1)
        assert delivery.headers == HEADERS
        await log.nack(delivery, "no", delay=0)
        assert (await log.get(job_id)).headers == HEADERS
    assert (await log.get(job_id)).state is State.DEAD
    assert [letter.headers for letter in await log.dead.list()] == [HEADERS]
    await log.dead.requeue(job_id)
    (delivery,) = await log.claim(1)
    assert delivery.headers == HEADERS
    await log.nack(delivery, "no", delay=0)
    with LogReader.open(str(log.data_dir)) as reader:
        (listed,) = reader.jobs(None, None, None, 9)
        shown = reader.job(listed.lsn)
    assert shown is not None
    assert listed.headers == shown.headers == HEADERS
