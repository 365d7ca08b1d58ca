"""``taskq pipeline``: a group of commands, each imported only when it runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import taskq.views as documents
from taskq.cli import Failure, LazyGroup, json_option, render
from taskq.extras import import_arrow
from taskq_plugins.spark.errors import missing_package

if TYPE_CHECKING:
    from taskq_plugins.spark.lake.store import Lake

#: Arrow reads this variable at import.
_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
#: name -> (module, one line of help)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("taskq_plugins.spark.run.command", "Bring a lake's tables up to date, then exit."),
    "status": ("taskq_plugins.spark.cli", "Show the contents of a lake, and its logs."),
    "erase": ("taskq_plugins.spark.lake.erase", "Erase what jobs brought along, for good."),
    "replay": ("taskq_plugins.spark.bulk_command", "Enqueue past jobs again, chosen by SQL."),
    "enqueue": ("taskq_plugins.spark.bulk_command", "Enqueue one job for each row of a file."),
}


def lake_place(value: str) -> Path | str:
    """Return a lake's directory, or its address in object storage."""
    return value if "://" in value else Path(value)


class PipelineCommands(LazyGroup):
    """The commands of the pipeline. A command with missing packages prints how to install them."""

    table = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            if cmd_name == "run":
                _load_arrow()
            return super().get_command(ctx, cmd_name)
        except ImportError:
            if ctx.resilient_parsing:
                return None
            raise  # reported by ``invoke``

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            missing = missing_package(error, "this command")
            if missing is None:
                raise
            raise Failure(missing) from error


def _load_arrow() -> None:
    """Make Arrow use the C library's allocator, which returns memory; Arrow's own pool grows.

    A pool chosen by the user stays. Child processes do not inherit the choice.
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


#: Rows of the table for people, largest backlog first.
_LOGS_SHOWN: Final = 60


def lake_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--lake",
        "lake_path",
        envvar="TASKQ_LAKE",
        show_envvar=True,
        required=True,
        type=lake_place,
        metavar="PATH",
        help="The directory of the tables, or their address: s3://bucket/lake.",
    )(command)


@click.command()
@lake_option
@click.option(
    "--journals",
    type=click.Path(path_type=Path),
    help="The logs' directory: shows how much is left to read.",
)
@json_option
def status(lake_path: Path | str, journals: Path | None, as_json: bool) -> None:
    """Print the tables, the positions in each log, and the unread rest."""
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - needs pyarrow

    newest = Lake.open(lake_path)
    newest.check()
    lake = newest.pinned()
    logs = _progress(lake, journals)
    batch = lake.batch()
    if as_json:
        render.print_json(
            {
                "lake": lake.path,
                "committed_at": documents.moment(lake.committed_at()),
                "batch": None if batch < 0 else batch,
                "tables": [holding._asdict() for holding in lake.holdings()],
                "logs": [
                    {name: value for name, value in log.items() if name != "read_ns"}
                    | {"read_until": documents.moment(log["read_ns"])}
                    for log in logs
                ],
            }
        )
        return
    now_ns = time.time_ns()
    left = sum(log["left_bytes"] or 0 for log in logs)
    facts = [
        ("lake", lake.path),
        ("batch", "" if batch < 0 else str(batch)),
        ("committed", render.when(lake.committed_at(), now_ns) or "never"),
        ("left", render.size(left) if journals is not None else ""),
    ]
    render.print_facts(facts)
    render.echo()
    rows = [
        (holding.table, f"{holding.rows:,}", str(holding.files), render.size(holding.size_bytes))
        for holding in lake.holdings()
    ]
    render.print_table(("table", ">rows", ">files", ">size"), rows)
    render.echo()
    shown = sorted(logs, key=lambda log: -(log["left_bytes"] or 0))[:_LOGS_SHOWN]
    cells = [
        (
            log["device"],
            log["log_id"],
            "" if log["lsn"] is None else str(log["lsn"]),
            "never" if log["lsn"] is None else render.when(log["read_ns"], now_ns),
            "" if log["left_bytes"] is None else render.size(log["left_bytes"]),
        )
        for log in shown
    ]
    render.print_table(("device~", "log", ">read to lsn", ">of", ">left"), cells)
    if len(logs) > len(shown):
        render.echo(f"… and {len(logs) - len(shown)} more logs; --json lists all")


def _progress(lake: Lake, journals: Path | None) -> list[dict[str, Any]]:
    """Return the progress in each log.

    ``lsn`` and ``read_ns`` belong to the last record in the tables. ``end_lsn`` is None if the log
    is missing.
    """
    from taskq_plugins.spark.lake.store import last_records, positions_of  # noqa: PLC0415 - pyarrow
    from taskq_plugins.spark.source.logs import FleetSnapshot, look  # noqa: PLC0415
    from taskq_plugins.spark.source.plan import left_of  # noqa: PLC0415
    from taskq_plugins.spark.source.positions import positions_from_json  # noqa: PLC0415

    logs = {
        row["log_id"]: {
            "device": row["device"],
            "log_id": row["log_id"],
            "lsn": row["lsn"],
            "read_ns": row["ts_ns"],
            **dict.fromkeys(("end_lsn", "left_bytes", "problem")),
        }
        for row in last_records(lake).to_pylist()
    }
    rows = positions_of(lake).to_pylist()
    at = positions_from_json({row["log_id"]: json.loads(row["position"]) for row in rows})
    sight = FleetSnapshot({}, [], 0) if journals is None else look(journals)
    for log_id, log in sight.logs.items():
        device = log.log.device
        known = logs.get(log_id) or {"log_id": log_id, "lsn": None, "read_ns": 0}
        logs[log_id] = known | {
            "device": device,
            "end_lsn": log.end.lsn,
            "left_bytes": left_of(log, at.get(log_id, log.earliest)).size_bytes,
            "problem": sight.problem_of(device, log_id) or None,
        }
    return sorted(logs.values(), key=lambda log: (log["device"], log["log_id"]))
