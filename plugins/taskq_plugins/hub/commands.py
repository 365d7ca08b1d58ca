"""``taskq hub``: logs of many machines in one place."""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.exceptions import Exit

from taskq.cli import Failure, WrongUsage, count_of, json_option, render, show_job, span, yes_option
from taskq.engine import LocalDisk, PatientDisk
from taskq.extras import missing
from taskq.text import flat
from taskq.values import PRIORITY_MAX, nanoseconds, parse_json
from taskq.views import WAITING_STATES
from taskq_plugins.hub.registry import OUTBOX, Registry

if TYPE_CHECKING:
    from taskq.hooks import OptionChanges
    from taskq_plugins.hub.client import Hub

F = TypeVar("F", bound="Callable[..., Any]")

_PORTS: Final = 1 << 16
_PORT_DEFAULT: Final = 8470
_KEEP_DEFAULT: Final = "30d"
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
_LATE: Final = 1
_DAY_SECONDS: Final = 86_400
_device: Final = click.argument("device")
_names: Final = click.argument("names", metavar="[NAME]...", nargs=-1)


def _is_hub(_context: click.Context, _parameter: click.Parameter, path: Path) -> Path:
    if not (path / "devices").is_dir():
        raise WrongUsage(f"{path} is no hub: look at the path, or make one with taskq hub init")
    return path


@click.group()
def hub() -> None:
    """Keep copies of other machines' logs, byte for byte, where every read command works."""


def _at_hub(group: click.Group, name: str | None = None) -> Callable[[F], click.Command]:
    argument = click.argument("directory", metavar="HUB", type=_FOLDER, callback=_is_hub)
    return lambda function: group.command(name)(argument(function))


@hub.command()
@click.argument("directory", metavar="HUB", type=_FOLDER)
def init(directory: Path) -> None:
    """Make a hub, without any device yet."""
    (directory / "devices").mkdir(parents=True, exist_ok=True)


@_at_hub(hub)
@_device
@click.option("--code", is_flag=True, help="Print a code instead: it holds once, for a day.")
def enrol(directory: Path, device: str, code: bool) -> None:
    """Give a device a token, and print it; of those it had the latest holds on.

    The token is told this once. On the device it goes into a file that its user alone may read. A
    code is short enough to be told: the device gets its token for it by taskq sync --code.
    """
    registry = Registry(directory)
    render.echo(registry.invite(device) if code else registry.enrol(device))


@_at_hub(hub)
@_device
def move(directory: Path, device: str) -> None:
    """Let the next machine that comes with a device's token be that device.

    A token that comes from another machine than before is refused: it may have been copied.
    """
    Registry(directory).move(device)


@_at_hub(hub)
@_device
@click.option("--jobs-to", "other", metavar="OTHER", help="A device that is to have its jobs.")
def retire(directory: Path, device: str, other: str | None) -> None:
    """Let no token of a device hold any more; what it sent stays, jobs for it are cancelled.

    With --jobs-to another device gets them instead, also those that this one took and never told
    the end of.
    """
    if other is not None:
        with _opened(directory) as hub:
            count = hub.hand_on_sync(device, other)
        render.echo(f"{count_of(count)} for {device} given to {other}")
    Registry(directory).retire(device)
    _cancel_open(directory, device)


