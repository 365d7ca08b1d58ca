"""The ``on_dead`` hooks of a worker, its app and its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from anyio import CancelScope, sleep_forever
from anyio.abc import TaskStatus

from taskq import DeadLetter, Task, TaskQ, engine, errors, hooks, values
from taskq_workers.runs.lifespans import begin, until_done

DeathCall: TypeAlias = Callable[[DeadLetter], Any]


_log: Final = logging.getLogger("taskq.worker")

#: Least time for hooks of the last jobs to end, after the worker's drain.
MOMENT_SECONDS: Final = 0.1


class DeathHooks:
    """Calls hooks with each dead letter of one log; errors of hooks are logged and stop nothing.

    A coroutine function runs as a task of its own. Enqueues of hooks go to the app's log. ``until``
    is the end of the worker's drain, in monotonic seconds.

    A task as a hook gets a job in the frame of each death. Functions are called on the loop,
    between jobs, and not at all if the process is killed before.
    """

    def __init__(self, app: TaskQ, hook: DeathCall | None) -> None:
        self.until = 0.0
        self._app = app
        self._hooks = [*app.hooks.deaths] if hook is None else [(hook, None), *app.hooks.deaths]
        self._tasks: set[asyncio.Task[None]] = set()
        _learn(app)

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Listen for deaths that this process records, until cancelled."""
        try:
            with contextlib.ExitStack() as stack:
                self._listen(store, stack)
                task_status.started()
                await sleep_forever()
        finally:
            with CancelScope(shield=True):
                await self._end()

    async def _end(self) -> None:
        """Give running hooks the rest of the drain, or a moment, then cancel them."""
        seconds = max(self.until - monotonic(), MOMENT_SECONDS)
        if self._tasks and not await until_done(self._tasks, seconds):
            for task in self._tasks:
                task.cancel()

    def _listen(self, store: engine.Store, stack: contextlib.ExitStack) -> None:
        app = self._app
        # Shared by the app and its views, so that two workers of one app call each hook once.
        origin = app.hooks.shared
        for hook, wanted in self._hooks:
            if not isinstance(hook, Task):
                stack.callback(store.on_death(hook, partial(self._call_if, wanted)))
        if any(task.on_dead is not None for task in app.tasks.values()):
            stack.callback(store.on_death(origin, self._call_of_task))
        stack.callback(app.hooks.renewed.listen(partial(_learn_later, app)))
        if _tellers(app):
            # Kept when this worker ends: another worker of the process may still end jobs.
            store.write_deaths(origin, partial(_jobs_of, app))

    def _call_if(self, wanted: Collection[str] | None, letter: DeadLetter, hook: DeathCall) -> None:
        if wanted is None or letter.task in wanted:
            self._call(letter, hook)

    def _call_of_task(self, letter: DeadLetter, _: object) -> None:
        task = self._app.tasks.get(letter.task)
        if task is not None and task.on_dead is not None and not isinstance(task.on_dead, Task):
            self._call(letter, task.on_dead)

    def _call(self, letter: DeadLetter, hook: DeathCall) -> None:
        try:
            with hooks.within(self._app):
                result = hook(letter)
                if inspect.isawaitable(result):
                    task = begin(self._await(letter, result), "taskq-on-dead")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a hook is somebody else's code
            _complain(letter)

    @staticmethod
    async def _await(letter: DeadLetter, result: Any) -> None:
        try:
            await result
        except (Exception, SystemExit):  # noqa: BLE001 - likewise
            _complain(letter)


def _complain(letter: DeadLetter) -> None:
    _log.exception("the on_dead hook failed on job %s; the worker goes on", letter.job_id)


# Tasks with jobs about deaths, in the frames of these deaths.


class _Template(values.NamedTuple):
    """A task's jobs about deaths, except their letters.

    Such a job is made on the storage thread, while the log is locked. The task's own code, such as
    validators of its parameters, runs only here, when the template is made.
    """

    spec: engine.EnqueueSpec
    extras: engine.Extras | None
    #: the payload before the letter and after it
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, task: Task[..., Any]) -> _Template:
        options, _ = task.kind()
        keys = options.key, options.concurrency_key
        try:
            calls = [task.call(letter) for letter in _SAMPLES]
        except errors.InvalidCall as error:
            raise _misfit(task, error) from error
        if any(map(callable, keys)) or any(key is not None for key in keys):
            raise errors.UsageError(
                f"{task.name} is to hear of deaths, each by a job of its own: leave key and "
                f"concurrency_key out"
            )
        both = [
            call.body.partition(_encode(letter))
            for call, letter in zip(calls, _SAMPLES, strict=True)
        ]
        heads, letters, tails = zip(*both, strict=True)
        if not all(letters) or len({*heads}) > 1 or len({*tails}) > 1:
            raise _misfit(task, "it writes a letter in another form")
        return cls(calls[0].spec, calls[0].extras, heads[0], tails[0])

    def item(self, letter: DeadLetter) -> engine.Item:
        return self.spec, self.head + _encode(letter) + self.tail, self.extras


_SAMPLES: Final = [
    DeadLetter(
        job_id=f"log-{number}",
        queue="q",
        task="t",
        priority=0,
        attempt=number,
        reason="",
        cause="",
        settled_ns=number,
    )
    for number in (1, 2)
]
_FIELDS: Final = tuple(DeadLetter.__annotations__)
_templates: Final[WeakKeyDictionary[Task[..., Any], _Template]] = WeakKeyDictionary()


def _misfit(task: Task[..., Any], why: object) -> errors.UsageError:
    return errors.UsageError(
        f"{task.name} is to hear of deaths: let it take one letter: DeadLetter ({why})"
    )


def _encode(letter: DeadLetter) -> bytes:
    values = {name: getattr(letter, name) for name in _FIELDS}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _tellers(app: TaskQ) -> set[Task[..., Any]]:
    hooks = [hook for hook, _ in app.hooks.deaths]
    of_tasks = [task.on_dead for task in app.tasks.values()]
    return {hook for hook in (*hooks, *of_tasks) if isinstance(hook, Task)}


def _learn(app: TaskQ) -> None:
    """Make the templates of new tasks.

    Raises:
        UsageError: a task takes no letter, or has keys.
    """
    for task in _tellers(app):
        if task not in _templates:
            _templates[task] = _Template.of(task)


def _learn_later(app: TaskQ) -> None:
    try:
        _learn(app)
    except errors.UsageError:
        _log.exception("deaths are not told to a task that was declared while its worker runs")


def _jobs_of(app: TaskQ, letter: DeadLetter) -> Iterator[engine.Item]:
    """Yield a job about a death for each such task; none for the death of such a job.

    Runs on the storage thread, while the log is locked: it calls no code of the user.
    """
    died = app.tasks.get(letter.task)
    if died is not None and died.name in {task.name for task in _tellers(app)}:
        return
    wanting = [hook for hook, names in app.hooks.deaths if names is None or letter.task in names]
    for hook in wanting if died is None else [*wanting, died.on_dead]:
        template = _templates.get(hook) if isinstance(hook, Task) else None
        if template is not None:
            yield template.item(letter)
