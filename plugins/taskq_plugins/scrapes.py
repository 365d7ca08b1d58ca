"""Answer Prometheus over HTTP, on a thread, with the metrics of a log or a hub."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server

from taskq.errors import TaskqError

#: Host names of a server on a loopback address.
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@contextlib.contextmanager
def serve(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Listen while the block runs; yield the address to scrape.

    A server on a loopback address answers by its own names only. Otherwise a web page whose name
    leads to this machine (DNS rebinding) could read the figures in the user's browser.

    Args:
        registry: the metrics.
        host: the address to listen at.
        port: the port; 0 takes a free one.

    Raises:
        TaskqError: the address is in use, or this process may not listen there.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise TaskqError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    bound = str(server.server_address[0])
    if ipaddress.ip_address(bound.partition("%")[0]).is_loopback:
        server.set_app(_guarded(server.get_app(), {host, bound, *_LOCAL}))
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _guarded(inner: Any, names: set[str]) -> Callable[[dict[str, Any], Any], Any]:
    """Return the WSGI app with a check of ``Host``'s name; a tunnel may change the port."""

    def answer(environ: dict[str, Any], start: Any) -> Any:
        host = environ.get("HTTP_HOST", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name in names:
            return inner(environ, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"nothing is served by the name {host!r:.80}: ask for localhost\n".encode()]

    return answer
