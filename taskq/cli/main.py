"""The ``taskq`` command: a group whose commands are imported only when one of them runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli.errors import Failure, WrongUsage, readable_errors, whole_streams

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: From the package itself, since a frozen program may have no metadata.
_VERSION: Final[str] = importlib.import_module("taskq").__version__


class LazyGroup(click.Group):
    """Commands by a table: name -> (module, one line of help).

    A command is the attribute of its module that has its name. The table holds the line, so that
    help needs no import.
    """

    table: Mapping[str, tuple[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if the name is unknown."""
        del ctx
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(self.table[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with the nearest name as a hint for a mistyped one."""
        name = args[0]
        # The table comes first: finding the commands of other packages takes 20 ms.
        if name in self.table or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        known = self.list_commands(ctx)
        if name not in known:
            import difflib  # noqa: PLC0415 - for the mistaken alone

            from taskq.cli.habits import COMMANDS  # noqa: PLC0415 - as above

            if ctx.parent is None and name in COMMANDS:
                raise WrongUsage(f"there is no command {name!r}: {COMMANDS[name]}")
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see {ctx.command_path} --help"
            raise WrongUsage(f"there is no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, section by section, without importing them."""
        sections = self.sections(ctx)
        width = max(len(name) for names in sections.values() for name in names)
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", self.line(name)) for name in names])

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the groups of commands in help: title -> names."""
        return {"Commands": self.list_commands(ctx)}

    def line(self, name: str) -> str:
        """Return a command's line of help."""
        return self.table[name][1]


#: Prefix of modules of commands; a module with a dot in its name belongs to another package.
_COMMANDS: Final = "taskq.cli.commands."

#: Groups of commands in help: title -> name -> (module, one line of help). Commands of other
#: packages follow. The line is in this table so that help needs no import.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Run": {
        "demo": ("demo", "Sync a real directory through crashes, and check every byte."),
        "check": ("upkeep", "Check a setup before its start."),
        "worker": ("taskq_workers.command", "Run the jobs of an app: taskq worker module:app"),
    },
    "Look": {
        "ls": ("jobs", "List the newest jobs."),
        "show": ("jobs", "Show everything about one job."),
        "why": ("jobs", "Explain why a job is not running."),
        "timeline": ("jobs", "Show everything that happened to one job, in order."),
        "peek": ("jobs", "Show the jobs that are claimed next."),
        "stats": ("jobs", "Count the jobs of each queue by state."),
        "workers": ("jobs", "List the processes that have the task log open."),
        "health": ("upkeep", "Exit with 0 if jobs are worked on."),
        "alerts": ("taskq_plugins.alerts", "Watch an app's alerts, and send messages."),
        "top": ("taskq_plugins.top.command", "Show what goes on, live on a terminal."),
        "metrics": (
            "taskq_plugins.prometheus.command",
            "Print metrics for Prometheus, or serve them.",
        ),
        "web": ("taskq_plugins.web.command", "Show the log in a browser, and to programs as JSON."),
        "schedules": ("queues", "List what ticks by the clock; add, remove or pause it."),
        "sources": ("queues", "List the sources that jobs were ingested from, forget one."),
        "tail": ("stream", "Show the log's latest records, and follow new ones."),
        "sql": ("taskq_plugins.spark.sql", "Answer a question in SQL over the log's tables."),
    },
    "Act": {
        "put": ("put", "Enqueue bytes, or a call of a task by its name."),
        "edit": ("queues", "Let jobs that wait be due at another time, or wait elsewhere."),
        "cancel": ("queues", "Cancel jobs: by id, also running ones, or many."),
        "signal": ("queues", "Send a job a signal that it waits for."),
        "dead": ("dead", "Look at dead letters, requeue or purge them."),
        "pause": ("queues", "Let no worker claim from a queue or of a task."),
        "resume": ("queues", "Let workers claim from a queue or of a task again."),
        "limit": ("queues", "Change a task's concurrency or rate while it runs."),
        "slots": ("queues", "Change how many jobs workers run at a time."),
        "replay": ("stream", "Enqueue past jobs once more."),
        "reader": ("stream", "Look at named readers, move or forget them."),
    },
    "Files": {
        "export": ("export", "Write jobs or records as JSON lines or Parquet."),
        "verify": ("jobs", "Read the whole log and report damage."),
        "repair": ("upkeep", "Copy what reads of a damaged log into a new one."),
        "compact": ("upkeep", "Remove what need not be kept from the log's oldest end."),
        "backup": ("upkeep", "Copy a log as it stands, beside live workers."),
        "restore": ("upkeep", "Make a log of a backup."),
        "report": ("upkeep", "Write a case file, for others to look into."),
    },
    "Pipeline": {
        "pipeline": (
            "taskq_plugins.spark.cli",
            "Tables, replay and bulk enqueue over many logs, on Spark.",
        ),
    },
    "Hub": {
        "hub": ("taskq_plugins.hub.commands", "Keep the logs of many machines in one place."),
        "sync": ("taskq_plugins.hub.sync_command", "Send a hub what it lacks of the log."),
    },
}
#: name -> (module, one line of help).
BUILT_IN: Final[dict[str, tuple[str, str]]] = {
    name: (module if "." in module else _COMMANDS + module, line)
    for commands in SECTIONS.values()
    for name, (module, line) in commands.items()
}

