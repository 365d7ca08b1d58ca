"""``taskq pipeline``: a group whose commands are imported only when one of them runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from taskq.cli import Failure, LazyGroup
from taskq.extras import import_arrow, install_line
from taskq_plugins.spark.errors import missing_package

#: What Arrow looks at when it is loaded.
_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
#: name -> (module, one line of help)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("taskq_plugins.spark.run.command", "Bring a lake's tables up to date, then exit."),
    "status": ("taskq_plugins.spark.lake.command", "Tell what a lake holds, and of which logs."),
    "erase": ("taskq_plugins.spark.lake.erase", "Erase what jobs brought along, for good."),
    "triage": ("taskq_plugins.spark.triage", "Rank what fails, and what to do about it."),
    "replay": ("taskq_plugins.spark.bulk.replay", "Enqueue past jobs again, chosen by SQL."),
    "enqueue": ("taskq_plugins.spark.bulk.enqueue", "Enqueue one job for each row of a file."),
    "doctor": ("taskq_plugins.spark.java", "Check Java and packages, and say what to do."),
}


class LakePlace(click.ParamType["Path | str"]):
    """Where a lake is: a directory, or an address in object storage."""

    name = "path"

    def convert(
        self, value: Path | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        del param, ctx
        return value if "://" in str(value) else Path(value)


class PipelineCommands(LazyGroup):
    """The commands of the pipeline; one whose packages are missing says how to install them."""

    table = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None for completion if it does not load.

        Raises:
            Failure: something is wrong with its module.
        """
        try:
            if cmd_name == "run":
                _load_arrow()
            return super().get_command(ctx, cmd_name)
        except (ImportError, AttributeError) as error:
            if ctx.resilient_parsing:
                return None
            if isinstance(error, ImportError) and missing_package(error, ""):
                raise  # which ``invoke`` tells
            detail = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise Failure(
                f"the command {cmd_name!r} does not load ({detail}). Install taskq again: "
                f"{install_line('spark')}"
            ) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            missing = missing_package(error, "this command")
            if missing is None:
                raise
            raise Failure(str(missing)) from error


def _load_arrow() -> None:
    """Have Arrow take memory from the C library, which a run gives back; its own pool grows.

    Whoever chose a pool decided for himself. Processes that are started are not told.
    """
    is_ours = _POOL not in os.environ
    os.environ.setdefault(_POOL, "system")
    try:
        import_arrow().default_memory_pool()
    finally:
        if is_ours:
            del os.environ[_POOL]


@click.group(cls=PipelineCommands, name="pipeline")
def pipeline() -> None:
    """Tables, replay and bulk enqueue over the logs of one machine or a fleet, on Spark."""
