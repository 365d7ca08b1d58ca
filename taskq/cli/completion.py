"""Shell completion of queues, tasks and ids of jobs from the log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from taskq.engine import LogReader

#: Newest jobs that are searched for tasks and ids.
_TASKS_OF: Final = 500
_IDS_MAX: Final = 100


def teach(command: click.Command) -> None:
    """Make the command and its subcommands complete queues, tasks and ids."""
    for parameter in command.params:
        find = _FINDERS.get(parameter.name or "")
        if find is not None:
            parameter.shell_complete = partial(_complete, find)  # type: ignore[method-assign]
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            teach(inner)


def _complete(
    find: Callable[[LogReader, str], Iterable[CompletionItem]],
    ctx: click.Context,
    incomplete: str,
) -> list[CompletionItem]:
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - a shell asks
    from taskq.engine import LogReader  # noqa: PLC0415 - as above

    given: dict[str, Any] = ctx.find_root().params | ctx.params
    path = given.get("directory") or given.get("data_dir")
    if "directory" in given and path is None and ctx.args:
        path = ctx.args[0]  # the option to complete follows it
    try:
        with LogReader.open(str(path or load_settings(None).data_dir)) as reader:
            return [_quoted(item) for item in find(reader, incomplete) if item.value.isprintable()]
    except Exception:  # noqa: BLE001 - whatever it is, a shell that asks is told nothing
        return []


def _quoted(item: CompletionItem) -> CompletionItem:
    """Escape characters that bash would expand on the completed line; other shells escape them.

    bash's function reads the answer with ``read``, which removes one backslash.
    """
    if os.environ.get("_TASKQ_COMPLETE", "").startswith("bash"):
        item.value = re.sub(r"([^\w@%+=:,./-])", r"\\\\\1", item.value)
    return item


def _queues(reader: LogReader, incomplete: str) -> Iterator[CompletionItem]:
    for queue in reader.stats().queues:
        if queue.queue.startswith(incomplete):
            yield CompletionItem(queue.queue, help=f"{queue.ready} ready, {queue.dead} dead")


def _tasks(reader: LogReader, incomplete: str) -> Iterator[CompletionItem]:
    names = dict.fromkeys(job.task for job in reader.jobs(None, None, None, _TASKS_OF))
    yield from (CompletionItem(name) for name in sorted(names) if name.startswith(incomplete))


def _ids(reader: LogReader, incomplete: str) -> Iterator[CompletionItem]:
    jobs = reader.jobs(None, None, None, _TASKS_OF)
    items = (
        CompletionItem(job.job_id, help=f"{job.state} {job.task}".rstrip())
        for job in jobs
        if job.job_id.startswith(incomplete)
    )
    yield from islice(items, _IDS_MAX)


_FINDERS: Final = {
    "queue": _queues, "queues": _queues, "task": _tasks, "tasks": _tasks, "job_id": _ids,
    "job_ids": _ids,
}  # fmt: skip
