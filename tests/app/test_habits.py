"""Words of Celery, Huey, arq, dramatiq and taskiq are answered with what to write, never amiss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import taskq
from taskq import TaskQ, current_job, retry
from taskq.app.tasks import TaskChoices
from taskq.calls import habits
from taskq.calls.call import OptionChanges
from taskq.core.errors import InvalidCall, UsageError
from taskq.testing import Sandbox
from tests.programs import run_python

#: Keywords of decorators and of calls, by library, without names that are the same here.
OPTIONS = {
    "celery": "bind max_retries default_retry_delay rate_limit time_limit soft_time_limit "
    "ignore_result serializer compression backend acks_late acks_on_failure_or_timeout "
    "reject_on_worker_lost track_started autoretry_for dont_autoretry_for retry_kwargs "
    "retry_backoff retry_backoff_max retry_jitter throws result_expires routing_key exchange "
    "countdown link link_error task_id",
    "huey": "retries retry_delay context",
    "arq": "max_tries keep_result keep_result_forever _job_id _queue_name _defer_by _defer_until "
    "_expires",
    "dramatiq": "actor_name queue_name max_retries min_backoff max_backoff retry_when throws "
    "max_age time_limit store_results result_ttl on_retry_exhausted on_success on_failure "
    "pipe_target",
    "taskiq": "task_name max_retries labels",
}
WORDS = sorted({word for words in OPTIONS.values() for word in words.split()})


def send(to: str) -> None: ...


@pytest.mark.parametrize("word", WORDS)
def test_an_option_of_another_library_is_answered_from_the_table(app: TaskQ, word: str) -> None:
    task: Any = app.task(name="mail.send")(send)
    offers: list[tuple[Any, Any]] = [
        (lambda **choices: app.task(**choices)(send), TaskChoices),
        (task.options, OptionChanges),
    ]
    for offer, known in offers:
        with pytest.raises(UsageError) as refused:
            offer(**{word: 3})
        _, _, answer = str(refused.value).partition(f"no option {word!r}: ")
        same, _ = habits.OPTIONS[word]
        if answer.startswith("did you mean"):
            assert answer.split("'")[1] in {name for name in same if name in known.__annotations__}
        else:
            assert answer.startswith("write "), answer
        assert "\n" not in answer


@pytest.mark.parametrize(
    ("word", "at_task", "in_call"),
    [
        ("result_expires", "write keep=..., how long job and", "write keep=..., how long job and"),
        ("max_retries", "write retry=N + 1: it counts", "write attempts=N + 1: it counts"),
        ("retries", "write retry=N + 1: it counts", "write attempts=N + 1: it counts"),
        ("bind", "write nothing in its place: current_job()", "write nothing in its place"),
        ("time_limit", "did you mean 'timeout'?", "write @app.task(timeout=...)"),
        ("attempts", "did you mean 'retry'?", ""),
        ("ignore_result", "write store_result=False", "write @app.task(store_result=False)"),
    ],
)
def test_a_word_that_would_harm_is_answered_with_what_it_means(
    app: TaskQ, word: str, at_task: str, in_call: str
) -> None:
    """``expires`` lets jobs die unrun, and ``retry`` counts the first run, too."""
    task: Any = app.task(name="mail.send")(send)
    with pytest.raises(UsageError) as refused:
        app.task(**{word: 3})(send)  # type: ignore[call-overload]
    assert f"no option {word!r}: {at_task}" in str(refused.value)
    if in_call:
        with pytest.raises(UsageError) as refused:
            task.options(**{word: 3})
        assert f"no option {word!r}: {in_call}" in str(refused.value)


def test_what_every_table_advises_exists_here() -> None:
    """Each option that is named is one of a task, of a call or of a log's."""
    known = {*TaskChoices.__annotations__, *OptionChanges.__annotations__, "give_up_on"}
    worker = {"concurrency", "max_jobs_per_child", "max_rss_per_child"}
    for words, _ in habits.OPTIONS.values():
        assert {*words} <= known | worker


