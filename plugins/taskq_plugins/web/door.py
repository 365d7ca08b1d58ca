"""Access to the page: keys, host names, origins, and headers for browsers."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskq import engine, errors, values
from taskq_plugins.web.endpoints import Problem

Refuse = Callable[[Scope, Problem], ASGIApp]


#: In the log's directory: a user who can read it can read the log, too.
FILE: Final = "web.key"
_KEY_BYTES: Final = 32
_TEXT_MAX: Final = 4_096
#: Addresses that were printed or shown, and not opened yet.
_ENTRIES_MAX: Final = 8


def same(given: str, key: str) -> bool:
    """Compare keys in constant time; an empty key fits none."""
    fits = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
    return fits and bool(key)


class AccessKeys:
    """Keys of programs and browsers.

    Args:
        secret: of programs, in ``Authorization: Bearer``; "" refuses programs.
        root: source of the browsers' keys; by default a new one.
    """

    def __init__(self, secret: str = "", root: str = "") -> None:
        self._secret = secret
        root = root or secrets.token_urlsafe(_KEY_BYTES)
        #: of the cookie
        self.session = _derived(root, "session")
        #: in every form: without it a request that the browser was tricked into changes nothing
        self.form = _derived(root, "form")
        self._entries: list[str] = []

    def entry(self) -> str:
        """Return the token of an address that lets one browser in, once."""
        token = secrets.token_urlsafe(_KEY_BYTES)
        self._entries = [*self._entries[1 - _ENTRIES_MAX :], token]
        return token

    def enter(self, given: str) -> bool:
        for token in self._entries:
            if same(given, token):
                self._entries.remove(token)
                return True
        return False

    def is_secret(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and same(given.strip(), self._secret)


def kept_root(directory: str) -> str:
    """Return the private key in the log's directory, made on first use.

    "" if a key cannot be written or trusted: then a login ends with the server.
    """
    file = Path(directory) / FILE
    if not file.with_name("taskq.json").is_file():  # a log that is made later lies alone
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError, errors.UsageError):
        made_secret(file)
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return engine.read_private(file, _TEXT_MAX).strip()
    return ""


def made_secret(file: Path) -> None:
    """Write a new secret into a file that only this user may read, unless it is there.

    It appears whole: another process that starts just now reads all of it or makes none.

    Raises:
        OSError: it cannot be written.
    """
    if file.exists():
        return
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(new, flags, stat.S_IRUSR | stat.S_IWUSR), "w", encoding="ascii") as opened:  # noqa: PTH123 - by its descriptor
        opened.write(f"{secrets.token_urlsafe(_KEY_BYTES)}\n")
    try:
        os.link(new, file)
    except FileExistsError:
        pass  # another process was faster
    finally:
        new.unlink()


def _derived(root: str, purpose: str) -> str:
    return hmac.new(root.encode(), purpose.encode(), hashlib.sha256).hexdigest()


PATH_BYTES_MAX: Final = 2_048
QUERY_BYTES_MAX: Final = 8_192
#: A request. Larger payloads are enqueued by a program that opens the log.
BODY_BYTES_MAX: Final = 2 * 1024 * 1024
#: Path of the printed address, before any cookie.
ENTRY: Final = "/enter"
#: Style and script of pages and refusals, open to everybody.
FILES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_OPEN: Final = frozenset(f"/static/{name}" for name in FILES)
API: Final = "/api/"
_SAFE: Final = frozenset({"GET", "HEAD"})
#: Nothing but files of our own: no script or style within a page, and no form that leads elsewhere.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
#: With "no-referrer" a browser would send our own forms as of the origin "null".
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def root_of(scope: Scope) -> str:
    """Return where an app that this one is mounted in has put it; "" if it stands alone."""
    root: str = scope.get("root_path", "")
    return root


def path_of(scope: Scope) -> str:
    return scope["path"].removeprefix(root_of(scope)) or "/"


@values.dataclass(frozen=True, slots=True, kw_only=True)
class SiteAddress:
    """Address and rights of the page.

    Attributes:
        scheme: "https" with TLS.
        hosts: allowed values of ``Host``, the printed one first; empty if the outer app checks.
        allow_actions: whether requests may change the log.
        allows: check by the outer app's login; None: by our keys.
        show_secrets: whether people see secret values.
    """

    scheme: Literal["http", "https"]
    hosts: tuple[str, ...]
    allow_actions: bool
    allows: Callable[[Request], bool] | None = None
    show_secrets: bool = False

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.hosts[0]}"

    @property
    def cookie(self) -> str:
        """Name of the cookie, with the port: browsers share cookies between ports."""
        return f"taskq_{self.hosts[0].rpartition(':')[2]}" if self.hosts else "taskq"

    def cookie_header(self, value: str, scheme: str) -> str:
        secure = "; Secure" if scheme == "https" else ""
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


class Door:
    """Let a request through, or refuse it with a problem.

    A server on 127.0.0.1 is open to every page in the same browser, and to every user of the
    machine. So every request needs a key. Pages of other origins are refused, and so are other
    names of this machine, which would give a foreign page our origin (DNS rebinding).

    Args:
        inner: the guarded app; its ``state`` gets ``by``, "program" or "person", and ``hides``.
        place: address and rights.
        keys: of programs and browsers.
        refuse: makes a response from a problem.
    """

    def __init__(
        self, inner: ASGIApp, place: SiteAddress, keys: AccessKeys, refuse: Refuse
    ) -> None:
        self._inner = inner
        self._place = place
        self._keys = keys
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a server that speaks websockets refuses what is not accepted

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            by = self._check(scope)
        except Problem as problem:
            await self._refuse(scope, problem)(scope, receive, send_guarded)
            return
        scope["path_params"] = {}  # of an address that the page is mounted at: no question's
        hides = by == "person" and not self._place.show_secrets
        scope.setdefault("state", {}).update(by=by, hides=hides)
        await self._inner(scope, _bounded(receive), send_guarded)

    def _check(self, scope: Scope) -> str:
        """Return the client: "program", "person", or "" for a browser before its login.

        Raises:
            Problem: the request is refused.
        """
        headers = Headers(scope=scope)
        _check_sizes(scope, headers)
        host = ",".join(headers.getlist("host")).lower()
        if self._place.hosts and host not in self._place.hosts:
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"nothing is served by the name {host!r:.80}: open {self._place.address}, or give "
                f"the name with --name at the start",
            )
        origin = headers.get("origin")
        # For a mounted app only a proxy may know the scheme.
        scheme = self._place.scheme if self._place.hosts else (origin or "").partition(":")[0]
        if origin is not None and origin != f"{scheme}://{host}":
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"a page of {origin!r:.80} may not ask here: open http://{host} itself",
            )
        is_act = scope["method"] not in _SAFE
        by = self._who(scope, headers)
        if is_act:
            self._check_act(scope, by, origin)
        return by

    def _who(self, scope: Scope, headers: Headers) -> str:
        if path_of(scope) in _OPEN:
            return ""
        if self._keys.is_secret(headers.get("authorization", "")):
            return "program"
        if self._place.allows is not None:
            if self._place.allows(Request(scope)):
                return "person"
            raise Problem(HTTPStatus.FORBIDDEN, "you may not look here: ask who runs this app")
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        name = self._place.cookie
        if any(key == name and same(value, self._keys.session) for key, _, value in cookies):
            return "person"
        if path_of(scope) == ENTRY:
            return ""
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "nobody is known by this request: open the address that taskq web printed (it is good "
            "for one browser; one that is in shows another address on its page Log). Programs send "
            "what stands in the --token-file (as Authorization, Bearer)",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_act(self, scope: Scope, by: str, origin: str | None) -> None:
        if not self._place.allow_actions:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "nothing may be changed here: start taskq web with --allow-actions",
            )
        if by == "program":
            return
        if path_of(scope).startswith(API):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "a cookie changes nothing through the API: send Authorization: Bearer and what "
                "stands in the --token-file",
            )
        if origin is None:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "a form of no known origin changes nothing: open the page itself",
            )


def _check_sizes(scope: Scope, headers: Headers) -> None:
    if len(scope["path"]) > PATH_BYTES_MAX or len(scope["query_string"]) > QUERY_BYTES_MAX:
        raise Problem(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            f"a path may have {PATH_BYTES_MAX} bytes and a query {QUERY_BYTES_MAX}: ask for less",
        )
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length[:20]) > BODY_BYTES_MAX:
        raise _too_large()


def _bounded(receive: Receive) -> Receive:
    """Limit the bytes of a body, regardless of its Content-Length."""
    size = 0

    async def receive_bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            raise _too_large()
        return message

    return receive_bounded


def _too_large() -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a body may have {BODY_BYTES_MAX} bytes: store the data in a file and pass its path",
    )
