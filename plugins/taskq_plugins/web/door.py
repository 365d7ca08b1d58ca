"""Access control of the page: keys, host names, origins, and headers for browsers."""

from __future__ import annotations

import base64
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
from taskq.cli import render
from taskq_plugins.web.endpoints import Problem, Role, Visitor

#: A browser before its login, and a person whom the outer app admits without a name.
_NOBODY: Final = Visitor("", Role.READ)
_SOMEBODY: Final = Visitor("", Role.ADMIN)
#: Name and role of a token without both.
_LONE: Final = ("program", "admin")
Refuse = Callable[[Scope, Problem], ASGIApp]


#: Key file in the log's directory: its readers can read the log, too.
FILE: Final = "web.key"
_KEY_BYTES: Final = 32
_TEXT_MAX: Final = 4_096
#: Size of a file of tokens at most, and of a token at least.
TOKENS_BYTES_MAX: Final = 65_536
SECRET_CHARACTERS_MIN: Final = 32
#: Printed or shown addresses that no browser has opened yet, at most.
_ENTRIES_MAX: Final = 8


def same(given: str, key: str) -> bool:
    """Compare keys in constant time; an empty key equals no other."""
    fits = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
    return fits and bool(key)


def visitors_of(text: str) -> dict[str, Visitor]:
    """Return the visitors by token, from lines ``NAME ROLE TOKEN`` or ``TOKEN`` (an admin).

    Raises:
        UsageError: a line has another form, or a token is too short.
    """
    visitors: dict[str, Visitor] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, role, token, *more = [*_LONE, *words] if len(words) == 1 else [*words, "", ""]
        is_token = len(token) >= SECRET_CHARACTERS_MIN and token.isascii() and token.isprintable()
        if not is_token or role.upper() not in Role.__members__ or ":" in name or any(more):
            roles = ", ".join(role.name.lower() for role in Role)
            raise errors.UsageError(
                f"line {number} is no token: write NAME ROLE TOKEN, with one of {roles} and a "
                f"secret of {SECRET_CHARACTERS_MIN} characters without spaces"
            )
        visitors[token] = Visitor(name, Role[role.upper()])
    return visitors


