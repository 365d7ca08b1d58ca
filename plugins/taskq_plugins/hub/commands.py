"""``taskq hub`` and ``taskq sync``: logs of many machines in one place."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.exceptions import Exit

from taskq.cli import render
from taskq.cli.errors import Failure, WrongUsage
from taskq.cli.many import count_of
from taskq.cli.options import json_option, log_argument, open_reader, resolve
from taskq_plugins.hub import devices
from taskq_plugins.hub.outbox.commands import cancel_open, group, put, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PORTS: Final = 1 << 16
_PORT_DEFAULT: Final = 8470
_KEEP_DEFAULT: Final = "30d"
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
_LATE: Final = 1


def _hub_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("directory", metavar="HUB", type=_FOLDER)(command)


@click.group()
def hub() -> None:
    """Keep copies of other machines' logs, byte for byte, where every read command works."""


for _command in (group, put, show):
    hub.add_command(_command)


@hub.command()
@_hub_argument
@click.argument("device")
@click.option("--code", is_flag=True, help="Print a code instead: it holds once, for a day.")
def enrol(directory: Path, device: str, code: bool) -> None:
    """Give a device a token, and print it; of those it had the latest holds on.

    The token is told this once. On the device it goes into a file that its user alone may read. A
    code is short enough to be told: the device gets its token for it by taskq sync --code.
    """
    click.echo((devices.invite if code else devices.enrol)(directory, device))


@hub.command()
@_hub_argument
@click.argument("device")
def move(directory: Path, device: str) -> None:
    """Let the next machine that comes with a device's token be that device.

    A token that comes from another machine than before is refused: it may have been copied.
    """
    devices.move(directory, device)


@hub.command()
@_hub_argument
@click.argument("device")
def retire(directory: Path, device: str) -> None:
    """Let no token of a device hold any more; what it sent stays, jobs for it are cancelled."""
    devices.retire(directory, device)
    cancel_open(directory, device)


@hub.command()
@_hub_argument
@click.option(
    "--bind",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{_PORT_DEFAULT}",
    show_default=True,
    help="Listen there. Tokens go in clear text: to be reached by others it needs a proxy with TLS "
    "before it.",
)
@click.option("--keep", metavar="SPAN", default=_KEEP_DEFAULT, show_default=True, help="As keep.")
def serve(directory: Path, bind: str, keep: str) -> None:
    """Answer the devices that were enrolled, until stopped.

    What is stored lies in HUB/devices/<device>/<log id>, a task log that read commands take with -d
    while it is written.
    """
    server, uvicorn = _package("taskq_plugins.hub.server"), _package("uvicorn")
    host, _, port = bind.rpartition(":")
    if not (host and port.isascii() and port.isdecimal()) or int(port) >= _PORTS:
        raise WrongUsage(f"--bind {bind!r} is no place to listen: write 127.0.0.1:{_PORT_DEFAULT}")
    with _alone(directory):
        click.echo(f"serving {directory} at http://{bind}", err=True)
        # One process and one loop: each copy has one writer.
        uvicorn.run(
            server.Server(directory.absolute(), _seconds(keep)).app,
            http=server.Protocol,
            host=host.strip("[]"),
            port=int(port),
            log_level="warning",
            server_header=False,
            h11_max_incomplete_event_size=16 * 1024,
            limit_concurrency=512,
        )


@hub.command()
@_hub_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--late", metavar="SPAN", default="1h", show_default=True, help="Heard of before.")
@json_option
def status(directory: Path, names: tuple[str, ...], late: str, as_json: bool) -> None:
    """Show when each device was last heard of, and what the hub lacks of it.

    Exits with 1 if one of them is late.
    """
    known, now_ns = devices.devices(directory), time.time_ns()
    if missing := sorted(set(names) - set(known)):
        raise WrongUsage(f"{directory} has no device {missing[0]!r}")
    rows = []
    for name in names or known:
        facts = devices.facts(directory, name)
        seconds = (now_ns - facts["heard_ns"]) / 1e9 if "heard_ns" in facts else None
        is_late = facts["state"] == "active" and (seconds is None or seconds > _seconds(late))
        behind = max(facts.get("end_lsn", 0) - facts.get("at_lsn", 0), 0)
        told = {"late": is_late, "seconds": seconds, "behind": behind}
        rows.append({"device": name, **facts, **told})
    if as_json:
        click.echo(json.dumps(rows))
    for row in [] if as_json else rows:
        heard = "never" if row["seconds"] is None else f"{row['seconds']:.0f} s ago"
        words = [f"heard of {heard}", f"{row['behind']} records behind" if row["behind"] else ""]
        clock = row.get("clock_ns", 0) / 1e9
        words += [f"clock {clock:+.0f} s" if abs(clock) > _LATE else ""]
        words += [f"{row[what]} {what}" if row.get(what) else "" for what in ("breaks", "forks")]
        words += ["LATE" if row["late"] else "", "" if row["state"] == "active" else row["state"]]
        click.echo(f"{row['device']}: {', '.join(filter(None, words))}")
    if any(row["late"] for row in rows):
        raise Exit(1)