@_at_hub(hub)
@click.option(
    "--bind", metavar="HOST[:PORT]", default="127.0.0.1", show_default=True,
    help="Listen there. Tokens go in clear text without a certificate, or a proxy with TLS.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, _PORTS - 1), default=_PORT_DEFAULT, show_default=True,
    help="The port, unless --bind names it.",
)  # fmt: skip
@click.option("--keep", metavar="SPAN", default=_KEEP_DEFAULT, show_default=True, help="As keep.")
@click.option("--certfile", metavar="FILE", help="A certificate in PEM, for TLS by the hub itself.")
@click.option("--keyfile", metavar="FILE", help="Its key, unless that is in the same file.")
@click.option("--metrics-port", type=click.IntRange(0, _PORTS - 1), help="For Prometheus.")
def serve(
    directory: Path, bind: str, port: int, keep: str, metrics_port: int | None, **tls: str | None
) -> None:
    """Answer the devices that were enrolled, until stopped.

    What is stored lies in HUB/devices/<device>/<log id>, a task log that read commands take with -d
    while it is written.
    """
    service = _package("service")
    place = re.fullmatch(r"(\[[^]]+\]|[^:\s]+)(?::([0-9]{1,5}))?", bind)
    if place is None or int(place[2] or 0) >= _PORTS:
        raise WrongUsage(f"--bind {bind!r} is no place to listen: write 127.0.0.1:{_PORT_DEFAULT}")
    host, port = place[1], int(place[2] or port)
    service.keep_memory()
    with _alone(directory):
        Registry(directory).open()
        scheme = "https" if tls["certfile"] else "http"
        render.echo(f"serving {directory} at {scheme}://{host}:{port}", err=True)
        # One process and one loop: each copy has one writer.
        server = _package("server").Server(directory.absolute(), _seconds(keep))
        where = {"host": host.strip("[]"), "port": port}
        site, figures = server.app, contextlib.nullcontext()
        if metrics_port is not None:
            metrics = _package("metrics", "metrics")
            site = metrics.Counting(site)
            figures = metrics.told(Registry(directory), site, where["host"], metrics_port)
        with figures:
            service.Listener(server, (tls["certfile"], tls["keyfile"]), site, **where).run()


@_at_hub(hub)
@_names
@click.option("--late", metavar="SPAN", default="1h", show_default=True, help="Heard of before.")
@json_option
def status(directory: Path, names: tuple[str, ...], late: str, as_json: bool) -> None:
    """Show when each device was last heard of, and what the hub lacks of it.

    Exits with 1 if one of them is late.
    """
    known, now_ns = Registry(directory).all_standing(), time.time_ns()
    if not known:
        raise Failure(f"{directory} has no device yet: taskq hub enrol {directory} NAME")
    if missing := sorted(set(names) - known.keys()):
        raise WrongUsage(f"{directory} has no device {missing[0]!r}")
    rows: list[dict[str, Any]] = []
    for name in names or known:
        facts = known[name]
        seconds = (now_ns - facts["heard_ns"]) / 1e9 if "heard_ns" in facts else None
        since_ns = facts.get("heard_ns", facts.get("enrolled_ns", 0))
        is_late = facts["state"] == "active" and now_ns - since_ns > _seconds(late) * 1e9
        rows.append({"device": name, **facts, "late": is_late, "seconds": seconds})
    if as_json:
        render.print_json(rows)
    for row in [] if as_json else rows:
        render.echo(flat(f"{row['device']}: {', '.join(filter(None, _words(row, now_ns)))}"))
    if any(row["late"] for row in rows):
        raise Exit(1)


def _words(row: dict[str, Any], now_ns: int) -> Iterator[str]:
    yield "heard of never" if row["seconds"] is None else f"heard of {row['seconds']:.0f} s ago"
    yield f"{row['behind']} records behind" if row["behind"] else ""
    clock = row.get("clock_ns", 0) / 1e9
    yield f"clock {clock:+.0f} s" if abs(clock) > _LATE else ""
    yield from (f"{row[what]} {what}" for what in ("breaks", "forks") if row.get(what))
    refused = (now_ns - row.get("refused_ns", 0)) / 1e9
    clone = f"another machine with its token was refused {refused:.0f} s ago"
    yield clone if refused < _DAY_SECONDS else ""
    yield "LATE" if row["late"] else ""
    yield "" if row["state"] == "active" else row["state"]


@_at_hub(hub)
@_names
def breaks(directory: Path, names: tuple[str, ...]) -> None:
    """Show where devices did not go on as they had sent it: gaps, and branches that were left."""
    files = _package("copyfiles")
    for name in names or Registry(directory).names():
        for copy in files.kept(directory, device=name):
            for line in [each for each in copy.breaks if each["step"] == "begun"]:
                at = f"from lsn {line['at'][0]} on, the log then ended at {line['end_lsn']}"
                left = f"old/{line['n']}"
                is_there = copy.size(f"{left}/{files.IDENTITY}") >= 0
                rest = f"; what was left: {copy.path}/{left}" if is_there else ""
                render.echo(flat(f"{name}: {line['kind']} {at}: {line['cause']}{rest}"))


