"""The default app, and ``@task`` for tasks that name no other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from taskq.app.app import TaskQ
from taskq.app.decorate import TaskChoices, TaskDecorator
from taskq.app.tasks import AsyncTask, SyncTask

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def default_app() -> TaskQ:
    """Return the app of tasks that name none, configured by the settings alone."""
    return TaskQ()


@overload
def task(  # type: ignore[overload-overlap]
    fn: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTask[P, R]: ...


@overload
def task(fn: Callable[P, R], /) -> SyncTask[P, R]: ...


@overload
def task(**choices: Unpack[TaskChoices]) -> TaskDecorator: ...


def task(fn: Callable[..., Any] | None = None, /, **choices: Unpack[TaskChoices]) -> Any:
    """Make a task of a function, on the default app: ``@task`` or ``@task(queue="mail", ...)``.

    Raises:
        UsageError: the function or an option is wrong, or the name is taken.
    """
    if fn is None:
        return default_app().task(**choices)
    return default_app().task(fn)