#: Commands of these modules, and their subcommands, accept ``-d`` before their name.
_LOOKS_ABOVE: Final = "taskq.cli."

#: Ends of the names of folders with a package's metadata.
_METADATA: Final = (".dist-info", ".egg-info", "EGG-INFO")


class Commands(LazyGroup):
    """taskq's own commands, then the entry-point group ``taskq.commands`` of other packages."""

    table: Mapping[str, tuple[str, str]] = BUILT_IN

    @cached_property
    def brought_in(self) -> Mapping[str, EntryPoint]:
        """Entry points by command name; reading them imports none of the packages."""
        if not any(map(_may_bring_commands, sys.path)):
            return {}
        from importlib.metadata import entry_points  # noqa: PLC0415 - it takes longer than help

        return {point.name: point for point in reversed(list(entry_points(group="taskq.commands")))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*BUILT_IN, *sorted(set(self.brought_in) - set(BUILT_IN))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; the error of a broken command names its package."""
        command = super().get_command(ctx, cmd_name) or self._brought(ctx, cmd_name)
        if command is not None and ctx.resilient_parsing:
            from taskq.cli.completion import teach  # noqa: PLC0415 - a shell asks

            teach(command)
        if command is None or self.table.get(cmd_name, ("",))[0].startswith(_LOOKS_ABOVE):
            return command
        takes = any(parameter.name == "data_dir" for parameter in command.params)
        if ctx.params.get("data_dir") is not None and not takes:
            raise WrongUsage(f"{cmd_name} takes no -d before it: see taskq {cmd_name} --help")
        return command

    def _brought(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = self.brought_in.get(cmd_name)
        if point is None:
            return None
        try:
            return _load(point)
        except Failure:
            if ctx.resilient_parsing:  # completion skips a broken command
                return None
            raise

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        known = self.list_commands(ctx)
        here = {
            title: [name for name in names if name in known] for title, names in SECTIONS.items()
        }
        shown = {name for names in here.values() for name in names}
        here["More"] = [name for name in known if name not in shown]
        return {title: names for title, names in here.items() if names}

    def line(self, name: str) -> str:
        if name in BUILT_IN:
            return super().line(name)
        return f"(from {_package(self.brought_in[name])})"

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with whole_streams():
            return super().main(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of ``taskq`` itself."""
        with readable_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn its errors into messages and exit codes."""
        with readable_errors():
            return super().invoke(ctx)


def _may_bring_commands(path: str) -> bool:
    """Return whether a package in this folder may bring commands: true of any archive."""
    try:
        packages = [entry for entry in os.scandir(path or ".") if entry.name.endswith(_METADATA)]
    except OSError:
        return os.access(path, os.R_OK)
    for package in packages:
        points = f"{package.path}/entry_points.txt"
        # Help needs no pathlib otherwise.
        with contextlib.suppress(OSError), open(points, "rb") as file:  # noqa: PTH123
            if b"taskq.commands" in file.read():
                return True
    return False


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise Failure(
            f"the command {point.name!r} of {_package(point)} does not load ({detail}). "
            f"Reinstall or upgrade that package"
        ) from error
    if not isinstance(command, click.Command):
        raise Failure(
            f"the command {point.name!r} of {_package(point)} is no click command "
            f"({point.value}). Report it to that package"
        )
    return command


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


@click.command(
    cls=Commands,
    name="taskq",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(_VERSION, prog_name="taskq", message="%(prog)s %(version)s")
@click.option(
    "-d",
    "--data-dir",
    type=click.Path(),
    help="The task log's directory, as after any command.",
)
@click.pass_context
def main(context: click.Context, data_dir: str | None) -> None:
    """Background jobs on a local log: no broker, no server, the queue is a directory."""
    del data_dir  # each command's -d reads it from here
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
