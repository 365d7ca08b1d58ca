"""What shows who asks. A login outlives the server: it is derived from a key beside the log."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from taskq.engine import read_private
from taskq.errors import UsageError

#: In the log's directory; whoever reads it may look at the page, and at the log anyway.
FILE: Final = "web.key"
_KEY_BYTES: Final = 32
_TEXT_MAX: Final = 4_096
#: Addresses that were printed or shown, and not opened yet.
_ENTRIES_MAX: Final = 8


def same(given: str, key: str) -> bool:
    """Return whether it is that key, in a time that tells nothing; an empty one fits none."""
    fits = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
    return fits and bool(key)


class Keys:
    """Tell who asks by what they send.

    Args:
        secret: what programs send as ``Authorization: Bearer``; "" if none may.
        root: what the keys of browsers are derived from; a new one if it is left out.
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
    """Return the key that stands beside a log, for this user alone; made if there is none.

    Return "" where none can be kept or trusted: then a login ends with the server.
    """
    file = Path(directory) / FILE
    if not file.with_name("taskq.json").is_file():  # a log that is made later lies alone
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError, UsageError):
        made_secret(file)
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return read_private(file, _TEXT_MAX).strip()
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
