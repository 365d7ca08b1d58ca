"""``taskq hub``: logs of many machines in one place."""

from __future__ import annotations

import contextlib
import errno
import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.exceptions import Exit

from taskq.cli import Failure, WrongUsage, count_of, json_option, render, span, yes_option
from taskq.engine import LocalDisk
from taskq.errors import LogError
from taskq.extras import missing
from taskq.text import flat
from taskq.values import PRIORITY_MAX, nanoseconds, parse_json, refuse_constant
from taskq_plugins.hub.registry import OUTBOX, Registry

if TYPE_CHECKING:
    from taskq.hooks import OptionChanges
    from taskq.views import JobView, Reason
    from taskq_plugins.hub.client import Hub
    from taskq_plugins.hub.transport import Each

F = TypeVar("F", bound="Callable[..., Any]")

_PORTS: Final = 1 << 16
_PORT_DEFAULT: Final = 8470
_KEEP_DEFAULT: Final = "30d"
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
#: Seconds by which a device's clock differs: shown from here on, and shown with a remedy.
_LATE: Final = 1
_WRONG: Final = 60
_DAY_SECONDS: Final = 86_400
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_device: Final = click.argument("device", metavar="NAME")
_names: Final = click.argument(
    "names",
    metavar="[NAME]...",
    nargs=-1,
    callback=lambda context, _, names: [
        Registry(context.params["directory"]).known(name) for name in names
    ],
)


def _is_hub(_context: click.Context, _parameter: click.Parameter, path: Path) -> Path:
    if not (path / "devices").is_dir():
        raise WrongUsage(f"{path} is no hub: look at the path, or make one with taskq hub serve")
    return path


@click.group()
def hub() -> None:
    """Keep copies of other machines' logs, byte for byte, where every read command works."""


def _at_hub(function: F) -> click.Command:
    argument = click.argument("directory", metavar="HUB", type=_FOLDER, callback=_is_hub)
    return hub.command()(argument(function))


@_at_hub
@_device
@click.option("--code", is_flag=True, help="Print a code instead: it holds once, for a day.")
@click.option(
    "--replace", is_flag=True,
    help="Another machine goes on under this name: all earlier tokens end.",
)  # fmt: skip
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Groups that it is in.")
def enroll(
    directory: Path, device: str, code: bool, replace: bool, groups: tuple[str, ...]
) -> None:
    """Give a device a token, and print it, this once; what to type on the device comes with it.

    A code is short enough to say. A name belongs to one machine: a device that is replaced, was
    held, or lost its token goes on under its name with --replace.
    """
    registry = Registry(directory)
    if replace:
        registry.replace(device)
    elif registry.has_token(device):
        raise Failure(
            f"{device} has a token already: add --replace if another machine, or a new token, is "
            f"to take its place; another device gets a name of its own"
        )
    secret = registry.invite(device) if code else registry.enroll(device)
    for group in groups:
        registry.join(group, device)
    given = f"--code {secret}" if code else "--token-file FILE  # with this token in it"
    render.echo(f"on {device}: taskq sync DIR --url https://… {given}", err=True)
    render.echo(secret)


@_at_hub
@_device
@click.option("--jobs-to", "other", metavar="OTHER", help="A device that is to have its jobs.")
def retire(directory: Path, device: str, other: str | None) -> None:
    """Let no token of a device hold any more; what it sent stays, jobs for it are cancelled.

    With --jobs-to another device gets them instead; also jobs of which this one never sent the end.
    """
    if other is not None:
        with _opened(directory) as hub:
            count = hub.hand_on_sync(device, other)
        render.echo(f"{count_of(count)} for {device} given to {other}")
    Registry(directory).retire(device)
    _cancel_open(directory, device)


