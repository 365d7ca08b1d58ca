"""A virtual environment for each contender that is not ours, made at first use and then kept."""

from __future__ import annotations

import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

INSTALL_SECONDS_MAX: Final = 600
_TELL: Final = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def installed(directory: Path, package: str) -> tuple[str, str]:
    """The interpreter that has the package, and the package's version. Remove it to have a newer.

    Raises:
        subprocess.CalledProcessError: pip could not install it; ``stderr`` says why.
    """
    place = directory / package
    python = str(place / "bin" / "python")
    if not _version(python, package):
        print(f"installing {package} into {place}", file=sys.stderr)
        venv.create(place, clear=True, with_pip=True)
        subprocess.run(
            (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package),
            check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX,
        )  # fmt: skip
    return python, _version(python, package)


def _version(python: str, package: str) -> str:
    try:
        output = subprocess.run(
            (python, "-c", _TELL, package), check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return output.stdout.strip()
