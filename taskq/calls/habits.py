"""What those try first who come from other libraries, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENQUEUE: Final = "await {0}.enqueue(...), or {0}.enqueue_sync(...) where no event loop runs"
_LATER: Final = 'await {0}.options(delay="5m").enqueue(...), or .enqueue_sync(...) without a loop'
_RESULT: Final = "await {0}, await {0}.result(timeout=10), or {0}.result_sync() without a loop"

TASKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("delay", "send", "apply", "defer", "kiq", "push", "submit"), _ENQUEUE),
    **dict.fromkeys(("apply_async", "send_with_options", "schedule", "enqueue_in"), _LATER),
    **dict.fromkeys(("s", "si", "signature", "message"), "{0}.call(...)"),
}
JOBS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("get", "wait", "join", "value", "return_value"), _RESULT),
    **dict.fromkeys(("state", "ready", "done", "successful"), "await {0}.status()"),
    **dict.fromkeys(("revoke", "abort", "delete"), "await {0}.cancel()"),
}
_CALL: Final = "await app.enqueue({0}), or app.enqueue_sync({0}) where no event loop runs"
CALLS: Final[Mapping[str, str]] = dict.fromkeys(
    ("enqueue", "enqueue_sync", "delay", "apply_async", "send"), _CALL
)
_STEP: Final = "await chain(first.call(...), {0}).enqueue(): a step is a part of a flow"
STEPS: Final[Mapping[str, str]] = dict.fromkeys(
    ("call", "enqueue", "enqueue_sync", "delay", "apply_async", "send"), _STEP
)
APPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("send_task", "delay", "submit"), 'await {0}.enqueue_by_name("task", ...)'),
    **dict.fromkeys(("run", "start", "work", "worker_main"), "{0}.run_worker()"),
    **dict.fromkeys(("get_job", "fetch_job", "AsyncResult"), "{0}.job(id)"),
    **dict.fromkeys(("actor", "job_function"), "@{0}.task"),
}


class _NoAttribute(UsageError, AttributeError):
    """There is no such attribute, and the message says what there is instead.

    A traceback calls it what it is to everybody, an AttributeError.
    """

    __module__ = "builtins"
    __qualname__ = "AttributeError"

    def __reduce__(self) -> tuple[type[AttributeError], tuple[object, ...]]:
        """Be one elsewhere, too: under its name there nobody finds this class."""
        return AttributeError, self.args


_NoAttribute.__name__ = "AttributeError"


def no_attribute(
    thing: object, kind: str, name: str, instead: Mapping[str, str], called: str
) -> AttributeError:
    """The error of an attribute that is not there.

    Args:
        thing: what was asked for it.
        kind: what that is, in a word with its article.
        name: of the attribute.
        instead: by name, what to write.
        called: how the thing is written there.
    """
    remedy = instead.get(name)
    if remedy is None:
        return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}")
    return _NoAttribute(f"{kind} has no {name!r}: write {remedy.format(called)}")
