"""Options and commands of other tools, with taskq's replacements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_APP: Final = "name the app itself, as in shop.jobs:app"
_SCHEDULES: Final = "every worker ticks its app's schedules"
_RUNS_IN: Final = 'each task names it itself, @app.task(runs_in="process") or "thread"'
_WORKER: Final = "it is worker, see taskq worker --help"

#: Options by the last words of the command; "" for any.
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "worker": {
        **dict.fromkeys(("-A", "--app"), _APP),
        **dict.fromkeys(("-l", "--loglevel"), "write --log-level info"),
        **dict.fromkeys(("-P", "--pool", "-k", "--worker-type"), _RUNS_IN),
        **dict.fromkeys(("-B", "--beat", "-s", "--schedule"), _SCHEDULES),
        **dict.fromkeys(("--queue", "--queue-name"), "write -Q mail,default"),
        **dict.fromkeys(("-w", "--workers", "--threads", "-t"), "write -c 8, or --processes 4"),
        **dict.fromkeys(("-p", "--max-processes"), "write --processes 4"),
        "--autoscale": "write -c 8 for at most eight",
        "--max-tasks-per-child": "write --max-jobs-per-child 100",
        "--max-memory-per-child": "write --max-rss-per-child 500MB",
        "--prefetch-multiplier": "leave it out, a worker claims what its slots can run",
        **dict.fromkeys(("-n", "--hostname", "-E", "--events"), "leave it out"),
        **dict.fromkeys(("--watch", "--reload-dir", "--autoreload"), "write --reload"),
    },
    "": {
        **dict.fromkeys(("-A", "--app"), "commands take the directory, -d DIR, and no app"),
        **dict.fromkeys(("-b", "--broker", "--url"), "there is no broker: write -d DIR"),
        **dict.fromkeys(("--dir", "--directory", "--path", "--db"), "write -d DIR"),
    },
}

#: Commands.
COMMANDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("beat", "scheduler", "cron"), f"{_SCHEDULES}; schedules lists them"),
    **dict.fromkeys(("flower", "dashboard", "ui", "monitor"), "they are web and top"),
    **dict.fromkeys(("inspect", "status", "ps", "info"), "they are workers, stats and health"),
    **dict.fromkeys(("run", "start", "work", "consumer", "serve", "listen"), _WORKER),
    **dict.fromkeys(("retry", "requeue"), "it is dead requeue, see taskq dead requeue --help"),
    **dict.fromkeys(("purge", "flush", "clear"), "they are cancel and dead purge"),
    **dict.fromkeys(("revoke", "kill", "abort", "control"), "they are cancel, pause and resume"),
    **dict.fromkeys(("call", "enqueue", "send", "add", "push"), "it is put"),
    **dict.fromkeys(("events", "log", "logs", "follow"), "they are tail and timeline"),
    **dict.fromkeys(("result", "get", "inspect-job"), "it is show"),
    **dict.fromkeys(("failed", "failures"), "it is dead ls"),
    **dict.fromkeys(("list", "jobs", "queue", "queues"), "they are ls and stats"),
    **dict.fromkeys(("init", "migrate", "upgrade"), "leave it out: the first enqueue makes a log"),
    **dict.fromkeys(("multi", "supervise"), "it is worker --processes 4"),
}
_NO_COMMAND: Final = re.compile(r"No such command '(.*)'\.?(?: .*)?")


def option_instead(path: str, option: str) -> str:
    """Return the replacement of an option; "" if no other tool has such an option.

    Args:
        path: the whole command with the option, such as "taskq worker".
        option: the option, with its dashes.
    """
    for words, table in OPTIONS.items():
        if path.endswith(words) and option in table:
            return table[option]
    return ""


def subcommand_instead(path: str, message: str) -> str:
    """Return click's message for an unknown command; a log's path is recognised as one.

    Args:
        path: the group, such as "taskq dead".
        message: click's message.
    """
    match = _NO_COMMAND.fullmatch(message)
    if match is None or not Path(match[1]).is_dir():
        return message
    return f"{match[1]!r} is a directory, not a command of {path}: name it with -d {match[1]}"
