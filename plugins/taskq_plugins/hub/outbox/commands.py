"""``taskq hub group``, ``put`` and ``show``: jobs for devices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import render
from taskq.cli.commands.jobs import show_job
from taskq.cli.errors import WrongUsage
from taskq.cli.many import count_of
from taskq.cli.options import json_option, span
from taskq.core.model import PRIORITY_MAX, WAITING_STATES
from taskq.core.parsing import parse_json
from taskq_plugins.hub.devices import groups, set_member

if TYPE_CHECKING:
    from taskq.calls.call import OptionChanges

_HUB: Final = click.argument("directory", metavar="HUB", type=click.Path(path_type=Path))


@click.group()
def group() -> None:
    """Put devices into groups, to enqueue one job for each."""


@group.command("add")
@_HUB
@click.argument("name", metavar="GROUP")
@click.argument("devices", metavar="DEVICE…", nargs=-1, required=True)
def add(directory: Path, name: str, devices: tuple[str, ...]) -> None:
    """Put devices into a group; a group is there as long as one is in it."""
    for device in devices:
        set_member(directory, name, device, is_in=True)


@group.command("rm")
@_HUB
@click.argument("name", metavar="GROUP")
@click.argument("devices", metavar="DEVICE…", nargs=-1, required=True)
def rm(directory: Path, name: str, devices: tuple[str, ...]) -> None:
    """Take devices out of a group; what was enqueued for them stays."""
    for device in devices:
        set_member(directory, name, device, is_in=False)


@group.command("ls")
@_HUB
@json_option
def ls(directory: Path, as_json: bool) -> None:
    """Print each group and who is in it."""
    found = groups(directory)
    if as_json:
        render.print_json(found)
        return
    for name, devices in sorted(found.items()):
        click.echo(f"{name}: {' '.join(devices)}")


@click.command()
@_HUB
@click.argument("to", metavar="DEVICE|GROUP")
@click.argument("task")
@click.argument("arguments", default="{}")
@click.option("--group", "is_group", is_flag=True, help="For each device that is in that group.")
@click.option("-Q", "--queue", help="Name of the queue on the device.  [default: default]")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), help="Higher first.")
@click.option("--attempts", type=click.IntRange(0), help="How often it may run; 0: no limit.")
@click.option("--delay", help='Not before so long from now, for example "30s" or "2h".')
@click.option("--expires", help="Give up unless it was taken, and ran there, by then.")
@click.option("--key", help="One job of the device at a time may hold it.")
def put(
    directory: Path, to: str, task: str, arguments: str, *, is_group: bool, **options: Any
) -> None:
    """Enqueue a call of TASK for a device, with ARGUMENTS as a JSON object; print the job's id.

    The device takes it when it syncs, if it accepts the task.
    """
    from taskq_plugins.hub.outbox.sending import Hub  # noqa: PLC0415 - help must not import the log

    try:
        values = parse_json(arguments)
    except ValueError as error:
        raise WrongUsage(f"the arguments of {task} are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise WrongUsage('the arguments must be one JSON object, such as {"version": "7.2"}')
    changes: OptionChanges = {  # type: ignore[assignment]
        name: span(value) if name in ("delay", "expires") else value
        for name, value in options.items()
        if value is not None
    }
    hub = Hub(directory)
    try:
        call = hub.call_by_name(task, **values).options(**changes)
        given = hub.group(to) if is_group else hub.device(to)
        jobs = given.enqueue_sync(call)
    finally:
        hub.close_sync()
    for job in jobs if isinstance(jobs, list) else [jobs]:
        click.echo(job.id)


def hand_on(directory: Path, device: str, other: str) -> None:
    """Give the jobs that wait for a device to another."""
    from taskq_plugins.hub.outbox.sending import Hub  # noqa: PLC0415 - as above

    hub = Hub(directory)
    try:
        count = hub.hand_on_sync(device, other)
    finally:
        hub.close_sync()
    click.echo(f"{count_of(count)} for {device} given to {other}")


def cancel_open(directory: Path, device: str) -> None:
    """Cancel the jobs that wait for a device."""
    from taskq_plugins.hub.outbox.handing import OUTBOX, TO  # noqa: PLC0415 - as above
    from taskq_plugins.hub.outbox.sending import Outbox  # noqa: PLC0415 - as above

    if not (directory / OUTBOX).is_dir():
        return
    app = Outbox(directory.absolute())
    try:
        swept = app.cancel_many_sync(queue=f"{TO}{device}")
    finally:
        app.close_sync()
    if swept.count:
        click.echo(f"{swept.count} jobs for {device} cancelled")


@click.command()
@_HUB
@click.argument("job_id")
@json_option
def show(directory: Path, job_id: str, as_json: bool) -> None:
    """Show a job for a device as the hub has it, then as the device's own log tells it."""
    from taskq.log.read.reader import LogReader  # noqa: PLC0415 - as above
    from taskq_plugins.hub.outbox.handing import OUTBOX  # noqa: PLC0415 - as above
    from taskq_plugins.hub.outbox.sending import find_there, why  # noqa: PLC0415 - as above

    hub, now_ns = directory.absolute(), time.time_ns()
    with LogReader.open(str(hub / OUTBOX)) as reader:
        view = reader.job(reader.find_job(job_id))
    assert view is not None
    there = find_there(hub, view)
    where = why(hub, view).text if view.state in WAITING_STATES else ""
    if as_json:
        told = None if there is None else {"log": there[0], **there[1].as_dict()}
        render.print_json({**view.as_dict(), "why": where, "there": told})
        return
    show_job(view, now_ns, as_json=False)
    if where:
        click.echo(f"\n{where}")
    if there is not None:
        click.echo(f"\nin {there[0]}:\n")
        show_job(there[1], now_ns, as_json=False)
