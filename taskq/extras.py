"""Find optional packages, and word the messages about missing ones."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

#: Name of the distribution. No index has it before a release, so a command with this name alone
#: would install a stranger's package.
DISTRIBUTION: Final = "taskq-local"
_CLONE: Final = "PATH/TO/THE/CLONE"


def workers() -> Any:
    """Import the package of the workers, by name: imports point from workers to this package.

    Raises:
        ImportError: the package is not installed.
    """
    return importlib.import_module("taskq_workers")


class _NoPandas:
    """Import finder that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def import_arrow() -> Any:
    """Import pyarrow for a command, without pandas.

    pyarrow imports an installed pandas at its first array of a list: half a second. A later request
    for a pandas frame still works.

    Raises:
        ImportError: pyarrow is not installed.
    """
    finder: Any = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        arrow = importlib.import_module("pyarrow")
        arrow.array([])
    finally:
        sys.meta_path.remove(finder)
    return arrow


def missing(what: str, package: str | None, extra: str) -> str:
    """Return the message about a missing package: its extra, and the command that installs it.

    Args:
        what: the part that needs it; the subject of the sentence.
        package: its import name; None if unknown.
        extra: the extra of this distribution that installs it.
    """
    needs = (
        f"the package {package.partition('.')[0]}, of the extra {extra!r}"
        if package
        else f"the extra {extra!r}"
    )
    return f"{what} needs {needs}: {install_line(extra)}"


def install_line(extra: str = "") -> str:
    """Return the command that reinstalls taskq with an extra, from the source of this install."""
    import shlex  # noqa: PLC0415 - only errors need them
    import subprocess  # noqa: PLC0415

    source, is_editable = _source()
    wanted = f"[{extra}]" if extra else ""
    is_path = "://" not in source
    target = f"{source}{wanted}" if is_path else f"{DISTRIBUTION}{wanted} @ {source}"
    as_line = subprocess.list2cmdline if os.sep == "\\" else shlex.join
    return as_line(["pip", "install", *(["-e"] if is_editable else []), target])


def _source() -> tuple[str, bool]:
    """Return the folder, file or address that pip installed taskq from, and whether editable.

    See https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    import json  # noqa: PLC0415 - only errors need them
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import url2pathname  # noqa: PLC0415

    try:
        origin: Any = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        return url2pathname(urlsplit(url).path), bool(origin.get("dir_info", {}).get("editable"))
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return url or _CLONE, False
