"""Which errors mean that the network failed, and not the job."""

from __future__ import annotations

import errno
from typing import Any, Final

from taskq.core.exceptions import generations, is_a, names_of

#: Error numbers of an ``OSError`` that come from the network.
NETWORK_ERRNOS: Final = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EADDRNOTAVAIL,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EPIPE,
    }
)
#: Errors of widespread clients and of sockets, by name, since none of them is imported for this.
NETWORK_ERRORS: Final = frozenset(
    {
        "aiohttp.ClientConnectionError",
        "httpcore.NetworkError",
        "httpcore.TimeoutException",
        "httpx.TransportError",
        "requests.ConnectionError",
        "requests.Timeout",
        "socket.gaierror",
        "socket.herror",
        "urllib3.MaxRetryError",
        "urllib3.TimeoutError",
    }
)
_ERRNO: Final[Any] = vars(OSError)["errno"]


def is_network_failure(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that the network failed.

    A group does if one of its failures does.
    """
    return any(_is_network(item) for generation in generations(error) for item in generation)


def _is_network(error: BaseException) -> bool:
    if is_a(error, (ConnectionError, TimeoutError)):
        return True
    if is_a(error, OSError):
        if _ERRNO.__get__(error) in NETWORK_ERRNOS:
            return True
        # urllib.error.URLError keeps what it met here.
        reason = vars(error).get("reason")
        if reason is not error and is_a(reason, OSError) and is_network_failure(reason):
            return True
    names = map(names_of, type.mro(type(error)))
    return any(f"{home.partition('.')[0]}.{name}" in NETWORK_ERRORS for home, name in names)
