"""Where settings come from, and whether any of these places says something.

A program that is told nothing need not import what reads and checks it: pydantic-settings brings a
third of what such a program would load.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from taskq.core.errors import UsageError

#: Where settings are looked for in the working directory; those of a later file give way.
DOTENV, TOML, PYPROJECT = ".env", "taskq.toml", "pyproject.toml"
PREFIX: Final = "TASKQ_"
#: The log's directory where nothing is said.
DATA_DIR_DEFAULT: Final = "taskq-data"
#: From which level on ``taskq worker`` writes to stderr, likewise.
LOG_LEVEL_DEFAULT: Final = "warning"
LOG_FORMAT_DEFAULT: Final = "text"


def of_program(name: str) -> Path:
    """Where this user's system keeps the data of a desktop program of that name.

    Raises:
        UsageError: the name is empty or a path.
    """
    if not name.strip(" .") or "/" in name or "\\" in name or "\0" in name:
        raise UsageError(f"{name!r:.60} is no program's name: give one such as 'My App'")
    from platformdirs import user_data_path  # noqa: PLC0415 - few programs are desktop apps

    return user_data_path(name, appauthor=False) / "taskq"


def are_silent() -> bool:
    """Whether no place says anything of taskq. What cannot be read says what is wrong with it.

    Nor is a directory silent that all may write to: its files are first looked at for their owners.
    """
    if any(name[: len(PREFIX)].upper() == PREFIX for name in os.environ) or Path(TOML).exists():
        return False
    try:
        if Path.cwd().stat().st_mode & stat.S_IWOTH:
            return False
        return not (_dotenv_speaks() or _pyproject_speaks())
    except (OSError, ValueError):
        return False


def _dotenv_speaks() -> bool:
    file = Path(DOTENV)
    if not file.exists():
        return False
    # Anything but a plain file is left to whoever reads it in earnest.
    return not file.is_file() or PREFIX in file.read_text(encoding="utf-8").upper()


def _pyproject_speaks() -> bool:
    file = Path(PYPROJECT)
    if not file.is_file():
        return False
    import tomllib  # noqa: PLC0415 - most programs start where there is none

    return "taskq" in tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
