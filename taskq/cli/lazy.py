"""A group of commands that are imported only when one of them runs."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

import click

from taskq.cli.errors import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LazyGroup(click.Group):
    """Commands by a table: name -> (module, one line of help).

    A command is the attribute of its module that has its name. The line stands in the table, so
    that help needs no import.
    """

    table: Mapping[str, tuple[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is none of that name."""
        del ctx
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(self.table[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a hint at the nearest name for a mistyped one."""
        known = self.list_commands(ctx)
        name = args[0]
        if not name.startswith("-") and name not in known and not ctx.resilient_parsing:
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
        """The commands as help groups them: title -> names."""
        return {"Commands": self.list_commands(ctx)}

    def line(self, name: str) -> str:
        """What help says of a command."""
        return self.table[name][1]
