"""``taskq worker module:app``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from taskq_workers import events, pool
from taskq_workers.process import running
from taskq_workers.runs import executors, joblogs
from taskq_workers.runs.loader import find_plugin

F = TypeVar("F", bound="Callable[..., object]")

#: Options of the guard that its workers do not get.
_GUARDS: Final = frozenset({"processes", "reload", "leash", "place"})
#: Time for running jobs to finish after a code change.
RELOAD_DRAIN_SECONDS: Final = 2.0
_SEVERAL: Final = 2
_AS_MANY: Final = "[default: as --concurrency]"
_SLOTS_MAX: Final = 1_000_000
_PROCESSES_MAX: Final = 10_000
_DIGITS_MAX: Final = 9
#: Parameters that only apply to jobs in this process.
ONLY_HERE: Final = (
    "max_jobs",
    "thread_limit",
    "process_limit",
    "max_jobs_per_child",
    "max_rss_per_child",
)


def _given(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    if len(value) > 1:
        return value
    path: str | Path | None = value[0] if value else os.environ.get("TASKQ_DATA_DIR")
    if context.find_root().params.get("data_dir") is not None:
        from taskq.cli import of_group  # noqa: PLC0415 - a start waits 2 ms for what it brings

        path = of_group(context, parameter, Path(path) if path else None)
    return (str(path),) if path else ()


def _one_given(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Path | None:
    given = _given(context, parameter, () if value is None else (str(value),))
    return Path(given[0]) if given else None


def _logs(given: tuple[str, ...]) -> dict[str, int] | None:
    if len(given) < _SEVERAL:
        return None
    logs: dict[str, int] = {}
    for text in given:
        path, _, weight = text.rpartition("=")
        is_weighed = bool(path) and _is_weight(weight)
        logs[path if is_weighed else text] = int(weight) if is_weighed else 1
    return logs


def _is_weight(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def _number(name: str, text: str, most: int = 10**_DIGITS_MAX) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(1, most), metavar="N", help=text)


@click.command()
@click.argument("which", metavar="[WORKER]", required=False)
@click.option(
    "-d",
    "--data-dir",
    type=click.Path(path_type=Path),
    callback=_one_given,
    help="The task log's directory.  [env var: TASKQ_DATA_DIR]",
)
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Return once they have ended; exit code 1 if one has not by then.",
)
@click.pass_context
def stop(
    context: click.Context, /, which: str | None, data_dir: Path | None, seconds: float
) -> None:
    """Ask the workers of a log to end after their jobs.

    WORKER is one of them, by the OWNER or the PID that "taskq workers" lists. With --processes the
    guard ends with all of its workers. A program that runs a worker within it is left alone.
    """
    from taskq.cli import open_reader  # noqa: PLC0415 - a worker's start waits 2 ms for it

    with open_reader(data_dir) as reader:
        context.exit(running.stop(reader, which, seconds))


class _Command(click.Command):
    """Starts a worker; a name from ``commands`` in place of the app runs that command."""

    commands: Final[Mapping[str, click.Command]] = {"stop": stop}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        inner = self.commands.get(args[0]) if args else None
        if inner is not None:
            return inner.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_Command)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, _SLOTS_MAX),
    default=pool.CONCURRENCY_DEFAULT,
    show_default=True,
    help="Jobs that run at a time.",
)
@click.option(
    "-Q",
    "--queues",
    multiple=True,
    metavar="NAME[=WEIGHT][,NAME...]",
    help="Read these queues only; with weights, such as mail=3,bulk=1, they share the "
    "claims in that proportion. Repeatable.  [default: all]",
)
@click.option(
    "-I",
    "--include",
    multiple=True,
    metavar="MODULE",
    help="Import this module, too, for the tasks in it. Repeatable.",
)
@_number("--thread-limit", f"Sync jobs that run at a time.  {_AS_MANY}")
@_number("--process-limit", f'Jobs of runs_in="process" that run at a time.  {_AS_MANY}')
@_number("--max-jobs-per-child", "Replace a child process after this number of jobs.")
@click.option(
    "--max-rss-per-child",
    metavar="SIZE",
    help="Replace a child process that takes more memory after a job, such as 500MB.",
)
@click.option(
    "-d",
    "--data-dir",
    multiple=True,
    metavar="DIR[=WEIGHT]",
    callback=_given,
    help="The task log's directory. Repeatable.  [env var: TASKQ_DATA_DIR]",
)
@click.option("--burst", is_flag=True, help="Stop once no job is ready and none runs.")
@_number("--max-jobs", "Stop after this number of jobs; with --processes, a new process follows.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=pool.DRAIN_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="Time for running jobs to finish when the worker is stopped.",
)
@_number(
    "--processes",
    "Number of worker processes; a dead one is restarted. SIGHUP replaces them.",
    _PROCESSES_MAX,
)
@click.option("--reload", is_flag=True, help="Start again when a .py file changes here.")
@click.option(
    "--metrics-port",
    type=click.IntRange(min=0, max=65_535),
    metavar="N",
    help="Answer Prometheus at 127.0.0.1:N; with --processes each at the next port.",
)
@click.option("--sync", is_flag=True, help="Send the log to the hub of the settings.")
@click.option("--web", is_flag=True, help="Show the app's page here, with buttons and forms.")
@click.option("--below", "is_below", is_flag=True, hidden=True)
@click.option("--place", type=int, default=1, hidden=True)
@click.option("--leash", type=int, hidden=True)
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each job.")
@click.option(
    "--log-level",
    type=click.Choice(joblogs.LEVELS, case_sensitive=False),
    help="Lowest level on stderr, each line with its job.  [default: the setting, warning]",
)
@click.option(
    "--log-format",
    type=click.Choice(joblogs.FORMATS),
    help="How: lines for people, or a JSON document each.  [default: the setting, text]",
)
@click.option(
    "--log-prints",
    is_flag=True,
    help="Log what tasks print, as info; without --log-level that is the level.",
)
@click.option(
    "--executor",
    metavar="NAME",
    help="Run the jobs elsewhere: spark, on the executors of --master. At least once.",
)
@click.option(
    "--master",
    default="",
    metavar="URL",
    help="For --executor: where the executors are, local[2] or spark://host:7077.",
)
@click.option(
    "--py-files",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="For --executor: a .py, .zip or .egg that the executors need. Repeatable.",
)
@click.pass_context
def worker(
    context: click.Context,
    /,
    *,
    app: str,
    queues: tuple[str, ...],
    data_dir: tuple[str, ...],
    processes: int | None,
    reload: bool,
    leash: int | None,
    place: int,
    quiet: bool,
    log_level: str | None,
    log_format: str | None,
    log_prints: bool,
    executor: str | None,
    **chosen: Any,
) -> None:
    """Run the jobs of an app until stopped.

    MODULE:APP is imported from the working directory, such as shop.jobs:app; MODULE alone will do
    where there is one app in it. Ctrl-C or SIGTERM lets running jobs finish; a second one cancels
    and gives them back; a third exits at once. "taskq worker stop -d DIR" lets the workers of a log
    finish and end, also where there are no such signals.

    With --processes the workers are processes of their own, and this one keeps them running: it
    restarts a dead one, and SIGHUP replaces them one by one. With --reload running jobs get at
    most 2 s to finish when a .py file changes.

    With several -d all share its slots, by weight with -d eu=3 -d us; a failed log is left out.

    With --executor this process claims and settles jobs, and others run them, -c async ones at a
    time in each place. Jobs run at least once: when this process dies, its jobs are claimed again
    at once by anyone, while an executor may still be busy with them.
    """
    _check(executor, chosen)
    names, logs = _names(queues), _logs(data_dir)
    if logs is not None and executor is not None:
        raise click.UsageError("--executor takes one directory: leave the other -d out")
    if reload or (leash is None and processes is not None):
        context.exit(_guard(context, None if reload else processes))
    chosen["sync"] = chosen["sync"] and place == 1
    if chosen["metrics_port"]:
        chosen["metrics_port"] += place - 1

    def order_for(reporter: events.Hook) -> running.WorkerOrder:
        on_event = None if quiet else reporter
        here: dict[str, Any] = {"target": app, "queues": names, "logs": logs}
        return running.WorkerOrder(**here, warns=place == 1, on_event=on_event, **chosen)

    log = _logging(log_level, log_format, prints=log_prints)
    first = next(iter(logs or data_dir), None)
    end = -1 if leash is None else leash
    running.run_one(order_for, Path(first) if first else None, executor, end, log)


def _guard(context: click.Context, processes: int | None) -> int:
    """Run workers as separate processes; without a number, one worker that reloads."""
    command, given = context.command, context.params
    # Checked once here: every process would fail in the same way and be restarted.
    if given["metrics_port"] is not None:
        find_plugin("taskq.services", "prometheus", "metrics")
    if given["web"]:
        find_plugin("taskq.services", "web", "web")
    if given["executor"] is not None:
        running.find_executor(given["executor"])
    if processes is None:
        seconds = min(given["drain_timeout"], RELOAD_DRAIN_SECONDS)
        running.run_reloading(
            arguments_of(command, {**given, "drain_timeout": seconds}, _GUARDS - {"processes"})
        )
        return 0
    return running.run_guarded(
        arguments_of(command, given, _GUARDS),
        processes,
        concurrency=given["concurrency"],
        burst=given["burst"],
        drain_seconds=given["drain_timeout"],
    )


def _logging(
    level: str | None, form: str | None, *, prints: bool
) -> Callable[[str, str], joblogs.Logging]:
    chosen = level or ("info" if prints else None)
    return lambda other, form_else: joblogs.Logging(chosen or other, form or form_else, prints)


def _check(executor: str | None, chosen: Mapping[str, Any]) -> None:
    """Refuse options without effect, before several processes start."""
    executors.rss_bytes(chosen["max_rss_per_child"], "--max-rss-per-child")
    if executor is None and (chosen["master"] or chosen["files"]):
        raise click.UsageError("--master and --py-files are for --executor: add --executor spark")
    if executor is not None and any(chosen[name] is not None for name in ONLY_HERE):
        raise click.UsageError(
            "--max-jobs, --thread-limit and options of child processes are for jobs that run here: "
            "leave --executor out"
        )


def _names(queues: tuple[str, ...]) -> list[str] | dict[str, int] | None:
    names = [name.strip() for text in queues for name in text.split(",")]
    if not all(names):
        raise click.UsageError("-Q names an empty queue: write -Q mail,default")
    if not any("=" in name for name in names):
        return names or None
    weights: dict[str, int] = {}
    for text in names:
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        if name in weights:
            raise click.UsageError(f"-Q names the queue {name!r} twice: give it one weight")
        if not name or not _is_weight(weight):
            raise click.UsageError(
                f"-Q {text!r} is no queue and its weight: write -Q mail=3,bulk=1"
            )
        weights[name] = int(weight)
    return weights


def arguments_of(
    command: click.Command, given: Mapping[str, Any], without: Collection[str]
) -> list[str]:
    words: list[str] = []
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif parameter.name not in without:
            words += _words(parameter, value)
    return words


def _words(option: click.Parameter, value: Any) -> list[str]:
    name = option.opts[-1]
    if value is None or value is False or value == "":
        return []
    if value is True:
        return [name]
    values = value if isinstance(value, tuple) else (value,)
    return [word for part in values for word in (name, str(part))]