class TokenFile:
    """Tokens in a file. A change takes effect at once; a token without a line is invalid."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: object = None
        self._visitors: dict[str, Visitor] = {}

    def visitors(self) -> dict[str, Visitor]:
        """Return the visitors by token; {} while the file cannot be read or trusted."""
        try:
            stat_now = self._file.stat()
            stamp = stat_now.st_mtime_ns, stat_now.st_size, stat_now.st_ino, stat_now.st_mode
            if stamp != self._stamp:
                is_own = is_private(stat_now.st_mode)
                text = engine.read_private(self._file, TOKENS_BYTES_MAX) if is_own else ""
                self._visitors, self._stamp = visitors_of(text), stamp
        except (OSError, UnicodeDecodeError, errors.UsageError):
            self._visitors, self._stamp = {}, None
        return self._visitors


class AccessKeys:
    """Keys of programs and browsers.

    Args:
        secret: token of programs, in ``Authorization: Bearer``; "" refuses programs.
        root: secret from which browsers' keys are derived; by default a new one.
        tokens: tokens of people and programs, with their roles.
    """

    def __init__(self, secret: str = "", root: str = "", tokens: TokenFile | None = None) -> None:
        self._secret = secret
        self._root = root = root or secrets.token_urlsafe(_KEY_BYTES)
        self._tokens = tokens
        #: cookie of a browser that opened the printed address
        self.session = self.cookie(_owner())
        #: token in every form, against cross-site request forgery
        self.form = _derived(root, "form")
        self._entries: dict[str, Visitor] = {}

    def entry(self, visitor: Visitor | None = None) -> str:
        """Return a token for an address that admits one browser, once, as this visitor."""
        token = secrets.token_urlsafe(_KEY_BYTES)
        kept = list(self._entries.items())[1 - _ENTRIES_MAX :]
        self._entries = {**dict(kept), token: visitor or _owner()}
        return token

    def enter(self, given: str) -> str:
        """Return the cookie for the token of an address; "" for another token."""
        for token, visitor in self._entries.items():
            if same(given, token):
                del self._entries[token]
                return self.cookie(visitor)
        return ""

    def log_in(self, given: str) -> str:
        """Return the cookie for a token of the file, or of an address; "" for another token."""
        of_file = self._of_file(given)
        return self.enter(given) if of_file is None else self.cookie(of_file, given)

    def may_invite(self, cookie: str) -> bool:
        """Return whether a browser was admitted by an address, and so may invite others.

        Visitors of the file may not: their access ends with their line, an invited browser's does
        not.
        """
        _, _, rest = cookie.partition(".")
        is_of_file = rest.partition(".")[0] not in Role.__members__
        return not is_of_file and self.visitor_of_cookie(cookie) is not None

    def cookie(self, visitor: Visitor, token: str = "") -> str:
        """Return the cookie of a visitor; with a token of the file it is valid as long as that."""
        name = base64.urlsafe_b64encode(visitor.name.encode()).decode().rstrip("=")
        head = f"{name}.{'file' if token else visitor.role.name}"
        return f"{head}.{_derived(self._root, f'session {head} {token}')}"

    def visitor_of_cookie(self, cookie: str) -> Visitor | None:
        """Return the visitor of a cookie; None for a foreign cookie."""
        name, _, rest = cookie.partition(".")
        role = rest.partition(".")[0]
        try:
            name = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        except ValueError:
            return None
        if role in Role.__members__:
            known = {"": Visitor(name, Role[role])}
        else:
            tokens = self._tokens.visitors() if self._tokens is not None else {}
            known = {token: it for token, it in tokens.items() if it.name == name}
        return next(
            (it for token, it in known.items() if same(cookie, self.cookie(it, token))), None
        )

    def visitor_of_header(self, authorization: str) -> Visitor | None:
        """Return the visitor of an ``Authorization: Bearer``; None for a foreign token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        if same(given.strip(), self._secret):
            return Visitor("program", Role.ADMIN)
        return self._of_file(given.strip())

    def _of_file(self, given: str) -> Visitor | None:
        tokens = self._tokens.visitors() if self._tokens is not None else {}
        return next((it for token, it in tokens.items() if same(given, token)), None)


def _owner() -> Visitor:
    """Return the user of the server as an admin."""
    return Visitor(render.person(), Role.ADMIN)


def kept_root(directory: str) -> str:
    """Return the private key in the log's directory, made on first use.

    Return "" if a key cannot be written or trusted; then logins end with the server.
    """
    file = Path(directory) / FILE
    if not file.with_name("taskq.json").is_file():  # no log yet: its directory must stay empty
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError, errors.UsageError):
        made_secret(file)
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and is_private(mode):
            return engine.read_private(file, _TEXT_MAX).strip()
    return ""


def is_private(mode: int) -> bool:
    return not mode & (stat.S_IRWXG | stat.S_IRWXO)


def made_secret(file: Path) -> None:
    """Write a new secret into a file that only this user may read, unless the file exists.

    The file appears with its whole content, so another starting process never reads a part.

    Raises:
        OSError: the file cannot be written.
    """
    if file.exists():
        return
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(new, flags, stat.S_IRUSR | stat.S_IWUSR), "w", encoding="ascii") as opened:  # noqa: PTH123 - a descriptor
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
#: Size of a request; larger payloads need a program that opens the log.
BODY_BYTES_MAX: Final = 2 * 1024 * 1024
#: Path of the printed address, for browsers without a cookie.
ENTRY: Final = "/enter"
#: Style and script of pages and refusals, without access control.
FILES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_OPEN: Final = frozenset(f"/static/{name}" for name in FILES)
API: Final = "/api/"
SAFE: Final = frozenset({"GET", "HEAD"})
#: Only files of this server: no inline script or style, and no form with another target.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
#: With "no-referrer" a browser would send our own forms with the origin "null".
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
    """Return the path at which an outer app has mounted this one, or ""."""
    root: str = scope.get("root_path", "")
    return root


def path_of(scope: Scope) -> str:
    return scope["path"].removeprefix(root_of(scope)) or "/"


