"""``taskq hub`` and ``taskq sync``: logs of many machines in one place."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli.errors import Failure, WrongUsage
from taskq.cli.options import log_argument, open_reader
from taskq_plugins.hub.devices import enrol as enrol_device
from taskq_plugins.hub.outbox.commands import group, put, show

if TYPE_CHECKING:
    from collections.abc import Iterator

_PORTS: Final = 1 << 16
_PORT_DEFAULT: Final = 8470
_TOKEN_BYTES_MAX: Final = 4_096
_ENROL_FIRST: Final = (
    "the hub asks for a token: run 'taskq hub enrol HUB NAME' there, keep what it prints in a "
    "file, and give --token-file FILE"
)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group()
def hub() -> None:
    """Keep copies of other machines' logs, byte for byte, where every read command works."""


for _command in (group, put, show):
    hub.add_command(_command)


@hub.command()
@click.argument("directory", metavar="HUB", type=_FOLDER)
@click.argument("device")
def enrol(directory: Path, device: str) -> None:
    """Give a device a token, and print it; of those it had the latest holds on.

    The token is told this once. On the device it goes into a file that its user alone may read.
    """
    click.echo(enrol_device(directory, device))


@hub.command()
@click.argument("directory", metavar="HUB", type=_FOLDER)
@click.option(
    "--bind",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{_PORT_DEFAULT}",
    show_default=True,
    help="Listen there. Tokens go in clear text: to be reached by others it needs a proxy with TLS "
    "before it, which also bounds how long headers may come.",
)
def serve(directory: Path, bind: str) -> None:
    """Answer the devices that were enrolled, until stopped.

    What is stored lies in HUB/devices/<device>/<log id>, a task log that read commands take with -d
    while it is written.
    """
    server, uvicorn = _package("taskq_plugins.hub.server"), _package("uvicorn")
    host, _, port = bind.rpartition(":")
    if not (host and port.isascii() and port.isdecimal()) or int(port) >= _PORTS:
        raise WrongUsage(f"--bind {bind!r} is no place to listen: write 127.0.0.1:{_PORT_DEFAULT}")
    with _alone(directory):
        click.echo(f"hub {directory} at http://{bind}", err=True)
        # One process and one loop: each copy has one writer.
        uvicorn.run(
            server.Server(directory.absolute()).app,
            http=server.Protocol,
            host=host.strip("[]"),
            port=int(port),
            log_level="warning",
            server_header=False,
            h11_max_incomplete_event_size=16 * 1024,
            limit_concurrency=512,
        )


@click.command()
@log_argument
@click.option("--url", metavar="URL", help="The hub.  [default: url of [hub] in the settings]")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the hub printed at enrol.  [default: token or token_file of [hub]]",
)
def sync(data_dir: Path | None, url: str | None, token_file: Path | None) -> None:
    """Send a hub what it lacks of the log, once, then exit.

    Workers and enqueues go on meanwhile. What the hub had before is found by what stands there, so
    it does not matter how the last try ended.
    """
    syncing = _package("taskq_plugins.hub.sync")
    from taskq.connection.settings import HubSettings, load_settings  # noqa: PLC0415 - not for help

    settings = load_settings(None).hub or HubSettings()
    url = url or settings.url
    if not url:
        raise WrongUsage("which hub? Give --url https://…, or url in [hub] of taskq.toml")
    token = settings.token.get_secret_value() if settings.token and not token_file else ""
    file = token_file or settings.token_file
    if not token and file is not None:
        with file.open(encoding="utf-8") as opened:
            token = opened.read(_TOKEN_BYTES_MAX)
    if not token.strip():
        raise WrongUsage(_ENROL_FIRST)
    with open_reader(data_dir) as reader:
        path = reader.path
    done = syncing.run(path, syncing.Line(url, token.strip(), None, settings))
    words = ", ".join(one.value for one in done.verdicts)
    click.echo(f"{path}: in sync up to lsn {done.end.next_lsn - 1} ({words}; {done.sent_bytes} B)")
    if any(done.taken):
        jobs, refused, cancelled = done.taken
        click.echo(f"{path}: {jobs} jobs came, {refused} were refused, {cancelled} cancelled")


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
