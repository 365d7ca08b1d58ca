"""Who may send: a token names its device, and the hub keeps its hash alone.

``HUB/devices/<device>/device.json`` holds the SHA-256 of each token of the device, two at most: the
old one goes when another is made. No index is needed, since the token tells whose it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_DEVICE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_TOKEN: Final = re.compile(r"tq1\.([a-z0-9][a-z0-9-]{0,62})\.[A-Za-z0-9_-]{43}\Z")
_SECRET_BYTES: Final = 32
#: So many tokens of a device hold at a time: the one in use, and the next.
_TOKENS_MAX: Final = 2
_FILE_BYTES_MAX: Final = 64 * 1024


def enrol(hub: Path, device: str) -> str:
    """Give a device a token, which is told this once; of those it had the latest holds on.

    Raises:
        UsageError: that is no name of a device.
    """
    if not _DEVICE.match(device):
        raise UsageError(
            f"{device!r} is no name of a device: it has up to 63 small letters, digits and '-'"
        )
    token = f"tq1.{device}.{secrets.token_urlsafe(_SECRET_BYTES)}"
    folder = hub / "devices" / device
    folder.mkdir(parents=True, exist_ok=True)
    hashes = [*_hashes(hub, device), _hash(token)][-_TOKENS_MAX:]
    temporary = folder / "device.json.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        json.dump({"tokens": hashes}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "device.json")
    return token


def device_of(hub: Path, token: str) -> str | None:
    """The device that a token names; None if it holds no more, or never did."""
    found = _TOKEN.match(token)
    if found is None:
        return None
    given, is_known = _hash(token), False
    for known in _hashes(hub, found[1]):
        is_known |= hmac.compare_digest(given, known)
    return found[1] if is_known else None


def _hashes(hub: Path, device: str) -> list[str]:
    try:
        with (hub / "devices" / device / "device.json").open("rb") as file:
            values = json.loads(file.read(_FILE_BYTES_MAX))
        return [str(one) for one in values["tokens"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
