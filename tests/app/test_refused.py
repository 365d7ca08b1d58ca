"""Refusals of wrong Python code: ``refused.md``, line by line."""

from __future__ import annotations

import copy
import importlib
import math
import os
import pickle
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import taskq
from taskq import TaskLog, TaskQ
from taskq.errors import TaskqError
from taskq_plugins import alerts
from taskq_plugins.webhooks import Webhooks
from tests.terminal import answers, matches

DOCUMENT: Final = Path(__file__).with_name("refused.md").read_text()
#: ``# TASKQ_NAME=text`` sets a variable for its line, ``# taskq.toml=text`` writes a file.
PLACES: Final = re.compile(r"  # (\S+?)=(.*)$")
MODULES: Final = ("app", "calls", "conditions", "durable", "errors", "retry", "values")


def work(number: int = 0) -> int:
    return number


async def wait(number: int) -> int:
    return number


def send(to: str, count: int, *, tags: list[str] | None = None, urgent: bool = False) -> int:
    return count


def positional(a: int, /, b: int) -> None: ...
def listed(items: list[int]) -> None: ...
def single(items: list[int]) -> int:
    return 1


def generator(*_: object) -> Iterator[int]:
    yield 1


async def async_generator(job: object, other: int) -> AsyncIterator[int]:
    yield other


async def coroutine(*_: object) -> None: ...


async def wrong_place(
    row: int, db: taskq.Inject[dict[str, str]] = taskq.injected(), *rest: int
) -> None: ...


class Plain:
    def send(self, to: str) -> None: ...


@dataclass
class Item:
    name: str
    count: int


@dataclass
class Order:
    items: list[Item]


def ship(order: Order | None = None, *more: Item) -> None: ...


def takes(hint: Any) -> Any:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return take


def gives(hint: Any) -> Any:
    def give() -> Any: ...

    give.__annotations__["return"] = hint
    return give


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def names_here(folder: Path) -> dict[str, Any]:
    names: dict[str, Any] = {
        "UTC": UTC, "copy": copy, "datetime": datetime, "math": math, "pickle": pickle, "re": re,
    }  # fmt: skip
    for name in MODULES:
        module = importlib.import_module(f"taskq.{name}")
        names |= {thing: getattr(module, thing) for thing in getattr(module, "__all__", ())}
    names |= {name: getattr(taskq, name) for name in taskq.__all__}
    names |= {
        name: thing for name, thing in globals().items()
        if getattr(thing, "__module__", "") == __name__
    }  # fmt: skip
    names |= {
        "alerts": alerts, "Webhooks": Webhooks, "Callable": Callable, "Iterator": Iterator,
        "Generator": Generator,
    }  # fmt: skip
    names["app"] = app = TaskQ(folder / "data", durability="os")
    names["log"] = TaskLog.open(folder / "log", durability="os").__enter__()
    names["mail"] = app.task(name="mail.send")(send)
    names["failing"] = app.task(name="failing", key=lambda number: 1 / number)(work)
    names["shipping"] = app.task(name="ship")(ship)
    names["strict"] = app.task(name="strict")(positional)
    names["silent"] = app.task(name="silent", store_result=False)(work)
    names["limited"] = app.task(name="limited", concurrency=1)(work)
    names["other"] = TaskQ(folder / "other").task(name="theirs")(work)
    app.breaker("mail", failures=3)
    return names


def answer(typed: str, names: dict[str, Any]) -> str:
    try:
        exec(typed, names)  # noqa: S102 - our own lines
    except (TaskqError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    "section", DOCUMENT.split("\n## ")[1:], ids=lambda text: text.partition("\n")[0]
)
def test_wrong_code_is_refused_as_it_is_written_and_leaves_no_trace(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_here(tmp_path)
    app, log = names["app"], names["log"]
    try:
        for line, shown in answers(section):
            typed = line[4:]
            known = set(app.tasks)
            with monkeypatch.context() as patch:
                for name, text in PLACES.findall(typed):
                    if name.isupper():
                        patch.setenv(name, text)
                    else:
                        Path(name).parent.mkdir(exist_ok=True)
                        Path(name).write_text(text)
                output = answer(typed, names).replace(str(tmp_path), "/home/you")
            parts = (text.replace(os.sep, "/") for text in (output, shown))
            assert matches(*parts), f"{typed}\n{output}"
            assert set(app.tasks) == known, typed
        assert not app.stats_sync().queues
        assert not log.stats_sync().queues
        assert not log.readers_sync()
    finally:
        app.close_sync()
        log.close_sync()
