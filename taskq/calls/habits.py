"""Names from Celery, Huey, arq, dramatiq and taskiq, and taskq's replacements for them.

The tables contain every name with another meaning here, so no message suggests a merely similar
name: ``result_expires`` is not ``expires``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from taskq.core import errors, parsing

# Attributes: the replacement, with {0} for the name of the object in the caller's code.

_ENQUEUE: Final = "await {0}.enqueue(...), or {0}.enqueue_sync(...) where no event loop runs"
_LATER: Final = 'await {0}.options(delay="5m").enqueue(...), or .enqueue_sync(...) without a loop'
_RESULT: Final = "await {0}, await {0}.result(timeout=10), or {0}.result_sync() without a loop"
_AGAIN: Final = "raise Retry(delay=30) within the task; max_retries is retry=N + 1 at @app.task"
_THIS_JOB: Final = "current_job() within the task: it has id, attempt, headers and deadline"
_CRON: Final = '@app.cron("0 3 * * *") or @app.every("10m") above @app.task; every worker ticks'
_LIFESPAN: Final = "@app.lifespan on an async generator that opens, yields and closes"
_MIDDLEWARE: Final = "@app.middleware (around each job), @app.lifespan (of a worker), @app.on_dead"
_DIRECTORY: Final = 'TaskQ("./data"): the directory is queue and results, there is no broker'
_INCLUDE: Final = 'TaskQ("./data", include=["shop.tasks"]), or -I shop.tasks for a worker'

TASKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("delay", "send", "apply", "defer", "kiq", "push", "submit"), _ENQUEUE),
    **dict.fromkeys(("apply_async", "send_with_options", "schedule", "enqueue_in"), _LATER),
    **dict.fromkeys(("kicker", "schedule_by_time"), _LATER),
    **dict.fromkeys(("s", "si", "subtask", "message"), "{0}.call(...)"),
    **dict.fromkeys(("request", "context"), _THIS_JOB),
    **dict.fromkeys(("update_state", "set_progress"), 'await progress(0.5, "half of it")'),
    **dict.fromkeys(("starmap", "chunks"), "{0}.map([(1, 2), (3, 4)]).enqueue(): a job for each"),
    "delay_on_commit": "transaction.on_commit(lambda: {0}.enqueue_sync(...))",
    "call_local": "{0}(...): that runs it here and now",
    "AsyncResult": "{0}.job(id)",
    "revoke": "await app.cancel_many(task={0}.name), or await job.cancel()",
}
JOBS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("get", "wait", "join", "value", "return_value"), _RESULT),
    **dict.fromkeys(("get_result", "wait_result"), _RESULT),
    **dict.fromkeys(("state", "ready", "done", "successful"), "await {0}.status()"),
    **dict.fromkeys(("failed", "is_ready", "is_finished"), "await {0}.status()"),
    **dict.fromkeys(("revoke", "abort", "delete", "kill"), "await {0}.cancel()"),
    **dict.fromkeys(("retry", "restore"), "await {0}.requeue(): of a dead letter"),
    **dict.fromkeys(("info", "meta"), "await {0}.progress()"),
    **dict.fromkeys(("traceback", "exc_info"), "await {0}.attempts(): each has its message"),
    **dict.fromkeys(("job_id", "task_id", "message_id"), "{0}.id"),
    "then": "chain(first.call(...), second.step()).enqueue()",
    "forget": 'nothing: results go with their jobs, after keep="7d"',
}
_CALL: Final = "await app.enqueue({0}), or app.enqueue_sync({0}) where no event loop runs"
CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("enqueue", "enqueue_sync", "delay", "apply_async", "send"), _CALL),
    "then": "chain({0}, second.step()).enqueue()",
    "link_error": "@app.task(on_dead=...), or @app.on_dead",
    "set": "{0}.options(...)",
}
_STEP: Final = "await chain(first.call(...), {0}).enqueue(): a step is a part of a flow"
STEPS: Final[Mapping[str, str]] = dict.fromkeys(
    ("call", "enqueue", "enqueue_sync", "delay", "apply_async", "send"), _STEP
)
CONTEXTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("request", "job_id", "task_id"), "{0}.id, {0}.attempt or {0}.headers"),
    **dict.fromkeys(("retries", "job_try"), "{0}.attempt, which is 1 at the first run"),
    **dict.fromkeys(("retry", "reject", "requeue"), "raise Retry(delay=30), or raise Discard()"),
    **dict.fromkeys(("update_state", "set_progress"), '{0}.progress(0.5, "half of it")'),
}
APPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("send_task", "delay", "submit"), 'await {0}.enqueue_by_name("task", ...)'),
    "enqueue_job": 'await {0}.enqueue_by_name("task", ...)',
    **dict.fromkeys(("run", "start", "work", "worker_main"), "{0}.run_worker()"),
    **dict.fromkeys(("get_job", "fetch_job", "AsyncResult"), "{0}.job(id)"),
    **dict.fromkeys(("revoke", "revoke_by_id"), "await {0}.job(id).cancel()"),
    **dict.fromkeys(("actor", "job_function", "declare_actor", "register_task"), "@{0}.task"),
    **dict.fromkeys(("signature", "subtask"), '{0}.call_by_name("task", ...)'),
    **dict.fromkeys(
        ("conf", "config_from_object", "setup"),
        'TaskQ("./data", keep="7d"), a TASKQ_… variable or taskq.toml; a task\'s are @{0}.task\'s',
    ),
    **dict.fromkeys(
        ("control", "inspect", "broadcast"),
        "await {0}.stats(), {0}.pause(queue) or {0}.job(id).cancel()",
    ),
    **dict.fromkeys(("autodiscover_tasks", "autodiscover", "import_modules"), _INCLUDE),
    **dict.fromkeys(("add_periodic_task", "periodic_task", "on_after_configure"), _CRON),
    **dict.fromkeys(("on_startup", "on_shutdown", "startup", "shutdown", "on_event"), _LIFESPAN),
    **dict.fromkeys(("pre_execute", "post_execute", "signals"), _MIDDLEWARE),
    **dict.fromkeys(("add_middleware", "with_middlewares", "add_event_handler"), _MIDDLEWARE),
    **dict.fromkeys(("lock_task", "lock"), "@{0}.task(concurrency=1)"),
    **dict.fromkeys(("broker", "backend", "with_broker", "with_result_backend"), _DIRECTORY),
    **dict.fromkeys(("flush", "flush_all", "purge"), 'await {0}.cancel_many(queue="default")'),
    "immediate": "async with Sandbox({0}) of taskq.testing: a real log, and a clock that you move",
}

# Names imported from ``taskq``.

IMPORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("shared_task", "actor"), "from taskq import task: it is of the default app"),
    **dict.fromkeys(("Celery", "Huey", "SqliteHuey", "RedisHuey", "MemoryHuey"), _DIRECTORY),
    **dict.fromkeys(("ArqRedis", "create_pool", "WorkerSettings", "set_broker"), _DIRECTORY),
    **dict.fromkeys(("InMemoryBroker", "ListQueueBroker", "Queue"), _DIRECTORY),
    **dict.fromkeys(("crontab", "cron", "every", "periodic_task"), _CRON),
    **dict.fromkeys(("signals", "task_prerun", "task_postrun", "Middleware"), _MIDDLEWARE),
    **dict.fromkeys(("task_failure", "task_success", "TaskiqMiddleware"), _MIDDLEWARE),
    **dict.fromkeys(("signature", "subtask"), "task.call(...)"),
    **dict.fromkeys(("chunks", "starmap", "xmap"), "task.map([(1, 2), (3, 4)]).enqueue()"),
    "pipeline": "from taskq import chain",
    **dict.fromkeys(("Reject", "Ignore", "CancelExecution"), 'raise Discard("why") of taskq'),
    **dict.fromkeys(("RetryTask", "MaxRetriesExceededError"), _AGAIN),
    "SoftTimeLimitExceeded": "from taskq import SoftTimeout",
    **dict.fromkeys(("current_task", "CurrentMessage", "Context"), _THIS_JOB),
    **dict.fromkeys(("TaskiqDepends", "Depends"), "db: Inject[Database] = injected() of taskq"),
    **dict.fromkeys(("AsyncResult", "Job"), "app.job(id), which is a taskq.JobHandle"),
    "get_task_logger": "logging.getLogger(__name__)",
}

# A broker's address in place of a directory; ``Path`` makes one slash of two, and
# backslashes on Windows.

_ADDRESS: Final = (
    r"(rediss?|valkey|(py)?amqps?|memory|sqs|sqlite|postgres(ql)?|mysql|mongodb|nats|kafka|https?"
    r"|unix|file|filesystem|s3|gs)(\+\w+)?:[/\\]"
)


def check_directory(path: str) -> None:
    """Refuse an address, which would otherwise become a directory of that name."""
    if ":" in path and re.match(_ADDRESS, path):
        scheme = path.partition(":")[0]
        raise errors.UsageError(
            f"the log is a directory, and {scheme}: is an address: there is no broker, "
            f'write TaskQ("./data"), or -d DIR in a command'
        )


# Options: the options with the same meaning, of which the first known one is suggested; and a
# text with {0} for that option, if a name is not enough.

_TRIES: Final = (("retry", "attempts"), "{0}=N + 1: it counts the first run, too")
_KEEP: Final = (("keep",), "{0}=..., how long job and result are kept; expires= drops jobs unrun")
_POLICY: Final = (
    ("retry",), '{0}=retry.exponential(attempts=5, base="1s", cap="10m", retry_on=OSError)'
)  # fmt: skip
_NOTHING: Final = "nothing in its place: "
_ALWAYS_LATE: Final = ((), _NOTHING + "always so, a job runs again if its worker dies")
_JSON: Final = ((), _NOTHING + "arguments and results are JSON, checked against the annotations")
_NEXT: Final = ((), "chain(first.call(...), second.step()).enqueue()")
_ROUTE: Final = (("queue",), "{0}=... at @app.task, or task.options(queue=...) for one call")

OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    # Number of attempts, and retries.
    **dict.fromkeys(("attempts", "max_tries"), (("retry",), "")),
    "retry": (("attempts",), ""),
    **dict.fromkeys(("max_retries", "retries"), _TRIES),
    **dict.fromkeys(("autoretry_for", "retry_for", "retry_when", "retry_kwargs"), _POLICY),
    **dict.fromkeys(("retry_backoff", "retry_backoff_max", "retry_jitter"), _POLICY),
    **dict.fromkeys(("min_backoff", "max_backoff", "backoff"), _POLICY),
    **dict.fromkeys(
        ("default_retry_delay", "retry_delay"), (("retry",), '{0}=retry.fixed(5, delay="10s")')
    ),
    **dict.fromkeys(
        ("dont_autoretry_for", "throws"),
        (("give_up_on", "retry"), "{0}=...: retry.exponential(give_up_on=ValueError)"),
    ),
    # Due time and expiry.
    **dict.fromkeys(("countdown", "defer_by", "_defer_by"), (("delay",), "")),
    **dict.fromkeys(("defer_until", "_defer_until", "run_at", "scheduled_at"), (("eta",), "")),
    **dict.fromkeys(("ttl", "_expires", "message_ttl", "max_age"), (("expires",), "")),
    **dict.fromkeys(("time_limit", "job_timeout", "task_time_limit"), (("timeout",), "")),
    **dict.fromkeys(("soft_time_limit", "task_soft_time_limit"), (("soft_timeout",), "")),
    **dict.fromkeys(("result_expires", "result_ttl", "keep_result", "failure_ttl"), _KEEP),
    "keep_result_forever": (("keep",), '{0}="never"'),
    **dict.fromkeys(("timezone", "enable_utc"), ((), '@app.cron("0 3 * * *", tz="Europe/Berlin")')),
    **dict.fromkeys(("beat_schedule", "cron_jobs"), ((), _CRON)),
    # Routing, limits and names.
    **dict.fromkeys(("rate_limit",), (("rate",), "")),
    **dict.fromkeys(("queue_name", "_queue_name", "task_default_queue"), (("queue",), "")),
    **dict.fromkeys(("routing_key", "exchange", "task_routes"), _ROUTE),
    **dict.fromkeys(("actor_name", "task_name"), (("name",), "")),
    **dict.fromkeys(
        ("job_id", "_job_id", "task_id"),
        (("key",), "{0}=...: one job at a time holds it, while its id is the log's own"),
    ),
    **dict.fromkeys(("labels", "meta", "stamped_headers"), (("headers",), "")),
    "at_front": (("priority",), "{0}=9"),
    **dict.fromkeys(
        ("bind", "context", "pass_context"),
        ((), _NOTHING + "current_job() within the task has id, attempt and headers"),
    ),
    **dict.fromkeys(("link", "on_success", "pipe_target", "depends_on"), _NEXT),
    **dict.fromkeys(
        ("link_error", "on_failure", "on_retry_exhausted"), (("on_dead",), "{0}=...")
    ),
    # Storage and delivery.
    "ignore_result": (("store_result",), "{0}=False"),
    **dict.fromkeys(
        ("store_results", "results"), (("store_result",), "{0}=False where none is wanted")
    ),
    **dict.fromkeys(("acks_late", "task_acks_late", "reject_on_worker_lost"), _ALWAYS_LATE),
    **dict.fromkeys(("acks_on_failure_or_timeout", "track_started"), _ALWAYS_LATE),
    **dict.fromkeys(("serializer", "task_serializer", "accept_content"), _JSON),
    **dict.fromkeys(("compression", "use_zlib"), (("compress",), "")),
    **dict.fromkeys(("broker", "broker_url", "backend", "result_backend"), ((), _DIRECTORY)),
    **dict.fromkeys(("redis_settings", "storage_class", "filename", "url"), ((), _DIRECTORY)),
    **dict.fromkeys(("imports", "autodiscover"), ((), _INCLUDE)),
    **dict.fromkeys(
        ("task_always_eager", "immediate"), ((), "async with Sandbox(app), of taskq.testing")
    ),
    # Options of a worker.
    **dict.fromkeys(("processes", "workers", "threads", "autoscale"), (("concurrency",), "")),
    **dict.fromkeys(
        ("pool", "worker_type"), ((), '@app.task(runs_in="process"), or "thread": of each task')
    ),
    **dict.fromkeys(
        ("prefetch", "prefetch_multiplier", "worker_prefetch_multiplier"),
        ((), _NOTHING + "a worker claims what its slots can run, others get the rest"),
    ),
    **dict.fromkeys(("max_tasks_per_child",), (("max_jobs_per_child",), "")),
    **dict.fromkeys(("max_memory_per_child",), (("max_rss_per_child",), "")),
    **dict.fromkeys(("on_startup", "on_shutdown"), ((), _LIFESPAN)),
    **dict.fromkeys(("on_job_start", "on_job_end", "middleware"), ((), _MIDDLEWARE)),
}  # fmt: skip


def same(name: str, known: Collection[str]) -> str:
    """Return the known option with the same meaning; "" without any."""
    words, _ = OPTIONS.get(name, ((), ""))
    return next((word for word in words if word in known), "")


def near_option(name: str, known: Collection[str]) -> str:
    """Return the option that was probably meant; "" if no known name is near."""
    # For a word of another library, a similar name would mislead.
    return same(name, known) if name in OPTIONS else parsing.nearest(name, known)


def option_instead(name: str, known: Iterable[str], what: str = "options") -> str:
    """Return the end of an error for a wrong option: the probable option, or all known options.

    Args:
        name: the wrong name.
        known: the known options.
        what: the word for all of them.
    """
    names = tuple(known)
    if name not in OPTIONS:
        return parsing.rather(name, names, what)
    words, remedy = OPTIONS[name]
    near = same(name, names)
    if near and not remedy:
        return f"did you mean {near!r}?"
    if near or (what == "options" and not words):
        return f"write {remedy.format(near)}"
    if what == "options":
        return f"write @app.task({(remedy or '{0}=...').format(words[0])})"
    return f"the {what} are {', '.join(names)}"


# Errors for attributes.


class _NoAttribute(errors.UsageError, AttributeError):
    """A missing attribute, with a message that names the replacement.

    Tracebacks show it as an AttributeError.
    """

    __module__ = "builtins"
    __qualname__ = "AttributeError"

    def __reduce__(self) -> tuple[type[AttributeError], tuple[object, ...]]:
        """Pickle as a plain AttributeError: the other process cannot import this class."""
        return AttributeError, self.args


_NoAttribute.__name__ = "AttributeError"


def no_app() -> errors.UsageError:
    return errors.UsageError(
        'a task needs an app: write app = TaskQ("./data"), then @app.task; '
        "or @task, from taskq import task"
    )


def no_attribute(
    thing: object, kind: str, name: str, instead: Mapping[str, str], called: str
) -> AttributeError:
    """Return the error for an attribute that does not exist.

    Args:
        thing: the object without the attribute.
        kind: a word for the object, with its article.
        name: the attribute's name.
        instead: replacements by name.
        called: the object's name in the user's code.
    """
    remedy = instead.get(name)
    if remedy is None:
        return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}")
    return _NoAttribute(f"{kind} has no {name!r}: write {remedy.format(called)}")
