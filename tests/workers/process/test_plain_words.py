"""What ``taskq worker`` reads without click is what click reads; the rest is left to click."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import taskq_workers.command
import taskq_workers.process.plain
from taskq.cli.main import main
from taskq.errors import LogError, UsageError
from taskq_workers.process.plain import plain_worker

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL = [
    "shop:app",
    "shop",
    "shop.jobs:app -q --burst",
    "--quiet shop:app -c 3",
    "-c 2 shop:app --concurrency 12",
    "shop:app -Q mail -Q 'bulk, rare'",
    "shop:app --queues mail,bulk -d data/",
    "shop:app --data-dir '/tmp/a b/../c' -Q mail",
]
FOR_CLICK = [
    *("", "--help", "shop:app -h", "shop:app -c", "shop:app -c 0", "shop:app -c x", "-- shop:app"),
    *("shop:app -c-1", "shop:app -c ²", "shop:app --concurrency=3", "shop:app -qc3", "a:b c:d"),
    *("shop:app -Q ''", "shop:app -Q mail,", "shop:app -Q mail=3", "shop:app -d ''", "''"),
    *("shop:app -d eu -d us", "shop:app --nothing", "shop:app -Q -q", "shop:app --processes 2"),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what workers were asked to do, none of which runs."""
    asked: list[Any] = []

    def note(order_for: Callable[..., Any], *rest: Any) -> None:
        *others, log = rest
        order = order_for(print)
        asked.append((order, *others, log("warning", "text"), log("debug", "json")))

    for module in (taskq_workers.command, taskq_workers.process.plain):
        monkeypatch.setattr(module, "run_one", note)
        monkeypatch.setattr(module, "leave_init", lambda: None)
    return asked


@pytest.mark.parametrize("directory", ["", "there"])
@pytest.mark.parametrize("words", USUAL)
def test_the_usual_words_ask_for_what_click_reads_in_them(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, words: str, directory: str
) -> None:
    monkeypatch.setenv("TASKQ_DATA_DIR", directory)
    plain = plain_worker(shlex.split(words))
    assert plain is not None
    plain()
    done = CliRunner().invoke(main, ["worker", *shlex.split(words)])
    assert not done.exit_code, done.output
    first, second = asked
    assert first == second


@pytest.mark.parametrize("words", FOR_CLICK)
def test_rare_and_wrong_words_are_left_to_click(words: str) -> None:
    assert plain_worker(shlex.split(words)) is None


def test_a_shell_that_completes_words_asks_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TASKQ_COMPLETE", "bash_complete")
    assert plain_worker(["shop:app"]) is None


@pytest.mark.parametrize(
    "raised",
    [
        *(UsageError("no such app"), LogError("it is locked"), KeyboardInterrupt()),
        *(FileNotFoundError(2, "No such file or directory", "data"), BrokenPipeError()),
        *(OSError(28, "No space left on device"), ValueError("a bug"), SystemExit(3)),
    ],
    ids=repr,
)
def test_what_ends_a_worker_is_told_as_click_tells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException
) -> None:
    def end(*_: Any) -> None:
        raise raised

    for module in (taskq_workers.command, taskq_workers.process.plain):
        monkeypatch.setattr(module, "run_one", end)
        monkeypatch.setattr(module, "leave_init", lambda: None)
    monkeypatch.setattr("taskq.cli.errors.silence", lambda _: None)
    plain = plain_worker(["shop:app"])
    assert plain is not None
    ends = []
    for run in (plain, lambda: main(["worker", "shop:app"], prog_name="taskq")):
        with pytest.raises(BaseException) as end_of_it:  # noqa: PT011 - whatever it is
            run()
        code = getattr(end_of_it.value, "code", None)
        ends.append((type(end_of_it.value), str(end_of_it.value), code, capsys.readouterr()))
    assert ends[0] == ends[1]