@hub.command()
@click.argument("directory", metavar="HUB", type=_FOLDER)
@click.option(
    "--bind", metavar="HOST[:PORT]", default=f"127.0.0.1:{_PORT_DEFAULT}", show_default=True,
    help="Listen there. Tokens go in clear text without a certificate, or a proxy with TLS.",
)  # fmt: skip
@click.option(
    "--keep", metavar="SPAN", default=_KEEP_DEFAULT, show_default=True,
    help="How long what its log itself does not need any more stays.",
)  # fmt: skip
@click.option("--certfile", metavar="FILE", help="A certificate in PEM, for TLS by the hub itself.")
@click.option("--keyfile", metavar="FILE", help="Its key, unless that is in the same file.")
@click.option("--metrics-port", type=click.IntRange(0, _PORTS - 1), help="For Prometheus.")
def serve(
    directory: Path, bind: str, keep: str, metrics_port: int | None, **tls: str | None
) -> None:
    """Answer the devices that were enrolled, until stopped; an empty directory becomes a hub.

    The logs lie in HUB/devices/<device>/<log id>; read commands take them with -d while they grow.
    """
    is_new = not (directory / "devices").is_dir()
    if is_new and directory.exists() and any(directory.iterdir()):
        raise WrongUsage(f"{directory} is no hub, and not empty: look at the path")
    module = _package("server")
    from taskq_plugins.patience import listen  # noqa: PLC0415 - only the server needs it

    place = re.fullmatch(r"(\[[^]]+\]|[^:\s]+)(?::([0-9]{1,5}))?", bind)
    if place is None or int(place[2] or 0) >= _PORTS:
        raise WrongUsage(f"--bind {bind!r} is no place to listen: write 127.0.0.1:{_PORT_DEFAULT}")
    host, port = place[1], int(place[2] or _PORT_DEFAULT)
    module.keep_memory()
    with listen(host.strip("[]"), port) as listening:
        if is_new:
            (directory / "devices").mkdir(parents=True)
        port = listening.getsockname()[1]
        with _alone(directory):
            Registry(directory).open()
            scheme = "https" if tls["certfile"] else "http"
            words = f"serving {directory} at {scheme}://{host}:{port}"
            # One process and one loop, so each copy has one writer.
            server = module.Server(directory.absolute(), _seconds(keep))
            where = {"host": host.strip("[]"), "port": port}
            figures: Any = contextlib.nullcontext()
            if metrics_port is not None:
                package = _package("metrics", "metrics")
                figures = package.served(
                    Registry(directory), server.app, where["host"], metrics_port
                )
            with figures:
                listener = module.Listener(server, (tls["certfile"], tls["keyfile"]), **where)
                listener.began = partial(render.echo, words, err=True)
                listener.run([listening])


@_at_hub
@_names
@click.option("--late", metavar="SPAN", default="1h", show_default=True, help="Heard of before.")
@json_option
def devices(directory: Path, names: list[str], late: str, as_json: bool) -> None:
    """Show when each device was last heard of, and what the hub lacks of it.

    Of devices that are named it shows their logs, too, and the gaps in them. Exits with 1 if one of
    them is late.
    """
    known, now_ns = Registry(directory).all_standing(), time.time_ns()
    if not known:
        raise Failure(f"{directory} has no device yet: taskq hub enroll {directory} NAME")
    rows: list[dict[str, Any]] = []
    with _each_device() as each:
        for name in names or known:
            facts = known[name]
            seconds = (now_ns - facts["heard_ns"]) / 1e9 if "heard_ns" in facts else None
            since_ns = facts.get("heard_ns", facts.get("enrolled_ns", 0))
            # A time still to come is from before the hub's clock was set back.
            is_late = facts["state"] == "active" and abs(now_ns - since_ns) > _seconds(late) * 1e9
            rows.append({"device": name, **facts, "late": is_late, "seconds": seconds})
            with each(name):
                rows[-1] |= {"logs": _package("copies").described(directory, name)} if names else {}
        if as_json:
            render.print_json(rows)
        for row in [] if as_json else rows:
            render.echo(flat(f"{row['device']}: {', '.join(filter(None, _words(row, now_ns)))}"))
            for log in row.get("logs", ()):
                render.echo(flat(f"  log {log['path']}: {', '.join(_words_of_log(log, now_ns))}"))
    if any(row["late"] for row in rows):
        raise Exit(1)


