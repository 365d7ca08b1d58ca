"""``taskq reader``: the named readers of a log, moved and forgotten by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from taskq.cli import render
from taskq.cli.many import with_app
from taskq.cli.options import data_dir_option, json_option, log_argument
from taskq.core.model import SECOND_NS

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.app.app import TaskQ
    from taskq.reading.named import ReaderView

_PLACES = ("start", "end")


@click.group()
def reader() -> None:
    """Look at the named readers of the log, move them or forget them.

    A name comes into being with taskq tail --reader, or stream(reader=...). What it has not read is
    kept for it. Every command takes -d/--data-dir.
    """


@reader.command("ls")
@log_argument
@json_option
def ls(data_dir: Path | None, as_json: bool) -> None:
    """List the named readers, and how far behind each is."""
    readers = with_app(data_dir, lambda app: app.readers())
    if as_json:
        render.print_json([_view_json(one) for one in readers])
        return
    if not readers:
        click.echo("Nobody reads this log under a name.")
        return
    render.print_table(
        ("NAME~", ">NEXT LSN?", ">BEHIND", ">BYTES?", "STATE", "PROBLEM~"),
        [
            (
                one.name,
                str(one.lsn),
                str(one.lag_records),
                render.size(one.lag_bytes),
                "reads" if one.is_alive else "idle",
                one.problem,
            )
            for one in readers
        ],
    )


def _view_json(one: ReaderView) -> dict[str, str | int | bool | None]:
    return {
        "name": one.name,
        "lsn": one.lsn,
        "lag_records": one.lag_records,
        "lag_bytes": one.lag_bytes,
        "alive": one.is_alive,
        "problem": one.problem or None,
    }


@reader.command("seek")
@click.argument("name")
@click.argument("place")
@data_dir_option
@json_option
def seek(name: str, place: str, data_dir: Path | None, as_json: bool) -> None:
    """Let NAME, or a new reader, go on at PLACE.

    PLACE is start (the oldest record that is kept), end (what is still to come), an lsn, a span
    back from now ("2h") or a time.
    """
    from taskq.log.read.timetravel import Moment  # noqa: PLC0415 - help must not import the log

    at = None if place in _PLACES else Moment.parse(place, time.time_ns(), "PLACE")

    async def work(app: TaskQ) -> int:
        if at is None:
            return await app.seek(name, "start" if place == "start" else "end")
        if at.time_ns is None:
            return await app.seek(name, lsn=at.lsn)
        return await app.seek(name, time=datetime.fromtimestamp(at.time_ns / SECOND_NS, UTC))

    lsn = with_app(data_dir, work)
    if as_json:
        render.print_json({"name": name, "lsn": lsn})
        return
    click.echo(f"{render.printable(name)}: goes on at lsn {lsn}")


@reader.command("forget")
@click.argument("name")
@data_dir_option
def forget(name: str, data_dir: Path | None) -> None:
    """Forget NAME: nothing is kept for it any more."""
    with_app(data_dir, lambda app: app.forget_reader(name))
    click.echo(f"{render.printable(name)}: forgotten")
