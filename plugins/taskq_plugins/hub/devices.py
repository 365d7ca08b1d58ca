"""Who may send: a token names its device, and the hub keeps its hash alone.

``HUB/devices/<device>/.device.json`` holds the SHA-256 of each token of the device, two at most:
the old one goes when another is made. No index is needed, since token and code tell whose they are.
A device is bound to the first machine that tells which it is: a copied token is noticed by that.
``.heard.json`` beside it is for people: when the device was last heard of, and how it stood. What a
shell makes of ``HUB/devices/<device>/*`` is the device's logs and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import PatientDisk
from taskq.errors import UsageError
from taskq.values import SECOND_NS

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = r"([a-z0-9][a-z0-9-]{0,62})"
_DEVICE: Final = re.compile(_NAME + r"\Z")
_TOKEN: Final = re.compile(rf"tq1\.{_NAME}\.[A-Za-z0-9_-]{{43}}\Z")
_CODE: Final = re.compile(rf"{_NAME}\.[A-Z2-7]{{16}}\Z")
_SECRET_BYTES: Final = 32
_CODE_BYTES: Final = 10
#: So many tokens of a device hold at a time: the one in use, and the next.
_TOKENS_MAX: Final = 2
_FILE_BYTES_MAX: Final = 64 * 1024
_NOTE_BYTES: Final = 1_024
_DAY_NS: Final = 86_400 * SECOND_NS
#: So often a device's log may be set back within a day.
_FORKS_MAX: Final = 3


def enrol(hub: Path, device: str, machine: str = "") -> str:
    """Give a device a token, which is told this once; of those it had the latest holds on.

    Raises:
        UsageError: that is no name of a device.
    """
    token = f"tq1.{checked(device)}.{secrets.token_urlsafe(_SECRET_BYTES)}"
    hashes = [*_device(hub, device).get("tokens", []), _hash(token)][-_TOKENS_MAX:]
    _change(hub, device, tokens=hashes, machine=machine, code=None, state="active", forks=[])
    return token


def invite(hub: Path, device: str) -> str:
    """Give a device a code for which it gets a token: once, within a day.

    Raises:
        UsageError: that is no name of a device.
    """
    secret = base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode()
    code = f"{checked(device)}.{secret}"
    _change(hub, device, code=[_hash(code), time.time_ns() + _DAY_NS])
    return code


def redeem(hub: Path, code: str, machine: str) -> str | None:
    """Return the token for a code; None if it holds no more, or never did."""
    match = _CODE.match(code)
    kept = _device(hub, match[1]).get("code") if match else None
    if match is None or not kept or not hmac.compare_digest(_hash(code), str(kept[0])):
        return None
    return enrol(hub, match[1], machine) if time.time_ns() < kept[1] else None


def device_of(hub: Path, token: str) -> str | None:
    """Return the device that a token names; None if it holds no more, or never did."""
    match = _TOKEN.match(token)
    if match is None:
        return None
    given, is_known = _hash(token), False
    for known in _device(hub, match[1]).get("tokens", []):
        is_known |= hmac.compare_digest(given, str(known))
    return match[1] if is_known else None


def is_bound(hub: Path, device: str, machine: str) -> bool:
    """Return whether the device is that machine; the first to say which it is decides."""
    bound = _device(hub, device).get("machine", "")
    if machine and not bound:
        _change(hub, device, machine=machine)
    return not (machine and bound) or hmac.compare_digest(machine, str(bound))


def move(hub: Path, device: str) -> None:
    """Let the next machine that comes with the device's token be the device, held or not."""
    state = facts(hub, known(hub, device))["state"]
    _change(hub, device, machine="", forks=[], state="active" if state == "held" else state)


def retire(hub: Path, device: str) -> None:
    """Let no token of the device hold any more; what it sent stays."""
    _change(hub, known(hub, device), tokens=[], code=None, state="retired")