@_at_hub(hub)
@click.option("--keep", metavar="SPAN", default=_KEEP_DEFAULT, show_default=True, help="So long.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def keep(directory: Path, keep: str, dry_run: bool) -> None:
    """Remove what came long ago, and what its log itself does not need any more.

    A hub that is served does so by itself each hour. What a log has not written again stays. What a
    break left goes as a whole.
    """
    before_ns = time.time_ns() - round(_seconds(keep) * 1e9)
    with contextlib.nullcontext() if dry_run else _alone(directory):
        registry = None if dry_run else Registry(directory)
        copies = _package("copies").Copies(PatientDisk, str(directory), registry)
        for copy in copies.all():
            gone = copies.keep(copy, before_ns, dry_run=dry_run)
            what = f"{sum(old.size for old in gone)} B {'would go' if dry_run else 'went'}"
            if gone:
                render.echo(f"{copy.device}/{copy.log_id}: {len(gone)} files, {what}")


@_at_hub(hub)
@click.option("--deep", is_flag=True, help="Read every byte, as taskq verify does.")
@click.option("--repair", is_flag=True, help="Have devices send again what is wrong; as --deep.")
def check(directory: Path, deep: bool, repair: bool) -> None:
    """Compare the copies with what was noted when their segments were sealed; exits with 1.

    With --repair, for which the hub must not be served, what is wrong comes again when its device
    syncs next, if that has it still. Until then it stays as it is.
    """
    files = _package("copyfiles")
    unknown = {copy.device for copy in files.kept(directory)} - {*Registry(directory).names()}
    for name in sorted(unknown):
        what = "registry.db does not know it, as one that is older than the copies"
        render.echo(f"{name}: {what}: taskq hub enrol {directory} {name}")
    is_wrong = bool(unknown)
    with _alone(directory) if repair else contextlib.nullcontext():
        for fault in files.faults(directory, deep=deep or repair):
            is_wrong = True
            if repair:
                files.ask_again(Registry(directory), fault)
            asked = ": asked for again" if repair else ""
            render.echo(flat(f"{fault.copy.path}: {fault.what}{asked}"))
    if is_wrong:
        raise Exit(1)


@_at_hub(hub)
@_device
@yes_option
def erase(directory: Path, device: str, yes: bool) -> None:
    """Remove all that came of a device, and end its tokens; the hub must not be served.

    Jobs that wait for it are cancelled. What backups and lakes have of it stays there.
    """
    registry = Registry(directory)
    registry.known(device)
    if not yes:
        raise WrongUsage(f"all that {directory} has of {device} goes for good: add --yes")
    with _alone(directory):
        registry.erase(device)
        _cancel_open(directory, device)


@_at_hub(hub)
@_device
def resend(directory: Path, device: str) -> None:
    """Have a device send again all that it still has; the hub must not be served.

    What is here stays until what comes is whole: for copies that nobody believes any more.
    """
    files, count, registry = _package("copyfiles"), 0, Registry(directory)
    registry.known(device)
    with _alone(directory):
        for copy in files.kept(directory, device=device):
            for part in files.everything(copy):
                files.ask_again(registry, part)
                count += 1
    render.echo(f"{device}: {count} files are asked for again")


@_at_hub(hub)
@_device
@click.argument("target", metavar="DIR", type=_FOLDER)
def restore(directory: Path, device: str, target: Path) -> None:
    """Make a log of a device's newest copy, in DIR, which is empty or not there."""
    report = _package("transport").given_back(directory, device, target)
    render.echo(f"{target}: {report.segments} segments, up to lsn {report.next_lsn - 1}")


@_at_hub(hub)
@click.argument("target", metavar="DEST", type=_FOLDER)
def backup(directory: Path, target: Path) -> None:
    """Copy a hub to DEST, which is empty or not there, beside its server.

    DEST is a hub: serve it in place of one that was lost, or back it up to where that was. What
    came since the devices send again.
    """
    render.echo(f"{target}: {_package('transport').hub_backed_up(directory, target)} logs")


@_at_hub(hub, "import")
@click.argument("stick", metavar="DIR", type=_FOLDER, callback=_is_hub)
def take_in(directory: Path, stick: Path) -> None:
    """Take in what devices wrote to DIR with taskq sync --to DIR; the hub must not be served."""
    with _alone(directory):
        for device, log_id, lsn in _package("transport").taken_in(directory.absolute(), stick):
            render.echo(f"{device}/{log_id}: up to lsn {lsn - 1}")


# -- jobs for devices ------------------------------------------------------------------------------


@hub.group()
def group() -> None:
    """Put devices into groups, to enqueue one job for each."""


_group: Final = click.argument("name", metavar="GROUP")
_members: Final = click.argument("members", metavar="DEVICE…", nargs=-1, required=True)


@_at_hub(group)
@_group
@_members
def add(directory: Path, name: str, members: tuple[str, ...]) -> None:
    """Put devices into a group; a group is there as long as one is in it."""
    for device in members:
        Registry(directory).set_member(name, device, is_in=True)


@_at_hub(group)
@_group
@_members
def rm(directory: Path, name: str, members: tuple[str, ...]) -> None:
    """Take devices out of a group; what was enqueued for them stays."""
    for device in members:
        Registry(directory).set_member(name, device, is_in=False)


@_at_hub(group)
@json_option
def ls(directory: Path, as_json: bool) -> None:
    """Print each group and who is in it."""
    members_of = Registry(directory).groups()
    if as_json:
        render.print_json(members_of)
        return
    for name, members in sorted(members_of.items()):
        render.echo(flat(f"{name}: {' '.join(members)}"))


@_at_hub(hub)
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
    with _opened(directory) as hub:
        call = hub.call_by_name(task, **values).options(**changes)
        given = hub.group(to) if is_group else hub.device(to)
        jobs = given.enqueue_sync(call)
    for job in jobs if isinstance(jobs, list) else [jobs]:
        render.echo(job.id)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[Hub]:
    opened: Hub = _package("client").Hub(directory)
    try:
        yield opened
    finally:
        opened.close_sync()


def _cancel_open(directory: Path, device: str) -> None:
    if not (directory / OUTBOX).is_dir():
        return
    with _opened(directory) as hub:
        count = hub.cancel_open_sync(device)
    if count:
        render.echo(f"{count} jobs for {device} cancelled")


@_at_hub(hub)
@click.argument("job_id")
@json_option
def show(directory: Path, job_id: str, as_json: bool) -> None:
    """Show a job for a device as the hub has it, then as the device's own log tells it."""
    from taskq.engine import LogReader  # noqa: PLC0415 - help must not import the log

    client = _package("client")
    hub, now_ns = directory.absolute(), time.time_ns()
    with LogReader.open(str(hub / OUTBOX)) as reader:
        view = reader.job(reader.find_job(job_id))
    assert view is not None
    there = client.find_there(hub, view)
    where = client.why(hub, view).text if view.state in WAITING_STATES else ""
    if as_json:
        on_device = None if there is None else {"log": there[0], **there[1].as_dict()}
        render.print_json({**view.as_dict(), "why": where, "there": on_device})
        return
    show_job(view, now_ns, as_json=False)
    if where:
        render.echo(f"\n{flat(where)}")
    if there is not None:
        render.echo(f"\nin {there[0]}:\n")
        show_job(there[1], now_ns, as_json=False)


def _seconds(text: str) -> float:
    return nanoseconds(text) / 1e9


def _package(name: str, extra: str = "hub") -> Any:
    """Import a module of the hub: help must not load its dependencies."""
    try:
        return importlib.import_module(f"taskq_plugins.hub.{name}")
    except ImportError as error:
        raise Failure(missing("this command", error.name, extra)) from error


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    disk = LocalDisk()
    lock = disk.open(str(directory / "serve.lock"), create=True)
    try:
        if not disk.try_lock(lock):
            raise Failure(f"{directory} is served by another process already: stop that first")
        yield
    finally:
        disk.close(lock)
