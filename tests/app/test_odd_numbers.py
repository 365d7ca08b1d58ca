"""Every number is checked at the call, by its name, before anything is written.

Later it would fail in ``struct``, in a batch with other calls, or be taken for another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Put, TaskLog, TaskQ, retry
from taskq.conditions import condition, disk_free
from taskq.errors import UsageError

#: Values that are no count; the first are numbers all the same.
COUNTS: Final[tuple[Any, ...]] = (1.5, 2.0, True, math.nan, -1, -(2**70), "7", [], b"1")
#: Values that are no span of time.
SPANS: Final[tuple[Any, ...]] = (True, math.nan, math.inf, -1, 2**70, "7", [], b"1")
MOMENT: Final = datetime(2040, 1, 1, tzinfo=UTC)


def work(number: int = 0) -> int:
    return number


def holds() -> bool:
    return True


class Whole:
    """An integer of another library, as numpy has them."""

    def __index__(self) -> int:
        return 3


def result_of(app: TaskQ, timeout: Any) -> Any:
    return app.job(f"{app._connection.tag}-1").result_sync(timeout)


def of_tasks() -> dict[str, Callable[[Any, Any], Any]]:
    return {
        "priority": lambda app, n: app.task(priority=n)(work),
        "priority ": lambda app, n: app.task(work).options(priority=n),
        "priority  ": lambda app, n: app.call_by_name("t").options(priority=n),
        "attempts": lambda app, n: app.task(work).options(attempts=n),
        "retry": lambda app, n: app.task(retry=n)(work),
        "attempts ": lambda _, n: retry.fixed(attempts=n),
        "attempts  ": lambda _, n: retry.exponential(n),
        "concurrency": lambda app, n: app.task(concurrency=n)(work),
        "failures": lambda app, n: app.breaker("mail", failures=n),
    }


def of_logs() -> dict[str, Callable[[Any, Any], Any]]:
    return {
        "count": lambda app, n: app.peek_sync(n),
        "limit": lambda app, n: app.dead.list_sync(limit=n),
        "limit ": lambda app, n: app.dead.requeue_all_sync(limit=n),
        "limit  ": lambda app, n: app.cancel_many_sync(queue="mail", limit=n),
        "limit   ": lambda app, n: app.replay_sync(queue="mail", limit=n),
        "from_lsn": lambda app, n: app.stream(from_lsn=n),
        "lsn": lambda app, n: app.seek_sync("reader", lsn=n),
    }


def of_workers() -> dict[str, Callable[[Any, Any], Any]]:
    return {
        name: lambda app, n, name=name: app.worker(**{name: n})
        for name in (
            "concurrency", "max_jobs", "thread_limit", "process_limit", "max_jobs_per_child",
        )
    } | {"mail": lambda app, n: app.worker(queues={"mail": n})}  # fmt: skip


def of_options() -> dict[str, Callable[[Any, Any], Any]]:
    names = (
        "segment_bytes", "min_free", "reserve", "decompressed_bytes_max",
        "keep_bytes", "keep_segments", "dead_max", "reader_lag_bytes", "keys_max",
    )  # fmt: skip
    logs = {f"{name} ": lambda _, n, name=name: TaskLog.open("x", **{name: n}) for name in names}
    apps = {name: lambda _, n, name=name: TaskQ("x", **{name: n}) for name in names}
    return {**logs, **apps}


def of_spans() -> dict[str, Callable[[Any, Any], Any]]:
    names = ("delay", "expires", "keep")
    options = {
        name: lambda app, n, name=name: app.task(work).options(**{name: n}) for name in names
    }
    declared = {
        f"{name} ": lambda app, n, name=name: app.task(**{name: n})(work)
        for name in (*names, "timeout", "soft_timeout")
    }
    rest: dict[str, Callable[[Any, Any], Any]] = {
        "window": lambda app, n: app.task(key=lambda _: "k", window=n)(work),
        "delay  ": lambda _, n: retry.fixed(delay=n),
        "base": lambda _, n: retry.linear(base=n),
        "cap": lambda _, n: retry.exponential(cap=n),
        "max_age": lambda _, n: retry.fixed(max_age=n),
        "delay_max": lambda _, n: retry.fixed(delay_max=n),
        "pause": lambda app, n: app.breaker("mail", pause=n),
        "pause_max": lambda app, n: app.breaker("mail", pause_max=n),
        "timeout  ": result_of,
        "before": lambda app, n: app.cancel_many_sync(before=n),
        "since": lambda app, n: app.dead.count_sync(since=n),
        "drain_timeout": lambda app, n: app.worker(drain_timeout="7" if n == math.inf else n),
        "lock_wait": lambda _, n: TaskLog.open("x", lock_wait=n),
        "interval": lambda _, n: TaskLog.open("x", interval=n),
        "every": lambda _, n: condition(holds, every=n),
        "factor": lambda _, n: retry.exponential(factor=True if n == 2**70 else n),
        "disk_free": lambda _, n: disk_free("x" if n in (2**70, "7") else n),
    }
    return {**options, **declared, **rest}


GIVERS: Final = {
    name.replace(" ", "_"): (give, odds)
    for givers, odds in (
        (of_tasks() | of_logs() | of_workers() | of_options(), COUNTS),
        (of_spans(), SPANS),
    )
    for name, give in givers.items()
}


@pytest.mark.parametrize("name", GIVERS)
def test_an_odd_number_is_refused_at_the_call_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    give, odds = GIVERS[name]
    # Settings may be text, since the environment has nothing else.
    as_text = ("7",) if name in of_options() and not name.endswith("_") else ()
    with TaskQ(tmp_path / "data", durability="os") as app:
        for odd in odds:
            if odd in as_text:
                continue
            with pytest.raises(UsageError) as refused:
                give(app, odd)
            assert name.strip("_") in str(refused.value), odd
        assert not app.stats_sync().queues


@pytest.mark.parametrize(
    "name", ["priority", "attempts_", "count", "concurrency", "keys_max", "limit"]
)
def test_a_whole_number_of_another_library_is_taken(tmp_path: Path, name: str) -> None:
    with TaskQ(tmp_path / "data", durability="os") as app:
        GIVERS[name][0](app, Whole())


async def test_bytes_with_an_odd_number_are_refused_and_those_beside_them_stand(
    tmp_path: Path,
) -> None:
    async with TaskLog.open(tmp_path, durability="os") as log:
        for name in ("priority", "attempts"):
            for odd in COUNTS:
                with pytest.raises(UsageError, match=f"^{name} is "):
                    await log.put_many([Put(payload=b"1"), Put(payload=b"2", **{name: odd})])
        wrong: Any
        number: Any = Whole()
        for wrong in (3, None, [], b"mail"):
            with pytest.raises(UsageError, match=r"queue name is .*it must be text"):
                await log.put(b"1", queue=wrong)
        for odd in (*COUNTS, 0):
            with pytest.raises(UsageError, match=r"^count is "):
                await log.claim(odd)
        assert not (await log.stats()).queues
        await log.put(b"3", priority=number)
        (delivery,) = await log.claim()
        assert delivery.priority == 3
        for odd in SPANS:
            with pytest.raises(UsageError, match=r"^wait is "):
                await log.claim(wait=odd)
            with pytest.raises(UsageError, match=r"^lease is "):
                await log.claim(lease=odd)
            with pytest.raises(UsageError, match=r"^delay is "):
                await log.nack(delivery, delay=odd)
            with pytest.raises(UsageError, match=r"^seconds is "):
                await log.extend(delivery, odd)
        await log.ack(delivery)
