"""A device asks its hub over HTTP what there is for it, behind each session."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound, TaskqError
from taskq.log.machine.disk import SystemClock
from taskq_plugins.hub.outbox.lines import DOWN, JOB, Question, decode_given, encode_question
from taskq_plugins.hub.outbox.taking import Taking
from taskq_plugins.hub.wire import JSON, HubError, refusal

if TYPE_CHECKING:
    from taskq.app.tasklog import TaskLog
    from taskq.log.config import LogConfig
    from taskq.log.machine.ports import Disk
    from taskq_plugins.hub.device.line import Line
    from taskq_plugins.hub.device.log import DeviceLog
    from taskq_plugins.hub.outbox.lines import Given
    from taskq_plugins.hub.outbox.taking import Cancelled, Held, Taken

_log: Final = logging.getLogger("taskq")
_WELL: Final = 200
#: Nothing is there; another session has begun.
_NOTHING: Final = frozenset({204, 409})


async def take(
    disk: Disk,
    path: str,
    log: DeviceLog,
    line: Line,
    session: int,
    held: Held,
) -> Taken:
    """Take what a hub has for the log in a directory, whose copy ends where the log does.

    Args:
        disk: of this machine.
        path: of the directory.
        log: as it was sent.
        line: to the hub.
        session: that the hub knows of it.
        held: what the inbox said before.

    Raises:
        HubError: the hub cannot be reached, or refuses.
        LogError: the inbox or the log cannot be written.
    """
    taking = Taking(disk, SystemClock(), path, line.hub.accept, line.known)
    steps = taking.take(session, log.identity.log_id, log.end, held)
    answer: Given | bool | None = None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            taken: Taken = end.value
            if taken.jobs:
                await _adopt(path, line.config)
            return taken
        answer = await (
            _ask(line, asked) if isinstance(asked, Question) else _cancel(path, line.config, asked)
        )


async def _ask(line: Line, asked: Question) -> Given | None:
    """What is there; None: nothing, or the hub wants another session before."""
    left = line.allowance.left()
    if left is not None:
        asked = asked._replace(bytes_max=min(asked.bytes_max, left * 2 // 3))
    told = await line.request("POST", DOWN, {"Content-Type": JSON}, encode_question(asked))
    if told.status in _NOTHING:
        return None
    if told.status != _WELL:
        raise refusal(told.status)
    try:
        return decode_given(told.content)
    except (ValueError, KeyError, TypeError) as error:
        raise HubError("what the hub has for this device did not come whole") from error


async def _adopt(path: str, config: LogConfig) -> None:
    """Let what was taken be jobs at once: a worker that ends by itself would not see them."""
    try:
        async with _opened(path, config) as log:
            await log.adopt()
    except TaskqError as error:
        _log.warning("%s: what the hub had waits in the inbox for a worker: %s", path, error)


async def _cancel(path: str, config: LogConfig, asked: Cancelled) -> bool:
    """Cancel a job, if it is that one."""
    async with _opened(path, config) as log:
        with contextlib.suppress(JobNotFound):
            job = f"{log._connection.tag}-{asked.job}"
            if (await log.get(job)).headers.get(JOB) == asked.id:
                return await log.cancel(job)
    return False


def _opened(path: str, config: LogConfig) -> TaskLog:
    from taskq.app.tasklog import TaskLog  # noqa: PLC0415 - most devices are never sent a job
    from taskq.connection.connection import Connection  # noqa: PLC0415 - likewise

    return TaskLog(Connection(path, config))
