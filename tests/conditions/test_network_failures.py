"""What counts as a failure of the network, also of clients that are not imported for it."""

from __future__ import annotations

import errno
import socket
import urllib.error

import pytest

from taskq.conditions.failures import is_network_failure


def _made_in(module: str, name: str, *bases: type[Exception]) -> Exception:
    kind: type[Exception] = type(name, bases or (Exception,), {"__module__": module})
    return kind("no")


def _caused_by(cause: Exception) -> Exception:
    error = ValueError("no answer")
    error.__cause__ = cause
    return error


_TRANSPORT = type("TransportError", (Exception,), {"__module__": "httpx"})


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        urllib.error.URLError(ConnectionRefusedError(111, "refused")),
        _made_in("httpx._exceptions", "TransportError"),
        _made_in("httpx._exceptions", "ConnectError", _TRANSPORT),
        _made_in("aiohttp.client_exceptions", "ClientConnectionError"),
        _caused_by(ConnectionResetError()),
    ],
)
def test_errors_of_connections_names_and_timeouts_are_the_networks(error: Exception) -> None:
    assert is_network_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        FileNotFoundError(2, "No such file"),
        OSError(errno.ENOSPC, "full"),
        _made_in("other", "TransportError"),
        _caused_by(ValueError()),
        urllib.error.URLError("unknown url type"),
    ],
)
def test_other_errors_are_the_jobs_own(error: Exception) -> None:
    assert not is_network_failure(error)


def test_a_loop_of_causes_comes_to_an_end() -> None:
    error = ValueError()
    error.__cause__ = error
    assert not is_network_failure(error)
