"""The options of ``taskq worker``, in groups, and the command line of one of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from taskq_workers.pool import CONCURRENCY_DEFAULT, DRAIN_SECONDS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., object]")

#: Options of the guard, which its workers do not get.
_GUARDS: Final = frozenset({"processes", "reload", "leash", "place"})
#: Parameters that say how jobs run in this very process.
ONLY_HERE: Final = (
    "max_jobs",
    "thread_limit",
    "process_limit",
    "max_jobs_per_child",
    "max_rss_per_child",
)


def work_options(command: F) -> F:
    """What is claimed, and how many jobs run at a time."""
    for option in (
        click.option(
            "--process-limit",
            type=click.IntRange(min=1),
            metavar="N",
            help='Jobs of runs_in="process" that run at a time.  [default: as --concurrency]',
        ),
        click.option(
            "--max-jobs-per-child",
            type=click.IntRange(min=1),
            metavar="N",
            help="Replace a child process after so many jobs.",
        ),
        click.option(
            "--max-rss-per-child",
            metavar="SIZE",
            help="Replace a child process that takes more memory after a job, such as 500MB.",
        ),
        click.option(
            "--threads",
            "thread_limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="Sync jobs that run at a time.  [default: as --concurrency]",
        ),
        click.option(
            "-I",
            "--include",
            multiple=True,
            metavar="MODULE",
            help="Import this module, too, for the tasks in it. Repeatable.",
        ),
        click.option(
            "-Q",
            "--queues",
            multiple=True,
            metavar="NAME[=WEIGHT][,NAME...]",
            help="Read these queues only; with weights, such as mail=3,bulk=1, they share the "
            "claims in that proportion. Repeatable.  [default: all]",
        ),
        click.option(
            "-c",
            "--concurrency",
            type=click.IntRange(min=1),
            default=CONCURRENCY_DEFAULT,
            show_default=True,
            help="Jobs that run at a time.",
        ),
    ):
        command = option(command)
    return command


def life_options(command: F) -> F:
    """When it stops and starts again, and how many of it there are."""
    for option in (
        click.option("--leash", type=int, hidden=True),
        click.option("--place", type=int, default=1, hidden=True),
        click.option("--reload", is_flag=True, help="Start again when a .py file changes here."),
        click.option(
            "--processes",
            type=click.IntRange(min=1),
            metavar="N",
            help="So many worker processes; one that dies is started again. SIGHUP replaces them.",
        ),
        click.option(
            "--drain-timeout",
            type=click.FloatRange(min=0),
            default=DRAIN_SECONDS_DEFAULT,
            show_default=True,
            metavar="SECONDS",
            help="What running jobs get to finish when the worker is stopped.",
        ),
        click.option(
            "--max-jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Stop after so many jobs; with --processes, a new process takes its place.",
        ),
        click.option("--burst", is_flag=True, help="Stop once no job is ready and none runs."),
    ):
        command = option(command)
    return command


def elsewhere_options(command: F) -> F:
    """Where the jobs run, if not here."""
    for option in (
        click.option(
            "--py-files",
            "files",
            multiple=True,
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="For --executor: a .py, .zip or .egg that the executors need. Repeatable.",
        ),
        click.option(
            "--master",
            default="",
            metavar="URL",
            help="For --executor: where the executors are, local[2] or spark://host:7077.",
        ),
        click.option(
            "--executor",
            metavar="NAME",
            help="Run the jobs elsewhere: spark, on the executors of --master. At least once.",
        ),
    ):
        command = option(command)
    return command


def arguments_of(command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """The words that give these parameters again, but for the guard's own.

    Args:
        command: whose parameters.
        given: values by parameter name.
    """
    words: list[str] = []
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif parameter.name not in _GUARDS:
            words += _words(parameter, value)
    return words


def _words(option: click.Parameter, value: Any) -> list[str]:
    name = option.opts[-1]
    if value is None or value is False or value == "":
        return []
    if value is True:
        return [name]
    values = value if isinstance(value, tuple) else (value,)
    return [word for one in values for word in (name, str(one))]