def _words(row: dict[str, Any], now_ns: int) -> Iterator[str]:
    yield "heard of never" if row["seconds"] is None else f"heard of {row['seconds']:.0f} s ago"
    yield f"{row['behind']} records behind" if row["behind"] else ""
    clock = row.get("clock_ns", 0) / 1e9
    remedy = ": set it on the device, or the hub's" if abs(clock) > _WRONG else ""
    yield f"clock {clock:+.0f} s{remedy}" if abs(clock) > _LATE else ""
    if row["gaps"]:
        yield f"{count_of(row['gaps'], 'gap')}: see 'taskq hub devices HUB {row['device']}'"
    refused_ns, why = row.get("refused", (0, ""))
    ago = (now_ns - refused_ns) / 1e9
    yield f"refused {ago:.0f} s ago: {why}" if 0 <= ago < _DAY_SECONDS else ""
    yield "LATE" if row["late"] else ""
    yield "" if row["state"] == "active" else row["state"]
    if row["state"] == "held":
        yield (
            f"log {row['held']} was set back and went on as another, and goes on as itself, too: "
            f"two machines have this token. Give one a name of its own with taskq hub enroll, then "
            f"the other a token with taskq hub enroll --replace"
        )


def _words_of_log(log: dict[str, Any], now_ns: int) -> Iterator[str]:
    ago = (now_ns - log["arrived_ns"]) / 1e9
    yield f"{render.size(log['bytes'])}, up to lsn {log['next_lsn'] - 1}, grew {ago:.0f} s ago"
    if log["problem"]:
        yield log["problem"]
    if log["parents"]:
        parent, lsn = log["parents"][-1]
        yield f"goes on from log {parent} at lsn {lsn}"
    for gap in log["gaps"]:
        yield f"lsn {gap['first']} to {gap['last']} never came: {gap['cause']}"


@_at_hub
@click.option("--deep", is_flag=True, help="Read every byte, as taskq verify does.")
@click.option("--repair", is_flag=True, help="Have devices send again what is wrong; as --deep.")
def check(directory: Path, deep: bool, repair: bool) -> None:
    """Compare the copies with the notes of their sealed segments; exits with 1 if they differ.

    With --repair the device sends damaged segments again at its next sync, if it has them. The hub
    must not be served meanwhile.
    """
    files, registry, is_wrong = _package("copies"), Registry(directory), False
    asked = ": asked for again" if repair else ""
    with _each_device() as each, _alone(directory) if repair else contextlib.nullcontext():
        for name in files.devices(directory):
            with each(name):
                copies = files.kept(directory, name)
                if copies and not registry.is_known(name):
                    is_wrong = True
                    what = "registry.db does not know it: it is older than the copies"
                    render.echo(f"{name}: {what}: taskq hub enroll {directory} {name}")
                for copy in copies:
                    for fault in files.faults_of(copy, deep=deep or repair):
                        is_wrong = True
                        if repair:
                            files.ask_again(registry, fault)
                        render.echo(flat(f"{fault.copy.path}: {fault.what}{asked}"))
    if is_wrong:
        raise Exit(1)


@_at_hub
@_device
@yes_option
def erase(directory: Path, device: str, yes: bool) -> None:
    """Remove all data of a device, and end its tokens; the hub must not be served.

    Jobs that wait for it are cancelled. Its rows in backups and lakes stay.
    """
    registry = Registry(directory)
    registry.known(device)
    if not yes:
        raise WrongUsage(f"all that {directory} has of {device} goes for good: add --yes")
    with _alone(directory):
        registry.erase(device)
        _cancel_open(directory, device)