@hub.command()
@_hub_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
def breaks(directory: Path, names: tuple[str, ...]) -> None:
    """Show where devices did not go on as they had sent it: gaps, and branches that were left."""
    from taskq.log.machine.disk import PatientDisk  # noqa: PLC0415 - help must not import the log
    from taskq_plugins.fleet.breaks import BREAKS  # noqa: PLC0415 - likewise
    from taskq_plugins.hub.aside import noted  # noqa: PLC0415 - likewise

    for name in names or devices.devices(directory):
        for file in sorted((directory / "devices" / name).glob(f"*/{BREAKS}")):
            for line in noted(PatientDisk(), str(file.parent), BREAKS):
                if line["step"] == "begun":
                    at = f"from lsn {line['at'][0]} on, the log then ended at {line['end_lsn']}"
                    left = file.parent / "old" / str(line["n"])
                    rest = f"; what was left: {left}" if left.exists() else ""
                    click.echo(f"{name}: {line['kind']} {at}: {line['cause']}{rest}")


@hub.command()
@_hub_argument
@click.option("--keep", metavar="SPAN", default=_KEEP_DEFAULT, show_default=True, help="So long.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def keep(directory: Path, keep: str, dry_run: bool) -> None:
    """Remove segments that came long ago, and that their log itself does not need any more.

    A hub that is served does so by itself each hour. What a log has not written again stays.
    """
    from taskq.log.machine.disk import PatientDisk  # noqa: PLC0415 - help must not import the log
    from taskq_plugins.hub.hub import Hub  # noqa: PLC0415 - likewise

    before_ns = time.time_ns() - round(_seconds(keep) * 1e9)
    with contextlib.nullcontext() if dry_run else _alone(directory):
        one = Hub(PatientDisk, str(directory))
        for device, log_id in one.logs():
            gone = one.keep(device, log_id, before_ns, dry_run=dry_run)
            size = sum(segment.size for segment in gone)
            if gone:
                what = "would go" if dry_run else "went"
                click.echo(f"{device}/{log_id}: {len(gone)} segments, {size} B {what}")


@hub.command()
@_hub_argument
@click.option("--deep", is_flag=True, help="Read every byte, as taskq verify does.")
def check(directory: Path, deep: bool) -> None:
    """Compare the copies with what was noted when their segments were sealed; exits with 1."""
    copies, found = _package("taskq_plugins.hub.care.copies"), False
    for path, what in copies.faults(directory, deep=deep):
        found = True
        click.echo(f"{path}: {what}")
    if found:
        raise Exit(1)


@hub.command()
@_hub_argument
@click.argument("device")
@click.argument("target", metavar="DIR", type=_FOLDER)
def restore(directory: Path, device: str, target: Path) -> None:
    """Make a log of a device's newest copy, in DIR, which is empty or not there."""
    report = _package("taskq_plugins.hub.care.copies").given_back(directory, device, target)
    click.echo(f"{target}: {report.segments} segments, up to lsn {report.next_lsn - 1}")


@hub.command("import")
@_hub_argument
@click.argument("stick", metavar="DIR", type=_FOLDER)
def take_in(directory: Path, stick: Path) -> None:
    """Take in what devices wrote to DIR with taskq sync --to DIR; the hub must not be served."""
    copies = _package("taskq_plugins.hub.care.copies")
    with _alone(directory):
        for device, log_id, lsn in copies.taken_in(directory.absolute(), stick):
            click.echo(f"{device}/{log_id}: up to lsn {lsn - 1}")


@click.command()
@log_argument
@click.option("--url", metavar="URL", help="The hub.  [default: url of [hub] in the settings]")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the hub printed at enrol.  [default: token or token_file of [hub]]",
)
@click.option("--code", help="What it printed at enrol --code: get a token for it, keep that.")
@click.option("--follow", is_flag=True, help="Stay, and send what is written within a second.")
@click.option("--wait", is_flag=True, help="Try until all is there.")
@click.option("--dry-run", is_flag=True, help="Only ask how the hub's copy stands.")
@click.option("--status", is_flag=True, help="Tell how it went last, and ask nobody.")
@click.option("--restore", is_flag=True, help="Make DIR of what the hub has of this device.")
@click.option("--to", "stick", type=_FOLDER, help="Write to this directory, for taskq hub import.")
def sync(data_dir: Path | None, **given: Any) -> None:
    """Send a hub what it lacks of the log, once, then exit.

    Workers and enqueues go on meanwhile. What the hub had before is found by what stands there, so
    it does not matter how the last try ended.
    """
    syncing = _package("taskq_plugins.hub.sync")
    if given["restore"]:
        target, line = resolve(data_dir), _line(given)
        report = _run(line, _package("taskq_plugins.hub.care.copies").fetched(line, target))
        click.echo(f"{target}: {report.segments} segments, up to lsn {report.next_lsn - 1}")
        return
    with open_reader(data_dir) as reader:
        path, end = reader.path, reader.journal.next_lsn
    if given["status"]:
        _tell(path, end, syncing.last_note(path))
        return
    if given["stick"] is not None:
        name = socket.gethostname().split(".")[0].lower()
        line = _package("taskq_plugins.hub.care.copies").Stick(given["stick"], name)
    else:
        line = _line(given)
    if given["follow"] or given["wait"]:
        done = _run(line, syncing.follow(path, line, at_once=True, once=not given["follow"]))
    else:
        done = _run(line, syncing.sync(path, line, is_dry=given["dry_run"]))
    words = ", ".join(one.value for one in done.verdicts)
    if given["dry_run"]:
        click.echo(f"{path}: {render.size(done.behind_bytes)} are missing there ({words})")
        return
    sent = (
        f"{render.size(done.sent_bytes)} sent ({words})" if done.sent_bytes else "nothing to send"
    )
    click.echo(f"{path}: in sync up to lsn {done.end.next_lsn - 1}; {sent}")
    if any(done.taken):
        jobs, refused, cancelled = done.taken
        came = f"{count_of(jobs)} came, {refused} refused, {cancelled} cancelled"
        click.echo(f"{path}: {came}")


