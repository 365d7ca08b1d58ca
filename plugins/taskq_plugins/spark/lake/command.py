"""``taskq pipeline status``: what a lake holds, without Java."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq import views as documents
from taskq.cli import json_option, render
from taskq_plugins.spark.cli import LakePlace

if TYPE_CHECKING:
    from taskq_plugins.spark.lake.progress import LogProgress
    from taskq_plugins.spark.lake.store import Batch, Lake

#: Logs that are listed for people, those with most to read first.
_LOGS_SHOWN: Final = 60


def lake_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--lake",
        "lake_path",
        envvar="TASKQ_LAKE",
        show_envvar=True,
        required=True,
        type=LakePlace(),
        help="The directory of the tables, or their address: s3://bucket/lake.",
    )(command)


@click.command()
@lake_option
@click.option(
    "--journals",
    type=click.Path(path_type=Path),
    help="The logs' directory: tells what is left to read.",
)
@json_option
def status(lake_path: Path | str, journals: Path | None, as_json: bool) -> None:
    """Tell what the tables hold, how far each log was read, and what is left."""
    from taskq_plugins.spark.lake.progress import log_progress  # noqa: PLC0415 - needs pyarrow
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415

    newest = Lake.open(lake_path)
    newest.check()
    batch, lake = newest.batch(), newest.pinned()
    logs = log_progress(lake, journals)
    if as_json:
        render.print_json(_document(lake, batch, logs))
        return
    now_ns = time.time_ns()
    left = sum(log.left_bytes for log in logs)
    facts = [
        ("lake", str(lake.path)),
        ("batch", "" if batch is None else str(batch.number)),
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
    _print_logs(logs, now_ns)


def _print_logs(logs: list[LogProgress], now_ns: int) -> None:
    shown = sorted(logs, key=lambda log: -log.left_bytes)[:_LOGS_SHOWN]
    rows = [
        (
            log.device,
            log.log_id,
            str(log.position.lsn) if log.position is not None else "",
            render.when(log.position.ts_ns, now_ns) if log.position is not None else "never",
            render.size(log.left_bytes) if log.end_lsn is not None else "",
        )
        for log in shown
    ]
    render.print_table(("device~", "log", ">read to lsn", ">of", ">left"), rows)
    if len(logs) > len(shown):
        render.echo(f"… and {len(logs) - len(shown)} more logs; --json lists all")


def _document(lake: Lake, batch: Batch | None, logs: list[LogProgress]) -> dict[str, Any]:
    return {
        "lake": str(lake.path),
        "committed_at": documents.moment(lake.committed_at()),
        "batch": None if batch is None else batch.number,
        "tables": [holding._asdict() for holding in lake.holdings()],
        "logs": [
            {
                "device": log.device,
                "log_id": log.log_id,
                "lsn": log.position.lsn if log.position is not None else None,
                "read_until": documents.moment(log.position.ts_ns) if log.position else None,
                "end_lsn": log.end_lsn,
                "left_bytes": log.left_bytes if log.end_lsn is not None else None,
            }
            for log in logs
        ],
    }