def test_every_attribute_that_a_table_names_is_none_of_ours(app: TaskQ) -> None:
    task = app.task(name="mail.send")(send)
    tables = [
        (app, habits.APPS), (task, habits.TASKS), (app.job("a-1"), habits.JOBS),
        (task.call("a"), habits.CALLS), (task.step(), habits.STEPS),
    ]  # fmt: skip
    for thing, table in tables:
        for name in table:
            with pytest.raises(AttributeError, match=f"has no '{name}': write "):
                getattr(thing, name)
    assert not {*habits.IMPORTS} & {*taskq.__all__}


async def test_a_job_that_asks_as_celery_does_is_answered(app: TaskQ) -> None:
    answers: list[str] = []

    @app.task(name="ask")
    async def ask() -> None:
        for name in habits.CONTEXTS:
            try:
                getattr(current_job(), name)
            except AttributeError as error:
                answers.append(str(error))

    async with Sandbox(app) as box:
        await ask.enqueue()
        await box.drain()
    assert len(answers) == len(habits.CONTEXTS)
    assert answers[0] == (
        "the context of a job has no 'request': write current_job().id, current_job().attempt or "
        "current_job().headers"
    )
    policy: Any = retry.fixed(3)
    with pytest.raises(UsageError, match=r"is the task's policy: write raise Retry\(delay=30\)"):
        policy(countdown=30)


def test_an_import_of_another_library_is_answered_where_it_stands() -> None:
    """Python itself would say ``cannot import name``, and no more."""
    tries = "\n".join(
        f"try:\n    from taskq import {name}\nexcept ImportError as error:\n    print(error)"
        for name in ("shared_task", "crontab", "signals", "Reject", "JobFailed", "nonsense")
    )
    done = run_python("-c", tries, check=True)
    printed = done.stdout.splitlines()
    assert printed[:2] == [
        "taskq has no 'shared_task': write from taskq import task: it is of the default app",
        f"taskq has no 'crontab': write {habits.IMPORTS['crontab']}",
    ]
    assert printed[2].startswith("taskq has no 'signals': write @app.middleware")
    assert printed[3:5] == [
        "taskq has no 'Reject': write raise Discard(\"why\") of taskq",
        "JobFailed is in taskq.errors: from taskq.errors import JobFailed",
    ]
    assert printed[5].startswith("cannot import name 'nonsense'")
    for name in habits.IMPORTS:
        assert not hasattr(taskq, name)


@pytest.mark.parametrize("address", ["redis://localhost:6379/0", "amqp://guest@h//", "sqs://aws/q"])
def test_a_brokers_address_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"the log is a directory, and \w+: is an address"):
        TaskQ(address)
    app = TaskQ("redis-data")
    with pytest.raises(UsageError, match="is an address"):
        app.data_dir = address
    monkeypatch.setenv("TASKQ_DATA_DIR", address)
    with pytest.raises(UsageError, match="is an address"):
        TaskQ()
    assert not [*tmp_path.iterdir()]


def test_a_task_without_an_app_or_with_self_is_told_what_to_write(app: TaskQ) -> None:
    wrong: Any = TaskQ
    for given, choices in (([send], {}), ([], {"queue": "mail"})):
        with pytest.raises(UsageError, match=r"a task needs an app: write app = TaskQ\("):
            wrong.task(*given, **choices)
    with pytest.raises(UsageError, match=r"write @app.task\(name='mail'\)"):
        app.task("mail")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"charge takes self, .* call current_job\(\) for"):
        exec("@app.task\ndef charge(self, amount): ...", {"app": app, "__name__": "shop"})  # noqa: S102


def test_a_first_parameter_that_arq_would_fill_in_is_told(app: TaskQ) -> None:
    def download(ctx: Any, url: str) -> None: ...

    with pytest.raises(InvalidCall, match=r"'url' .*missing.*current_job\(\)") as refused:
        app.task(name="download")(download).call("https://a.example")  # type: ignore[call-arg]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", 3, "a\nb"])
def test_a_task_without_a_name_is_no_job(app: TaskQ, name: Any) -> None:
    with pytest.raises(UsageError, match="task name"):
        app.call_by_name(name)
    with pytest.raises(UsageError, match="task name"):
        app.enqueue_by_name_sync(name)
