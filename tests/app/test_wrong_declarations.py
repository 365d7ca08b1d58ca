"""Mistakes of somebody who writes his first tasks: each is told where it is made, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq import Discard, TaskQ, chain, retry
from taskq.conditions import online
from taskq.errors import UsageError


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "here")


@pytest.fixture
def other(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "there")


def increment(number: int) -> int:
    return number + 1


def test_a_call_of_another_app_is_not_scheduled(app: TaskQ, other: TaskQ) -> None:
    call = other.task(increment).call(1)
    with pytest.raises(UsageError, match="increment is a task of another app: schedule it with"):
        app.schedule("daily", call, every="1d")


def test_a_flow_of_two_apps_is_refused_unless_one_is_named(app: TaskQ, other: TaskQ) -> None:
    ours, theirs = app.task(increment), other.task(name="theirs")(increment)
    flow = chain(ours.call(1), theirs.step())
    with pytest.raises(UsageError, match=r"theirs .*two apps.*app\.enqueue_flow\(flow\)"):
        flow.enqueue_sync()
    with app:
        assert len(app.enqueue_flow_sync(flow).jobs) == 2


def test_apps_on_one_directory_share_their_flows(app: TaskQ, tmp_path: Path) -> None:
    twin = TaskQ(tmp_path / "here")
    with app, twin:
        flow = chain(app.task(increment).call(1), twin.task(name="theirs")(increment).step())
        assert len(flow.enqueue_sync().jobs) == 2


def test_arguments_that_a_schedule_lacks_are_told_with_its_name(app: TaskQ) -> None:
    app.every("1h", name="hourly")(app.task(increment))
    with pytest.raises(UsageError, match=r"'number'.*missing; the schedule 'hourly' gives .*args="):
        app.hooks.schedules.all["hourly"].enrolment()


def test_a_function_that_decides_on_errors_is_no_coroutine() -> None:
    async def decide(error: BaseException, attempt: int) -> Discard:
        return Discard(f"{attempt}: {error}")

    wrong: Any = decide
    with pytest.raises(UsageError, match="decide is async: give a plain function"):
        retry.exponential(decide=wrong)


def test_what_is_no_flow_is_told_how_it_becomes_one(app: TaskQ) -> None:
    task: Any = app.task(increment)
    for wrong in (task, task.call(1)):
        with pytest.raises(UsageError, match=r"no flow .*chain\(...\) makes one of what task.call"):
            app.enqueue_flow_sync(wrong)


def test_what_a_concurrency_key_may_be_is_told_in_full(app: TaskQ) -> None:
    task = app.task(concurrency=1)(increment)
    key: Any = 1.5
    with pytest.raises(UsageError, match="must be text, bytes or a whole number"):
        task.options(concurrency_key=key)


def test_the_unit_of_a_rate_is_quoted_as_it_was_written(app: TaskQ) -> None:
    with pytest.raises(UsageError, match=r"rate is '10/x': give text such as .10/s.") as caught:
        app.task(rate="10/x")(increment)
    assert "1x" not in str(caught.value)


def test_a_condition_without_its_brackets_is_told_to_be_called(app: TaskQ) -> None:
    forgotten: Any = online
    with pytest.raises(UsageError, match=r"call it, for example online\(\.\.\.\)"):
        app.task(requires=[forgotten])(increment)


def test_a_breaker_names_its_probe(app: TaskQ) -> None:
    probe: Any = "smtp:25"
    with pytest.raises(UsageError, match=r"breaker\('mail'\): probe: a condition is 'smtp:25'"):
        app.breaker("mail", probe=probe)