@_at_hub
@click.argument("target", metavar="DEST", type=_FOLDER)
def backup(directory: Path, target: Path) -> None:
    """Copy a hub to DEST, which is empty or not there, beside its server.

    DEST is a hub: serve it in place of a lost one. The devices send later records again.
    """
    with _each_device() as each:
        count = _package("transport").hub_backed_up(directory, target, each)
        render.echo(f"{target}: {count_of(count, 'log')}")


@_at_hub
@_device
@click.argument("source", metavar="DIR", type=_FOLDER)
def take(directory: Path, device: str, source: Path) -> None:
    """Take in a log of a device that was carried here by hand; the hub must not be served.

    DIR is what taskq backup made of the device's log, or that log itself.
    """
    with _alone(directory):
        log_id, lsn = _package("transport").taken_in(directory.absolute(), device, source)
    render.echo(f"{device}/{log_id}: up to lsn {lsn - 1}")


# -- jobs for devices ------------------------------------------------------------------------------


@_at_hub
@click.argument("to", metavar="NAME|group:GROUP")
@click.argument("task")
@click.argument("arguments", default="{}")
@click.option("-Q", "--queue", help="Name of the queue on the device.  [default: default]")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), help="Higher first.")
@click.option("--attempts", type=click.IntRange(0), help="How often it may run; 0: no limit.")
@click.option("--delay", help='Run after this time, for example "30s" or "2h".')
@click.option("--expires", help="Give up unless it was taken, and ran there, by then.")
@click.option("--key", help="One job of the device at a time may hold it.")
def put(directory: Path, to: str, task: str, arguments: str, **options: Any) -> None:
    """Enqueue a call of TASK for a device, with ARGUMENTS as a JSON object; print the job's id.

    With group:GROUP there is a job for each device of the group. A device takes its job when it
    syncs, if it accepts the task.
    """
    try:
        values = parse_json(arguments, parse_constant=refuse_constant)
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
        group = to.removeprefix("group:")
        given = hub.device(to) if group == to else hub.group(group)
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
        render.echo(f"{count_of(count)} for {device} cancelled")


@_at_hub
@_names
@json_option
def jobs(directory: Path, names: list[str], as_json: bool) -> None:
    """Show the jobs for devices that have not ended yet, the oldest first."""
    waiting: list[tuple[str, JobView, Reason]] = []
    client, registry, hub = _package("client"), Registry(directory), directory.absolute()
    with _each_device() as each:
        for device in client.outbox.devices(hub):
            if not names or device in names:
                with each(device):
                    jobs = client.Outbox(hub, device, registry).open_jobs()
                    waiting += [(device, *job) for job in jobs]
        if as_json:
            render.print_json([view.as_dict() | {"device": device} for device, view, _ in waiting])
        else:
            for device, view, why in waiting:
                render.echo(flat(f"{view.job_id}: {view.task} for {device}: {why.text}"))


def _seconds(text: str) -> float:
    return nanoseconds(text) / 1e9


def _package(name: str, extra: str = "hub") -> Any:
    """Import a module of the hub late, so that help does not load its dependencies."""
    try:
        return importlib.import_module(f"taskq_plugins.hub.{name}")
    except ImportError as error:
        raise Failure(missing("this command", error.name, extra)) from error


@contextlib.contextmanager
def _each_device() -> Iterator[Each]:
    """Let work for one device fail, and name it; exits with 1 then, once the others are done."""
    problems: list[str] = []

    @contextlib.contextmanager
    def each(device: str) -> Iterator[None]:
        try:
            yield
        except (LogError, OSError) as error:
            if getattr(error.__cause__ or error, "errno", None) in _FULL:
                raise  # as it would for the others
            problems.append(flat(f"taskq: {device} is not readable: {error}"))

    yield each
    for problem in problems:
        render.echo(problem, err=True)
    if problems:
        raise Exit(1)


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
