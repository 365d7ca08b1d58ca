"""Signals: what anybody tells a job that waits for it within its run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from taskq.calls.serialization import cause_of, encode_loose
from taskq.connection.connection import Connection, JobId, split_job_id
from taskq.core.errors import InvalidCall, JobSettled, UsageError
from taskq.core.model import NAME_BYTES_MAX
from taskq.core.parsing import check_name
from taskq.log.decide.steps import NewSignal

_log: Final = logging.getLogger("taskq")
#: By the name of an event and that of a task, as far as runs in this process came to it: what reads
#: the signal, by its type.
event_readers: Final[dict[str, dict[str, dict[Any, Callable[[bytes], object]]]]] = {}
#: What ``encode_loose`` puts around a single value.
_HEAD, _TAIL = b'{"value":', b"}"


async def send_signal(connection: Connection, job: JobId, name: str, value: Any, once: str) -> bool:
    """Signal a job of this log; see ``LogHolder.signal``."""
    tag, lsn = split_job_id(job)
    check_name("the name of a signal", name)
    if len(str(once).encode()) > NAME_BYTES_MAX:
        raise UsageError(f"once is {once!r:.60}: give a text of at most {NAME_BYTES_MAX} bytes")
    try:
        body = encode_loose(f"signal {name!r}", (), {"value": value})[len(_HEAD) : -len(_TAIL)]
    except InvalidCall as error:
        raise UsageError(str(error).replace("the arguments", "the value", 1)) from None
    port = await connection.port()
    connection.check_tag(tag, lsn)
    readers = event_readers.get(name)
    if readers:
        view = await port.view(lsn)
        problem = None if view is None else _unfit(readers.get(view.task), body)
        if problem is not None:
            _log.warning(
                "signal %r does not fit what job %s-%d waits for, and is passed over there: %s",
                name, tag or connection.tag, lsn, cause_of(problem),
            )  # fmt: skip
    try:
        return await port.signal(NewSignal(lsn, name, body, once))
    except JobSettled as error:
        view = await port.view(lsn)
        if view is None:
            raise await port.not_found(lsn) from None
        raise JobSettled(error.job_id, str(view.state), connection.path) from None


def _unfit(readers: dict[Any, Callable[[bytes], object]] | None, body: bytes) -> ValueError | None:
    """Return why no event of a task takes a signal of this value; None if one does, or may."""
    problem = None
    for read in (readers or {}).values():
        try:
            read(body)
        except ValueError as error:
            problem = error
        else:
            return None
    return problem
