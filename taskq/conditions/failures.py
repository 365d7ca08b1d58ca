"""Which errors mean that the network failed, and not the job."""

from __future__ import annotations

import errno
from typing import Final

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
#: An error that was raised from another is judged by that one, too, so many steps back.
_CAUSES_MAX: Final = 5


def is_network_failure(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, says that the network failed."""
    current: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if current is None:
            return False
        if _is_network(current):
            return True
        # urllib.error.URLError keeps what it met here.
        reason = getattr(current, "reason", None)
        current = reason if isinstance(reason, OSError) else current.__cause__
    return False


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in NETWORK_ERRNOS:
        return True
    return any(
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in NETWORK_ERRORS
        for kind in type(error).__mro__
    )