def _tell(path: str, end: int, note: dict[str, Any]) -> None:
    """Tell how the last session went; exits with 1 if the log has grown since, or it failed."""
    if "synced_ns" in note:
        ago = (time.time_ns() - note["synced_ns"]) / 1e9
        click.echo(f"{path}: in sync {ago:.0f} s ago, up to lsn {note['lsn'] - 1} of {end - 1}")
    else:
        click.echo(f"{path}: never in sync")
    if note.get("error"):
        click.echo(f"then: {note['error']}")
    if note.get("error") or note.get("lsn", 0) < end:
        raise Exit(1)


def _line(given: dict[str, Any]) -> Any:
    """The way to the hub that the options and the settings name."""
    from taskq.connection.settings import HubSettings, load_settings  # noqa: PLC0415 - not for help

    lines, hub = _package("taskq_plugins.hub.device.line"), load_settings(None).hub or HubSettings()
    url = given["url"] or hub.url
    if given["restore"]:  # somebody waits for it
        hub = hub.model_copy(update={"requires": (), "metered": "all"})
    if given["code"] and url:
        line = lines.Line(url, "", None, hub)
        token = _run(line, line.redeem(given["code"].strip()))
        kept = lines.token_file(url)
        kept.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(token)
    return lines.Line(*lines.line_to(hub, url, given["token_file"]), None, hub)


def _run(line: Any, what: Any) -> Any:
    async def main() -> Any:
        try:
            return await what
        finally:
            await line.close()

    return asyncio.run(main())


def _seconds(span: str) -> float:
    from taskq.core.durations import nanoseconds  # noqa: PLC0415 - help must not import it

    return nanoseconds(span) / 1e9


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Failure(
            f"this command needs the package {error.name}: pip install 'taskq-local[hub]'"
        ) from error


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other servers from the directory.

    Raises:
        Failure: one is there.
    """
    from taskq.log.machine.disk import LocalDisk  # noqa: PLC0415 - help must not import the log

    directory.mkdir(parents=True, exist_ok=True)
    disk = LocalDisk()
    lock = disk.open(str(directory / "serve.lock"), create=True)
    try:
        if not disk.try_lock(lock):
            raise Failure(f"{directory} is served by another process already: stop that first")
        yield
    finally:
        disk.close(lock)
