"""The public interface of the command line, for commands of workers and plugins.

- errors of a command: ``Failure``, ``WrongUsage``
- ``whole_streams`` for a program that prints; ``silence`` for a stream without a reader
- options: ``data_dir_option``, ``log_argument``, ``json_option``, ``dry_run_option``,
  ``utc_option``, ``yes_option``; their values: ``resolve``, ``logs_below``, ``of_group``,
  ``moment_of``, ``span``
- ``open_reader`` for the given log; ``render``, ``show_job`` and ``count_of`` to print
- ``LazyGroup``: commands in a group that are imported when one of them runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.cli import render
    from taskq.cli.commands.jobs import show_job
    from taskq.cli.errors import Failure, WrongUsage, silence, whole_streams
    from taskq.cli.main import LazyGroup
    from taskq.cli.options import (
        data_dir_option,
        dry_run_option,
        json_option,
        log_argument,
        logs_below,
        moment_of,
        of_group,
        open_reader,
        over_shards,
        resolve,
        span,
        utc_option,
        yes_option,
    )
    from taskq.cli.render import count_of

__all__ = [
    "Failure",
    "LazyGroup",
    "WrongUsage",
    "count_of",
    "data_dir_option",
    "dry_run_option",
    "json_option",
    "log_argument",
    "logs_below",
    "moment_of",
    "of_group",
    "open_reader",
    "over_shards",
    "render",
    "resolve",
    "show_job",
    "silence",
    "span",
    "utc_option",
    "whole_streams",
    "yes_option",
]

_HOMES: Final = {
    "taskq.cli": "render",
    "taskq.cli.commands.jobs": "show_job",
    "taskq.cli.errors": "Failure WrongUsage silence whole_streams",
    "taskq.cli.main": "LazyGroup",
    "taskq.cli.options": (
        "data_dir_option dry_run_option json_option log_argument logs_below moment_of of_group "
        "open_reader over_shards resolve span utc_option yes_option"
    ),
    "taskq.cli.render": "count_of",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