@values.dataclass(frozen=True, slots=True, kw_only=True)
class SiteAddress:
    """Address and rights of the page.

    Attributes:
        scheme: "https" with TLS.
        hosts: allowed values of ``Host``, the printed one first; empty if the outer app checks it.
        allow_actions: whether requests may change the log.
        allows: check by the outer app's login, which may return a ``Visitor``; None: use our keys.
        show_secrets: whether people see secret values.
    """

    scheme: Literal["http", "https"]
    hosts: tuple[str, ...]
    allow_actions: bool
    allows: Callable[[Request], bool | Visitor] | None = None
    show_secrets: bool = False

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.hosts[0]}"

    @property
    def cookie(self) -> str:
        """Name of the cookie, with the port, since browsers share cookies between ports."""
        return f"taskq_{self.hosts[0].rpartition(':')[2]}" if self.hosts else "taskq"

    def cookie_header(self, value: str, scheme: str) -> str:
        secure = "; Secure" if scheme == "https" else ""
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


class Door:
    """Admit a request, or refuse it with a problem.

    A server on 127.0.0.1 is open to every page in the same browser, and to every user of the
    machine, so every request needs a key. Requests from other origins are refused. So are other
    host names, by which a foreign page would get our origin (DNS rebinding).

    Args:
        inner: the guarded app; its ``state`` gets ``visitor`` and ``hides``.
        place: address and rights.
        keys: keys of programs and browsers.
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
            return  # the server refuses a websocket that the app does not accept

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            visitor, by = self._check(scope)
        except Problem as problem:
            await self._refuse(scope, problem)(scope, receive, send_guarded)
            return
        scope["path_params"] = {}  # drop the outer app's parameters
        hides = by != "program" and not self._place.show_secrets
        scope.setdefault("state", {}).update(visitor=visitor, hides=hides)
        await self._inner(scope, _bounded(receive), send_guarded)

    def _check(self, scope: Scope) -> tuple[Visitor, str]:
        """Return the visitor, and "program", "reader", "person", or "" before a login.

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
        # A mounted app may have a proxy before it, and only the proxy knows the scheme.
        scheme = self._place.scheme if self._place.hosts else (origin or "").partition(":")[0]
        if origin is not None and origin != f"{scheme}://{host}":
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"a page of {origin!r:.80} may not ask here: open http://{host} itself",
            )
        is_act = scope["method"] not in SAFE
        visitor, by = self._visitor(scope, headers)
        if not self._place.allow_actions:
            visitor = visitor._replace(role=Role.READ)
        if is_act:
            self._check_act(scope, by, visitor, origin)
        return visitor, by

    def _visitor(self, scope: Scope, headers: Headers) -> tuple[Visitor, str]:
        if path_of(scope) in _OPEN:
            return _NOBODY, ""
        visitor = self._keys.visitor_of_header(headers.get("authorization", ""))
        if visitor is not None:
            return visitor, "program" if visitor.role > Role.READ else "reader"
        if self._place.allows is not None:
            allowed = self._place.allows(Request(scope))
            if allowed:
                return allowed if isinstance(allowed, Visitor) else _SOMEBODY, "person"
            raise Problem(
                HTTPStatus.FORBIDDEN, "you may not look here: ask the operator of this app"
            )
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        name = self._place.cookie
        for key, _, value in cookies:
            visitor = self._keys.visitor_of_cookie(value) if key == name else None
            if visitor is not None:
                return visitor, "person"
        if path_of(scope) == ENTRY:
            return _NOBODY, ""
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "nobody is known by this request: open the address that taskq web printed (it is good "
            "for one browser; the page Log of that browser shows another address). Programs send "
            "the contents of the --token-file (as Authorization, Bearer)",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_act(self, scope: Scope, by: str, visitor: Visitor, origin: str | None) -> None:
        is_entry = path_of(scope) == ENTRY
        if not (self._place.allow_actions or is_entry):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "nothing may be changed here: start taskq web with --allow-actions",
            )
        if visitor.role < Role.OPERATE and not is_entry:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"{visitor.name or 'you'} may read here, and change nothing: ask for a token with "
                f"the role operate or admin",
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
