"""``taskq web``: a page and a JSON API of one log."""

from __future__ import annotations

import importlib
import ipaddress
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskq import engine, errors, extras
from taskq.cli import Failure, WrongUsage, log_argument, open_reader, render, resolve

if TYPE_CHECKING:  # help must not need the extra
    from taskq_plugins.web.door import SiteAddress

_PORT_MAX: Final = 65_535
_FILE: Final = click.Path(path_type=Path, dir_okay=False)
#: File that marks a hub's directory.
_REGISTRY: Final = "registry.db"


@click.command()
@log_argument
@click.option(
    "--bind",
    metavar="HOST[:PORT]",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0,
    help="The port, unless --bind names it; 0 for a free one.  [default: 0]",
)  # fmt: skip
@click.option(
    "--name", "names", multiple=True, help="Another name or address that leads there. Repeatable."
)
@click.option("--tls-cert", type=_FILE, help="Certificate, as PEM.")
@click.option("--tls-key", type=_FILE, help="Its key, as PEM.")
@click.option("--allow-actions", is_flag=True, help="Let it change the log, too.")
@click.option("--show-secrets", is_flag=True, help="Show what names call secret, too.")
@click.option(
    "--token-file",
    type=_FILE,
    help="Tokens, a line each: NAME ROLE TOKEN, roles read, operate and admin; or one secret of "
    "programs. Made when it is missing.",
)
def web(
    data_dir: Path | None,
    bind: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    allow_actions: bool,
    show_secrets: bool,
    token_file: Path | None,
) -> None:
    """Show the log in a browser, and to programs as JSON at /api/, until stopped.

    Of a hub it shows the devices, and the log of each.

    The printed address is good for one browser, once. Programs send a token of --token-file as
    Authorization: Bearer, people enter it at /enter. Everything is read from the directory, beside
    any number of live processes; nothing can be changed without --allow-actions.
    """
    try:
        from taskq_plugins.patience import listen  # noqa: PLC0415 - help must not need the extra
        from taskq_plugins.web import door, mount  # noqa: PLC0415 - as above
    except ImportError as error:
        raise Failure(extras.missing("taskq web", error.name, "web")) from error
    if allow_actions and resolve(data_dir).is_file():
        raise WrongUsage(f"{data_dir} is a case file, to be looked at: leave out --allow-actions")
    hub = data_dir if data_dir is not None and (data_dir / _REGISTRY).is_file() else None
    if hub is not None:
        path = str(hub.absolute())
    else:
        with open_reader(data_dir) as reader:  # fail now, not in a browser
            path = reader.journal.path
    address, port = _address(bind, port)
    if (tls_cert is None) != (tls_key is None):
        raise WrongUsage("give --tls-cert and --tls-key together")
    tls = None if tls_cert is None or tls_key is None else (str(tls_cert), str(tls_key))
    if not address.is_loopback and tls is None:
        raise WrongUsage(
            f"--bind {bind} is reached from other machines, where anybody on the way could read "
            f"the token: give --tls-cert and --tls-key, or stay at 127.0.0.1 and use a tunnel"
        )
    _secret(token_file)
    tokens = None if token_file is None else door.TokenFile(token_file)
    with listen(str(address), port) as listener:
        place = _place(address, listener.getsockname()[1], names, tls is not None, allow_actions)
        place = replace(place, show_secrets=show_secrets)
        known = door.AccessKeys(root=door.kept_root(path), tokens=tokens)

        def ready() -> None:
            render.echo(f"{place.address}{door.ENTRY}?token={known.entry()}")

        if hub is None:
            made = mount.make_site(path, place, known)
        else:  # the hub's plugin, found by name, since plugins do not import each other
            registry = importlib.import_module("taskq_plugins.hub.registry").Registry(hub)
            made = mount.make_hub(path, place, known, registry.all_standing)
        mount.serve(made, listener, tls, ready)


def _address(bind: str, port: int) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    if named := re.fullmatch(r"(?:\[([^]]+)\]|([^:]+)):(\d{1,5})", bind):
        bind, port = named[1] or named[2], int(named[3])
        if port > _PORT_MAX:
            raise WrongUsage(f"--bind names port {port}: there are {_PORT_MAX}")
    try:
        return ipaddress.ip_address(bind), port
    except ValueError:
        raise WrongUsage(
            f"--bind {bind!r:.80} is no address: write 127.0.0.1, ::1 or one of this machine's"
        ) from None


def _place(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    port: int,
    names: tuple[str, ...],
    is_tls: bool,
    allow_actions: bool,
) -> SiteAddress:
    """Return the site's names: the given ones, the address, and localhost on a loopback address.

    Raises:
        WrongUsage: the wildcard address needs a name that a browser can open.
    """
    from taskq_plugins.web.door import SiteAddress  # noqa: PLC0415 - as above

    if address.is_unspecified and not names:
        raise WrongUsage(
            f"--bind {address} has no name of its own: give the browsers' name for it with --name"
        )
    own = (
        [] if address.is_unspecified else [f"[{address}]" if ":" in str(address) else str(address)]
    )
    local = ["localhost"] if address.is_loopback else []
    usual = 443 if is_tls else 80
    hosts = [f"{name.lower()}:{port}" for name in (*names, *own, *local)]
    if port == usual:  # browsers omit the default port
        hosts += [host.rpartition(":")[0] for host in hosts]
    return SiteAddress(
        scheme="https" if is_tls else "http", hosts=tuple(hosts), allow_actions=allow_actions
    )


def _secret(file: Path | None) -> str:
    """Return the text of a file of tokens; "" without a file.

    Raises:
        Failure: the file cannot be read or created.
        WrongUsage: a line is not a token, or other users may read the file.
    """
    if file is None:
        return ""
    from taskq_plugins.web import door  # noqa: PLC0415 - as above

    try:
        door.made_secret(file)
        if not door.is_private(file.stat().st_mode):
            raise WrongUsage(f"--token-file {file} may be read by others: chmod 600 {file}")
        secret = engine.read_private(file, door.TOKENS_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no UTF-8" if isinstance(error, ValueError) else error.strerror
        raise Failure(f"--token-file {file}: {why}. Check the path and its permissions") from error
    try:
        visitors = door.visitors_of(secret)
    except errors.UsageError as error:
        raise WrongUsage(f"--token-file {file}: {error}") from error
    if not visitors:
        raise WrongUsage(f"--token-file {file} holds no token: remove it, and one is made")
    return secret