def erase(hub: Path, device: str) -> None:
    """Remove all that a hub has of a device, which nobody may serve meanwhile."""
    retire(hub, device)  # a token that was used once more would bring some of it back
    folder, going, disk = hub / "devices" / device, hub / f".{device}.gone", PatientDisk()
    shutil.rmtree(going, ignore_errors=True)  # of a try that was cut short
    folder.rename(going)
    disk.sync_directory(str(folder.parent))
    shutil.rmtree(going)


def devices(hub: Path) -> list[str]:
    """Return the names of all, sorted."""
    try:
        return sorted(
            folder.name for folder in (hub / "devices").iterdir() if _DEVICE.match(folder.name)
        )
    except FileNotFoundError:
        return []


def facts(hub: Path, device: str) -> dict[str, Any]:
    """Return what was last noted of a device, with its ``state``."""
    known = _read(hub / "devices" / device / ".heard.json")
    return known | {"state": _device(hub, device).get("state", "active")}


def note(hub: Path, device: str, **values: Any) -> None:
    """Note how a device stands: a hint, not synced."""
    # Written over as it is: a file system makes sure that one which is renamed is on disk.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(hub / "devices" / device / ".heard.json", flags, 0o600)
    try:
        os.pwrite(descriptor, json.dumps(values).encode().ljust(_NOTE_BYTES), 0)
    finally:
        os.close(descriptor)


def may_fork(hub: Path, device: str) -> bool:
    """Note that a device's log was set back; one that is so too often is held from then on."""
    now_ns = time.time_ns()
    forks = [at for at in _device(hub, device).get("forks", []) if abs(now_ns - at) < _DAY_NS]
    if len(forks) >= _FORKS_MAX:
        _change(hub, device, state="held")
        return False
    _change(hub, device, forks=[*forks, now_ns])
    return True


# -- groups ----------------------------------------------------------------------------------------


def is_enrolled(hub: Path, device: str) -> bool:
    """Return whether a device of that name was given a token or code, and is not retired."""
    known = _device(hub, device) if _DEVICE.match(device) else {}
    return bool(known.get("tokens") or known.get("code"))


def groups(hub: Path) -> dict[str, list[str]]:
    """Return the members of each group, by name."""
    members: dict[str, list[str]] = {}
    for device in devices(hub):
        for group in _device(hub, device).get("groups", ()):
            members.setdefault(str(group), []).append(device)
    return members


def set_member(hub: Path, group: str, device: str, *, is_in: bool) -> None:
    """Put a device into a group, or take it out.

    Raises:
        UsageError: the device is not enrolled, or that is no name of a group.
    """
    checked(group, "group")
    others = set(map(str, _device(hub, known(hub, device)).get("groups", ()))) - {group}
    _change(hub, device, groups=sorted(others | {group} if is_in else others))


def checked(name: str, what: str = "device") -> str:
    """Return the name, if a device, or a group, can be called so.

    Raises:
        UsageError: it cannot.
    """
    if not _DEVICE.match(name):
        raise UsageError(
            f"{name!r:.80} is no name of a {what}: it has up to 63 small letters, digits and '-'"
        )
    return name


def known(hub: Path, device: str) -> str:
    """Return the name, if a device was ever enrolled under it.

    Raises:
        UsageError: none was.
    """
    if not _device(hub, checked(device)):
        raise UsageError(f"{hub} has no device {device!r}: see taskq hub status {hub}")
    return device


def _device(hub: Path, device: str) -> dict[str, Any]:
    return _read(hub / "devices" / device / ".device.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:  # noqa: PTH123
            values = json.loads(opened.read(_FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _change(hub: Path, device: str, **values: Any) -> None:
    """Note values of a device; the server and whoever gives commands do so in turn."""
    folder, disk = hub / "devices" / device, PatientDisk()
    folder.mkdir(parents=True, exist_ok=True)
    turn = os.open(folder, os.O_RDONLY)
    try:
        disk.lock(turn)
        _write(folder, json.dumps(_device(hub, device) | values))
        for directory in (folder, folder.parent):  # a token that was told must hold after a crash
            disk.sync_directory(str(directory))
    finally:
        os.close(turn)


def _write(folder: Path, text: str) -> None:
    temporary = folder / ".device.json.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / ".device.json")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
